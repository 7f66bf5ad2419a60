"""The library stands alone, app and lab stand on it, and no package is reached from behind (docs/architecture.md).

`make graph` prints the graph of imports that is checked here.
"""

from __future__ import annotations

import ast
import re

import pytest

from contracts import import_graph
from contracts.import_graph import APPLICATIONS, EXEMPT, LIBRARY, ROOT, Import, imports, modules, package

# What is against the rules for a while, each with what it waits for: "irmtv.app.x imports irmtv.lab.y", "models ->
# estimators" for a step of a cycle, "irmtv.app.x uses ._y". An entry that is no longer needed fails as well.
STILL_TO_MEND: dict[str, str] = {}


def edges_to_mend() -> set[tuple[str, str]]:
    return {(a, b) for a, arrow, b in (key.partition(" -> ") for key in STILL_TO_MEND) if arrow}


def new_ones(rows: list[Import] | list[import_graph.PrivateUse]) -> list[str]:
    return [str(row) for row in rows if row.key not in STILL_TO_MEND]


def test_library_html_app_and_lab_import_only_what_is_below_them():
    assert new_ones(import_graph.forbidden(imports())) == []


def test_packages_form_an_acyclic_graph():
    assert import_graph.cycle(import_graph.graph(without=edges_to_mend())) == []


def test_no_private_name_of_another_package_is_imported():
    assert new_ones(import_graph.private_imports(imports())) == []


def test_no_old_path_is_used_inside():
    assert new_ones(import_graph.old_paths(imports())) == []


def test_applications_use_public_methods_and_attributes():
    assert new_ones(import_graph.private_uses()) == []


def test_nothing_is_on_the_list_that_has_been_mended():
    edges = edges_to_mend()
    broken = {
        row.key
        for rows in (
            import_graph.forbidden(imports()),
            import_graph.private_imports(imports()),
            import_graph.old_paths(imports()),
            import_graph.private_uses(),
        )
        for row in rows
    } | {f"{a} -> {b}" for a, b in edges if import_graph.cycle(import_graph.graph(without=edges - {(a, b)}))}
    assert set(STILL_TO_MEND) - broken == set()


def test_every_package_has_its_place():
    """A new folder is put into the picture of the layers, or it is in none."""
    known = {*LIBRARY, *import_graph.ABOVE, *(f"{a}.{part}" for a, parts in APPLICATIONS.items() for part in parts)}
    assert {package(m) for m in modules() if m not in EXEMPT} - known == set()


@pytest.mark.parametrize(
    ("line", "how", "target", "name"),
    [
        ("from irmtv.core.types import Task", "top", "irmtv.core.types", "Task"),
        ("from irmtv.core import types", "top", "irmtv.core.types", ""),
        ("import irmtv.core.types as t", "top", "irmtv.core.types", ""),
        ("def f():\n    from irmtv.engine.train import train", "lazy", "irmtv.engine.train", "train"),
        ("async def f():\n    import irmtv.engine.train", "lazy", "irmtv.engine.train", ""),
        ("if TYPE_CHECKING:\n    from irmtv.core.types import Task", "typing", "irmtv.core.types", "Task"),
        ("if typing.TYPE_CHECKING:\n    from irmtv.core.types import Task", "typing", "irmtv.core.types", "Task"),
        ("from irmtv import load", "top", "irmtv.estimators", "load"),
        ("from irmtv import engine", "top", "irmtv.engine", ""),
        ("import irmtv\nirmtv.load('a')", "top", "irmtv.estimators", "load"),
        ("import irmtv\nirmtv.core.types.Task", "top", "irmtv.core.types", "Task"),
        ("import_module('irmtv.cli')", "string", "irmtv.cli", ""),
        ("TABLE = {'a': ('b', 'irmtv.lab.tables')}", "string", "irmtv.lab.tables", ""),
        ("import_module(f'irmtv.datasets.{name}')", "string", "irmtv.datasets", ""),
        ("from irmtv.core.types import _Hidden", "top", "irmtv.core.types", "_Hidden"),
        ("from irmtv.theory import verify", "old path", "irmtv.lab.theory", "verify"),
    ],
)
def test_every_way_to_import_is_seen(line, how, target, name):
    reader = import_graph._Reader("irmtv.html.page")
    reader.visit(ast.parse(line))
    assert [(i.how, i.target, i.name) for i in reader.imports] == [(how, target, name)]


@pytest.mark.parametrize(
    "line", ["'a sentence about irmtv.core.types'", "import irmtv", "from irmtv import __version__"]
)
def test_what_is_no_import_is_not_counted(line):
    reader = import_graph._Reader("irmtv.html.page")
    reader.visit(ast.parse(line))
    assert reader.imports == set()


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("core", "objectives", True),  # acyclic is checked apart
        ("estimators", "html", False),
        ("datasets", "lab.tables", False),
        ("losses", "cli", False),
        ("html", "core", True),
        ("html", "metrics", False),
        ("app.io", "html", True),
        ("app.io", "lab.tables", False),
        ("lab.theory", "app.io", False),
        ("lab.theory", "cli", False),
        ("cli", "lab.theory", True),
    ],
)
def test_rules_of_the_layers(source, target, allowed):
    rows = [Import(f"irmtv.{source}.a", f"irmtv.{target}", "b", "top", 1)]
    assert (import_graph.forbidden(rows) == []) is allowed


def test_cycles_are_seen():
    assert import_graph.cycle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert import_graph.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_private_attributes_are_seen():
    """Of other objects, also through getattr; not of self, and no dunder."""
    tree = ast.parse("a._b()\nself._c\na.d._e\ngetattr(a, '_f')\na.__class__\nsuper()._g()")
    private = {name for name, _ in import_graph._attributes(tree) if re.match("_[^_]", name)}
    assert private == {"_b", "_e", "_f"}


def test_objectives_know_no_data_set():
    """No data-set names in objectives, and no optimizer, device or file."""
    words = ("simulation", "adult", "celeba", "landcover", "house", "cuda", "optimizer", "torch.optim", "open(")
    for path in (ROOT / "objectives").glob("*.py"):
        text = path.read_text().lower()
        assert not [w for w in words if w in text], path


def test_no_file_is_too_long_to_hold_in_the_head():
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in modules().values()}
    assert {name: n for name, n in lines.items() if n > 520} == {}
