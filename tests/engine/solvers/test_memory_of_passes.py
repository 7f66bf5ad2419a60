"""What passes over blocks found does not pile up: with many columns and environments it is most of the memory."""

from __future__ import annotations

import gc

import torch

from engine.problems import task_of
from irmtv.data.blocks import RowsInBlocks
from irmtv.engine.solvers.block_risks import BlockRows


def hessians(shape: tuple[int, ...]) -> int:
    """Numbers in tensors of these last dimensions, each storage once."""
    found = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() // 8
        for one in gc.get_objects()
        if type(one) is torch.Tensor and one.dtype == torch.float64 and tuple(one.shape[-3:]) == shape
    }
    return sum(found.values())


def test_models_of_earlier_passes_are_forgotten():
    task = task_of(n=120, environments=3, features=6)
    rows = BlockRows(RowsInBlocks.cut(task.train, [50, 70]), 3, task.loss, 1)
    rows.after_pass = rows.log.clear
    first = torch.zeros(1, dtype=torch.long)
    held, generator = [], torch.Generator().manual_seed(0)
    for k in range(6):
        theta = torch.randn(2, 7, dtype=torch.float64, generator=generator)
        rows.look_ahead(theta)
        for one in theta.split(1):
            rows.at(one, first)
        if k in (1, 5):
            held.append(hessians((3, 7, 7)))
    assert rows.passes == 6  # the second model of each was looked at with the first
    assert held[0] == held[1] < 6 * 2 * 3 * 49
