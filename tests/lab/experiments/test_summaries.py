"""The columns of the tables: training rows, rows drawn alike, all test rows, and test environments, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from irmtv import Runs, train
from irmtv.datasets import DATASETS, DataSet, make_simulation
from irmtv.lab.experiments import SpecError, Store, evaluation, read_results, run_experiment
from irmtv.lab.tables import summarise
from lab.experiments.small import ERM, TV, small

ALL = ["train", "iid", "pooled", "mean", "worst"]


def uneven(random_state: Any = None, n_samples: int = 240, n_test: int = 120) -> Any:
    """A simulation whose first test environment is drawn as the training rows are, and whose last has few rows."""
    task = make_simulation(n_samples, (0.999, 0.7), 0.9, random_state=random_state, n_test=n_test)
    assert task.test is not None
    few = torch.cat([torch.arange(len(task.test))[task.test.environment != 3], torch.tensor([len(task.test) - 1])])
    test = replace(task.test.take(few), names=("like training", *task.test.names[1:]))
    return replace(task, test=test)


@pytest.fixture
def spec(monkeypatch):
    known = {**DATASETS, "uneven": DataSet(uneven, iid=("like training",))}
    for module in ("plan", "run", "spec_file"):
        monkeypatch.setattr(f"irmtv.lab.experiments.{module}.DATASETS", known)
    stated = {**TV, "fixed": {"penalty_weight": 100.0}}
    return small(ERM, stated, rules=["fixed", "oracle"], data="uneven", summaries=ALL)


def test_every_column_by_hand(spec, tmp_path):
    run_experiment(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    task = uneven(0)
    settings = {"steps": 30, "learning_rate": 0.05, "penalty_weight": 100.0, "warmup": 10}
    fitted = train(task, "irm-tv-l1", Runs(seed=0), **settings)

    def right(rows):
        return ((fitted.logits(rows.x, aux=rows.aux)[0] > 0).float() == rows.y).double().numpy()

    where = task.test.environment.numpy()
    by_environment = [right(task.test)[where == e].mean() for e in range(4)]
    expected = {
        "train": right(task.train).mean(),
        "iid": by_environment[0],
        "pooled": right(task.test)[where > 0].mean(),
        "mean": np.mean(by_environment[1:]),
        "worst": min(by_environment[1:]),
    }
    assert expected["pooled"] != pytest.approx(expected["mean"])  # the last environment has one row
    found = frame[(frame["method"] == "irm-tv-l1") & (frame["rule"] == "fixed")].set_index("summary")["value"]
    assert list(found.index) == ALL
    for summary, value in expected.items():
        assert found[summary] == pytest.approx(value), summary


def test_an_oracle_looks_at_shifted_environments_alone(spec, tmp_path):
    run_experiment(spec, tmp_path / "x")
    with Store.read(tmp_path / "x") as store:
        runs = [r for r in store.runs() if r.part == "all" and r.objective == "irm-tv-l1"]
    best = max(float(r.arrays["test/accuracy"][r.arrays["steps"] > 0].min(1).max()) for r in runs)
    frame = read_results(spec, tmp_path / "x")
    row = frame[(frame["method"] == "irm-tv-l1") & (frame["rule"] == "oracle") & (frame["summary"] == "worst")]
    assert row["value"].item() == pytest.approx(best)
    assert {m.environment for r in runs for m in r.metrics} == {"p_s=0.8", "p_s=0.2", "p_s=0.001"}


def test_a_column_that_was_not_measured_is_told(tmp_path, monkeypatch):
    measured = evaluation._test_results
    monkeypatch.setattr(  # as in a store of an earlier version
        evaluation,
        "_test_results",
        lambda fitted, shifted: (r for r in measured(fitted, shifted) if r[0][:5] != "train"),
    )
    spec = small(ERM, rules=["iid"], summaries=["train", "iid", "worst"])
    run_experiment(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    frame = frame[frame["metric"] == "accuracy"].set_index("summary")
    assert np.isnan(frame.loc["train", "value"]) and frame.loc["train", "note"] == "'train' was not measured"
    assert np.isnan(frame.loc["iid", "value"]) and frame.loc["iid", "note"] == "'iid' was not measured"
    assert frame.loc["worst", "value"] >= 0 and pd.isna(frame.loc["worst", "note"])


def test_population_values_have_environments_only(tmp_path):
    spec = small(ERM, rules=["iid"], summaries=ALL)
    run_experiment(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    assert list(frame.loc[frame["metric"] == "population accuracy", "summary"]) == ["mean", "worst"]


@pytest.mark.parametrize(
    ("summaries", "says"),
    [
        ([], "summaries is empty. Give at least one of"),
        (["pool"], r"summaries\[0\] must be one of .* Got 'pool'. Did you mean 'pooled'"),
        (["mean", "mean"], r"summaries\[1\] is 'mean', which the list has already. Remove one."),
        ("mean", "summaries must be a list of columns of the tables, from 'train'"),
    ],
)
def test_columns_that_there_are_not(summaries, says):
    with pytest.raises(SpecError, match=says):
        small(ERM, summaries=summaries)


def test_columns_do_not_change_what_a_spec_is():
    assert small(ERM, summaries=["train"]).hash == small(ERM).hash


@pytest.mark.parametrize(
    ("ours", "published", "compared"),
    [
        (["pooled", "mean"], "test", {"pooled"}),
        (["mean", "worst"], "test", {"mean"}),
        (["mean", "worst"], "ood_test", {"mean"}),
        (["train", "iid"], "iid_test", {"iid"}),
        (["train", "worst"], "train", {"train"}),
        (["worst"], "test", set()),
    ],
)
def test_which_column_a_published_one_is(ours, published, compared, tmp_path):
    spec = small(ERM, rules=["iid"], summaries=ours)
    run_experiment(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    frame["published_key"] = "erm"
    table = {"metric": "accuracy_percent", "results": {"erm": {published: {"value": 50.0, "std": 2.0}}}}
    summary = summarise(frame, table)
    assert set(summary.loc[summary["published_mean"].notna(), "summary"]) == compared
    assert (summary["published_mean"].dropna() == 0.5).all()
