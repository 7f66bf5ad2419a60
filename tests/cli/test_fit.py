"""`irmtv fit` as a user runs it."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import irmtv
from app.fit.tables import spurious_table
from app.pages.summaries import summary, with_erm_kept, with_unseen
from irmtv.cli.fit import show
from irmtv.core.progress_bar import ProgressBar
from irmtv.estimators.files import read_about

DATA = os.environ.get("IRMTV_DATA")
QUICK = ("--model", "linear", "--steps", 300)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    spurious_table().to_csv(path, index=False)
    return path


def words(text: str) -> str:
    """Without line breaks and padding."""
    return " ".join(text.split())


def test_fit_prints_the_answer_and_every_environment_and_writes_model_and_page(command, table, tmp_path):
    out = tmp_path / "sales.irmtv"
    ended = command("fit", table, "--target", "sold", "--environment", "site", *QUICK, "--out", out)
    assert ended.code == 0, ended.err
    assert re.search(r"The features (do not|hardly|somewhat|clearly|almost fully) tell the environm", words(ended.out))
    about = read_about(out)
    assert about is not None
    said = about["answer"]
    assert words(ended.out).startswith(words(" ".join(said[part] for part in ("expect", "choice", "next", "command"))))
    assert said["expect"].startswith(
        "What to expect in a new environment is not known: it takes 3 or more environments"
    )
    assert said["choice"].startswith("A model was found that holds in every environment alike (an invariant model)")
    assert said["command"] == f"irmtv diagnose {table} --target sold --environment site"
    for text in ("north", "south", "all rows", "worst environment", "plain, %", "(+ is better)"):
        assert text in ended.out
    how = r"(of eills|\(classifier (scalar|vector), from (ERM|equal risks)\))"
    assert re.search(rf"^model: linear, penalty weight \d+ {how}$", ended.out, re.MULTILINE)
    assert f"written: {out}, {tmp_path / 'sales.html'}" in ended.err
    assert '<meta name="generator" content="irmtv">' in (tmp_path / "sales.html").read_text()
    frame = spurious_table()
    assert (irmtv.load(out).predict(frame) == frame["sold"]).mean() > 0.7
    assert about["command"].startswith("irmtv fit ") and about["headline"] == said["choice"]


def test_a_page_replaces_its_own_and_nothing_else(command, table, tmp_path):
    """Said before anything is trained."""
    out, page = tmp_path / "m.irmtv", tmp_path / "m.html"
    how = ("fit", table, "--target", "sold", "-e", "site", *QUICK, "--penalty-weights", "100", "--out", out)
    page.write_text("<html>my own page</html>")
    ended = command(*how)
    assert (ended.code, ended.out) == (1, "") and not out.exists()
    assert "--report must not replace a file that irmtv did not write" in ended.err and str(page) in ended.err
    assert page.read_text() == "<html>my own page</html>"
    page.unlink()
    assert command(*how).code == 0 and command(*how).code == 0
    page.write_text("<html>my own page</html>")
    ended = command("report", out)
    assert ended.code == 1 and "--out must not replace a file that irmtv did not write" in ended.err
    page.write_text("<p>an older page</p><footer>Nothing in this page was loaded from elsewhere.</footer>")
    assert command("report", out).code == 0


def test_a_plain_model_that_is_asked_for_is_said_to_be_that(command, table, tmp_path):
    how = ("--target", "sold", "-e", "site", "--objective", "erm", *QUICK, "--out", tmp_path / "m.irmtv")
    ended = command("fit", table, *how)
    assert "A plain model was asked for and trained (a linear model)." in words(ended.out)
    assert "No invariant model" not in ended.out and "chosen" not in ended.out


@pytest.mark.parametrize("kind", ["found", "kept"])
@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("width", [80, 200])
def test_what_is_printed_fits_the_terminal_and_its_numbers_are_aligned(monkeypatch, capsys, width, task, kind):
    monkeypatch.setenv("COLUMNS", str(width))
    made = summary(12, task=task, names=[f"a rather long name of a site {i}" for i in range(12)])
    made = with_unseen(made if kind == "found" else with_erm_kept(made))
    for intervals in (False, True):
        show(made, intervals)
        printed = capsys.readouterr().out
        lines = [line for line in printed.splitlines() if "irmtv diagnose" not in line]
        assert max(map(len, lines)) <= width
        start = next(i for i, line in enumerate(lines) if line.startswith(" environment"))
        rows = [line for line in lines[start:] if re.search(r"\d\.\d", line)]
        assert len(rows) == 14, "one line each"
        ends = {len(line.rstrip()) for line in rows}
        assert len(ends) == 1, "the last column is aligned"
        assert ("[" in rows[0]) == (intervals or width == 200)


def test_progress_is_a_line_every_ten_seconds_where_there_is_no_terminal():
    now, told = [0.0], io.StringIO()
    console = Console(file=told, force_terminal=False, width=80)
    with ProgressBar("reading", console, lines=True, clock=lambda: now[0]) as bar:
        for second in range(0, 36, 3):
            now[0] = float(second)
            bar.at(second / 36, "training")
    assert told.getvalue() == "training: 33 %, 12 s\ntraining: 67 %, 24 s\n"
    quiet = io.StringIO()
    with ProgressBar("reading", Console(file=quiet, force_terminal=False), clock=lambda: now[0]) as bar:
        now[0] = 100.0
        bar.at(0.5, "training")
    assert quiet.getvalue() == ""


def test_with_three_environments_the_first_number_is_that_of_an_unseen_one(command, table, tmp_path):
    frame = pd.read_csv(table)
    frame["site"] = np.where(np.arange(len(frame)) % 3 == 0, "west", frame["site"])
    frame.to_csv(table, index=False)
    ended = command("fit", table, "--target", "sold", "-e", "site", *QUICK, "--out", tmp_path / "m.irmtv")
    share = r"\d+\.\d %"
    assert re.match(
        rf"In a new environment expect an accuracy of about {share}(, and between {share} and {share} in 90 % of new "
        r"ones, if they are drawn as the known ones were|; how far from it a new one may lie, 3 environments cannot "
        rf"tell)\. Models were trained without each of the 3 environments and scored there; the worst \(\w+\) had "
        rf"{share}\. Held-out rows of known environments have {share} on average\.",
        words(ended.out),
    )
    about = read_about(tmp_path / "m.irmtv")
    assert about is not None and about["new_environment"]["expected"]["mean"] > 0.5


def test_years_are_predicted_from_what_came_before_unless_it_is_denied(command, table, tmp_path):
    frame = pd.read_csv(table)
    frame["site"] = 2009 + np.arange(len(frame)) % 5
    frame.to_csv(table, index=False)
    how = ("fit", table, "--target", "sold", "-e", "site", *QUICK, "--penalty-weights", "100", "--out")
    by_default, said = (command(*how, tmp_path / "m.irmtv", *more) for more in ((), ("--time-ordered",)))
    unseen = words(by_default.out).partition(" Held-out rows")[0]
    assert "Each of 3 times was predicted by models of what came before it; the worst (20" in unseen
    assert words(said.out).startswith(unseen)
    order = [int(year) for year in re.findall(r"^ (20\d\d) ", by_default.out, re.MULTILINE)]
    assert order == [2009, 2010, 2011, 2012, 2013]
    assert "'site' is read as times" in by_default.err and "read as times" not in said.err
    denied = command(*how, tmp_path / "m.irmtv", "--no-time-ordered", "--json")
    assert json.loads(denied.out)["new_environment"]["left_out"] == "environments"


def test_json_is_the_summary_and_nothing_else_on_standard_output(command, table, tmp_path):
    out = tmp_path / "m.irmtv"
    ended = command("fit", table, "--target", "sold", "-e", "site", *QUICK, "--out", out, "--json")
    summary = json.loads(ended.out)
    assert summary["outcome"] == "invariant-found"
    assert summary["model_file"] == str(out)


def test_trees_from_the_table_to_predictions_scores_report_and_verification(command, tmp_path):
    """One model file that every other command reads."""
    path, out = tmp_path / "data.csv", tmp_path / "model.irmtv"
    frame = spurious_table().drop(columns="day")
    frame.to_csv(path, index=False)
    how = ("--model", "trees", "--rounds", 30, "--penalty-weights", "100")
    ended = command("fit", path, "--target", "sold", "-e", "site", *how, "--out", out)
    assert ended.code == 0, ended.err
    assert re.search(r"^model: trees \(\d+ leaves\), penalty weight 100", ended.out, re.MULTILINE)
    page = (tmp_path / "model.html").read_text()
    assert "trees: how far features move the score" in page and "chosen − plain, points" in page
    (tmp_path / "model.html").unlink()
    assert command("report", out).code == 0
    assert (tmp_path / "model.html").read_text() == page
    ended = command("predict", out, path, "--out", tmp_path / "predicted.csv")
    assert ended.code == 0, ended.err
    predicted = pd.read_csv(tmp_path / "predicted.csv")
    loaded = irmtv.load(out)
    np.testing.assert_allclose(predicted["probability_yes"], loaded.predict_proba(frame)[:, 1], rtol=1e-6)
    ended = command("evaluate", out, path, "-e", "site", "--json")
    scores = {row["environment"]: row["value"] for row in json.loads(ended.out)["environments"]}
    right = loaded.predict(frame) == frame["sold"]
    assert scores == pytest.approx(right.groupby(frame["site"]).mean().to_dict())
    ended = command("verify", out, "--json")
    told = json.loads(ended.out)
    assert (
        told["good"] and told["model"].startswith("trees ") and told["predicts"].startswith("a row without any value")
    )


def test_trees_without_lightgbm_say_what_to_install(command, table, monkeypatch, tmp_path):
    def missing():
        raise ImportError("boosting needs LightGBM. Install it with pip install 'irmtv[boosting]'.")

    monkeypatch.setattr("irmtv.estimators.boosting.lightgbm", missing)
    how = ("--target", "sold", "-e", "site", "--out", tmp_path / "m.irmtv")
    ended = command("fit", table, *how, "--model", "trees")
    assert (ended.code, ended.out) == (1, "")
    assert "pip install 'irmtv[boosting]'" in ended.err
    assert not (tmp_path / "m.irmtv").exists()


def test_columns_with_commas_and_repeated_options(command, table, tmp_path):
    frame = pd.read_csv(table).rename(columns={"site": "site, city"})
    frame["half"] = np.tile(["1", "2"], len(frame) // 2)
    frame.to_csv(table, index=False)
    how = ("--target", "sold", "--environment", "site, city", "--environment", "half", *QUICK)
    ended = command("fit", table, *how, "--json", "--out", tmp_path / "m.irmtv")
    names = {row["name"] for row in json.loads(ended.out)["environments"]}
    assert names == {"north / 1", "north / 2", "south / 1", "south / 2"}


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (["--target", "sould"], 1, "'sould'"),
        (["--target", "sold", "--penalty-weights", "ten"], 1, "--penalty-weights must be numbers"),
        (["--target", "sold", "--out", "nowhere/model.irmtv"], 1, "There is no 'nowhere'; make it"),
        (["--target", "sold", "--out", "data.csv"], 1, "--out must not be a file that is read"),
        (["--target", "sold", "--report", "data.csv"], 1, "--report must not be a file that is read"),
        (["--target", "sold", "--out", "x", "--report", "x"], 1, "--report must be another file"),
        (["--target", "sold", "--out", "."], 1, "--out must be a file"),
        (["--target", "sold", "--objective", "irm-tv-l3"], 1, "irm-tv-l1"),
        (["--target", "sold", "--task", "regression"], 1, "sold"),
        ([], 2, "--target"),
        (["--target", "sold", "--folds", "many"], 2, "--folds"),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(command, table, tmp_path, monkeypatch, how, code, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    ended = command("fit", table, "--environment", "site", *QUICK, *how)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert sorted(tmp_path.iterdir()) == before


def test_without_environment_and_aux_both_are_explained(command, table):
    ended = command("fit", table, "--target", "sold", *QUICK)
    assert ended.code == 1
    assert "environment" in ended.err and "aux" in ended.err


def test_missing_values_are_reported_and_one_environment_is_enough_for_plain_risk_minimisation(
    command, table, tmp_path
):
    frame = pd.read_csv(table)
    frame.assign(site="here").to_csv(table, index=False)
    how = ("--target", "sold", "--environment", "site", *QUICK, "--out", tmp_path / "m.irmtv")
    assert command("fit", table, *how).code == 1
    ended = command("fit", table, *how, "--objective", "erm")
    assert ended.code == 0, ended.err
    assert re.search(r"missing values are filled .*: cause \(\d", ended.err)


@pytest.mark.time_limit(180)
@pytest.mark.usefixtures("ctrl_c")
def test_progress_with_time_left_in_a_terminal_and_ctrl_c_leaves_nothing(table, tmp_path):
    """Through a pseudo-terminal: the bar moves, and Ctrl-C ends it with exit code 130."""
    ours, theirs = pty.openpty()
    arguments = [
        "fit",
        str(table),
        "--target",
        "sold",
        "--environment",
        "site",
        "--steps",
        "200000",
        "--model",
        "linear",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "irmtv", *arguments, "--model", "linear", "--out", str(tmp_path / "m.irmtv")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    seen = ""
    try:
        while "steps/s" not in seen or not re.search(r"left \d", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)):
            ready, _, _ = select.select([ours], [], [], 120)
            assert ready, f"nothing more came after: {seen[-500:]}"
            seen += os.read(ours, 65536).decode(errors="replace")
        os.write(ours, b"\x03")  # what the keyboard sends
        with suppress(OSError):  # the other side is closed
            while True:
                seen += os.read(ours, 65536).decode(errors="replace")
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "nothing was written" in seen
    assert not (tmp_path / "m.irmtv").exists()


def test_a_closed_pipe_loses_no_file_and_a_full_disk_no_answer(command, table, tmp_path, monkeypatch):
    out = tmp_path / "m.irmtv"
    how = ["fit", str(table), "--target", "sold", "--environment", "site", "--model", "linear", "--out", str(out)]
    fit = subprocess.Popen([sys.executable, "-m", "irmtv", *how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert fit.stdout is not None
    fit.stdout.close()  # as `| head -0` does
    fit.wait(300)
    assert out.exists() and out.with_suffix(".html").exists()

    def full(*arguments, **options):
        raise OSError(28, "No space left on device", str(out))

    monkeypatch.setattr("irmtv.estimators.files.save", full)
    ended = command(*how)
    assert ended.code == 1 and "No space left" in ended.err and "What to expect in a new environment" in ended.out


def real(name: str, n: int, tmp_path: Path, suffix: str) -> Path:
    """Some lines of a real file, as they stand in it."""
    with gzip.open(Path(DATA or "") / name, "rt", encoding="utf-8") as file:
        head, *lines = file.read().splitlines()
    few = np.random.default_rng(0).permutation(len(lines))[:n]
    path = tmp_path / f"table{suffix}"
    text = "\n".join([head, *(lines[i] for i in few)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    return path


@pytest.mark.data
def test_adult_as_it_is_with_text_and_question_marks(command, tmp_path):
    path = real("adult/adult.data.gz", 3000, tmp_path, ".csv.gz")
    ended = command("fit", path, "--target", "Y", "-e", "race", *QUICK, "--out", tmp_path / "m.irmtv", "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert summary["task"] == "binary"
    assert summary["overall"]["erm"]["value"] > 0.82
    assert set(summary["data"]["missing"]) == {"workclass", "occupation", "native-country"}  # question marks


@pytest.mark.data
def test_king_county_with_dates_and_environments_inferred_from_the_year_of_building(command, tmp_path):
    path = real("house_prices/kc_house_data.csv.gz", 3000, tmp_path, ".csv")
    how = ("--target", "price", "--aux", "yr_built", *QUICK, "--out", tmp_path / "m.irmtv", "--json")
    ended = command("fit", path, *how)
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert (summary["task"], summary["objective"]) == ("regression", "minimax-tv-l1")
    assert 150_000 < summary["overall"]["erm"]["value"] < 260_000  # linear models have about 200,000 dollars
    assert any(f["name"].startswith("date_") for f in summary["features"])  # 20141013T000000 was read as a date
