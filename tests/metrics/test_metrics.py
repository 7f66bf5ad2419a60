"""The per-environment table, against scikit-learn, binomial theory, and itself run by run."""

from __future__ import annotations

import doctest
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, mean_squared_error

from irmtv import metrics
from irmtv.metrics import METRICS, EnvironmentTable, Metric, evaluate_environments

R, N, C = 3, 240, 4
SITES = np.array(["north", "south", "west"], dtype=object)
QUANTITIES = ("overall", "mean", "worst", "spread")


def draw(n_outputs=1, seed=0):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(R, N) if n_outputs == 1 else (R, N, n_outputs))
    return rng, f, SITES[rng.integers(3, size=N)]


def sigmoid(f):
    return 1 / (1 + np.exp(-f))


def softmax(f):
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def per_group(score, predictions, y, site):
    """What scikit-learn says, one run and one group at a time: overall (R,), by group (R, E)."""
    by = [[score(y[site == s], p[site == s]) for s in sorted(set(site))] for p in predictions]
    return np.array([score(y, p) for p in predictions]), np.array(by)


def same_tables(a, b, rtol=1e-12):
    assert a.names == b.names
    np.testing.assert_array_equal(a.counts, b.counts)
    assert a.worst_environment == b.worst_environment
    for q in ("by_environment", *QUANTITIES):
        np.testing.assert_allclose(getattr(a, q), getattr(b, q), rtol=rtol, atol=1e-15)
        if a.intervals is not None:
            for mine, other in zip(a.intervals[q], b.intervals[q], strict=True):
                np.testing.assert_allclose(mine, other, rtol=rtol, atol=1e-15)


# --- the numbers, against scikit-learn --------------------------------------------------------------------


def sklearn_cases():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    yield "accuracy", f, y, site, accuracy_score, (f > 0).astype(int)
    yield "log_loss", f, y, site, lambda t, p: log_loss(t, p, labels=[0, 1]), sigmoid(f)
    target = rng.normal(size=N)
    yield "mse", f, target, site, mean_squared_error, f
    yield "mae", f, target, site, mean_absolute_error, f
    rng, g, site = draw(C)
    y = rng.integers(C, size=N)
    yield "accuracy", g, y, site, accuracy_score, g.argmax(-1)
    yield "log_loss", g, y, site, lambda t, p: log_loss(t, p, labels=range(C)), softmax(g)
    targets = rng.normal(size=(N, C))
    yield "mse", g, targets, site, mean_squared_error, g
    yield "mae", g, targets, site, mean_absolute_error, g


@pytest.mark.parametrize(
    ("metric", "f", "y", "site", "score", "predictions"),
    list(sklearn_cases()),
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_agrees_with_scikit_learn(metric, f, y, site, score, predictions):
    table = evaluate_environments(f, y, site, metric=metric)
    overall, by = per_group(score, predictions, y, site)
    assert table.metric == metric
    assert table.names == ("north", "south", "west")
    np.testing.assert_array_equal(table.counts, [(site == s).sum() for s in table.names])
    np.testing.assert_allclose(table.by_environment, by, rtol=1e-12)
    np.testing.assert_allclose(table.overall, overall, rtol=1e-12)
    np.testing.assert_allclose(table.mean, by.mean(1), rtol=1e-12)
    np.testing.assert_allclose(table.spread, by.max(1) - by.min(1), rtol=1e-9)
    worst = by.argmin(1) if metric == "accuracy" else by.argmax(1)
    np.testing.assert_allclose(table.worst, by[range(R), worst], rtol=1e-12)
    assert table.worst_environment == [table.names[e] for e in worst]


def test_registry():
    assert {"accuracy", "log_loss", "mse", "mae"} <= set(METRICS)
    assert all(name == m.name for name, m in METRICS.items())
    assert [m.name for m in METRICS.values() if m.greater_is_better] == ["accuracy"]
    assert METRICS["log_loss"].losses == ("binary", "multiclass")
    assert METRICS["mse"].losses == ("squared",)
    with pytest.raises(FrozenInstanceError):
        METRICS["mse"].name = "other"
    with pytest.raises(TypeError):
        METRICS["other"] = METRICS["mse"]


def test_a_metric_of_ones_own():
    positive = Metric("positive_rate", lambda f, y: (f > 0).astype(float), True, ("binary",))
    table = evaluate_environments([1.0, 2.0, -1.0, 3.0], [0, 0, 0, 0], [0, 0, 1, 1], metric=positive)
    np.testing.assert_array_equal(table.by_environment, [[1.0, 0.5]])
    assert table.metric == "positive_rate"


def test_greater_is_better_false_makes_worst_the_largest():
    table = evaluate_environments([1.0, 1.0, 3.0, 3.0], [0.0] * 4, ["a", "a", "b", "b"], metric="mse")
    assert not table.greater_is_better
    assert table.worst.tolist() == [9.0]
    assert table.worst_environment == ["b"]
    assert table.spread.tolist() == [8.0]


def test_log_loss_survives_large_logits():
    f = np.array([1e4, -1e4, 1e4, np.inf])
    table = evaluate_environments(f, [1, 0, 0, 1], [0, 1, 2, 3], metric="log_loss")
    assert table.by_environment.tolist() == [[0.0, 0.0, 1e4, 0.0]]
    several = evaluate_environments([[[1e4, 0.0], [1e4, 0.0]]], [0, 1], [0, 1], metric="log_loss")
    assert several.by_environment.tolist() == [[0.0, 1e4]]


def test_a_logit_of_zero_is_class_zero():
    assert evaluate_environments([0.0, 0.0], [0, 1], [0, 1]).by_environment.tolist() == [[1.0, 0.0]]


# --- runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_outputs", [1, C])
@pytest.mark.parametrize("own", [False, True], ids=["shared rows", "own rows"])
def test_run_axis_equals_one_by_one(n_outputs, own):
    rng, f, _ = draw(n_outputs, seed=1)
    size = (R, N) if own else (N,)
    y = rng.integers(max(2, n_outputs), size=size)
    e = rng.integers(3, size=size)
    kwargs = {"metric": "log_loss", "n_bootstrap": 50, "random_state": 5}
    together = evaluate_environments(f, y, e, **kwargs)
    assert together.counts.shape == ((R, 3) if own else (3,))
    assert len(together) == R
    for r, mine in enumerate(together):
        mine_y, mine_e = (y[r], e[r]) if own else (y, e)
        alone = evaluate_environments(f[r][None], mine_y, mine_e, **kwargs)
        same_tables(alone, EnvironmentTable(**{**vars(mine), "counts": mine.counts.reshape(-1)}))


def test_chunks_do_not_matter(monkeypatch):
    rng, f, site = draw(seed=2)
    y = rng.integers(2, size=(R, N))
    whole = evaluate_environments(f, y, site, n_bootstrap=30, random_state=0)
    monkeypatch.setattr(metrics.evaluate, "CHUNK", N + 1)
    same_tables(whole, evaluate_environments(f, y, site, n_bootstrap=30, random_state=0))


def test_one_run_without_an_axis():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    same_tables(evaluate_environments(f[0], y, site), evaluate_environments(f[:1], y, site))


def test_one_output_may_keep_its_axis():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    same_tables(evaluate_environments(f[..., None], y, site), evaluate_environments(f, y, site))


def test_each_run_with_its_own_targets():
    rng, g, site = draw(C)
    y = rng.normal(size=(R, N, C))
    table = evaluate_environments(g, y, site, metric="mse")
    expected = [per_group(mean_squared_error, g[r : r + 1], y[r], site)[1][0] for r in range(R)]
    np.testing.assert_allclose(table.by_environment, expected, rtol=1e-12)


def test_getitem_by_position_slice_and_sign():
    rng, f, site = draw()
    table = evaluate_environments(f, rng.integers(2, size=N), site, n_bootstrap=20, run_names=["a", "b", "c"])
    assert table[1].run_names == ("b",)
    assert table[-1].overall.tolist() == [table.overall[2]]
    assert table[1:].run_names == ("b", "c")
    assert table[1].intervals["worst"].lower.shape == (1,)
    assert table[1].intervals["by_environment"].upper.shape == (1, 3)
    assert (table[1].confidence, table[1].n_bootstrap) == (0.95, 20)
    with pytest.raises(IndexError):
        table[3]
    with pytest.raises(IndexError, match="at least one run"):
        table[3:]


def test_the_table_is_frozen():
    table = evaluate_environments([1.0], [1])
    with pytest.raises(FrozenInstanceError):
        table.metric = "mse"


# --- environments: labels, codes, names -------------------------------------------------------------------


def test_no_environment_is_one_environment():
    table = evaluate_environments([1.0, -1.0, 1.0], [1, 1, 1])
    assert table.names == ("all",)
    assert table.counts.tolist() == [3]
    assert table.overall == table.mean == table.worst == pytest.approx(2 / 3)
    assert table.spread.tolist() == [0.0]
    assert evaluate_environments([1.0], [1], names=["test"]).names == ("test",)


@given(order=st.permutations(range(3)), seed=st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_relabelling_changes_names_only(order, seed):
    rng = np.random.default_rng(seed)
    f, y, e = rng.normal(size=(2, 60)), rng.integers(2, size=60), np.r_[rng.integers(3, size=57), 0, 1, 2]
    kwargs = {"metric": "log_loss", "n_bootstrap": 20, "random_state": seed}
    a = evaluate_environments(f, y, e, **kwargs)
    b = evaluate_environments(f, y, np.array(order)[e], **kwargs)
    np.testing.assert_array_equal(a.counts, b.counts[list(order)])
    np.testing.assert_array_equal(a.by_environment, b.by_environment[:, list(order)])
    assert [order[name] for name in a.worst_environment] == b.worst_environment
    for q in QUANTITIES:
        np.testing.assert_allclose(getattr(a, q), getattr(b, q), rtol=1e-12)
        np.testing.assert_allclose(a.intervals[q], b.intervals[q], rtol=1e-12)


def test_the_order_of_rows_does_not_matter():
    rng, f, site = draw()
    y, p = rng.integers(2, size=N), rng.permutation(N)
    same_tables(evaluate_environments(f, y, site), evaluate_environments(f[:, p], y[p], site[p]))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "b"], ("a", "b")),
        ((2010, 2005, 2010), (2005, 2010)),
        (np.array(["b", "a", "b"]), ("a", "b")),
        (np.array([1.5, 0.5, 1.5]), (0.5, 1.5)),
        ([True, False, True], (False, True)),
        ([("x", 2), ("x", 1), ("x", 2)], (("x", 1), ("x", 2))),
        (["b", 1, "b"], (1, "b")),  # kinds that do not compare
        (torch.tensor([7, 3, 7]), (3, 7)),
        (pd.Series(["b", "a", "b"], dtype="category"), ("a", "b")),
        (pd.Series([9, 4, 9], dtype="Int64"), (4, 9)),
        (
            pd.Series(pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-02"])),
            (pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")),
        ),
    ],
)
def test_labels_of_any_kind(labels, names):
    table = evaluate_environments([1.0, 1.0, 1.0], [1, 0, 1], labels)
    assert table.names == names
    assert [type(a) for a in table.names] == [type(b) for b in names]
    assert table.by_environment.tolist() == [[0.0, 1.0]]
    assert len(table.to_frame()) == 2
    assert len(table.summary()) == 6
    assert "worst" in str(table)


def test_names_of_codes_and_an_empty_environment():
    table = evaluate_environments(
        [[1.0, 1.0, -1.0], [1.0, 1.0, 1.0]], [1, 0, 1], [2, 0, 2], names=["a", "b", "c"], n_bootstrap=10
    )
    assert table.names == ("a", "b", "c")
    assert table.counts.tolist() == [1, 0, 2]
    np.testing.assert_array_equal(table.by_environment, [[0.0, np.nan, 0.5], [0.0, np.nan, 1.0]])
    assert table.mean.tolist() == [0.25, 0.5]
    assert table.worst.tolist() == [0.0, 0.0]
    assert table.worst_environment == ["a", "a"]
    assert table.spread.tolist() == [0.5, 1.0]
    assert np.isnan(table.intervals["by_environment"].lower[:, 1]).all()
    assert np.isfinite(table.intervals["worst"]).all()
    summary = table.summary()
    assert summary.loc["b", "runs"] == 0
    assert summary.loc["b", ["mean", "std", "min", "max"]].isna().all()
    assert all(math.isnan(v) for v in table.mean_std("b"))


def test_an_environment_that_only_some_runs_have():
    table = evaluate_environments([[1.0, 1.0], [1.0, 1.0]], [1, 0], [[0, 1], [1, 1]])
    assert table.counts.tolist() == [[1, 1], [0, 2]]
    np.testing.assert_array_equal(table.by_environment, [[1.0, 0.0], [np.nan, 0.5]])
    assert table.worst_environment == [1, 1]
    assert table.summary()["runs"].tolist() == [2, 2, 2, 2, 1, 2]
    assert table.mean_std(0)[0] == 1.0
    assert math.isnan(table.mean_std(0)[1])
    assert table[1].counts.tolist() == [[0, 2]]
    assert "0 to 1" in str(table)


def test_names_fix_the_order_of_labels():
    table = evaluate_environments([1.0, 1.0], [1, 0], ["low", "high"], names=["low", "mid", "high"])
    np.testing.assert_array_equal(table.by_environment, [[1.0, np.nan, 0.0]])


def test_labels_per_run_may_be_strings():
    table = evaluate_environments([[1.0, 1.0]] * 2, [1, 0], [["a", "b"], ["b", "a"]])
    assert table.by_environment.tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ([0.0, np.nan, 1.0], 1),
        (["a", np.nan, None], 2),
        (["a", pd.NA, "b"], 1),
        (pd.Series(["a", None, "b"]), 1),
        (pd.Series([1, None, 2], dtype="Int64"), 1),
        (pd.Series(["2020-01-01", None, "2020-01-01"], dtype="datetime64[ns]"), 1),
        (torch.tensor([0.0, float("nan"), 1.0]), 1),
        ([["a", np.nan, "b"]], 1),
    ],
)
def test_missing_environment(environment, missing):
    with pytest.raises(ValueError, match=rf"environment must be known .* Got {missing} missing .* at row 1\."):
        evaluate_environments([1.0, 1.0, 1.0], [1, 0, 1], environment)


# --- inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_are_read(dtype):
    rng, f, _ = draw()
    logits = torch.tensor(f, dtype=dtype, requires_grad=True)
    y, e = torch.tensor(rng.integers(2, size=N)), torch.tensor(rng.integers(3, size=N))
    a = evaluate_environments(logits, y.bool(), e)
    b = evaluate_environments(logits.detach().double().numpy(), y.numpy(), e.numpy())
    same_tables(a, b)
    assert all(getattr(a, q).dtype == np.float64 for q in ("by_environment", *QUANTITIES))


def test_inputs_are_left_alone():
    rng, f, _ = draw()
    y, e = rng.integers(2, size=N), rng.integers(3, size=N)
    copies = f.copy(), y.copy(), e.copy()
    evaluate_environments(f, y, e, metric="log_loss", n_bootstrap=5)
    for mine, copy in zip((f, y, e), copies, strict=True):
        np.testing.assert_array_equal(mine, copy)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss"])
@pytest.mark.parametrize("n_outputs", [1, C])
def test_a_run_that_diverged_is_nan_alone(metric, n_outputs):
    rng, f, _ = draw(n_outputs)
    y, e = rng.integers(2, size=N), np.arange(N) % 3
    f[1, 5] = np.nan  # environment 2
    table = evaluate_environments(f, y, e, metric=metric, n_bootstrap=10)
    assert np.isnan(table.by_environment).tolist() == [[False] * 3, [False, False, True], [False] * 3]
    for q in QUANTITIES:
        assert np.isnan(getattr(table, q)).tolist() == [False, True, False]
        assert np.isnan(table.intervals[q].lower).tolist() == [False, True, False]
    assert table.worst_environment[1] == 2
    assert math.isnan(table.mean_std("worst")[0])  # not hidden by the other runs


def test_infinite_losses_are_shown():
    table = evaluate_environments([-np.inf, 1.0], [1, 1], [0, 1], metric="log_loss", n_bootstrap=10)
    assert table.worst.tolist() == [np.inf]
    assert table.worst_environment == [0]
    assert "inf" in str(table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"metric": "acuracy"},
            r"metric must be one of \['accuracy'.*Got 'acuracy'. Did you mean 'accuracy'\?",
        ),
        ({"metric": "logloss"}, "Did you mean 'log_loss'"),
        ({"metric": "zzz"}, r"Got 'zzz'\.$"),
        ({"n_bootstrap": -1}, "n_bootstrap must be a whole number .* Got -1. 1000 is"),
        ({"n_bootstrap": 2.5}, r"n_bootstrap must be a whole number .* Got 2\.5"),
        ({"n_bootstrap": True}, "n_bootstrap must be a whole number .* Got True"),
        ({"confidence": 95}, r"confidence must lie between 0 and 1. Got 95. .* pass 0\.95"),
        ({"logits": 1.0}, r"logits must have shape \(N,\).*Got shape \(\)\. For one run .* logits\[None\]"),
        ({"logits": np.zeros((1, 2, 3, 4))}, r"logits must have shape .* Got shape \(1, 2, 3, 4\)"),
        ({"logits": np.zeros((2, 0))}, r"at least one row. Got shape \(2, 0\)"),
        ({"logits": ["a", "b"]}, "logits must be an array of numbers. Got dtype <U1. Encode"),
        ({"logits": [[1.0], [1.0, 2.0]]}, "logits must have rows of one length. Got "),
        ({"y": [0, 1]}, r"y must have shape \(4,\), or \(2, 4\) .* Got shape \(2,\)"),
        ({"y": [0, 1, 1]}, r"Got shape \(3,\)\. Check that both hold the same rows"),
        ({"y": np.zeros((4, 1))}, r"Got shape \(4, 1\)\. Pass y\.ravel\(\)"),
        ({"logits": np.zeros((4, 3))}, r"Got shape \(4,\)\. Two axes .* pass logits\[None\]"),
        ({"logits": np.zeros((2, 4, 3)), "metric": "mse"}, r"y must have shape \(4, 3\), or \(2, 4, 3\)"),
        ({"y": list("abab")}, "y must be an array of numbers. Got dtype <U1"),
        ({"y": [0, 1, np.nan, 1]}, "y must be finite. Got NaN or infinite values. Leave"),
        ({"y": [-1, 1, -1, 1]}, "y must hold the classes 0 to 1 for one logit .* Got -1. Encode"),
        ({"y": [0.5, 1, 0, 1]}, r"y must hold the classes 0 to 1 .* Got 0\.5.*use metric 'mse' or 'mae'"),
        (
            {"logits": np.zeros((2, 4, 3)), "y": [0, 1, 2, 3]},
            "y must hold the classes 0 to 2 for 3 logits .* Got 3",
        ),
        (
            {"environment": [0, 1]},
            r"environment must have shape \(4,\), or \(2, 4\) .* Got shape \(2,\)\. Pass",
        ),
        ({"environment": "a"}, r"environment must have shape \(4,\).* Got shape \(\)"),
        ({"environment": [{}, {}, {}, {}]}, "environment must be hashable labels. Got unhashable.* Use tuples"),
        (
            {"names": ["x"]},
            "environment must hold codes from 0 to 0, .* of the 1 names. Got 1. Leave names out",
        ),
        ({"environment": [0, -1, 1, 1], "names": ["x", "y"]}, r"codes from 0 to 1, .* Got -1\."),
        (
            {"environment": list("abab"), "names": ["a", "c"]},
            r"only labels that are in names \('a', 'c'\). Got also 'b'. Add",
        ),
        ({"names": ["x", "x"]}, "names must be a sequence of distinct environment names. Got"),
        ({"names": "xy"}, "names must be a sequence of distinct environment names. Got 'xy'"),
        ({"names": []}, "names must be a sequence of distinct"),
        (
            {"environment": None, "names": ["x", "y"]},
            "names must hold one name where environment is None. Got 2",
        ),
        ({"run_names": ["only"]}, r"run_names must hold one name per run: 2 names. Got \['only'\]. Pass"),
        ({"run_names": "ab"}, "run_names must hold one name per run"),
    ],
)
def test_errors_say_what_to_do(change, message):
    call = {"logits": np.ones((2, 4)), "y": [0, 1, 0, 1], "environment": [0, 0, 1, 1]} | change
    with pytest.raises(ValueError, match=message):
        evaluate_environments(**call)


def test_long_lists_in_errors_are_cut():
    with pytest.raises(ValueError, match=r"Got 2, 3, 4, 5, 6, … 15 more\."):
        evaluate_environments(np.zeros(20), np.arange(20) + 2)


# --- properties -------------------------------------------------------------------------------------------


@st.composite
def random_tables(draw):
    n_runs, n_rows = draw(st.integers(1, 4)), draw(st.integers(1, 30))
    numbers = st.floats(-50, 50, allow_subnormal=False)
    f = draw(hnp.arrays(np.float64, (n_runs, n_rows), elements=numbers))
    y = draw(hnp.arrays(np.int64, n_rows, elements=st.integers(0, 1)))
    own = draw(st.booleans())
    e = draw(hnp.arrays(np.int64, f.shape if own else n_rows, elements=st.integers(0, 4)))
    metric = draw(st.sampled_from(sorted(METRICS)))
    return evaluate_environments(
        f, y, e, metric=metric, names=range(5), n_bootstrap=draw(st.sampled_from([0, 8])), random_state=0
    )


@given(table=random_tables())
@settings(max_examples=150, deadline=None)
def test_properties(table):
    shape = table.by_environment.shape
    counts = np.broadcast_to(table.counts, shape)
    values = np.where(counts > 0, table.by_environment, 0.0)
    size = 1e-9 * (1 + np.abs(values).max())
    assert (np.isnan(table.by_environment) == (counts == 0)).all()
    assert (table.spread >= 0).all()
    np.testing.assert_allclose((counts * values).sum(1) / counts.sum(1), table.overall, atol=size)
    sign = 1 if table.greater_is_better else -1
    best = table.worst + sign * table.spread
    assert (sign * table.worst <= sign * table.mean + size).all()
    assert (sign * table.mean <= sign * best + size).all()
    assert (sign * table.worst <= sign * table.overall + size).all()
    names = [table.names.index(name) for name in table.worst_environment]
    np.testing.assert_array_equal(table.by_environment[range(shape[0]), names], table.worst)
    if table.intervals is not None:
        for q in ("by_environment", *QUANTITIES):
            lower, upper = table.intervals[q]
            assert lower.shape == upper.shape == getattr(table, q).shape
            assert (np.isnan(lower) | (lower <= upper)).all()
        assert (table.intervals["spread"].lower >= 0).all()
    assert str(table) == repr(table)


# --- bootstrap --------------------------------------------------------------------------------------------


def test_interval_has_the_binomial_width():
    """For a mean of 0/1 scores the bootstrap standard error is sqrt(p (1 - p) / n), stratum by stratum."""
    rng = np.random.default_rng(3)
    e = np.repeat([0, 1], [2000, 500])
    y = (rng.random(2500) < np.where(e == 0, 0.8, 0.6)).astype(int)
    table = evaluate_environments(np.ones(2500), y, e, n_bootstrap=4000, random_state=1)
    p = table.by_environment[0]
    se = np.sqrt(p * (1 - p) / table.counts)
    z = 1.959964
    widths = {
        "by_environment": se,
        "overall": np.sqrt((table.counts**2 * se**2).sum()) / 2500,
        "mean": np.sqrt((se**2).sum()) / 2,
        "worst": se[1],  # the other is nine standard errors away
        "spread": np.sqrt((se**2).sum()),
    }
    for q, expected in widths.items():
        lower, upper = table.intervals[q]
        # the limits have a Monte Carlo error of about 4 % of the standard error, and a grid of 1 / n
        np.testing.assert_allclose((upper - lower)[0] / (2 * z), expected, rtol=0.06)
        np.testing.assert_allclose(((upper + lower) / 2)[0], getattr(table, q)[0], atol=0.15 * np.max(expected))


def test_intervals_cover_about_as_often_as_they_say():
    """400 independent data sets as 400 runs: the true accuracy lies inside in about 90 % of them."""
    rng = np.random.default_rng(4)
    y = (rng.random((400, 400)) < 0.7).astype(int)
    table = evaluate_environments(
        np.ones(y.shape), y, np.arange(400) % 2, n_bootstrap=1000, confidence=0.9, random_state=0
    )
    for q in ("overall", "mean"):
        lower, upper = table.intervals[q]
        covered = np.mean((lower <= 0.7) & (upper >= 0.7))
        assert abs(covered - 0.9) < 3 * np.sqrt(0.9 * 0.1 / 400)


def test_a_higher_level_is_wider_and_equal_scores_have_no_width():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    narrow, wide = (
        evaluate_environments(f, y, site, n_bootstrap=300, confidence=c, random_state=0).intervals for c in (0.5, 0.99)
    )
    for q in QUANTITIES:
        assert (wide[q].lower < narrow[q].lower).all()
        assert (wide[q].upper > narrow[q].upper).all()
    perfect = evaluate_environments(np.ones(9), np.ones(9), n_bootstrap=10)
    np.testing.assert_array_equal(perfect.intervals["overall"], [[1.0], [1.0]])


def test_intervals_of_the_error_mirror_those_of_the_accuracy():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    error = Metric("error", lambda f, y: 1.0 - ((f > 0) == y), False, ("binary",))
    a = evaluate_environments(f, y, site, n_bootstrap=99, random_state=0)
    b = evaluate_environments(f, y, site, n_bootstrap=99, random_state=0, metric=error)
    assert a.worst_environment == b.worst_environment
    np.testing.assert_allclose(a.intervals["spread"], b.intervals["spread"], atol=1e-12)
    for q in ("by_environment", "overall", "mean", "worst"):
        np.testing.assert_allclose(a.intervals[q].lower, 1 - b.intervals[q].upper, atol=1e-12)
        np.testing.assert_allclose(a.intervals[q].upper, 1 - b.intervals[q].lower, atol=1e-12)


def test_an_empty_environment_leaves_the_intervals_alone():
    rng, f, site = draw()
    y = rng.integers(2, size=N)
    a = evaluate_environments(f, y, site, n_bootstrap=50, random_state=0)
    b = evaluate_environments(f, y, site, n_bootstrap=50, random_state=0, names=["nowhere", *a.names])
    for q in QUANTITIES:
        np.testing.assert_array_equal(a.intervals[q], b.intervals[q])


def test_random_state():
    rng, f, site = draw()
    y = rng.integers(2, size=N)

    def lower(random_state):
        table = evaluate_environments(f, y, site, metric="log_loss", n_bootstrap=20, random_state=random_state)
        return table.intervals["mean"].lower.tolist()

    assert lower(1) == lower(1)
    assert lower(1) != lower(2)
    assert lower(np.random.default_rng(3)) == lower(np.random.default_rng(3))
    assert lower(None) != lower(None)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002  (the global state must stay as it is)
    lower(1)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_no_bootstrap_no_intervals():
    table = evaluate_environments([1.0], [1])
    assert table.intervals is None
    assert table.confidence is None


# --- frames and text --------------------------------------------------------------------------------------


@pytest.fixture
def table():
    f = [[1.0, 1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]]
    return evaluate_environments(f, [1, 1, 1, 1], list("aabb"), n_bootstrap=40, random_state=0, run_names=["s0", "s1"])


def test_to_frame(table):
    frame = table.to_frame()
    assert frame.columns.tolist() == ["run", "environment", "value", "count", "lower", "upper"]
    assert frame[["run", "environment"]].to_numpy().tolist() == [
        ["s0", "a"],
        ["s0", "b"],
        ["s1", "a"],
        ["s1", "b"],
    ]
    assert frame["value"].tolist() == [1.0, 0.5, 1.0, 0.0]
    assert frame["count"].tolist() == [2, 2, 2, 2]
    np.testing.assert_array_equal(frame["lower"], table.intervals["by_environment"].lower.ravel())
    assert evaluate_environments([1.0], [1]).to_frame()[["lower", "upper"]].isna().all(axis=None)


def test_summary_over_runs(table):
    summary = table.summary()
    assert summary.index.tolist() == ["overall", "mean", "worst", "spread", "a", "b"]
    assert summary.columns.tolist() == ["mean", "std", "min", "max", "runs"]
    np.testing.assert_allclose(summary.loc["worst"], [0.25, np.std([0.5, 0.0], ddof=1), 0.0, 0.5, 2])
    np.testing.assert_allclose(summary.loc["a"], [1.0, 0.0, 1.0, 1.0, 2])
    for quantity in summary.index:
        assert table.mean_std(quantity) == tuple(summary.loc[quantity, ["mean", "std"]])


def test_summary_of_one_run(table):
    summary = table[0].summary()
    assert summary.columns.tolist() == ["mean", "std", "min", "max", "runs", "lower", "upper"]
    assert summary["std"].isna().all()
    assert math.isnan(table[0].mean_std("overall")[1])
    assert summary.loc["b", "lower"] == table.intervals["by_environment"].lower[0, 1]
    assert summary.loc["spread", "upper"] == table.intervals["spread"].upper[0]


def test_mean_std_of_an_unknown_quantity(table):
    with pytest.raises(ValueError, match=r"quantity must be one of .* \('a', 'b'\). Got 'wrst'. Did you mean 'worst'"):
        table.mean_std("wrst")


def test_text_of_many_runs(table):
    lines = str(table).splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert [" ".join(line.split()) for line in lines] == [
        "accuracy (%) by environment: mean ± standard deviation over 2 runs",
        "mean ± std min max rows",
        "overall 62.50 ± 17.68 50.00 75.00 4",
        "mean 62.50 ± 17.68 50.00 75.00",
        "worst 25.00 ± 35.36 0.00 50.00",
        "spread 75.00 ± 35.36 50.00 100.00",
        "a 100.00 ± 0.00 100.00 100.00 2",
        "b 25.00 ± 35.36 0.00 50.00 2",
    ]


def test_text_of_one_run(table):
    text = str(table[0])
    assert text.startswith("accuracy (%) by environment: one run, 40 bootstrap draws\n")
    assert "worst (b) 50.00 0.00 to 100.00" in " ".join(text.split())
    assert "95 % interval" in text
    plain = str(evaluate_environments([1.0, 2.0], [0.0, 0.0], [0, 1], metric="mse"))
    assert "%" not in plain
    assert "interval" not in plain


def test_html_is_escaped():
    named = Metric("<b>", lambda f, y: f, True, ("squared",))
    page = evaluate_environments([1.0, 1.0], [1, 0], ["<script>", "b"], metric=named)._repr_html_()
    assert "<table" in page
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;" in page


def test_long_tables_are_cut():
    table = evaluate_environments(np.ones(50), np.ones(50), np.arange(50))
    assert "... and 30 more environments" in str(table)
    assert "... and 30 more environments" in table._repr_html_()
    assert len(str(table).splitlines()) == 2 + 4 + 20 + 1


def test_docstring_example_runs():
    assert doctest.testmod(metrics).failed == 0
