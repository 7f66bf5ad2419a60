"""Specs that are solved by Newton's method: what is trained, stored, chosen and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.lab.experiments import Spec, Store, read_results, run_experiment
from irmtv.lab.experiments import run as run_module
from irmtv.lab.experiments.store import RunRecord
from irmtv.lab.tables import report_experiment
from lab.experiments.small import ERM, small

TV = {"objective": "irm-tv-l1", "penalty_weight": [0.0, 100.0]}
VECTOR = {
    "objective": "irm-tv-l2",
    "label": "vector",
    "penalty_weight": [1.0, 100.0],
    "classifier": "vector",
    "start": "equal-risks",
}
RULES = ["fixed", "invariance", "iid", "worst-env", "oracle"]
NEWTON = {"solver": "newton", "l2": 1e-3, "dtype": "float64"}
FIXED = {"fixed": {"penalty_weight": 100.0}}


@pytest.fixture(scope="module")
def spec() -> Spec:
    pools = {"both": ["irm-tv-l1", "vector"]}
    methods = (ERM, {**TV, **FIXED}, {**VECTOR, **FIXED})
    return small(*methods, rules=RULES, repetitions=2, training=NEWTON, pools=pools)


@pytest.fixture(scope="module")
def folder(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("newton") / "x"
    assert run_experiment(spec, folder).trained == 2 * 3 * (1 + 2 + 2)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[RunRecord]:
    with Store.read(folder) as store:
        return store.runs()


@pytest.fixture(scope="module")
def frame(spec: Spec, folder: Path) -> pd.DataFrame:
    return read_results(spec, folder)


def the_run(runs: list[RunRecord], method: str, repetition: int, part: str, weight: float | None = None) -> RunRecord:
    (run,) = (
        r
        for r in runs
        if (r.method, r.repetition, r.part, r.hyperparameters.get("penalty_weight"))
        == (method, repetition, part, weight)
    )
    return run


def test_every_run_has_erm_and_its_solution(runs):
    assert {r.status for r in runs} == {"finished"}
    for run in runs:
        assert run.arrays["steps"].tolist() == [0, 1]
        assert run.hyperparameters["solver"] == "newton"
        assert run.hyperparameters.get("start") == ("equal-risks" if run.method == "vector" else None)
        assert run.hyperparameters["classifier"] == ("vector" if run.method == "vector" else "scalar")
    for repetition in range(2):
        erm = the_run(runs, "erm", repetition, "fold 1/2").arrays["held-out/risk"]
        np.testing.assert_allclose(erm[0], erm[1])
        for method, weight in (("irm-tv-l1", 100.0), ("vector", 1.0), ("vector", 100.0)):
            risk = the_run(runs, method, repetition, "fold 1/2", weight).arrays["held-out/risk"]
            np.testing.assert_allclose(risk[0], erm[0], rtol=1e-9)
            assert not np.allclose(risk[1], erm[1], rtol=1e-3)
        without = the_run(runs, "irm-tv-l1", repetition, "fold 1/2", 0.0).arrays["held-out/risk"]
        np.testing.assert_allclose(without, erm, rtol=1e-9)


@pytest.mark.parametrize("weight", [1.0, 100.0])
def test_what_is_stored_is_what_train_gives(runs, weight):
    """The store has seven or more decimals."""
    task = make_simulation(n_samples=240, n_test=120, random_state=1)
    settings: dict[str, Any] = {"classifier": "vector", "start": "equal-risks", "l2": 1e-3, "dtype": torch.float64}
    fitted = train(task, "irm-tv-l2", Runs(seed=1, penalty_weight=weight), solver="newton", **settings)
    stored = the_run(runs, "vector", 1, "all", weight).arrays["test/accuracy"][1]
    np.testing.assert_allclose(stored.ravel(), fitted.evaluate().by_environment[0], atol=1e-6)


def test_every_rule_chooses_among_solutions(frame, runs):
    no_pool = (frame["method"] == "both") & (frame["rule"] == "fixed")  # a pool has no fixed combination
    assert (frame["value"].isna() == no_pool).all()
    frame = frame[~no_pool]
    assert set(frame["step"]) == {1}
    assert set(frame["rule"]) == set(RULES)
    assert set(frame["method"]) == {"erm", "irm-tv-l1", "vector", "both"}
    worst = frame[(frame["metric"] == "accuracy") & (frame["summary"] == "worst")]
    for row in worst.itertuples():
        weight = row.hyperparameters.get("penalty_weight")
        run = the_run(runs, row.chosen_method, row.repetition, "all", weight)
        assert run.arrays["test/accuracy"][1].min() == pytest.approx(row.value, abs=1e-6)
        if row.rule == "fixed" and row.method != "erm":
            assert weight == 100.0
        if row.rule == "oracle" and row.method == "vector":
            both = [the_run(runs, "vector", row.repetition, "all", w).arrays["test/accuracy"][1] for w in (1.0, 100.0)]
            assert row.value == pytest.approx(max(a.min() for a in both), abs=1e-6)


def test_iid_is_the_least_pooled_held_out_risk(frame, runs):
    for repetition in range(2):
        pooled = {}
        for weight in (1.0, 100.0):
            folds = [the_run(runs, "vector", repetition, f"fold {k}/2", weight).arrays for k in (1, 2)]
            rows, risk = (np.stack([a[f"held-out/{name}"][1] for a in folds]) for name in ("rows", "risk"))
            pooled[weight] = (rows * risk).sum() / rows.sum()
        mask = (frame["method"] == "vector") & (frame["rule"] == "iid") & (frame["repetition"] == repetition)
        chosen = {h["penalty_weight"] for h in frame[mask]["hyperparameters"]}
        assert chosen == {min(pooled, key=pooled.get)}


def test_a_report_is_made(spec, folder):
    report = report_experiment(spec, folder)
    assert set(report.results["method"]) == {"erm", "irm-tv-l1", "vector", "both"}


def test_nothing_is_trained_twice(spec, folder):
    report = run_experiment(spec, folder)
    assert (report.found, report.trained) == (30, 0)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"objective": "mm-rex"}, "solver='newton' is not for this: the penalty of 'mm-rex' is neither"),
        ({"objective": "vrex", "hidden": [4]}, "solver='newton' is not for this: it is for linear models"),
    ],
)
def test_what_newtons_method_cannot_do_is_found_before_anything_is_trained(tmp_path, monkeypatch, method, said):
    trained: list[str] = []
    monkeypatch.setattr(run_module, "train", lambda *_, **__: trained.append("something"))
    with pytest.raises(ValueError, match=f"method '{method['objective']}', setting 'simulation': {said}"):
        run_experiment(small(ERM, method, training=NEWTON), tmp_path / "x")
    assert trained == []
