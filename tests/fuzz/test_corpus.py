"""What `make fuzz` once brought down, in its essence: each ends in one message."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

import irmtv
from cli.models import fitted
from irmtv.app.io import TableError, TableModel, evaluate_file, predict_file, read_table
from irmtv.estimators.files import save
from irmtv.lab.experiments.spec import SpecError
from irmtv.lab.experiments.spec_file import parse_spec
from persistence.files import entries, reheader

X = pd.DataFrame({"a": np.linspace(-1, 1, 20), "b": np.arange(20.0)})
Y = np.repeat(["no", "yes"], 10)


@pytest.fixture
def model(tmp_path):
    fitted = irmtv.InvariantClassifier("erm", hidden=(), max_steps=3, random_state=0).fit(X, Y)
    return save(fitted, tmp_path / "m.irmtv")


def one_message(ended):
    assert ended.code == 1
    assert ended.err.startswith("irmtv: ") and ended.err.count("\n") == 1, ended.err
    assert len(ended.err) < 3000
    return ended.err


@pytest.mark.parametrize(
    "change",
    [
        {"tables": {"history_": ["environment", "risk"]}},  # KeyError: 'step'
        {"attributes": {"n_features_in_": 2, "n_iter_": 1, "selected_": [5]}},  # TypeError of dict()
    ],
    ids=["a column is missing", "a list in place of a dict"],
)
def test_a_page_of_wrong_tables(command, model, change):
    meta = json.loads(entries(model)["irmtv.json"])["meta"]
    reheader(model, meta={**meta, **change})
    assert command("verify", model).code == 0
    assert "what the model in" in one_message(command("report", model))


@pytest.mark.parametrize("part", [{"new_environment": "north"}, {"data": ["sold"]}, {"environments": 5}])
def test_a_summary_of_wrong_types(command, tmp_path, part):
    path = fitted(tmp_path)
    meta = json.loads(entries(path)["irmtv.json"])["meta"]
    reheader(path, meta={**meta, "about": {**meta["about"], **part}})
    said = one_message(command("evaluate", path, tmp_path / "houses.csv", "--target", "sold", "--environment", "site"))
    assert "the summary in" in said and "is not as irmtv writes it" in said


@pytest.mark.parametrize("label", [None, ("a", 1)])
def test_a_class_that_is_no_label(command, tmp_path, label):
    fitted = irmtv.InvariantClassifier("erm", hidden=(), max_steps=3, random_state=0).fit(X, Y)
    fitted.classes_ = np.array(["no", ""], dtype=object)
    fitted.classes_[1] = label
    path = save(fitted, tmp_path / "m.irmtv")
    X.assign(y=Y).to_csv(tmp_path / "rows.csv", index=False)
    assert "classes_ must be" in one_message(command("evaluate", path, tmp_path / "rows.csv", "--target", "y"))


def test_a_step_that_says_in_lines_what_it_misses(command, tmp_path):
    model = irmtv.InvariantClassifier("erm", hidden=(), max_steps=3, random_state=0)
    pipeline = Pipeline([("each", ColumnTransformer([("scale", StandardScaler(), ["a", "b"])])), ("m", model)])
    pipeline.fit(X, Y)[0].named_transformers_["scale"].feature_names_in_[1] = "c"
    path = save(pipeline, tmp_path / "m.irmtv")
    X.to_csv(tmp_path / "rows.csv", index=False)
    said = one_message(command("predict", path, tmp_path / "rows.csv", "--out", tmp_path / "out.csv"))
    assert "cannot predict the rows" in said and "seen at fit time, yet now missing: - c" in said


def test_a_step_whose_name_is_no_text(command, tmp_path):
    fitted = irmtv.InvariantClassifier("erm", hidden=(), max_steps=3, random_state=0)
    path = save(Pipeline([("nothing", "passthrough"), ("m", fitted)]).fit(X, Y), tmp_path / "m.irmtv")
    meta = json.loads(entries(path)["irmtv.json"])["meta"]
    reheader(path, meta={**meta, "steps": [True, "m"]})
    assert "its steps must have names that are text. Got True" in one_message(command("report", path))


def test_a_name_of_megabytes(command, model):
    meta = json.loads(entries(model)["irmtv.json"])["meta"]
    reheader(model, meta={**meta, "parameters": {"x" * 10**6: 1}})
    for name in ("verify", "report"):
        assert "characters)" in one_message(command(name, model))


class Breaks(TransformerMixin, BaseEstimator):
    """As a step whose fitted state passes all checks and is wrong all the same."""

    def fit(self, X, y=None):
        self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        return self

    def transform(self, X):
        if getattr(self, "broken", False):
            raise TypeError("Converting from datetime64[us]\nto uint64 is not supported")
        return X


def test_a_step_that_fails_in_any_way(tmp_path):
    fitted = Pipeline([("s", Breaks()), ("m", irmtv.InvariantClassifier("erm", hidden=(), max_steps=3))]).fit(X, Y)
    fitted.steps[0][1].broken = True
    X.assign(y=Y).to_csv(tmp_path / "x.csv", index=False)
    ready = TableModel(fitted)
    with pytest.raises(TableError, match=r"cannot predict the rows of .*x\.csv' \(TypeError: Converting .* to uint64"):
        predict_file(ready, tmp_path / "x.csv", tmp_path / "out.csv")
    with pytest.raises(TableError, match="cannot predict the rows of"):
        evaluate_file(ready, tmp_path / "x.csv", target="y")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Oslo"])
@pytest.mark.parametrize("time", [2**60, -(2**55)])
def test_times_beyond_the_calendar(tmp_path, zone, time):
    table = pa.table({"when": pa.array([0, time], pa.timestamp("ms", zone)), "b": [1, 2]})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(TableError, match="column 'when' must hold times in the years 2 to 9998"):
        read_table(tmp_path / "x.parquet")


def test_halves_are_numbers_like_others(tmp_path):
    """pandas has no comparison of 16 bits with a list, which `evaluate` asks for."""
    halves = pa.array(np.arange(2, dtype="float16"))
    pq.write_table(pa.table({"a": halves, "b": [1, 2]}), tmp_path / "x.parquet")
    assert read_table(tmp_path / "x.parquet").frame["a"].dtype == np.float64


SPEC = """name = "a"
data.name = "simulation"
[[methods]]
objective = "erm"
[[methods]]
objective = "irm-tv-l1"
"""


def test_grids_without_end():
    values = [float(i + 1) for i in range(1000)]
    grids = f"penalty_weight = {values}\nlearning_rate = {values}\nl2 = {values}\n"
    with pytest.raises(SpecError, match=r"at most 10,000 combinations\. Got 1,000,000,000"):
        parse_spec(SPEC + grids)


def test_folds_without_end():
    with pytest.raises(SpecError, match=r"selection\.folds must be a whole number from 2 to 1000"):
        parse_spec(f"{SPEC}[selection]\nfolds = {2**41}\n")


def test_a_network_that_is_a_table():
    with pytest.raises(SpecError, match="network must be one of"):
        parse_spec(f"{SPEC}[training]\nnetwork = {{ a = 1 }}\n")
