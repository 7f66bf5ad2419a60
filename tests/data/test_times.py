"""Which labels are times, and in which order."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pytest

from irmtv.data.environments import as_labels, encode_labels
from irmtv.data.times import time_name, time_order

MONTHS = [f"{year}-{month:02d}" for year in (2011, 2012) for month in range(1, 13)]
TIMES = {
    "datetime64 of numpy": list(np.array(["1999-12-31", "2000-01-01", "2000-02-29", "2024-01-01"], "datetime64[D]")),
    "datetimes": [datetime(2011, 9, 1), datetime(2011, 10, 1, 5), datetime(2011, 10, 1, 6), datetime(2012, 1, 1)],
    "with a time zone": list(pd.date_range("2020-01-31", periods=4, freq="D", tz="Europe/Vienna")),
    "dates": [date(1850, 1, 1), date(1999, 2, 3), date(1999, 10, 3), date(2150, 1, 1)],
    "dates and datetimes": [date(2010, 1, 1), pd.Timestamp("2010-01-02"), date(2010, 1, 3), datetime(2010, 1, 4)],
    "timestamps": list(pd.date_range("2011-09-01", periods=4, freq="MS")),
    "periods": list(pd.period_range("2010Q3", periods=4, freq="Q")),
    "text of weeks, as pandas writes them": [str(p) for p in pd.period_range("2010-12-20", periods=4, freq="W")],
    "months": MONTHS,
    "months without a zero": ["2011-2", "2011-9", "2011-10", "2011-11"],
    "days": ["1850-12-31", "1851-01-01", "2011-09-30", "2011-10-01"],
    "times of day": ["2011-09-30 23:00:00", "2011-10-01 00:00:00", "2011-10-01T01:00:00", "2011-10-01 02:30"],
    "zones of text": ["2011-10-01T01:00+02:00", "2011-10-01T00:30+01:00", "2011-10-01T00:00+00:00"],
    "quarters": ["2010Q3", "2010Q4", "2011Q1", "2011Q2"],
    "quarters with a hyphen": ["2010-Q3", "2010-Q4", "2011-Q1"],
    "weeks": ["2010-W51", "2010-W52", "2011-W01", "2011-W02"],
    "years": [1900, 1950, 2011, 2100],
    "decades": [1950, 1960, 1970, 1980],
    "years of numpy": list(np.arange(2009, 2013)),
    "years that were read with gaps": [2009.0, 2010.0, 2011.0, 2012.0],
    "years, some of them as text": [2009, "2010", 2011, "2012"],
    "years as text": ["2009", "2010", "2011", "2012"],
}
OTHERS = {
    "none": [],
    "categories": ["a", "b", "c", "d"],
    "house numbers": list(range(1, 13)),
    "months of no year": ["01", "02", "03", "04"],
    "numbers, one of them no year": [1899, 1950, 2000, 2010],
    "postcodes": [1010, 1020, 1030, 2000],
    "halves of years": [2010.0, 2010.5, 2011.0, 2011.5],
    "bools": [False, True],
    "years and text": [2009, 2010, 2011, "later"],
    "one year written in two ways": [2009, "2009", 2011, 2012],
    "one month written in two ways": ["2011-01", "2011-1", "2011-02"],
    "months and days": ["2011-01", "2011-02", "2011-03-01", "2011-04"],
    "dates and text": [date(2010, 1, 1), "2010-01-02"],
    "with and without a zone": [datetime(2010, 1, 1), datetime(2010, 1, 2, tzinfo=UTC)],
    "missing": [2009, 2010, None, 2012],
    "missing numbers": [2009.0, float("nan"), 2011.0],
    "missing dates": [pd.Timestamp("2010-01-01"), pd.NaT],
    "no such month": ["2011-11", "2011-12", "2011-13"],
    "no such day": ["2011-02-28", "2011-02-30"],
    "codes that look like months": ["4711-01", "4711-02", "4712-01"],
    "no such quarter": ["2011Q1", "2011Q5"],
    "pooled": ["2009", "2010", "pooled(2011, 2012)"],
    "a year and a site": [(2010, "a"), (2011, "a")],
    "joined columns": ["2010 / a", "2011 / a"],
    "dates that leave open which is the day": ["01/02/2011", "02/01/2011"],
}


@pytest.mark.parametrize("labels", TIMES.values(), ids=TIMES.keys())
def test_times_are_recognised_and_sorted(labels):
    """They stand in the order of time above; here they come in another."""
    shuffled = random.Random(0).sample(range(len(labels)), len(labels))
    mixed = [labels[i] for i in shuffled]
    order = time_order(mixed)
    assert order is not None and [mixed[i] for i in order] == labels
    assert time_order(mixed, told=True) == order


@pytest.mark.parametrize("labels", OTHERS.values(), ids=OTHERS.keys())
def test_other_labels_are_not(labels):
    assert time_order(labels) is None
    told = time_order(labels, told=True)
    assert told is None or sorted(told) == list(range(len(labels)))


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        ([10, 9, 1], [1, 9, 10]),
        ([0.5, -2, 1e3], [-2, 0.5, 1e3]),
        (["10", "9", "1.5"], ["1.5", "9", "10"]),
        (["late", "early", "middle"], ["early", "late", "middle"]),
        (["batch 10", "batch 9", "batch 1"], ["batch 1", "batch 9", "batch 10"]),
        (["b1", 3, "a", 1], [1, 3, "a", "b1"]),
    ],
)
def test_what_the_user_calls_times_is_sorted(labels, order):
    found = time_order(labels, told=True)
    assert found is not None and [labels[i] for i in found] == order


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(pd.date_range("2011-11-01", periods=4, freq="MS")),
        pd.Series(pd.period_range("2011-11", periods=4, freq="M")),
        pd.Series(pd.period_range("2011-12-20", periods=4, freq="W")),
        pd.Series(["2011-11", "2011-12", "2012-01", "2012-02"], dtype="category"),
        np.arange(2009, 2013, dtype=np.int16),
        np.array(["2009-01-01", "2010-01-01", "2011-01-01"], "datetime64[ns]"),
        [date(2009, 1, 1), date(2010, 1, 1)],
    ],
)
def test_labels_as_estimators_read_them(values):
    _, labels = encode_labels(as_labels(values), "environment")
    assert time_order(labels) == list(range(len(labels)))


def test_names_have_no_midnight():
    assert time_name(pd.Timestamp("2011-01-31")) == time_name(np.datetime64("2011-01-31")) == "2011-01-31"
    assert time_name(pd.Timestamp("2011-01-31 05:00")) == "2011-01-31 05:00:00"
    assert (
        time_name(date(2011, 1, 31)) == "2011-01-31" and time_name(2011) == "2011" and time_name("2011Q1") == "2011Q1"
    )
