"""Which candidates of a search are also trained without each part of the environments, and what that says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from irmtv.models.base import PathTrainer, TrainedPath
from irmtv.selection import Records
from irmtv.selection.invariant import worth_leaving_out, would_be_taken


@dataclass(frozen=True)
class Candidate:
    """One combination at one of its steps."""

    combination: int  # its place in `Search.paths`
    step: int


def asked_again(
    trainer: PathTrainer,
    records: Records,
    paths: Sequence[TrainedPath],
    candidates: Sequence[Candidate],
    options: Mapping[str, Any],
) -> Records:
    """The records with what environments say of the candidate that the rule would take: do some want more of it than
    ERM has, and others less? Nothing is taken that was not left out, where something was."""
    index = would_be_taken(records, **options)
    while index is not None and records.left_out is not None and bool(records.left_out[index].isnan().any()):
        begin = perf_counter()
        records = _left_out_too(trainer, records, paths, candidates, torch.arange(len(candidates)) == index)
        trainer.left_out_seconds += perf_counter() - begin
        index = would_be_taken(records, **options)
    if index is None:
        return records
    erm, other = candidates[records.plain], candidates[index]
    toward = trainer.toward(paths[erm.combination], erm.step, paths[other.combination], other.step)
    return replace(records, toward=toward)


def with_left_out(
    trainer: PathTrainer,
    records: Records,
    paths: Sequence[TrainedPath],
    candidates: Sequence[Candidate],
    rule: str,
    options: Mapping[str, Any],
) -> Records:
    """The records with risks in environments that were left out: of ERM, and of what the rule may look at; else NaN."""
    begin = perf_counter()
    everything = torch.ones(len(candidates), dtype=torch.bool)
    if rule == "invariance":
        erm = torch.arange(len(candidates)) == records.plain
        records = _left_out_too(trainer, records, paths, candidates, erm)
        everything = worth_leaving_out(records, **options)
    records = _left_out_too(trainer, records, paths, candidates, everything)
    trainer.left_out_seconds += perf_counter() - begin
    return records


def _left_out_too(
    trainer: PathTrainer,
    records: Records,
    paths: Sequence[TrainedPath],
    candidates: Sequence[Candidate],
    wanted: Tensor,
) -> Records:
    """The records with these candidates (C,) left out, too, and with them all steps of their combinations.

    A model that diverged there, or did not get there, has an infinite risk.
    """
    chosen = dict.fromkeys(c.combination for i, c in enumerate(candidates) if wanted[i])
    trainer.leave_out([paths[c] for c in chosen if paths[c].without is None])
    left_out = torch.full((len(candidates), len(trainer.split.left_out)), torch.nan, dtype=torch.float64)
    for i, c in enumerate(candidates):
        risk = paths[c.combination].left_out(c.step)
        if risk is not None:
            left_out[i] = risk[:, 0].nan_to_num(torch.inf, torch.inf)
    return replace(records, left_out=left_out)
