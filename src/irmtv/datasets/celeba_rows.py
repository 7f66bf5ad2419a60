"""CelebA's table of attributes (202,599 images, forty attributes each, as people marked them), and its rows.

Which rows are trained and tested on is the same for the features of the images and for their stand-in.

The target (Smiling) and the spurious attribute (Male) agree where a face that smiles is a man's, or one that does not
is a woman's. How often they agree is what shifts:

| part     | rows   | agreement, in equal parts |
|----------|--------|---------------------------|
| training | 40,000 | 0.999, 0.8                |
| test     | 20,000 | 0.01, 0.2, 0.8, 0.999     |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from irmtv.core.losses import Binary
from irmtv.core.messages import shown
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import FileLayout, Integers, Seed, count, counts_by_name, one_of, streams
from irmtv.datasets.sources import CELEBA_PAGE

Environment = Literal["gender", "agreement"]
Share = Literal["half", "natural"]
Singles = NDArray[np.float32]

ROWS, N_ATTRIBUTES = 202_599, 40
TARGET, SPURIOUS = "Smiling", "Male"
AUX = ("Young", "Blond_Hair", "Eyeglasses", "High_Cheekbones", "Big_Nose", "Bags_Under_Eyes", "Chubby")  # the paper's
N_TRAIN, N_TEST = 40_000, 20_000
TRAIN_AGREEMENT = (0.999, 0.8)
TEST_AGREEMENT = (0.01, 0.2, 0.8, 0.999)
GENDERS = ("Female", "Male")
LEAST_TRAIN, LEAST_TEST = 2 * len(TRAIN_AGREEMENT), 2 * len(TEST_AGREEMENT)
# what rows are drawn from, in the order of the pools' codes
KINDS: Mapping[Share, tuple[str, ...]] = {
    "half": ("women who do not smile", "men who smile", "men who do not smile", "women who smile"),
    "natural": ("rows where both attributes agree", "rows where they do not"),
}


def read_celeba_attributes(path: str | os.PathLike[str], n_rows: int | None = None) -> pd.DataFrame:
    """The table of attributes: one int8 column of 0 and 1 per attribute, the index is the name of the image.

    It is CelebA's list_attr_celeba.txt (a line with the number of images, a line with the names of the attributes, and
    one line per image: its name and a value per attribute, with spaces between them) or a CSV (a header line; the name
    of the image in the first column). Values are -1 and 1, or 0 and 1. `n_rows`: how many images it must hold.

    >>> import tempfile
    >>> names = " ".join((TARGET, SPURIOUS, *AUX))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list_attr_celeba.txt"
    ...     _ = file.write_text(f"1\\n{names}\\n000001.jpg  1 -1  1 -1 -1 -1 -1 -1 -1\\n")
    ...     read_celeba_attributes(file)[[TARGET, SPURIOUS]].to_dict("index")
    {'000001.jpg': {'Smiling': 1, 'Male': 0}}
    """
    layout = FileLayout(
        f"{Path(path)} must be CelebA's table of attributes, list_attr_celeba.txt or a CSV of it",
        f"Take list_attr_celeba.txt again, from {CELEBA_PAGE} (folder Anno).",
    )
    header = layout.read(path, nrows=0).columns
    counted = int(header[0]) if len(header) == 1 and str(header[0]).strip().isdigit() else None
    if counted is None:
        table = layout.read(path, index_col=0)
    else:  # a name less than values on each line: pandas takes the first value, the image, as the index
        table = layout.read(path, sep=r"\s+", skiprows=1)
    needed = (TARGET, SPURIOUS, *AUX)
    lacking = [column for column in needed if column not in table]
    if lacking:
        raise layout.error(f"; the attributes {list(needed)} are needed. Got none named {lacking}.")
    for expected, said in ((counted, "its first line says"), (n_rows, "CelebA has")):
        if expected is not None and len(table) != expected:
            raise layout.error(f"; {said} {expected:,} images. Got {len(table):,}.")
    if len(table) == 0:
        raise layout.error(", one line per image. Got no images.")
    for column in table:
        values = table[column]
        bad = values[~values.isin([-1, 1] if (values == -1).any() else [0, 1])]
        if len(bad):
            got = f"Got {shown(bad.unique())}, first for image {bad.index[0]!r}."
            raise layout.error(f": {column!r} must be -1 or 1, or 0 or 1 throughout. {got}")
    twice = table.index[table.index.duplicated()]
    if len(twice):
        raise layout.error(f", one line per image. Got several for {shown(twice.unique())}.")
    return (table == 1).astype(np.int8).rename(index=str)


@dataclass(frozen=True)
class Split:
    """Row numbers of both parts, and the environment of each as a code into the agreements. No row is in both."""

    train: Integers  # (n_train,)
    train_code: Integers  # (n_train,) into TRAIN_AGREEMENT
    test: Integers  # (n_test,)
    test_code: Integers  # (n_test,) into TEST_AGREEMENT


@dataclass(frozen=True)
class Choices:
    """What a user may choose about the rows, checked."""

    environment: Environment
    smiling_share: Share
    n_train: int | None  # None: the paper's, or as many as there are rows for
    n_test: int | None


def choices(environment: Any, smiling_share: Any, n_train: Any, n_test: Any) -> Choices:
    """The parameters that loader and stand-in share, or an error that names the wrong one."""
    return Choices(
        one_of("environment", environment, get_args(Environment)),
        one_of("smiling_share", smiling_share, get_args(Share)),
        None if n_train is None else count("n_train", n_train, LEAST_TRAIN, "two rows per environment"),
        None if n_test is None else count("n_test", n_test, LEAST_TEST, "two rows per environment"),
    )


def draw_split(y: NDArray[Any], spurious: NDArray[Any], random_state: Seed, chosen: Choices) -> Split:
    """Draw both parts from rows of y (N,) and spurious (N,), 0 and 1, without replacement.

    They come in the order of the environments, and of the rows in each. Those for training do not depend on how many
    are drawn for the test.

    >>> y, male = np.array([0, 0, 1, 1] * 100), np.array([0, 1] * 200)
    >>> split = draw_split(y, male, 0, choices("gender", "half", 40, 40))
    >>> [float((y == male)[split.test[split.test_code == e]].mean()) for e in range(4)]
    [0.0, 0.2, 0.8, 1.0]
    """
    disagree = (y != spurious).astype(np.int64)
    pool = 2 * disagree + y.astype(np.int64) if chosen.smiling_share == "half" else disagree  # (N,)
    there = np.bincount(pool, minlength=len(KINDS[chosen.smiling_share]))  # rows by pool
    left = [np.flatnonzero(pool == k) for k in range(len(there))]
    parts: list[Integers] = []
    wanted_of_both = _wanted(*_sizes(there, chosen), chosen.smiling_share)
    for stream, wanted in zip(streams(random_state), wanted_of_both, strict=True):
        left = [stream.permutation(members) for members in left]
        drawn = []
        for by_pool in wanted:
            pairs = list(zip(left, by_pool, strict=True))
            drawn.append(np.sort(np.concatenate([members[:n] for members, n in pairs])))
            left = [members[n:] for members, n in pairs]
        parts += [np.concatenate(drawn), np.repeat(np.arange(len(drawn)), [len(rows) for rows in drawn])]
    return Split(*parts)


def celeba_rows_task(
    features: Callable[[Integers], Singles],
    y: NDArray[Any],
    spurious: NDArray[Any],
    aux: NDArray[Any],
    split: Split,
    environment: Environment,
    name: str,
    card: dict[str, Any],
) -> Task:
    """The task of a split; `features` gives those of row numbers, which are standardised on the training rows."""
    from sklearn.preprocessing import StandardScaler  # takes time to import, and only this needs it

    scaler = StandardScaler()
    x_train = scaler.fit_transform(features(split.train))  # (n_train, D); what does not vary becomes 0
    x_test = scaler.transform(features(split.test))  # (n_test, D)

    def rows(x: Singles, index: Integers, code: Integers, names: tuple[str, ...]) -> Rows:
        target, attributes = torch.from_numpy(y[index]).float(), torch.from_numpy(aux[index]).double()
        return Rows(torch.from_numpy(x), target, torch.from_numpy(code), attributes, names)

    names, test_names = (tuple(f"agreement={p:g}" for p in given) for given in (TRAIN_AGREEMENT, TEST_AGREEMENT))
    code = split.train_code
    if environment == "gender":
        code, names = spurious[split.train].astype(np.int64), GENDERS
    shared = {
        "n_train": counts_by_name(names, code),
        "n_test": counts_by_name(test_names, split.test_code),
        "target": TARGET,
        "spurious": SPURIOUS,
        "environment": environment,
        "train_agreement": TRAIN_AGREEMENT,
        "test_agreement": TEST_AGREEMENT,
        "shift": (
            f"How often {TARGET} and {SPURIOUS} agree: in 0.999 and 0.8 of the two halves of the training rows, in "
            "0.01, 0.2, 0.8 and 0.999 of the four parts of the test rows. A face's smile tells the same everywhere."
        ),
        "looks_at_test": "Nothing: the features were standardised by the training rows.",
    }
    return Task(
        rows(x_train, split.train, code, names),
        Binary(),
        test=rows(x_test, split.test, split.test_code, test_names),
        name=name,
        card={**card, **shared},
    )


def _wanted(n_train: int, n_test: int, share: Share) -> tuple[Integers, Integers]:
    """How many rows each environment takes of each pool: (2, pools) for training and (4, pools) for the test."""

    def by_pool(n: int, agreements: tuple[float, ...]) -> Integers:
        size = np.diff(np.arange(len(agreements) + 1) * n // len(agreements))  # (E,) as equal as can be
        agree = np.rint(np.array(agreements) * size).astype(np.int64)  # (E,)
        if share == "natural":
            return np.stack([agree, size - agree], axis=1)
        smiling_men = agree // 2
        smiling_women = size // 2 - smiling_men
        return np.stack([agree - smiling_men, smiling_men, size - agree - smiling_women, smiling_women], axis=1)

    return by_pool(n_train, TRAIN_AGREEMENT), by_pool(n_test, TEST_AGREEMENT)


def _sizes(there: Integers, chosen: Choices) -> tuple[int, int]:
    """Training and test rows: the given numbers, else the paper's, else the most that there are rows for."""
    ratio = N_TRAIN // N_TEST
    if chosen.n_train is not None:
        least, most = (LEAST_TEST, N_TEST) if chosen.n_test is None else (chosen.n_test, chosen.n_test)
    else:
        least, most = (max(LEAST_TRAIN, ratio * LEAST_TEST) if chosen.n_test is None else LEAST_TRAIN), N_TRAIN

    def sizes(k: int) -> tuple[int, int]:  # k test rows where those for training are given, else k training rows
        if chosen.n_train is not None:
            return chosen.n_train, k
        return k, k // ratio if chosen.n_test is None else chosen.n_test

    def needed(k: int) -> Integers:  # by pool
        train, test = _wanted(*sizes(k), chosen.smiling_share)
        total: Integers = train.sum(axis=0) + test.sum(axis=0)
        return total

    def enough(k: int) -> bool:
        return bool((needed(k) <= there).all())

    if enough(most):
        return sizes(most)
    if not enough(least):
        kinds = zip(KINDS[chosen.smiling_share], needed(least), there, strict=True)
        short = " and ".join(f"{n:,} {kind} ({t:,} are there)" for kind, n, t in kinds if n > t)
        asked = " and ".join(p for p in ("n_train", "n_test") if getattr(chosen, p) is not None)
        raise ValueError(
            f"{asked or 'the images'} must leave enough rows of each kind to draw from: {sizes(least)[0]:,} training "
            f"and {sizes(least)[1]:,} test rows take {short}. "
            f"{f'Lower {asked}, or take' if asked else 'Take'} a file of more images."
        )
    good, bad = least, most  # the most rows that can be had, by bisection
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if enough(middle) else (good, middle)
    return sizes(good)
