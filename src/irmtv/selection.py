"""Which state of a run to keep, from snapshot records alone.

`fixed` keeps the last step. `iid` keeps the step with the lowest held-out risk, `worst-env` the one with
the lowest held-out risk of the worst environment: both prefer spurious features as long as these pay in the
training environments, so neither is a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean


class Record(Protocol):
    """The part of a snapshot that a rule reads."""

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


RULES: Mapping[str, Rule | None] = {"fixed": None, "iid": iid, "worst-env": worst_environment}


def as_rule(select: str | Rule) -> Rule | None:
    """A rule by its name, or a function of a snapshot that gives one number per run (lower is better)."""
    if callable(select):
        return select
    if not isinstance(select, str) or select not in RULES:
        raise ValueError(
            f"select must be one of {sorted(RULES)} or a function of a snapshot. Got {select!r}."
            f"{did_you_mean(select, RULES)}"
        )
    return RULES[select]
