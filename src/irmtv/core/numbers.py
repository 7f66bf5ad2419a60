"""Numbers as texts of a report: few digits, the unit of their metric, a dash where there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

NO_VALUE = "–"


class Estimate(TypedDict):
    """A value with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


def is_accuracy(metric: str) -> bool:
    """Whether a metric is a share: shown in percent, and more is better."""
    return "accuracy" in metric


def short(value: float | None, factor: float = 1.0, unit: str = "") -> str:
    """Four digits.

    Examples
    --------
    >>> short(0.123456), short(0.5, 100, " %"), short(123456.7), short(None), short(2e-7)
    ('0.1235', '50 %', '123,457', '–', '2e-07')
    """
    if value is None or math.isnan(value):
        return NO_VALUE
    scaled = factor * value
    return (f"{scaled:,.0f}" if 1e4 <= abs(scaled) < 1e12 else f"{scaled:.4g}") + unit


def decimal(value: float | None) -> str:
    """Four places, so that the points of a column stand under each other; large and tiny numbers as `short` has them.

    >>> decimal(0.3), decimal(0.04959), decimal(12345.678), decimal(2e-7), decimal(None)
    ('0.3000', '0.0496', '12,346', '2e-07', '–')
    """
    if value is None or math.isnan(value) or abs(value) >= 1e3 or 0 < abs(value) < 5e-5:
        return short(value)
    return f"{value:.4f}"


def probability(p: float | None) -> str:
    """Two digits; what is too small to count, as that.

    >>> probability(0.2512), probability(0.000158), probability(1e-9), probability(None)
    ('0.25', '0.00016', '< 0.0001', '–')
    """
    if p is None or math.isnan(p):
        return NO_VALUE
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def several(count: int, what: str) -> str:
    """
    >>> several(1, "row"), several(1200, "row")
    ('1 row', '1,200 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class MetricFormat:
    """How values of a metric are written: accuracy in percent, all else as it is.

    Examples
    --------
    >>> MetricFormat("accuracy").with_unit(0.8812), MetricFormat("rmse").with_unit(0.8812)
    ('88.1 %', '0.8812')
    >>> MetricFormat("accuracy").interval({"value": 0.88, "low": 0.86, "high": None})
    '88.0'
    """

    metric: str

    @property
    def factor(self) -> float:
        return 100.0 if is_accuracy(self.metric) else 1.0

    @property
    def title(self) -> str:
        """The metric with its unit, for headings and axes."""
        return f"{self.metric} (%)" if is_accuracy(self.metric) else self.metric

    @property
    def difference_unit(self) -> str:
        return " (points)" if is_accuracy(self.metric) else ""

    def value(self, value: float | None, sign: bool = False) -> str:
        """Without a unit."""
        if value is None or not math.isfinite(value):
            return NO_VALUE
        if is_accuracy(self.metric):
            text = f"{100 * value + 0.0:.1f}"
        else:
            text = short(value)
        text = text.removeprefix("-") if text.strip("-0.") == "" else text  # no "-0.0"
        if text.startswith("-"):
            return f"−{text[1:]}"
        return f"+{text}" if sign and text.strip("0.") else text

    def with_unit(self, value: float | None) -> str:
        text = self.value(value)
        return f"{text} %" if is_accuracy(self.metric) and text != NO_VALUE else text

    def interval(self, estimate: Estimate, sign: bool = False) -> str:
        """'88.0 (86.1 to 89.7)', without the interval where it is not known."""
        text = self.value(estimate["value"], sign)
        if text == NO_VALUE or estimate["low"] is None or estimate["high"] is None:
            return text
        return f"{text} ({self.value(estimate['low'], sign)} to {self.value(estimate['high'], sign)})"
