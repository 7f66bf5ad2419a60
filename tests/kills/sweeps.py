"""A sweep that is killed at random moments and continued has what an undisturbed one has."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

from irmtv.lab.experiments import Store, StoreError
from kills.attempts import Ended, attempt, send
from lab.experiments.comparison import store_differences
from lab.experiments.small import ERM, MINIMAX, TV, small_text

RUNS = 30  # 2 repetitions of: 1 + 2 ERM, 2 + 4 TV, 2 + 4 minimax
GROUPS = 20
WHOM = ("parent", "group", "worker")


def write_spec(folder: Path) -> Path:
    spec = folder / "small.toml"
    spec.write_text(small_text(ERM, TV, MINIMAX, repetitions=2, rules=["invariance"]))
    return spec


def command(spec: Path, out: Path, jobs: int) -> list[str]:
    return ["run", str(spec), "--out", str(out), "--jobs", str(jobs)]


def kill(kills: int, seed: int, spec: Path, whole: Path, folder: Path, seconds: float) -> Counter[str]:
    """Kill sweeps so many times, alternately with one process and with two; what was hit how often.

    A sweep goes on until it is finished, however often it is killed; the next one begins then. `whole` is the folder
    of an undisturbed run, which took so many seconds. Where kills come so early that a sweep gets no further, as on a
    machine that has become busy, they come later.
    """
    random_, counts = random.Random(seed), Counter[str]()
    sweeps = 0
    while counts["kills"] < kills:
        sweeps += 1
        jobs, out, ended, in_vain = 2 - sweeps % 2, folder / f"sweep{sweeps}", None, 0
        while ended is None or ended.code != 0:
            stored = _stored(out)
            undisturbed = counts["kills"] >= kills
            most = 0.0 if undisturbed else seconds * (1 + in_vain / 10)
            ended = _attempt(command(spec, out, jobs), folder, random_, counts, most)
            now = _stored(out)
            assert now is None or stored is None or now >= stored, f"{stored} runs were stored, now {now}: {out}"
            in_vain = in_vain + 1 if now == stored else 0
        check_same(out, whole)
        counts[f"sweeps finished with --jobs {jobs}, equal to an undisturbed one"] += 1
        shutil.rmtree(out)
        if sweeps % 4 == 0:
            print(f"killed so far: {counts['kills']}", flush=True)
    return counts


def _attempt(arguments: list[str], folder: Path, random_: random.Random, counts: Counter[str], most: float) -> Ended:
    """One attempt, killed where `most` is not 0 and it has not ended before."""
    whom = []
    target = random_.choice(WHOM if arguments[-1] == "2" else WHOM[:2])
    after = most * random_.random() ** 2  # more of them early, so that a sweep takes many attempts

    def hit(pid: int) -> None:
        whom.append(send(pid, signal.SIGKILL, target))

    ended = attempt(arguments, folder, hit if most else None, after)
    assert "Traceback" not in ended.err, ended.err
    if ended.code == -signal.SIGKILL:
        counts["kills"] += 1
        counts[f"  {ended.phase}"] += 1
        counts[f"  of the {whom[0]}, --jobs {arguments[-1]}"] += 1
    elif whom == ["worker"]:  # the command went on, and says what was lost
        assert ended.code in (0, 1), ended
        counts["kills"] += 1
        counts[f"  {ended.phase}"] += 1
        counts["  of a worker, --jobs 2"] += 1
    else:
        assert ended.code == 0, ended
    return ended


def _stored(out: Path) -> int | None:
    """Number of runs; None where it cannot be read now."""
    if not (out / "experiment.sqlite").exists():
        return 0
    try:
        with Store.read(out) as store:
            store.check()
            return len(store)
    except StoreError as error:
        # killed while it opened or closed the store, outside WAL mode: only a writer may repair that, as the next does
        if "was left in the middle of a write" not in str(error):
            raise
        return None


def check_same(out: Path, whole: Path) -> None:
    """The same runs with the same bits, none twice; the same tables; nothing else."""
    with Store.read(out) as a, Store.read(whole) as b:
        assert store_differences(a, b) == []
        assert len(a) == len(a.finished()) == RUNS
    with closing(sqlite3.connect(out / "experiment.sqlite")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT COUNT(*) FROM groups").fetchone() == (GROUPS,)
    left = [path.name for path in out.iterdir() if path.suffix == ".tmp"]  # of a table, killed while written
    assert sorted(p.name for p in out.iterdir() if p.name not in left) == sorted(p.name for p in whole.iterdir())
    for path in whole.glob("small*"):
        assert (out / path.name).read_bytes() == path.read_bytes(), path.name
