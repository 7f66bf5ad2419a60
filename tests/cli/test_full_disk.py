"""A disk that is full while a command writes: one message that names the file, nothing half written."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import irmtv
from cli.models import fitted, houses
from irmtv.lab.experiments import Store
from lab.experiments.small import ERM, TV, small_text

QUICK = ("--model", "linear", "--penalty-weights", "10", "--folds", "2", "--steps", "50")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: as a full disk, the write that would do so fails, in SQLite too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("full")
    fitted(made)
    return made


def left(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("before", [None, b"what was there"])
@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.tsv", "p.parquet"])
def test_predict(command, folder, tmp_path, name, before):
    if before is not None:
        (tmp_path / name).write_bytes(before)
    with files_of_at_most(1000):
        ended = command("predict", folder / "model.irmtv", folder / "houses.csv", "--out", tmp_path / name)
    assert ended.code == 1 and len(ended.err.strip().splitlines()) == 1, ended.err
    assert f"irmtv: {tmp_path / name} was not written, and is as it was: " in ended.err and "Make space" in ended.err
    assert left(tmp_path) == ({} if before is None else {name: before})


@pytest.mark.parametrize("size", [0, 20])
def test_evaluate(command, folder, tmp_path, size):
    how = ("--environment", "site", "--bootstrap", "0", "--out", tmp_path / "e.csv")
    with files_of_at_most(size):
        ended = command("evaluate", folder / "model.irmtv", folder / "houses.csv", *how)
    assert ended.code == 1 and f"irmtv: {tmp_path / 'e.csv'} was not written" in ended.err
    assert left(tmp_path) == {}


@pytest.mark.slow
def test_fit(command, tmp_path):
    houses().drop(columns=["price", "id"]).to_csv(tmp_path / "data.csv", index=False)
    how = ("--target", "sold", "--environment", "site", *QUICK, "--out", tmp_path / "m.irmtv")
    before = left(tmp_path)
    with files_of_at_most(3000):
        ended = command("fit", tmp_path / "data.csv", *how)
    assert ended.code == 1 and f"irmtv: {tmp_path / 'm.irmtv'} was not written" in ended.err
    assert "what to expect" in ended.out.lower() or "environment" in ended.out  # the answer is not lost
    assert left(tmp_path) == before
    assert command("fit", tmp_path / "data.csv", *how).code == 0
    model = (tmp_path / "m.irmtv").read_bytes()
    with files_of_at_most(len(model) // 2):
        assert command("fit", tmp_path / "data.csv", *how).code == 1
    assert (tmp_path / "m.irmtv").read_bytes() == model
    irmtv.load(tmp_path / "m.irmtv")


@pytest.mark.slow
def test_run_goes_on_once_there_is_space(command, tmp_path):
    (tmp_path / "spec.toml").write_text(small_text(ERM, TV, rules=["iid"]))
    out, how = tmp_path / "x", ("run", tmp_path / "spec.toml", "--out", tmp_path / "x")
    stored = []
    for size in range(0, 110_000, 10_000):
        with files_of_at_most(size):
            ended = command(*how)
        if ended.code == 0:
            break
        assert ended.code == 1 and ended.err.strip().splitlines()[-1].startswith("irmtv: "), ended.err
        assert out.name in ended.err and not [name for name in left(out) if name.endswith((".tmp", ".md"))]
        if (out / "experiment.sqlite").exists():
            with Store.read(out) as store:
                store.check()
                stored.append(len(store))
    assert stored == sorted(stored) and 0 < stored[-1] < 9, stored
    assert command(*how).code == 0
    with Store.read(out) as store:
        store.check()
        assert len(store) == 9


@pytest.mark.slow
def test_tables_of_a_run(command, tmp_path, monkeypatch):
    (tmp_path / "spec.toml").write_text(small_text(ERM, rules=["iid"]))
    assert command("run", tmp_path / "spec.toml", "--out", tmp_path / "x").code == 0
    before = left(tmp_path / "x")
    with files_of_at_most(len(before["small.md"]) - 1):
        ended = command("run", tmp_path / "spec.toml", "--out", tmp_path / "x")
    after = left(tmp_path / "x")
    assert ended.code == 1 and "irmtv: " in ended.err
    assert {name: after.get(name) for name in before} == before and set(after) == set(before)
    assert os.listdir(tmp_path / "x")
