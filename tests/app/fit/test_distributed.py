"""Processes that share the blocks of a folder of Parquet files."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.io.folders import write_folder
from irmtv import load
from irmtv.app.fit import families, fit_table
from irmtv.app.io.parquet_blocks import shares
from irmtv.cli.ranks import process_group
from irmtv.core.ranks import LostRankError
from paths import REPOSITORY

SCRIPT, KILLED, EACH_ITS_OWN = (
    Path(__file__).with_name(f"{name}.py") for name in ("distributed_fit", "killed_fit", "each_its_own")
)
LOCAL = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = np.random.default_rng(0)
    n = 6000
    site = rng.choice(["north", "south", "west"], n, p=[0.2, 0.3, 0.5])
    y = rng.integers(0, 2, n)
    follows = np.where(rng.random(n) < np.select([site == "north", site == "south"], [0.95, 0.8], 0.6), y, 1 - y)
    frame = pd.DataFrame({"honest": y + rng.normal(size=n), "tempting": 2 * follows + rng.normal(size=n)})
    frame["colour"], frame["site"], frame["y"] = rng.choice(["red", "blue"], n), site, np.where(y, "yes", "no")
    frame.loc[::17, "honest"] = np.nan
    return write_folder(tmp_path_factory.mktemp("rows") / "table", frame, "site", rows=400)


def run(folder: Path, model: str, out: Path, ranks: int = 0) -> list[dict]:
    """What each process has found; `ranks` 0 is one without a group."""
    launched = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    done = started([*launched, str(SCRIPT), str(folder), model, str(out)])
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(max(ranks, 1))]


def started(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / "tests")])
    environment = os.environ | LOCAL | {"PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_processes_get_the_linear_model_of_one(folder, tmp_path):
    (alone,) = run(folder, "linear", tmp_path / "one")
    each = run(folder, "linear", tmp_path / "two", 2)
    assert alone["rows"] == 6000
    assert any("of the 6,000 rows" in note for note in alone["notes"])
    for one in each:
        np.testing.assert_allclose(one["coef"], alone["coef"], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(one["intercept"], alone["intercept"], rtol=1e-8)


@pytest.mark.slow
def test_a_fit_whose_rank_is_killed_ends_with_the_same_model(folder, tmp_path, monkeypatch):
    """torchrun starts all ranks again, and they go on from the passes that were made."""
    monkeypatch.setattr(families, "SEARCHED_ROWS", 1500)
    out, how = tmp_path / "m.irmtv", {"penalty_weights": [100.0], "folds": 2, "memory": "1MB"}
    options = ["--target", "y", "--environment", "site", "--model", "linear", "--memory", "1MB", "--folds", "2"]
    options += ["--penalty-weights", "100", "--checkpoint", str(tmp_path / "c"), "--out", str(out), "--distributed"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    ended = started([*torchrun, str(KILLED), str(tmp_path), "fit", str(folder), *options])
    assert ended.returncode == 0, ended.stderr[-3000:]
    alone = fit_table(folder, "y", ["site"], model="linear", **how)
    model, whole = load(out)[-1], alone.pipeline[-1]
    np.testing.assert_allclose(model.coef_, whole.coef_, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(model.intercept_, whole.intercept_, rtol=1e-8)
    needed = int(re.search(r"(\d+) times by it", " ".join(alone.summary["data"]["notes"])).group(1))
    lives = [int((tmp_path / f"passes-{life}-1").read_text()) for life in (0, 1)]
    assert lives == [2, needed - 1]  # the first pass is not made again


@pytest.mark.slow
def test_what_one_process_cannot_read_stops_all_with_one_message(folder, tmp_path):
    """Each rank is given a folder of its own: one has a file with another column, or all of its files have."""
    copies = [tmp_path / "table-0", tmp_path / "table-1"]
    for copy in copies:
        shutil.copytree(folder, copy)
    files = sorted(copies[1].rglob("*.parquet"))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EACH_ITS_OWN)]
    for changed, words in (
        (files[:1], "process 1 of 2 cannot read it"),
        (files, "other is double, and not there in 0"),
    ):
        for file in changed:
            frame = pd.read_parquet(file, partitioning=None).assign(other=1.0)
            frame.to_parquet(file, index=False)
        ended = started([*torchrun, str(tmp_path)])
        said = [(tmp_path / f"said-{rank}").read_text() for rank in range(2)]
        assert said[0] == said[1] and words in said[0], ended.stderr[-2000:]
        assert [(tmp_path / f"passes-{rank}").read_text() for rank in range(2)] == ["0", "0"]


@pytest.mark.slow
def test_processes_get_one_network(folder, tmp_path):
    first, second = run(folder, "mlp", tmp_path / "net", 2)
    assert first["parameters"] == second["parameters"]


def test_every_process_has_rows_and_every_block_an_owner():
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = rng.integers(1, 100, rng.integers(1, 30))
        ranks = int(rng.integers(1, len(sizes) + 1))
        each = shares(sizes, ranks)
        assert [end for _, end in each[:-1]] == [begin for begin, _ in each[1:]]
        assert (each[0][0], each[-1][1]) == (0, len(sizes))
        assert all(begin < end for begin, end in each)
        # where all blocks are small, shares are nearly equal
        rows = [sizes[begin:end].sum() for begin, end in each]
        if ranks * sizes.max() < sizes.sum() / 2:
            assert max(rows) <= sizes.sum() / ranks + sizes.max()


@pytest.mark.parametrize(
    ("environment", "options", "words"),
    [
        ({}, ["--distributed"], "torchrun"),
        ({"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"}, [], "Add --distributed"),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "29501"},
            ["--distributed"],
            "could not join the others",
        ),
    ],
)
def test_what_is_wrong_with_the_start_is_one_line(command, folder, tmp_path, monkeypatch, environment, options, words):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("irmtv.cli.ranks.MEET", 1)
    ended = command("fit", folder, "--target", "y", "--environment", "site", "--out", tmp_path / "m.irmtv", *options)
    assert ended.code == 1
    assert ended.err.count("\n") == 1 and words in ended.err


def test_trees_are_grown_by_one_process(folder):
    with pytest.raises(ValueError, match="model must be linear or mlp with several processes"):
        fit_table(folder, "y", ["site"], model="trees", process_group=object())


def test_other_tables_cannot_be_shared(folder):
    with pytest.raises(ValueError, match="several processes share the row groups of a Parquet file"):
        fit_table(pd.DataFrame({"y": [0, 1], "x": [1, 2]}), "y", process_group=object(), objective="erm")


def test_a_lost_rank_is_said_in_one_line(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in (meet | LOCAL).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(ValueError, match="another rank was lost"), process_group(True):
        raise LostRankError("another rank was lost")
