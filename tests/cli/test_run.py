"""The command line, through its real entry point."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from irmtv import OBJECTIVES, __version__
from irmtv.cli import app
from irmtv.cli import experiments as commands
from irmtv.core.progress_bar import ProgressBar
from irmtv.lab import tables as report_module
from irmtv.lab.experiments import Store, papers, store_files
from irmtv.lab.experiments import run as run_module
from lab.experiments.records import small_disk
from lab.experiments.small import ERM, THREE, TV, small_text


def irmtv(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "irmtv", *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_version():
    assert irmtv("--version").stdout == f"irmtv {__version__}\n"


def test_list_names_every_objective_with_needs_source_year_and_summary():
    text = irmtv("list").stdout
    for objective in OBJECTIVES.values():
        line = next(line for line in text.splitlines() if line.startswith(f"{objective.name} "))
        assert f"needs {objective.needs}" in line
        assert f"({objective.year})" in line
        assert objective.source in line
        assert objective.summary[:40] in text


@pytest.mark.parametrize("name", ["minimax-tv-l1", "irm-tv-l1+vrex"])
def test_list_one_shows_the_formula_and_every_hyper_parameter(name):
    result = irmtv("list", name)
    assert result.returncode == 0
    assert OBJECTIVES[name].formula in result.stdout
    for h in OBJECTIVES[name].hyperparameters:
        assert h.name in result.stdout
        assert h.meaning[:30] in result.stdout


def test_a_misspelt_name_is_one_line_and_exit_code_1():
    result = irmtv("list", "irm-tv-11")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("irmtv: objective must be one of")
    assert "Did you mean 'irm-tv-l1'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_help_names_the_commands():
    assert "list" in irmtv("--help").stdout


# --- run and reproduce: in this process, since torch takes seconds to load ------------------------------------------


OUTPUTS = ["report.html", "small-choices.csv", "small-tests.csv", "small.csv", "small.md", "small.tex"]
FILES = [".irmtv.json", "experiment.sqlite", "lock.sqlite", *OUTPUTS]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Of 9 runs in 4 groups."""
    path = tmp_path / "spec.toml"
    path.write_text(small_text(ERM, TV, rules=["iid", "oracle"]))
    return path


def test_run_trains_prints_and_writes_every_table(command, spec, tmp_path):
    out = tmp_path / "deep" / "results"
    first = command("run", spec, "--out", out)
    assert first.code == 0
    assert "9 runs: 0 were there, 9 trained in " in first.err
    assert "irm-tv-l1" in first.out and "oracle (chosen on test)" in first.out
    assert f"written: {out / 'small.md'}, " in first.err  # in one line, to be copied
    assert sorted(p.name for p in out.iterdir()) == FILES
    assert "irm-tv-l1" in (out / "small.md").read_text()
    assert r"\begin{tabular}" in (out / "small.tex").read_text()
    summary, tests, choices = (pd.read_csv(out / f"small{end}.csv") for end in ("", "-tests", "-choices"))
    assert set(summary["method"]) == {"erm", "irm-tv-l1"}
    assert set(tests["rule"]) <= {"iid", "oracle"}
    # 2 methods, 2 rules, 2 metrics, mean and worst
    assert len(choices) == 16 and choices["value"].between(0, 1).all() and set(choices["step"]) <= set(range(5, 31, 5))
    for row in choices.itertuples():
        assert json.loads(row.hyperparameters)["steps"] == 30
        assert json.loads(row.figures)["candidates"] == (6 if row.method == "erm" else 12)

    written = {name: (out / name).read_bytes() for name in OUTPUTS}
    second = command("run", spec, "--out", out)
    assert second.code == 0
    assert "9 runs: 9 were there, 0 trained in 0 s." in second.err
    assert second.out == first.out
    assert {name: (out / name).read_bytes() for name in OUTPUTS} == written


def test_files_are_written_before_the_tables_are_printed(command, spec, tmp_path, monkeypatch):
    """A pipe that is closed meanwhile (`| head`) takes the output, not the files."""
    seen: list[list[str]] = []

    def printed(*arguments: Any, **options: Any) -> None:
        seen.append(sorted(p.name for p in (tmp_path / "x").iterdir()))

    monkeypatch.setattr(report_module, "to_terminal", printed)
    assert command("run", spec, "--out", tmp_path / "x").code == 0
    assert seen == [FILES]


def test_run_takes_a_part_of_the_spec_and_the_rest_later(command, tmp_path):
    spec = tmp_path / "spec.toml"
    settings = {"first": {"p_v": 0.9}, "second": {"p_v": 0.8}, "1": {"p_v": 0.7}}
    spec.write_text(small_text(ERM, TV, rules=["oracle"], repetitions=3, settings=settings))
    part = ["--settings", "2", "--methods", "erm", "--repetitions", "1", "--device", "cpu"]
    assert "1 runs: 0 were there, 1 trained" in command("run", spec, "--out", tmp_path / "x", *part).err
    with Store.read(tmp_path / "x") as store:
        assert [(r.setting, r.method, r.seed) for r in store.runs()] == [("second", "erm", 0)]
    more = ["--settings", "1", "--settings", "second", "--methods", "erm", "--repetitions", "1"]
    assert "2 runs: 1 were there, 1 trained" in command("run", spec, "--out", tmp_path / "x", *more).err
    with Store.read(tmp_path / "x") as store:
        assert [r.setting for r in store.runs()] == ["second", "1"]  # a label goes before a number
    assert "27 runs: 2 were there, 25 trained" in command("run", spec, "--out", tmp_path / "x").err


def test_labels_and_names_with_brackets_are_shown_as_they_are(command, tmp_path):
    spec = tmp_path / "spec.toml"
    label = "[bold]x[/red]"
    spec.write_text(small_text({**ERM, "label": label}, rules=["oracle"], name="[i]n", settings={"s[/i]": {}}))
    ended = command("run", spec, "--out", tmp_path / "[a]")
    assert ended.code == 0
    assert label in ended.out
    assert f"{tmp_path / '[a]' / '[i]n.md'}" in ended.err


# what is the user's: one text, exit code 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (small_text({"objective": "irm-tv-11"}), r"spec.toml: methods\[0\].objective.*Did you mean 'irm-tv-l1'\?"),
        (
            small_text(ERM, folds=1, repetitions=0),
            r"spec.toml: 2 problems\nrepetitions must be .*\nselection.folds must",
        ),
        ("name = ", r"spec.toml: this is not valid TOML"),
        (small_text(TV, rules=["invariance"]), r'Add the lines \[\[methods\]\] and objective = "erm"'),
        (small_text(arguments={"p_v": 2.0}), r"p_v must be .*2\.0"),
        (small_text(device="cuda:99"), r"device='cuda:99'"),
    ],
    ids=["objective", "two problems", "not TOML", "no reference", "data", "device"],
)
def test_a_bad_spec_is_one_text_and_exit_code_1(command, spec, tmp_path, text, message):
    if "cuda" in text:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    spec.write_text(text)
    ended = command("run", spec, "--out", tmp_path / "x")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.lstrip().startswith("irmtv: ")
    assert re.search(message, ended.err)


def test_a_spec_that_is_not_there(command, tmp_path):
    (tmp_path / "simulation.toml").write_text("")
    ended = command("run", tmp_path / "simulatoin.toml", "--out", tmp_path / "x")
    assert ended.code == 1
    assert "there is no such spec file" in ended.err and "simulation.toml" in ended.err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (["--settings", "9"], "'9' is not a setting of this spec"),
        (
            ["--methods", "ermm"],
            "'ermm' is not a method of this spec, which has ['erm', 'irm-tv-l1']. Did you mean 'erm'",
        ),
        (["--repetitions", "0"], "repetitions must be a whole number of at least 1. Got 0"),
        (["--device", "gpu"], "device must be 'cpu'"),
    ],
)
def test_a_part_that_the_spec_does_not_have(command, spec, tmp_path, part, message):
    ended = command("run", spec, "--out", tmp_path / "x", *part)
    assert ended.code == 1
    assert message in ended.err
    assert not (tmp_path / "x").exists()


def test_the_folder_must_be_named(command, spec):
    ended = command("run", spec)
    assert ended.code == 2
    assert "--out" in ended.err
    ended = command("reproduce", "simulation")
    assert ended.code == 1
    assert ended.err == (
        "irmtv: --out is missing: give the folder for the experiment, irmtv reproduce simulation --out DIR.\n"
    )


def test_a_folder_that_is_no_experiment_is_left_alone(command, spec, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"cat")
    ended = command("run", spec, "--out", folder)
    assert ended.code == 1
    assert "is not empty and holds no experiment" in ended.err and "cat.jpg" in ended.err
    assert [p.name for p in folder.iterdir()] == ["cat.jpg"]
    ended = command("run", spec, "--out", folder / "cat.jpg")
    assert ended.code == 1
    assert "is a file" in ended.err


def test_a_store_of_a_newer_version_is_left_alone(command, spec, tmp_path):
    command("run", spec, "--out", tmp_path / "x")
    with closing(sqlite3.connect(tmp_path / "x" / "experiment.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    before = (tmp_path / "x" / "experiment.sqlite").read_bytes()
    ended = command("run", spec, "--out", tmp_path / "x")
    assert ended.code == 1
    assert "has format 99, written by a newer irmtv" in ended.err and "update irmtv" in ended.err
    assert (tmp_path / "x" / "experiment.sqlite").read_bytes() == before


HOLD = """
import sqlite3, sys
lock = sqlite3.connect(sys.argv[1], isolation_level=None)
lock.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
input()
"""


def holding(folder: Path) -> subprocess.Popen[str]:
    """A second process that writes to the folder: it holds the lock until it is told."""
    command = [sys.executable, "-c", HOLD, str(folder / store_files.LOCK)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.time_limit(120)
def test_a_folder_that_another_process_writes_to(command, spec, tmp_path, monkeypatch):
    command("run", spec, "--out", tmp_path / "x", "--methods", "erm")
    with holding(tmp_path / "x") as process:
        ended = command("run", spec, "--out", tmp_path / "x")
        assert ended.code == 1
        assert "is being written to by another process. " in ended.err and "--wait waits until it is free" in ended.err

        def sleep(seconds: float) -> None:
            process.communicate("go\n")  # it ends

        monkeypatch.setattr(store_files.time, "sleep", sleep)
        ended = command("run", spec, "--out", tmp_path / "x", "--wait")
    assert ended.code == 0
    assert "Waiting until it is free." in ended.err
    assert "9 runs: 3 were there, 6 trained" in ended.err


def test_a_full_disk(command, spec, tmp_path, monkeypatch):
    spec.write_text(small_text(ERM, TV, repetitions=6))
    with small_disk(monkeypatch):
        ended = command("run", spec, "--out", tmp_path / "x")
    assert ended.code == 1
    assert "the disk is full" in ended.err and "the same command continues from there" in ended.err
    with Store.read(tmp_path / "x") as store:
        left = len(store)
    assert 0 < left < 54
    assert f"54 runs: {left} were there, {54 - left} trained" in command("run", spec, "--out", tmp_path / "x").err


# stopped, and failed


def test_ctrl_c_is_exit_code_130_and_the_same_command_goes_on(command, spec, tmp_path, monkeypatch):
    seen = []

    def stop(self: ProgressBar, report: Any) -> None:
        seen.append(report)
        if report.runs_done == 3:  # ERM is done
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "__call__", stop)
        ended = command("run", spec, "--out", tmp_path / "x")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.strip().endswith(
        f"irmtv: stopped: 3 of 9 runs are stored in {tmp_path / 'x'}; the same command continues."
    )
    assert not (tmp_path / "x" / "small.md").exists()
    assert "9 runs: 3 were there, 6 trained" in command("run", spec, "--out", tmp_path / "x").err


def test_ctrl_c_before_the_training(command, spec, tmp_path, monkeypatch):
    def stopped(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "plan", stopped)
    ended = command("run", spec, "--out", tmp_path / "x")
    assert ended.code == 130
    assert "irmtv: stopped before anything was trained; the same command continues." in ended.err


def failing(monkeypatch: pytest.MonkeyPatch, objectives: set[str]) -> None:
    train = run_module.train

    def some(tasks: Any, objective: str, *arguments: Any, **settings: Any) -> Any:
        if objective in objectives:
            raise RuntimeError("out of memory [/oh]")
        return train(tasks, objective, *arguments, **settings)

    monkeypatch.setattr(run_module, "train", some)


def test_failures_are_told_the_rest_is_shown_and_the_exit_code_is_1(command, tmp_path, monkeypatch):
    spec = tmp_path / "spec.toml"
    spec.write_text(small_text(ERM, TV, {"objective": "vrex"}, rules=["iid"], compare_with="irm-tv-l1"))
    with monkeypatch.context() as patch:
        failing(patch, {"irm-tv-l1"})
        ended = command("run", spec, "--out", tmp_path / "x")
    assert ended.code == 1
    assert "12 runs: 0 were there, 6 trained" in ended.err
    for kind in ("all", "folds"):
        text = f"simulation, irm-tv-l1, {kind}, seeds 0: RuntimeError: out of memory [/oh]"
        assert f"failed, and tried again next time: {text}\n" in ended.err
    assert "irmtv.lab.experiments.Store.read(FOLDER).failures()" in ended.err
    with Store.read(tmp_path / "x") as store:
        assert all("out of memory" in failure.text for failure in store.failures())
    assert "vrex" in ended.out and "irm-tv-l1" not in ended.out
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == FILES
    again = command("run", spec, "--out", tmp_path / "x")
    assert again.code == 0
    assert "failures()" not in again.err
    assert "12 runs: 6 were there, 6 trained" in again.err
    assert "irm-tv-l1" in again.out


def test_where_everything_fails_there_is_no_table(command, spec, tmp_path, monkeypatch):
    failing(monkeypatch, {"erm", "irm-tv-l1"})
    ended = command("run", spec, "--out", tmp_path / "x")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.count("failed, and tried again next time") == 4
    assert "has no result to make a table of" in ended.err
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["experiment.sqlite", "lock.sqlite"]


def test_runs_that_diverge_are_told(command, spec, tmp_path):
    bad = {"objective": "irm-tv-l2", "learning_rate": [0.05, 1e38], "penalty_weight": 1e4, "warmup": 0}
    spec.write_text(small_text(bad))
    ended = command("run", spec, "--out", tmp_path / "x")
    assert ended.code == 0
    assert "3 of them diverged and were frozen at their last finite state." in ended.err


# reproduce


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small tables in place of the paper's."""
    folder = tmp_path / "papers"
    folder.mkdir()
    published = {"mean": {"value": 61.57, "std": 0.5}, "worst": {"value": 41.23, "std": 0.7}}
    table = {"metric": "accuracy_percent", "results": {"erm": {"ours": published}}}
    (folder / "published.json").write_text(json.dumps({"t": table}))
    text = small_text({**ERM, "published": "erm"}, TV, rules=["oracle"], repetitions=2, settings={"ours": THREE})
    more = """[published]\nfile = "published.json"\ntable = "t"\n"""
    (folder / "little.toml").write_text('description = "A little [table]."\n' + text + more)
    (folder / "other.toml").write_text(small_text())
    monkeypatch.setattr(papers, "papers_folder", lambda: folder)
    return folder


def test_reproduce_without_a_name_lists_the_tables(command, tables):
    ended = command("reproduce")
    assert ended.code == 0
    assert [line.split(maxsplit=1) for line in ended.out.splitlines()] == [
        ["little", "A little [table]."],
        ["other"],
        ["real", commands.REAL_DESCRIPTION],
        ["running-times", commands.RUNNING_TIMES_DESCRIPTION],
        ["theory", commands.THEORY_DESCRIPTION],
    ]


def test_reproduce_lists_the_papers_tables(command):
    names = [line.split()[0] for line in command("reproduce").out.splitlines() if line[:1].strip()]
    assert set(papers.paper_specs()) <= set(names)


def test_reproduce_trains_a_table_and_shows_the_published_numbers(command, tables, tmp_path):
    ended = command("reproduce", "little", "--out", tmp_path / "x", "--repetitions", "1", "--settings", "1")
    assert ended.code == 0
    assert "3 runs: 0 were there, 3 trained" in ended.err
    assert "61.6" in ended.out and "61.6" in (tmp_path / "x" / "small.md").read_text()
    ended = command("reproduce", "little", "--out", tmp_path / "x")
    assert "6 runs: 3 were there, 3 trained" in ended.err


def test_reproduce_of_an_unknown_table(command, tables, tmp_path):
    ended = command("reproduce", "litle", "--out", tmp_path / "x")
    assert (ended.code, ended.out) == (1, "")
    known = "['little', 'other', 'real', 'running-times', 'theory']"
    assert ended.err == f"irmtv: NAME must be one of {known}. Got 'litle'. Did you mean 'little'?\n"
    assert not (tmp_path / "x").exists()


def test_json_of_a_run_is_its_summary(command, spec, tmp_path):
    ended = command("run", spec, "--out", tmp_path / "x", "--json")
    assert ended.code == 0
    told = json.loads(ended.out)
    assert {row["method"] for row in told["summary"]} == {"erm", "irm-tv-l1"}
    assert all(Path(path).is_file() for path in told["written"])


def test_json_of_the_objectives(command):
    told = json.loads(command("list", "--json").out)
    assert [o["name"] for o in told] == list(OBJECTIVES)
    (one,) = json.loads(command("list", "irm-tv-l1", "--json").out)
    assert one["formula"] == OBJECTIVES["irm-tv-l1"].formula


def test_completion_for_the_shell_is_there():
    text = irmtv("--help").stdout
    assert "--install-completion" in text and "--show-completion" in text


def commands_of(group, *path):
    """Every command with the words before it."""
    for name, command in group.commands.items():
        yield from commands_of(command, *path, name) if hasattr(command, "commands") else [((*path, name), command)]


def test_help_is_whole_in_a_narrow_terminal(monkeypatch):
    """Every option by its whole name, and what each command does in a whole sentence."""
    monkeypatch.setenv("COLUMNS", "80")
    for path, command in commands_of(get_command(app)):
        text = CliRunner().invoke(app, [*path, "--help"]).stdout
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        assert [name for name in names if name.startswith("-") and name not in text] == []
    for group in ([], ["data"]):
        assert "..." not in CliRunner().invoke(app, [*group, "--help"]).stdout.replace("[ARGS]...", "")


def test_help_and_completion_load_neither_torch_nor_scikit_learn():
    script = (
        "import sys\nfrom irmtv.cli import app\nfrom typer.testing import CliRunner\n"
        "for command in ([], ['fit'], ['predict'], ['diagnose'], ['report'], ['verify'], ['evaluate'], ['run']):\n"
        "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0\n"
        "print(sorted({'torch', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("[]\n", "")
