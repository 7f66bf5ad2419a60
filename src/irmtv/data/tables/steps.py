"""From a raw table to numbers: the steps of a Pipeline before its estimator.

`TableColumns` picks the columns of training and gives them the types of training, so that a table in pieces, or from
another kind of file, means the same; `TableNumbers` reads dates, categories and text by skrub's `TableVectorizer` and
fills what is missing. Nothing missing comes out, whatever goes in:

- a column without any value in training is left out;
- a number or date that is missing: the mean of training, and 1 in the column's indicator, which is there where
  training had missing values, too;
- a category that is missing: a category of its own where training had it, else as one that training did not have;
- a category that training did not have: none of the known ones (all zeros), or by its letters where there are many
  and nobody said that they are categories;
- a date in another format, or text where numbers were: as missing; `TableColumns` warns of text among numbers.

Trees read gaps and categories as they are: for these `TableForTrees` stands in place of `TableNumbers`.

What a cell becomes depends on its value alone, so skrub's `TableVectorizer` is given every different value of a column
once, and its answer is spread over the rows: a million rows cost little more than their different values.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils.validation import check_is_fitted

from irmtv.core.messages import shown, users_stacklevel
from irmtv.data.scaling import Scaler
from irmtv.data.tables.errors import TableError
from irmtv.data.tables.kinds import as_frame, as_text, kind_of
from irmtv.data.tables.reading import Floats, Levels, ReadColumns, ReadForTrees, ReadNumbers, Surprises
from irmtv.data.tables.recipes import recipe_of
from irmtv.data.tables.recipes_of_skrub import recipes_of
from irmtv.data.tables.summaries import LevelSummary, NumberSummary, Summary, middle_and_half

MOST_CATEGORIES = 1000  # of a column that is said to hold categories
SKRUBS_THRESHOLD = 40  # different texts, from which on `TableVectorizer` takes a column for no categories
TREE_CATEGORIES = 255  # of a column of text, for trees: as many as LightGBM has bins
TOGETHER = 10_000  # maximum number of different values of a column that shares a TableVectorizer
FAR = 1e3  # spreads from 0, beyond which a column of numbers is moved: float32 has seven digits
SMALLEST = 1e-20  # spread of a column that is not scaled; squares of it are numbers still


def table_steps(categorical: Sequence[str] = (), for_trees: bool = False) -> list[tuple[str, Any]]:
    """The preprocessing of a Pipeline: a raw DataFrame in, float32 numbers without missing values out.

    Parameters
    ----------
    categorical : sequence of str, default ()
        Columns whose values are categories, also where they look like numbers or dates.
    for_trees : bool, default False
        A DataFrame comes out, with missing values and categories, for the boosting estimators.

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
    numbers = TableForTrees() if for_trees else TableNumbers()
    return [("columns", TableColumns(tuple(categorical))), ("numbers", numbers)]


class TableColumns(ReadColumns, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """The columns of training, by name, with the types of training; others are ignored.

    Parameters
    ----------
    categorical : sequence of str, default ()
        Columns whose values are categories. 1, 1.0 and "1" are the same one.

    Attributes
    ----------
    feature_names_in_ : array of str
        The columns.
    kinds_ : dict of str to str
        "number", "date", "text" or "category", by column.
    """

    categorical: Sequence[str] = ()  # of files that older versions wrote

    def __init__(self, categorical: Sequence[str] = ()) -> None:
        self.categorical = categorical

    def fit(self, X: Any, y: Any = None) -> TableColumns:
        """Remember names and kinds of the columns."""
        frame = as_frame(X)
        said = {str(name) for name in self.categorical}
        kinds = {str(n): "category" if str(n) in said else kind_of(frame[n]) for n in frame.columns}
        return self._set_kinds(kinds)

    def fit_summaries(self, columns: Mapping[str, Summary]) -> TableColumns:
        """The same of columns in short."""
        return self._set_kinds({str(name): summary.kind for name, summary in columns.items()})

    def _set_kinds(self, kinds: dict[str, str]) -> TableColumns:
        self.feature_names_in_ = np.asarray(list(kinds), dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.kinds_ = kinds
        return self

    def transform(self, X: Any) -> pd.DataFrame:
        """These columns, with a warning where values cannot be read."""
        check_is_fitted(self, "kinds_")
        made, unread = self.align(X)
        if unread:
            counted = shown([f"{name!r} ({n:,} of {len(made):,})" for name, n in unread.items()], form=str)
            warnings.warn(
                f"text where the rows of training had numbers or dates, taken as missing: {counted}.",
                UserWarning,
                stacklevel=users_stacklevel(),
            )
        return made

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the columns."""
        check_is_fitted(self, "kinds_")
        return np.asarray(self.feature_names_in_, dtype=object)


class TableNumbers(ReadNumbers, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """Dates, categories and text by skrub's `TableVectorizer`; missing numbers by the mean, with an indicator.

    Attributes
    ----------
    column_to_kind_ : dict of str to str
        What skrub took each column for: "numeric", "datetime", "low_cardinality", "high_cardinality"; not there for
        columns without any value.
    input_to_outputs_ : dict of str to list of str
        The numbers that are made of each column.
    recipes_ : dict of str to dict
        What values become, of columns of categories, dates and text: all that is kept of skrub's answer; see `recipes`.
    groups_ : list of list of str
        Columns that need skrub, since one of them has no recipe (dates of a time zone): those that were looked at
        together.
    vectorizers_ : list of TableVectorizer
        One for each group.
    units_ : dict of str to list of float
        Middle and spread of columns of numbers that are given in these units: far from 0 beside their spread (times,
        identifiers, projected coordinates), or very small or large, so that 32 bits would lose them.
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
        levels: dict[str, Levels] = {}
        columns: dict[str, Summary] = {}
        for name in X.columns:
            kind = kind_of(X[name])
            if kind == "number":
                columns[name] = NumberSummary.of(X[name])
            else:
                levels[name] = Levels.of(X[name])
                columns[name] = LevelSummary.of(levels[name], kind)
        return self.filled(X, levels, self._learn(columns))

    def fit_summaries(self, columns: Mapping[str, Summary]) -> TableNumbers:
        """Learn from columns in short, whose rows need not be in memory."""
        self._learn(columns)
        return self

    def _learn(self, columns: Mapping[str, Summary]) -> dict[str, Floats]:
        """What the columns are, and what stands for missing values; what every distinct value becomes, by column."""
        self.feature_names_in_ = np.asarray([str(name) for name in columns], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.column_to_kind_: dict[str, str] = {}
        self.fill_: dict[str, list[float]] = {}
        self.units_: dict[str, list[float]] = {}
        self.indicated_: list[str] = []
        outputs: dict[str, list[str]] = {}
        levels: dict[str, LevelSummary] = {}
        for name, column in columns.items():
            if isinstance(column, NumberSummary):
                outputs |= self._learn_number(name, column)
            else:
                levels[name] = column
        said = [name for name in levels if levels[name].kind == "category"]
        _check_categories({name: len(levels[name].values) for name in said})
        others = {name: len(levels[name].values) for name in levels if name not in set(said)}
        most = self._encoding().get("cardinality_threshold", SKRUBS_THRESHOLD)
        few = [name for name, n in others.items() if n < most]  # of similar length: the shorter are filled up
        several = [name for name, n in others.items() if most <= n <= TOGETHER]
        many = [[name] for name, n in others.items() if n > max(most, TOGETHER)]
        self.recipes_: dict[str, dict[str, Any]] = {}
        self.groups_: list[list[str]] = []
        self.vectorizers_: list[Any] = []
        tables: dict[str, Floats] = {}
        for group in [*filter(None, (said, few, several)), *many]:
            own = {"cardinality_threshold": MOST_CATEGORIES + 1} if group is said else {}
            vectorizer = _with_skrub().table_vectorizer(**{**self._encoding(), **own})
            answer = _quietly(vectorizer.fit_transform, _level_frame({name: levels[name] for name in group}))
            recipes = recipes_of(vectorizer, answer, levels)
            if recipes is None:
                self.groups_.append(group)
                self.vectorizers_.append(vectorizer)
            else:
                self.recipes_ |= recipes
                tables |= {name: recipe_of(recipe).table(levels[name].values) for name, recipe in recipes.items()}
            self.column_to_kind_ |= vectorizer.column_to_kind_
            for name in vectorizer.column_to_kind_:
                outputs[name] = list(vectorizer.input_to_outputs_[name])
                if name not in tables:
                    tables[name] = _table(answer, outputs[name], levels[name])
                self._learn_gaps(name, tables[name], levels[name])
        self.input_to_outputs_ = {name: outputs[name] for name in columns if name in outputs}
        return tables

    def _encoding(self) -> dict[str, Any]:
        """How `TableVectorizer` encodes texts: up to 39 different ones are categories, with a number for each."""
        return {}

    def _learn_number(self, name: str, column: NumberSummary) -> dict[str, list[str]]:
        if not column.n:
            return {}
        self.column_to_kind_[name] = "numeric"
        self.fill_[name] = [column.mean]
        if (units := _own_units(column)) is not None:
            self.units_[name], self.fill_[name] = list(units), [0.0]
        self.indicated_ += [name] * bool(column.missing)
        return {name: [name]}

    def _learn_gaps(self, name: str, table: Floats, levels: LevelSummary) -> None:
        """Means of what a column becomes, over the rows where it is known."""
        rows = levels.counts  # of every level, and without a value
        known = ~np.isnan(table) & (rows > 0)[:, None]
        total = np.where(known, table, 0.0).astype(np.float64).T @ rows
        self.fill_[name] = (total / np.maximum(known.T @ rows, 1)).tolist()
        self.indicated_ += [name] * bool((rows[np.isnan(table).any(1)] > 0).any())

    def scaler(self, columns: Mapping[str, Summary]) -> Scaler:
        """What `Scaler.of` gives for the numbers of all rows, whose columns are known in short: those of training."""
        others = {  # a missing value last
            name: pd.Series(column.values).reindex(range(len(column.values) + 1))
            for name, column in columns.items()
            if isinstance(column, LevelSummary)
        }
        levels, tables, _ = self._levels(others)
        made, gaps = list[_Moments](), dict[str, float]()
        for name in self.input_to_outputs_:
            column = columns[name]
            if isinstance(column, NumberSummary):
                gaps[name] = column.missing / (column.n + column.missing)
                made.append(_of_number(column, self.units_.get(name), self.fill_[name][0]))
                continue
            table = tables[name]
            rows = np.zeros(len(table))
            rows[levels[name].codes] = column.counts
            missing = np.isnan(table)
            gaps[name] = float(rows[missing.any(1)].sum() / rows.sum())
            made += _of_levels(np.where(missing, np.asarray(self.fill_[name], np.float32), table), rows)
        shares = np.array([gaps[name] for name in self.indicated_])
        made += [_Moments(p, np.sqrt(p * (1 - p)), float(p == 1), float(p > 0)) for p in shares]
        mean, deviation, low, high = (np.array(values) for values in zip(*made, strict=True))
        varies = (high > low) & (deviation > 0)
        return Scaler(np.where(varies, mean, low), np.where(varies, deviation, np.inf))

    def transform(self, X: pd.DataFrame) -> Floats:
        """The numbers of these rows: (N, D) float32, none missing."""
        check_is_fitted(self, "input_to_outputs_")
        made: Floats = self.read(X)[0]
        return made

    def read_others(
        self,
        X: Mapping[str, Any] | pd.DataFrame,
        levels: dict[str, Levels],
        tables: dict[str, Floats],
        surprises: Surprises,
    ) -> None:
        """Columns that need skrub; of files of older versions all that are no numbers."""
        for group, vectorizer in zip(self.groups_, self.vectorizers_, strict=True):
            said = vectorizer.cardinality_threshold > MOST_CATEGORIES
            levels |= {name: Levels.of(X[name] if said else as_text(X[name])) for name in group}
            short = {name: LevelSummary.of(levels[name], "text") for name in group}
            answer = _quietly(vectorizer.transform, _level_frame(short))
            for name, kind in vectorizer.column_to_kind_.items():
                tables[name] = _table(answer, self.input_to_outputs_[name], levels[name])
                encoder, new = vectorizer.transformers_[name], None
                if isinstance(encoder, (OneHotEncoder, OrdinalEncoder)):
                    known = set(map(str, encoder.categories_[0]))
                    new = [str(value) not in known for value in levels[name].values]
                if new is not None or kind in ("datetime", "numeric"):
                    surprises.look(name, levels[name], tables[name], new)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """The names of the numbers; those that say where a column was missing come last."""
        check_is_fitted(self, "input_to_outputs_")
        return np.asarray(self.outputs(), dtype=object)


class TableForTrees(ReadForTrees, TableNumbers):
    """The same columns for trees: numbers and dates keep their gaps, categories stay categories.

    Trees find sets of categories themselves, so more texts are categories than for `TableNumbers`.
    """

    def _encoding(self) -> dict[str, Any]:
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan, "encoded_missing_value": np.nan}
        return {"low_cardinality": OrdinalEncoder(**unknown), "cardinality_threshold": TREE_CATEGORIES + 1}

    def _learn_number(self, name: str, column: NumberSummary) -> dict[str, list[str]]:
        learned = super()._learn_number(name, column)
        self.indicated_ = []  # trees see that a value is missing
        return learned

    def _learn_gaps(self, name: str, table: Floats, levels: LevelSummary) -> None:
        """Nothing stands for a missing value."""

    def words(self) -> dict[str, list[str]]:
        """Those of skrub's encoders, too."""
        encoders = {n: e for vectorizer in self.vectorizers_ for n, e in vectorizer.transformers_.items()}
        ordinal = {name: encoder for name, encoder in encoders.items() if isinstance(encoder, OrdinalEncoder)}
        return super().words() | {
            name: [str(word) for word in encoder.categories_[0] if isinstance(word, str)]  # no gap
            for name, encoder in ordinal.items()
        }


def _with_skrub() -> Any:
    """What needs skrub, which takes a second and a half to load: a table of numbers alone does without it."""
    from irmtv.data.tables import level_encoder

    return level_encoder


def __getattr__(name: str) -> Any:
    if name != "LevelEncoder":  # by which model files know it
        raise AttributeError(f"module 'irmtv.data.tables.steps' has no attribute {name!r}")
    return _with_skrub().LevelEncoder


def _check_categories(counts: dict[str, int]) -> None:
    for name, n in counts.items():
        if n > MOST_CATEGORIES:
            raise TableError(
                f"categorical: {name!r} has {n:,} different values; at most {MOST_CATEGORIES:,} can be categories. "
                "Join some of them, leave it out of categorical, or drop the column."
            )


def _own_units(column: NumberSummary) -> tuple[float, float] | None:
    """Middle and spread of numbers that float32 cannot hold well, None of others."""
    middle, half = middle_and_half(column.low, column.high)
    if half <= 0 or not np.isfinite(half):
        return None
    spread = column.distance
    well = abs(middle) <= FAR * spread and SMALLEST <= spread <= 1 / SMALLEST
    return None if well else (middle, spread)


class _Moments(NamedTuple):
    """Of a number over all rows."""

    mean: float
    deviation: float
    low: float
    high: float


def _of_number(column: NumberSummary, units: Sequence[float] | None, fill: float) -> _Moments:
    """A column of numbers, in units of its own where it has some, with gaps filled."""
    middle, spread = units or (0.0, 1.0)
    mean, low, high = ((value - middle) / spread for value in (column.mean, column.low, column.high))
    share = column.missing / (column.n + column.missing)
    filled = (1 - share) * mean + share * fill
    deviation = np.hypot(
        np.sqrt(1 - share) * np.hypot(column.deviation / spread, mean - filled), np.sqrt(share) * (fill - filled)
    )
    ends = np.array([low, high] + [fill] * (column.missing > 0), dtype=np.float32)
    return _Moments(filled, float(deviation), float(ends.min()), float(ends.max()))


def _of_levels(table: Floats, rows: npt.NDArray[np.float64]) -> list[_Moments]:
    """What different values become, (L + 1, outputs), by the rows (L + 1,) that have them."""
    table, rows = table[rows > 0].astype(np.float64), rows[rows > 0] / rows.sum()
    mean = rows @ table
    deviation = np.sqrt(rows @ np.square(table - mean))
    return [_Moments(*each) for each in zip(mean, deviation, table.min(0), table.max(0), strict=True)]


def _level_frame(levels: Mapping[str, LevelSummary]) -> pd.DataFrame:
    """The different values of several columns side by side; one more row for what is missing."""
    length = max(len(own.values) for own in levels.values()) + 1
    return pd.DataFrame({name: own.column(length) for name, own in levels.items()})


def _table(answer: pd.DataFrame, outputs: Sequence[str], levels: Levels | LevelSummary) -> Floats:
    """(L + 1, outputs): what every level becomes, and a missing value last."""
    return answer[list(outputs)].iloc[: len(levels.values) + 1].to_numpy(dtype=np.float32)


def _quietly(call: Any, frame: pd.DataFrame) -> pd.DataFrame:
    """skrub warns of categories that training did not have; that they are none of the known ones is documented."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result: pd.DataFrame = call(frame)
    return result
