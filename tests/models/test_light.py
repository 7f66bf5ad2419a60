"""A model that predicts by NumPy alone says what the estimator says that was saved, and reads files as strictly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import Pipeline

import irmtv
from irmtv.app.io import TableModel, open_model, table_steps
from irmtv.estimators.files import KINDS, save
from irmtv.models import light
from irmtv.models.light import FILE_KINDS, LightClassifier, LightRegressor, light_steps
from irmtv.models.trees import library
from irmtv.persistence import ModelFileError, archive, encoding, read_model

NETWORK, TREES = {"max_steps": 30, "random_state": 0}, {"n_estimators": 5, "random_state": 0}
MODELS = {
    "linear": ("sold", irmtv.InvariantClassifier("erm", hidden=(), **NETWORK)),
    "network": ("sold", irmtv.InvariantClassifier("erm", hidden=(8, 4), **NETWORK)),
    "several classes": ("site", irmtv.InvariantClassifier("erm", hidden=(8,), **NETWORK)),
    "regression": ("price", irmtv.InvariantRegressor("erm", hidden=(8,), **NETWORK)),
    "two targets": ("both", irmtv.InvariantRegressor("erm", hidden=(8,), **NETWORK)),
    "one target in two axes": ("one", irmtv.InvariantRegressor("erm", hidden=(), **NETWORK)),
    "float64": ("sold", irmtv.InvariantClassifier("erm", hidden=(4,), dtype="float64", **NETWORK)),
    "trees": ("sold", irmtv.InvariantBoostingClassifier("erm", **TREES)),
    "trees, several classes": ("site", irmtv.InvariantBoostingClassifier("erm", **TREES)),
    "trees, regression": ("price", irmtv.InvariantBoostingRegressor("erm", **TREES)),
}


def rows(n: int, seed: int) -> pd.DataFrame:
    """Features: numbers, one far from 0, a category, dates; with gaps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n),
            "far": 1.6e9 + rng.normal(size=n),
            "constant": 1.0,
            "kind": rng.choice(["flat", "house", "hut"], n),
            "built": [f"20{k:02d}-03-11" for k in rng.integers(10, 24, n)],
        }
    )
    for step, name in enumerate(["size", "kind", "built"]):
        frame[name] = frame[name].mask(np.arange(n) % 9 == step)
    return frame


def strange(n: int = 50) -> pd.DataFrame:
    """Later rows: gaps elsewhere, a new category, a date that is none, an odd number."""
    frame = rows(n, 1)
    frame.loc[0, ["kind", "built"]] = ["castle", "oops"]
    frame.loc[1, ["size", "far", "constant"]] = [1e6, np.nan, 2.0]
    return frame


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder, frame = tmp_path_factory.mktemp("light"), rows(200, 0)
    noisy = frame["size"].fillna(0) + 0.3 * np.random.default_rng(2).normal(size=200)
    labels = {
        "sold": np.where(noisy > 0, "yes", "no"),
        "site": pd.cut(noisy, 3, labels=["a", "b", "c"]).astype(str),
        "price": 100 + 10 * noisy,
        "both": np.stack([noisy, 5 - noisy], 1),
        "one": noisy.to_numpy()[:, None],
    }
    found = {}
    for name, (target, model) in MODELS.items():
        steps = table_steps(for_trees=name.startswith("trees"))
        found[name] = save(Pipeline([*steps, ("model", model)]).fit(frame, labels[target]), folder / f"{name}.irmtv")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_same_predictions_as_the_estimator(files, name):
    own, full = TableModel(light_steps(read_model(files[name]))), TableModel(irmtv.load(files[name]))
    assert isinstance(own.estimator, (LightClassifier, LightRegressor))
    assert (own.columns, own.kinds, own.text, own.classes) == (full.columns, full.kinds, full.text, full.classes)
    made, expected = own.predict(strange()), full.predict(strange())
    assert list(made) == list(expected) and len(made) == 50
    for column in made:
        if made[column].dtype.kind == "f":
            np.testing.assert_allclose(made[column], expected[column], rtol=1e-9, atol=1e-12)
        else:
            assert made[column].tolist() == expected[column].tolist() and made[column].nunique() > 1
    np.testing.assert_allclose(own.outputs(strange()), full.outputs(strange()), rtol=1e-9, atol=1e-12)
    assert own.notes() == full.notes() and len(own.notes()) == 2


@pytest.mark.slow
def test_a_row_does_not_depend_on_how_many_are_read_at_once(files, monkeypatch):
    own = open_model(files["network"])[0]
    expected = own.outputs(strange())
    monkeypatch.setattr(light, "ROWS", 7)
    np.testing.assert_allclose(own.outputs(strange()), expected, rtol=1e-12)


@pytest.mark.slow
def test_trees_by_the_compiled_library_as_by_the_package(files, monkeypatch):
    """The tests have LightGBM imported, and so use its package unless it seems not to be."""
    import lightgbm

    expected = open_model(files["trees, several classes"])[0].outputs(strange())
    monkeypatch.delitem(library.sys.modules, "lightgbm")
    ready = open_model(files["trees, several classes"])[0]
    monkeypatch.setitem(library.sys.modules, "lightgbm", lightgbm)
    np.testing.assert_array_equal(ready.outputs(strange()), expected)
    compiled = library.CompiledTrees(library.compiled(), _text(files["trees, several classes"]))
    package = lightgbm.Booster(model_str=_text(files["trees, several classes"]))
    values = np.random.default_rng(0).normal(size=(20, package.num_feature()))
    how = {"raw_score": True, "num_iteration": 3, "num_threads": 1}
    np.testing.assert_array_equal(compiled.predict(values, **how), package.predict(values, **how))
    with pytest.raises(ValueError, match="number of features"):
        compiled.predict(values[:, :1], **how)


def _text(path: Path) -> str:
    return read_model(path).meta["members"][0]["trees"]


def test_every_kind_of_file_is_known():
    assert set(FILE_KINDS) == {*KINDS, "pipeline"}


@pytest.mark.slow
def test_what_needs_the_estimator(tmp_path):
    """An estimator alone, dates of a time zone, preprocessing of others: there is no light way."""
    frame = rows(60, 0)[["size", "far"]].fillna(0.0)
    y = (frame["size"] > 0).astype(int)
    model = irmtv.InvariantClassifier("erm", hidden=(), **NETWORK)
    when = frame.assign(when=[f"2014-01-01T10:{k:02d}:00+01:00" for k in range(60)])
    paths = {
        "array": model.fit(frame, y).save(tmp_path / "a.irmtv"),
        "when": save(Pipeline([*table_steps(), ("model", model)]).fit(when, y), tmp_path / "b.irmtv"),
        "passed": save(Pipeline([("nothing", "passthrough"), ("model", model)]).fit(frame, y), tmp_path / "c.irmtv"),
    }
    for name, path in paths.items():
        assert light_steps(read_model(path)) is None
        assert name == "passed" or len(open_model(path)[0].predict(when)) == 60


def changed(path: Path, to: Path, key: str, value: object) -> Path:
    """The file with another value in its meta, `key` as a path, and a right checksum."""
    entries = archive.unpack(path.read_bytes(), archive.re.compile(".*"), "")
    header = encoding.parse_json(entries["irmtv.json"], "")
    *inside, last = key.split("/")
    place = header["meta"]
    for name in inside:
        place = place[name]
    place[last] = value
    del entries["mimetype"]
    to.write_bytes(archive.seal({**entries, "irmtv.json": encoding.dump_json(header)}))
    return to


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("network", "attributes/n_features_in_", 3),
        ("network", "attributes/n_features_in_", "3"),
        ("network", "members", []),
        ("network", "members", 5),
        ("network", "members", [{"step": 1, "net": {"type": "mlp", "widths": [10**9, 1]}}]),
        ("network", "members", [{"step": 1, "net": {"type": "mlp", "widths": [3]}}]),
        ("network", "steps", ["columns", 5, "model"]),
        ("network", "steps", [["columns"], "numbers", "model"]),
        ("network", "plain/numbers", {"class": "TableNumbers"}),
        ("network", "plain/numbers", 5),
        ("network", "plain/columns/columns", ["size"]),
        ("network", "plain/numbers/fill", {}),
        ("network", "parameters", 5),
        ("regression", "attributes/_targets", 5),
        ("trees", "categories", [None]),
        ("trees", "members", [{"trees": "tree", "iterations": 1}]),
        ("trees", "members", []),
        ("trees", "parameters/n_jobs", "all"),
    ],
    ids=str,
)
def test_a_file_of_another_content_is_an_error_of_the_file_in_both_ways(files, tmp_path, name, key, value):
    path = changed(files[name], tmp_path / "m.irmtv", key, value)
    for read in (open_model, irmtv.load):
        with pytest.raises(ModelFileError, match=r"m.irmtv"):
            read(path)
