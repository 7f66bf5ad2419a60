"""`train`: check what was asked, plan the chunks, run them, put the runs back in order."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.types import Runs, Task
from irmtv.engine.allocator import keep_freed_memory
from irmtv.engine.fitted import FittedRuns
from irmtv.engine.networks import MLP, Net
from irmtv.engine.plan import plan
from irmtv.engine.program import Program
from irmtv.engine.settings import (
    PER_RUN,
    as_tasks,
    check_call,
    check_tasks,
    check_watched_environments,
    free_memory,
    pick_device,
    resolve_settings,
    warn_of_frozen_rho,
)
from irmtv.engine.snapshots import History
from irmtv.engine.solvers.hrm import HrmProgram
from irmtv.engine.start import Start
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Rule, as_rule

# by the names that objectives use, where they have a way of training of their own
PROCEDURES: Mapping[str, type[Program]] = {"hrm": HrmProgram}


@dataclass(frozen=True)
class Progress:
    """How far a call of `train` is; handed to the `progress` callback now and then."""

    step: int  # of the present chunk
    steps: int
    runs_done: int  # runs whose training is finished
    runs_now: int  # runs training now
    runs: int
    seconds: float

    @property
    def share(self) -> float:
        """Share of all the work that is done, 0 to 1."""
        return (self.runs_done + self.runs_now * self.step / self.steps) / self.runs


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. `partial` holds the runs that had begun, as they were; `partial.runs` says which."""

    def __init__(self, partial: FittedRuns) -> None:
        super().__init__("training was interrupted; the runs that had begun are in `.partial`")
        self.partial = partial


def train(
    task: Task | Sequence[Task],
    objective: str | Objective = "irm-tv-l1",
    runs: Runs | None = None,
    *,
    hidden: Sequence[int] = (),
    net: Net | Callable[[], nn.Module] | None = None,
    classifier: Literal["scalar", "vector"] = "scalar",
    steps: int = 2000,
    learning_rate: float = 5e-3,
    l2: float = 0.0,
    batch_size: int | Literal["auto"] | None = "auto",
    select: str | Rule = "fixed",
    snapshot_every: int | None = None,
    keep_states: bool = False,
    start: Mapping[str, Tensor] | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_chunk: int | None = None,
    **hyperparameters: Any,
) -> FittedRuns:
    """Train many runs in one tensor program.

    Parameters
    ----------
    task : a Task, or several of equal shape; `Runs(data=...)` says which run trains on which. The numbers are
        taken as they are: standardise x, and centre y for regression, before.
    objective : a name in `irmtv.OBJECTIVES`, a sum such as "irm-tv-l1+vrex", or an Objective.
    runs : the runs. Anything that does not change a shape may differ between them at no cost: seed,
        learning_rate, l2, penalty_weight, warmup, environment_learning_rate. Other settings may differ too;
        such runs train one group after the other.
    hidden : hidden layer widths of Phi; () is a linear model.
    net : instead of `hidden`: a network of `irmtv.engine`, or a function that returns a torch.nn.Module.
    classifier : "scalar" (w = 1 multiplies the logits) or "vector" (w multiplies the last layer's inputs; for
        several outputs one w per logit).
    steps : gradient steps. With mini-batches a step is one batch.
    learning_rate, l2 : Adam's rate; the weight of the sum of squares of all parameters, biases too.
    batch_size : rows per step; None is the full batch, "auto" the full batch below 100,000 rows, else 1,024.
    select : "fixed" keeps the last step; "iid" and "worst-env" keep each run's best snapshot, those of the warm-up
        (plain risk minimisation) among them.
    snapshot_every : measure all runs every so many steps, on the task's held-out rows or, without, the training rows.
    keep_states : keep all runs' parameters at every snapshot, so that `fitted.at(step)` can go back to it.
    start : parameters from which Phi starts, in place of a random start: name -> (R, ...), or (1, ...) for all runs,
        named and shaped as `fitted.state()[0].parameters` is, in the order of `runs`. All else (inferred environments,
        learned weights, masks, the optimizers' moments) starts anew.
    progress : called with a `Progress` about a hundred times per chunk.
    device : "cpu", "cuda" or "auto".
    max_chunk : at most so many runs in one program (otherwise chosen by cache and memory).
    **hyperparameters : the objective's own, for all runs; `irmtv list NAME` shows them.

    Returns
    -------
    FittedRuns, in the order of `runs`.
    """
    tasks = as_tasks(task)
    runs = Runs() if runs is None else runs
    check_call(snapshot_every, max_chunk, dtype, objective, runs, progress)
    if net is not None and hidden != ():
        raise ValueError(f"hidden describes the network that net= replaces: give one of them. Got hidden={hidden!r}.")
    chosen = OBJECTIVES[objective] if isinstance(objective, str) else objective
    engine = {
        "hidden": tuple(hidden) if isinstance(hidden, Iterable) else hidden,
        "classifier": classifier,
        "steps": steps,
        "learning_rate": learning_rate,
        "l2": l2,
        "batch_size": batch_size,
    }
    settings = resolve_settings(chosen, runs, engine, hyperparameters, len(tasks))
    check_tasks(tasks, chosen, settings)
    warn_of_frozen_rho(settings)
    begin = None if start is None else Start(start, len(runs))
    if begin is not None and len({s["hidden"] for s in settings}) > 1:
        raise ValueError(
            "start goes with one network for all runs. Got runs that differ in hidden; use one call for each of them."
        )
    rule = as_rule(select)
    if select == "worst-env":
        check_watched_environments(tasks, chosen)
    if rule is not None and snapshot_every is None:
        snapshot_every = max(1, max(s["steps"] for s in settings) // 50)
    if keep_states and snapshot_every is None:
        raise ValueError("keep_states=True keeps the states of the snapshots: say how often, snapshot_every=...")
    where = pick_device(device)
    if where.type == "cpu":
        keep_freed_memory()
    widths = _layer_widths(net, tasks[0], settings)
    chunks = plan(
        tasks,
        settings,
        PER_RUN | {h.name for h in chosen.hyperparameters if h.per_run},
        # whoever weighs the rows holds a network like Phi beside it
        width=_values_per_row(widths * (1 if chosen.row_weights is None else 2), tasks[0], settings),
        widest=max(widths),
        on_cpu=where.type == "cpu",
        memory_bytes=free_memory(where),
        max_chunk=max_chunk,
    )
    procedure = Program if chosen.procedure is None else PROCEDURES[chosen.procedure]
    started = time.perf_counter()
    finished: list[Program] = []

    def result() -> FittedRuns:
        positions = [i for p in finished for i in p.chunk.runs]
        order = torch.argsort(torch.tensor(positions))
        begun = sorted(positions)  # all runs, unless training was interrupted
        place = {run: i for i, run in enumerate(begun)}
        diverged = {place[p.chunk.runs[r]]: step for p in finished for r, step in p.guard.report().items()}
        return FittedRuns(
            objective=chosen,
            runs=runs if len(begun) == len(runs) else runs.take(begun),
            tasks=tasks,
            settings=tuple(settings[i] for i in begun),
            chunks=tuple(p.fitted(place) for p in finished),
            history=History.of([p.snapshots for p in finished], order),
            diverged=dict(sorted(diverged.items())),
            select=select if isinstance(select, str) else getattr(select, "__name__", "custom"),
            seconds=time.perf_counter() - started,
        )

    for chunk in chunks:
        done = sum(len(p.chunk.runs) for p in finished)
        try:
            program = procedure(
                chunk, tasks, chosen, settings, net, rule, snapshot_every, keep_states, where, dtype, begin
            )
        except KeyboardInterrupt:  # before this chunk has begun
            if finished:
                raise TrainingInterrupted(result()) from None
            raise

        def tell(step: int, done: int = done, program: Program = program) -> None:
            if progress is not None:
                now = time.perf_counter() - started
                progress(Progress(step, program.steps, done, len(program.chunk.runs), len(runs), now))

        try:
            program.run(tell)
        except KeyboardInterrupt:
            finished.append(program)
            raise TrainingInterrupted(result()) from None
        finished.append(program)
    fitted = result()
    if fitted.diverged:
        which = shown(fitted.diverged.items(), form=lambda item: f"{item[0]}: {item[1]}")
        warnings.warn(
            f"{len(fitted.diverged)} of {len(runs)} runs diverged and were frozen at their last finite state "
            f"(run: step {which}). Lower learning_rate or penalty_weight, or standardise x and y; the other runs are "
            "not affected.",
            stacklevel=users_stacklevel(),
        )
    return fitted


def _layer_widths(net: Any, task: Task, settings: Sequence[Mapping[str, Any]]) -> list[int]:
    """Values per row and run that each layer puts out; a guess for networks that do not tell."""
    if isinstance(net, MLP):
        return list(net.widths[1:])
    if net is not None:
        return [4 * task.train.x[0].numel()] * 4
    return [*max((s["hidden"] for s in settings), key=sum), task.n_outputs]


def _values_per_row(widths: Sequence[int], task: Task, settings: Sequence[Mapping[str, Any]]) -> int:
    """Values that a step holds per row and run, roughly: the inputs and three tensors per layer width."""
    rho = max(s.get("environment_hidden", 0) for s in settings)
    return int(task.train.x[0].numel() + 3 * sum(widths) + 3 * rho + 12)
