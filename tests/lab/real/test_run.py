"""What is finished is kept and not measured again; what is missing is said."""

from __future__ import annotations

import json

import pytest

from irmtv.lab.real import run
from irmtv.lab.real.run import FILE, append_record, read_records, run_real
from lab.real.small import record, write_heart

HOSPITALS = ["cleveland", "hungarian", "switzerland", "va"]


@pytest.fixture
def measured(monkeypatch):
    """Pieces that were measured: (split, family, seed). They take no time here."""
    pieces = []

    def measure(table, split, family, seed, threads):
        pieces.append((split.label, family, seed))
        found = record(family, split.label)
        return {"models": {}} if family == "scikit-learn" else {k: v for k, v in found.items() if k not in run.KEY}

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run, "lightgbm", lambda: None)
    run._table.cache_clear()
    return pieces


def test_every_split_with_every_family_and_seed(measured, tmp_path):
    write_heart(tmp_path / "data")
    done = run_real(tmp_path / "out", tables=["heart"], seeds=2, data_home=tmp_path / "data")
    assert len(measured) == len(done.records) == 4 * (2 + 2 + 1)  # scikit-learn's once
    assert {p for p in measured if p[0] == "va"} == {
        *(("va", family, seed) for family in ("linear", "trees") for seed in (0, 1)),
        ("va", "scikit-learn", 0),
    }
    assert (done.left_out, done.failed, done.found) == ([], [], 0)


def test_a_run_that_was_stopped_is_continued(measured, tmp_path, monkeypatch):
    write_heart(tmp_path / "data")
    quick = run.measure

    def stops(table, split, family, seed, threads):
        if split.label == "switzerland":
            raise KeyboardInterrupt
        return quick(table, split, family, seed, threads)

    asked = {"tables": ["heart"], "families": ["linear"], "data_home": tmp_path / "data"}
    monkeypatch.setattr(run, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        run_real(tmp_path / "out", **asked)
    path = tmp_path / "out" / FILE
    path.write_bytes(path.read_bytes()[:-20])  # killed while it wrote the second one
    monkeypatch.setattr(run, "measure", quick)
    measured.clear()
    shares = []
    done = run_real(tmp_path / "out", **asked, progress=lambda share, label: shares.append(share))
    assert [split for split, *_ in measured] == HOSPITALS[1:] and done.found == 1
    assert [r["split"] for r in done.records] == HOSPITALS
    assert shares[0] == 0.25 and shares[-1] == 1.0 and shares == sorted(shares)
    measured.clear()
    again = run_real(tmp_path / "out", **asked)
    assert (measured, again.found, again.records) == ([], 4, done.records)
    more = run_real(tmp_path / "out", **asked, seeds=2)
    assert measured == [(name, "linear", 1) for name in HOSPITALS] and more.found == 4


def test_results_of_other_rows_are_not_taken(measured, tmp_path):
    for name, seed in (("one", 702), ("two", 703)):
        write_heart(tmp_path / name, seed=seed)
        run_real(tmp_path / "out", tables=["heart"], families=["linear"], data_home=tmp_path / name)
    assert len(measured) == 8


def test_a_missing_table_is_left_out_and_said(measured, tmp_path):
    write_heart(tmp_path / "data")
    done = run_real(tmp_path / "out", tables=["gas", "heart"], families=["linear"], data_home=tmp_path / "data")
    assert {r["table"] for r in done.records} == {"heart"}
    assert done.left_out[-1].startswith("table 'gas': data_home must be a folder that holds gas_drift.csv")


def test_trees_are_left_out_where_they_cannot_be_trained(measured, tmp_path, monkeypatch):
    def missing():
        raise ImportError("boosting needs LightGBM")

    monkeypatch.setattr(run, "lightgbm", missing)
    write_heart(tmp_path / "data")
    asked = {"tables": ["heart"], "data_home": tmp_path / "data"}
    done = run_real(tmp_path / "out", **asked)
    assert {family for _, family, _ in measured} == {"linear", "scikit-learn"}
    assert done.left_out == ["trees: boosting needs LightGBM"]
    with pytest.raises(ImportError, match="LightGBM"):
        run_real(tmp_path / "out", **asked, families=["trees"])


def test_a_piece_that_fails_is_said_and_tried_again(measured, tmp_path, monkeypatch):
    write_heart(tmp_path / "data")
    quick = run.measure

    def fails(table, split, *more):
        if split.label == "va":
            raise ValueError("cv must be at most the rows of the smallest environment")
        return quick(table, split, *more)

    asked = {"tables": ["heart"], "families": ["linear"], "data_home": tmp_path / "data"}
    monkeypatch.setattr(run, "measure", fails)
    done = run_real(tmp_path / "out", **asked)
    assert len(done.records) == 3 and done.failed == [
        "heart: va, linear: RuntimeError: cv must be at most the rows of the smallest environment"
    ]
    monkeypatch.setattr(run, "measure", quick)
    assert len(run_real(tmp_path / "out", **asked).records) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"families": ["tree"]}, "Did you mean 'trees'"),
        ({"tables": ["hart"]}, "Did you mean 'heart'"),
        ({"seeds": 0}, "repetitions must be a positive integer"),
        ({"jobs": 0}, "jobs must be a positive integer"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_written(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        run_real(tmp_path / "out", data_home=tmp_path, **wrong)
    assert not (tmp_path / "out").exists()


def test_lines_that_were_cut_off(tmp_path):
    path = tmp_path / FILE
    assert read_records(path) == {}
    append_record(path, record(split="a"))
    with path.open("a") as file:
        file.write('{"table": "hea')
    append_record(path, record(split="b", gain=float("nan")))
    assert [r["split"] for r in read_records(path).values()] == ["a", "b"]
    assert json.loads(path.read_text().splitlines()[-1])["gain"] is None


def test_processes_give_what_one_gives(tmp_path):
    write_heart(tmp_path / "data")
    asked = {"tables": ["heart"], "families": ["scikit-learn"], "data_home": tmp_path / "data"}
    one, two = (run_real(tmp_path / f"out{jobs}", jobs=jobs, **asked).records for jobs in (1, 2))
    drop = {"seconds"}
    assert [{k: v for k, v in r.items() if k not in drop} for r in one] == [
        {k: v for k, v in r.items() if k not in drop} for r in two
    ]
