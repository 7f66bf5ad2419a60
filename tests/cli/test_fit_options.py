"""Options of `irmtv fit` about columns, metrics, other rows, the price and quiet, as a user gives them."""

from __future__ import annotations

import json
import shlex
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import irmtv
from app.fit.tables import spurious_table
from irmtv.estimators.files import read_about

QUICK = ("--model", "linear", "--steps", 200, "--penalty-weights", "100")
BASE = ("--target", "sold", "-e", "site")


def codes_table(n: int = 800) -> pd.DataFrame:
    """With a code (1 to 4) whose order means nothing."""
    rng = np.random.default_rng(5)
    frame = spurious_table(n).drop(columns="day")
    return frame.assign(code=rng.integers(1, 5, n), id=[f"r{k}" for k in range(n)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    codes_table().to_csv(path, index=False)
    return path


@pytest.mark.parametrize("which", [("--drop", "id,code,colour"), ("--features", "cause", "--features", "shortcut")])
def test_columns_that_are_left_out_are_not_needed_afterwards(command, table, tmp_path, which):
    out = tmp_path / "m.irmtv"
    ended = command("fit", table, *BASE, *QUICK, *which, "--out", out, "--json")
    summary = json.loads(ended.out)
    assert summary["data"]["columns"] == ["cause", "shortcut"]
    assert sorted(summary["data"]["dropped"]) == ["code", "colour", "id"]
    assert [c["name"] for c in json.loads(command("verify", out, "--json").out)["columns"]] == ["cause", "shortcut"]
    few = tmp_path / "few.csv"
    pd.read_csv(table)[["shortcut", "cause", "sold", "site"]].to_csv(few, index=False)
    assert command("predict", out, few, "--out", tmp_path / "p.csv").code == 0
    assert command("evaluate", out, few, "-e", "site").code == 0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (("--drop", "shortcutt"), "drop must be a column of the table. Got 'shortcutt'. Did you mean 'shortcut'?"),
        (("--features", "caus"), "features must be a column of the table. Got 'caus'. Did you mean 'cause'?"),
        (("--categorical", "cod"), "categorical must be a column of the table. Got 'cod'. Did you mean 'code'?"),
        (("--drop", "id", "--features", "cause"), "drop and features say the same in two ways."),
        (("--drop", "sold"), "drop names 'sold', which is the target and so no feature in any case."),
        (("--drop", "site"), "drop names 'site', which is the environment"),
        (("--features", "cause,site"), "features cannot hold 'site', which is the environment"),
        (("--drop", "cause,shortcut,colour,code,id"), "drop must leave some features."),
        (("--drop", "code", "--categorical", "code"), "categorical must name features. 'code' is not a feature here."),
        (("--categorical", "site"), "'site' is the environment, which needs no such word."),
        (("--max-price", "-1"), "max_price must be a number of at least 0"),
        (("--max-price", "0.1", "--rule", "iid"), "only rule 'invariance' has options"),
        (("--metric", "roc_acu"), "Got 'roc_acu'. Did you mean 'roc_auc'?"),
        (("--metric", "r2"), "for binary. Got 'r2'."),
    ],
)
def test_mistakes_are_one_message(command, table, tmp_path, how, message):
    ended = command("fit", table, *BASE, *QUICK, *how, "--out", tmp_path / "m.irmtv")
    assert ended.code == 1 and message in ended.err and ended.err.startswith("irmtv: ")
    assert not (tmp_path / "m.irmtv").exists()


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_codes_are_categories_where_the_user_says_so(command, table, tmp_path, model):
    """A note asks once; 1, 1.0 and "1" are one category; the file predicts the same."""
    out = tmp_path / "m.irmtv"
    how = (
        "fit",
        table,
        *BASE,
        "--model",
        model,
        "--rounds",
        10,
        "--penalty-weights",
        100,
        "--drop",
        "id",
        "--out",
        out,
    )
    asked = command(*how)
    assert asked.err.count("--categorical") == 1 and "code (4)" in asked.err
    ended = command(*how, "--categorical", "code")
    assert ended.code == 0 and "--categorical" not in ended.err
    names = [f["name"] for f in read_about(out)["features"]]
    assert ("code" in names) == (model == "trees") and ("code_1" in names) == (model == "linear")
    kinds = {c["name"]: c["kind"] for c in json.loads(command("verify", out, "--json").out)["columns"]}
    assert kinds["code"] == "category" and kinds["cause"] == "number"
    frame = pd.read_csv(table)
    loaded = irmtv.load(out)
    same = [loaded.predict_proba(frame.assign(code=frame["code"].astype(t)))[:, 1] for t in (int, float, str)]
    np.testing.assert_array_equal(same[0], same[1])
    np.testing.assert_array_equal(same[0], same[2])
    frame.assign(code=9).to_csv(tmp_path / "new.csv", index=False)
    ended = command("predict", out, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "'code': 800 values that training did not have ('9')" in ended.err


def test_the_metric_is_that_of_scikit_learn_and_shown_everywhere(command, table, tmp_path):
    out = tmp_path / "m.irmtv"
    ended = command("fit", table, *BASE, *QUICK, "--drop", "id", "--metric", "average_precision", "--out", out)
    assert ended.code == 0 and "average precision on held-out rows goes from " in " ".join(ended.out.split())
    assert "average_precision is that of finding 'yes'" in ended.err
    assert "average_precision" in (tmp_path / "m.html").read_text()
    frame = pd.read_csv(table)
    found = json.loads(command("evaluate", out, table, "--metric", "roc_auc", "--bootstrap", 0, "--json").out)
    outputs = irmtv.load(out).decision_function(frame)
    assert found["overall"]["value"] == pytest.approx(roc_auc_score(frame["sold"] == "yes", outputs))


def test_an_environment_of_one_class_has_no_area_and_nothing_breaks(command, table, tmp_path):
    frame = pd.read_csv(table)
    frame.loc[(frame["site"] == "north") & (frame["sold"] == "yes"), "site"] = "yes only"
    frame.loc[(frame["site"] == "north"), "site"] = "no only"
    frame.to_csv(table, index=False)
    how = ("--drop", "id", "--metric", "roc_auc", "--out", tmp_path / "m.irmtv")
    ended = command("fit", table, *BASE, *QUICK, *how)
    assert ended.code == 0, ended.err
    summary = read_about(tmp_path / "m.irmtv")
    values = {row["name"]: row["erm"]["value"] for row in summary["environments"]}
    assert values["yes only"] is None and values["no only"] is None and values["south"] > 0.5
    assert summary["worst"]["erm"]["value"] == values["south"]
    assert summary["new_environment"]["expected"] is None
    said = " ".join(ended.out.split())
    assert "fewer than two of the environments that were left out have a value of roc_auc" in said


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_other_rows_are_scored_with_erm_and_the_choice(command, table, tmp_path, model):
    other, out = tmp_path / "other.csv", tmp_path / "m.irmtv"
    elsewhere = spurious_table(600, agreement=(0.1, 0.2), seed=3).assign(code=1, id="x")
    elsewhere.assign(site=lambda f: f["site"].map({"north": "east", "south": "west"})).to_csv(other, index=False)
    how = ("--model", model, "--rounds", 30, "--penalty-weights", 100, "--drop", "id", "--test", other, "--out", out)
    ended = command("fit", table, *BASE, *how)
    assert ended.code == 0, ended.err
    assert "accuracy on the 600 rows of other.csv" in ended.out and "east" in ended.out
    scores = read_about(out)["test"]
    assert [row["name"] for row in scores["environments"]] == ["east", "west"] and scores["rows"] == 600
    right = irmtv.load(out).predict(elsewhere) == elsewhere["sold"]
    assert scores["overall"]["chosen"]["value"] == pytest.approx(right.mean())
    assert scores["environments"][0]["chosen"]["value"] == pytest.approx(right[elsewhere["site"] == "north"].mean())
    assert scores["overall"]["difference"]["value"] > 0.1  # the shortcut is wrong there
    judged = json.loads(command("evaluate", out, other, "-e", "site", "--json").out)
    *said, against_plain = scores["verdict"]
    assert said == judged["verdict"] and " ".join(scores["verdict"]) in " ".join(ended.out.split())
    assert against_plain.startswith("By accuracy the chosen model is better than the plain model over all of these ro")
    words = {row["environment"]: row["verdict"] for row in judged["environments"]}
    assert {row["name"]: row["verdict"] for row in scores["environments"]} == words
    assert scores["verdict"][-1] in unescape((tmp_path / "m.html").read_text()).replace("\u00a0", " ")
    assert "On other rows" in (tmp_path / "m.html").read_text()


def test_other_rows_without_environment_and_mistakes_before_training(command, table, tmp_path):
    other, out = tmp_path / "other.csv", tmp_path / "m.irmtv"
    frame = pd.read_csv(table)
    frame.drop(columns="site").to_csv(other, index=False)
    ended = command("fit", table, *BASE, *QUICK, "--test", other, "--out", out, "--json")
    scores = json.loads(ended.out)["test"]
    assert scores["environments"] == [] and scores["worst"] is None and scores["overall"]["rows"] == len(frame)
    assert scores["notes"] == ["other.csv has no column 'site': all of its rows are scored together"]
    for wrong, message in (
        (frame.drop(columns="sold"), "test, other.csv: the target 'sold' must be there"),
        (frame.drop(columns="cause"), "Missing: 'cause'"),
        (
            frame.assign(sold="maybe"),
            "test, other.csv: target 'sold' must hold the classes of training, 'no', 'yes'",
        ),
    ):
        wrong.to_csv(other, index=False)
        ended = command("fit", table, *BASE, *QUICK, "--test", other, "--out", tmp_path / "n.irmtv")
        assert ended.code == 1 and message in ended.err, ended.err
    assert not (tmp_path / "n.irmtv").exists()


def test_a_limit_on_the_price(command, table, tmp_path):
    """The invariant model costs more than 5 % of ERM's risk, and less than 80 %."""
    out = tmp_path / "m.irmtv"
    how = ("fit", table, *BASE, "--model", "linear", "--drop", "id", "--out", out, "--json", "--max-price")
    dear, cheap = (json.loads(command(*how, price).out) for price in (0.8, 0.05))
    assert dear["outcome"] == "invariant-found" and cheap["outcome"] != "invariant-found"
    figures = dear["settings"]["figures"]
    assert 0.05 < figures["price"] / figures["risk_erm"] < 0.8
    assert cheap["settings"]["figures"]["price"] / figures["risk_erm"] <= 0.05
    assert cheap["settings"]["max price"] == 0.05 and "max_price = 0.05" in cheap["message"]


def test_quiet_prints_the_answer_alone(command, table, tmp_path):
    out = tmp_path / "m.irmtv"
    ended = command("fit", table, *BASE, *QUICK, "--drop", "id", "--quiet", "--out", out)
    about = read_about(out)
    said = about["answer"]
    assert " ".join(ended.out.split()) == " ".join([said["expect"], said["choice"], said["next"], said["command"]])
    assert ended.err == "" and (tmp_path / "m.html").exists()
    ended = command("fit", table, *BASE, *QUICK, "--drop", "id", "-q", "--json", "--out", out)
    assert json.loads(ended.out) and ended.err == ""
    ended = command("fit", table, *BASE, "--drop", "nothing", "-q", "--out", out)
    assert ended.code == 1 and ended.err.startswith("irmtv: drop must be")


def test_plain_fits_say_that_nothing_else_was_sought(command, table, tmp_path):
    how = ("fit", table, *BASE, "--model", "linear", "--drop", "id", "--out", tmp_path / "m.irmtv", "--json")
    asked = "A plain model was asked for and trained"
    for more, sought in ((("--penalty-weights", 100), True), (("--objective", "erm"), False)):
        summary = json.loads(command(*how, *more).out)
        assert summary["sought"] is sought and summary["answer"]["choice"].startswith(asked) is not sought


def test_the_diagnose_command_has_the_users_options_and_works_when_typed(command, table, tmp_path):
    how = ("--drop", "id,colour", "--categorical", "code", "--task", "binary", "--quiet", "--out", tmp_path / "m.irmtv")
    ended = command("fit", table, *BASE, *QUICK, *how)
    typed = read_about(tmp_path / "m.irmtv")["answer"]["command"]
    options = "--drop id,colour --categorical code --task binary"
    assert typed == f"irmtv diagnose {table} --target sold --environment site {options}" and typed in ended.out
    ended = command(*shlex.split(typed)[1:], "--model", "linear", "--json")
    assert ended.code == 0
    features = {feature["name"] for feature in json.loads(ended.out)["features"]["features"]}
    assert {"cause", "shortcut", "code_1"} <= features and not any(f.startswith(("id", "colour")) for f in features)


def test_a_column_that_gives_the_site_away_can_be_dropped_as_the_answer_says(command, table, tmp_path):
    frame = pd.read_csv(table).drop(columns="id")
    frame["the, postcode"] = np.where(frame["site"] == "north", 10, 20) + frame["code"]
    frame.to_csv(table, index=False)
    how = ("fit", table, *BASE, *QUICK, "--out", tmp_path / "m.irmtv", "--json")
    said = json.loads(command(*how).out)["answer"]["next"]
    assert "Try it without the, postcode (--drop 'the, postcode'): the, postcode alone tells " in said
    again = json.loads(command(*how, "--drop", "the, postcode").out)
    assert "Try it without" not in again["answer"]["next"] and again["answer"]["command"].endswith("'the, postcode'")
    named = json.loads(command(*how, "--features", "the, postcode", "--features", "cause").out)
    assert "(take it out of --features)" in named["answer"]["next"]
