"""One number per candidate from what was measured on held-out rows; lower is better.

Both prefer spurious features as long as these pay in the training environments, so neither is a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean


class Record(Protocol):
    """The part of a snapshot, or of many candidates' records, that a score reads."""

    @property
    def rows(self) -> Tensor:  # (R, E)
        ...

    @property
    def risk(self) -> Tensor:  # (R, E)
        ...


Rule = Callable[[Record], Tensor]  # -> (R,), lower is better


def iid(record: Record) -> Tensor:
    """Risk over all rows: (R,)."""
    there = record.rows > 0
    return torch.where(there, record.rows * record.risk, 0).sum(-1) / record.rows.sum(-1)


def worst_environment(record: Record) -> Tensor:
    """Risk of the worst environment that has rows: (R,)."""
    return record.risk.masked_fill(record.rows <= 0, -torch.inf).amax(-1)


STREAMING: Mapping[str, Rule | None] = {"fixed": None, "iid": iid, "worst-env": worst_environment}


AFTERWARDS = ("invariance", "leave-one-env-out", "oracle")


def as_rule(select: str | Rule) -> Rule | None:
    """What `train(select=...)` keeps each run's best state by: a name, or a function of a snapshot.

    Only rules that score one snapshot of one run can work while training goes on; the others of
    :data:`irmtv.selection.RULES` compare all candidates and choose afterwards (:func:`irmtv.selection.choose`).
    """
    if callable(select):
        return select
    if isinstance(select, str) and select in AFTERWARDS:
        raise ValueError(
            f"select={select!r} compares all candidates, so it chooses after training: irmtv.selection.choose, or an "
            f"experiment with this rule (irmtv run). While training, select is one of {sorted(STREAMING)}."
        )
    if not isinstance(select, str) or select not in STREAMING:
        raise ValueError(
            f"select must be one of {sorted(STREAMING)} or a function of a snapshot. Got {select!r}."
            f"{did_you_mean(select, STREAMING)}"
        )
    return STREAMING[select]
