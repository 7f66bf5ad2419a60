"""A grid that is trained with several seeds: means over them, and no test that gets sharper by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import refuse, task_of
from irmtv import Runs, train
from irmtv.datasets import make_simulation
from irmtv.models.networks.model import mean_of_seeds
from irmtv.models.search import search
from irmtv.selection import choose
from irmtv.selection.folds import align, fold_tasks

STATISTICS = ("rows", "risk", "risk_cov", "slope", "slope_cov")
HOW = {"steps": 30, "snapshot_every": 5, "learning_rate": 0.05}
F64 = {**HOW, "dtype": torch.float64}

THREE = (0, 5, 2)
NET = {**F64, "hidden": (3,)}  # with which seeds matter


def path(*weights):
    return [{"penalty_weight": float(w)} for w in (weights or (0, 1, 100))]


def weighted(task):
    weight = torch.tensor(np.random.default_rng(0).gamma(4.0, size=len(task.train)))
    return replace(task, train=replace(task.train, weight=weight))


@pytest.mark.parametrize(
    ("kind", "with_weights", "classifier"),
    [("binary", True, "scalar"), ("squared", False, "scalar"), ("multiclass", False, "vector")],
)
def test_records_of_several_seeds_are_the_mean_of_searches_with_one(kind, with_weights, classifier):
    task = task_of(kind, 240, environments=3)
    task = weighted(task) if with_weights else task
    how = {"n_folds": 2, "warmup": 10, "classifier": classifier, **NET}
    together = search(task, "irm-tv-l1", path(), seeds=THREE, **how)
    alone = [search(task, "irm-tv-l1", path(), seeds=[k], **how) for k in THREE]
    assert together.candidates == alone[0].candidates
    names = (*STATISTICS, *(("effective",) if with_weights else ()))
    for name in names:
        each = [getattr(a.records, name) for a in alone]
        torch.testing.assert_close(getattr(together.records, name), torch.stack(each).mean(0), rtol=1e-9, atol=1e-13)
    assert (alone[0].records.risk - alone[1].records.risk).abs().max() > 1e-3
    np.testing.assert_allclose(together.table()["risk"], np.mean([a.table()["risk"] for a in alone], 0))
    assert together.choice == choose("invariance", together.records)


def test_risks_in_environments_left_out_are_means_over_seeds():
    task = task_of(n=120, environments=3)
    how = {"rule": "leave-one-env-out", "n_folds": 2, **NET}
    together = search(task, "irm-tv-l1", path(), seeds=THREE, **how)
    alone = [search(task, "irm-tv-l1", path(), seeds=[k], **how).records.left_out for k in THREE]
    torch.testing.assert_close(together.records.left_out, torch.stack(alone).mean(0), rtol=1e-9, atol=1e-13)
    assert together.choice.index == int(torch.stack(alone).mean((0, 2)).argmin())


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
def test_no_test_is_sharper_where_a_seed_is_repeated(objective):
    task = make_simulation(300, (0.999, 0.7), random_state=0)
    how = {"n_folds": 2, "warmup": 10, **NET}
    once, often = (search(task, objective, path(), seeds=seeds, **how) for seeds in ([3], [3, 3, 3, 3]))
    a, b = once.table(), often.table()
    assert a[["p_slopes", "p_risks"]].stack().between(1e-12, 0.5).all()  # which could get sharper
    for name in ("risk", "worst_risk", "p_slopes", "p_risks"):
        np.testing.assert_allclose(b[name], a[name], rtol=1e-7, atol=1e-12)
    assert once.chosen == often.chosen
    if objective == "irm-tv-l1":
        assert often.choice.figures["p_own"] == pytest.approx(once.choice.figures["p_own"]) != 1


def test_the_mean_of_seeds_is_at_least_as_sure_as_is_said():
    """Soft environments that seeds disagree on: against the covariance of the rows' own contributions."""
    rng = np.random.default_rng(0)
    k, n = 3, 200
    loss = rng.gamma(1.0, size=n) * rng.uniform(0.5, 1.5, (k, n))  # (K, N) of models that are somewhat alike
    q = rng.dirichlet((0.4, 0.4), (k, n)) * np.array([0.3, 1.0, 1.0])[:, None, None]  # (K, N, E)
    q[..., 1] = 1 - q[..., 0]
    rows = q.sum(1)  # (K, E)
    risk = np.einsum("kne,kn->ke", q, loss) / rows
    part = q * (loss[..., None] - risk[:, None]) / rows[:, None]  # (K, N, E) what a row moves its model's risks by
    cov = np.einsum("kne,knf->kef", part, part)
    given = {"rows": rows, "effective": rows, "risk": risk, "risk_cov": cov, "slope": 2 * risk, "slope_cov": 4 * cov}
    found = mean_of_seeds({name: torch.tensor(v) for name, v in given.items()})
    assert float((found["rows"] * found["risk"]).sum()) / n == pytest.approx(loss.mean())  # the mean over all rows
    share = rows / rows.sum(0)
    np.testing.assert_allclose(found["risk"], (share * risk).sum(0))
    whole = np.einsum("ke,kne->ne", share, part)
    more = found["risk_cov"].numpy() - whole.T @ whole
    assert np.linalg.eigvalsh(more).min() > 0 and np.abs(share - 1 / k).max() > 0.1
    torch.testing.assert_close(found["slope_cov"], 4 * found["risk_cov"])
    alike = mean_of_seeds({name: torch.tensor(np.stack([v[0]] * k)) for name, v in given.items()})
    for name, value in given.items():
        np.testing.assert_allclose(alike[name], value[0], rtol=1e-12)


def test_an_environment_that_one_seed_leaves_empty_is_that_of_the_others():
    nan = float("nan")
    rows, risk = torch.tensor([[4.0, 0.0], [3.0, 1.0]]), torch.tensor([[1.0, nan], [2.0, 5.0]])
    cov = torch.tensor([[0.1, nan], [0.2, 0.3]])
    found = mean_of_seeds(
        {"rows": rows, "effective": rows, "risk": risk, "risk_cov": cov, "slope": risk, "slope_cov": cov}
    )
    np.testing.assert_allclose(found["risk"], [(4 * 1 + 3 * 2) / 7, 5.0], rtol=1e-6)
    np.testing.assert_allclose(found["risk_cov"], [2 * (16 * 0.1 + 9 * 0.2) / 49, 2 * 0.3], rtol=1e-6)
    nowhere = {name: torch.tensor([[1.0, 0.0 if name in ("rows", "effective") else nan]] * 2) for name in
               ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov")}  # fmt: skip
    assert mean_of_seeds(nowhere)["risk"].isnan().tolist() == [False, True]


def test_inferred_environments_of_all_seeds_are_in_the_order_of_the_first(monkeypatch):
    """Two seeds find them in opposite order as often as not: their mean must be over the same environment."""
    task = make_simulation(300, (0.999, 0.6), random_state=0)
    how = {"n_folds": 2, "warmup": 30, **F64, "steps": 60}
    orders = []
    monkeypatch.setattr("irmtv.models.networks.model.align", lambda a, b: orders.append(align(a, b)) or orders[-1])
    together = search(task, "minimax-tv-l1", path(0, 100), seeds=range(4), **how)
    flips = {tuple(order.tolist()) for order in orders}
    assert flips == {(0, 1), (1, 0)}
    alone = [search(task, "minimax-tv-l1", path(0, 100), seeds=[k], **how) for k in range(4)]
    overall = torch.stack([a.records.pooled().overall for a in alone]).mean(0)
    torch.testing.assert_close(together.records.pooled().overall, overall, rtol=1e-9, atol=1e-12)
    risks = torch.stack([a.records.risk[0, 0].sort().values for a in alone])  # (K, E)
    apart = float((risks[:, 1] - risks[:, 0]).min())
    got = together.records.risk[0, 0].sort().values
    assert float(got[1] - got[0]) > 0.8 * apart > 0


def test_models_of_all_folds_and_seeds():
    task = task_of(n=120, environments=2)
    found = search(task, "irm-tv-l1", path(), n_folds=3, seeds=THREE, keep_states=True, warmup=10, **NET)
    fitted, which = found.fold_models()
    assert len(which) == 9
    runs = [(fold, seed) for fold in fold_tasks(task, 3, 0) for seed in THREE]
    for (fold, seed), run in zip(runs, which, strict=True):
        one = Runs(seed=seed, **{k: [v] for k, v in found.combination.items()})
        alone = train(fold, "irm-tv-l1", one, warmup=10, keep_states=True, **NET).at(found.step)
        torch.testing.assert_close(fitted.logits(task.train.x)[run], alone.logits(task.train.x)[0])


def test_a_combination_that_diverges_with_one_seed_is_lost():
    family = search(task_of(n=90, environments=2), "irm-tv-l1", path(), n_folds=2, seeds=(0, 1), **HOW).path.batch
    assert [family.runs_of(f, 1) for f in (0, 1)] == [[1, 4], [7, 10]]
    for run in family.runs_of(0, 1) + family.runs_of(1, 1):
        lost = replace(family, folds=replace(family.folds, diverged={run: 7}))
        assert [lost.diverged(c) for c in range(3)] == [False, True, False]


def test_l2_is_chosen_by_the_mean_over_seeds():
    task, values = task_of(n=60, environments=2, seed=2), (0.0, 3e-3, 3e-2)
    how = {**NET, "n_folds": 2, "rule": "iid"}
    grid = [{"l2": v} for v in values]

    def best(seeds):
        table = search(task, "erm", grid, seeds=seeds, **how).table()
        return table.groupby("l2")["risk"].min().idxmin()

    found = {seeds: search(task, "irm-tv-l1", path(), seeds=seeds, l2_from=values, **how) for seeds in (THREE, (0,))}
    chosen = {seeds: f.path.batch.settings["l2"] for seeds, f in found.items()}
    assert chosen == {seeds: best(seeds) for seeds in found}
    assert chosen[THREE] != chosen[(0,)]


def test_all_seeds_are_counted_by_whoever_watches():
    told = []
    task = task_of(n=90, environments=2)
    search(task, "irm-tv-l1", path(), rule="iid", n_folds=2, seeds=THREE, l2_from=(0.0, 0.1), progress=told.append,
           **HOW)  # fmt: skip
    assert told[-1].runs == 3 * 2 * (3 + 2) == told[-1].runs_done + told[-1].runs_now
    with refuse("seeds must be at least one whole number"):
        search(task, "irm-tv-l1", path(), n_folds=2, seeds=[], **HOW)
