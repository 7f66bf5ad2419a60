"""Runs and groups to put into a store, and the store's file as other programs see it."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irmtv.lab.experiments import store as store_module
from irmtv.lab.experiments.store import Group, Metric, RunRecord, Store, group_key

VERSIONS = {"irmtv": "0.1", "torch": "2.5", "python": "3.11", "numpy": "2.0"}


POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions, limits and SIGKILL of POSIX")


def a_run(key: str = "k", **changes: Any) -> RunRecord:
    run = RunRecord(
        key=key,
        setting="ps=(0.9, 0.7)",
        method="IRM-TV-l1",
        objective="irm-tv-l1",
        repetition=3,
        seed=2**63 - 1,
        part="fold 1/5",
        hyperparameters={"penalty_weight": 1e4, "hidden": [32], "measure": "empirical", "batch_size": None},
        status="finished",
        diverged_at=None,
        arrays={"test/risk": np.array([[0.1, np.nan], [np.inf, -0.0], [1, 2]]), "steps": np.arange(3)},
        metrics=(Metric("é 1", "accuracy", 0.1 + 0.2), Metric("b", "risk", math.inf), Metric("", "risk", math.nan)),
    )
    return replace(run, **changes)


def a_group(*runs: RunRecord, **changes: Any) -> Group:
    group = Group(
        key=group_key(run.key for run in runs),
        label="some runs",
        spec_hash="s1",
        device="cpu",
        host="here",
        pid=17,
        started="2025-01-01T00:00:00+00:00",
        seconds=1.5,
        versions=VERSIONS,
        runs=runs,
    )
    return replace(group, **changes)


def filled(folder: Path, *runs: RunRecord) -> Path:
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(*(runs or (a_run(),))))
    return folder


def raw(folder: Path, name: str = "experiment.sqlite") -> Any:
    """The file as any other program sees it."""
    return closing(sqlite3.connect(folder / name, isolation_level=None))


@contextmanager
def small_disk(monkeypatch: pytest.MonkeyPatch, pages: int = 8) -> Iterator[None]:
    """Stores that are opened to be written to can grow by so many pages."""
    connect = store_module.connect_to_write

    def connect_to_write(folder: Path) -> Any:
        connection = connect(folder)
        (now,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {now + pages}")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "connect_to_write", connect_to_write)
        yield


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}
