"""Finite sigma-algebras: against counting and the axioms."""

from __future__ import annotations

import numpy as np
import pytest

from irmtv.lab.theory.sigma_algebras import (
    atom_masses,
    by_atom,
    complement_gaps,
    generated,
    image,
    images,
    is_sigma_algebra,
    measurable,
    on_points,
    partitions,
    preimage,
    pushforward,
    subsets,
    union_gaps,
)


def sets(*members):
    return frozenset(frozenset(m) for m in members)


def test_a_partition_of_k_blocks_generates_all_their_unions():
    family = generated([{1}, {2, 3}, {4}])
    assert len(family) == 2**3
    assert all(len(member & {2, 3}) in (0, 2) for member in family)
    assert is_sigma_algebra(family, {1, 2, 3, 4})


def test_the_finest_partition_generates_the_power_set():
    assert generated([{1}, {2}, {3}]) == subsets({1, 2, 3}) and len(subsets({1, 2, 3})) == 8


@pytest.mark.parametrize(
    "family",
    [
        sets({1, 2, 3}),  # no empty set, no complement
        sets((), {1}, {1, 2, 3}),  # no complement of {1}
        sets((), {1}, {2}, {3}, {2, 3}, {1, 3}, {1, 2}),  # no whole
        sets((), {1}, {2}, {2, 3}, {1, 3}, {1, 2, 3}),  # no {1, 2}
        sets((), {1, 2, 3}, {4}, {1, 2, 3, 4}),  # not within the whole
    ],
)
def test_what_is_no_sigma_algebra(family):
    assert not is_sigma_algebra(family, {1, 2, 3})


def test_the_gaps_are_named():
    family = sets((), {1}, {2}, {2, 3}, {1, 3}, {1, 2, 3})
    assert complement_gaps(family, {1, 2, 3}) == []
    assert [set(pair) for pair in union_gaps(family)] == [{frozenset({1}), frozenset({2})}]
    assert set(complement_gaps(sets((), {1}), {1, 2})) == sets((), {1})


def test_images_and_preimages():
    w = {1: "a", 2: "a", 3: "b"}
    assert image(w, {1, 2}) == {"a"} and preimage(w, {"a"}, w) == {1, 2} and preimage(w, {"c"}, w) == frozenset()
    assert measurable([2, 3], generated([{1}, {2, 3}])) and not measurable([1, 2], generated([{1}, {2, 3}]))


def test_the_printed_family_is_not_the_pushforward():
    w, family = {1: "a", 2: "a", 3: "b"}, generated([{1}, {2, 3}])
    assert images(w, family) == sets((), "a", "ab")
    assert pushforward(w, family, {1, 2, 3}) == sets((), "ab")


def test_overlapping_blocks_are_refused():
    with pytest.raises(ValueError, match=r"partition must consist of disjoint blocks.*Got \[\[1, 2\], \[2, 3\]\]"):
        generated([{1, 2}, {2, 3}])
    with pytest.raises(ValueError, match="not empty"):
        generated([{1}, set()])


def test_too_many_points_are_refused():
    with pytest.raises(ValueError, match=r"at most 16 points.*Got 17"):
        subsets(range(17))
    with pytest.raises(ValueError, match=r"at most 16 blocks.*Got 20"):
        generated([{k} for k in range(20)])


@pytest.mark.parametrize(("n", "bell"), [(0, 1), (1, 1), (3, 5), (4, 15), (5, 52)])
def test_every_sigma_algebra_is_there_once(n, bell):
    families = {generated(p) for p in partitions(range(n))}
    assert len(families) == bell == len(list(partitions(range(n))))
    assert all(sorted(point for block in p for point in block) == list(range(n)) for p in partitions(range(n)))
    assert all(is_sigma_algebra(f, range(n)) for f in families)


def test_conditional_expectation():
    partition, mass = ((0, 2), (1,), (3, 4)), np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    values = np.array([[4.0, 7.0, 8.0, 1.0, 5.0]])
    assert by_atom(values, partition, mass) == pytest.approx(np.array([[7.0, 7.0, 3.5]]))
    assert atom_masses(partition, mass) == pytest.approx([0.4, 0.2, 0.4])
    assert on_points(np.array([10.0, 20.0, 30.0]), partition).tolist() == [10, 20, 10, 30, 30]
    assert by_atom(values, partition, mass) @ atom_masses(partition, mass) == pytest.approx(values @ mass)
