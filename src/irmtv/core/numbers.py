"""Numbers as text: few digits, and the unit of their metric. For no value a table has a dash, a sentence "unknown".

`number` is the one rule for digits; everything else here is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import numpy.typing as npt

NO_VALUE = "–"  # in a cell
UNKNOWN = "unknown"  # in a sentence
IN_WORDS = {
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "roc_auc": "area under the ROC curve",
    "average_precision": "average precision",
    "f1": "F1",
    "r2": "R²",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "mse": "mean squared error",
}


class Estimate(TypedDict):
    """A value with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


def is_accuracy(metric: str) -> bool:
    """Whether a metric is a share: shown in percent, and more is better."""
    return "accuracy" in metric


# --- one number ---------------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3, missing: str = UNKNOWN) -> str:
    """A number with at most `digits` significant digits; one that needs more before the point is a whole number.

    Examples
    --------
    >>> number(0.12345), number(0.5), number(1234567.0), number(2e-7), number(999.7)
    ('0.123', '0.5', '1,234,567', '2e-07', '1,000')
    >>> number(52.123456, 6), number(float("nan")), number(None, missing="–")
    ('52.1235', 'unknown', '–')
    """
    if value is None or not math.isfinite(value):
        return missing
    rounded = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if 10**digits <= abs(rounded) < 1e12 else f"{rounded:.{digits}g}"


def short(value: float | None, factor: float = 1.0, unit: str = "") -> str:
    """A number in a table: four digits, a dash where there is none.

    >>> short(0.123456), short(0.5, 100, " %"), short(123456.7), short(None), short(2e-7)
    ('0.1235', '50 %', '123,457', '–', '2e-07')
    """
    text = number(None if value is None else factor * value, 4, NO_VALUE)
    return text if text == NO_VALUE else text + unit


def decimal(value: float | None) -> str:
    """Four places, so that the points of a column stand under each other; large and tiny numbers as `short` has them.

    >>> decimal(0.3), decimal(0.04959), decimal(12345.678), decimal(2e-7), decimal(None)
    ('0.3000', '0.0496', '12,346', '2e-07', '–')
    """
    if value is None or math.isnan(value) or abs(value) >= 1e3 or 0 < abs(value) < 5e-5:
        return short(value)
    return f"{value:.4f}"


def percent(share: float | None, sign: bool = False, minus: str = "−", missing: str = NO_VALUE) -> str:
    """A share in percent with one decimal and without the sign %; with `sign`, a difference in points.

    >>> percent(0.8812), percent(0.05, sign=True), percent(-0.02), percent(-1e-9), percent(None)
    ('88.1', '+5.0', '−2.0', '0.0', '–')
    """
    if share is None or not math.isfinite(share):
        return missing
    return _signed(f"{100 * share:.1f}", sign, minus)


def _signed(text: str, sign: bool, minus: str) -> str:
    if not text.strip("-0."):
        return text.removeprefix("-")  # neither "-0.0" nor "+0.0"
    if text.startswith("-"):
        return minus + text[1:]
    return f"+{text}" if sign else text


def probability(p: float | None) -> str:
    """A p-value in a table: two digits; what is too small to count, as that.

    >>> probability(0.2512), probability(0.000158), probability(1e-9), probability(None)
    ('0.25', '0.00016', '< 0.0001', '–')
    """
    if p is None or math.isnan(p):
        return NO_VALUE
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def p_text(p: float | None, form: str = ".2g") -> str:
    """A p-value in a sentence.

    >>> p_text(0.0003), p_text(0.034), p_text(0.03, ".3f"), p_text(None)
    ('p < 0.001', 'p = 0.034', 'p = 0.030', 'p unknown')
    """
    if p is None or not math.isfinite(p):
        return f"p {UNKNOWN}"
    return "p < 0.001" if p < 0.001 else f"p = {p:{form}}"


# --- several numbers ----------------------------------------------------------------------------------------


def within(estimate: Estimate, digits: int = 3) -> str:
    """A value with its interval.

    >>> within({"value": 0.71, "low": 0.68, "high": 0.74}), within({"value": 0.71, "low": None, "high": None})
    ('0.71 (0.68 to 0.74)', '0.71')
    """
    if estimate["low"] is None or estimate["high"] is None:
        return number(estimate["value"], digits)
    interval = f"{number(estimate['low'], digits)} to {number(estimate['high'], digits)}"
    return f"{number(estimate['value'], digits)} ({interval})"


def mean_and_sd(values: npt.ArrayLike, digits: int = 1) -> str:
    """Mean and standard deviation of the finite values.

    >>> mean_and_sd([1.0, 2.0, 3.0]), mean_and_sd([2.0]), mean_and_sd([])
    ('2.0 ± 1.0', '2.0', '–')
    """
    import numpy as np  # here, so that the help of the command line need not load it

    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if known.size == 0:
        return NO_VALUE
    spread = f" ± {known.std(ddof=1):.{digits}f}" if known.size > 1 else ""
    return f"{known.mean():.{digits}f}{spread}"


def value_and_sd(mean: float, sd: float, metric: str) -> tuple[str, str]:
    """A mean with four digits and its deviation with as many decimals, "" for none; accuracy in percent.

    >>> value_and_sd(0.7123, 0.0125, "accuracy"), value_and_sd(12.3456, math.nan, "mse")
    (('71.2', '1.2'), ('12.35', ''))
    """
    form, scale = (".1f", 100.0) if is_accuracy(metric) else (_four_digits(mean), 1.0)
    return format(scale * mean, form), "" if math.isnan(sd) else format(scale * sd, form)


def _four_digits(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return ".3f"
    power = math.floor(math.log10(abs(value)))
    return f".{max(0, 3 - power)}f" if -4 <= power < 6 else ".2e"


def listed(names: Iterable[Any]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    texts = [str(name) for name in names]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""


def several(count: int, one: str, many: str = "") -> str:
    """A count and what is counted; `many` is the plural where it does not just add an s.

    >>> several(1, "row"), several(1200, "row"), several(3, "class", "classes")
    ('1 row', '1,200 rows', '3 classes')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


# --- values of a metric -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricFormat:
    """How values of a metric are written: accuracy in percent, all else as it is.

    Examples
    --------
    >>> MetricFormat("accuracy").with_unit(0.8812), MetricFormat("rmse").with_unit(0.88123)
    ('88.1 %', '0.8812')
    >>> MetricFormat("accuracy").interval({"value": 0.88, "low": 0.86, "high": None})
    '88.0'
    >>> MetricFormat.in_words("rmse").with_unit(0.88123), MetricFormat.in_words("rmse").with_unit(None)
    ('0.881', 'unknown')
    """

    metric: str
    digits: int = 4  # of metrics that are no shares
    missing: str = NO_VALUE
    minus: str = "−"

    @classmethod
    def in_words(cls, metric: str) -> MetricFormat:
        """For a sentence or a terminal: three digits, "unknown", and a minus that every terminal has."""
        return cls(metric, 3, UNKNOWN, "-")

    @property
    def percent(self) -> bool:
        """Whether values are shares, shown in percent; their differences are in points."""
        return is_accuracy(self.metric)

    @property
    def factor(self) -> float:
        return 100.0 if self.percent else 1.0

    @property
    def title(self) -> str:
        """The metric with its unit, for headings and axes."""
        return f"{self.metric} (%)" if self.percent else self.metric

    @property
    def words(self) -> str:
        """The metric in a sentence."""
        return IN_WORDS.get(self.metric, self.metric)

    @property
    def difference_unit(self) -> str:
        return " (points)" if self.percent else ""

    def value(self, value: float | None, sign: bool = False) -> str:
        """Without a unit; `sign`: a difference, which shows its plus."""
        if self.percent:
            return percent(value, sign, self.minus, self.missing)
        if value is None or not math.isfinite(value):
            return self.missing
        return _signed(number(value, self.digits), sign, self.minus)

    def column(self, values: Iterable[float | None], sign: bool = False) -> Callable[[float | None], str]:
        """How the values of a column are written, all with the same decimals, so that their points are aligned.

        >>> show = MetricFormat.in_words("rmse").column([42.0, 41.53, 0.2])
        >>> show(42.0), show(0.2), show(None)
        ('42.0', '0.2', 'unknown')
        """
        largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=1.0)
        decimals = 1 if self.percent else max(0, self.digits - 1 - math.floor(math.log10(largest or 1.0)))
        if decimals > self.digits + 3:
            return lambda value: self.value(value, sign)

        def written(value: float | None) -> str:
            if value is None or not math.isfinite(value):
                return self.missing
            return _signed(f"{self.factor * value:,.{decimals}f}", sign, self.minus)

        return written

    def with_unit(self, value: float | None) -> str:
        text = self.value(value)
        return f"{text} %" if self.percent and text != self.missing else text

    def interval(self, estimate: Estimate, sign: bool = False) -> str:
        """'88.0 (86.1 to 89.7)', without the interval where it is not known."""
        text = self.value(estimate["value"], sign)
        if text == self.missing or estimate["low"] is None or estimate["high"] is None:
            return text
        return f"{text} ({self.value(estimate['low'], sign)} to {self.value(estimate['high'], sign)})"
