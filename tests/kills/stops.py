"""Commands that are stopped at random moments say so in a line, and leave whole files or none."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from irmtv import load
from irmtv.lab.experiments import Store
from kills import sweeps
from kills.attempts import END, Ended, attempt, modules_of, prepare, send

SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


def stop(stops: int, seed: int, spec: Path, folder: Path) -> Counter[str]:
    """Stop each of the commands about equally often; how they ended."""
    random_, counts = random.Random(seed), Counter[str]()
    commands = _commands(spec, folder)
    for k, (name, (arguments, whole)) in enumerate(commands.items()):
        prepare(*modules_of(arguments, folder))
        seconds = attempt(arguments, folder).seconds
        whole(True)
        for path in (folder / name).rglob("*"):
            if path.is_file():
                path.unlink()
        for _ in range(stops * k // len(commands), stops * (k + 1) // len(commands)):
            which = random_.choice(list(SIGNALS))
            # a terminal sends Ctrl-C to all processes of a command
            hit = partial(send, number=SIGNALS[which], whom="group" if which == "SIGINT" else "parent")
            ended = attempt(arguments, folder, hit, 0.005 + random_.uniform(0, seconds), from_main=True)
            counts[f"{name}, {which}: {_how(ended)}"] += 1
            left = [path for path in (folder / name).rglob("*") if path.suffix == ".tmp"]
            assert not left, left
            whole(False)
        print(f"stopped so far: {counts.total()}", flush=True)
        if name.startswith(("run", "reproduce")):
            assert attempt(arguments, folder).code == 0
            whole(True)
    return counts


def _how(ended: Ended) -> str:
    assert "Traceback" not in ended.err and "Exception ignored" not in ended.err, ended.err
    if ended.code == 130:
        last = ended.err.strip().splitlines()[-1]
        assert last.startswith("irmtv: stopped"), ended.err
        return "stopped, exit code 130"
    assert ended.code in (0, END, -signal.SIGTERM), ended
    return "done before"


def _commands(spec: Path, folder: Path) -> dict[str, tuple[list[str], Callable[[bool], None]]]:
    """Arguments by name, and what looks at the files; called with whether the command has come to its end."""
    table, model = _table(folder / "table.csv", 400), folder / "fit" / "model.irmtv"
    many, kept = _table(folder / "many.csv", 20_000), folder / "kept.irmtv"
    for name in ("fit", "predict", "evaluate", "run", "run --jobs 2", "reproduce"):
        (folder / name).mkdir()
    fit = ["fit", str(table), "--target", "sold", "--environment", "site", "--model", "linear", "--out"]
    assert attempt([*fit, str(kept)], folder).code == 0
    tables = [folder / name / "out.csv" for name in ("predict", "evaluate")]
    runs = {f"run{jobs}": folder / f"run{jobs}" for jobs in ("", " --jobs 2")}

    def fitted(done: bool) -> None:
        assert model.exists() or not done
        if model.exists():
            load(model)
        page = model.with_suffix(".html")
        assert not page.exists() or page.read_text().rstrip().endswith("</html>")

    def written(path: Path) -> Callable[[bool], None]:
        known: list[bytes] = []

        def look(done: bool) -> None:
            if done:
                known.append(path.read_bytes())
            assert not path.exists() or path.read_bytes() == known[0], f"half of {path.name}"

        return look

    def stored(path: Path) -> Callable[[bool], None]:
        def look(done: bool) -> None:
            if done:
                sweeps.check_same(path, folder / "whole")
            elif (path / "experiment.sqlite").exists():
                with Store.read(path) as store:
                    store.check()

        return look

    def reproduced(done: bool) -> None:
        with Store.read(folder / "reproduce") as store:
            store.check()

    reproduce = ["reproduce", "selection", "--repetitions", "1", "--settings", "1", "--methods", "ERM, Newton"]
    return {
        "fit": ([*fit, str(model)], fitted),
        "predict": (["predict", str(kept), str(many), "--out", str(tables[0])], written(tables[0])),
        "evaluate": (
            ["evaluate", str(kept), str(many), "--environment", "site", "--out", str(tables[1])],
            written(tables[1]),
        ),
        "run": (sweeps.command(spec, runs["run"], 1), stored(runs["run"])),
        "run --jobs 2": (sweeps.command(spec, runs["run --jobs 2"], 2), stored(runs["run --jobs 2"])),
        "reproduce": ([*reproduce, "--out", str(folder / "reproduce")], reproduced),
    }


def _table(path: Path, rows: int) -> Path:
    rng = np.random.default_rng(0)
    site = rng.integers(0, 4, rows)
    size = rng.standard_normal(rows)
    sold = (size + 0.5 * rng.standard_normal(rows) > 0).astype(int)
    pd.DataFrame({"size": size, "age": rng.standard_normal(rows) + site, "site": site, "sold": sold}).to_csv(path)
    return path
