"""Raw tables as a fitted model reads them, by NumPy and pandas alone: the classes of `steps` without what learns.

`ReadColumns`, `ReadNumbers` and `ReadForTrees` have the attributes that `TableColumns`, `TableNumbers` and
`TableForTrees` learned and apply them; those are these and can be fitted. A prediction from a file needs no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pandas as pd

from irmtv.data.scaling import Scaler
from irmtv.data.tables.kinds import as_frame, as_kind, check_names
from irmtv.data.tables.recipes import Categories, Recipe, recipe_of

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 12  # rows that are filled at a time, so that they stay in the cache

Floats = npt.NDArray[np.float32]


class ReadColumns:
    """The columns of training, by name, with the types of training; see `steps.TableColumns` for the attributes."""

    feature_names_in_: npt.NDArray[Any]
    kinds_: dict[str, str]

    def align(self, X: Any) -> tuple[pd.DataFrame, dict[str, int]]:
        """These columns, and by column how many values are not what they were in training."""
        frame = as_frame(X)
        check_names(self.kinds_, list(frame.columns))
        made, unread = {}, {}
        for name, kind in self.kinds_.items():
            made[name], bad = as_kind(frame[name], kind)
            if bad:
                unread[name] = bad
        return pd.DataFrame(made, index=frame.index, copy=False), unread


@dataclass(frozen=True)
class Levels:
    """A column of N rows as its L different values."""

    values: Any  # (L,) different values, none missing
    codes: npt.NDArray[np.int64]  # (N,): position among the values, L where missing

    @classmethod
    def of(cls, column: pd.Series) -> Levels:
        codes, values = pd.factorize(column)
        codes = codes.astype(np.int64, copy=False)
        codes[codes < 0] = len(values)
        return cls(values, codes)


@dataclass(frozen=True)
class Surprises:
    """Values that training did not have the like of, by column."""

    unread: dict[str, int]  # dates in another format: how many; they count as missing
    new: dict[str, dict[str, int]]  # categories: which, and how many; they are none of the known ones

    def look(self, name: str, levels: Levels, table: Floats, new: Sequence[bool] | None) -> None:
        """Add what a column has: `new` says it of categories by value, None of dates and numbers."""
        rows = np.bincount(levels.codes, minlength=len(table))[:-1]
        if new is None:
            bad = int(rows[np.isnan(table[:-1, 0])].sum())
            self.unread.update({name: bad} if bad else {})
        elif any(new):
            counts = zip(levels.values, rows.tolist(), new, strict=True)
            self.new[name] = {str(value): n for value, n, is_new in counts if is_new and n}


class ReadNumbers:
    """Numbers of the columns, none missing; see `steps.TableNumbers` for the attributes."""

    feature_names_in_: npt.NDArray[Any]
    column_to_kind_: dict[str, str]
    input_to_outputs_: dict[str, list[str]]
    recipes_: dict[str, dict[str, Any]] = {}  # files of older versions have none  # noqa: RUF012
    units_: dict[str, list[float]] = {}  # noqa: RUF012
    fill_: dict[str, list[float]]
    indicated_: list[str]

    def read(self, X: pd.DataFrame) -> tuple[Any, Surprises]:
        """The numbers of these rows, and what training did not have the like of."""
        levels, tables, surprises = self._levels(X)
        return self.filled(X, levels, tables), surprises

    def scaled(self, X: Mapping[str, Any], n: int, scaler: Scaler, most: int) -> Iterator[Tensor]:
        """The numbers of n rows in standard units, at most `most` rows at a time; see `standard_units.standardised`.

        It is for rows in blocks, given as the columns that `ReadColumns.align` would make of them; numbers may be
        arrays, and columns with a recipe Levels.
        """
        from irmtv.data.tables.standard_units import Column, standardised  # needs torch

        levels, tables, _ = self._levels(X)
        columns, end = list[Column](), 0
        flags = {name: k - len(self.indicated_) + len(scaler.mean) for k, name in enumerate(self.indicated_)}
        for name, outputs in self.input_to_outputs_.items():
            values = levels[name].codes if name in tables else self._numbers(name, X[name])
            fill = np.asarray(self.fill_[name], np.float32)
            columns.append(Column(end, values, tables.get(name), fill, flags.get(name)))
            end += len(outputs)
        return standardised(columns, scaler, n, most)

    def _levels(self, X: Mapping[str, Any] | pd.DataFrame) -> tuple[dict[str, Levels], dict[str, Floats], Surprises]:
        """Columns that are no numbers as their different values, what these become, and what is new among them."""
        levels: dict[str, Levels] = {}
        tables: dict[str, Floats] = {}
        surprises = Surprises({}, {})
        for name, recipe in self.recipes.items():
            column: Any = X[name]
            levels[name] = column if isinstance(column, Levels) else Levels.of(column)
            tables[name] = recipe.table(levels[name].values)
            new = recipe.new(levels[name].values) if isinstance(recipe, Categories) else None
            surprises.look(name, levels[name], tables[name], new)
        self.read_others(X, levels, tables, surprises)
        return levels, tables, surprises

    @property
    def recipes(self) -> Mapping[str, Recipe]:
        """What values of categories, dates and text become, by column."""
        given, made = _BUILT.get(self, (None, {}))
        if given is not self.recipes_:
            made = {name: recipe_of(recipe) for name, recipe in self.recipes_.items()}
            _BUILT[self] = self.recipes_, made
        return made

    def read_others(
        self,
        X: Mapping[str, Any] | pd.DataFrame,
        levels: dict[str, Levels],
        tables: dict[str, Floats],
        surprises: Surprises,
    ) -> None:
        """Columns that are neither numbers nor have a recipe: there are none."""

    def outputs(self) -> list[str]:
        """The names of the numbers; those that say where a column was missing come last."""
        names = [output for outputs in self.input_to_outputs_.values() for output in outputs]
        return [*names, *(f"{name} missing" for name in self.indicated_)]

    def _numbers(self, name: str, column: Any) -> npt.NDArray[Any]:
        """A column of numbers; one that 32 bits cannot hold well in units of its own."""
        values = as_floats(column)
        units = self.units_.get(name)
        return values if units is None else (values.astype(np.float64) - units[0]) / units[1]

    def filled(self, X: pd.DataFrame, levels: dict[str, Levels], tables: dict[str, Floats]) -> Floats:
        """Spread over the rows, with gaps filled and indicated."""
        starts, end = {}, 0  # the place of a column's first number
        for name, outputs in self.input_to_outputs_.items():
            starts[name], end = end, end + len(outputs)
        flags = {name: end + k for k, name in enumerate(self.indicated_)}
        made = np.empty((len(X), end + len(flags)), dtype=np.float32)  # (N, D)
        numbers = {name: self._numbers(name, X[name]) for name in starts if name not in tables}
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


# by step: its recipes as data, and built of them; not in the step, whose attributes are what a file holds
_BUILT: WeakKeyDictionary[ReadNumbers, tuple[Mapping[str, Any], Mapping[str, Recipe]]] = WeakKeyDictionary()


class ReadForTrees(ReadNumbers):
    """A DataFrame of numbers with their gaps, and of categories; see `steps.TableForTrees`."""

    def words(self) -> dict[str, list[str]]:
        """The categories of every column that has some."""
        return {name: list(r.labels) for name, r in self.recipes.items() if isinstance(r, Categories)}

    def filled(self, X: pd.DataFrame, levels: dict[str, Levels], tables: dict[str, Floats]) -> Any:
        """Spread over the rows: a DataFrame (N, D) of floats and categories, with gaps."""
        words = self.words()
        made: dict[str, Any] = {}
        for name, outputs in self.input_to_outputs_.items():
            if name not in tables:
                made[name] = self._numbers(name, X[name])
                continue
            table, codes = tables[name], levels[name].codes
            if name in words:
                places = np.where(np.isnan(table[:, 0]), -1, table[:, 0]).astype(np.int64)
                made[name] = pd.Categorical.from_codes(places[codes], categories=pd.Index(words[name]))
                continue
            table = table.copy()
            table[-1] = np.nan  # letters of a text that is missing
            made |= {output: table[codes, j] for j, output in enumerate(outputs)}
        return pd.DataFrame(made, index=X.index, copy=False)


def as_floats(column: pd.Series | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers and truth values as floats, NaN where missing."""
    if isinstance(column, np.ndarray) or (column.dtype.kind in "fiub" and isinstance(column.dtype, np.dtype)):
        values = np.asarray(column)
        return values if values.dtype.kind == "f" else values.astype(np.float64)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)
