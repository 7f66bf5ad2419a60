"""`irmtv evaluate` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error

import irmtv
from cli.models import fitted, houses


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
    assert [row["in_training"] for row in found["environments"]] == [0.75, None]
    written = pd.read_csv(out)
    assert written["environment"].tolist() == ["north", "south"]
    np.testing.assert_allclose(written["value"], list(values.values()))


def test_the_table(command, folder):
    ended = command("evaluate", folder / "model.irmtv", folder / "houses.csv", "--environment", "site")
    for text in ("north", "south", "all rows", "worst (", "spread", "95 % interval", "held out in training", "75.0 %"):
        assert text in ended.out
    assert "Worst environment: " in ended.out


def test_other_metrics_targets_and_environments(command, folder, tmp_path):
    frame = houses().rename(columns={"sold": "is sold"})
    frame["half, year"] = np.tile([1, 2], 150)
    frame.to_csv(tmp_path / "new.csv", index=False)
    arguments = ("--target", "is sold", "--metric", "log_loss", "--json", "--bootstrap", 0)
    ended = command(
        "evaluate", folder / "model.irmtv", tmp_path / "new.csv", "-e", "site", "-e", "half, year", *arguments
    )
    found = json.loads(ended.out)
    assert [row["environment"] for row in found["environments"]] == [
        f"{s} / {h}" for s in ("north", "south") for h in "12"
    ]
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
    assert "metric must be one of" in refused(model, data, "--metric", "rmse")
    plain = tmp_path / "plain"
    plain.mkdir()
    assert "--target is missing" in refused(fitted(plain, about=False), data)
