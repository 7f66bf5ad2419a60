"""The answer in one sentence, and with which versions it was found."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata

from irmtv._version import __version__
from irmtv.app.fit.summary import EnvironmentRow, FitSummary
from irmtv.core.numbers import Estimate
from irmtv.selection.invariant import DEFAULTS

_NAMES = {
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
}
LEVEL = DEFAULTS["level"]
_PACKAGES = ("torch", "numpy", "pandas", "scikit-learn", "skrub")


def headline(summary: FitSummary) -> str:
    """Which of the three outcomes it was, with what it means on held-out rows, in one sentence."""
    worst, overall = summary["worst"], summary["overall"]
    metric = _NAMES.get(summary["metric"], summary["metric"])
    form = number_format(summary["metric"])
    several = len(summary["environments"]) > 1
    there = "in the worst environment" if several else "on held-out rows"
    value = worst if several else overall
    if summary["outcome"] == "invariant-found":
        gain = _between(value["difference"], form, sign=True)
        price = _between(overall["difference"], form, sign=True)
        return (
            f"An invariant model was found: {metric} {there} {form(value['chosen']['value'])} against "
            f"{form(value['erm']['value'])} of plain risk minimisation ({gain}); over all rows the difference is "
            f"{price}."
        )
    level = f"{metric} {there} {_between(value['erm'], form)}"
    if summary["outcome"] == "erm-invariant" and _fails_the_test(summary):
        return (
            "Plain risk minimisation is kept: it is not the same in all environments, but none of them has a model of "
            f"its own that predicts better, so there is nothing to gain: {level}."
        )
    if summary["outcome"] == "erm-invariant":
        return f"Plain risk minimisation is kept, since nothing shows that it is not invariant: {level}."
    if summary["outcome"] == "none-found":
        return (
            "No invariant model was found, and plain risk minimisation, which is not invariant, is kept: "
            f"{level}, from {_extremes(summary, form)}."
        )
    return (
        f"Chosen by rule {summary['rule']!r}: {metric} {there} {_between(value['chosen'], form)}; plain risk "
        f"minimisation has {form(value['erm']['value'])}."
    )


def _fails_the_test(summary: FitSummary) -> bool:
    """Whether plain risk minimisation was kept though the test rejects it: they differ in noise or base rate."""
    p = summary["settings"].get("figures", {}).get("p_erm")
    return p is not None and p < LEVEL


def _extremes(summary: FitSummary, form: Formatter) -> str:
    def plain(row: EnvironmentRow) -> float:
        value = row["erm"]["value"]
        return float("nan") if value is None else value

    rows = sorted(summary["environments"], key=plain)
    low, high = rows[0], rows[-1]
    return f"{form(low['erm']['value'])} ({low['name']}) to {form(high['erm']['value'])} ({high['name']})"


class Formatter:
    """Numbers of one metric as text: accuracies in percent, their differences in points, others with three digits."""

    def __init__(self, percent: bool) -> None:
        self.percent = percent

    def __call__(self, value: float | None, sign: bool = False) -> str:
        if value is None or value != value:
            return "unknown"
        plus = "+" if sign else ""
        if self.percent:
            return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f} %"  # differences are points
        return f"{value:{plus},.0f}" if abs(value) >= 1000 else f"{value:{plus}.3g}"


def number_format(metric: str) -> Formatter:
    """How numbers of this metric are written."""
    return Formatter(metric == "accuracy")


def _between(estimate: Estimate, form: Formatter, sign: bool = False) -> str:
    low, high = form(estimate["low"], sign), form(estimate["high"], sign)
    points = " points" if sign and form.percent else ""
    return f"{form(estimate['value'], sign)}{points}, 95 % interval {low} to {high}"


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"irmtv": __version__, **{name: metadata.version(name) for name in _PACKAGES}}
    with suppress(metadata.PackageNotFoundError):
        found["lightgbm"] = metadata.version("lightgbm")  # an extra
    return found
