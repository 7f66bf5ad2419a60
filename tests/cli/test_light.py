"""Commands that only use a model load what they need: a table of numbers, dates, categories and text needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from sklearn.pipeline import Pipeline

import irmtv
from cli.models import houses
from irmtv.app.io import read_table, split_columns, table_steps
from irmtv.estimators.files import save

HEAVY = ("torch", "skrub", "sklearn", "skops", "scipy", "matplotlib", "lightgbm")
# runs commands one after the other in one process, and prints what is loaded after each on standard error
PROGRAM = f"""
import contextlib, io, json, sys
from irmtv.cli import app
loaded = {{}}
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert not app(command, standalone_mode=False), command
    loaded[" ".join(command)] = [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps(loaded))
"""


def loaded_after(commands: list[list[str]]) -> dict[str, list[str]]:
    """Which heavy packages each command has loaded, by the command."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_using_a_model_loads_neither_torch_nor_scikit_learn(tmp_path):
    table = houses()
    table.assign(street=[f"{k} Long Street" for k in range(len(table))]).to_csv(tmp_path / "houses.csv", index=False)
    frame = read_table(tmp_path / "houses.csv").frame.drop(columns=["id", "price"])
    columns = split_columns(frame, target="sold", environment="site")
    about = {"data": {"target": "sold", "environment": ["site"]}}
    commands = []
    for name, model in {
        "linear": irmtv.InvariantClassifier("erm", hidden=(), max_steps=20),
        "network": irmtv.InvariantClassifier("erm", hidden=(4,), max_steps=20),
        "trees": irmtv.InvariantBoostingClassifier("erm", n_estimators=3),
    }.items():
        pipeline = Pipeline([*table_steps(for_trees=name == "trees"), ("model", model)])
        file = str(save(pipeline.fit(columns.features, columns.y), tmp_path / f"{name}.irmtv", about=about))
        table = str(tmp_path / "houses.csv")
        commands += [
            ["verify", file],
            ["predict", file, table, "--keep", "id", "--out", str(tmp_path / "predictions.csv")],
            ["evaluate", file, table, "--environment", "site", "--bootstrap", "20"],
        ]
    assert set(map(tuple, loaded_after(commands).values())) == {()}
    assert len(read_table(tmp_path / "predictions.csv").frame) == len(frame)


@pytest.mark.slow
def test_fitting_a_table_of_numbers_does_not_load_skrub(tmp_path):
    table = tmp_path / "houses.csv"
    houses()[["size", "site", "sold"]].to_csv(table, index=False)
    fit = ["fit", str(table), "--target", "sold", "--environment", "site", "--model", "linear"]
    assert "skrub" not in loaded_after([[*fit, "--out", str(tmp_path / "houses.irmtv")]]).popitem()[1]
