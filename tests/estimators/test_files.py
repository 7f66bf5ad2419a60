"""Saved, loaded in a process that never saw the data, predicts the same; and nothing in a file is executed."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import irmtv
from irmtv import (
    InvariantClassifier,
    InvariantClassifierCV,
    InvariantRegressor,
    InvariantRegressorCV,
)
from irmtv.objectives.environments import Affine
from irmtv.persistence import ModelFileError, read_model, write_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 100]
SITE = np.repeat(["north", "south", "west"], 40)
Y = (X[:, 0] + 0.1 * RNG.normal(size=120) > 0).astype(int)
TIME = np.linspace(0, 1, 120)[:, None]
SMALL = {"max_steps": 30, "random_state": 0}


def classifier(**settings):
    return InvariantClassifier(**{**SMALL, "hidden": (5,), **settings})


FITTED = {
    "binary, strings": lambda: classifier().fit(X, np.where(Y, "yes", "no"), environment=SITE),
    "linear": lambda: classifier(hidden=()).fit(X, Y, environment=SITE),
    "multi-class": lambda: classifier(classifier="vector").fit(X, Y + (X[:, 1] > 9), environment=SITE),
    "frame": lambda: classifier(environment="site").fit(pd.DataFrame(X, columns=list("abcd")).assign(site=SITE), Y),
    "inferred": lambda: classifier(objective="minimax-tv-l1").fit(X, Y, aux=TIME),
    "row by row": lambda: classifier(objective="eiil").fit(X, Y),
    "sum, expanded": lambda: classifier(
        objective="irm-tv-l1+vrex",
        penalty_weight={"irm-tv-l1": 10.0, "vrex": 1.0},
        objective_params={"expand": Affine(4, 0.3)},
    ).fit(X, Y, environment=SITE),
    "regression": lambda: InvariantRegressor("vrex", hidden=(), **SMALL).fit(X, 100 * X[:, 0] + 7, environment=SITE),
    "two targets": lambda: InvariantRegressor("erm", hidden=(5,), **SMALL).fit(X, X[:, :2]),
    "one target, a column": lambda: InvariantRegressor("erm", hidden=(5,), **SMALL).fit(X, X[:, :1]),
    "path": lambda: InvariantClassifierCV(hidden=(), cv=2, n_seeds=2, rule="iid", **SMALL).fit(X, Y, environment=SITE),
    "path of a regression": lambda: InvariantRegressorCV(hidden=(), cv=2, rule="iid", **SMALL).fit(
        X, X[:, 0], environment=SITE
    ),
}


def equal(a, b):
    if isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype or a.dtype.kind == b.dtype.kind in "UO"
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b and type(a) is type(b)


@pytest.mark.parametrize("name", FITTED)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    model = FITTED[name]()
    path = model.save(tmp_path / "model.irmtv")
    loaded = irmtv.load(path)
    assert type(loaded) is type(model)
    assert repr(loaded.get_params()) == repr(model.get_params())
    rows = pd.DataFrame(X, columns=list("abcd")) if name == "frame" else X
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    if hasattr(model, "classes_"):
        np.testing.assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
    fitted = {k for k in vars(model) if k.endswith("_") and not k.startswith("_")} - {"predictor_"}
    assert {k for k in vars(loaded) if k.endswith("_") and not k.startswith("_")} - {"predictor_"} == fitted
    for attribute in fitted:
        equal(getattr(model, attribute), getattr(loaded, attribute))
    if model.predictor_.rho is not None:
        np.testing.assert_array_equal(loaded.membership(aux=TIME), model.membership(aux=TIME))
    assert model.save(tmp_path / "again.irmtv").read_bytes() == path.read_bytes()
    assert loaded.save(tmp_path / "third.irmtv").read_bytes() == path.read_bytes()


def test_a_predictor_that_reads_aux(tmp_path):
    model = classifier(objective="tiva", hidden=()).fit(X, Y, aux=TIME)
    loaded = irmtv.load(model.save(tmp_path / "model.irmtv"))
    np.testing.assert_array_equal(loaded.decision_function(X, aux=TIME), model.decision_function(X, aux=TIME))


def test_no_training_row_is_in_the_file(tmp_path):
    """What is kept are networks, means and scales: a value that stands in the data alone does not stand in the file."""
    secret = 123.456789012345
    rows = X.copy()
    rows[7, 0] = secret
    file = read_model(classifier().fit(rows, Y, environment=SITE).save(tmp_path / "model.irmtv"))
    for array in file.arrays.values():
        if array.dtype.kind == "f":
            assert not np.isclose(array, secret, rtol=1e-9, atol=0).any()
            assert array.size < 2000


def test_loading_in_another_process_and_what_it_imports(tmp_path):
    path = FITTED["linear"]().save(tmp_path / "model.irmtv")
    np.save(tmp_path / "x.npy", X)
    code = (
        "import sys, numpy as np, irmtv\n"
        f"model = irmtv.load({str(path)!r})\n"
        f"np.save({str(tmp_path / 'p.npy')!r}, model.predict_proba(np.load({str(tmp_path / 'x.npy')!r})))\n"
        "assert 'onnx' not in sys.modules and 'skrub' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), FITTED["linear"]().predict_proba(X))


def test_a_pipeline_with_its_preprocessing(tmp_path):
    skrub = pytest.importorskip("skrub")
    table = pd.DataFrame(X, columns=list("abcd")).assign(
        job=RNG.choice(["clerk", "cook", "none"], 120), when=pd.date_range("2020-01-01", periods=120)
    )
    model = make_pipeline(skrub.TableVectorizer(), classifier())
    model.fit(table, Y, invariantclassifier__environment=SITE)
    loaded = irmtv.load(irmtv.save(model, tmp_path / "model.irmtv"))
    assert isinstance(loaded, Pipeline) and [n for n, _ in loaded.steps] == [n for n, _ in model.steps]
    np.testing.assert_array_equal(loaded.predict_proba(table), model.predict_proba(table))
    path = InvariantClassifierCV(hidden=(), cv=2, rule="iid", **SMALL)
    chosen = make_pipeline(StandardScaler(), path).fit(X, Y, invariantclassifiercv__environment=SITE)
    loaded = irmtv.load(irmtv.save(chosen, tmp_path / "chosen.irmtv"))
    np.testing.assert_array_equal(loaded.predict_proba(X), chosen.predict_proba(X))
    assert loaded[-1].best_params_ == chosen[-1].best_params_ and loaded[-1].selected_ == chosen[-1].selected_
    plain = Pipeline([("scale", StandardScaler()), ("nothing", "passthrough"), ("model", classifier())])
    plain.fit(X, Y, model__environment=SITE)
    again = irmtv.load(irmtv.save(plain, tmp_path / "plain.irmtv"))
    np.testing.assert_array_equal(again.predict_proba(X), plain.predict_proba(X))


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(NotFittedError):
        classifier().save(tmp_path / "x.irmtv")
    with pytest.raises(ValueError, match=r"model must be one of InvariantClassifier.* Got LogisticRegression"):
        irmtv.save(LogisticRegression().fit(X, Y), tmp_path / "x.irmtv")
    with pytest.raises(ValueError, match="folder"):
        FITTED["linear"]().save(tmp_path / "no" / "such" / "x.irmtv")
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_whole(tmp_path):
    path = FITTED["linear"]().save(tmp_path / "model.irmtv")
    content = read_model(path)

    def written(**changed):
        arrays, meta = {**content.arrays, **changed.pop("arrays", {})}, {**content.meta, **changed.pop("meta", {})}
        for name in changed.pop("without", ()):
            arrays.pop(name)
        return write_model(tmp_path / "other.irmtv", changed.pop("kind", content.kind), arrays, meta)

    with pytest.raises(ModelFileError, match="must have the arrays 'x/scale'"):
        irmtv.load(written(without=["x/scale"]))
    with pytest.raises(ModelFileError, match="does not hold a whole InvariantClassifier: member 0 has parameters"):
        irmtv.load(written(arrays={"member0/W0": np.zeros((1, 1, 7), np.float32)}))
    with pytest.raises(ModelFileError, match="does not hold a whole InvariantClassifier: there is no network in it"):
        irmtv.load(written(meta={"members": []}))
    with pytest.raises(ModelFileError, match="has the parameters 'depth', which InvariantClassifier does not have"):
        irmtv.load(written(meta={"parameters": {**content.meta["parameters"], "depth": 3}}))
    with pytest.raises(ModelFileError, match="magic"):
        irmtv.load(written(kind="magic"))
    with pytest.raises(ModelFileError, match="pipeline that ends in 'magic'"):
        irmtv.load(written(kind="pipeline", meta={"kind": "magic", "steps": ["a"], "parts": []}))


def changed(path, name, value):
    """The file with one thing changed, and sealed again: `meta/a/b` (an index for a list) or an array's name."""
    content = read_model(path)
    arrays, meta = dict(content.arrays), copy.deepcopy(content.meta)
    if name.startswith("meta/"):
        *way, last = [int(k) if k.isdigit() else k for k in name.split("/")[1:]]
        place = meta
        for key in way:
            place = place[key]
        place[last] = value
    elif value is None:
        del arrays[name]
    else:
        arrays[name] = value
    return write_model(path.with_name("changed.irmtv"), content.kind, arrays, meta, content.parts)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    models = {name: FITTED[name]() for name in ("linear", "inferred", "regression", "multi-class")}
    models["tiva"] = classifier(objective="tiva", hidden=()).fit(X, Y, aux=TIME)
    paths = {name: model.save(folder / f"{i}.irmtv") for i, (name, model) in enumerate(models.items())}
    steps = make_pipeline(StandardScaler(), classifier(objective="erm", hidden=())).fit(X, Y)
    return {**paths, "pipeline": irmtv.save(steps, folder / "pipeline.irmtv")}


@pytest.mark.parametrize(
    ("model", "name", "value", "message"),
    [
        ("linear", "meta/attributes", [1], "AttributeError"),
        ("linear", "meta/attributes/n_features_in_", "4", "n_features_in_ must be a whole number.*Got '4'"),
        ("linear", "meta/attributes/n_features_in_", 5, r"x/mean .* must have the shape \(5,\). Got \(4,\), \(4,\)"),
        ("linear", "meta/parameters", 3, "TypeError"),
        ("linear", "meta/parameters/objective_params", {"affine": {"m": 3}}, "TypeError"),
        ("linear", "meta/tables/history_", ["step", "nothing"], "KeyError"),
        ("linear", "meta/members", 3, "TypeError"),
        ("linear", "meta/members", [{}], "KeyError: 'net'"),
        ("linear", "meta/members/0/net/type", "conv1d", "its network is a 'conv1d'"),
        ("linear", "meta/members/0/net/widths", (4.0, 1.0), "a width must be a whole number.*Got 4.0"),
        ("linear", "meta/members/0/net/widths", (4,), "its network has the widths"),
        ("linear", "member0/W0", np.zeros((2, 1, 4), np.float32), "member 0 has parameters"),
        ("linear", "member0/W0", np.zeros((1, 1, 4), np.int64), "member 0 .* not floating point"),
        ("linear", "x/scale", np.array([1.0, 1.0, 0.0, 1.0]), "its scale above 0"),
        ("linear", "x/scale", np.array([1.0, 1.0, np.nan, 1.0]), "its scale above 0"),
        ("linear", "x/scale", np.ones(3), r"must have the shape \(4,\)"),
        ("linear", "x/mean", np.full(4, np.inf), "must be finite"),
        ("linear", "attribute/classes_", None, "AttributeError"),
        ("linear", "attribute/classes_", np.arange(3), "one number of inputs and 3 outputs"),
        ("linear", "attribute/classes_", np.arange(1), "classes_ must be two or more"),
        ("multi-class", "attribute/classes_", np.arange(2), "one number of inputs and 1 outputs"),
        ("regression", "y/scale", np.array([np.inf]), "its scale above 0"),
        ("regression", "y/mean", np.zeros(2), "one number of inputs and 2 outputs"),
        ("regression", "y/mean", None, "KeyError: 'y/mean'"),
        ("regression", "meta/attributes/_targets", 3, "_targets must be"),
        ("inferred", "meta/rho/n_environments", 3, "rho has parameters"),
        ("inferred", "meta/rho/n_environments", "2", "rho's n_environments must be a whole number.*Got '2'"),
        ("inferred", "meta/rho/hidden", 16.0, "rho's hidden must be a whole number"),
        ("inferred", "meta/rho/hidden", 5, "rho has parameters"),
        ("inferred", "meta/rho/reads_x", 0, "rho must divide"),
        ("inferred", "meta/rho/reads_x", True, "rho-aux/mean"),
        ("inferred", "rho/W", np.zeros((1, 16, 2), np.float32), "rho has parameters"),
        ("inferred", "rho/W", None, "rho has parameters"),
        ("inferred", "rho-aux/deviation", np.zeros(1), "rho-aux/mean must be finite and its scale above 0"),
        ("inferred", "rho-aux/mean", None, "KeyError: 'rho-aux/mean'"),
        ("tiva", "aux/mean", np.zeros(2), "aux/mean and its scale must have the shape"),
        ("tiva", "aux/mean", None, "reads 5 columns, of which 4 are features"),
        ("pipeline", "meta/parts", 3, "Pipeline: TypeError"),
        ("pipeline", "meta/parts", [], "preprocessing 'standardscaler' for the steps"),
        ("pipeline", "meta/steps", ["other", "model"], "preprocessing 'standardscaler' for the steps 'other'"),
        ("pipeline", "meta/kind", ["magic"], "Pipeline: TypeError"),
        ("pipeline", "meta/members", 3, "InvariantClassifier"),
    ],
)
def test_a_sealed_file_with_something_else_in_it(written, model, name, value, message):
    with pytest.raises(ModelFileError, match=f"does not hold a whole .*{message}.*written by irmtv"):
        irmtv.load(changed(written[model], name, value))


def test_a_constant_column_is_kept(tmp_path):
    rows = np.c_[X, np.full(120, 7.0)]
    model = classifier().fit(rows, Y, environment=SITE)
    assert np.isinf(model.predictor_.x.scale[-1])
    loaded = irmtv.load(model.save(tmp_path / "model.irmtv"))
    rows[:, -1] = 8.0
    np.testing.assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))


def test_attributes_of_other_names_are_not_set(tmp_path):
    """A file cannot put anything of its own on the estimator."""
    content = read_model(FITTED["linear"]().save(tmp_path / "model.irmtv"))
    meta = {**content.meta, "attributes": {**content.meta["attributes"], "predict": "mine", "__class__": "mine"}}
    loaded = irmtv.load(write_model(tmp_path / "other.irmtv", content.kind, content.arrays, meta))
    assert callable(loaded.predict) and type(loaded) is InvariantClassifier


# ---- ONNX ----


@pytest.mark.parametrize("name", ["binary, strings", "linear", "multi-class", "regression", "two targets", "path"])
def test_onnx_predicts_the_same(name, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = FITTED[name]()
    session = runtime.InferenceSession(str(model.to_onnx(tmp_path / "model.onnx")), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == "tensor(double)"
    rows = X
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"x": rows}), strict=True))
    if hasattr(model, "classes_"):
        np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-5)
        sure = np.sort(model.predict_proba(rows), 1)
        clear = sure[:, -1] - sure[:, -2] > 1e-4
        np.testing.assert_array_equal(model.classes_[found["label"]][clear], model.predict(rows)[clear])
    else:
        scale = np.abs(model.predict(rows)).max()
        np.testing.assert_allclose(found["prediction"], model.predict(rows), atol=1e-5 * scale)


def test_onnx_of_time_stamps_and_constant_columns(tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    rows = np.c_[X[:, :2] + 1.7e9, np.full(120, 3.0)]
    model = classifier(objective="erm", max_steps=200).fit(rows, Y)
    session = runtime.InferenceSession(str(model.to_onnx(tmp_path / "model.onnx")), providers=["CPUExecutionProvider"])
    rows[:, 2] = np.linspace(-5, 5, 120)  # constant in training, not any more
    expected = model.predict_proba(rows)
    np.testing.assert_allclose(session.run(["probabilities"], {"x": rows})[0], expected, atol=1e-5)
    assert np.ptp(expected[:, 1]) > 0.5


def test_what_onnx_cannot_hold(tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="reads aux beside it"):
        classifier(objective="tiva", hidden=()).fit(X, Y, aux=TIME).to_onnx(tmp_path / "x.onnx")
    own = classifier(module=lambda: torch.nn.Linear(4, 1)).fit(X, Y, environment=SITE)
    with pytest.raises(ValueError, match="export your own module"):
        own.to_onnx(tmp_path / "x.onnx")
    with pytest.raises(NotFittedError):
        classifier().to_onnx(tmp_path / "x.onnx")
