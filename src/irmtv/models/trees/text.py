"""LightGBM's text form of a model, reduced to its trees and checked number by number before LightGBM reads it.

LightGBM trusts what it parses: a child that does not exist, or a list that is too short, is read from wherever memory
happens to be. So nothing of a file reaches it but trees whose every number is in its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

HEADER = (
    "version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "feature_names",
    "feature_infos", "tree_sizes",
)  # fmt: skip
PER_SPLIT = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
PER_SPLIT_TOLD = ("internal_value", "internal_weight", "internal_count")
PER_LEAF = ("leaf_value", "leaf_weight", "leaf_count")
MOST_LEAVES = 131072
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|-?inf|-?nan")
INTEGER = re.compile(r"-?\d{1,10}")
INFO = re.compile(r"none|\[[-+.\deinf]+:[-+.\deinf]+\]|-?\d+(:-?\d+)*")


def trees_alone(text: str) -> str:
    """A booster's text without what only training needs: parameters and importances."""
    trees, _, _ = text.partition("end of trees")
    return trees + "end of trees\n"


def check_trees(text: str, n_features: int, n_outputs: int) -> int:
    """Raise unless these are whole trees over `n_features` columns; how many rounds they make.

    Raises
    ------
    ValueError
        Says what is wrong, and in which tree.
    """
    if not text.isascii() or not text.endswith("\n\n\nend of trees\n"):
        raise ValueError("its trees must be text that ends in 'end of trees'")
    head, *blocks = text.removesuffix("\n\n\nend of trees\n").split("\n\n\n")
    header, _, first = head.partition("\n\n")
    if not first:
        raise ValueError("it has no tree")
    blocks = [first, *blocks]
    _check_header(header, n_features, n_outputs, [len(b) + 3 for b in blocks])  # with the empty lines after each
    if len(blocks) % n_outputs:
        raise ValueError(f"it must have {n_outputs} trees per round. Got {len(blocks)} trees")
    for i, block in enumerate(blocks):
        try:
            _check_tree(block, i, n_features)
        except ValueError as error:
            raise ValueError(f"tree {i}: {error}") from error
    return len(blocks) // n_outputs


def _fields(lines: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines]
    if [name for name, _, _ in pairs] != list(names) or not all(sign for _, sign, _ in pairs):
        raise ValueError(f"it must have the lines {list(names)}. Got {[name for name, _, _ in pairs][:20]}")
    return {name: value for name, _, value in pairs}


def _check_header(header: str, n_features: int, n_outputs: int, sizes: Sequence[int]) -> None:
    first, *lines = header.split("\n")
    of = _fields(lines, HEADER)
    expected = {
        "version": "v4",
        "num_class": str(n_outputs),
        "num_tree_per_iteration": str(n_outputs),
        "label_index": "0",
        "max_feature_idx": str(n_features - 1),
        "feature_names": " ".join(f"Column_{j}" for j in range(n_features)),
        "tree_sizes": " ".join(map(str, sizes)),
    }
    wrong = [name for name, value in expected.items() if of[name] != value]
    infos = of["feature_infos"].split(" ")
    if first != "tree" or wrong or len(infos) != n_features or not all(INFO.fullmatch(info) for info in infos):
        raise ValueError(f"its header must tell of {n_features} features and {n_outputs} outputs; wrong: {wrong}")


def _check_tree(block: str, number: int, n_features: int) -> None:
    lines = block.split("\n")
    with_categories = any(line.startswith("cat_threshold=") for line in lines)
    told = ("cat_boundaries", "cat_threshold") if with_categories else ()
    names = ("Tree", "num_leaves", "num_cat", *PER_SPLIT, *PER_LEAF, *PER_SPLIT_TOLD, *told, "is_linear", "shrinkage")
    of = _fields(lines, names)
    leaves, n_cat = _integers(of["num_leaves"], 1, 1, MOST_LEAVES)[0], _integers(of["num_cat"], 1, 0, MOST_LEAVES)[0]
    if of["Tree"] != str(number) or of["is_linear"] != "0" or with_categories != (n_cat > 0):
        raise ValueError("it is another kind of tree")
    splits = leaves - 1
    _integers(of["split_feature"], splits, 0, n_features - 1)
    _numbers(of["split_gain"], splits, finite=False)
    thresholds = _numbers(of["threshold"], splits, finite=False)
    decisions = _integers(of["decision_type"], splits, 0, 15)
    children = [_integers(of[side], splits, -leaves, splits - 1) for side in ("left_child", "right_child")]
    if sorted(children[0] + children[1]) != sorted([*range(-leaves, 0), *range(1, splits)] if splits else []):
        raise ValueError("every split and leaf must have one place in it")
    if any(0 <= child <= parent for side in children for parent, child in enumerate(side)):
        raise ValueError("a split must come before those below it")
    _numbers(of["leaf_value"], leaves, finite=True)
    _numbers(of["shrinkage"], 1, finite=True)
    if splits:
        _numbers(of["leaf_weight"], leaves, finite=False)
        _integers(of["leaf_count"], leaves, 0, 2**31 - 1)
    for name in PER_SPLIT_TOLD:
        _numbers(of[name], splits, finite=False)
    _check_categories(of if with_categories else {}, n_cat, thresholds, decisions)


def _check_categories(of: dict[str, str], n_cat: int, thresholds: Sequence[float], decisions: Sequence[int]) -> None:
    places = [t for t, d in zip(thresholds, decisions, strict=True) if d & 1]  # splits on categories
    if any(not (t == int(t) and 0 <= t < n_cat) for t in places if math.isfinite(t)) or not all(
        map(math.isfinite, places)
    ):
        raise ValueError("a split on categories must name one of its sets")
    if not of:
        return
    bounds = _integers(of["cat_boundaries"], n_cat + 1, 0, 2**31 - 1)
    if bounds[0] != 0 or any(b <= a for a, b in pairwise(bounds)):
        raise ValueError("its sets of categories must follow one another")
    _integers(of["cat_threshold"], bounds[-1], 0, 2**32 - 1)


def _numbers(text: str, n: int, finite: bool) -> list[float]:
    words = text.split(" ") if text else []
    if len(words) != n or not all(NUMBER.fullmatch(word) for word in words):
        raise ValueError(f"it must have {n} numbers where it has {text[:60]!r}")
    found = [float(word) for word in words]
    if finite and not all(map(math.isfinite, found)):
        raise ValueError("its values must be finite")
    return found


def _integers(text: str, n: int, least: int, most: int) -> list[int]:
    words = text.split(" ") if text else []
    good = len(words) == n and all(INTEGER.fullmatch(word) and least <= int(word) <= most for word in words)
    if not good:
        raise ValueError(f"it must have {n} whole numbers from {least} to {most} where it has {text[:60]!r}")
    return [int(word) for word in words]
