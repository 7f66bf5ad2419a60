"""Networks and trees on the same rows, and which kind `irmtv fit` takes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression

from app.fit.tables import spurious_table
from irmtv.app.fit import fit_table
from irmtv.app.fit import workflow as module
from irmtv.app.fit.families import Networks, Trees, some_rows
from irmtv.core.types import Rows

HOW = {"objective": "irm-tv-l1", "penalty_weights": [100, 1000], "cv": 3, "min_rows": 10, "random_state": 0}


def families(rule="invariance", n=900):
    frame = spurious_table(n)
    numbers = frame[["cause", "shortcut"]].fillna(0).to_numpy(np.float32)
    table = (numbers, frame["sold"].to_numpy(str), frame["site"], None)
    parameters = {**HOW, "rule": rule}
    return [
        Networks("linear", "binary", table, steps=200, parameters=parameters),
        Trees("binary", table, rounds=30, parameters=parameters),
    ]


@pytest.fixture(scope="module")
def both():
    return [family.search(None, 1.0) for family in families()]


def test_both_are_measured_on_the_same_rows(both):
    networks, trees = both
    assert torch.equal(networks.fold, trees.fold)
    assert torch.equal(networks.records.rows[:, 0], trees.records.rows[:, 0])
    assert networks.records.constant == pytest.approx(trees.records.constant)
    # held-out outputs of either give the risks that its records say
    y = torch.tensor((spurious_table(900)["sold"] == "yes").tolist()).double()
    for search in both:
        for i in (0, len(search.candidates) - 1):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(search.held_out_outputs(i), y)
            assert float(loss) == pytest.approx(float(search.records.pooled().overall[i]), rel=1e-5)


def test_with_two_environments_held_out_rows_decide_and_the_summary_says_so():
    summary = fit_table(
        spurious_table(900), "sold", ["site"], steps=200, rounds=30, penalty_weights=[100, 1000]
    ).summary
    compared = summary["families"]["compared"]
    names = [row["name"] for row in compared]
    assert summary["families"]["by"] == "held-out" and names == ["linear", "mlp", "trees"]
    points = [(p["model"].split()[0], p["label"]) for p in summary["path"] if "objective" not in p]
    assert points == [(name, f"{name}: {weight}") for name in names for weight in (0, 100, 1000)]
    assert sum(p["chosen"] for p in summary["path"]) == 1
    assert summary["model"] == next(p["model"] for p in summary["path"] if p["chosen"])
    taken = next(row for row in compared if row["taken"])
    assert summary["plain_model"] == taken["model"] and summary["model"].startswith(taken["name"])
    plain = [p["risk"] for p in summary["path"] if p["penalty_weight"] == 0]
    assert [row["risk"] for row in compared] == pytest.approx(plain)
    assert summary["settings"]["candidates"] > 100


def three_sites(n=900):
    """y is a line in x, and every site has an x of its own."""
    rng = np.random.default_rng(700)
    site = np.arange(n) % 3
    x = rng.normal(size=n) + 3.0 * site
    return pd.DataFrame({"x": x, "y": 2 * x + rng.normal(size=n), "site": np.array(["a", "b", "c"])[site]})


def test_with_three_environments_those_that_were_left_out_decide():
    """Trees do not go beyond the x that they have seen; on held-out rows of known sites they are nearly as good."""
    made = fit_table(three_sites(), "y", ["site"], steps=200, rounds=60, penalty_weights=[100])
    families = made.summary["families"]
    assert families["by"] == "left-out"
    assert [row["name"] for row in families["compared"]] == ["linear", "mlp", "trees"]
    assert made.summary["model"] == "linear" and families["compared"][0]["taken"]
    linear, _, trees = families["compared"]
    assert trees["risk"] > 2 * linear["risk"] and trees["behind"] > trees["error"] > 0
    # the numbers are those of models trained without each site, by another library
    frame = three_sites()
    scale = frame["y"].std(ddof=0)
    risks = []
    for site in "abc":
        inside, outside = frame[frame["site"] == site], frame[frame["site"] != site]
        line = LinearRegression().fit(outside[["x"]], outside["y"])
        risks.append(np.mean((line.predict(inside[["x"]]) - inside["y"]) ** 2) / scale**2)
    assert linear["risk"] == pytest.approx(np.prod(risks) ** (1 / 3), rel=0.02)


def stairs(n=900):
    """What trees do far better than lines and small networks: many steps."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.uniform(0, 8, n), "when": rng.uniform(0, 1, n), "site": ["a", "b", "c"] * (n // 3)})
    return frame.assign(y=np.floor(frame["x"]) % 2 + 0.05 * rng.normal(size=n))


def test_auto_takes_trees_where_they_predict_better_with_given_and_with_inferred_environments():
    frame, how = stairs(), {"steps": 100, "rounds": 30, "penalty_weights": [10]}
    given = fit_table(frame.drop(columns="when"), "y", ["site"], **how).summary
    assert given["model"].startswith("trees ") and given["plain_model"].startswith("trees ")
    inferred = fit_table(frame.drop(columns="site"), "y", aux=["when"], **how).summary
    assert inferred["model"].startswith("trees ") and inferred["objective"] == "minimax-tv-l1"
    assert inferred["families"] is None  # one path: inferred environments are each model's own
    assert {p["model"].split()[0] for p in inferred["path"]} == {"trees"}


def test_auto_without_lightgbm_goes_on_and_trees_do_not(monkeypatch):
    def missing():
        raise ImportError("boosting needs LightGBM. Install it with pip install 'irmtv[boosting]'.")

    monkeypatch.setattr(module, "lightgbm", missing)
    monkeypatch.setattr("irmtv.estimators.boosting.lightgbm", missing)
    how = {"steps": 50, "rounds": 5, "penalty_weights": [10]}
    summary = fit_table(spurious_table(300), "sold", ["site"], **how).summary
    assert summary["model"] in ("linear", "mlp 32")
    assert any("pip install 'irmtv[boosting]'" in note for note in summary["data"]["notes"])
    with pytest.raises(ImportError, match=r"irmtv\[boosting\]"):
        fit_table(spurious_table(300), "sold", ["site"], model="trees", **how)


def test_objectives_that_trees_do_not_know_leave_auto_with_networks():
    summary = fit_table(
        spurious_table(300), "sold", ["site"], objective="eiil", rule="iid", steps=50, penalty_weights=[10]
    ).summary
    assert summary["model"] in ("linear", "mlp 32")
    assert [row["name"] for row in summary["families"]["compared"]] == ["linear", "mlp"]


def test_rows_are_drawn_alike_for_networks_and_trees():
    few: list[Rows] = [some_rows(family.all_rows, 300, 0).task.train for family in families()]
    assert torch.equal(few[0].environment, few[1].environment)
    assert torch.equal(few[0].y.double(), few[1].y.double())
