"""The real tables: what is predicted from what, which parts are left out, and how they were prepared.

Files are looked for as those of `irmtv.datasets` are: in `data_home`, else in the folder that IRMTV_DATA names. Nothing
here was tuned: every preparation was settled before a model was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from irmtv.core.messages import did_you_mean, shown
from irmtv.datasets import adult, house_prices
from irmtv.datasets.common import FileLayout, Home
from irmtv.datasets.fetch import DataFile, find_files
from irmtv.lab.real.splits import RowSplit, first_then, leave_each_out

MOST_ROWS = 8000  # training rows of a large table
HEART = DataFile("heart_disease", "heart_disease.csv")
GAS = DataFile("gas_drift", "gas_drift.csv")
BIKE = DataFile("bike_sharing", "bike_sharing.csv")
SEASONS = {1: "winter", 2: "spring", 3: "summer", 4: "autumn"}  # as the file's numbers mean by their dates
RARE_RACES = ("Amer-Indian-Eskimo", "Other")  # fewer than 500 people each


@dataclass(frozen=True)
class RealTable:
    """Rows as they are read, without any number fitted on them."""

    name: str
    features: pd.DataFrame  # (N, D) numbers, and categories as text; gaps are NaN
    target: NDArray[Any]  # (N,) labels or numbers
    environment: NDArray[Any]  # (N,) what training is told; unseen rows are scored by it too
    splits: Sequence[RowSplit]
    notes: Sequence[str]  # what is predicted, and what was done to the rows
    most_rows: int | None = None  # of training, at most

    @property
    def is_regression(self) -> bool:
        return bool(self.target.dtype.kind == "f")

    @property
    def metric(self) -> str:
        return "rmse" if self.is_regression else "accuracy"

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that a result depends on: results of another preparation are not taken for those of this."""
        digest = sha256(repr((self.most_rows, list(self.features.columns))).encode())
        for column in (self.features, pd.Series(self.target), pd.Series(self.environment)):
            digest.update(pd.util.hash_pandas_object(column, index=False).to_numpy().tobytes())
        return digest.hexdigest()[:12]


def load_table(name: str, data_home: Home = None) -> RealTable:
    """A table by its name; FileNotFoundError, which says where it was looked for, where its file is missing."""
    return TABLES[name](data_home)


def table_names(asked: Sequence[str] | None) -> list[str]:
    """The names of tables that are asked for by name or number; None: all.

    >>> table_names(["2", "heart"])
    ['gas', 'heart']
    """
    known = list(TABLES)
    by_number = {str(i + 1): name for i, name in enumerate(known)}
    names = [by_number.get(name, name) for name in asked or known]
    for name in names:
        if name not in TABLES:
            raise ValueError(f"--settings must be one of {known}. Got {name!r}.{did_you_mean(name, known)}")
    return list(dict.fromkeys(names))


# --- the tables ---------------------------------------------------------------------------------------------------


def _heart(data_home: Home) -> RealTable:
    target, hospital = "disease", "hospital"
    numbers = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca")
    categories = ("cp", "restecg", "slope", "thal")
    rows = _read(HEART, data_home, (*numbers, *categories, hospital, target))
    features = rows[list(numbers)].apply(pd.to_numeric, errors="coerce")
    features["chol"] = features["chol"].where(features["chol"] != 0)
    features = _with_categories(features, rows, categories)
    where = rows[hospital].to_numpy(str)
    notes = (
        "heart: whether a patient has a disease of the heart, by hospital. cp, restecg, slope and thal are categories; "
        "chol 0 is a gap; gaps are filled by means of training, with an indicator each.",
    )
    return RealTable("heart", features, rows[target].to_numpy(str), where, leave_each_out(where), notes)


def _gas(data_home: Home) -> RealTable:
    features, gas, batch = _gas_rows(data_home)
    notes = ("gas: which of six gases, from 128 numbers of 16 sensors that drift, by batch (time).",)
    return RealTable("gas", features, gas, batch, leave_each_out(batch), notes)


def _gas_time(data_home: Home) -> RealTable:
    features, gas, batch = _gas_rows(data_home)
    first, then = [f"batch{k}" for k in (1, 2, 3, 4)], [f"batch{k}" for k in (5, 6, 8, 9)]
    split = first_then("5, 6, 8, 9", batch, first, then)
    notes = ("gas-time: the same in time, from the first four batches to the four that come later.",)
    return RealTable("gas-time", features, gas, batch, [split], notes)


def _gas_rows(data_home: Home) -> tuple[pd.DataFrame, NDArray[Any], NDArray[Any]]:
    rows = _read(GAS, data_home, ("batch", "gas"))
    features = rows.drop(columns=["batch", "gas"]).astype(float)
    return features, rows["gas"].to_numpy(str), rows["batch"].to_numpy(str)


def _bike_season(data_home: Home) -> RealTable:
    rows, features, rentals = _bike_rows(data_home)
    season = rows["season"].map(SEASONS).to_numpy(str)
    features = features.assign(yr=rows["yr"].astype(float))
    notes = (
        "bike-season: log(1 + rentals in an hour), by season; from hour, holiday, weekday, working day, weather, two "
        "temperatures, humidity, wind and year; never from a date. Weekday and weather are categories, the hour is a "
        "number and 24 categories.",
    )
    return RealTable("bike-season", features, rentals, season, leave_each_out(season), notes)


def _bike_year(data_home: Home) -> RealTable:
    rows, features, rentals = _bike_rows(data_home)
    season = rows["season"].map(SEASONS).to_numpy(str)
    year = (2011 + rows["yr"]).to_numpy(str)
    notes = (
        "bike-year: the same by year, from the season too and not from the year. With one year to train on, its "
        "seasons are the environments, and the unseen year is scored by season. 2012 is a split in time.",
    )
    features = _with_categories(features, rows, ("season",))
    return RealTable("bike-year", features, rentals, season, leave_each_out(year, last="2012"), notes)


def _bike_rows(data_home: Home) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[Any]]:
    """The rows, what is predicted from apart from season and year, and log(1 + cnt)."""
    numbers = ("hr", "holiday", "workingday", "temp", "atemp", "hum", "windspeed")
    categories = ("hr", "weekday", "weathersit")
    rows = _read(BIKE, data_home, (*numbers, *categories, "season", "yr", "cnt"))
    features = _with_categories(rows[list(numbers)].astype(float), rows, categories)
    return rows, features, np.log1p(rows["cnt"].to_numpy(float))


def _adult(data_home: Home) -> RealTable:
    paths = find_files(adult.FILES, data_home)
    people = pd.concat([adult.read_adult(path) for path in paths], ignore_index=True)
    race = people["race"].where(~people["race"].isin(RARE_RACES), "other").replace("Asian-Pac-Islander", "Asian")
    group = (race + " " + people["sex"]).to_numpy(str)
    numbers = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
    categories = ("workclass", "marital-status", "occupation", "relationship")
    features = _with_categories(people[numbers].astype(float), people, categories)
    income = np.where(people["income"] == 1, ">50K", "<=50K")
    notes = (
        "adult: whether an income is above 50,000 dollars, by race and sex, which are no features; "
        f"{' and '.join(RARE_RACES)} are joined (each has fewer than 500 people). Left out: education (education-num "
        "says the same), native-country and the sample's weight. " + _some_rows_note(),
    )
    return RealTable("adult", features, income, group, leave_each_out(group), notes, MOST_ROWS)


def _king_county(data_home: Home) -> RealTable:
    (path,) = find_files(house_prices.FILES, data_home)
    houses = house_prices.read_house_prices(path)
    decade = np.array([f"{year // 10 * 10:.0f}s" for year in houses[house_prices.YEAR]])
    features = houses[list(house_prices.FEATURES)].astype(float)
    price = np.log(houses[house_prices.PRICE].to_numpy(float))
    notes = (
        "king-county: log of a house's price, by decade of building, from the 15 columns of the paper. "
        + _some_rows_note(),
    )
    return RealTable("king-county", features, price, decade, leave_each_out(decade), notes, MOST_ROWS)


TABLES: Mapping[str, Callable[[Home], RealTable]] = {
    "heart": _heart,
    "gas": _gas,
    "gas-time": _gas_time,
    "bike-season": _bike_season,
    "bike-year": _bike_year,
    "adult": _adult,
    "king-county": _king_county,
}


def _some_rows_note() -> str:
    return f"At most {MOST_ROWS:,} training rows, drawn once; all unseen rows."


def _read(file: DataFile, data_home: Home, needed: Sequence[str]) -> pd.DataFrame:
    """The table of a file, with these columns at least."""
    (path,) = find_files([file], data_home)
    layout = FileLayout(f"{path} must be {file.name}, with a header line and commas", "Take the file again.")
    rows = layout.read(path)
    lacking = [name for name in dict.fromkeys(needed) if name not in rows]
    if lacking:
        raise layout.error(f"; columns {shown(list(needed), 30)} are needed. Got a header without {shown(lacking)}.")
    return rows


def _with_categories(features: pd.DataFrame, rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Further columns, as words: a category that is a number in the file is not read as one."""
    return features.assign(**{f"{name} is": _words(rows[name]) for name in names})


def _words(column: pd.Series) -> pd.Series:
    if column.dtype.kind not in "if":
        return column
    return column.map(lambda value: f"{column.name} {value:g}", na_action="ignore")
