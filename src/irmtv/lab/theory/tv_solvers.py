"""Total variation denoising on a grid of spacing 1, and certificates that do not depend on the solver.

    TV-l1:   min_f  sum |Df|    +  lambda sum (f - y)^2
    TV-l2:   min_f  sum |Df|^2  +  lambda sum (f - y)^2

D takes forward differences, |.| is the Euclidean norm over the axes, D' is the transpose of D. A solution is accepted
by its certificate alone:

    TV-l1, any p with |p| <= 1:   min  >=  <D'p, y> - |D'p|^2 / (4 lambda)       so the duality gap bounds the error;
    TV-l2:                        D'D f + lambda (f - y)  =  0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from irmtv.lab.theory.sides import Floats, length

SolverL1 = Callable[[Floats, float], tuple[Floats, Floats]]  # (y, lambda) -> f and the dual p: (*shape), (axes, *shape)
SolverL2 = Callable[[Floats, float], Floats]  # (y, lambda) -> f


def differences(f: Floats) -> Floats:
    """D f: forward differences along every axis, 0 at the far end: (*shape) -> (axes, *shape)."""
    steps = np.zeros((f.ndim, *f.shape))
    for k in range(f.ndim):
        along = f.swapaxes(0, k)
        np.subtract(along[1:], along[:-1], out=steps[k].swapaxes(0, k)[:-1])
    return steps


def divergence(p: Floats) -> Floats:
    """D' p, the transpose of `differences` (minus the divergence): (axes, *shape) -> (*shape)."""
    total = np.zeros(p.shape[1:])
    for k, part in enumerate(p):
        flow = part.swapaxes(0, k)[:-1]  # what the far end holds meets a difference that is always 0
        into = total.swapaxes(0, k)
        into[1:] += flow
        into[:-1] -= flow
    return total


def within_unit_ball(p: Floats) -> Floats:
    """The nearest field with |p| <= 1 at every point."""
    return np.divide(p, np.maximum(1.0, length(p)))


def relative_gap(f: Floats, p: Floats, y: Floats, weight: float) -> float:
    """(energy of f - lower bound that p gives) / energy: how much less than f's energy TV-l1 could possibly reach."""
    energy = length(differences(f)).sum() + weight * np.square(f - y).sum()
    back = divergence(within_unit_ball(p))
    bound = (back * y).sum() - np.square(back).sum() / (4 * weight)
    return float((energy - bound) / energy)


def relative_slope(f: Floats, y: Floats, weight: float) -> float:
    """The largest entry of TV-l2's gradient at f, against that of lambda y."""
    slope = divergence(differences(f)) + weight * (f - y)
    return float(np.abs(slope).max() / (weight * np.abs(y).max()))


def solve_l1_line(y: Floats, weight: float) -> tuple[Floats, Floats]:
    """TV-l1 in one dimension, exactly: the path of solutions from lambda = infinity, on which blocks only ever merge.

    With t = 1 / (2 lambda) a block of n points moves with speed -(sign of its step up from the left + from the right)
    / n, so all that is needed is when two neighbours meet next.
    """
    size, value, until = np.ones(len(y)), y.astype(float), 1 / (2 * weight)
    while len(value) > 1:
        step = np.diff(value)
        sign = np.sign(step)
        speed = (np.append(sign, 0) - np.insert(sign, 0, 0)) / size
        closing = -np.diff(speed) * sign
        meets = np.divide(np.abs(step), closing, out=np.full(len(step), np.inf), where=closing > 0)
        meets[step == 0] = 0.0
        k = int(meets.argmin())
        value = value + speed * min(meets[k], until)
        if meets[k] >= until:
            break
        until -= meets[k]
        value[k] = np.average(value[k : k + 2], weights=size[k : k + 2])
        size[k] += size[k + 1]
        value, size = np.delete(value, k + 1), np.delete(size, k + 1)
    f = np.repeat(value, size.astype(int))
    return f, (2 * weight * np.cumsum(f - y))[None]  # in one dimension f determines p


def solve_l1_grid(y: Floats, weight: float, tolerance: float = 1e-6, most_steps: int = 20_000) -> tuple[Floats, Floats]:
    """TV-l1 in any dimension: accelerated projected gradient steps on the dual, restarted where they turn back.

    Stops at a relative duality gap of `tolerance`.
    """
    p = ahead = np.zeros((y.ndim, *y.shape))
    stride = weight / (2 * y.ndim)  # 1 / Lipschitz constant: |D|^2 <= 4 per axis
    momentum = 1.0
    for step in range(most_steps):
        new = within_unit_ball(ahead + stride * differences(y - divergence(ahead) / (2 * weight)))
        if ((ahead - new) * (new - p)).sum() > 0:
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead, p, momentum = new + (momentum - 1) / following * (new - p), new, following
        if step % 25 == 24 and relative_gap(y - divergence(p) / (2 * weight), p, y, weight) <= tolerance:
            break
    return y - divergence(p) / (2 * weight), p


def solve_l2(y: Floats, weight: float) -> Floats:
    """TV-l2 in any dimension: one sparse linear system, (D'D + lambda) f = lambda y.

    D'D is a sum over the axes of the second differences along each.
    """
    system: Any = weight * sparse.eye_array(y.size)
    for k, n in enumerate(y.shape):
        degree = np.full(n, 2.0)
        degree[[0, -1]] = 1.0
        along: Any = sparse.diags_array([-np.ones(n - 1), degree, -np.ones(n - 1)], offsets=[-1, 0, 1])
        before, after = (sparse.eye_array(int(np.prod(part))) for part in (y.shape[:k], y.shape[k + 1 :]))
        system = system + sparse.kron(sparse.kron(before, along), after)
    return np.asarray(spsolve(system.tocsc(), weight * y.ravel())).reshape(y.shape)
