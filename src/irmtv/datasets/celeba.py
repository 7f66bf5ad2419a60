"""CelebA: which faces smile, learnt where smiling goes with gender and tested where it does not.

The images go through a ResNet18 once; what is loaded here is the file of its features. That of the paper is not public
in a place that can be relied on. ``irmtv data celeba-features`` makes one from the images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from irmtv.core.messages import shown
from irmtv.core.types import Task
from irmtv.datasets.celeba_rows import Environment, Share, Singles, celeba_rows_task, choices, draw_split
from irmtv.datasets.common import FileLayout, Home, Integers, Seed, card_seed
from irmtv.datasets.fetch import BROKEN, find_any, open_unpacked
from irmtv.datasets.sources import SOURCES

FILES, CURE = SOURCES["celeba-features"].files, SOURCES["celeba-features"].cure
CHUNK = 4096  # lines that are parsed at a time; their float32 numbers are kept, the text is not


@dataclass(frozen=True, eq=False)
class Features:
    """A file of features, read."""

    chunks: tuple[Singles, ...]  # (up to CHUNK, D) each, in the order of the file
    y: NDArray[np.int8]  # (N,) 0 or 1
    spurious: NDArray[np.int8]  # (N,) 0 or 1
    aux: NDArray[np.int8]  # (N, A) 0 or 1
    group: Singles | None  # (N,) as it is in the file
    columns: tuple[str, ...]  # D names
    aux_columns: tuple[str, ...]  # A names, without their prefix
    y_column: str
    spurious_column: str

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Integers) -> Singles:
        """The features of some rows: (len(index), D). No copy of the rest is made."""
        x = np.empty((len(index), len(self.columns)), np.float32)
        first = 0
        for chunk in self.chunks:
            mine = (index >= first) & (index < first + len(chunk))
            x[mine] = chunk[index[mine] - first]
            first += len(chunk)
        return x


def load_celeba_features(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    environment: Environment = "gender",
    n_train: int | None = None,
    n_test: int | None = None,
    smiling_share: Share = "half",
) -> Task:
    """Load features of CelebA's face images and draw the paper's training and test rows.

    The target is Smiling, the spurious attribute Male. They agree in 0.999 of the first half of the training rows and
    in 0.8 of the second; in the four equal parts of the test rows in 0.01, 0.2, 0.8 and 0.999.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which rows are drawn. A Generator is advanced.
    data_home : path or None, default None
        Folder that holds celeba_features.csv, at its top or in a folder "celeba", plain or as .gz or .zip. None: the
        folder in the environment variable IRMTV_DATA. It cannot be downloaded.
    environment : {"gender", "agreement"}, default "gender"
        What is given as the environment of the training rows: Male or Female, as in the paper, or the half with its
        agreement. The rows are the same; the environments of the test rows are always the four agreements.
    n_train, n_test : int or None, default None
        How many rows. None: the paper's 40,000 and 20,000, or, in a file with too few of a kind, as many as can be
        drawn, two to one where both are None.
    smiling_share : {"half", "natural"}, default "half"
        Who smiles in each environment: half of its rows, so that nothing but the agreement shifts; or as many as come
        when rows are drawn by their agreement alone (in CelebA 38 % where it is 1, 56 % where it is 0). The paper does
        not say.

    Returns
    -------
    Task
        ``train`` and ``test``: x, the features, standardised on the training rows; y 0/1; environment; aux, the
        attributes for the inference of environments, 0/1. ``card``: source, licence, how many are where, what shifts.

    Notes
    -----
    What is known of the published layout is the beginning of its columns' names:

    ==========  =====================================================================================
    ``x_*``     the features, 512 of a ResNet18
    ``y_*``     one column, the target Smiling
    ``z_*``     the attributes for the inference of environments, seven in the paper
    ``g_*``     one column, the group by agreement
    ``sp_*``    one column, the spurious attribute Male
    ==========  =====================================================================================

    What is assumed: one line per image and a header line; y, z and sp are 0 and 1, or -1 and 1, and 1 means that the
    image has the attribute (for sp: that it shows a man); the file holds images to draw from, all of them or a part,
    and not the rows of one split in a certain order. The group g is read where it is there but not needed: agreement
    is that of y and sp, and the card says whether g tells the same. Other columns are left out.

    Examples
    --------
    >>> task = load_celeba_features(random_state=0)          # doctest: +SKIP
    >>> task                                                 # doctest: +SKIP
    Task('celeba-features', 40000 rows, features (512,), loss binary, 2 environments, 7 aux columns, 20000 test rows)
    """
    chosen = choices(environment, smiling_share, n_train, n_test)
    features = read_celeba_features(find_any(FILES, data_home, CURE))
    split = draw_split(features.y, features.spurious, random_state, chosen)
    card = {
        **SOURCES["celeba-features"].card,
        "description": f"Faces of celebrities: does a person smile? {len(features.columns)} features of each image.",
        "rows": len(features),
        "random_state": card_seed(random_state),
        "columns": features.columns,
        "aux": features.aux_columns,
        "target_column": features.y_column,
        "spurious_column": features.spurious_column,
        "group_column": _group_says(features),
        "smiling_share": smiling_share,
        **_REMARKS,
    }
    return celeba_rows_task(
        features.rows, features.y, features.spurious, features.aux, split, chosen.environment, "celeba-features", card
    )


_REMARKS = {
    "differs_from_paper": (
        "The paper's file of features is not public in a place that can be relied on, nor are the rows it drew: "
        "network, cut of the images and share of smiling faces may differ. The paper gives gender as the "
        "environment; environment='agreement' gives the two halves."
    ),
    "limits": (
        "The attributes were marked by people, and smiling is not always clear. The first half has few rows in "
        "which the two disagree (20 of 20,000). One person has several images, which may be in both parts."
    ),
}


def read_celeba_features(path: str | os.PathLike[str]) -> Features:
    """Read a file of features: columns x_*, y_*, z_*, sp_* and, where it is there, g_*.

    It is read in pieces, so that beside the features as float32 (0.4 GB for all of CelebA) little memory is used.
    """
    layout = FileLayout(f"{Path(path)} must be a file of CelebA features, with a header line and commas", CURE)
    first = layout.read(path, nrows=1)
    names = [str(name) for name in first.columns]
    found = {p: [n for n in names if n.startswith(p)] for p in ("x_", "y_", "z_", "g_", "sp_")}
    _check_columns(found, names, layout)
    if first.empty:
        raise layout.error(", one line per image. Got no lines after the header.")
    if not isinstance(first.index, pd.RangeIndex):  # pandas would take the first values for names of the rows
        raise layout.error(": a line must have as many values as the header has names. Got more.")
    others = [*found["y_"], *found["sp_"], *found["z_"], *found["g_"]]
    used = [*found["x_"], *others]
    chunks: list[Singles] = []
    labels: list[Singles] = []
    for table in _pieces(path, used, layout):
        values = table[used].to_numpy(np.float32)
        if not np.isfinite(values).all():
            line, column = np.argwhere(~np.isfinite(values))[0]
            raise layout.error(
                f": {used[column]!r} must be a number in every row. Got {values[line, column]} or nothing in row "
                f"{table.index[line] + 1}, as a file that was cut off has."
            )
        chunks.append(values[:, : len(found["x_"])].copy())  # without the rest of `values`
        labels.append(values[:, len(found["x_"]) :].copy())
    rest = np.concatenate(labels)  # (N, 2 + A), and the group where it is there
    n_coded = 2 + len(found["z_"])
    coded = np.stack([_zero_one(rest[:, j], others[j], layout) for j in range(n_coded)], axis=1)
    return Features(
        chunks=tuple(chunks),
        y=coded[:, 0],
        spurious=coded[:, 1],
        aux=coded[:, 2:],
        group=rest[:, n_coded] if found["g_"] else None,
        columns=tuple(found["x_"]),
        aux_columns=tuple(name.removeprefix("z_") for name in found["z_"]),
        y_column=others[0],
        spurious_column=others[1],
    )


def _pieces(path: str | os.PathLike[str], used: list[str], layout: FileLayout) -> Iterator[pd.DataFrame]:
    try:
        with (
            open_unpacked(Path(path)) as file,
            pd.read_csv(file, usecols=used, dtype=np.float32, chunksize=CHUNK) as reader,
        ):
            yield from reader
    except BROKEN as error:
        word = _first_word(path, used) if "could not convert" in str(error) else ""
        raise layout.error(f"{word}. Got {type(error).__name__}: {error}.") from error


def _first_word(path: str | os.PathLike[str], used: list[str]) -> str:
    """Where a word stands in place of a number, which pandas does not say."""
    with open_unpacked(Path(path)) as file, pd.read_csv(file, usecols=used, dtype=str, chunksize=CHUNK) as reader:
        for table in reader:
            for column in used:
                bad = table.index[table[column].notna() & pd.to_numeric(table[column], errors="coerce").isna()]
                if len(bad):
                    return f": {column!r} must be a number in every row, which it is not in row {bad[0] + 1}"
    return ""


def _check_columns(found: dict[str, list[str]], names: list[str], layout: FileLayout) -> None:
    for prefix, meaning in (("x_", "features"), ("z_", "attributes for the inference of environments")):
        if not found[prefix]:
            raise layout.error(f": columns {prefix}* ({meaning}) are needed. Got {shown(names)}.")
    for prefix, meaning in (("y_", "target Smiling"), ("sp_", "spurious attribute Male")):
        if len(found[prefix]) != 1:
            came = shown(found[prefix]) if found[prefix] else f"none among {shown(names)}"
            raise layout.error(f": one column {prefix}* ({meaning}) is needed. Got {came}.")
    if len(found["g_"]) > 1:
        raise layout.error(f": at most one column g_* (group by agreement) is needed. Got {shown(found['g_'])}.")


def _zero_one(values: Singles, column: str, layout: FileLayout) -> NDArray[np.int8]:
    """0 and 1 from 0 and 1, or from -1 and 1."""
    low = -1 if (values == -1).any() else 0
    good = (values == low) | (values == 1)
    if not good.all():
        got = f"Got {shown(np.unique(values[~good]))}, first in row {np.flatnonzero(~good)[0] + 1}."
        raise layout.error(f": {column!r} must be 0 or 1, or -1 or 1, throughout. {got}")
    return np.equal(values, 1).astype(np.int8)


def _group_says(features: Features) -> str:
    """What the column of the group has to do with the agreement of y and sp."""
    if features.group is None:
        return "There is none; agreement is that of y and sp."
    agree = features.y == features.spurious
    if not np.intersect1d(features.group[agree], features.group[~agree]).size:
        return "It tells the agreement of y and sp."
    values = shown(np.unique(features.group))
    return f"It has values {values}, which do not tell the agreement of y and sp; it is not used."
