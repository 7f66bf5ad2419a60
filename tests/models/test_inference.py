"""Environments from aux, as labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from irmtv.datasets import make_simulation
from irmtv.models.inference import infer_environments
from irmtv.selection.folds import fold_tasks

S = {"steps": 200, "learning_rate": 2e-2, "dtype": torch.float64}


def simulation(seed=0, n=1000):
    return make_simulation(n, p_s=(0.999, 0.7), p_v=0.8, random_state=seed, n_test=40)


def agreement(labels, truth):
    """Share of rows in the same part, whichever part is called first."""
    same = float((labels == truth).double().mean())
    return max(same, 1 - same)


@pytest.fixture(scope="module")
def folds():
    """Three folds of each of two simulations, the same with inferred labels, and whose order they have."""
    whole = [simulation(seed) for seed in (0, 1)]
    tasks = [part for task in whole for part in fold_tasks(task, 3, 0)]
    aux = [whole[i // 3].train.aux for i in range(6)]
    alike = [0, 0, 0, 3, 3, 3]
    return tasks, infer_environments(tasks, range(6), aux, alike, **S), alike


def test_the_segments_of_time_are_found(folds):
    tasks, made, _ = folds
    for task, inferred in zip(tasks, made, strict=True):
        assert inferred.train.names == ("inferred 1", "inferred 2")
        assert inferred.train.environment.dtype == torch.int64
        assert agreement(inferred.train.environment, task.train.environment) > 0.85


def test_all_but_the_environments_stays(folds):
    tasks, made, _ = folds
    for task, inferred in zip(tasks, made, strict=True):
        for name in ("train", "held_out"):
            a, b = getattr(task, name), getattr(inferred, name)
            assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and torch.equal(a.aux, b.aux)
        assert inferred.test is task.test and inferred.name == task.name


def test_held_out_rows_are_of_the_environments_of_the_training_rows(folds):
    """Unequal folds (334, 333, 333): each row's label depends on its time alone."""
    tasks, made, _ = folds
    assert {len(t.held_out) for t in tasks} == {333, 334}
    for task, inferred in zip(tasks, made, strict=True):
        assert inferred.held_out.names == inferred.train.names
        t = torch.cat([inferred.train.aux, inferred.held_out.aux])[:, 0]
        code = torch.cat([inferred.train.environment, inferred.held_out.environment])[t.argsort()]
        assert int(code.diff().abs().sum()) <= 2  # one or two cuts in time, the same for both kinds of rows
        assert agreement(inferred.held_out.environment, task.held_out.environment) > 0.85


def test_alike_tasks_have_their_environments_in_the_same_order(folds):
    _, made, alike = folds
    labels = []
    for task in made:
        parts = (task.train, task.held_out)
        label = {t: e for r in parts for t, e in zip(r.aux[:, 0].tolist(), r.environment.tolist(), strict=True)}
        labels.append(np.array([label[t] for t in sorted(label)]))  # of all rows, in time
    for mine, a in zip(labels, alike, strict=True):
        assert np.mean(mine == labels[a]) > 0.85


def test_the_order_is_taken_from_the_task_named():
    """Two trainings from different starts find the parts in either order."""
    task = simulation()
    seeds = range(6)
    apart = infer_environments([task] * 6, seeds, [task.train.aux] * 6, seeds, **S)
    alike = infer_environments([task] * 6, seeds, [task.train.aux] * 6, [2] * 6, **S)
    first = [int(t.train.environment[0]) for t in apart]
    assert len(set(first)) == 2
    assert {int(t.train.environment[0]) for t in alike} == {first[2]}
    for a, b in zip(apart, alike, strict=True):
        assert agreement(a.train.environment, b.train.environment) == 1


def test_labels_of_held_out_rows_are_never_used():
    (part, *_) = fold_tasks(simulation(n=300), 3, 0)
    other = replace(part, held_out=replace(part.held_out, y=1 - part.held_out.y, x=-part.held_out.x))
    settings = {**S, "steps": 150}
    a, b = (infer_environments([t], [0], [part.train.aux], [0], **settings)[0] for t in (part, other))
    assert torch.equal(a.held_out.environment, b.held_out.environment)
    assert torch.equal(a.train.environment, b.train.environment)
    assert 0 < float(a.train.environment.double().mean()) < 1
    flipped = replace(part, train=replace(part.train, y=torch.where(part.train.aux[:, 0] < 0.8, part.train.y, 0)))
    c = infer_environments([flipped], [0], [part.train.aux], [0], **settings)[0]
    assert not torch.equal(a.train.environment, c.train.environment)  # those of training rows are


def test_environments_that_are_given_play_no_part():
    task = simulation(n=300)
    bare = replace(task, train=replace(task.train, environment=None, names=()))
    settings = {**S, "steps": 30}
    a, b = (infer_environments([t], [0], [task.train.aux], [0], **settings)[0] for t in (task, bare))
    assert torch.equal(a.train.environment, b.train.environment) and a.train.names == b.train.names


def test_a_task_alone_is_what_it_is_among_others():
    tasks = [simulation(seed, n) for seed, n in ((0, 200), (1, 200), (2, 260))]  # sizes differ, so do all_aux
    settings = {**S, "steps": 30}
    aux = [t.train.aux for t in tasks]
    together = infer_environments(tasks, [3, 4, 5], aux, [0, 1, 2], **settings)
    for i, task in enumerate(tasks):
        (alone,) = infer_environments([task], [3 + i], [aux[i]], [0], **settings)
        assert torch.equal(alone.train.environment, together[i].train.environment)


def test_three_environments_in_single_precision():
    task = make_simulation(600, p_s=(0.999, 0.8, 0.5), random_state=0, n_test=40)
    tasks = fold_tasks(task, 2, 0)
    made = infer_environments(
        tasks, [0, 1], [task.train.aux] * 2, [0, 0], n_environments=3, steps=400, learning_rate=2e-2
    )
    for inferred in made:
        assert inferred.train.names == ("inferred 1", "inferred 2", "inferred 3")
        assert int(inferred.train.environment.max()) <= 2 and int(inferred.held_out.environment.max()) <= 2
        assert len(inferred.train.environment.unique()) >= 2
