"""Work side by side gives what work in order gives; errors and Ctrl-C end as they do there."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest

from irmtv.lab.experiments import run_experiment
from irmtv.lab.experiments.store import Store
from irmtv.lab.workers import Outcome, one_by_one, side_by_side
from lab.experiments.small import small

pytestmark = pytest.mark.time_limit(120)


@dataclass(frozen=True)
class Piece:
    number: int

    @property
    def label(self) -> str:
        return f"piece {self.number}"


def square(piece):
    if piece.number == 3:
        raise RuntimeError("three is too many")
    if piece.number == 99:
        os._exit(9)
    if piece.number == 13:
        raise ValueError("thirteen cannot be")
    return piece.number**2, os.getpid()


@pytest.fixture
def quick_start(monkeypatch):
    """Processes that are forked from one that has loaded torch, in place of fresh ones: seconds less for each."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([side_by_side.__module__, __name__])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("jobs", [1, 2])
def test_every_piece_has_an_outcome(jobs):
    pieces, told = [Piece(i) for i in range(7)], []
    outcomes = one_by_one(pieces, square, told.append) if jobs == 1 else side_by_side(pieces, square, jobs, told.append)
    found = {piece.number: outcome for piece, outcome in outcomes}
    assert sorted(found) == list(range(7))
    assert told == [p.label for p in pieces]
    assert all(found[i].result[0] == i**2 and found[i].error is None for i in range(7) if i != 3)
    assert found[3].error == "RuntimeError: three is too many"
    assert "in square" in found[3].traceback and found[3].result is None
    elsewhere = {found[i].result[1] for i in range(7) if i != 3} - {os.getpid()}
    assert len(elsewhere) in ((0,) if jobs == 1 else (1, 2))
    assert isinstance(found[0], Outcome) and found[0].seconds >= 0


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_cannot_be_ends_it(jobs):
    pieces = [Piece(i) for i in (1, 13, 2, 4, 5, 6)]
    outcomes = one_by_one(pieces, square, None) if jobs == 1 else side_by_side(pieces, square, jobs, None)
    with pytest.raises(ValueError, match="thirteen cannot be"):
        list(outcomes)


@pytest.mark.usefixtures("quick_start")
def test_a_process_that_is_killed_costs_its_pieces_alone():
    pieces = [Piece(i) for i in (99, 1, 2, 4, 5, 6, 7, 8)]
    found = {piece.number: outcome for piece, outcome in side_by_side(pieces, square, 2, None)}
    assert sorted(found) == sorted(p.number for p in pieces)
    assert "was killed" in found[99].error
    assert sum(o.error is None for o in found.values()) >= 4  # at most four were on their way


@pytest.mark.usefixtures("quick_start")
@pytest.mark.parametrize("moment", ["before it starts", "before it is known"])
def test_a_process_that_is_started_while_another_is_killed_does_not_stay(moment, monkeypatch):
    start, late = ProcessPoolExecutor._spawn_process, []

    def start_late(pool):
        if late or not pool._processes:
            return start(pool)
        late.append(pool)
        (killed,) = pool._processes.values()
        if moment == "before it is known":
            start(pool)
            number, process = pool._processes.popitem()
            assert process is not killed
        connection.wait([killed.sentinel])
        pool._executor_manager_thread.join(2)  # it ends the processes that it knows, then closes its queues
        return start(pool) if moment == "before it starts" else pool._processes.update({number: process})

    monkeypatch.setattr(ProcessPoolExecutor, "_spawn_process", start_late)
    found = {piece.number: o for piece, o in side_by_side([Piece(i) for i in (99, 1, 2)], square, 2, None)}
    assert late and sorted(found) == [1, 2, 99] and "was killed" in found[99].error
    assert not _children_after_a_while()


@pytest.mark.usefixtures("quick_start")
def test_who_stops_listening_stops_the_processes():
    outcomes = side_by_side([Piece(i) for i in range(40)], square, 2, None)
    next(outcomes)
    outcomes.close()
    assert not _children_after_a_while()


def _children_after_a_while():
    """Processes of this one that do not end.

    The pool's own thread waits for them too, and whichever of the two comes second is told for a moment that the
    process still runs: so this asks again rather than once.
    """
    for _ in range(300):
        if not (left := multiprocessing.active_children()):
            break
        time.sleep(0.1)
    return left


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
def test_workers_of_a_killed_process_do_not_stay(tmp_path):
    """What `kill -9` leaves: nothing."""
    script = tmp_path / "main.py"
    script.write_text(
        "import os, sys, time\n"
        "from dataclasses import dataclass\n"
        "from irmtv.lab.workers import side_by_side\n"
        "@dataclass(frozen=True)\n"
        "class Piece:\n"
        "    label: str\n"
        "def work(piece):\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(120)\n"
        "if __name__ == '__main__':\n"
        "    list(side_by_side([Piece('a'), Piece('b')], work, 2, None))\n"
    )
    main = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(main.stdout.readline()) for _ in range(2)]
    finally:
        main.kill()
        main.wait()
        main.stdout.close()
    for _ in range(300):
        alive = [pid for pid in workers if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive


def _is_zombie(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_experiment_in_two_processes_is_the_same_experiment(tmp_path):
    spec = small({"objective": "irm-tv-l1", "warmup": 10, "label": "a"}, {"objective": "groupdro", "label": "b"})
    told = []
    together = run_experiment(spec, tmp_path / "two", jobs=2, progress=told.append)
    alone = run_experiment(spec, tmp_path / "one")
    assert (together.trained, together.failed) == (alone.trained, ())
    assert told[-1].share == 1
    with Store.read(tmp_path / "one") as one, Store.read(tmp_path / "two") as two:
        expected, found = ({r.key: r for r in store.runs()} for store in (one, two))
    assert set(found) == set(expected)
    for key, record in expected.items():
        for name, values in record.arrays.items():
            np.testing.assert_allclose(found[key].arrays[name], values, rtol=1e-4, atol=1e-5)
    assert run_experiment(spec, tmp_path / "two", jobs=2).found == together.runs


def test_jobs_is_a_number_of_processes(tmp_path):
    with pytest.raises(ValueError, match="jobs must be a positive integer"):
        run_experiment(small({"objective": "erm"}), tmp_path / "x", jobs=0)
