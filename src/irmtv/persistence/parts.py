"""Fitted preprocessing <-> bytes, by skops with a fixed list of trusted types.

skops writes a tree of nodes, each with the name of its type, and reads it without pickle. Two things are added
here. First, the tree is checked, at saving and again at loading, before skops builds anything: its size and sharing by
`tree`, its types against the list in `trusted` by the walk below. What was built is checked by `state` before it is
used. Second, the same objects give the same bytes: skops' own files hold memory addresses. An object or array that the
tree reaches several times is written once, which makes the file of a fitted TableVectorizer about fifteen times
smaller.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from irmtv.core.messages import shown
from irmtv.persistence.archive import pack, unpack
from irmtv.persistence.encoding import dump_json, parse_json
from irmtv.persistence.errors import ModelFileError
from irmtv.persistence.state import check_state
from irmtv.persistence.tree import SHARED, check_tree, is_node
from irmtv.persistence.trusted import KEY_TYPES, MOVED, TRUSTED, all_names

__all__ = ["dump_parts", "load_parts"]

_SCHEMA = "schema.json"
_ENTRIES = re.compile(r"schema\.json|[0-9]{1,9}\.npy")
Node = dict[str, Any]


CYCLE = "an object that contains itself (before pandas 3.0 the time zone of a column of dates, but for UTC, is one)"


# --- saving -----------------------------------------------------------------------------------------------


def dump_parts(parts: Mapping[str, object]) -> bytes:
    """Fitted preprocessing as bytes; a ModelFileError names the part and the type that is not on the list."""
    import skops.io  # with it comes all of scikit-learn: only where it is needed

    try:
        data = skops.io.dumps({name: parts[name] for name in sorted(parts)})
    except Exception as error:  # skops asks objects of any class for their state
        name = next((name for name in parts if not _storable(parts[name])), "")
        cycle = isinstance(error, RecursionError)
        got = CYCLE if cycle else _type_to_blame(parts[name])
        raise ModelFileError(_refusal(name, got)) from error
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        schema = json.loads(archive.read(_SCHEMA))
        files = {name: archive.read(name) for name in archive.namelist() if name != _SCHEMA}
    for name, node in schema["content"].items():
        if refused := sorted(set(_refused(node))):
            raise ModelFileError(_refusal(name, shown(refused, form=str)))
        try:
            check_state(parts[name])
        except ValueError as error:
            raise ModelFileError(
                f"parts[{name!r}] cannot be stored: {error}. A model file holds no settings that could open files, run "
                "code or take forever. Change it before fit, or apply this step to the data yourself."
            ) from error
    writer = _Writer(files)
    schema = writer.rewrite(schema)
    try:
        check_tree(schema, _sizes(writer.entries))
    except ValueError as error:
        raise ModelFileError(f"parts cannot be stored: {error}. Use fewer or flatter steps.") from error
    return pack({_SCHEMA: dump_json(schema), **writer.entries})


def _sizes(entries: Mapping[str, bytes]) -> dict[str, int]:
    return {name: len(content) for name, content in entries.items() if name != _SCHEMA}


def _refusal(name: str, got: str) -> str:
    return (
        f"parts[{name!r}] must consist of scikit-learn's and skrub's preprocessing, plain data and arrays. Got {got}, "
        "which a model file cannot hold, since loading it could run code or need your module. Apply this step to the "
        "data before fit and before predict."
    )


def _storable(value: object) -> bool:
    import skops.io

    try:
        skops.io.dumps(value)
    except Exception:
        return False
    return True


def _type_to_blame(value: Any) -> str:
    """The type of the outermost object that skops cannot store."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, (list, tuple, set)):
        inside = list(value)
    elif name in TRUSTED["ObjectNode"]:
        inside = list(vars(value).values())
    return next((_type_to_blame(v) for v in inside if not _storable(v)), name)


class _Writer:
    """The tree without memory addresses: ids and file names are counted in order of appearance."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self.entries: dict[str, bytes] = {}
        self._ids: dict[int, int] = {}
        self._names: dict[bytes, str] = {}

    def rewrite(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.rewrite(v) for v in value]
        if not isinstance(value, dict):
            return value
        if not is_node(value):
            return {k: self.rewrite(v) for k, v in value.items()}
        node = {k: v for k, v in value.items() if k != "__id__"}
        if value["__loader__"] in SHARED:
            number = self._ids.get(value["__id__"])
            if number is not None:  # how skops refers to a node that was read before
                return {"__class__": None, "__module__": None, "__loader__": "CachedNode", "__id__": number}
            self._ids[value["__id__"]] = node["__id__"] = len(self._ids) + 1
        if "file" in node:
            node["file"] = self._entry(self.files[node["file"]])
            return node
        node = {k: self.rewrite(v) for k, v in node.items()}
        if node["__loader__"] == "SetNode":  # the order of a set of strings differs from one process to the next
            node["content"] = sorted(node["content"], key=dump_json)
        return node

    def _entry(self, data: bytes) -> str:
        if data not in self._names:
            self._names[data] = f"{len(self._names)}.npy"
            self.entries[self._names[data]] = data
        return self._names[data]


# --- loading ----------------------------------------------------------------------------------------------


def load_parts(data: bytes, names: Iterable[str], where: str, written_with: str = "") -> dict[str, object]:
    """The parts of these names. Nothing is built before everything is checked; nothing from the file is executed."""
    entries = unpack(data, _ENTRIES, where)
    if _SCHEMA not in entries:
        raise ModelFileError(f"{where} lacks {_SCHEMA}.")
    schema = parse_json(entries[_SCHEMA], f"{_SCHEMA} of {where}")
    try:
        check_tree(schema, _sizes(entries))
    except ValueError as error:
        raise ModelFileError(f"{where} is not as irmtv writes it: {error}. Nothing of it was loaded.") from error
    schema = _with_new_names(schema)
    if refused := sorted(set(_refused(schema))):
        raise ModelFileError(
            f"{where} contains what this irmtv does not trust: {shown(refused, form=_on_one_line)}. Nothing of it was "
            "loaded; ask where the file comes from, or upgrade irmtv if a newer one wrote it."
        )
    for name, content in entries.items():
        if name != _SCHEMA:
            _check_array(content, f"{name} of {where}")
    import skops.io

    try:
        parts = skops.io.loads(pack({**entries, _SCHEMA: dump_json(schema)}), trusted=all_names())
    except Exception as error:  # set-states of other versions of scikit-learn and skrub fail in their own ways
        raise ModelFileError(
            f"{where} cannot be rebuilt with the packages installed here ({type(error).__name__}: {error})."
            + (f" It was written with {written_with}." if written_with else "")
        ) from error
    try:
        check_state(parts)
    except Exception as error:  # what is built may have any state
        raise ModelFileError(
            f"{where} has a setting that this irmtv does not trust: {error}. Nothing of it was used; ask where the "
            "file comes from."
        ) from error
    expected = set(names)
    if not isinstance(parts, dict) or set(parts) != expected:
        got = shown(sorted(map(str, parts)) if isinstance(parts, dict) else [type(parts).__name__])
        raise ModelFileError(f"{where} must contain the parts {shown(sorted(expected))}. Got {got}.")
    return {str(name): part for name, part in parts.items()}


def _on_one_line(name: str) -> str:
    """A name from a file, line ends and tabs in it written out."""
    return repr(name)[1:-1]


def _with_new_names(tree: Any) -> Any:
    """The tree with classes of irmtv under the modules that have them now; old files name old modules."""
    if isinstance(tree, list):
        return [_with_new_names(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    renamed = {name: _with_new_names(value) for name, value in tree.items()}
    if is_node(tree) and isinstance(tree.get("__module__"), str):
        renamed["__module__"] = MOVED.get(tree["__module__"], tree["__module__"])
    return renamed


def _refused(tree: Any) -> Iterator[str]:
    """The types in a tree that are not trusted. Every mapping at any depth is looked at, so nothing can hide."""
    if isinstance(tree, list):
        for value in tree:
            yield from _refused(value)
    if not isinstance(tree, dict):
        return
    if is_node(tree) and tree["__loader__"] != "CachedNode":  # which names nothing: it points to a checked node
        name, loader = f"{tree.get('__module__')}.{tree.get('__class__')}", tree["__loader__"]
        if name not in TRUSTED.get(loader, ()):
            known = any(name in names for names in TRUSTED.values())
            yield f"{name} (as {loader})" if known else name
        if loader == "DictNode":
            for key in _key_types(tree):
                if key not in KEY_TYPES:
                    yield f"a dict with keys of type {key}"
    for value in tree.values():
        yield from _refused(value)


def _key_types(node: Node) -> Iterator[str]:
    listed = node.get("key_types")
    keys = listed.get("content") if isinstance(listed, dict) else None
    for key in keys if isinstance(keys, list) else [{}]:
        yield f"{key.get('__module__')}.{key.get('__class__')}" if isinstance(key, dict) else "unknown"


def _check_array(data: bytes, where: str) -> None:
    """The header of a numpy file declares what follows it, and no objects."""
    stream = io.BytesIO(data)
    try:
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
        declared = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or declared != len(data) - stream.tell():
            raise ValueError(f"declares an array of shape {shape} and type {dtype}")
    except Exception as error:  # numpy parses the header as Python: TokenError, SyntaxError, ...
        raise ModelFileError(f"{where} is not a numpy array as irmtv writes it ({error}).") from error
