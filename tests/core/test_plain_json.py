"""One JSON writer: whatever holds the numbers, every reader of JSON takes them."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import torch

from irmtv.core.plain_json import finite, floats, json_text, plain_json


def test_values_of_all_libraries_become_plain():
    given = {
        1: np.int64(3),
        "tensor": torch.tensor([[1.0, math.nan]], dtype=torch.float64),
        "scalar": torch.tensor(2),
        "series": pd.Series([1.5, None]),
        "frame": pd.DataFrame({"a": [1, 2], "b": ["x", None]}),
        "missing": [pd.NA, pd.NaT, None, -math.inf],
        "range": range(2),
        "texts": np.array(["a", "b"]),
        "flag": np.True_,
    }
    expected = {
        "1": 3,
        "tensor": [[1.0, None]],
        "scalar": 2,
        "series": [1.5, None],
        "frame": [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        "missing": [None] * 4,
        "range": [0, 1],
        "texts": ["a", "b"],
        "flag": True,
    }
    assert plain_json(given) == expected
    assert json.loads(json_text(given)) == expected


def test_numbers_that_are_not_finite_are_none():
    assert [finite(v) for v in (1, np.float32(0.5), math.inf, None)] == [1.0, 0.5, None, None]
    assert floats(torch.tensor([[1.0, math.nan], [2.0, math.inf]])) == [[1.0, None], [2.0, None]]
    assert floats([]) == []


def test_it_is_text_that_people_can_read():
    assert json_text({"straße": [0.1, math.nan]}, indent=1) == '{\n "straße": [\n  0.1,\n  null\n ]\n}'
