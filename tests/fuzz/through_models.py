"""Mutated model files through load, verify, predict and report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import irmtv
from fuzz.model_files import mutated, network
from fuzz.worker import command, ended
from irmtv.persistence import ModelFileError


class Models:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bases = {path.stem: path.read_bytes() for path in sorted(folder.parent.glob("*.irmtv"))}
        self.path, self.out, self.page = folder / "m.irmtv", folder / "out.csv", folder / "m.html"
        self.rows = folder / "rows.csv"
        self.rows.write_bytes((folder.parent / "rows.csv").read_bytes())
        for base in ("fit_linear", "fit_trees", "boosting", "module", "clusters"):  # packages are loaded
            self.path.write_bytes(self.bases[base])
            for name, step in self.steps(0):
                assert (wrong := ended(step)) is None, (base, name, wrong)

    def write(self, seed: int) -> str:
        return mutated(self.bases, seed, self.path)

    def steps(self, seed: int) -> Iterator[tuple[str, Callable[[], object]]]:
        yield "load", self._load
        yield "verify", command("verify", self.path)
        yield "predict", command("predict", self.path, self.rows, "--out", self.out)
        self.out.unlink(missing_ok=True)
        if seed % 4 == 0:
            yield "evaluate", command("evaluate", self.path, self.rows, "--target", "sold", "--bootstrap", 20)
        yield "report", command("report", self.path)
        self.page.unlink(missing_ok=True)

    def _load(self) -> None:
        """The only error is that of model files; with the function of a module where one is asked for."""
        for more in ({}, {"module": network}):
            try:
                irmtv.load(self.path, **more)
            except ModelFileError:
                pass
            except ValueError as error:
                if "module" not in str(error):
                    raise
