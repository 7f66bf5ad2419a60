"""Rows that several processes (ranks) have parts of: sums over environments run over the rows of all.

An objective is a function F of a few sums T = sum_r T_r, where rank r holds T_r of its own rows. Its gradient is
F'(T) sum_r dT_r. Every rank knows F'(T) once T is summed, so rank r can go back through its own rows alone, and nothing
is sent in the backward pass: what ranks have then are the parts of the gradient, which are summed once more.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


class LostRankError(RuntimeError):
    """Another process of the group is gone, or has not answered in time."""


@contextmanager
def _all_answer() -> Iterator[None]:
    """An error that says what it means where another process is gone."""
    try:
        yield
    except RuntimeError as error:  # of gloo, NCCL and their timeouts
        raise LostRankError(
            "another rank was lost, or did not answer within the timeout of the process group. Look at what the other "
            "ranks say. torchrun --max-restarts=3 starts all of them again, and with checkpoint=... training continues "
            "from the last one that was written."
        ) from error


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, group: Any, factor: int) -> Tensor:
        ctx.factor = factor
        total = local.clone(memory_format=torch.contiguous_format)
        with _all_answer():
            distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * ctx.factor, None, None


def sum_over_ranks(local: Tensor, group: Any = None, factor: int = 1) -> Tensor:
    """The sum over all ranks of a tensor that has one shape on all; its gradient is this rank's part times `factor`."""
    return _SumOverRanks.apply(local, group, factor)  # type: ignore[no-untyped-call, no-any-return]  # torch does not annotate it


@dataclass(frozen=True)
class Ranks:
    """The processes of a group of torch.distributed, each with rows of its own.

    The group is not kept alive: what a training leaves to the garbage collector would keep it beyond
    destroy_process_group(), and threads of a group that is still there when Python ends can abort the process.
    """

    reference: weakref.ReferenceType[Any]  # to a ProcessGroup, which the caller of `train` holds
    n_rows: tuple[int, ...] = ()  # of every rank, once they have told each other

    @classmethod
    def of(cls, group: Any) -> Ranks:
        return cls(weakref.ref(group))

    @property
    def group(self) -> Any:
        group = self.reference()
        assert group is not None  # None would mean the group of all processes to torch.distributed
        return group

    @property
    def rank(self) -> int:
        """The number of this process in the group."""
        return distributed.get_rank(self.group)

    @property
    def size(self) -> int:
        """How many processes there are."""
        return distributed.get_world_size(self.group)

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.n_rows)

    def add(self, local: Tensor) -> Tensor:
        """The sum over the ranks; its gradient is this rank's part of the whole."""
        return sum_over_ranks(local, self.group)

    def add_(self, local: Tensor) -> None:
        """The sum over the ranks, in place and without a graph."""
        with _all_answer():
            distributed.all_reduce(local, group=self.group)

    def greatest(self, local: Tensor) -> Tensor:
        """Of every element, the greatest of all ranks."""
        found = local.clone(memory_format=torch.contiguous_format)
        with _all_answer():
            distributed.all_reduce(found, op=distributed.ReduceOp.MAX, group=self.group)
        return found

    def of_first(self, local: Tensor) -> Tensor:
        """What the first rank has, on all of them."""
        return self.add(local if self.rank == 0 else torch.zeros_like(local))

    def tell(self, value: Any) -> list[Any]:
        """What every rank says, in their order: anything that JSON can hold."""
        nccl = distributed.get_backend(self.group) == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device)
        sizes = [mine.new_zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size(self.group))]
        with _all_answer():
            distributed.all_gather(sizes, torch.tensor([len(mine)], device=device), group=self.group)
        padded = mine.new_zeros(int(max(sizes)))
        padded[: len(mine)] = mine
        every = [torch.empty_like(padded) for _ in sizes]
        with _all_answer():
            distributed.all_gather(every, padded, group=self.group)
        return [json.loads(bytes(text[: int(size)].tolist()).decode()) for text, size in zip(every, sizes, strict=True)]
