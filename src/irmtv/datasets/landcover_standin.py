"""A stand-in for the Landcover series, whose file is not public: generated, and its limit is known.

Series of 46 times and 8 bands, six classes, a latitude and a longitude each. Not satellite data: only the shape, the
sort of shift and the difficulty are Landcover's.

| step                  | what                                                                                      |
|-----------------------|-------------------------------------------------------------------------------------------|
| where                 | outside Africa for training and "iid", in three bands of Africa for the other test rows   |
| label y               | six classes, equally frequent everywhere                                                  |
| land a                | y with probability p_v, else one of the other five                                        |
| climate c             | y with probability p_s(where), else one of the other five                                 |
| bands 1 to 5          | seasonal profile of the land a, plus N(0, 1) at every time: the invariant part            |
| bands 6 to 8          | seasonal profile of the climate c and a field that varies smoothly with latitude and      |
|                       | longitude, plus N(0, 1) at every time: the spurious part                                  |

Outside Africa the climate tells the class, more so in the north than in the south, so that environments can be given
(hemispheres) or found (from latitude and longitude). In Africa it tells less, nothing, or what the class is not.

The six profiles of the land are orthogonal and equally strong, so the best accuracy from the invariant bands is an
integral in one dimension (:func:`landcover_standin_limit`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.integrate import quad
from scipy.special import ndtr

from irmtv.core.losses import Multiclass
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import Floats, Integers, as_number, card_seed, check_strength, count, counts_by_name, streams

N_TIMES, N_LAND, N_CLIMATE, N_CLASSES = 46, 5, 3, 6
BANDS = (*(f"land {j + 1}" for j in range(N_LAND)), *(f"climate {j + 1}" for j in range(N_CLIMATE)))
HEMISPHERES = ("north", "south")
# name -> least and greatest latitude; the longitudes are those of AFRICA
AFRICAN_BANDS = {"africa north": (12.0, 36.0), "africa middle": (-12.0, 12.0), "africa south": (-35.0, -12.0)}
AFRICA_LONGITUDES = (-17.0, 51.0)
OTHER_LONGITUDES = ((-160.0, -35.0), (60.0, 180.0))  # the Americas; Asia and Australia
OTHER_LATITUDES = (-50.0, 50.0)
TRANSITION = 5.0  # degrees of latitude over which p_s changes from its southern to its northern value


def make_landcover_standin(
    n_samples: int = 8000,
    p_s: Sequence[float] = (0.95, 0.7),
    p_v: float = 0.8,
    random_state: int | np.random.Generator | None = None,
    *,
    n_test: int = 6000,
    test_p_s: Sequence[float] = (0.5, 1 / 6, 0.0),
    land: float = 6.0,
    climate: float = 9.0,
) -> Task:
    """Draw series of the Landcover shape, in which the climate tells the class where the training rows are.

    Parameters
    ----------
    n_samples : int, default 8000
        Training rows, half of them in each hemisphere, outside Africa.
    p_s : two floats, default (0.95, 0.7)
        Probability that the climate is that of the class, in the north and in the south of the training region. It
        changes smoothly at the equator, over about 20 degrees.
    p_v : float, default 0.8
        Probability that the land is that of the class, everywhere; above 1/6.
    random_state : int, numpy Generator or None, default None
        Seed. A Generator is advanced. Training and test rows have streams of their own.
    n_test : int, default 6000
        Test rows, a quarter of them drawn as the training rows are ("iid") and a quarter in each band of Africa
        (sizes differ by one where they must).
    test_p_s : three floats, default (0.5, 1/6, 0.0)
        Probability that the climate is that of the class in the north, the middle and the south of Africa: 1/6 tells
        nothing, 0 tells what the class is not.
    land, climate : float, defaults 6.0 and 9.0
        How strong the profiles are: the root of the sum of their squares, where the noise at every time has variance
        1. ``climate`` above ``land``: the spurious part is the easier one.

    Returns
    -------
    Task
        ``train``: x (n_samples, 8, 46), bands first, as networks over series read them; y 0 to 5; environment, the
        hemisphere; aux, latitude and longitude in degrees. ``test``: environments "iid", "africa north", "africa
        middle" and "africa south". ``card``: the settings and the limit.

    Examples
    --------
    >>> task = make_landcover_standin(400, random_state=0)
    >>> task.train.x.shape, task.train.names
    (torch.Size([400, 8, 46]), ('north', 'south'))
    >>> task.test.names
    ('iid', 'africa north', 'africa middle', 'africa south')
    >>> round(task.card["limit"], 4)
    0.8
    """
    p_s = _probabilities("p_s", p_s, 2, "the north and the south")
    test_p_s = _probabilities("test_p_s", test_p_s, len(AFRICAN_BANDS), "the north, the middle and the south of Africa")
    n_samples = count("n_samples", n_samples, 2, "one row per hemisphere")
    n_test = count("n_test", n_test, 1 + len(AFRICAN_BANDS), "one row per test environment")
    limit = landcover_standin_limit(p_v, land)  # checks them
    climate = check_strength("climate", climate)
    for_train, for_test = streams(random_state)

    codes = (2 * np.arange(n_samples) + 1) // n_samples  # (N,) 0: north, 1: south
    where = _outside_africa(for_train, codes)  # (N, 2)
    n_train = counts_by_name(HEMISPHERES, codes)
    train = _rows(for_train, where, _agreement(where, p_s), p_v, land, climate, codes, HEMISPHERES)

    names = ("iid", *AFRICAN_BANDS)
    codes = np.arange(n_test) * len(names) // n_test  # (N,) codes into `names`
    iid = codes == 0
    where = np.concatenate(
        [_outside_africa(for_test, np.arange(iid.sum()) % 2)]
        + [_in_africa(for_test, int((codes == e).sum()), name) for e, name in enumerate(names) if e > 0]
    )  # (N, 2)
    agreement = np.where(iid, _agreement(where, p_s), np.array([math.nan, *test_p_s])[codes])
    test = _rows(for_test, where, agreement, p_v, land, climate, codes, names)

    card = {
        **_FACTS,
        "n_train": n_train,
        "n_test": counts_by_name(names, codes),
        "random_state": card_seed(random_state),
        "columns": BANDS,
        "aux": ("latitude", "longitude"),
        "p_s": p_s,
        "p_v": p_v,
        "test_p_s": test_p_s,
        "land": land,
        "climate": climate,
        "limit": limit,
        **_REMARKS,
    }
    return Task(train, Multiclass(), N_CLASSES, test=test, name="landcover-standin", card=card)


_FACTS = {
    "description": "Generated series of the shape of Landcover, 46 times, 8 bands, six classes: no satellite data.",
    "source": "generated by irmtv.datasets.make_landcover_standin",
    "licence": "none needed",
    "citation": "irmtv",
}
_REMARKS = {
    "shift": (
        "How often the climate is that of the class: in training more often in the north than in the south; in "
        "Africa less often, by chance, or never. What the land tells is the same everywhere."
    ),
    "looks_at_test": "Nothing: the rows are used as they are drawn, with noise of variance 1 at every time.",
    "differs_from_paper": (
        "Everything but the shape: the paper's series are satellite data, whose file is not public in a place that "
        "can be relied on. Real files are read by load_landcover."
    ),
    "limits": (
        "The limit is the best accuracy from bands 1 to 5 alone, whatever the method; a convolution that averages "
        "over time need not reach it. What a method gains here says little about its gain on satellite data."
    ),
}


def landcover_standin_limit(p_v: float = 0.8, land: float = 6.0) -> float:
    """The best accuracy from the invariant bands alone, in every environment.

    Parameters
    ----------
    p_v : float, default 0.8
        Probability that the land is that of the class; above 1/6.
    land : float, default 6.0
        Strength of the profiles of the land.

    Returns
    -------
    float
        p_v r + (1 - p_v) (1 - r) / 5, with r the accuracy at which the land is recognised.

    Notes
    -----
    The log-likelihood of land k is, up to a constant, the product of the series with profile k. The profiles are
    orthogonal with norm d = ``land``, so the six products over d are independent normal variables of variance 1, with
    mean d for the true land and 0 for the others. The true one is the greatest with probability

        r = integral of phi(z - d) Phi(z)^5 dz,

    which is computed by quadrature to 1e-10. P(y = k | series) is p_v P(a = k | series) + (1 - p_v)(1 - P(a = k |
    series)) / 5, which grows with P(a = k | series) where p_v > 1/6: so the most likely land is the best answer for y
    too. It is right for y where it is right for a and y = a, and for a fifth of the rows where it is wrong and y is
    another: by symmetry a wrong answer is each of the other five equally often.

    Examples
    --------
    >>> round(landcover_standin_limit(1.0, 2.0), 4), round(landcover_standin_limit(0.8, 2.0), 4)
    (0.7585, 0.6164)
    """
    p_v = as_number(p_v)
    if not 1 / N_CLASSES < p_v <= 1:
        raise ValueError(
            f"p_v must be a probability above 1/{N_CLASSES}, what guessing gives. Got {p_v!r}. Give a share: 0.8, not "
            "80."
        )
    strength = check_strength("land", land)
    right, _ = quad(
        lambda z: math.exp(-0.5 * (z - strength) ** 2) / math.sqrt(2 * math.pi) * ndtr(z) ** (N_CLASSES - 1),
        strength - 12,
        strength + 12,
        points=[0.0, strength] if strength < 12 else None,
        epsabs=1e-12,
        limit=200,
    )
    return float(p_v * right + (1 - p_v) * (1 - right) / (N_CLASSES - 1))


def land_profiles() -> Floats:
    """The year of each kind of land in bands 1 to 5: (6, 5, 46), orthonormal.

    Drawn by hand as levels and seasons (woods, open woods, fields, shrubs, evergreen woods, grass), then replaced by
    the nearest six that are orthogonal and equally strong.
    """
    t = np.arange(N_TIMES) / N_TIMES
    season = 0.5 - 0.5 * np.cos(2 * np.pi * t)  # one long summer
    harvest = np.exp(-0.5 * ((t - 0.55) / 0.07) ** 2)  # a crop comes and goes
    twice = 0.5 - 0.5 * np.cos(4 * np.pi * t)  # two rains
    flat = np.ones(N_TIMES)
    red, near, blue, green, short = np.eye(N_LAND)
    shapes = [
        np.outer(near, flat + season) + np.outer(red, 0.3 * flat),
        np.outer(near, 0.5 * flat + 0.5 * twice) + np.outer(green, twice + 0.5),
        np.outer(near, 2.5 * harvest) + np.outer(red, 1.5 * (1 - harvest)),
        np.outer(short, flat + 0.5 * twice) + np.outer(red, 0.5 * flat),
        np.outer(green, 1.5 * flat) - np.outer(short, 0.5 * flat),
        np.outer(blue, 0.3 + season) + np.outer(short, 0.8 * season),
    ]
    return _orthonormal(np.stack(shapes))


def climate_profiles() -> Floats:
    """The year of each climate in bands 6 to 8 (warmth, rain, cloud): (6, 3, 46), orthonormal."""
    t = np.arange(N_TIMES) / N_TIMES
    warm, rain, cloud = np.eye(N_CLIMATE)
    flat = np.ones(N_TIMES)
    wave = np.cos(2 * np.pi * 4 * t)  # months that come and go, against levels: easy to tell for a short kernel
    shapes = [np.outer(band, curve) for band in (warm, rain, cloud) for curve in (flat, flat + 2 * wave)]
    return _orthonormal(np.stack(shapes))


def _orthonormal(shapes: Floats) -> Floats:
    """The nearest orthonormal set: of the singular values, all become 1."""
    left, _, right = np.linalg.svd(shapes.reshape(len(shapes), -1), full_matrices=False)
    return np.asarray((left @ right).reshape(shapes.shape))


def _outside_africa(rng: np.random.Generator, south: Integers) -> Floats:
    """Latitude and longitude: (N, 2); the hemisphere is given."""
    latitude = rng.uniform(0, OTHER_LATITUDES[1], len(south)) * np.where(south == 1, -1.0, 1.0)
    low, high = np.array(OTHER_LONGITUDES)[rng.integers(len(OTHER_LONGITUDES), size=len(south))].T
    return np.stack([latitude, rng.uniform(low, high)], 1)


def _in_africa(rng: np.random.Generator, n: int, band: str) -> Floats:
    return np.stack([rng.uniform(*AFRICAN_BANDS[band], n), rng.uniform(*AFRICA_LONGITUDES, n)], 1)


def _agreement(where: Floats, p_s: tuple[float, ...]) -> Floats:
    """How often the climate is that of the class outside Africa: (N,)."""
    north = 1 / (1 + np.exp(-where[:, 0] / TRANSITION))
    return np.asarray(p_s[1] + (p_s[0] - p_s[1]) * north)


def _field(where: Floats) -> Floats:
    """What the place alone does to the climate bands: (N, 3, 46), smooth, and without a word about the class."""
    latitude, longitude = np.radians(where).T
    t = np.arange(N_TIMES) / N_TIMES
    summer = np.cos(2 * np.pi * (t - 0.55))[None]  # the northern one; the southern has the other sign
    warmth = np.cos(latitude)[:, None] - 0.5 + 0.5 * np.sin(latitude)[:, None] * summer
    rain = 0.3 * np.cos(3 * latitude)[:, None] + 0.3 * np.sin(latitude)[:, None] * summer
    cloud = 0.3 * np.sin(2 * longitude)[:, None] * np.ones(N_TIMES)
    return np.stack([warmth, rain, cloud], 1)


def _other_or_same(rng: np.random.Generator, y: Integers, same: Floats | float) -> Integers:
    """y with probability `same`, else one of the other five: (N,)."""
    other = (y + rng.integers(1, N_CLASSES, len(y))) % N_CLASSES
    return np.where(rng.random(len(y)) < same, y, other)


def _rows(
    rng: np.random.Generator,
    where: Floats,  # (N, 2)
    agreement: Floats,  # (N,)
    p_v: float,
    land: float,
    climate: float,
    codes: Integers,
    names: tuple[str, ...],
) -> Rows:
    n = len(where)
    y = rng.integers(N_CLASSES, size=n)
    a, c = _other_or_same(rng, y, p_v), _other_or_same(rng, y, agreement)
    x = rng.standard_normal((n, N_LAND + N_CLIMATE, N_TIMES))  # (N, 8, 46)
    x[:, :N_LAND] += land * land_profiles()[a]
    x[:, N_LAND:] += climate * climate_profiles()[c] + _field(where)
    return Rows(
        torch.from_numpy(x).float(),
        torch.from_numpy(y),
        torch.from_numpy(codes),
        torch.from_numpy(where),
        names,
    )


def _probabilities(name: str, values: Any, n: int, meaning: str) -> tuple[float, ...]:
    wrong = f"{name} must hold {n} probabilities, numbers from 0 to 1, for {meaning}. Got {values!r}."
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError(f"{wrong} Give a sequence of {n}.")
    shares = tuple(as_number(value) for value in values)
    if len(shares) != n or not all(0 <= p <= 1 for p in shares):
        raise ValueError(f"{wrong} Give {n} shares: 0.9, not 90.")
    return shares
