"""The `invariance` rule: is a model invariant over the environments, and what does that cost?

A candidate is tested on rows that were held out: are its mean slopes equal over the environments (one scale of
its logits is then right for all of them), and are its risks equal? Among those that are not rejected and lie
within about one standard error of equality, the one with the lowest held-out risk is taken.

Why not simply the lowest risk of all that are not rejected: risk falls with every spurious feature, so that choice
sits at the edge of rejection, and of many candidates it takes the one whose noise hides most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.selection.records import Pooled, Records
from irmtv.selection.scores import iid

Outcome = Literal["erm-invariant", "invariant-found", "none-found"]
TESTS = ("both", "risks", "slopes", "zero-slopes")
ONE_STANDARD_ERROR = 0.3173  # two-sided p of a difference as large as its standard error


@dataclass(frozen=True)
class Verdict:
    """Which candidate, why, and the figures behind it."""

    index: int
    outcome: Outcome
    figures: Mapping[str, Any]
    message: str


def equal_means(mean: Tensor, cov: Tensor) -> Tensor:
    """p-value of "all environments have the same mean", for every candidate: (C,).

    mean is (C, E), cov the squared standard errors (C, E) or covariances (C, E, E). The generalised least-squares
    test, (m - m0)' cov^-1 (m - m0) at the best common value m0: chi-square with one degree of freedom less than
    environments. Environments without rows (NaN) drop out; with fewer than two left p is NaN.
    """
    return _each(mean, cov, common=True)


def zero_means(mean: Tensor, cov: Tensor) -> Tensor:
    """p-value of "every environment's mean is zero": chi-square with as many degrees of freedom as environments."""
    return _each(mean, cov, common=False)


def _each(mean: Tensor, cov: Tensor, common: bool) -> Tensor:
    if mean.ndim == 3:  # a vector of slopes: each component is tested, the smallest p counts (Bonferroni)
        parts = torch.stack([_each(mean[..., j], cov[..., j], common) for j in range(mean.shape[-1])])
        known = parts.isfinite()  # a narrower network has fewer components
        p = (torch.where(known, parts, 1.0).amin(0) * known.sum(0)).clamp_max(1)
        return torch.where(known.any(0), p, torch.nan)
    m = mean.double()
    there = m.isfinite()
    one, value = there.double(), torch.where(there, m, 0.0)
    weighted = _weights(value, cov.double(), there)
    if common:
        best = (one * weighted(value)).sum(-1) / (one * weighted(one)).sum(-1).clamp_min(1e-300)
        value = torch.where(there, m - best.unsqueeze(-1), 0.0)
    statistic = (value * weighted(value)).sum(-1)
    freedom = there.sum(-1) - int(common)
    p = torch.as_tensor(stats.chi2.sf(statistic.clamp_min(0).numpy(), np.maximum(freedom.numpy(), 1)))
    return torch.where(freedom > 0, p, torch.nan)


def _weights(value: Tensor, cov: Tensor, there: Tensor) -> Callable[[Tensor], Tensor]:
    """v -> cov^-1 v for (C, E), absent environments left out."""
    # a variance of 0 (a constant model) must not divide, and means in float32 are not sure beyond 1e-6 of their size
    floor = 1e-12 * value.square().amax(-1, keepdim=True) + 1e-300
    if cov.ndim == 2:
        inverse = torch.where(there, 1 / (cov + floor), 0.0)
        return lambda v: inverse * v
    eye = torch.eye(value.shape[-1], dtype=torch.float64)
    both = there.unsqueeze(-1) & there.unsqueeze(-2)
    matrix = torch.where(both, cov, eye) + floor.unsqueeze(-1) * eye
    unknown = ~matrix.isfinite().all(-1).all(-1)
    matrix = torch.where(unknown[:, None, None], eye, matrix)
    size = matrix.diagonal(dim1=-2, dim2=-1).sqrt()  # (C, E)
    sizes = size.unsqueeze(-1) * size.unsqueeze(-2)
    # soft environments may coincide: their difference, which rounding alone makes, counts for nothing
    pseudo = torch.linalg.pinv(matrix / sizes, rtol=1e-6, hermitian=True) / sizes * both
    pseudo = torch.where(unknown[:, None, None], torch.nan, pseudo)
    return lambda v: torch.einsum("cef,cf->ce", pseudo, v)


def p_values(pooled: Pooled, test: str) -> Tensor:
    """How well each candidate's statistics agree with invariance: (C,)."""
    if test == "risks":
        return equal_means(pooled.risk, pooled.risk_cov)
    if test == "slopes":
        return equal_means(pooled.slope, pooled.slope_cov)
    if test == "zero-slopes":
        return zero_means(pooled.slope, pooled.slope_cov)
    # both must hold, so the smaller p counts
    return torch.minimum(p_values(pooled, "risks"), p_values(pooled, "slopes"))


def invariance(
    records: Records,
    *,
    test: str = "both",
    level: float = 0.01,
    near: float = ONE_STANDARD_ERROR,
    min_gain: float = 0.2,
) -> Verdict:
    """Keep ERM where it is invariant already; else the best invariant candidate; else ERM, with a warning.

    Parameters
    ----------
    test : "both" (equal slopes and equal risks), "risks", "slopes", or "zero-slopes" (the condition of IRM itself;
        a model that overfits fails it in every environment alike). Where environments differ in noise or base rate
        no useful model has equal risks: use "slopes" there.
    level : a candidate with a p-value below it is not invariant.
    near : of the rest, those with a p-value of at least this are compared by risk (0.3173: within one standard
        error for two environments); where none is so near, the nearest one is taken. This is what keeps a choice
        among many candidates from being the luckiest one.
    min_gain : share of ERM's gain over a constant prediction that a candidate must keep. A model that predicts
        nothing has equal risks everywhere.
    """
    check_options(test=test, level=level, near=near, min_gain=min_gain)
    if records.risk.shape[-1] < 2:
        raise ValueError(
            f"rule 'invariance' compares environments and needs at least 2. Got {records.risk.shape[-1]}; use 'iid'."
        )
    pooled = records.pooled()
    risk, p = iid(pooled), p_values(pooled, test)
    known = risk.isfinite() & p.isfinite()
    erm = _lowest(risk, known & records.reference)
    if erm is None:
        raise ValueError(
            "rule 'invariance' needs a candidate of plain risk minimisation that was measured in two or more "
            "environments. Got none: train 'erm' (or penalty_weight=0) too, on rows whose environments are known."
        )
    eligible = known & ~records.reference  # another stopping time of ERM is still ERM
    choice, outcome, passing, close = _decide(risk, p, eligible, erm, records.constant, level, near, min_gain)
    gain = records.constant - float(risk[erm])
    useful = eligible & _useful(risk, erm, records.constant, min_gain)
    figures: dict[str, Any] = {
        "candidates": int(eligible.sum()),
        "passing": passing,
        "near": close,
        "p": float(p[choice]),
        "p_erm": float(p[erm]),
        "p_nearest": float(p[useful].max() if bool(useful.any()) else p[erm]),
        "risk": float(risk[choice]),
        "risk_erm": float(risk[erm]),
        "risk_constant": records.constant,
        "price": float(risk[choice] - risk[erm]),
        "gain_kept": (records.constant - float(risk[choice])) / gain if gain > 0 else None,
        "risks": _listed(pooled.risk[choice]),
        "risks_erm": _listed(pooled.risk[erm]),
        "pays_at": _pays_at(pooled.risk[choice], pooled.risk[erm]),
        "p_confirmed": None,
    }
    if outcome == "invariant-found":
        figures["p_confirmed"] = _confirmed(records, test, level, near, min_gain)
    return Verdict(choice, outcome, figures, _message(outcome, figures, test, level))


def _decide(
    risk: Tensor, p: Tensor, eligible: Tensor, erm: int, constant: float, level: float, near: float, min_gain: float
) -> tuple[int, Outcome, int, int]:
    """The chosen candidate, the outcome, how many pass, and how many of these are near."""
    passing = eligible & _useful(risk, erm, constant, min_gain) & (p >= level)
    if float(p[erm]) >= level:
        return erm, "erm-invariant", int(passing.sum()), 0
    if not bool(passing.any()):
        return erm, "none-found", 0, 0
    close = passing & (p >= min(near, float(p[passing].max())))
    choice = _lowest(risk, close)
    assert choice is not None
    return choice, "invariant-found", int(passing.sum()), int(close.sum())


def _useful(risk: Tensor, erm: int, constant: float, min_gain: float) -> Tensor:
    return constant - risk >= min_gain * (constant - risk[erm])


def _confirmed(records: Records, test: str, level: float, near: float, min_gain: float) -> float | None:
    """p-value that no choice has touched: chosen on one half of the folds, tested on the other, both ways round."""
    if records.n_folds < 2:
        return None
    halves = [records.folds(list(range(start, records.n_folds, 2))).pooled() for start in (0, 1)]
    found = []
    for own, other in (halves, halves[::-1]):
        risk, p = iid(own), p_values(own, test)
        known = risk.isfinite() & p.isfinite()
        erm = _lowest(risk, known & records.reference)
        if erm is None:
            return None
        choice, *_ = _decide(risk, p, known & ~records.reference, erm, records.constant, level, near, min_gain)
        found.append(float(p_values(other, test)[choice]))
    return None if any(np.isnan(found)) else min(1.0, 2 * min(found))


def _pays_at(risks: Tensor, erm: Tensor) -> float | None:
    """How much further than the training environments lie apart the next one must be for the choice to pay.

    In units of the spread of ERM's risks, beyond ERM's worst environment; 0 or less: it pays there already.
    """
    there = risks.isfinite() & erm.isfinite()
    spread = float(erm[there].max() - erm[there].min())
    return float(risks[there].max() - erm[there].max()) / spread if spread > 0 else None


def _listed(risks: Tensor) -> list[float | None]:
    """None where an environment has no rows: NaN is not JSON."""
    return [r if np.isfinite(r) else None for r in risks.tolist()]


def _lowest(risk: Tensor, among: Tensor) -> int | None:
    return int(risk.masked_fill(~among, torch.inf).argmin()) if bool(among.any()) else None


_WHAT = {
    "both": "slopes and risks equal over environments",
    "risks": "risks equal over environments",
    "slopes": "slopes equal over environments",
    "zero-slopes": "slopes zero in every environment",
}


def _message(outcome: Outcome, f: Mapping[str, Any], test: str, level: float) -> str:
    tested = f"{_WHAT[test]}, level {level:g}, {f['candidates']} candidates"
    if outcome == "erm-invariant":
        return f"plain risk minimisation is kept: it passes the test ({tested}; p = {f['p_erm']:.2g})."
    risks = ", ".join("no rows" if r is None else f"{r:.3g}" for r in f["risks_erm"])
    if outcome == "none-found":
        return (
            f"plain risk minimisation is kept, though it is not invariant ({tested}; p = {f['p_erm']:.1g}, risks by "
            f"environment {risks}): no candidate that predicts anything passes (nearest p = {f['p_nearest']:.1g}). "
            "The environments may differ in noise or base rate (then test='slopes'), or the penalties were too weak."
        )
    text = (
        f"an invariant model was found ({tested}; {f['passing']} pass; p = {f['p']:.2g}, plain risk minimisation "
        f"{f['p_erm']:.1g}). Its held-out risk is {f['risk']:.3g}; plain risk minimisation has {f['risk_erm']:.3g}: "
        f"that is the price in the training environments."
    )
    if f["p_confirmed"] is not None and f["p_confirmed"] < level:
        text += (
            f" Chosen on half of the folds and tested on the other it is not confirmed (p = {f['p_confirmed']:.1g})."
        )
    return text


def check_options(**options: Any) -> None:
    """Whether `invariance` takes these options."""
    defaults = {"test": "both", "level": 0.01, "near": ONE_STANDARD_ERROR, "min_gain": 0.2}
    for name in options:
        if name not in defaults:
            known = list(defaults)
            raise ValueError(f"options of 'invariance' are {known}. Got {name!r}.{did_you_mean(name, known)}")
    given = {**defaults, **options}
    if given["test"] not in TESTS:
        raise ValueError(
            f"test must be one of {list(TESTS)}. Got {given['test']!r}.{did_you_mean(given['test'], TESTS)}"
        )
    for name in ("level", "near", "min_gain"):
        value = given[name]
        if not (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1):
            raise ValueError(f"{name} must be a number from 0 to 1. Got {value!r}.")
    if given["level"] > given["near"]:
        raise ValueError(
            f"near must be at least level={given['level']:g}: it narrows what passes. Got near={given['near']:g}."
        )
