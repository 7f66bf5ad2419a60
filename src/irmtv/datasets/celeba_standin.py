"""A stand-in for CelebA's image features: real attributes, generated features. No image has been looked at.

Who smiles, who is a man and the seven attributes for the inference of environments are CelebA's own, so that what goes
with what is real. The features are a rotation of noisy copies of all forty attributes, in which gender is easy to see
and a smile is harder, as in the features of a ResNet18:

    x_i = W (s * a_i + W' n_i) + b (n_i - W W' n_i),   n_i ~ N(0, I)

with a_i the attributes of image i as -1 and 1, W (D, 40) of orthonormal columns, s the strength of each attribute, and
b the background: noise in the directions that tell nothing. Like features of images, these vary much in few directions
and little in many; with b = 1 noise fills all 512 and a network of 16 units soon learns the training rows by heart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from irmtv.core.types import Task
from irmtv.datasets.celeba_rows import (
    AUX,
    N_ATTRIBUTES,
    ROWS,
    SPURIOUS,
    TARGET,
    Environment,
    Share,
    Singles,
    celeba_rows_task,
    choices,
    draw_split,
    read_celeba_attributes,
)
from irmtv.datasets.common import Home, Integers, Seed, card_seed, check_strength, count
from irmtv.datasets.fetch import DataFile, find_any
from irmtv.datasets.sources import SOURCES

FILES, CURE = SOURCES["celeba-standin"].files, SOURCES["celeba-standin"].cure
ORIGINAL = DataFile("celeba_attributes", "list_attr_celeba.txt")  # serves as well
SEED = 20_240_229  # of rotation and noise: the features of an image are the same whatever is drawn


def make_celeba_standin(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    environment: Environment = "gender",
    n_train: int | None = None,
    n_test: int | None = None,
    smiling_share: Share = "half",
    n_features: int = 512,
    smiling_strength: float = 1.1,
    male_strength: float = 2.0,
    other_strength: float = 0.3,
    background: float = 0.1,
) -> Task:
    """Generate features from CelebA's real attributes and draw the rows as :func:`load_celeba_features` does.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which rows are drawn. A Generator is advanced. The features of an image do not depend on it.
    data_home : path or None, default None
        Folder that holds celeba.csv or list_attr_celeba.txt, CelebA's table of attributes, at its top or in a folder
        "celeba_attributes", plain or as .gz or .zip. None: the folder in the environment variable IRMTV_DATA.
    environment : {"gender", "agreement"}, default "gender"
        What is given as the environment of the training rows: Male or Female, as in the paper, or the half with its
        agreement. The environments of the test rows are always the four agreements.
    n_train, n_test : int or None, default None
        How many rows; None: the paper's 40,000 and 20,000.
    smiling_share : {"half", "natural"}, default "half"
        Who smiles in each environment: half of its rows, or as many as come when rows are drawn by their agreement.
    n_features : int, default 512
        At least 40, the number of attributes.
    smiling_strength, male_strength, other_strength : float, defaults 1.1, 2.0 and 0.3
        How far the two values of Smiling, of Male and of each other attribute lie from their middle, in standard
        deviations of the noise. In a direction of its own, an attribute of strength s is recognised with accuracy
        Phi(s). Linear models on rows of all four kinds reach 98 % for Male and 87 % for Smiling.
    background : float, default 0.1
        Standard deviation of the noise in the directions in which no attribute shows; 1 in the others.

    Returns
    -------
    Task
        ``train`` and ``test``: x, the features, standardised on the training rows; y, Smiling 0/1; environment; aux,
        the paper's seven attributes, 0/1, as people marked them. ``card["limit"]``: see below.

    Notes
    -----
    ``card["limit"]`` is the accuracy of the best predictor that reads the direction of Smiling alone: Phi of its
    strength, 0.8643 by default. It is exact and the same in every environment, since there Smiling is half of the
    rows and the noise depends on nothing. With ``other_strength=0`` no predictor that does not read gender can be
    better. Otherwise it can, a little: other attributes go with smiling (high cheekbones, an open mouth), which adds
    half a point by default (a linear model on rows of which each of the four kinds is a quarter reaches 87.1 %). They
    also go with gender (lipstick, make-up), so that gender is hidden in more than one direction.

    Examples
    --------
    >>> task = make_celeba_standin(random_state=0, n_train=400, n_test=200)
    >>> task
    Task('celeba-standin', 400 rows, features (512,), loss binary, 2 environments, 7 aux columns, 200 test rows)
    >>> task.train.names, task.test.names
    (('Female', 'Male'), ('agreement=0.01', 'agreement=0.2', 'agreement=0.8', 'agreement=0.999'))
    >>> round(task.card["limit"], 4)
    0.8643
    """
    chosen = choices(environment, smiling_share, n_train, n_test)
    n_features = count("n_features", n_features, N_ATTRIBUTES, "a direction for every attribute")
    strengths = {
        "smiling_strength": smiling_strength,
        "male_strength": male_strength,
        "other_strength": other_strength,
        "background": background,
    }
    for parameter, value in strengths.items():
        check_strength(parameter, value)
    table = _attributes(data_home)
    y, spurious = table[TARGET].to_numpy(), table[SPURIOUS].to_numpy()
    split = draw_split(y, spurious, random_state, chosen)

    strength = pd.Series(float(other_strength), index=table.columns)
    strength[TARGET], strength[SPURIOUS] = float(smiling_strength), float(male_strength)
    signal = (strength.to_numpy() * (2.0 * table.to_numpy() - 1.0)).astype(np.float32)  # (N, 40)  s * a
    directions = _directions(n_features)  # (D, 40)

    def features(index: Integers) -> Singles:
        noise = row_noise(index, n_features)  # (n, D)
        along = noise @ directions  # (n, 40), N(0, I), and independent of what is left of the noise
        return (signal[index] + (1 - background) * along) @ directions.T + np.float32(background) * noise

    card: dict[str, Any] = {
        **SOURCES["celeba-standin"].card,
        "random_state": card_seed(random_state),
        "columns": tuple(f"x_{j}" for j in range(n_features)),
        "aux": AUX,
        "smiling_share": smiling_share,
        **strengths,
        "limit": float(ndtr(smiling_strength)),
        **_REMARKS,
    }
    return celeba_rows_task(
        features,
        y,
        spurious,
        table[list(AUX)].to_numpy(),
        split,
        chosen.environment,
        "celeba-standin",
        card,
    )


_REMARKS = {
    "differs_from_paper": (
        "The features: no image has been looked at. The paper's are those of a ResNet18 and not public in a place "
        "that can be relied on. Accuracies cannot be compared with the paper's; the order of methods may be looked "
        "for. Real features are read by load_celeba_features."
    ),
    "limits": (
        "The limit is that of the direction of Smiling alone, and exact where half of the rows smile; other "
        "attributes that go with smiling add up to a point. Attributes add up and the noise is normal, so that "
        "linear models are nearly as good as any other: features of images are not so simple. Gender as the "
        "environment need not take gender out of a predictor: one that reads it can be calibrated within each."
    ),
}


def row_noise(index: Integers, n_features: int) -> Singles:
    """The noise of some images, N(0, 1): (len(index), n_features), a stream of its own for each image.

    >>> a, b = row_noise(np.array([7, 8]), 40), row_noise(np.array([100, 8]), 40)
    >>> bool((a[1] == b[1]).all()), bool((a[0] == b[0]).any())
    (True, False)
    """
    noise = np.empty((len(index), n_features), np.float32)
    for i, row in enumerate(index.tolist()):
        # images are 2**192 numbers apart in the one sequence of the key
        stream = np.random.Generator(np.random.Philox(key=SEED, counter=[0, 0, 0, row]))
        stream.standard_normal(out=noise[i], dtype=np.float32)
    return noise


def _directions(n_features: int) -> Singles:
    """W: (n_features, 40), orthonormal columns, by a fixed draw."""
    draw = np.random.default_rng(SEED).standard_normal((n_features, N_ATTRIBUTES))
    q, r = np.linalg.qr(draw)
    return (q * np.sign(np.diag(r))).astype(np.float32)  # whatever sign the factorisation gives


def _attributes(data_home: Home) -> pd.DataFrame:
    """The table of attributes, columns by name: the order in the file changes nothing."""
    path = find_any([*FILES, ORIGINAL], data_home, CURE)
    table = read_celeba_attributes(path, ROWS)
    if table.shape[1] != N_ATTRIBUTES:
        raise ValueError(
            f"{path} must have CelebA's {N_ATTRIBUTES} attributes for each image. Got {table.shape[1]}. {CURE}"
        )
    return table[sorted(table.columns)]
