"""Pages that are made when the site is built: a page per method, the project's files, the commands behind numbers.

`methods/` comes from the registry (`irmtv.OBJECTIVES`), `project/` from the files of the repository's root, and
`project/numbers.md` from `examples/docs_numbers.py`. All of them are written anew by every build and are not in git.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from irmtv import objectives

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PROJECT = {
    "README.md": "readme",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "SECURITY.md": "security",
}
MADE = {  # what a link in the Markdown names, and the page that the site has of it
    "src/irmtv/cli": "project/options.md",
    "src/irmtv/objectives": "methods/index.md",
    "examples/docs_numbers.py": "project/numbers.md",
    "examples/gallery": "gallery/index.rst",
    **{name: f"project/{page}.md" for name, page in PROJECT.items()},
}
GUIDE = (  # in reading order, as guide/index.md has them; pages that are not listed follow
    *("start", "own-data", "environments", "new-environment", "limits", "which-method", "choice"),
    *("mathematics", "pytorch", "published-codes", "reproduction", "adding-a-method", "large-data"),
)
NEEDS = {
    "nothing": "nothing: rows and a target are enough",
    "environment": "environments: a label for every row",
    "aux": "auxiliary variables, from which it infers environments",
}


def write(path: Path, text: str) -> None:
    """Only if it has changed, so that Sphinx reads no page again without need."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows])


def file_of(objective: Any) -> Path:
    """The file whose module assigns the objective to a name, relative to the repository."""
    for info in pkgutil.iter_modules(objectives.__path__, "irmtv.objectives."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            if value is objective and re.search(rf"^(\w+, )*{name}\b.* = ", inspect.getsource(module), re.MULTILINE):
                return Path(inspect.getfile(module)).relative_to(ROOT)
    raise ValueError(f"no file in src/irmtv/objectives makes {objective.name!r}: its page cannot link to it")


def searched(search: tuple[Any, ...]) -> str:
    """What a search tries, in words."""
    if not search:
        return "–"
    if search[0] in ("log", "linear") and len(search) == 3:
        return f"{search[1]:g} to {search[2]:g}" + (" (logarithms)" if search[0] == "log" else "")
    return ", ".join(f"`{value!r}`" for value in search)


def method_page(objective: Any) -> str:
    """Formula, source, needs, hyper-parameters and the file of one objective."""
    path = file_of(objective)
    settings = table(
        ("name", "default", "what it means", "what a search tries"),
        ((f"`{h.name}`", f"`{h.default!r}`", h.meaning, searched(h.search)) for h in objective.hyperparameters),
    )
    kind = "Classifier" if {"binary", "multiclass"} & set(objective.tasks) else "Regressor"
    tasks = [f"- {task}" for task in objective.tasks] + [
        f"- not {task}: {why}" for task, why in objective.undefined.items()
    ]
    parts = [
        f"# {objective.name}",
        f"{objective.summary[0].upper()}{objective.summary[1:]}.",
        "## What is minimised",
        f"```text\n{objective.formula}\n```",
        "[The methods](../methods.md) explains the symbols.",
        "## Where it comes from",
        f"{objective.source}, {objective.year}.",
        "## What it needs",
        f"It needs {NEEDS[objective.needs]}. It is defined for:",
        "\n".join(tasks),
        "## How to use it",
        f'```python\nfrom irmtv import Invariant{kind}\n\nmodel = Invariant{kind}("{objective.name}")\n```',
        f"On the command line: `irmtv fit table.csv --objective {objective.name}`, with `--target` and "
        "the columns that it needs.",
    ]
    if objective.hyperparameters:
        parts += ["## Its hyper-parameters", settings]
    parts += [
        "## The code",
        f"All of it is in `{path.as_posix()}`:",
        f"```{{literalinclude}} ../../{path.as_posix()}\n:language: python\n```",
    ]
    return "\n\n".join(parts) + "\n"


def write_methods() -> None:
    known = list(objectives.BUILT_IN)
    for objective in known:
        write(DOCS / "methods" / f"{objective.name}.md", method_page(objective))
    for old in set((DOCS / "methods").glob("*.md")) - {DOCS / "methods" / f"{o.name}.md" for o in known}:
        if old.name != "index.md":
            old.unlink()
    rows = ((f"[{o.name}]({o.name}.md)", o.summary, o.needs, f"{o.source}, {o.year}") for o in known)
    names = "\n".join(o.name for o in known)
    write(
        DOCS / "methods" / "index.md",
        "# Methods\n\nEvery method is an objective: a risk, and penalties on what differs between environments. "
        "These pages are made from the registry, `irmtv.OBJECTIVES`; `irmtv list NAME` prints the same. A `+` adds "
        'penalties: `"irm-tv-l1+vrex"`. [The methods](../methods.md) says what the symbols mean and what was decided '
        "where published codes differ.\n\n"
        f"{table(('method', 'what it does', 'needs', 'source'), rows)}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n",
    )


def to_docs(text: str) -> str:
    """Links of a file in the root, for a copy of it in `project/`."""
    text = re.sub(r"\]\(docs/", "](../", text)
    for name, page in PROJECT.items():
        text = text.replace(f"]({name})", f"]({page}.md)")
    return re.sub(r"\]\((?!\w+:|[#./]|(?:readme|contributing|changelog|security)\.md)", "](../../", text)


def write_project() -> None:
    for name, page in PROJECT.items():
        write(DOCS / "project" / f"{page}.md", to_docs((ROOT / name).read_text(encoding="utf-8")))
    write(DOCS / "project" / "numbers.md", numbers_page())
    write(DOCS / "project" / "options.md", options_page())


def options_page() -> str:
    """Every command with its arguments and options, as its parser has them."""
    from typer.main import get_command

    from irmtv.cli import app

    parts = [
        "# Every command and option",
        "Made from the parser when this site is built; `irmtv COMMAND --help` prints the same. "
        "[What the command reads, says and writes](../command-line.md) explains the rest.",
    ]
    for name, command in get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        for words, one in [(f"{name} {n}", c) for n, c in inner.items()] if inner else [(name, command)]:
            parts += command_section(words, one)
    return "\n\n".join(parts) + "\n"


def command_section(words: str, command: Any) -> list[str]:
    given = [p for p in command.params if not p.opts[0].startswith("-")]
    usage = [f"{p.name.upper()}" if p.required else f"[{p.name.upper()}]" for p in given]
    usage += [f"{p.opts[0]} ..." for p in command.params if p.required and p not in given]
    rows = [(argument_or_option(p), meaning(p)) for p in command.params if p.name != "help"]
    text = inspect.cleandoc(command.help or "")
    return [f"## irmtv {words}", text, f"`irmtv {' '.join([words, *usage])}`", table(("option", "meaning"), rows)]


def argument_or_option(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def meaning(parameter: Any) -> str:
    """The help text, with the default where the text does not say it."""
    text, default = (parameter.help or "").rstrip(), parameter.default
    if parameter.required:
        return f"{text} Required."
    if default is None or default is False or default == () or "default:" in text:
        return text
    return f"{text} Default: `{default}`."


def numbers_page() -> str:
    from examples.docs_numbers import NUMBERS, last_runs

    runs = last_runs()
    rows = []
    for one in NUMBERS:
        run = runs.get(one.command, {})
        minutes = "?" if one.minutes is None else f"{one.minutes:g}"
        page = "README" if one.page == "README" else f"[{one.page}](../{one.page}.md)"
        when = f"{run['date']}, {run['seconds']} s" if run else "not recorded"
        when += f" ({run['processor_seconds']} s)" if "processor_seconds" in run else ""
        when += f", with `{run['with']}`" if "with" in run else ""
        rows.append((page, one.table, f"`{one.command}`", one.needs or "–", minutes, when))
    return (
        "# The commands behind the numbers\n\nEvery number in these pages comes from a command. "
        "`make docs-numbers` runs the quick ones (`ALL=1`: all), and `python examples/docs_numbers.py --page theory "
        "--run` those of one page. A run writes its date and duration to `examples/docs_numbers.json`, which the last "
        "column shows, with the processor time in brackets where one process did the work. "
        "Minutes are those of two cores; ? was not measured.\n\n"
        f"{len(runs)} of {len(NUMBERS)} commands have a recorded run. *Not recorded* are those that ran before this "
        "record began and not since: most of them take tens of minutes or hours, or need a GPU.\n\n"
        + table(("page", "numbers", "command", "needs", "minutes", "last run"), rows)
        + "\n"
    )


def write_pages(app: Any) -> None:
    write_methods()
    write_project()


def fit_to_the_site(app: Any, name: str, source: list[str]) -> None:
    """Toctrees name pages that exist; links out of docs lead to the pages that are made of what they name."""
    text = source[0]
    if name == "guide/index":
        there = [page for page in GUIDE if (DOCS / "guide" / f"{page}.md").exists()]
        more = sorted({path.stem for path in (DOCS / "guide").glob("*.md")} - {*GUIDE, "index"})
        text += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(there + more) + "\n```\n"
    if name in ("index", "appendix") and not (DOCS / "guide" / "index.md").exists():
        text = text.replace("\nguide/index\n", "\n").replace("(guide/index.md)", "(project/readme.md)")
    up = "../" * (name.count("/") + 1)
    for file, page in MADE.items():
        text = re.sub(rf"\]\({re.escape(up + file)}/?(#[\w-]+)?\)", rf"](/{page}\1)", text)

    def without_folder(link: re.Match[str]) -> str:  # there is no page of a folder
        return link[1] if (DOCS / name).parent.joinpath(link[2]).is_dir() else link[0]

    source[0] = re.sub(r"(?<!!)\[([^]]*)\]\((\.\./[^)#]*)\)", without_folder, text)


def of_other_packages(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Members that a class has from other packages (scikit-learn, torch) stand in their own references."""
    if what != "class" or name == "__init__":
        return None
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    home = getattr(member, "__module__", None) or ""
    return True if isinstance(home, str) and home and not home.startswith("irmtv") else None


def without_other_notes(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """The note that skrub puts into the docstring of a class links to skrub's own pages."""
    start = next((i for i, line in enumerate(lines) if line.startswith(".. admonition:: A note on using")), None)
    if start is not None:
        end = next((i for i in range(start + 1, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
        del lines[start:end]


def without_types_of_fields(
    app: Any, what: str, name: str, member: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """The signature of a model of pydantic repeats the rules of every field; docs/specs.md has them as text."""
    return ("(**fields)", "") if what == "class" and hasattr(member, "model_fields") else None


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write_pages, priority=100)
    app.connect("autodoc-skip-member", of_other_packages)
    app.connect("autodoc-process-docstring", without_other_notes, priority=100)  # before numpydoc
    app.connect("autodoc-process-signature", without_types_of_fields)
    app.connect("source-read", fit_to_the_site)
    return {"parallel_read_safe": True}
