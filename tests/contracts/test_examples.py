"""The examples run, and what they print is what they promise."""

from __future__ import annotations

import importlib.util
import re

import pytest
import sklearn

from paths import REPOSITORY

EXAMPLES = REPOSITORY / "examples"


def loaded(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(capsys):
    """Run an example's main() and give what it prints; scikit-learn's settings are put back."""

    def run(name: str, **options: int) -> str:
        module = loaded(name)
        with sklearn.config_context():
            module.main(**options)
        return capsys.readouterr().out

    return run


def numbers(line: str) -> list[float]:
    return [float(n) for n in re.findall(r"(?<![\w-])\d+\.\d+", line)]


def test_a_pipeline_on_a_mixed_table(run):
    pytest.importorskip("skrub")
    text = run("table_pipeline")
    assert "an invariant model was found" in text and text.rstrip().endswith("the same predictions: True")
    boosted, invariant = (numbers(line) for line in text.splitlines() if line.startswith(("gradient", "InvariantC")))
    assert boosted[1] < 50 < 60 < invariant[1]  # at the next hospital
    assert boosted[0] > invariant[0]  # and the price at these


def test_a_grid_search_that_leaves_an_environment_out(run):
    text = run("leave_one_environment_out")
    assert "GridSearchCV chose {'penalty_weight': 10.0}" in text
    assert "rule='leave-one-env-out') chose {'penalty_weight': 10.0" in text
    chosen, other = (float(n) for n in re.search(r"left out: (\S+) for the first choice, (\S+) for", text).groups())
    assert chosen < other  # what the choice rests on
    searched, left_out, invariant = (numbers(line)[0] for line in text.splitlines() if "worst test environment" in line)
    assert max(searched, left_out) < 65 < 75 < invariant  # as the example says


def test_a_network_of_ones_own_on_series(run):
    erm, tv = (numbers(line) for line in run("series_network", rows=400, steps=500).splitlines()[1:])
    assert erm[2] < 40 < 60 < tv[2]
    assert abs(tv[0] - tv[1]) < abs(erm[0] - erm[1])


def test_rows_over_ranks(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert 75 < numbers(run("rows_over_ranks"))[-1] < 89
    assert not [*tmp_path.iterdir()]


def test_tables_for_the_command_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = run("sales_tables")
    assert "sales.csv, 4,000 rows" in text and "elsewhere.csv, 5,000 rows" in text
    columns = (tmp_path / "sales.csv").read_text().splitlines()[0].split(",")
    assert columns[:15] == [f"x{i}" for i in range(1, 16)] and columns[15:] == ["period", "sold"]


def test_one_cell_of_the_table_of_boosting():
    """V-REx on the first setting of docs/boosting.md, whose plain boosting has about 61 %."""
    pytest.importorskip("lightgbm")
    accuracy, outcome = loaded("boosting_simulation").worst(("V-REx", (0.999, 0.7), 0.9, 10))
    assert outcome == "invariant-found" and accuracy > 80


def test_one_part_of_boostings_step_rule():
    pytest.importorskip("lightgbm")
    example = loaded("boosting_step_rule")
    task = example.make_simulation(3000, (0.999, 0.7), 0.9, random_state=100)
    task = example.replace(task, held_out=task.test, test=None)
    free, cut = (example.worst(task, example.trained(task, "vrex", 3, 2, radius)) for radius in (None, 0.0))
    assert free > cut + 10  # without any pull a penalty is plain boosting
