"""Trees as a model family: how many leaves ERM has, and whether environments would choose the same direction."""

from __future__ import annotations

from dataclasses import replace

import lightgbm
import numpy as np
import pytest
import torch
from scipy.special import expit

from irmtv import InvariantBoostingClassifierCV, make_task
from irmtv.datasets import make_control, make_simulation
from irmtv.models.base import Split
from irmtv.models.own_directions import directions_beside
from irmtv.models.trees.model import COMPARED, KEPT_WITH_PENALTY, NEARLY, TreeModel
from irmtv.models.trees.settings import TreeParameters
from irmtv.objectives import OBJECTIVES
from irmtv.selection.folds import constant_risk, deal_folds, tasks_outside
from models.trees.tasks import small_task

FAST = {"n_estimators": 40, "num_leaves": 3, "n_jobs": 1, "cv": 3, "random_state": 0}


# Leaves of ERM


class Measured:
    """What a trainer knows of ERM with some leaves: one held-out environment, one risk."""

    def __init__(self, risk):
        rows = torch.tensor([[10.0]])
        self.seen = [type("Seen", (), {"rows": rows, "risk": torch.tensor([[r]])}) for r in (risk + 1, risk, risk + 2)]


def chosen(monkeypatch, risks, constant, leaves=(2, 4, 12, 31)):
    """Leaves of ERM and where a penalty acts, if ERM has these risks with them and a constant that one."""
    by_leaves = dict(zip(leaves, risks, strict=True))
    task = small_task()
    fold = deal_folds(task, 2, 0)
    model = TreeModel(TreeParameters(n_estimators=4), leaves_from=leaves)
    monkeypatch.setattr("irmtv.models.trees.model.constant_risk", lambda task: constant)
    monkeypatch.setattr(
        "irmtv.models.trees.model._Parts.trained",
        lambda self, settings, most=None: [[Measured(by_leaves[s.trees.num_leaves])] * most for s in settings],
    )
    found = model.trainer(Split(task, fold, tasks_outside(task, fold, 2)), OBJECTIVES["vrex"], [{}]).leaves
    return found.erm, found.penalised


def test_the_fewest_leaves_within_two_percent_of_gain_and_risk(monkeypatch):
    """Of a constant risk of 1: of 0.7 the gain is less than the risk, of 0.1 the risk is less than the gain."""
    assert chosen(monkeypatch, [0.8, 0.705, 0.70, 0.70], 1.0) == (4, 4)  # 2 % of 0.3 are 0.006
    assert chosen(monkeypatch, [0.8, 0.707, 0.70, 0.70], 1.0) == (12, 4)  # within 2 % of the risk, not of the gain
    assert chosen(monkeypatch, [0.2, 0.1015, 0.10, 0.10], 1.0) == (4, 4)  # 2 % of 0.1 are 0.002
    assert chosen(monkeypatch, [0.2, 0.1050, 0.10, 0.10], 1.0) == (12, 4)  # within 2 % of the gain, not of the risk
    assert chosen(monkeypatch, [0.2, 0.1850, 0.10, 0.10], 1.0) == (12, 4)  # within a tenth of the gain
    assert chosen(monkeypatch, [0.18, 0.1850, 0.10, 0.10], 1.0) == (12, 2)
    assert chosen(monkeypatch, [0.5, 0.4, 0.3, 0.2], 1.0) == (31, 31)


def test_where_nothing_is_gained_the_fewest_leaves_that_are_best(monkeypatch):
    assert chosen(monkeypatch, [1.02, 1.01, 1.01, 1.3], 1.0) == (4, 4)


def test_leaves_of_steps_in_one_column(monkeypatch):
    """Rows that sixteen steps tell apart without noise: nearly all is gained by few leaves, but not half of the risk.

    The risks are those of lightgbm itself.
    """
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(4000, 2))
    y = np.floor(16 * x[:, 0]) % 2 + 6.0 * (x[:, 0] > 0.5) + 0.05 * rng.normal(size=4000)
    task = make_task(x, y, environment=np.arange(4000) % 2, loss="squared", dtype=torch.float64)
    fold = deal_folds(task, 3, 0)
    split = Split(task, fold, tasks_outside(task, fold, 3))
    parameters = TreeParameters(n_estimators=40, learning_rate=0.3, min_child_samples=20, n_jobs=1)
    leaves = (2, 4, 12, 31)
    trainer = TreeModel(parameters, leaves_from=leaves).trainer(split, OBJECTIVES["vrex"], [{"penalty_weight": 1.0}])
    lowest, constant = [], np.mean([constant_risk(t) for t in split.folds[:COMPARED]])
    for n in leaves:
        each = []
        for part in split.folds[:COMPARED]:
            how = {"num_leaves": n, "learning_rate": 0.3, "min_child_samples": 20, "reg_lambda": 0.0, "verbosity": -1}
            model = lightgbm.LGBMRegressor(n_estimators=40, n_jobs=1, **how).fit(part.train.x.numpy(), part.train.y)
            rows = part.held_out
            each.append([np.mean((model.predict(rows.x.numpy(), num_iteration=k) - rows.y.numpy()) ** 2)
                         for k in range(1, 41)])  # fmt: skip
        lowest.append(np.min(np.mean(each, 0)))
    best = min(lowest)
    gain = constant - best
    few = next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= best + (1 - KEPT_WITH_PENALTY) * gain)
    by_gain = next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= best + NEARLY * gain)
    right = next(n for n, risk in zip(leaves, lowest, strict=True) if risk <= best + NEARLY * best)
    assert NEARLY * gain > NEARLY * best and by_gain < right
    assert (trainer.leaves.erm, trainer.leaves.penalised) == (right, few)


# The same direction


def searched(task, objective="vrex", **given):
    rows = task.train
    estimator = InvariantBoostingClassifierCV(objective, penalty_weights=[1.0], **FAST)
    return estimator.search(estimator.read_data(rows.x.double().numpy(), rows.y.numpy(), **given))


def held_out_scores(search):
    """Of ERM, from its boosters and rows, fold by fold."""
    step = search.candidates[search.erm].step
    scores = torch.empty(len(search.fold), dtype=torch.float64)
    for f, booster in enumerate(search.path_of(search.erm).boosters):
        scores[search.fold == f] = torch.as_tensor(next(w for w in booster.watched if w.round == step).scores).double()
    return scores


def test_directions_stand_beside_held_out_scores_of_erm():
    task = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0, n_test=4)
    search = searched(task, environment=task.train.environment.numpy())
    scores = held_out_scores(search)
    assert search.records.directions == pytest.approx(directions_beside(search.split.task, scores), rel=1e-9)
    assert search.records.directions.p < 1e-6 and search.records.own is None
    # they are scores of rows that their boosters have not seen
    y = search.split.task.train.y.double()
    risk = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
    assert float(risk) == pytest.approx(float(search.records.pooled().overall[search.erm]), rel=1e-5)


def test_where_labels_are_noisier_in_one_environment_erm_is_kept():
    task = make_control(2000, "label-noise", random_state=0, n_test=4)
    search = searched(task, environment=task.train.environment.numpy())
    assert search.choice.outcome == "erm-kept" and search.records.directions.p > 0.03
    assert "each of them would choose the same model, but for its scale" in search.choice.message


def test_missing_values_are_no_hindrance():
    task = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0, n_test=4)
    x = task.train.x.clone()
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.1] = torch.nan
    gaps = replace(task, train=replace(task.train, x=x))
    search = searched(gaps, environment=task.train.environment.numpy())
    assert search.records.directions.p < 1e-4


def test_environments_that_trees_infer_are_asked_on_rows_that_did_not_infer_them():
    task = make_simulation(1500, (0.999, 0.7), 0.8, random_state=0, n_test=4)
    search = searched(task, "minimax-tv-l1", aux=task.train.aux.numpy())
    erm = search.path_of(search.erm)
    rows, aux = erm.with_inferred(), search.split.task.train.aux
    assert rows.names == ("0", "1") and torch.equal(rows.x, search.split.task.train.x)
    first = erm.boosters[0].rho.membership(aux)
    for f, booster in enumerate(erm.boosters):
        here = search.fold == f
        own = booster.rho.membership(aux)
        turned = float((first * own).sum()) < float((first * own.flip(1)).sum())
        expected = (own.flip(1) if turned else own).argmax(1)
        assert torch.equal(rows.environment[here], expected[here])
    found = directions_beside(replace(search.split.task, train=rows), held_out_scores(search))
    assert search.records.directions == pytest.approx(found, rel=1e-9)
    # they are the two halves of time, but for a few rows
    half = (task.train.aux.flatten() > 0.5).long()
    share = float((rows.environment == half).double().mean())
    assert max(share, 1 - share) > 0.9 and found.p < 1e-4
    # of labels that follow the scores nothing says that environments differ
    y = torch.as_tensor(np.random.default_rng(0).random(1500) < expit(held_out_scores(search).numpy())).to(rows.y)
    assert directions_beside(replace(search.split.task, train=replace(rows, y=y)), held_out_scores(search)).p > 0.01
