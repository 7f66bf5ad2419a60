"""Better or worse: words for a difference that never contradict the numbers as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from irmtv.app.fit.summary import EnvironmentRow, FitSummary, LeftOutFamily, NewEnvironment
from irmtv.core.numbers import MetricFormat
from irmtv.data.times import time_order
from irmtv.metrics.definitions import as_metric

LEVEL = 0.05  # of the tests that the words rest on
FALL = 0.05  # from known environments to those that training left out, that is worth a warning

Word = Literal["better", "worse", "about as good"]


def better_or_worse(row: EnvironmentRow, greater_is_better: bool, form: MetricFormat) -> Word:
    """Whether the chosen model is better than the plain one there.

    "about as good" where the 95 % interval of the difference has 0 inside, or both are shown as the same number.
    """
    chosen, plain, difference = row["chosen"]["value"], row["erm"]["value"], row["difference"]
    if chosen is None or plain is None or form.value(chosen) == form.value(plain):
        return "about as good"
    low, high = difference["low"], difference["high"]
    if low is not None and high is not None and low <= 0 <= high:
        return "about as good"
    return "better" if (chosen > plain) == greater_is_better else "worse"


def against(row: EnvironmentRow, form: MetricFormat) -> str:
    """The scores of the chosen and the plain model there, in a sentence."""
    return f"{form.with_unit(row['chosen']['value'])} against {form.with_unit(row['erm']['value'])}"


def taken(unseen: NewEnvironment) -> LeftOutFamily | None:
    """The kind of model that was taken, in environments that were left out."""
    return next((family for family in unseen["families"] if family["taken"]), None)


def left_out_difference(summary: FitSummary) -> Word | None:
    """The same on average over environments that training left out; None where that is not known, or all are alike."""
    unseen = summary.get("new_environment")
    family = None if unseen is None else taken(unseen)
    if unseen is None or family is None or all(row["plain"] == row["chosen"] for row in family["environments"]):
        return None
    chosen, plain = family["expected"]["mean"], family["plain_expected"]["mean"]
    if chosen is None or plain is None:
        return None
    form = MetricFormat.in_words(unseen["metric"])
    if form.value(chosen) == form.value(plain):
        return "about as good"
    return "better" if (chosen > plain) == as_metric(unseen["metric"]).greater_is_better else "worse"


def known_mean(summary: FitSummary) -> float | None:
    """Of the chosen model on held-out rows, on average over the known environments, as a new one is expected."""
    values = [row["chosen"]["value"] for row in summary["environments"]]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def falls_elsewhere(summary: FitSummary) -> bool:
    """Whether the model does clearly worse in environments that training left out than held-out rows promise.

    By at least 5 points of a share (5 % of an error), and by more than chance: Student's t over the environments, each
    against itself where it was trained on.
    """
    unseen = summary.get("new_environment")
    family = None if unseen is None else taken(unseen)
    if unseen is None or family is None or unseen["metric"] != summary["metric"]:
        return False
    trained = {row["name"]: row["chosen"]["value"] for row in summary["environments"]}
    mean, sign = known_mean(summary), 1 if summary["greater_is_better"] else -1
    pairs = [(trained.get(row["name"], mean), row["chosen"]) for row in family["environments"]]
    lost = [sign * (known - new) for known, new in pairs if known is not None and new is not None]
    if len(lost) < 3 or mean is None:
        return False
    least = FALL * (1.0 if summary["greater_is_better"] else abs(mean))
    average = sum(lost) / len(lost)
    spread = (sum((one - average) ** 2 for one in lost) / (len(lost) - 1)) ** 0.5
    from scipy import stats  # takes half a second: only where the question is asked

    t = float(stats.t.isf(LEVEL, len(lost) - 1))
    return average >= least and average > t * spread / len(lost) ** 0.5


def worse_on_test(summary: FitSummary) -> list[EnvironmentRow]:
    """Environments of other rows (`--test`) that are worse than was expected."""
    test = summary.get("test")
    rows = [] if test is None else test["environments"] or [test["overall"]]
    return [row for row in rows if row.get("verdict") == "worse"]


def erm_is_kept(summary: FitSummary) -> bool:
    """Whether the chosen model is ERM: then there is one model to show."""
    pairs = [(row["erm"]["value"], row["chosen"]["value"]) for row in [summary["overall"], *summary["environments"]]]
    valued = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(valued) and all(abs(a - b) <= 1e-9 * abs(a) for a, b in valued)


def extremes(summary: FitSummary, model: Literal["erm", "chosen"]) -> list[EnvironmentRow]:
    """The environments with the worst and the best value of a model; fewer where there are fewer."""
    valued = [(row[model]["value"], row) for row in summary["environments"]]
    known = [(value, row) for value, row in valued if value is not None]
    ordered = [row for _, row in sorted(known, key=lambda pair: pair[0], reverse=not summary["greater_is_better"])]
    return [ordered[0], ordered[-1]] if len(ordered) > 1 else ordered


def in_order(summary: FitSummary, rows: list[EnvironmentRow]) -> tuple[list[EnvironmentRow], bool]:
    """Environments in the order of time, where they are times (True), else the worst for the chosen model first."""
    unseen = summary.get("new_environment")
    told = unseen is not None and unseen["left_out"] == "in order"
    order = time_order([row["name"] for row in rows], told) if len(rows) > 1 else None
    if order is not None:
        return [rows[i] for i in order], True
    sign = 1 if summary["greater_is_better"] else -1

    def key(row: EnvironmentRow) -> tuple[bool, float]:
        value = row["chosen"]["value"] if row["chosen"]["value"] is not None else row["erm"]["value"]
        return value is None, sign * (value or 0.0)

    return sorted(rows, key=key), False


def asked_for_erm(summary: FitSummary) -> bool:
    """Whether nothing but the plain model was to be trained."""
    return not summary.get("sought", summary["objective"] != "erm")


def rule_figures(summary: FitSummary) -> Mapping[str, Any]:
    """What the rule measured; older files have none of it, or not all."""
    figures: Mapping[str, Any] = summary["settings"].get("figures", {})
    return figures


def loss_differs(summary: FitSummary) -> bool:
    """Whether the plain model's loss differs between environments, by the test of `irmtv diagnose`."""
    look = summary.get("first_look")
    return look is not None and look["loss_p"] is not None and look["loss_p"] < LEVEL
