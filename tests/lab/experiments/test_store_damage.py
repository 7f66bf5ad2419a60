"""Damage is named, never read as a result; and what is undamaged can be kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from irmtv.lab.experiments import Store, StoreDamaged, StoreError, repair_store, run_experiment
from irmtv.lab.experiments.store import Metric
from lab.experiments.comparison import content, store_differences
from lab.experiments.records import a_group, a_run, raw
from lab.experiments.small import ERM, TV, small

DATABASE = "experiment.sqlite"


def some_store(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    with Store.create_or_open(folder) as store:
        store.add_spec("hash", "the text of a spec")
        for g in range(4):
            runs = [
                a_run(
                    f"key {g} {r}",
                    repetition=r,
                    seed=g,
                    arrays={"steps": np.arange(8), "test/accuracy": rng.random((8, 3))},
                    metrics=(Metric("north", "accuracy", float(rng.random())), Metric("south", "accuracy", -0.0)),
                )
                for r in range(3)
            ]
            store.add_group(a_group(*runs, label=f"group {g}"))
    return folder


@pytest.mark.parametrize("part", range(4))
def test_every_flipped_bit_is_without_effect_or_named(tmp_path, part):
    """A few hundred of them; `make fuzz` flips more."""
    folder = some_store(tmp_path / "x")
    before, file = repr(content(folder)), folder / DATABASE
    whole = file.read_bytes()
    rng = np.random.default_rng(part)
    named = 0
    for place in rng.integers(0, len(whole), 60):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        try:
            assert repr(content(folder)) == before
        except StoreError:
            named += 1
    assert named > 5


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "UPDATE metrics SET value = value + 1e-9 WHERE rowid = 5",
            "run 'ps=(0.9, 0.7), IRM-TV-l1, repetition 2,",
        ),
        ("UPDATE runs SET key = 'other' WHERE id = 4", "run 'ps=(0.9, 0.7), IRM-TV-l1, repetition 0, fold 1/5' cannot"),
        (
            "UPDATE runs SET hyperparameters = '{\"a\"' WHERE id < 3",
            "repetition 0, fold 1/5' and 1 more cannot",
        ),
        ("UPDATE arrays SET data = zeroblob(64) WHERE rowid = 1", "repetition 0, fold 1/5' cannot be what was stored"),
        ("UPDATE arrays SET name = 'stops' WHERE rowid = 1", "repetition 0, fold 1/5' cannot be what was stored"),
        ("DELETE FROM arrays WHERE rowid = 1", "repetition 0, fold 1/5' cannot be what was stored"),
        ("DELETE FROM metrics WHERE rowid = 1", "repetition 0, fold 1/5' cannot be what was stored"),
        ("DELETE FROM runs WHERE id = 5", "the group 'group 1', or a run of it, cannot be what was stored"),
        ("UPDATE runs SET group_id = 99 WHERE id = 5", "the group 'group 1', or a run of it"),
        ("DELETE FROM groups WHERE id = 2", "3 runs belong to no group"),
        ("UPDATE groups SET versions = '{' WHERE id = 2", "the group 'group 1', or a run of it"),
        ("DELETE FROM digests WHERE kind = 'run' AND id = 5", "the group 'group 1', or a run of it"),
        ("UPDATE digests SET digest = 'x' WHERE kind = 'run' AND id = 5", "repetition 1, fold 1/5' cannot be"),
        ("UPDATE specs SET text = 'another'", "the spec with hash 'hash' cannot be what was stored"),
    ],
)
def test_damage_is_named_and_can_be_repaired(tmp_path, statement, said):
    folder = some_store(tmp_path / "x")
    with raw(folder) as sql:
        sql.execute("PRAGMA foreign_keys = OFF")
        sql.execute(statement)
        sql.commit()
    damaged = (folder / DATABASE).read_bytes()
    with Store.read(folder) as store, pytest.raises(StoreDamaged) as error:
        store.check()
    assert said in str(error.value) and "--repair" in str(error.value)
    done = repair_store(folder)
    assert done is not None and "kept, the others will be trained again. It is now experiment.sqlite.damaged-1" in done
    assert (folder / f"{DATABASE}.damaged-1").read_bytes() == damaged
    with Store.read(folder) as store:
        store.check()
        lost_groups = 0 if "specs" in statement else 1
        assert len(store) == 12 - 3 * lost_groups and len(store.specs()) == lost_groups
    assert sorted(p.name for p in folder.iterdir()) == [DATABASE, f"{DATABASE}.damaged-1", "lock.sqlite"]
    assert repair_store(folder) is None


def test_a_part_of_the_runs_is_compared_too(tmp_path):
    folder = some_store(tmp_path / "x")
    with raw(folder) as sql:
        sql.execute("UPDATE arrays SET data = zeroblob(64) WHERE name = 'steps' AND run_id = 2")
        sql.commit()
    with Store.read(folder) as store:
        assert len(store.runs(arrays=["test/accuracy"])) == 12
        with pytest.raises(StoreDamaged):
            store.runs(arrays=["steps"])


def test_pages_that_sqlite_cannot_read_lose_no_other_group(tmp_path):
    folder = tmp_path / "x"
    with Store.create_or_open(folder) as store:
        for g in range(30):
            store.add_group(a_group(a_run(f"k{g}", arrays={"x": np.full(2000, float(g))}), label=f"group {g}"))
    file = folder / DATABASE
    whole = bytearray(file.read_bytes())
    place = whole.index(np.full(2000, 17.0).tobytes()[:3000])
    whole[place : place + 2000] = b"\xff" * 2000
    file.write_bytes(whole)
    assert "29 runs kept" in repair_store(folder)
    with Store.read(folder) as store:
        assert {run.key for run in store.runs()} == {f"k{g}" for g in range(30)} - {"k17"}


def test_an_experiment_goes_on_after_a_repair(tmp_path):
    spec = small(ERM, TV, repetitions=2)
    run_experiment(spec, tmp_path / "good")
    shutil.copytree(tmp_path / "good", tmp_path / "bad")
    with raw(tmp_path / "bad") as sql:
        sql.execute("UPDATE metrics SET value = 0.775 WHERE rowid = 3")
        sql.commit()
    with pytest.raises(StoreDamaged):
        run_experiment(spec, tmp_path / "bad")
    assert repair_store(tmp_path / "bad") is not None
    assert 0 < run_experiment(spec, tmp_path / "bad").trained < len(Store.read(tmp_path / "good").runs())
    with Store.read(tmp_path / "good") as good, Store.read(tmp_path / "bad") as bad:
        assert store_differences(good, bad) == []


def test_a_store_of_an_older_version_has_no_digests_and_is_continued(tmp_path):
    folder = some_store(tmp_path / "x")
    with raw(folder) as sql:
        sql.execute("DROP TABLE digests")
        sql.commit()
    before = content(folder)
    with Store.create_or_open(folder) as store:
        store.check()
        store.add_group(a_group(a_run("new")))
        store.check()
    assert content(folder)[0][:-1] == before[0]


def test_a_log_that_is_lost_costs_no_group(tmp_path):
    """As when somebody deletes the -wal file of a store that is written to, and its writer is killed."""
    with Store.create_or_open(tmp_path / "x") as store:
        store.add_group(a_group(a_run("k1")))
        store.add_group(a_group(a_run("k2")))
        assert (tmp_path / "x" / f"{DATABASE}-wal").exists()
        (tmp_path / "y").mkdir()
        shutil.copy(tmp_path / "x" / DATABASE, tmp_path / "y" / DATABASE)
    with Store.read(tmp_path / "y") as store:
        assert [run.key for run in store.runs()] == ["k1", "k2"]


def test_what_is_added_while_it_is_read_is_no_damage(tmp_path, monkeypatch):
    folder = some_store(tmp_path / "x")
    with Store.create_or_open(folder) as writer, Store.read(folder) as reader:
        select, added = reader._select, iter(range(100))

        def slowly(statement, values=()):
            rows = select(statement, values)
            k = next(added)
            writer.add_group(a_group(a_run(f"new {k}"), label=f"new {k}"))
            return rows

        monkeypatch.setattr(reader, "_select", slowly)
        assert len(reader.runs()) == 12
        reader.specs()
        monkeypatch.undo()
        assert len(reader.runs()) == 12 + next(added)
