"""A file imports only from the layers listed before its own (design, section 4)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import irmtv

ROOT = Path(irmtv.__file__).parent
LAYERS = (
    "_version",
    "core",
    "metrics",
    "selection",
    "environments",
    "objectives",
    "engine",
    "networks",
    "crossfit",
    "inference",
    "own_models",
    "search",
    "validate",
    "progress",
    "persistence",
    "onnx_export",
    "losses",
    "lightning",
    "datasets",
    "tabular",
    "estimators",
    "boosting",
    "answer",
    "diagnose",
    "experiments",
    "report",
    "theory",
    "cli",
)
# inside a layer, what stands lower may not import what stands higher either
INSIDE = {
    "selection": ("scores", "records", "equality", "invariant", "choose"),
    "experiments": (
        "schema",
        "store_files",
        "store",
        "spec_checks",
        "spec",
        "plan",
        "measure",
        "workers",
        "run",
        "results",
        "papers",
        "feature_weights",
        "running_times",
    ),
    "persistence": ("errors", "encoding", "archive", "trusted", "parts", "model"),
    "core": ("messages", "projection", "losses", "types", "membership", "risk"),
    "engine": (
        "allocator",
        "capture",
        "nets",
        "optim",
        "batches",
        "guard",
        "plan",
        "settings",
        "start",
        "snapshots",
        "fitted",
        "noise",
        "stage",
        "sparse_mask",
        "rho",
        "selector",
        "row_environments",
        "sources",
        "rows",
        "biased_net",
        "roles",
        "weights",
        "measure",
        "shared",
        "program",
        "hrm",
        "train",
    ),
}
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names]
    return [m for m in found if m.startswith("irmtv.")]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    own = path.relative_to(ROOT).with_suffix("").parts
    for module in imports(path):
        other = module.split(".")[1:]
        assert LAYERS.index(other[0]) <= LAYERS.index(own[0]), f"{path} imports {module}"
        order = INSIDE.get(own[0], ())
        if other[0] == own[0] and len(own) > 1 and len(other) > 1 and own[1] != "__init__":
            assert order == () or order.index(other[1]) < order.index(own[1]), f"{path} imports {module}"


def test_every_layer_is_listed():
    present = {p.stem if p.is_file() else p.name for p in ROOT.iterdir() if not p.name.startswith("__")}
    assert present - {"py"} <= set(LAYERS)


def test_objectives_know_no_data_set():
    """No data-set names in objectives, and no optimizer, device or file."""
    words = ("simulation", "adult", "celeba", "landcover", "house", "cuda", "optimizer", "torch.optim", "open(")
    for path in (ROOT / "objectives").glob("*.py"):
        text = path.read_text().lower()
        assert not [w for w in words if w in text], path


def test_no_file_is_too_long_to_hold_in_the_head():
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 520}
    assert not long
