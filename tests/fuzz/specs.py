"""Mutated specs, with the published results beside them: as text, and as what the text says."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.mutate import changed_bytes, changed_tree, one

PAPERS = Path(__file__).resolve().parents[2] / "papers" / "irm_tv"


def bases() -> list[Path]:
    return sorted(PAPERS.glob("*.toml"))


def any_spec(seed: int, folder: Path) -> str:
    """Write spec.toml, and the file that it compares with; what was done, in words."""
    rng = np.random.default_rng([23, seed])
    path = one(rng, bases())
    text = path.read_bytes()
    raw = tomllib.loads(text.decode())
    beside = (raw.get("published") or {}).get("file", "published.json")
    results = (PAPERS / beside).read_bytes()
    done = []
    if rng.random() < 0.25:
        results = _changed_json(results, rng)
        done.append("results")
    if not done or rng.random() < 0.5:
        if rng.random() < 0.3:
            text = changed_bytes(text, rng)
            done.append("text")
        else:
            try:
                text = toml(changed_tree(raw, rng, int(rng.geometric(0.5)))).encode("utf-8", "surrogatepass")
            except RecursionError:
                text += b"\nx = " + b"[" * 5000
            done.append("keys")
    (folder / "spec.toml").write_bytes(text)
    (folder / beside).write_bytes(results)
    return f"{path.stem}: {', '.join(done)}"


def _changed_json(data: bytes, rng: np.random.Generator) -> bytes:
    if rng.random() < 0.3:
        return changed_bytes(data, rng)
    try:
        return json.dumps(changed_tree(json.loads(data), rng, int(rng.geometric(0.5)))).encode()
    except RecursionError:
        return b"[" * 5000


def toml(tree: Any) -> str:
    """As TOML: a line per key, everything below it within the line. TOML has no null; it is left out."""
    if not isinstance(tree, dict):
        return f"value = {_inline(tree)}"
    return "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in tree.items() if value is not None)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(v) for v in value if v is not None) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)
