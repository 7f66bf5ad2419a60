"""UCI Adult: who earns more than 50,000 dollars a year, learnt on two subgroups and tested on four.

The subgroups are race (Black or not) by sex. Training sees two of them, Black men and women who are not Black, so
that race and sex cannot be told apart there; four out of five test rows are men who are not Black.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import pandas as pd
import torch

from irmtv.core.losses import Binary
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import FileLayout, Home, Integers, Seed, Tables, card_seed, count, one_of, streams
from irmtv.datasets.fetch import find_files
from irmtv.datasets.sources import SOURCES

FitOn = Literal["all", "train"]
Missing = Literal["level", "nan"]

FILES = SOURCES["adult"].files
ROWS: Mapping[str, int] = {"adult.data": 32_561, "adult.test": 16_281}

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
    "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
INTEGERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORIES = ("workclass", "education", "marital-status", "occupation", "relationship", "native-country")
FEATURES = tuple(c for c in COLUMNS if c in INTEGERS + CATEGORIES)  # race and sex make the subgroups
SUBGROUPS = ("Black Male", "Black Female", "Non-Black Male", "Non-Black Female")
TRAINED = ("Black Male", "Non-Black Female")


@overload
def load_adult(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: Literal[False] = False,
    fit_on: FitOn = "all",
    n_components: float = 0.99,
    missing: Missing = "level",
) -> Task: ...
@overload
def load_adult(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: Literal[True],
    fit_on: FitOn = "all",
    n_components: float = 0.99,
    missing: Missing = "level",
) -> Tables: ...
def load_adult(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    as_frame: bool = False,
    fit_on: FitOn = "all",
    n_components: float = 0.99,
    missing: Missing = "level",
) -> Task | Tables:
    """Load UCI Adult (48,842 people): as the paper prepares it, or as raw tables.

    The target is an income above 50,000 dollars. Environments are the four subgroups of race (Black, Non-Black) by
    sex. Training rows: two thirds of Black Male and of Non-Black Female, 10,840 in all; test rows: everybody else.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which split: which rows of the two training subgroups are trained on. A Generator is advanced.
    data_home : path or None, default None
        Folder that holds adult.data and adult.test, at its top or in a folder "adult", plain or as .gz or .zip.
        None: the folder in the environment variable IRMTV_DATA; where that is not set, they are downloaded once.
    as_frame : bool, default False
        True: raw tables for scikit-learn, the same split and order of rows.
    fit_on : {"all", "train"}, default "all"
        Rows on which one-hot levels, principal components and scaling are fitted. "all" is what gives the paper's 59
        columns; it looks at the inputs of test rows, never at their labels. "train" does not look, and then the
        number of components depends on the split: fix it by ``n_components=53`` to train on several splits at once.
        For tasks, not for tables.
    n_components : float or int, default 0.99
        Principal components of the one-hot columns: the fewest that hold more than this share of the variance, or
        (an int) how many. For tasks, not for tables.
    missing : {"level", "nan"}, default "level"
        What becomes of '?' in workclass, occupation and native-country: kept, as a level of its own, or NaN. NaN is
        for tables only.

    Returns
    -------
    Task
        ``train`` and ``test``: x, the components first and then the six integer columns, standardised; y 0/1;
        environment; aux, the six integer columns in their own units, which training standardises. ``card``: source,
        licence, rows by subgroup, what shifts and what the preprocessing looked at.
    Tables
        With ``as_frame=True``: ``X_train, y_train, environment_train, X_test, y_test, environment_test``, pandas
        objects with 12 columns (categories as strings; race and sex are left out, as the paper does), y 0/1, and
        the name of the subgroup; the index is the row's number in adult.data followed by adult.test.

    Notes
    -----
    The paper's "test" fits the accuracy on all test rows together, its "worst" the lowest among the four subgroups:
    that of Non-Black Male, four out of five test rows.

    Examples
    --------
    >>> task = load_adult(random_state=0)
    >>> task
    Task('adult', 10840 rows, features (59,), loss binary, 2 environments, 6 aux columns, 38002 test rows)
    >>> tables = load_adult(random_state=0, as_frame=True)
    >>> tables.environment_test.value_counts().to_dict()
    {'Non-Black Male': 30273, 'Non-Black Female': 4628, 'Black Female': 2308, 'Black Male': 793}
    """
    missing = one_of("missing", missing, get_args(Missing))
    if not as_frame:
        if missing != "level":
            raise ValueError(
                "missing must be 'level' for a task, whose columns can hold no NaN. Got 'nan'. Add as_frame=True."
            )
        return adult_task(random_state, fit_on=fit_on, n_components=n_components, data_home=data_home)
    if (fit_on, n_components) != ("all", 0.99):
        raise ValueError(
            "fit_on and n_components must be left out with as_frame=True: nothing is fitted on raw tables. "
            f"Got fit_on={fit_on!r} and n_components={n_components!r}. Leave them out, or as_frame."
        )
    people = _people(data_home)
    code, train, test = _split(people, random_state)
    x = people[list(FEATURES)]
    if missing == "nan":
        x = x.mask(x == "?")
    y = people["income"].rename("income>50K")
    environment = pd.Series(np.array(SUBGROUPS)[code], index=people.index, name="subgroup")
    card = _card(people, code, train, random_state) | {
        "columns": FEATURES,
        "missing": missing,
        "looks_at_test": "Nothing: these are the values of the files.",
        "differs_from_paper": "The columns are raw. Which rows the paper trained on is not published.",
    }
    return Tables.of(x, y, environment, train, test, name="adult", card=card)


def adult_task(
    random_state: Seed = None, *, fit_on: FitOn = "all", n_components: float = 0.99, data_home: Home = None
) -> Task:
    """:func:`load_adult` for specs, which need a task whatever the arguments are; the parameters are those there."""
    fit_on = one_of("fit_on", fit_on, get_args(FitOn))
    n_components = _components(n_components)
    people = _people(data_home)
    code, train, test = _split(people, random_state)
    x = _standardised(people, train if fit_on == "train" else np.arange(len(people)), n_components)  # (N, D)
    y = torch.tensor(people["income"].to_numpy(np.float32))  # (N,)
    aux = torch.tensor(people[list(INTEGERS)].to_numpy(np.float64))  # (N, 6)

    def rows(index: Integers, names: tuple[str, ...]) -> Rows:
        known = np.array([names.index(s) if s in names else -1 for s in SUBGROUPS])  # codes into `names`
        return Rows(x[index], y[index], torch.from_numpy(known[code[index]]), aux[index], names)

    n_pca = x.shape[1] - len(INTEGERS)
    card = _card(people, code, train, random_state) | {
        "columns": (*(f"component {j + 1}" for j in range(n_pca)), *INTEGERS),
        "aux": INTEGERS,
        "fit_on": fit_on,
        "n_components": n_components,
        "looks_at_test": _LOOKS[fit_on],
        "differs_from_paper": _DIFFERS,
    }
    return Task(rows(train, TRAINED), Binary(), test=rows(test, SUBGROUPS), name="adult", card=card)


def read_adult(path: str | os.PathLike[str], n_rows: int | None = None) -> pd.DataFrame:
    """One of the two files: the original (a comment line, no header, labels ending in '.') or one with a header.

    15 columns: six of integers, eight of strings ('?' where unknown), and income, 1 where above 50,000 dollars.
    `n_rows`: how many people it must hold.
    """
    must = f"{Path(path)} must be a file of UCI Adult, 15 values on each line with commas between them"
    layout = FileLayout(must, "Take the file from UCI again.", "for person")
    table = layout.read(path, header=None, comment="|", skipinitialspace=True, dtype=str, na_filter=False)
    if table.shape[1] != len(COLUMNS):
        raise layout.error(f". Got {table.shape[1]} on the first.")
    table.columns = pd.Index(COLUMNS)
    first = [str(value).lower().replace("_", "-").replace(".", "-") for value in table.iloc[0]]
    if first[:-1] == list(COLUMNS[:-1]):  # a header; the name of the label differs between copies
        table = table.iloc[1:].reset_index(drop=True)
    table = table.apply(lambda column: column.fillna("").str.strip())
    label = table["income"].str.removesuffix(".")  # as they end in the original adult.test
    for column in INTEGERS:
        layout.check(table, column, table[column].str.fullmatch(r"\d+"), "a whole number")
    for column in CATEGORIES:
        layout.check(table, column, table[column] != "", "a word or '?'")
    layout.check(table, "race", ~table["race"].isin(["", "?"]), "a word")
    layout.check(table, "sex", table["sex"].isin(["Male", "Female"]), "Male or Female")
    layout.check(table, "income", label.isin(["<=50K", ">50K"]), "<=50K or >50K")
    layout.check_rows(table, n_rows, "people")
    integers = {column: table[column].astype(np.int64) for column in INTEGERS}
    people: pd.DataFrame = table.assign(**integers, income=(label == ">50K").astype(np.int64))
    return people


def _people(data_home: Home) -> pd.DataFrame:
    """Everybody: adult.data, then adult.test."""
    paths = find_files(FILES, data_home)
    tables = [read_adult(path, ROWS[file.name]) for file, path in zip(FILES, paths, strict=True)]
    return pd.concat(tables, ignore_index=True)


def _split(people: pd.DataFrame, random_state: Seed) -> tuple[Integers, Integers, Integers]:
    """Codes into SUBGROUPS (N,), training rows and test rows, both in the order of the files."""
    black, male = people["race"].to_numpy() == "Black", people["sex"].to_numpy() == "Male"
    code = np.where(black, 0, 2) + np.where(male, 0, 1)  # (N,) in the order of SUBGROUPS
    stream = streams(random_state)[0]
    chosen = []
    for name in TRAINED:
        members = np.flatnonzero(code == SUBGROUPS.index(name))
        chosen.append(stream.permutation(members)[: 2 * len(members) // 3])
    train = np.sort(np.concatenate(chosen))
    return code, train, np.setdiff1d(np.arange(len(people)), train)


def _standardised(people: pd.DataFrame, fitted: Integers, n_components: float) -> torch.Tensor:
    """x (N, D) float32: principal components of the one-hot columns, and the integers, fitted on the rows `fitted`."""
    from sklearn.decomposition import PCA  # takes time to import, and only this needs it
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    words = people[list(CATEGORIES)].astype(object)
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(words.iloc[fitted])
    # the columns of each variable sum to one: further components are rounding, which scaling would blow up
    most = sum(len(levels) - 1 for levels in encoder.categories_)
    if isinstance(n_components, int) and n_components > most:
        raise ValueError(
            f"n_components must be at most {most}: no more components of these rows vary. Got {n_components}. "
            "Use 0.99 for the paper's."
        )
    one_hot = encoder.transform(words)  # (N, 95) where all rows are fitted
    # the sign of a component is fixed: its largest loading is positive
    components = PCA(n_components, svd_solver="covariance_eigh").fit(one_hot[fitted]).transform(one_hot)
    x = np.hstack([components, people[list(INTEGERS)].to_numpy(np.float64)])  # (N, D)
    return torch.from_numpy(StandardScaler().fit(x[fitted]).transform(x)).float()


def _card(people: pd.DataFrame, code: Integers, train: Integers, random_state: Seed) -> dict[str, Any]:
    """What a task and tables have in common."""
    trained, everybody = np.bincount(code[train], minlength=4), np.bincount(code, minlength=4)
    share = np.bincount(code, people["income"].to_numpy()) / everybody
    return SOURCES["adult"].card | {
        "n_samples": {s: int(n) for s, n in zip(SUBGROUPS, trained, strict=True) if s in TRAINED},
        "n_test": {s: int(n) for s, n in zip(SUBGROUPS, everybody - trained, strict=True)},
        "random_state": card_seed(random_state),
        "shift": (
            "Who is asked: training sees Black men and women who are not Black, the test rows mostly men who are not "
            "Black. The share above 50,000 dollars differs between the subgroups, and so may what predicts it."
        ),
        "positive_share": {s: round(float(p), 4) for s, p in zip(SUBGROUPS, share, strict=True)},
        "limits": (
            "Race and sex are not among the columns, but relationship (Husband, Wife) tells the sex of many. fnlwgt "
            "is a weight of the sample, not a property of a person. 52 records of the files repeat an earlier one in "
            "every column; they are kept, so a test row may equal a training row."
        ),
    }


_LOOKS: Mapping[FitOn, str] = {
    "all": (
        "One-hot levels, principal components and scaling were fitted on all rows, as gives the paper's 59 columns: "
        "they have seen the inputs of the test rows, not their labels. fit_on='train' does not look."
    ),
    "train": "Nothing: one-hot levels, principal components and scaling were fitted on the training rows only.",
}
_DIFFERS = (
    "The paper does not say on which rows it fits, nor what it does with unknown values: all rows, and '?' as a level, "
    "give its 59 columns. It draws two thirds of both training subgroups; here of each. Which rows it drew is not "
    "published."
)


def _components(value: Any) -> float:
    """A share of the variance, or a number of components."""
    if isinstance(value, (float, np.floating)):
        if 0 < value < 1:
            return float(value)
        raise ValueError(
            "n_components must be a share of the variance between 0 and 1, or an integer of at least 1. "
            f"Got {value!r}. Use 0.99 for the paper's."
        )
    return count("n_components", value)
