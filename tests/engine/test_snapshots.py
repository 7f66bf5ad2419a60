"""What is measured during training, recomputed from the logits, and the state that a rule keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.problems import arrays, close, losses, parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.core.losses import Custom
from irmtv.engine import Linear
from irmtv.engine.snapshots import Snapshot

S = {"dtype": torch.float64, "steps": 20, "learning_rate": 0.05, "warmup": 5, "penalty_weight": 20.0}
SEEDS = Runs([0, 1, 2])
LOSSES = ("binary", "squared", "targets", "multiclass")


def slopes(loss, f, y, f_of_w=None, size=()):
    """Per row, by differentiating the loss of every row alone: (N,) or (N, J)."""
    rows = []
    for i in range(len(y)):
        w = torch.ones(size, dtype=f.dtype, requires_grad=True)
        one = f_of_w(w)[i] if f_of_w is not None else f[i] * w
        rows.append(torch.autograd.grad(losses(loss, one.unsqueeze(0), y[i : i + 1]).sum(), w)[0])
    return torch.stack(rows)


def means(q, v):
    """q-weighted means per environment: (E,) or (E, J)."""
    total = q.sum(0)
    return (q.T @ v) / (total if v.ndim == 1 else total.unsqueeze(1))


def covariance(q, v):
    """How sure those means are, by the textbook: variances (E,) or (E, J) for hard q, a matrix (E, E) for soft q."""
    total = q.sum(0)
    if ((q == 0) | (q == 1)).all():
        hard = [v[q[:, e] == 1] for e in range(q.shape[1])]
        return torch.stack([rows.var(0, correction=1) / len(rows) for rows in hard])
    effective = total**2 / (q**2).sum(0)
    assert (effective > 2).all()
    off = q * (v.unsqueeze(1) - means(q, v)) / total * (effective / (effective - 1)).sqrt()  # (N, E)
    return off.T @ off


def one_hot(codes, n):
    return torch.nn.functional.one_hot(codes, n).double()


def check_last(history, r, loss, f, y, q, s):
    """The last record of run r is what the logits f give."""
    value = losses(loss, f, y)
    expected = {
        "rows": q.sum(0),
        "risk": means(q, value),
        "risk_cov": covariance(q, value),
        "slope": means(q, s),
        "slope_cov": covariance(q, s),
    }
    if loss == "binary":
        expected["accuracy"] = means(q, ((f > 0) == (y == 1)).double())
    elif loss == "multiclass":
        expected["accuracy"] = means(q, (f.argmax(1) == y).double())
    else:
        assert history.accuracy[-1, r].isnan().all()
    for name, theirs in expected.items():
        torch.testing.assert_close(getattr(history, name)[-1, r], theirs, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("held_out", [0, 40])
def test_the_last_record_is_what_the_last_state_gives(loss, held_out):
    task = task_of(loss, held_out=held_out)
    fitted = train(task, "irm-tv-l1", SEEDS, snapshot_every=5, **S)
    history = fitted.history
    assert history.steps == (0, 5, 10, 15, 20)
    assert history.on == ("held-out" if held_out else "train")
    for name in ("rows", "risk", "risk_cov", "slope", "slope_cov", "accuracy"):
        assert getattr(history, name).shape == (5, 3, 3)  # (S, R, E)
    rows = task.held_out if held_out else task.train
    q = one_hot(rows.environment, 3)
    for r, f in enumerate(fitted.logits(rows.x)):
        check_last(history, r, loss, f, rows.y, q, slopes(loss, f, rows.y))


@pytest.mark.parametrize("n_environments", [2, 3])
@pytest.mark.parametrize("held_out", [0, 40])
def test_records_of_inferred_environments(n_environments, held_out):
    task = task_of(held_out=held_out)
    fitted = train(task, "minimax-tv-l1", SEEDS, snapshot_every=10, n_environments=n_environments, **S)
    rows = task.held_out if held_out else task.train
    for r, f in enumerate(fitted.logits(rows.x)):
        q = fitted.membership(rows.aux)[r]
        check_last(fitted.history, r, "binary", f, rows.y, q, slopes("binary", f, rows.y))


@pytest.mark.parametrize(("loss", "hidden", "size"), [("binary", (), 3), ("binary", (4,), 4), ("multiclass", (), 3)])
def test_records_of_a_vector_classifier(loss, hidden, size):
    task = task_of(loss)
    fitted = train(task, "irm-tv-l1", SEEDS, snapshot_every=10, classifier="vector", hidden=hidden, **S)
    assert fitted.history.slope.shape == fitted.history.slope_cov.shape == (3, 3, 3, size)
    x, y = task.train.x, task.train.y
    (state,) = fitted.state("last")
    for r, f in enumerate(fitted.logits(x)):
        p = {k: v[r] for k, v in state.parameters.items()}
        h = x if not hidden else torch.relu(x @ p["W0"].T + p["b0"].squeeze(1))
        last = len(hidden)

        def f_of_w(w, h=h, p=p, f=f, last=last):
            return f * w if loss == "multiclass" else ((h * w) @ p[f"W{last}"].T + p[f"b{last}"].T).squeeze(1)

        s = slopes(loss, f, y, f_of_w, (size,))
        check_last(fitted.history, r, loss, f, y, one_hot(task.train.environment, 3), s)


def test_records_with_several_data_sets_and_chunks():
    tasks = [task_of(seed=i, held_out=30) for i in range(3)]
    runs = Runs([0, 1, 2, 3, 4], data=[2, 0, 1, 0, 2])
    whole = train(tasks, "irm-tv-l1", runs, snapshot_every=10, **S)
    cut = train(tasks, "irm-tv-l1", runs, snapshot_every=10, max_chunk=1, **S)
    assert whole.history.steps == cut.history.steps
    assert close(whole.history.risk, cut.history.risk)
    for r, d in enumerate(runs.column("data")):
        rows = tasks[d].held_out
        f = whole.logits(rows.x)[r]
        check_last(whole.history, r, "binary", f, rows.y, one_hot(rows.environment, 3), slopes("binary", f, rows.y))


def test_records_along_the_way_are_those_of_shorter_trainings():
    fitted = train(task_of(held_out=30), "irm-tv-l1", SEEDS, snapshot_every=7, **S)
    assert fitted.history.steps == (0, 7, 14, 20)
    shorter = train(task_of(held_out=30), "irm-tv-l1", SEEDS, snapshot_every=7, **{**S, "steps": 14})
    assert close(fitted.history.risk[:3], shorter.history.risk)
    assert torch.equal(fitted.history.slope[:3], shorter.history.slope)


def test_watching_does_not_change_training():
    watched = train(task_of(), "minimax-tv-l1", SEEDS, snapshot_every=1, **S)
    plain = train(task_of(), "minimax-tv-l1", SEEDS, **S)
    assert plain.history is None
    assert all(torch.equal(a, b) for a, b in zip(parameters(watched), parameters(plain), strict=True))


def test_a_loss_of_ones_own_has_no_accuracy():
    fitted = train(task_of("squared", loss=Custom(lambda f, y: (f - y).abs())), "erm", snapshot_every=5, steps=5)
    assert fitted.history.accuracy.isnan().all() and fitted.history.risk.isfinite().all()


@pytest.mark.parametrize(
    ("objective", "differ"),
    [
        ("irm-tv-l1", {"steps": [10, 20, 10]}),
        ("minimax-tv-l1", {"n_environments": [2, 4, 3]}),
        ("irm-tv-l1", {"classifier": ["scalar", "vector", "vector"], "hidden": [(), (), (5,)]}),
    ],
)
def test_runs_of_several_groups_have_one_history(objective, differ):
    """Where a run has nothing, rows are 0 and the rest NaN."""
    shared = {k: v for k, v in S.items() if k not in differ}
    task = task_of()
    fitted = train(task, objective, Runs([0, 1, 2], **differ), snapshot_every=5, **shared)
    whole = fitted.history
    for r in range(3):
        own = {k: v[r] for k, v in differ.items()}
        alone = train(task, objective, Runs(r, **own), snapshot_every=5, **shared).history
        at = [whole.steps.index(s) for s in alone.steps]
        for name in ("rows", "risk", "risk_cov", "accuracy", "slope", "slope_cov"):
            theirs = getattr(alone, name)[:, 0]
            ours = getattr(whole, name)[at, r]
            theirs = theirs.unsqueeze(-1) if theirs.ndim < ours.ndim else theirs
            part = tuple(slice(n) for n in theirs.shape)
            torch.testing.assert_close(ours[part], theirs)
            rest = torch.ones(ours.shape, dtype=torch.bool)
            rest[part] = False
            assert (ours[rest] == 0).all() if name == "rows" else ours[rest].isnan().all()
        missing = [i for i in range(len(whole.steps)) if i not in at]
        assert (whole.rows[missing, r] == 0).all() and whole.risk[missing, r].isnan().all()


# Selection


def iid(rows, f):
    return losses("binary", f, rows.y).mean()


def risks(rows, f):
    return means(one_hot(rows.environment, 3), losses("binary", f, rows.y))


def worst(rows, f):
    return risks(rows, f).max()


def unbalanced(rows, f):
    return risks(rows, f).max() - risks(rows, f).min()


def unbalanced_rule(snapshot: Snapshot):
    return snapshot.risk.amax(1) - snapshot.risk.amin(1)


RULES = {"iid": ("iid", iid), "worst-env": ("worst-env", worst), "custom": (unbalanced_rule, unbalanced)}


@pytest.mark.parametrize(("objective", "rule"), [*(("irm-tv-l1", rule) for rule in RULES), ("minimax-tv-l1", "iid")])
def test_the_kept_state_is_the_state_at_the_best_step(objective, rule):
    select, score = RULES[rule]
    task = task_of(n=40, held_out=60, features=8)  # few rows: it overfits, and the best step is inside
    settings = {**S, "steps": 40, "warmup": 20, "learning_rate": 0.2}
    fitted = train(task, objective, SEEDS, select=select, snapshot_every=2, **settings)
    assert fitted.select == (select if isinstance(select, str) else "unbalanced_rule")
    held = task.held_out
    # scores of every snapshot from separate, shorter trainings with nothing to select
    scores, states = [], []
    for step in fitted.history.steps:
        if step == 0:
            starts = [Linear(8).init(s, torch.Generator().manual_seed(s)) for s in range(3)]
            states.append([p["W0"].flatten() for p in starts])
            logits = torch.stack([held.x @ w for w in states[0]])
        else:
            short = train(task, objective, SEEDS, **{**settings, "steps": step})
            states.append(parameters(short))
            logits = short.logits(held.x)
        scores.append([float(score(held, f)) for f in logits])
    best = np.argmin(scores, 0)
    assert fitted.steps.tolist() == [fitted.history.steps[b] for b in best]
    assert any(0 < s < 40 for s in fitted.steps.tolist())
    for r, b in enumerate(best):
        assert close(parameters(fitted, "selected")[r][: len(states[b][r])], states[b][r])
        assert close(parameters(fitted, "last")[r], states[-1][r])
        assert float(score(held, fitted.logits(held.x)[r])) == pytest.approx(scores[b][r])


def test_fixed_keeps_the_last_step():
    fitted = train(task_of(), "irm-tv-l1", SEEDS, select="fixed", snapshot_every=5, **S)
    assert fitted.steps.tolist() == [20] * 3
    assert fitted.history is not None
    assert all(
        torch.equal(a, b) for a, b in zip(parameters(fitted, "selected"), parameters(fitted, "last"), strict=True)
    )


def test_a_rule_brings_its_snapshots():
    fitted = train(task_of(), "erm", select="iid", steps=100)
    assert fitted.history.steps == tuple(range(0, 101, 2))


def test_equal_scores_keep_the_first_and_nan_is_never_better():
    flat = train(task_of(), "irm-tv-l1", SEEDS, select=lambda s: torch.zeros(3), snapshot_every=5, **S)
    assert flat.steps.tolist() == [0, 0, 0]

    def some(snapshot):
        return torch.tensor([torch.nan if snapshot.step in (0, 20) else -snapshot.step, snapshot.step, 0.0])

    fitted = train(task_of(), "irm-tv-l1", SEEDS, select=some, snapshot_every=5, **S)
    assert fitted.steps.tolist() == [15, 0, 0]


def test_scores_are_compared_in_full_precision():
    fitted = train(
        task_of(),
        "erm",
        select=lambda s: torch.tensor([1 - 1e-12 * s.step], dtype=torch.float64),
        snapshot_every=5,
        steps=10,
    )
    assert fitted.steps.tolist() == [10]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_run_without_any_score_keeps_its_last_state_whatever_its_neighbours_have(bad):
    def rule(snapshot):
        return torch.tensor([float(snapshot.step), bad, -snapshot.step][: len(snapshot.risk)])

    fitted = train(task_of(), "irm-tv-l1", SEEDS, select=rule, snapshot_every=5, **S)
    assert fitted.steps.tolist() == [0, 20, 20]
    assert torch.equal(parameters(fitted, "selected")[1], parameters(fitted, "last")[1])
    alone = train(task_of(), "irm-tv-l1", Runs(1), select=lambda s: torch.tensor([bad]), snapshot_every=5, **S)
    assert alone.steps.tolist() == [20]
    assert close(parameters(alone, "selected")[0], parameters(fitted, "selected")[1])


def test_rho_is_kept_with_phi():
    task = task_of()
    settings = {**S, "environment_learning_rate": 0.1, "warmup": 20}

    def nearest_to_ten(s):
        return torch.tensor([abs(s.step - 10.0)])

    fitted = train(task, "minimax-tv-l1", select=nearest_to_ten, snapshot_every=5, **settings)
    short = train(task, "minimax-tv-l1", **{**settings, "steps": 10})
    z = task.train.aux
    assert close(fitted.membership(z), short.membership(z))
    assert not close(fitted.membership(z), fitted.membership(z, which="last"), 1e-3)


def test_an_environment_without_held_out_rows_does_not_count():
    """Its risk is 0, which is the worst where a loss of one's own is negative."""
    x, y, e, t = arrays("squared", 60)
    some = e[40:] != 2
    held_out = {"x": x[40:][some], "y": y[40:][some], "environment": e[40:][some], "aux": t[40:][some]}

    def negative(f, y):
        return (f - y).square() - 100

    task = make_task(x[:40], y[:40], environment=e[:40], aux=t[:40], held_out=held_out, loss=negative, min_rows=1)
    fitted = train(task, "irm-tv-l1", SEEDS, select="worst-env", snapshot_every=1, steps=10, learning_rate=0.1)
    assert (fitted.history.rows[..., 2] == 0).all() and (fitted.history.rows[..., :2] > 0).all()
    risk = fitted.history.risk[..., :2].amax(2)  # (S, R)
    assert fitted.steps.tolist() == risk.argmin(0).tolist()
    assert (risk.argmin(0) > 0).all()


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (3, 3)])
def test_a_rule_must_give_one_number_per_run(shape):
    with refuse("select must give one number per run, shape (3,)", f"Got {shape}"):
        train(task_of(), "irm-tv-l1", SEEDS, select=lambda s: torch.zeros(shape), **S)


def test_an_unknown_rule():
    with refuse("select must be one of", "'worst-env'", "Got 'worst_env'", "Did you mean 'worst-env'?"):
        train(task_of(), "erm", select="worst_env")
