"""Newton's method for risk + penalties of linear models, many runs at once.

    F(theta) = sum_e mu_e R_e + l2 |theta|^2 + sum_k lambda_k P_k(u),      u_e = S_e, g_e, or R_e - sum mu R

    l2:  P = sum_e w_e |u_e|^2
    l1:  P = ( sum_e w_e sqrt(|u_e|^2 + eps^2) )^2,   which is the paper's for eps = 0

The slopes are S_ek = sum over the parameters p of component k of theta_p g_ep: one component with all parameters for a
scalar classifier, one per column for a vector classifier (the intercept is in none), one per output where there are
several. A gradient g_e has the same components: those of the columns in use, say. Value, gradient and Hessian are
closed forms of R_e, g_e, H_e and of the third derivative along a direction (`linear_risks.py`).

A step solves (Hessian + damping) step = -gradient, where the Hessian is positive definite; else with its Gauss-Newton
part, which always is. Damping follows Levenberg and Marquardt: less after a step that kept its promise, more after one
that did not. Every run has its own, and stops by itself: where the decrease that a step promises is below the
tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from irmtv.core.cores import side_by_side
from irmtv.engine.solvers.linear_risks import LinearRisks, Point, SharedRows

TOLERANCE = 1e-10  # of the decrease that a step promises, as a share of 1 + |F|
MOST_STEPS = 200  # a narrow curved valley takes more than a hundred; most runs need ten
FIRST_DAMPING = 1e-4
SHORT = 0.01  # a step that changes no parameter by more than this share of the largest
FLOOR = 1e-10  # of the damping: columns may be collinear
NUMBERS_AT_ONCE = 1 << 23  # of all environments' Hessians, or of rows, of the runs that are evaluated together: 64 MiB
PRODUCTS_WORTH_A_THREAD = 1 << 24  # of columns, of a model's Hessians: a few milliseconds
ARRAYS = 8  # numbers that are kept for every row and run meanwhile


class Term(NamedTuple):
    """A penalty as the solver sees it."""

    on: Literal["slope", "gradient", "risk"]
    norm: Literal["l1", "l2"]
    counts: Sequence[Tensor]  # by data set: what each environment counts, (E,)


class Local(NamedTuple):
    """F around K models."""

    value: Tensor  # (K,)
    gradient: Tensor  # (K, P)
    hessian: Tensor  # (K, P, P), its Gauss-Newton part
    rest: Tensor  # (K, P, P), what the Hessian has beside it


class Solution(NamedTuple):
    theta: Tensor  # (K, P)
    value: Tensor  # (K,)
    steps: Tensor  # (K,)
    reached: Tensor  # (K,) whether the tolerance was


@dataclass(frozen=True)
class Problem:
    """Data sets, and what is minimised on each."""

    sets: Sequence[LinearRisks]
    measure: Sequence[Tensor]  # by data set: mu of the risk, (E,)
    terms: Sequence[Term]
    components: Tensor  # (P, J): which parameters a component of the slope has; or several of these, (G, P, J)

    def without_penalties(self) -> Problem:
        return Problem(self.sets, self.measure, (), self.components)

    def local(
        self,
        theta: Tensor,
        owner: Tensor,
        l2: Tensor,
        weights: Tensor,
        eps: Tensor,
        kind: Tensor | None = None,
    ) -> Local:
        """theta (K, P) on the data sets `owner` (K,), with l2 (K,), lambda (K, terms) and eps (K,).

        `kind` (K,) says which components a run has, where there are several.
        """
        n, size = theta.shape
        each = max(self.sets[0].n_environments * size * size, ARRAYS * max(one.x.shape[0] for one in self.sets))
        large = max(one.x.shape[0] for one in self.sets) * size * size >= PRODUCTS_WORTH_A_THREAD
        at_once = 1 if large else max(1, NUMBERS_AT_ONCE // each)

        def part(k: Tensor) -> Local:
            own = self.components if kind is None else self.components[kind[k]]
            return self._local(theta[k], owner[k], l2[k], weights[k], eps[k], own)

        pieces = torch.split(torch.arange(n), at_once)
        if len(pieces) == 1:
            return part(pieces[0])
        parts = side_by_side(part, pieces, None if large else 1)
        return Local(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def _local(
        self, theta: Tensor, owner: Tensor, l2: Tensor, weights: Tensor, eps: Tensor, components: Tensor
    ) -> Local:
        groups = self._groups(owner)
        points = [shared.at(theta[mine], member) for shared, mine, member in groups]
        back = torch.argsort(torch.cat([mine for _, mine, _ in groups]))  # to the order of theta
        risk, gradients, hessians = (
            torch.cat([getattr(point, name) for point in points])[back] if len(points) > 1 else getattr(points[0], name)
            for name in ("risk", "gradient", "hessian")
        )
        point = Point(theta, risk, gradients, hessians)
        mu = torch.stack(list(self.measure))[owner]  # (K, E)
        eye = torch.eye(theta.shape[1], dtype=theta.dtype)
        value = (risk * mu).sum(1) + l2 * theta.square().sum(1)
        gradient = _weighed(mu, gradients) + 2 * l2.unsqueeze(1) * theta
        hessian = _weighed(mu, hessians) + 2 * l2.view(-1, 1, 1) * eye
        rest = torch.zeros_like(hessian)
        pulls = torch.zeros_like(gradients)  # what the third derivative is taken along
        for k, term in enumerate(self.terms):
            weight = weights[:, k]
            if not bool(weight.any()):
                continue
            counts = torch.stack(list(term.counts))[owner]
            u, by_theta = _inner(term, point, counts, components)
            outer = _outer(term.norm, u, by_theta, counts, eps)
            value = value + weight * outer.value
            gradient = gradient + weight.unsqueeze(1) * outer.gradient
            hessian = hessian + weight.view(-1, 1, 1) * outer.curved
            if term.norm == "l1":
                rest = rest + weight.view(-1, 1, 1) * (outer.exact - outer.curved)
            pull = weight.view(-1, 1, 1) * outer.by_u  # (K, E, J)
            if term.on == "risk":  # sum_e pull_e (H_e - sum mu H)
                rest = rest + _weighed(pull.squeeze(2) - pull.sum(1) * counts, hessians)
                continue
            each = pull @ components.mT  # (K, E, P)
            if term.on == "gradient":
                pulls = pulls + each
                continue
            crossed = (each.unsqueeze(3) * hessians).sum(1)
            rest = rest + crossed + crossed.mT
            pulls = pulls + each * theta.unsqueeze(1)
        if bool(pulls.any()):
            for (shared, mine, _), there in zip(groups, points, strict=True):
                rest[mine] += shared.along(there, pulls[mine])
        return Local(value, gradient, hessian, rest)

    def _groups(self, owner: Tensor) -> list[tuple[SharedRows, Tensor, Tensor]]:
        """Data sets that share rows, with the models that are theirs (of K), and each one's data set among them."""
        every = list(dict.fromkeys(one.shared for one in self.sets))
        member = torch.tensor([one.member for one in self.sets])[owner]
        if len(every) == 1:
            return [(every[0], torch.arange(len(owner)), member)]
        group = torch.tensor([every.index(one.shared) for one in self.sets])[owner]
        members = [(k, (group == k).nonzero().squeeze(1)) for k in sorted(set(group.tolist()))]
        return [(every[k], mine, member[mine]) for k, mine in members]

    def minimise(
        self,
        theta: Tensor,
        owner: Tensor,
        l2: Tensor,
        weights: Tensor,
        eps: Tensor,
        tolerance: float = TOLERANCE,
        kind: Tensor | None = None,
    ) -> Solution:
        """From theta (K, P) to a stationary point of every run."""
        theta = theta.clone()
        n = len(theta)
        now = self.local(theta, owner, l2, weights, eps, kind)
        damping = torch.full((n,), FIRST_DAMPING, dtype=theta.dtype)
        steps, reached = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool)
        active = torch.arange(n)
        while len(active) and int(steps.max()) < MOST_STEPS:
            here = Local(*(part[active] for part in now))
            step, promised = _step(here, damping[active])
            steps[active] += 1
            small = promised <= tolerance * (1 + here.value.abs())
            done = active[small]
            # the last step needs no look, unless it is long: where F is flat, as for classes that a line separates
            short = step[small].abs().amax(1) <= SHORT * (1 + theta[done].abs().amax(1))
            theta[done[short]] += step[small][short]
            reached[done] = True
            if len(done) == len(active):
                break
            active, step, promised = active[~small], step[~small], promised[~small]
            before, moved = now.value[active], theta[active] + step
            own = None if kind is None else kind[active]
            there = self.local(moved, owner[active], l2[active], weights[active], eps[active], own)
            kept = (before - there.value) / promised
            better = there.value <= before  # False where it is not finite
            taken = active[better]
            theta[taken] = moved[better]
            for old, new in zip(now, there, strict=True):
                old[taken] = new[better]
            damping[active] *= torch.where(better, torch.where(kept > 0.5, 0.1, torch.where(kept < 0.1, 3.0, 1.0)), 5.0)
            damping.clamp_(1e-12, 1e12)
            active = active[damping[active] < 1e11]
        return Solution(theta, now.value, steps, reached)


def _weighed(weights: Tensor, values: Tensor) -> Tensor:
    """sum_e w_e v_e of weights (K, E) and values (K, E, ...): (K, ...)."""
    return (weights.unsqueeze(1) @ values.flatten(2)).view(len(values), *values.shape[2:])


def _inner(term: Term, point: Point, counts: Tensor, components: Tensor) -> tuple[Tensor, Tensor]:
    """u (K, E, J) and its derivative in theta (K, E, J, P)."""
    if term.on == "risk":
        mean, by_mean = (point.risk * counts).sum(1), _weighed(counts, point.gradient)
        return (point.risk - mean.unsqueeze(1)).unsqueeze(2), (point.gradient - by_mean.unsqueeze(1)).unsqueeze(2)
    theta, transposed = point.theta.unsqueeze(1), components.mT.unsqueeze(-3)  # (K, 1, P), (K or 1, 1, J, P)
    if term.on == "gradient":
        return point.gradient @ components, transposed @ point.hessian
    u = (theta * point.gradient) @ components
    direct = transposed * point.gradient.unsqueeze(2)  # (K, E, J, P)
    through = (transposed * theta.unsqueeze(2)) @ point.hessian  # (K, 1, J, P) x (K, E, P, P)
    return u, direct + through


class Outer(NamedTuple):
    """A penalty as a function of u, carried over to theta."""

    value: Tensor  # (K,)
    by_u: Tensor  # (K, E, J)
    gradient: Tensor  # (K, P)
    curved: Tensor  # (K, P, P) a positive semi-definite curvature: exact for l2, a majorant for l1
    exact: Tensor  # (K, P, P) the curvature itself, u's own aside


def _outer(norm: str, u: Tensor, by_theta: Tensor, counts: Tensor, eps: Tensor) -> Outer:
    size = u.square().sum(2)  # (K, E)
    if norm == "l2":
        scaled = counts
        value = (size * counts).sum(1)
    else:
        length = (size + eps.square().unsqueeze(1)).sqrt()
        length = length.clamp_min(torch.finfo(u.dtype).tiny)  # an environment without slope, and eps = 0
        total = (length * counts).sum(1)
        value = total.square()
        scaled = counts * total.unsqueeze(1) / length
    by_u = 2 * scaled.unsqueeze(2) * u
    gradient = (by_u.unsqueeze(3) * by_theta).sum((1, 2))
    weighed = by_theta * (2 * scaled).sqrt().view(*scaled.shape, 1, 1)
    flat = weighed.flatten(1, 2)  # (K, E J, P)
    curved = flat.transpose(1, 2) @ flat
    if norm == "l2":
        return Outer(value, by_u, gradient, curved, curved)
    along = ((u / length.unsqueeze(2)).unsqueeze(3) * by_theta).sum(2)  # d length_e / d theta: (K, E, P)
    whole = _weighed(counts, along)  # d total / d theta
    across = along * (2 * scaled).sqrt().unsqueeze(2)
    exact = curved + 2 * whole.unsqueeze(2) * whole.unsqueeze(1) - across.transpose(1, 2) @ across
    return Outer(value, by_u, gradient, curved, exact)


def _step(here: Local, damping: Tensor) -> tuple[Tensor, Tensor]:
    """The step of every run (K, P), and the decrease that it promises (K,)."""
    diagonal = here.hessian.diagonal(dim1=1, dim2=2)
    unit = torch.where(diagonal > 0, diagonal, 1).sqrt()  # (K, P); columns of any scale count the same
    units = unit.unsqueeze(2) * unit.unsqueeze(1)
    gauss_newton, whole = here.hessian / units, (here.hessian + here.rest) / units
    ridge = damping.unsqueeze(1) + FLOOR + (diagonal <= 0).to(diagonal)  # (K, P)
    factor, failed = torch.linalg.cholesky_ex(whole + torch.diag_embed(ridge))
    indefinite = failed != 0
    if bool(indefinite.any()):
        # its Gauss-Newton part has the ridge too: it is positive definite
        factor[indefinite] = torch.linalg.cholesky_ex((gauss_newton + torch.diag_embed(ridge))[indefinite])[0]
        whole = torch.where(indefinite.view(-1, 1, 1), gauss_newton, whole)
    gradient = (here.gradient / unit).unsqueeze(2)
    step = -torch.cholesky_solve(gradient, factor)
    promised = -(gradient * step).sum((1, 2)) - (step * (whole @ step)).sum((1, 2)) / 2
    return step.squeeze(2) / unit, promised
