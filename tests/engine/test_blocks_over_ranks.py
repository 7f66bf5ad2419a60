"""Ranks with blocks of their own find the model of one process that has all blocks."""

from __future__ import annotations

import pytest
import torch
from torch import distributed

from engine.blocks_over_ranks import CASES, blocks, main, parameters, task
from engine.several_ranks import spawned
from irmtv.data.blocks import RowsInBlocks

pytestmark = [
    pytest.mark.time_limit(300),
    pytest.mark.slow,
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()), reason="this torch has no gloo"
    ),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each of two ranks found."""
    return spawned(main, tmp_path_factory.mktemp("ranks"), 2)


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_have_the_same_model(ranks, case):
    assert torch.equal(ranks[0][case], ranks[1][case])


@pytest.mark.parametrize("case", [case for case in CASES if case != "network"])
def test_the_model_is_that_of_one_process(ranks, case):
    kind, objective, settings = CASES[case]
    alone = parameters(kind, objective, settings, RowsInBlocks(blocks(task(kind).train)), None)
    assert torch.allclose(ranks[0][case], alone, rtol=1e-7, atol=1e-9)


def test_what_is_wrong_on_one_rank_is_an_error_on_all(ranks):
    assert "Leave files alone" in ranks[1]["said"]
    assert "rank 1 has ValueError" in ranks[0]["said"]
    assert "Leave files alone" in ranks[0]["said"]
