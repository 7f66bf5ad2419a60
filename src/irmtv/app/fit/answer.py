"""The answer of a fit in three paragraphs: what to expect in a new environment, what was chosen, what to do next.

The one place where these are written: the terminal, the page and the JSON show them as they are. Everything is said of
the numbers in the summary, so that old files have an answer too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.app.fit.comparing import (
    against,
    asked_for_erm,
    better_or_worse,
    erm_is_kept,
    extremes,
    falls_elsewhere,
    left_out_difference,
    loss_differs,
    rule_figures,
    taken,
    worse_on_test,
)
from irmtv.app.fit.expectation import expect, place
from irmtv.app.fit.next_step import diagnose_command, next_step
from irmtv.app.fit.summary import Answer, FitSummary
from irmtv.core.numbers import MetricFormat, several
from irmtv.core.outcomes import Outcome
from irmtv.selection.options import DEFAULTS
from irmtv.selection.wording import SAME_DIRECTION

PLAIN = "The plain model is kept"
KINDS = {"linear": "a linear model", "mlp": "a network", "trees": "boosted trees"}
CONFIRMED: Mapping[Outcome, str] = {
    "erm-invariant": f"{PLAIN}: it is already invariant",
    "invariant-found": "An invariant model was chosen",
}
TITLES: Mapping[Outcome, str] = {
    "erm-invariant": f"{PLAIN}: nothing was found against it",
    "erm-kept": PLAIN,
    "invariant-found": "Another model was chosen, with a warning",
    "none-found": f"{PLAIN}, with a warning",
}


def answer(summary: FitSummary) -> Answer:
    """What to expect, what was chosen, and what to do next."""
    kind = _kind(summary)
    command = diagnose_command(summary)
    return {
        "title": _title(summary, kind),
        "kind": kind,
        "expect": expect(summary),
        "choice": _choice(summary),
        "next": next_step(summary, kind, command),
        "command": command,
    }


# --- colour and title ---------------------------------------------------------------------------------------


def _kind(summary: FitSummary) -> Any:
    """Good where something was confirmed, partly where there is a warning, else plain."""
    outcome, figures = summary["outcome"], rule_figures(summary)
    if outcome is None or asked_for_erm(summary):
        return "plain"
    if outcome == "none-found" or figures.get("contradicted") or falls_elsewhere(summary) or worse_on_test(summary):
        return "partly"
    if outcome == "invariant-found":
        return "good" if _confirmed(summary) else "partly"
    look = summary.get("first_look")
    quiet = not loss_differs(summary) and not (look is not None and look["telling"])  # else a new one may be unlike
    return "good" if outcome == "erm-invariant" and figures.get("detectable") is not None and quiet else "plain"


def _confirmed(summary: FitSummary) -> bool:
    """Whether the other half of the folds, or environments that were left out, bear the choice out; none denies it."""
    form = MetricFormat.in_words(summary["metric"])
    row = summary["worst"] if len(summary["environments"]) > 1 else summary["overall"]
    there, worst = left_out_difference(summary), better_or_worse(row, summary["greater_is_better"], form)
    everywhere = better_or_worse(summary["overall"], summary["greater_is_better"], form)
    figures = rule_figures(summary)
    p = figures.get("p_halves") if figures.get("p_confirmed") is None else figures["p_confirmed"]
    if (p is not None and p < DEFAULTS["level"]) or there == "worse" or worst == everywhere == "worse":
        return False
    return there == "better" or (worst == "better" and p is not None)


def _title(summary: FitSummary, kind: str) -> str:
    outcome = summary["outcome"]
    if asked_for_erm(summary):
        return "A plain model, as asked for"
    if outcome is None:
        return f"Chosen by the rule {summary['rule']}"
    if kind == "good":
        return CONFIRMED[outcome]
    return TITLES["none-found" if kind == "partly" and outcome != "invariant-found" else outcome]


# --- what was chosen ----------------------------------------------------------------------------------------


def _choice(summary: FitSummary) -> str:
    """What was chosen and why, and where it is better or worse than the plain model."""
    outcome = summary["outcome"]
    if asked_for_erm(summary):
        return (
            f"A plain model was asked for and trained ({model_words(summary['model'])}). {_of_asked(summary)}".strip()
        )
    if outcome is None:
        return f"The rule {summary['rule']!r} chose {chosen_words(summary)}. {_compared(summary)}"
    if outcome == "invariant-found":
        return f"{_why_found(summary)} {_compared(summary)}{_unconfirmed(summary)}{_falls(summary)}"
    return f"{_why_kept(summary)}{_still_differs(summary)}{_falls(summary)}"


def _falls(summary: FitSummary) -> str:
    """That held-out scores promise too much, where other words do not say it."""
    if not falls_elsewhere(summary) or rule_figures(summary).get("contradicted"):
        return ""
    return (
        " In environments that training left out it does clearly worse than in known ones: count on the first number, "
        "not on held-out scores."
    )


def _why_found(summary: FitSummary) -> str:
    more = ""
    if rule_figures(summary).get("test") == "left-out":
        why = "that does better where it was not trained than the plain model"
    elif rule_figures(summary).get("test") in ("slopes", "columns"):
        why = (
            "that uses the features in a way that suits every environment alike (an invariant model), which the plain "
            "model does not"
        )
        more = " Some environments stay harder to predict than others."
    else:
        why = "that holds in every environment alike (an invariant model), which the plain model does not"
    return f"A model was found {why}, and it is chosen: {chosen_words(summary)}.{more}"


def _compared(summary: FitSummary) -> str:
    """Better or worse than the plain model, and where; every word by the numbers beside it."""
    if erm_is_kept(summary):
        return "It predicts as the plain model does."
    form, greater = MetricFormat.in_words(summary["metric"]), summary["greater_is_better"]
    overall = better_or_worse(summary["overall"], greater, form)
    than = "as" if overall == "about as good" else "than"
    parts = [f"{overall} {than} the plain model over all rows ({against(summary['overall'], form)})"]
    if len(summary["environments"]) > 1:
        worst = better_or_worse(summary["worst"], greater, form)
        parts.append(f"{worst} in the worst environment ({against(summary['worst'], form)})")
    known = f"By {form.words} on held-out rows of known environments it is {' and '.join(parts)}."
    return f"{_compared_elsewhere(summary)}{known}"


def _compared_elsewhere(summary: FitSummary) -> str:
    word, unseen = left_out_difference(summary), summary.get("new_environment")
    family = None if unseen is None else taken(unseen)
    if word is None or unseen is None or family is None:
        return ""
    form = MetricFormat.in_words(unseen["metric"])
    chosen, plain = (form.with_unit(family[key]["mean"]) for key in ("expected", "plain_expected"))
    than = "as" if word == "about as good" else "than"
    where = f"By {form.words} in environments that training left out it is"
    return f"{where} {word} {than} the plain model on average ({chosen} against {plain}). "


def _unconfirmed(summary: FitSummary) -> str:
    """Why there is a warning, where the comparison before does not say it."""
    figures = rule_figures(summary)
    p = figures.get("p_halves") if figures.get("p_confirmed") is None else figures["p_confirmed"]
    if p is not None and p < DEFAULTS["level"]:
        return " This is not confirmed: what one half of the rows chooses, the other half does not bear out."
    if p is None and left_out_difference(summary) is None:
        return " This could not be confirmed on rows that did not choose it."
    return ""


def _why_kept(summary: FitSummary) -> str:
    """The plain model, and what speaks for it or against it."""
    figures, target = rule_figures(summary), summary["data"]["target"]
    kept = summary["outcome"] == "erm-kept"
    if kept and figures.get("contradicted"):
        return (
            f"{PLAIN}, with a warning: on known environments nothing was found against it, but its loss is much higher "
            "in environments that it was not trained on, and no other model wins that back."
        )
    if kept and figures.get("blind"):
        return f"{PLAIN}: nothing was found against it, but these rows could not have shown much."
    limit = summary["settings"].get("max price")
    if summary["outcome"] == "none-found" and limit is not None and figures.get("not_paying"):
        return (
            f"{PLAIN}, with a warning: how the features go with {target} differs between environments, and "
            f"{several(figures['not_paying'], 'model')} that may hold in all of them cost more than your limit on the "
            f"price allows ({100 * limit:g} % more loss)."
        )
    if summary["outcome"] == "none-found":
        return (
            f"{PLAIN}, with a warning: how the features go with {target} differs between environments, and none of the "
            "other models that were tried holds in all of them and predicts well enough."
        )
    if kept and figures.get("own_gain") is not None:
        same = (figures.get("p_own") or 0) >= SAME_DIRECTION
        if not same and figures.get("toward"):
            return f"{PLAIN}: environments differ, but these rows do not show clearly that another model suits them."
        if not same:
            return (
                f"{PLAIN}: environments differ, but nothing shows that a model of its own would gain any of them much, "
                "so there is little for another model to win."
            )
        return (
            f"{PLAIN}: environments differ in how noisy they are or in how frequent the values of {target} are, but "
            "each of them would choose the same model, apart from how sure it is, so another one would not help."
        )
    if kept:
        return f"{PLAIN}: environments differ, but nothing shows that another model would do better."
    shown = ""
    if figures.get("detectable") is not None:
        shown = ", and they would have shown a difference that matters"
    return f"{PLAIN}: the features go with {target} alike in every environment, as far as these rows show{shown}."


def _still_differs(summary: FitSummary) -> str:
    """That the plain model predicts some environments better than others, where the words before do not say it."""
    if not loss_differs(summary) or summary["outcome"] == "none-found":
        return ""
    form, ends = MetricFormat.in_words(summary["metric"]), extremes(summary, "erm")
    values = [form.with_unit(row["erm"]["value"]) for row in ends]
    if len(values) < 2 or values[0] == values[1] or _range_is_said(summary):
        return " It predicts some environments better than others."
    worst, best = (f"{value} in {place(row['name'], summary)}" for value, row in zip(values, ends, strict=True))
    return f" It predicts some environments better than others: {form.words} {worst}, {best}."


def _range_is_said(summary: FitSummary) -> bool:
    """Whether the first paragraph has the scores of the known environments."""
    unseen = summary.get("new_environment")
    return unseen is None or unseen["expected"] is None or unseen["expected"]["mean"] is None


def _of_asked(summary: FitSummary) -> str:
    """Of a plain model that was asked for: what the test says of it."""
    if len(summary["environments"]) < 2 or summary["outcome"] is None:
        return "No model with a penalty on differences was tried."
    if summary["outcome"] == "none-found":
        return (
            f"How the features go with {summary['data']['target']} differs between environments; whether another model "
            "would hold in all of them was not tried."
        )
    return f"No model with a penalty on differences was tried.{_still_differs(summary)}{_falls(summary)}"


def model_words(model: str) -> str:
    """A kind of model in words: "linear", "mlp 32" and "trees (12 leaves)" are names of ours.

    >>> model_words("linear"), model_words("trees (12 leaves)")
    ('a linear model', 'boosted trees')
    """
    return KINDS.get(model.partition(" ")[0], model)


def chosen_words(summary: FitSummary) -> str:
    """The chosen model, and its penalty."""
    point = next((point for point in summary["path"] if point["chosen"]), None)
    if point is None or not point["penalty_weight"]:
        return model_words(summary["model"])
    of = point.get("objective", summary["objective"])
    if of == "eills":
        chosen = f"columns, or mixtures of them, that go with {summary['data']['target']} alike in every environment"
        return f"{model_words(summary['model'])} of {chosen} (eills)"
    return f"{model_words(summary['model'])} with a penalty on differences ({of}, weight {point['penalty_weight']:g})"
