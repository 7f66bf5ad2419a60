"""Sets of columns, judged from second moments alone: a short list for `columns.py`, which looks at the rows.

For squared errors everything follows from the means of u u', u = (1, columns, targets), in every environment. Class
labels are taken as numbers here. Two ways to judge a set S with a penalty weight gamma:

* regret: R(S) + BIC(S) + gamma max(0, regret(S) - limit(S)). R(S) is the risk of the pooled fit, regret(S) is by how
  much the environments' own fits on S are better in the mean, and the limit is the quantile of what noise alone would
  give: a sum of chi-squares, taken for one of the same mean and variance.
* gradient: min over coefficients on S of R + gamma sum_e mu_e |g_e,S|^2, a least-squares problem for every set.

Up to `most` columns all sets are judged. The residuals of all 2^D sets come from one elimination that branches: column
by column, the matrices with the column eliminated are put beside those without, and what is left of them shrinks.
Beyond, a search adds, drops or swaps a column as long as that helps: it may miss the best set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from irmtv.core.losses import Multiclass, Squared
from irmtv.engine.solvers.block_risks import BlockRisks
from irmtv.engine.solvers.linear_risks import LinearRisks

SMALLEST_PIVOT = 1e-9  # of a column's variance: with less left of it, it is a sum of others
LEAN = 2.0  # rows that the pooled fit counts for in the noise of an environment
SETS_AT_ONCE = 4096


@dataclass(frozen=True)
class Sums:
    """Of u u', u = (1, x - origin, targets), in every environment. They come from one pass over the rows and add up, so
    rows may come in pieces: data that do not fit into memory, or that several machines hold."""

    second: Tensor  # (E, m, m)
    squares: Tensor  # (E,) of the rows' weights
    origin: Tensor  # (D,) anything near the columns' means: it keeps digits
    n_targets: int
    classes: bool  # whether targets are indicators of classes

    @classmethod
    def of(
        cls,
        x: Tensor,
        targets: Tensor,
        codes: Tensor,
        n_environments: int,
        *,
        weight: Tensor | None = None,
        origin: Tensor | None = None,
        classes: bool = False,
    ) -> Sums:
        """Rows x (N, D) with targets (N, T), in the environments of `codes` (N,). All pieces have one origin."""
        x, targets = x.double(), targets.double()
        weight = torch.ones(len(x), dtype=torch.float64) if weight is None else weight.double()
        origin = x.mean(0) if origin is None else origin
        u = torch.cat([torch.ones_like(x[:, :1]), x - origin, targets], 1)
        each = [(u[codes == e], weight[codes == e]) for e in range(n_environments)]
        second = torch.stack([(part * w.unsqueeze(1)).T @ part for part, w in each])
        squares = torch.stack([w.square().sum() for _, w in each])
        return cls(second, squares, origin, targets.shape[1], classes)

    def __add__(self, other: Sums) -> Sums:
        if not torch.equal(self.origin, other.origin):
            raise ValueError("sums add up only around one origin: give the first piece's `origin` to the others.")
        return replace(self, second=self.second + other.second, squares=self.squares + other.squares)


@dataclass(frozen=True)
class Moments:
    """Of environments that count."""

    each: Tensor  # (E, m, m) means of u u'
    mu: Tensor  # (E,), sums to 1
    rows: Tensor  # (E,) effective number of rows
    columns: Tensor  # (D,) which columns these are: those that vary
    n_targets: int
    noise: float | None = None  # variance of the residuals where it is known

    @classmethod
    def of(cls, risks: LinearRisks, mu: Tensor, standardise: bool = True) -> Moments:
        """`mu` (E,): what every environment counts. Columns and targets are standardised, or taken as they are."""
        squares = torch.where(risks.effective > 0, 1 / risks.effective, 0)
        if isinstance(risks, BlockRisks):
            nothing = torch.zeros(risks.size - 1, dtype=torch.float64)
            sums = Sums(risks.second_moments(), squares, nothing, risks.n_outputs, False)
            return cls.from_sums(sums, mu, standardise)
        targets, shared = _targets(risks), risks.shared
        u = torch.cat([torch.ones_like(targets[:, :1]), risks.x[:, :-1] - shared.centre, targets], 1)
        parts = [(u[part], risks.share[part].unsqueeze(1)) for part in risks.parts]
        second = torch.stack([(part * share).T @ part for part, share in parts])
        classes = isinstance(risks.loss, Multiclass)
        return cls.from_sums(Sums(second, squares, shared.centre, targets.shape[1], classes), mu, standardise)

    @classmethod
    def from_sums(cls, sums: Sums, mu: Tensor | None = None, standardise: bool = True) -> Moments:
        """The same of rows that were read in pieces; `mu` None counts every row the same."""
        mass = sums.second[:, 0, 0]
        mu = mass / mass.sum() if mu is None else mu
        counts = (mu > 0).nonzero().squeeze(1)
        each, mu = sums.second[counts] / mass[counts].view(-1, 1, 1), mu[counts]
        pooled = torch.einsum("e,eij->ij", mu, each)
        d, mean = len(sums.origin), pooled[0, 1:]
        covariance = pooled[1:, 1:] - mean.unsqueeze(1) * mean
        size = covariance.diagonal().clamp_min(0).sqrt()
        near = mean.clone()
        near[:d] += sums.origin
        varies = size > 1e-9 * (1e-3 + near.abs())
        # from u to what the sets are made of: (m', m)
        turn = torch.zeros(1 + d + sums.n_targets, 1 + d + sums.n_targets, dtype=torch.float64)
        turn[0, 0] = 1
        scale = torch.where(varies, 1 / torch.where(varies, size, 1), 0)
        if standardise:
            turn[1:, 1:] = torch.diag(scale)
            turn[1:, 0] = -scale * mean
        else:
            turn[1:, 1:] = torch.eye(len(scale), dtype=torch.float64)
            turn[1 : 1 + d, 0] = sums.origin
        keep = torch.cat([torch.tensor([True]), varies[:d], torch.ones(sums.n_targets, dtype=torch.bool)])
        if sums.classes:  # indicators are made uncorrelated; the sum of all is constant
            values, vectors = torch.linalg.eigh(covariance[d:, d:])
            some = values > 1e-9
            whitened = (vectors[:, some] / values[some].sqrt()).T  # (T', T)
            turn[1 + d :] = 0
            turn[1 + d : 1 + d + len(whitened), 1 + d :] = whitened
            turn[1 + d : 1 + d + len(whitened), 0] = -whitened @ mean[d:]
            keep[1 + d + len(whitened) :] = False
        turn = turn[keep]
        rows = mass[counts].square() / sums.squares[counts]
        columns = varies[:d].nonzero().squeeze(1)
        return cls(turn @ each @ turn.T, mu, rows, columns, int(keep[1 + d :].sum()))

    @classmethod
    def around(cls, risks: LinearRisks, mu: Tensor, theta: Tensor, columns: Tensor) -> Moments:
        """Twice the logistic risk of these columns, to second order around a model theta (P,), as least squares."""
        point = risks.at(theta.unsqueeze(0))
        counts = (mu > 0).nonzero().squeeze(1)
        order = torch.cat([torch.tensor([risks.size - 1]), columns])  # the intercept first
        gradient, hessian = point.gradient[0, counts], point.hessian[0, counts]
        toward = hessian @ theta - gradient  # (E, P)
        left = toward @ theta - gradient @ theta + 2 * point.risk[0, counts]
        inside = hessian[:, order.unsqueeze(1), order]
        size = torch.einsum("e,eii->i", mu[counts], inside).clamp_min(1e-12).sqrt()
        inside, toward = inside / (size.unsqueeze(1) * size), (toward[:, order] / size).unsqueeze(2)
        each = torch.cat([torch.cat([inside, toward], 2), torch.cat([toward.mT, left.view(-1, 1, 1)], 2)], 1)
        return cls(each, mu[counts], risks.effective[counts], columns, 1, noise=1.0)

    @property
    def n_columns(self) -> int:
        return len(self.columns)

    @property
    def stacked(self) -> Tensor:
        """Of all rows, then of every environment: (1 + E, m, m)."""
        return torch.cat([torch.einsum("e,eij->ij", self.mu, self.each).unsqueeze(0), self.each])


def _targets(risks: LinearRisks) -> Tensor:
    """What is predicted, as numbers (N, T)."""
    y = risks.y
    if isinstance(risks.loss, Squared):
        return y.double().reshape(len(y), -1)
    if risks.n_outputs == 1:
        return 2 * y.double().unsqueeze(1) - 1
    return torch.nn.functional.one_hot(y.long(), risks.n_outputs).double()


class Values(Protocol):
    """Values of sets of columns for every penalty weight, the lower the better."""

    most: int  # number of columns up to which all sets are judged

    def of(self, masks: Tensor) -> Tensor:
        """masks (sets, D) bool -> (G, sets)."""

    def of_all(self) -> Tensor:
        """Of all sets, column j in set s where bit j of s is 1: (G, 2^D)."""


class RegretValues:
    """Risk, what columns must earn, and regret beyond noise."""

    most = 16

    def __init__(self, moments: Moments, steps: Sequence[tuple[float, float]]) -> None:
        """`steps`: penalty weights, each with a level."""
        self.moments, self.steps = moments, steps
        stack, d = moments.stacked, moments.n_columns
        diagonal = stack.diagonal(dim1=1, dim2=2)[:, : d + 1]
        # each environment's share in the variance of the intercept's and the other columns: (E, 1 + D)
        self.share = moments.mu.unsqueeze(1) * diagonal[1:] / diagonal[0]
        self.centred = stack[:, 1:, 1:] - stack[:, 1:, :1] * stack[:, :1, 1:] / stack[:, :1, :1]
        ridge = torch.zeros_like(self.centred[0].diagonal())
        ridge[:d] = SMALLEST_PIVOT
        self.centred = self.centred + torch.diag(ridge)

    def of(self, masks: Tensor) -> Tensor:
        d = self.moments.n_columns
        inside, toward = _submatrices(self.centred, masks, d)
        total = self.centred[:, d:, d:].diagonal(dim1=1, dim2=2).sum(1, keepdim=True)
        factor = torch.linalg.cholesky_ex(inside)[0]
        explained = torch.linalg.solve_triangular(factor, toward, upper=False).square().sum((2, 3))
        residual = (total - explained).clamp_min(0)
        inverse = torch.cholesky_inverse(factor[0])
        worth = (inverse @ toward[0]).square().sum(2) / inverse.diagonal(dim1=1, dim2=2)  # (sets, s)
        earning = (worth > self._cost(residual[0], masks.sum(1)).unsqueeze(1)).sum(1)
        held = self.share[:, :1] + self.share[:, 1:] @ masks.T.double()
        return self._judged(residual, masks.sum(1), earning, held)

    def of_all(self) -> Tensor:
        d = self.moments.n_columns
        a = self.centred.permute(1, 2, 0).unsqueeze(3).contiguous()  # (m, m, 1 + E, sets)
        size, held = torch.zeros(1, dtype=torch.long), self.share[:, :1]
        for j in range(d):
            pivot, rest = a[0, 0], a[1:, 1:]
            inverse = torch.where(pivot > 2 * SMALLEST_PIVOT, 1 / pivot, 0)
            a = torch.cat([rest, rest - a[1:, :1] * (a[:1, 1:] * inverse)], 3)
            size = torch.cat([size, size + 1])
            held = torch.cat([held, held + self.share[:, j + 1 : j + 2]], 1)
        residual = torch.einsum("kkes->es", a).clamp_min(0)
        pooled, cost, earning = residual[0], self._cost(residual[0], size), torch.zeros_like(size)
        for j in range(d):  # sets without and with column j
            without, taken = pooled.view(-1, 2, 2**j).unbind(1)
            earning.view(-1, 2, 2**j)[:, 1] += without - taken > cost.view(-1, 2, 2**j)[:, 1]
        return self._judged(residual, size, earning, held)

    def _cost(self, pooled: Tensor, size: Tensor) -> Tensor:
        """By how much a column must lower the risk of a set (sets,)."""
        n = float(self.moments.rows.sum())
        noise = pooled * n / (n - size - 1).clamp_min(1) if self.moments.noise is None else self.moments.noise
        return noise * (torch.ones_like(pooled) * (math.log(max(n, 2)) / n))

    def _judged(self, residual: Tensor, size: Tensor, earning: Tensor, held: Tensor) -> Tensor:
        """Mean squares of the pooled and the own fits (1 + E, sets), columns (sets,), how many of them lower the risk
        by what they cost (sets,), and the environments' shares in them (E, sets)."""
        moments, t = self.moments, self.moments.n_targets
        rows, mu = moments.rows.unsqueeze(1), moments.mu.unsqueeze(1)
        n = float(moments.rows.sum())
        pooled, own = residual[0], residual[1:]
        overall = pooled / t * n / (n - size - 1).clamp_min(1)
        if moments.noise is not None:
            noise = torch.full_like(own, moments.noise)
        else:
            noise = (own * rows / t + LEAN * overall) / ((rows - size - 1).clamp_min(0) + LEAN)  # (E, sets) variance
        parts = noise * mu / rows * (1 - held / (size + 1)).clamp_min(0)
        total = parts.sum(0)
        alike = total.square() / parts.square().sum(0).clamp_min(1e-300) / len(mu)  # 1 where all parts are equal
        # noise in columns of no use would hide the regret of others
        parameters = (earning + 1) * t
        degrees = (parameters * (len(mu) - 1) * alike).clamp_min(1)
        expected = parameters * total / degrees
        limit = {level: expected * chi_square_quantile(degrees, level) for _, level in self.steps}
        regret = pooled - moments.mu @ own
        risk = pooled + (size + 1) * self._cost(pooled, size)
        risk = torch.where((2 * (size + 1) > n) & (size > 0), torch.inf, risk)
        return torch.stack([risk + weight * (regret - limit[level]).clamp_min(0) for weight, level in self.steps])


class GradientValues:
    """Risk and squared gradients of the columns in use, at the coefficients that are best for their sum."""

    most = 12

    def __init__(self, moments: Moments, weights: Tensor, of_labels: bool) -> None:
        """`of_labels`: class labels stand for the target, and the loss is about half of the squared error of half the
        outputs, so that its squared gradient is a sixteenth."""
        self.moments, d = moments, moments.n_columns
        self.weights = weights * (4 / 8 if of_labels else 4 / moments.n_targets)
        self.stack = moments.stacked
        self.stack[0, range(d + 1), range(d + 1)] *= 1 + SMALLEST_PIVOT

    def of(self, masks: Tensor) -> Tensor:
        parts = range(0, len(masks), SETS_AT_ONCE)
        return torch.cat([self._of_some(masks[k : k + SETS_AT_ONCE]) for k in parts], 1)

    def of_all(self) -> Tensor:
        return self.of(all_masks(self.moments.n_columns))

    def _of_some(self, masks: Tensor) -> Tensor:
        d = self.moments.n_columns
        inside, toward = _submatrices(self.stack, torch.nn.functional.pad(masks, (1, 0), value=True), d + 1)
        mu, each, each_toward = self.moments.mu.sqrt().view(-1, 1, 1, 1), inside[1:], toward[1:]
        scaled = mu * each
        square = (scaled @ scaled).sum(0)
        pull = (scaled @ (mu * each_toward)).sum(0)
        left = (mu * each_toward).square().sum((0, 2, 3))
        total = self.stack[0].diagonal()[d + 1 :].sum()
        values = []
        for weight in self.weights:
            factor = torch.linalg.cholesky_ex(inside[0] + weight * square)[0]
            explained = torch.linalg.solve_triangular(factor, toward[0] + weight * pull, upper=False)
            values.append(total + weight * left - explained.square().sum((1, 2)))
        return torch.stack(values)


def _submatrices(stack: Tensor, masks: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Of a stack (1 + E, m, m): the rows and columns of every set of the first n, and its part toward the others.

    (1 + E, sets, s, s) and (1 + E, sets, s, T), s the largest size; a smaller set has rows of the identity in the end.
    """
    padded = torch.nn.functional.pad(stack, (0, 1, 0, 1))
    last = len(padded[0]) - 1
    place = torch.where(masks, torch.arange(n), last).sort(1).values[:, : int(masks.sum(1).max())]  # (sets, s)
    inside = padded[:, place.unsqueeze(2), place.unsqueeze(1)] + torch.diag_embed((place == last).double())
    return inside, padded[:, place, n:last]


def chi_square_quantile(degrees: Tensor, level: float) -> Tensor:
    """At 1 - level, by Wilson and Hilferty: within 3 % for one degree of freedom, 0.3 % for five."""
    spread = 2 / (9 * degrees)
    z = torch.special.ndtri(torch.tensor(1 - level, dtype=torch.float64))
    quantile: Tensor = degrees * (1 - spread + z * spread.sqrt()).clamp_min(0) ** 3
    return quantile


def all_masks(n_columns: int) -> Tensor:
    """(2^D, D) bool."""
    codes = torch.arange(2**n_columns)
    return (codes.unsqueeze(1) >> torch.arange(n_columns)) & 1 == 1


def best_sets(values: Values, n_columns: int, keep: int) -> list[Tensor]:
    """For every penalty weight the best sets, best first: (at most `keep`, D) bool each."""
    if n_columns <= values.most:
        scores, masks = values.of_all(), None
    else:
        masks, scores = _searched(values.of, n_columns)
    first = scores.topk(min(keep, scores.shape[1]), 1, largest=False)
    chosen = [index[value.isfinite()] for index, value in zip(first.indices, first.values, strict=True)]
    if masks is None:
        return [(index.unsqueeze(1) >> torch.arange(n_columns)) & 1 == 1 for index in chosen]
    return [masks[index] for index in chosen]


def chosen_columns(sums: Sums, weights: Sequence[float], level: float = 0.05) -> Tensor:
    """The best set of columns for every penalty weight, by least squares: (G, D) bool."""
    moments = Moments.from_sums(sums)
    best = best_sets(RegretValues(moments, [(weight, level) for weight in weights]), moments.n_columns, 1)
    found = torch.zeros(len(best), len(sums.origin), dtype=torch.bool)
    return found.index_copy(1, moments.columns, torch.cat(best))


def _searched(of: Callable[[Tensor], Tensor], n_columns: int) -> tuple[Tensor, Tensor]:
    """The sets that a search has met (sets, D), and their values (G, sets).

    With the largest weight from no column and from all columns, then with each weight from the best that is known.
    """
    none = torch.zeros(1, n_columns, dtype=torch.bool)
    met = [(none, of(none)), (~none, of(~none))]
    n_weights = len(met[0][1])
    met += [near for start in (none, ~none) for near in _descent(of, start[0], n_weights - 1)]
    for g in range(n_weights):
        known = int(torch.cat([scores[g] for _, scores in met]).argmin())
        met += _descent(of, torch.cat([masks for masks, _ in met])[known], g)
    masks, scores = torch.cat([masks for masks, _ in met]), torch.cat([scores for _, scores in met], 1)
    every, place = torch.unique(masks, dim=0, return_inverse=True)
    first = torch.zeros(len(every), dtype=torch.long).scatter(0, place, torch.arange(len(place)))
    return every, scores[:, first]


def _descent(of: Callable[[Tensor], Tensor], mask: Tensor, g: int) -> list[tuple[Tensor, Tensor]]:
    """From one set (D,) to the best neighbour as long as it is better: all neighbours on the way, with their values.

    Columns are swapped where adding or dropping one does not help.
    """
    met: list[tuple[Tensor, Tensor]] = []
    best, kind = float(of(mask.unsqueeze(0))[g, 0]), 0
    while kind < len(MOVES):
        near = MOVES[kind](mask)
        kind += 1
        if len(near) == 0:
            continue
        met.append((near, of(near)))
        scores = met[-1][1][g]
        lowest = int(scores.argmin())
        if float(scores[lowest]) < best:
            mask, best, kind = near[lowest], float(scores[lowest]), 0
    return met


def _one_changed(mask: Tensor) -> Tensor:
    """One column added or dropped: (D, D)."""
    return mask ^ torch.eye(len(mask), dtype=torch.bool)


def _one_swapped(mask: Tensor) -> Tensor:
    """One column in place of another: (in x out, D)."""
    pairs = torch.cartesian_prod(mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1))  # (pairs, 2)
    return mask ^ torch.zeros(len(pairs), len(mask), dtype=torch.bool).scatter(1, pairs, True)


MOVES = (_one_changed, _one_swapped)
