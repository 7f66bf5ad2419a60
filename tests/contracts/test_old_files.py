"""Model files, an experiment's folder and import paths of irmtv 0.1, from before its modules moved, go on working.

The files are in `tests/files/old`; `make_files.py` there made them, at the commit that `expected.json` names.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import shutil
import sqlite3
import sys
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import irmtv
from files.old.make_files import N_SHOWN, expected, inputs, network
from irmtv import _moved
from irmtv.lab.experiments import load_spec, read_results
from paths import REPOSITORY

OLD = REPOSITORY / "tests" / "files" / "old"
MODELS: dict[str, dict[str, Any]] = json.loads((OLD / "expected.json").read_text())["models"]
FITS = [name for name in MODELS if name.startswith("fit_")]


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_csv(OLD / "rows.csv")


def load(name: str) -> Any:
    return irmtv.load(OLD / f"{name}.irmtv", **({"module": network} if name == "module" else {}))


def assert_same(got: Any, wanted: Any, where: str) -> None:
    """Equal, and numbers to 1e-10."""
    if isinstance(wanted, dict):
        assert list(got) == list(wanted), where
        for key in wanted:
            assert_same(got[key], wanted[key], f"{where}[{key!r}]")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    elif isinstance(wanted, float):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-10, err_msg=where)
    else:
        assert got == wanted, where


def test_every_file_has_expected_numbers():
    assert {path.stem for path in OLD.glob("*.irmtv")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_gives_its_predictions_and_attributes(name, rows):
    wanted = MODELS[name]
    beside = {k: rows[[column]] for k, column in wanted.get("beside", {}).items()}
    got = json.loads(json.dumps(expected(load(name), inputs(rows, **wanted["input"]), beside)))
    known = {"input", "beside", "command", "columns_left_out", "irmtv_predict"}
    assert set(got) == set(wanted) - known
    later = {key: got["parameters"].pop(key) for key in [*got["parameters"]] if key not in wanted["parameters"]}
    for entry in got:
        assert_same(got[entry], wanted[entry], entry)
    # parameters that came later have their defaults
    signature = inspect.signature(getattr(irmtv, wanted["class"])).parameters
    assert later == {key: signature[key].default for key in later}


@pytest.mark.parametrize("name", FITS)
def test_files_of_irmtv_fit_name_modules_by_their_old_names(name):
    """So loading them, above, finds the classes where they are now."""
    with zipfile.ZipFile(OLD / f"{name}.irmtv") as archive:
        parts = archive.read("parts.skops")
    assert b"irmtv.tabular." in parts and b"irmtv.data." not in parts


@pytest.mark.parametrize("name", FITS)
def test_predict(command, name, tmp_path):
    ended = command("predict", OLD / f"{name}.irmtv", OLD / "rows.csv", "--out", tmp_path / "predictions.csv")
    assert ended.code == 0, ended.err
    got, wanted = (
        list(csv.reader(lines))
        for lines in (
            (tmp_path / "predictions.csv").read_text().splitlines()[: N_SHOWN + 1],
            MODELS[name]["irmtv_predict"],
        )
    )
    assert_same([[_number(cell) for cell in row] for row in got], [[_number(c) for c in row] for row in wanted], name)


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


@pytest.mark.parametrize("name", MODELS)
def test_verify(command, name):
    verified = json.loads(command("verify", OLD / f"{name}.irmtv", "--json").out)
    needs = {"inference": "aux", "tiva": "aux", "module": "module"}  # to predict: the command cannot give them
    if name in needs:
        assert f"{needs[name]} must be given" in verified["problem"]
    else:
        assert (verified["good"], verified["problem"], verified["checksum"]) == (True, None, "good")


@pytest.mark.parametrize("name", [*FITS, "classifier", "pipeline", "boosting"])
def test_report(command, name, tmp_path):
    ended = command("report", OLD / f"{name}.irmtv", "--out", tmp_path / "page.html", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    if name in FITS:
        assert len(report["sections"]) > 3
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")


# ---- an experiment --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy: opening a store may write into its folder."""
    shutil.copytree(OLD / "experiment", tmp_path / "experiment")
    return tmp_path / "experiment"


def stored(folder: Path) -> dict[str, list[str]]:
    """Every row of what was trained, by table."""
    with closing(sqlite3.connect(folder / "experiment.sqlite")) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: sorted(map(repr, database.execute(f'SELECT * FROM "{name}"'))) for name in tables}


def test_results_of_an_experiment_are_read(folder):
    results = read_results(load_spec(OLD / "experiment.toml"), folder)
    with open(OLD / "experiment" / "small-choices.csv", newline="") as file:
        stored = list(csv.DictReader(file))
    assert len(results) == len(stored) == 64
    for got, wanted in zip(results.to_dict("records"), stored, strict=True):
        for name in ("setting", "method", "rule", "metric", "summary", "chosen_method"):
            assert got[name] == wanted[name]
        assert (got["repetition"], got["step"]) == (int(wanted["repetition"]), int(wanted["step"]))
        np.testing.assert_allclose(got["value"], float(wanted["value"]), rtol=1e-9)  # the CSV has ten digits
        assert got["hyperparameters"] == json.loads(wanted["hyperparameters"])


def test_running_an_experiment_again_trains_nothing(command, folder, monkeypatch):
    monkeypatch.setattr("irmtv.lab.experiments.run.train", lambda *a, **k: pytest.fail("trained"))
    before = stored(folder)
    ended = command("run", OLD / "experiment.toml", "--out", folder, "--json")
    assert ended.code == 0, ended.err
    assert "18 were there, 0 trained" in ended.err
    got, wanted = json.loads(ended.out), json.loads((OLD / "experiment.json").read_text())
    assert_same(got["summary"], wanted["summary"], "summary")
    for one, other in zip(got["tests"], wanted["tests"], strict=True):
        del one["note"], other["note"]
        assert_same(one, other, "tests")
    assert stored(folder) == before and len(before["runs"]) == 18


def test_report_of_an_experiment(command, folder):
    ended = command("report", folder)
    assert ended.code == 0, ended.err
    assert "TV-l1" in (folder / "report.html").read_text(encoding="utf-8")


# ---- import paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", _moved.MOVED)
def test_an_old_import_path_gives_the_module_of_the_new(old, monkeypatch):
    if old == "irmtv.lightning":
        pytest.importorskip("lightning")
    module = importlib.import_module(_moved.MOVED[old])
    package = ".".join(old.split(".")[:2])  # which warns, once for all of its modules
    for name in {old, package}:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.warns(DeprecationWarning, match=f"{package} has moved: import {_moved.MOVED[package]} instead"):
        assert importlib.import_module(old) is module


@pytest.mark.parametrize(
    ("old", "names"),
    [
        ("irmtv.experiments", "Store load_spec read_records read_results run_experiment"),
        ("irmtv.report", "report_experiment"),
        ("irmtv.theory", "STATEMENTS"),
        ("irmtv.environments", "Affine"),
    ],
)
def test_names_of_old_import_paths(old, names, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match="has moved"):
        module = importlib.import_module(old)
    new = importlib.import_module(_moved.MOVED[old])
    for name in names.split():
        assert getattr(module, name) is getattr(new, name)
