"""The graph of imports of src/irmtv, and the rules of its layers (docs/architecture.md).

    python tests/contracts/import_graph.py      the packages from the lowest layer up, what each imports, what is wrong

Read from the source by ast, so nothing is imported. Counted are imports at the top of a module, in functions, under
TYPE_CHECKING, by string (`import_module("irmtv.x")`, and any string that names a module), `from irmtv import Name` and
`irmtv.name` (looked up in the lazy tables of `irmtv/__init__.py`), and old paths that `irmtv/_moved.py` redirects.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "irmtv"
LIBRARY = (
    "core", "objectives", "engine", "selection", "data", "metrics", "persistence", "datasets", "models", "estimators",
    "losses",
)  # fmt: skip
# packages whose own packages must form an acyclic graph as well
APPLICATIONS = {
    "app": ("io", "fit", "diagnose", "pages"),
    "lab": ("workers", "on_ray", "experiments", "real", "tables", "theory"),
}
# what is above the library, and which of the others it may import
ABOVE = {
    "html": {"core"},
    "app": {*LIBRARY, "html"},
    "lab": {*LIBRARY, "html"},
    "cli": {*LIBRARY, "html", "app", "lab"},
}
# the lazy tables, the old paths, one number, the command under the name of the package
EXEMPT = {"irmtv", "irmtv._moved", "irmtv._version", "irmtv.__main__"}


@dataclass(frozen=True, order=True)
class Import:
    """One import: the module that imports, the module that is imported, the name that is taken from it."""

    source: str
    target: str
    name: str
    how: str  # "top", "lazy", "typing", "string", "old path"
    line: int

    @property
    def key(self) -> str:
        return f"{self.source} imports {self.target}" + (f".{self.name}" if self.name else "")

    def __str__(self) -> str:
        return f"{self.key} (line {self.line}, {self.how})"


@dataclass(frozen=True, order=True)
class PrivateUse:
    """A private attribute of an object that is not `self`."""

    source: str
    attribute: str
    line: int

    @property
    def key(self) -> str:
        return f"{self.source} uses .{self.attribute}"

    def __str__(self) -> str:
        return f"{self.key} (line {self.line})"


@cache
def modules() -> dict[str, Path]:
    """Every module of irmtv by its dotted name."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


@cache
def syntax(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def _constant(module: str, name: str) -> dict[str, str] | tuple[str, ...]:
    """The value of `name = {...}` at the top of a module; empty where there is none."""
    if module in modules():
        for node in syntax(module).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                value: dict[str, str] | tuple[str, ...] = ast.literal_eval(node.value)
                return value
    return {}


@cache
def _later() -> dict[str, str]:
    """Names that `irmtv` gives, with the modules that have them."""
    return dict(_constant("irmtv", "_LATER")) | {part: f"irmtv.{part}" for part in _constant("irmtv", "_PARTS")}


def _resolve(dotted: str) -> tuple[str, str, bool] | None:
    """(existing module, first name inside it, whether an old path was taken) for a dotted path; None for `irmtv`."""
    top, _, rest = dotted.removeprefix("irmtv.").partition(".")
    moved = dict(_constant("irmtv._moved", "MOVED"))
    old = f"irmtv.{top}" not in modules() and f"irmtv.{top}" in moved
    if old:
        dotted = moved[f"irmtv.{top}"] + (f".{rest}" if rest else "")
    elif f"irmtv.{top}" not in modules() and top in _later():
        return _later()[top], top, False
    parts = dotted.split(".")
    for stop in range(len(parts), 1, -1):
        if ".".join(parts[:stop]) in modules():
            return ".".join(parts[:stop]), parts[stop] if stop < len(parts) else "", old
    return None


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute of names; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    start = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{start}.{node.attr}" if start and isinstance(node, ast.Attribute) else ""


class _Reader(ast.NodeVisitor):
    """Collects the imports of one module."""

    def __init__(self, module: str) -> None:
        self.module, self.how, self.imports = module, "top", set[Import]()

    def add(self, dotted: str, node: ast.AST, how: str) -> None:
        resolved = _resolve(dotted) if dotted.startswith("irmtv.") else None
        if resolved is not None:
            target, name, old = resolved
            self.imports.add(Import(self.module, target, name, "old path" if old else how, getattr(node, "lineno", 0)))

    def inside(self, nodes: Iterable[ast.AST], how: str) -> None:
        before, self.how = self.how, how
        for node in nodes:
            self.visit(node)
        self.how = before

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.inside(ast.iter_child_nodes(node), "lazy")

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if _dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.inside(node.body, "typing")
            self.inside(node.orelse, self.how)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node, self.how)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.add(f"{node.module}.{alias.name}", node, self.how)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (path := _dotted(node)).startswith("irmtv."):
            self.add(path, node, self.how)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.removesuffix(".") in modules():
            self.add(node.value.removesuffix("."), node, "string")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """`f"irmtv.datasets.{name}"` names the package before the first brace; a sentence names nothing."""
        first = node.values[0]
        if isinstance(first, ast.Constant) and re.fullmatch(r"irmtv(\.\w+)*\.", str(first.value)):
            self.add(str(first.value).removesuffix("."), node, "string")


def imports_of(module: str) -> list[Import]:
    """What a module of irmtv imports of irmtv."""
    reader = _Reader(module)
    reader.visit(syntax(module))
    return sorted(i for i in reader.imports if i.target != module)


@cache
def imports() -> list[Import]:
    """All imports between modules of irmtv, without those of the exempt files."""
    return [i for module in modules() if module not in EXEMPT for i in imports_of(module) if i.target not in EXEMPT]


def top(module: str) -> str:
    """The package of a module: irmtv.app.io.read is in `app`."""
    return module.split(".")[1]


def package(module: str) -> str:
    """The package of a module, with the second name inside app and lab: irmtv.app.io.read is in `app.io`."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if parts[0] in APPLICATIONS and len(parts) > 1 else parts[0]


def graph(without: Iterable[tuple[str, str]] = ()) -> dict[str, set[str]]:
    """What each package imports, without some edges and without what the layers forbid."""
    edges: dict[str, set[str]] = {package(m): set() for m in modules() if m not in EXEMPT}
    for i in set(imports()) - set(forbidden(imports())):
        source, target = package(i.source), package(i.target)
        if source != target and (source, target) not in set(without):
            edges[source].add(target)
    return edges


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """A cycle, as the packages on its way with the first one again at the end; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        for target in sorted(edges.get(node, ())):
            if closed := walk(target, [*way, node]):
                return closed
        done.add(node)
        return []

    return next((closed for node in sorted(edges) if (closed := walk(node, []))), [])


def forbidden(found: Iterable[Import]) -> list[Import]:
    """Imports against the layers: library, html, app and lab, cli."""

    def allowed(i: Import) -> bool:
        source, target = top(i.source), top(i.target)
        return source == target or target in ABOVE.get(source, LIBRARY)

    return [i for i in found if not allowed(i)]


def private_imports(found: Iterable[Import]) -> list[Import]:
    """Imports of a private name or module of another package."""

    def private(i: Import) -> bool:
        return any(re.match(r"_(?!_)", part) for part in (*i.target.split("."), i.name))

    return [i for i in found if package(i.source) != package(i.target) and private(i)]


def old_paths(found: Iterable[Import]) -> list[Import]:
    """Imports that go through a path of an older version."""
    return [i for i in found if i.how == "old path"]


@cache
def _private_names(where: str, in_classes: bool) -> set[str]:
    """Private names that a package defines: in its classes (methods, fields, what is assigned to `self`), or all."""
    names = set()
    for module in modules():
        if module not in EXEMPT and package(module) == where:
            whole = syntax(module)
            trees = [c for c in ast.walk(whole) if isinstance(c, ast.ClassDef)] if in_classes else [whole]
            for node in (n for tree in trees for n in ast.walk(tree)):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names.add(node.name)
                elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return {name for name in names if re.match(r"_(?!_)", name)}


def _own(node: ast.AST) -> bool:
    """Whether an expression is `self`, `cls` or `super()`."""
    return _dotted(node.func if isinstance(node, ast.Call) else node) in ("self", "cls", "super")


def _attributes(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Attributes of everything but self and cls, also those taken by getattr."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not _own(node.value):
            yield node.attr, node.lineno
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "setattr", "hasattr", "attrgetter", "methodcaller")
        ):
            yield from ((str(a.value), node.lineno) for a in node.args if isinstance(a, ast.Constant))


def private_uses(packages: Iterable[str] = ("app", "lab", "cli")) -> list[PrivateUse]:
    """Private attributes and methods of other packages' objects that the applications use."""
    everywhere = {package(m) for m in modules() if m not in EXEMPT}

    def foreign(attribute: str, where: str) -> bool:
        others = (_private_names(other, False) for other in everywhere - {where})
        return attribute not in _private_names(where, True) and any(attribute in names for names in others)

    return sorted(
        PrivateUse(module, attribute, line)
        for module in modules()
        if module not in EXEMPT and top(module) in set(packages)
        for attribute, line in _attributes(syntax(module))
        if foreign(attribute, package(module))
    )


def in_order(edges: dict[str, set[str]]) -> list[str]:
    """Packages so that each stands after all it imports (where there is a cycle, as far as that goes)."""
    order: list[str] = []
    rest = dict(edges)
    while rest:
        free = sorted(p for p, targets in rest.items() if not targets & (rest.keys() - {p}))
        order += free or sorted(rest)[:1]
        rest = {p: t for p, t in rest.items() if p not in order}
    return order


def _title(title: str, rows: Iterable[object]) -> list[str]:
    lines = [f"  {row}" for row in rows]
    return ["", f"{title}:", *lines] if lines else []


def _cycle_lines(edges: dict[str, set[str]]) -> list[str]:
    """A cycle, and the imports of its thinnest step: those that are to be taken out."""
    closed = cycle(edges)
    steps = [[i for i in imports() if (package(i.source), package(i.target)) == step] for step in pairwise(closed)]
    return _title(f"a cycle, {' -> '.join(closed)}", min(steps, key=len)) if closed else []


def main() -> int:
    edges = graph()
    for name in in_order(edges):
        files = sum(package(m) == name for m in modules() if m not in EXEMPT)
        print(f"{name:16} {files:3} files  imports {', '.join(sorted(edges[name])) or 'nothing'}")
    wrong = [
        *_title("against the layers", forbidden(imports())),
        *_cycle_lines(edges),
        *_title("private names of another package", private_imports(imports())),
        *_title("old paths", old_paths(imports())),
        *_title("private attributes used by applications", private_uses()),
    ]
    print("\n".join(wrong) or "\nno import is against the rules")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
