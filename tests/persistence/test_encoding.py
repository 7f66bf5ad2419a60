"""Labels and settings as JSON: exact round trips, and clear refusals."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from irmtv.persistence import ModelFileError
from irmtv.persistence.encoding import decode, decode_array, dump_json, encode, encode_array, parse_json


class Colour(enum.IntEnum):
    RED = 1


def through_json(value):
    return decode(parse_json(dump_json(encode(value, "meta")), "meta"), "meta")


def same(a, b):
    """Equal in value and in type, at every depth; NaN equals NaN, and 0.0 differs from -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(p, q) for x, y in zip(a.items(), b.items(), strict=True) for p, q in zip(x, y, strict=True)
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    if isinstance(a, (float, np.floating)):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


PARIS = ZoneInfo("Europe/Paris")
VALUES = [
    *(None, True, False, 0, 1, -7, 2**70, 0.1, -0.0, 1e-320, math.pi, math.nan, math.inf, -math.inf),
    *("", "a", "é\U0001f600", "\ud800", "nan", "$"),
    *([], (), {}, [1, [2, (3,)]], ("a", 1, None), {"a": {"b": (1,)}}),
    *({"$": "tuple", "items": [1]}, {1: "a", "1": 2}, {(1, "a"): 1.5, None: 2}, {False: 0}),
    *(date(2020, 2, 29), datetime(2020, 2, 29, 12, 0, 0, 123456), datetime(1, 1, 1)),
    datetime(2020, 1, 1, tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=PARIS),
    *(pd.Timestamp("2020-01-01 00:00:00.123456789"), pd.Timestamp("1500-01-01").as_unit("s")),
    *(pd.Timestamp("2020-06-01", tz="Europe/Paris"), pd.Timestamp("2020-06-01", tz="UTC")),
    pd.Timestamp("2020-06-01", tz="+05:30"),
    *(np.int64(3), np.uint8(255), np.float32(0.1), np.float64("nan"), np.bool_(True), np.str_("x")),
    *(np.datetime64("2020-01-01"), np.datetime64("2020-01-01T01:02:03.000000004"), np.float16(0.1)),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(value):
    back = through_json(value)
    assert same(back, value)
    if isinstance(value, datetime):
        assert back.utcoffset() == value.utcoffset() and back.fold == value.fold
        assert str(back.tzinfo) == str(value.tzinfo)
    if isinstance(value, pd.Timestamp):
        assert back.unit == value.unit
    if isinstance(value, np.datetime64):
        assert back.dtype == value.dtype


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.datetimes(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(plain)
def test_any_plain_value_comes_back_as_it_was(value):
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Colour.RED, "Colour"),
        (Decimal("1.5"), "decimal.Decimal"),
        (b"bytes", "builtins.bytes"),
        (1j, "builtins.complex"),
        ({1}, "builtins.set"),
        (object(), "builtins.object"),
        (pd.NaT, "NaTType"),
        (pd.Period("2020"), "Period"),
        (np.longdouble(1), "longdouble"),
        (np.arange(3), "give arrays and tensors as `arrays`"),
        (torch.zeros(2), "give arrays and tensors as `arrays`"),
        (lambda: 1, "builtins.function"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_another_type_is_refused_by_name(value, named):
    with pytest.raises(ModelFileError, match=r"meta\['deep'\]\[1\] must be None, a bool, int") as raised:
        encode({"deep": [0, value]}, "meta")
    assert named in str(raised.value)


def test_a_repr_that_fails_does_not_hide_the_message():
    class Silent:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(ModelFileError, match=r"Got a value of type .*Silent"):
        encode(Silent(), "meta")


def test_a_cycle_and_an_absurd_integer_are_refused():
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ModelFileError, match="must not contain itself"):
        encode(cycle, "meta")
    with pytest.raises(ModelFileError, match=r"at most 4096 bits\. Got 5001 bits"):
        encode(2**5000, "meta")
    assert through_json(2**4096 - 1) == 2**4096 - 1


ARRAYS = [
    np.array(["b", "ä", ""]),
    np.array([["a", "bb"], ["c", "d"]]),
    np.array([], dtype="<U3"),
    np.array([1, "a", None, True, 2.5, ("x", 1)], dtype=object),
    np.array([[1, None], ["a", 2]], dtype=object),
    np.array("one"),
    np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    np.array([["2020-01-01T00:00:00.000000001"]], dtype="datetime64[ns]"),
    np.array([1, 2], dtype="timedelta64[s]"),
    np.array([pd.Timestamp("2020-01-01", tz="UTC")], dtype=object),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}")
def test_an_array_comes_back_as_it_was(array):
    back = decode_array(parse_json(dump_json(encode_array(array, "a")), "a"), "a")
    assert back.shape == array.shape and back.dtype.kind == array.dtype.kind
    assert same(back.tolist(), array.tolist())
    if array.dtype.kind in "mM":
        assert back.dtype == array.dtype
    assert back.flags.writeable


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"dtype": "float64", "shape": [1], "values": [1]},
        {"dtype": "O", "shape": [1], "values": [1]},
        {"dtype": "str", "shape": [1], "values": [1]},
        {"dtype": "str", "shape": [3], "values": ["a"]},
        {"dtype": "str", "shape": [-2], "values": ["a"]},
        {"dtype": "object", "shape": [10**30], "values": ["a"]},
        {"dtype": "object", "shape": [1], "values": [{"$": "eval", "value": "1"}]},
        {"dtype": "<M8[ns]", "shape": [1], "values": [2**70]},
        {"dtype": "<M8[parsec]", "shape": [1], "values": [1]},
    ],
)
def test_a_wrong_array_is_one_clear_error(entry):
    with pytest.raises(ModelFileError, match="is not as irmtv writes it"):
        decode_array(entry, "a")


def test_strings_that_would_be_huge_once_padded_are_refused_before_they_are():
    values = ["a"] * 100_000 + ["b" * 100_000]  # 40 GB as numpy holds it
    with pytest.raises(ModelFileError, match="strings of absurd size"):
        decode_array({"dtype": "str", "shape": [len(values)], "values": values}, "a")
    with pytest.raises(ModelFileError, match=r"a must be at most [0-9]+ bytes of labels"):
        encode_array(np.broadcast_to(np.array("b" * 100_000), (len(values),)), "a")


@pytest.mark.parametrize(
    "value",
    [
        {"$": "unknown"},
        {"$": ["list"]},
        {"$": "tuple"},
        {"$": "float", "value": "1"},
        {"$": "datetime", "value": "yesterday", "fold": 0, "zone": None},
        {"$": "datetime", "value": "2020-01-01", "fold": 5, "zone": None},
        {"$": "datetime", "value": "2020-01-01", "fold": 0, "zone": "../../etc/passwd"},
        {"$": "datetime", "value": "2020-01-01", "fold": 0, "zone": "Europe/Atlantis"},
        {"$": "datetime", "value": "2020-01-01", "fold": 0, "zone": 1e30},
        {"$": "timestamp", "value": 1, "unit": "D", "zone": None},
        {"$": "numpy", "type": "object_", "value": 1},
        {"$": "numpy", "type": "int8", "value": 1000},
        {"$": "dict", "items": [[[], 1]]},
        {"$": "dict", "items": [[1]]},
    ],
    ids=str,
)
def test_a_wrong_tag_is_one_clear_error(value):
    with pytest.raises(ModelFileError, match="meta is not as irmtv writes it"):
        decode(value, "meta")


@pytest.mark.parametrize(
    "text",
    [b"NaN", b'{"a": Infinity}', b'{"a": 1, "a": 2}', b"{", b"", b"\xff", b"[" * 100_000, b"1" * 5000, b"{'a': 1}"],
    ids=lambda t: repr(t[:20]),
)
def test_json_is_read_by_the_letter(text):
    with pytest.raises(ModelFileError, match="x is not JSON as irmtv writes it"):
        parse_json(text, "x")


def test_json_is_ascii_without_nan():
    assert dump_json({"ä": [1, 2]}) == b'{"\\u00e4":[1,2]}'
    assert json.loads(dump_json({"ä": 1})) == {"ä": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_json(math.nan)
