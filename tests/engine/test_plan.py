"""Which runs train together."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from irmtv.core.losses import Binary, Custom, Multiclass, Squared
from irmtv.core.types import Rows, Task
from irmtv.engine.plan import CACHE_ELEMENTS, MEMORY_SHARE, plan

PER_RUN = frozenset({"seed", "data", "penalty_weight"})
PLENTY = 1e12


def task(n=10, n_environments=2, loss=None, held_out=None, n_outputs=1):
    def rows(n):
        return Rows(torch.zeros(n, 3), torch.zeros(n), torch.zeros(n).long(), names=tuple(range(n_environments)))

    kept = None if held_out is None else rows(held_out)
    return Task(rows(n), loss or Binary(), n_outputs, held_out=kept)


def settings_of(*data, **more):
    return [{"seed": i, "data": d, "hidden": (), **more} for i, d in enumerate(data)]


def planned(tasks, settings, width=10, on_cpu=True, memory_bytes=PLENTY, max_chunk=None):
    return plan(tasks, settings, PER_RUN, width, on_cpu, memory_bytes, max_chunk)


TASKS = st.lists(st.builds(task, st.sampled_from([10, 20]), st.sampled_from([2, 3])), min_size=1, max_size=4)
STATIC = st.fixed_dictionaries(
    {
        "hidden": st.sampled_from([(), (4,), (8, 8)]),
        "measure": st.sampled_from(["empirical", "uniform", (1.0, 2.0)]),
        "penalty_weight": st.sampled_from([0.0, 1.0, 1e4]),
    }
)


@given(data=st.data(), tasks=TASKS, max_chunk=st.sampled_from([None, 1, 2, 3, 5]), on_cpu=st.booleans())
@limits(max_examples=100, deadline=None)
def test_every_plan_is_a_partition_into_rectangles(data, tasks, max_chunk, on_cpu):
    runs = data.draw(st.lists(st.tuples(st.integers(0, len(tasks) - 1), STATIC), min_size=1, max_size=20))
    settings = [{"seed": i, "data": d, **static} for i, (d, static) in enumerate(runs)]
    chunks = planned(tasks, settings, on_cpu=on_cpu, max_chunk=max_chunk)

    assert Counter(r for c in chunks for r in c.runs) == Counter(range(len(runs)))  # each run once
    for c in chunks:
        per_set, rest = divmod(len(c.runs), len(c.data))
        assert rest == 0 and per_set > 0
        assert len(set(c.data)) == len(c.data)
        assert [settings[r]["data"] for r in c.runs] == [d for d in c.data for _ in range(per_set)]
        for start in range(0, len(c.runs), per_set):  # on one data set, as they were asked for
            assert list(c.runs[start : start + per_set]) == sorted(c.runs[start : start + per_set])
        for r in c.runs:
            static = {k: v for k, v in settings[r].items() if k not in PER_RUN}
            assert static == {k: v for k, v in c.static.items() if k not in PER_RUN}
        shapes = {(len(tasks[d].train), len(tasks[d].train.names)) for d in c.data}
        assert len(shapes) == 1
        assert max_chunk is None or len(c.runs) <= max_chunk
    again = planned(tasks, settings, on_cpu=on_cpu, max_chunk=max_chunk)
    assert [(c.runs, c.data) for c in again] == [(c.runs, c.data) for c in chunks]


def test_equal_runs_share_one_program():
    (chunk,) = planned([task(), task()], settings_of(0, 1, 0, 1, 0, 1))
    assert chunk.data == (0, 1)
    assert chunk.runs == (0, 2, 4, 1, 3, 5)


def test_data_sets_with_unequal_numbers_of_runs_are_apart():
    chunks = planned([task(), task(), task()], settings_of(0, 0, 1, 2))
    assert sorted(c.runs for c in chunks) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("n_runs", "max_chunk", "sizes"), [(7, 3, [3, 2, 2]), (6, 3, [3, 3]), (5, 8, [5]), (4, 1, [1] * 4)]
)
def test_as_few_pieces_as_fit_of_nearly_equal_size(n_runs, max_chunk, sizes):
    chunks = planned([task()], settings_of(*[0] * n_runs), max_chunk=max_chunk)
    assert [len(c.runs) for c in chunks] == sizes


def test_whole_data_sets_go_together_where_they_fit():
    tasks = [task() for _ in range(5)]
    chunks = planned(tasks, settings_of(*[d for d in range(5) for _ in range(2)]), max_chunk=5)
    assert [len(c.runs) for c in chunks] == [4, 4, 2]
    assert all(len(c.runs) == 2 * len(c.data) for c in chunks)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("fits", [1, 2, 3, 6])
def test_memory_bounds_a_chunk(fits, on_cpu):
    n, width, bytes_per_value = 10, 50, 8
    memory = fits * n * width * bytes_per_value / MEMORY_SHARE
    chunks = planned([task(n)], settings_of(*[0] * 6), width=width, on_cpu=on_cpu, memory_bytes=memory * 1.01)
    assert max(len(c.runs) for c in chunks) == fits


def test_one_run_trains_even_where_memory_is_said_to_be_short():
    assert [len(c.runs) for c in planned([task()], settings_of(0, 0), memory_bytes=1.0)] == [1, 1]


def test_the_cache_bounds_a_chunk_on_a_cpu_only():
    n = CACHE_ELEMENTS // 8
    settings = settings_of(*[0] * 20)
    assert max(len(c.runs) for c in planned([task(n)], settings)) <= 8
    assert len(planned([task(n)], settings, on_cpu=False)) == 1
    # however many rows, a few runs go together
    assert max(len(c.runs) for c in planned([task(2 * CACHE_ELEMENTS)], settings)) == 4


@pytest.mark.parametrize(
    "other",
    [
        task(20),
        task(n_environments=3),
        task(held_out=5),
        task(loss=Squared()),
        task(loss=Multiclass(), n_outputs=3),
        task(loss=Custom(lambda f, y: f - y)),
    ],
    ids=["rows", "environments", "held-out", "loss", "outputs", "own-loss"],
)
def test_data_that_cannot_share_a_program_are_apart(other):
    assert len(planned([task(), other], settings_of(0, 1))) == 2
    assert len(planned([other, other], settings_of(0, 1))) == 1


def test_losses_of_the_users_own_are_told_apart_by_their_function():
    def mine(f, y):
        return (f - y).abs()

    same = [task(loss=Custom(mine)), task(loss=Custom(mine))]
    assert len(planned(same, settings_of(0, 1))) == 1
    other = [task(loss=Custom(mine)), task(loss=Custom(lambda f, y: f - y, "mine"))]
    assert len(planned(other, settings_of(0, 1))) == 2


def test_lists_and_mappings_as_settings():
    settings = settings_of(0, 0, 0, hidden=[3], extra={"b": 1, "a": 2})
    assert len(planned([task()], settings)) == 1
