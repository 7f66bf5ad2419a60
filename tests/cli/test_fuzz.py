"""Damaged and odd files through the commands: never a traceback, a message that says what to do, nothing half-written.

A small table is spoilt in one of many ways, by a seed. Exit code 0 means that the output is whole; exit code 1 that one
line says what is wrong, and that no file is left. Most files that can be read are not trained on: `fit` and `diagnose`
stop after the table was read, divided and made numbers; some go all the way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from sklearn.pipeline import Pipeline

import irmtv
from fuzz.tables import MUTATIONS, base
from irmtv.app.io import split_columns, table_names, table_steps, task_of
from irmtv.estimators.files import save
from irmtv.html.page import page_beside

SEEDS = 12
QUICK = ("--model", "linear", "--steps", 3, "--folds", 2)

ALWAYS_REFUSED = {
    *("nothing at all", "header only", "one column", "duplicate columns", "open quote", "rows too short", "latin-1"),
    *("rows too long", "utf-16", "NUL", "gz cut.gz", "no gz.gz", "no parquet.parquet", "parquet cut.parquet"),
}
REFUSED_BY_FIT = ALWAYS_REFUSED | {
    *("constant target", "constant but for missing", "target of all texts", "no target", "no environment"),
    *("no environment known", "infinities", "nothing but missing"),
}
REFUSED_IN_TRAINING = {"few rows", "one environment", "every row its own environment"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = split_columns(base(), target="sold", environment="site")
    pipeline = Pipeline([*table_steps(), ("model", irmtv.InvariantClassifier("erm", hidden=(), max_steps=5))])
    pipeline.fit(found.features, found.y)
    return save(pipeline, tmp_path_factory.mktemp("model") / "m.irmtv", about={"data": {"target": "sold"}})


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """What stands before training; the model is loaded once for all files."""
    import irmtv.app.diagnose
    import irmtv.app.fit
    from irmtv.estimators import files

    number = itertools.count()

    def enough(table: Any, target: str, environment: Any, aux: Any = (), task: str | None = None, **_: Any) -> None:
        found = split_columns(table.frame, target=target, environment=environment, aux=aux)
        task_of(found.y, task)
        if next(number) % 4 == 0:
            assert np.isfinite(Pipeline(table_steps()).fit_transform(found.features)).all()
        raise typer.Exit(0)

    loaded, about = irmtv.load(model), files.read_about(model)
    monkeypatch.setattr(irmtv, "load", lambda _: loaded)
    monkeypatch.setattr(files, "read_about", lambda _: about)
    monkeypatch.setattr(irmtv.app.fit, "fit_table", enough)
    monkeypatch.setattr(irmtv.app.diagnose, "diagnose_table", enough)


def spoilt(name: str, seed: int, folder: Path) -> Path:
    suffix = {"gz": ".csv.gz", "parquet": ".parquet"}.get(name.rpartition(".")[2], ".csv")
    path = folder / f"data{suffix}"
    path.write_bytes(MUTATIONS[name](np.random.default_rng([seed, *name.encode()])))
    return path


# what a message says must be done, and words that only a programmer knows
DOING = (
    *("add", "change", "check", "choose", "close", "copy", "did you mean", "empty", "fill", "give", "leave", "make"),
    *("name another", "name one", "name other", "put", "rename", "unpack", "use", "write"),
)
PROGRAMMING = ("Traceback", r"Error\b", "Exception", "object at 0x", "<class", "[Aa]rrow", "numpy", "dtype", "NoneType")


def check(ended: Any, path: Path, whole: Callable[[], None]) -> None:
    """Nothing half: either all is there, or a line says why not and nothing is there."""
    left = sorted(p.name for p in path.parent.iterdir() if p != path)
    if ended.code == 0:
        whole()
        return
    assert ended.code == 1, (ended.code, ended.err)
    assert left == [], left
    assert ended.out == ""
    message = ended.err.strip().splitlines()[-1]
    assert message.startswith("irmtv: ") and len(message) > 40, ended.err
    assert re.search(rf"(?i)\b({'|'.join(DOING)})\b", message), message
    assert not re.search("|".join(PROGRAMMING), message), message


def run(command: Any, what: str, path: Path, model: Path, *more: object) -> Any:
    """The command on the file, and what must be there where it succeeds."""
    out = path.parent / ("out.csv" if what in ("predict", "evaluate") else "out.irmtv")
    arguments: dict[str, tuple[object, ...]] = {
        "predict": (model, path, "--out", out),
        "evaluate": (model, path, "-e", "site", "--bootstrap", 20, "--out", out),
        "fit": (path, "--target", "sold", "-e", "site", "--out", out, *more),
        "diagnose": (path, "--target", "sold", "-e", "site", *more),
    }
    ended = command(what, *arguments[what])

    def whole() -> None:
        assert table_names(path)  # it was a table
        if what == "predict":
            made = pd.read_csv(out)
            assert made.columns.tolist() == ["prediction", "probability_no", "probability_yes"]
            assert np.allclose(made["probability_no"] + made["probability_yes"], 1) and made["prediction"].notna().all()
        elif what == "evaluate":
            assert pd.read_csv(out)["value"].between(0, 1).all()
        elif what == "fit" and more:
            assert irmtv.load(out).predict(base().head(1)).shape == (1,)
            assert page_beside(out).read_text().rstrip().endswith("</html>")

    check(ended, path, whole)
    out.unlink(missing_ok=True)
    page_beside(out).unlink(missing_ok=True)
    return ended


def commands(number: int) -> Iterator[str]:
    """Every file goes through one of them, some through two, in turn."""
    every = ("predict", "fit", "evaluate", "diagnose")
    yield every[number % 4]
    if number % 6 == 0:
        yield every[(number + 1) % 4]


def test_there_are_as_many_files_as_promised():
    assert SEEDS * len(MUTATIONS) >= 500


@pytest.mark.usefixtures("no_training")
@pytest.mark.parametrize("name", MUTATIONS)
def test_never_a_traceback(command, model, tmp_path, name):
    codes = set()
    for seed in range(SEEDS):
        path = spoilt(name, seed, tmp_path)
        for what in commands(seed):
            ended = run(command, what, path, model)
            codes.add(ended.code)
            if name in ALWAYS_REFUSED or (name in REFUSED_BY_FIT and what == "fit"):
                assert ended.code == 1, (name, seed, what)
        path.unlink()
    assert codes <= {0, 1}


TRAINED = (
    *("few rows", "lines dropped and doubled", "words among numbers", "new classes", "all missing"),
    *("one environment", "every row its own environment"),
)


@pytest.mark.parametrize("name", TRAINED)
def test_all_the_way(command, model, tmp_path, name):
    path = spoilt(name, 1, tmp_path)
    ended = run(command, "fit", path, model, *QUICK)
    assert (ended.code == 1) == (name in REFUSED_IN_TRAINING), ended.err


@pytest.mark.parametrize("name", ["bits flipped", "no environment"])
def test_a_diagnosis_all_the_way(command, model, tmp_path, name):
    path = spoilt(name, 2, tmp_path)
    run(command, "diagnose", path, model, "--json")


def odd(name: str) -> bytes:
    frame = base(160)
    if name == "byte-order mark":
        return b"\xef\xbb\xbf" + frame.to_csv(index=False).encode()
    if name == "ten thousand levels":
        frame = pd.concat([frame] * 70, ignore_index=True)
        frame["street"] = [f"{k % 10_000} Street" for k in range(len(frame))]
    if name == "dates as numbers":
        frame["built"] = frame["built"].str.replace("-", "").astype(int)
    if name == "quoted newlines":
        frame["kind"] = frame["kind"] + "\nin the\r\nwoods"
    if name == "spaces in names":
        frame = frame.rename(columns={"size": " size in m ", "kind": "kind of house"})
    return frame.to_csv(index=False).encode()


ODD = ("byte-order mark", "ten thousand levels", "dates as numbers", "quoted newlines", "spaces in names")


@pytest.mark.parametrize("name", ODD)
def test_odd_but_valid(command, tmp_path, name):
    path, out = tmp_path / "data.csv", tmp_path / "m.irmtv"
    path.write_bytes(odd(name))
    ended = command("fit", path, "--target", "sold", "-e", "site", "--out", out, *QUICK)
    assert ended.code == 0, ended.err
    ended = command("predict", out, path, "--out", tmp_path / "p.csv")
    assert ended.code == 0, ended.err
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(pd.read_csv(path))
    if name != "ten thousand levels":  # a large model, twice read
        assert command("evaluate", out, path, "-e", "site", "--bootstrap", 20).code == 0
