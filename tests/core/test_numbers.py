"""One formatter: the same number reads the same everywhere, and what is missing is said as the place needs it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from irmtv.core.numbers import MetricFormat, decimal, mean_and_sd, number, p_text, percent, probability, short, within

NOTHING = (None, math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("value", NOTHING)
def test_what_is_missing_is_a_dash_in_a_table_and_a_word_in_a_sentence(value):
    assert number(value) == "unknown" and short(value) == decimal(value) == percent(value) == "–"
    assert MetricFormat("accuracy").with_unit(value) == "–"
    assert MetricFormat.in_words("accuracy").with_unit(value) == "unknown"
    assert MetricFormat.in_words("rmse").value(value, sign=True) == "unknown"


@pytest.mark.parametrize(
    ("value", "three", "four"),
    [
        (0.0, "0", "0"),
        (-0.5, "-0.5", "-0.5"),
        (0.99996, "1", "1"),
        (12.3456, "12.3", "12.35"),
        (999.4, "999", "999.4"),
        (9999.7, "10,000", "10,000"),
        (-1234567, "-1,234,567", "-1,234,567"),
        (2e-7, "2e-07", "2e-07"),
        (1e13, "1e+13", "1e+13"),
        (np.float32(0.1), "0.1", "0.1"),
    ],
)
def test_digits(value, three, four):
    assert number(value) == three
    assert short(value) == four


def test_differences_show_their_sign_and_zero_has_none():
    share, words = MetricFormat("accuracy"), MetricFormat.in_words("accuracy")
    assert [share.value(v, sign=True) for v in (0.016, -0.0872, -1e-9, 0.0)] == ["+1.6", "−8.7", "0.0", "0.0"]
    assert [words.value(v, sign=True) for v in (0.016, -0.0872)] == ["+1.6", "-8.7"]
    assert MetricFormat("rmse").value(-12345.6, sign=True) == "−12,346"
    assert MetricFormat("population accuracy").title == "population accuracy (%)"


def test_intervals_and_p_values():
    assert within({"value": 0.71234, "low": None, "high": 0.9}) == "0.712"
    assert (p_text(0.00099), p_text(0.5, ".3f"), p_text(math.nan)) == ("p < 0.001", "p = 0.500", "p unknown")
    assert (probability(0.0), probability(0.0312)) == ("< 0.0001", "0.031")
    assert mean_and_sd([1.0, math.nan, 2.0], digits=2) == "1.50 ± 0.71"
