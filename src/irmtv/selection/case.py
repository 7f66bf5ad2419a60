"""One set of records under the rule `invariance`: what passes which test, what it costs, and what is taken."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from irmtv.core.outcomes import Outcome
from irmtv.core.plain_json import finite, plain_json
from irmtv.selection.records import Records
from irmtv.selection.views import View, extrapolated_risk, lowest, over_columns, own_models_gain, price

STEADY = 0.001  # p-value of a choice on half of the folds (twice the smaller one) below which it is not taken
AGAINST = 0.01  # p-value (Student's t over left-out environments) below which an invariant candidate is worse there
FAR_WORSE = 0.4  # mean logarithm of what its risk is there, in units of ERM's
DEARER = 3.0  # times the price of equal slopes that equal slopes in every column may cost
LOST, WON_BACK = 0.25, 0.5  # share of its gain that ERM loses where left out; share of that loss that must be won back
ALL = 1.0  # the share that it must lose where nothing else speaks against it: base rates alone cost it some
STRONG = 2e-3  # p-value of ERM, by its slopes, below which another model may cost more than next to nothing
FURTHEST = 3.0  # how far out the next environment may have to be for a dear model to pay, in units of their spread
CHEAP = 0.9  # share of ERM's gain that a model keeps which costs next to nothing
SETTLED = 0.01  # share of a constant's risk below which ERM leaves nothing to gain
WORTH = 0.01  # share of ERM's gain that own models must clearly add for ERM to be called one that misses something
EASE = 0.05  # p-value from which on nothing is left to choose by but the risk
SEEN = 0.25  # share of ERM's gain that a variation over columns must have to matter


class Found(NamedTuple):
    candidate: int
    outcome: Outcome
    test: str  # what decided
    p_confirmed: float | None = None  # of a choice on half of the folds, tested on the other
    p_halves: float | None = None  # of this choice on each half of the folds
    blind: bool = False  # whether the test could not have seen what would matter
    contradicted: bool = False  # whether ERM passes, and loses much where left out


class Case:
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

    def by_one(self) -> Found:
        """The rule with one test."""
        test = self.o["test"]
        view = self.view(test)
        if float(view.p[self.erm]) >= self.o["level"]:
            return Found(self.erm, "erm-invariant", test)
        if view.alike:
            return Found(self.erm, "erm-kept", test)
        if view.choice is None:
            return Found(self.erm, "none-found", test)
        return Found(view.choice, "invariant-found", test, self._confirmed(test))

    def by_all(self) -> Found:
        columns = self.pooled.column_slope is not None
        both, level, p_erm = self.view("both"), self.o["level"], self.p_erm
        if not p_erm < level and not self._sees_enough():
            return Found(self.erm, "erm-kept", "both", blind=True)
        found = self._holds_everywhere()
        if found is not None:
            return found
        if not p_erm < level:
            return self._won_back(ALL) or self._erm_passes("both")
        if both.alike:
            return self._testable() or self._won_back(ALL) or Found(self.erm, "erm-kept", "both")
        found = self._taken("both", self._choice(both) if self._at_ease is None else self._at_ease)
        if found is not None:
            return found
        by_risks = not columns and bool(both.eligible.any()) and float(self.view("slopes").p[self.erm]) >= level
        if by_risks:  # ERM's differ, by noise or base rate
            return self._won_back(ALL) or self._erm_passes("slopes")
        by_slopes = self._by_slopes()
        if columns:
            view = self.view("columns")
            v = lowest(view.score, view.passing & self.view("slopes").passing & self._allowed_left_out(view))
            if v is not None and (by_slopes is None or self._preferred(v, by_slopes.candidate)):
                found = self._taken("columns", v)
        return found or by_slopes or self._won_back(LOST) or self._nothing_found()

    def _allowed_left_out(self, view: View) -> Tensor:
        """Candidates (C,) that are no worse than ERM where left out. Neither clearly nor far worse is enough for those
        that pass at ease, and that pay before the next environment lies further out than these lie apart."""
        near = price(self.pooled.risk, self.pooled.risk[self.erm]) <= 1
        little = near & ~self.clearly_worse_left_out & ~self._far_worse_left_out
        return (self.worse_where_left_out <= 0) | ((view.p >= EASE) & little)

    def _nothing_found(self) -> Found:
        """ERM is kept, though it fails: what environments would gain by models of their own says what that means."""
        directions, gain = self.records.directions, float(self.view("both").gain[self.erm])
        little = directions is not None and not own_models_gain(directions, WORTH * gain) and not self.is_settled
        return Found(self.erm, "erm-kept" if little else "none-found", "both")

    def _erm_passes(self, test: str) -> Found:
        """ERM, which passes a test; not called invariant where it loses much: something differs that no test sees."""
        if self.lost_left_out < LOST:
            return Found(self.erm, "erm-invariant", test)
        return Found(self.erm, "erm-kept", test, blind=True, contradicted=True)

    @cached_property
    def p_erm(self) -> float:
        """Of ERM, by the test that it must pass."""
        return self._p_slopes if self.pooled.column_slope is not None else float(self.view("both").p[self.erm])

    @cached_property
    def lost_left_out(self) -> float:
        """The share of its gain that ERM loses where left out; 0 where that is not known, or where it gains nothing.

        Environments in which a model is worse than twice a constant count as that: one of them shall not decide.
        """
        constant, left_out = self.records.constant, self.records.left_out
        gain = constant - float(self.view("both").risk[self.erm])
        if left_out is None or gain <= 0:
            return 0.0
        seen = self.pooled.risk[self.erm].clamp_max(2 * constant).nanmean()
        lost = left_out[self.erm].double().clamp_max(2 * constant).mean() - seen
        return float(lost.nan_to_num(0.0)) / gain

    @property
    def fails_left_out(self) -> bool:
        """Whether ERM is worse than a constant in an environment that was left out."""
        left_out = self.records.left_out
        return left_out is not None and float(left_out[self.erm].max()) >= self.records.constant

    @property
    def is_settled(self) -> bool:
        """Whether ERM is right almost everywhere, so that models of their own have nothing to gain."""
        return float(self.view("both").risk[self.erm]) <= SETTLED * self.records.constant

    @cached_property
    def _p_slopes(self) -> float:
        """Of ERM, by its slopes, of linear models in every column, too. Risks differ by noise or base rate alone."""
        p = float(self.view("slopes").p[self.erm])
        return p if self.pooled.column_slope is None else min(1.0, 2 * min(p, float(self.view("columns").p[self.erm])))

    def _preferred(self, columns: int, slopes: int) -> bool:
        """Whether equal slopes in every column are worth more than equal slopes: not much dearer, nor worse left out.

        Columns that are mixtures of others have no slopes of their own that could be equal.
        """
        if self.records.left_out is not None and not self._passes_at_ease(columns):
            worse = self._ratio_left_out[columns] - self._ratio_left_out[slopes]
            if float(worse.mean()) > 0:
                return False
        return self._price(columns) <= DEARER * max(0.0, self._price(slopes))

    def _passes_at_ease(self, choice: int) -> bool:
        """Whether nothing speaks against equal slopes of a linear model, in every column and of the logits."""
        return self.pooled.column_slope is not None and all(
            float(self.view(test).p[choice]) >= EASE for test in ("columns", "slopes")
        )

    def _better_left_out_at_ease(self, choice: int) -> bool:
        """Whether left-out environments speak for a candidate, too."""
        left_out = self.records.left_out is not None and float(self.worse_where_left_out[choice]) < 0
        return left_out and self._passes_at_ease(choice)

    def _by_slopes(self) -> Found | None:
        """A candidate with equal slopes that nothing speaks against; it passes on both halves of the folds."""
        view = self.view("slopes")
        if self.records.left_out is not None:
            allowed = self.worse_where_left_out <= 0
        else:
            further_out = extrapolated_risk(self.pooled, "risks", self.o["reach"], self.o["slack"])
            allowed = further_out < further_out[self.erm]
        self.refused = int((view.passing & ~allowed).sum())
        choice = lowest(view.score, self._near_best_left_out(view.passing & allowed))
        return self._taken("slopes", choice)

    def _near_best_left_out(self, among: Tensor) -> Tensor:
        """Of these candidates (C,), those within one standard error of the best of them where left out."""
        if self.records.left_out is None:
            return among
        ratio = self._ratio_left_out
        best = lowest(ratio.mean(1), among)
        if best is None:
            return among
        off = ratio - ratio[best]
        near: Tensor = among & (off.mean(1) <= off.std(1) / off.shape[1] ** 0.5)
        return near

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
        return torch.where(ratio.isinf().any(1), torch.inf, worse)

    @property
    def clearly_worse_left_out(self) -> Tensor:
        """Candidates that are, beyond what so few environments show by chance: (C,) bool."""
        left_out = self.records.left_out
        n = 2 if left_out is None else left_out.shape[1]
        return self.worse_where_left_out > float(stats.t.isf(AGAINST, n - 1))

    @cached_property
    def _ratio_left_out(self) -> Tensor:
        """Logarithm of the risk in environments that were left out, less that of ERM: (C, parts)."""
        risk = self.records.left_out
        assert risk is not None
        ratio: Tensor = (risk.double().clamp_min(1e-9) / risk[self.erm].double().clamp_min(1e-9)).log()
        return ratio

    def _choice(self, view: View) -> int | None:
        """The best of those that pass, and that are not clearly worse where they were left out."""
        return lowest(view.score, view.passing & ~self.clearly_worse_left_out)

    @cached_property
    def _at_ease(self) -> int | None:
        """Of linear models that pass both tests and that of their columns at ease, the one of least risk: what is left
        of spread and variation is noise then, and a stronger penalty buys nothing for it."""
        if self.pooled.column_slope is None:
            return None
        view = self.view("both")
        easy = (view.p >= EASE) & (self.view("columns").p >= EASE)
        return lowest(view.risk, view.passing & easy & ~self.clearly_worse_left_out)

    def _taken(self, test: str, choice: int | None) -> Found | None:
        return None if choice is None else self._if_steady(test, choice)

    def _if_steady(self, test: str, choice: int) -> Found | None:
        """A choice that passes on each half of the folds alone, and costs next to nothing where ERM fails by little.

        Where folds cannot tell, what costs something in every environment is not taken. One hold-out is no folds.
        """
        view, halves = self.view(test), self._halves(test)
        found = Found(choice, "invariant-found", test, self._confirmed(test))
        p_erm = self._p_slopes if test == "both" else float(view.p[self.erm])
        dear = float(view.gain[choice]) < CHEAP * float(view.gain[self.erm])
        pays_at = _pays_at(self.pooled.risk[choice], self.pooled.risk[self.erm])
        if dear and p_erm > STRONG:
            return self._refuse("small fault")
        if dear and pays_at is not None and pays_at > FURTHEST and not self._better_left_out_at_ease(choice):
            return self._refuse("far out")
        if self._doubted(found):
            return self._refuse("not confirmed")
        if self.records.n_folds < 2:
            return found
        each = [] if halves is None else [float(half.p[choice]) for half in halves]
        if not each or any(np.isnan(each)):
            dearer = self.pooled.risk[choice] > self.pooled.risk[self.erm]
            known = self.pooled.risk[self.erm].isfinite()
            return self._refuse("halves") if bool((dearer | ~known).all()) else found
        return found._replace(p_halves=min(1.0, 2 * min(each))) if 2 * min(each) >= STEADY else self._refuse("halves")

    def _refuse(self, why: str) -> Found | None:
        """Nothing; the first reason is kept."""
        self.why_refused = self.why_refused or why
        return None

    def _doubted(self, found: Found) -> bool:
        """Whether a choice is not confirmed by the other half of the folds, and worse where it was left out: by slopes
        alone at all, else, of networks and trees, far worse."""
        if found.p_confirmed is None or found.p_confirmed >= self.o["level"]:
            return False
        if found.test != "both":
            return float(self.worse_where_left_out[found.candidate]) > 0
        return self.pooled.column_slope is None and bool(self._far_worse_left_out[found.candidate])

    @property
    def _far_worse_left_out(self) -> Tensor:
        """Candidates whose risk there is a multiple of that of ERM: (C,) bool."""
        if self.records.left_out is None:
            return torch.zeros(len(self.records), dtype=torch.bool)
        far: Tensor = self._ratio_left_out.mean(1) > FAR_WORSE
        return far

    def _holds_everywhere(self) -> Found | None:
        """Where ERM is worse than a constant in an environment that was left out, a candidate that keeps nearly all of
        ERM's gain in every one of them. Classes that separate leave no slopes to test; this is what shows them."""
        left_out, view, constant = self.records.left_out, self.view("both"), self.records.constant
        if left_out is None or not self.fails_left_out:
            return None
        nearly_all = constant - CHEAP * float(view.gain[self.erm])
        worst = left_out.double().amax(1)
        choice = lowest(worst, view.useful & (worst <= nearly_all))
        return None if choice is None else Found(choice, "invariant-found", "left-out")

    def _testable(self) -> Found | None:
        """Where ERM is right almost everywhere, so that own models have nothing to gain: a linear
        model whose risks and slopes can be tested and are equal, in every column, if it costs next to nothing."""
        view, settled = self.view("both"), SETTLED * self.records.constant
        if self.pooled.column_slope is None or not self.is_settled:
            return None
        columns = self.view("columns")
        cheap = (view.gain >= CHEAP * view.gain[self.erm]) & (view.risk > settled)
        among = view.passing & columns.passing & cheap & ~self.clearly_worse_left_out
        return self._taken("columns", lowest(columns.score, among))

    def _won_back(self, share: float) -> Found | None:
        """Where ERM loses this share of its gain in left-out environments, the candidate that is best there, if it wins
        back half of it."""
        if self.records.left_out is None or not self.lost_left_out >= share:
            return None
        view, constant = self.view("both"), self.records.constant
        each = self.records.left_out.double().clamp_max(2 * constant)  # (C, parts)
        risk = each.mean(1)
        lost = self.lost_left_out * (constant - float(view.risk[self.erm]))
        better = each[self.erm] - each  # (C, parts)
        clear = better.mean(1) > better.std(1) / better.shape[1] ** 0.5  # by more than one standard error
        choice = lowest(risk, view.useful & clear & (risk <= risk[self.erm] - WON_BACK * lost))
        return None if choice is None else Found(choice, "invariant-found", "left-out")

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

    def _confirmed(self, test: str) -> float | None:
        """p-value of a choice that has not seen what tests it: chosen on one half of the folds, tested on the other.

        Both ways round, twice the smaller one; 0 where nothing passes in a half, None where a half cannot be tested.
        (The models themselves were trained on rows of both halves, as cross-fitted ones are.)
        """
        halves = self._halves(test)
        if halves is None:
            return None
        choices = [self._choice(half) for half in halves]
        both = [float(other.p[i]) for i, other in zip(choices, halves[::-1], strict=True) if i is not None]
        if len(both) < 2:
            return 0.0
        return None if any(np.isnan(both)) else min(1.0, 2 * min(both))

    def figures(self, found: Found) -> dict[str, Any]:
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
            "own_error": None if records.directions is None else records.directions.error,
            "toward": records.toward is not None,
            "p_confirmed": found.p_confirmed,
            "p_halves": found.p_halves,
            "p_columns": of(None if by_column is None else by_column.p, choice),
            "p_columns_erm": of(None if by_column is None else by_column.p, erm),
            "variation": of(None if by_column is None else by_column.beyond_noise, choice),
            "variation_erm": of(None if by_column is None else by_column.beyond_noise, erm),
            "detectable": self._detectable(),
            "blind": found.blind,
            "contradicted": found.contradicted,
            "left_out": of(left_out, choice),
            "left_out_erm": of(left_out, erm),
            "lost_left_out": None if left_out is None else self.lost_left_out,
        }


def _pays_at(risks: Tensor, erm: Tensor) -> float | None:
    """The price of one candidate; None where there is no unit."""
    return finite(price(risks.unsqueeze(0), erm)[0])
