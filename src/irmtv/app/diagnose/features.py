"""Features whose relation to the target changes between environments.

Weights: those of ERM against those of the same kind of model trained to be invariant (TV-l1), both on
standardised features. Of a linear model shares of the sum of all absolute weights; of a network or of trees how far the
outputs move when a feature is shuffled, as a share of what all of them do (`irmtv.models.importances`).

Test: every environment's own slopes, one Newton step from the pooled coefficients b,

    b_e = b + H_e^-1 g_e,    g_e = sum_i r_i x_i,    H_e = sum_i w_i x_i x_i' (+ a little ridge),

over the rows i of e, with r the residual, w the curvature of the loss (1 for squared error) and x with a 1 in front, so
that a base rate of its own is not put down to features. For squared error these are the environments' own
least-squares slopes. Their covariance is the sandwich of H_e and sum_i (r_i / (1 - h_i))^2 x_i x_i', h the leverage
(HC3): it holds where the model is wrong or the noise uneven; for classes it is at least what the model says. A slope
that rests on very few rows of an environment (a rare category), or that the rows there do not determine (two columns
that agree in all of them), is left out. Per feature, that its slopes are equal in all environments is a chi-square
test; p-values are corrected for the number of features (Holm).

Of a network or of trees, r and w are those of their held-out outputs and b is 0: the slopes are of what the model
leaves. Where it has seen how the target depends on the features they are 0 in every environment, also where that is
curved and the environments lie on different parts of the curve, which own straight lines would take for a change.

Features that say the same share a change, and then none of them can be named by itself. So there is a test of all of
them together: the covariances of residual and features within the environments, along directions in which the features
are uncorrelated, their differences in units of their standard errors, squared and summed, against the same with the
labels of the environments permuted. A network and trees add a direction, their own outputs: they see what no straight
line does, such as two features that matter only together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit, softmax
from sklearn.linear_model import Ridge

from irmtv.app.diagnose.erm_model import ErmModel
from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Ints
from irmtv.app.diagnose.words import LEVEL, Part
from irmtv.core.numbers import listed, number, p_text
from irmtv.core.plain_json import plain_json
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import train
from irmtv.models.erm import FAMILIES, fit_quietly, logistic
from irmtv.selection.equality import equal_means, holm, spread

# of TV-l1; trees that follow a larger one follow noise
PENALTY_WEIGHT, TREES_PENALTY_WEIGHT = 1e3, 1e2
STEPS, LEARNING_RATE = 600, 1e-2
RIDGE = 1e-2  # per row, in units of the mean curvature: what few rows determine stays at the pooled slope
PERMUTATIONS = 199
# a slope of an environment is left out where it rests on fewer rows, counted by (sum a^2)^2 / sum a^4 of what each row
# contributes, or where the rows there say less than this share of it and the ridge the rest
FEWEST, IDENTIFIED = 15, 0.6
_LEAVES = {"mlp": "the network leaves", "trees": "the trees leave"}


@dataclass(frozen=True)
class Feature:
    """One feature: its weights, and whether its slope differs between environments."""

    name: str
    erm: float  # share of the sum of absolute weights, signed where the model is linear and has one output
    invariant: float
    p: float  # not corrected
    p_holm: float  # corrected for the number of features
    spread: float  # how far apart the slopes typically lie, less what noise explains
    # by environment, per standard deviation of the feature, of what the model leaves where it is not linear; NaN where
    # too few rows tell
    slopes: tuple[float, ...]

    @property
    def changes(self) -> bool:
        return self.p_holm < LEVEL


@dataclass(frozen=True)
class FeatureChanges(Part):
    """All features, those whose relation to the target changes most first."""

    features: tuple[Feature, ...]
    environments: tuple[str, ...]
    joint_p: float  # of "no feature's relation changes", all of them together
    level_p: float  # of "given the features, the target has the same level in all environments"
    penalty_weight: float
    model: str = "linear"

    @property
    def changing(self) -> tuple[Feature, ...]:
        return tuple(f for f in self.features if f.changes)

    @property
    def fading(self) -> tuple[Feature, ...]:
        """Those that weigh less under invariance, the largest loss first."""
        less = [f for f in self.features if abs(f.invariant) < 0.75 * abs(f.erm)]
        return tuple(sorted(less, key=lambda f: abs(f.invariant) - abs(f.erm)))

    @property
    def changes(self) -> bool:
        """Whether any relation is shown to change."""
        return bool(self.changing) or self.joint_p < LEVEL

    @property
    def sentence(self) -> str:
        """One sentence, or two."""
        changing, n = self.changing, len(self.features)
        if not changing and self.joint_p < LEVEL:
            candidates = listed(f.name for f in self.fading[:5])
            return (
                f"Taken together the features' relation to the target changes between the environments "
                f"({p_text(self.joint_p)}), but none can be named by itself: they share the change."
                + (f" Most weight under invariance is lost by {candidates}." if candidates else "")
            )
        if not changing:
            level = "; the target's level, given the features, does" if self.level_p < LEVEL else ""
            return (
                f"No feature's relation to the target is shown to change between the environments "
                f"({p_text(self.joint_p)} for all {n} together){level}."
            )
        top = listed(self._with_slopes(f) for f in changing[:3])
        less = [f.name for f in changing if abs(f.invariant) < 0.5 * abs(f.erm)][:3]
        verb = "weighs" if len(less) == 1 else "weigh"
        drop = f" Under invariance {listed(less)} {verb} less than half." if less else ""
        most = "" if len(changing) <= 3 else "most of all "
        return (
            f"The relation to the target changes between the environments for {len(changing)} of {n} features, {most}"
            f"{top}.{drop}"
        )

    def _with_slopes(self, feature: Feature) -> str:
        known = [(s, e) for s, e in zip(feature.slopes, self.environments, strict=True) if np.isfinite(s)]
        if len(known) < 2:
            return feature.name
        (low, first), (high, last) = min(known), max(known)
        what = "slope" if self.model == "linear" else f"slope of what {_LEAVES[self.model]}"
        return f"{feature.name} ({what} {number(low, 2)} in {first}, {number(high, 2)} in {last})"

    def summary(self) -> dict[str, Any]:
        features = [{**asdict(f), "changes": f.changes} for f in self.features]
        return {**super().summary(), "features": plain_json(features)}


def feature_changes(rows: DiagnosisRows, seed: int, model: ErmModel | None = None) -> FeatureChanges:
    """Weights under ERM and under invariance, and the test of every feature.

    Without a model, or with a linear one, slopes are those of the target itself.
    """
    kind = "linear" if model is None else model.kind
    model = None if kind == "linear" else model
    penalty_weight = TREES_PENALTY_WEIGHT if kind == "trees" else PENALTY_WEIGHT
    slope, variance = own_slopes(rows, model)  # (1 + D, E) or (1 + D, E, C); the first is the level
    mean, cov = torch.as_tensor(slope), torch.as_tensor(variance)
    p = equal_means(mean, cov).numpy()
    apart = spread(mean, cov, 1.0).numpy()
    if model is None:
        erm, invariant = _weights(rows, seed)
    else:
        erm, invariant = FAMILIES[kind].shares(rows.as_task(), model.trees, penalty_weight, seed)
    corrected = holm(p[1:])
    # of classes the sizes alone: a slope for each has no sign of its own
    shown_slopes = slope[1:] if slope.ndim == 2 else np.linalg.norm(slope[1:], axis=2)
    features = [
        Feature(
            name=name,
            erm=float(erm[j]),
            invariant=float(invariant[j]),
            p=float(p[1 + j]),
            p_holm=float(corrected[j]),
            spread=float(apart[1 + j]),
            slopes=tuple(shown_slopes[j].tolist()),
        )
        for j, name in enumerate(rows.features)
    ]
    features.sort(key=lambda f: (f.p_holm if np.isfinite(f.p_holm) else np.inf, -np.nan_to_num(f.spread)))
    joint_p = joint_test(rows, seed, model=model)
    return FeatureChanges(tuple(features), rows.names, joint_p, float(p[0]), penalty_weight, kind)


def own_slopes(rows: DiagnosisRows, model: ErmModel | None = None) -> tuple[Floats, Floats]:
    """Level and slopes of every environment, and their squared standard errors: (1 + D, E), with C classes (.., C)."""
    coef, residual, curvature, probability = _residuals(rows, model)  # (C, 1 + D), (N, C) each
    x = np.hstack([np.ones((len(rows), 1)), rows.x])
    n_outputs, n_env = len(coef), len(rows.names)
    slope, variance = np.full((2, x.shape[1], n_env, n_outputs), np.nan)
    for e in range(n_env):
        here = rows.codes == e
        own = x[here]
        varies = own.std(0) > 1e-6
        for c in range(n_outputs):
            weight, r = curvature[here, c], residual[here, c]
            curved = (own * weight[:, None]).T @ own
            ridge = RIDGE * len(own) * weight.mean() * np.diag(np.r_[1e-6, np.ones(x.shape[1] - 1)])
            inverse = np.linalg.inv(curved + ridge)
            each = own @ inverse  # (n, 1 + D): what every row contributes to a slope
            rests_on = np.square(np.square(each).sum(0)) / (each**4).sum(0).clip(1e-300)
            known = varies & (rests_on >= FEWEST) & (np.diag(inverse @ curved) >= IDENTIFIED)
            known[0] = True
            leverage = (weight * (each * own).sum(1)).clip(0, 0.95)
            step = inverse @ (own.T @ r)
            r = r - weight * (own @ step)  # what the environment's own slopes leave
            slope[known, e, c] = (coef[c] + step)[known]
            squared_error = np.square((r / (1 - leverage))[:, None] * each).sum(0)
            if rows.task != "regression":
                # a category whose few rows are all of one class has residuals that hardly vary: what a model with these
                # slopes says of their variance is then nearer the truth
                p = expit(logit(probability[here, c]) + own @ step)
                squared_error = np.maximum(squared_error, ((p * (1 - p))[:, None] * np.square(each)).sum(0))
            variance[known, e, c] = squared_error[known]
    return (slope[..., 0], variance[..., 0]) if n_outputs == 1 else (slope, variance)


def joint_test(
    rows: DiagnosisRows, seed: int, permutations: int = PERMUTATIONS, model: ErmModel | None = None
) -> float:
    """p-value of "no feature's relation to the target changes": permuted labels of the environments."""
    coef, residual, curvature, _ = _residuals(rows, model)
    rng = np.random.default_rng(seed)
    n, n_env = len(rows), len(rows.names)
    scores = []  # per class (N, D): residual times features that H^-1/2 has made uncorrelated
    for c in range(len(coef)):
        x = rows.x
        if model is not None:  # its outputs, standardised as features are
            f = model.outputs.reshape(n, -1)[:, c]
            x = np.column_stack([x, (f - f.mean()) / max(float(f.std()), 1e-12)])
        hessian = (x * curvature[:, [c]]).T @ x / n
        values, vectors = np.linalg.eigh(hessian)
        there = values > 1e-3 * values.max()
        scores.append((x @ vectors[:, there] / np.sqrt(values[there]), residual[:, c]))

    def statistic(codes: Ints) -> float:
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes, minlength=n_env)
        starts = np.r_[0, sizes.cumsum()[:-1]]

        def means(values: Floats) -> Floats:  # (N, K) -> (E, K)
            return np.asarray(np.add.reduceat(values, starts, axis=0) / sizes[:, None])

        total = 0.0
        for z, r in scores:
            z, r, here = z[order], r[order][:, None], np.repeat(np.arange(n_env), sizes)
            product = (z - means(z)[here]) * (r - means(r)[here])
            cov = means(product)  # (E, K)
            weight = sizes[:, None] / (means(product**2) - cov**2).clip(1e-300)
            common = (weight * cov).sum(0) / weight.sum(0)
            total += float((weight * np.square(cov - common)).sum())
        return total

    reached = statistic(rows.codes)
    drawn = [statistic(rng.permutation(rows.codes)) for _ in range(permutations)]
    return (1 + sum(value >= reached * (1 - 1e-9) for value in drawn)) / (1 + permutations)


def _residuals(rows: DiagnosisRows, model: ErmModel | None) -> tuple[Floats, Floats, Floats, Floats]:
    """Pooled coefficients, y - mean, the loss's curvature, and the mean; a class at a time.

    Of a linear model of all rows; of another model at its held-out outputs, with coefficients 0.
    """
    if model is not None:
        f = model.outputs.reshape(len(rows), -1)  # (N, C) or (N, 1)
        coef = np.zeros((f.shape[1], 1 + rows.x.shape[1]))
    elif rows.task == "regression":
        linear = Ridge(alpha=1e-3).fit(rows.x, rows.y)
        f, coef = np.asarray(linear.predict(rows.x))[:, None], np.r_[linear.intercept_, linear.coef_][None]
    else:
        linear = fit_quietly(logistic(), rows.x, rows.y.astype(np.int64))
        f, coef = rows.x @ linear.coef_.T + linear.intercept_, np.column_stack([linear.intercept_, linear.coef_])
    if rows.task == "regression":
        return coef, rows.y[:, None] - f, np.ones_like(f), f
    p = (expit(f) if rows.task == "binary" else softmax(f, axis=1)).clip(1e-12, 1 - 1e-12)
    of_class = rows.y[:, None] if rows.task == "binary" else np.eye(rows.n_outputs)[rows.y.astype(np.int64)]
    return coef, of_class - p, p * (1 - p), p


def _weights(rows: DiagnosisRows, seed: int) -> tuple[Floats, Floats]:
    """Shares of the sum of absolute weights: (D,) each. Two runs of one tensor program."""
    y = torch.as_tensor(rows.y)
    given = Rows(
        torch.as_tensor(rows.x, dtype=torch.float32),
        y if rows.task == "multiclass" else y.float(),
        environment=torch.as_tensor(rows.codes),
        names=rows.names,
    )
    fitted = train(
        Task(given, rows.loss, rows.n_outputs),
        "irm-tv-l1",
        Runs(seed=seed, penalty_weight=[0.0, PENALTY_WEIGHT]),
        steps=STEPS,
        learning_rate=LEARNING_RATE,
        batch_size=None,
    )
    coef = fitted.coefficients()[0].double().numpy()  # (2, D) or (2, C, D)
    size = coef if coef.ndim == 2 else np.linalg.norm(coef - coef.mean(1, keepdims=True), axis=1)
    shares = size / np.abs(size).sum(1, keepdims=True).clip(1e-300)
    return shares[0], shares[1]
