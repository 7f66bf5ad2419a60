"""`irmtv evaluate` as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error

import irmtv
from cli.models import fitted, houses
from irmtv.app.io import evaluate_file, open_model, read_table, split_columns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("evaluate")
    fitted(made)
    return made


def test_against_scikit_learn(command, folder, tmp_path):
    out = tmp_path / "t.csv"
    ended = command("evaluate", folder / "model.irmtv", folder / "houses.csv", "-e", "site", "--json", "--out", out)
    assert ended.code == 0, ended.err
    found, frame = json.loads(ended.out), houses()
    predicted = irmtv.load(folder / "model.irmtv").predict(frame)
    assert found["metric"] == "accuracy" and found["rows"] == 300 and found["target"] == "sold"
    assert found["overall"]["value"] == pytest.approx(accuracy_score(frame["sold"], predicted))
    values = {}
    for row in found["environments"]:
        here = (frame["site"] == row["environment"]).to_numpy()
        values[row["environment"]] = accuracy_score(frame["sold"][here], predicted[here])
        assert row["rows"] == here.sum()
        assert row["value"] == pytest.approx(values[row["environment"]])
        assert row["low"] < row["value"] < row["high"]
        # a share of n rows: about 1.96 standard errors each way
        error = 1.96 * np.sqrt(row["value"] * (1 - row["value"]) / row["rows"])
        assert row["high"] - row["low"] == pytest.approx(2 * error, rel=0.2)
    assert found["worst"]["value"] == pytest.approx(min(values.values()))
    assert found["worst"]["environment"] == min(values, key=values.__getitem__)
    assert found["spread"]["value"] == pytest.approx(max(values.values()) - min(values.values()))
    assert {row["environment"]: row["in_training"] for row in found["environments"]} == {"north": 0.75, "south": None}
    written = pd.read_csv(out).set_index("environment")["value"]
    assert written.to_dict() == pytest.approx(values)


def test_the_table(command, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = command("evaluate", folder / "model.irmtv", folder / "houses.csv", "--environment", "site")
    for text in ("north", "south", "all rows", "worst ", "spread, points", "accuracy, %", "in training", "75.0"):
        assert text in ended.out
    assert "95 % interval" not in ended.out and max(map(len, ended.out.splitlines())) <= 80
    more = command("evaluate", folder / "model.irmtv", folder / "houses.csv", "-e", "site", "--intervals")
    assert "95 % interval" in more.out and max(map(len, more.out.splitlines())) <= 80


def test_a_verdict_stands_first_and_without_environments_there_is_one_line(command, folder):
    arguments = ("evaluate", folder / "model.irmtv", folder / "houses.csv")
    told = json.loads(command(*arguments, "-e", "site", "--json").out)
    shown = " ".join(command(*arguments, "-e", "site").out.split())
    assert shown.startswith(" ".join(told["verdict"]))
    assert told["verdict"][0].startswith("What to expect in a new environment is not known; training")
    assert {row["environment"]: row["verdict"] for row in told["environments"]} == {
        "north": "unknown",
        "south": "better",
    }
    alone = command(*arguments).out
    assert [line.split()[0] for line in alone.splitlines() if re.search(r"\d\.\d$", line.rstrip())] == ["all"]
    assert re.search(r"^ all rows +300 +\d\d\.\d", alone, re.MULTILINE)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("labels", [["01", "02"], ["1.0", "2.0", ""], [*["01"] * 299, "x"]], ids=["codes", "gaps", "x"])
def test_environments_have_the_names_that_training_gave_them(folder, tmp_path, labels, suffix):
    path = tmp_path / f"new.{suffix}"
    frame = houses().assign(shop=np.resize(labels, 300))
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    model, _ = open_model(folder / "model.irmtv")
    table, _ = evaluate_file(model, path, target="sold", environment=["shop"], rows=100)
    trained = split_columns(read_table(path).frame, target="sold", environment="shop").environment
    assert set(table.names) == set(trained.astype(str)) <= {"1", "2", "01", "x"}


def test_the_worst_environment_first_or_in_the_order_of_time(command, folder, tmp_path):
    frame = houses()
    frame["site"] = np.array(["b", "a", "c"])[np.arange(300) % 3]
    frame["year"] = 2012 - np.arange(300) % 3
    frame.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "--json", "-e")
    values = [row["value"] for row in json.loads(command(*arguments, "site").out)["environments"]]
    assert values == sorted(values)
    years = [row["environment"] for row in json.loads(command(*arguments, "year").out)["environments"]]
    assert years == ["2010", "2011", "2012"]


def test_other_metrics_targets_and_environments(command, folder, tmp_path):
    frame = houses().rename(columns={"sold": "is sold"})
    frame["half, year"] = np.tile([1, 2], 150)
    frame.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("--target", "is sold", "--metric", "log_loss", "--json", "--bootstrap", 0)
    ended = command(
        "evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site", "-e", "half, year", *arguments
    )
    found = json.loads(ended.out)
    assert {row["environment"] for row in found["environments"]} == {
        f"{s} / {h}" for s in ("north", "south") for h in "12"
    }
    shares = irmtv.load(folder / "model.irmtv").predict_proba(frame)
    assert found["overall"]["value"] == pytest.approx(log_loss(frame["is sold"], shares))
    assert found["overall"]["low"] is None and found["overall"]["in_training"] is None
    alone = json.loads(command("evaluate", folder / "model.irmtv", tmp_path / "new.csv", *arguments).out)
    assert [row["environment"] for row in alone["environments"]] == ["all"]


def test_a_regression(command, tmp_path):
    model = fitted(tmp_path, "price")
    found = json.loads(command("evaluate", model, tmp_path / "houses.csv", "-e", "site", "--json").out)
    predicted = irmtv.load(model).predict(houses())
    assert found["metric"] == "rmse"
    assert found["overall"]["value"] == pytest.approx(root_mean_squared_error(houses()["price"], predicted))
    ended = command("evaluate", model, tmp_path / "houses.csv", "--target", "sold")
    assert ended.code == 1 and "must be numbers, as in training" in ended.err


def test_rows_without_target_or_environment_are_left_out(command, folder, tmp_path):
    frame = houses()
    frame.loc[:9, "sold"] = None
    frame.loc[5:19, "site"] = "NA"
    frame.to_csv(tmp_path / "new.csv", index=False)
    ended = command("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site", "--json")
    found = json.loads(ended.out)
    assert found["rows"] == 280
    assert "20 of 300 rows left out" in found["notes"][0]
    predicted = irmtv.load(folder / "model.irmtv").predict(frame)[20:]
    assert found["overall"]["value"] == pytest.approx((predicted == frame["sold"][20:]).mean())


def test_labels_are_the_same_however_they_are_written(command, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80)})
    frame["y"] = (frame["a"] + 0.3 * rng.normal(size=80) > 0).astype(int)
    model = irmtv.InvariantClassifier("erm", hidden=(), max_steps=50).fit(frame[["a"]], frame["y"])
    path = model.save(tmp_path / "m.irmtv")
    found = []
    for y in (frame["y"], frame["y"].astype(float), frame["y"].map({0: "0", 1: " 1"})):
        frame.assign(y=y).to_csv(tmp_path / "t.csv", index=False)
        found.append(json.loads(command("evaluate", path, tmp_path / "t.csv", "--target", "y", "--json").out))
    frame.to_parquet(tmp_path / "t.parquet")
    found.append(json.loads(command("evaluate", path, tmp_path / "t.parquet", "--target", "y", "--json").out))
    assert all(f["overall"] == found[0]["overall"] for f in found)


def test_refusals(command, folder, tmp_path):
    model, data = folder / "model.irmtv", folder / "houses.csv"

    def refused(*arguments: object) -> str:
        ended = command("evaluate", *arguments)
        assert ended.code == 1 and ended.out == ""
        return str(ended.err)

    frame = houses()
    frame.loc[:4, "sold"] = "maybe"
    frame.to_csv(tmp_path / "new.csv", index=False)
    told = refused(model, tmp_path / "new.csv", "--out", tmp_path / "t.csv")
    assert "classes of training, 'no', 'yes'. Got 'maybe' in 5 of 300 rows" in told
    assert not (tmp_path / "t.csv").exists()
    assert "--environment must be a column" in refused(model, data, "-e", "Site")
    assert "Did you mean 'site'?" in refused(model, data, "-e", "Site")
    assert "--target must be a column" in refused(model, data, "--target", "bought")
    assert "--out must not be a file that is read" in refused(model, data, "--out", data)
    assert "metric must be one of" in refused(model, data, "--metric", "rmse")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert "--target is missing" in refused(fitted(plain, about=False), data)


def test_codes_that_are_the_same_number_are_different_classes(command, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90)})
    frame["y"] = np.array(["01", "1", "2"], dtype=object)[np.digitize(frame["a"], [-0.5, 0.5])]
    model = irmtv.InvariantClassifier("erm", hidden=(), max_steps=200).fit(frame[["a"]], frame["y"])
    path = model.save(tmp_path / "m.irmtv")

    def found(y: pd.Series) -> float:
        frame.assign(y=y).to_parquet(tmp_path / "t.parquet")
        told = command("evaluate", path, tmp_path / "t.parquet", "--target", "y", "--json")
        assert told.code == 0, told.err
        return float(json.loads(told.out)["overall"]["value"])

    right = accuracy_score(frame["y"], model.predict(frame[["a"]]))
    assert right > 0.5 and found(frame["y"]) == pytest.approx(right)
    assert found(frame["y"].replace("2", "2.0")) == pytest.approx(right)
    frame.assign(y=frame["y"].replace("1", "1.0")).to_parquet(tmp_path / "t.parquet")
    ended = command("evaluate", path, tmp_path / "t.parquet", "--target", "y")
    assert ended.code == 1 and "Got '1.0' in" in ended.err  # of which of the two?


def test_values_of_training_are_those_of_the_same_columns(command, folder, tmp_path):
    """Labels of another column may be spelt alike; an environment may be called "overall"."""
    frame = houses().assign(other=lambda f: f["site"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    ended = command("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "other", "--json")
    found = json.loads(ended.out)
    assert [row["in_training"] for row in [*found["environments"], found["overall"]]] == [None] * 3
    frame["site"] = "overall"
    frame.to_csv(tmp_path / "new.csv", index=False)
    found = json.loads(command("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site", "--json").out)
    assert found["environments"][0]["environment"] == "overall" and found["environments"][0]["in_training"] is None
    assert found["overall"]["in_training"] == 0.75


def test_a_metric_without_a_value(command, folder, tmp_path):
    frame = houses()
    frame["site"] = frame["sold"].map({"yes": "s0", "no": "s1"})
    frame.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site", "--metric", "roc_auc")
    ended = command(*arguments, "--out", tmp_path / "t.csv")
    assert ended.code == 0, ended.err
    assert "No environment has a value of roc_auc: it needs rows of both classes." in ended.out
    assert "Worst" not in ended.out and "worst" not in ended.out
    assert pd.read_csv(tmp_path / "t.csv")["value"].isna().all()
    found = json.loads(command(*arguments, "--json").out)
    assert found["worst"]["environment"] is None and "No environment has a value" in found["notes"][-1]
    frame.loc[:99, "site"] = "both"
    frame.to_csv(tmp_path / "new.csv", index=False)
    ended = command(*arguments)
    assert "no roc_auc in 's0', 's1': it needs rows of both classes" in ended.err
    assert "worst" in ended.out


def test_hardly_any_rows_give_no_interval(command, folder, tmp_path):
    predicted = irmtv.load(folder / "model.irmtv").predict(houses())
    frame = houses()
    frame.loc[:8, "site"] = "tiny"  # 9 rows, all wrong
    frame.loc[:8, "sold"] = np.where(predicted[:9] == "yes", "no", "yes")
    frame.loc[9:18, "site"] = "small"  # 10 rows
    frame.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site")
    ended = command(*arguments, "--json")
    found = json.loads(ended.out)
    lows = {row["environment"]: row["low"] for row in found["environments"]}
    assert lows.pop("tiny") is None and None not in lows.values() and len(lows) == 3
    assert found["worst"]["environment"] == "tiny" and found["worst"]["low"] is found["spread"]["low"] is None
    assert found["overall"]["low"] is not None
    note = "no interval for environments with fewer than 10 rows ('tiny'); worst and spread include them"
    assert note in found["notes"]
    line = next(line for line in command(*arguments, "--intervals").out.splitlines() if line.startswith(" tiny"))
    assert " to " not in line


def test_the_spread_of_an_accuracy_is_in_points(command, folder):
    arguments = ("evaluate", folder / "model.irmtv", folder / "houses.csv", "-e", "site")
    spread = json.loads(command(*arguments, "--json").out)["spread"]
    line = next(line for line in command(*arguments).out.splitlines() if "spread" in line)
    assert f"{100 * spread['value']:.1f}" in line and "points" in line and "%" not in line
