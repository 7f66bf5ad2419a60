"""One family on one split: scores are those of the unseen rows, and nothing unseen is trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from irmtv.datasets import make_simulation
from irmtv.lab.real.measure import Rows, measure
from irmtv.lab.real.results import split_results
from irmtv.lab.real.splits import RowSplit
from irmtv.lab.real.tables import RealTable
from lab.real.small import class_table, number_table


def test_numbers_are_fitted_on_training_rows_alone():
    table = number_table()
    split = table.splits[3]
    features = table.features.copy()
    features.loc[split.unseen, "x"] = np.nan  # filled by the mean of training
    features.loc[split.unseen[0], "kind"] = "new"  # none of the known ones
    rows = Rows.of(dataclasses.replace(table, features=features), split)
    assert rows.unseen_x[:, 0] == pytest.approx(table.features["x"].iloc[split.train].mean(), rel=1e-5)
    assert rows.unseen_x[0, 1:].sum() == 0
    assert (len(rows.x), set(rows.environment), set(rows.unseen_environment)) == (120, {"a", "b", "c"}, {"d"})


def test_large_tables_are_trained_on_fewer_rows():
    rows = Rows.of(dataclasses.replace(number_table(), most_rows=60), number_table().splits[0])
    assert len(rows.x) == 60 and len(rows.unseen_x) == 40


def test_a_linear_model_of_numbers():
    table = number_table(n=150)
    found = measure(table, table.splits[0], "linear")
    rows = Rows.of(table, table.splits[0])
    plain = LinearRegression().fit(rows.x, rows.y)
    rmse = np.sqrt(np.mean((plain.predict(rows.unseen_x) - rows.unseen_y) ** 2))
    assert found["plain"]["score"] == pytest.approx(rmse, rel=0.01)
    assert found["plain"]["by_environment"] == {"a": pytest.approx(found["plain"]["score"])}
    assert found["kept_plain"] and found["plain"] == found["chosen"] and (found["gain"], found["se"]) == (0.0, 0.0)
    left_out = []
    for e in "bcd":
        rest = rows.environment != e
        model = LinearRegression().fit(rows.x[rest], rows.y[rest])
        left_out.append(np.sqrt(np.mean((model.predict(rows.x[~rest]) - rows.y[~rest]) ** 2)))
    assert found["left_out"]["plain"] == pytest.approx(np.mean(left_out), rel=0.01)
    assert found["expected"]["mean"] == pytest.approx(np.mean(left_out), rel=0.01)
    assert found["held_out"]["plain"] == pytest.approx(0.5, rel=0.1)  # the noise, in units of y
    assert found["expected_held_out"]["n_environments"] == 3
    assert 0 < found["left_out_seconds"] < found["fit_seconds"] < found["seconds"]


def test_a_class_that_training_did_not_have_is_wrong():
    table = class_table()
    split = table.splits[3]
    share = np.mean(table.target[split.unseen] == "maybe")
    found = measure(table, split, "scikit-learn")
    for model in found["models"].values():
        assert 0.5 < model["score"] <= 1 - share
        assert model["balanced_accuracy"] <= 2 / 3  # of three classes one is always wrong
        assert model["log_loss"] > share * np.log(1e10)
    assert measure(table, table.splits[0], "scikit-learn")["models"]["linear"]["balanced_accuracy"] > 0.8


def spurious_table():
    """Three environments in which a spurious column helps, and one in which it misleads."""
    task = make_simulation(3000, (0.999, 0.8, 0.6), 0.9, test_p_s=(0.05,), random_state=730)
    parts = task.train, task.test
    x = np.concatenate([rows.x.numpy() for rows in parts])
    y = np.concatenate([rows.y.numpy() for rows in parts]).astype(int).astype(str)
    where = np.concatenate([np.array([f"e{c}" for c in rows.environment]) for rows in parts])
    n = len(task.train)
    where[n:] = "unseen"
    split = RowSplit("unseen", np.arange(n), np.arange(n, len(x)))
    return RealTable("spurious", pd.DataFrame(x).rename(columns=str), y, where, [split], ())


def test_a_choice_that_must_help_is_compared_with_plain():
    table = spurious_table()
    found = measure(table, table.splits[0], "linear")
    assert found["outcome"] == "invariant-found" and not found["kept_plain"]
    assert found["gain"] == pytest.approx(found["chosen"]["score"] - found["plain"]["score"])
    assert found["gain"] > 5 * found["se"] > 0
    key = {"table": "spurious", "split": "unseen", "family": "linear", "seed": 0}
    (result,) = split_results([{**key, **found}])
    assert result.verdict == "helped"


def test_trees_plain_and_chosen():
    pytest.importorskip("lightgbm")
    table = class_table()
    found = measure(table, table.splits[0], "trees", threads=1)
    assert set(found["plain"]) == {"score", "se", "by_environment", "balanced_accuracy", "log_loss"}
    assert found["plain"]["score"] > 0.7 and 0 < found["left_out"]["plain"] < 1
