"""Records: what was measured of every candidate on held-out rows, which is all that a rule sees.

A candidate is a combination of hyper-parameters at one of its steps. `build_records` makes the records of all
candidates, whoever measured them: networks and trees while they are searched, experiments from their store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.selection.directions import Directions

STATISTICS = ("rows", "effective", "risk", "risk_cov", "slope", "slope_cov")
COLUMNWISE = ("column_slope", "column_slope_cov")  # of linear models
COUNTS = ("rows", "effective")  # 0, not NaN, where nothing was measured


@dataclass(frozen=True)
class Pooled:
    """Statistics of C candidates on held-out rows, each row held out once."""

    rows: Tensor  # (C, E)
    risk: Tensor  # (C, E)
    risk_cov: Tensor  # (C, E) squared standard errors, or (C, E, E) covariances where environments share rows
    slope: Tensor  # (C, E) or (C, E, J)
    slope_cov: Tensor  # like risk_cov; a last axis J where slope has one
    overall: Tensor  # (C,) mean risk over all rows
    effective: Tensor | None = None  # (C, E) how many rows of equal weight are as sure, where rows have weights
    column_slope: Tensor | None = None  # (C, E, J) of linear models: the slope in every column
    column_slope_cov: Tensor | None = None  # (C, E, J, J)

    @property
    def worth(self) -> Tensor:
        """How many rows a test may count on: (C, E)."""
        return self.rows if self.effective is None else self.effective


@dataclass(frozen=True)
class Records:
    """C candidates (a run's settings at one of its steps) measured on F folds that were held out.

    F = 1 is a plain hold-out. Environments e mean the same in every fold. A candidate that was not measured, or
    whose training diverged, has NaN and is never chosen.
    """

    rows: Tensor  # (F, C, E)
    risk: Tensor  # (F, C, E)
    risk_cov: Tensor  # (F, C, E) or (F, C, E, E)
    slope: Tensor  # (F, C, E) or (F, C, E, J)
    slope_cov: Tensor  # (F, C, E[, E][, J])
    constant: float  # mean risk of a constant prediction on the same rows, the best one on the training rows
    reference: Tensor  # (C,) bool: ERM
    stated: Tensor  # (C,) bool: the settings and the step that were stated beforehand
    own: Tensor | None = None  # (F, E, 3): rows, mean and variance of what a model of e alone gains over ERM rescaled
    directions: Directions | None = None  # of linear models, in place of `own`
    left_out: Tensor | None = None  # (C, E) risk in an environment of the model that was trained without it
    test: Tensor | None = None  # (C,) score on test rows, higher is better: for `oracle` alone
    effective: Tensor | None = None  # (F, C, E) rows of equal weight that are as sure; None: `rows`, without weights
    inferred: bool = False  # whether the candidates' training inferred the environments itself
    toward: Directions | None = None  # in the direction of the candidate that the rule would take
    column_slope: Tensor | None = None  # (F, C, E, J) of linear models: the slope in every column
    column_slope_cov: Tensor | None = None  # (F, C, E, J, J)

    def __len__(self) -> int:
        return self.risk.shape[1]

    @property
    def n_folds(self) -> int:
        return self.risk.shape[0]

    @property
    def plain(self) -> int:
        """The candidate of ERM with the lowest held-out risk: what others are compared with."""
        if not bool(self.reference.any()):
            raise ValueError("there is no candidate of ERM among these.")
        risk = self.pooled().overall.nan_to_num(torch.inf)
        return int(risk.masked_fill(~self.reference, torch.inf).argmin())

    def pooled(self) -> Pooled:
        """Over the folds: means of the environments, and how sure they are.

        Every fold has a model of its own. So each environment's mean over the folds gives a fold the same weight as
        every other environment's does (its share of all rows): a fold whose model is worse then raises all of them
        alike, also where inferred environments are of other sizes in it. The covariance is that of the rows given
        the models.
        """
        there = self.rows > 0  # (F, C, E)
        of_fold = self.rows.sum(-1, keepdim=True)  # (F, C, 1)
        weight = torch.where(there, of_fold, 0.0)
        share = weight / weight.sum(0).clamp_min(torch.finfo(weight.dtype).tiny)  # (F, C, E), sums to 1 over F
        total = self.rows.sum(0)

        def mean(v: Tensor) -> Tensor:
            w = share if v.ndim == share.ndim else share.unsqueeze(-1)
            return _known(torch.where(w > 0, w * v, 0).sum(0), total)

        is_vector = self.slope.ndim == 4
        everywhere = (of_fold.squeeze(-1) > 0).all(0)  # (C,) judged on the same rows as the others
        return Pooled(
            rows=total,
            risk=mean(self.risk).masked_fill(~everywhere.unsqueeze(-1), torch.nan),
            risk_cov=self._covariance(self.risk_cov, share, False),
            slope=mean(self.slope),
            slope_cov=self._covariance(self.slope_cov, share, is_vector),
            overall=torch.where(
                everywhere, torch.where(there, self.rows * self.risk, 0).sum((0, 2)) / total.sum(-1), torch.nan
            ),
            effective=self._effective(total),
            **self._columns(share),
        )

    def _columns(self, share: Tensor) -> dict[str, Tensor]:
        """Slopes in every column over the folds, and their covariances."""
        if self.column_slope is None or self.column_slope_cov is None:
            return {}
        slope, cov = self.column_slope.nan_to_num(), self.column_slope_cov.nan_to_num()
        there = share * self.column_slope.isfinite().all(-1)  # an environment may have one row in a fold
        share = (there / there.sum(0).clamp_min(1e-300)).unsqueeze(-1)  # (F, C, E, 1)
        return {
            "column_slope": (share * slope).sum(0).masked_fill((there.sum(0) == 0).unsqueeze(-1), torch.nan),
            "column_slope_cov": (share.square().unsqueeze(-1) * cov).sum(0),
        }

    def _effective(self, total: Tensor) -> Tensor | None:
        """Of all folds together, (sum w)^2 / sum w^2, from each fold's: (C, E)."""
        if self.effective is None:
            return None
        squares = torch.where(self.rows > 0, self.rows.square() / self.effective, 0).sum(0)
        return torch.where(total > 0, total.square() / squares, 0)

    def _covariance(self, cov: Tensor, share: Tensor, is_vector: bool) -> Tensor:
        """Of the pooled means: (C, E[, J]) or (C, E, E[, J])."""
        worth = self.rows if self.effective is None else self.effective
        rows = worth.unsqueeze(-1) if is_vector else worth
        weight = share.unsqueeze(-1) if is_vector else share
        if cov.ndim - is_vector == share.ndim + 1:  # shared rows: fold by fold
            both = share.unsqueeze(-1) * share.unsqueeze(-2)
            both = both.unsqueeze(-1) if is_vector else both
            return torch.where(both > 0, both * cov, 0).sum(0)
        # one variance of single rows for all folds: a fold with one row of an environment does not know any
        freedom = (rows - 1).clamp_min(0)
        single = torch.where(freedom > 0, freedom * rows * cov, 0).sum(0) / freedom.sum(0)  # NaN where none knows
        return single * torch.where(rows > 0, weight.square() / rows, 0).sum(0)

    def folds(self, index: list[int]) -> Records:
        """The same candidates, measured on some of the folds only."""
        per_fold = (*STATISTICS, *COLUMNWISE, "own")
        some = {
            f.name: v[index] for f in fields(self) if f.name in per_fold and (v := getattr(self, f.name)) is not None
        }
        return replace(self, **some)


def _known(values: Tensor, total: Tensor) -> Tensor:
    """NaN where no fold has rows."""
    missing = total <= 0
    return values.masked_fill(missing if values.ndim == missing.ndim else missing.unsqueeze(-1), torch.nan)


@dataclass(frozen=True)
class Measurements:
    """One combination of hyper-parameters at its S candidate steps, measured on rows that its models have not seen."""

    steps: Sequence[int]  # (S,)
    folds: Sequence[
        Mapping[str, Tensor]
    ]  # by fold: the STATISTICS by name, (S, E, ...) each; "effective" may be absent, COLUMNWISE may be there
    erm_until: int  # up to this step it is ERM
    stated: bool = False  # whether its last step was stated beforehand
    diverged: bool = False  # then it cannot be chosen
    left_out: Tensor | None = None  # (S, E) risk in an environment of the model that was trained without it
    test: Tensor | None = None  # (S,) score on test rows, for `oracle` alone


def build_records(
    measured: Sequence[Measurements],
    constants: Sequence[tuple[float, float]],
    *,
    own: Tensor | None = None,
    inferred: bool = False,
) -> Records:
    """The records of all candidates, in the order of their combinations and steps.

    `constants` holds, by fold, the risk of the best constant and the number (or weight) of rows that it was measured
    on. `own` and `inferred` are as in `Records`.
    """
    held: dict[str, Any] = {}
    for name in (*STATISTICS, *COLUMNWISE):
        if all(name in fold for m in measured for fold in m.folds):
            each = [
                fold[name].double() for k in range(len(measured[0].folds)) for fold in (m.folds[k] for m in measured)
            ]
            filled = pad(each, leading=1, nothing=0.0 if name in COUNTS else torch.nan)
            n = len(measured)
            held[name] = torch.stack([torch.cat(filled[k : k + n]) for k in range(0, len(filled), n)])
    if "effective" in held and torch.equal(held["effective"], held["rows"]):  # no weights
        del held["effective"]
    diverged = torch.cat([torch.full((len(m.steps),), m.diverged) for m in measured])
    stated = [torch.tensor([m.stated and i == len(m.steps) - 1 for i in range(len(m.steps))]).bool() for m in measured]
    left_out, test = _joined([m.left_out for m in measured]), _joined([m.test for m in measured])
    for values in (held["risk"].transpose(0, 1), left_out, test):
        if values is not None:
            values[diverged] = torch.nan
    total = sum(rows for _, rows in constants)
    return Records(
        **held,
        left_out=left_out,
        test=test,
        constant=float(sum(risk * rows for risk, rows in constants) / total) if total else float("nan"),
        reference=torch.cat([torch.tensor([step <= m.erm_until for step in m.steps]).bool() for m in measured]),
        stated=torch.cat(stated),
        own=own,
        inferred=inferred,
    )


def pad(parts: Sequence[Tensor], leading: int, nothing: float = torch.nan) -> list[Tensor]:
    """Statistics (..., E) or (..., E, J), filled up to the largest E and J among them.

    The `leading` axes stay as they are. The one slope of a scalar classifier stands beside those of a vector as the
    first component.
    """
    n_axes = max(p.ndim for p in parts)
    parts = [p.unsqueeze(-1) if p.ndim < n_axes else p for p in parts]
    largest = tuple(max(sizes) for sizes in zip(*(p.shape[leading:] for p in parts), strict=True))

    def filled(part: Tensor) -> Tensor:
        if part.shape[leading:] == largest:  # nearly always
            return part
        whole = part.new_full((*part.shape[:leading], *largest), nothing)
        whole[tuple(slice(n) for n in part.shape)] = part
        return whole

    return [filled(part) for part in parts]


def in_order(statistics: Mapping[str, Tensor], order: Tensor | None) -> dict[str, Tensor]:
    """Statistics (S, E, ...) with their environments in another order; covariances of soft ones on both axes."""
    if order is None:
        return dict(statistics)
    ordered = {name: values[:, order] for name, values in statistics.items()}
    return {name: v[:, :, order] if name.endswith("_cov") else v for name, v in ordered.items()}


def _joined(scores: Sequence[Tensor | None]) -> Tensor | None:
    known = [s.double() for s in scores if s is not None]
    return torch.cat(known) if len(known) == len(scores) else None


# ---- one number per candidate, lower is better: these prefer spurious features as long as they pay in training ----


class Record(Protocol):
    """The part of a snapshot, or of many candidates' records, that a score reads."""

    @property
    def rows(self) -> Tensor:  # (R, E)
        ...

    @property
    def risk(self) -> Tensor:  # (R, E)
        ...


Rule = Callable[[Record], Tensor]  # -> (R,), lower is better


def iid(record: Record) -> Tensor:
    """Risk over all rows: (R,)."""
    there = record.rows > 0
    return torch.where(there, record.rows * record.risk, 0).sum(-1) / record.rows.sum(-1)


def worst_environment(record: Record) -> Tensor:
    """Risk of the worst environment that has rows: (R,)."""
    return record.risk.masked_fill(record.rows <= 0, -torch.inf).amax(-1)


STREAMING: Mapping[str, Rule | None] = {"fixed": None, "iid": iid, "worst-env": worst_environment}
AFTERWARDS = ("invariance", "leave-one-env-out", "oracle")


def as_rule(select: str | Rule) -> Rule | None:
    """What `train(select=...)` keeps each run's best state by: a name, or a function of a snapshot.

    Only rules that score one snapshot of one run can work while training goes on; the others of
    :data:`irmtv.selection.RULES` compare all candidates and choose afterwards (:func:`irmtv.selection.choose`).
    """
    if callable(select):
        return select
    if isinstance(select, str) and select in AFTERWARDS:
        raise ValueError(
            f"select={select!r} compares all candidates, so it chooses after training: irmtv.selection.choose, or an "
            f"experiment with this rule (irmtv run). While training, select is one of {sorted(STREAMING)}."
        )
    if not isinstance(select, str) or select not in STREAMING:
        raise ValueError(
            f"select must be one of {sorted(STREAMING)} or a function of a snapshot. Got {select!r}."
            f"{did_you_mean(select, STREAMING)}"
        )
    return STREAMING[select]
