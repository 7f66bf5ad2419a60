"""Parts of the summary of `fit`: the path, the curves, the features, the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from irmtv.app.fit.comparison import Floats, in_units_of_y
from irmtv.app.fit.families import Family
from irmtv.app.fit.summary import Curves, Families, FamilyRow, Feature, Inferred, LossCurve, PathPoint
from irmtv.core.plain_json import finite
from irmtv.data.training import TrainingData
from irmtv.models.families import FamilyChoice
from irmtv.models.search import Search
from irmtv.selection import p_values
from irmtv.selection.options import DEFAULTS

POINTS = 1000  # rows whose inferred environments are shown


@dataclass(frozen=True)
class Searches:
    """The searches of all model families, and the family that was taken."""

    families: Sequence[Family]
    each: Sequence[Search]  # by family
    picked: FamilyChoice
    feature_names: Sequence[str]
    random_state: int

    @property
    def family(self) -> Family:
        """The one that was taken."""
        return self.families[self.picked.index]

    @property
    def search(self) -> Search:
        """That of the family."""
        return self.each[self.picked.index]

    @property
    def estimator(self) -> Any:
        """An Invariant*CV."""
        return self.family.estimator

    @property
    def data(self) -> TrainingData[Any]:
        """The rows of the search."""
        return self.family.rows

    def outputs(self, index: int) -> Floats:
        """Of a candidate on held-out rows: (N,) or (N, C), in the units of y."""
        return in_units_of_y(self.search.held_out_outputs(index).numpy(), self.data.y)

    def model_of(self, index: int) -> str:
        """What a candidate is: "linear", "trees (12 leaves)"."""
        return self.family.describe(self.search.path_of(index))

    @property
    def aux(self) -> Floats | None:
        """(N, A)."""
        aux = self.data.task.train.aux
        return None if aux is None else np.asarray(aux.numpy(), dtype=np.float64)

    @cached_property
    def membership(self) -> Floats | None:
        """Of the environments that the final model inferred from aux: (N, E)."""
        if self.estimator.predictor_.rho is None or self.aux is None:
            return None
        q: Floats = self.estimator.membership(aux=self.aux)
        return q

    @cached_property
    def codes(self) -> npt.NDArray[np.int64]:
        """The environment of every training row: given, else the likelier of the inferred ones, else one for all."""
        rows = self.data.task.train
        if rows.environment is not None and len(rows.names) > 1:
            return np.asarray(rows.environment.numpy(), dtype=np.int64)
        if self.membership is not None:
            return np.asarray(self.membership.argmax(1), dtype=np.int64)
        return np.zeros(len(rows), dtype=np.int64)

    @cached_property
    def names(self) -> list[str]:
        rows = self.data.task.train
        if rows.environment is not None and len(rows.names) > 1:
            return [str(name) for name in rows.names]
        if self.membership is not None:
            return [f"inferred {e + 1}" for e in range(self.membership.shape[1])]
        return ["all"]


def compared_families(searches: Searches) -> Families | None:
    """How the kinds of models were compared."""
    picked = searches.picked
    if len(searches.each) == 1:
        return None
    rows: list[FamilyRow] = [
        {
            "name": family.name,
            "model": family.describe(search.path_of(search.erm)),
            "risk": finite(risk),
            "behind": finite(behind),
            "error": finite(error),
            "taken": family is searches.family,
        }
        for family, search, risk, behind, error in zip(
            searches.families, searches.each, picked.risk, picked.behind, picked.error, strict=True
        )
    ]
    return {"by": picked.by, "compared": rows, "message": picked.message}


def path_points(searches: Searches) -> list[PathPoint]:
    """Every penalty weight of every family as one candidate: the chosen one; else, of those that pass, that of the
    lowest risk.

    A weight's candidates are its steps; of Newton's method, its classifiers and starts.
    """
    return [
        point
        for family, search in zip(searches.families, searches.each, strict=True)
        for point in _points_of(family, search, chosen=family is searches.family, several=len(searches.each) > 1)
    ]


def _points_of(family: Family, search: Search, *, chosen: bool, several: bool) -> list[PathPoint]:
    """Of one family; `several`: labels say which."""
    pooled = search.records.pooled()
    tested = search.records.risk.shape[-1] > 1
    options = {**DEFAULTS, **(family.estimator.rule_options or {})}
    p = p_values(pooled, _test(search, options["test"])) if tested else torch.full_like(pooled.overall, torch.nan)
    slope = pooled.slope if pooled.slope.ndim == 2 else torch.linalg.vector_norm(pooled.slope, dim=-1)
    mass = torch.where(slope.isfinite(), pooled.rows, 0)
    variation = torch.where(mass > 0, mass * slope.abs(), 0).sum(-1) / mass.sum(-1)
    worst = pooled.risk.nan_to_num(-torch.inf).amax(-1)
    points: list[PathPoint] = []
    for members in _by_weight(search):
        weight = search.path_of(members[0]).penalty_weight
        if not isinstance(weight, (int, float)):
            continue
        passing = [i for i in members if bool(p[i] >= options["level"])] if tested else []
        best = _shown(search, members, passing, pooled.overall, chosen)
        known, path = finite(p[best]), search.path_of(best)
        beside = path.objective.name if path.objective.name not in (family.rows.objective.name, "erm") else None
        prefix = [beside] if beside else [family.name] if several else []
        tried = {name: path.combination[name] for name in ("classifier", "start") if name in path.combination}
        more = ({} if beside is None else {"objective": beside}) | (tried if weight else {})
        points.append(
            {
                "penalty_weight": float(weight),
                "label": ": ".join([*prefix, f"{float(weight):g}"]),
                "step": search.candidates[best].step,
                "risk": finite(pooled.overall[best]),
                "worst": finite(worst[best]),
                "variation": finite(variation[best]),
                "p": known,
                "passes": None if known is None else known >= options["level"],
                "chosen": chosen and search.choice.index in members,
                "model": family.describe(path),
                "solver": family.solver(path),
                **more,  # type: ignore[typeddict-item]  # by variable
            }
        )
    return sorted(points, key=lambda point: (point.get("objective", ""), point["penalty_weight"]))


def _test(search: Search, given: str) -> str:
    """The test that the rule's message speaks of: slopes alone, where nothing has equal risks; where ERM of linear
    models is kept, that of all columns."""
    figures = search.choice.figures
    test: str = figures.get("test", given)
    by_column = test == "both" and figures.get("p_columns_erm") is not None
    return "columns" if by_column and search.choice.outcome in ("erm-invariant", "erm-kept") else test


def _by_weight(search: Search) -> list[list[int]]:
    """The candidates of every penalty weight of every objective."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i in range(len(search.candidates)):
        path = search.path_of(i)
        groups.setdefault((path.objective.name, str(path.penalty_weight)), []).append(i)
    return list(groups.values())


def _shown(search: Search, members: Sequence[int], passing: Sequence[int], risk: torch.Tensor, chosen: bool) -> int:
    """Of a weight's candidates: the chosen one, ERM where it predicts best, else the lowest risk that passes."""
    if chosen and search.choice.index in members:
        return search.choice.index
    if search.erm in members:  # as the rule has it
        return search.erm
    among = torch.tensor(passing or members)
    return int(among[int(risk[among].nan_to_num(torch.inf).argmin())])


def curves(searches: Searches) -> Curves | None:
    """The risk of every environment while the final model was trained; Newton's method has ERM and the solution."""
    path = searches.search.path
    history, solver = searches.estimator.history_, searches.family.solver(path)
    if history.empty or (solver == "newton" and path.is_erm):
        return None
    by = history.pivot_table(index="environment", columns="step", values="risk", sort=False)
    risk = [[finite(v) for v in row] for row in by.to_numpy()]
    return {
        "steps": [int(s) for s in by.columns],
        "environments": [str(e) for e in by.index],
        "risk": risk,
        "solver": solver,
    }


def inferred(searches: Searches, aux: Sequence[str], is_date: Sequence[bool]) -> Inferred | None:
    """Which environments a network inferred from aux, at some of the rows."""
    q = searches.membership
    if q is None or searches.aux is None:
        return None
    rng = np.random.default_rng(searches.random_state)
    rows = np.sort(rng.choice(len(q), min(POINTS, len(q)), replace=False))
    return {
        "aux": list(aux),
        "is_date": [bool(d) for d in is_date],
        "points": searches.aux[rows].tolist(),
        "membership": q[rows].tolist(),
        "names": [f"inferred {e + 1}" for e in range(q.shape[1])],
    }


def feature_weights(searches: Searches) -> list[Feature]:
    """What each feature weighs under ERM, of the same family, and in the chosen model. Trains ERM on all rows."""
    return [
        {"name": str(name), "erm": float(a), "chosen": float(b), "invariant": None}
        for name, a, b in zip(searches.feature_names, *searches.family.feature_weights(searches.search), strict=True)
    ]


def loss_curves(searches: Searches) -> list[LossCurve]:
    """Held-out risk by environment: of ERM and of the choice, where that is another."""
    search = searches.search
    made = [_loss_curve(searches, search.erm, "ERM")]
    if not bool(search.records.reference[search.choice.index]):
        name = search.path.objective.name
        made.append(_loss_curve(searches, search.choice.index, {"l1": "TV-l1", "l2": "TV-l2"}.get(name[-2:], name)))
    return made


def held_out_loss(searches: Searches, search: Search, index: int) -> Floats:
    """(N,) the loss of a candidate on every row, by the model that was trained without it."""
    task = searches.data.task
    f, y = search.held_out_outputs(index).double(), task.train.y
    loss = task.loss.value(f, y.to(f.dtype) if y.is_floating_point() else y)
    return np.asarray(loss.double().numpy(), dtype=np.float64)


def _loss_curve(searches: Searches, index: int, label: str) -> LossCurve:
    search, n = searches.search, len(searches.names)
    loss = held_out_loss(searches, search, index)
    rows = np.bincount(searches.codes, minlength=n)
    total = np.bincount(searches.codes, weights=loss, minlength=n)
    weight = search.path_of(index).penalty_weight
    return {
        "model": label,
        "penalty_weight": float(weight) if isinstance(weight, (int, float)) else None,
        "risk": [float(t / r) if r else None for t, r in zip(total, rows, strict=True)],
    }
