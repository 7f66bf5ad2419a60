"""The data that travels between the layers. Everything here is frozen; shapes stand in the comments.

Axes: R runs, N rows, E environments, C outputs of the network (one for binary and regression),
D features, A auxiliary columns, T data sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from irmtv.core.losses import Loss

Measure = Literal["empirical", "uniform", "learned"] | tuple[float, ...]
Reduction = Literal["expectation", "authors"]


@dataclass(frozen=True)
class Rows:
    """Samples and where they came from."""

    x: Tensor  # (N, D), or (N, channels, length) for series
    y: Tensor  # (N,) float for binary and regression, (N,) int64 classes, (N, C) for several targets
    environment: Tensor | None = None  # (N,) int64 codes into `names`
    aux: Tensor | None = None  # (N, A), float64: times need the digits
    names: tuple[Hashable, ...] = ()  # environment names, by code
    weight: Tensor | None = None  # (N,) float64, at least 0: what a row counts in every mean; None: all the same

    def __len__(self) -> int:
        return self.x.shape[0]

    def take(self, index: Tensor) -> Rows:
        """The rows at `index`, names kept."""
        taken: dict[str, Any] = {k: v[index] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **taken)


def drop_zero_weight(rows: Rows, every_environment: bool = False) -> Rows:
    """The rows of weight above 0; environments that have none are dropped too, unless `every_environment`."""
    if rows.weight is None or bool((rows.weight > 0).all()):
        return rows
    kept = rows.take((rows.weight > 0).nonzero().squeeze(1))
    if kept.environment is None or every_environment:
        return kept
    present = torch.bincount(kept.environment, minlength=len(rows.names)) > 0
    codes = (present.cumsum(0) - 1)[kept.environment]
    names = tuple(name for name, there in zip(rows.names, present.tolist(), strict=True) if there)
    return replace(kept, environment=codes, names=names)


def codes_of(rows: Sequence[Rows]) -> Tensor:
    """The environments of one data set's rows each: (T, N); all 0 where none are given."""
    return stacked([torch.zeros(len(r)).long() if r.environment is None else r.environment for r in rows])


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """As `torch.stack`, but one tensor is looked at, not copied: a large data set stands in memory once."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def weights_of(rows: Sequence[Rows], across_sets: bool = False) -> Tensor | None:
    """The weights of one data set's rows each: (T, N) float64; None where no data set has rows that count differently.

    Rows that all have one weight count as rows without weights do: no mean over them depends on that number. Where
    data sets are weighed against each other (folds, by what their rows weigh together) it does: with `across_sets`
    weights stay as they are, and None says that every row of every data set weighs 1.
    """
    if all(r.weight is None for r in rows):
        return None
    weights = [torch.ones(len(r)) if r.weight is None else r.weight for r in rows]
    if across_sets:
        nothing_to_say = all(bool((w == 1).all()) for w in weights)
    else:
        weights = [torch.ones(len(w)) if _all_equal(w) else w for w in weights]
        nothing_to_say = all(_all_equal(w) for w in weights)
    return None if nothing_to_say else torch.stack([w.double().cpu() for w in weights])


def _all_equal(weight: Tensor) -> bool:
    return bool((weight == weight[:1]).all())  # of no rows, too


@dataclass(frozen=True)
class Task:
    """One data set to train on: rows, a loss, and (where there are any) test rows that training never sees.

    Build it with :func:`irmtv.make_task`, which checks the input, or with a generator or loader of
    :mod:`irmtv.datasets`.
    """

    train: Rows
    loss: Loss
    n_outputs: int = 1  # C: one for binary and one-target regression, else classes or targets
    test: Rows | None = None
    held_out: Rows | None = None  # rows of the training environments, for selection only
    name: str = "data"
    card: Mapping[str, Any] = field(default_factory=dict)  # source, licence, what shifts, known limits

    def __repr__(self) -> str:
        parts = [f"{self.name!r}", f"{len(self.train)} rows", f"features {tuple(self.train.x.shape[1:])}"]
        parts.append(f"loss {self.loss.name}")
        if self.train.environment is not None:
            parts.append(f"{len(self.train.names)} environments")
        if self.train.aux is not None:
            parts.append(f"{self.train.aux.shape[1]} aux columns")
        if self.train.weight is not None:
            parts.append("weighted rows")
        if self.held_out is not None:
            parts.append(f"{len(self.held_out)} held-out rows")
        if self.test is not None:
            parts.append(f"{len(self.test)} test rows")
        return f"Task({', '.join(parts)})"


@dataclass(frozen=True, init=False)
class Runs:
    """The runs to train together: one seed each, and whatever differs between them.

    Every keyword is one value for all runs or a sequence with one value per run. ``data`` says which
    of several tasks a run trains on.

    >>> Runs(seed=range(3), penalty_weight=1e4)
    Runs(3: seed=[0, 1, 2], penalty_weight=10000.0)
    >>> len(Runs.grid(seed=range(3), penalty_weight=[0.0, 1e2, 1e4]))
    9
    """

    values: tuple[Mapping[str, Any], ...]  # R mappings: {"seed": ..., "data": ..., hyper-parameter: ...}

    def __init__(self, seed: int | Sequence[int] = 0, *, data: int | Sequence[int] = 0, **settings: Any):
        columns = {"seed": seed, "data": data, **settings}
        many = {k: list(v) for k, v in columns.items() if _is_many(v)}
        lengths = {k: len(v) for k, v in many.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                "Runs: every sequence must have one value per run, so all lengths must be equal. "
                f"Got lengths {lengths}. For all combinations use Runs.grid(...)."
            )
        count = next(iter(lengths.values()), 1)
        if count == 0:
            raise ValueError("Runs: expected at least one run. Got empty sequences.")
        rows = tuple({k: many[k][r] if k in many else v for k, v in columns.items()} for r in range(count))
        object.__setattr__(self, "values", rows)

    @classmethod
    def grid(cls, **columns: Any) -> Runs:
        """Every combination of the given values, the last keyword varying fastest."""
        axes = [list(v) if _is_many(v) else [v] for v in columns.values()]
        rows = list(itertools.product(*axes))
        return cls(**{k: [row[i] for row in rows] for i, k in enumerate(columns)})

    def take(self, index: Sequence[int]) -> Runs:
        """Some of the runs."""
        return Runs(**{name: [self.values[i][name] for i in index] for name in self.names})

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.values)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.values[index]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.values[0])

    def column(self, name: str, default: Any = None) -> list[Any]:
        """The value of one setting in every run."""
        return [row.get(name, default) for row in self.values]

    def __repr__(self) -> str:
        shown = []
        for name in self.names:
            column = self.column(name)
            if name == "data" and not any(column):
                continue
            same = all(v == column[0] for v in column) and len(column) > 1
            text = repr(column[0] if same or len(column) == 1 else column)
            shown.append(f"{name}={text if len(text) < 60 else text[:57] + '...'}")
        return f"Runs({len(self)}: {', '.join(shown)})"


def _is_many(value: Any) -> bool:
    """A list, range, array or tensor holds one value per run; a tuple or a string is one value."""
    if isinstance(value, (str, bytes, tuple, Mapping)):
        return False
    if getattr(value, "ndim", 1) == 0:  # a tensor or an array of one number
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


@dataclass(frozen=True)
class Statistics:
    """What an objective sees: a few numbers per environment, for every run. Linear in the measure."""

    mean_risk: Tensor  # (R,)   mean of the loss over all rows
    mass: Tensor  # (R, E) or (1, E)  share of the rows in each environment
    risk: Tensor | None = None  # (R, E)   R_e
    slope: Tensor | None = None  # (R, E) or (R, E, J)   S_e, J components for a vector classifier
    slope_halves: tuple[Tensor, Tensor] | None = None  # S_e of the even and the odd rows of a mini-batch
    learned: Tensor | None = None  # (R, E)   mu, where it is learned
    mixtures: Tensor | None = None  # (R, M, E)   affine mixtures of the environments, where penalties see those too

    @property
    def n_environments(self) -> int:
        return self.mass.shape[-1]

    def measure(self, kind: Measure) -> Tensor:
        """The probability measure mu on the environments: (R, E) or (1, E).

        Environments without mass (absent from a mini-batch) drop out and the rest is renormalised.
        """
        if kind == "empirical":
            return self.mass
        present = (self.mass > 0).to(self.mass.dtype)
        if kind == "uniform":
            given = present
        elif kind == "learned":
            assert self.learned is not None, "no component learns the measure"
            given = present * self.learned
        else:
            given = present * _as_tensor(kind, self.mass.dtype, self.mass.device)
        # a mini-batch may hold only environments of weight 0: the measure is then 0, not 0 / 0
        return given / given.sum(-1, keepdim=True).clamp_min(torch.finfo(given.dtype).tiny)

    def expected_risk(self, kind: Measure) -> Tensor:
        """sum_e mu_e R_e: (R,). With the empirical measure this is the mean loss, whatever the environments."""
        if kind == "empirical" or self.risk is None:
            return self.mean_risk
        return (self.measure(kind) * self.risk).sum(-1)


@cache
def _as_tensor(weights: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Made once: a step that is recorded on a GPU cannot fetch anything from the host."""
    return torch.tensor(weights, dtype=dtype, device=device)
