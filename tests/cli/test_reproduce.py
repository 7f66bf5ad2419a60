"""`irmtv reproduce` where there is no spec or more than scores: feature weights, running times, real tables."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from irmtv.lab.experiments import papers, running_times
from irmtv.lab.real import run as real_run
from lab.experiments.small import ERM, TV, small_text
from lab.real.small import record, write_heart


@pytest.fixture
def command(command):
    """`irmtv reproduce` with these arguments."""
    return lambda *arguments: command("reproduce", *arguments)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's feature weights with few rows and steps."""
    folder = tmp_path / "papers"
    folder.mkdir()
    weights = [0.1] * 5 + [0.05] * 10
    table = {"results": {"irm-tv-l1": weights, "irm-tv-l2": weights}}
    (folder / "published.json").write_text(json.dumps({"feature_weights": table}))
    fixed = {"fixed": {"penalty_weight": 100.0}}
    l1 = {**TV, **fixed, "label": "l1", "published": "irm-tv-l1"}
    l2 = {**TV, **fixed, "objective": "irm-tv-l2", "label": "l2", "published": "irm-tv-l2", "reduction": "authors"}
    text = small_text(ERM, l2, l1, rules=["fixed", "invariance"], repetitions=3, name="identifiability")
    text += '[published]\nfile = "published.json"\ntable = "feature_weights"\n'
    (folder / "identifiability.toml").write_text(text)
    monkeypatch.setattr(papers, "papers_folder", lambda: folder)


FILES = [f"identifiability.{end}" for end in ("csv", "json", "md", "png", "svg")]


def test_identifiability_trains_prints_and_writes_everything(command, quick, tmp_path):
    out = tmp_path / "x"
    ended = command("identifiability", "--out", out, "--repetitions", "2")
    assert ended.code == 0
    assert "30 runs: 0 were there, 30 trained" in ended.err  # (1 + 2 + 2 combinations) x (all, 2 folds) x 2
    assert sorted(p.name for p in out.iterdir() if p.name.startswith("ident")) == FILES
    assert "Normalised weights of every feature" in (out / "report.html").read_text(encoding="utf-8")
    assert "Share of the invariant features in %" in ended.out and "l1 - l2" in ended.out
    assert "50.00" in ended.out  # the paper's
    assert "w15" not in ended.out and "w15" in (out / "identifiability.md").read_text()
    table = pd.read_csv(out / "identifiability.csv")
    assert len(table) == 3 * 2 * 2 and table["share"].between(0, 1).all()
    shares = table[(table["method"] == "l1") & (table["rule"] == "fixed")]["share"]
    assert f"{100 * shares.mean():.1f} ± {100 * shares.std():.1f}" in ended.out

    again = command("identifiability", "--out", out, "--repetitions", "2")
    assert "30 runs: 30 were there, 0 trained" in again.err and again.out == ended.out
    more = command("identifiability", "--out", out)
    assert "45 runs: 30 were there, 15 trained" in more.err


def test_identifiability_where_nothing_is_stored(command, quick, tmp_path, monkeypatch):
    def fails(*arguments: object, **settings: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("irmtv.lab.experiments.run.train", fails)
    ended = command("identifiability", "--out", tmp_path / "x", "--repetitions", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "has no result to make a table of" in ended.err


def test_running_times_measures_prints_and_writes_everything(command, tmp_path):
    out = tmp_path / "x"
    ended = command("running-times", "--out", out, "--settings", "simulation", "--steps", "5", "--repetitions", "2")
    assert ended.code == 0
    files = ["report.html", "running-times.csv", "running-times.json", "running-times.md"]
    assert sorted(p.name for p in out.iterdir()) == [".irmtv.json", *files]
    assert "Seconds of 5,300 steps" in ended.out and "l1 over l2" in ended.out
    assert "13.5" in ended.out and "0.948" in ended.out  # the paper's
    table = pd.read_csv(out / "running-times.csv")
    assert len(table) == 4 * 2 * 2 and (table["seconds"] > 0).all()


def test_ctrl_c_during_running_times(command, tmp_path, monkeypatch):
    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running_times, "cost_of_a_step", stopped)
    ended = command("running-times", "--out", tmp_path / "x")
    assert (ended.code, ended.out) == (130, "")
    assert "nothing was written" in ended.err and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["identifiability"], "--out is missing"),
        (["identifiability", "--out", "x", "--steps", "5"], "--steps is for running-times; identifiability trains"),
        (["theory", "--out", "x", "--steps", "5"], "--steps is for running-times"),
        (["identifiability", "--out", "x", "--methods", "l3"], "'l3' is not a method of this spec"),
        (["identifiability", "--out", "x", "--repetitions", "0"], "repetitions must be a whole number of at least 1"),
        (["running-times"], "--out is missing"),
        (["running-times", "--out", "x", "--jobs", "2"], "--jobs is for tables of scores"),
        (["running-times", "--out", "x", "--methods", "erm"], "--methods is for tables of scores"),
        (["running-times", "--out", "x", "--wait"], "--wait is for tables of scores"),
        (["running-times", "--out", "x", "--steps", "0"], "steps must be a positive integer. Got 0"),
        (["running-times", "--out", "x", "--repetitions", "0"], "repetitions must be a positive integer. Got 0"),
        (["running-times", "--out", "x", "--settings", "adlut"], "Did you mean 'adult'?"),
        (["running-times", "--out", "x", "--device", "gpu"], "device must be 'cpu'"),
        (["running-time", "--out", "x"], "Did you mean 'running-times'?"),
        (["real", "--out", "x", "--device", "cpu"], "--device is for specs"),
        (["real", "--out", "x", "--wait"], "--wait is for specs"),
        (["real", "--out", "x", "--engine", "ray"], "--engine is for experiments; real is none"),
        (["real", "--out", "x", "--settings", "hart"], "Did you mean 'heart'?"),
        (["real", "--out", "x", "--methods", "mlp"], "--methods must be one of"),
        (["real", "--out", "x", "--repetitions", "0"], "repetitions must be a positive integer. Got 0"),
    ],
)
def test_wrong_options_are_one_text_and_exit_code_2(command, quick, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    ended = command(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.lstrip().startswith("irmtv: ") and message in ended.err
    assert not (tmp_path / "x").exists()


@pytest.fixture
def hearts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One real table, whose models take no time."""
    write_heart(tmp_path / "data")
    monkeypatch.setenv("IRMTV_DATA", str(tmp_path / "data"))
    real_run._table.cache_clear()
    monkeypatch.setattr(real_run, "measure", measured)


def measured(table, split, family, seed, threads):
    more = {"chosen": {"score": 0.25, "by_environment": {split.label: 0.25}, "balanced_accuracy": 0.5, "log_loss": 1.0}}
    return {k: v for k, v in record(family, split.label, **more).items() if k not in real_run.KEY}


def test_real_tables_are_measured_printed_and_written(command, hearts, tmp_path):
    out = tmp_path / "x"
    arguments = ("real", "--out", out, "--methods", "linear", "--repetitions", "2")
    ended = command(*arguments)
    assert ended.code == 0 and "8 results: 0 were there, 8 measured" in ended.err
    assert "left out: trees: not asked for" in ended.err and "left out: table 'adult': environment" in ended.err
    assert "heart: switzerland" in ended.out and "0 of 4 (0 %)" in ended.out  # 0.25 is outside every interval
    assert "the same outcome with at least 80 % of the seeds: 4 of 4 splits" in ended.out
    files = ["real.csv", "real.json", "real.jsonl", "real.md", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == [".irmtv.json", *files]
    assert len(pd.read_csv(out / "real.csv")) == 8
    again = command(*arguments)
    assert "8 results: 8 were there, 0 measured" in again.err and again.out == ended.out
    tables = json.loads(command(*arguments, "--json").out)["tables"]
    assert tables[0]["title"] == "Score on the unseen rows" and len(tables[0]["rows"]) == 4


def test_real_tables_where_there_is_no_file(command, hearts, tmp_path):
    ended = command("real", "--out", tmp_path / "x", "--settings", "gas")
    assert (ended.code, ended.out) == (1, "")
    assert "gas_drift.csv" in ended.err and "has no result to make a table of" in ended.err


def test_ctrl_c_during_real_tables(command, hearts, tmp_path, monkeypatch):
    def stopped(table, split, *more):
        if split.label == "hungarian":
            raise KeyboardInterrupt
        return measured(table, split, *more)

    monkeypatch.setattr(real_run, "measure", stopped)
    ended = command("real", "--out", tmp_path / "x", "--settings", "1", "--methods", "linear")
    assert (ended.code, ended.out) == (130, "") and "what is finished is kept" in ended.err
    assert len((tmp_path / "x" / real_run.FILE).read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["running-times", "theory", "real"])
def test_a_file_in_place_of_the_folder(command, tmp_path, name):
    (tmp_path / "x").write_text("")
    ended = command(name, "--out", tmp_path / "x")
    assert ended.code == 1 and "--out must be a folder" in ended.err
