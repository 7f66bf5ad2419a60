"""Python values <-> JSON, exactly: values that JSON lacks carry a tag, and types without a tag are refused.

Labels of classes and environments are what users wrote: integers, floats, strings, booleans, dates, None or
tuples of these. JSON would return a tuple as a list, True as a key as "true" and NaN as no JSON at all. A tag is
an object with the key "$", such as {"$": "tuple", "items": [1, "a"]}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from irmtv.persistence.errors import ModelFileError, reading

__all__ = ["decode", "decode_array", "dump_json", "encode", "encode_array", "parse_json"]

TAG = "$"
_TEXT_LIMIT = 2**30  # bytes: numpy pads every string to the longest, so a small file could ask for terabytes


# --- Python -> JSON ---------------------------------------------------------------------------------------


def encode(value: Any, where: str) -> Any:
    """A value as JSON with tags; `where` is what an error calls it.

    >>> encode({"sites": ("a", 1)}, "meta")
    {'sites': {'$': 'tuple', 'items': ['a', 1]}}
    """
    try:
        return _encode(value, where)
    except RecursionError as error:
        raise ModelFileError(f"{where} must not contain itself. Got a cycle or very deep nesting.") from error


def _encode(value: Any, where: str) -> Any:
    kind = type(value)  # exact types: a subclass (an Enum of integers) would come back as something else
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        if value.bit_length() > 4096:  # Python itself refuses to read numbers of more than 4300 digits
            raise ModelFileError(f"{where} must be an integer of at most 4096 bits. Got {value.bit_length()} bits.")
        return value
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}
    if kind is list:
        return [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if kind is tuple:
        return {TAG: "tuple", "items": [_encode(v, f"{where}[{i}]") for i, v in enumerate(value)]}
    if kind is dict:
        if all(type(k) is str for k in value) and TAG not in value:
            return {k: _encode(v, f"{where}[{k!r}]") for k, v in value.items()}
        pairs = [[_encode(k, f"a key of {where}"), _encode(v, f"{where}[{k!r}]")] for k, v in value.items()]
        return {TAG: "dict", "items": pairs}
    if kind in (datetime, pd.Timestamp) and (zoned := _zone(value.tzinfo)) is not _UNKNOWN:
        if kind is datetime:
            naive = value.replace(tzinfo=None, fold=0).isoformat()
            return {TAG: "datetime", "value": naive, "fold": value.fold, "zone": zoned}
        if not 1 <= value.year <= 9999:  # beyond, pandas neither prints it nor converts its zone
            raise ModelFileError(f"{where} must be a time in the years 1 to 9999. Got the year {value.year}.")
        instant = value.tz_convert(None) if value.tzinfo else value  # the same instant, in UTC
        return {TAG: "timestamp", "value": int(instant.asm8.astype("int64")), "unit": value.unit, "zone": zoned}
    if kind is date:
        return {TAG: "date", "value": value.isoformat()}
    if isinstance(value, np.generic) and kind in _NUMPY.values():
        return {TAG: "numpy", "type": kind.__name__, "value": _encode(value.item(), where)}
    if kind is np.datetime64:
        return {TAG: "numpy", "type": value.dtype.str, "value": int(value.astype("int64"))}
    raise ModelFileError(_refusal(value, where))


def _refusal(value: Any, where: str) -> str:
    kind = type(value)
    try:
        shown = repr(value)
    except Exception:  # what a foreign class does in its repr must not hide the message
        shown = "a value"
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    hint = "convert it to one of these"
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        hint = "give arrays and tensors as `arrays`"
    return (
        f"{where} must be None, a bool, int, float, str, date, datetime, Timestamp, numpy scalar, or a list, tuple or "
        f"dict of these, since a model file holds data only. Got {shown} of type "
        f"{kind.__module__}.{kind.__qualname__}; {hint}."
    )


_UNKNOWN = object()


def _zone(tz: tzinfo | None) -> Any:
    """A time zone as its name, or as seconds from UTC where it is a fixed offset."""
    if tz is None:
        return None
    if type(tz) is timezone:
        return tz.utcoffset(None).total_seconds()
    name = getattr(tz, "key", None) or getattr(tz, "zone", None)  # zoneinfo's and pytz's word for it
    return name if isinstance(name, str) else _UNKNOWN


_NUMPY = {
    t.__name__: t
    for t in (
        *(np.bool_, np.str_, np.float16, np.float32, np.float64),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    )
}


# --- JSON -> Python ---------------------------------------------------------------------------------------


def decode(value: Any, where: str) -> Any:
    """The value that `encode` was given.

    >>> decode({"sites": {"$": "tuple", "items": ["a", 1]}}, "meta")
    {'sites': ('a', 1)}
    """
    with reading(where):
        return _decode(value)


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {k: _decode(v) for k, v in value.items()}
    if value[TAG] not in _TAGS:
        raise ValueError(f"unknown tag {value[TAG]!r}")
    return _TAGS[value[TAG]](value)


def _datetime(value: dict[str, Any]) -> datetime:
    naive = datetime.fromisoformat(value["value"])
    return naive.replace(tzinfo=_tz(value["zone"]), fold=value["fold"])


def _timestamp(value: dict[str, Any]) -> pd.Timestamp:
    if value["unit"] not in ("s", "ms", "us", "ns"):
        raise ValueError(f"unknown unit {value['unit']!r}")
    instant = pd.Timestamp(_time(value["value"], f"datetime64[{value['unit']}]"))
    if not 1 <= instant.year <= 9999:
        raise ValueError(f"a time in the year {instant.year}")
    tz = _tz(value["zone"])
    return instant if tz is None else instant.tz_localize("UTC").tz_convert(tz)


def _numpy(value: dict[str, Any]) -> Any:
    if value["type"] in _NUMPY:
        return _NUMPY[value["type"]](_decode(value["value"]))
    return _time(value["value"], value["type"])


def _time(value: int, dtype: str) -> Any:
    return np.array(value, dtype="int64").view(_time_dtype(dtype))[()]


def _tz(zone: Any) -> tzinfo | None:
    if zone is None:
        return None
    return ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))


_TAGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda v: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[v["value"]],
    "tuple": lambda v: tuple(_decode(item) for item in v["items"]),
    "dict": lambda v: {_decode(key): _decode(item) for key, item in v["items"]},
    "date": lambda v: date.fromisoformat(v["value"]),
    "datetime": _datetime,
    "timestamp": _timestamp,
    "numpy": _numpy,
}


# --- arrays that safetensors cannot hold ------------------------------------------------------------------


def encode_array(array: NDArray[Any], where: str) -> dict[str, Any]:
    """An array of strings, of Python objects or of times, as JSON."""
    kind = array.dtype.kind
    if kind in "mM":
        values = array.astype("int64").ravel().tolist()
        return {"dtype": array.dtype.newbyteorder("=").str, "shape": list(array.shape), "values": values}
    if array.nbytes > _TEXT_LIMIT:
        raise ModelFileError(f"{where} must be at most {_TEXT_LIMIT} bytes of labels. Got {array.nbytes}.")
    values = [encode(v, f"{where}[{i}]") for i, v in enumerate(array.ravel().tolist())]
    return {"dtype": "str" if kind == "U" else "object", "shape": list(array.shape), "values": values}


def decode_array(entry: Any, where: str) -> NDArray[Any]:
    """The array that `encode_array` was given; strings as wide as the longest needs."""
    with reading(where):
        dtype, shape, values = entry["dtype"], tuple(entry["shape"]), entry["values"]
        if min(shape, default=0) < 0:  # which numpy would take for "as many as there are"
            raise ValueError(f"shape {shape}")
        if dtype == "object":
            array = np.empty(len(values), dtype=object)
            for i, value in enumerate(values):
                array[i] = decode(value, f"{where}[{i}]")
        elif dtype == "str":
            if not all(isinstance(v, str) for v in values):
                raise ValueError("an array of strings holds something else")
            if 4 * len(values) * max(map(len, values), default=0) > _TEXT_LIMIT:
                raise ValueError("strings of absurd size")
            array = np.array(values, dtype=str)
        else:
            array = np.array(values, dtype="int64").view(_time_dtype(dtype))
        return array.reshape(shape)


def _time_dtype(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.kind not in "mM":
        raise ValueError(f"{text!r} is not a type of times")
    return dtype


# --- JSON -------------------------------------------------------------------------------------------------


def dump_json(value: Any) -> bytes:
    """ASCII without spaces; the same value gives the same bytes."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def parse_json(data: bytes, where: str) -> Any:
    """JSON by the letter: UTF-8, no NaN, no key twice."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{where} is not JSON as irmtv writes it ({type(error).__name__}: {error}).") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key stands twice")
    return unique
