"""The tree of nodes that skops writes: how it is shared, how deep and how large it is, checked before it is built.

skops walks a shared node again at every reference: 60 levels of two references each are 2**60 steps. So nodes are
shared as the writer in `parts` shares them and in no other way, and what a tree unfolds to is bounded by what the file
has. TableVectorizers unfold to 4 to 5 times their nodes, at a depth of 28.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["SHARED", "check_tree", "is_node"]

SHARED = ("ObjectNode", "NdArrayNode")  # what is written once however often it is reached
MAX_DEPTH = 200
_FREE_NODES, _UNFOLDED_PER_NODE = 100_000, 20
_FREE_BYTES, _BYTES_PER_BYTE = 2**27, 8  # of arrays: equal ones are stored once, and read as often as they are used


def is_node(value: Mapping[str, Any]) -> bool:
    """Whether skops takes it for a node: anything else is a mapping of names to nodes."""
    return isinstance(value.get("__loader__"), str)


def check_tree(tree: Any, file_sizes: Mapping[str, int]) -> None:
    """Raise a ValueError unless a tree is shared, deep and large as one that irmtv writes. Takes linear time.

    `file_sizes`: bytes of each array file beside the tree.
    """
    walk = _Walk(file_sizes)
    unfolded = walk.size(tree, 0)
    if unfolded > _FREE_NODES + _UNFOLDED_PER_NODE * walk.nodes:
        raise ValueError(f"it has {walk.nodes} nodes, which unfold to more than {_UNFOLDED_PER_NODE} times as many")
    stored = sum(file_sizes.values())
    if walk.bytes > _FREE_BYTES + _BYTES_PER_BYTE * stored:
        raise ValueError(f"it has {stored} bytes of arrays, which unfold to {walk.bytes}")


class _Walk:
    """One way through a tree, each node once."""

    def __init__(self, file_sizes: Mapping[str, int]) -> None:
        self.nodes = 0
        self.bytes = 0  # of arrays, each as often as a node reads it
        self._file_sizes = file_sizes
        self._sizes: dict[int, int | None] = {}  # by id: what a shared node unfolds to; None inside of it

    def size(self, value: Any, depth: int) -> int:
        """The number of nodes that a value unfolds to."""
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested too deeply, more than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return sum(self.size(item, depth + 1) for item in value)
        if not isinstance(value, dict):
            return 0
        if not is_node(value):
            if not isinstance(value.get("__id__", {}), dict):  # skops would take it for a reference
                raise ValueError("an id stands outside of a node")
            return sum(self.size(item, depth + 1) for item in value.values())
        if value["__loader__"] == "CachedNode":
            return self._referred(value.get("__id__"))
        return self._node_size(value, depth)

    def _referred(self, number: Any) -> int:
        size = self._sizes.get(number) if type(number) is int else None
        if size is None:
            raise ValueError(f"a node refers to {number!r}, which is no node before it")
        return size

    def _node_size(self, node: Mapping[str, Any], depth: int) -> int:
        self.nodes += 1
        number = node.get("__id__")
        if "__id__" in node:
            if node["__loader__"] not in SHARED or type(number) is not int or number < 1 or number in self._sizes:
                raise ValueError(f"a {node['__loader__']} has the id {number!r}, which irmtv does not give it")
            self._sizes[number] = None
        if node["__loader__"] == "JsonNode" and not _is_scalar(node.get("content")):
            raise ValueError("a JsonNode holds something other than a number, a text, a boolean or None")
        if isinstance(file := node.get("file"), str):
            self.bytes += self._file_sizes.get(file, 0)
        size = 1 + sum(self.size(item, depth + 1) for item in node.values())
        if number is not None:
            self._sizes[number] = size
        return size


def _is_scalar(text: Any) -> bool:
    return isinstance(text, str) and not text.lstrip().startswith(("[", "{"))
