"""Checkpoints: a training that was stopped continues from a file, to the same result, bit for bit on one process.

The file holds what steps have changed: parameters, the optimizers' moments, frozen runs, snapshots. All else is made
anew from the call, which must be the same: data and settings are described in the file and compared. Batches are drawn
again up to the step. It is safetensors with JSON beside the tensors and a digest of both. The file before it is kept as
NAME.before: a damaged one is noticed, and that one used.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from irmtv.core.files import try_to_write, write_synced
from irmtv.core.messages import shown, users_stacklevel
from irmtv.engine.agree import as_bytes, description, differences, rows_digest, together
from irmtv.engine.fitted import State
from irmtv.engine.networks import Module
from irmtv.engine.optim import Adam
from irmtv.engine.plan import Chunk, rows_per_step
from irmtv.engine.program import Call, Program
from irmtv.engine.snapshots import Snapshot
from irmtv.engine.solvers.linear_program import LinearProgram

FORMAT = "irmtv checkpoint 1"
MEASURED = tuple(f.name for f in fields(Snapshot) if f.name not in ("step", "on"))


@dataclass(frozen=True)
class Saved:
    """A chunk of runs before a step, on the way through the warm-up that stands for several runs, or on its own."""

    part: str  # "warm-up" or "runs"
    step: int
    tensors: Mapping[str, Tensor]


class Checkpoint:
    """The file of one call of `train`, and what it says."""

    def __init__(self, path: Path, every: int, call: Call) -> None:
        self.path, self.every, self.call = path, every, call
        self.before = path.with_name(path.name + ".before")
        self.about = _about(call)
        self.groups: list[list[int]] = []  # the runs of every chunk
        self.saved: dict[int, Saved] = {}  # by chunk
        self._sound = False  # whether the file at `path` may take the place of the one before
        self._lock = Lock()
        self._writes = call.ranks is None or call.ranks.rank == 0

        def read() -> tuple[dict[str, Tensor], Any, str] | None:
            check_supported(call)
            if self._writes:
                _check_folder(path)
            found = self._read()
            if found is not None and (changed := differences(found[1]["training"], self.about)):
                before, now = found[1]["training"], self.about
                each = (f"{name} was {before.get(name)}, is {now.get(name)}" for name in changed)
                raise ValueError(
                    f"checkpoint must be of the same training. Got {path}, of another one: {shown(each, form=str)}. "
                    "Make the call as it was, name another file, or delete this one to begin anew."
                )
            return found

        found = together(call.ranks, read)
        digest = None if found is None else found[2]
        if call.ranks is not None and len(set(call.ranks.tell(digest))) > 1:
            raise ValueError(
                f"checkpoint must be one file that all ranks read. Got another {path} on some of them, or none; name "
                "it in a folder that they share."
            )
        if found is not None:
            self._take(found[0], found[1]["chunks"])

    @property
    def longest(self) -> int | None:
        """Runs of the largest chunk in the file; None where there is none."""
        return max((len(group) for group in self.groups), default=None)

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Which runs train together: as in the file, where there is one."""
        groups = [list(chunk.runs) for chunk in chunks]
        if self.groups and groups != self.groups:
            raise ValueError(
                f"checkpoint {self.path} is of runs that trained together in groups of {self.longest}, for which there "
                "is not enough memory now. Free some, or delete the file to begin anew with smaller groups."
            )
        self.groups = groups

    def save(self, number: int, part: str, program: Program) -> None:
        """Write the state of a chunk, with those of the chunks before it."""
        if not self._writes:
            return
        with self._lock:  # chunks may train side by side
            self.saved[number] = Saved(part, program.context.step, state_of(program))
            chunks = [
                {"runs": runs} | ({"part": s.part, "step": s.step} if (s := self.saved.get(i)) else {})
                for i, runs in enumerate(self.groups)
            ]
            tensors = {f"{i}.{name}": v for i, s in self.saved.items() for name, v in s.tensors.items()}
            data = packed(tensors, {"training": self.about, "chunks": chunks})
            write_synced(self.path, data, self.before if self._sound else None)
            self._sound = True

    def _read(self) -> tuple[dict[str, Tensor], Any, str] | None:
        """Tensors, the JSON beside them and the digest, of the file or the one before; None where there is none."""
        damaged = []
        for path in (self.path, self.before):
            if not path.exists():
                continue
            try:
                found = unpacked(path.read_bytes())
            except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError):
                damaged.append(path)
                continue
            if damaged:
                warnings.warn(
                    f"{damaged[0]} is damaged; training continues from {path.name}, the checkpoint before it.",
                    stacklevel=users_stacklevel(),
                )
            self._sound = path == self.path
            return found
        if damaged:
            raise ValueError(
                f"checkpoint must be a file that train() wrote, or a new name. Got {shown(map(str, damaged), form=str)}"
                ", damaged or of another kind; delete or rename it to begin anew."
            )
        return None

    def _take(self, tensors: Mapping[str, Tensor], chunks: Sequence[Mapping[str, Any]]) -> None:
        self.groups = [[int(run) for run in chunk["runs"]] for chunk in chunks]
        for i, chunk in enumerate(chunks):
            if "step" in chunk:
                self.saved[i] = Saved(chunk["part"], int(chunk["step"]), _of(f"{i}.", tensors))


@dataclass(frozen=True)
class Keeper:
    """What a program asks for and tells about its checkpoints."""

    checkpoint: Checkpoint
    number: int  # of its chunk
    part: str = "runs"

    @property
    def every(self) -> int:
        return self.checkpoint.every

    def of_warmup(self) -> Keeper:
        """For the program that trains one run for several through their warm-up."""
        return Keeper(self.checkpoint, self.number, "warm-up")

    def save(self, program: Program) -> None:
        self.checkpoint.save(self.number, self.part, program)

    def put_back(self, program: Program) -> bool:
        """Make a new program what it was when it was saved; whether it was."""
        saved = self.checkpoint.saved.get(self.number)
        if saved is None or saved.part != self.part:
            return False
        put_back(program, saved)
        return True


def _check_folder(path: Path) -> None:
    """Before training, not after the first steps."""
    try:
        try_to_write(path)
    except OSError as error:
        raise ValueError(
            f"checkpoint must be a file in a folder that can be written. Got {path} ({error.strerror}); make the "
            "folder, or name another one."
        ) from error


def check_supported(call: Call) -> None:
    """What has no checkpoints, named."""
    objective = call.objective
    solved = objective.procedure == "columns" or any(s["solver"] != "adam" for s in call.settings)
    if call.blocks is not None and solved:
        return  # passes over blocks are kept
    others = any((objective.row_weights, objective.mask, objective.procedure))
    if others or objective.infers not in (None, "aux"):
        what = f"objective {objective.name!r}"
    elif solved:
        what = "solver='newton'"
    elif callable(call.net) or isinstance(call.net, Module):
        what = "a module of your own as net"
    else:
        return
    raise ValueError(
        f"checkpoint must be None here: there are no checkpoints of {what}. Objectives that are sums over "
        "environments, given or inferred from aux, have them, on networks of irmtv.engine trained by gradient steps."
    )


# ---- the state of a program --------------------------------------------------------------------------------------


def _adams(program: Program) -> list[Adam]:
    learner = program.step.weights.learner
    return [*program.step.optimizers(), *([] if learner is None else [learner.adam])]


def _moving(program: Program) -> dict[str, Tensor]:
    """The tensors that steps change in place, by name."""
    guard, step = program.guard, program.step
    moving = {"dead": guard.dead, "since": guard.since, "penalty weight": step.weights.last}
    for i, adam in enumerate(_adams(program)):
        moving |= {f"{i}.parameters": adam.parameters.vector, f"{i}.first": adam.first, f"{i}.second": adam.second}
        moving[f"{i}.rate"] = adam.rate
    if step.measure is not None:
        moving |= {"measure": step.measure.mu, "measure begun": step.measure.begun}
    return moving


def state_of(program: Program) -> dict[str, Tensor]:
    """Copies of all that steps have changed; of Newton's method the passes that were made over blocks."""
    if isinstance(program, LinearProgram):
        return {f"{key}.{i}": v.clone() for key, sums in program.log.items() for i, v in enumerate(sums)}
    state = {**_moving(program), "best score": program.best_score}
    state |= {f"{i}.steps": torch.as_tensor(adam.steps) for i, adam in enumerate(_adams(program))}
    if program.snapshots:
        state["snapshot.step"] = torch.tensor([s.step for s in program.snapshots])
        state |= {f"snapshot.{n}": torch.stack([getattr(s, n) for s in program.snapshots]) for n in MEASURED}
    whole = {f"kept.{step}.": s for step, s in program.kept.items()}
    whole |= {} if program.best is None else {"best.": program.best}
    for prefix, s in whole.items():
        state |= {f"{prefix}parameters.{n}": v for n, v in s.parameters.items()}
        state |= {f"{prefix}rho.{n}": v for n, v in (s.rho or {}).items()}
        state |= {f"{prefix}learned.{n}": v for n, v in s.learned.items()} | {f"{prefix}steps": s.steps}
    return {name: v.detach().cpu().clone(memory_format=torch.contiguous_format) for name, v in state.items()}


@torch.no_grad()
def put_back(program: Program, saved: Saved) -> None:
    """Into a program that has not begun."""
    tensors, device = saved.tensors, program.context.device
    if isinstance(program, LinearProgram):
        for key in dict.fromkeys(name.partition(".")[0] for name in tensors):
            sums = _of(f"{key}.", tensors)
            program.log[key] = [sums[str(i)] for i in range(len(sums))]
        return
    for name, value in _moving(program).items():
        value.copy_(tensors[name])
    for i, adam in enumerate(_adams(program)):
        steps = tensors[f"{i}.steps"]
        adam.steps = int(steps) if steps.ndim == 0 and not isinstance(adam.steps, Tensor) else steps.to(device)
    guard = program.guard
    guard.any_dead = not guard.on_cpu or bool(guard.dead.any())
    program.best_score = tensors["best score"].clone()
    snapshots = _of("snapshot.", tensors)
    if snapshots and program.watcher is not None:
        program.snapshots = [
            Snapshot(int(step), program.watcher.on, **{n: snapshots[n][i] for n in MEASURED})
            for i, step in enumerate(snapshots["step"])
        ]
    best = _of("best.", tensors)
    program.best = _state(best, program) if best else None
    kept = _of("kept.", tensors)
    program.kept = {s: _state(_of(f"{s}.", kept), program) for s in sorted({int(n.partition(".")[0]) for n in kept})}
    program.context.set_step(saved.step)
    program.step.rows.skip(saved.step)


def _state(tensors: Mapping[str, Tensor], program: Program) -> State:
    """In the order of the program's parameters: the file has its own."""
    parameters, rho, source = _of("parameters.", tensors), _of("rho.", tensors), program.step.source
    parameters = {name: parameters[name] for name in program.phi.views}
    in_order = None if source is None else {name: rho[name] for name in source.state()}
    return State(parameters, in_order, [], tensors["steps"], _of("learned.", tensors))


def _of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


# ---- the file ----------------------------------------------------------------------------------------------------


def packed(tensors: Mapping[str, Tensor], about: Any) -> bytes:
    """A safetensors file, with JSON and a digest of both in its header."""
    text = json.dumps(about)
    return safetensors.torch.save(dict(tensors), {"about": text, "format": FORMAT, "sha256": _digest(tensors, text)})


def unpacked(data: bytes) -> tuple[dict[str, Tensor], Any, str]:
    """Tensors, JSON and digest; a ValueError, KeyError or the like where the file is not as it was written."""
    tensors = safetensors.torch.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    if header["format"] != FORMAT or header["sha256"] != _digest(tensors, header["about"]):
        raise ValueError("not as it was written")
    return tensors, json.loads(header["about"]), header["sha256"]


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(as_bytes(value))
    return digest.hexdigest()


def _about(call: Call) -> dict[str, Any]:
    """What must be the same to continue; as JSON gives it back."""
    ranks = call.ranks
    about = description(call)
    if ranks is None:
        about["rows"] = [rows_digest(task) for task in call.tasks]
        if call.blocks is not None:
            about["blocks"] = [list(each) for each in call.blocks.rows_of_blocks]
    else:  # a training may continue on another number of ranks, where batches do not depend on it
        about["rows"] = ranks.total
        mini = any(rows_per_step(s["batch_size"], ranks.total) < ranks.total for s in call.settings)
        about["ranks"] = list(ranks.n_rows) if mini else "any"
    return dict(json.loads(json.dumps(about)))
