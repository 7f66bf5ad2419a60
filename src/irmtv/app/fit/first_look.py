"""What `fit` says of how the environments differ, with the tests of `irmtv diagnose` that take seconds.

Whether the features tell the environments apart, which columns give one away by themselves, whether the loss of the
plain model differs between them, and which environment has the fewest rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

from irmtv.app.diagnose.losses import p_of_equal_losses
from irmtv.app.diagnose.rows import DiagnosisRows
from irmtv.app.diagnose.two_sample import two_sample_test
from irmtv.app.fit.summary import FirstLook, TellingColumn
from irmtv.core.plain_json import finite

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_ROWS = 5_000  # that are looked at
PERMUTATIONS = 39  # the smallest p-value is 1 / 40
FEWEST_ROWS = 10  # of an environment that a column may tell
BINS, MOST_VALUES = 50, 2_000  # of a column of numbers; of texts
TELLS = 0.95  # share of rows told right from which on a column gives an environment away
DATES = 0.9  # share of texts that must be dates for a column to be read as such


def first_look(
    x: npt.NDArray[Any],
    columns: pd.DataFrame,
    labels: pd.Series,
    loss: Floats,
    codes: Ints,
    names: Sequence[str],
    called: Callable[[str], str],
    seed: int,
) -> FirstLook | None:
    """The environments by features and loss; None where there are fewer than two.

    Parameters
    ----------
    x : (N, D) features as numbers, in any precision.
    columns, labels : the raw columns and the environment of every row of the table.
    loss : (N,) held-out loss of the plain model.
    codes, names : (N,) the environment of every row of `x` and `loss`, and what each is called.
    called : what a label is called.
    seed : of the sample, the halves and the permutations.
    """
    sizes = np.bincount(codes, minlength=len(names))
    if (sizes > 0).sum() < 2:
        return None
    rng = np.random.default_rng(seed)
    some = np.sort(rng.choice(len(x), min(MOST_ROWS, len(x)), replace=False))
    differ = two_sample_test(_rows(x[some].astype(np.float64), codes[some], names), seed, PERMUTATIONS)
    smallest = int(np.argmin(sizes))
    return {
        "overlap": differ.sentence,
        "auc": finite(differ.auc["value"]),
        "p": differ.p,
        "loss_p": finite(p_of_equal_losses(loss, codes, len(names))) if sizes.min() > 0 else None,
        "telling": [
            {**column, "environment": called(column["environment"])} for column in telling_columns(columns, labels, rng)
        ],
        "smallest": str(names[smallest]),
        "smallest_rows": int(sizes[smallest]),
    }


def _rows(x: Floats, codes: Ints, names: Sequence[str]) -> DiagnosisRows:
    """Standardised; a gap is a mean, and a column without a second value is left out. The target is not looked at."""
    mean = np.nanmean(np.where(np.isfinite(x), x, np.nan), axis=0, keepdims=True)
    filled = np.where(np.isfinite(x), x, np.nan_to_num(mean))
    spread = filled.std(0)
    varies = spread > 1e-12 * np.maximum(1.0, np.abs(filled).max(0, initial=0.0))
    standard = (filled[:, varies] - filled[:, varies].mean(0)) / spread[varies]
    there, short = np.unique(codes, return_inverse=True)
    y = np.zeros(len(x))
    return DiagnosisRows(
        standard, y, "regression", (), environment=short.astype(np.int64), names=tuple(str(names[e]) for e in there)
    )


def telling_columns(columns: pd.DataFrame, labels: pd.Series, rng: np.random.Generator) -> list[TellingColumn]:
    """Columns whose value alone tells some environment from the others, the clearest first.

    Values (of numbers: quantiles) that are more frequent in an environment than elsewhere are learned on one half of
    the rows, and counted on the other. A gap is a value like others: an environment may be told by what is missing.
    """
    some = np.sort(rng.choice(len(columns), min(MOST_ROWS, len(columns)), replace=False))
    codes, names = pd.factorize(labels.iloc[some], sort=True)
    kept = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(names)) >= FEWEST_ROWS)
    half = rng.random(len(some)) < 0.5
    found: list[TellingColumn] = []
    for name in columns.columns:
        told = _told(_values(columns[name].iloc[some]), codes, len(names), half)[kept]
        if len(told) and np.nanmax(told) >= TELLS:
            best = int(np.nanargmax(told))
            found.append({"name": str(name), "environment": str(names[kept[best]]), "share": float(told[best])})
    return sorted(found, key=lambda column: -column["share"])


def _values(column: pd.Series) -> Ints:
    """(N,) a small number for every value, or for every quantile of many numbers; gaps have one of their own."""
    if not is_numeric_dtype(column.dtype) and not is_datetime64_any_dtype(column.dtype):
        dates = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
        if dates.notna().sum() < DATES * max(1, column.notna().sum()):
            codes, _ = pd.factorize(column.astype(object))
            return np.minimum(codes + 1, MOST_VALUES)
        column = dates
    values = _numbers(column)
    there = np.isfinite(values)
    edges = np.unique(values[there])
    if len(edges) > BINS:
        edges = np.unique(np.quantile(values[there], np.linspace(0, 1, BINS + 1)[:-1]))
    return np.where(there, np.searchsorted(edges, np.where(there, values, 0.0), side="right"), 0).astype(np.int64) + 1


def _numbers(column: pd.Series) -> Floats:
    if is_datetime64_any_dtype(column.dtype):
        return np.where(column.isna(), np.nan, column.astype("int64").to_numpy(dtype=np.float64))
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _told(values: Ints, codes: Ints, n_environments: int, half: Any) -> Floats:
    """(E,) the share of rows told right, by environment: the mean of its own rows' share and of the others'."""

    def shares(rows: Any) -> tuple[Floats, Floats]:
        """Of every value: how many of an environment's rows have it, and how many of the others'."""
        count = np.zeros((n_environments, int(values.max()) + 1))
        np.add.at(count, (codes[rows], values[rows]), 1.0)
        rest = count.sum(0) - count
        with np.errstate(invalid="ignore", divide="ignore"):
            return count / count.sum(1, keepdims=True), rest / rest.sum(1, keepdims=True)

    known = codes >= 0
    inside, outside = shares(half & known)
    own, other = shares(~half & known)
    said = inside > outside
    return np.asarray(((own * said).sum(1) + (other * ~said).sum(1)) / 2)
