"""The `invariance` rule: is a model invariant over the environments, and what does that cost?

A candidate is tested on rows that were held out: are its mean slopes equal over the environments (one scale of
its logits is then right for all of them), and are its risks equal? Among those that are not rejected the one with
the lowest extrapolated risk is taken,

    risk + reach * (how far the risks of the environments lie apart, beyond noise):

what it would be where the next environment lies `reach` times as far away as these lie from each other.

Why not simply the lowest risk of those that are not rejected: risk falls with every spurious feature, so that choice
sits at the edge of rejection, and of many candidates it takes the one whose noise hides most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.outcomes import Outcome
from irmtv.core.plain_json import finite, plain_json
from irmtv.selection.records import Records
from irmtv.selection.views import MIN_ROWS, View, extrapolated_risk, lowest, over_columns, price
from irmtv.selection.wording import message

TESTS = ("both", "risks", "slopes", "columns", "zero-slopes")
STEADY = 0.001  # p-value of a choice on half of the folds (twice the smaller one) below which it is not taken
AGAINST = 3.0  # standard errors (over left-out environments) by which an invariant candidate may be worse there
FAR_WORSE = 0.4  # mean logarithm of what its risk is there, in units of ERM's, for a model that is not confirmed
DEARER = 3.0  # times the price of equal slopes that equal slopes in every column may cost
LOST, WON_BACK = 0.25, 0.5  # share of its gain that ERM loses where left out; share of that loss that must be won back
ALL = 1.0  # the share that it must lose where nothing else speaks against it: base rates alone cost it some
STRONG = 2e-3  # p-value of ERM, by its slopes, below which another model may cost more than next to nothing
FURTHEST = 3.0  # how far out the next environment may have to be for a dear model to pay, in units of their spread
CHEAP = 0.9  # share of ERM's gain that a model keeps which costs next to nothing
SEEN = 0.25  # share of ERM's gain that a variation over columns must have to matter
DEFAULTS: Mapping[str, Any] = {
    "test": "both", "level": 0.01, "own_level": 0.35, "reach": 10.0, "slack": 0.5, "min_gain": 0.25,
    "max_price": float("inf"),
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Which candidate, why, and the figures behind it."""

    index: int
    outcome: Outcome
    figures: Mapping[str, Any]
    message: str


def invariance(records: Records, **options: Any) -> Verdict:
    """Keep ERM where it is invariant already; else the best invariant candidate; else ERM, with a warning.

    Evidence, in this order (with test="both"):

    1. ERM's slopes are equal over the environments, of linear models in every column: "erm-invariant", or "erm-kept"
       where the test could not have seen much. Or no environment's own model is better than ERM: "erm-kept".
    2. A candidate has equal slopes and equal risks.
    3. Where noise or base rates differ no useful model has equal risks. Then one that is no worse in left-out
       environments: a linear model with equal slopes in every column; else equal slopes (without left-out environments:
       if its risk + reach * spread of the risks is below that of ERM).
    4. Where ERM loses much in environments that were left out of training, a candidate that wins back half of it. If
       nothing else speaks against ERM, it must lose there all that it gains over a constant.

    What is taken by 2 or 3 must pass on each half of the folds alone, and not be far worse where left out (less so
    where a choice on one half is refuted by the other; of linear models their columns tell more). Where ERM's slopes
    fail by little, or where it would pay only very far out, it may cost next to nothing. Where a linear model fails 1
    in its columns, but no own model is better, one that costs next to nothing is taken, too. `figures["p_confirmed"]`
    is of a choice on half of the folds that the other half tests: a low one says that the choice hangs by a thread.

    Options
    -------
    test : "both" (the above; default), or one test alone: "risks", "slopes", "columns" (linear models), or
        "zero-slopes" (the condition of IRM itself; a model that overfits fails it in every environment alike).
        `figures["test"]` says which one decided.
    level : a candidate with a p-value below it is not invariant. Default 0.01.
    own_level : ERM is kept, too, where no environment's own model predicts it better than ERM rescaled to it does, at
        this level (default 0.35): the environments then differ in noise, not in what predicts. Keeping ERM wrongly
        costs more than looking further, so the level is generous. Of linear models, where rows are enough, it is asked
        instead whether all environments would choose the same direction (`selection.directions`, and what
        own models would gain must be worth something). 1 leaves this out; it needs `records.own` or `.directions`.
    reach, slack : of those that pass, the lowest risk + reach * spread is taken, where `spread` is how far risks (with
        test="slopes" or "zero-slopes": slopes) of environments lie apart beyond `slack` standard errors. This is what
        keeps a choice among many candidates from being the luckiest one. Defaults 10 and 0.5.
    min_gain : share of ERM's gain over a constant prediction that a candidate must keep. A model that predicts
        nothing has equal risks everywhere. Default 0.25.
    max_price : how much further out than the training environments lie apart the next one may have to be for a
        candidate to pay (`figures["pays_at"]`): its worst risk must be at most ERM's worst + max_price * how far ERM's
        risks lie apart. Default: no limit; what is dear here may pay where the next environment is far away. 1 for
        environments to come that are like those of training.
    """
    check_options(**options)
    if records.risk.shape[-1] < 2:
        raise ValueError(
            f"rule 'invariance' compares environments and needs at least 2. Got {records.risk.shape[-1]}; use 'iid'."
        )
    o = {**DEFAULTS, **options}
    case = _Case(records, o)
    whole = case.view(o["test"])
    if whole.erm is None and records.inferred:
        alone = lowest(whole.risk, whole.risk.isfinite() & records.reference)
        if alone is not None:
            return _nothing_to_compare(alone, whole, records, o)
    if whole.erm is None:
        raise ValueError(
            "rule 'invariance' needs a candidate of ERM that was measured in two or more "
            f"environments, at least {MIN_ROWS} rows of each. Got none: train 'erm' (or penalty_weight=0) too, on rows "
            "whose environments are known, and merge environments that are too small."
        )
    found = case.by_all() if o["test"] == "both" else case.by_one()
    figures = case.figures(found)
    return Verdict(found.candidate, found.outcome, figures, message(found.outcome, figures, o))


class _Found(NamedTuple):
    candidate: int
    outcome: Outcome
    test: str  # what decided
    p_confirmed: float | None = None  # of a choice on half of the folds, tested on the other
    p_halves: float | None = None  # of this choice on each half of the folds
    blind: bool = False  # whether the test could not have seen what would matter


class _Case:
    """The records, seen with one test or another."""

    def __init__(self, records: Records, o: Mapping[str, Any]) -> None:
        self.records, self.o = records, o
        self.pooled = records.pooled()
        self.views: dict[str, View] = {}
        self.refused = 0  # candidates with equal slopes that something speaks against
        self.why_refused: str | None = None  # why the first choice was not taken: one of wording.REFUSED

    def view(self, test: str) -> View:
        if test not in self.views:
            self.views[test] = View.of(self.pooled, self.records, {**self.o, "test": test})
        return self.views[test]

    @property
    def erm(self) -> int:
        erm = self.view(self.o["test"]).erm
        assert erm is not None
        return erm

    def by_one(self) -> _Found:
        """The rule with one test."""
        test = self.o["test"]
        view = self.view(test)
        if float(view.p[self.erm]) >= self.o["level"]:
            return _Found(self.erm, "erm-invariant", test)
        if view.alike:
            return _Found(self.erm, "erm-kept", test)
        if view.choice is None:
            return _Found(self.erm, "none-found", test)
        return _Found(view.choice, "invariant-found", test, self._confirmed(test))

    def by_all(self) -> _Found:
        columns = self.pooled.column_slope is not None
        both, level = self.view("both"), self.o["level"]
        p_erm = self._p_slopes if columns else float(both.p[self.erm])
        if not p_erm < level:
            blind = _Found(self.erm, "erm-kept", "both", blind=True)
            kept = _Found(self.erm, "erm-invariant", "both") if self._sees_enough() else blind
            return self._won_back(ALL) or kept
        if both.alike:
            cheap = None
            if columns and float(self.view("columns").p[self.erm]) < STRONG:
                cheap = self._taken("columns", self._choice(self.view("columns"), CHEAP), CHEAP)
            return self._won_back(ALL) or cheap or _Found(self.erm, "erm-kept", "both")
        found = self._taken("both", self._choice(both))
        if found is not None:
            return found
        by_risks = not columns and bool(both.eligible.any()) and float(self.view("slopes").p[self.erm]) >= level
        if by_risks:  # ERM's differ, by noise or base rate
            return self._won_back(ALL) or _Found(self.erm, "erm-invariant", "slopes")
        by_slopes = self._by_slopes()
        if columns:
            view = self.view("columns")
            v = lowest(view.score, view.passing & (self.worse_where_left_out <= 0))
            if v is not None and (by_slopes is None or self._preferred(v, by_slopes.candidate)):
                found = self._taken("columns", v)
        return found or by_slopes or self._won_back(LOST) or _Found(self.erm, "none-found", "both")

    @cached_property
    def _p_slopes(self) -> float:
        """Of ERM, by its slopes, of linear models in every column, too. Risks differ by noise or base rate alone."""
        p = float(self.view("slopes").p[self.erm])
        return p if self.pooled.column_slope is None else min(1.0, 2 * min(p, float(self.view("columns").p[self.erm])))

    def _preferred(self, columns: int, slopes: int) -> bool:
        """Whether equal slopes in every column are worth more than equal slopes: not much dearer, nor worse left out.

        Columns that are mixtures of others have no slopes of their own that could be equal.
        """
        if self.records.left_out is not None:
            worse = self._ratio_left_out[columns] - self._ratio_left_out[slopes]
            if float(worse.mean()) > 0:
                return False
        return self._price(columns) <= DEARER * max(0.0, self._price(slopes))

    def _by_slopes(self) -> _Found | None:
        """A candidate with equal slopes that nothing speaks against; it passes on both halves of the folds."""
        view = self.view("slopes")
        if self.records.left_out is not None:
            allowed = self.worse_where_left_out <= 0
        else:
            further_out = extrapolated_risk(self.pooled, "risks", self.o["reach"], self.o["slack"])
            allowed = further_out < further_out[self.erm]
        self.refused = int((view.passing & ~allowed).sum())
        choice = lowest(view.score, view.passing & allowed)
        if choice is None:
            return None
        return self._if_steady("slopes", choice)

    @cached_property
    def worse_where_left_out(self) -> Tensor:
        """By how much candidates are worse than ERM in environments that were left out, in standard errors: (C,).

        Of the logarithms of the risks: where noise differs, an environment of little noise counts like the others. 0
        where none was left out.
        """
        if self.records.left_out is None:
            return torch.zeros(len(self.records), dtype=torch.float64)
        ratio = self._ratio_left_out
        worse: Tensor = ratio.mean(1) / (ratio.std(1) / ratio.shape[1] ** 0.5).clamp_min(1e-12)
        return worse

    @cached_property
    def _ratio_left_out(self) -> Tensor:
        """Logarithm of the risk in environments that were left out, less that of ERM: (C, parts)."""
        risk = self.records.left_out
        assert risk is not None
        ratio: Tensor = (risk.double().clamp_min(1e-9) / risk[self.erm].double().clamp_min(1e-9)).log()
        return ratio

    def _choice(self, view: View, share: float = 0.0) -> int | None:
        """The best of those that pass, and that are not far worse where they were left out."""
        kept = view.gain >= share * view.gain[view.erm] if share else torch.ones_like(view.passing)
        return lowest(view.score, view.passing & kept & ~(self.worse_where_left_out > AGAINST))

    def _taken(self, test: str, choice: int | None, share: float = 0.0) -> _Found | None:
        return None if choice is None else self._if_steady(test, choice, share)

    def _if_steady(self, test: str, choice: int, share: float = 0.0) -> _Found | None:
        """A choice that passes on each half of the folds alone, and costs next to nothing where ERM fails by little.

        Where folds cannot tell, what costs something in every environment is not taken. One hold-out is no folds.
        """
        view, halves = self.view(test), self._halves(test)
        found = _Found(choice, "invariant-found", test, self._confirmed(test, share))
        p_erm = self._p_slopes if test == "both" else float(view.p[self.erm])
        dear = float(view.gain[choice]) < CHEAP * float(view.gain[self.erm])
        pays_at = _pays_at(self.pooled.risk[choice], self.pooled.risk[self.erm])
        if dear and p_erm > STRONG:
            return self._refuse("small fault")
        if dear and pays_at is not None and pays_at > FURTHEST:
            return self._refuse("far out")
        if self.pooled.column_slope is None and self._doubted(found):
            return self._refuse("not confirmed")
        if self.records.n_folds < 2:
            return found
        each = [] if halves is None else [float(half.p[choice]) for half in halves]
        if not each or any(np.isnan(each)):
            dearer = self.pooled.risk[choice] > self.pooled.risk[self.erm]
            known = self.pooled.risk[self.erm].isfinite()
            return self._refuse("halves") if bool((dearer | ~known).all()) else found
        return found._replace(p_halves=min(1.0, 2 * min(each))) if 2 * min(each) >= STEADY else self._refuse("halves")

    def _refuse(self, why: str) -> _Found | None:
        """Nothing; the first reason is kept."""
        self.why_refused = self.why_refused or why
        return None

    def _doubted(self, found: _Found) -> bool:
        """Whether a choice is not confirmed by the other half of the folds, and far worse where it was left out."""
        risk = self.records.left_out
        if risk is None or found.p_confirmed is None or found.p_confirmed >= self.o["level"]:
            return False
        return float(self._ratio_left_out[found.candidate].mean()) > FAR_WORSE

    def _won_back(self, share: float) -> _Found | None:
        """Where ERM loses this share of its gain in left-out environments, the candidate that is best there, if it wins
        back half of it.

        Environments in which a model is worse than twice a constant count as that: one of them shall not decide.
        """
        if self.records.left_out is None:
            return None
        view, constant = self.view("both"), self.records.constant
        each = self.records.left_out.double().clamp_max(2 * constant)  # (C, parts)
        risk = each.mean(1)
        seen = self.pooled.risk[self.erm].clamp_max(2 * constant).nanmean()
        lost = float(risk[self.erm]) - float(seen)
        if not lost >= share * (constant - float(view.risk[self.erm])) > 0:
            return None
        better = each[self.erm] - each  # (C, parts)
        clear = better.mean(1) > better.std(1) / better.shape[1] ** 0.5  # by more than one standard error
        choice = lowest(risk, view.useful & clear & (risk <= risk[self.erm] - WON_BACK * lost))
        return None if choice is None else _Found(choice, "invariant-found", "left-out")

    def _sees_enough(self) -> bool:
        """Whether the test would see a variation over columns of a quarter of what ERM gains; of others it is open."""
        seen, gain = self._detectable(), self.records.constant - float(self.view("both").risk[self.erm])
        return seen is None or seen <= SEEN * max(gain, 0.0)

    def _detectable(self) -> float | None:
        if self.pooled.column_slope is None:
            return None
        return finite(over_columns(self.pooled, self.o["level"]).detectable[self.erm])

    def _price(self, index: int) -> float:
        risk = self.view("both").risk
        return float(risk[index] - risk[self.erm])

    def _halves(self, test: str) -> list[View] | None:
        """The candidates on every other fold, and on the others; None where a half cannot be tested."""
        records, o = self.records, {**self.o, "test": test}
        if records.n_folds < 2:
            return None
        folds = [list(range(start, records.n_folds, 2)) for start in (0, 1)]
        halves = [View.of(records.folds(some).pooled(), records, o) for some in folds]
        missing = any(half.erm is None or not bool(half.eligible.any()) for half in halves)  # too few rows
        return None if missing else halves

    def _confirmed(self, test: str, share: float = 0.0) -> float | None:
        """p-value of a choice that has not seen what tests it: chosen on one half of the folds, tested on the other.

        Both ways round, twice the smaller one; 0 where nothing passes in a half, None where a half cannot be tested.
        (The models themselves were trained on rows of both halves, as cross-fitted ones are.)
        """
        halves = self._halves(test)
        if halves is None:
            return None
        choices = [self._choice(half, share) for half in halves]
        both = [float(other.p[i]) for i, other in zip(choices, halves[::-1], strict=True) if i is not None]
        if len(both) < 2:
            return 0.0
        return None if any(np.isnan(both)) else min(1.0, 2 * min(both))

    def figures(self, found: _Found) -> dict[str, Any]:
        """What the verdict rests on."""
        records, pooled, erm, choice = self.records, self.pooled, self.erm, found.candidate
        view = self.view("both" if found.test == "left-out" else found.test)
        risk, p = view.risk, view.p
        gain = records.constant - float(risk[erm])
        by_column = None if pooled.column_slope is None else over_columns(pooled, self.o["level"])

        def of(values: Tensor | None, index: int) -> float | None:
            return None if values is None else finite(values[index])

        left_out = None if records.left_out is None else records.left_out.double().mean(1)
        return {
            "test": found.test,
            "candidates": int(view.eligible.sum()),
            "passing": int(view.passing.sum()),
            "not_paying": max(view.not_paying, self.refused if found.outcome == "none-found" else 0),
            "refused": self.why_refused if found.outcome == "none-found" else None,
            "p": float(p[choice]),
            "p_erm": float(p[erm]),
            "p_nearest": float(p[view.useful].max()) if bool(view.useful.any()) else None,
            "risk": float(risk[choice]),
            "risk_erm": float(risk[erm]),
            "risk_constant": records.constant,
            "risk_extrapolated": float(view.score[choice]),
            "price": float(risk[choice] - risk[erm]),
            "gain_kept": (records.constant - float(risk[choice])) / gain if gain > 0 else None,
            "risks": plain_json(pooled.risk[choice]),
            "risks_erm": plain_json(pooled.risk[erm]),
            "pays_at": _pays_at(pooled.risk[choice], pooled.risk[erm]),
            "p_own": view.p_own,
            "own_gain": None if records.directions is None else records.directions.gain,
            "p_confirmed": found.p_confirmed,
            "p_halves": found.p_halves,
            "p_columns": of(None if by_column is None else by_column.p, choice),
            "p_columns_erm": of(None if by_column is None else by_column.p, erm),
            "variation": of(None if by_column is None else by_column.beyond_noise, choice),
            "variation_erm": of(None if by_column is None else by_column.beyond_noise, erm),
            "detectable": self._detectable(),
            "blind": found.blind,
            "left_out": of(left_out, choice),
            "left_out_erm": of(left_out, erm),
        }


def _nothing_to_compare(erm: int, whole: View, records: Records, o: Mapping[str, Any]) -> Verdict:
    """Environments that were looked for and not found: there is one, and in it ERM is right."""
    risk = float(whole.risk[erm])
    by_column = ("p_columns", "p_columns_erm", "variation", "variation_erm", "detectable", "left_out", "left_out_erm")
    unknown = dict.fromkeys(
        ("p", "p_erm", "p_nearest", "pays_at", "p_own", "own_gain", "p_confirmed", "p_halves", *by_column)
    )
    figures: dict[str, Any] = {
        "test": o["test"],
        "candidates": 0,
        "passing": 0,
        "not_paying": 0,
        "refused": None,
        "risk": risk,
        "risk_erm": risk,
        "risk_constant": records.constant,
        "risk_extrapolated": risk,
        "price": 0.0,
        "gain_kept": 1.0,
        "blind": True,
        "risks": plain_json(whole.pooled.risk[erm]),
        "risks_erm": plain_json(whole.pooled.risk[erm]),
        **unknown,
    }
    text = (
        "ERM is kept: of the environments that were inferred at most one has "
        f"{MIN_ROWS} held-out rows or more, so there is nothing to compare."
    )
    return Verdict(erm, "erm-kept", figures, text)


def _pays_at(risks: Tensor, erm: Tensor) -> float | None:
    """The price of one candidate; None where there is no unit."""
    return finite(price(risks.unsqueeze(0), erm)[0])


def check_options(**options: Any) -> None:
    """Whether `invariance` takes these options."""
    for name in options:
        if name not in DEFAULTS:
            known = list(DEFAULTS)
            raise ValueError(f"options of 'invariance' are {known}. Got {name!r}.{did_you_mean(name, known)}")
    given = {**DEFAULTS, **options}
    if given["test"] not in TESTS:
        raise ValueError(
            f"test must be one of {list(TESTS)}. Got {given['test']!r}.{did_you_mean(given['test'], TESTS)}"
        )
    for name in ("level", "own_level", "min_gain"):
        if not (_is_number(given[name]) and 0 <= given[name] <= 1):
            raise ValueError(f"{name} must be a number from 0 to 1. Got {given[name]!r}.")
    for name in ("reach", "slack"):
        if not (_is_number(given[name]) and 0 <= given[name] < float("inf")):
            raise ValueError(f"{name} must be a finite number of at least 0. Got {given[name]!r}.")
    if not (_is_number(given["max_price"]) and given["max_price"] >= 0):
        raise ValueError(f"max_price must be a number of at least 0, or infinity. Got {given['max_price']!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
