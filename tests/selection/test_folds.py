"""Folds, tasks without an environment, the constant prediction, and environments in the same order."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.problems import refuse, task_of
from irmtv import Rows, make_task
from irmtv.core.losses import as_loss
from irmtv.core.types import Task
from irmtv.selection.folds import (
    align,
    aux_blocks,
    constant_risk,
    fold_by_class,
    fold_of_rows,
    fold_tasks,
    groups_in_order,
    left_out_tasks,
    tasks_in_order,
)


def rows_of(n, environment=None, aux=None, names=()):
    x = torch.arange(n, dtype=torch.float64)[:, None]
    return Rows(x, x[:, 0], environment, aux, names)


# Folds


@given(st.lists(st.integers(0, 14), min_size=1, max_size=5), st.integers(2, 6), st.integers(0, 1000), st.booleans())
@settings(deadline=None, max_examples=150)
def test_folds_are_of_one_size_in_every_environment(sizes, n_folds, seed, mixed):
    n = sum(sizes)
    if n < n_folds:
        return
    codes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if mixed:
        codes = codes[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    fold = fold_of_rows(rows_of(n, codes, names=tuple(range(len(sizes)))), n_folds, seed)
    assert fold.shape == (n,) and fold.dtype == torch.int64
    for part in (fold, *(fold[codes == e] for e in range(len(sizes)))):
        counts = torch.bincount(part, minlength=n_folds)
        assert len(counts) == n_folds and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("n_folds", [2, 3, 5])
def test_without_environments_folds_cover_the_range_of_aux(n_folds):
    n = 53
    aux = torch.randperm(n, generator=torch.Generator().manual_seed(0)).double()[:, None]
    fold = fold_of_rows(rows_of(n, aux=torch.cat([aux, torch.zeros(n, 1)], 1)), n_folds, 1)
    counts = torch.bincount(fold)
    assert counts.max() - counts.min() <= 1
    by_aux = fold[aux[:, 0].argsort()]
    for start in range(0, n - n_folds + 1, n_folds):  # every stretch of n_folds rows has one of each fold
        assert sorted(by_aux[start : start + n_folds].tolist()) == list(range(n_folds))
    assert len({tuple(by_aux[s : s + n_folds].tolist()) for s in range(0, n - n_folds + 1, n_folds)}) > 1


def test_rows_with_neither_environments_nor_aux():
    counts = torch.bincount(fold_of_rows(rows_of(11), 4, 0))
    assert sorted(counts.tolist()) == [2, 3, 3, 3]


@pytest.mark.parametrize("kind", ["environment", "aux", "neither"])
def test_a_seed_makes_the_folds(kind):
    rows = rows_of(
        40,
        torch.arange(40) % 3 if kind == "environment" else None,
        torch.arange(40.0)[:, None] if kind == "aux" else None,
    )
    first = fold_of_rows(rows, 4, 7)
    before = torch.get_rng_state()
    assert torch.equal(first, fold_of_rows(rows, 4, 7))
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
    assert len({tuple(fold_of_rows(rows, 4, seed).tolist()) for seed in range(10)}) == 10


def test_every_pair_of_rows_may_meet_in_a_fold():
    rows = rows_of(12, torch.arange(12) // 6, names=(0, 1))
    together = torch.zeros(12, 12)
    for seed in range(200):
        fold = fold_of_rows(rows, 3, seed)
        together += fold[:, None] == fold
    off = together[~torch.eye(12, dtype=torch.bool)]
    assert off.min() > 15 and off.max() < 110  # rows 1 and 4 of an environment are not always together


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(2, 5),
    st.integers(0, 1000),
    st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_folds_by_class_share_every_class_of_every_environment(sizes, n_folds, seed, given_):
    table = torch.tensor(sizes if given_ else sizes[:1])  # (E, classes)
    n = int(table.sum())
    if n < n_folds:
        return
    e, c = (table > -1).nonzero().repeat_interleave(table.flatten(), 0).unbind(1)
    mixed = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    e, c = e[mixed], c[mixed]
    rows = rows_of(n, e, names=tuple(range(len(table)))) if given_ else rows_of(n)
    fold = fold_by_class(rows, c, n_folds, seed)
    assert fold.shape == (n,) and fold.dtype == torch.int64
    parts = [fold[e == a] for a in range(len(table))]
    parts += [fold[(e == a) & (c == k)] for a in range(len(table)) for k in range(3)]
    for part in parts:
        counts = torch.bincount(part, minlength=n_folds)
        assert len(counts) == n_folds and counts.max() - counts.min() <= 1
    whole = torch.bincount(fold, minlength=n_folds)
    assert whole.max() - whole.min() <= len(table)


@pytest.mark.parametrize("per_environment", [(1, 1), (1, 1, 1, 1, 1), (2, 1), (0, 5), (3, 4)])
def test_a_rare_class_is_in_as_many_folds_as_it_can_be(per_environment):
    """Also where every environment has less of it than there are folds."""
    names = tuple(range(len(per_environment)))
    e = torch.repeat_interleave(torch.arange(len(names)), 30)
    c = torch.cat([(torch.arange(30) < k).long() for k in per_environment])
    for seed in range(20):
        fold = fold_by_class(rows_of(len(e), e, names=names), c, 5, seed)
        assert len(fold[c == 1].unique()) == min(5, sum(per_environment))
        assert torch.equal(fold, fold_by_class(rows_of(len(e), e, names=names), c, 5, seed))
    assert not torch.equal(fold, fold_by_class(rows_of(len(e), e, names=names), c, 5, 0))


def test_folds_by_class_cover_the_range_of_aux_in_every_class():
    aux = torch.randn(60, 1, generator=torch.Generator().manual_seed(0)).double()
    c = torch.arange(60) % 2
    fold = fold_by_class(rows_of(60, aux=aux), c, 3, 0)
    for k in (0, 1):
        dealt = fold[c == k][aux[c == k, 0].argsort()].view(10, 3)
        assert (dealt.sort(1).values == torch.arange(3)).all()
        assert len({tuple(order) for order in dealt.tolist()}) > 1


@pytest.mark.parametrize(("kind", "rare"), [("binary", 3), ("multiclass", 3), ("squared", 0)])
def test_tasks_of_folds_by_class(kind, rare):
    task = task_of(kind, n=60, environments=2)
    if rare:
        y = torch.zeros_like(task.train.y)
        y[:rare] = task.train.y.max()
        task = replace(task, train=replace(task.train, y=y))
    for seed in range(5):
        parts, plain = (fold_tasks(task, 3, seed, by_class) for by_class in (True, False))
        if rare:
            assert all((part.held_out.y > 0).sum() == 1 and (part.train.y > 0).sum() == 2 for part in parts)
        else:  # numbers have no classes
            assert all(torch.equal(a.held_out.x, b.held_out.x) for a, b in zip(parts, plain, strict=True))


@pytest.mark.parametrize("n_folds", [-1, 0, 1, 6])
def test_a_number_of_folds_that_cannot_be(n_folds):
    with refuse("n_folds must be from 2 to the number of rows, 5", f"Got {n_folds}"):
        fold_of_rows(rows_of(5), n_folds, 0)
    with refuse("n_folds must be from 2 to the number of rows, 5", f"Got {n_folds}"):
        fold_by_class(rows_of(5), torch.arange(5) % 2, n_folds, 0)


@pytest.mark.parametrize("environments", [True, False])
def test_every_row_is_held_out_once(environments):
    task = task_of(n=50, held_out=9, test={"x": np.zeros((2, 3)), "y": [0.0, 1.0]}, name="mine", card={"a": 1})
    if not environments:
        task = replace(task, train=replace(task.train, environment=None, names=()))
    parts = fold_tasks(task, 3, 0)
    key = task.train.aux[:, 0]
    assert len(set(key.tolist())) == 50
    seen = []
    for part in parts:
        assert (part.name, part.card, part.test, part.loss) == ("mine", {"a": 1}, None, task.loss)
        assert part.train.names == part.held_out.names == task.train.names
        kept, left = part.train.aux[:, 0].tolist(), part.held_out.aux[:, 0].tolist()
        assert not set(kept) & set(left) and sorted(kept + left) == sorted(key.tolist())
        seen += left
        for rows in (part.train, part.held_out):
            where = torch.tensor([(key == k).nonzero().item() for k in rows.aux[:, 0]])
            assert torch.equal(rows.x, task.train.x[where]) and torch.equal(rows.y, task.train.y[where])
            if environments:
                assert torch.equal(rows.environment, task.train.environment[where])
    assert sorted(seen) == sorted(key.tolist())
    fold = fold_of_rows(task.train, 3, 0)
    assert torch.equal(parts[1].held_out.aux[:, 0], key[fold == 1])


# Without an environment


def test_tasks_without_each_environment():
    task = task_of(n=60, environments=3)
    task = replace(task, train=replace(task.train, names=("a", "b", "c")))
    parts = left_out_tasks(task)
    assert len(parts) == 3
    for e, part in enumerate(parts):
        here = task.train.environment == e
        names = tuple(n for i, n in enumerate("abc") if i != e)
        assert part.train.names == part.held_out.names == names and part.test is None
        assert torch.equal(part.held_out.x, task.train.x[here]) and torch.equal(part.train.x, task.train.x[~here])
        assert torch.equal(part.held_out.y, task.train.y[here]) and torch.equal(part.train.y, task.train.y[~here])
        before = [task.train.names[c] for c in task.train.environment[~here]]
        assert [names[c] for c in part.train.environment] == before
        assert (part.held_out.environment == 0).all()


@pytest.mark.parametrize("given_", [1, 2, None])
def test_three_environments_are_needed_to_leave_one_out(given_):
    task = task_of(n=60, environments=given_ or 3, name="mine")
    if given_ is None:
        task = replace(task, train=replace(task.train, environment=None, names=()))
    with refuse("needs three or more", f"Task 'mine' has {given_ or 0}", "use 'invariance', which needs two"):
        left_out_tasks(task)


# The best constant


def with_targets(y, y_held, loss, n_outputs=None):
    held = {"x": np.zeros((len(y_held), 1)), "y": y_held}
    settings = {} if n_outputs is None else {"n_outputs": n_outputs}
    return make_task(np.zeros((len(y), 1)), y, loss=loss, held_out=held, dtype=torch.float64, **settings)


@pytest.mark.parametrize(("trained", "held"), [(0.3, 0.6), (0.5, 0.1), (0.98, 0.9)])
def test_the_constant_for_binary_labels_is_the_base_rate(trained, held):
    y, y_held = (np.arange(100) < 100 * trained).astype(float), (np.arange(50) < 50 * held).astype(float)
    expected = -(held * np.log(trained) + (1 - held) * np.log(1 - trained))
    task = with_targets(y, y_held, "binary")
    assert constant_risk(task) == pytest.approx(expected, rel=1e-6)
    alone = constant_risk(replace(task, held_out=None))
    assert alone == pytest.approx(-(trained * np.log(trained) + (1 - trained) * np.log(1 - trained)), rel=1e-6)


def test_labels_of_one_class_only():
    """A small fold may leave them; the best constant is infinite: any large one will do, and nothing breaks."""
    task = task_of(n=50, held_out=20)
    one = replace(task.train, y=torch.ones(50, dtype=torch.float64))
    assert 0 <= constant_risk(replace(task, train=one, held_out=one)) < 1e-3
    assert 1 < constant_risk(replace(task, train=one)) < 1e3


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e5])
@pytest.mark.parametrize("offset", [0, 1, 100])
def test_the_constant_for_targets_is_their_mean_in_any_unit(scale, offset):
    rng = np.random.default_rng(0)
    y, y_held = scale * (offset + rng.normal(size=101)), scale * (offset + rng.normal(size=40))
    expected = ((y_held - y.mean()) ** 2).mean()
    assert constant_risk(with_targets(y, y_held, "squared")) == pytest.approx(expected, rel=1e-6)
    absolute = np.abs(y_held - np.median(y)).mean()
    mine = constant_risk(with_targets(y, y_held, lambda f, y: (f - y).abs()))
    assert mine == pytest.approx(absolute, rel=1e-3)


def test_several_targets():
    rng = np.random.default_rng(1)
    y, y_held = rng.normal(size=(60, 2)) * [1, 10] + 3, rng.normal(size=(30, 2))
    expected = ((y_held - y.mean(0)) ** 2).mean()
    assert constant_risk(with_targets(y, y_held, "squared")) == pytest.approx(expected, rel=1e-6)


def test_the_constant_for_classes_is_their_frequencies():
    rng = np.random.default_rng(2)
    y, y_held = rng.choice(4, 200, p=[0.1, 0.2, 0.3, 0.4]), rng.choice(4, 80)
    share = np.bincount(y) / 200
    task = with_targets(y, y_held, "multiclass")
    assert constant_risk(task) == pytest.approx(-np.log(share)[y_held].mean(), rel=1e-6)


def test_in_single_precision_too():
    task = task_of("squared", n=80, dtype=torch.float32)
    y = task.train.y.double()
    assert constant_risk(task) == pytest.approx(float((y - y.mean()).square().mean()), rel=1e-6)


def test_rows_count_by_their_weights():
    """Whole numbers are repeated rows, in training and where it is measured."""
    rng = np.random.default_rng(3)
    y, y_held = rng.integers(0, 2, 90).astype(float), rng.integers(0, 2, 40).astype(float)
    times, held_times = rng.integers(0, 4, 90), rng.integers(0, 3, 40)
    expected = constant_risk(with_targets(np.repeat(y, times), np.repeat(y_held, held_times), "binary"))
    task = with_targets(y, y_held, "binary")
    weigh = {"train": torch.tensor(2.5 * times), "held_out": torch.tensor(7.0 * held_times)}
    weighted = replace(task, **{k: replace(getattr(task, k), weight=w) for k, w in weigh.items()})
    assert constant_risk(weighted) == pytest.approx(expected, rel=1e-9)
    assert abs(constant_risk(task) - expected) > 1e-3
    same = replace(task, train=replace(task.train, weight=torch.full((90,), 3.3)))
    assert constant_risk(same) == constant_risk(task)


def test_parts_of_a_task_keep_the_weights_of_their_rows():
    task = task_of(n=60, sample_weight=np.arange(60.0))
    for part in [*fold_tasks(task, 3, 0), *left_out_tasks(task)]:
        for rows in (part.train, part.held_out):
            for i in range(0, len(rows), 7):
                at = (task.train.x == rows.x[i]).all(1).nonzero().item()
                assert rows.weight[i] == task.train.weight[at]


# Environments in the same order


@given(st.integers(0, 10**6), st.integers(2, 5), st.permutations([*range(5)]))
@settings(deadline=None, max_examples=60)
def test_matching_is_the_best_of_all_orders(seed, environments, order):
    rng = np.random.default_rng(seed)
    a, b = (torch.as_tensor(rng.dirichlet(np.ones(environments) / 3, size=30)) for _ in range(2))
    mine = align(a, b)
    best = max(
        itertools.permutations(range(environments)),
        key=lambda p: sum(float((a[:, e] * b[:, p[e]]).sum()) for e in range(environments)),
    )
    assert mine.tolist() == list(best)
    order = [i for i in order if i < environments]
    same = align(a, a[:, order])
    assert torch.equal(a[:, order][:, same], a)


def test_matching_labels_in_single_precision():
    codes = torch.arange(30) % 3
    q = torch.nn.functional.one_hot(codes, 3).float()
    assert align(q, q[:, [2, 0, 1]]).tolist() == [1, 2, 0]
    assert align(q, q).tolist() == [0, 1, 2]


def timed() -> Task:
    codes = torch.tensor([3, 0, 1, 2, 0, 1, 2, 3, 3])
    rows = Rows(torch.arange(9.0).unsqueeze(1), torch.arange(9.0), codes, names=(2001, 2002, 2003, 2009))
    return Task(rows, as_loss("squared"))


def test_in_order_every_environment_is_measured_by_what_came_before():
    task = timed()
    third, last = tasks_in_order(task, groups_in_order(4, 10))
    assert third.train.names == (2001, 2002) and last.train.names == (2001, 2002, 2003)
    assert third.train.x.flatten().tolist() == [1, 2, 4, 5] and third.train.environment.tolist() == [0, 1, 0, 1]
    assert third.held_out.x.flatten().tolist() == [3, 6] and last.held_out.x.flatten().tolist() == [0, 7, 8]
    assert last.train.environment.tolist() == [0, 1, 2, 0, 1, 2]


def test_many_times_are_neighbours_in_groups():
    assert groups_in_order(5, 10) == [[2], [3], [4]]
    groups = groups_in_order(30, 10)
    assert len(groups) == 10 and list(itertools.chain(*groups)) == list(range(2, 30))


def test_blocks_of_aux_hold_every_row_once_and_never_part_equal_values():
    aux = torch.tensor([[5.0], [1.0], [1.0], [1.0], [9.0], [7.0], [3.0], [8.0]], dtype=torch.float64)
    task = Task(Rows(aux.float(), aux[:, 0].float(), aux=aux), as_loss("squared"))
    names, parts = aux_blocks(task, 4)
    inside = [sorted(part.held_out.aux.flatten().tolist()) for part in parts]
    assert list(itertools.chain(*inside)) == sorted(aux.flatten().tolist())
    assert names == [f"{values[0]:g} to {values[-1]:g}" for values in inside]
    assert all(len(part.train) + len(part.held_out) == 8 for part in parts)
    assert [1.0, 1.0, 1.0] in [[v for v in values if v == 1] for values in inside]
