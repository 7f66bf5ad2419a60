"""The sources of the documentation site: the gallery, the reference, the pages that are made, and what checks them."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from examples import docs_numbers

import irmtv
from irmtv import OBJECTIVES
from paths import REPOSITORY

DOCS = REPOSITORY / "docs"


def loaded(path: Path):
    """A file of docs, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


gallery = loaded(DOCS / "_ext" / "gallery.py")
site_pages = loaded(DOCS / "_ext" / "site_pages.py")
check = loaded(DOCS / "check.py")


def test_the_settings_of_the_site_can_be_read_without_sphinx(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    settings = runpy.run_path(str(DOCS / "conf.py"))
    assert settings["release"] == irmtv.__version__ and settings["nitpicky"]
    assert "gallery" in settings["extensions"]


# ---- the gallery -------------------------------------------------------------------------------------------------


def test_the_gallery_has_at_most_fifteen_examples_and_lists_them_all():
    names = [path.stem.removeprefix("plot_") for path in gallery.EXAMPLES.glob("*.py")]
    assert sorted(gallery.ORDER) == sorted(names) and len(names) <= 15


@pytest.mark.parametrize("script", gallery.scripts(), ids=lambda path: path.stem)
def test_an_example_has_a_title_a_picture_and_its_words(script):
    text = script.read_text(encoding="utf-8")
    title, line = ast.get_docstring(ast.parse(text)).splitlines()[:2]
    assert re.fullmatch("=+", line) and len(line) == len(title)
    assert "plt.show()" in text
    assert len(gallery.alternative(script)) > 60
    if gallery.FOLDER.search(text):
        assert (gallery.LAST / f"{script.stem}.png").exists(), "make gallery-last"
        assert f"sphinx_gallery_thumbnail_path = 'gallery_last/{script.stem}.png'" in text


def test_an_example_whose_files_are_missing_shows_its_last_picture(monkeypatch, tmp_path):
    heart = gallery.EXAMPLES / "plot_heart.py"
    monkeypatch.setenv("IRMTV_DATA", str(tmp_path))
    assert "heart_disease" in gallery.lacks(heart)
    assert not re.search(gallery.pattern(), "plot_heart.py") and re.search(gallery.pattern(), "plot_simulation.py")
    page = ["Title\n=====\n"]
    gallery.say_what_is_missing(None, "gallery/plot_heart", page)
    assert "did not run" in page[0] and "image:: /gallery_last/plot_heart.png" in page[0]
    assert f":alt: {gallery.alternative(heart)}" in page[0]

    (tmp_path / "heart_disease").mkdir()
    assert gallery.lacks(heart) is None
    page = ["Title\n=====\n"]
    gallery.say_what_is_missing(None, "gallery/plot_heart", page)
    assert page == ["Title\n=====\n"]


# ---- the reference -----------------------------------------------------------------------------------------------


def documented() -> set[str]:
    """The full names in the reference's pages."""
    names, module = set(), ""
    for page in sorted((DOCS / "reference").glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            if found := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = found[1]
            elif found := re.match(r"\.\. py:data:: (\S+)", line):
                names.add(found[1])
            elif found := re.match(r"   ([A-Za-z_]\w*)$", line):
                names.add(f"{module}.{found[1]}")
    return names


def public_names() -> dict[str, list[str]]:
    """The names in `__all__` of every package, and of `losses.lightning`, by module; nothing is imported."""
    package = REPOSITORY / "src" / "irmtv"
    names = {}
    for path in [*sorted(package.rglob("__init__.py")), package / "losses" / "lightning.py"]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
                parts = path.relative_to(package.parent).with_suffix("").parts
                names[".".join(part for part in parts if part != "__init__")] = ast.literal_eval(node.value)
    return names


def test_the_reference_has_every_public_name():
    names = public_names()
    assert len(names) > 15 and "train" in names["irmtv.engine"]
    known = documented()
    # what `irmtv` itself has stands there, and not again where it is made
    missing = [f"{m}.{n}" for m, ns in names.items() for n in ns if not {f"{m}.{n}", f"irmtv.{n}"} & known]
    assert missing == []
    gone = [name for name in known if name.rsplit(".", 1)[1] not in names.get(name.rsplit(".", 1)[0], [])]
    assert gone == []


# ---- pages that are made -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [o.name for o in irmtv.objectives.BUILT_IN])
def test_the_page_of_a_method_has_its_formula_settings_and_code(name):
    objective = OBJECTIVES[name]
    page = site_pages.method_page(objective)
    assert objective.formula in page and objective.source in page
    assert all(f"| `{h.name}` | `{h.default!r}` |" in page for h in objective.hyperparameters)
    assert (REPOSITORY / site_pages.file_of(objective)).is_file()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    namespace: dict = {}
    exec(compile(code, name, "exec"), namespace)
    assert namespace["model"].objective == name


def test_the_page_of_options_has_every_command_and_its_defaults():
    page = site_pages.options_page()
    for command in ("fit", "predict", "evaluate", "diagnose", "report", "verify", "list", "run", "reproduce"):
        assert f"## irmtv {command}\n" in page
    assert "## irmtv data check" in page and "`irmtv fit DATA --target ...`" in page
    assert "| `--folds` | Number of cross-validation folds. Default: `3`. |" in page
    assert "| `--seed` | Random seed of the folds and the models. Default: `0`. |" in page
    assert "| `--environment`, `-e` |" in page and "| `--time-ordered`, `--no-time-ordered` |" in page


def test_every_page_of_docs_is_in_the_appendix():
    listed = (DOCS / "appendix.md").read_text(encoding="utf-8").split("{toctree}")[1].split()
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index", "appendix"}
    assert pages <= set(listed)


MARKDOWN = [*REPOSITORY.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("guide/*.md"), *DOCS.glob("reference/*.md")]
BUILT = [DOCS / name for name in ("_build", "gallery", "methods", "project", "reference/generated")]  # not in git


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: p.relative_to(REPOSITORY).as_posix())
def test_links_of_the_markdown_lead_somewhere_without_the_site(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    places = {link: (page.parent / link).resolve() for link in links}
    assert [link for link, place in places.items() if not place.exists() or {place, *place.parents} & {*BUILT}] == []


def test_the_site_has_pages_of_what_the_markdown_names():
    source = ["[a](../../src/irmtv/cli) [b](../../CHANGELOG.md#x) [c](../../examples/gallery) [d](../../src/irmtv)"]
    site_pages.fit_to_the_site(None, "guide/start", source)
    assert source == ["[a](/project/options.md) [b](/project/changelog.md#x) [c](/gallery/index.rst) d"]
    assert all((REPOSITORY / name).exists() for name in site_pages.MADE)


def test_links_of_the_root_lead_from_the_copies(tmp_path):
    text = site_pages.to_docs("[a](docs/engine.md#x) [b](CONTRIBUTING.md) [c](https://x.org) [d](papers/irm_tv)")
    assert text == "[a](../engine.md#x) [b](contributing.md) [c](https://x.org) [d](../../papers/irm_tv)"


def test_a_run_of_a_command_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(docs_numbers, "LAST_RUNS", tmp_path / "runs.json")
    assert docs_numbers.last_runs() == {}
    command = docs_numbers.NUMBERS[0].command
    docs_numbers.record(command, 12.34, 20.6)
    run = json.loads((tmp_path / "runs.json").read_text())[command]
    assert (run["seconds"], run["processor_seconds"]) == (12, 21) and re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    (row,) = [line for line in site_pages.numbers_page().splitlines() if f"| `{command}` |" in line]
    assert row.endswith(f"| {run['date']}, 12 s (21 s) |")
    docs_numbers.record(f"irmtv reproduce x {docs_numbers.TWO_JOBS}", 1, 1, "--device cuda")
    assert [run.get("with") for run in docs_numbers.last_runs().values()] == ["--device cuda", None]


def test_the_record_has_commands_of_the_list_only():
    assert set(docs_numbers.last_runs()) <= {one.command for one in docs_numbers.NUMBERS}


# ---- what checks the site ----------------------------------------------------------------------------------------


def test_the_check_finds_what_is_wrong_in_pages(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="top"><a href="b.html#here">x</a><a href="#top">y</a><img src="p" alt="A p">'
    )
    (tmp_path / "b.html").write_text(
        '<a href="c.html">x</a><a href="a.html#bottom">y</a><img src="p.png"><img src="q.png" alt="">'
        '<script src="https://cdn.example/x.js"></script><a href="https://elsewhere.example/">z</a><b id="here"></b>'
    )
    pages = check.read_pages(tmp_path)
    links = list(check.broken_links(pages))
    assert len(links) == 2 and links[0].endswith("c.html: no such file") and links[1].endswith("#bottom: no such place")
    assert [text.split(": ")[1].split()[0] for text in check.bare_pictures(pages)] == ["p.png", "q.png"]
    (loads,) = check.loaded_from_elsewhere(pages)
    assert loads.endswith("loads https://cdn.example/x.js")


# ---- the package -------------------------------------------------------------------------------------------------


def test_the_citation_has_the_version_and_the_licence_of_the_package():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == irmtv.__version__
    assert citation["license"] == project["license"] and citation["cff-version"] == "1.2.0"
    assert citation["preferred-citation"]["title"] == "Invariant Risk Minimization Is A Total Variation Model"


def test_the_release_check_pins_every_dependency_to_its_lower_bound():
    release = loaded(REPOSITORY / "tests" / "release" / "check.py")
    pins = [release.oldest_of(requirement) for requirement in release.requirements()]
    assert "pandas==2.2.2" in pins and len(pins) == len({pin.split("==")[0] for pin in pins}) > 10


def test_a_release_needs_one_version_and_its_date(monkeypatch, tmp_path):
    release = loaded(REPOSITORY / "tests" / "release" / "check.py")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "src" / "irmtv").mkdir(parents=True)

    def write(version: str, cited: str, heading: str) -> None:
        (tmp_path / "src" / "irmtv" / "_version.py").write_text(f'__version__ = "{version}"\n')
        (tmp_path / "CITATION.cff").write_text(f"cff-version: 1.2.0\nversion: {cited}\n")
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {heading}\n\n## 0.1.0 (2025-01-01)\n")

    write("0.2.0", "0.2.0", "0.2.0 (2026-12-01)")
    assert release.versions() == "0.2.0"
    write("0.2.0", "0.1.0", "0.2.0 (2026-12-01)")
    with pytest.raises(release.Failed, match=r"CITATION\.cff 0\.1\.0"):
        release.versions()
    write("0.2.0", "0.2.0", "0.2.0 (unreleased)")
    with pytest.raises(release.Failed, match="write its date"):
        release.versions()
