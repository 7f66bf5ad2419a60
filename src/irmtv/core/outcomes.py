"""The outcomes of the rule "invariance", and what each is called. Sentences with numbers are made where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Outcome = Literal["erm-invariant", "erm-kept", "invariant-found", "none-found"]


class OutcomeWords(NamedTuple):
    """An outcome as a title (the badge of a page, the headline of a fit), in a legend, and in a cell of a table."""

    title: str
    legend: str
    short: str


OUTCOMES: Mapping[Outcome, OutcomeWords] = {
    "erm-invariant": OutcomeWords("ERM is already invariant", "ERM is invariant and was kept", "ERM kept"),
    "erm-kept": OutcomeWords("ERM is kept", "nothing speaks for another model, ERM was kept", "ERM kept (open)"),
    "invariant-found": OutcomeWords("An invariant model was found", "an invariant model was found", "found"),
    "none-found": OutcomeWords("No invariant model was found", "none was found, ERM was kept", "none"),
}


KEEP_ERM: tuple[Outcome, ...] = ("erm-invariant", "erm-kept", "none-found")  # what is chosen is ERM


def short_outcome(outcome: str) -> str:
    """For a cell of a table; an outcome that is not known as it is."""
    return next((words.short for known, words in OUTCOMES.items() if known == outcome), outcome)
