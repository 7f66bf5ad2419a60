"""The loop as a whole: order and chunks, schedules, mini-batches, losses, layouts, precision, interruption."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from engine.problems import arrays, close, parameters, refuse, task_of, train_by_hand
from irmtv import Runs, make_task, train
from irmtv.datasets import make_simulation
from irmtv.engine import Progress, TrainingInterrupted
from irmtv.engine.networks import MLP
from irmtv.objectives.environments.aux_network import GroupedRows, PlainRows, SortedRows, lay_out

# a fixed q is enough for several of these
pytestmark = pytest.mark.filterwarnings("ignore:warmup=0 with schedule='annealed'")

S = {"dtype": torch.float64, "steps": 30, "learning_rate": 0.01, "penalty_weight": 20.0, "warmup": 10}
ERM = {k: v for k, v in S.items() if k not in ("penalty_weight", "warmup")}


def equal(ours, theirs, tolerance=1e-8):
    """The same runs in the same order."""
    pairs = list(zip(parameters(ours), parameters(theirs), strict=True))
    return all(a.shape == b.shape and close(a, b, tolerance) for a, b in pairs)


def risk(fitted):
    """Over all rows, at every snapshot: (S, R)."""
    h = fitted.history
    return (h.rows * h.risk).sum(2) / h.rows.sum(2)


# Order and chunks

MIXED = {
    "seed": range(7),
    "data": [1, 0, 2, 0, 1, 1, 0],
    "learning_rate": [1e-2, 5e-3, 1e-2, 2e-3, 1e-2, 1e-2, 3e-2],
    "penalty_weight": [0.0, 1.0, 10.0, 100.0, 20.0, 20.0, 5.0],
    "warmup": [10, 0, 10, 40, 10, 0.5, 3],
    "l2": [0.0, 1e-2, 0.0, 0.0, 0.1, 0.0, 0.0],
}


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1", "vrex"])
@pytest.mark.parametrize("batch_size", [None, 30])
def test_results_come_in_the_order_of_the_runs_whatever_the_chunks(objective, batch_size):
    tasks = [task_of(seed=i) for i in range(3)]
    shared = {k: v for k, v in S.items() if k not in MIXED} | {"batch_size": batch_size}
    whole = train(tasks, objective, Runs(**MIXED), **shared)
    x = tasks[0].train.x
    for max_chunk in (1, 2, 3):
        cut = train(tasks, objective, Runs(**MIXED), max_chunk=max_chunk, **shared)
        assert len(cut.chunks) > len(whole.chunks)
        assert equal(cut, whole)
        assert close(cut.logits(x), whole.logits(x))


@pytest.mark.parametrize(
    ("objective", "static"),
    [
        ("irm-tv-l1", {"hidden": [(), (4,), (), (3, 2)]}),
        ("irm-tv-l2", {"reduction": ["expectation", "authors", "expectation", "authors"]}),
        ("irm-tv-l1", {"measure": ["empirical", "uniform", (1.0, 2.0, 3.0), "empirical"]}),
        ("minimax-tv-l1", {"schedule": ["annealed", "alternating", "annealed", "alternating"]}),
        ("minimax-tv-l1", {"n_environments": [2, 3, 2, 4], "environment_hidden": [16, 16, 8, 16]}),
        ("irm-tv-l1", {"steps": [10, 20, 30, 10], "classifier": ["scalar", "vector", "scalar", "scalar"]}),
        ("irm-tv-l1", {"normalise": [True, False, True, True], "batch_size": [None, None, 30, 40]}),
        ("minimax-tv-l2", {"aux_scaling": ["column", "authors", "column", "column"], "batch_size": [30] * 4}),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, dict) else v,
)
def test_settings_that_cannot_share_a_program_differ_between_runs(objective, static):
    """Such runs are trained apart and give what each gives alone."""
    task = task_of(aux=np.random.default_rng(0).normal(size=(100, 2)))
    shared = {k: v for k, v in S.items() if k not in static}
    together = train(task, objective, Runs(range(4), **static), **shared)
    assert len(together.chunks) > 1 or len({str(v) for v in static.values()}) == 1
    for r in range(4):
        alone = train(task, objective, Runs(r, **{k: v[r] for k, v in static.items()}), **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
    assert together.steps.tolist() == static.get("steps", [30] * 4)


def test_tasks_of_unequal_size():
    tasks = [task_of(n=80), task_of(n=120, seed=1, environments=2), task_of(n=80, seed=2)]
    runs = Runs(range(4), data=[1, 2, 0, 1])
    together = train(tasks, "irm-tv-l1", runs, **S)
    for r, d in enumerate(runs.column("data")):
        assert close(parameters(together)[r], parameters(train(tasks[d], "irm-tv-l1", Runs(r), **S))[0])


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irmv1", "minimax-tv-l1"])
def test_warm_ups_of_their_own_are_those_of_separate_trainings(objective):
    warmups = [0, 7, 0.5, 29, 30, 100]
    shared = {k: v for k, v in S.items() if k != "warmup"}
    together = train(task_of(), objective, Runs([0] * 6, warmup=warmups), **shared)
    assert len(together.chunks) == 1
    for r, warmup in enumerate(warmups):
        alone = train(task_of(), objective, warmup=warmup, **shared)
        assert close(parameters(together)[r], parameters(alone)[0])
    distinct = torch.stack(parameters(together))
    assert not close(distinct[0], distinct[1]) and not close(distinct[1], distinct[2])
    assert close(distinct[4], distinct[5])  # the penalty never acts


@pytest.mark.parametrize(("share", "steps"), [(0.0, 0), (0.1, 3), (0.5, 15), (0.98, 29)])
def test_a_warm_up_may_be_a_share_of_the_steps(share, steps):
    by_share = train(task_of(), "irm-tv-l1", **{**S, "warmup": share})
    by_steps = train(task_of(), "irm-tv-l1", **{**S, "warmup": steps})
    assert torch.equal(parameters(by_share)[0], parameters(by_steps)[0])


def test_a_training_and_its_repetition_are_the_same():
    runs = Runs([3, 4], penalty_weight=[1.0, 10.0])
    shared = {k: v for k, v in S.items() if k != "penalty_weight"}
    first, second = (train(task_of(), "minimax-tv-l1", runs, batch_size=30, **shared) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(parameters(first), parameters(second), strict=True))


def test_global_randomness_neither_matters_nor_changes():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = train(task_of(), "minimax-tv-l1", batch_size=30, **S)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert equal(train(task_of(), "minimax-tv-l1", batch_size=30, **S), first)


# Line by line

BY_HAND = {"steps": 15, "warmup": 5, "penalty_weight": 50.0, "learning_rate": 5e-3, "dtype": torch.float64}


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_l2_and_normalisation(kind, normalise, l2):
    """l2 weighs all parameters, biases too, and is divided by 1 + lambda with the rest."""
    task = task_of()
    ours = train(task, f"irm-tv-{kind}", hidden=(3,), l2=l2, normalise=normalise, **BY_HAND)
    assert close(parameters(ours)[0], train_by_hand(task, kind=kind, hidden=(3,), l2=l2, normalise=normalise))


@pytest.mark.parametrize(
    ("loss", "hidden"), [("binary", ()), ("binary", (4,)), ("squared", (3, 2)), ("multiclass", ()), ("targets", (4,))]
)
@pytest.mark.parametrize("kind", ["l1", "l2"])
@pytest.mark.parametrize("batch_size", [None, 30])
def test_a_vector_classifier(loss, hidden, kind, batch_size):
    """w multiplies the last layer's inputs; with several outputs, the logits."""
    task = task_of(loss)
    settings = {"classifier": "vector", "hidden": hidden, "batch_size": batch_size, "batch_estimator": "plain"}
    ours = train(task, f"irm-tv-{kind}", Runs([0, 1]), **settings, **BY_HAND)
    for seed in (0, 1):
        theirs = train_by_hand(task, loss=loss, hidden=hidden, kind=kind, vector=True, batch_size=batch_size, seed=seed)
        assert close(parameters(ours)[seed], theirs)


@pytest.mark.parametrize("inferred", [2, 3])
@pytest.mark.parametrize("hidden", [(), (4,)])
def test_a_vector_classifier_with_inferred_environments(inferred, hidden):
    task = task_of(aux=np.random.default_rng(0).normal(size=(100, 2)))
    settings = {"n_environments": inferred, "environment_learning_rate": 1e-2, "hidden": hidden}
    ours = train(task, "minimax-tv-l1", classifier="vector", **settings, **BY_HAND)
    assert close(parameters(ours)[0], train_by_hand(task, hidden=hidden, vector=True, inferred=inferred))


@pytest.mark.parametrize("loss", ["binary", "squared", "targets", "multiclass"])
@pytest.mark.parametrize("kind", ["l1", "l2"])
@pytest.mark.parametrize("estimator", ["plain", "halves"])
def test_mini_batches_with_given_environments(loss, kind, estimator):
    task = task_of(loss)
    settings = {"batch_size": 32, "batch_estimator": estimator}
    ours = train(task, f"irm-tv-{kind}", Runs([0, 1]), **settings, **BY_HAND)
    for seed in (0, 1):
        by_hand = {"loss": loss, "kind": kind, "seed": seed, "batch_size": 32, "halves": estimator == "halves"}
        assert close(parameters(ours)[seed], train_by_hand(task, **by_hand))


@pytest.mark.parametrize("kind", ["l1", "l2"])
@pytest.mark.parametrize("estimator", ["plain", "halves"])
@pytest.mark.parametrize("inferred", [2, 3])
def test_mini_batches_with_inferred_environments(kind, estimator, inferred):
    task = task_of()
    settings = {"n_environments": inferred, "environment_learning_rate": 1e-2, "batch_size": 33}
    ours = train(task, f"minimax-tv-{kind}", Runs([0, 1]), batch_estimator=estimator, **settings, **BY_HAND)
    for seed in (0, 1):
        by_hand = {"kind": kind, "seed": seed, "batch_size": 33, "halves": estimator == "halves", "inferred": inferred}
        assert close(parameters(ours)[seed], train_by_hand(task, **by_hand))


def test_halves_are_the_default_of_l2_and_plain_of_l1():
    task = task_of()
    for kind, estimator in (("l2", "halves"), ("l1", "plain")):
        default = train(task, f"irm-tv-{kind}", batch_size=32, **S)
        assert equal(default, train(task, f"irm-tv-{kind}", batch_size=32, batch_estimator=estimator, **S))


@pytest.mark.parametrize("measure", ["empirical", "uniform"])
@pytest.mark.parametrize(("kind", "halves"), [("l1", False), ("l2", False), ("l1", True), ("l2", True)])
def test_environments_that_a_batch_does_not_have(measure, kind, halves):
    """20 environments and 10 rows: the measure is that of the environments present."""
    task = task_of(n=200, environments=20)
    settings = {"measure": measure, "batch_size": 10, "batch_estimator": "halves" if halves else "plain"}
    ours = train(task, f"irm-tv-{kind}", **settings, **BY_HAND)
    theirs = train_by_hand(task, kind=kind, measure=measure, batch_size=10, halves=halves)
    assert theirs.isfinite().all()
    assert close(parameters(ours)[0], theirs)


@pytest.mark.parametrize("objective", ["vrex", "mm-rex", "irmv1", "irm-tv-l1+vrex"])
def test_every_penalty_stands_absent_environments(objective):
    task = task_of(n=200, environments=20)
    fitted = train(task, objective, Runs([0, 1]), batch_size=10, **S)
    assert not fitted.diverged
    assert all(p.isfinite().all() for p in parameters(fitted))


def test_a_batch_of_all_rows_is_the_full_batch():
    full = train(task_of(), "irm-tv-l1", batch_size=None, **S)
    for size in (100, 1000, "auto"):
        assert torch.equal(parameters(train(task_of(), "irm-tv-l1", batch_size=size, **S))[0], parameters(full)[0])


# Losses


@pytest.mark.parametrize("kind", ["binary", "squared", "targets", "multiclass"])
@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "vrex", "minimax-tv-l1"])
@pytest.mark.parametrize("batch_size", [None, 30])
def test_every_kind_of_task_is_learnt(kind, objective, batch_size):
    settings = {**(ERM if objective == "erm" else {**S, "penalty_weight": 0.1}), "learning_rate": 0.05, "steps": 60}
    fitted = train(
        task_of(kind), objective, Runs([0, 1]), hidden=(4,), batch_size=batch_size, snapshot_every=60, **settings
    )
    start, end = risk(fitted)
    assert (end < 0.85 * start).all()


def absolute(f, y):
    return (f - y).abs()


def huber(f, y):
    return functional.huber_loss(f, y, reduction="none")


def cross_entropy(f, y):
    return functional.binary_cross_entropy_with_logits(f, y, reduction="none")


def squared_targets(f, y):
    return (f - y).square().mean(-1)


@pytest.mark.parametrize(
    ("kind", "own", "named"),
    [("binary", cross_entropy, "binary"), ("targets", squared_targets, "squared")],
)
@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1", "minimax-tv-l1", "vrex"])
@pytest.mark.parametrize(("batch_size", "classifier"), [(None, "scalar"), (30, "scalar"), (None, "vector")])
def test_a_loss_of_ones_own_that_is_a_named_one(kind, own, named, objective, batch_size, classifier):
    """Written with torch's own functions, which ask for equal shapes."""
    settings = {**(ERM if objective == "erm" else S), "batch_size": batch_size, "classifier": classifier}
    mine, theirs = (train(task_of(kind, loss=x), objective, Runs([0, 1, 2]), **settings) for x in (own, named))
    assert equal(mine, theirs)


def test_a_loss_of_ones_own_may_read_more_columns_of_y_than_there_are_outputs():
    x, y, e, _ = arrays("squared")
    weight = np.random.default_rng(0).uniform(size=100)

    def weighted(f, y):
        return y[..., 1] * (f - y[..., 0]).square()

    def fit(column):
        both = make_task(
            x, np.stack([y, column], 1), environment=e, loss=weighted, n_outputs=1, dtype=torch.float64, min_rows=1
        )
        return train(both, "irm-tv-l1", Runs([0, 1]), **S)

    assert equal(fit(np.ones(100)), train(task_of("squared"), "irm-tv-l1", Runs([0, 1]), **S))
    assert not equal(fit(weight), fit(np.ones(100)), 1e-3)


@pytest.mark.parametrize("over", [None, -1])
@pytest.mark.parametrize("objective", ["erm", "irm-tv-l1"])
def test_a_loss_of_ones_own_must_be_one_number_per_row(over, objective):
    """A mean over the rows would be one over the runs too."""

    def reduced(f, y):
        value = (f - y).square()
        return value.mean() if over is None else value.mean(over, keepdim=True)

    with refuse("loss 'reduced' must give one number per row", "leave out any over the rows"):
        train(task_of("squared", loss=reduced), objective, Runs([0, 1]), steps=2)


@pytest.mark.parametrize("own", [absolute, huber])
@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l2"])
def test_a_loss_of_ones_own_is_learnt(own, objective):
    settings = {**S, "penalty_weight": 0.1, "learning_rate": 0.05, "steps": 80}
    fitted = train(task_of("squared", loss=own), objective, Runs([0, 1]), snapshot_every=80, **settings)
    assert fitted.tasks[0].loss.name == own.__name__
    start, end = risk(fitted)
    assert (end < 0.9 * start).all()


# Schedules


def rho_of(fitted):
    return torch.cat([v[0].flatten() for v in fitted.state("last")[0].rho.values()])


@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize("batch_size", [None, 30])
def test_annealed_rho_stands_still_after_the_warm_up_and_alternating_rho_moves(n_environments, batch_size):
    def rho(schedule, steps):
        settings = {**S, "steps": steps, "n_environments": n_environments, "batch_size": batch_size}
        return rho_of(train(task_of(), "minimax-tv-l2", schedule=schedule, **settings))

    at_end_of_warm_up = rho("annealed", 10)
    assert torch.equal(rho("annealed", 11), at_end_of_warm_up)
    assert torch.equal(rho("annealed", 30), at_end_of_warm_up)
    assert not close(rho("annealed", 9), at_end_of_warm_up)
    # up to there both do the same
    assert close(rho("alternating", 10), at_end_of_warm_up)
    later = [rho("alternating", steps) for steps in (10, 11, 12, 30)]
    assert all(not torch.equal(a, b) for a, b in pairwise(later))


@pytest.mark.parametrize("schedule", ["annealed", "alternating"])
@pytest.mark.parametrize("batch_size", [None, 30])
@pytest.mark.parametrize("aux", ["many", "few", "two"])
def test_phi_in_the_warm_up_is_erm(schedule, batch_size, aux):
    task = task_of(aux=auxiliary(aux))
    settings = {**S, "warmup": 30, "l2": 1e-2, "batch_size": batch_size}
    warm = train(task, "minimax-tv-l1", Runs([0, 1]), schedule=schedule, environment_learning_rate=0.1, **settings)
    # batches are drawn after rho's start, from the same generator: compare with a rho that finds nothing
    erm = train(task, "minimax-tv-l1", Runs([0, 1], penalty_weight=0.0), **{**settings, "warmup": 0})
    assert equal(warm, erm, 1e-10)
    if batch_size is None:
        assert equal(warm, train(task, "erm", Runs([0, 1]), l2=1e-2, **ERM), 1e-10)


@pytest.mark.parametrize("objective", ["irm-tv-l1", "vrex", "irm-tv-l1+vrex"])
def test_phi_in_the_warm_up_is_erm_with_given_environments(objective):
    warm = train(task_of(), objective, **{**S, "warmup": 30})
    assert equal(warm, train(task_of(), "erm", **ERM), 1e-10)


@pytest.mark.parametrize("power", [1, 2])
def test_rho_climbs(power):
    """During the warm-up the penalty that rho finds grows; Phi is the same whatever rho does.

    The l1 penalty is flat while the slopes of all environments have one sign: it begins to grow once Phi is
    so good that the mean slope is small.
    """

    def penalty(rate):
        settings = {**S, "steps": 400, "warmup": 400, "environment_learning_rate": rate, "learning_rate": 0.05}
        history = train(task_of(), f"minimax-tv-l{power}", snapshot_every=400, **settings).history
        mass = history.rows / 100
        return float((mass * history.slope.abs() ** power).sum(2)[-1, 0])

    assert penalty(0.05) > 2 * penalty(1e-9)


# Layouts of the auxiliary variables


def auxiliary(kind, n=100):
    rng = np.random.default_rng(5)
    return {
        "many": rng.normal(size=n),
        "ties": rng.integers(30, size=n).astype(float),
        "few": rng.integers(4, size=n).astype(float),
        "two": rng.normal(size=(n, 2)),
        "few-rows": rng.integers(2, size=(n, 3)).astype(float),
    }[kind]


LAYOUTS = {"many": SortedRows, "ties": SortedRows, "few": GroupedRows, "two": PlainRows, "few-rows": GroupedRows}


@pytest.mark.parametrize("aux", LAYOUTS)
@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize("schedule", ["annealed", "alternating"])
def test_every_layout_of_aux_trains_as_the_plain_network(monkeypatch, aux, n_environments, schedule):
    tasks = [task_of(seed=i, aux=auxiliary(aux)) for i in range(2)]
    laid_out = []

    def watched(z, per_set, weight):
        assert weight is None
        laid_out.append(type(lay_out(z, per_set)))
        return lay_out(z, per_set)

    def fit(layout):
        monkeypatch.setattr("irmtv.engine.components.rho.lay_out", layout)
        settings = {**S, "schedule": schedule, "n_environments": n_environments, "environment_learning_rate": 0.01}
        return train(tasks, "minimax-tv-l1+vrex", Runs(range(4), data=[0, 1, 0, 1]), hidden=(3,), **settings)

    ours = fit(watched)
    assert laid_out == [LAYOUTS[aux]]
    theirs = fit(lambda z, per_set, weight: PlainRows(z.transpose(1, 2).contiguous()))
    assert equal(ours, theirs)
    for mine, plain in zip(ours.chunks[0].last.rho.values(), theirs.chunks[0].last.rho.values(), strict=True):
        assert close(mine, plain)


# What it is for


@pytest.mark.parametrize("objective", ["minimax-tv-l1", "minimax-tv-l2", "zin"])
def test_inferred_environments_are_the_two_halves_of_the_simulation(objective):
    task = make_simulation(3000, (0.999, 0.7), 0.9, random_state=0)
    settings = {"steps": 300, "warmup": 300, "environment_learning_rate": 0.02, "learning_rate": 0.02}
    fitted = train(task, objective, Runs([0, 1]), **settings)
    late = (task.train.aux[:, 0] >= 0.5).numpy()
    for q in fitted.membership(task.train.aux):
        area = roc_auc_score(late, q[:, 0].numpy())
        assert max(area, 1 - area) > 0.95
        if objective == "minimax-tv-l1":
            agreement = np.mean((q[:, 0] > 0.5).numpy() == late)
            assert max(agreement, 1 - agreement) > 0.9


def test_irm_tv_l1_beats_erm_in_the_worst_environment():
    task = make_simulation(5000, (0.999, 0.7), 0.9, random_state=0)
    settings = {"steps": 400, "learning_rate": 0.02, "l2": 1e-3}
    erm = train(task, "erm", Runs([0, 1]), **settings).evaluate()
    ours = train(task, "irm-tv-l1", Runs([0, 1]), penalty_weight=1e4, warmup=200, **settings).evaluate()
    assert (erm.worst < 0.65).all()
    assert (ours.worst > erm.worst + 0.2).all()
    assert (ours.worst > 0.78).all()


def test_minimax_tv_l1_beats_erm_in_the_worst_environment():
    task = make_simulation(5000, (0.999, 0.7), 0.9, random_state=0)
    settings = {"steps": 400, "learning_rate": 0.02, "l2": 1e-3}
    erm = train(task, "erm", **settings).evaluate()
    ours = train(
        task, "minimax-tv-l1", penalty_weight=1e4, warmup=200, environment_learning_rate=0.02, **settings
    ).evaluate()
    assert (ours.worst > erm.worst + 0.2).all()


# Precision


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1", "vrex"])
def test_float32_is_close_to_float64(objective):
    settings = {k: v for k, v in S.items() if k != "dtype"}
    double = train(task_of(), objective, Runs([0, 1]), dtype=torch.float64, **settings)
    single = train(task_of(), objective, Runs([0, 1]), dtype=torch.float32, **settings)
    assert all(p.dtype == torch.float32 for p in parameters(single))
    assert single.logits(task_of().train.x).dtype == torch.float32
    assert equal(double, train(task_of(), objective, Runs([0, 1]), dtype=torch.float64, **settings), 1e-12)
    for a, b in zip(parameters(single), parameters(double), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_a_run_starts_from_its_seed():
    first = train(task_of(), "erm", Runs([4]), steps=1, learning_rate=1e-12, hidden=(5,), dtype=torch.float64)
    start = MLP(3, (5,)).init(4, torch.Generator().manual_seed(4))
    assert torch.allclose(parameters(first)[0], torch.cat([v.flatten() for v in start.values()]), atol=1e-11)


# Progress and interruption


@pytest.mark.parametrize("max_chunk", [None, 2])
@pytest.mark.parametrize("steps", [1, 30, 250])
def test_progress_rises_to_one(max_chunk, steps):
    told: list[Progress] = []
    train(task_of(), "erm", Runs(range(5)), steps=steps, max_chunk=max_chunk, progress=told.append)
    shares = [p.share for p in told]
    assert shares[0] == 0 and shares[-1] == 1
    assert shares == sorted(shares) and all(0 <= s <= 1 for s in shares)
    n_chunks = 1 if max_chunk is None else 3
    assert len(told) <= n_chunks * 128
    assert len(told) == n_chunks * (min(steps, 125 if steps == 250 else steps) + 1)
    assert all(p.runs == 5 and p.steps == steps for p in told)
    assert [p.seconds for p in told] == sorted(p.seconds for p in told)
    assert sum({p.runs_done: p.runs_now for p in told}.values()) == 5


def interrupt(at_step, after_runs=0):
    def stop(report):
        if report.runs_done >= after_runs and report.step >= at_step:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("objective", ["irm-tv-l1", "minimax-tv-l1"])
@pytest.mark.parametrize("at_step", [0, 1, 17, 30])
def test_an_interruption_leaves_the_runs_as_they_were(objective, at_step):
    runs = Runs([0, 1, 2])
    with pytest.raises(TrainingInterrupted) as stopped:
        train(task_of(), objective, runs, progress=interrupt(at_step), **S)
    assert isinstance(stopped.value, KeyboardInterrupt)
    partial = stopped.value.partial
    assert len(partial) == 3 and partial.steps.tolist() == [at_step] * 3
    if at_step:
        assert equal(partial, train(task_of(), objective, runs, **{**S, "steps": at_step}))
    assert partial.logits(task_of().train.x).isfinite().all()


@pytest.mark.parametrize("at_step", [0, 12])
@pytest.mark.filterwarnings("ignore:.*diverged")
def test_an_interruption_in_the_last_chunk(at_step):
    """Finished runs are whole, the others as they were; records and failures too."""
    runs = Runs([0, 1, 2, 3], learning_rate=[0.01, 1e200, 0.01, 1e200])
    shared = {k: v for k, v in S.items() if k != "learning_rate"}
    with pytest.raises(TrainingInterrupted) as stopped:
        train(task_of(), "irm-tv-l1", runs, max_chunk=2, snapshot_every=5, progress=interrupt(at_step, 2), **shared)
    partial = stopped.value.partial
    whole = train(task_of(), "irm-tv-l1", runs, max_chunk=2, snapshot_every=5, **shared)
    assert partial.steps.tolist()[:3] == [30, whole.diverged[1], at_step]
    assert set(partial.diverged) == ({1, 3} if at_step > whole.diverged[3] else {1})
    assert torch.equal(parameters(partial)[0], parameters(whole)[0])
    assert partial.history.steps == whole.history.steps
    assert torch.equal(partial.history.risk[:, 0], whole.history.risk[:, 0])
    seen = [s <= at_step for s in whole.history.steps]
    assert (partial.history.rows[:, 2] > 0).any(1).tolist() == seen


def test_an_interruption_before_every_run_has_begun():
    with pytest.raises(TrainingInterrupted) as stopped:
        train(task_of(), "erm", Runs([0, 1, 2]), max_chunk=1, progress=interrupt(10, 1), **ERM)
    partial = stopped.value.partial
    assert partial.runs.column("seed") == [0, 1]  # the third had not begun
    assert partial.steps.tolist() == [ERM["steps"], 10]
    whole = train(task_of(), "erm", Runs([0, 1, 2]), max_chunk=1, **ERM)
    assert torch.equal(parameters(partial)[0], parameters(whole)[0])


def test_other_errors_of_a_callback_pass_through():
    def fail(report):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(task_of(), "erm", progress=fail, **ERM)


def test_no_warm_up_for_rho_is_said():
    with pytest.warns(UserWarning, match=r"random start \(runs 1\)\. Use warmup > 0, or schedule='alternating'"):
        train(task_of(), "minimax-tv-l1", Runs([0, 1], warmup=[1, 0]), steps=3)
