"""Controls: environments that differ, if at all, in ways that leave nothing to learn from them.

One predictor is the right one for all environments, the sum of the informative columns, and ERM finds it. A rule that
selects among methods should keep ERM here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from scipy.special import ndtr

from irmtv.core.losses import Binary, Squared
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import Floats, Integers, count, one_of, segment_names, segments, streams

Differ = Literal["nothing", "label-noise", "feature-noise", "outcome-noise", "base-rate"]


def make_control(
    n_samples: int = 5000,
    differ: Differ = "nothing",
    n_informative: int = 5,
    n_noise: int = 10,
    n_environments: int = 2,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 5000,
    regression: bool | None = None,
) -> Task:
    """Draw a control, on which learning invariances can gain nothing over ERM.

    The training rows are equally spaced in time, t_i = (i + 0.5) / n_samples. Equal segments of time are
    the environments and t is the auxiliary variable. What differs between the environments is linearly
    spaced from the first to the last:

    ===============  =================  ==================
    differ           labels             regression
    ===============  =================  ==================
    "nothing"        nothing            nothing
    "label-noise"    p from 0.9 to 0.7
    "feature-noise"  sd from 1 to 2
    "outcome-noise"                     sd from 0.5 to 1.5
    "base-rate"      r from 0.3 to 0.7  b from -0.5 to 0.5
    ===============  =================  ==================

    Labels: y = +1 with probability r = 0.5, else -1; a = y with probability p = 0.8, else -y; the informative
    columns are a + N(0, sd), sd = 1. Regression: the informative columns are N(0, 1), and y = b + 0.5 times their
    sum + N(0, sd), b = 0 and sd = 1. sd is the standard deviation of a noise that every column and row has of its
    own.

    Parameters
    ----------
    n_samples : int, default 5000
        Training rows. "nothing" with 40 to 100 rows in each environment is the control of few rows: all that
        differs between the environments is chance.
    differ : {"nothing", "label-noise", "feature-noise", "outcome-noise", "base-rate"}, default "nothing"
        What differs between the environments.
    n_informative : int, default 5
        Columns that carry the target; they come first in ``x``.
    n_noise : int, default 10
        Columns of standard normal noise, independent of everything.
    n_environments : int, default 2
        Equal segments of time, at least 2.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced, so that a second call with it draws other data. Training and test
        rows have streams of their own: ``n_test`` does not change the training rows, and ``n_samples``
        does not change the test rows. With one seed, the kinds with labels share their random numbers, and
        so do the regressions: such data sets are paired.
    n_test : int, default 5000
        Test rows: fresh draws from the training environments, in the same shares.
    regression : bool or None, default None
        Whether y is a number rather than a label. "nothing" and "base-rate" can be either, "outcome-noise" is always
        a regression. None: True for "outcome-noise" alone.

    Returns
    -------
    Task
        ``train``: x (n_samples, n_informative + n_noise), y (0/1, or a number in a regression),
        environment, aux = t (n_samples, 1). ``test``: the same without aux. ``card``: the settings, what
        differs, and ``limits``, what the right predictor reaches in each environment.

    Notes
    -----
    *What is the same.* By symmetry the sign of the sum of the informative columns is the Bayes rule in
    every environment with labels, and 0.5 times the sum is E[y | x] in every environment of a regression,
    "base-rate" aside. So no predictor is more accurate (has a lower mean squared error) in any environment.

    *Base rate.* The distribution of x given the label (in a regression: of x, and of y given x but for the intercept)
    is the same in all environments, so only the best intercept differs. A predictor does not know the environment
    and has one intercept. The environments lie evenly around 0, and so ERM's intercept is 0, the right one for all of
    them: no predictor has a lower mean risk, a lower worst risk or a higher worst accuracy. With labels the risk of ERM
    is even the same at every base rate, also at that of a new environment. A model of one environment alone is better
    there by its intercept, and worse at the other end by more.

    *What a test may rightly reject.* E[y | x] is the same in all environments of "nothing" and
    "outcome-noise". In "base-rate" the intercept differs; ERM's slopes in w are 0 in every environment, and a
    test of slopes alone passes it. In "feature-noise" P(y | x) does differ between environments: the noisier
    the columns, the less a given x says about the label. It is the hard control: a test of invariance may
    rightly reject ERM, and yet no other direction is better. The same holds for "label-noise", and more so: at
    the defaults the best scale of a linear logit differs by a factor of 2.8 between the two environments, in
    "feature-noise" by 1.5. Only the scale differs, so a penalty that shrinks or stretches the logit moves the
    cross-entropy of single environments but changes no predicted label.

    Examples
    --------
    >>> task = make_control(1000, "label-noise", random_state=0)
    >>> task.train.x.shape, task.train.names
    (torch.Size([1000, 15]), ('t<0.5', 't>=0.5'))
    >>> task.card["agreement"]
    (0.9, 0.7)
    >>> [round(limit, 3) for limit in task.card["limits"]]
    [0.89, 0.695]
    """
    differ = one_of("differ", differ, get_args(Differ), "Use 'nothing' for environments that are all alike.")
    n_informative = count("n_informative", n_informative)
    n_noise = count("n_noise", n_noise, 0)
    k = count("n_environments", n_environments, 2, "a control compares environments")
    n_samples = count("n_samples", n_samples, k, "one row per environment")
    n_test = count("n_test", n_test, k, "one row per environment")
    regression = _is_regression(differ, regression)
    train_stream, test_stream = streams(random_state)

    def each(kind: Differ, first: float, last: float, usual: float) -> Floats:
        return np.linspace(first, last, k) if differ == kind else np.full(k, usual)

    settings: dict[str, Floats] = {}  # (E,) each
    make: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    if regression:
        settings["deviation"] = each("outcome-noise", 0.5, 1.5, 1.0)
        settings["intercept"] = each("base-rate", -0.5, 0.5, 0.0)
        make, limits = _regression, np.square(settings["deviation"]) + np.square(settings["intercept"])
    else:
        settings["agreement"] = each("label-noise", 0.9, 0.7, 0.8)
        settings["deviation"] = each("feature-noise", 1.0, 2.0, 1.0)
        settings["base_rate"] = each("base-rate", 0.3, 0.7, 0.5)
        right = ndtr(np.sqrt(n_informative) / settings["deviation"])  # (E,) P(the sum has the sign a)
        make, limits = _labels, settings["agreement"] * right + (1 - settings["agreement"]) * (1 - right)

    def draw(rng: np.random.Generator, environment: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        return make(rng, n_informative, n_noise, **{name: value[environment] for name, value in settings.items()})

    environment = segments(n_samples, k)  # (N,)
    time = (np.arange(n_samples) + 0.5) / n_samples  # (N,)
    aux = torch.from_numpy(time).float()[:, None]
    train = Rows(*draw(train_stream, environment), torch.from_numpy(environment), aux, segment_names(k))
    environment = segments(n_test, k)  # (n_test,)
    test = Rows(*draw(test_stream, environment), torch.from_numpy(environment), names=segment_names(k))

    shift = _INTERCEPT if regression and differ == "base-rate" else _SHIFT[differ]
    card = {
        "description": (
            f"{'A regression' if regression else 'Binary labels'}; {n_informative} informative columns, {n_noise} "
            "columns of pure noise. A control: learning invariances can gain nothing."
        ),
        "source": "drawn by irmtv.datasets.make_control",
        "licence": "generated",
        "differ": differ,
        "n_informative": n_informative,
        "n_noise": n_noise,
        "n_environments": k,
        "n_samples": n_samples,
        "n_test": n_test,
        **{name: tuple(value.tolist()) for name, value in settings.items()},
        "limits": tuple(limits.tolist()),  # accuracy, or mean squared error
        "shift": f"{shift} The test rows are fresh draws from the training environments.",
        "invariance": (
            "The best direction of a predictor, equal weights on the informative columns and none on the others, "
            f"is the same in all environments. {_MEAN[differ]}"
        ),
    }
    return Task(train=train, loss=Squared() if regression else Binary(), test=test, name=f"control {differ}", card=card)


_SHIFT: dict[Differ, str] = {
    "nothing": "Nothing: all environments have one distribution.",
    "label-noise": (
        "The agreement of the informative columns' sign with the label: from 0.9 in the first environment to 0.7 in "
        "the last."
    ),
    "feature-noise": (
        "The standard deviation of the informative columns' noise: from 1 in the first environment to 2 in the last."
    ),
    "outcome-noise": (
        "The standard deviation of the target's noise: from 0.5 in the first environment to 1.5 in the last."
    ),
    "base-rate": "The share of the positive label: from 0.3 in the first environment to 0.7 in the last.",
}
_INTERCEPT = "The intercept of the target: from -0.5 in the first environment to 0.5 in the last."
_SAME = "So is E[y | x]: ERM is invariant."
_OTHER = "P(y | x) is not, only its direction: a test may rightly reject ERM."
_MEAN: dict[Differ, str] = {
    "nothing": _SAME,
    "label-noise": _OTHER,
    "feature-noise": _OTHER,
    "outcome-noise": _SAME,
    "base-rate": "The best intercept is not, ERM's is the best that all can share.",
}


def _is_regression(differ: Differ, asked: bool | None) -> bool:
    """Whether the target is a number, by what is asked and what the kind can be."""
    can_be = {"nothing": (False, True), "base-rate": (False, True), "outcome-noise": (True,)}.get(differ, (False,))
    if asked is None:
        return can_be[0]
    if asked not in can_be:
        known = " or ".join(map(str, can_be))
        raise ValueError(
            f"regression must be None{', ' if len(can_be) > 1 else ' or '}{known} for differ={differ!r}. "
            f"Got {asked!r}. Leave it out, or use 'nothing' or 'base-rate', which have labels or numbers."
        )
    return bool(asked)


def _labels(
    rng: np.random.Generator,
    n_informative: int,
    n_noise: int,
    agreement: Floats,
    deviation: Floats,
    base_rate: Floats,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (N, D) float32 and y (N,) float32 in {0, 1}; what the environment of each row says is (N,)."""
    n = len(agreement)
    label = np.where(rng.random(n) < base_rate, 1.0, -1.0)  # (N,)
    sign = np.where(rng.random(n) < agreement, label, -label)  # (N,) a
    x = rng.standard_normal((n, n_informative + n_noise))  # (N, D)
    x[:, :n_informative] *= deviation[:, None]
    x[:, :n_informative] += sign[:, None]
    return torch.from_numpy(x).float(), torch.from_numpy(label > 0).float()


def _regression(
    rng: np.random.Generator, n_informative: int, n_noise: int, deviation: Floats, intercept: Floats
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (N, D) float32 and y (N,) float32; what the environment of each row says is (N,)."""
    n = len(deviation)
    noise = rng.standard_normal(n)  # (N,)
    x = rng.standard_normal((n, n_informative + n_noise))  # (N, D)
    y = intercept + 0.5 * x[:, :n_informative].sum(1) + deviation * noise  # (N,)
    return torch.from_numpy(x).float(), torch.from_numpy(y).float()
