"""Two processes under DistributedDataParallel equal one with the whole batch: losses, gradients, parameters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

import irmtv
from losses.several_ranks import CASES, train

pytestmark = [
    pytest.mark.time_limit(180),
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="this torch has no gloo"
    ),
]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("several_ranks.py")
    source = str(Path(irmtv.__file__).parents[1])
    local = (
        {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        if sys.platform == "linux"
        else {"PYTHONPATH": source}
    )
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), "2", str(folder)],
            env=os.environ | local,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [p.communicate(timeout=120)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert [p.returncode for p in processes] == [0, 0], "\n".join(said)
    return [torch.load(folder / f"2-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(two, case):
    alone = train(case, 0, 1)
    for rank in range(2):
        for what, values in alone.items():
            torch.testing.assert_close(
                two[rank]["results"][case][what],
                values,
                rtol=1e-10,
                atol=1e-12,
                equal_nan=True,
                msg=lambda text, what=what, rank=rank: f"{what} of rank {rank}: {text}",
            )


def test_messages_on_ranks(two):
    for rank in range(2):
        assert "n_environments must be given where a batch is spread over ranks" in two[rank]["said"][0]
    assert two[0]["said"][1] == "rank 0 went on alone"
