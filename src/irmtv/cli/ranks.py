"""The processes of one command that torchrun starts several times (`--distributed`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

MEET = 300  # seconds in which all processes must have started
WAIT = timedelta(hours=6)  # for processes that are slower; one that dies is noticed at once
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells every process
START = "torchrun --standalone --nproc-per-node=2 -m irmtv fit FOLDER ... --distributed"


@contextmanager
def process_group(distributed: bool) -> Iterator[Any]:
    """The group of all processes, which ends with the block; None where there is one process alone."""
    if not distributed:
        if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError(
                "torchrun has started several processes, each of which would do the whole work. Add --distributed, or "
                "start irmtv without torchrun."
            )
        yield None
        return
    missing = [name for name in NEEDED if name not in os.environ]
    if missing:
        raise ValueError(f"--distributed needs processes that torchrun starts ({missing[0]} is not set). Use: {START}")
    from torch import distributed as torch_distributed
    from torch.distributed import distributed_c10d
    from torch.distributed.rendezvous import rendezvous

    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=MEET)))
        if os.environ.get("LOCAL_WORLD_SIZE") == str(size):  # other machines may count otherwise
            # torchrun gives ranks that it starts again the store of those that are gone, with their addresses
            store = distributed_c10d.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        torch_distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=WAIT)
    except (RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at "
            f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} ({reason}). Is the port in use by another "
            "program, or closed between the machines? torchrun --standalone takes a free one; "
            "--rdzv-endpoint HOST:PORT names one."
        ) from error
    from irmtv.core.ranks import LostRankError

    try:
        yield torch_distributed.group.WORLD
    except LostRankError as error:  # no mistake of the program: a line, not a traceback
        raise ValueError(str(error)) from error
    finally:
        torch_distributed.destroy_process_group()


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return int(os.environ.get("RANK", "0")) == 0
