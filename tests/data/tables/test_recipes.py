"""Recipes say what skrub says, also of values that training did not have; and nothing else passes for one."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from irmtv.data.tables import letters, steps
from irmtv.data.tables.letters import packed
from irmtv.data.tables.reading import Surprises
from irmtv.data.tables.recipes import Categories, Dates, recipe_of, stored
from irmtv.data.tables.stored import as_plain_data, from_plain_data

N = 120


def raw(seed: int) -> pd.DataFrame:
    """Categories with and without gaps, two alone, codes, booleans, dates in three forms."""
    rng = np.random.default_rng(seed)
    days = np.datetime64("2014-01-01") + rng.integers(0, 900, N)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=N),
            "kind": rng.choice(["flat", "house, small", "hut"], N),
            "two": rng.choice(["p", "q"], N),
            "two or nothing": rng.choice(["p", "q"], N),
            "code": rng.integers(0, 4, N),
            "day": np.datetime_as_string(days),
            "american": [day.strftime("%m/%d/%Y %H:%M:%S") for day in pd.to_datetime(days) + pd.Timedelta("7h")],
            "moment": pd.to_datetime(days) + pd.to_timedelta(rng.integers(0, 86400, N), unit="s"),
            "large": 1.5e9 + rng.integers(0, 10**6, N).astype(float),
            "flag": rng.random(N) < 0.5,
        }
    )
    for step, name in enumerate(["size", "kind", "two or nothing", "day", "moment"]):
        frame[name] = frame[name].mask(np.arange(N) % 11 == step)
    return frame


def strange(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows as they come later: other values, texts that mean nothing, gaps where there were none."""
    later = frame.astype(object)
    rows = {
        "kind": ["new", "", "  ", "N/A", "none", "Flat", None, "nan", 5, "hut "],
        "two": ["r", None, "?", "...", "q", "p"],
        "two or nothing": ["r", None, "NULL", "q"],
        "code": ["1", "1.0", 1.0, "x", None, 17, True],
        "day": ["2014-13-01", "01/02/2014", "", "2014-1-1", None, "1700-01-01", "2262-12-31", "2014-02-03 10:00"],
        "american": ["02/29/2015 00:00:00", "2014-01-01", None, "?", "12/31/2013 23:59:59"],
    }
    for name, values in rows.items():
        later.loc[: len(values) - 1, name] = pd.Series(values, dtype=object)
    later["moment"] = pd.to_datetime(frame["moment"]).dt.tz_localize("UTC")
    later["size"], later["large"] = frame["size"], frame["large"]
    return later


@pytest.mark.slow
@pytest.mark.parametrize("for_trees", [False, True])
@pytest.mark.filterwarnings("ignore:text where the rows of training")
def test_the_same_numbers_as_by_skrub(monkeypatch, for_trees):
    frame, later = raw(0), strange(raw(1))
    (_, columns), (_, own) = steps.table_steps(("code",), for_trees)
    typed = columns.fit(frame).transform(frame)
    later = columns.transform(later)
    with monkeypatch.context() as patch:
        patch.setattr(steps, "recipes_of", lambda *_: None)
        by_skrub = steps.table_steps(("code",), for_trees)[1][1]
        expected = by_skrub.fit_transform(typed)
    made = own.fit_transform(typed)
    assert set(own.recipes_) == {"kind", "two", "two or nothing", "code", "day", "american", "moment"}
    assert not own.vectorizers_ and by_skrub.vectorizers_ and not by_skrub.recipes_
    assert list(own.get_feature_names_out()) == list(by_skrub.get_feature_names_out())
    pairs = ((made, expected), (own.transform(typed), expected), (own.transform(later), by_skrub.transform(later)))
    for one, other in pairs:
        pd.testing.assert_frame_equal(pd.DataFrame(one), pd.DataFrame(other), check_exact=True)
    mine, theirs = own.read(later)[1], by_skrub.read(later)[1]
    assert mine.unread == theirs.unread and {"day", "american"} <= set(mine.unread)
    for name, new in mine.new.items():  # what stands for a missing value is none that is new
        assert {k: v for k, v in theirs.new[name].items() if k in new} == new
    light = from_plain_data(as_plain_data(own))
    pd.testing.assert_frame_equal(pd.DataFrame(light.read(later)[0]), pd.DataFrame(own.transform(later)))


STREETS = [
    *(f"{k} Long Street, Ærøskøbing {chr(0x4E00 + k)}" for k in range(60)),
    *(f"ab{k % 3} " * (k % 5) + "Ⅷ" for k in range(60, 100)),
    *("x", "İstanbul ǅ", "UPPER\tand\xa0lower", "a  b   c", "𝒳𝒴𝒵 letters", "N/A", "  "),
]
OTHER_STREETS = [*STREETS[::7], "", "zzzz", "long", "5 LONG STREET", "ab", "ßtreet 7", None, "?", "𝒳 " * 50, "\ud800 x"]


@pytest.mark.parametrize("for_trees", [False, True])
def test_texts_become_what_skrub_makes_of_them(monkeypatch, for_trees):
    """The groups of letters are counted, weighed and projected as scikit-learn does, also of other texts."""
    monkeypatch.setattr(steps, "TREE_CATEGORIES", 40)
    monkeypatch.setattr(letters, "TOGETHER", 7)  # texts at a time
    frame = pd.DataFrame({"street": [*STREETS, *STREETS[20:60], None], "x": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(steps, "recipes_of", lambda *_: None)
        by_skrub = steps.table_steps((), for_trees)[1][1]
        expected = pd.DataFrame(by_skrub.fit_transform(frame))
    own = steps.table_steps((), for_trees)[1][1]
    made = pd.DataFrame(own.fit_transform(frame))
    assert by_skrub.groups_ and not own.groups_ and set(own.recipes_) == {"street"}
    assert made.shape[1] == 17 and list(own.outputs()) == list(by_skrub.outputs())
    close = {"atol": 2e-6, "rtol": 0, "check_names": False}
    pd.testing.assert_frame_equal(made, expected, **close)
    pd.testing.assert_frame_equal(pd.DataFrame(own.transform(frame)), made, check_exact=True)
    other = pd.DataFrame({"street": pd.Series(OTHER_STREETS, dtype=object), "x": 2.0})
    pd.testing.assert_frame_equal(pd.DataFrame(own.transform(other)), pd.DataFrame(by_skrub.transform(other)), **close)
    light = from_plain_data(json.loads(json.dumps(as_plain_data(own))))
    pd.testing.assert_frame_equal(pd.DataFrame(light.read(other)[0]), pd.DataFrame(own.transform(other)))
    assert light.read(other)[1] == own.read(other)[1] == Surprises({}, {})


def test_fewer_groups_of_letters_than_numbers():
    """Texts with so few groups of letters that skrub takes each for a number, without a projection."""
    texts = [" ".join(["aa", "bb"][: k % 3] + ["c"] * (k % 41)) for k in range(1, 42)]
    numbers = steps.table_steps()[1][1]
    made = numbers.fit_transform(pd.DataFrame({"t": texts, "x": 1.0}))
    assert 1 < made.shape[1] - 1 < 16 and set(numbers.recipes_) == {"t"}


def test_a_column_that_needs_skrub_keeps_it():
    frame = raw(0).assign(when=[f"2014-01-01T10:{k % 60:02d}:00+01:00" for k in range(N)])
    numbers = steps.table_steps()[1][1].fit(frame)
    assert numbers.groups_ and "when" not in numbers.recipes_ and as_plain_data(numbers) is None


def test_a_recipe_that_says_anything_else_than_skrub_is_none(monkeypatch):
    numbers = steps.table_steps()[1][1].fit(raw(0))
    assert numbers.recipes_
    monkeypatch.setattr(Dates, "table", lambda self, values: np.zeros((len(values) + 1, self.n_outputs), np.float32))
    assert steps.table_steps()[1][1].fit(raw(0)).groups_


def test_stored_and_back():
    each = (
        Categories(["a", "b"], [0, None], 1, [""]),
        Dates("%Y", "datetime64[us]", ["year"], []),
        letters.Letters(**LETTERS),
    )
    for recipe in each:
        assert recipe_of(stored(recipe)) == recipe


CATEGORIES = {"labels": ["a", "b"], "places": [0, 1], "missing": None, "nulls": []}
DATES = {"format": "%Y-%m-%d", "dtype": "datetime64[us]", "parts": ["year"], "nulls": []}
LETTERS = {
    "groups": [" ab", "ab "],
    "idf": packed(np.ones(2), "<f8"),
    "components": packed(np.eye(2), "<f4"),
    "n_outputs": 2,
    "nulls": [""],
}


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        {},
        {**CATEGORIES, "more": 1},
        {**CATEGORIES, "labels": ["a", "a"]},
        {**CATEGORIES, "labels": ["a", 1]},
        {**CATEGORIES, "labels": "ab"},
        {**CATEGORIES, "places": [0]},
        {**CATEGORIES, "places": [0, 10**9]},
        {**CATEGORIES, "places": [0, -1]},
        {**CATEGORIES, "places": [0, 0]},
        {**CATEGORIES, "places": [0, True]},
        {**CATEGORIES, "places": [0, 1.0]},
        {**CATEGORIES, "places": None, "missing": 0},
        {**CATEGORIES, "nulls": [None]},
        {**DATES, "parts": ["__class__"]},
        {**DATES, "parts": []},
        {**DATES, "dtype": "datetime64[us, dateutil//etc/passwd]"},
        {**DATES, "dtype": "object"},
        {**DATES, "format": "%Y" * 60},
        {**DATES, "format": 5},
        {**LETTERS, "groups": []},
        {**LETTERS, "groups": [" ab", " ab"]},
        {**LETTERS, "groups": [" ab", "a"]},
        {**LETTERS, "idf": packed(np.ones(3), "<f8")},
        {**LETTERS, "idf": packed(-np.ones(2), "<f8")},
        {**LETTERS, "idf": [1.0, 1.0]},
        {**LETTERS, "components": packed(np.full((2, 2), np.nan), "<f4")},
        {**LETTERS, "components": "!"},
        {**LETTERS, "n_outputs": 4},
        {**LETTERS, "n_outputs": 10**12},
        {**LETTERS, "n_outputs": -1},
        {**LETTERS, "n_outputs": 2.0},
    ],
    ids=str,
)
def test_what_is_no_recipe(wrong):
    with pytest.raises(ValueError, match=r"must|no place"):
        recipe_of(wrong)


@pytest.mark.parametrize("for_trees", [False, True])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("class", "Pipeline"),
        ("columns", ["size", "size"]),
        ("columns", [["size"]]),
        ("column_to_kind", {"size": "text"}),
        ("column_to_kind", {"size": ["numeric"]}),
        ("input_to_outputs", {"size": ["a", "b"]}),
        ("input_to_outputs", {"size": 5}),
        ("input_to_outputs", {"other": ["a"]}),
        ("recipes", {}),
        ("recipes", {"kind": 5}),
        ("units", {"size": [0.0, 0.0]}),
        ("units", {"size": [0.0, float("nan")]}),
        ("units", {"kind": [0.0, 1.0]}),
        ("units", {"size": 5}),
        ("fill", {"size": ["a"]}),
        ("fill", {}),
        ("indicated", ["size", "size"]),
        ("indicated", ["nobody"]),
        ("indicated", None),
    ],
    ids=str,
)
def test_what_is_no_step_of_a_table(key, value, for_trees):
    numbers = steps.table_steps((), for_trees)[1][1].fit(raw(0)[["size", "kind", "day"]])
    good = as_plain_data(numbers)
    from_plain_data(good)
    with pytest.raises(ValueError, match=r"must|different|recipe"):
        from_plain_data({**good, key: value})


@pytest.mark.parametrize(
    "wrong",
    [{"kinds": {"size": "secret"}}, {"kinds": {}}, {"kinds": {"kind": "text", "size": "number"}}, {"columns": 5}],
)
def test_what_is_no_column(wrong):
    columns = steps.table_steps()[0][1].fit(raw(0)[["size", "kind"]])
    good = as_plain_data(columns)
    assert from_plain_data(good).kinds_ == columns.kinds_
    with pytest.raises(ValueError, match="must"):
        from_plain_data({**good, **wrong})
