"""The answer of a fit in one sentence."""

from __future__ import annotations

from irmtv.app.fit.summary import EnvironmentRow, FitSummary
from irmtv.core.numbers import Estimate, MetricFormat, p_text
from irmtv.core.outcomes import OUTCOMES


def headline(summary: FitSummary) -> str:
    """The outcome in one sentence; where nothing is known of new environments, with what it means on held-out rows."""
    expected = summary.get("new_environment", {}).get("expected")
    return f"{_outcome(summary)}." if expected is not None else f"{_outcome(summary)}: {_on_held_out_rows(summary)}."


def _outcome(summary: FitSummary) -> str:
    if summary["outcome"] is None:
        return f"Chosen by rule {summary['rule']!r}"
    if summary["outcome"] == "invariant-found":
        return OUTCOMES["invariant-found"].title
    if summary["outcome"] == "none-found":
        return f"{OUTCOMES['none-found'].title}, and ERM, which is not invariant, is kept"
    return _why_erm_is_kept(summary)


def _on_held_out_rows(summary: FitSummary) -> str:
    form = MetricFormat.in_words(summary["metric"])
    several = len(summary["environments"]) > 1
    row = summary["worst"] if several else summary["overall"]
    metric = f"{form.words} {'in the worst environment' if several else 'on held-out rows'}"
    erm = form.with_unit(row["erm"]["value"])
    if summary["outcome"] is None:
        return f"{metric} {_level(row['chosen'], form)}; ERM has {erm}"
    if summary["outcome"] == "invariant-found":
        chosen = form.with_unit(row["chosen"]["value"])
        gain, price = (_difference(of["difference"], form) for of in (row, summary["overall"]))
        return f"{metric} {chosen} against {erm} of ERM ({gain}); over all rows the difference is {price}"
    extremes = f", from {_extremes(summary, form)}" if summary["outcome"] == "none-found" else ""
    return f"{metric} {_level(row['erm'], form)}{extremes}"


def _why_erm_is_kept(summary: FitSummary) -> str:
    """ERM passes the test, which could have failed it or not; or the environments differ in noise or base rate."""
    figures = summary["settings"].get("figures", {})
    p = figures.get("p_erm") if figures.get("p_columns_erm") is None else figures["p_columns_erm"]
    if figures.get("blind"):
        return "ERM is kept: nothing was found against it, but these rows could not show much"
    if summary["outcome"] == "erm-kept":
        return (
            "ERM is kept: it differs between environments, but no model trained on one environment alone beats it "
            "there, so invariance cannot help"
        )
    return f"ERM passed the invariance test{'' if p is None else f' ({p_text(p)})'} and is kept"


def _extremes(summary: FitSummary, form: MetricFormat) -> str:
    """The environments with the lowest and the highest value of ERM."""

    def value(row: EnvironmentRow) -> float:
        return float("nan") if row["erm"]["value"] is None else row["erm"]["value"]

    rows = sorted(summary["environments"], key=value)
    return " to ".join(f"{form.with_unit(row['erm']['value'])} ({row['name']})" for row in (rows[0], rows[-1]))


def _level(estimate: Estimate, form: MetricFormat) -> str:
    interval = f"{form.with_unit(estimate['low'])} to {form.with_unit(estimate['high'])}"
    return f"{form.with_unit(estimate['value'])}, 95 % interval {interval}"


def _difference(estimate: Estimate, form: MetricFormat) -> str:
    interval = f"{form.value(estimate['low'], sign=True)} to {form.value(estimate['high'], sign=True)}"
    unit = " points" if form.percent else ""
    return f"{form.value(estimate['value'], sign=True)}{unit}, 95 % interval {interval}"
