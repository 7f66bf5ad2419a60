"""Controls: environments that differ, if at all, in ways that leave nothing to learn from them.

One predictor is the best in every environment, the sum of the informative columns, and ERM finds it. A rule that
selects among methods should keep ERM here.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.special import ndtr

from irmtv.core.losses import Binary, Squared
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import Floats, Integers, count, one_of, segment_names, segments, streams

Differ = Literal["nothing", "label-noise", "feature-noise", "outcome-noise"]


def make_control(
    n_samples: int = 5000,
    differ: Differ = "nothing",
    n_informative: int = 5,
    n_noise: int = 10,
    n_environments: int = 2,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 5000,
) -> Task:
    """Draw a control, on which learning invariances can gain nothing over ERM.

    The training rows are equally spaced in time, t_i = (i + 0.5) / n_samples. Equal segments of time are
    the environments and t is the auxiliary variable. What differs between the environments is linearly
    spaced from the first to the last:

    | differ          | target                             | informative columns | from first to last |
    |-----------------|------------------------------------|---------------------|--------------------|
    | "nothing"       | y = +1 or -1; a = y w.p. p else -y | a + N(0, sd)        | p = 0.8, sd = 1    |
    | "label-noise"   | the same                           | a + N(0, sd)        | p = 0.9 to 0.7     |
    | "feature-noise" | the same                           | a + N(0, sd)        | sd = 1 to 2        |
    | "outcome-noise" | y = 0.5 (their sum) + N(0, sd)     | N(0, 1)             | sd = 0.5 to 1.5    |

    sd is the standard deviation of a noise that every column and row has of its own.

    Parameters
    ----------
    n_samples : int, default 5000
        Training rows.
    differ : {"nothing", "label-noise", "feature-noise", "outcome-noise"}, default "nothing"
        What differs between the environments. "outcome-noise" is a regression, the others have labels.
    n_informative : int, default 5
        Columns that carry the target; they come first in ``x``.
    n_noise : int, default 10
        Columns of standard normal noise, independent of everything.
    n_environments : int, default 2
        Equal segments of time, at least 2.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced, so that a second call with it draws other data. Training and test
        rows have streams of their own: ``n_test`` does not change the training rows, and ``n_samples``
        does not change the test rows. With one seed, the three kinds with labels share their random
        numbers, so such data sets are paired.
    n_test : int, default 5000
        Test rows: fresh draws from the training environments, in the same shares.

    Returns
    -------
    Task
        ``train``: x (n_samples, n_informative + n_noise), y (0/1, or a number for "outcome-noise"),
        environment, aux = t (n_samples, 1). ``test``: the same without aux. ``card``: the settings, what
        differs, and the best that can be reached in each environment.

    Notes
    -----
    *What is the same.* By symmetry the sign of the sum of the informative columns is the Bayes rule in
    every environment with labels, and 0.5 times the sum is E[y | x] in every environment of
    "outcome-noise". So no predictor is more accurate (has a lower mean squared error) in any environment.

    *What a test may rightly reject.* E[y | x] is the same in all environments of "nothing" and
    "outcome-noise". In "feature-noise" P(y | x) does differ between environments: the noisier the columns,
    the less a given x says about the label. It is the hard control: a test of invariance may rightly
    reject ERM, and yet no other direction is better. The same holds for "label-noise",
    and more so: at the defaults the best scale of a linear logit differs by a factor of 2.8 between the two
    environments, in "feature-noise" by 1.5. Only the scale differs, so a penalty that shrinks or stretches
    the logit moves the cross-entropy of single environments but changes no predicted label.

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
    train_stream, test_stream = streams(random_state)

    regression = differ == "outcome-noise"
    agreement = np.linspace(0.9, 0.7, k) if differ == "label-noise" else np.full(k, 0.8)  # (E,)
    first, last = {"feature-noise": (1.0, 2.0), "outcome-noise": (0.5, 1.5)}.get(differ, (1.0, 1.0))
    deviation = np.linspace(first, last, k)  # (E,)

    def draw(rng: np.random.Generator, environment: Integers) -> tuple[torch.Tensor, torch.Tensor]:
        sd = deviation[environment]  # (N,)
        if regression:
            return _regression(rng, sd, n_informative, n_noise)
        return _labels(rng, agreement[environment], sd, n_informative, n_noise)

    environment = segments(n_samples, k)  # (N,)
    time = (np.arange(n_samples) + 0.5) / n_samples  # (N,)
    aux = torch.from_numpy(time).float()[:, None]
    train = Rows(*draw(train_stream, environment), torch.from_numpy(environment), aux, segment_names(k))
    environment = segments(n_test, k)  # (n_test,)
    test = Rows(*draw(test_stream, environment), torch.from_numpy(environment), names=segment_names(k))

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
        **_limits(None if regression else agreement, deviation, n_informative),
        "shift": f"{_SHIFT[differ]} The test rows are fresh draws from the training environments.",
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
}
_SAME = "So is E[y | x]: ERM is invariant."
_OTHER = "P(y | x) is not, only its direction: a test may rightly reject ERM."
_MEAN: dict[Differ, str] = {
    "nothing": _SAME,
    "label-noise": _OTHER,
    "feature-noise": _OTHER,
    "outcome-noise": _SAME,
}


def _limits(agreement: Floats | None, deviation: Floats, n_informative: int) -> dict[str, Any]:
    """What differs between the environments and the best that can be reached in each; a regression has no agreement."""
    settings: dict[str, Any] = {"deviation": tuple(deviation.tolist())}
    if agreement is None:
        return {**settings, "limits": tuple(np.square(deviation).tolist())}  # lowest mean squared error
    right = ndtr(np.sqrt(n_informative) / deviation)  # (E,) P(the sum has the sign a)
    limits = agreement * right + (1 - agreement) * (1 - right)  # (E,) highest accuracy
    return {**settings, "agreement": tuple(agreement.tolist()), "limits": tuple(limits.tolist())}


def _labels(
    rng: np.random.Generator, agreement: Floats, deviation: Floats, n_informative: int, n_noise: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (N, D) float32 and y (N,) float32 in {0, 1}, for the agreement (N,) and deviation (N,) of each row."""
    n = len(agreement)
    label = np.where(rng.random(n) < 0.5, 1.0, -1.0)  # (N,)
    sign = np.where(rng.random(n) < agreement, label, -label)  # (N,) a
    x = rng.standard_normal((n, n_informative + n_noise))  # (N, D)
    x[:, :n_informative] *= deviation[:, None]
    x[:, :n_informative] += sign[:, None]
    return torch.from_numpy(x).float(), torch.from_numpy(label > 0).float()


def _regression(
    rng: np.random.Generator, deviation: Floats, n_informative: int, n_noise: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (N, D) float32 and y (N,) float32, for the deviation (N,) of each row's target."""
    n = len(deviation)
    noise = rng.standard_normal(n)  # (N,)
    x = rng.standard_normal((n, n_informative + n_noise))  # (N, D)
    y = 0.5 * x[:, :n_informative].sum(1) + deviation * noise  # (N,)
    return torch.from_numpy(x).float(), torch.from_numpy(y).float()
