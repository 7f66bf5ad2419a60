"""What a store keeps: everything that went in, whole groups only, for good."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from irmtv._version import __version__
from irmtv.lab.experiments import store as store_module
from irmtv.lab.experiments import store_arrays, store_files
from irmtv.lab.experiments.store import Metric, Store, group_key
from irmtv.lab.experiments.store_arrays import array_rows, as_array
from irmtv.lab.experiments.store_files import FORMAT, StoreError
from lab.experiments.comparison import store_differences
from lab.experiments.records import VERSIONS, a_group, a_run, filled, raw


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "odd # name? 100%" / "experiment"


# --- what goes in comes out ------------------------------------------------------------------------------------------


def test_every_field_of_a_run_comes_back(folder):
    given_runs = (a_run("k1"), a_run("k2", status="diverged", diverged_at=140, part="all", arrays={}, metrics=()))
    filled(folder, *given_runs)
    with Store.read(folder) as store:
        found = store.runs()
    assert len(found) == 2
    for one, other in zip(given_runs, found, strict=True):
        for field in ("key", "setting", "method", "objective", "repetition", "seed", "part", "hyperparameters"):
            assert getattr(other, field) == getattr(one, field)
        assert (other.status, other.diverged_at) == (one.status, one.diverged_at)
        assert list(other.arrays) == list(one.arrays)
        for name in one.arrays:
            assert other.arrays[name].dtype == one.arrays[name].dtype
            assert other.arrays[name].shape == one.arrays[name].shape
            assert other.arrays[name].tobytes() == one.arrays[name].tobytes()
        assert repr(other.metrics) == repr(one.metrics)  # as texts: NaN is NaN
    assert found[0].metrics[0].value == 0.1 + 0.2
    assert found[0].arrays["steps"].flags.writeable


def test_every_field_of_a_group_is_there_for_plain_sql(folder):
    filled(folder, a_run("k1"), a_run("k2"))
    with raw(folder) as sql:
        group, versions = a_group(), json.dumps(VERSIONS, sort_keys=True)
        assert sql.execute("SELECT * FROM groups").fetchall() == [
            (1, group_key(["k1", "k2"]), "some runs", "s1", "cpu", "here", 17, group.started, 1.5, versions)
        ]
        assert sql.execute("SELECT group_id, key FROM runs").fetchall() == [(1, "k1"), (1, "k2")]
        assert dict(sql.execute("SELECT * FROM meta")) == {"format": str(FORMAT), "creator": f"irmtv {__version__}"}
        metrics = sql.execute(
            "SELECT environment, metric, value FROM metrics WHERE run_id = 1 ORDER BY rowid"
        ).fetchall()
    assert metrics == [("é 1", "accuracy", 0.1 + 0.2), ("b", "risk", math.inf), ("", "risk", None)]


def test_the_key_of_a_group_is_the_sha256_of_its_keys_in_order():
    assert group_key(["a", "b"]) == hashlib.sha256(b"a\nb").hexdigest()
    assert len({group_key(keys) for keys in (["a", "b"], ["b", "a"], ["ab"], ["a"])}) == 4


ANY_ARRAY = st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<i8", ">i8", "?"]).flatmap(
    lambda code: hnp.arrays(np.dtype(code), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not an error
@given(array=ANY_ARRAY, transposed=st.booleans())
def test_arrays_come_back_bit_for_bit(array, transposed):
    array = array.T if transposed else array
    run = a_run(arrays={"x": array})
    ((name, kind, shape, data),) = array_rows(run.arrays)
    back = as_array(name, kind, shape, data)
    assert back.dtype == array.dtype.newbyteorder("=")
    assert back.shape == array.shape
    assert back.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays=st.dictionaries(st.text("aä/ \"';%_", max_size=5), ANY_ARRAY, max_size=3))
def test_arrays_come_back_from_the_file(tmp_path, arrays):
    with tempfile.TemporaryDirectory(dir=tmp_path) as place:
        filled(Path(place) / "e", a_run(arrays=arrays))
        with Store.read(Path(place) / "e") as store:
            (run,) = store.runs()
    assert list(run.arrays) == list(arrays)
    for name, array in arrays.items():
        assert run.arrays[name].shape == array.shape
        assert run.arrays[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def test_numpy_scalars_are_fine_where_numbers_are_asked_for(folder):
    run = a_run(repetition=np.int64(4), seed=np.int32(5), metrics=(Metric("e", "m", np.float32(0.5)),))
    filled(folder, replace(run, status="diverged", diverged_at=np.int64(6)))
    with Store.read(folder) as store:
        (found,) = store.runs()
    assert (found.repetition, found.seed, found.diverged_at, found.metrics[0].value) == (4, 5, 6, 0.5)


def test_runs_can_be_asked_for_by_setting_method_part_and_array(folder):
    runs = [
        a_run(f"{s}{m}{p}", setting=s, method=m, part=p)
        for s in ("s1", "s2")
        for m in ("m1", "m2")
        for p in ("p1", "p2")
    ]
    filled(folder, *runs)

    def keys(**asked: Any) -> list[str]:
        return [run.key for run in store.runs(**asked)]

    with Store.read(folder) as store:
        assert keys() == [r.key for r in runs]
        assert keys(settings=["s2"]) == ["s2m1p1", "s2m1p2", "s2m2p1", "s2m2p2"]
        assert keys(methods={"m2"}, parts=["p2", "p1"], settings=("s1",)) == ["s1m2p1", "s1m2p2"]
        assert keys(parts=[]) == []
        assert keys(methods=["unknown"]) == []
        assert [list(r.arrays) for r in store.runs(arrays=())] == [[]] * 8
        assert [list(r.arrays) for r in store.runs(arrays=["test/risk", "?"], parts=["p1"])] == [["test/risk"]] * 4
        assert all(len(r.metrics) == 3 for r in store.runs(arrays=()))
        with pytest.raises(ValueError, match=r"arrays must be a list of names. Got the text 'steps'; use \['steps'\]"):
            store.runs(arrays="steps")


def test_finished_counts_diverged_runs_and_ignores_failures(folder):
    with Store.create_or_open(folder) as store:
        assert len(store) == 0
        assert store.finished() == frozenset()
        store.add_group(a_group(a_run("k1"), a_run("k2", status="diverged", diverged_at=0)))
        store.add_failure("g9", "some group", "Traceback: ...")
        store.add_failure("g9", "some group", "again")
        assert store.finished() == {"k1", "k2"}
        assert len(store) == 2
        found = store.failures()
    assert [(f.group_key, f.label, f.text) for f in found] == [
        ("g9", "some group", "Traceback: ..."),
        ("g9", "some group", "again"),
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found[0].happened)


def test_specs_are_kept_once_each_in_the_order_they_came(folder):
    with Store.create_or_open(folder) as store:
        store.add_spec("zz", "name = 'ü'")
        store.add_spec("aa", "name = 'b'")
        store.add_spec("zz", "name = 'ü'")
        assert store.specs() == [("zz", "name = 'ü'"), ("aa", "name = 'b'")]
        with pytest.raises(StoreError, match=r"another text for the spec with hash 'aa'"):
            store.add_spec("aa", "name = 'c'")
        assert store.specs()[1] == ("aa", "name = 'b'")


def test_versions_are_given_once_each(folder):
    with Store.create_or_open(folder) as store:
        for i, torch in enumerate(["9.0", "2.5", "9.0"]):
            store.add_group(a_group(a_run(f"k{i}"), versions={**VERSIONS, "torch": torch}))
        assert store.versions() == [{**VERSIONS, "torch": "9.0"}, {**VERSIONS, "torch": "2.5"}]


def test_metrics_frame(folder):
    with Store.create_or_open(folder) as store:
        assert list(store.metrics_frame()["value"]) == []
        store.add_group(a_group(a_run("k1", metrics=(Metric("e", "risk", math.nan),))))
        assert store.metrics_frame()["value"].dtype == float
        store.add_group(a_group(a_run("k2", part="all", metrics=(Metric("e", "risk", 0.25), Metric("f", "risk", 1.0)))))
        frame = store.metrics_frame()
    columns = ["setting", "method", "repetition", "part", "environment", "metric", "value", "hyperparameters"]
    assert list(frame.columns) == columns
    assert list(frame["part"]) == ["fold 1/5", "all", "all"]
    assert list(frame["environment"]) == ["e", "e", "f"]
    assert math.isnan(frame["value"][0])
    assert list(frame["value"][1:]) == [0.25, 1.0]
    assert json.loads(frame["hyperparameters"][0]) == a_run().hyperparameters


# --- all or nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (a_group(a_run("new"), a_run("old")), r"holds the run old already \(ps=\(0.9, 0.7\), IRM-TV-l1, repetition 3"),
        (a_group(), "at least one run"),
        (a_group(a_run("new"), a_run("new")), "different keys"),
        (a_group(a_run("new"), key="x"), "must be group_key of its runs' keys. Got 'x'"),
        (a_group(a_run("new", status="running")), r"status must be one of \['finished', 'diverged'\]. Got 'running'"),
        (a_group(a_run("new", status="diverged")), "diverged_at must be a step where status is 'diverged'"),
        (a_group(a_run("new", diverged_at=3)), "diverged_at must be"),
        (a_group(a_run("new", hyperparameters={"a": {1}})), "hyperparameters of run new must be numbers, texts"),
        (a_group(a_run("new", arrays={"x": np.arange(2, dtype=np.int32)})), "float32, float64, int64, bool. Got int32"),
        (a_group(a_run("new", arrays={"x": np.array(["text"])})), "array 'x' must be a NumPy array"),
        (a_group(a_run("new", arrays={"x": np.array([object()])})), "Got object"),
        (a_group(a_run("new", arrays={"x": [1, 2]})), "Got list"),
        (a_group(a_run("new"), a_run("new 2", metrics=(Metric("e", "m", 0.0),) * 2)), "UNIQUE constraint failed"),
        (a_group(a_run("new"), a_run("new 2", setting=None)), "NOT NULL constraint failed"),
    ],
)
def test_a_group_that_cannot_be_added_changes_nothing(folder, group, message):
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(a_run("old")))
        with raw(folder) as sql:
            before = list(sql.iterdump())
        with pytest.raises(StoreError, match=message):
            store.add_group(group)
        with raw(folder) as sql:
            assert list(sql.iterdump()) == before
        store.add_group(a_group(a_run("after")))  # and the store goes on
        assert store.finished() == {"old", "after"}


def test_an_array_that_sqlite_cannot_hold_is_refused(folder, monkeypatch):
    monkeypatch.setattr(store_arrays, "MAX_ARRAY_BYTES", 80)
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(a_run("k1", arrays={"x": np.zeros(10)})))
        with pytest.raises(StoreError, match=r"array 'x' must have at most 80 bytes. Got 88; split it"):
            store.add_group(a_group(a_run("k2", arrays={"x": np.zeros(11)})))


class Interrupted:
    """A connection with Ctrl-C pressed while the metrics of a run are written."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, *args: Any) -> sqlite3.Cursor:
        return self.connection.execute(*args)

    def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
        if "INTO metrics" in statement:
            raise KeyboardInterrupt
        return self.connection.executemany(statement, rows)


def test_ctrl_c_in_the_middle_of_a_group_leaves_nothing_of_it(folder, monkeypatch):
    with Store.create_or_open(folder) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store, "_connection", Interrupted(store._connection))
            with pytest.raises(KeyboardInterrupt):
                store.add_group(a_group(a_run("k0"), a_run("k1")))
        assert len(store) == 0
        store.add_group(a_group(a_run("k0")))
        assert store.finished() == {"k0"}


def test_nothing_is_ever_changed_or_taken_out(folder):
    """No statement does it in the source, and SQLite, told to refuse it, has nothing to refuse."""
    for module in (store_module, store_files):
        source = Path(module.__file__).read_text()
        assert not re.search(r"\b(UPDATE|DELETE\s+FROM|REPLACE\s+INTO|OR\s+REPLACE|DROP|ALTER|VACUUM)\b", source)
    refused = []

    def authorizer(action: int, *details: Any) -> int:
        if action in (sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE):
            refused.append(details)
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    with Store.create_or_open(folder) as store:
        store._connection.set_authorizer(authorizer)
        store.add_spec("s1", "text")
        store.add_spec("s1", "text")
        store.add_group(a_group(a_run("k1")))
        store.add_failure("g", "label", "text")
        with pytest.raises(StoreError):
            store.add_group(a_group(a_run("k1")))
        assert (len(store), len(store.specs()), len(store.failures())) == (1, 1, 1)
        with pytest.raises(sqlite3.DatabaseError, match=r"not authorized"):  # the authorizer does watch
            store._connection.execute("DELETE FROM runs")
    assert [details[0] for details in refused] == ["runs"]


def test_every_commit_waits_for_the_disk(folder):
    with Store.create_or_open(folder) as store:
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- two stores ------------------------------------------------------------------------------------------------------


def test_stores_of_the_same_runs_are_the_same_whenever_and_wherever_they_were_trained(tmp_path):
    with Store.create_or_open(tmp_path / "a") as a, Store.create_or_open(tmp_path / "b") as b:
        for store in (a, b):
            store.add_spec("s1", "text")
        a.add_group(a_group(a_run("k1"), a_run("k2")))
        b.add_group(a_group(a_run("k2"), host="there", pid=1, started="later", seconds=9.0, device="cuda"))
        assert store_differences(a, b) == [
            f"run k1 (ps=(0.9, 0.7), IRM-TV-l1, repetition 3, fold 1/5): only in {a.folder}"
        ]
        assert store_differences(b, a) == [
            f"run k1 (ps=(0.9, 0.7), IRM-TV-l1, repetition 3, fold 1/5): only in {a.folder}"
        ]
        b.add_failure("g", "label", "text")
        b.add_group(a_group(a_run("k1"), versions={}))
        assert store_differences(a, b) == store_differences(b, a) == []
        b.add_spec("s2", "text")
        assert store_differences(a, b) == [f"spec s2: only in {b.folder}"]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"setting": "x"}, "setting is 'ps=(0.9, 0.7)' and 'x'"),
        ({"method": "x"}, "method is 'IRM-TV-l1' and 'x'"),
        ({"objective": "erm"}, "objective is 'irm-tv-l1' and 'erm'"),
        ({"repetition": 4}, "repetition is 3 and 4"),
        ({"seed": 4}, f"seed is {2**63 - 1} and 4"),
        ({"part": "all"}, "part is 'fold 1/5' and 'all'"),
        ({"hyperparameters": {"a": 1}}, "hyperparameters are {'batch_size': None"),
        ({"arrays": {"steps": np.arange(3)}}, "array 'test/risk' is in one store only"),
        ({"metrics": a_run().metrics[:2]}, "metric ('', 'risk') is nan and None"),
        ({"metrics": (Metric("é 1", "accuracy", 0.3), *a_run().metrics[1:])}, "is 0.30000000000000004 and 0.3"),
        ({"arrays": {**a_run().arrays, "steps": np.arange(3.0)}}, "'steps' is int64 (3,) and float64 (3,)"),
        ({"arrays": {**a_run().arrays, "steps": np.arange(3)[None]}}, "'steps' is int64 (3,) and int64 (1, 3)"),
        ({"arrays": {**a_run().arrays, "steps": np.array([0, 1, 3])}}, "array 'steps' differs in 1 of 3 values"),
        ({"arrays": {**a_run().arrays, "test/risk": abs(a_run().arrays["test/risk"])}}, "differs in 1 of 6 values"),
    ],
)
def test_any_difference_between_runs_is_found_and_said(tmp_path, changes, difference):
    filled(tmp_path / "a", a_run("k1"), a_run("k2"))
    filled(tmp_path / "b", a_run("k1"), a_run("k2", **changes))
    with Store.read(tmp_path / "a") as a, Store.read(tmp_path / "b") as b:
        (found,) = store_differences(a, b)
    assert found.startswith("run k2 (ps=(0.9, 0.7), IRM-TV-l1, repetition 3, fold 1/5): ")
    assert difference in found


def test_a_diverged_run_differs_from_a_finished_one(tmp_path):
    filled(tmp_path / "a")
    filled(tmp_path / "b", a_run(status="diverged", diverged_at=7))
    with Store.read(tmp_path / "a") as a, Store.read(tmp_path / "b") as b:
        assert [text.split(": ")[1] for text in store_differences(a, b)] == [
            "status is 'finished' and 'diverged'",
            "diverged_at is None and 7",
        ]
