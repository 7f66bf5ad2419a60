"""Would every environment choose the same direction? Of linear models exactly, of others beside their scores.

A network or a booster has no direction that could be compared. But if some environment would rather look at other
features, its rows say so at ERM: its gradient for columns that are added to ERM's score, a linear model of (score,
columns) with weights (1, 0), differs from that of other environments. The columns are taken without the direction that
is the score's own: there the models of the folds differ from each other, each by the noise of the rows that it has not
seen, so that these rows are no test of it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.types import Rows, Task
from irmtv.engine.solvers.rescaled import rescale, rescaling
from irmtv.selection.directions import Directions, compare_directions

ROWS_PER_PARAMETER = 5  # that an environment must have, for its direction to count
MOST_COLUMNS = 20  # beside a score; of more, their first principal components
COMPONENTS = 5
ROWS_FOR_COMPONENTS = 5_000
LEAST_ROWS = 20  # of an environment that is compared


def own_directions(task: Task, theta: Tensor) -> Directions | None:
    """Whether all environments would choose the direction of a linear model near ERM (P,); None for want of rows."""
    return _compare(task, theta, torch.eye(len(theta), dtype=theta.dtype), rescaling(theta, task.n_outputs))


def directions_toward(task: Task, scores: Tensor, other: Tensor) -> Directions | None:
    """The same in one direction alone, toward the scores of another model: (N,) or (N, C), of rows it has not seen.

    Far sharper than in all directions at once, if it is the right one.
    """
    n = task.n_outputs
    x = torch.cat([values.double().view(len(values), n) for values in (scores, other)], 1)
    eye, nothing = torch.eye(n, dtype=torch.float64), torch.zeros(n, n, dtype=torch.float64)
    theta, added = (torch.cat([*parts, nothing[:, :1]], 1).flatten() for parts in ((eye, nothing), (nothing, eye)))
    scaled = rescaling(theta, n)
    known = torch.eye(scaled.shape[1] + 1, dtype=torch.float64)[:, : scaled.shape[1]]
    return _compare(replace(task, train=replace(task.train, x=x)), theta, torch.cat([scaled, added[:, None]], 1), known)


def directions_beside(task: Task, scores: Tensor) -> Directions | None:
    """The same of any model, from its scores (N,) or (N, C) of rows that it has not seen; None for want of rows."""
    n_outputs = task.n_outputs
    columns = _columns(task.train.x, _affordable(task))
    x = torch.cat([scores.double().view(len(scores), n_outputs), columns], 1)
    theta = torch.zeros(n_outputs, x.shape[1] + 1, dtype=torch.float64)
    theta[:, :n_outputs] = torch.eye(n_outputs, dtype=torch.float64)
    scaled = rescaling(theta.flatten(), n_outputs)
    added = torch.zeros_like(theta)
    added[:, n_outputs:-1] = 1
    beside = torch.diag(added.flatten())[:, added.flatten() > 0] @ _uncorrelated(task.train, x, n_outputs)
    basis = torch.cat([scaled, beside], 1)
    known = torch.eye(basis.shape[1], dtype=torch.float64)[:, : scaled.shape[1]]
    return _compare(replace(task, train=replace(task.train, x=x)), theta.flatten(), basis, known)


def _compare(task: Task, theta: Tensor, basis: Tensor, rescaled: Tensor) -> Directions | None:
    """Of theta (P,), in the directions of a basis (P, K); `rescaled` (K, ...) are those in which it is rescaled."""
    needed = ROWS_PER_PARAMETER * basis.shape[1]
    each = [rescale(part, theta, task.loss, task.n_outputs) for part in _environments(task) if len(part) >= needed]
    each = [one for one in each if one.rows >= needed - 1e-6]
    if len(each) < 2:
        return None
    return compare_directions(
        torch.stack([one.gradient for one in each]) @ basis,
        basis.T @ torch.stack([one.hessian for one in each]) @ basis,
        basis.T @ torch.stack([one.spread for one in each]) @ basis,
        torch.tensor([one.rows for one in each], dtype=torch.float64),
        torch.tensor([one.scale for one in each], dtype=torch.float64),
        rescaled,
    )


def _environments(task: Task) -> list[Rows]:
    rows = task.train
    assert rows.environment is not None
    return [rows.take((rows.environment == e).nonzero().squeeze(1)) for e in range(len(rows.names))]


def _affordable(task: Task) -> int:
    """How many columns the smallest environment that counts has rows for: a scale, intercepts, and columns less one."""
    rows = min((n for n in map(_worth, _environments(task)) if n >= LEAST_ROWS), default=0)
    return max(1, int(rows) // ROWS_PER_PARAMETER // task.n_outputs - 1)


def _worth(rows: Rows) -> float:
    """How many rows of equal weight are as sure."""
    if rows.weight is None or not len(rows):
        return len(rows)
    weight = rows.weight.double()
    return float(weight.sum().square() / weight.square().sum())


def _uncorrelated(rows: Rows, x: Tensor, n_outputs: int) -> Tensor:
    """Directions of columns, added to the outputs, in which they are not correlated with the scores: (C K, C K - 1).

    x (N, C + K) are scores and columns.
    """
    weight = torch.ones(len(x), 1, dtype=x.dtype) if rows.weight is None else rows.weight.double().unsqueeze(1)
    scores, columns = x[:, :n_outputs], x[:, n_outputs:]
    scores = scores - (weight * scores).sum(0) / weight.sum()
    together = (scores.T @ (weight * columns)).view(1, -1)  # (1, C K)
    _, _, axes = torch.linalg.svd(together)
    directions: Tensor = axes[int(bool(together.any())) :].T
    return directions


def _columns(x: Tensor, most: int) -> Tensor:
    """Standardised, gaps filled; of many, their first principal components: (N, K)."""
    x = x.double().flatten(1)
    mean = x.nanmean(0).nan_to_num()
    x = torch.where(x.isnan(), mean, x) - mean
    spread = x.square().mean(0).sqrt()
    x = x[:, spread > 0] / spread[spread > 0]
    if x.shape[1] <= min(most, MOST_COLUMNS):
        return x
    some = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:ROWS_FOR_COMPONENTS]]
    _, _, axes = torch.linalg.svd(some - some.mean(0), full_matrices=False)
    components: Tensor = x @ axes[: min(most, COMPONENTS)].T
    return components
