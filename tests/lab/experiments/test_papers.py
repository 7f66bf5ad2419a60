"""The specs of published tables that come with the package."""

from __future__ import annotations

import re

import pytest

from datasets import test_celeba, test_colored_mnist, test_landcover
from irmtv.datasets import DATASETS
from irmtv.datasets.fetch import VARIABLE
from irmtv.lab.experiments import load_spec, papers, parse_spec, run_experiment
from irmtv.lab.experiments.papers import paper_spec, paper_specs, papers_folder
from irmtv.lab.experiments.plan import plan
from paths import REPOSITORY

NAMES = sorted(paper_specs())
NOT_PUBLIC = ("celeba", "landcover")  # tables of files that cannot be downloaded


@pytest.fixture
def small_files(tmp_path, monkeypatch):
    """Files of the published layouts, a few hundred rows each; images with next to nothing on them."""
    test_celeba.write(tmp_path / "celeba" / "celeba_features.csv", *test_celeba.table())
    test_landcover.save(tmp_path / "landcover" / "landcover.pkl", test_landcover.published())
    test_colored_mnist.write(tmp_path / "mnist_t10k", 240, test_colored_mnist.SMALL)
    monkeypatch.setenv(VARIABLE, str(tmp_path))


def test_the_tables_of_this_checkout_are_found():
    assert papers_folder() == REPOSITORY / "papers" / "irm_tv"
    assert set(NAMES) == {p.stem for p in papers_folder().glob("*.toml")}
    assert {"control", "control-regression", "selection", "simulation"} <= set(NAMES)
    assert paper_spec("simulation") == papers_folder() / "simulation.toml"


@pytest.mark.parametrize("name", NAMES)
def test_every_table_loads_and_can_be_planned(name, request):
    if name in NOT_PUBLIC:
        request.getfixturevalue("small_files")
    spec = load_spec(paper_spec(name))
    assert spec.name == name  # its files are called so
    assert spec.description.strip().endswith(".")
    assert spec.first_seed == 0  # settings were found with other seeds
    asked = spec.with_(repetitions=1)
    make = DATASETS[spec.data.name].make
    try:
        tasks = {s: make(**spec.data.arguments_of(s), random_state=0) for s in spec.data.settings}
    except (FileNotFoundError, ConnectionError) as missing:
        pytest.skip(f"{name} needs its files: {missing}")
    work, total, found = plan(asked, frozenset(), "cpu", tasks.__getitem__)
    assert found == 0 and total == sum(len(w.members) for w in work) > 0
    assert {w.members[0].method.label for w in work} == {m.label for m in spec.methods}


@pytest.mark.parametrize("name", [*NOT_PUBLIC, "colored-mnist"])
def test_a_table_of_files_runs_on_small_ones(name, small_files, tmp_path):
    text = paper_spec(name).read_text()
    for key, value in {"steps": 30, "warmup": 10, "snapshot_every": 10, "repetitions": 1, "folds": 2}.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    methods = ["ERM", "V-REx"] if name == "colored-mnist" else ["ERM", "Minimax-TV-l1", "ERM, inferred", "LfF"]
    spec = parse_spec(text, papers_folder()).with_(methods=methods)
    report = run_experiment(spec, tmp_path / "store")
    assert report.failed == () and report.trained == report.runs > 0


def test_settings_of_the_paper_are_those_of_its_table():
    spec = load_spec(paper_spec("simulation"))
    assert spec.published is not None
    for method in spec.methods:
        if method.published is not None:
            assert set(spec.data.settings) <= set(spec.published.results[method.published])


def test_an_unknown_table_is_answered_with_a_near_one():
    with pytest.raises(ValueError, match=r"NAME must be one of .*Got 'simulatoin'. Did you mean 'simulation'\?"):
        paper_spec("simulatoin")


def test_a_package_without_its_tables_says_so(tmp_path, monkeypatch):
    inside = tmp_path / "a" / "b" / "irmtv" / "lab" / "experiments" / "papers.py"
    monkeypatch.setattr(papers, "__file__", str(inside))
    with pytest.raises(ValueError, match=r"are neither in .*irmtv nor in .*a\. Reinstall irmtv"):
        papers_folder()
    for place in (tmp_path / "a" / "papers", tmp_path / "a" / "b" / "irmtv" / "papers"):
        (place / "irm_tv").mkdir(parents=True)
        assert papers_folder() == place / "irm_tv"  # inside the package goes first
