"""Values, trees of JSON and bytes, changed by a seed: what the fuzzers of model files, tables and specs share."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

Rng = np.random.Generator
T = TypeVar("T")

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 63, 255, 1000, 10**6, 2**20 + 1, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63, 2**64, -(10**30)),
    *(0.0, -0.0, 0.5, 1.5, 1e-310, 5e-324, 1e-38, 1e38, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
)
TEXTS = (
    *("", " ", "\0", "a", "0", "-1", "nan", "1e999", "a" * 300, "9" * 5000, "x" * 100_000, "\ud800", "é\u0301"),
    *("/etc/hostname", "../../../etc/hostname", "dateutil//etc/hostname", "file:///etc/hostname", "/dev/zero", "~"),
    *("{0.__class__}", "{:>999999999}", "(a+)+b", "(?P<x>a)(?P=x)", "%s%n", "__class__", "__reduce__", "transform"),
    *("\x1b[31mred", "\u202e", "<script>alert(1)</script>", "a\nb\tc", "filename", "file", "Europe/Oslo", "numpy"),
    *("datetime64[ns]", ",i4", "M8[s]", "float128", "object", "passthrough", "drop", "deprecated", "mean", "auto"),
)


def one(rng: Rng, choices: Sequence[T]) -> T:
    """One of these; numpy's own choice makes arrays of them."""
    return choices[int(rng.integers(len(choices)))]


def odd(rng: Rng) -> Any:
    """A value that nobody expects."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: one(rng, NUMBERS),
        lambda: one(rng, TEXTS),
        lambda: one(
            rng, (None, True, False, [], {}, [[]], {"$": "tuple", "items": []}, {"$": "float", "value": "nan"})
        ),
        lambda: [one(rng, NUMBERS) for _ in range(int(rng.integers(1, 5)))],
        lambda: {one(rng, TEXTS[:10]): odd(rng)},
        lambda: nested(one(rng, ("[", "{")), one(rng, (3, 50, 150, 600))),
    )
    return one(rng, kinds)()


def nested(kind: str, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "[" else {"a": value}
    return value


def near(value: Any, rng: Rng) -> Any:
    """A value of the same type, a little different."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return one(rng, (value + 1, value - 1, -value, value * 2, value * 1000, value << 40, float(value)))
    if isinstance(value, float):
        return one(rng, (-value, value * 1e30, value * 1e-30, value + 1, value * 1e300, int(min(1e9, abs(value)))))
    if isinstance(value, str):
        return text_changed(value, rng)
    return value


def text_changed(text: str, rng: Rng) -> str:
    if not text or rng.random() < 0.2:
        return one(rng, TEXTS)
    numbers = _numbers_in(text)
    if numbers and rng.random() < 0.7:  # the trees of a booster are numbers in a text
        start, end = one(rng, numbers)
        return text[:start] + str(one(rng, NUMBERS)) + text[end:]
    data = changed_bytes(text.encode("utf-8", "surrogatepass"), rng)
    return data.decode("utf-8", one(rng, ("replace", "ignore")))


def _numbers_in(text: str) -> list[tuple[int, int]]:
    found, start = [], None
    for i, sign in enumerate(text[:20_000] + " "):
        if sign.isascii() and (sign.isdigit() or (sign in ".-" and start is None)):
            start = i if start is None else start
        elif start is not None:
            found.append((start, i))
            start = None
    return found


# --- trees of JSON ----------------------------------------------------------------------------------------


def changed_tree(tree: Any, rng: Rng, times: int) -> Any:
    """The tree, changed in some places; it is changed itself where it can be."""
    box = {"": tree}
    for _ in range(times):
        if "" not in box:  # its root was removed
            break
        every = _places(box)
        container, key = one(rng, every) if rng.random() < 0.5 else _walked(box, rng)
        change = one(rng, (_replace, _replace, _nudge, _nudge, _remove, _repeat, _swap, _copy, _wrap))
        change(container, key, every, rng)
    return box.get("")


Place = tuple[Any, Any]  # a dict or list, and a key or position in it


def _places(box: Any) -> list[Place]:
    """Every place in the tree, its root too."""
    found: list[Place] = []
    waiting = [box]
    while waiting and len(found) < 100_000:
        value = waiting.pop()
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            found.append((value, key))
            if isinstance(value[key], (dict, list)):
                waiting.append(value[key])
    return found


def _walked(box: Any, rng: Rng) -> Place:
    """A place near the root rather than in a long list."""
    container, key = box, ""
    while isinstance(inside := container[key], (dict, list)) and inside and rng.random() < 0.8:
        container, key = inside, one(rng, list(inside) if isinstance(inside, dict) else range(len(inside)))
    return container, key


def _replace(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    container[key] = odd(rng)


def _nudge(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    container[key] = near(container[key], rng)


def _remove(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    del container[key]


def _repeat(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    value = container[key]
    if isinstance(container, list):
        container[key:key] = [value] * one(rng, (1, 2, 100))
    else:
        container[one(rng, TEXTS)] = value


def _swap(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    other, place = one(rng, every)
    value = container[key]
    if not _contains(value, other) and not _contains(other[place], container):
        container[key], other[place] = other[place], value


def _copy(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    other, place = one(rng, every)
    if not _contains(container[key], other):
        other[place] = json.loads(json.dumps(container[key]))


def _contains(tree: Any, part: Any) -> bool:
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if value is part:
            return True
        if isinstance(value, (dict, list)):
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return False


def _wrap(container: Any, key: Any, every: list[Place], rng: Rng) -> None:
    value = container[key]
    container[key] = one(rng, ([value], {"a": value}, [value, value], nested("[", one(rng, (30, 300)))))


# --- bytes ------------------------------------------------------------------------------------------------


def changed_bytes(data: bytes, rng: Rng) -> bytes:
    """Some bytes flipped, dropped, doubled, cut off, or numbers among them set to extremes."""
    at = int(rng.integers(0, len(data) + 1))
    end = min(len(data), at + int(rng.integers(1, 40)))
    kind = int(rng.integers(0, 7))
    if kind == 0 and data:
        return flipped(data, rng, int(rng.integers(1, 8)))
    if kind == 1:
        return data[:at] + data[end:]
    if kind == 2:
        return data[:at] + data[at:end] * one(rng, (2, 3, 50)) + data[end:]
    if kind == 3:
        return data[: max(1, at)] if rng.random() < 0.5 else data[at:]
    if kind == 4:
        return data[:at] + rng.integers(0, 256, int(rng.integers(1, 20)), dtype=np.uint8).tobytes() + data[at:]
    if kind == 5:
        return data[:at] + one(rng, TEXTS).encode("utf-8", "surrogatepass") + data[end:]
    return with_extremes(data, rng)


def flipped(data: bytes, rng: Rng, n: int) -> bytes:
    spoilt = bytearray(data)
    for at in rng.integers(0, len(data), n):
        spoilt[at] ^= 1 << rng.integers(0, 8)
    return bytes(spoilt)


def with_extremes(data: bytes, rng: Rng) -> bytes:
    """Some of the numbers of an array's bytes set to what arithmetic does not like."""
    spoilt = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        code = one(rng, ("<d", "<f", "<q", "<i"))
        size = struct.calcsize(code)
        if len(data) < size:
            continue
        at = int(rng.integers(0, len(data) // size)) * size + (len(data) % size if rng.random() < 0.8 else 0)
        values = (float("nan"), float("inf"), 1e38, 5e-324, -1.0, 0.0) if code in ("<d", "<f") else (-1, 2**31 - 1, 0)
        struct.pack_into(code, spoilt, min(at, len(data) - size), one(rng, values))
    return bytes(spoilt)
