"""The paper's simulation: invariant and spurious columns, and what can be known about it exactly.

A label y, a sign that agrees with it equally often everywhere, and a sign whose agreement drifts
with time. Two generators draw it (``generator=``):

| step                  | "code" (default)                      | "appendix"                               |
|-----------------------|---------------------------------------|------------------------------------------|
| label                 | y = +1 or -1, half each               | y = sign(v) w.p. p_v, else -sign(v)      |
| invariant sign        | a = y w.p. p_v, else -y               | a = +1 or -1, half each; v = a + N(0, 1) |
| spurious sign         | b = y w.p. p_s(t), else -y            | the same; u = b + N(0, 1)                |
| each invariant column | a + N(0, 1), own noise                | v + N(0, 1), v shared                    |
| each spurious column  | b + N(0, 1), own noise                | u + N(0, 1), u shared                    |

"appendix" is the paper's appendix to the letter. Its limit (:func:`simulation_limit`) lies below the
accuracies the paper reports, so those come from "code".

In both, P(y = +1) = 1/2 in every environment, and given y the invariant and the spurious columns are
independent. Of a linear predictor f = x @ coef + intercept only three numbers matter: how far the
invariant sign moves it, how far the spurious sign moves it, and its noise. So its accuracy in the
population is exact (:func:`population_accuracy`), and a sampled accuracy need not be trusted alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import bdtrc, ndtr, owens_t

from irmtv.core.losses import Binary
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import (
    Floats,
    check_intercept,
    count,
    equal_sizes,
    float_array,
    one_of,
    probability,
    segment_names,
    segments,
    streams,
)

GeneratorName = Literal["code", "appendix"]
OverTime = Callable[[Floats], ArrayLike]  # times (N,) in [0, 1] -> probabilities (N,)


def make_simulation(
    n_samples: int = 5000,
    p_s: float | Sequence[float] | OverTime = (0.999, 0.9),
    p_v: float = 0.8,
    n_invariant: int = 5,
    n_spurious: int = 10,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 5000,
    test_p_s: float | Sequence[float] = (0.999, 0.8, 0.2, 0.001),
    generator: GeneratorName = "code",
    n_segments: int | None = None,
) -> Task:
    """Draw the paper's simulation: training rows over time, test rows in other environments.

    The training rows are equally spaced in time, t_i = (i + 0.5) / n_samples, and time falls into as many
    equal segments as ``p_s`` has values (or ``n_segments``, where it is a function). The segment is the
    environment and t is the auxiliary variable.

    Parameters
    ----------
    n_samples : int, default 5000
        Training rows.
    p_s : float, sequence of float or function of time, default (0.999, 0.9)
        Probability that the spurious sign agrees with the label: one value per segment of time, or a function
        that takes an array of times in [0, 1] and returns as many probabilities, for an agreement that drifts
        within the segments too.
    p_v : float, default 0.8
        Probability that the invariant sign agrees with the label, in every environment.
    n_invariant : int, default 5
        Invariant columns; they come first in ``x``.
    n_spurious : int, default 10
        Spurious columns.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced, so that a second call with it draws other data. Training and test
        rows have streams of their own: ``n_test`` and ``test_p_s`` do not change the training rows, and
        ``n_samples`` and ``p_s`` do not change the test rows. With one seed and one ``generator``,
        different ``p_s`` and ``p_v`` share their random numbers, so such data sets are paired.
    n_test : int, default 5000
        Test rows over all test environments, split equally (sizes differ by one where they must).
    test_p_s : float or sequence of float, default (0.999, 0.8, 0.2, 0.001)
        Agreement of the spurious sign in each test environment.
    generator : {"code", "appendix"}, default "code"
        Which of the two generators of this module's table draws the rows.
    n_segments : int or None, default None
        Where ``p_s`` is a function: into how many equal segments of time, the environments, the rows fall (None
        is 2). It changes the environment labels only. Not with values of ``p_s``, which have a segment each.

    Returns
    -------
    Task
        ``train``: x (n_samples, n_invariant + n_spurious), y 0/1, environment, aux = t (n_samples, 1).
        ``test``: the same, its t without meaning. ``card``: the settings, their limit, and what shifts; its
        ``p_s`` has one value per segment, the mean over the segment's rows where ``p_s`` is a function.

    Examples
    --------
    >>> task = make_simulation(1000, p_s=(0.999, 0.7), p_v=0.9, random_state=0)
    >>> task.train.x.shape, task.train.names
    (torch.Size([1000, 15]), ('t<0.5', 't>=0.5'))
    >>> task.test.names
    ('p_s=0.999', 'p_s=0.8', 'p_s=0.2', 'p_s=0.001')
    >>> round(task.card["limit"], 4)
    0.8899
    >>> drift = make_simulation(1000, p_s=lambda t: 0.95 - 0.2 * t, n_segments=4, random_state=0)
    >>> [round(p, 3) for p in drift.card["p_s"]]
    [0.925, 0.875, 0.825, 0.775]
    """
    over_time = p_s if callable(p_s) else None
    given = () if callable(p_s) else _probabilities("p_s", p_s)
    k, reason = len(given), "one row per value of p_s"
    if over_time is not None:
        k, reason = count("n_segments", 2 if n_segments is None else n_segments), "one row per segment of time"
    elif n_segments is not None:
        raise ValueError(
            f"n_segments must be None where p_s holds values, one per segment of time. Got n_segments={n_segments!r} "
            f"and p_s={p_s!r}. Drop n_segments, or give p_s as a function of time."
        )
    test_p_s = _probabilities("test_p_s", test_p_s)
    p_v = probability("p_v", p_v)
    n_invariant = count("n_invariant", n_invariant)
    n_spurious = count("n_spurious", n_spurious)
    n_samples = count("n_samples", n_samples, k, reason)
    n_test = count("n_test", n_test, len(test_p_s), "one row per value of test_p_s")
    generator = _known_generator(generator)
    if len(set(test_p_s)) < len(test_p_s):
        raise ValueError(
            f"test_p_s must hold different values, since they name the test environments. Got {test_p_s}. "
            "Drop the repeated ones, and raise n_test for more rows of each."
        )
    time = (np.arange(n_samples) + 0.5) / n_samples  # (N,)
    segment = segments(n_samples, k)  # (N,)
    agreement = np.asarray(given)[segment] if over_time is None else _agreement(over_time, time)  # (N,)
    by_segment = given or tuple((np.bincount(segment, agreement) / np.bincount(segment)).tolist())
    train_stream, test_stream = streams(random_state)

    x, y = _draw(train_stream, agreement, p_v, n_invariant, n_spurious, generator)
    train = Rows(x, y, torch.from_numpy(segment), torch.from_numpy(time).float()[:, None], segment_names(k))

    sizes = equal_sizes(n_test, len(test_p_s))
    code = np.repeat(np.arange(len(test_p_s)), sizes)  # (n_test,) one environment after the other
    x, y = _draw(test_stream, np.asarray(test_p_s)[code], p_v, n_invariant, n_spurious, generator)
    # a time like those of training, for predictors that read it; drawn last, so that x and y do not depend on it
    aux = torch.from_numpy(test_stream.uniform(size=(n_test, 1))).float()
    test = Rows(x, y, torch.from_numpy(code), aux, tuple(f"p_s={p!r}" for p in test_p_s))
    limit = simulation_limit(p_v, n_invariant, generator)
    course, title = f"{given}", f"({','.join(f'{p:g}' for p in given)})"  # the title: the keys of published.json
    if over_time is not None:
        low, high = agreement.min(), agreement.max()
        course = f"a function of time from {low:.4g} to {high:.4g}, on average {tuple(round(p, 4) for p in by_segment)}"
        title = f"[{low:.4g}..{high:.4g}] in {k}"
    card = {
        "description": (
            f"Binary labels; {n_invariant} invariant columns whose sign agrees with the label with "
            f"probability {p_v:g} everywhere, {n_spurious} spurious columns whose agreement depends on the "
            "environment."
        ),
        "source": f"drawn by irmtv.datasets.make_simulation, generator {generator!r}",
        "citation": _CITATION,
        "licence": "generated",
        "generator": generator,
        "p_s": by_segment,
        "p_v": p_v,
        "n_invariant": n_invariant,
        "n_spurious": n_spurious,
        "n_samples": n_samples,
        "n_test": n_test,
        "test_p_s": test_p_s,
        "limit": limit,
        "expected_worst": _expected_minimum(limit, sizes),
        "shift": (
            f"The agreement of the spurious sign with the label: {course} over {k} equal segments of time in "
            f"training, {test_p_s} in the test environments. Nothing else shifts."
        ),
        "differs_from_paper": _DIFFERS[generator],
    }
    return Task(train=train, loss=Binary(), test=test, name=f"simulation ps={title},pv={p_v:g}", card=card)


def simulation_limit(p_v: float, n_invariant: int = 5, generator: GeneratorName = "code") -> float:
    """The best accuracy of any predictor that reads the invariant columns only.

    Parameters
    ----------
    p_v : float
        Probability that the invariant sign agrees with the label.
    n_invariant : int, default 5
        Invariant columns.
    generator : {"code", "appendix"}, default "code"
        Which generator draws the rows.

    Returns
    -------
    float
        p c + (1 - p)(1 - c), where p = max(p_v, 1 - p_v) and c is the probability that the mean of the
        invariant columns has the sign that y follows.

    Notes
    -----
    *Why the mean.* The columns are n independent N(theta, 1) draws around one hidden number theta (the
    sign a for "code", the base v for "appendix"), so their mean m ~ N(theta, 1/n) is sufficient: given m,
    the columns say nothing more about theta, nor about y, which depends on them through theta alone.

    *Why its sign.* The densities of m have an increasing likelihood ratio in theta, so
    P(theta > 0 | m) increases in m; theta is symmetric around 0, so it crosses 1/2 at m = 0. And
    P(y = 1 | m) = (1 - p_v) + (2 p_v - 1) P(theta > 0 | m) crosses 1/2 at the same place. So the Bayes
    rule is the sign of m (its opposite where p_v < 1/2: hence p), and its accuracy is the value above,
    with c = P(sign(m) = sign(theta)):

    - "code": theta = +1 or -1, so c = P(N(1, 1/n) > 0) = Phi(sqrt n).
    - "appendix": c = E Phi(sqrt n abs(v)), v ~ N(1, 1) by symmetry; in closed form by Owen's T function.

    *Why it is the number to beat in the worst environment too.* Average the environments p_s and
    1 - p_s: there the spurious sign, hence every spurious column, is independent of (y, invariant
    columns), so no predictor at all has an average over the two above the limit. The worst of test
    environments that include such a pair (0.999 and 0.001) cannot exceed it either.

    Examples
    --------
    >>> round(simulation_limit(0.9), 4), round(simulation_limit(0.8), 4)
    (0.8899, 0.7924)
    """
    p_v = probability("p_v", p_v)
    n_invariant = count("n_invariant", n_invariant)
    right = float(_rate(np.sqrt(n_invariant), 0.0, _known_generator(generator)))  # c
    p = max(p_v, 1 - p_v)
    return p * right + (1 - p) * (1 - right)


def expected_worst(accuracy: float, n_rows: int, n_environments: int = 4) -> float:
    """What the worst of several sampled accuracies is on average, where all true accuracies are equal.

    A perfect invariant predictor is equally good in every environment, yet the lowest of its sampled
    accuracies lies below that by chance alone. This is by how much.

    Parameters
    ----------
    accuracy : float
        True accuracy in each environment.
    n_rows : int
        Test rows in each environment.
    n_environments : int, default 4
        Environments.

    Returns
    -------
    float
        E min_e B_e / n over independent B_e ~ Binomial(n, accuracy), exact:
        (1/n) sum_{j=0}^{n-1} P(B > j)^k.

    Examples
    --------
    >>> round(expected_worst(simulation_limit(0.9), 1250), 4)
    0.8807
    """
    accuracy = probability("accuracy", accuracy)
    n_rows = count("n_rows", n_rows)
    return _expected_minimum(accuracy, [n_rows] * count("n_environments", n_environments))


def population_accuracy(
    coef: ArrayLike | torch.Tensor,
    intercept: ArrayLike | torch.Tensor,
    p_s: float | Sequence[float],
    p_v: float,
    n_invariant: int = 5,
    generator: GeneratorName = "code",
) -> Floats:
    """Exact accuracy of a linear predictor on the simulation, in environments of given ``p_s``.

    The predictor says 1 where f = x @ coef + intercept > 0, else 0.

    Parameters
    ----------
    coef : array or tensor, shape (..., D)
        Coefficients on the raw columns, the ``n_invariant`` invariant ones first. Leading axes are runs.
    intercept : array or tensor, shape (...) or a single number
        Intercepts.
    p_s : float or sequence of k floats
        Agreement of the spurious sign with the label.
    p_v : float
        Agreement of the invariant sign with the label.
    n_invariant : int, default 5
        Invariant columns.
    generator : {"code", "appendix"}, default "code"
        Which generator draws the rows.

    Returns
    -------
    numpy array of float64, shape (...) for one ``p_s`` and (..., k) for a sequence
        Probabilities of a right prediction. Exactly 0.5 where coef is all zero, whatever the intercept: a
        constant is right for half of the labels. NaN where coef or intercept is not finite.

    Notes
    -----
    Write V and S for the sums of the invariant and the spurious coefficients, and b for the spurious sign.
    Given the signs, f = (invariant sign) V [times abs(v) for "appendix"] + b S + intercept, plus centred
    Gaussian noise of variance ||coef||^2 ("code") or ||coef||^2 + S^2 ("appendix", where the noise of u
    is shared by all spurious columns). Divided by its standard deviation, that gives
    P(f > 0 | invariant sign, b) in closed form (`_rate`). The invariant sign (of a, or of v) is y with
    probability p_v, which gives P(f > 0 | y, b). And b is y with probability p_s, so the accuracy is
    p_s (accuracy where b = y) + (1 - p_s) (accuracy where b = -y).

    Examples
    --------
    >>> import numpy as np
    >>> everything = np.ones(15)  # ERM-like: leans on the ten spurious columns
    >>> population_accuracy(everything, 0.0, [0.999, 0.001], p_v=0.8).round(3)
    array([0.979, 0.08 ])
    """
    p_v = probability("p_v", p_v)
    share = np.asarray(_probabilities("p_s", p_s))  # (k,)
    n_invariant = count("n_invariant", n_invariant)
    generator = _known_generator(generator)
    w, w0 = float_array("coef", coef), float_array("intercept", intercept)  # (..., D), (...)
    if w.ndim < 1 or w.shape[-1] < n_invariant:
        raise ValueError(
            "coef must have shape (..., D), the invariant columns first, with D at least "
            f"n_invariant={n_invariant}. Got shape {w.shape}. Give the coefficients of all columns, or the "
            "n_invariant the data were drawn with."
        )
    check_intercept(w0, w)

    finite = np.isfinite(w).all(-1) & np.isfinite(w0)  # (...)
    largest = np.abs(w).max(-1)  # (...)
    # Only the sign of f counts, so its scale is free: with the largest coefficient 1 no square under- or
    # overflows. Rows that are zero or not finite turn NaN on the way and get their value at the end.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        w, w0 = w / largest[..., None], w0 / largest
        invariant, spurious = w[..., :n_invariant].sum(-1), w[..., n_invariant:].sum(-1)  # V, S: (...)
        shared = np.square(spurious) if generator == "appendix" else 0.0
        noise = np.sqrt(np.square(w).sum(-1) + shared)  # (...)
        slope = np.stack([invariant, -invariant], -1) / noise[..., None]  # (..., 2) by invariant sign +1, -1
        shift = np.stack([w0 + spurious, w0 - spurious], -1) / noise[..., None]  # (..., 2) by b = +1, -1
        # Beyond 1e100 the rate is 0 or 1 in any case; below it, products with the slope stay finite.
        shift = np.clip(shift, -1e100, 1e100)
        rate = _rate(slope[..., :, None], shift[..., None, :], generator)  # (..., 2, 2) [invariant sign, b]
    positive = p_v * rate + (1 - p_v) * rate[..., ::-1, :]  # (..., 2, 2) [y, b]: P(f > 0 | y, b)
    # Half the rows have y = +1 and want f > 0, the others want f <= 0.
    agree = (positive[..., 0, 0] + 1 - positive[..., 1, 1]) / 2  # (...) where b = y
    disagree = (positive[..., 0, 1] + 1 - positive[..., 1, 0]) / 2  # (...) where b = -y
    accuracy = agree[..., None] * share + disagree[..., None] * (1 - share)  # (..., k)
    accuracy = np.where((largest == 0)[..., None], 0.5, accuracy)
    accuracy = np.where(finite[..., None], accuracy, np.nan)
    return np.asarray(accuracy[..., 0] if _is_single(p_s) else accuracy, dtype=np.float64)


def _rate(slope: ArrayLike, shift: ArrayLike, generator: GeneratorName) -> Floats:
    """P(Z < slope * g + shift), Z standard normal; g = 1 ("code") or g = |v|, v ~ N(1, 1) ("appendix").

    "code" is Phi(slope + shift). For "appendix", split by the sign of v and reflect the negative part:

        int_0^inf [phi(v - 1) + phi(v + 1)] Phi(slope v + shift) dv = sum_{h = +-1} Phi2(h, k_h; rho),
        k_h = (shift + slope h) / r,  rho = slope / r,  r = sqrt(1 + slope^2),

    bivariate normal distribution functions, and by Owen (1956), with T his function,

        Phi2(h, k; rho) = [Phi(h) + Phi(k)] / 2 - T(h, shift / h) - T(k, (h - slope shift) / (r k))
                          - [h and k differ in sign] / 2.

    T(h, shift / h) is odd in h, so it cancels in the sum over h = +-1, and Phi(1) + Phi(-1) = 1.
    """
    slope, shift = np.asarray(slope, dtype=np.float64), np.asarray(shift, dtype=np.float64)
    if generator == "code":
        return np.asarray(ndtr(slope + shift))
    r = np.sqrt(1 + np.square(slope))
    total = np.full(np.broadcast_shapes(slope.shape, shift.shape), 0.5)
    for h in (1.0, -1.0):
        k = (shift + slope * h) / r
        # At k = 0 the T term and the indicator both jump and their sum does not: take the limit from above.
        k = np.where(k == 0, 1e-200, k)
        total += ndtr(k) / 2 - owens_t(k, (h - slope * shift) / (r * k)) - ((h > 0) != (k > 0)) / 2
    return np.asarray(np.clip(total, 0.0, 1.0))  # rounding may leave [0, 1] by 1e-16


def _expected_minimum(accuracy: float, sizes: Sequence[int]) -> float:
    """E min_e B_e / n_e, independent B_e ~ Binomial(n_e, accuracy): the integral of P(min > x) over [0, 1].

    The integrand is a step function that jumps at the levels j / n_e. Equal fractions divide to equal
    floats, so environments of different sizes meet on one grid without tolerance.
    """
    levels = [np.arange(n + 1) / n for n in sizes]
    grid = np.unique(np.concatenate(levels))  # 0 ... 1
    above = np.ones(len(grid) - 1)  # P(min > x) for x in [grid_i, grid_{i+1})
    for n, level in zip(sizes, levels, strict=True):
        above *= bdtrc(np.searchsorted(level, grid[:-1], side="right") - 1, n, accuracy)
    return float(np.diff(grid) @ above)


def _draw(
    rng: np.random.Generator,
    p_s: Floats,
    p_v: float,
    n_invariant: int,
    n_spurious: int,
    generator: GeneratorName,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (N, D) float32 and y (N,) float32 in {0, 1}, for the spurious agreement p_s (N,) of each row."""
    n = len(p_s)
    coin = np.where(rng.random(n) < 0.5, 1.0, -1.0)  # (N,)
    keep_v = np.where(rng.random(n) < p_v, 1.0, -1.0)  # (N,)
    keep_s = np.where(rng.random(n) < p_s, 1.0, -1.0)  # (N,)
    x = rng.standard_normal((n, n_invariant + n_spurious))  # (N, D) each column's own noise
    if generator == "code":
        label = coin
        invariant, spurious = label * keep_v, label * keep_s  # a, b: (N,)
    else:
        base = rng.standard_normal((n, 2))
        invariant = coin + base[:, 0]  # v: (N,)
        label = np.where(invariant > 0, keep_v, -keep_v)
        spurious = label * keep_s + base[:, 1]  # u: (N,)
    x[:, :n_invariant] += invariant[:, None]
    x[:, n_invariant:] += spurious[:, None]
    return torch.from_numpy(x).float(), torch.from_numpy(label > 0).float()


_CITATION = (
    "Lai and Wang, Invariant Risk Minimization Is A Total Variation Model, ICML 2024; the simulation follows Lin et "
    "al., ZIN: When and How to Learn Invariance Without Environment Partition?, NeurIPS 2022"
)
_DIFFERS: dict[GeneratorName, str] = {
    "code": (
        "The appendix draws Y from the sign of X_v and adds noise to copies of X_v and X_s, which caps "
        "invariant predictors below the published accuracies. Here, as in the code that fits those "
        "accuracies, the signs are drawn from Y and every column has its own noise around its sign only."
    ),
    "appendix": (
        "Nothing: Y from the sign of X_v, and every column a copy of X_v or X_s plus its own standard normal "
        "noise. The accuracies the paper publishes exceed this generator's limit: they come from 'code'."
    ),
}


def _known_generator(value: Any) -> GeneratorName:
    names: tuple[GeneratorName, ...] = get_args(GeneratorName)
    return one_of("generator", value, names, "Use 'code' for the data behind the published numbers.")


def _probabilities(name: str, values: Any) -> tuple[float, ...]:
    if _is_single(values):
        return (probability(name, values),)
    items = tuple(probability(f"{name}[{i}]", v) for i, v in enumerate(values))
    if not items:
        raise ValueError(f"{name} must hold at least one probability. Got {values!r}. Give one per environment.")
    return items


def _agreement(over_time: OverTime, time: Floats) -> Floats:
    """p_s at every time, (N,), or an error that says what is wrong with the function."""
    what = "p_s, as a function of time, must take an array of times and return as many probabilities."
    try:
        values = np.asarray(over_time(time.copy()), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{what} Got {type(error).__name__}: {error}. Write it with NumPy: np.where(t < 0.5, 0.9, 0.8), not if."
        ) from error
    if values.shape != time.shape:
        raise ValueError(
            f"{what} Got shape {values.shape} for times of shape {time.shape}. For a constant give the number itself."
        )
    outside = ~((values >= 0) & (values <= 1))  # not a number is outside, too
    if outside.any():
        first = int(outside.argmax())
        raise ValueError(
            f"{what} Got {values[first]:g} at t = {time[first]:g}, and {outside.sum()} of {len(time)} values outside "
            "[0, 1]. Give shares, or np.clip them."
        )
    return values


def _is_single(value: Any) -> bool:
    """One number (also a 0-d array or tensor), as opposed to a sequence of them."""
    return isinstance(value, (str, bytes)) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0
