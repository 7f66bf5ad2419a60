"""Mini-batches: every environment in its share, or all equally often."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.problems import refuse
from irmtv.engine import rows
from irmtv.engine.rows import BalancedBatches, StratifiedBatches


def generators(*seeds):
    return [torch.Generator().manual_seed(s) for s in seeds]


def batches(codes, size, *seeds):
    return StratifiedBatches([codes] * len(seeds), size, generators(*seeds))


def epoch(b):
    """The batches of one epoch of one run: (per_epoch, batch_size)."""
    return torch.stack([b.next()[0] for _ in range(b.per_epoch)])


CODES = torch.arange(60) % 3


@given(
    codes=st.lists(st.integers(0, 4), min_size=4, max_size=80),
    size=st.integers(2, 20),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_every_epoch_visits_rows_once_and_every_batch_has_the_shares(codes, size, seed):
    codes = torch.tensor(codes)
    n, size = len(codes), min(size, len(codes))
    b = batches(codes, size, seed)
    assert b.per_epoch == n // size
    names, counts = torch.unique(codes, return_counts=True)
    for _ in range(2):
        rows = epoch(b)
        assert rows.shape == (n // size, size)
        seen = rows.flatten().tolist()
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(n))
        if n % size == 0:
            assert sorted(seen) == list(range(n))
        for e, count in zip(names, counts, strict=True):
            share = int(count) / n
            here = (codes[rows] == e).sum(1)
            # an environment's rows are evenly spaced, so up to any place it is less than a row off its share;
            # the places of a batch are off by the others' remainders
            bound = (1 - share) + share * (len(names) - 1)
            assert (here - share * size).abs().max() <= bound + 1e-9


@pytest.mark.parametrize("shares", [(30, 30), (50, 10), (20, 20, 20)])
def test_within_one_row_of_the_share(shares):
    codes = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor(shares))
    rows = epoch(batches(codes, 12, 0))
    for e, n in enumerate(shares):
        assert ((codes[rows] == e).sum(1) - 12 * n / 60).abs().max() <= 1


def test_environments_take_turns_at_random():
    """Every pair of environments may be the first batch of two rows."""
    first = {tuple(CODES[batches(CODES, 2, seed).next()[0]].tolist()) for seed in range(60)}
    assert first == {(0, 1), (0, 2), (1, 2)}


@pytest.mark.parametrize("kind", [StratifiedBatches, BalancedBatches])
@pytest.mark.parametrize("environments", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("size", [12, 13, 24])
def test_both_halves_of_a_batch_have_every_environment(kind, environments, size):
    """Two equal environments in strict turns would put one into the even rows and the other into the odd ones."""
    codes = torch.arange(120) % environments
    b = kind([codes], size, generators(0))
    for _ in range(2 * b.per_epoch):
        here = codes[b.next()[0]]
        even, odd = (torch.bincount(here[i::2], minlength=environments) for i in (0, 1))
        assert (even - odd).abs().max() <= 1
        assert even.min() >= 1


def test_epochs_differ():
    b = batches(CODES, 20, 0)
    assert not torch.equal(epoch(b), epoch(b))


def test_the_same_seed_gives_the_same_batches_and_another_seed_others():
    first, again, other = (batches(CODES, 7, s) for s in (5, 5, 6))
    a, b, c = (torch.cat([epoch(x), epoch(x)]) for x in (first, again, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_runs_are_independent_of_their_neighbours():
    together = StratifiedBatches([CODES, CODES.flip(0), CODES], 8, generators(1, 2, 3))
    alone = [batches(CODES, 8, 1), batches(CODES.flip(0), 8, 2), batches(CODES, 8, 3)]
    for _ in range(2 * together.per_epoch + 1):
        rows = together.next()
        assert rows.shape == (3, 8)
        assert torch.equal(rows, torch.cat([b.next() for b in alone]))


def test_global_randomness_is_left_alone():
    before = torch.get_rng_state()
    epoch(batches(CODES, 8, 1))
    assert torch.equal(torch.get_rng_state(), before)


def test_one_batch_is_all_rows():
    assert sorted(batches(CODES, 60, 0).next()[0].tolist()) == list(range(60))


@pytest.mark.parametrize("size", [-1, 0, 1, 61])
def test_impossible_sizes(size):
    with refuse("batch_size must be between 2 and the number of rows, 60", f"Got {size}", "batch_size=None"):
        batches(CODES, size, 0)


# --- balanced ---------------------------------------------------------------------------------------------


def balanced(codes, size, *seeds):
    return BalancedBatches([codes] * len(seeds), size, generators(*seeds))


@given(
    codes=st.lists(st.integers(0, 4), min_size=4, max_size=80),
    size=st.integers(2, 20),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_balanced_batches_have_each_environment_equally_often_and_go_round(codes, size, seed):
    codes = torch.tensor(codes)
    n, size = len(codes), min(size, len(codes))
    b = balanced(codes, size, seed)
    assert b.per_epoch == n // size
    rows = torch.cat([epoch(b) for _ in range(4)])
    names, sizes = torch.unique(codes, return_counts=True)
    here = torch.stack([(codes[rows] == e).sum(1) for e in names], 1)  # (batches, environments)
    assert here.min() >= size // len(names)
    assert here.max() <= -(-size // len(names))
    for e, n_e in zip(names, sizes.tolist(), strict=True):
        visits = rows[codes[rows] == e]  # in the order of the batches, across the epochs
        for start in range(0, len(visits), n_e):  # one permutation after the other
            round_of = visits[start : start + n_e].tolist()
            assert len(set(round_of)) == len(round_of)


def test_who_has_a_row_more_is_left_to_chance():
    b = balanced(CODES, 10, 0)  # 3, 3 and 4 rows
    more = [int(torch.bincount(CODES[b.next()[0]]).argmax()) for _ in range(600)]
    assert all(150 < more.count(e) < 250 for e in range(3))


def test_a_small_environment_returns_within_a_batch():
    codes = torch.tensor([0] * 57 + [1] * 3)
    rows = balanced(codes, 20, 0).next()[0]
    few = rows[codes[rows] == 1]
    assert len(few) == 10
    assert sorted(few.bincount()[57:].tolist()) == [3, 3, 4]
    assert len(set(rows[codes[rows] == 0].tolist())) == 10


def test_codes_that_nobody_has_take_no_place():
    codes = torch.tensor([1, 4] * 10)
    rows = balanced(codes, 6, 0).next()[0]
    assert codes[rows].tolist() == [1, 1, 1, 4, 4, 4]


def test_balanced_runs_are_independent_of_their_neighbours():
    skewed = (torch.arange(60) > 50).long()
    together = BalancedBatches([CODES, skewed, CODES], 8, generators(1, 2, 3))
    alone = [balanced(CODES, 8, 1), balanced(skewed, 8, 2), balanced(CODES, 8, 3)]
    before = torch.get_rng_state()
    for _ in range(3 * together.per_epoch + 1):
        rows = together.next()
        assert rows.shape == (3, 8)
        assert torch.equal(rows, torch.cat([b.next() for b in alone]))
    assert not torch.equal(rows[0], rows[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_impossible_sizes_of_balanced_batches():
    with refuse("batch_size must be between 2 and the number of rows, 60", "Got 61"):
        balanced(CODES, 61, 0)


@pytest.mark.parametrize(
    ("kind", "environments"),
    [(StratifiedBatches, 1), (StratifiedBatches, 3), (StratifiedBatches, 33_000), (BalancedBatches, 3)],
)
def test_numbers_in_few_bits_give_the_same_batches(monkeypatch, kind, environments):
    """Row numbers have 32 bits and codes 16 where that is enough; random numbers do not depend on it."""
    codes = torch.arange(80_000) % environments

    def drawn():
        b = kind([codes], 50_000, generators(7))
        return torch.cat([b.next() for _ in range(3)])

    few = drawn()
    monkeypatch.setattr(rows, "MOST_OF_32_BITS", 0)
    monkeypatch.setattr(rows, "_narrow", lambda codes: codes)
    assert torch.equal(few, drawn()) and few.dtype == torch.int64
