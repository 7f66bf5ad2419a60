"""Steps of linear models on a GPU in a handful of kernels (`engine/kernels.py`), where a phase of training allows it.

The tensors are those of `GradientStep`: a fused step reads and moves the same parameters, moments and guard, so that
phases can alternate between the two ways. Everything else (networks, several outputs, mini-batches, penalties of
another form, weights that follow Phi) takes the ordinary step.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from irmtv.core.losses import Binary, Squared
from irmtv.core.membership import Blocks, SoftPair, Weighted
from irmtv.core.types import Statistics
from irmtv.engine.components.base import Phase
from irmtv.engine.components.rho import RhoOnAux
from irmtv.engine.optim import Adam
from irmtv.engine.step import GradientStep
from irmtv.objectives.base import Penalty
from irmtv.objectives.environments.aux_network import Grouped, GroupedRows, SortedRows

MOST_FEATURES, MOST_ENVIRONMENTS, MOST_AUX, MOST_HIDDEN = 1024, 16, 8, 64
MOST_CHUNKS = 64
PROGRAMS = 1024  # that keep a large GPU busy
TILE = 4096  # values that a program holds at a time
WIDTH = 128  # elements per program of `adam`
NORMS = {None: 0, "l1": 1, "l2": 2}


def fused_step(step: GradientStep, phase: Phase) -> Callable[[], None] | None:
    """The steps of this phase as a few kernels, or None where they must be taken one operation at a time."""
    if importlib.util.find_spec("triton") is None or not _suits(step, phase):
        return None
    return FusedStep(step, phase)


def _suits(step: GradientStep, phase: Phase) -> bool:
    context, net = step.context, step.through.mlp
    if (
        net is None
        or not net.linear
        or not isinstance(step.loss, (Binary, Squared))
        or step.loss.several
        or net.widths[0] > MOST_FEATURES
    ):
        return False
    if (
        step.row_weights is not None
        or step.weights.varies
        or step.measure is not None
        or step.mixtures is not None
        or not step.explicit
    ):
        return False
    if phase.penalised and (phase.climbing is not None or _norm(step) is None):
        return False
    if step.source is None:
        plain = step.objective.measure_of(step.static) == "empirical"
        return plain and isinstance(step.rows.whole.given, Blocks) and step.n_environments <= MOST_ENVIRONMENTS
    if type(step.source) is not RhoOnAux or step.n_environments != 2:
        return phase.climbing is None and not phase.penalised
    small = step.source.net.n_aux <= MOST_AUX and step.source.net.hidden <= MOST_HIDDEN
    return phase.climbing is None or (
        small and _norm(step) is not None and context.static.get("measure") in (None, "empirical")
    )


def _penalty(step: GradientStep) -> Penalty | None:
    """The one penalty of the objective; None where it has none or several."""
    return step.objective.penalties[0] if len(step.objective.penalties) == 1 else None


def _norm(step: GradientStep) -> str | None:
    penalty = _penalty(step)
    return penalty.norm if penalty is not None and penalty.uses == {"slope"} else None


class FusedStep:
    """One step of all runs of a chunk within a phase."""

    def __init__(self, step: GradientStep, phase: Phase) -> None:
        # imported where it is used: a CPU build of torch has no Triton
        from irmtv.engine import kernels

        self.kernels, self.step, self.phase, context = kernels, step, phase, step.context
        rows = step.rows.whole
        self.x = rows.x  # (T, D, M)
        n_sets, n_features, n_rows = self.x.shape
        self.y = rows.y.reshape(n_sets, n_rows).to(self.x.dtype).contiguous()
        self.weight, self.totals = self._weights(n_sets, n_rows)
        self.norm = NORMS[_norm(step)] if phase.penalised else 0
        self.size = (n_rows, n_features, context.n_runs, context.per_set)
        self.features = _power_of_two(n_features)
        self.rows = max(16, min(256, TILE // self.features))
        blocks_of_rows = -(-n_rows // self.rows)
        wanted = min(MOST_CHUNKS, blocks_of_rows, max(1, -(-PROGRAMS // context.n_runs)))
        self.chunk = self.rows * -(-blocks_of_rows // wanted)
        self.n_chunks = -(-n_rows // self.chunk)
        self.squared = isinstance(step.loss, Squared)
        self._members()
        empty = self.x.new_zeros
        self.sums = empty(context.n_runs, self.n_chunks, max(self.environments, 4))
        self.parts = empty(self.n_chunks, len(step.phi.vector))
        self.watched = empty(context.n_runs, self.n_chunks)
        self.no_decay = torch.zeros_like(step.phi.vector) if step.l2_gradient is None else step.l2_gradient
        if phase.climbing is not None:
            self._prepare_rho()

    def _weights(self, n_sets: int, n_rows: int) -> tuple[Tensor, Tensor]:
        """What every row counts (T, M), pads 0, and the sum of it (T,)."""
        rows, ones = self.step.rows.whole, self.x.new_ones(n_sets, n_rows)
        if self.blocks is not None:
            weight = ones if self.blocks.weight is None else self.blocks.weight.reshape(n_sets, n_rows)
            return weight.contiguous(), self.blocks.counts.sum(1).expand(n_sets).contiguous()
        weight = ones if rows.weight is None else rows.weight.reshape(n_sets, n_rows).contiguous()
        return weight, ones.sum(1) if rows.weight is None else ones[:, 0].contiguous()

    @cached_property
    def blocks(self) -> Blocks | None:
        rows = self.step.rows.whole
        found = rows.inferred.blocks if isinstance(rows.inferred, GroupedRows) else rows.given
        return found if isinstance(found, Blocks) else None

    def _by_row(self, per_block: Tensor) -> Tensor:
        """(..., n_blocks) -> (..., M)."""
        assert self.blocks is not None
        return per_block.repeat_interleave(self.blocks.length, -1).contiguous()

    def _members(self) -> None:
        """Which rows belong where: codes (T, M) of given environments, or q (R, M) of inferred ones."""
        step, context = self.step, self.step.context
        self.pair = step.source is not None
        self.environments = _power_of_two(step.n_environments) if self.norm else 1
        nothing = self.x.new_zeros(1)
        self.code, self.q, self.shares, self.sizes, self.factor = nothing, nothing, nothing, nothing, nothing
        if not self.norm:
            return
        rows, penalty = step.rows.whole, _penalty(step)
        assert penalty is not None
        if rows.given is not None:
            assert self.blocks is not None
            membership = rows.given
            self.code = self._by_row(self.blocks.environment.squeeze(1))
        else:
            membership = step.inferred(rows, self.phase)
            pair = membership.base if isinstance(membership, Weighted) else membership
            if isinstance(pair, Grouped):
                index = pair.blocks.environment.expand(-1, context.per_set, -1)
                self.q = self._by_row(_rho(pair.q).gather(2, index)).flatten(0, 1)
            else:
                self.q = _rho(pair).flatten(0, 1).contiguous()
        e = Statistics(step.phi.vector[:1], membership.mass.to(self.x))
        mu = penalty.weights(e, step.static.get("measure"), step.static.get("reduction"))
        shape = (context.n_runs, step.n_environments)
        self.shares = mu.expand(shape).contiguous()
        self.sizes = membership.rows.to(self.x).expand(shape).contiguous()
        self.factor = self.phase.weights[0][1].flatten().contiguous()

    def _prepare_rho(self) -> None:
        """What rho reads of every row: (T, A, M)."""
        source, penalty = self.step.source, _penalty(self.step)
        assert isinstance(source, RhoOnAux) and penalty is not None
        rows = self.step.rows.whole.inferred
        if isinstance(rows, GroupedRows):
            index = rows.blocks.environment.expand(-1, source.net.n_aux, -1)  # (T, A, n_blocks)
            self.z = self._by_row(rows.z.gather(2, index))
        else:
            self.z = rows.z.unsqueeze(1).contiguous() if isinstance(rows, SortedRows) else rows.z
        self.climbing_norm = NORMS[penalty.norm]
        reduction = self.step.static.get("reduction") or penalty.reduction
        self.authors = reduction == "authors"
        self.rho_parts = self.x.new_zeros(self.n_chunks, len(source.parameters.vector))
        self.rho_watched = torch.zeros_like(self.watched)
        self.rho_decay = torch.zeros_like(source.parameters.vector)

    def __call__(self) -> None:
        step, kernels, grid = self.step, self.kernels, (self.step.context.n_runs, self.n_chunks)
        views = step.phi.views
        model: tuple[Any, ...] = (views["W0"], views["b0"])
        sizes = (*self.size, self.chunk, self.n_chunks)
        if self.phase.climbing is not None:
            self._climb(model, sizes, grid)
        members = (self.x, self.y, self.weight, self.code, self.q)
        shape = {"FEATURES": self.features, "ROWS": self.rows, "ENVIRONMENTS": self.environments}
        shape |= {"SQUARED": self.squared, "PAIR": self.pair}
        if self.norm:
            kernels.slope_sums[grid](*members, *model, self.sums, *sizes, **shape)
        kernels.gradient[grid](
            *members, *model, self.sums, self.sizes, self.shares, self.factor, self.phase.scale, self.totals,
            self.parts, self.watched, *sizes, step.n_environments,
            CHUNKS=_power_of_two(self.n_chunks), NORM=self.norm, **shape,
        )  # fmt: skip
        self._move(step.adam, self.parts, self.no_decay, self.watched)

    def _climb(self, model: tuple[Any, ...], sizes: tuple[int, ...], grid: tuple[int, int]) -> None:
        source, kernels = self.step.source, self.kernels
        assert isinstance(source, RhoOnAux)
        rho = [source.parameters.views[name] for name in ("W", "b", "V", "c")]
        data = (self.x, self.y, self.weight, self.z, *model, *rho, self.sums)
        n_hidden = source.net.hidden
        shape = {"FEATURES": self.features, "ROWS": max(16, self.rows // 4), "SQUARED": self.squared}
        shape |= {"N_AUX": source.net.n_aux, "HIDDEN": _power_of_two(n_hidden)}
        kernels.climb_sums[grid](*data, *sizes, n_hidden, **shape)
        kernels.climb[grid](
            *data, self.totals, self.rho_parts, *sizes, n_hidden,
            CHUNKS=_power_of_two(self.n_chunks), NORM=self.climbing_norm, AUTHORS=self.authors, **shape,
        )  # fmt: skip
        self._move(source.adam, self.rho_parts, self.rho_decay, self.rho_watched)

    def _move(self, adam: Adam, parts: Tensor, decay: Tensor, watched: Tensor) -> None:
        p, guard = adam.parameters, self.step.guard
        adam.steps += 1
        now = self.step.context.now
        assert isinstance(adam.steps, Tensor) and isinstance(now, Tensor)
        self.kernels.adam[(-(-len(p.vector) // WIDTH),)](
            parts, p.vector, adam.first, adam.second, adam.rate, p.owner, decay, watched,
            guard.dead.view(torch.int8), guard.since, now, adam.steps, len(p.vector), self.n_chunks, watched.shape[1],
            adam.sign, CHUNKS=_power_of_two(self.n_chunks), WIDTH=WIDTH,
        )  # fmt: skip


def _rho(pair: object) -> Tensor:
    """(T, K, N), of two inferred environments."""
    assert isinstance(pair, SoftPair)
    return pair.rho


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
