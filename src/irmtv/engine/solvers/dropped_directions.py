"""The fewest directions of x to drop, so that on what is left one linear model is the best in every environment.

For columns that are mixtures of others (form="directions" of "eills"). Let U be the directions that are kept, A_e, b_e
and n_e the second moments and the rows of environment e, s_e the variance of its residuals. Squared errors need no more
to know, of all models beta = U v,

    regret_e = R_e(beta) - min over v of R_e(U v),

and T = sum_e n_e regret_e / s_e tests whether one model is the best everywhere: a chi-square. Without one direction of
D it has D (E - 1) - (D - 1) degrees of freedom, so three environments can refute it. What is minimised over U is

    sum_e n_e [R_e(beta) + gamma regret_e] / s_e,      beta the best model of all rows, each counted by 1 / s_e,

the likelihood of environments of unequal noise, and regret, with a gamma little above the least that passes the test.

A scalar classifier's penalty asks for one number per environment, which is 0 to second order near the invariant model:
it leaves the spurious part undecided up to the fourth root of the rows. Regret in all kept directions decides it up to
their square root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]
Point = tuple[Floats, Floats, float]  # directions (D, J), variances (E,) and the value there

ROWS_PER_COLUMN = 3  # that an environment must have, to be asked for its own model
MOST_DROPPED = 3  # directions
ROUNDS = 2  # in which the variances of the residuals are measured again
STARTS, WEIGHT_OF_STARTS, ALIKE = 3, 100.0, 0.95  # starts, of a pool of directions, and how they are compared
RIDGE = 1e-8  # of the mean variance of a column: what is constant in an environment has no model of its own


class SecondMoments(NamedTuple):
    """Of environments; the intercept is the last column of x."""

    rows: Floats  # (E,)
    xx: Floats  # (E, D + 1, D + 1)
    xy: Floats  # (E, D + 1)
    yy: Floats  # (E,)


class Dropped(NamedTuple):
    theta: Floats  # (D + 1,) the model on what is kept
    directions: Floats  # (D, J) orthonormal, what is dropped
    statistic: float  # T
    degrees: int

    @property
    def p(self) -> float:
        return float(stats.chi2.sf(self.statistic, self.degrees))


def most_directions(n_environments: int, n_columns: int) -> int:
    """How many can be dropped at most, so that the test has degrees of freedom left, and in a reasonable time."""
    return max(0, min(n_environments - 1, n_columns - 1, MOST_DROPPED))


def drop_directions(moments: SecondMoments, most: float, l2: float = 0.0, level: float = 0.05) -> Dropped:
    """Without the fewest directions that pass the test at this level, for a gamma of 1, 10, ... up to `most`.

    If nothing passes: the last weight, and the most directions that can be tested.
    """
    moments = _enough_rows(moments)
    nothing = np.zeros((moments.xx.shape[1] - 1, 0))
    all_kept = _Search(moments, nothing, more=0)
    found = all_kept._result(nothing, all_kept.noise, l2)
    for _ in range(most_directions(len(moments.rows), moments.xx.shape[1] - 1)):
        if found.p >= level:
            break
        found = _Search(moments, found.directions).best(most, l2, level)
    return found


def _enough_rows(moments: SecondMoments) -> SecondMoments:
    """Those that are asked, with a little ridge; all where none has enough rows."""
    size = moments.xx.shape[1]
    enough = moments.rows >= ROWS_PER_COLUMN * size
    rows, xx, xy, yy = (part[enough] if enough.any() else part for part in moments)
    ridge = RIDGE * np.trace(xx, axis1=1, axis2=2) / size
    return SecondMoments(rows, xx + ridge[:, None, None] * np.eye(size), xy, yy)


class _Search:
    """For one direction more than those before (D, J - 1)."""

    def __init__(self, moments: SecondMoments, before: Floats, more: int = 1) -> None:
        self.m, self.before, self.j, self.d = moments, before, before.shape[1] + more, len(before)
        own = np.linalg.solve(moments.xx, moments.xy[..., None])[..., 0]
        smallest = 1e-9 * moments.yy.max() + 1e-300
        left = np.maximum(moments.yy - (own * moments.xy).sum(1), smallest)
        self.noise = left / np.maximum(1e-9, 1 - (self.d + 1) / moments.rows)  # (E,) of every environment's own model

    def best(self, most: float, l2: float, level: float) -> Dropped:
        """With ten times the least weight of 1, 10, ..., `most` that passes the test, which is at its edge; else with
        the last.

        Weights rise from every start; where that leads to nothing that passes, they fall from there.
        """
        weights = [*(10.0**k for k in range(60) if 10.0**k < most), most]
        starts = [(start, self.noise, 0.0) for start in self._starts()]

        def followed(points: Sequence[Point], gamma: float) -> tuple[list[Point], Dropped]:
            points = [self._followed(directions, noise, gamma) for directions, noise, _ in points]
            results = [self._result(directions, noise, l2) for directions, noise, _ in points]
            passing = [k for k, one in enumerate(results) if one.p >= level]
            return points, results[min(passing or range(len(points)), key=lambda k: points[k][2])]

        points, found = followed(starts, weights[0])
        for gamma in weights[1:]:
            passed = found.p >= level
            points, found = followed(points, gamma)
            if passed:
                break
        if found.p >= level:
            return found
        path = [(starts, found)]
        for gamma in weights[::-1]:
            path.append(followed(path[-1][0], gamma))
            if path[-1][1].p < level:
                break
        return path[max(1, len(path) - 3)][1]

    def _starts(self) -> list[Floats]:
        """The best of many directions beside those before, by their values as they are: (D, J) each."""
        weight, scored = self.m.rows / self.noise, []
        for direction in self._pool():
            start = np.linalg.qr(np.c_[self.before, direction])[0]
            risk, regret = self._risks(start, weight)
            scored.append((float(weight @ (risk + WEIGHT_OF_STARTS * regret)), start))
        scored.sort(key=lambda one: one[0])
        distinct: list[Floats] = []
        for _, start in scored:
            if all(abs(float(start[:, -1] @ other[:, -1])) < ALIKE for other in distinct):
                distinct.append(start)
        return distinct[:STARTS]

    def _pool(self) -> Iterator[Floats]:
        """Columns; where the gradients of the pooled model lie; and along which the spread of x differs: (D,) each."""
        yield from np.eye(self.d)
        weight = self.m.rows / self.noise
        pooled = np.linalg.solve(np.einsum("e,eij->ij", weight, self.m.xx), weight @ self.m.xy)
        gradient = (self.m.xy - self.m.xx @ pooled)[:, :-1] * np.sqrt(weight)[:, None]
        yield from np.linalg.svd(gradient, full_matrices=False)[2]
        spread = self.m.xx[:, :-1, :-1] - self.m.xx[:, :-1, -1:] * self.m.xx[:, -1:, :-1]
        values, vectors = np.linalg.eigh(np.einsum("e,eij->ij", self.m.rows / self.m.rows.sum(), spread))
        roots = vectors * np.sqrt(np.maximum(values, RIDGE * values.max()))  # (D, D)
        inverse = vectors / np.sqrt(np.maximum(values, RIDGE * values.max()))
        for one in spread:
            turned = np.linalg.eigh(inverse.T @ one @ inverse)[1]
            yield from (roots @ turned).T
            yield from (inverse @ turned).T

    def _followed(self, start: Floats, noise: Floats, gamma: float) -> Point:
        """From directions and variances to the nearest minimum."""
        directions, rows = np.linalg.qr(start)[0], self.m.rows
        for _ in range(ROUNDS):
            weight = rows / noise
            found = optimize.minimize(
                self._value, directions.ravel(), args=(gamma, weight / rows.sum()), jac=True, method="BFGS",
                options={"gtol": 1e-6, "maxiter": 200},
            )  # fmt: skip
            directions = np.linalg.qr(found.x.reshape(self.d, self.j))[0]
            noise = self._risks(directions, weight)[0]
        regret = self._risks(directions, rows / noise)[1]
        return directions, noise, float(rows @ (np.log(noise) + gamma * regret / noise))

    def _kept(self, directions: Floats) -> Floats:
        """Orthonormal, the intercept last: (D + 1, D + 1 - J)."""
        basis = np.linalg.qr(directions, mode="complete")[0][:, self.j :] if self.j else np.eye(self.d)
        kept = np.zeros((self.d + 1, self.d + 1 - self.j))
        kept[:-1, :-1], kept[-1, -1] = basis, 1.0
        return kept

    def _value(self, flat: Floats, gamma: float, weight: Floats) -> tuple[float, Floats]:
        """sum_e w_e [(1 + gamma) R_e(U v) - gamma R_e(U v_e)], and its gradient in the dropped directions (D J,).

        v and v_e minimise their parts, so that only U is differentiated; it turns as the directions do.
        """
        directions = flat.reshape(self.d, self.j)
        basis, triangle = np.linalg.qr(directions)
        kept = self._kept(basis)
        v, own = self._models(kept, weight)
        toward = self.m.xy - self.m.xx @ (kept @ v)  # (E, D + 1) minus half the gradient of R_e
        toward_own = self.m.xy - np.einsum("eij,ej->ei", self.m.xx, own @ kept.T)
        of_kept = -2 * ((1 + gamma) * np.outer(weight @ toward, v) - gamma * (weight[:, None] * toward_own).T @ own)
        risk, regret = self._measured(kept, v, own)
        value = float(weight @ (risk + gamma * regret))
        turned = -(kept @ of_kept.T)[:-1, :-1] @ basis  # (D, J) for orthonormal directions
        return value, np.linalg.solve(triangle, turned.T).T.ravel()

    def _models(self, kept: Floats, weight: Floats) -> tuple[Floats, Floats]:
        """In the kept directions: the model of all, (K,), and every environment's own, (E, K)."""
        xx, xy = kept.T @ self.m.xx @ kept, self.m.xy @ kept
        pooled = np.einsum("e,eij->ij", weight, xx)
        v: Floats = np.linalg.solve(pooled, weight @ xy).astype(np.float64)
        own: Floats = np.linalg.solve(xx, xy[..., None])[..., 0].astype(np.float64)
        return v, own

    def _measured(self, kept: Floats, v: Floats, own: Floats) -> tuple[Floats, Floats]:
        """Risk of the model of all in every environment, and its regret: (E,) each."""
        theta = kept @ v
        risk = self.m.yy - 2 * self.m.xy @ theta + np.einsum("i,eij,j->e", theta, self.m.xx, theta)
        off = (own - v) @ kept.T
        return np.maximum(risk, 1e-12 * self.m.yy + 1e-300), np.einsum("ei,eij,ej->e", off, self.m.xx, off)

    def _risks(self, directions: Floats, weight: Floats) -> tuple[Floats, Floats]:
        kept = self._kept(directions)
        return self._measured(kept, *self._models(kept, weight))

    def _result(self, directions: Floats, noise: Floats, l2: float) -> Dropped:
        kept, weight = self._kept(directions), self.m.rows / noise
        v, own = self._models(kept, weight)
        _, regret = self._measured(kept, v, own)
        # a ridge against the pooled risk, in units of its noise
        ridge = np.diag([l2 * self.m.rows.sum() ** 2 / (self.m.rows @ noise)] * (self.d - self.j) + [0.0])
        v = np.linalg.solve(
            kept.T @ np.einsum("e,eij->ij", weight, self.m.xx) @ kept + ridge, weight @ self.m.xy @ kept
        )
        n_environments = len(self.m.rows)
        degrees = (self.d + 1 - self.j) * (n_environments - 1) - self.j * (self.d - self.j)
        return Dropped(kept @ v, directions, float(weight @ regret), max(1, degrees))
