"""Environments along one auxiliary column, found exactly: stretches of it between which the slopes of a model change.

    max over partitions of the column into stretches, each with an environment, of  sum_e m_e |S_e|^2

Less the constant |S|^2 this is the sum of squares of the slopes between environments, so a best single cut is found by
comparing all places at once: with B_k the sum of the first k slopes less k times their mean, in a stretch of n rows,
the gain of a cut behind row k is |B_k|^2 n / (k (n - k)). Cuts are made one after the other, each where it gains most.
The first n_environments - 1 are made whatever they gain: the objective asks for the worst environments. Further ones,
so that an environment may come back, must gain more than slopes with random signs do in 19 of 20 draws. In the end the
stretches with the most similar slopes are joined until n_environments are left.

`as_network` writes the result as parameters of rho, which can tell the environment of any other row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from irmtv.objectives.environments.aux_network import AuxNetwork

LEAST_SHARE = 0.05  # of the rows, in a stretch
DRAWS = 19  # random signs that a further cut must beat
HARD = 20.0  # logit of an environment in its stretches: its probability is 1 but for 2e-9


@dataclass(frozen=True)
class Segments:
    """Stretches of a column, from the lowest to the highest, and which environment each is."""

    below: Tensor  # (cuts,) the largest value below each cut
    above: Tensor  # (cuts,) the smallest value above it
    codes: Tensor  # (cuts + 1,) environments

    def of(self, column: Tensor) -> Tensor:
        """The environment of every value (N,)."""
        return self.codes[torch.bucketize(column, (self.below + self.above) / 2)]


def find_segments(
    column: Tensor, slopes: Tensor, n_environments: int, most_cuts: int, weight: Tensor | None = None, seed: int = 0
) -> Segments:
    """From a column (N,), slopes (N, J) and what the rows count (N,), all float64."""
    weight = torch.ones_like(column) if weight is None else weight
    order = torch.argsort(column, stable=True)
    column, slopes, weight = column[order], slopes[order], weight[order]
    generator = torch.Generator().manual_seed(seed)
    least = LEAST_SHARE * float(weight.sum())
    cuts: list[int] = []  # rows before which a stretch begins
    for k in range(most_cuts):
        edges = [0, *sorted(cuts), len(column)]
        found = [_best_cut(column, slopes, weight, a, b, least) for a, b in pairwise(edges)]
        gain, place, stretch = max((g, p, i) for i, (g, p) in enumerate(found))
        if place is None:
            break
        if k >= n_environments - 1:
            part = slice(edges[stretch], edges[stretch + 1])
            centred = slopes[part] - weight[part] @ slopes[part] / weight[part].sum()
            signs = torch.randint(0, 2, (DRAWS, len(centred), 1), generator=generator).double() * 2 - 1
            by_chance = [_best_cut(column[part], s * centred, weight[part], 0, len(centred), least)[0] for s in signs]
            if gain <= max(by_chance):
                break
        cuts.append(place)
    edges = [0, *sorted(cuts), len(column)]
    inner = torch.tensor(edges[1:-1], dtype=torch.long)
    codes = _joined([slice(a, b) for a, b in pairwise(edges)], slopes, weight, n_environments)
    return Segments(column[inner - 1], column[inner], codes)


def _best_cut(
    column: Tensor, slopes: Tensor, weight: Tensor, begin: int, end: int, least: float
) -> tuple[float, int | None]:
    """The gain of the best cut of a stretch, and the row before which it is."""
    part = slice(begin, end)
    w = weight[part]
    mass = w.cumsum(0)
    total = mass[-1]
    weighted = w.unsqueeze(1) * slopes[part]
    excess = weighted.cumsum(0) - (mass / total).unsqueeze(1) * weighted.sum(0)
    gain = excess.square().sum(1) * total / (mass * (total - mass)).clamp_min(torch.finfo(mass.dtype).tiny)
    possible = (mass >= least) & (total - mass >= least)
    possible[:-1] &= column[part][1:] > column[part][:-1]
    possible[-1] = False
    if not bool(possible.any()):
        return -1.0, None
    best = int(gain.masked_fill(~possible, -1.0).argmax())
    return float(gain[best]), begin + best + 1


def _joined(stretches: list[slice], slopes: Tensor, weight: Tensor, n_environments: int) -> Tensor:
    """The environment of each stretch: those whose mean slopes differ least, by their rows, are one (Ward)."""
    members = [[i] for i in range(len(stretches))]
    mass = [weight[s].sum() for s in stretches]
    mean = [weight[s] @ slopes[s] / weight[s].sum() for s in stretches]
    while len(members) > n_environments:
        pairs = [(a, b) for a in range(len(members)) for b in range(a)]
        cost = [mass[a] * mass[b] / (mass[a] + mass[b]) * (mean[a] - mean[b]).square().sum() for a, b in pairs]
        a, b = pairs[int(torch.stack(cost).argmin())]
        mean[b] = (mass[a] * mean[a] + mass[b] * mean[b]) / (mass[a] + mass[b])
        mass[b] = mass[a] + mass[b]
        members[b] += members[a]
        del members[a], mass[a], mean[a]
    codes = torch.zeros(len(stretches), dtype=torch.long)
    for code, some in enumerate(members):
        codes[torch.tensor(some)] = code
    return codes


def as_network(segments: Segments, net: AuxNetwork) -> dict[str, Tensor]:
    """Parameters of rho that give every stretch its environment: (W, b, V, c) of one run.

    A cut is a ramp from 0 to 1, the difference of two hidden units, between the values beside it.
    """
    n_cuts = len(segments.below)
    assert net.n_aux == 1 and 2 * n_cuts <= net.hidden
    steep = 1 / (segments.above - segments.below)
    middle = (segments.above + segments.below) / 2
    p = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in net.shapes.items()}
    one_hot = torch.nn.functional.one_hot(segments.codes, net.n_environments).double()  # (cuts + 1, E)
    logits = HARD * (2 * one_hot[:, :1] - 1 if net.n_outputs == 1 else one_hot)  # (cuts + 1, outputs)
    for half, sign in ((0.5, 1.0), (-0.5, -1.0)):
        units = slice(0, n_cuts) if sign > 0 else slice(n_cuts, 2 * n_cuts)
        p["W"][units, 0] = steep
        p["b"][units] = half - steep * middle
        p["V"][:, units] = sign * (logits[1:] - logits[:-1]).T
    p["c"].copy_(logits[0])
    return p
