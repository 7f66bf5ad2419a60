"""`irmtv diagnose` as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.fit.tables import spurious_table
from irmtv.app.diagnose import diagnosis, inferred_environments
from irmtv.app.diagnose import informative as informative_module
from irmtv.app.diagnose.erm_model import KINDS, simplest
from irmtv.core.progress_bar import ProgressBar
from irmtv.models.erm import NetworkErm, TreeErm
from paths import REPOSITORY

DATA = os.environ.get("IRMTV_DATA")
LINEAR = ("--model", "linear")
QUESTIONS = (
    "How different are the environments?",
    "How does the loss of the plain model (ERM) differ across them?",
    "Which features' relation to the target changes?",
    "What environments are found in aux, and where?",
    "Are the environments informative at all?",
    "How does the loss split into change in X and change in y given X?",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    spurious_table().to_csv(path, index=False)
    return path


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(inferred_environments, "STEPS", 100)
    monkeypatch.setattr(informative_module, "OF_AUX", 19)


def test_the_answer_comes_first_and_every_question_has_one(command, table, tmp_path, quick):
    out = tmp_path / "diagnosis.html"
    ended = command("diagnose", table, *LINEAR, "--target", "sold", "-e", "site", "--aux", "day", "--out", out)
    assert ended.code == 0, ended.err
    assert ended.out.startswith("There is a shift that hurts: in south ")
    places = [ended.out.index(question) for question in QUESTIONS]
    assert places == sorted(places)
    assert "shortcut" in ended.out and "north" in ended.out
    assert "divides the rows by day at 2021-" in ended.out  # the middle of 1,200 days from 2020-01-01
    assert ended.err.endswith(f"written: {out}\n") and "note: 'sold' has two values" in ended.err
    page = out.read_text()
    assert page.count("<svg") == 5 and "There is a shift that hurts" in page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.csv", "diagnosis.html"]


@pytest.mark.parametrize("model", ["mlp", "trees", "auto"])
def test_other_models(command, table, tmp_path, monkeypatch, model):
    pytest.importorskip("lightgbm")
    monkeypatch.setattr(TreeErm, "ROUNDS", 40)
    monkeypatch.setattr(NetworkErm, "STEPS", 100)
    out = tmp_path / "d.html"
    how = () if model == "auto" else ("--model", model)
    ended = command("diagnose", table, *how, "--target", "sold", "-e", "site", "--out", out)
    assert ended.code == 0, ended.err
    told = re.search(r"note: model (\w+), by the held-out loss \(linear (\S+), mlp (\S+), trees (\S+);", ended.err)
    assert (told is not None) == (model == "auto")
    chosen = model if told is None else told[1]
    assert told is None or chosen == simplest(dict(zip(KINDS, map(float, told.groups()[1:]), strict=True)))
    assert ended.out.startswith("There is a shift that hurts: in south ")
    assert f"(ERM, {KINDS[chosen]})" in ended.out and KINDS[chosen] in out.read_text()
    assert ("Weights are how far the outputs move" in ended.out) == (chosen != "linear")
    assert "shortcut" in ended.out.splitlines()[2]


def test_json_is_the_summary_and_nothing_else_on_standard_output(command, table):
    ended = command("diagnose", table, *LINEAR, "--target", "sold", "-e", "site", "--json")
    summary = json.loads(ended.out)
    assert ended.code == 0 and summary["schema"] == 1 and summary["kind"] == "diagnosis"
    assert summary["command"].startswith("irmtv diagnose ") and summary["file"] == "data.csv"
    assert summary["found"] is None and summary["names"] == ["north", "south"]
    assert summary["features"]["features"][0]["name"] == "shortcut" and summary["features"]["features"][0]["changes"]
    assert summary["informative"][0]["informative"] is True


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (["--target", "sold"], 1, "give environment (a column that says where each row came from"),
        (["--target", "sould", "-e", "site"], 1, "Did you mean 'sold'?"),
        (["--target", "sold", "-e", "sit"], 1, "Did you mean 'site'?"),
        (["--target", "sold", "-e", "site", "--out", "nowhere/x.html"], 1, "There is no 'nowhere'; make it"),
        (["--target", "sold", "-e", "site", "--out", "data.csv"], 1, "--out must not be a file that is read"),
        (["--target", "sold", "-e", "site", "--max-rows", "-1"], 1, "--max-rows must be 0"),
        (["--target", "sold", "-e", "site", "--max-rows", "50"], 1, "--max-rows must be 0 (all rows) or at least 100"),
        (["--target", "sold", "-e", "site", "--model", "tree"], 1, "Got 'tree'. Did you mean 'trees'?"),
        (["--target", "sold", "-e", "site", "--task", "clustering"], 1, "task must be one of"),
        ([], 2, "--target"),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(command, table, tmp_path, monkeypatch, how, code, message):
    monkeypatch.chdir(tmp_path)
    ended = command("diagnose", table, *how)
    assert (ended.code, ended.out) == (code, "")
    assert message in " ".join(ended.err.split())
    assert [p.name for p in tmp_path.iterdir()] == ["data.csv"]


def test_a_file_that_is_not_there(command, tmp_path):
    ended = command("diagnose", tmp_path / "none.csv", "--target", "y", "-e", "site")
    assert ended.code == 1 and "none.csv" in ended.err


def test_ctrl_c_ends_with_130_and_writes_nothing(command, table, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnosis, "feature_changes", stop)
    ended = command("diagnose", table, *LINEAR, "--target", "sold", "-e", "site", "--out", tmp_path / "x.html")
    assert (ended.code, ended.out) == (130, "")
    assert "stopped; nothing was written" in ended.err
    assert [p.name for p in tmp_path.iterdir()] == ["data.csv"]


def test_the_bar_moves_to_its_end(command, table, monkeypatch):
    seen = []
    at = ProgressBar.at
    monkeypatch.setattr(
        ProgressBar, "at", lambda self, share, name: seen.append((share, name)) or at(self, share, name)
    )
    command("diagnose", table, *LINEAR, "--target", "sold", "-e", "site", "--json")
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert {"ERM", "features", "splitting the loss"} <= {name for _, name in seen}


def test_help_loads_nothing_that_computes():
    code = "import sys; from irmtv.cli import app; app(['diagnose', '--help'], standalone_mode=False); "
    code += "assert not {'sklearn', 'irmtv.app.diagnose', 'irmtv.app.io'} & set(sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "can invariance help?" in " ".join(ended.stdout.split())


@pytest.mark.data
def test_adult_raw(command, tmp_path):
    path = tmp_path / "adult.csv.gz"
    shutil.copyfile(Path(DATA) / "adult" / "adult.data.gz", path)
    ended = command("diagnose", path, *LINEAR, "--target", "Y", "-e", "sex", "--max-rows", "4000", "--json")
    assert ended.code == 0, ended.err
    summary = json.loads(ended.out)
    assert summary["rows_in_file"] == 32_561 and summary["rows"] == 4000 and summary["task"] == "binary"
    assert summary["differ"]["auc"]["low"] > 0.85  # husbands and wives
    assert summary["losses"]["worst"] == "Male" and summary["losses"]["p"] < 1e-6
    assert any("read as missing: ? in" in note for note in summary["notes"])


@pytest.mark.data
def test_king_county_raw_with_dates(command, tmp_path, quick):
    with gzip.open(Path(DATA) / "house_prices" / "kc_house_data.csv.gz") as file:
        frame = pd.read_csv(file, dtype={"date": str, "zipcode": str})
    path = tmp_path / "houses.parquet"
    frame.assign(renovated=np.where(frame["yr_renovated"] > 0, "yes", "no")).to_parquet(path)
    out = tmp_path / "d.html"
    how = ("--target", "price", "-e", "renovated", "--aux", "lat,long", "--max-rows", "3000", "--out", out)
    ended = command("diagnose", path, *LINEAR, *how)
    assert ended.code == 0, ended.err
    assert "lat" in ended.out and "note: A random sample of 3,000 of the 21,613 rows" in ended.err
    assert out.read_text().count("<svg") == 5
    by_date = command("diagnose", path, *LINEAR, "--target", "price", "--aux", "date", "--max-rows", "2000", "--json")
    found = json.loads(by_date.out)["found"]
    assert found["is_date"] == [True] and 2014.3 < found["centres"][0][0] < 2015.5


def test_the_example_of_the_documentation(command, tmp_path, monkeypatch):
    """docs/diagnose.md: its code makes the table, and its command gives what stands there."""
    page = (REPOSITORY / "docs" / "diagnose.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, flags=re.DOTALL)
    code = next(text for kind, text in blocks if kind == "python")
    line = next(text for kind, text in blocks if kind == "bash" and "patients.csv" in text)
    told = next(text for kind, text in blocks if kind == "text")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    monkeypatch.setattr(informative_module, "OF_AUX", 19)  # fewer searches: another p-value, and nothing else
    monkeypatch.setenv("COLUMNS", "80")
    ended = command(*shlex.split(line)[1:])
    assert ended.code == 0, ended.err
    assert max(map(len, ended.out.splitlines())) <= 80

    def numberless(text):  # the last digits may differ between machines, and p-values with the permutations
        words = " ".join(part.strip() for part in text.splitlines() if part[:1] != " ")
        words = re.sub(r"Environments found in aux are.*? permutations\)\.", "", words)
        return re.sub(r"-?\d[\d.,]*(e-\d+)?", "#", " ".join(words.split()))

    assert numberless(ended.out) == numberless(told)
    assert "at 2024-01-0" in ended.out and (tmp_path / "diagnosis.html").exists()


def test_columns_of_a_diagnosis(command, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=400), "code": rng.integers(1, 5, 400), "id": np.arange(400)})
    frame["site"], frame["y"] = np.repeat(["a", "b"], 200), frame["x"] + rng.normal(size=400)
    frame.to_csv(tmp_path / "d.csv", index=False)
    how = ("diagnose", tmp_path / "d.csv", "--target", "y", "-e", "site", "--model", "linear", "--json")
    found = json.loads(command(*how, "--drop", "id").out)
    assert [f["name"] for f in found["features"]["features"]].count("code") == 1
    assert sum("--categorical code" in note for note in found["notes"]) == 1
    found = json.loads(command(*how, "--features", "x,code", "--categorical", "code").out)
    names = sorted(f["name"] for f in found["features"]["features"])
    assert names == ["code_1", "code_2", "code_3", "code_4", "x"]
    ended = command(*how, "--drop", "idd")
    assert ended.code == 1 and "Did you mean 'id'?" in ended.err
