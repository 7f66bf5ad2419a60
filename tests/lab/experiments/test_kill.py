"""A sweep that is killed again and again, and repeated, ends with what an undisturbed one has."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from irmtv.lab.experiments import Store, StoreError
from irmtv.lab.experiments.store import group_key
from lab.experiments.comparison import store_differences
from lab.experiments.small import ERM, MINIMAX, TV, small_text

pytestmark = [
    pytest.mark.time_limit(240),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and SIGKILL of POSIX"),
]

KILLS = 12
RUNS = 30  # 2 repetitions of: 1 + 2 ERM, 2 + 4 TV, 2 + 4 minimax
GROUPS = 20  # of one combination each: on all rows, and on its two folds

# torch takes seconds to load: a server loads it once and forks a worker for every attempt, before any thread is made.
# It is the workers' parent, so that a process id cannot come to mean another process before it is killed.
SERVER = """
import os, signal, sys, time
import torch, torch._dynamo  # the latter is loaded by the first optimizer otherwise, in every worker
torch.set_num_threads(1)
from irmtv.lab.experiments import load_spec, plan, run_experiment, store_files

plan.RUNS_PER_GROUP["cpu"] = 1
spec = load_spec(sys.argv[1])

def work(folder, statement):
    if statement:
        connect = store_files._connect
        left = [statement]
        def die(text):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        def traced(path, *options, **more):
            connection = connect(path, *options, **more)
            if path.name != "lock.sqlite":
                connection.set_trace_callback(die)
            return connection
        store_files._connect = traced
    run_experiment(spec, folder)

print("ready", flush=True)
for line in sys.stdin:
    folder, seconds, statement = line.rstrip("\\n").split("\\t")
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work(folder, int(statement))
            code = 0
        finally:
            os._exit(code)
    if float(seconds) >= 0:
        time.sleep(float(seconds))
        os.kill(pid, signal.SIGKILL)  # a worker that has ended is a zombie until the next line
    _, status = os.waitpid(pid, 0)
    how = "killed" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else os.WEXITSTATUS(status)
    print(how, time.perf_counter() - began, flush=True)
"""


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def attempt(self, folder: Path, seconds: float = -1.0, statement: int = 0) -> tuple[str, float]:
        """How a worker ended, and after how long; killed after so many seconds, or at that statement of SQL."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{folder}\t{seconds}\t{statement}\n")
        self._process.stdin.flush()
        how, took = self._process.stdout.readline().split()
        return how, float(took)


@contextmanager
def serving(spec: Path) -> Iterator[Server]:
    command = [sys.executable, "-c", SERVER, str(spec)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spec = tmp_path_factory.mktemp("spec") / "small.toml"
    spec.write_text(small_text(ERM, TV, MINIMAX, repetitions=2, rules=["invariance"]))
    with serving(spec) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """An experiment that was never stopped, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("undisturbed") / "experiment"
    how, took = server.attempt(folder)
    assert how == "0"
    with Store.read(folder) as store:
        assert len(store) == RUNS
    return folder, took


def check_whole_groups(folder: Path, reference: Store) -> int | None:
    """What a killed worker left: sound, whole groups only, every number as it should be. How many runs it is."""
    if not (folder / "experiment.sqlite").exists():
        return 0  # killed before it was made
    try:
        store = Store.read(folder)
    except StoreError as error:
        # killed while it opened or closed the store, outside WAL mode: only a writer may repair that, as the next does
        if "was left in the middle of a write" not in str(error):
            raise
        return None
    with store:
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert store._connection.execute("PRAGMA foreign_key_check").fetchall() == []
        groups: dict[str, list[str]] = {}
        for group, key in store._select(
            "SELECT groups.key, runs.key FROM groups LEFT JOIN runs ON group_id = groups.id ORDER BY runs.id"
        ):
            groups.setdefault(group, []).append(key)
        assert all(group == group_key(runs) for group, runs in groups.items())
        known = {f"run {key[:12]}" for key in store.finished()}
        assert not [text for text in store_differences(store, reference) if text.split(" (")[0] in known]
        return len(store)


def check_same(folder: Path, reference: Store) -> None:
    """Finished: nothing lost, nothing twice, the same bits."""
    with Store.read(folder) as store:
        assert store_differences(store, reference) == []
        assert len(store) == len(store.finished()) == RUNS
        assert store.failures() == []
    with closing(sqlite3.connect(folder / "experiment.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT COUNT(*) FROM groups").fetchone() == (GROUPS,)
    assert sorted(p.name for p in folder.iterdir()) == ["experiment.sqlite", "lock.sqlite"]


def killed_again_and_again(
    server: Server, reference_folder: Path, folder: Path, moments: Iterator[dict[str, float]]
) -> None:
    """Twelve times a worker that is alive is killed and the next one goes on; where one gets to the end, anew."""
    folders = [folder / "0"]
    kills, stored = 0, 0
    with Store.read(reference_folder) as reference:
        while kills < KILLS:
            how, _ = server.attempt(folders[-1], **next(moments))
            if how == "killed":
                kills += 1
                now = check_whole_groups(folders[-1], reference)
                if now is not None:
                    assert now >= stored  # what was there stays
                    stored = now
            else:
                assert how == "0"
                folders.append(folder / str(len(folders)))
                stored = 0
        assert server.attempt(folders[-1])[0] == "0"
        for one in folders:
            check_same(one, reference)


def test_killed_at_random_moments(server, undisturbed, tmp_path):
    """Spread over all of the work: an attempt may get through up to half of it."""
    folder, whole = undisturbed
    random_ = random.Random(1)
    killed_again_and_again(server, folder, tmp_path, iter(lambda: {"seconds": random_.uniform(0, whole / 2)}, None))


def test_killed_at_random_statements(server, undisturbed, tmp_path):
    """Inside a transaction, where a random moment seldom falls: most statements are those of a group being stored."""
    folder, _ = undisturbed
    random_ = random.Random(2)
    killed_again_and_again(server, folder, tmp_path, iter(lambda: {"statement": random_.randint(1, 120)}, None))
