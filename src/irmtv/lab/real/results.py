"""What the records of one split say together: the family that is picked, the choice, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from irmtv.lab.real.measure import OURS, SCIKIT_LEARN
from irmtv.lab.real.scores import covers, higher_is_better, interval_score

Verdict = Literal["helped", "kept plain", "no difference", "harmed", "harmed by 2 se"]
VERDICTS: Mapping[Verdict, str] = {
    "helped": "better by more than one standard error",
    "kept plain": "the plain model was kept",
    "no difference": "within one standard error",
    "harmed": "worse by more than one standard error, at most two",
    "harmed by 2 se": "worse by more than two standard errors",
}
INTERVALS = {"expected": "left-out environments", "expected_held_out": "held-out rows"}


@dataclass(frozen=True)
class IntervalResult:
    """How an interval did in one unseen environment."""

    environment: str
    value: float
    low: float
    high: float
    covered: bool
    score: float  # Winkler's

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class SplitResult:
    """One split with one seed of the folds."""

    table: str
    split: str
    seed: int
    families: Mapping[str, Mapping[str, Any]]  # records of ours, by family
    baselines: Mapping[str, Any] | None  # scikit-learn's, by the family that each is like

    @property
    def label(self) -> str:
        return f"{self.table}: {self.split}"

    @property
    def any(self) -> Mapping[str, Any]:
        """A record, for what all have in common."""
        return next(iter(self.families.values()))

    @property
    def metric(self) -> str:
        return str(self.any["metric"])

    @property
    def higher(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def picked(self) -> str:
        """The family whose ERM did best in left-out training environments (with two: on their held-out rows)."""
        by_left_out = all(record["left_out"] is not None for record in self.families.values())
        of = {f: r["left_out" if by_left_out else "held_out"]["plain"] for f, r in self.families.items()}
        sign = 1 if self.higher else -1
        return max((f for f in OURS if f in of), key=lambda f: sign * float(of[f]))

    @property
    def choice(self) -> Mapping[str, Any]:
        """The record of the family that is picked."""
        return self.families[self.picked]

    @property
    def verdict(self) -> Verdict:
        return self.verdict_in(self.picked)

    def verdict_in(self, family: str) -> Verdict:
        """What the rule did to a family, whether or not it is picked."""
        record = self.families[family]
        return verdict_of(record["gain"], record["se"], record["kept_plain"])

    @property
    def oracle(self) -> float:
        """The best of ours, plain and chosen, on the unseen rows: chosen by looking at them."""
        scores = [record[model]["score"] for record in self.families.values() for model in ("plain", "chosen")]
        return float(max(scores) if self.higher else min(scores))

    @property
    def worst(self) -> float:
        """Of the choice in the worst unseen environment."""
        scores = self.choice["chosen"]["by_environment"].values()
        return float(min(scores) if self.higher else max(scores))

    def score(self, family: str, model: str = "plain") -> float | None:
        record = self.families.get(family)
        return None if record is None else float(record[model]["score"])

    def baseline(self, family: str) -> float | None:
        return None if self.baselines is None else float(self.baselines[family]["score"])

    def intervals(self, name: str) -> list[IntervalResult]:
        """Of an interval ("expected" or "expected_held_out"), in every unseen environment; none where there is none."""
        given = self.choice[name]
        if given is None:
            return []
        low, high = float(given["low"]), float(given["high"])
        return [
            IntervalResult(e, v, low, high, covers(low, high, v), interval_score(low, high, v, given["coverage"]))
            for e, v in self.choice["chosen"]["by_environment"].items()
        ]


def verdict_of(gain: float, se: float, kept_plain: bool) -> Verdict:
    """What a choice did, in standard errors of its gain.

    >>> [verdict_of(gain, 1.0, False) for gain in (1.5, -0.5, -1.5, -2.5)]
    ['helped', 'no difference', 'harmed', 'harmed by 2 se']
    """
    if kept_plain:
        return "kept plain"
    if gain > se:
        return "helped"
    if gain < -2 * se:
        return "harmed by 2 se"
    return "harmed" if gain < -se else "no difference"


def split_results(records: Sequence[Mapping[str, Any]]) -> list[SplitResult]:
    """One result for every split and seed that one of our families was measured on, in the order of the records."""
    ours: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    baselines: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in records:
        if record["family"] == SCIKIT_LEARN:
            baselines[record["table"], record["split"]] = record["models"]
        else:
            key = (record["table"], record["split"], record["seed"])
            ours.setdefault(key, {})[record["family"]] = record
    return [SplitResult(*key, families, baselines.get(key[:2])) for key, families in ours.items()]


def coverage(results: Sequence[SplitResult], name: str) -> tuple[int, int]:
    """In how many unseen environments the interval held, and of how many."""
    each = [interval.covered for result in results for interval in result.intervals(name)]
    return sum(each), len(each)


def mean(values: Sequence[float | None]) -> float | None:
    """Of numbers; None where one is missing."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known and len(known) == len(values) else None
