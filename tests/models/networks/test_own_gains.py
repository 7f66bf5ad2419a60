"""Do no harm: what an environment's own model gains over ERM, rescaled to that environment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from engine.problems import task_of
from irmtv import Runs, train
from irmtv.lab.experiments import Store, read_results, run_experiment
from irmtv.models.base import mean_gain
from irmtv.models.networks.own_models import gains_of_own_models
from irmtv.selection import check_options, invariance
from irmtv.selection.folds import fold_tasks, gain_over_rescaled, own_task
from irmtv.selection.views import nothing_of_its_own
from lab.experiments.small import ERM, TV, small
from selection.candidates import written


def parts(kind, n=300, seed=0):
    """One environment's task, and pooled and own logits on its training and its held-out rows."""
    task = own_task(task_of(kind, n, seed, environments=2, held_out=n), 1)
    rng = np.random.default_rng(seed)
    shape = (3,) if kind == "multiclass" else ()
    train, held, own = (
        torch.tensor(rng.normal(size=(len(r), *shape))) for r in (task.train, task.held_out, task.held_out)
    )
    return task, train, held, own


def row_losses(kind, f, y):
    if kind == "binary":
        return np.logaddexp(0, f) - f * y
    if kind == "multiclass":
        return special.logsumexp(f, axis=1) - f[np.arange(len(y)), y]
    return (f - y) ** 2


def best(kind, f, y):
    """Scale and shifts by another search than the one under test."""
    if kind == "squared":
        scale, shift = np.linalg.lstsq(np.stack([f, np.ones(len(f))], 1), y, rcond=None)[0]
        return scale, shift
    n = f.shape[1] if f.ndim == 2 else 1
    found = optimize.minimize(
        lambda p: row_losses(kind, p[0] * f + (p[1:] if f.ndim == 2 else p[1]), y).mean(), np.r_[1.0, np.zeros(n)],
        method="BFGS", options={"gtol": 1e-8},
    )  # fmt: skip
    return found.x[0], found.x[1:] if f.ndim == 2 else found.x[1]


@pytest.mark.parametrize("kind", ["binary", "squared", "multiclass"])
def test_the_gain_is_that_over_the_best_scale_and_shift(kind):
    task, train, held, own = parts(kind)
    y, y_held = task.train.y.numpy(), task.held_out.y.numpy()
    scale, shift = best(kind, train.numpy(), y)
    expected = row_losses(kind, scale * held.numpy() + shift, y_held) - row_losses(kind, own.numpy(), y_held)
    ratio = 1.0 if kind != "squared" else float(task.loss.value(torch.ones(1, 1, 1), torch.zeros(1, 1, 1)))
    gain = gain_over_rescaled(task, train, held, own)
    assert gain.shape == (len(task.held_out),) and gain.dtype == torch.float64
    np.testing.assert_allclose(gain, ratio * expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["binary", "squared", "multiclass"])
def test_a_rescaled_pooled_model_has_nothing_of_its_own(kind):
    task, train, held, _ = parts(kind)
    scale, shift = best(kind, train.numpy(), task.train.y.numpy())
    same = gain_over_rescaled(task, train, held, scale * held + torch.as_tensor(shift))
    np.testing.assert_allclose(same, 0, atol=1e-4)
    # on the rows where the scale is the best one, no other scale gains
    again = replace(task, held_out=task.train)
    assert gain_over_rescaled(again, train, train, 3 * train + 1).mean() < 0


@pytest.mark.parametrize("kind", ["binary", "squared"])
def test_a_model_that_looks_at_another_feature_gains(kind):
    rng = np.random.default_rng(0)
    task, *_ = parts(kind)
    x = rng.normal(size=(2, max(len(task.train), len(task.held_out)), 2))

    def target(rows, x):
        f = 2 * x[: len(rows), 1]
        y = (rng.random(len(f)) < special.expit(f)).astype(float) if kind == "binary" else f + rng.normal(size=len(f))
        return replace(rows, y=torch.tensor(y)), torch.tensor(f), torch.tensor(x[: len(rows), 0])

    train_rows, _, pooled_train = target(task.train, x[0])
    held_rows, own, pooled_held = target(task.held_out, x[1])
    gain = gain_over_rescaled(replace(task, train=train_rows, held_out=held_rows), pooled_train, pooled_held, own)
    assert gain.mean() > 4 * gain.std() / len(gain) ** 0.5


def test_an_own_task_has_the_rows_of_its_environment_alone():
    for fold in fold_tasks(task_of(n=90, environments=3), 2, 0):
        for e in range(3):
            own = own_task(fold, e)
            assert own.test is None and own.train.names == fold.train.names
            for rows, of in ((own.train, fold.train), (own.held_out, fold.held_out)):
                assert (rows.environment == e).all()
                assert torch.equal(rows.x, of.x[of.environment == e]) and torch.equal(rows.y, of.y[of.environment == e])


def test_gains_of_weighted_rows():
    rng = np.random.default_rng(0)
    gain, weight = rng.normal(0.3, 2, size=500), rng.uniform(0.1, 3, size=500)
    rows, mean, variance = mean_gain(torch.tensor(gain), torch.tensor(weight))
    assert mean == pytest.approx(np.average(gain, weights=weight))
    # what the test makes of it is the squared standard error of a weighted mean
    error = (weight**2 * (gain - mean) ** 2).sum() / weight.sum() ** 2
    assert variance / rows == pytest.approx(error, rel=0.1)
    assert rows == pytest.approx(weight.sum() ** 2 / (weight**2).sum()) and rows < 500
    same = mean_gain(torch.tensor(gain), torch.full((500,), 0.7))
    assert same == pytest.approx(mean_gain(torch.tensor(gain), None)) == (500, gain.mean(), gain.var(ddof=1))


def test_models_of_single_environments_see_the_weights():
    task = task_of("squared", 120, environments=2)
    parts = fold_tasks(task, 2, 0)
    runs, how = Runs(seed=[0, 0], data=[0, 1]), {"steps": 40, "learning_rate": 0.05, "snapshot_every": 10}
    how["dtype"] = torch.float64
    weight = {id(p): [0.5 + torch.arange(len(r)) % 3 for r in (p.train, p.held_out)] for p in parts}
    weighted = [
        replace(
            p,
            **{n: replace(getattr(p, n), weight=w) for n, w in zip(("train", "held_out"), weight[id(p)], strict=True)},
        )
        for p in parts
    ]
    plain, other = (gains_of_own_models(train(t, "erm", runs, select="iid", **how), **how) for t in (parts, weighted))
    assert plain[0].shape == other[0].shape == (2, 3)
    assert (other[0][:, 0] < plain[0][:, 0]).all() and not np.allclose(other[0][:, 1], plain[0][:, 1])


def test_own_models_have_the_best_of_several_l2():
    """Newton's method does not stop early: few rows with many columns are shrunk instead."""
    parts = fold_tasks(task_of("binary", 120, environments=2, features=12), 2, 0)
    how = {"solver": "newton", "dtype": torch.float64}
    pooled = train(parts, "erm", Runs(seed=[0, 0], data=[0, 1]), select="iid", l2=0.03, **how)
    each = [np.stack(gains_of_own_models(pooled, l2=l2, **how)) for l2 in (1e-3, 0.03, 0.3)]
    together = np.stack(gains_of_own_models(pooled, (1e-3, 0.03, 0.3), l2=0.03, **how))
    np.testing.assert_allclose(together[..., 1], np.max([g[..., 1] for g in each], 0), rtol=1e-8)
    assert (together[..., 1] > each[0][..., 1]).any()


# The test over environments


def gains(seed=0, shifts=(0.0, 0.1, -0.2), folds=3):
    """Gains of single rows, [fold][environment], and what is stored of them."""
    rng = np.random.default_rng(seed)
    rows = [[rng.normal(s, 1 + e, size=40 + 7 * e + 3 * f) for e, s in enumerate(shifts)] for f in range(folds)]
    return rows, torch.tensor([[[len(g), g.mean(), g.var(ddof=1)] for g in fold] for fold in rows])


def by_hand(rows, environments):
    p = []
    for e in environments:
        own = [fold[e] for fold in rows if fold[e] is not None]
        n = sum(len(g) for g in own)
        variance = sum(((g - g.mean()) ** 2).sum() for g in own) / (n - len(own))
        p.append(stats.norm.sf(np.concatenate(own).mean() / np.sqrt(variance / n)))
    return min(1.0, len(p) * min(p))


@pytest.mark.parametrize("shifts", [(0.0, 0.1, -0.2), (0.2, 0.0), (-1.0, -1.0), (0.05, 0.3, 0.1, 0.0)])
def test_one_sided_z_tests_with_bonferroni(shifts):
    rows, own = gains(1, shifts)
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, range(len(shifts))), rel=1e-9)


def test_environments_that_are_not_known_or_small_are_left_out():
    rows, own = gains(2, (0.1, 5.0, 5.0, 0.0))
    own[:, 1] = torch.nan
    own[:, 2, 0] = 6  # 18 rows in three folds
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0, 3]), rel=1e-9)
    own[0, 0] = torch.nan  # in one fold
    rows[0][0] = None
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0, 3]), rel=1e-9)


def test_a_model_that_diverged_is_no_evidence():
    """Its rows are known, its gain is not: that is not a gain of 0."""
    rows, own = gains(3, (0.3, 0.0))
    own[:, 1, 1:] = torch.nan
    assert nothing_of_its_own(own) == pytest.approx(by_hand(rows, [0]), rel=1e-9)
    own[:, 0, 1:] = torch.inf
    assert nothing_of_its_own(own) is None


def test_without_rows_there_is_no_p_value():
    assert nothing_of_its_own(None) is None
    assert nothing_of_its_own(torch.full((2, 3, 3), torch.nan)) is None
    assert nothing_of_its_own(torch.tensor([[[19.0, 1.0, 1.0], [5.0, 1.0, 1.0]]])) is None


# The rule


NOTHING = torch.tensor([[[100.0, -0.01, 1.0], [100.0, 0.0, 1.0]]])
SOMETHING = torch.tensor([[[100.0, 0.0, 1.0], [100.0, 1.0, 1.0]]])


def candidates(**more):
    return written([[0.35, 0.55], [0.45, 0.45]], 0.01, **more)


def test_erm_is_kept_where_no_environment_has_a_model_of_its_own():
    verdict = invariance(candidates(own=NOTHING))
    assert (verdict.index, verdict.outcome) == (0, "erm-kept")
    f = verdict.figures
    assert f["p_own"] == nothing_of_its_own(NOTHING) > 0.2 and f["p_erm"] < 0.01
    assert "is kept: it differs between environments" in verdict.message
    assert "no model trained on one environment alone beats it there" in verdict.message


@pytest.mark.parametrize(("own", "options"), [(NOTHING, {"own_level": 1}), (SOMETHING, {}), (None, {})])
def test_else_the_rule_looks_further(own, options):
    verdict, before = invariance(candidates(own=own), **options), invariance(candidates())
    assert (verdict.index, verdict.outcome, verdict.message) == (1, "invariant-found", before.message)
    assert verdict.figures == {**before.figures, "p_own": nothing_of_its_own(own)}


def test_erm_that_passes_is_kept_for_that():
    verdict = invariance(written([[0.40, 0.41], [0.45, 0.45]], 0.02, own=SOMETHING))
    assert verdict.outcome == "erm-invariant" and "ERM passed the invariance test" in verdict.message


@pytest.mark.parametrize("value", [-0.1, 1.1, "much", True, float("nan")])
def test_levels_that_make_no_sense(value):
    with pytest.raises(ValueError, match="own_level must be a number from 0 to 1"):
        check_options(own_level=value)


# From the data to the choice


def experiment(folder, **options):
    spec = small(ERM, TV, rules=["invariance"], training={"steps": 150, "snapshot_every": 15}, **options)
    run_experiment(spec, folder)
    with Store.read(folder) as store:
        for run in store.runs():
            assert ("held-out/own" in run.arrays) == (run.method == "erm" and run.part != "all")
    frame = read_results(spec, folder)
    return next(frame[frame["method"] == "irm-tv-l1"].itertuples())


def test_environments_that_differ_in_noise_keep_erm(tmp_path):
    row = experiment(tmp_path / "x", data="control", arguments={"n_samples": 600, "differ": "feature-noise"})
    assert row.outcome == "erm-invariant" and row.chosen_method == "erm" and row.figures["p_own"] > 0.2


def test_environments_that_differ_in_what_predicts_do_not(tmp_path):
    row = experiment(tmp_path / "x", arguments={"n_samples": 600, "p_s": [0.999, 0.7]})
    assert row.outcome != "erm-invariant" and row.figures["p_own"] < 0.2 and row.figures["p_erm"] < 0.01


def test_an_environment_may_have_fewer_rows_than_a_batch(tmp_path):
    """240 rows in two environments, two folds: 60 rows of each to train on."""
    spec = small({**ERM, "batch_size": 100}, rules=["invariance"])
    assert run_experiment(spec, tmp_path / "y").failed == ()
