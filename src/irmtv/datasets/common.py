"""What generators and loaders share: checks of parameters, random streams, divisions of rows, raw tables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from irmtv.core.losses import Multiclass
from irmtv.core.messages import did_you_mean, shown
from irmtv.core.types import Rows, Task
from irmtv.datasets.fetch import BROKEN, open_unpacked

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = np.ndarray[Any, Any]
Home = str | os.PathLike[str] | None  # folder of the files
Seed = int | np.random.Generator | None  # of a draw or a split
T = TypeVar("T")


def count(name: str, value: Any, least: int = 1, reason: str = "") -> int:
    """The value as int, or an error that names it."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= least:
        return int(value)
    why = f" ({reason})" if reason else ""
    raise ValueError(
        f"{name} must be an integer of at least {least}{why}. Got {value!r}. "
        f"Give a whole number without a decimal point, {least} or more."
    )


def one_of(name: str, value: Any, known: tuple[T, ...], advice: str = "") -> T:
    """The value, or an error that names the known ones."""
    for one in known:
        if isinstance(value, str) and value == one:
            return one
    hint = did_you_mean(value, known) or f" {advice or f'Use {known[0]!r}.'}"
    raise ValueError(f"{name} must be one of {list(known)}. Got {value!r}.{hint}")


def as_number(value: Any) -> float:
    """The value as float; NaN where it is no number."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def float_array(name: str, value: Any) -> Floats:
    """A float64 array of an array, a nested sequence or a tensor on any device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", torch.float64).numpy()
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be numbers: an array, a tensor, or nested lists of equal length. "
            f"Got {type(value).__name__}: {value!r}. Convert it to an array of float first."
        ) from None


def check_intercept(intercept: Floats, coef: Floats) -> None:
    """Whether intercepts are one number, or one for every model of coef (..., D)."""
    if intercept.shape not in ((), coef.shape[:-1]):
        raise ValueError(
            f"intercept must be one number or have the shape of coef without its last axis, {coef.shape[:-1]}. "
            f"Got shape {intercept.shape}. Reshape it to one number per run."
        )


def probability(name: str, value: Any) -> float:
    """The value as float, or an error that names it."""
    number = as_number(value)
    if 0 <= number <= 1:
        return number
    raise ValueError(f"{name} must be a probability, a number from 0 to 1. Got {value!r}. Give a share: 0.9, not 90.")


def check_strength(name: str, value: Any) -> float:
    """How strongly something shows: a finite number of at least 0."""
    number = as_number(value)
    if math.isfinite(number) and number >= 0 and not isinstance(value, bool):
        return number
    raise ValueError(f"{name} must be a finite number of at least 0. Got {value!r}. Use 1.0, for example.")


def check_share(name: str, value: Any) -> float:
    """A share of the rows, above 0 and below 1."""
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and 0 < float(value) < 1:
        return float(value)
    raise ValueError(f"{name} must be a share of the rows, above 0 and below 1. Got {value!r}. Use 0.2 for a fifth.")


def streams(random_state: Any, n: int = 2) -> list[np.random.Generator]:
    """Independent streams, the first for the training rows, the second for the test rows; others do not change them."""
    if random_state is None or isinstance(random_state, np.random.Generator):
        rng = np.random.default_rng(random_state)
    elif isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool) and random_state >= 0:
        rng = np.random.default_rng(int(random_state))
    else:
        raise ValueError(
            "random_state must be None, an integer of at least 0, or a numpy.random.Generator. "
            f"Got {random_state!r}. Use an integer for data that can be drawn again."
        )
    # Seeds are drawn, not `rng.spawn`ed: spawning would ignore how far a given Generator has advanced.
    root = np.random.SeedSequence(rng.integers(2**32, size=4).tolist())
    return [np.random.default_rng(child) for child in root.spawn(n)]


def card_seed(random_state: Seed) -> int | None:
    """The seed as a card holds it; None where the draw cannot be repeated from a number."""
    return int(random_state) if isinstance(random_state, (int, np.integer)) else None


def segments(n: int, k: int) -> Integers:
    """Which of k equal segments of time each of n rows at t_i = (i + 0.5) / n lies in: (n,)."""
    row = np.arange(n, dtype=np.int64)
    return (2 * row + 1) * k // (2 * n)  # floor(t k), in integers: no rounding at the cuts


def segment_names(k: int) -> tuple[str, ...]:
    """Names of k equal segments of [0, 1): ("t<0.5", "t>=0.5") for two."""
    if k == 1:
        return ("0<=t<1",)
    cuts = [f"{s / k:g}" for s in range(1, k)]
    middle = [f"{low}<=t<{high}" for low, high in pairwise(cuts)]
    return (f"t<{cuts[0]}", *middle, f"t>={cuts[-1]}")


def held_out(rng: np.random.Generator, groups: Integers, share: float) -> NDArray[np.bool_]:
    """Which rows are held out, (N,): this share of every group, rounded, so that all splits have equal sizes."""
    out = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        out[rng.permutation(members)[: round(share * len(members))]] = True
    return out


def equal_sizes(n: int, k: int) -> list[int]:
    """n rows over k environments as equally as can be, the first ones having one more where they must."""
    return [n // k + (e < n % k) for e in range(k)]


def counts_by_name(names: tuple[str, ...], codes: Integers) -> dict[str, int]:
    """How many rows each environment has, by name."""
    return dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))


@dataclass(frozen=True)
class Part:
    """Training or test rows: their numbers, and the environment of each as a code into names."""

    rows: Integers  # (n,)
    codes: Integers | None  # (n,); None: environments are not known
    names: tuple[str, ...]

    @property
    def counts(self) -> int | dict[str, int]:
        """Rows by environment, for a card."""
        return len(self.rows) if self.codes is None else counts_by_name(self.names, self.codes)


def series_task(
    name: str, series: Floats, label: Integers, where: Floats, train: Part, test: Part, card: Mapping[str, Any]
) -> Task:
    """Series (N, bands, times) of labelled places (N, 2); every band is standardised over the training rows."""
    mean = series[train.rows].mean((0, 2), keepdims=True)  # (1, bands, 1)
    spread = series[train.rows].std((0, 2), keepdims=True)
    x = torch.from_numpy((series - mean) / np.where(spread > 0, spread, 1.0)).float()
    y, aux = torch.from_numpy(label), torch.from_numpy(where)

    def rows(part: Part) -> Rows:
        codes = None if part.codes is None else torch.from_numpy(part.codes)
        return Rows(x[part.rows], y[part.rows], codes, aux[part.rows], part.names)

    return Task(rows(train), Multiclass(), len(card["classes"]), test=rows(test), name=name, card=card)


@dataclass(frozen=True)
class FileLayout:
    """What a file of rows must be, for the errors about one that is something else."""

    must: str  # "FILE must be ..."
    advice: str
    row: str = "in row"  # how the first wrong row is introduced

    def error(self, problem: str) -> ValueError:
        """`problem` begins with what stands behind `must`: a full stop, a colon or a comma."""
        return ValueError(f"{self.must}{problem} {self.advice}")

    def read(self, path: str | os.PathLike[str], **options: Any) -> pd.DataFrame:
        """The file by pandas, unpacked where it is packed."""
        try:
            with open_unpacked(Path(path)) as file:
                table: pd.DataFrame = pd.read_csv(file, **options)
        except MemoryError as error:
            size = os.path.getsize(path)
            raise self.error(f". Got a file of {size:,} bytes, more than there is memory for.") from error
        except BROKEN as error:
            raise self.error(f". Got {type(error).__name__}: {error}.") from error
        return table

    def check(self, table: pd.DataFrame, column: str, good: pd.Series, expected: str) -> None:
        """Raise unless every value of a column is good."""
        if not good.all():
            values = table.loc[~good, column]
            got = f"Got {shown(values)}, first {self.row} {values.index[0] + 1}."
            raise self.error(f": {column!r} must be {expected}. {got}")

    def check_rows(self, table: pd.DataFrame, n_rows: int | None, what: str) -> None:
        """Raise unless the table has as many rows as it must."""
        if n_rows is not None and len(table) != n_rows:
            raise self.error(f", one line for each of {n_rows} {what}. Got {len(table)}.")


@dataclass(frozen=True, eq=False)
class Tables:
    """Raw rows, divided: what scikit-learn takes. The index is the row's number in the files, one after the other."""

    X_train: pd.DataFrame
    y_train: pd.Series
    environment_train: pd.Series
    X_test: pd.DataFrame
    y_test: pd.Series
    environment_test: pd.Series
    name: str = "data"
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, x: pd.DataFrame, y: pd.Series, environment: pd.Series, train: Any, test: Any, **more: Any) -> Tables:
        """The rows at the positions `train` and `test`, of all three; `more` are the name and the card."""
        parts = [frame.iloc[rows] for rows in (train, test) for frame in (x, y, environment)]
        return cls(*parts, **more)

    def __repr__(self) -> str:
        return (
            f"Tables({self.name!r}, {len(self.X_train)} training rows, {len(self.X_test)} test rows, "
            f"{self.X_train.shape[1]} columns)"
        )
