"""`irmtv verify`: whole files, and every kind of file that is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import irmtv
from cli.models import fitted
from irmtv.persistence import archive, encoding


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted(tmp_path_factory.mktemp("verify"))


def test_what_it_is_and_expects(command, model):
    ended = command("verify", model)
    assert ended.code == 0
    for text in ("good", "checksum fits", f"irmtv {irmtv.__version__}, format 1", "binary", "no, yes", "sold", "erm"):
        assert text in ended.out
    for text in ("ERM is kept.", "site (not needed to predict)", "expects      4 columns"):
        assert text in ended.out
    for text in ("size (number)", "kind (text)", "code (text)", "built (date)", "a row without any value gives"):
        assert text in ended.out


def test_json(command, model):
    found = json.loads(command("verify", model, "--json").out)
    assert found["good"] is True and found["problem"] is None and found["checksum"] == "good"
    assert found["format"] == 1 and found["written_by"] == irmtv.__version__
    assert found["classes"] == ["no", "yes"] and found["target"] == "sold" and found["environment"] == ["site"]
    assert [c["name"] for c in found["columns"]] == ["size", "kind", "code", "built"]


def test_a_model_without_a_summary_and_without_an_imputer(command, tmp_path):
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    estimator = irmtv.InvariantRegressor("erm", hidden=(), max_steps=5).fit(frame, frame["a"])
    found = json.loads(command("verify", estimator.save(tmp_path / "m.irmtv"), "--json").out)
    assert found["task"] == "regression" and found["predicts"] == "a row of zeros predicts"


def newer(path: Path) -> None:
    """As a later irmtv might write it."""
    entries = archive.unpack(path.read_bytes(), archive.re.compile(".*"), "")
    header = encoding.parse_json(entries["irmtv.json"], "")
    header |= {"format": 99, "irmtv": "99.0"}
    del entries["mimetype"]
    path.write_bytes(archive.seal({**entries, "irmtv.json": encoding.dump_json(header)}))


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "flipped":
        path.write_bytes(data[:500] + bytes([data[500] ^ 1]) + data[501:])
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("a,b\n1,2\n")
    elif how == "torch":
        torch.save({"a": 1}, path)
    elif how == "newer":
        newer(path)
    elif how == "missing":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("flipped", "does not fit its checksum"),
        ("cut", "incomplete"),
        ("empty", "is empty"),
        ("text", "not a model file of irmtv"),
        ("torch", "a file of torch.save"),
        ("newer", "99"),
        ("missing", "There is no file"),
        ("folder", "is a folder"),
    ],
)
def test_files_that_are_not_whole(command, model, tmp_path, how, message):
    path = tmp_path / "m.irmtv"
    shutil.copy(model, path)
    spoil(path, how)
    ended = command("verify", path)
    assert ended.code == 1 and ended.out == ""
    assert message in ended.err and len(ended.err.strip().splitlines()) == 1
    ended = command("verify", path, "--json")
    found = json.loads(ended.out)
    assert ended.code == 1 and found["good"] is False and message in found["problem"]


def test_a_class_that_is_a_number_and_a_path_of_which_nothing_was_taken(command, tmp_path):
    import pandas as pd
    from sklearn.pipeline import Pipeline

    from irmtv.app.io import table_steps
    from irmtv.estimators.files import save

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60)})
    y = (frame["a"] > 0.5).astype(int)
    model = Pipeline([*table_steps(), ("model", irmtv.InvariantClassifier("erm", hidden=(), max_steps=50))])
    model.fit(frame, y)
    lines = {}
    for outcome in ("erm-invariant", "none-found", "invariant-found"):
        save(model, tmp_path / "m.irmtv", about={"objective": "irm-tv-l1", "outcome": outcome})
        ended = command("verify", tmp_path / "m.irmtv")
        assert "a row without any value gives 0\n" in ended.out
        lines[outcome] = next(line for line in ended.out.splitlines() if "objective" in line)
    kept = "irm-tv-l1, of whose path ERM was kept"
    assert lines["erm-invariant"].endswith(kept) and lines["none-found"].endswith(kept)
    assert lines["invariant-found"].endswith("irm-tv-l1")


def with_meta(path: Path, **changed: object) -> None:
    """The file with other values in its meta and the right checksum, as somebody who means harm would write it."""
    entries = archive.unpack(path.read_bytes(), archive.re.compile(".*"), "")
    header = encoding.parse_json(entries["irmtv.json"], "")
    header["meta"] |= changed
    del entries["mimetype"]
    path.write_bytes(archive.seal({**entries, "irmtv.json": encoding.dump_json(header)}))


@pytest.mark.parametrize(
    "about",
    [
        *(5, "text", [1], {"data": 5}, {"data": [1]}, {"data": {"environment": 5}}, {"data": {"aux": [1]}}),
        *({"task": 5}, {"headline": {"a": 1}}, {"created": [1]}, {"outcome": []}, {"objective": [1]}, {"model": {}}),
    ],
    ids=str,
)
def test_a_summary_of_the_wrong_type(command, model, tmp_path, about):
    path = tmp_path / "m.irmtv"
    shutil.copy(model, path)
    with_meta(path, about=about)
    ended = command("verify", path)
    assert ended.code == 1 and ended.out == ""
    assert "m.irmtv' is not as irmtv writes it" in ended.err and len(ended.err.strip().splitlines()) == 1


@pytest.mark.parametrize("about", [5, [1], {"schema": 1, "headline": 5}, {"schema": 1, "headline": "a", "data": 5}])
def test_a_report_of_a_summary_of_the_wrong_type(command, model, tmp_path, about):
    path = tmp_path / "m.irmtv"
    shutil.copy(model, path)
    with_meta(path, about=about)
    ended = command("report", path)
    assert ended.code == 1 and "m.irmtv' is not as irmtv writes it" in ended.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("lost", ["kinds_", "feature_names_in_", "recipes_", "fill_", "groups_"])
def test_parts_without_their_attributes(command, model, tmp_path, lost):
    path = tmp_path / "m.irmtv"
    loaded = irmtv.load(model)
    holders = [step for _, step in loaded.steps[:-1] if lost in vars(step)]
    assert holders
    for step in holders:
        delattr(step, lost)
    irmtv.save(loaded, path)
    ended = command("verify", path)
    assert ended.code == 1
    said = ("m.irmtv' is not as irmtv writes it", "m.irmtv' does not hold a whole Pipeline")
    assert any(words in ended.err for words in said) and len(ended.err.strip().splitlines()) == 1
