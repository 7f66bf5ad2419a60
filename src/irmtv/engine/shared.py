"""Runs that differ only in what acts after the warm-up are one run until then: it is trained once.

A path of penalty weights costs one warm-up, not one for each weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.engine.optim import Adam, FlatParameters
from irmtv.engine.plan import Chunk
from irmtv.engine.start import Start
from irmtv.objectives.base import Objective
from irmtv.objectives.parameters import warmup_steps

# settings that nothing reads before the penalty acts
LATE = frozenset({"penalty_weight", "max_penalty_weight", "weight_learning_rate", "penalty_ramp"})


def leaders(
    chunk: Chunk, objective: Objective, settings: Sequence[Mapping[str, Any]], start: Start | None = None
) -> tuple[Chunk, Tensor, int] | None:
    """The runs to train in place of all, for every run of the chunk its leader (R,), and until which step.

    None where nothing is gained, or where somebody else acts in the warm-up whose state is not followed here.
    """
    static = chunk.static
    others = objective.row_weights or objective.mask or objective.procedure
    learned = objective.measure_of(static) == "learned"
    # whoever climbs several penalties weighs them by their lambdas
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


def follow(
    mine: Iterator[tuple[FlatParameters, Adam]], theirs: Iterator[tuple[FlatParameters, Adam]], place: Tensor
) -> None:
    """Take parameters and moments of the leaders."""
    for (parameters, adam), (leading, their_adam) in zip(mine, theirs, strict=True):
        for vector, their_vector in (
            (parameters.vector, leading.vector),
            (adam.first, their_adam.first),
            (adam.second, their_adam.second),
        ):
            own, other = parameters.by_name(vector), leading.by_name(their_vector)
            for name, values in own.items():
                values.copy_(other[name][place.to(values.device)])
        if isinstance(adam.steps, Tensor):
            adam.steps.copy_(torch.as_tensor(their_adam.steps))
        else:
            adam.steps = their_adam.steps
