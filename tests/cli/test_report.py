"""`irmtv report`: a page of a model file or of an experiment's folder, or a sentence that says what was expected."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from app.pages.summaries import ODD, summary
from irmtv import InvariantClassifier, cli
from irmtv.app.pages.model import model_content
from irmtv.estimators.files import save
from irmtv.html.page import page
from irmtv.lab.experiments import parse_spec, run_experiment
from lab.experiments.small import ERM, TV, small_text


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    return InvariantClassifier(hidden=(), penalty_weight=1.0, max_steps=5, random_state=0).fit(
        x, y, environment=np.repeat([0, 1], 30)
    )


def test_the_page_of_a_model_comes_from_what_is_stored_in_it(command, fitted, tmp_path):
    about = summary(names=ODD[:5], features=[o for o in ODD if "\ud800" not in o])
    path = save(fitted, tmp_path / "model.irmtv", about=about)
    ended = command("report", path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{tmp_path / 'model.html'}\n", "the path, to be opened"
    shown = (tmp_path / "model.html").read_text(encoding="utf-8")
    assert shown == page(model_content(about))
    ended = command("report", path, "--out", tmp_path / "other.html", "--json")
    told = json.loads(ended.out)
    assert told["report"] == str(tmp_path / "other.html") and told["headline"].startswith("What to expect in a new")
    assert "Every environment: the plain and the chosen model" in told["sections"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.html", "model.irmtv", "other.html"]


def test_nothing_is_trained_or_loaded_for_a_model_with_a_summary(command, fitted, tmp_path, monkeypatch):
    path = save(fitted, tmp_path / "model.irmtv", about=summary())
    monkeypatch.setattr("irmtv.estimators.files.load", lambda *a, **k: pytest.fail("loaded"))
    monkeypatch.setattr("irmtv.engine.train", lambda *a, **k: pytest.fail("trained"))
    assert command("report", path).code == 0


@pytest.mark.parametrize("about", [None, {"mine": 1}])
def test_a_model_saved_from_python_has_a_page_too(command, fitted, tmp_path, about):
    path = save(fitted, tmp_path / "model.irmtv", about=about)
    assert command("report", path).code == 0
    shown = (tmp_path / "model.html").read_text(encoding="utf-8")
    assert "InvariantClassifier from model.irmtv" in shown and "saved from Python" in shown


def test_the_folder_of_an_experiment(command, tmp_path):
    run_experiment(parse_spec(small_text(ERM, TV, rules=["iid"])), tmp_path / "runs")
    before = sorted(p.name for p in (tmp_path / "runs").iterdir())
    ended = command("report", tmp_path / "runs")
    assert ended.code == 0 and ended.out == f"{tmp_path / 'runs' / 'report.html'}\n"
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == sorted([*before, "report.html"])
    assert "Under the rule iid" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")


def test_the_page_of_run_is_that_of_report(command, tmp_path):
    spec = tmp_path / "spec.toml"
    spec.write_text(small_text(ERM, rules=["iid"]))
    command("run", spec, "--out", tmp_path / "runs")
    first = (tmp_path / "runs" / "report.html").read_bytes()
    command("report", tmp_path / "runs", "--out", tmp_path / "again.html")
    text = (tmp_path / "again.html").read_bytes()
    assert b"as run: repetitions" in text
    assert text == first


def test_what_is_neither_a_model_nor_an_experiment(command, fitted, tmp_path):
    ended = command("report", tmp_path / "x.irmtv")
    assert ended.code == 1 and "must be a model file or the folder of an experiment. There is no" in ended.err
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    ended = command("report", tmp_path / "a.csv")
    assert ended.code == 1 and "is not a model file of irmtv" in ended.err
    ended = command("report", tmp_path)
    assert ended.code == 1 and "holds no experiment" in ended.err and "a.csv" in ended.err
    save(fitted, tmp_path / "mine.irmtv")
    ended = command("report", tmp_path)
    assert ended.code == 1 and f"use irmtv report {tmp_path / 'mine.irmtv'}" in ended.err
    whole = (tmp_path / "mine.irmtv").read_bytes()
    (tmp_path / "half.irmtv").write_bytes(whole[: len(whole) // 2])
    ended = command("report", tmp_path / "half.irmtv")
    assert ended.code == 1 and "half.irmtv" in ended.err
    newer = save(fitted, tmp_path / "newer.irmtv", about={**summary(), "schema": 9})
    ended = command("report", newer)
    assert ended.code == 1 and "newer irmtv" in ended.err
    assert not (tmp_path / "model.html").exists()


def test_where_the_page_cannot_go(command, fitted, tmp_path):
    path = save(fitted, tmp_path / "model.irmtv", about=summary())
    ended = command("report", path, "--out", tmp_path)
    assert ended.code == 1 and "--out must be a file" in ended.err
    ended = command("report", path, "--out", tmp_path / "no" / "x.html")
    assert ended.code == 1 and "--out must be in a folder that exists" in ended.err
    assert command("report").code == 2


def test_what_the_page_is_made_of_is_not_overwritten(command, fitted, tmp_path):
    model = save(fitted, tmp_path / "m.irmtv", about=summary())
    before = model.read_bytes()
    ended = command("report", model, "--out", model)
    assert (ended.code, ended.out) == (1, "") and "--out must not be a file that is read" in ended.err
    assert model.read_bytes() == before
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "runs.sqlite").write_bytes(b"x")
    ended = command("report", folder, "--out", folder / "runs.sqlite")
    assert ended.code == 1 and "--out must not be a file that is read" in ended.err


def test_a_page_that_fails_half_way_leaves_the_old_one(command, fitted, tmp_path, monkeypatch):
    path = save(fitted, tmp_path / "model.irmtv", about=summary())
    (tmp_path / "model.html").write_text("old, Nothing in this page was loaded from elsewhere.")

    def full(*arguments: object) -> None:
        raise ValueError("the disk is full")

    monkeypatch.setattr(os, "replace", full)
    assert command("report", path).code == 1
    assert (tmp_path / "model.html").read_text().startswith("old, ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.html", "model.irmtv"]


def test_help_names_it():
    assert "report" in [c.name for c in cli.app.registered_commands]
