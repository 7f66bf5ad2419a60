"""Which runs train together.

`plan`: runs whose static settings differ (a width, a measure, a schedule) or whose data have other shapes cannot
share a tensor program; the rest can. A program is cut further where its tensors would leave the cache (throughput
falls) or the memory.

`leaders`: runs that differ only in what acts after the warm-up are one run until then, which is trained once. A path
of penalty weights costs one warm-up, not one for each weight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv.core.losses import Binary, Loss, Multiclass, Squared
from irmtv.core.types import Task
from irmtv.engine.start import Start
from irmtv.objectives.base import Objective, warmup_steps

# Elements of the largest activation tensor over all runs of a chunk. Measured by `benchmarks/chunks.py`: below it a
# step's fixed cost is not spread over enough runs, above it tensors fall out of the cache. Also those of x over all
# data sets of a chunk that reads all rows at every step: ten of Adult's took a third longer together than in turns.
CACHE_ELEMENTS = 1 << 20
MEMORY_SHARE = 0.4
FOR_TWO = 1 << 19  # elements of a step from which on two chunks are worth the calls of the second
FULL_BATCH_BELOW, BATCH_ROWS = 100_000, 1024  # batch_size="auto"
# settings that nothing reads before the penalty acts
LATE = frozenset({"penalty_weight", "max_penalty_weight", "weight_learning_rate", "penalty_ramp"})


def rows_per_step(batch_size: int | str | None, n_rows: int) -> int:
    """How many rows a step reads: all of them without `batch_size`, and with "auto" where there are not many."""
    if batch_size == "auto":
        return n_rows if n_rows < FULL_BATCH_BELOW else BATCH_ROWS
    return n_rows if batch_size is None else min(int(batch_size), n_rows)


@dataclass(frozen=True)
class Chunk:
    """Runs that train together: T data sets with K runs on each, in that order."""

    runs: tuple[int, ...]  # R = T K positions in the caller's Runs, data set by data set
    data: tuple[int, ...]  # T
    static: Mapping[str, Any]  # settings that all of them share
    values_per_step: int = 0  # of the widest layer, over all runs; of Newton's method, whose steps are others, 0


def plan(
    tasks: Sequence[Task],
    settings: Sequence[Mapping[str, Any]],  # one per run: every setting resolved
    per_run: frozenset[str],  # settings that may differ inside a chunk
    width: int,  # values per row and run that a step holds, roughly
    on_cpu: bool,
    memory_bytes: float,
    max_chunk: int | None = None,
    widest: int = 1,  # values per row and run in the widest layer's output
    words: frozenset[str] = frozenset(),  # settings in words that may differ inside a chunk of Newton's method
) -> list[Chunk]:
    """Chunks in a fixed order, so that the same call always gives the same groups."""
    groups: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, s in enumerate(settings):
        task = tasks[s["data"]]
        shape = (tuple(task.train.x.shape), len(task.train.names), _shape(task.held_out), task.n_outputs)
        # a word in place of a number is another way of training
        free = words if s.get("solver") == "newton" else ()
        static = tuple(
            (k, _freeze(v)) for k, v in sorted(s.items()) if k not in free and (k not in per_run or isinstance(v, str))
        )
        groups[(static, _which(task.loss), shape)][s["data"]].append(i)
    chunks = []
    for (_, _, shape), by_data in groups.items():
        by_count: dict[int, list[int]] = defaultdict(list)
        for data, members in by_data.items():
            by_count[len(members)].append(data)
        n_rows = shape[0][0]
        for count, sets in by_count.items():
            shared = settings[by_data[sets[0]][0]]
            per_step = rows_per_step(shared.get("batch_size"), n_rows)
            limit = _runs_per_chunk(n_rows, per_step, width, widest, on_cpu, memory_bytes, max_chunk)
            values = 0 if shared.get("solver") == "newton" else per_step * widest
            parts: list[tuple[Sequence[int], Sequence[int]]]  # data sets, and runs on them
            if count > limit:  # many runs on few data sets: cut the runs, one data set at a time
                parts = [([d], part) for d in sets for part in _pieces(by_data[d], limit)]
            else:
                most = len(sets)
                if on_cpu:
                    most = -(-most // _at_a_time(count * most * values))
                    if values and per_step == n_rows:
                        most = min(most, CACHE_ELEMENTS // math.prod(shape[0]))
                together = _pieces(sets, max(1, min(most, limit // count)))
                parts = [(part, [i for d in part for i in by_data[d]]) for part in together]
            chunks += [Chunk(tuple(runs), tuple(data), shared, len(runs) * values) for data, runs in parts]
    return chunks


def _at_a_time(values: int) -> int:
    """Into how many chunks data sets are put whose steps have so many values in all, so that cores can share them.

    It does not depend on how many cores there are: neither do the results.
    """
    return 1 if values < FOR_TWO else 2 if values < 4 * FOR_TWO else 4


def leaders(
    chunk: Chunk, objective: Objective, settings: Sequence[Mapping[str, Any]], start: Start | None = None
) -> tuple[Chunk, Tensor, int] | None:
    """The runs to train in place of all, for every run of the chunk its leader (R,), and until which step.

    None where nothing is gained, or where a component acts in the warm-up whose state cannot be copied.
    """
    static = chunk.static
    others = objective.row_weights or objective.mask or objective.procedure
    learned = objective.measure_of(static) == "learned"
    # environments that climb several penalties weigh them by their lambdas
    early = objective.infers is not None and len(objective.penalties) > 1
    if others or learned or early or not objective.penalties or not objective.silent_in_warmup:
        return None
    until = min(warmup_steps(settings[i]["warmup"], static["steps"]) for i in chunk.runs)
    until = min(until, int(static["steps"]))
    per_set = len(chunk.runs) // len(chunk.data)
    runs: list[int] = []
    place: list[int] = []
    counts = set()
    for t in range(len(chunk.data)):
        known: dict[Any, int] = {}
        for i in chunk.runs[t * per_set : (t + 1) * per_set]:
            key: Any = tuple((k, repr(v)) for k, v in sorted(settings[i].items()) if k not in LATE)
            key = key if start is None else (key, start.key(i))
            if key not in known:
                known[key] = len(runs)
                runs.append(i)
            place.append(known[key])
        counts.add(len(known))
    if until == 0 or len(runs) == len(chunk.runs) or len(counts) > 1:
        return None
    return replace(chunk, runs=tuple(runs)), torch.tensor(place), until


def _pieces(items: Sequence[int], limit: int) -> list[Sequence[int]]:
    """Cut into as few pieces as fit, of nearly equal size."""
    return [piece.tolist() for piece in np.array_split(items, -(-len(items) // limit))]


def _runs_per_chunk(
    n_rows: int, per_step: int, width: int, widest: int, on_cpu: bool, memory_bytes: float, limit: int | None
) -> int:
    by_memory = int(MEMORY_SHARE * memory_bytes / (n_rows * width * 8))
    by_cache = max(4, CACHE_ELEMENTS // (per_step * widest)) if on_cpu else by_memory
    return max(1, min(by_memory, by_cache, limit or by_memory))


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return value


def _which(loss: Loss) -> Any:
    """Equal for losses that are the same: a built-in one, or one function of the user's."""
    return type(loss) if type(loss) in (Binary, Multiclass, Squared) else id(getattr(loss, "fn", loss))


def _shape(rows: Any) -> Any:
    return None if rows is None else tuple(rows.x.shape)
