"""One choice among networks and trees, against the rule applied by hand to the candidates of each."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch

from app.fit.tables import spurious_table
from irmtv.app.fit import fit_table
from irmtv.app.fit import workflow as module
from irmtv.app.fit.families import Networks, Trees, some_rows
from irmtv.core.types import Rows
from irmtv.models.search import join_searches
from irmtv.selection import Records, choose, join_records
from irmtv.selection.records import COLUMNWISE

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


@pytest.mark.parametrize("rule", ["invariance", "iid", "worst-env"])
def test_the_choice_is_that_of_the_rule_among_all_candidates(both, rule):
    """The records of both, candidate by candidate in a plain loop, given to the rule."""
    found = join_searches(both, rule)
    per_candidate = [(search.records, i) for search in both for i in range(len(search.candidates))]
    pooled = [search.records.pooled() for search in both]
    lowest = [float(p.overall[search.records.reference].min()) for p, search in zip(pooled, both, strict=True)]
    better = both[int(np.argmin(lowest))].records
    by_hand = Records(
        **{
            name: torch.stack([getattr(r, name)[:, i] for r, i in per_candidate], 1)
            for name in ("rows", "risk", "risk_cov", "slope", "slope_cov")
        },
        constant=better.constant,
        reference=torch.stack([r.reference[i] for r, i in per_candidate]),
        stated=torch.zeros(len(per_candidate), dtype=torch.bool),
        own=better.own,
    )
    expected = choose(rule, by_hand)
    assert (found.choice.index, found.choice.outcome) == (expected.index, expected.outcome)
    assert repr(dict(found.choice.figures)) == repr(dict(expected.figures))
    overall = by_hand.pooled().overall
    assert float(overall[found.erm]) == min(lowest)
    n = len(both[0].candidates)
    assert found.path_of(n) is both[1].paths[0]
    which = int(found.choice.index >= n)
    place = found.choice.index - n * which
    assert found.path is both[which].path_of(place) and found.step == both[which].candidates[place].step


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
    joined = join_searches(both, "iid")
    n = len(networks.candidates)
    assert torch.equal(joined.held_out_outputs(n + 3), trees.held_out_outputs(3))


def test_own_models_are_compared_with_the_best_plain_model(both):
    records = [search.records for search in both]
    worse = replace(records[0], risk=records[0].risk + 1)
    assert join_records([worse, records[1]]).own is records[1].own
    worse = replace(records[1], risk=records[1].risk + 1)
    assert join_records([records[0], worse]).own is records[0].own


def test_every_field_of_records_is_joined(both):
    joined = join_records([search.records for search in both])
    n = sum(len(search.candidates) for search in both)
    for f in fields(Records):
        value = getattr(joined, f.name)
        if isinstance(value, torch.Tensor) and f.name != "own":
            assert n in value.shape[:2], f.name
        those = [getattr(search.records, f.name) is None for search in both]
        absent = any(those) if f.name in COLUMNWISE else all(those)  # trees have no columns to compare
        assert (value is None) == absent, f.name


def test_other_folds_or_rows_are_refused(both):
    networks, trees = both
    turned = replace(trees, split=replace(trees.split, fold=trees.fold.flip(0)))
    with pytest.raises(RuntimeError, match="different folds"):
        join_searches([networks, turned], "iid")
    records = trees.records
    with pytest.raises(RuntimeError, match="different held-out rows"):
        join_records([networks.records, replace(records, rows=records.rows + 1)])


def test_auto_compares_networks_and_trees_and_says_so():
    summary = fit_table(
        spurious_table(900), "sold", ["site"], steps=200, rounds=30, penalty_weights=[100, 1000]
    ).summary
    networks, trees = summary["settings"]["models compared"]
    assert networks in ("linear", "mlp") and trees == "trees"
    assert [p["model"].split()[0] for p in summary["path"]] == [networks] * 3 + [trees] * 3
    assert summary["path"][1]["label"] == f"{networks}: 100"
    assert sum(p["chosen"] for p in summary["path"]) == 1
    assert summary["model"] == next(p["model"] for p in summary["path"] if p["chosen"])
    plain = [p for p in summary["path"] if p["penalty_weight"] == 0]
    assert summary["plain_model"] == min(plain, key=lambda p: p["risk"])["model"]
    assert summary["settings"]["candidates"] > 150


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
    assert "models compared" not in inferred["settings"]  # one path: inferred environments are each model's own
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
    assert summary["model"] in ("linear", "mlp 32") and "models compared" not in summary["settings"]


def test_rows_are_drawn_alike_for_networks_and_trees():
    few: list[Rows] = [some_rows(family.all_rows, 300, 0).task.train for family in families()]
    assert torch.equal(few[0].environment, few[1].environment)
    assert torch.equal(few[0].y.double(), few[1].y.double())
