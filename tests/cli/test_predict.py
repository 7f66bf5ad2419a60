"""`irmtv predict` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import irmtv
from cli.models import fitted, houses
from irmtv.app.io import table_model, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("predict")
    fitted(made)
    return made


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.tsv", "p.parquet"])
def test_what_python_predicts_is_written(command, folder, tmp_path, name):
    out = tmp_path / name
    ended = command("predict", folder / "model.irmtv", folder / "houses.csv", "--out", out, "--keep", "id")
    assert ended.code == 0, ended.err
    assert ended.out == "" and f"written: {out}, 300 rows" in ended.err
    made = (
        pd.read_parquet(out)
        if name.endswith("parquet")
        else pd.read_csv(out, sep="\t" if ".tsv" in name else ",", dtype={"id": str})
    )
    model = irmtv.load(folder / "model.irmtv")
    assert made.columns.tolist() == ["id", "prediction", "probability_no", "probability_yes"]
    assert made["id"].tolist() == houses()["id"].tolist()  # 00000, not 0
    assert made["prediction"].tolist() == model.predict(houses()).tolist()
    probabilities = made[["probability_no", "probability_yes"]]
    np.testing.assert_allclose(probabilities, model.predict_proba(houses()), rtol=1e-12, atol=1e-15)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


def test_pieces_of_any_size_and_other_files_give_the_same(command, folder, tmp_path, monkeypatch):
    """Even where a piece has no number of a column, or codes that look like numbers."""
    frame = houses()
    frame.loc[:99, ["size", "kind", "built"]] = None
    frame.loc[100:199, "code"] = "02"
    frame.loc[100:199, "size"] = 3
    frame.to_csv(tmp_path / "new.csv", index=False)
    frame.to_parquet(tmp_path / "new.parquet")
    found = []
    for rows, name in ((50_000, "new.csv"), (100, "new.csv"), (77, "new.csv"), (100, "new.parquet")):
        monkeypatch.setattr(
            table_model.predict_file,
            "__kwdefaults__",
            {"keep": (), "encoding": None, "rows": rows, "progress": None},
        )
        assert command("predict", folder / "model.irmtv", tmp_path / name, "--out", tmp_path / "o.csv").code == 0
        found.append((tmp_path / "o.csv").read_text())
    assert len(set(found)) == 1


def test_to_standard_output(command, folder):
    ended = command("predict", folder / "model.irmtv", folder / "houses.csv")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0] == "prediction,probability_no,probability_yes" and len(lines) == 301
    assert lines[1].split(",")[0] in ("yes", "no")


def test_a_reader_that_has_seen_enough(folder):
    """`irmtv predict ... | head -1` ends quietly."""
    line = f"{sys.executable} -m irmtv predict {folder / 'model.irmtv'} {folder / 'houses.csv'} | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout == "prediction,probability_no,probability_yes\n"
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_json(command, folder, tmp_path):
    out = tmp_path / "p.csv"
    ended = command(
        "predict", folder / "model.irmtv", folder / "houses.csv", "--out", out, "--json", "--keep", "id,site"
    )
    assert json.loads(ended.out) == {
        "rows": 300,
        "path": str(out),
        "columns": ["id", "site", "prediction", "probability_no", "probability_yes"],
        "notes": [],
    }
    assert command("predict", folder / "model.irmtv", folder / "houses.csv", "--json").code == 1


def test_a_regression(command, tmp_path):
    model = fitted(tmp_path, "price")
    assert command("predict", model, tmp_path / "houses.csv", "--out", tmp_path / "p.csv").code == 0
    made = pd.read_csv(tmp_path / "p.csv")
    assert made.columns.tolist() == ["prediction"]
    np.testing.assert_allclose(made["prediction"], irmtv.load(model).predict(houses()), rtol=1e-12)


def test_quotes_where_they_are_needed(command, folder, tmp_path):
    out = tmp_path / "p.csv"
    assert command("predict", folder / "model.irmtv", folder / "houses.csv", "--out", out, "--keep", "kind").code == 0
    assert pd.read_csv(out)["kind"].fillna("").tolist() == houses()["kind"].fillna("").tolist()
    assert '"house, small"' in out.read_text()


def spoilt(tmp_path: Path, **columns: object) -> Path:
    houses().assign(**columns).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def test_what_cannot_be_read_is_told(command, folder, tmp_path):
    frame = houses()
    size, built, kind = frame["size"].astype(object), frame["built"].copy(), frame["kind"].copy()
    size[:3], built[:5], kind[:2] = "large", "11.03.2014", "castle"
    size[0] = None
    new = spoilt(tmp_path, size=size, built=built, kind=kind)
    ended = command("predict", folder / "model.irmtv", new, "--out", tmp_path / "p.csv")
    assert ended.code == 0, ended.err
    known = int(frame["size"].notna().sum())
    assert f"note: 'size': 2 of {known} values are not of the kind of training" in ended.err
    assert "note: 'built': 5 of 300 values" in ended.err
    assert "note: 'kind': 2 values that training did not have ('castle')" in ended.err


@pytest.mark.parametrize(("name", "value"), [("size", "large"), ("built", "11.03.2014")])
def test_where_nothing_can_be_read_nothing_is_written(command, folder, tmp_path, name, value):
    new = spoilt(tmp_path, **{name: value})
    ended = command("predict", folder / "model.irmtv", new, "--out", tmp_path / "p.csv")
    assert ended.code == 1
    assert f"no value of '{name}'" in ended.err and "Check the columns" in ended.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.csv"]


def test_only_what_is_wrong_in_all_pieces_is_an_error(command, folder, tmp_path, monkeypatch):
    """A later piece may be all text where an earlier one was numbers."""
    size = houses()["size"].astype(object)
    size[150:] = "large"
    new = spoilt(tmp_path, size=size)
    monkeypatch.setattr(
        table_model.predict_file, "__kwdefaults__", {"keep": (), "encoding": None, "rows": 100, "progress": None}
    )
    assert command("predict", folder / "model.irmtv", new, "--out", tmp_path / "p.csv").code == 0


def test_refusals(command, folder, tmp_path):
    model, data, out = folder / "model.irmtv", folder / "houses.csv", tmp_path / "p.csv"
    frame = houses()

    def refused(*arguments: object) -> str:
        ended = command("predict", *arguments)
        assert ended.code == 1, ended.out
        assert list(tmp_path.glob("p.*")) == list(tmp_path.glob(".irmtv*")) == []
        return str(ended.err)

    frame.rename(columns={"kind": "Kind"}).drop(columns="built").to_csv(tmp_path / "new.csv", index=False)
    told = refused(model, tmp_path / "new.csv", "--out", out)
    assert "Missing: 'kind', 'built'. Did you mean 'Kind'?" in told
    assert "Did you mean 'id'?" in refused(model, data, "--out", out, "--keep", "idd")
    assert "must end in one of .csv" in refused(model, data, "--out", tmp_path / "p.xlsx")
    assert "is a folder" in refused(model, data, "--out", tmp_path)
    assert "folder that exists" in refused(model, data, "--out", tmp_path / "no" / "p.csv")
    assert "--out must not be a file that is read" in refused(model, data, "--out", data)
    assert "no file" in refused(tmp_path / "no.irmtv", data, "--out", out)
    assert "not a model file" in refused(data, data, "--out", out)
    infinite = frame.assign(size=np.inf)
    infinite.to_csv(tmp_path / "new.csv", index=False)
    assert "'size' (300 of 300 rows)" in refused(model, tmp_path / "new.csv", "--out", out)
    frame.assign(prediction=1).to_csv(tmp_path / "new.csv", index=False)
    assert "Rename it" in refused(model, tmp_path / "new.csv", "--out", out, "--keep", "prediction")


def test_a_model_of_an_array_knows_no_columns(command, folder, tmp_path):
    rng = np.random.default_rng(0)
    array = irmtv.InvariantClassifier("erm", hidden=(), max_steps=5).fit(rng.normal(size=(50, 2)), [0, 1] * 25)
    ended = command("predict", array.save(tmp_path / "a.irmtv"), folder / "houses.csv", "--out", tmp_path / "p.csv")
    assert ended.code == 1 and "without names of columns" in ended.err


def test_a_model_of_a_plain_table(command, tmp_path):
    """Any estimator that was fitted on a DataFrame; other columns are ignored."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60), "other": "x"})
    y = (frame["a"] > 0).astype(int)
    model = irmtv.InvariantClassifier("erm", hidden=(), max_steps=20).fit(frame[["a", "b"]], y)
    frame.to_csv(tmp_path / "new.csv", index=False)
    path = model.save(tmp_path / "a.irmtv")
    assert command("predict", path, tmp_path / "new.csv", "--out", tmp_path / "p.csv").code == 0
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "p.csv")["prediction"], model.predict(frame[["a", "b"]]))


def test_stopped_by_hand(command, folder, tmp_path, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(write.TableWriter, "write", stop)
    ended = command("predict", folder / "model.irmtv", folder / "houses.csv", "--out", tmp_path / "p.csv")
    assert ended.code == 130 and "nothing was written" in ended.err and list(tmp_path.iterdir()) == []


def test_kept_columns_are_copied_as_they_stand(command, folder, tmp_path):
    """NA may be Namibia, also where the model reads NA in the same column as missing."""
    cells = ["NA", "?", " de ", "007", "nan", "1e3"]
    frame = houses().assign(country=np.resize(np.array(cells, dtype=object), 300))
    frame["kind"] = np.where(np.arange(300) % 2, "NA", "flat")
    frame.to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "p.csv"
    ended = command("predict", folder / "model.irmtv", tmp_path / "new.csv", "-o", out, "--keep", "country,kind")
    assert ended.code == 0, ended.err
    made = pd.read_csv(out, keep_default_na=False, dtype=str)
    assert made["country"].tolist() == frame["country"].tolist() and made["kind"].tolist() == frame["kind"].tolist()
    missing = frame.assign(kind=frame["kind"].where(frame["kind"] != "NA"))
    model = irmtv.load(folder / "model.irmtv")
    np.testing.assert_allclose(made["probability_no"].astype(float), model.predict_proba(missing)[:, 0], rtol=1e-12)


def test_kept_columns_of_a_parquet_file_keep_their_types(command, folder, tmp_path):
    frame = houses().assign(
        old=np.arange(300) % 2 == 0,
        known=pd.array([True, False, None] * 100, dtype="boolean"),
        n=pd.array([1, 2, None] * 100, dtype="Int64"),
        part=pd.Categorical(np.repeat(["a", "b", "c"], 100)),
        nothing=None,
        lasting=pd.to_timedelta(np.arange(300), unit="s"),
    )
    kept = ["old", "known", "n", "part", "nothing", "lasting"]
    frame.to_parquet(tmp_path / "new.parquet")
    for name in ("p.csv", "p.parquet"):
        ended = command(
            "predict", folder / "model.irmtv", tmp_path / "new.parquet", "-o", tmp_path / name, "--keep", ",".join(kept)
        )
        assert ended.code == 0, ended.err
    made = pd.read_csv(tmp_path / "p.csv", keep_default_na=False, dtype=str)
    for name in ("old", "known", "n", "part", "nothing"):
        assert made[name].tolist() == frame[name].astype(object).map(lambda v: "" if pd.isna(v) else str(v)).tolist()
    again = pd.read_parquet(tmp_path / "p.parquet")
    assert again["old"].dtype == bool and again["old"].tolist() == frame["old"].tolist()


def test_what_cannot_be_read_at_all_is_asked_for_apart_from_the_notes(folder):
    model = table_model.TableModel(irmtv.load(folder / "model.irmtv"))
    frame = houses()
    model.numbers(frame.assign(size="large"))
    assert "'size': 300 of 300 values" in model.notes()[0]
    with pytest.raises(ValueError, match="no value of 'size'"):
        model.check_read()
    with pytest.raises(ValueError, match="Missing: 'size'"):
        model.numbers(frame.drop(columns="size"))


def test_the_model_is_not_overwritten_either(command, folder, tmp_path):
    link = tmp_path / "link.csv"
    link.symlink_to(folder / "model.irmtv")
    before = (folder / "model.irmtv").read_bytes()
    ended = command("predict", folder / "model.irmtv", folder / "houses.csv", "--out", link)
    assert ended.code == 1 and "--out must not be a file that is read" in ended.err
    assert (folder / "model.irmtv").read_bytes() == before
