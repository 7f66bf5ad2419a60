"""A small file of house sales, for tests of what reads it."""

from __future__ import annotations

import csv
import gzip
import zipfile

import numpy as np
import pandas as pd

from irmtv.datasets.house_prices import FEATURES

TINY = 140  # rows


def tiny_houses(seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"id": np.arange(TINY).astype(str), "date": "20141013T000000"})
    table["price"] = rng.integers(100, 900, TINY) * 1000
    for column in FEATURES:
        table[column] = rng.integers(0, 60, TINY) / 4
    table["yr_built"] = 1940 + np.arange(TINY) % 25
    table.loc[:5, "yr_built"] = [1900, 1910, 1911, 2000, 2001, 2015]  # one house each: no spread in these years
    table["waterfront"] = np.where(table["yr_built"] == 1950, 1, table["waterfront"])  # nor here
    table["zipcode"] = "98178"
    return table


def write(folder, table, suffix=""):
    folder.mkdir(exist_ok=True)
    path = folder / f"kc_house_data.csv{suffix}"
    content = table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode()
    if suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("kc_house_data.csv", content)
    else:
        path.write_bytes(content)
    return path
