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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.outcomes import Outcome
from irmtv.core.plain_json import finite, plain_json
from irmtv.selection.equality import enough_rows, equal_means, spread, zero_means
from irmtv.selection.records import Pooled, Records

TESTS = ("both", "risks", "slopes", "zero-slopes")
OWN_MODELS_ARE_WORSE = 0.95  # p-value of "no own model is better" above which they are worse, and show little
MIN_ROWS = 20  # held-out rows of an environment; with fewer, tests by its mean reject far too often
ROWS_PER_ROOT = 7.0  # times sqrt(k): what each of k environments must have to be tested together, above 8 more than 20
DEFAULTS: Mapping[str, Any] = {
    "test": "both", "level": 0.01, "own_level": 0.2, "reach": 10.0, "slack": 0.5, "min_gain": 0.25,
    "max_price": float("inf"),
}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Which candidate, why, and the figures behind it."""

    index: int
    outcome: Outcome
    figures: Mapping[str, Any]
    message: str


def _without(pooled: Pooled, tested: Tensor) -> tuple[Tensor, Tensor]:
    """Risks and slopes of the environments that are `tested` (C, E), NaN elsewhere."""

    def without(v: Tensor) -> Tensor:
        return v.masked_fill(~(tested if v.ndim == 2 else tested.unsqueeze(-1)), torch.nan)

    return without(pooled.risk), without(pooled.slope)


def p_values(pooled: Pooled, test: str) -> Tensor:
    """How well each candidate's statistics agree with invariance: (C,).

    Environments with fewer than MIN_ROWS rows are not tested; and of many that are small only the largest ones, k
    where each has ROWS_PER_ROOT * sqrt(k) rows (`enough_rows`). Rejected at level 0.01 though risks are equal, before
    -> with that and Welch's reference: 100 environments of 20 rows, log losses 21 % -> 1.9 %, squared normal rows
    54 % -> 3 %; 300 of 50 rows 11 % -> 2.7 % and 40 % -> 8 %. The price is power: log losses whose means differ by
    a tenth of a row's standard deviation in 300 environments of 50 rows are rejected in 47 %, with all tested always.
    """
    rows = pooled.worth
    risk, slope = _without(pooled, enough_rows(rows, MIN_ROWS, ROWS_PER_ROOT))
    if test == "risks":
        return equal_means(risk, pooled.risk_cov, rows)
    if test == "slopes":
        return equal_means(slope, pooled.slope_cov, rows)
    if test == "zero-slopes":  # one environment alone could be tested, but says nothing of others
        p = zero_means(slope, pooled.slope_cov, rows)
        return p.masked_fill(risk.isfinite().sum(-1) < 2, torch.nan)
    # both must hold: twice the smaller p (Bonferroni), so that a model with both is rejected as seldom as by one test
    smaller = torch.minimum(equal_means(risk, pooled.risk_cov, rows), equal_means(slope, pooled.slope_cov, rows))
    return (2 * smaller).clamp_max(1)


def extrapolated_risk(pooled: Pooled, test: str, reach: float, slack: float) -> Tensor:
    """Held-out risk and, `reach` times, the spread of what is tested: (C,). Risks, where both are.

    Of all environments with MIN_ROWS rows, however many: a spread has no level that many small ones could spoil.
    """
    risk, slope = _without(pooled, pooled.worth >= MIN_ROWS)
    if test in ("both", "risks"):
        apart = spread(risk, pooled.risk_cov, slack)
    else:
        apart = spread(slope, pooled.slope_cov, slack, around_zero=test == "zero-slopes")
    return pooled.overall + reach * apart


def invariance(records: Records, **options: Any) -> Verdict:
    """Keep ERM where it is invariant already; else the best invariant candidate; else ERM, with a warning.

    Options
    -------
    test : "both" (equal slopes and equal risks; default), "risks", "slopes", or "zero-slopes" (the condition of IRM
        itself; a model that overfits fails it in every environment alike). Where environments differ in noise or base
        rate no useful model has equal risks: if nothing passes both, slopes decide alone, among candidates whose risk
        + reach * spread of the risks is below that of ERM: equal slopes at a higher risk everywhere are no gain.
        `figures["test"]` says so.
    level : a candidate with a p-value below it is not invariant. Default 0.01.
    own_level : ERM is kept, too, where no environment's own model predicts it better than ERM rescaled to it does, at
        this level (default 0.2): the environments then differ in noise, not in what predicts. Keeping ERM wrongly
        costs more than looking further, so the level is generous. 1 leaves this out; it needs `records.own`.
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
    verdict = _judge(records, o)
    if o["test"] == "both" and verdict.outcome == "none-found" and verdict.figures["candidates"]:
        by_slopes = _judge(records, {**o, "test": "slopes", "must_pay": True})
        if by_slopes.outcome != "none-found":
            why = "No candidate that predicts anything has equal slopes and equal risks, so slopes decide alone: "
            return replace(by_slopes, message=why + by_slopes.message)
        if not verdict.figures["not_paying"] and by_slopes.figures["not_paying"]:
            why = (
                f" Candidates with equal slopes: {by_slopes.figures['not_paying']}, none with a lower risk + "
                f"{o['reach']:g} x spread of the risks than ERM: nothing says that they would do "
                "better elsewhere."
            )
            figures = {**verdict.figures, "not_paying": by_slopes.figures["not_paying"]}
            return replace(verdict, figures=figures, message=verdict.message + why)
    return verdict


def _judge(records: Records, o: Mapping[str, Any]) -> Verdict:
    """The rule with one test."""
    whole = _View.of(records.pooled(), records, o)
    erm = whole.erm
    if erm is None and records.inferred:
        alone = _lowest(whole.risk, whole.risk.isfinite() & records.reference)
        if alone is not None:
            return _nothing_to_compare(alone, whole, records, o)
    if erm is None:
        raise ValueError(
            "rule 'invariance' needs a candidate of ERM that was measured in two or more "
            f"environments, at least {MIN_ROWS} rows of each. Got none: train 'erm' (or penalty_weight=0) too, on rows "
            "whose environments are known, and merge environments that are too small."
        )
    choice, outcome = whole.decide()
    risk, p, pooled = whole.risk, whole.p, whole.pooled
    gain = records.constant - float(risk[erm])
    figures: dict[str, Any] = {
        "test": o["test"],
        "candidates": int(whole.eligible.sum()),
        "passing": int(whole.passing.sum()),
        "not_paying": whole.not_paying,
        "p": float(p[choice]),
        "p_erm": float(p[erm]),
        "p_nearest": float(p[whole.useful].max()) if bool(whole.useful.any()) else None,
        "risk": float(risk[choice]),
        "risk_erm": float(risk[erm]),
        "risk_constant": records.constant,
        "risk_extrapolated": float(whole.score[choice]),
        "price": float(risk[choice] - risk[erm]),
        "gain_kept": (records.constant - float(risk[choice])) / gain if gain > 0 else None,
        "risks": plain_json(pooled.risk[choice]),
        "risks_erm": plain_json(pooled.risk[erm]),
        "pays_at": _pays_at(pooled.risk[choice], pooled.risk[erm]),
        "p_own": whole.p_own,
        "p_confirmed": _confirmed(records, o) if outcome == "invariant-found" else None,
    }
    return Verdict(choice, outcome, figures, _message(outcome, figures, o["test"], o["level"], o["max_price"]))


def _nothing_to_compare(erm: int, whole: _View, records: Records, o: Mapping[str, Any]) -> Verdict:
    """Environments that were looked for and not found: there is one, and in it ERM is right."""
    risk = float(whole.risk[erm])
    unknown = dict.fromkeys(("p", "p_erm", "p_nearest", "pays_at", "p_own", "p_confirmed"))
    figures: dict[str, Any] = {
        "test": o["test"],
        "candidates": 0,
        "passing": 0,
        "not_paying": 0,
        "risk": risk,
        "risk_erm": risk,
        "risk_constant": records.constant,
        "risk_extrapolated": risk,
        "price": 0.0,
        "gain_kept": 1.0,
        "risks": plain_json(whole.pooled.risk[erm]),
        "risks_erm": plain_json(whole.pooled.risk[erm]),
        **unknown,
    }
    text = (
        "ERM is kept: of the environments that were inferred at most one has "
        f"{MIN_ROWS} held-out rows or more, so there is nothing to compare."
    )
    return Verdict(erm, "erm-invariant", figures, text)


@dataclass(frozen=True)
class _View:
    """The candidates as some of the folds show them."""

    pooled: Pooled
    risk: Tensor  # (C,)
    score: Tensor  # (C,) the extrapolated risk
    p: Tensor  # (C,)
    erm: int | None  # the reference with the lowest risk
    eligible: Tensor  # (C,) bool: measured, and not ERM: another stopping time of ERM is still ERM
    useful: Tensor  # (C,) bool: of these, those that predict something
    passing: Tensor  # (C,) bool: of these, those that are not rejected
    not_paying: int  # how many more are not rejected, but cannot do better than ERM even where environments differ more
    level: float
    p_own: float | None  # that no environment's own model beats ERM rescaled to it
    own_level: float

    @classmethod
    def of(cls, pooled: Pooled, records: Records, o: Mapping[str, Any]) -> _View:
        risk, p = pooled.overall, p_values(pooled, o["test"])
        known = risk.isfinite() & p.isfinite()
        erm = _lowest(risk, known & records.reference)
        eligible = known & ~records.reference
        gain = records.constant - risk
        least = o["min_gain"] * max(0.0, float(gain[erm])) if erm is not None else torch.inf
        useful = eligible & (gain >= least)
        score = extrapolated_risk(pooled, o["test"], o["reach"], o["slack"])
        passing, not_paying = useful & (p >= o["level"]), 0
        if erm is not None:
            pays = _price(pooled.risk, pooled.risk[erm]) <= o["max_price"]
            if o.get("must_pay"):
                further_out = extrapolated_risk(pooled, "risks", o["reach"], o["slack"])
                pays = pays & (further_out < further_out[erm])
            not_paying = int((passing & ~pays).sum())
            passing = passing & pays
        p_own = nothing_of_its_own(records.own)
        return cls(
            pooled, risk, score, p, erm, eligible, useful, passing, not_paying, o["level"], p_own, o["own_level"]
        )

    def decide(self) -> tuple[int, Outcome]:
        assert self.erm is not None
        alike = self.p_own is not None and self.p_own > self.own_level
        if float(self.p[self.erm]) >= self.level or alike:
            return self.erm, "erm-invariant"
        choice = _lowest(self.score, self.passing)
        return (self.erm, "none-found") if choice is None else (choice, "invariant-found")


def nothing_of_its_own(own: Tensor | None) -> float | None:
    """p-value of "no environment's own model beats ERM, rescaled to that environment".

    One-sided z tests of the gains, pair by pair on held-out rows, Bonferroni over environments; None where no
    environment has rows enough.
    """
    if own is None:
        return None
    own = own.double()
    known = own.isfinite().all(-1, keepdim=True)  # a model that diverged says nothing, its rows neither
    rows, mean, variance = own.where(known, 0).unbind(-1)  # (F, E) each
    total = rows.sum(0)
    tested = total >= MIN_ROWS
    if not bool(tested.any()):
        return None
    gain = (rows * mean).sum(0)[tested] / total[tested]
    spare = (rows - 1).clamp_min(0)
    single = (spare * variance).sum(0)[tested] / spare.sum(0)[tested].clamp_min(1)
    z = gain / (single / total[tested]).sqrt().clamp_min(1e-300)
    return float(min(1.0, int(tested.sum()) * stats.norm.sf(float(z.max()))))


def _confirmed(records: Records, o: Mapping[str, Any]) -> float | None:
    """p-value of a choice that has not seen what tests it: chosen on one half of the folds, tested on the other.

    Both ways round, twice the smaller one; 0 where nothing passes in a half, None where a half cannot be tested. (The
    models themselves were trained on rows of both halves, as cross-fitted ones are.)
    """
    if records.n_folds < 2:
        return None
    halves = [_View.of(records.folds(list(range(start, records.n_folds, 2))).pooled(), records, o) for start in (0, 1)]
    if any(half.erm is None or not bool(half.eligible.any()) for half in halves):  # too few rows of an environment
        return None
    choices = [_lowest(half.score, half.passing) for half in halves]
    both = [float(other.p[i]) for i, other in zip(choices, halves[::-1], strict=True) if i is not None]
    if len(both) < 2:
        return 0.0
    return None if any(np.isnan(both)) else min(1.0, 2 * min(both))


def _price(risks: Tensor, erm: Tensor) -> Tensor:
    """How much further than the training environments lie apart the next one must be for a candidate to pay: (C,).

    In units of how far ERM's risks lie apart, beyond ERM's worst environment; 0 or less: it pays there already. -inf
    where ERM's risks are equal, so that there is no unit. `risks` (C, E), `erm` (E,).
    """
    there = risks.isfinite() & erm.isfinite()  # (C, E)

    def extreme(v: Tensor, nothing: float) -> Tensor:
        known_values = v.masked_fill(~there, nothing)
        return known_values.amax(-1) if nothing < 0 else known_values.amin(-1)

    known = erm.expand_as(risks)
    unit = extreme(known, -torch.inf) - extreme(known, torch.inf)
    beyond = extreme(risks, -torch.inf) - extreme(known, -torch.inf)
    return torch.where(unit > 0, beyond / unit, -torch.inf)


def _pays_at(risks: Tensor, erm: Tensor) -> float | None:
    """The price of one candidate; None where there is no unit."""
    return finite(_price(risks.unsqueeze(0), erm)[0])


def _lowest(risk: Tensor, among: Tensor) -> int | None:
    return int(risk.masked_fill(~among, torch.inf).argmin()) if bool(among.any()) else None


def _told(risks: list[float | None], most: int = 8) -> str:
    """Risks by environment in words; of very many, how far they reach."""
    if len(risks) > most:
        known = [r for r in risks if r is not None]
        return f"from {min(known):.3g} to {max(known):.3g} in {len(known)} environments"
    return ", ".join("no rows" if r is None else f"{r:.3g}" for r in risks)


_WHAT = {
    "both": "slopes and risks equal over environments",
    "risks": "risks equal over environments",
    "slopes": "slopes equal over environments",
    "zero-slopes": "slopes zero in every environment",
}


def _message(outcome: Outcome, f: Mapping[str, Any], test: str, level: float, max_price: float) -> str:
    tested = f"{_WHAT[test]}, level {level:g}, {f['candidates']} candidates"
    if outcome == "erm-invariant" and f["p_erm"] < level:
        text = (
            f"ERM is kept: it differs between environments ({tested}; p = {f['p_erm']:.1g}), but no model trained on "
            f"one environment alone beats it there (p = {f['p_own']:.2g}). "
        )
        if f["p_own"] > OWN_MODELS_ARE_WORSE:
            return text + (
                "Nothing shows that environments differ in what predicts rather than in noise or base rate. The models "
                "of single environments are all worse, having fewer rows: a smaller model or more rows would test this "
                "harder."
            )
        return text + "Environments seem to differ in noise or base rate, not in what predicts: invariance cannot help."
    if outcome == "erm-invariant":
        return f"ERM passed the invariance test (p = {f['p_erm']:.2g}; {tested}) and is kept."
    if outcome == "none-found":
        risks = _told(f["risks_erm"])
        if not f["candidates"]:
            return (
                f"ERM is not invariant ({_WHAT[test]}, level {level:g}; p = {f['p_erm']:.1g}, "
                f"risks by environment {risks}), and there is nothing else to choose from."
            )
        nearest = "" if f["p_nearest"] is None else f" (nearest p = {f['p_nearest']:.1g})"
        if f["not_paying"]:
            return (
                f"ERM is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks "
                f"by environment {risks}): {f['not_paying']} pass, but cost so much in every environment that they pay "
                f"only where the next one lies further out by more than {max_price:g} times what these lie apart. "
                "The environments may differ in noise or base rate."
            )
        return (
            f"ERM is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks by "
            f"environment {risks}): no candidate that predicts anything passes{nearest}. The environments may differ "
            "in noise or base rate, or the penalties were too weak."
        )
    text = (
        f"an invariant model was found ({tested}; {f['passing']} pass; p = {f['p']:.2g}, ERM "
        f"{f['p_erm']:.1g}). Its held-out risk is {f['risk']:.3g}; ERM has {f['risk_erm']:.3g}: "
        "that is the price in the training environments."
    )
    if f["pays_at"] is not None and f["pays_at"] > 0:
        text += (
            " Its risk is higher than that of ERM in the worst of them, too: it pays where the "
            f"next environment lies further out by more than {f['pays_at']:.2g} times their spread."
        )
    if f["p_confirmed"] is not None and f["p_confirmed"] < level:
        text += (
            f" Chosen on half of the folds and tested on the other it is not confirmed (p = {f['p_confirmed']:.1g})."
        )
    return text


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
