"""A grid trained in one batch and chosen from: against runs by hand, and against experiments with the same runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.problems import refuse, task_of
from irmtv import Runs, train
from irmtv.core.types import Rows
from irmtv.datasets import make_control, make_simulation
from irmtv.lab.experiments import read_records, read_results, run_experiment
from irmtv.models.own_directions import directions_beside
from irmtv.models.search import search
from irmtv.objectives import OBJECTIVES
from irmtv.selection import choose
from irmtv.selection.folds import align, constant_risk, fold_tasks, left_out_tasks
from lab.experiments.small import ERM, MINIMAX, TV, small

STATISTICS = ("rows", "risk", "risk_cov", "slope", "slope_cov")
HOW = {"steps": 30, "snapshot_every": 5, "learning_rate": 0.05}
DOUBLE = {"dtype": torch.float64}
F64 = {**HOW, **DOUBLE}


def path(*weights, **more):
    return [{"penalty_weight": float(w), **more} for w in (weights or (0, 1, 100))]


def by_hand(task, objective, combinations, n_folds, seed=0, **settings):
    """One run after the other: history of every fold and combination."""
    return [
        [
            train(fold, objective, Runs(seed=seed, **{k: [v] for k, v in c.items()}), **settings).history
            for c in combinations
        ]
        for fold in fold_tasks(task, n_folds, seed)
    ]


# ---- records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "weighted"), [("binary", False), ("binary", True), ("squared", True), ("multiclass", False)]
)
def test_records_are_those_of_single_runs(kind, weighted):
    task = task_of(kind, 90, environments=2)
    if weighted:
        weight = torch.tensor(np.random.default_rng(0).uniform(0.5, 1.5, 90))
        task = replace(task, train=replace(task.train, weight=weight))
    combinations = path(0, 1, 100)
    found = search(task, "irm-tv-l1", combinations, n_folds=3, warmup=10, **F64)
    runs = by_hand(task, "irm-tv-l1", combinations, 3, warmup=10, **F64)
    # all steps of weight 0; of the others those after the warm-up, which is the same model
    steps = [(c, s) for c in range(3) for s in range(5, 31, 5) if c == 0 or s > 10]
    assert [(c.combination, c.step) for c in found.candidates] == steps
    for f in range(3):
        for name in STATISTICS:
            expected = torch.stack([getattr(runs[f][c], name)[runs[f][c].steps.index(s), 0] for c, s in steps])
            torch.testing.assert_close(getattr(found.records, name)[f], expected.double(), rtol=1e-7, atol=1e-10)
    assert found.records.reference.tolist() == [c == 0 for c, _ in steps]
    folds = fold_tasks(task, 3, 0)
    sizes = [30.0] * 3 if not weighted else [float(t.held_out.weight.sum()) for t in folds]
    assert found.records.constant == pytest.approx(np.average([constant_risk(t) for t in folds], weights=sizes))
    assert found.records.own is None and not found.records.stated.any()


def test_the_rule_sees_the_records_and_nothing_else():
    found = search(task_of(n=90, environments=2), "irm-tv-l1", path(), n_folds=3, options={"level": 0.3}, **HOW)
    assert found.choice == choose("invariance", found.records, level=0.3)
    where = found.candidates[found.choice.index]
    assert found.step == where.step and found.combination == path()[where.combination]


def test_test_and_held_out_rows_are_not_looked_at():
    task = task_of(n=90, environments=2)
    nonsense = replace(task.train, x=task.train.x * torch.nan)
    a = search(task, "irm-tv-l1", path(), n_folds=3, **HOW)
    b = search(replace(task, test=nonsense, held_out=nonsense), "irm-tv-l1", path(), n_folds=3, **HOW)
    assert a.table().equals(b.table()) and a.choice == b.choice


@pytest.mark.parametrize("keep_states", [False, True])
@pytest.mark.parametrize("kind", ["binary", "squared", "multiclass"])
def test_directions_stand_beside_held_out_scores_of_the_best_plain_candidate(kind, keep_states):
    task = task_of(kind, 240, environments=2)
    how = {k: v for k, v in F64.items() if k != "learning_rate"} | {"hidden": (3,)}
    grid = [{"penalty_weight": w, "learning_rate": r, "l2": 1e-3} for w in (0.0, 10.0) for r in (1e-4, 0.05)]
    found = search(task, "irm-tv-l1", grid, n_folds=3, seeds=(4, 1), warmup=10, keep_states=keep_states, **how)
    plain = found.table().query("plain")
    best = plain.loc[plain["risk"].idxmin()]
    assert best["learning_rate"] == 0.05 and best["penalty_weight"] == 0
    settings = {**how, "learning_rate": 0.05, "l2": 1e-3, "steps": int(best["step"])}
    scores = torch.empty(240, 3, **DOUBLE) if kind == "multiclass" else torch.empty(240, **DOUBLE)
    for f, part in enumerate(fold_tasks(task, 3, 0)):
        fits = [train(part, "erm", Runs(seed=seed), **settings) for seed in (4, 1)]
        scores[found.fold == f] = sum(fit.logits(part.held_out.x)[0] for fit in fits) / 2
    expected = directions_beside(task, scores)
    assert expected is not None and found.records.directions == pytest.approx(expected, rel=1e-6)


def test_weights_of_zero_are_rows_that_are_not_there():
    task = task_of(n=120, environments=2)
    kept = torch.arange(120) % 4 > 0
    weight = kept.double()
    a = search(replace(task, train=replace(task.train, weight=weight)), "irm-tv-l1", path(), n_folds=3, **F64)
    b = search(replace(task, train=task.train.take(kept.nonzero().squeeze(1))), "irm-tv-l1", path(), n_folds=3, **F64)
    for name in STATISTICS:
        torch.testing.assert_close(getattr(a.records, name), getattr(b.records, name), rtol=1e-6, atol=1e-9)


def test_folds_count_by_what_their_rows_weigh():
    """Where a fold has rows of one class alone, they all have one weight: it is not that of another fold's."""
    task = task_of(n=60, environments=2)
    y = torch.zeros(60, dtype=torch.float64)
    y[[3, 40]] = 1
    weight = torch.where(y > 0, 15.0, 30 / 58).double()
    task = replace(task, train=replace(task.train, y=y, weight=weight))
    found = search(task, "erm", [{}], rule="iid", n_folds=5, **F64)
    folds = fold_tasks(task, 5, 0)
    expected = [float(fold.held_out.weight.sum()) for fold in folds]
    assert len({round(size, 3) for size in expected}) > 1
    np.testing.assert_allclose(found.records.rows[:, -1].sum(-1), expected)
    loss = []
    for fold in folds:
        fitted = train(fold, "erm", **F64)
        f = fitted.logits(fold.held_out.x)[0]
        each = torch.nn.functional.binary_cross_entropy_with_logits(f, fold.held_out.y, reduction="none")
        loss.append(float((each * fold.held_out.weight).sum()))
    assert found.table()["risk"].iloc[-1] == pytest.approx(sum(loss) / sum(expected), rel=1e-7)


def test_what_rows_are_worth_is_recorded_where_they_have_weights():
    task = task_of(n=90, environments=2)
    weight = torch.tensor(np.random.default_rng(0).gamma(2.0, size=90))
    weighted = replace(task, train=replace(task.train, weight=weight))
    found = search(weighted, "irm-tv-l1", path(), n_folds=3, **F64)
    here = [weight[task.train.environment == e] for e in (0, 1)]
    expected = [float(w.sum() ** 2 / w.square().sum()) for w in here]
    np.testing.assert_allclose(found.records.pooled().worth[0], expected)
    plain = search(task, "irm-tv-l1", path(), n_folds=3, **F64).records
    assert plain.effective is None and torch.equal(plain.pooled().worth, plain.pooled().rows)


@pytest.mark.parametrize("rule", ["invariance", "worst-env", "leave-one-env-out"])
def test_environments_without_weight_are_not_there(rule):
    task = task_of(n=200, environments=4)
    task = replace(task, train=replace(task.train, names=tuple("abcd")))
    kept = task.train.environment != 1
    weighted = replace(task, train=replace(task.train, weight=kept.double()))
    fewer = task.train.take(kept.nonzero().squeeze(1))
    codes = fewer.environment - (fewer.environment > 1).long()
    fewer = replace(task, train=replace(fewer, environment=codes, names=("a", "c", "d")))
    a, b = (search(t, "irm-tv-l1", path(), rule=rule, n_folds=2, **F64) for t in (weighted, fewer))
    assert a.choice == b.choice and a.records.risk.shape[-1] == 3
    for name in STATISTICS:
        torch.testing.assert_close(getattr(a.records, name), getattr(b.records, name), rtol=1e-6, atol=1e-9)
    with refuse("smallest environment", "'b' (0 rows)"):  # a measure has one number for each of them
        search(weighted, "irm-tv-l1", path(), n_folds=2, measure=(0.1, 0.2, 0.3, 0.4), **F64)


def test_folds_by_class():
    task = task_of(n=60, environments=2)
    y = torch.zeros(60, dtype=torch.float64)
    y[:3] = 1
    task = replace(task, train=replace(task.train, y=y))
    found = search(task, "erm", [{}], rule="iid", n_folds=3, by_class=True, **F64)
    assert [int(t.held_out.y.sum()) for t in found.split.folds] == [1, 1, 1]


def test_left_out_risks_are_those_of_single_runs():
    task = task_of(n=120, environments=3)
    found = search(task, "irm-tv-l1", path(), rule="leave-one-env-out", n_folds=2, warmup=10, **F64)
    risks = torch.stack(
        [
            torch.cat([
                train(part, "irm-tv-l1", Runs(penalty_weight=[c["penalty_weight"]]), warmup=10, **F64).history.risk[
                    1 if i == 0 else 3 :, 0, 0
                ]
                for i, c in enumerate(path())
            ])
            for part in left_out_tasks(task)
        ],
        1,
    )  # fmt: skip
    torch.testing.assert_close(found.records.left_out, risks, rtol=1e-7, atol=1e-10)
    assert found.choice.index == int(risks.mean(1).argmin())
    np.testing.assert_allclose(found.table()["left_out_risk"], risks.mean(1))


# ---- inferred environments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_inferred_environments_are_candidates_once_they_are_settled_and_in_one_order(monkeypatch, swapped):
    def aligned(reference, q):
        order = align(reference, q)
        return order.flip(0) if swapped else order  # trainings from one seed seldom find them in another order

    monkeypatch.setattr("irmtv.models.networks.model.align", aligned)
    task = task_of(n=120, environments=2)
    found = search(task, "minimax-tv-l1", path(0, 100), n_folds=3, warmup=10, seed=3, **F64)
    steps = [(c, s) for c in range(2) for s in range(10, 31, 5) if c == 0 or s > 10]
    assert [(c.combination, c.step) for c in found.candidates] == steps
    assert found.records.own is None and found.records.risk_cov.shape[2:] == (2, 2)
    for c in range(2):
        fits = [
            train(fold, "minimax-tv-l1", Runs(seed=3, penalty_weight=[100.0 * c]), warmup=10, **F64)
            for fold in fold_tasks(task, 3, 3)
        ]
        q = [fit.membership(task.train.aux)[0] for fit in fits]
        for f, fit in enumerate(fits):
            order = aligned(q[0], q[f])
            places = [i for i, (k, _) in enumerate(steps) if k == c]
            at = [fit.history.steps.index(steps[i][1]) for i in places]
            torch.testing.assert_close(
                found.records.risk[f, places], fit.history.risk[at, 0][:, order].double(), rtol=1e-6, atol=1e-9
            )
            cov = fit.history.slope_cov[at, 0][:, order][:, :, order].double()
            torch.testing.assert_close(found.records.slope_cov[f, places], cov, rtol=1e-5, atol=1e-9)


def test_environments_that_are_looked_for_to_the_end_have_one_candidate():
    settings = {"schedule": "alternating", **HOW}
    found = search(task_of(n=120), "minimax-tv-l1", path(0, 100), n_folds=2, **settings)
    assert [(c.combination, c.step) for c in found.candidates] == [(0, 30), (1, 30)]


@pytest.mark.parametrize("objective", ["groupdro", "lff", "eiil", "hrm", "sparse-irm", "irm-tv-l1+vrex", "irmv1"])
def test_every_objective_has_plain_risk_minimisation_to_compare_with(objective):
    task = task_of(n=160, environments=2)
    has_weight = any(h.name == "penalty_weight" for h in OBJECTIVES[objective].hyperparameters)
    more = {"cluster_steps": 5, "rounds": 2} if objective == "hrm" else {}
    found = search(task, objective, path(0, 10) if has_weight else [{}], n_folds=2, **more, **HOW)
    names = list(dict.fromkeys(path.objective.name for path in found.paths))
    needs_erm = objective in ("groupdro", "lff", "hrm", "sparse-irm")
    assert names == [objective, "erm"] if needs_erm else [objective]
    plain = found.records.reference
    assert plain.any() and not plain.all()
    assert found.records.directions is not None and found.choice.outcome is not None
    erm = by_hand(task, "erm", [{}], 2, **HOW)
    expected = [[h[0].risk[s, 0] for s in range(1, 7)] for h in erm]
    if objective != "irmv1":  # every environment counts the same there
        got = found.records.risk[:, plain][:, -6:] if needs_erm else found.records.risk[:, plain][:, :6]
        torch.testing.assert_close(got, torch.stack([torch.stack(e) for e in expected]).double(), rtol=1e-4, atol=1e-6)


# ---- the same choice as an experiment -----------------------------------------------------------------------------


FOUR = ("invariance", "iid", "worst-env", "leave-one-env-out")
TRAINING = {"steps": 120, "snapshot_every": 15}
WEIGHTS = (1.0, 100.0, 1e4)


def same_choice(found, row, warmup, without=()):
    chosen = row.hyperparameters.get("penalty_weight", 0.0) if row.step > warmup else 0.0  # the warm-up is ERM
    assert (found.combination["penalty_weight"], found.step) == (chosen, row.step)
    assert found.choice.outcome == (row.outcome if row.rule == "invariance" else None)
    if row.rule == "invariance":
        for name in {"p", "p_erm", "p_own", "risk", "risk_erm", "risk_constant", "p_confirmed"} - {*without}:
            expected = row.figures[name]
            same = None if expected is None else pytest.approx(expected, rel=1e-2, abs=1e-6)
            assert found.choice.figures[name] == same, name


@pytest.mark.parametrize("p_s", [(0.999, 0.7, 0.8), (0.9, 0.8, 0.85)], ids=["far apart", "near"])
def test_the_choice_is_that_of_an_experiment(tmp_path, p_s):
    tv = {**TV, "penalty_weight": list(WEIGHTS), "warmup": 45}
    pools = {"all": ["irm-tv-l1", "erm"]}
    arguments = {"n_samples": 450, "p_s": list(p_s)}
    spec = small(ERM, tv, rules=FOUR, folds=3, arguments=arguments, training=TRAINING, pools=pools)
    assert run_experiment(spec, tmp_path / "x").failed == ()
    frame = read_results(spec, tmp_path / "x")
    task = make_simulation(450, p_s, random_state=spec.seeds[0], n_test=120)
    how = {"n_folds": 3, "seed": spec.seeds[0], "warmup": 45, "learning_rate": 0.05, **TRAINING}
    for rule in FOUR:
        row = next(frame[(frame["method"] == "all") & (frame["rule"] == rule)].itertuples())
        found = search(task, "irm-tv-l1", path(0, *WEIGHTS), rule=rule, **how)
        same_choice(found, row, 45, without=("p_own",))  # an experiment does not ask about the candidate alone


def test_the_choice_on_inferred_environments_is_that_of_an_experiment(tmp_path):
    minimax = {**MINIMAX, "penalty_weight": [0.0, 100.0, 1e4], "warmup": 45}
    arguments = {"n_samples": 450, "p_s": [0.999, 0.7]}
    spec = small(minimax, rules=FOUR[:3], folds=3, arguments=arguments, training=TRAINING)
    run_experiment(spec, tmp_path / "x")
    frame = read_results(spec, tmp_path / "x")
    task = make_simulation(450, (0.999, 0.7), random_state=spec.seeds[0], n_test=120)
    how = {"n_folds": 3, "seed": spec.seeds[0], "warmup": 45, "learning_rate": 0.05, **TRAINING}
    for rule in FOUR[:3]:
        row = next(frame[frame["rule"] == rule].itertuples())
        alone = {"options": {"own_level": 1}} if rule == "invariance" else {}  # an experiment has no own models there
        found = search(task, "minimax-tv-l1", path(0, 100, 1e4), rule=rule, **alone, **how)
        same_choice(found, row, 45, without=("p_own",))


def test_records_are_those_of_an_experiment(tmp_path):
    spec = small(ERM, {**TV, "penalty_weight": [100.0]}, rules=["invariance"], folds=3)
    run_experiment(spec, tmp_path / "x")
    ((_, _, _, stored, _),) = [r for r in read_records(spec, tmp_path / "x", "test/accuracy") if r[1] == "irm-tv-l1"]
    task = make_simulation(240, random_state=spec.seeds[0], n_test=120)
    found = search(task, "irm-tv-l1", path(0, 100), n_folds=3, seed=spec.seeds[0], warmup=10, **HOW)
    # stored: six steps of the penalised run, then six of ERM; here ERM first, and no second warm-up
    order = [*range(6, 12), *range(2, 6)]
    for name in STATISTICS:
        expected = getattr(stored, name)[:, order]
        torch.testing.assert_close(getattr(found.records, name), expected, rtol=1e-3, atol=1e-5)
    assert found.records.directions == pytest.approx(stored.directions, rel=1e-3)
    assert found.records.constant == pytest.approx(stored.constant)
    assert torch.equal(found.records.reference, stored.reference[order])


# ---- outcomes -----------------------------------------------------------------------------------------------------

LONG = {"steps": 200, "learning_rate": 0.05, "n_folds": 3}


def test_three_outcomes():
    found = search(make_control(1000, random_state=0), "irm-tv-l1", path(0, 100, 1e4), **LONG)
    assert found.choice.outcome == "erm-invariant" and found.combination["penalty_weight"] == 0
    found = search(make_simulation(1000, (0.999, 0.7), random_state=0), "irm-tv-l1", path(0, 100, 1e4), **LONG)
    assert found.choice.outcome == "invariant-found" and found.combination["penalty_weight"] >= 100
    found = search(make_simulation(1000, (0.999, 0.7), random_state=0), "irm-tv-l1", path(0, 1e-3), **LONG)
    assert found.choice.outcome == "none-found" and found.combination["penalty_weight"] == 0
    assert bool(found.records.reference[found.choice.index])


def test_the_same_call_gives_the_same():
    task = make_simulation(300, (0.999, 0.7), random_state=0)
    a, b = (search(task, "irm-tv-l1", path(), n_folds=3, **HOW) for _ in range(2))
    assert a.table().equals(b.table()) and a.choice == b.choice


def test_fold_models_are_those_of_single_runs():
    task = task_of(n=120, environments=2)
    found = search(task, "irm-tv-l1", path(), n_folds=3, keep_states=True, warmup=10, **F64)
    fitted, which = found.fold_models()
    for fold, run in zip(fold_tasks(task, 3, 0), which, strict=True):
        alone = train(fold, "irm-tv-l1", Runs(**{k: [v] for k, v in found.combination.items()}), warmup=10,
                      keep_states=True, **F64).at(found.step)  # fmt: skip
        torch.testing.assert_close(fitted.logits(task.train.x)[run], alone.logits(task.train.x)[0])


# ---- what goes wrong ----------------------------------------------------------------------------------------------


def test_combinations_that_diverge_cannot_be_chosen():
    task = task_of("squared", 120, environments=2)
    grid = [{"penalty_weight": w, "learning_rate": r} for w in (0.0, 10.0) for r in (0.05, 1e30)]
    how = {k: v for k, v in HOW.items() if k != "learning_rate"}
    with pytest.warns(UserWarning, match="diverged with 2 of 4 combinations .* cannot be chosen"):
        found = search(task, "irm-tv-l1", grid, n_folds=2, rule="iid", **how)
    lost = found.table()["learning_rate"] == 1e30
    assert found.table()["risk"].isna().eq(lost).all() and found.combination["learning_rate"] == 0.05
    with refuse("diverged with all 2 combinations", "Lower learning_rate"):
        search(task, "irm-tv-l1", grid[1::2], n_folds=2, rule="iid", **how)
    with refuse("ERM, which rule 'invariance' compares with, diverged"):
        search(task, "irmv1", grid[1:3], n_folds=2, **how)  # whose penalty acts from the first step


def with_names(rows: Rows, sizes, **more):
    codes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return replace(rows, environment=codes, names=tuple("abcdef"[: len(sizes)]), **more)


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((50, 50), {"rule": "invariant"}, ("rule must be one of", "Did you mean 'invariance'?")),
        ((50, 50), {"rule": "oracle"}, ("rule must be one of",)),
        ((50, 50), {"rule": "iid", "options": {"level": 0.1}}, ("only rule 'invariance' has options", "'iid'")),
        ((50, 50), {"options": {"levle": 0.1}}, ("options of 'invariance'", "Did you mean 'level'?")),
        ((50, 50), {"options": "x"}, ("rule_options must be a dict", "Got 'x'", "rule_options={'level': 0.01}")),
        ((50, 50), {"n_folds": 1}, ("cv must be a number of folds, 2 or more. Got 1.",)),
        ((50, 50), {"n_folds": 2.5}, ("cv must be a number of folds",)),
        ((50, 50), {"n_folds": 101}, ("cv must be at most the number of rows. Got cv=101 and n_samples=100",)),
        ((96, 4), {"n_folds": 5, "rule": "iid"}, ("smallest environment", "'b' (4 rows)", "Use cv=4.")),
        ((85, 15), {}, ("at least 20 rows", "'b' (15)", "Pooling would not leave two")),
        ((50, 50), {"rule": "leave-one-env-out"}, ("needs three or more", "has 2; use 'invariance'")),
        ((30, 40, 30), {"rule": "leave-one-env-out", "measure": (1.0, 1.0, 2.0)}, ("measure must be a word",)),
    ],
)
def test_what_cannot_work_is_said_before_training(monkeypatch, sizes, options, message):
    monkeypatch.setattr("irmtv.models.networks.model.train", None)
    task = task_of(n=100, environments=2)
    task = replace(task, train=with_names(task.train, sizes))
    with refuse(*message):
        search(task, "irm-tv-l1", path(), **{"n_folds": 2, **options}, **HOW)


@pytest.mark.parametrize(
    ("objective", "rule", "combinations", "message"),
    [
        ("erm", "invariance", [{}], ("needs at least 2. Got no environments", "rule='iid'")),
        ("lff", "worst-env", [{}], ("rule 'worst-env' compares environments", "pass environment=...")),
        ("eiil", "invariance", path(0, 1), ("infers environments of training rows alone", "rule='iid'")),
        ("minimax-tv-l1", "leave-one-env-out", path(0, 1), ("is for given environments", "infers its own")),
        (
            "minimax-tv-l1", "invariance", [*path(0, 1, warmup=5), *path(0, 1, warmup=10)],
            ("the same inferred environments", "'warmup'", "rule='iid'"),
        ),
    ],
)  # fmt: skip
def test_rules_that_need_environments(monkeypatch, objective, rule, combinations, message):
    monkeypatch.setattr("irmtv.models.networks.model.train", None)
    task = task_of(n=100)
    task = replace(task, train=replace(task.train, environment=None, names=()))
    with refuse(*message):
        search(task, objective, combinations, rule=rule, n_folds=2, **HOW)


def test_an_environment_that_is_too_small_to_test_is_named():
    task = task_of(n=100, environments=2)
    task = replace(task, train=with_names(task.train, (50, 35, 15)))
    with pytest.warns(UserWarning, match=r"does not test environments with fewer than 20 rows: 'c' \(15\)"):
        found = search(task, "irm-tv-l1", path(), n_folds=3, **HOW)
    assert found.records.rows.sum(0)[0].tolist() == [50, 35, 15]


def test_rows_to_test_are_counted_by_what_their_weights_are_worth(monkeypatch):
    monkeypatch.setattr("irmtv.models.networks.model.train", None)
    task = task_of(n=100, environments=2)
    weight = torch.ones(100, dtype=torch.float64)
    weight[50:] = torch.where(torch.arange(50) < 5, 100.0, 0.1).double()  # five rows, and a few that hardly count
    task = replace(task, train=with_names(task.train, (50, 50), weight=weight))
    with refuse("at least 20 rows", "'b' (5.09)", "(sum w)^2 / sum w^2", "Pooling would not leave two"):
        search(task, "irm-tv-l1", path(), n_folds=2, **HOW)
    small = replace(task, train=replace(task.train, weight=weight.clone().fill_(0.1)))  # all the same: fifty rows each
    with pytest.raises(TypeError):  # there is nothing to train with here
        search(small, "irm-tv-l1", path(), n_folds=2, **HOW)


def test_progress_counts_all_runs():
    told = []
    task = task_of(n=120, environments=3)
    search(task, "irm-tv-l1", path(), rule="leave-one-env-out", n_folds=2, progress=told.append, **HOW)
    assert {p.runs for p in told} == {15} and told[-1].share == 1
    assert all(a.share <= b.share for a, b in pairwise(told))
    told.clear()
    search(task, "irm-tv-l1", path(), rule="iid", n_folds=2, l2_from=(0.0, 0.1), progress=told.append, **HOW)
    assert {p.runs for p in told} == {10} and told[-1].share == 1
