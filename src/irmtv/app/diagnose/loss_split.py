"""How a difference in loss splits into a change in X and a change in y given X.

Between an environment q and the rest p, for the held-out losses l of ERM,

    E_q l - E_p l  =  (E_S E_p[l|x] - E_p l)             X: from the rest to what both share
                   +  (E_S E_q[l|x] - E_S E_p[l|x])      y given X, on what both share
                   +  (E_q l - E_S E_q[l|x])             X: from what both share to the environment,

with S the shared distribution of X, with a density proportional to p q / (p + q): it lies where both have rows, so that
no weight exceeds 1. A classifier of the two, with equal prior odds, gives pi(x) = q / (p + q), and the expectations
under S are means over the rows of p weighted by pi and over those of q weighted by 1 - pi. The classifier is a logistic
regression on features, squares and products, cross-fitted, then calibrated on its held-out scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from irmtv.app.diagnose.erm_model import ErmModel
from irmtv.app.diagnose.rows import DiagnosisRows, Floats
from irmtv.app.diagnose.two_sample import quadratic_basis
from irmtv.app.diagnose.words import Part
from irmtv.core.numbers import Estimate, number, within
from irmtv.core.plain_json import estimate
from irmtv.models.erm import fit_quietly

MOST_ROWS = 10_000
DRAWS = 300
LITTLE_OVERLAP, FEW_ROWS = 0.1, 50  # below, the parts are not to be trusted


@dataclass(frozen=True)
class LossSplit(Part):
    """One environment against the rest."""

    ALSO = ("trusted",)
    name: str  # of the environment
    rows: int
    gap: Estimate  # its mean loss less that of the rest
    from_x: Estimate
    from_y_given_x: Estimate
    overlap: float  # integral of 2 p q / (p + q): 1 where X has the same distribution, 0 where nothing is shared
    effective_rows: float  # of the smaller side: (sum w)^2 / sum w^2

    @property
    def trusted(self) -> bool:
        return self.overlap >= LITTLE_OVERLAP and self.effective_rows >= FEW_ROWS

    @property
    def sentence(self) -> str:
        """One sentence, and a warning where there is reason."""
        warning = (
            f" The supports hardly overlap (overlap {number(self.overlap, 2)} of 1, {self.effective_rows:.0f} "
            "effective rows): do not trust the parts."
        )
        size = self.gap["value"] or 0.0
        word = "higher" if size >= 0 else "lower"
        return (
            f"In {self.name} the loss is {number(abs(size))} {word} than in the rest: "
            f"{within(self.from_x, 2)} from a change in X, {within(self.from_y_given_x, 2)} from a change in y given X."
            f"{'' if self.trusted else warning}"
        )


@dataclass(frozen=True)
class LossSplits:
    """Every environment against the rest."""

    splits: tuple[LossSplit, ...]
    rows: int
    draws: int

    @property
    def largest(self) -> LossSplit:
        """The environment whose loss exceeds that of the rest most."""
        return max(self.splits, key=lambda s: -np.inf if s.gap["value"] is None else s.gap["value"])

    def of(self, environment: str) -> LossSplit | None:
        """That of one environment."""
        return next((s for s in self.splits if s.name == environment), None)

    @property
    def sentence(self) -> str:
        return self.largest.sentence

    def summary(self) -> dict[str, Any]:
        return {
            "said": self.sentence,
            "environments": [s.summary() for s in self.splits],
            "rows": self.rows,
            "draws": self.draws,
        }


def split_losses(rows: DiagnosisRows, model: ErmModel, seed: int) -> LossSplits:
    """Every environment against the rest."""
    rng = np.random.default_rng(seed)
    loss = model.loss
    if len(rows) > MOST_ROWS:
        some = np.sort(rng.choice(len(rows), MOST_ROWS, replace=False))
        rows, loss = rows.take(some), loss[some]
    log_odds = _log_odds(rows, seed)  # (N, E)
    splits = []
    for e, name in enumerate(rows.names):
        here = rows.codes == e
        if min(here.sum(), (~here).sum()) < 2:
            continue
        pi = _calibrated(log_odds[:, e], here)
        splits.append(decompose(name, loss[~here], pi[~here], loss[here], pi[here], rng))
    return LossSplits(tuple(splits), len(rows), DRAWS)


def decompose(
    name: str, loss_p: Floats, pi_p: Floats, loss_q: Floats, pi_q: Floats, rng: np.random.Generator
) -> LossSplit:
    """The split from the losses of both sides and pi = q / (p + q) at their rows; intervals by resampling both."""
    weight_p, weight_q = pi_p, 1 - pi_q
    point = _parts(_means(loss_p, weight_p)[:, None], _means(loss_q, weight_q)[:, None])[:, 0]
    drawn = _parts(_resampled(loss_p, weight_p, rng), _resampled(loss_q, weight_q, rng))  # (3, B)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=1)
    gap, from_x, from_y = (estimate(*limits) for limits in zip(point, low, high, strict=True))
    effective = min(float(w.sum() ** 2 / np.square(w).sum().clip(1e-300)) for w in (weight_p, weight_q))
    return LossSplit(
        name=name,
        rows=len(loss_q),
        gap=gap,
        from_x=from_x,
        from_y_given_x=from_y,
        overlap=float(weight_p.mean() + weight_q.mean()),  # both estimate the half of it
        effective_rows=effective,
    )


def _means(loss: Floats, weight: Floats) -> Floats:
    """Of the loss, of the weighted loss, of the weights: (3,)."""
    return np.array([loss.mean(), (weight * loss).mean(), weight.mean()])


def _resampled(loss: Floats, weight: Floats, rng: np.random.Generator) -> Floats:
    """The same of rows drawn with replacement: (3, B)."""
    columns = np.column_stack([loss, weight * loss, weight])
    n = len(loss)
    return np.stack([columns[rng.integers(n, size=n)].mean(0) for _ in range(DRAWS)], 1)


def _parts(p: Floats, q: Floats) -> Floats:
    """Gap, part of X, part of y given X: (3, B) from the means of both sides (3, B)."""
    shared_p, shared_q = p[1] / p[2].clip(1e-300), q[1] / q[2].clip(1e-300)
    return np.stack([q[0] - p[0], (shared_p - p[0]) + (q[0] - shared_q), shared_q - shared_p])


def _log_odds(rows: DiagnosisRows, seed: int) -> Floats:
    """Cross-fitted log odds of each environment against the rest: (N, E)."""
    basis, fold = quadratic_basis(rows.x), rows.folds(seed)
    n_env = len(rows.names)
    log_odds = np.zeros((len(rows), n_env))
    for k in range(int(fold.max()) + 1):
        held = fold == k
        model = LogisticRegression(C=0.1, max_iter=100, tol=1e-3)
        fit_quietly(model, basis[~held], rows.codes[~held])
        p = np.full((int(held.sum()), n_env), 1e-9)
        p[:, model.classes_] = model.predict_proba(basis[held])
        p = p.clip(1e-9, 1 - 1e-9)
        log_odds[held] = np.log(p) - np.log1p(-p)
    return log_odds


def _calibrated(log_odds: Floats, here: Any) -> Floats:
    """pi = q / (p + q) at equal prior odds: a logistic regression on the held-out log odds (Platt)."""
    scale = max(float(log_odds.std()), 1e-9)
    centred = (log_odds - log_odds.mean()) / scale
    model = fit_quietly(LogisticRegression(C=1e4, max_iter=200), centred[:, None], here)
    prior = np.log(here.sum() / (~here).sum())
    return np.asarray(expit(model.decision_function(centred[:, None]) - prior))
