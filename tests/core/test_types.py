"""Runs, rows, tasks and the measure on the environments."""

from __future__ import annotations

import doctest
import itertools
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from irmtv.core import messages, types
from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Runs, Statistics, Task

quick = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("module", [types, messages], ids=lambda m: m.__name__)
def test_docstring_examples(module):
    assert doctest.testmod(module).failed == 0


# --- runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "many",
    [
        [1.0, 2.0, 3.0],
        np.array([1.0, 2.0, 3.0]),
        torch.tensor([1.0, 2.0, 3.0]),
        pd.Series([1.0, 2.0, 3.0]),
        range(1, 4),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_sequence_holds_one_value_per_run(many):
    runs = Runs(seed=[5, 6, 7], penalty_weight=many, hidden=(32,))
    assert len(runs) == 3
    assert [int(w) for w in runs.column("penalty_weight")] == [1, 2, 3]
    assert runs.column("hidden") == [(32,)] * 3
    assert runs[1]["seed"] == 6
    assert [row["seed"] for row in runs] == [5, 6, 7]
    assert runs.column("data") == [0, 0, 0]
    assert runs.column("absent", default="x") == ["x"] * 3
    assert runs.names == ("seed", "data", "penalty_weight", "hidden")


@pytest.mark.parametrize(
    "one",
    [3.0, (16, 16), "alternating", {"vrex": 1.0, "irm-tv-l1": 2.0}, None, torch.tensor(3.0), np.array(3.0)],
    ids=repr,
)
def test_anything_else_is_one_value_for_all(one):
    assert len(Runs(setting=one)) == 1
    runs = Runs(seed=range(4), setting=one)
    assert len(runs) == 4
    assert all(v is one for v in runs.column("setting"))


def test_one_run_by_default():
    assert len(Runs()) == 1
    assert Runs()[0] == {"seed": 0, "data": 0}
    assert Runs(3)[0]["seed"] == 3


@quick
@given(
    st.dictionaries(
        st.sampled_from(["seed", "data", "penalty_weight", "warmup", "l2"]),
        st.lists(st.integers(0, 9), min_size=1, max_size=4),
        min_size=1,
    )
)
def test_grid_is_every_combination_with_the_last_varying_fastest(columns):
    runs = Runs.grid(**columns)
    expected = list(itertools.product(*columns.values()))
    assert [tuple(row[k] for k in columns) for row in runs] == expected


def test_grid_takes_single_values_and_tuples():
    runs = Runs.grid(seed=range(2), hidden=[(), (8,)], l2=0.1)
    assert [(r["seed"], r["hidden"], r["l2"]) for r in runs] == [
        (0, (), 0.1),
        (0, (8,), 0.1),
        (1, (), 0.1),
        (1, (8,), 0.1),
    ]
    assert Runs.grid(hidden=(8, 8)).column("hidden") == [(8, 8)]
    assert len(Runs.grid()) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Runs(seed=range(3), penalty_weight=[1.0, 2.0]),
            r"lengths {'seed': 3, 'penalty_weight': 2}.*Runs\.grid",
        ),
        (lambda: Runs(seed=[]), "at least one run"),
        (lambda: Runs.grid(seed=range(3), penalty_weight=[]), "at least one run"),
    ],
)
def test_runs_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        (Runs(), "Runs(1: seed=0)"),
        (Runs(seed=range(3), penalty_weight=1e4), "Runs(3: seed=[0, 1, 2], penalty_weight=10000.0)"),
        (Runs(seed=[4, 4], data=[0, 1]), "Runs(2: seed=4, data=[0, 1])"),
        (Runs(seed=1, hidden=(8,)), "Runs(1: seed=1, hidden=(8,))"),
        (
            Runs(seed=range(30)),
            "Runs(30: seed=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16...)",
        ),
    ],
)
def test_repr_of_runs(runs, text):
    assert repr(runs) == text


def test_runs_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Runs().values = ()


# --- rows and tasks ---------------------------------------------------------------------------------------


def some_rows(n=6, **change):
    rows = Rows(
        x=torch.arange(2.0 * n).view(n, 2),
        y=torch.arange(float(n)),
        environment=torch.arange(n) % 2,
        aux=torch.arange(3.0 * n).view(n, 3),
        names=("north", "south"),
    )
    return replace(rows, **change)


@pytest.mark.parametrize("index", [torch.tensor([4, 0, 0]), torch.tensor([True, False, True, False, False, True])])
def test_take(index):
    rows = some_rows(weight=torch.arange(6) / 3.0)
    taken = rows.take(index)
    assert len(taken) == 3
    for name in ("x", "y", "environment", "aux", "weight"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(rows, name).numpy()[index.numpy()])
    assert taken.names == rows.names
    assert len(rows) == 6, "the rows themselves stay"


def test_take_without_environment_or_aux():
    taken = some_rows(environment=None, aux=None, names=()).take(torch.tensor([1]))
    assert taken.environment is None
    assert taken.weight is None
    assert taken.aux is None
    assert taken.x.tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            Task(some_rows(environment=None, aux=None, names=()), as_loss("squared")),
            "Task('data', 6 rows, features (2,), loss squared)",
        ),
        (
            Task(some_rows(), as_loss("binary"), test=some_rows(4), held_out=some_rows(2), name="mine"),
            "Task('mine', 6 rows, features (2,), loss binary, 2 environments, 3 aux columns, "
            "2 held-out rows, 4 test rows)",
        ),
        (
            Task(some_rows(x=torch.zeros(6, 8, 46), environment=None, aux=None), as_loss("multiclass"), n_outputs=6),
            "Task('data', 6 rows, features (8, 46), loss multiclass)",
        ),
    ],
)
def test_repr_of_a_task(task, text):
    assert repr(task) == text


# --- the measure on the environments ----------------------------------------------------------------------


def statistics(mass, risk=None):
    mass = torch.as_tensor(mass)
    mean = torch.zeros(len(mass), dtype=mass.dtype) if risk is None else (mass * risk).sum(1)
    return Statistics(mean, mass, risk)


def loop_measure(kind, mass):
    """mu (R, E) by loops; environments without mass get nothing."""
    out = np.zeros_like(mass)
    for r, row in enumerate(mass):
        for e, m in enumerate(row):
            out[r, e] = (
                0 if m == 0 else {"empirical": m, "uniform": 1.0}.get(kind) if isinstance(kind, str) else kind[e]
            )
        if out[r].sum() > 0:
            out[r] /= out[r].sum()
    return out


@quick
@given(data=st.data())
def test_measure(data):
    n_environments = data.draw(st.integers(1, 5))
    counts = data.draw(hnp.arrays(np.int64, (2, n_environments), elements=st.integers(0, 4)))
    counts[:, 0] += 1  # a batch has rows
    mass = counts / counts.sum(1, keepdims=True)
    weights = st.floats(0, 10, allow_subnormal=False).filter(lambda w: w == 0 or w > 1e-6)
    given_weights = data.draw(st.lists(weights, min_size=n_environments, max_size=n_environments).map(tuple))
    for kind in ("empirical", "uniform", given_weights):
        mu = statistics(mass).measure(kind)
        np.testing.assert_allclose(mu, loop_measure(kind, mass), rtol=1e-14, atol=0)
        assert (mu[torch.tensor(mass) == 0] == 0).all()
    np.testing.assert_allclose(statistics(mass).measure("uniform").sum(1), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_weights_have_the_precision_of_the_run(dtype):
    mu = statistics(torch.full((1, 3), 1 / 3, dtype=dtype)).measure((0.1, 0.2, 0.7))
    assert mu.dtype == dtype
    assert (mu == torch.tensor([[0.1, 0.2, 0.7]], dtype=dtype) / torch.tensor([0.1, 0.2, 0.7], dtype=dtype).sum()).all()


def test_a_batch_with_only_environments_of_weight_zero():
    """Nothing is known of the others: the measure is 0 there, not 0 / 0."""
    assert statistics([[0.0, 1.0], [0.5, 0.5]]).measure((1.0, 0.0)).tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("empirical", [1.4, 5.0]), ("uniform", [2.0, 5.0]), ((3.0, 1.0, 4.0), [1.5, 5.0])],
)
def test_expected_risk(kind, expected):
    """The second run has rows in its last environment only."""
    mass = torch.tensor([[0.8, 0.2, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    risk = torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    e = statistics(mass, risk)
    assert e.n_environments == 3
    assert e.expected_risk(kind).tolist() == pytest.approx(expected)
