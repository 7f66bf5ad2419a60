"""The rows of a diagnosis: standardised features, the target as the losses read it, environments as codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from irmtv.core.losses import Loss, as_loss
from irmtv.core.messages import shown
from irmtv.core.types import Rows, Task
from irmtv.data.environments import encode_labels
from irmtv.selection.folds import deal_folds

TaskName: TypeAlias = Literal["binary", "multiclass", "regression"]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

FOLDS = 5
FEWEST = 30  # rows of an environment: below, a mean over them is noise
MOST_ENVIRONMENTS = 30


@dataclass(frozen=True)
class DiagnosisRows:
    """N rows, D features, E environments, A auxiliary columns."""

    x: Floats  # (N, D), standardised; no column is constant
    y: Floats | Ints  # (N,): 0 and 1, classes 0 to C - 1, or standardised numbers
    task: TaskName
    features: tuple[str, ...]  # D names
    classes: tuple[str, ...] = ()  # empty for regression
    y_mean: float = 0.0  # of a regression, to go back to its units
    y_scale: float = 1.0
    environment: Ints | None = None  # (N,) codes
    names: tuple[str, ...] = ()  # E
    aux: Floats | None = None  # (N, A), as given
    aux_names: tuple[str, ...] = ()
    aux_is_date: tuple[bool, ...] = ()
    given: bool = True  # whether the environments are given, or inferred from aux
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    @property
    def loss(self) -> Loss:
        """Of every row; that of a regression in units of the variance of y."""
        return as_loss("squared" if self.task == "regression" else self.task)

    @property
    def n_outputs(self) -> int:
        return len(self.classes) if self.task == "multiclass" else 1

    @property
    def codes(self) -> Ints:
        """(N,) the environment of every row, where there are environments."""
        assert self.environment is not None
        return self.environment

    @property
    def sizes(self) -> Ints:
        """(E,) rows of every environment."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    def with_environments(self, codes: Ints, names: Sequence[str]) -> DiagnosisRows:
        """The same rows with inferred environments."""
        return replace(self, environment=codes, names=tuple(names), given=False)

    def take(self, index: Any) -> DiagnosisRows:
        """Some of the rows; names stay."""
        return replace(
            self,
            x=self.x[index],
            y=self.y[index],
            environment=None if self.environment is None else self.environment[index],
            aux=None if self.aux is None else self.aux[index],
        )

    def folds(self, seed: int) -> Ints:
        """(N,) a fold for every row, alike in their environments and classes."""
        return np.asarray(deal_folds(self.as_task(), FOLDS, seed, by_class=True).numpy(), dtype=np.int64)

    def as_task(self) -> Task:
        """The rows as models read them."""
        rows = Rows(
            torch.as_tensor(self.x),
            torch.as_tensor(self.y),
            environment=None if self.environment is None else torch.as_tensor(self.environment),
            aux=None if self.aux is None else torch.as_tensor(self.aux),
            names=self.names,
        )
        return Task(rows, self.loss, self.n_outputs)


def read_rows(
    x: Any,
    y: Any,
    task: TaskName,
    *,
    features: Sequence[str],
    environment: Any = None,
    aux: Any = None,
    aux_names: Sequence[str] = (),
    aux_is_date: Sequence[bool] = (),
    notes: Sequence[str] = (),
) -> DiagnosisRows:
    """Standardise, encode, and leave out what is constant; what was done stands in `notes`."""
    all_notes = list(notes)
    if environment is not None:
        codes, names, in_one, more = _read_environment(environment, len(x))
        all_notes += more
        x, y, codes = np.asarray(x)[in_one], np.asarray(y)[in_one], codes[in_one]
        aux = None if aux is None else np.asarray(aux)[in_one]
    columns = np.asarray(x, dtype=np.float64)
    spread = columns.std(0)
    varies = spread > 1e-12 * np.maximum(1.0, np.abs(columns).max(0, initial=0.0))
    if not varies.any():
        raise ValueError("features must vary: every feature is constant over the rows. Give at least one that is not.")
    if not varies.all():
        all_notes.append(f"{_count(int((~varies).sum()), 'constant feature')} left out.")
    columns = (columns[:, varies] - columns[:, varies].mean(0)) / spread[varies]
    kept = tuple(str(name) for name, there in zip(features, varies, strict=True) if there)
    target, classes, mean, scale = _read_target(y, task)
    rows = DiagnosisRows(columns, target, task, kept, classes, mean, scale)
    if environment is not None:
        rows = replace(rows, environment=codes, names=names)
    if aux is not None:
        values = np.array(aux, dtype=np.float64).reshape(len(columns), -1)  # a copy: a frame's may be read-only
        rows = replace(
            rows,
            aux=values,
            aux_names=tuple(aux_names) or tuple(f"aux {j + 1}" for j in range(values.shape[1])),
            aux_is_date=tuple(aux_is_date) or (False,) * values.shape[1],
        )
        if not (values.max(0) > values.min(0)).any():
            raise ValueError(f"aux must vary: {', '.join(rows.aux_names)} has one value in all rows. Name another.")
    return replace(rows, notes=tuple(all_notes))


def _read_target(y: Any, task: TaskName) -> tuple[Floats | Ints, tuple[str, ...], float, float]:
    if task == "regression":
        values = np.asarray(y, dtype=np.float64).reshape(-1)
        if not values.std() > 0:
            raise ValueError("the target must vary: it has one value in all rows. Choose another target.")
        return (values - values.mean()) / values.std(), (), float(values.mean()), float(values.std())
    codes, labels = encode_labels(y, "target")
    if len(labels) < 2:
        raise ValueError(f"the target must have two classes or more. Got only {labels[0]!r}. Choose another target.")
    if task == "binary" and len(labels) > 2:
        raise ValueError(f"task 'binary' is for two classes. The target has {len(labels)}; use task 'multiclass'.")
    classes = tuple(str(label) for label in labels)
    counts = np.bincount(codes)
    if counts.min() < FOLDS:
        rare = classes[int(counts.argmin())]
        raise ValueError(
            f"every class of the target needs at least {FOLDS} rows, one for each fold. {rare!r} has {counts.min()}; "
            "leave its rows out, join it with another class, or use task 'regression' where the target is a number."
        )
    return codes.astype(np.float64) if task == "binary" else codes, classes, 0.0, 1.0


def _read_environment(values: Any, n_rows: int) -> tuple[Ints, tuple[str, ...], NDArray[np.bool_], list[str]]:
    """(N,) codes, their names, (N,) which rows stay, and notes.

    Small environments are one, last; where even together they are too few for a mean, their rows are left out.
    """
    codes, labels = encode_labels(values, "environment", n_rows)
    counts = np.bincount(codes)
    sizes = np.sort(counts)[::-1]
    if len(labels) < 2:
        raise ValueError(
            f"environment must tell at least two environments apart. All rows are in {labels[0]!r}. Name another "
            "column, or give aux columns (a time, a place) in which environments are looked for."
        )
    if (sizes >= FEWEST).sum() < 2 or (sizes < FEWEST).sum() > len(codes) / 2:
        raise ValueError(
            f"environment must have at least two environments with {FEWEST} rows or more. Got {len(labels)} distinct "
            f"values in {n_rows} rows, the largest with {sizes[0]}. Where it is a quantity (a time, a place) give it "
            "as aux; else join values to fewer environments."
        )
    small = counts < FEWEST
    if len(labels) > MOST_ENVIRONMENTS:
        small[np.argsort(-counts, kind="stable")[MOST_ENVIRONMENTS - 1 :]] = True
    stays: NDArray[np.bool_] = np.ones(len(codes), dtype=bool)
    names = tuple(str(label) for label, pooled in zip(labels, small, strict=True) if not pooled)
    lookup = np.where(small, len(names), np.cumsum(~small) - 1)
    pooled = lookup[codes].astype(np.int64)
    if not small.any():
        return pooled, names, stays, []
    few = shown([f"{labels[i]!r}: {counts[i]}" for i in small.nonzero()[0]], form=str)
    n_small = int(small.sum())
    if counts[small].sum() < FEWEST:
        stays = ~small[codes]
        whose = "their environment has" if n_small == 1 else "their environments have, even together,"
        n = _count(int((~stays).sum()), "row")
        return pooled, names, stays, [f"{n} left out, since {whose} fewer than {FEWEST} rows ({few})."]
    others = "others"
    while others in names:
        others += " (small)"
    which = f"{n_small} environments with fewer than {FEWEST} rows each"
    if counts[small].max() >= FEWEST:
        which = f"the {n_small} smallest of {len(labels)} environments"
    return pooled, (*names, others), stays, [f"{which} count as one, {others!r} ({few})."]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'} {'was' if n == 1 else 'were'}"
