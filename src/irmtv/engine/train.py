"""`train`: check the call, plan the chunks, train them one after the other, put the runs back in order."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from irmtv.core.cores import cores, one_thread_each, side_by_side
from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.progress import Progress
from irmtv.core.types import Runs, Task
from irmtv.data.blocks import BlockSource
from irmtv.engine.agree import agreed
from irmtv.engine.checkpoint import Checkpoint, Keeper
from irmtv.engine.device import keep_freed_memory
from irmtv.engine.fitted import FittedRuns
from irmtv.engine.networks import MLP, Net
from irmtv.engine.on_blocks import check_blocks
from irmtv.engine.padding import equally_long
from irmtv.engine.plan import Chunk, plan
from irmtv.engine.program import Call, Program
from irmtv.engine.progress import Teller
from irmtv.engine.settings import (
    PER_RUN,
    as_tasks,
    check_call,
    check_patience,
    check_tasks,
    check_watched_environments,
    free_memory,
    pick_device,
    resolve_settings,
    snapshot_interval,
    warn_of_frozen_rho,
)
from irmtv.engine.snapshots import History
from irmtv.engine.solvers.columns import ColumnsProgram
from irmtv.engine.solvers.hrm import HrmProgram
from irmtv.engine.solvers.newton import NewtonProgram, check_solver
from irmtv.engine.start import Start
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective
from irmtv.selection import Rule, as_rule

# training procedures of their own, by the names that objectives use
PROCEDURES: Mapping[str, type[Program]] = {"columns": ColumnsProgram, "hrm": HrmProgram}

# Values of the widest layer over all runs of a chunk, from which on its step is work for a core of its own: below, it
# is calls that wait for each other. And from which on a chunk that is alone has all threads.
WORK_FOR_A_CORE, SEVERAL_THREADS = 1 << 15, 1 << 20


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
    slopes: Literal["scalar", "vector"] | None = None,
    keep_states: bool = False,
    patience: int | None = None,
    solver: Literal["adam", "subgradient", "newton"] = "adam",
    start: str | Mapping[str, Tensor] | None = None,
    layer: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    max_chunk: int | None = None,
    process_group: Any = None,
    blocks: BlockSource | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 1000,
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
        (ERM) among them.
    snapshot_every : steps between snapshots, which measure all runs on the task's held-out rows or, without those, on
        the training rows.
    slopes : which slopes snapshots measure, where it is to be the same for runs that differ in `classifier`; None is
        each run's own.
    keep_states : keep all runs' parameters at every snapshot, so that `fitted.at(step)` can go back to it.
    patience : of objectives without a penalty: training ends early where no run has had its lowest mean risk in so many
        of the last snapshots. None: all steps.
    solver : "adam" (also "subgradient": at the kinks of TV-l1 it takes those), or "newton" for linear models:
        second-order steps along a path of rising penalty weights, to a stationary point
        (`irmtv.engine.solvers.newton`). It reads all rows and needs no learning rate, steps, warm-up or batches.
        Its history has two steps: 0 is ERM, 1 the solution.
    start : where Phi starts. A name: "erm", "equal-risks" (Newton's method only), "environment" (the model of the
        environment on which ERM is worst), "small" or "random"; "erm" and "environment" are for linear models. None is
        "erm" for Newton's method, else "random". Names may differ between runs: `Runs(start=[...])`. Or parameters:
        name -> (R, ...), or (1, ...) for all runs, named and shaped as `fitted.state()[0].parameters` is, in the order
        of `runs`. All else (inferred environments, learned weights, masks, the optimizers' moments) starts anew.
    layer : for columns that are mixtures of others: the number of directions of x that a linear model reads, the
        principal ones, turned so that those which differ most between environments come first
        (`irmtv.engine.solvers.layers`). For solver="newton" and objective "eills", environments given.
    progress : called with a `Progress` about a hundred times per chunk.
    device : "cpu", "cuda" or "auto".
    max_chunk : maximum number of runs in one program (default: chosen by cache and memory).
    process_group : a group of torch.distributed, for rows that are spread over processes (ranks): each calls `train`
        with rows of its own and gets the model of all rows. `docs/engine.md` says what is the same on all ranks.
    blocks : all rows, of which `task` has a sample (:class:`irmtv.data.blocks.BlockSource`): for more rows than memory.
        Newton's method reads them in passes, after it has solved the sample; gradient steps take mini-batches of them.
        Snapshots measure the sample. With `process_group` every rank has blocks of its own, and the same sample.
    checkpoint : a file from which a training that was stopped continues to the same result: call `train` again as
        before. It is written every `checkpoint_every` steps and at the end; the one before it is kept as NAME.before.
    **hyperparameters : the objective's own, for all runs; `irmtv list NAME` shows them.

    Returns
    -------
    FittedRuns, in the order of `runs`.
    """
    given: Any = tuple(task) if isinstance(task, Iterable) else task
    runs = Runs() if runs is None else runs
    engine = {
        "hidden": tuple(hidden) if isinstance(hidden, Iterable) else hidden,
        "classifier": classifier,
        "steps": steps,
        "learning_rate": learning_rate,
        "l2": l2,
        "batch_size": batch_size,
        "solver": "adam" if solver == "subgradient" else solver,
        "start": start if isinstance(start, str) else None,
        "layer": layer,
    }

    def checked() -> Call:
        tasks = as_tasks(given)
        check_call(snapshot_every, max_chunk, checkpoint_every, dtype, objective, runs, progress, net, hidden)
        chosen = OBJECTIVES[objective] if isinstance(objective, str) else objective
        settings = resolve_settings(chosen, runs, engine, hyperparameters, len(tasks))
        check_tasks(tasks, chosen, settings)
        warn_of_frozen_rho(settings)
        check_solver(tasks[0], chosen, settings, net, start)
        begin = Start(start, settings) if start is not None and not isinstance(start, str) else None
        rule = as_rule(select)
        where = pick_device(device)
        if select == "worst-env":
            check_watched_environments(tasks, chosen)
        interval = snapshot_interval(snapshot_every, rule is not None, keep_states, settings)
        if blocks is not None:
            check_blocks(blocks, tasks, chosen, settings)
        check_patience(patience, interval, chosen)
        laid_out: Sequence[Task] = tasks
        if net is None and where.type == "cpu":
            widths = (tasks[0].train.x[0].numel(), *_layer_widths(None, tasks[0], settings))
            laid_out = equally_long(tasks, chosen, settings, widths)
        looks = (rule, interval, keep_states)
        return Call(
            laid_out, chosen, settings, net, *looks, where, dtype, begin, slopes, patience=patience, blocks=blocks
        )

    call = checked() if process_group is None else agreed(process_group, checked)
    kept = None if checkpoint is None else Checkpoint(Path(checkpoint), checkpoint_every, call)
    chunks = _plan(call, max_chunk if kept is None else kept.longest or max_chunk)
    if kept is not None:
        kept.begin(chunks)
    training = Training(call, as_tasks(given), runs, select, progress, kept)
    training.train(chunks)
    fitted = training.result()
    _warn_of_divergence(fitted)
    return fitted


class Training:
    """The chunks of a call: one after the other, or several at a time where a step of each is work for a core."""

    def __init__(
        self,
        call: Call,
        tasks: Sequence[Task],  # as they were given
        runs: Runs,
        select: str | Rule,
        progress: Callable[[Progress], None] | None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.call, self.tasks, self.runs, self.select, self.checkpoint = call, tasks, runs, select, checkpoint
        self.begun: dict[int, Program] = {}  # by their place among the chunks
        self.teller = Teller(progress, len(runs))

    def train(self, chunks: Sequence[Chunk]) -> None:
        largest = max(chunk.values_per_step for chunk in chunks)
        try:
            if self.call.device.type != "cpu":
                for piece in enumerate(chunks):
                    self._train(piece)
            elif len(chunks) == 1 and largest >= SEVERAL_THREADS:
                with one_thread_each(cores()):
                    self._train((0, chunks[0]))
            else:
                # messages between processes must come in one order
                in_turn = largest < WORK_FOR_A_CORE or self.call.ranks is not None
                most = 1 if in_turn else None
                side_by_side(self._train, enumerate(chunks), most, self.teller.stop)
        except KeyboardInterrupt:
            if self.begun:
                raise TrainingInterrupted(self.result()) from None
            raise  # before the first chunk has begun

    def _train(self, piece: tuple[int, Chunk]) -> None:
        place, chunk = piece
        program = self._kind(chunk)(chunk, self.call)
        if self.checkpoint is not None:
            program.keeper = Keeper(self.checkpoint, place)
        self.begun[place] = program
        program.run(self.teller.of(chunk))
        self.teller.finish(chunk)

    def _kind(self, chunk: Chunk) -> type[Program]:
        procedure = self.call.objective.procedure
        if procedure is not None:
            return PROCEDURES[procedure]
        return NewtonProgram if chunk.static["solver"] == "newton" else Program

    def result(self) -> FittedRuns:
        """The runs that have begun, in the order of `runs`: all of them, unless training was interrupted."""
        call, programs = self.call, [self.begun[place] for place in sorted(self.begun)]
        positions = [i for p in programs for i in p.chunk.runs]
        begun = sorted(positions)
        place = {run: i for i, run in enumerate(begun)}
        diverged = {place[p.chunk.runs[r]]: step for p in programs for r, step in p.guard.report().items()}
        history = None
        if call.snapshot_every is not None:
            history = History.of([p.snapshots for p in programs], torch.argsort(torch.tensor(positions)))
        return FittedRuns(
            objective=call.objective,
            runs=self.runs if len(begun) == len(self.runs) else self.runs.take(begun),
            tasks=tuple(self.tasks),
            settings=tuple(call.settings[i] for i in begun),
            chunks=tuple(p.fitted(place) for p in programs),
            history=history,
            diverged=dict(sorted(diverged.items())),
            select=self.select if isinstance(self.select, str) else getattr(self.select, "__name__", "custom"),
            seconds=self.teller.seconds,
        )


def _plan(call: Call, max_chunk: int | None) -> list[Chunk]:
    """The chunks of the call's runs, by what a step holds in cache and memory."""
    on_cpu = call.device.type == "cpu"
    keep_freed_memory()  # runs that train on a GPU are measured on the CPU
    task, settings, objective = call.tasks[0], call.settings, call.objective
    widths = _layer_widths(call.net, task, settings)
    chunks = plan(
        call.tasks,
        settings,
        PER_RUN | {h.name for h in objective.hyperparameters if h.per_run},
        # a component that weighs the rows holds a network like Phi
        width=_values_per_row(widths * (1 if objective.row_weights is None else 2), task, settings),
        widest=max(widths),
        # snapshots of runs that differ in the classifier have one shape only where they measure the same slopes
        words=frozenset({"start"} if call.slopes is None else {"start", "classifier"}),
        on_cpu=on_cpu,
        memory_bytes=free_memory(call.device),
        max_chunk=max_chunk,
    )
    if call.ranks is None:
        return chunks
    # chunks that fit on every rank: cut by the smallest, they are the same on all
    longest = min(call.ranks.tell(max(len(chunk.runs) for chunk in chunks)))
    return chunks if longest == max_chunk else _plan(replace(call, ranks=None), longest)


def _warn_of_divergence(fitted: FittedRuns) -> None:
    if fitted.diverged:
        which = shown(fitted.diverged.items(), form=lambda item: f"{item[0]}: {item[1]}")
        warnings.warn(
            f"{len(fitted.diverged)} of {len(fitted)} runs diverged and were frozen at their last finite state "
            f"(run: step {which}). Lower learning_rate or penalty_weight, or standardise x and y; the other runs are "
            "not affected.",
            stacklevel=users_stacklevel(),
        )


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
