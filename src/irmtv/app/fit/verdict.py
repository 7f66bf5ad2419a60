"""What scores on other rows mean: against what `fit` expected in a new environment, or measured in a known one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot
from typing import Any, Literal, TypedDict, cast

from irmtv.app.fit.comparing import taken
from irmtv.app.fit.expectation import named_place, says_nothing
from irmtv.app.fit.summary import NewEnvironment
from irmtv.core.numbers import Estimate, MetricFormat, listed, several
from irmtv.metrics.definitions import as_metric

Word = Literal["worse", "perhaps worse", "as expected", "better", "unknown"]
Z = 1.96  # a 95 % interval is so many standard errors each way
MOST_NAMED = 4


class Score(TypedDict):
    """A score in one environment; low and high are its 95 % interval, None where there are too few rows."""

    environment: str
    rows: int
    value: float | None
    low: float | None
    high: float | None


class Verdict(TypedDict):
    """Sentences, and a word for every environment in the order of the scores."""

    sentences: list[str]
    words: list[Word]


class _Reference:
    """What the model's file says of scores: by known environment, and expected in a new one."""

    def __init__(self, about: Mapping[str, Any], places: Sequence[str]) -> None:
        self.form = MetricFormat.in_words(about["metric"])
        self.greater: bool = about.get("greater_is_better", as_metric(about["metric"]).greater_is_better)
        rows = about.get("environments") or []
        self.training: dict[str, Estimate] = {row["name"]: row["chosen"] for row in rows}
        same = about.get("data", {}).get("environment") == list(places)
        self.known: dict[str, Estimate] = self.training if same and places else {}
        unseen = about.get("new_environment") or {}
        expected = unseen.get("expected") if unseen.get("metric") == about["metric"] else None
        self.why = str(unseen.get("message") or "").partition(": ")[2].rstrip(".")
        self.left_out: list[float] = []  # scores of environments that models were trained without
        if expected and says_nothing(cast(NewEnvironment, unseen)):
            expected, self.why = None, "too few environments for an interval"
            family = taken(cast(NewEnvironment, unseen)) if "families" in unseen else None
            left_out = [] if family is None else [row["chosen"] for row in family["environments"]]
            self.left_out = [value for value in left_out if value is not None]
        self.expected = expected if expected and None not in (expected["low"], expected["high"]) else None
        self.coverage: float = unseen.get("coverage", 0.9)
        self.columns = list(about.get("data", {}).get("environment") or [])

    def name(self, score: Score) -> str:
        """An environment in a sentence: a bare number gets the name of its column before it."""
        return named_place(score["environment"], self.columns)

    def shown(self, value: float | None) -> str:
        return self.form.with_unit(value)

    @property
    def interval(self) -> str:
        assert self.expected is not None
        return f"{self.shown(self.expected['low'])} to {self.shown(self.expected['high'])}"


def verdict(about: Mapping[str, Any], metric: str, places: Sequence[str], scores: Sequence[Score]) -> Verdict:
    """Whether the scores are what training promised.

    Parameters
    ----------
    about : what the model file says of its training (`FitSummary`); may be empty, or of an older version.
    metric : of the scores.
    places : columns that name the environments of the scores; none where all rows are one.
    scores : by environment.
    """
    unknown: list[Word] = ["unknown"] * len(scores)
    if not about.get("metric") or not about.get("environments"):
        none = "Nothing to compare with: the model file does not say how well the model did in training."
        return {"sentences": [none], "words": unknown}
    if about["metric"] != metric:
        before, now = (MetricFormat.in_words(name).words for name in (about["metric"], metric))
        other = f"the model was measured by {before} in training, not by {now}"
        return {
            "sentences": [f"Nothing to compare with: {other}. Use --metric {about['metric']} for a verdict."],
            "words": unknown,
        }
    reference = _Reference(about, places)
    new = [score for score in scores if score["environment"] not in reference.known]
    known = [score for score in scores if score["environment"] in reference.known]
    words = {id(score): _word(reference, score) for score in scores}
    sentences = _of_new(reference, new, [words[id(s)] for s in new], bool(places)) if new else []
    sentences += _of_known(reference, known, [words[id(s)] for s in known]) if known else []
    return {"sentences": sentences, "words": [words[id(score)] for score in scores]}


# --- a word for one environment -----------------------------------------------------------------------------


def _word(reference: _Reference, score: Score) -> Word:
    if score["value"] is None:
        return "unknown"
    if score["environment"] in reference.known:
        return _against_training(reference, score, reference.known[score["environment"]])
    low, high = _range(reference)
    if low is None or high is None:
        return "unknown"
    bad, good = (low, high) if reference.greater else (high, low)
    sign = 1 if reference.greater else -1
    value = score["value"]
    if reference.shown(value) in (reference.shown(bad), reference.shown(good)):
        return "as expected"
    if sign * (value - bad) < 0:
        best = score["high"] if reference.greater else score["low"]  # that chance leaves open
        return "worse" if best is not None and sign * (best - bad) < 0 else "perhaps worse"
    least = score["low"] if reference.greater else score["high"]
    return "better" if least is not None and sign * (least - good) > 0 else "as expected"


def _range(reference: _Reference) -> tuple[float | None, float | None]:
    """Expected in a new environment; where that is not stored, what the known ones had, left out if they were."""
    if reference.expected is not None:
        return reference.expected["low"], reference.expected["high"]
    if reference.left_out:
        return min(reference.left_out), max(reference.left_out)
    values = [e["value"] for e in reference.training.values() if e["value"] is not None]
    return (min(values), max(values)) if values else (None, None)


def _against_training(reference: _Reference, score: Score, before: Estimate) -> Word:
    """By the difference of both, in its standard errors; without them nothing can be said."""
    if before["value"] is None or score["value"] is None:
        return "unknown"
    ends = (score["low"], score["high"], before.get("low"), before.get("high"))
    if None in ends or reference.shown(score["value"]) == reference.shown(before["value"]):
        return "as expected" if None not in ends else "unknown"
    low, high, low_before, high_before = (float(end) for end in ends if end is not None)
    difference = (score["value"] - before["value"]) * (1 if reference.greater else -1)
    if abs(difference) <= Z * hypot((high - low) / (2 * Z), (high_before - low_before) / (2 * Z)):
        return "as expected"
    return "better" if difference > 0 else "worse"


# --- sentences ----------------------------------------------------------------------------------------------


def _named(reference: _Reference, scores: Sequence[Score]) -> str:
    """Environments with their scores, the first few."""
    few = [f"{reference.name(score)} ({reference.shown(score['value'])})" for score in scores[:MOST_NAMED]]
    return listed([*few, f"{len(scores) - MOST_NAMED} more"] if len(scores) > MOST_NAMED else few)


def _of_new(reference: _Reference, scores: Sequence[Score], words: Sequence[Word], named: bool) -> list[str]:
    """Environments that training has not seen."""
    valued = [(score, word) for score, word in zip(scores, words, strict=True) if word != "unknown"]
    if not valued:
        return ["No verdict: there is no score to compare."]
    basis = _basis(reference)
    if len(valued) == 1:
        score, word = valued[0]
        return [*basis[1:], _of_one(reference, score, word, basis[0], named)]
    sentences = list(basis[1:])
    below, above = ("below", "above") if reference.greater else ("above", "below")
    for word, where, means in (
        ("worse", f"{below} {basis[0]}", "unlike those in training"),
        ("perhaps worse", f"{below} {basis[0]}", "though that may be chance"),
        ("better", f"{above} {basis[0]}", "easier than those in training"),
        ("as expected", f"within {basis[0]}, up to noise", ""),
    ):
        some = [score for score, of in valued if of == word]
        if not some:
            continue
        verb = "is" if len(some) == 1 else "are"
        which = f": {_named(reference, some)}{f', {means}' if means else ''}" if means else ""
        sentences.append(f"{_count(some, valued, 'new')} {verb} {where}{which}.")
    if missing := len(scores) - len(valued):
        sentences.append(f"{several(missing, 'new environment')} {'has' if missing == 1 else 'have'} no score.")
    return sentences


def _count(some: Sequence[Any], of: Sequence[Any], kind: str) -> str:
    """How many environments: "Both new environments", "All 3 known environments", "1 of 3 new environments"."""
    if len(some) == len(of) == 2:
        return f"Both {kind} environments"
    return f"{'All' if len(some) == len(of) else f'{len(some)} of'} {several(len(of), f'{kind} environment')}"


def _before(reference: _Reference, score: Score) -> str:
    return reference.shown(reference.known[score["environment"]]["value"])


def _basis(reference: _Reference) -> list[str]:
    """What is compared with, and first a sentence where that is not what it should be."""
    if reference.expected is not None:
        share = f"{100 * reference.coverage:.0f} %"
        return [f"the {share} interval of what was expected in a new environment, {reference.interval}"]
    low, high = _range(reference)
    if reference.left_out:
        each = several(len(reference.left_out), "environment")
        said = f"{each} are too few for an interval for a new one; their range when left out stands in for it."
        left_out = "what environments had that models were trained without"
        return [f"{left_out}, {reference.shown(low)} to {reference.shown(high)}", said]
    why = f" ({reference.why})" if reference.why else ""
    said = f"What to expect in a new environment is not known{why}; training scores stand in for it."
    if len(reference.training) == 1:
        return [f"what held-out rows had in training, {reference.shown(low)}", said]
    held_out = f"what the known environments had on held-out rows, {reference.shown(low)} to {reference.shown(high)}"
    return [held_out, said]


def _of_one(reference: _Reference, score: Score, word: Word, basis: str, named: bool) -> str:
    value, this = reference.shown(score["value"]), "this environment is" if named else "these rows are"
    below, above = ("below", "above") if reference.greater else ("above", "below")
    if word == "worse":
        return f"{value} is {below} {basis}: {this} unlike those in training."
    if word == "perhaps worse":
        ends = (score["low"], score["high"])
        interval = "" if None in ends else f" (95 % interval {reference.shown(ends[0])} to {reference.shown(ends[1])})"
        return f"{value} is {below} {basis}, but with {several(score['rows'], 'row')}{interval} that may be chance."
    if word == "better":
        return f"{value} is {above} {basis}: {this} easier than those in training."
    low, high = _range(reference)
    inside = low is None or high is None or low <= (score["value"] or 0.0) <= high
    if inside or value in (reference.shown(low), reference.shown(high)):
        return f"{value} is within {basis}."
    return f"{value} is {above} {basis}, but that may be chance."


def _of_known(reference: _Reference, scores: Sequence[Score], words: Sequence[Word]) -> list[str]:
    """Environments of training: as they were, or changed."""
    sentences = []
    valued = [(score, word) for score, word in zip(scores, words, strict=True) if word != "unknown"]
    for word, means in (("worse", "changed since."), ("better", "are these the rows of training?")):
        some = [score for score, of in valued if of == word]
        told = [f"{reference.shown(s['value'])}, where held-out rows had {_before(reference, s)}" for s in some]
        if len(some) == 1:
            has = "it has " if word == "worse" else ""
            known = f"{reference.name(some[0])} is known from training and {word} than there"
            sentences.append(f"{known}: {told[0]}; {has}{means}")
        elif some:
            has = "they have " if word == "worse" else ""
            each = [f"{reference.name(s)} ({one})" for s, one in zip(some, told, strict=True)][:MOST_NAMED]
            more = [f"{len(some) - MOST_NAMED} more"] if len(some) > MOST_NAMED else []
            which = f"{_count(some, scores, 'known')} are {word} than in training: {listed([*each, *more])}"
            sentences.append(f"{which}; {has}{means}")
    same = [score for score, word in valued if word == "as expected"]
    if same and len(scores) == 1:
        sentences.append(f"{reference.name(same[0])} is known from training and as it was there, up to noise.")
    elif same:
        are = "is as it was" if len(same) == 1 else "are as they were"
        sentences.append(f"{_count(same, scores, 'known')} {are} in training, up to noise.")
    if len(valued) < len(scores):
        missing = len(scores) - len(valued)
        sentences.append(f"{several(missing, 'known environment')} cannot be compared: there is no interval.")
    return sentences
