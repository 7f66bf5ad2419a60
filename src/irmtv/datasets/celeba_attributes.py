"""CelebA's table of attributes: 202,599 images, forty attributes each, as people marked them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from irmtv.core.messages import shown
from irmtv.datasets.fetch import BROKEN

PROJECT = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
CITATION = "Liu, Luo, Wang and Tang, Deep Learning Face Attributes in the Wild, ICCV 2015"
LICENCE = "non-commercial research only, by the agreement on CelebA's page"
ROWS, N_ATTRIBUTES = 202_599, 40

TARGET, SPURIOUS = "Smiling", "Male"
AUX = ("Young", "Blond_Hair", "Eyeglasses", "High_Cheekbones", "Big_Nose", "Bags_Under_Eyes", "Chubby")  # the paper's


def read_celeba_attributes(path: str | os.PathLike[str], n_rows: int | None = None) -> pd.DataFrame:
    """Read the table of attributes, in CelebA's own layout or as CSV.

    Parameters
    ----------
    path : path
        CelebA's list_attr_celeba.txt (a line with the number of images, a line with the names of the attributes, and
        one line per image: its name and a value per attribute, with spaces between them) or a CSV (a header line; the
        name of the image in the first column). Plain or packed, by its ending. Values are -1 and 1, or 0 and 1.
    n_rows : int or None, default None
        How many images it must hold.

    Returns
    -------
    DataFrame
        One int8 column of 0 and 1 per attribute, in the order of the file; the index is the name of the image.

    Examples
    --------
    >>> import tempfile
    >>> names = " ".join((TARGET, SPURIOUS, *AUX))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "list_attr_celeba.txt"
    ...     _ = file.write_text(f"1\\n{names}\\n000001.jpg  1 -1  1 -1 -1 -1 -1 -1 -1\\n")
    ...     read_celeba_attributes(file)[[TARGET, SPURIOUS]].to_dict("index")
    {'000001.jpg': {'Smiling': 1, 'Male': 0}}
    """
    wrong = f"{Path(path)} must be CelebA's table of attributes, list_attr_celeba.txt or a CSV of it"
    cure = f"Take list_attr_celeba.txt again, from {PROJECT} (folder Anno)."
    try:
        header = pd.read_csv(path, nrows=0).columns
        counted = int(header[0]) if len(header) == 1 and str(header[0]).strip().isdigit() else None
        if counted is None:
            table = pd.read_csv(path, index_col=0)
        else:  # a name less than values on each line: pandas takes the first value, the image, as the index
            table = pd.read_csv(path, sep=r"\s+", skiprows=1)
    except BROKEN as error:
        raise ValueError(f"{wrong}. Got {type(error).__name__}: {error}. {cure}") from error
    needed = (TARGET, SPURIOUS, *AUX)
    lacking = [column for column in needed if column not in table]
    if lacking:
        raise ValueError(f"{wrong}; the attributes {list(needed)} are needed. Got none named {lacking}. {cure}")
    for expected, said in ((counted, "its first line says"), (n_rows, "CelebA has")):
        if expected is not None and len(table) != expected:
            raise ValueError(f"{wrong}; {said} {expected:,} images. Got {len(table):,}. {cure}")
    if len(table) == 0:
        raise ValueError(f"{wrong}, one line per image. Got no images. {cure}")
    for column in table:
        values = table[column]
        good = values.isin([-1, 1]) if (values == -1).any() else values.isin([0, 1])
        if not good.all():
            bad = values[~good]
            raise ValueError(
                f"{wrong}: {column!r} must be -1 or 1, or 0 or 1 throughout. Got {shown(bad.unique())}, first for "
                f"image {bad.index[0]!r}. {cure}"
            )
    twice = table.index[table.index.duplicated()]
    if len(twice):
        raise ValueError(f"{wrong}, one line per image. Got several for {shown(twice.unique())}. {cure}")
    return (table == 1).astype(np.int8).rename(index=str)
