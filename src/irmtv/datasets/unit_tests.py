"""The field's unit tests: six small problems that a method which learns invariances should solve with a linear model.

Invariant columns tell the target in the same way everywhere. Spurious columns tell it too, often better, but
differently in every environment, and in the test environments not at all: there they are shuffled over the rows. All
distributions are known, so the test error of any linear model is exact (:func:`unit_test_error`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import ndtr, owens_t
from scipy.stats import ortho_group

from irmtv.core.losses import Binary, Loss, Squared
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import Floats, check_intercept, count, float_array, one_of, streams

UnitTestName = Literal["1", "1s", "2", "2s", "3", "3s"]


def make_unit_test(
    name: UnitTestName,
    n_samples: int = 10_000,
    n_environments: int = 3,
    n_invariant: int = 5,
    n_spurious: int = 5,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 10_000,
) -> Task:
    """Draw one of the linear unit tests for invariance discovery (Aubin et al., 2021).

    ====  ====================================  =================  =================  ====================
    name  target                                invariant columns  spurious columns   environments
    ====  ====================================  =================  =================  ====================
    "1"   y = sum of b, b = a W + N(0, sd^2 I)  a ~ N(0, sd^2 I)   c = b V + N(0, I)  sd = 0.1, 1.5, 2
    "2"   y = 1 where the sum of the invariant  0.01 N(f, 0.1)     N(g, 0.1)          (p, s) = (0.95, 0.3)
          columns is above 0, else 0                                                  (0.97, 0.5)
                                                                                      (0.99, 0.7)
    "3"   y = 1 (z = 1) or 0 (z = -1),          N(0.1 z, 0.1^2)    N(m z, 0.1^2)      m ~ N(0, I)
          half each
    ====  ====================================  =================  =================  ====================

    N has a variance as its second argument. W (n_invariant, n_invariant) and V (n_invariant, n_spurious) are standard
    normal, divided by their number of columns, and the same in all environments. In "2" the foreground's sign f is 1
    with probability s, and the background's sign g equals f with probability p. Further environments have
    sd = 10^u, u uniform on [-2, 1]; p uniform on [0.9, 1] and s on [0.3, 0.7]; an m of their own. "1s", "2s" and "3s"
    are "1", "2" and "3" with x multiplied by a random orthogonal matrix: no single column is invariant.

    Parameters
    ----------
    name : {"1", "1s", "2", "2s", "3", "3s"}
        Which unit test. "1" and "1s" are regressions, the others have labels.
    n_samples : int, default 10000
        Training rows of *each* environment (`make_simulation` takes their total).
    n_environments : int, default 3
        Training environments, at least 2; there are as many test environments.
    n_invariant : int, default 5
        Invariant columns; they come first in ``x`` where it is not scrambled.
    n_spurious : int, default 5
        Spurious columns.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced, so that a second call with it draws other data. Parameters, training rows, test
        rows and the orthogonal matrix have streams of their own: ``n_test`` does not change the training rows, further
        environments do not change the first ones, and with one seed "1s" is "1", multiplied by the matrix.
    n_test : int, default 10000
        Test rows of *each* environment, at least 2.

    Returns
    -------
    Task
        ``train``: x (n_environments * n_samples, n_invariant + n_spurious), y (a number for "1" and "1s", else 0/1),
        environment. ``test``: for each training environment fresh rows with the same parameters, whose spurious
        columns are shuffled over the rows of that environment, all columns alike. ``card``: the settings, what
        shifts, and

        - ``scrambling``: the matrix Q (D, D) with x = (unscrambled x) Q, the identity for "1", "2" and "3";
        - ``parameters``: what was drawn once: ``deviation`` (sd), ``W`` and ``V``, or ``p`` and ``s``, or ``means``
          (m), by environment where they differ;
        - ``oracle``: the test error of the best linear model of the invariant columns (see Notes), ``oracles``: the
          same by environment, ``oracle_coef``: its coefficients on ``x`` (its intercept is 0).

    Notes
    -----
    *The test error* is the mean over the test environments of the mean squared error ("1") or of the share of wrong
    labels ("2", "3").

    *The oracle* is that of the population, in closed form; no model is trained for it.

    - "1": E[y | a] = a W 1 in every environment. It leaves the sum of n_invariant noises, so the error is
      n_invariant sd^2 in each environment: 10.43 on average at the defaults.
    - "2": the label is a function of the invariant columns, so the error is 0. (The authors' oracle has 0.03: it is
      a model trained by gradient descent, which the scale of 0.01 slows down.)
    - "3": equal coefficients on the invariant columns; the error is Phi(-sqrt(n_invariant)) in each environment, Phi
      the standard normal distribution function: 0.0127 at the defaults.

    Examples
    --------
    >>> task = make_unit_test("1s", 1000, random_state=0)
    >>> task.train.x.shape, task.train.names
    (torch.Size([3000, 10]), ('e1 sd=0.1', 'e2 sd=1.5', 'e3 sd=2'))
    >>> task.test.names[0], len(task.test)
    ('e1 sd=0.1 shuffled', 30000)
    >>> round(task.card["oracle"], 2)
    10.43
    """
    names: tuple[UnitTestName, ...] = get_args(UnitTestName)
    name = one_of("name", name, names, "Use '1' for the regression, '1s' for its scrambled version.")
    n_samples = count("n_samples", n_samples, 1, "rows of each training environment")
    k = count("n_environments", n_environments, 2, "invariance is learned from the differences between environments")
    n_invariant, n_spurious = count("n_invariant", n_invariant), count("n_spurious", n_spurious)
    n_test = count("n_test", n_test, 2, "rows of each test environment, to be shuffled")
    train_stream, test_stream, parameter_stream, matrix_stream = streams(random_state, 4)

    problem = _PROBLEMS[name[0]].sample(parameter_stream, k, n_invariant, n_spurious)
    width = n_invariant + n_spurious
    scrambling = ortho_group.rvs(width, random_state=matrix_stream) if name.endswith("s") else np.eye(width)  # (D, D)
    environments = problem.names
    best = np.concatenate([problem.best, np.zeros(n_spurious)])  # (D,)
    oracles = problem.error(problem.best, np.zeros(n_spurious), np.zeros(()))  # (E,)
    card = {
        "description": (
            f"{problem.description} {n_invariant} invariant and {n_spurious} spurious columns"
            f"{', scrambled by an orthogonal matrix' if name.endswith('s') else ''}."
        ),
        "source": "drawn by irmtv.datasets.make_unit_test",
        "citation": "Aubin, Slowik, Arjovsky, Bottou and Lopez-Paz, Linear unit-tests for invariance discovery, 2021",
        "licence": "generated",
        "unit_test": name,
        "n_samples": n_samples,
        "n_environments": k,
        "n_invariant": n_invariant,
        "n_spurious": n_spurious,
        "n_test": n_test,
        "parameters": {f.name: _nested(getattr(problem, f.name)) for f in fields(problem) if f.name not in _WIDTHS},
        "scrambling": _nested(scrambling),
        "oracle": float(oracles.mean()),
        "oracles": _nested(oracles),
        "oracle_coef": _nested(best @ scrambling),
        "oracle_is": f"In the population, with the invariant columns alone: {problem.oracle}",
        "shift": (
            f"{problem.shift} The test environments have the same parameters, and their spurious columns are shuffled "
            "over the rows: they say nothing about the target."
        ),
    }
    return Task(
        train=_rows(train_stream, problem, n_samples, scrambling, environments, shuffle=False),
        loss=problem.loss,
        test=_rows(test_stream, problem, n_test, scrambling, [f"{e} shuffled" for e in environments], shuffle=True),
        name=f"unit test {name}",
        card=card,
    )


def unit_test_error(coef: ArrayLike | torch.Tensor, intercept: ArrayLike | torch.Tensor, task: Task) -> Floats:
    """Exact error of a linear model in the test environments of a unit test.

    Parameters
    ----------
    coef : array or tensor, shape (..., D)
        Coefficients on the columns of ``task.train.x``, scrambled where these are. Leading axes are runs.
    intercept : array or tensor, shape (...) or a single number
        Intercepts.
    task : Task
        What `make_unit_test` returned. Only its card is read.

    Returns
    -------
    numpy array of float64, shape (..., E)
        By test environment, the mean squared error of x @ coef + intercept ("1"), or the probability of a wrong label
        where it predicts 1 if x @ coef + intercept > 0, else 0 ("2", "3"). The published error is the mean over the
        last axis. NaN where coef or intercept is not finite.

    Notes
    -----
    Of infinitely many rows: in a shuffled environment the spurious columns are then independent of the invariant ones
    and of the target, and have the distribution that they have in training.

    Examples
    --------
    >>> task = make_unit_test("3", 10, random_state=0)
    >>> unit_test_error(task.card["oracle_coef"], 0.0, task).round(4)
    array([0.0127, 0.0127, 0.0127])
    >>> unit_test_error([0.0] * 5 + [1.0] * 5, 0.0, task)  # spurious columns alone
    array([0.5, 0.5, 0.5])
    """
    card = task.card
    if "unit_test" not in card:
        raise ValueError(
            f"task must be one that make_unit_test returned. Got {task!r}, whose card has no unit test. "
            "Use FittedRuns.evaluate() for errors on test rows."
        )
    scrambling, n_invariant = np.asarray(card["scrambling"]), card["n_invariant"]  # (D, D)
    w, w0 = float_array("coef", coef), float_array("intercept", intercept)  # (..., D), (...)
    if w.ndim < 1 or w.shape[-1] != len(scrambling):
        raise ValueError(
            f"coef must have shape (..., {len(scrambling)}), one coefficient per column of x. Got shape {w.shape}. "
            "Give the coefficients on the raw columns, with those that are 0."
        )
    check_intercept(w0, w)
    drawn: dict[str, Any] = {k: np.asarray(v) for k, v in card["parameters"].items()}
    problem = _PROBLEMS[card["unit_test"][0]](**{k: card[k] for k in _WIDTHS}, **drawn)
    w0 = np.broadcast_to(w0, w.shape[:-1])
    finite = np.isfinite(w).all(-1) & np.isfinite(w0)  # (...)
    w, w0 = np.where(finite[..., None], w, 0.0), np.where(finite, w0, 0.0)
    w = w @ scrambling.T  # on the columns before they were scrambled
    error = problem.error(w[..., :n_invariant], w[..., n_invariant:], w0)
    return np.where(finite[..., None], error, np.nan)


@dataclass(frozen=True, eq=False)
class _Problem(ABC):
    """One of the three problems, without scrambling. The fields of each are what was drawn once."""

    n_invariant: int
    n_spurious: int

    description: ClassVar[str]
    shift: ClassVar[str]
    oracle: ClassVar[str]
    loss: ClassVar[Loss]

    @classmethod
    @abstractmethod
    def sample(cls, rng: np.random.Generator, k: int, n_invariant: int, n_spurious: int) -> _Problem:
        """Draw the parameters of k environments; those of the first ones do not depend on k."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Names of the environments, all different."""

    @property
    @abstractmethod
    def best(self) -> Floats:
        """Coefficients of the best linear model of the invariant columns, (n_invariant,); its intercept is 0."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, e: int, n: int) -> tuple[Floats, Floats, Floats]:
        """n rows of an environment: invariant columns, spurious columns, y."""

    @abstractmethod
    def error(self, invariant: Floats, spurious: Floats, intercept: Floats) -> Floats:
        """Test error by environment, (..., E), of finite coefficients (..., n_invariant), (..., n_spurious), (...)."""


@dataclass(frozen=True, eq=False)
class _UnequalNoise(_Problem):
    deviation: Floats  # (E,) sd
    W: Floats  # (n_invariant, n_invariant)
    V: Floats  # (n_invariant, n_spurious)

    description = "A regression whose noise differs between the environments."
    shift = "The standard deviation of the invariant columns and of the noise of the target."
    oracle = "the mean squared error of E[y | a] = a W 1, the mean over the environments of n_invariant sd^2."
    loss = Squared()

    @classmethod
    def sample(cls, rng: np.random.Generator, k: int, n_invariant: int, n_spurious: int) -> _UnequalNoise:
        W = rng.standard_normal((n_invariant, n_invariant)) / n_invariant
        V = rng.standard_normal((n_invariant, n_spurious)) / n_spurious
        deviation = np.concatenate([[0.1, 1.5, 2.0], 10 ** rng.uniform(-2, 1, max(k - 3, 0))])[:k]
        return cls(n_invariant, n_spurious, deviation, W, V)

    @property
    def names(self) -> list[str]:
        return [f"e{e} sd={sd:.4g}" for e, sd in enumerate(self.deviation, 1)]

    @property
    def best(self) -> Floats:
        return np.asarray(self.W.sum(1))

    def draw(self, rng: np.random.Generator, e: int, n: int) -> tuple[Floats, Floats, Floats]:
        sd = self.deviation[e]
        a = sd * rng.standard_normal((n, self.n_invariant))
        b = a @ self.W + sd * rng.standard_normal((n, self.n_invariant))
        c = b @ self.V + rng.standard_normal((n, self.n_spurious))
        return a, c, b.sum(1)

    def error(self, invariant: Floats, spurious: Floats, intercept: Floats) -> Floats:
        """The variances of a (W 1 - invariant), of the noise of y, and of c spurious, which are independent.

        cov(b) = sd^2 (W' W + I), so cov(c) = sd^2 V' (W' W + I) V + I; all means are 0.
        """
        variance = np.square(self.deviation)  # (E,)
        missed = np.square(invariant - self.best).sum(-1) + self.n_invariant  # (...)
        through_b = spurious @ self.V.T  # (..., n_invariant)
        missed = missed + np.square(through_b @ self.W.T).sum(-1) + np.square(through_b).sum(-1)
        constant = np.square(spurious).sum(-1) + np.square(intercept)  # (...)
        return np.asarray(missed[..., None] * variance + constant[..., None])


@dataclass(frozen=True, eq=False)
class _CowsAndCamels(_Problem):
    p: Floats  # (E,)
    s: Floats  # (E,)

    description = "A label that the foreground tells exactly, on a small scale, and the background mostly."
    shift = "How often the background has the sign of the foreground (p), and how often that is positive (s)."
    oracle = "the label is the sign of their sum, so the error is 0."
    loss = Binary()

    @classmethod
    def sample(cls, rng: np.random.Generator, k: int, n_invariant: int, n_spurious: int) -> _CowsAndCamels:
        further = rng.uniform((0.9, 0.3), (1.0, 0.7), (max(k - 3, 0), 2))
        p, s = np.concatenate([[(0.95, 0.3), (0.97, 0.5), (0.99, 0.7)], further])[:k].T
        return cls(n_invariant, n_spurious, p, s)

    @property
    def names(self) -> list[str]:
        return [f"e{e} p={p:.4g} s={s:.4g}" for e, (p, s) in enumerate(zip(self.p, self.s, strict=True), 1)]

    @property
    def best(self) -> Floats:
        return np.ones(self.n_invariant)

    def draw(self, rng: np.random.Generator, e: int, n: int) -> tuple[Floats, Floats, Floats]:
        front = np.where(rng.random(n) < self.s[e], 1.0, -1.0)  # f: (n,)
        back = np.where(rng.random(n) < self.p[e], front, -front)  # g: (n,)
        foreground = _FOREGROUND * (front[:, None] + np.sqrt(_SPREAD) * rng.standard_normal((n, self.n_invariant)))
        background = back[:, None] + np.sqrt(_SPREAD) * rng.standard_normal((n, self.n_spurious))
        return foreground, background, (foreground.sum(1) > 0).astype(np.float64)

    def error(self, invariant: Floats, spurious: Floats, intercept: Floats) -> Floats:
        """P(the foreground's sum T and the model's output F differ in sign), both normal given the signs f and g.

        Divide T by its standard deviation: T = h + Z, h = f sqrt(n / 0.1), Z standard normal. With u the mean of the
        invariant coefficients, F = d + b (h + Z) + r N, N standard normal and independent,

            d = g (sum of the spurious coefficients) + intercept,  b = 0.01 u sqrt(0.1 n),
            r^2 = 0.1 (0.01^2 sum (invariant - u)^2 + sum spurious^2).

        With k the mean of F over its standard deviation, and Owen's T function (1956),

            P = 2 T(h, d / (h r)) + 2 T(k, (h r^2 - b d) / ((d + b h) r)) + [h and k differ in sign].
        """
        n = self.n_invariant
        invariant, spurious, intercept = _unit_scale(invariant, spurious, intercept)
        mean = invariant.mean(-1)  # u: (...)
        b = _FOREGROUND * mean * np.sqrt(_SPREAD * n)
        rest = np.square(_FOREGROUND * (invariant - mean[..., None])).sum(-1) + np.square(spurious).sum(-1)
        r = np.sqrt(_SPREAD * rest)  # (...)
        back_is_positive = self.p * self.s + (1 - self.p) * (1 - self.s)  # (E,)
        error = np.zeros((*intercept.shape, len(self.p)))
        for f in (1, -1):
            h = f * np.sqrt(n / _SPREAD)
            share_f = self.s if f > 0 else 1 - self.s  # (E,)
            for g in (1, -1):
                d = g * spurious.sum(-1) + intercept
                centre = d + b * h
                centre = np.where(centre == 0, 1e-200, centre)  # T jumps there and the sum does not: from above
                with np.errstate(divide="ignore", over="ignore"):
                    k = centre / np.hypot(b, r)
                wrong = 2 * owens_t(h, _ratio(d, h * r)) + 2 * owens_t(k, _ratio(h * r**2 - b * d, centre * r))
                wrong = np.clip(wrong + ((h > 0) != (k > 0)), 0.0, 1.0)  # rounding may leave [0, 1]
                error += wrong[..., None] * share_f * (back_is_positive if g > 0 else 1 - back_is_positive)
        return error


@dataclass(frozen=True, eq=False)
class _SmallMargin(_Problem):
    means: Floats  # (E, n_spurious) m

    description = "A label that the invariant columns tell by a small margin, the spurious ones by a large one."
    shift = "The direction m in which the spurious columns tell the label."
    oracle = "the error of their sum's sign, Phi(-sqrt(n_invariant)) in every environment."
    loss = Binary()

    @classmethod
    def sample(cls, rng: np.random.Generator, k: int, n_invariant: int, n_spurious: int) -> _SmallMargin:
        return cls(n_invariant, n_spurious, rng.standard_normal((k, n_spurious)))

    @property
    def names(self) -> list[str]:
        return [f"e{e}" for e in range(1, len(self.means) + 1)]

    @property
    def best(self) -> Floats:
        return np.ones(self.n_invariant)

    def draw(self, rng: np.random.Generator, e: int, n: int) -> tuple[Floats, Floats, Floats]:
        z = np.where(rng.random(n) < 0.5, 1.0, -1.0)  # (n,)
        invariant = _MARGIN * (z[:, None] + rng.standard_normal((n, self.n_invariant)))
        spurious = z[:, None] * self.means[e] + _MARGIN * rng.standard_normal((n, self.n_spurious))
        return invariant, spurious, (z > 0).astype(np.float64)

    def error(self, invariant: Floats, spurious: Floats, intercept: Floats) -> Floats:
        """The output is z v + z' t + intercept + noise, z' the sign of the row that the spurious columns came from."""
        invariant, spurious, intercept = _unit_scale(invariant, spurious, intercept)
        v = _MARGIN * invariant.sum(-1)[..., None]  # (..., 1)
        t = spurious @ self.means.T  # (..., E)
        noise = _MARGIN * np.sqrt(np.square(invariant).sum(-1) + np.square(spurious).sum(-1))[..., None]  # (..., 1)
        w0 = intercept[..., None]
        centres = [v + t + w0, v - t + w0, v + t - w0, v - t - w0]  # where it should be positive, of z output
        return np.asarray(sum(ndtr(-_ratio(centre, noise)) for centre in centres) / 4)


_WIDTHS = ("n_invariant", "n_spurious")
_FOREGROUND = 0.01  # scale of the foreground's columns
_SPREAD = 0.1  # variance of foreground and background around their sign, before that scale
_MARGIN = 0.1  # mean of the invariant columns, and standard deviation of all columns, in "3"
_PROBLEMS: Mapping[str, type[_Problem]] = {"1": _UnequalNoise, "2": _CowsAndCamels, "3": _SmallMargin}


def _rows(
    rng: np.random.Generator, problem: _Problem, n: int, scrambling: Floats, names: Sequence[str], shuffle: bool
) -> Rows:
    """n rows of each environment, one environment after the other."""
    parts = []
    for e in range(len(names)):
        invariant, spurious, y = problem.draw(rng, e, n)
        if shuffle:
            spurious = spurious[rng.permutation(n)]
        parts.append((np.column_stack([invariant, spurious]) @ scrambling, y))
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    code = torch.from_numpy(np.repeat(np.arange(len(names)), n))
    return Rows(torch.from_numpy(x).float(), torch.from_numpy(y).float(), code, names=tuple(names))


def _unit_scale(invariant: Floats, spurious: Floats, intercept: Floats) -> tuple[Floats, Floats, Floats]:
    """The model with its largest coefficient 1: only the output's sign counts, and no square under- or overflows.

    A model without coefficients predicts its intercept's sign, and 0 where that is 0, too.
    """
    largest = np.maximum(np.abs(invariant).max(-1), np.abs(spurious).max(-1))  # (...)
    sign = np.where(intercept > 0, 1.0, -1.0)
    scale = np.where(largest > 0, largest, 1.0)
    with np.errstate(over="ignore"):
        intercept = np.clip(np.where(largest > 0, intercept / scale, sign), -1e100, 1e100)
    return invariant / scale[..., None], spurious / scale[..., None], intercept


def _ratio(above: Floats, below: Floats) -> Floats:
    """above / below; 0 where above is 0, infinite where only below is."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(above == 0, 0.0, above / below)


def _nested(values: Floats) -> Any:
    """Nested tuples of Python's numbers."""
    return tuple(_nested(v) for v in values) if values.ndim else values.item()
