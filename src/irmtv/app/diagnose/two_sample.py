"""How different are the environments? A classifier guesses the environment of rows that it has not seen.

The classifier is a ridge regression of the environments' indicators on features, squares and products
(`quadratic_basis`): one factorisation per fold serves any number of labellings, so the same classifier can be trained
on hundreds of permutations of the labels. That is what makes the p-value right: areas of different folds share their
training rows, so that the usual standard error (DeLong's) is too small by up to a factor of sqrt(2) where there is
nothing to find. The interval has DeLong's error and, on top, what permuted labels vary beyond it; that part fades away
from 1/2, since a direction that is known well does not depend on single training rows.

The area under the ROC curve of environment e against the rest is taken within each fold and averaged by the number of
pairs; the overall one is the mean over the environments, weighted by their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm, rankdata

from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Ints
from irmtv.app.diagnose.words import LEVEL
from irmtv.core.numbers import Estimate, p_text, within
from irmtv.core.plain_json import estimate

MOST_ROWS = 10_000
PERMUTATIONS = 99
RIDGE = 0.3  # per row and standardised column
_AT_ONCE = 1 << 24  # numbers in a temporary array
MOST_COMPONENTS = 16  # principal components whose products are taken
MOST_COLUMNS = 200  # more features are replaced by their first principal components


@dataclass(frozen=True)
class TwoSample:
    """How well features predict the environment of a row: area under the curve, 1/2 by chance, 1 always."""

    auc: Estimate  # mean over environments, weighted by rows
    p: float  # of "the features have the same distribution in all environments"
    environments: tuple[str, ...]
    by_environment: tuple[Estimate, ...]  # each against the rest
    p_by_environment: tuple[float, ...]  # not corrected for how many there are
    permutations: int
    rows: int

    @property
    def differs(self) -> bool:
        return self.p < LEVEL

    @property
    def sentence(self) -> str:
        """One sentence."""
        how, which = "do not", ""
        if self.differs:
            value = self.auc["value"] or 0.5
            words = {0.6: "hardly", 0.75: "somewhat", 0.95: "clearly"}
            how = next((word for below, word in words.items() if value < below), "almost fully")
            most = self.environments[int(np.argmax([e["value"] or 0 for e in self.by_environment]))]
            which = f"; most of all {most}" if len(self.environments) > 2 else ""
        return (
            f"The features {how} tell the environments apart: a classifier reaches an area under the curve of "
            f"{within(self.auc)}, and guessing has 0.5 ({p_text(self.p)}){which}."
        )

    def summary(self) -> dict[str, Any]:
        each = zip(self.environments, self.by_environment, self.p_by_environment, strict=True)
        return {
            "said": self.sentence,
            "auc": self.auc,
            "p": self.p,
            "environments": [{"name": name, "auc": area, "p": p} for name, area, p in each],
            "permutations": self.permutations,
            "rows": self.rows,
            "average": "by rows",
        }


def two_sample_test(rows: DiagnosisRows, seed: int, permutations: int = PERMUTATIONS) -> TwoSample:
    """The classifier two-sample test of all environments, and of each against the rest."""
    rng = np.random.default_rng(seed)
    if len(rows) > MOST_ROWS:
        rows = rows.take(np.sort(rng.choice(len(rows), MOST_ROWS, replace=False)))
    fold = rows.folds(seed)
    z, codes = quadratic_basis(rows.x), rows.codes
    n_env = len(rows.names)
    hats = [_hat(z, fold == k) for k in range(int(fold.max()) + 1)]
    areas, errors = _areas(z, fold, hats, codes[:, None], n_env, with_errors=True)  # (1, E) each
    by_chance = _errors_by_chance(fold, codes, n_env)  # (E,)
    shares = np.bincount(codes, minlength=n_env) / len(codes)
    drawn = np.empty((permutations, n_env))
    step = max(1, _AT_ONCE // (len(codes) * n_env))
    for start in range(0, permutations, step):
        shuffled = np.stack([_within(codes, fold, rng) for _ in range(min(step, permutations - start))], 1)
        drawn[start : start + step], _ = _areas(z, fold, hats, shuffled, n_env)
    overall, drawn_overall = float(areas[0] @ shares), drawn @ shares
    # the areas of two environments rest on the same rows: at worst their errors add up
    error = _error(overall, float(errors[0] @ shares), float(by_chance @ shares), float(drawn_overall.std()))
    by_error = [_error(*of) for of in zip(areas[0], errors[0], by_chance, drawn.std(0), strict=True)]
    return TwoSample(
        auc=_interval(overall, error),
        p=_p(overall, drawn_overall),
        environments=rows.names,
        by_environment=tuple(_interval(a, e) for a, e in zip(areas[0], by_error, strict=True)),
        p_by_environment=tuple(_p(areas[0, e], drawn[:, e]) for e in range(n_env)),
        permutations=permutations,
        rows=len(rows),
    )


def quadratic_basis(x: Floats) -> Floats:
    """(N, D) standardised -> (N, D + squares + products), standardised and clipped at 8.

    Two environments may have the same mean and spread in every column and still differ in how columns go together; that
    is how a spurious feature changes. So beside the features stand the squares of those with more than two values, and
    all products of the first principal components. Labels are not looked at.
    """
    squares = np.empty((len(x), 0))
    parts = x
    if x.shape[1] > MOST_COMPONENTS:
        values, vectors = np.linalg.eigh(x.T @ x / len(x))
        scaled = vectors[:, ::-1] / np.sqrt(values[::-1].clip(1e-12))
        parts = x @ scaled[:, :MOST_COMPONENTS]
        if x.shape[1] > MOST_COLUMNS:
            x = x @ scaled[:, :MOST_COLUMNS]
        # where all pairs of columns are multiplied, their squares are among the products
        several = np.array([len(np.unique(column[:1000])) > 2 for column in x.T])
        squares = x[:, several] ** 2
    i, j = np.triu_indices(parts.shape[1])
    basis = np.hstack([x, squares, parts[:, i] * parts[:, j]])
    spread = basis.std(0)
    varies = spread > 1e-9
    return np.asarray(((basis[:, varies] - basis[:, varies].mean(0)) / spread[varies]).clip(-8.0, 8.0))


def _error(area: float, error: float, by_chance: float, permuted: float) -> float:
    """DeLong's error, and what permuted areas vary beyond it; up to 2.5 of their deviations from 1/2 in full."""
    beyond = max(0.0, permuted**2 - by_chance**2)
    away = abs(area - 0.5) / max(permuted, 1e-12)
    return float(np.sqrt(error**2 + beyond * min(1.0, (2.5 / max(away, 1e-12)) ** 2)))


def _errors_by_chance(fold: Ints, codes: Ints, n_env: int) -> Floats:
    """Standard errors of the areas of scores that know nothing: (E,)."""
    counts = np.array([np.bincount(codes[fold == k], minlength=n_env) for k in range(int(fold.max()) + 1)])  # (K, E)
    sizes = counts.sum(1, keepdims=True)
    pairs = counts * (sizes - counts)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt((pairs * (sizes + 1) / 12).sum(0)) / pairs.sum(0))


def _p(value: float, drawn: Floats) -> float:
    return float((1 + (drawn >= value - 1e-12).sum()) / (1 + len(drawn)))


def _interval(area: float, error: float) -> Estimate:
    """95 %, on the scale of the logit, so that it stays between 0 and 1; near an end, where that scale explodes, no
    wider than on the scale of the area itself."""
    if not 0 < area < 1 or not np.isfinite(error):
        return estimate(area, area, area)
    each = norm.ppf(0.975) * error
    reach = each / (area * (1 - area))
    low, high = (float(expit(logit(area) + sign * reach)) for sign in (-1, 1))
    return estimate(area, max(low, area - each), min(high, area + each))


def _within(codes: Ints, fold: Ints, rng: np.random.Generator) -> Ints:
    """Labels permuted within the folds, which were dealt so that each has its share of every label."""
    order = np.lexsort((rng.random(len(codes)), fold))
    permuted = np.empty_like(codes)
    permuted[np.argsort(fold, kind="stable")] = codes[order]
    return permuted


def _hat(z: Floats, held: Any) -> Floats:
    """The inverse of the ridge regression that is trained without the rows of a fold: (K, K)."""
    trained = z[~held] - z[~held].mean(0)
    gram = trained.T @ trained
    return np.asarray(np.linalg.inv(gram + RIDGE * len(trained) * np.eye(z.shape[1])))


def _areas(
    z: Floats, fold: Ints, hats: list[Floats], codes: Ints, n_env: int, with_errors: bool = False
) -> tuple[Floats, Floats]:
    """Areas of labellings (N, B), each environment against the rest, and DeLong's standard errors: (B, E)."""
    n, n_labels = codes.shape
    is_in = (codes[:, :, None] == np.arange(n_env)).reshape(n, -1)  # (N, B E)
    pairs, won, spread = np.zeros((3, is_in.shape[1]))
    for k, hat in enumerate(hats):
        held = fold == k
        labels = is_in[~held].astype(np.float64)
        mean = z[~held].mean(0)
        direction = hat @ ((z[~held] - mean).T @ (labels - labels.mean(0)))  # (K, B E)
        scores = (z[held] - mean) @ direction  # (n_k, B E)
        inside = is_in[held]
        n_in = inside.sum(0)
        n_out = len(inside) - n_in
        ranks = rankdata(scores, axis=0)
        pairs += n_in * n_out
        won += (ranks * inside).sum(0) - n_in * (n_in + 1) / 2
        if with_errors:
            spread += (n_in * n_out) ** 2 * _delong(scores, inside, ranks)
    with np.errstate(invalid="ignore"):
        areas, errors = won / pairs, np.sqrt(spread) / pairs
    return areas.reshape(n_labels, n_env), errors.reshape(n_labels, n_env)


def _delong(scores: Floats, inside: Any, ranks: Floats) -> Floats:
    """Variance of the area of every column, from how each row is placed among those of the other kind."""
    variances = np.zeros(scores.shape[1])
    for j, there in enumerate(inside.T):
        n_in, n_out = int(there.sum()), int((~there).sum())
        if min(n_in, n_out) < 2:
            continue
        own_in = rankdata(scores[there, j])
        own_out = rankdata(scores[~there, j])
        placed_in = (ranks[there, j] - own_in) / n_out
        placed_out = 1 - (ranks[~there, j] - own_out) / n_in
        variances[j] = placed_in.var(ddof=1) / n_in + placed_out.var(ddof=1) / n_out
    return variances
