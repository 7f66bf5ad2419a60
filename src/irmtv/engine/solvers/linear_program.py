"""What programs share that solve linear models outright: ERM is step 0 of their history, the solution step 1."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from irmtv.core.losses import Squared
from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.types import Measure, Rows, Statistics
from irmtv.engine.fitted import State
from irmtv.engine.networks import MLP
from irmtv.engine.plan import Chunk
from irmtv.engine.program import Call, Program
from irmtv.engine.solvers.block_risks import BlockRisks, BlockRows, Codes, Sums
from irmtv.engine.solvers.corrected import CLOSE, Solve, by_passes
from irmtv.engine.solvers.layers import contrast_layer
from irmtv.engine.solvers.linear_risks import LinearRisks
from irmtv.engine.solvers.second_order import Problem
from irmtv.engine.solvers.starts import solve_erm

ERM, SOLUTION = 0, 1  # the steps of a history


def masses_alone(risks: LinearRisks) -> Statistics:
    """The environments' masses, all that a measure or a penalty's weights need."""
    return Statistics(risks.mass.new_zeros(1), risks.mass.unsqueeze(0))


class LinearProgram(Program):
    """Runs of linear models on data sets `owner` (R,), each with its own l2."""

    said: str  # who does it, for messages

    def __init__(self, chunk: Chunk, call: Call) -> None:
        super().__init__(chunk, call)
        context = self.context
        if not isinstance(self.net, MLP) or len(self.net.widths) != 2:
            raise ValueError(
                f"{self.said} is for linear models: use hidden=() and no net=. Got net={type(self.net).__name__}."
            )
        self.data_set = context.sets.squeeze(1).cpu()  # (R,)
        self.l2 = torch.tensor([float(s["l2"]) for s in context.settings], dtype=torch.float64)
        self.taken = torch.zeros(context.n_runs, dtype=torch.long)  # steps of Newton's method
        self.reached = torch.ones(context.n_runs, dtype=torch.bool)
        self.layers: list[Tensor] | None = None  # by data set: directions of x (D, k)
        self.log: dict[str, Sums] = {}  # of passes over blocks

    def _starts(self) -> list[dict[str, Tensor]]:
        """At 0: ERM comes first, whatever the start of what follows."""
        return [{n: torch.zeros(s, dtype=torch.float64) for n, s in self.net.shapes.items()}] * self.context.n_runs

    def _linear_rows(self) -> list[Rows]:
        """With `layer`, directions of x in place of its columns."""
        rows, k = super()._linear_rows(), self.static["layer"]
        if k is None:
            return rows
        n_environments, k = max(1, len(rows[0].names)), min(k, rows[0].x[0].numel())
        self.layers = [
            contrast_layer(r, codes, n_environments, k, self.context.n_outputs)
            for r, codes in zip(rows, self.context.codes, strict=True)
        ]
        return [replace(r, x=r.x.double().cpu().flatten(1) @ b) for r, b in zip(rows, self.layers, strict=True)]

    def _measures(self, sets: Sequence[LinearRisks], kind: Measure) -> list[Tensor]:
        """mu of the risk on every data set: (E,) each."""
        return [masses_alone(one).measure(kind)[0] for one in sets]

    def _erm(self, problem: Problem) -> Tensor:
        """Of every run, (R, P); runs that differ in their penalties alone have one."""
        keys = torch.stack([self.data_set.double(), self.l2], 1)
        distinct, place = torch.unique(keys, dim=0, return_inverse=True)
        solved = solve_erm(problem, distinct[:, 0].long(), distinct[:, 1].contiguous())
        self.reached &= solved.reached[place]
        self.taken += solved.steps[place]
        return solved.theta[place]

    # ---- rows in blocks ----------------------------------------------------------------------------------------

    @property
    def _by_passes(self) -> bool:
        """Whether the sample is solved, and then all rows from there. Squared errors need no sample."""
        return self.call.blocks is not None and not isinstance(self.loss, Squared)

    def _linear_risks(self) -> list[LinearRisks]:
        sample = self.call.blocks is None or self._by_passes
        return super()._linear_risks() if sample else [*self._risks_of_blocks([None])]

    def _risks_of_blocks(self, codes: Sequence[Codes | None]) -> list[BlockRisks]:
        """Of all rows, in the environments that are given, or in each of some others that were inferred."""
        call, source = self.call, self.step.source
        assert call.blocks is not None

        def risks(k: int, one: Codes | None) -> BlockRisks:
            n = self._environments_needed() if one is None or source is None else source.n_environments
            assert call.blocks is not None
            rows = BlockRows(call.blocks, n, self.loss, self.context.n_outputs, one, call.ranks)
            rows.log, rows.name, rows.after_pass = self.log, str(k), self._after_pass
            return BlockRisks(rows).count()

        return [risks(k, one) for k, one in enumerate(codes)]

    def _continue(self) -> None:
        """With the passes over blocks that were made before this training was stopped."""
        if self.keeper is not None:
            self.keeper.put_back(self)

    def _after_pass(self) -> None:
        if self.keeper is not None:
            self.keeper.save(self)

    def _on_blocks(
        self,
        samples: Sequence[LinearRisks],
        sets: Sequence[BlockRisks],
        owner: Tensor,
        erm: Tensor,
        theta: Tensor,
        solve: Solve,
    ) -> tuple[Tensor, Tensor]:
        """ERM and the solutions on all rows, (R, P), from those on the samples."""

        def solve_erm(near: Sequence[LinearRisks], erm: Tensor) -> tuple[Tensor, Problem]:
            problem, owner = self._problem(near), torch.arange(len(erm))
            solved = problem.without_penalties().minimise(
                erm, owner, self.l2, erm[:, :0], torch.zeros_like(self.l2), CLOSE
            )
            self.taken += solved.steps
            return solved.theta, problem

        found = by_passes(samples, sets, owner, erm, theta, solve_erm=solve_erm, solve=solve, ranks=self.call.ranks)
        self.reached[:] = found.still
        return found.erm, found.theta

    def _problem(self, sets: Sequence[LinearRisks]) -> Problem:
        """What is minimised, on these data sets."""
        raise NotImplementedError

    def _put(self, theta: Tensor) -> None:
        """Models (R, P) as parameters of the network."""
        shaped = theta.view(len(theta), self.context.n_outputs, -1)
        if self.layers is not None:  # from the directions back to the columns
            weights = [w[:, :-1] @ self.layers[t].T for w, t in zip(shaped, self.data_set.tolist(), strict=True)]
            shaped = torch.cat([torch.stack(weights), shaped[..., -1:]], 2)
        shaped = shaped.to(self.context.device, self.context.dtype)
        self.phi.views["W0"].copy_(shaped[..., :-1])
        self.phi.views["b0"].copy_(shaped[..., -1:])

    def _look(self, step: int) -> None:
        self.context.set_step(step)
        if self.watcher is not None:
            self._snapshot()

    def _state(self) -> State:
        state = super()._state()
        learned = {"newton_steps": self.taken.clone(), "converged": self.reached.clone()}
        return replace(state, learned={**state.learned, **learned})

    def _tell(self, reason: str) -> None:
        """Which runs did not reach the tolerance, and the usual reason."""
        if bool(self.reached.all()):
            return
        missed = [self.chunk.runs[r] for r in (~self.reached).nonzero().flatten().tolist()]
        warnings.warn(
            f"{self.said}: Newton's method did not reach its tolerance in {len(missed)} of {len(self.reached)} runs "
            f"({shown(missed)}). Their models are the best that was found. {reason}",
            stacklevel=users_stacklevel(),
        )
