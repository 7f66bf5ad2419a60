"""A regression whose rows were selected: a feature that causes nothing looks like the target in the rows kept.

Of many rows drawn alike, those are kept in which one feature V, pure noise before, happens to lie near the
noiseless target (near its negative for a negative bias rate). The stable features keep their meaning whatever the
selection; that of V follows the bias rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from irmtv.core.losses import Squared
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import Floats, count, equal_sizes, streams

NOISE = 0.3  # standard deviation of the target's noise


def make_selection_bias(
    n_samples: int | Sequence[int] = (1900, 100),
    r: float | Sequence[float] = (1.5, -1.1),
    n_stable: int = 5,
    n_noise: int = 4,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 8000,
    test_r: float | Sequence[float] = (-3.0, -2.5, -2.0, -1.5, 1.5, 2.0, 2.5, 3.0),
) -> Task:
    """Draw a regression with selection bias, the data on which heterogeneous risk minimisation was shown.

    ================  ===================================================================
    what              how
    ================  ===================================================================
    stable features   S_j = 0.8 Z_j + 0.2 Z_(j+1), Z standard normal
    noiseless target  m(S) = sum_j b_j S_j + the product of the first three S
                      b_j = (-1)^j (j mod 3 + 1) / 2, j from 0
    target            y = m(S) + N(0, 0.3), 0.3 the standard deviation
    biased feature    V standard normal, independent of all the rest before the selection
    selection         a row is kept with probability abs(r) ** (-5 abs(m(S) - sign(r) V))
    ================  ===================================================================

    Parameters
    ----------
    n_samples : int or sequence of int, default (1900, 100)
        Training rows kept under each bias rate.
    r : float or sequence of float, default (1.5, -1.1)
        Bias rates of the training rows, beyond -1 or 1: the larger, the nearer V is to m(S), or to -m(S) where r is
        negative. Each is an environment.
    n_stable : int, default 5
        Stable features, at least 3; they come first in ``x``.
    n_noise : int, default 4
        Columns of standard normal noise, independent of everything; they come next. V is the last column.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced, so that a second call with it draws other data. Training and test rows have
        streams of their own: the settings of the one do not change the rows of the other.
    n_test : int, default 8000
        Test rows over all test environments, split equally (sizes differ by one where they must).
    test_r : float or sequence of float, default (-3.0, -2.5, -2.0, -1.5, 1.5, 2.0, 2.5, 3.0)
        Bias rate of each test environment.

    Returns
    -------
    Task
        ``train``: x (rows, n_stable + n_noise + 1), y, environment. ``test``: the same. ``card``: the settings and
        what shifts. There is no aux.

    Notes
    -----
    A linear model of the stable features is the same in every environment but for what selection does to the
    product term, which it cannot hold: it errs by that term and the noise. V says something about the
    product too where r does not change, which is why ERM uses it.

    Examples
    --------
    >>> task = make_selection_bias(random_state=0)
    >>> task.train.x.shape, task.train.names
    (torch.Size([2000, 10]), ('r=1.5', 'r=-1.1'))
    >>> x, y = task.train.x, task.train.y
    >>> bool(torch.corrcoef(torch.stack([x[:1900, -1], y[:1900]]))[0, 1] > 0.7)  # V, where r = 1.5
    True
    """
    rates, test_rates = _rates("r", r), _rates("test_r", test_r)
    n_stable = count("n_stable", n_stable, 3, "the target has a product of three of them")
    n_noise = count("n_noise", n_noise, 0)
    n_test = count("n_test", n_test, len(test_rates), "one row per value of test_r")
    rows = tuple(n_samples) if isinstance(n_samples, Sequence) else (n_samples,)
    if len(rows) != len(rates):
        raise ValueError(
            f"n_samples must hold one number of rows per value of r, {len(rates)} for {rates}. Got {n_samples!r}. "
            "Give a tuple as long as r."
        )
    rows = tuple(count("n_samples", n, 1, "one row per value of r") for n in rows)
    train_stream, test_stream = streams(random_state)
    card = {
        "description": (
            f"A regression; {n_stable} stable features, {n_noise} columns of pure noise, and one feature that rows "
            "were selected by so that it looks like the target."
        ),
        "source": "drawn by irmtv.datasets.make_selection_bias",
        "citation": "Liu, Hu, Cui, Li and Shen, Heterogeneous Risk Minimization, ICML 2021",
        "licence": "generated",
        "r": rates,
        "n_samples": rows,
        "n_stable": n_stable,
        "n_noise": n_noise,
        "test_r": test_rates,
        "n_test": n_test,
        "shift": (
            f"How strongly, and with which sign, the last column was selected to look like the target: r = {rates} in "
            f"training, {test_rates} in the test environments. Nothing else shifts."
        ),
    }
    return Task(
        train=_environments(train_stream, rates, rows, n_stable, n_noise),
        loss=Squared(),
        test=_environments(test_stream, test_rates, equal_sizes(n_test, len(test_rates)), n_stable, n_noise),
        name=f"selection bias r=({','.join(f'{v:g}' for v in rates)})",
        card=card,
    )


def _environments(
    rng: np.random.Generator, rates: Sequence[float], rows: Sequence[int], n_stable: int, n_noise: int
) -> Rows:
    """One environment after the other."""
    parts = [_selected(rng, r, n, n_stable, n_noise) for r, n in zip(rates, rows, strict=True)]
    x, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Rows(
        torch.from_numpy(x).float(),
        torch.from_numpy(y).float(),
        torch.from_numpy(np.repeat(np.arange(len(rates)), rows)),
        names=tuple(f"r={r:g}" for r in rates),
    )


def _selected(rng: np.random.Generator, r: float, n: int, n_stable: int, n_noise: int) -> tuple[Floats, Floats]:
    """n rows that the selection kept: x (n, D) and y (n,)."""
    kept_x, kept_y, n_kept = [], [], 0
    while n_kept < n:
        size = 4 * (n - n_kept) + 64
        z = rng.standard_normal((size, n_stable + 1))
        stable = 0.8 * z[:, :-1] + 0.2 * z[:, 1:]
        mean = noiseless(stable)
        others = rng.standard_normal((size, n_noise + 1))
        y = mean + NOISE * rng.standard_normal(size)
        keep = rng.random(size) < abs(r) ** (-5 * np.abs(mean - np.sign(r) * others[:, -1]))
        kept_x.append(np.column_stack([stable, others])[keep])
        kept_y.append(y[keep])
        n_kept += int(keep.sum())
    return np.concatenate(kept_x)[:n], np.concatenate(kept_y)[:n]


def noiseless(stable: Floats) -> Floats:
    """m(S) of the stable features (N, n_stable): (N,)."""
    j = np.arange(stable.shape[1])
    b = (-1.0) ** j * (j % 3 + 1) / 2
    return np.asarray(stable @ b + stable[:, :3].prod(1))


def _rates(name: str, value: Any) -> tuple[float, ...]:
    several = isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str)
    rates = tuple(value) if several else (value,)
    numbers = all(isinstance(r, (int, float, np.integer, np.floating)) and not isinstance(r, bool) for r in rates)
    good = numbers and rates and all(1 < abs(float(r)) < np.inf for r in rates)
    if not good or len(set(rates)) < len(rates):
        raise ValueError(
            f"{name} must hold different finite numbers below -1 or above 1 (at -1 and 1 every row is kept). "
            f"Got {value!r}. Use 1.5, say, or (1.5, -1.1)."
        )
    return tuple(float(r) for r in rates)
