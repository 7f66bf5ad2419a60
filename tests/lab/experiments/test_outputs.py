"""Held-out outputs that runs on folds store, and what the rule makes of them: the same as in a search."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.lab.experiments import Store, read_records, read_results, run_experiment
from irmtv.lab.experiments.outputs import ENVIRONMENT, LABELS, OUTPUTS
from irmtv.models.search import search
from irmtv.selection.folds import fold_tasks
from lab.experiments.small import ERM, small

WEIGHTS, STEPS, SEED = [10.0, 1e3], 60, 0
NETWORK = {"hidden": [4], "steps": STEPS, "snapshot_every": 20, "learning_rate": 0.05, "l2": 1e-3, "dtype": "float64"}
VREX = {"objective": "vrex", "label": "V-REx", "penalty_weight": WEIGHTS, "warmup": 20}
ARGUMENTS = {"n_samples": 1500, "p_s": [0.999, 0.6], "p_v": 0.8}


def spec(outputs: bool = True):
    return small(ERM, VREX, rules=["invariance"], folds=2, training=NETWORK, arguments=ARGUMENTS, outputs=outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("outputs") / "x"
    assert run_experiment(spec(), path).failed == ()
    return path


def test_outputs_are_those_of_the_model_of_every_snapshot_on_rows_that_it_has_not_seen(folder):
    with Store.read(folder) as store:
        runs = store.runs()
    assert {r.part.startswith("fold") for r in runs if OUTPUTS in r.arrays} == {True}
    tasks = fold_tasks(make_simulation(**ARGUMENTS, n_test=120, random_state=SEED), 2, SEED)
    for k, task in enumerate(tasks):
        fitted = train(
            task, "vrex", Runs(seed=SEED, penalty_weight=1e3), hidden=(4,), steps=STEPS, snapshot_every=20,
            learning_rate=0.05, l2=1e-3, warmup=20, dtype=torch.float64, keep_states=True,
        )  # fmt: skip
        (run,) = (
            r
            for r in runs
            if (r.method, r.part, r.hyperparameters.get("penalty_weight")) == ("V-REx", f"fold {k + 1}/2", 1e3)
        )
        stored = run.arrays[OUTPUTS]
        assert run.arrays["steps"].tolist() == [0, 20, 40, 60] and stored.shape == (4, len(task.held_out))
        for s, step in enumerate(run.arrays["steps"].tolist()):
            expected = fitted.at(step).logits(task.held_out.x.double(), which="last")[0]
            np.testing.assert_allclose(stored[s], expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(run.arrays[LABELS], task.held_out.y)
        np.testing.assert_array_equal(run.arrays[ENVIRONMENT], task.held_out.environment)


def test_the_candidate_is_shown_to_the_environments_as_in_a_search(folder):
    (row,) = (r for r in read_records(spec(), folder, "test/accuracy") if r[1] == "V-REx")
    records = row[3]
    found = search(
        make_simulation(**ARGUMENTS, n_test=120, random_state=SEED), "vrex",
        [{"penalty_weight": w} for w in WEIGHTS], n_folds=2, seed=SEED, hidden=(4,), steps=STEPS, snapshot_every=20,
        learning_rate=0.05, l2=1e-3, warmup=20, dtype=torch.float64,
    )  # fmt: skip
    assert found.choice.outcome == "invariant-found"
    assert records.toward is not None and records.toward.p < 0.002
    np.testing.assert_allclose(records.toward, found.records.toward, rtol=1e-3)
    frame = read_results(spec(), folder)
    (chosen,) = frame[(frame["method"] == "V-REx") & (frame["metric"] == "accuracy") & (frame["summary"] == "worst")][
        ["outcome", "step"]
    ].itertuples(index=False)
    assert tuple(chosen) == ("invariant-found", found.step)


def test_a_spec_that_does_not_ask_stores_none(tmp_path):
    assert run_experiment(spec(outputs=False), tmp_path / "x").failed == ()
    with Store.read(tmp_path / "x") as store:
        assert not any(OUTPUTS in r.arrays for r in store.runs())
    assert all(r[3].toward is None for r in read_records(spec(), tmp_path / "x", "test/accuracy"))
