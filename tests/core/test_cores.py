"""Work side by side: the order of results, errors, and nothing of the process that stays changed."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
import torch

from irmtv.core import cores as module
from irmtv.core.cores import InOrder, cores, one_thread_each, side_by_side


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_pieces_with_one_thread_each(two_threads) -> None:
    second_is_done = threading.Event()

    def work(piece: int) -> tuple[int, int, int]:
        if piece == 0:
            assert second_is_done.wait(60)  # so both run at the same time
        elif piece == 1:
            second_is_done.set()
        return piece, torch.get_num_threads(), cores()

    assert side_by_side(work, range(3), most=2) == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("most", [1, 2])
def test_the_first_error_is_raised_and_threads_are_as_before(two_threads, most: int) -> None:
    begun, stopped = [], []

    def work(piece: int) -> None:
        begun.append(piece)
        if piece == 0:
            raise RuntimeError("the first")

    with pytest.raises(RuntimeError, match="the first"):
        side_by_side(work, range(50), most, stop=lambda: stopped.append(True))
    assert len(begun) < 50 and torch.get_num_threads() == 2
    assert stopped == ([] if most == 1 else [True])


def test_inside_the_cores_are_those_outside(two_threads, monkeypatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda who: {0, 1, 2}, raising=False)
    monkeypatch.setattr(module, "_of_container", lambda: 8)
    with one_thread_each():
        assert torch.get_num_threads() == 1 and cores() == 2
        with one_thread_each():
            assert cores() == 2
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2 and cores() == 2


def test_cores_are_no_more_than_affinity_and_container_allow(two_threads, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda who: {3}, raising=False)
    assert cores() == 1
    for said, expected in (("max 100000", 1 << 30), ("250000 100000", 2), ("50000 100000", 1), ("", 1 << 30)):
        (tmp_path / "cpu.max").write_text(said)
        assert module._of_container(str(tmp_path / "cpu.max")) == expected


def test_what_a_context_says_holds_in_the_pieces() -> None:
    said = ContextVar("said", default="nothing")
    said.set("here")
    assert side_by_side(lambda piece: said.get(), range(3), most=2) == ["here"] * 3


def test_results_are_handed_on_in_the_order_of_their_pieces() -> None:
    taken: list[str] = []
    ready = InOrder(taken.append)
    for i, after in [(2, ""), (0, "a"), (3, "a"), (1, "abcd"), (4, "abcde")]:
        ready.put(i, "abcde"[i])
        assert "".join(taken) == after
