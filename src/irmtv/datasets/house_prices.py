"""House prices of King County (Seattle): learnt on houses built up to 1950, tested on houses built after.

The price is compared with the houses of the same built year, so that what shifts is not the level of the prices but
what makes a house dear among its contemporaries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import pandas as pd
import torch

from irmtv.core.losses import Squared
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import FileLayout, Floats, Home, Integers, Seed, Tables, counts_by_name, one_of, streams
from irmtv.datasets.fetch import find_files
from irmtv.datasets.sources import SOURCES

Scaling = Literal["train", "all", "year", "minmax", "none"]
Target = Literal["year", "train"]

FILES = SOURCES["house-prices"].files
ROWS = 21_613  # of the file; houses built after 2000 are in neither part

FEATURES = (
    "bedrooms", "bathrooms", "sqft_living", "sqft_lot", "floors", "waterfront", "view", "condition", "grade",
    "sqft_above", "sqft_basement", "lat", "long", "sqft_living15", "sqft_lot15",
)  # fmt: skip
YEAR, PRICE = "yr_built", "price"
FIRST, LAST_TRAINED, LAST = 1900, 1950, 2000  # built years, each included
TRAINED = ("1900-1910", *(f"{y}-{y + 9}" for y in range(1911, 1950, 10)))
TESTED = tuple(f"{y}-{y + 9}" for y in range(1951, 2000, 10))


@overload
def load_house_prices(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: Literal[False] = False,
    scaling: Scaling = "train",
    target: Target = "year",
) -> Task: ...
@overload
def load_house_prices(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: Literal[True],
    scaling: Scaling = "train",
    target: Target = "year",
) -> Tables: ...
def load_house_prices(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: bool = False,
    scaling: Scaling = "train",
    target: Target = "year",
) -> Task | Tables:
    """Load house sales of King County, Washington (May 2014 to May 2015): as the paper prepares them, or raw.

    The target is the price among houses of the same built year. Training rows: the 5,187 houses built from 1900 to
    1950; test rows: the 11,885 built from 1951 to 2000. Each part has five environments, segments of ten built years
    (the first one of eleven). Houses built after 2000 are left out.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Changes nothing: the built year makes the split. It is here because every loader takes it; a Generator is
        not advanced.
    data_home : path or None, default None
        Folder that holds kc_house_data.csv, at its top or in a folder "house_prices", plain or as .gz or .zip.
        None: the folder in the environment variable IRMTV_DATA; where that is not set, it is downloaded once.
    as_frame : bool, default False
        True: raw tables for scikit-learn, the same split and order of rows.
    scaling : {"train", "all", "year", "minmax", "none"}, default "train"
        How the features are scaled; the paper does not say. To mean 0 and standard deviation 1 over the training
        rows ("train"), over training and test rows ("all"), or over the houses of the same built year, as the price
        is ("year"; what does not vary within a year becomes 0). To the range 0 to 1 of the training rows ("minmax";
        test rows may lie outside). Or not at all ("none"). For tasks, not for tables.
    target : {"year", "train"}, default "year"
        Which houses' prices have mean 0 and standard deviation 1: those of each built year (the paper's; for test
        rows that takes the prices of test rows), or those of all training rows (a model then has to predict the
        level of the prices of later years too). For tasks, not for tables.

    Returns
    -------
    Task
        ``train`` and ``test``: x, the 15 features; y, the scaled price; environment, the segment of built years;
        aux, the built year. ``card``: source, licence, how many are where, what shifts and what the preprocessing
        looked at.
    Tables
        With ``as_frame=True``: ``X_train, y_train, environment_train, X_test, y_test, environment_test``, pandas
        objects. X has the 15 features and last ``yr_built``, for ``InvariantRegressor(aux="yr_built")``, which takes
        it out; drop it where it should be no feature. y is the price in dollars, the environment the segment's name;
        the index is the row's number in the file.

    Notes
    -----
    With ``target="year"`` a prediction of 0, the mean of each year, has a mean squared error of exactly 1 in every
    segment: the error is the share of the variance within the years that is left unexplained.

    Examples
    --------
    >>> task = load_house_prices()
    >>> task
    Task('house-prices', 5187 rows, features (15,), loss squared, 5 environments, 1 aux columns, 11885 test rows)
    >>> task.test.names
    ('1951-1960', '1961-1970', '1971-1980', '1981-1990', '1991-2000')
    >>> tables = load_house_prices(as_frame=True)
    >>> tables
    Tables('house-prices', 5187 training rows, 11885 test rows, 16 columns)
    """
    if not as_frame:
        return house_prices_task(random_state, scaling=scaling, target=target, data_home=data_home)
    if (scaling, target) != ("train", "year"):
        raise ValueError(
            "scaling and target must be left out with as_frame=True: nothing is scaled in raw tables. "
            f"Got scaling={scaling!r} and target={target!r}. Leave them out, or as_frame."
        )
    _check_seed(random_state)
    houses, segment, train, test = _split(data_home)
    x, y = houses[[*FEATURES, YEAR]], houses[PRICE]
    environment = pd.Series(np.array(TRAINED + TESTED)[segment], index=houses.index, name="segment")
    card = _card(segment) | {
        "columns": (*FEATURES, YEAR),
        "looks_at_test": "Nothing: these are the values of the file.",
        "differs_from_paper": f"Features and price are raw, and the built year is among the columns. {_FOOTNOTE}",
    }
    return Tables.of(x, y, environment, train, test, name="house-prices", card=card)


def house_prices_task(
    random_state: Seed = None, *, scaling: Scaling = "train", target: Target = "year", data_home: Home = None
) -> Task:
    """:func:`load_house_prices` for specs, which need a task always; the parameters are those there."""
    scaling = one_of("scaling", scaling, get_args(Scaling))
    target = one_of("target", target, get_args(Target))
    _check_seed(random_state)
    houses, segment, train, test = _split(data_home)
    year = houses[YEAR].to_numpy(np.int64)  # (N,)
    x = torch.from_numpy(_scaled(houses[list(FEATURES)].to_numpy(np.float64), year, train, scaling)).float()  # (N, 15)
    y = torch.from_numpy(_scaled(houses[[PRICE]].to_numpy(np.float64), year, train, target)[:, 0]).float()  # (N,)
    aux = torch.from_numpy(year[:, None].astype(np.float64))  # (N, 1)

    def rows(index: Integers, names: tuple[str, ...], first: int) -> Rows:
        return Rows(x[index], y[index], torch.from_numpy(segment[index] - first), aux[index], names)

    card = _card(segment) | {
        "columns": FEATURES,
        "aux": (YEAR,),
        "scaling": scaling,
        "target": target,
        "looks_at_test": f"{_LOOKS_SCALING[scaling]} {_LOOKS_TARGET[target]}",
        "differs_from_paper": f"{_FOOTNOTE} {_UNKNOWN}{_OWN_TARGET if target == 'train' else ''}",
    }
    return Task(
        rows(train, TRAINED, 0),
        Squared(),
        test=rows(test, TESTED, len(TRAINED)),
        name="house-prices",
        card=card,
    )


def read_house_prices(path: str | os.PathLike[str], n_rows: int | None = None) -> pd.DataFrame:
    """The file of house sales: 15 features, built year and price of each, finite numbers; `n_rows`: how many sales."""
    must = f"{Path(path)} must be the file of King County house sales, with a header line and commas"
    layout = FileLayout(
        must, f"Take {FILES[0].name} again, from {FILES[0].url} or Kaggle (harlfoxem/housesalesprediction)."
    )
    needed = (*FEATURES, YEAR, PRICE)
    table = layout.read(path)
    lacking = [column for column in needed if column not in table]
    if lacking:
        raise layout.error(f"; columns {list(needed)} are needed. Got a header without {lacking}.")

    numbers = {column: pd.to_numeric(table[column], errors="coerce") for column in needed}
    for column, values in numbers.items():
        layout.check(table, column, values.notna() & ~values.isin([np.inf, -np.inf]), "a number")
    table = table.assign(**numbers)
    layout.check(table, YEAR, (table[YEAR] % 1 == 0) & table[YEAR].between(1000, 9999), "a year")
    layout.check(table, PRICE, table[PRICE] > 0, "above 0")
    layout.check_rows(table, n_rows, "sales")
    return table[list(needed)]


def _check_seed(random_state: Seed) -> None:
    """Nothing is drawn, but a folder given in its place must not be overlooked."""
    if not isinstance(random_state, np.random.Generator):
        streams(random_state)


def _split(data_home: Home) -> tuple[pd.DataFrame, Integers, Integers, Integers]:
    """Houses built from 1900 to 2000, their segments (N,) as codes into TRAINED + TESTED, and both parts' rows."""
    (path,) = find_files(FILES, data_home)
    houses = read_house_prices(path, ROWS)
    houses = houses[houses[YEAR].between(FIRST, LAST)]
    year = houses[YEAR].to_numpy(np.int64)
    segment = np.maximum(year - FIRST - 1, 0) // 10  # ten years each; 1900 goes to 1901-1910
    return houses, segment, np.flatnonzero(year <= LAST_TRAINED), np.flatnonzero(year > LAST_TRAINED)


def _scaled(values: Floats, year: Integers, train: Integers, how: Scaling) -> Floats:
    """Columns (N, K), each scaled alone. What does not vary becomes 0, or keeps its unit outside the fitted rows."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler  # takes time to import, and only this needs it

    if how == "none":
        return values
    if how == "year":
        scaled = np.empty_like(values)
        for one in np.unique(year):
            same = year == one
            scaled[same] = StandardScaler().fit_transform(values[same])
        return scaled
    scaler = MinMaxScaler() if how == "minmax" else StandardScaler()
    fitted: Floats = scaler.fit(values if how == "all" else values[train]).transform(values)
    return fitted


def _card(segment: Integers) -> dict[str, Any]:
    """What a task and tables have in common."""
    counts = counts_by_name(TRAINED + TESTED, segment)
    return SOURCES["house-prices"].card | {
        "n_train": {name: counts[name] for name in TRAINED},
        "n_test": {name: counts[name] for name in TESTED},
        "random_state": None,  # the built year makes the split
        "shift": (
            "When the house was built: training sees houses built from 1900 to 1950, the test rows those built from "
            "1951 to 2000. These are larger on average and lie further out, and what goes with a price that is high "
            "for its year differs: the number of floors less (correlation 0.18 rather than 0.41), the latitude more."
        ),
        "limits": (
            "sqft_above and sqft_basement add up to sqft_living. Houses sold twice within the year are two rows, never "
            "one in each part. One row has 33 bedrooms. The training decades are of unequal size (596 to 1,858 rows)."
        ),
    }


_LOOKS_SCALING: Mapping[Scaling, str] = {
    "train": "Features: nothing, they were scaled by mean and standard deviation of the training rows.",
    "all": "Features: they were scaled by mean and standard deviation of training and test rows together.",
    "year": (
        "Features: those of a test row were scaled by mean and standard deviation of its built year, of test rows "
        "therefore: a single house cannot be scaled so without others of its year."
    ),
    "minmax": "Features: nothing, they were scaled to the range of the training rows.",
    "none": "Features: nothing, they are those of the file.",
}
_LOOKS_TARGET: Mapping[Target, str] = {
    "year": (
        "Price: that of a test row was standardised by mean and standard deviation of the prices of its own built "
        "year, which are prices of test rows. So the test error says how well a house is placed among those of its "
        "year; a price in dollars cannot be had from a prediction without knowing the prices of that year."
    ),
    "train": "Price: nothing, it was standardised by mean and standard deviation of the training rows.",
}
_FOOTNOTE = (
    "The paper's footnote names the Ames competition of Kaggle, but the 15 variables of the authors' code are columns "
    "of this file."
)
_UNKNOWN = (
    "The authors' prepared file is not public: how its features are scaled is not known, so mean squared errors cannot "
    "be compared with the paper's, gains over ERM can. The standard deviation of a year divides "
    "by the number of its houses."
)
_OWN_TARGET = " The paper standardises the price within each built year, target='year'."
