"""How candidates look on some of the folds: which of them are invariant, by which test, and at what price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from irmtv.selection.directions import Directions
from irmtv.selection.equality import enough_rows, equal_means, spread, zero_means
from irmtv.selection.records import Pooled, Records
from irmtv.selection.variation import Variation, variation
from irmtv.selection.wording import SAME_DIRECTION, SAME_WAY

MIN_ROWS = 20  # held-out rows of an environment; with fewer, tests by its mean reject far too often
ROWS_PER_ROOT = 7.0  # times sqrt(k): what each of k environments must have to be tested together, above 8 more than 20
COLUMNS_REACH = 30.0  # what the variation over columns counts beside the spread of the risks
LEVEL = 0.01
BY_SLOPES = ("slopes", "columns")
LEAST = 0.05  # in place of `min_gain`, where left-out environments are asked about a linear model, too
CLEARLY = 2.0  # standard deviations of noise
LITTLE = 0.001  # share of ERM's gain below which models of their own would be worth nothing to environments


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
    if test == "columns":
        return over_columns(pooled).p
    if test == "zero-slopes":  # one environment alone could be tested, but says nothing of others
        p = zero_means(slope, pooled.slope_cov, rows)
        return p.masked_fill(risk.isfinite().sum(-1) < 2, torch.nan)
    # both must hold: twice the smaller p (Bonferroni), so that a model with both is rejected as seldom as by one test
    smaller = torch.minimum(equal_means(risk, pooled.risk_cov, rows), equal_means(slope, pooled.slope_cov, rows))
    return (2 * smaller).clamp_max(1)


def extrapolated_risk(pooled: Pooled, test: str, reach: float, slack: float) -> Tensor:
    """Held-out risk and, `reach` times, the spread of what is tested: (C,). Risks, where both are, and of linear models
    the variation of the slopes over columns beside it.

    Of all environments with MIN_ROWS rows, however many: a spread has no level that many small ones could spoil.
    """
    risk, slope = _without(pooled, pooled.worth >= MIN_ROWS)
    if test == "columns":
        apart = over_columns(pooled).beyond_noise
    elif test in ("both", "risks"):
        apart = spread(risk, pooled.risk_cov, slack)
        if test == "both" and pooled.column_slope is not None:
            apart = apart + COLUMNS_REACH / max(reach, 1e-9) * over_columns(pooled).beyond_noise
    else:
        apart = spread(slope, pooled.slope_cov, slack, around_zero=test == "zero-slopes")
    return pooled.overall + reach * apart


def over_columns(pooled: Pooled, level: float = LEVEL) -> Variation:
    """Of linear models: how the slopes in all columns vary over the environments with MIN_ROWS rows."""
    if pooled.column_slope is None or pooled.column_slope_cov is None:
        raise ValueError(
            "test 'columns' looks at the slope in every column, which is measured of linear models by solver='newton' "
            "in given environments. Got others; use test='both' or 'slopes'."
        )
    rows = torch.where(pooled.worth >= MIN_ROWS, pooled.rows, 0.0)
    return variation(pooled.column_slope, pooled.column_slope_cov, rows, level)


@dataclass(frozen=True)
class View:
    """The candidates as some of the folds show them."""

    pooled: Pooled
    risk: Tensor  # (C,)
    gain: Tensor  # (C,) over a constant
    score: Tensor  # (C,) the extrapolated risk
    p: Tensor  # (C,)
    erm: int | None  # the reference with the lowest risk
    eligible: Tensor  # (C,) bool: measured, and not ERM: another stopping time of ERM is still ERM
    useful: Tensor  # (C,) bool: of these, those that predict something, and cost no more than is accepted
    passing: Tensor  # (C,) bool: of these, those that are not rejected
    not_paying: int  # how many more are not rejected, but cost more than `max_price`
    level: float
    p_own: float | None  # that no environment's own model beats ERM rescaled to it
    alike: bool  # whether nothing shows that one does: they differ in noise, not in what predicts

    @classmethod
    def of(cls, pooled: Pooled, records: Records, o: Mapping[str, Any]) -> View:
        risk, p = pooled.overall, p_values(pooled, o["test"])
        known = risk.isfinite() & p.isfinite()
        erm = lowest(risk, known & records.reference)
        eligible = known & ~records.reference
        gain = records.constant - risk
        left_out_too = pooled.column_slope is not None and records.left_out is not None and o["test"] in BY_SLOPES
        share = min(LEAST, o["min_gain"]) if left_out_too else o["min_gain"]
        least = share * max(0.0, float(gain[erm])) if erm is not None else torch.inf
        predicts = eligible & (gain >= least)
        limited = erm is not None and o["max_price"] < float("inf")
        useful = predicts & (risk <= (1 + o["max_price"]) * risk[erm]) if limited else predicts
        score = extrapolated_risk(pooled, o["test"], o["reach"], o["slack"])
        passing = useful & (p >= o["level"])
        not_paying = int((predicts & ~useful & (p >= o["level"])).sum())
        p_own = nothing_of_its_own(records.own)
        alike = p_own is not None and p_own > o["own_level"]
        if records.directions is not None:
            p_own = records.directions.p
            little = erm is not None and not own_models_gain(records.directions, LITTLE * float(gain[erm]))
            alike = o["own_level"] < 1 and (p_own >= SAME_DIRECTION or little)
        if records.toward is not None:  # of the candidate that would be taken
            p_own = records.toward.p
            alike = o["own_level"] < 1 and p_own >= SAME_WAY
        return cls(pooled, risk, gain, score, p, erm, eligible, useful, passing, not_paying, o["level"], p_own, alike)

    @property
    def choice(self) -> int | None:
        """The best of those that pass."""
        return lowest(self.score, self.passing)


def own_models_gain(directions: Directions, least: float) -> bool:
    """Whether models of their own would gain environments this much, beyond doubt."""
    return directions.gain - CLEARLY * directions.error >= least


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


def price(risks: Tensor, erm: Tensor) -> Tensor:
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


def lowest(risk: Tensor, among: Tensor) -> int | None:
    return int(risk.masked_fill(~among, torch.inf).argmin()) if bool(among.any()) else None
