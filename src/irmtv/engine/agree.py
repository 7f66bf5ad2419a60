"""Several processes train together only if they train the same thing: they say so to each other before they begin.

Whatever one of them finds wrong is an error on all: a process that left without a word would keep the others waiting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed

from irmtv._version import __version__
from irmtv.core.messages import shown
from irmtv.core.ranks import LostRankError, Ranks
from irmtv.core.types import Task
from irmtv.engine.networks import Module
from irmtv.engine.program import Call

Result = TypeVar("Result")


def agreed(group: Any, prepare: Callable[[], Call]) -> Call:
    """The call that `prepare` checks, where all processes of the group make the same one on rows of their own."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError(
            "process_group must be a group of torch.distributed that has been initialised. Got none that is; call "
            "torch.distributed.init_process_group(...) first, and pass torch.distributed.group.WORLD."
        )
    if not isinstance(group, distributed.ProcessGroup):
        raise ValueError(
            f"process_group must be a torch.distributed.ProcessGroup. Got {type(group).__name__}; pass "
            "torch.distributed.group.WORLD, or what torch.distributed.new_group(...) gives its members."
        )
    ranks = Ranks.of(group)

    def mine() -> Call:
        call = prepare()
        _check_supported(call, group)
        return call

    call = together(ranks, mine)
    own = len(call.tasks[0].train) if call.blocks is None else call.blocks.n_rows
    told = ranks.tell({"rows": own, "asks": description(call)})
    _check_told(told)
    return replace(call, ranks=replace(ranks, n_rows=tuple(one["rows"] for one in told)))


def together(ranks: Ranks | None, prepare: Callable[[], Result]) -> Result:
    """What `prepare` gives here, where it gives something on all ranks; an error of one is an error of all."""
    if ranks is None:
        return prepare()
    result, wrong = None, None
    try:
        result = prepare()
    except Exception as error:  # told to the others, and raised below
        wrong = error
    try:
        told = ranks.tell(None if wrong is None else f"{type(wrong).__name__}: {wrong}")
    except RuntimeError as error:
        raise LostRankError(
            "train(..., process_group=...) waited in vain for the other ranks: all must call it, within the timeout of "
            "the process group (init_process_group(timeout=...)). Look at what the others say."
        ) from error
    if wrong is not None:
        try:
            raise wrong
        finally:
            wrong = None  # with its traceback it would hold this frame, and so the group, in a cycle
    refused = [f"rank {rank} has {error}" for rank, error in enumerate(told) if error is not None]
    if refused:
        raise ValueError(
            f"all ranks must be able to train. Got an error on {len(refused)} of {len(told)}: "
            f"{shown(refused, 1, form=str)}"
        )
    return cast(Result, result)


def description(call: Call) -> dict[str, Any]:
    """All that makes a training what it is, except for the rows: names and texts that JSON can hold."""
    task = call.tasks[0].train
    settings = {name: [repr(s.get(name)) for s in call.settings] for name in call.settings[0]}
    start = None if call.start is None else [call.start.key(run) for run in range(len(call.settings))]
    return {
        "irmtv": __version__,
        "objective": f"{call.objective.name}: {call.objective.formula}",
        **{name: values if len(set(values)) > 1 else values[0] for name, values in settings.items()},
        "number of runs": len(call.settings),
        "net": None if call.net is None else f"{type(call.net).__name__} {getattr(call.net, 'shapes', '')}",
        "start parameters": None if start is None else hashlib.sha256(repr(start).encode()).hexdigest()[:16],
        "select": getattr(call.rule, "__name__", "fixed" if call.rule is None else "custom"),
        "snapshot_every": call.snapshot_every,
        "keep_states": call.keep_states,
        "slopes of snapshots": call.slopes,
        "patience": call.patience,
        "dtype": str(call.dtype),
        "features": repr(tuple(task.x.shape[1:])),
        "loss": call.tasks[0].loss.name,
        "number of outputs": call.tasks[0].n_outputs,
        "names of the environments": repr(task.names),
        "environments": "given" if task.environment is not None else "not given",
        "aux columns": 0 if task.aux is None else task.aux.shape[1],
        **({} if call.blocks is None else {"sample of the blocks": rows_digest(call.tasks[0])}),
    }


def rows_digest(task: Task) -> str:
    """What tells rows from others."""
    digest = hashlib.sha256()
    for rows in (task.train, task.held_out):
        for value in () if rows is None else (rows.x, rows.y, rows.environment, rows.aux, rows.weight):
            digest.update(b"none" if value is None else as_bytes(value))
    return f"{len(task.train)} rows, digest {digest.hexdigest()[:16]}"


def as_bytes(value: Tensor) -> Any:
    """What a tensor holds, not copied where it need not be."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of what differs between two descriptions."""
    return [name for name in dict.fromkeys([*mine, *other]) if mine.get(name) != other.get(name)]


def _check_told(told: Sequence[Mapping[str, Any]]) -> None:
    """The same error on every process, whichever it is that is wrong."""
    for (a, one), (b, other) in pairwise(enumerate(told)):
        names = differences(one["asks"], other["asks"])
        if names:
            each = (f"{n} is {one['asks'].get(n)} on rank {a}, {other['asks'].get(n)} on rank {b}" for n in names)
            raise ValueError(
                f"all ranks must train the same thing on rows of one kind. Got differences: {shown(each, form=str)}. "
                "Make the same call on every rank; environments are numbered by one list of names on all ranks, also "
                "where a rank has no row of some (Rows(..., names=...))."
            )


def _check_supported(call: Call, group: Any) -> None:
    """What cannot be trained over several processes, named."""
    objective, static = call.objective, call.settings
    task = call.tasks[0]

    def refuse(what: str, got: str, instead: str) -> None:
        raise ValueError(f"{what} with process_group. Got {got}. {instead}")

    if len(call.tasks) > 1:
        refuse("task must be one Task", f"{len(call.tasks)}", "Call train() once for each.")
    in_blocks = call.blocks is not None
    procedure = None if in_blocks and objective.procedure == "columns" else objective.procedure
    parts = (objective.row_weights, objective.mask, procedure)
    if any(parts) or objective.infers not in (None, "aux"):
        able = "erm, irm-tv-l1, irm-tv-l2, vrex, groupdro, minimax-tv-l1, minimax-tv-l2 and their kind"
        refuse("objective must be one of sums over environments", repr(objective.name), f"Use one of {able}.")
    if any((s["solver"] != "adam" and not in_blocks) or s["layer"] is not None for s in static):
        refuse("solver must be 'adam', and layer None,", "others", "Train on one process, or by gradient steps.")
    if any(s["start"] not in (None, "small", "random") for s in static) and not in_blocks:
        refuse("start must be parameters, 'small' or 'random'", shown({s["start"] for s in static}), "Use one of them.")
    if call.snapshot_every is not None and not in_blocks:  # of blocks all ranks have one sample
        refuse(
            "snapshots, and select other than 'fixed', cannot be had", f"snapshot_every={call.snapshot_every}",
            "Leave them out, and measure what was fitted: fitted.evaluate(rows).",
        )  # fmt: skip
    if isinstance(call.net, Module) or not (call.net is None or hasattr(call.net, "prepare")):
        refuse(
            "net must be a network of irmtv.engine", "a module of your own",
            "Use hidden=..., MLP or Conv1d; for modules, irmtv.losses works under DistributedDataParallel.",
        )  # fmt: skip
    if task.train.weight is not None and not bool((task.train.weight == 1).all()):
        refuse("sample_weight must be left out", "weights", "make_task scales them rank by rank; train without them.")
    backend = distributed.get_backend(group)
    if (backend == "nccl") != (call.device.type == "cuda"):
        refuse(
            "device must suit the backend, 'cuda' for nccl and 'cpu' for gloo,", f"{call.device} and {backend}",
            "Change one of them.",
        )  # fmt: skip
