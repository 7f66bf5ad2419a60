"""Old import paths of 0.1 go on working, with a DeprecationWarning that names the new one."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "irmtv.answer": "irmtv.app.fit",
    "irmtv.boosting": "irmtv.estimators",
    "irmtv.boosting.rounds": "irmtv.models.trees.rounds",
    "irmtv.crossfit": "irmtv.selection.folds",
    "irmtv.diagnose": "irmtv.app.diagnose",
    "irmtv.environments": "irmtv.objectives.environments",
    "irmtv.experiments": "irmtv.lab.experiments",
    "irmtv.lightning": "irmtv.losses.lightning",
    "irmtv.networks": "irmtv.engine.named_networks",
    "irmtv.progress": "irmtv.core.progress_bar",
    "irmtv.report": "irmtv.lab.tables",
    "irmtv.search": "irmtv.models.search",
    "irmtv.tabular": "irmtv.app.io",
    "irmtv.theory": "irmtv.lab.theory",
    "irmtv.validate": "irmtv.data",
}


class MovedFinder(MetaPathFinder, Loader):
    """Finds a module under its old name: the same object as under its new one."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("irmtv."):
            return None
        old = max((key for key in MOVED if f"{name}.".startswith(f"{key}.")), key=len, default=None)
        if old is None:
            return None
        new = MOVED[old] + name.removeprefix(old)
        if name.count(".") == 1:  # once for the package, not for each of its modules
            warnings.warn(f"{name} has moved: import {new} instead.", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, self, origin=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        module = import_module(spec.origin)
        spec.loader_state = module.__spec__  # which the import system replaces by the spec of the old name
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Ask for old names first: else modules of a moved package would be found, and loaded again, in its new folder."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
