"""Parts of a task for selection: folds that are held out in turn, and the task without each of its environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import linear_sum_assignment, minimize
from torch import Tensor

from irmtv.core.losses import Binary, ClosedForm, Loss, Multiclass, Squared
from irmtv.core.types import Rows, Task, weights_of


def fold_of_rows(rows: Rows, n_folds: int, seed: int) -> Tensor:
    """A fold for every row, at random and equally often in every environment: (N,) int64.

    Folds differ by at most one row in size, and so do the shares of each environment. Where no environments are
    given, rows are dealt in the order of the first auxiliary variable, so that every fold covers its range.
    """
    n = len(rows)
    if not 2 <= n_folds <= n:
        raise ValueError(f"n_folds must be from 2 to the number of rows, {n}. Got {n_folds!r}.")
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(n, generator=generator)
    if rows.environment is not None:
        shuffled = shuffled[torch.argsort(rows.environment[shuffled], stable=True)]
    elif rows.aux is not None:
        shuffled = torch.argsort(rows.aux[:, 0], stable=True)
    # dealt in rounds of n_folds. In the order of aux, where nothing is at random yet, each round has an order of its
    # own; else all have the same, so that a round which two environments share is no one's second turn
    rounds = -(-n // n_folds)
    own = rows.environment is None and rows.aux is not None
    orders = [torch.randperm(n_folds, generator=generator) for _ in range(rounds if own else 1)]
    dealt = torch.cat(orders if own else orders * rounds)[:n]
    fold = torch.empty(n, dtype=torch.int64)
    fold[shuffled] = dealt
    return fold


def fold_by_class(rows: Rows, classes: Tensor, n_folds: int, seed: int) -> Tensor:
    """A fold for every row, equally often in every class of every environment: (N,) int64.

    `classes` (N,) are int64 codes. The shares of each differ by at most one row, and so do those of each environment;
    whole folds may differ by a few. The rarest class goes to as many folds as it can, also where no environment has a
    row of it for each. Without environments the rows of a class are dealt in the order of the first auxiliary
    variable, where there is one.
    """
    n = len(rows)
    if not 2 <= n_folds <= n:
        raise ValueError(f"n_folds must be from 2 to the number of rows, {n}. Got {n_folds!r}.")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator)
    if rows.environment is None and rows.aux is not None:
        order = torch.argsort(rows.aux[:, 0], stable=True)
    environment = torch.zeros(n, dtype=torch.int64) if rows.environment is None else rows.environment
    rarest_first = torch.bincount(classes).argsort(stable=True).tolist()
    in_class = np.zeros((len(rarest_first), n_folds), dtype=np.int64)
    in_all = np.zeros(n_folds, dtype=np.int64)
    fold = torch.empty(n, dtype=torch.int64)
    for e in range(int(environment.max()) + 1):
        in_environment = np.zeros(n_folds, dtype=np.int64)
        for c in rarest_first:  # the others fill up what it leaves uneven
            block = order[(environment[order] == e) & (classes[order] == c)]
            rounds, rest = divmod(len(block), n_folds)
            chance = torch.randperm(n_folds, generator=generator)
            lowest = np.lexsort((chance.numpy(), in_all, in_class[c], in_environment))[:rest]
            last = torch.as_tensor(lowest)[torch.randperm(rest, generator=generator)]
            dealt = torch.cat([*(torch.randperm(n_folds, generator=generator) for _ in range(rounds)), last])
            fold[block] = dealt
            for counted in (in_environment, in_class[c], in_all):
                counted += np.bincount(dealt.numpy(), minlength=n_folds)
    return fold


def deal_folds(task: Task, n_folds: int, seed: int, by_class: bool = False) -> Tensor:
    """The fold that holds each training row out: (N,) int64; `by_class` deals every class evenly."""
    if by_class and task.loss.name in ("binary", "multiclass"):
        classes = task.train.y > 0.5 if task.loss.name == "binary" else task.train.y
        return fold_by_class(task.train, classes.long(), n_folds, seed)
    return fold_of_rows(task.train, n_folds, seed)


def fold_tasks(task: Task, n_folds: int, seed: int, by_class: bool = False) -> list[Task]:
    """The task once for every fold: trained on the other folds, measured on this one. Test rows are dropped.

    With `by_class` every fold of a classification task has its share of each class, too.
    """
    return tasks_outside(task, deal_folds(task, n_folds, seed, by_class), n_folds)


def tasks_outside(task: Task, fold: Tensor, n_folds: int) -> list[Task]:
    """The same for folds that are dealt already: (N,) of 0 to n_folds - 1."""
    return [
        replace(
            task,
            train=task.train.take((fold != k).nonzero().squeeze(1)),
            held_out=task.train.take((fold == k).nonzero().squeeze(1)),
            test=None,
        )
        for k in range(n_folds)
    ]


def hold_out(task: Task, kept_out: int, of: int, seed: int) -> Task:
    """The task with `kept_out` of every `of` rows of every environment held out."""
    n = len(task.train)
    if n < 2:
        raise ValueError(f"early_stopping holds rows out and needs 2 or more. Got n_samples={n}.")
    fold = fold_of_rows(task.train, min(of, n), seed)
    aside = fold < max(1, min(kept_out, min(of, n) - 1))
    return replace(
        task,
        train=task.train.take((~aside).nonzero().squeeze(1)),
        held_out=task.train.take(aside.nonzero().squeeze(1)),
    )


def left_out_groups(rows: Rows, most: int) -> list[list[int]]:
    """Environments to leave out together: each alone, or where there are more than `most`, that many groups.

    The largest go first, each to the group that has the fewest rows so far.
    """
    n = len(rows.names)
    if n <= most:
        return [[e] for e in range(n)]
    assert rows.environment is not None
    counts = torch.bincount(rows.environment, minlength=n)
    groups: list[list[int]] = [[] for _ in range(most)]
    sizes = [0] * most
    for e in counts.argsort(descending=True, stable=True).tolist():
        k = int(np.argmin(sizes))
        groups[k].append(e)
        sizes[k] += int(counts[e])
    return [sorted(group) for group in groups]


def left_out_tasks(task: Task, groups: Sequence[Sequence[int]] | None = None) -> list[Task]:
    """The task once for every environment, or for every group of them: trained without it, measured on it."""
    rows = task.train
    if rows.environment is None or len(rows.names) < 3:
        raise ValueError(
            "leave-one-env-out trains without each environment in turn and needs three or more, so that two remain "
            f"to compare. Task {task.name!r} has {len(rows.names)}; use 'invariance', which needs two."
        )
    codes = range(len(rows.names))
    return [
        _apart(task, [e for e in codes if e not in group], group)
        for group in ([[e] for e in codes] if groups is None else groups)
    ]


def groups_in_order(n: int, most: int) -> list[list[int]]:
    """Environments 2 to n - 1, each alone, or where these are more than `most`, that many neighbours together."""
    return [part.tolist() for part in np.array_split(np.arange(2, n), min(most, n - 2)) if len(part)]


def tasks_in_order(task: Task, groups: Sequence[Sequence[int]]) -> list[Task]:
    """For every group of environments, whose codes are in the order of time: trained on what came before it."""
    return [_apart(task, range(min(group)), group) for group in groups]


def _apart(task: Task, kept: Sequence[int], left: Sequence[int]) -> Task:
    """Trained on some environments, measured on others."""
    rows = task.train
    assert rows.environment is not None
    trained, measured = (rows.take(torch.isin(rows.environment, torch.tensor(part)).nonzero().squeeze(1))
                         for part in (list(kept), list(left)))  # fmt: skip
    assert trained.environment is not None and measured.environment is not None
    names = tuple(rows.names[e] for e in kept)
    codes = torch.searchsorted(torch.tensor(list(kept)), trained.environment)
    # what is left out counts as one environment, the first: only its risk is read
    nowhere = torch.zeros_like(measured.environment)
    return replace(
        task,
        train=replace(trained, environment=codes, names=names),
        held_out=replace(measured, environment=nowhere, names=names),
        test=None,
    )


def aux_blocks(task: Task, n: int) -> tuple[list[str], list[Task]]:
    """Without each of (at most) n blocks of the first auxiliary variable, equally many rows each: names and tasks."""
    rows = task.train
    assert rows.aux is not None
    first = rows.aux[:, 0].contiguous()
    edges = torch.quantile(first.double(), torch.linspace(0, 1, n + 1, dtype=torch.float64)[1:-1])
    block = torch.bucketize(first.double(), edges)  # equal values are never apart
    names, tasks = [], []
    for k in sorted(set(block.tolist())):
        inside = block == k
        names.append(f"{float(first[inside].min()):.6g} to {float(first[inside].max()):.6g}")
        train, held_out = (rows.take(part.nonzero().squeeze(1)) for part in (~inside, inside))
        tasks.append(replace(task, train=train, held_out=held_out, test=None))
    return names, tasks


def constant_risk(task: Task) -> float:
    """Mean loss on the held-out rows (without them, the training rows) of the constant that is best in training."""
    logits = _best_constant(task)
    rows = task.train if task.held_out is None else task.held_out
    with torch.no_grad():
        return float(_mean(_losses(task.loss, logits.expand(len(rows), *logits.shape), rows.y), rows))


def _best_constant(task: Task) -> Tensor:
    """(), or (C,)."""
    rows, loss = task.train, task.loss
    if isinstance(loss, (Squared, Binary)):
        target = rows.y.double()
    elif isinstance(loss, Multiclass):
        target = torch.nn.functional.one_hot(rows.y, task.n_outputs).double()
    else:
        logits = torch.zeros(() if task.n_outputs == 1 else (task.n_outputs,), dtype=torch.float64, requires_grad=True)
        _minimise(lambda: _mean(_losses(loss, logits.expand(len(rows), *logits.shape), rows.y), rows), [logits], loss)
        return logits.detach()
    weights = weights_of([rows])
    mean = target.mean(0) if weights is None else weights[0] @ target / weights.sum()
    if isinstance(loss, Squared):
        return mean
    share = mean.clamp(1e-12, 1 - 1e-12)  # a class may be missing here
    return share.logit() if isinstance(loss, Binary) else share.log()


def _losses(loss: Loss, f: Tensor, y: Tensor) -> Tensor:
    """Of every row: (N,). Losses are defined with the axes of data sets and runs before."""
    y = y.double() if y.is_floating_point() else y
    return loss.value(f[None, None], y[None, None])[0, 0]


def _mean(values: Tensor, rows: Rows) -> Tensor:
    """Of these rows' values (N,), by their weights where they have any."""
    weights = weights_of([rows])
    return values.mean() if weights is None else (values * weights[0]).sum() / weights.sum()


def _minimise(value: Callable[[], Tensor], parameters: list[Tensor], loss: Loss) -> None:
    """Move the parameters to where the value, a mean of this loss, is lowest.

    The best scale of logits that tell all rows apart is infinite: there a tolerance ends the search. A user's loss may
    have kinks, which torch's search is better at; its first use takes seconds.
    """
    if not isinstance(loss, ClosedForm):
        search = torch.optim.LBFGS(parameters, max_iter=100, line_search_fn="strong_wolfe")
        search.param_groups[0].update(tolerance_grad=1e-12, tolerance_change=0)

        def closure() -> Tensor:
            search.zero_grad()
            now = value()
            torch.autograd.backward(now)
            return now

        search.step(closure)  # type: ignore[no-untyped-call]  # torch does not annotate it
        return
    sizes = [p.numel() for p in parameters]

    def value_and_gradient(z: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        with torch.no_grad():
            for p, part in zip(parameters, torch.split(torch.as_tensor(z), sizes), strict=True):
                p.copy_(part.view(p.shape))
        now = value()
        gradient = torch.autograd.grad(now, parameters)
        return float(now.detach()), torch.cat([g.flatten() for g in gradient]).numpy()

    begin = torch.cat([p.detach().flatten() for p in parameters]).numpy()
    found = minimize(value_and_gradient, begin, jac=True, method="BFGS", options={"gtol": 1e-7})
    value_and_gradient(found.x)


def align(reference: Tensor, q: Tensor) -> Tensor:
    """Which of q's environments is which of the reference's, by the rows they share: (E,) int64.

    Both are memberships (N, E) of the same rows. `q[:, align(reference, q)]` has the reference's order. Inferred
    environments have no names: two trainings may find the same ones in another order.
    """
    shared = (reference.double().T @ q.double()).numpy()  # (E, E)
    _, columns = linear_sum_assignment(-shared)
    return torch.as_tensor(np.asarray(columns, dtype=np.int64))
