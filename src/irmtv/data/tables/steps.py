"""From a raw table to numbers: the steps of a Pipeline before its estimator.

`TableColumns` picks the columns of training and gives them the types of training, so that a table in pieces, or from
another kind of file, means the same; `TableNumbers` reads dates, categories and text by skrub's `TableVectorizer` and
fills what is missing. Nothing missing comes out, whatever goes in:

- a column without any value in training is left out;
- a number or date that is missing: the mean of training, and 1 in the column's indicator, which is there where
  training had missing values, too;
- a category that is missing: a category of its own where training had it, else as one that training did not have;
- a category that training did not have: none of the known ones (all zeros), or by its letters where there are many;
- a date in another format, or text where numbers were: as missing; `TableColumns` warns of text among numbers.

What a cell becomes depends on its value alone, so skrub's `TableVectorizer` is given every different value of a column
once, and its answer is spread over the rows: a million rows cost little more than their different values.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import skrub
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import did_you_mean, shown, users_stacklevel
from irmtv.data.tables.errors import TableError

COMPONENTS = 16  # numbers that a column with many texts becomes
LEVELS = 20_000  # texts that these are learned from, at most
TOGETHER = 10_000  # maximum number of different values of a column that shares a TableVectorizer
BLOCK = 1 << 12  # rows that are filled at a time, so that they stay in the cache

Floats = npt.NDArray[np.float32]


def table_steps() -> list[tuple[str, Any]]:
    """The preprocessing of a Pipeline: a raw DataFrame in, float32 numbers without missing values out.

    Returns
    -------
    list of (name, transformer)
        "columns" and "numbers".

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sklearn.pipeline import Pipeline
    >>> frame = pd.DataFrame({"size": [1.0, None, 3.0], "where": ["north", "south", None]})
    >>> pipeline = Pipeline(table_steps())
    >>> pipeline.fit_transform(frame)
    array([[1., 1., 0., 0., 0.],
           [2., 0., 1., 0., 1.],
           [3., 0., 0., 1., 0.]], dtype=float32)
    >>> pipeline.get_feature_names_out().tolist()
    ['size', 'where_north', 'where_south', 'where_nan', 'size missing']
    """
    return [("columns", TableColumns()), ("numbers", TableNumbers())]


class TableColumns(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """The columns of training, by name, with the types of training; others are ignored.

    Attributes
    ----------
    feature_names_in_ : array of str
        The columns.
    kinds_ : dict of str to str
        "number", "date" or "text", by column.
    """

    def fit(self, X: Any, y: Any = None) -> TableColumns:
        """Remember names and kinds of the columns."""
        frame = _as_frame(X)
        self.feature_names_in_ = np.asarray([str(name) for name in frame.columns], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.kinds_ = {str(name): kind_of(frame[name]) for name in frame.columns}
        return self

    def transform(self, X: Any) -> pd.DataFrame:
        """These columns, with a warning where values cannot be read."""
        made, unread = self.align(X)
        if unread:
            counted = shown([f"{name!r} ({n:,} of {len(made):,})" for name, n in unread.items()], form=str)
            warnings.warn(
                f"text where the rows of training had numbers or dates, taken as missing: {counted}.",
                UserWarning,
                stacklevel=users_stacklevel(),
            )
        return made

    def align(self, X: Any) -> tuple[pd.DataFrame, dict[str, int]]:
        """These columns, and by column how many values are not what they were in training."""
        check_is_fitted(self, "kinds_")
        frame = _as_frame(X)
        check_names(self.kinds_, list(frame.columns))
        made, unread = {}, {}
        for name, kind in self.kinds_.items():
            made[name], bad = _as_kind(frame[name], kind)
            if bad:
                unread[name] = bad
        return pd.DataFrame(made, index=frame.index, copy=False), unread

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the columns."""
        check_is_fitted(self, "kinds_")
        return np.asarray(self.feature_names_in_, dtype=object)


def check_names(columns: Iterable[str], present: Sequence[Any]) -> None:
    """Raise where a column of training is not there."""
    there = set(present)
    missing = [name for name in columns if name not in there]
    if missing:
        raise TableError(
            f"the table must have the columns that the model was trained on. Missing: {shown(missing, 10)}."
            f"{did_you_mean(missing[0], present)} It has {shown(present, 10)}. Add or rename columns."
        )


def _as_frame(x: Any) -> pd.DataFrame:
    if isinstance(x, pd.DataFrame):
        frame = x
    elif hasattr(x, "to_pandas") and hasattr(x, "columns"):  # polars
        frame = x.to_pandas()
    else:
        raise TableError(
            f"X must be a DataFrame with the columns of the table. Got {type(x).__name__}. Use read_table(path).frame."
        )
    lasting = [name for name in frame.columns if frame[name].dtype.kind == "m"]
    if lasting:  # durations, as numbers
        frame = frame.assign(**{name: frame[name].dt.total_seconds() for name in lasting})
    return frame if all(isinstance(name, str) for name in frame.columns) else frame.rename(columns=str)


def kind_of(column: pd.Series) -> str:
    """ "number", "date" or "text"."""
    if is_numeric_dtype(column.dtype):  # bool, too
        return "number"
    return "date" if is_datetime64_any_dtype(column.dtype) else "text"


def _as_kind(column: pd.Series, kind: str) -> tuple[pd.Series, int]:
    """A column as one of that kind, and how many values could not be read."""
    own = kind_of(column)
    if kind == own:
        return column, 0
    if kind == "text":
        return (column if own == "date" else _as_words(column)), 0
    given = column.notna()
    read: pd.Series
    if kind == "date":
        # numbers may be years: as missing rather than as seconds since 1970
        read = pd.to_datetime(column if own == "text" else column.where(~given), errors="coerce")
    elif own == "date":
        read = pd.Series(np.nan, index=column.index, name=column.name)
    else:
        words = column.astype(object)
        read = pd.to_numeric(words, errors="coerce").astype(np.float64)
        if (read.isna() & given).any():
            read = read.fillna(words.map(lambda value: {"true": 1.0, "false": 0.0}.get(str(value).lower(), np.nan)))
    return read, int((read.isna() & given).sum())


def _as_words(column: pd.Series) -> pd.Series:
    """Numbers as they would be written: 1 rather than 1.0, whatever a missing value did to the column."""
    whole = column.dtype.kind == "f" and bool((column.dropna() % 1 == 0).all())
    words = column.dropna().map(lambda value: str(int(value)) if whole else str(value))
    return words.astype(object).reindex(column.index)


@dataclass(frozen=True)
class _Levels:
    """A column of N rows as its L different values."""

    values: Any  # (L,) different values, none missing
    codes: npt.NDArray[np.int64]  # (N,): position among the values, L where missing

    @classmethod
    def of(cls, column: pd.Series) -> _Levels:
        codes, values = pd.factorize(column)
        codes = codes.astype(np.int64, copy=False)
        codes[codes < 0] = len(values)
        return cls(values, codes)

    def column(self, length: int, missing: bool) -> pd.Series:
        """The values, then a missing one where the rows have any, then the first again, up to `length` rows."""
        if len(self.values) == 0:
            return pd.Series([None] * length, dtype=object)
        order = np.zeros(length, dtype=np.int64)
        order[: len(self.values)] = np.arange(len(self.values))
        taken = pd.Series(self.values).take(order).reset_index(drop=True)
        if missing:
            taken = taken.astype(taken.dtype if taken.dtype.kind == "M" else object)
            taken.iloc[len(self.values)] = None
        return taken


@dataclass(frozen=True)
class Surprises:
    """Values that training did not have the like of, by column."""

    unread: dict[str, int]  # dates in another format: how many; they count as missing
    new: dict[str, dict[str, int]]  # categories: which, and how many; they are none of the known ones


class TableNumbers(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """Dates, categories and text by skrub's `TableVectorizer`; missing numbers by the mean, with an indicator.

    Attributes
    ----------
    column_to_kind_ : dict of str to str
        What skrub took each column for: "numeric", "datetime", "low_cardinality", "high_cardinality"; not there for
        columns without any value.
    input_to_outputs_ : dict of str to list of str
        The numbers that are made of each column.
    groups_ : list of list of str
        Columns that are no numbers; those with many different values stand alone.
    vectorizers_ : list of TableVectorizer
        One for each group.
    fill_ : dict of str to list of float
        What stands for a missing value, by column, for each of its numbers.
    indicated_ : list of str
        Columns with missing values in training.
    """

    def fit(self, X: pd.DataFrame, y: Any = None) -> TableNumbers:
        """Learn what the columns are, and what stands for missing values."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: pd.DataFrame, y: Any = None) -> Floats:
        """Learn, and give the numbers of these rows: (N, D) float32."""
        self.feature_names_in_ = np.asarray([str(name) for name in X.columns], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.column_to_kind_: dict[str, str] = {}
        self.fill_: dict[str, list[float]] = {}
        self.indicated_: list[str] = []
        outputs: dict[str, list[str]] = {}
        levels: dict[str, _Levels] = {}
        for name in X.columns:
            if kind_of(X[name]) == "number":
                outputs |= self._learn_number(name, X[name])
            else:
                levels[name] = _Levels.of(X[name])
        few = [name for name, column in levels.items() if len(column.values) <= TOGETHER]
        many = [[name] for name in levels if name not in set(few)]
        self.groups_ = [few, *many] if few else many
        self.vectorizers_ = []
        tables: dict[str, Floats] = {}
        for group in self.groups_:
            encoder = LevelEncoder(n_components=COMPONENTS, random_state=0)
            vectorizer = skrub.TableVectorizer(high_cardinality=encoder)
            answer = _quietly(vectorizer.fit_transform, _level_frame(group, levels))
            self.vectorizers_.append(vectorizer)
            self.column_to_kind_ |= vectorizer.column_to_kind_
            for name in vectorizer.column_to_kind_:
                outputs[name] = list(vectorizer.input_to_outputs_[name])
                tables[name] = _table(answer, outputs[name], levels[name])
                self._learn_gaps(name, tables[name], levels[name])
        self.input_to_outputs_ = {name: outputs[name] for name in X.columns if name in outputs}
        return self._filled(X, levels, tables)

    def _learn_number(self, name: str, column: pd.Series) -> dict[str, list[str]]:
        values = _as_floats(column)
        given = ~np.isnan(values)
        if not given.any():
            return {}
        self.column_to_kind_[name] = "numeric"
        self.fill_[name] = [float(values.mean(dtype=np.float64, where=given))]
        self.indicated_ += [name] * (not given.all())
        return {name: [name]}

    def _learn_gaps(self, name: str, table: Floats, levels: _Levels) -> None:
        """Means of what a column becomes, over the rows where it is known."""
        rows = np.bincount(levels.codes, minlength=len(table))  # of every level, and without a value
        known = ~np.isnan(table) & (rows > 0)[:, None]
        total = np.where(known, table, 0.0).astype(np.float64).T @ rows
        self.fill_[name] = (total / np.maximum(known.T @ rows, 1)).tolist()
        self.indicated_ += [name] * bool((rows[np.isnan(table).any(1)] > 0).any())

    def transform(self, X: pd.DataFrame) -> Floats:
        """The numbers of these rows: (N, D) float32, none missing."""
        return self.read(X)[0]

    def read(self, X: pd.DataFrame) -> tuple[Floats, Surprises]:
        """The numbers of these rows, and what training did not have the like of."""
        check_is_fitted(self, "input_to_outputs_")
        levels: dict[str, _Levels] = {}
        tables: dict[str, Floats] = {}
        surprises = Surprises({}, {})
        for group, vectorizer in zip(self.groups_, self.vectorizers_, strict=True):
            levels |= {name: _Levels.of(X[name]) for name in group}
            answer = _quietly(vectorizer.transform, _level_frame(group, levels))
            for name, kind in vectorizer.column_to_kind_.items():
                tables[name] = _table(answer, self.input_to_outputs_[name], levels[name])
                rows = np.bincount(levels[name].codes, minlength=len(tables[name]))[:-1]
                if kind in ("datetime", "numeric"):
                    bad = int(rows[np.isnan(tables[name][:-1, 0])].sum())
                    surprises.unread.update({name: bad} if bad else {})
                elif isinstance(encoder := vectorizer.transformers_[name], OneHotEncoder):
                    known = set(map(str, encoder.categories_[0]))
                    pairs = zip(_texts(levels[name].values), rows.tolist(), strict=True)
                    new = {level: n for level, n in pairs if level not in known}
                    surprises.new.update({name: new} if new else {})
        return self._filled(X, levels, tables), surprises

    def _filled(self, X: pd.DataFrame, levels: dict[str, _Levels], tables: dict[str, Floats]) -> Floats:
        """Spread over the rows, with gaps filled and indicated."""
        starts, end = {}, 0  # the place of a column's first number
        for name, outputs in self.input_to_outputs_.items():
            starts[name], end = end, end + len(outputs)
        flags = {name: end + k for k, name in enumerate(self.indicated_)}
        made = np.empty((len(X), end + len(flags)), dtype=np.float32)  # (N, D)
        numbers = {name: _as_floats(X[name]) for name in starts if name not in tables}
        gaps = {name: np.asarray(np.isnan(table).any(1)) for name, table in tables.items()}
        whole = {name: np.where(np.isnan(t), np.asarray(self.fill_[name], np.float32), t) for name, t in tables.items()}
        for rows in (slice(start, start + BLOCK) for start in range(0, len(X), BLOCK)):
            for name, values in numbers.items():
                missing = np.isnan(values[rows])
                made[rows, starts[name]] = np.where(missing, self.fill_[name][0], values[rows])
                if name in flags:
                    made[rows, flags[name]] = missing
            for name, table in whole.items():
                codes = levels[name].codes[rows]
                made[rows, starts[name] : starts[name] + table.shape[1]] = np.take(table, codes, axis=0)
                if name in flags:
                    made[rows, flags[name]] = gaps[name][codes]
        return made

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the numbers; those that say where a column was missing come last."""
        check_is_fitted(self, "input_to_outputs_")
        names = [output for outputs in self.input_to_outputs_.values() for output in outputs]
        return np.asarray([*names, *(f"{name} missing" for name in self.indicated_)], dtype=object)


class LevelEncoder(skrub.StringEncoder):  # type: ignore[misc]  # skrub is not annotated
    """skrub's `StringEncoder`, which learns from every text once and computes it once, however many rows have it.

    A million rows with ten thousand different texts cost as much as ten thousand rows. A missing text is all zeros.

    Attributes
    ----------
    terms_ : array of str
        Groups of letters by number: the vectorizer's vocabulary, as an array, since a model file is written and read
        many times faster with it.
    """

    def fit_transform(self, X: pd.Series, y: Any = None) -> pd.DataFrame:
        """Learn from the different texts, at most 20,000 of them, and encode all."""
        levels = pd.Series(_texts(X.dropna().unique()), name=X.name, dtype=object)
        if len(levels) > LEVELS:
            levels = levels.sample(LEVELS, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # fewer texts than components: then there are fewer
            super().fit_transform(levels)
        vocabulary = self.vectorizer_.__dict__.pop("vocabulary_")
        self.terms_ = np.array(sorted(vocabulary, key=vocabulary.__getitem__), dtype=str)
        return self.transform(X)

    def transform(self, X: pd.Series) -> pd.DataFrame:
        """Encode every different text once."""
        codes, levels = pd.factorize(X)  # (N,), -1 where missing
        values = np.zeros((len(levels) + 1, self.n_components_), dtype=np.float32)
        if len(levels):
            whole = copy.copy(self)
            whole.vectorizer_ = copy.copy(self.vectorizer_)
            whole.vectorizer_.vocabulary_ = {term: i for i, term in enumerate(self.terms_.tolist())}
            texts = pd.Series(_texts(levels), name=self.input_name_, dtype=object)
            values[:-1] = super(LevelEncoder, whole).transform(texts)
        made = values[codes]  # the last row, zeros, for what is missing
        return pd.DataFrame(made, columns=list(self.all_outputs_), index=X.index, copy=False)


def _as_floats(column: pd.Series) -> npt.NDArray[Any]:
    """Numbers and truth values as floats, NaN where missing."""
    if column.dtype.kind in "fiub" and isinstance(column.dtype, np.dtype):
        values = column.to_numpy()
        return values if values.dtype.kind == "f" else values.astype(np.float64)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _level_frame(names: Sequence[str], levels: dict[str, _Levels]) -> pd.DataFrame:
    """The different values of several columns side by side; one more row for what is missing."""
    length = max(len(levels[name].values) for name in names) + 1
    columns = {}
    for name in names:
        own = levels[name]
        columns[name] = own.column(length, missing=bool((own.codes == len(own.values)).any()))
    return pd.DataFrame(columns)


def _table(answer: pd.DataFrame, outputs: Sequence[str], levels: _Levels) -> Floats:
    """(L + 1, outputs): what every level becomes, and a missing value last."""
    return answer[list(outputs)].iloc[: len(levels.values) + 1].to_numpy(dtype=np.float32)


def _quietly(call: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """skrub warns of categories that training did not have; that they are none of the known ones is documented."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result: pd.DataFrame = call(frame)
    return result


def _texts(values: Any) -> list[str]:
    return [str(value) for value in values]
