"""A saved EnvironmentInference divides rows as before, bit for bit; files that hold something else are refused."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import irmtv
from irmtv.estimators.environment_inference import EnvironmentInference
from irmtv.persistence import ModelFileError, read_model, write_model
from irmtv.persistence.archive import seal

RNG = np.random.default_rng(0)
N = 160
X = RNG.normal(size=(N, 3)) * [1, 10, 0.1] + [0, 5, 100]
Y = (X[:, 0] + np.repeat([0.1, 3.0], N // 2) * RNG.normal(size=N) > 0).astype(int)  # less sure as time goes by
AUX = np.c_[np.linspace(2000, 2020, N), RNG.normal(size=N)]
NEW = RNG.normal(size=(50, 3)) * [1, 10, 0.1] + [0, 5, 100]
NEW_Y, NEW_AUX = RNG.integers(0, 2, 50), np.c_[RNG.uniform(2000, 2020, 50), RNG.normal(size=50)]
SMALL = {"max_steps": 60, "learning_rate": 0.02, "n_shuffles": 10, "random_state": 0}


def frame(kind, x, aux):
    return kind({**{f"x{i}": x[:, i] for i in range(3)}, "year": aux[:, 0], "place": aux[:, 1]})


def inference(method="minimax", **settings):
    return EnvironmentInference(method, **{**SMALL, **settings})


FITTED = {
    "minimax": lambda: inference().fit(X, Y, aux=AUX),
    "minimax, later rows first": lambda: inference(random_state=3).fit(X, Y, aux=AUX),
    "minimax, hidden layer": lambda: inference(hidden=(4,), environment_hidden=5).fit(X, Y, aux=AUX),
    "eiil, strings": lambda: inference("eiil").fit(X, np.where(Y, "yes", "no")),
    "eiil, regression": lambda: inference("eiil").fit(X, 3 * X[:, 1] + 7),
    "clusters": lambda: inference("clusters", n_environments=3).fit(X, Y, aux=AUX),
    "clusters of features, no y": lambda: inference("clusters").fit(np.c_[X[:, :2], np.full(N, 7.0)]),
    "clusters of residuals": lambda: inference("clusters", cluster_on="residuals").fit(X, Y),
    "clusters of two residuals": lambda: inference("clusters", cluster_on="residuals").fit(X, X[:, :2] ** 2),
    "columns": lambda: inference(aux=["year", "place"]).fit(frame(pd.DataFrame, X, AUX), Y),
    "columns of polars": lambda: inference("clusters", aux=("place", "year")).fit(frame(pl.DataFrame, X, AUX), Y),
}


def rows(name):
    """New rows as the estimator reads them: X, y, aux."""
    if name.startswith("columns"):
        kind = pl.DataFrame if name.endswith("polars") else pd.DataFrame
        return frame(kind, NEW, NEW_AUX), NEW_Y, None
    y = {
        "eiil, strings": np.where(NEW_Y, "yes", "no"),
        "eiil, regression": NEW[:, 0],
        "clusters of two residuals": NEW[:, :2],
    }
    return NEW, y.get(name, NEW_Y), NEW_AUX


@pytest.mark.parametrize("name", FITTED)
def test_what_is_loaded_divides_as_what_was_saved(name, tmp_path):
    model = FITTED[name]()
    path = model.save(tmp_path / "model.irmtv")
    loaded = irmtv.load(path)
    assert type(loaded) is EnvironmentInference and repr(loaded.get_params()) == repr(model.get_params())
    given = rows(name)
    soft = model.predict_proba(*given)
    np.testing.assert_array_equal(loaded.predict_proba(*given), soft)
    np.testing.assert_array_equal(loaded.predict(*given), model.predict(*given))
    assert len(np.unique(soft[:, 0])) > 1  # something to tell apart
    if name == "minimax, later rows first":
        assert list(model._order) == [1, 0]  # the network's first environment is the later one: it is numbered second
    if model.reference_ is not None:
        assert loaded.strength(*given) == model.strength(*given)
    fitted = {k for k in vars(model) if k.endswith("_")}
    assert {k for k in vars(loaded) if k.endswith("_")} == fitted
    for attribute in fitted - {"reference_"}:
        a, b = getattr(model, attribute), getattr(loaded, attribute)
        assert type(a) is type(b)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype or a.dtype.kind in "UO"
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b
    assert model.save(tmp_path / "again.irmtv").read_bytes() == path.read_bytes()
    assert loaded.save(tmp_path / "third.irmtv").read_bytes() == path.read_bytes()
    assert irmtv.save(loaded, tmp_path / "fourth.irmtv").read_bytes() == path.read_bytes()


def test_messages_after_loading_are_those_before(tmp_path):
    """What was asked for at fit is remembered: predict says which column or label is missing."""
    without = frame(pd.DataFrame, NEW, NEW_AUX).drop(columns="year")
    for name, given in (("columns", without), ("eiil, strings", NEW), ("minimax", NEW[:, :2])):
        model = FITTED[name]()
        loaded = irmtv.load(model.save(tmp_path / "model.irmtv"))
        said = []
        for found in (model, loaded):
            with pytest.raises(ValueError) as raised:
                found.predict(given)
            said.append(str(raised.value))
        assert said[0] == said[1]


def test_settings_after_fit_do_not_change_what_is_saved(tmp_path):
    model = FITTED["clusters"]()
    expected = model.predict_proba(None, aux=NEW_AUX)
    model.set_params(method="eiil", aux="year", n_environments=2, random_state=np.random.RandomState(0))
    loaded = irmtv.load(model.save(tmp_path / "model.irmtv"))
    assert loaded.method == "eiil" and loaded.method_ == "clusters" and loaded.random_state is None
    np.testing.assert_array_equal(loaded.predict_proba(None, aux=NEW_AUX), expected)


def test_a_pipeline_that_ends_in_it(tmp_path):
    model = make_pipeline(StandardScaler(), inference("clusters")).fit(X, Y, environmentinference__aux=AUX)
    loaded = irmtv.load(irmtv.save(model, tmp_path / "model.irmtv"))
    assert [name for name, _ in loaded.steps] == ["standardscaler", "environmentinference"]
    np.testing.assert_array_equal(loaded.predict(NEW, aux=NEW_AUX), model.predict(NEW, aux=NEW_AUX))
    assert len(np.unique(loaded.predict(NEW, aux=NEW_AUX))) == 2


@pytest.mark.parametrize("name", ["minimax", "eiil, strings", "clusters", "clusters of residuals"])
def test_no_training_row_is_in_the_file(name, tmp_path, monkeypatch):
    secrets = np.array([1.23456789012345, 2010.456789012345])
    for array in (X, AUX):
        monkeypatch.setattr(sys.modules[__name__], "X" if array is X else "AUX", array.copy())
    X[7, 0], AUX[7, 0] = secrets
    file = read_model(FITTED[name]().save(tmp_path / "model.irmtv"))
    for where, array in file.arrays.items():
        if array.dtype.kind == "f":
            assert not np.isclose(array[..., None], secrets, rtol=1e-9, atol=0).any(), where


# ---- files that cannot be read --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {name: fit().save(folder / f"{i}.irmtv") for i, (name, fit) in enumerate(FITTED.items())}


def test_every_truncation_and_every_flipped_byte_is_noticed(written, tmp_path):
    data = written["minimax"].read_bytes()
    path = tmp_path / "model.irmtv"
    rng = np.random.default_rng(0)
    for end in (*range(0, 200, 7), *rng.integers(200, len(data), 100), len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(ModelFileError, match=r"incomplete|empty|not a model file"):
            irmtv.load(path)
    for place in (*range(0, 60, 3), *rng.integers(60, len(data), 200), len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(ModelFileError):
            irmtv.load(path)


def test_a_newer_file_says_which_irmtv_it_needs(written, tmp_path):
    with zipfile.ZipFile(written["clusters"]) as archive:
        entries = {name: archive.read(name) for name in archive.namelist() if name != "mimetype"}
    entries["irmtv.json"] = (
        entries["irmtv.json"].replace(b'"format":1', b'"format":2').replace(b'"format": 1', b'"format": 2')
    )
    path = tmp_path / "newer.irmtv"
    path.write_bytes(seal(entries))
    with pytest.raises(ModelFileError, match=r"format 2; this is irmtv .*upgrade with pip"):
        irmtv.load(path)


def changed(path, name, value):
    """The file with one thing changed, and sealed again: `meta/a/b` or an array's name; None takes it out."""
    content = read_model(path)
    arrays, meta = dict(content.arrays), dict(content.meta)
    if name.startswith("meta/"):
        *way, last = name.split("/")[1:]
        place = meta
        for key in way:
            place[key] = dict(place[key])
            place = place[key]
        place[last] = value
    elif value is None:
        del arrays[name]
    else:
        arrays[name] = value
    return write_model(path.with_name("changed.irmtv"), content.kind, arrays, meta)


@pytest.mark.parametrize(
    ("model", "name", "value", "message"),
    [
        ("minimax", "meta/attributes/method_", "magic", "method_ and divided_by_ must fit. Got 'magic'"),
        ("minimax", "meta/attributes/method_", ["eiil"], "method_ and divided_by_"),
        ("minimax", "meta/attributes/divided_by_", "slopes", "method_ and divided_by_ must fit"),
        ("minimax", "meta/attributes", {}, "KeyError"),
        ("minimax", "meta/attributes/n_features_in_", 4, r"must read .* \(4, \(2, 2\)\). Got \(3, \(2, 2\)\)"),
        ("minimax", "meta/attributes/n_features_in_", "3", "n_features_in_ must be a whole number"),
        ("minimax", "meta/attributes/n_aux_", 0, "n_aux_ must be a whole number"),
        ("minimax", "meta/attributes/n_aux_", 1, r"must read .*\(1, 2\)\). Got"),
        ("minimax", "meta/attributes/_fitted_as", 3, "_fitted_as must be text"),
        ("minimax", "meta/attributes/_aux_columns", {"a": 1}, "aux must be a column name"),
        ("minimax", "meta/attributes/task_", None, "task_ must be one of"),
        ("eiil, regression", "meta/attributes/task_", "classification", "InvariantClassifier"),
        ("minimax", "meta/reference", None, "there is no reference model"),
        ("minimax", "meta/reference", 3, "TypeError"),
        ("minimax", "meta/strength", {"penalty": 1.0}, "TypeError"),
        ("minimax", "meta/strength", {"penalty": "1", "shuffled": 1.0}, "strength must be numbers"),
        ("minimax", "order", None, "KeyError: 'order'"),
        ("minimax", "order", np.array([0, 0]), "order must hold every environment once"),
        ("minimax", "order", np.array([0.0, 1.0]), "order must hold every environment once"),
        ("minimax", "order", np.array([[0, 1]]), "order must hold every environment once|TypeError"),
        ("minimax", "attribute/membership_", np.ones((5, 3)), "membership_ must be"),
        ("minimax", "attribute/membership_", np.ones(5), "membership_ must be"),
        ("minimax", "attribute/membership_", np.ones((5, 2), np.float32), "membership_ must be"),
        ("minimax", "attribute/environments_", np.array(["a"]), "membership_ must be"),
        ("minimax", "reference/rho/W", np.zeros((1, 16, 9), np.float32), "rho has parameters"),
        ("columns", "meta/attributes/_aux_names", ["year"], "_aux_names must be 2 names"),
        ("eiil, strings", "meta/reference", None, "there is no reference model"),
        ("clusters of residuals", "meta/reference", None, "there is no reference model"),
        ("clusters", "clusters/centres", np.zeros((3, 5)), r"clusters/centres must be \(3, 2\) finite"),
        ("clusters", "clusters/centres", np.full((3, 2), np.nan), "clusters/centres must be"),
        ("clusters", "clusters/centres", np.zeros((2, 2)), "clusters/centres must be"),
        ("clusters", "clusters/centres", None, "KeyError: 'clusters/centres'"),
        ("clusters", "clusters/scale", np.zeros(2), "its scale above 0"),
        ("clusters", "clusters/mean", np.zeros(3), "must have the shape"),
        ("clusters", "meta/variance", 0.0, "variance must be a finite number above 0. Got 0.0"),
        ("clusters", "meta/variance", "1", "variance must be a finite number"),
        ("clusters of two residuals", "clusters/centres", np.zeros((2, 1)), r"must be \(2, 2\) finite"),
    ],
)
def test_a_sealed_file_with_something_else_in_it(written, model, name, value, message):
    with pytest.raises(ModelFileError, match=f"does not hold a whole .*({message}).*written by irmtv"):
        irmtv.load(changed(written[model], name, value))


def test_what_is_missing_or_unknown(written):
    with pytest.raises(ModelFileError, match="must have the arrays 'attribute/membership_'"):
        irmtv.load(changed(written["clusters"], "attribute/membership_", None))
    content = read_model(written["clusters"])
    with pytest.raises(ModelFileError, match="has the parameters 'depth', which EnvironmentInference does not have"):
        irmtv.load(changed(written["clusters"], "meta/parameters", {**content.meta["parameters"], "depth": 3}))
    loaded = irmtv.load(changed(written["clusters"], "meta/attributes/predict", "mine"))
    assert callable(loaded.predict)  # a file cannot put anything of its own on the estimator
    with pytest.raises(ModelFileError, match="module must be left out"):
        irmtv.load(written["minimax"], module=dict)
    with pytest.raises(NotFittedError):
        EnvironmentInference().save("nowhere.irmtv")
