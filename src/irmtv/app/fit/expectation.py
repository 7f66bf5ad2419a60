"""The first paragraph of the answer: what to expect in a new environment."""

from __future__ import annotations

from collections.abc import Sequence

from irmtv.app.fit.comparing import extremes, known_mean, taken
from irmtv.app.fit.summary import FitSummary, NewEnvironment
from irmtv.core.numbers import MetricFormat, several

SHARES = ("accuracy", "balanced_accuracy", "roc_auc", "average_precision", "f1")  # metrics from 0 to 1
DRAWN_ALIKE = "if they are drawn as the known ones were"
LONG_NUMBER = 4  # digits of a number that may stand alone: a year


def expect(summary: FitSummary) -> str:
    """What to expect in a new environment; where that is not known, why, and what known ones have."""
    unseen = summary.get("new_environment")
    if unseen is None or unseen["expected"] is None or unseen["expected"]["mean"] is None:
        return f"What to expect in a new environment is not known: {_why_unknown(unseen)}. {_known(summary)}"
    form, expected = MetricFormat.in_words(unseen["metric"]), unseen["expected"]
    text = f"In a new environment expect {_a(form.words)} of about {form.with_unit(expected['mean'])}"
    if says_nothing(unseen):
        n = len((taken(unseen) or {"environments": []})["environments"])
        text += f"; how far from it a new one may lie, {n} environments cannot tell"
    elif expected["low"] is not None and expected["high"] is not None:
        low, high = form.with_unit(expected["low"]), form.with_unit(expected["high"])
        inside = f"{100 * unseen['coverage']:.0f} % of new ones"
        same = "if the next are like those before" if unseen["left_out"] == "in order" else DRAWN_ALIKE
        text += f", and between {low} and {high} in {inside}, {same}"
    return f"{text}. {_how(summary, unseen)}{_missing(unseen)}"


def says_nothing(unseen: NewEnvironment) -> bool:
    """Whether the interval for one more environment is all that the metric can be."""
    expected = unseen["expected"]
    low, high = (None, None) if expected is None else (expected["low"], expected["high"])
    return unseen["metric"] in SHARES and low is not None and high is not None and low <= 0 and high >= 1


def _a(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' or noun in ('F1', 'R²') else 'a'} {noun}"


def place(name: str, summary: FitSummary) -> str:
    """An environment in a sentence: a bare number gets the name of its column before it."""
    return named_place(name, summary["data"]["environment"])


def named_place(name: str, columns: Sequence[str]) -> str:
    return f"{columns[0]} {name}" if name.isdigit() and len(name) < LONG_NUMBER and len(columns) == 1 else name


def _how(summary: FitSummary, unseen: NewEnvironment) -> str:
    """Where the estimate comes from, and the worst that was seen."""
    family = taken(unseen)
    rows = [] if family is None else family["environments"]
    n, known = len(rows), len(summary["environments"])
    form, worst = MetricFormat.in_words(unseen["metric"]), None if family is None else family["expected"]["worst"]
    name = next((row["name"] for row in rows if row["chosen"] == worst and worst is not None), "")
    if unseen["left_out"] == "in order":
        times = several(n, "time") if n == known - 2 else f"{several(n, 'group')} ({known - 2} times in all)"
        how = f"Each of {times} was predicted by models of what came before it"
    elif unseen["left_out"] == "blocks of aux":
        how = f"Models were trained without each of {several(n, 'block')} of {(summary['data']['aux'] or ['aux'])[0]}"
    elif n == known:
        how = f"Models were trained without each of the {n} environments and scored there"
    else:
        how = f"Models were trained without each of {several(n, 'group')} of the {known} environments and scored there"
        name = ""
    which = f" ({place(name, summary)})" if name and unseen["left_out"] != "blocks of aux" else ""
    text = f"{how}; the worst{which} had {form.with_unit(worst)}."
    if unseen["metric"] != summary["metric"]:
        return text
    return f"{text} Held-out rows of known environments have {form.with_unit(known_mean(summary))} on average."


def _missing(unseen: NewEnvironment) -> str:
    """Classes that nobody could have learned."""
    family = taken(unseen)
    missing = [f"{row['missing']} (in {row['name']})" for row in (family or {"environments": []})["environments"]
               if row["missing"]]  # fmt: skip
    if not missing:
        return ""
    which = "did not come before" if unseen["left_out"] == "in order" else "no other environment has"
    return f" Rows of a class that {which} are always predicted wrong there: {'; '.join(missing)}."


def _why_unknown(unseen: NewEnvironment | None) -> str:
    if unseen is None:
        return "the model was written by a version that did not estimate it"
    if unseen["expected"] is not None:
        return "the estimate is not a number"
    return unseen["message"].partition(": ")[2].rstrip(".") or "no environment was left out"


def _known(summary: FitSummary) -> str:
    """What the chosen model has on held-out rows, from the worst to the best environment."""
    form = MetricFormat.in_words(summary["metric"])
    ends = extremes(summary, "chosen")
    if len(ends) < 2:
        value = form.with_unit(summary["overall"]["chosen"]["value"])
        return f"On rows that were held out of training {form.words} is {value}."
    worst, best = (f"{form.with_unit(row['chosen']['value'])} ({place(row['name'], summary)})" for row in ends)
    return f"In the known environments {form.words} on held-out rows goes from {worst} to {best}."
