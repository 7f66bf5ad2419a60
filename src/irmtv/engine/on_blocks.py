"""What `train` can do on rows that come in blocks, and whether the blocks are those of its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from irmtv.core.types import Task
from irmtv.data.blocks import BlockSource
from irmtv.objectives.base import Objective

ABLE = "erm, irm-tv-l1, irm-tv-l2, vrex, groupdro, minimax-tv-l1, minimax-tv-l2 and their kind"


def check_blocks(
    blocks: BlockSource, tasks: Sequence[Task], objective: Objective, settings: Sequence[Mapping[str, Any]]
) -> None:
    """Whether these runs can be trained on blocks, of which the one task has a sample."""
    if len(tasks) > 1:
        raise ValueError(
            f"task must be one Task, a sample of the blocks. Got {len(tasks)}; call train() once for each."
        )
    rows = tasks[0].train
    columns = rows.x[0].numel()
    if blocks.n_features != columns or rows.x.ndim > 2:
        raise ValueError(
            f"blocks must have the columns of the task, a sample of them: {tuple(rows.x.shape[1:])}. Got "
            f"{blocks.n_features}. Prepare both in the same way."
        )
    if tuple(blocks.names) != tuple(rows.names):
        raise ValueError(
            f"blocks must have the environments of the task, in this order: {list(rows.names)}. Got "
            f"{list(blocks.names)}. Draw the sample from every environment."
        )
    if rows.weight is not None:
        raise ValueError("blocks have no sample weights, and neither can their sample. Got weights; leave them out.")
    _check_method(objective, settings)


def _check_method(objective: Objective, settings: Sequence[Mapping[str, Any]]) -> None:
    """What reads rows in a way of its own, named."""
    of_newton = all(s["solver"] == "newton" for s in settings)
    own_way = (objective.row_weights, objective.mask, objective.procedure not in (None, "columns"), objective.choose)
    if any(own_way) or objective.infers not in (None, "aux"):
        raise ValueError(
            f"objective must be one of sums over environments where rows come in blocks: {ABLE}. Got "
            f"{objective.name!r}; choose one of them, or train on a sample."
        )
    if any(s["layer"] is not None for s in settings):
        raise ValueError("layer must be None where rows come in blocks. Got a number; train on a sample with it.")
    by_steps = objective.procedure is None and not of_newton
    if by_steps and any(s["batch_size"] is None for s in settings):
        raise ValueError("batch_size must be a number, or 'auto', where rows come in blocks. Got None; use 2048.")
    if by_steps and any(s["solver"] == "newton" for s in settings):
        raise ValueError("solver must be one for all runs where rows come in blocks. Got several; make two calls.")
