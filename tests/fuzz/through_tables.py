"""Mutated tables through predict, evaluate, fit and diagnose; training is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from sklearn.pipeline import Pipeline

import irmtv
import irmtv.app.diagnose
import irmtv.app.fit
from fuzz.tables import any_table, base
from fuzz.worker import command, ended
from irmtv.app.io import split_columns, table_steps, task_of
from irmtv.estimators import files


class Tables:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "data.csv"
        self.model, self.out = folder / "m.irmtv", folder / "out.csv"
        found = split_columns(base(), target="sold", environment="site")
        pipeline = Pipeline([*table_steps(), ("model", irmtv.InvariantClassifier("erm", hidden=(), max_steps=5))])
        files.save(pipeline.fit(found.features, found.y), self.model, about={"data": {"target": "sold"}})
        without_training(self.model)
        base().to_csv(self.path, index=False)
        for seed in range(4):
            for name, step in self.steps(seed):
                assert (wrong := ended(step)) is None, (name, wrong)
        self.path.unlink()

    def write(self, seed: int) -> str:
        self.path.unlink(missing_ok=True)
        self.path, done = any_table(seed, self.folder)
        return done

    def steps(self, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
        """Each through two of four, in turn."""
        all_of_fit = ("--target", "sold", "-e", "site")
        every = [
            ("predict", command("predict", self.model, self.path, "--out", self.out, "--keep", "kind")),
            ("fit", command("fit", self.path, *all_of_fit, "--out", self.folder / "new.irmtv")),
            ("evaluate", command("evaluate", self.model, self.path, "-e", "site", "--bootstrap", 20)),
            ("diagnose", command("diagnose", self.path, *all_of_fit)),
        ]
        yield every[seed % 4]
        self.out.unlink(missing_ok=True)
        yield every[(seed + 1 + seed // 4 % 3) % 4]
        self.out.unlink(missing_ok=True)


def without_training(model: Path) -> None:
    """What stands before training; the model is loaded once for all files."""

    def enough(table: Any, target: str, environment: Any, aux: Any = (), task: str | None = None, **_: Any) -> None:
        found = split_columns(table.frame, target=target, environment=environment, aux=aux)
        task_of(found.y, task)
        Pipeline(table_steps()).fit_transform(found.features)
        raise typer.Exit(0)

    loaded, about = irmtv.load(model), files.read_about(model)
    irmtv.load = lambda _: loaded  # type: ignore[assignment]
    files.read_about = lambda _: about
    irmtv.app.fit.fit_table = enough  # type: ignore[assignment]
    irmtv.app.diagnose.diagnose_table = enough  # type: ignore[assignment]
