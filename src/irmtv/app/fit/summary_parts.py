"""Parts of the summary of `fit`: the path, the curves, the features, the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from irmtv.app.fit.comparison import Floats, in_units_of_y
from irmtv.app.fit.families import Family
from irmtv.app.fit.summary import Curves, Feature, Inferred, LossCurve, PathPoint
from irmtv.core.plain_json import finite
from irmtv.data.training import TrainingData
from irmtv.models.search import Search
from irmtv.objectives import OBJECTIVES
from irmtv.selection import p_values
from irmtv.selection.invariant import DEFAULTS

POINTS = 1000  # rows whose inferred environments are shown


@dataclass(frozen=True)
class Searches:
    """The searches of all model families, and the choice among all of their candidates."""

    families: Sequence[Family]
    each: Sequence[Search]  # by family
    joined: Search  # all of them together
    feature_names: Sequence[str]
    random_state: int

    def owner(self, index: int) -> tuple[Family, Search, int]:
        """Of a candidate of all searches: its family, the search it is from, and its place there."""
        for family, search in zip(self.families, self.each, strict=True):
            if index < len(search.candidates):
                return family, search, index
            index -= len(search.candidates)
        raise IndexError("there are fewer candidates")

    @cached_property
    def winner(self) -> tuple[Family, Search]:
        """The family that was chosen, and its own search with the choice among its candidates."""
        family, search, place = self.owner(self.joined.choice.index)
        return family, replace(search, choice=replace(self.joined.choice, index=place))

    @property
    def estimator(self) -> Any:
        """An Invariant*CV."""
        return self.winner[0].estimator

    @property
    def data(self) -> TrainingData[Any]:
        """The rows of the search."""
        return self.winner[0].rows

    def outputs(self, index: int) -> Floats:
        """Of a candidate on held-out rows: (N,) or (N, C), in the units of y."""
        return in_units_of_y(self.joined.held_out_outputs(index).numpy(), self.data.y)

    def model_of(self, index: int) -> str:
        """What a candidate is: "linear", "trees (12 leaves)"."""
        return self.owner(index)[0].describe(self.joined.path_of(index))

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


def path_points(searches: Searches) -> list[PathPoint]:
    """Every penalty weight as one candidate: the chosen one; else, of those that pass, that of the lowest risk.

    A weight's candidates are its steps; of Newton's method, its classifiers and starts.
    """
    joined = searches.joined
    pooled = joined.records.pooled()
    several = joined.records.risk.shape[-1] > 1
    options = {**DEFAULTS, **(searches.estimator.rule_options or {})}
    test = joined.choice.figures.get("test", options["test"])  # slopes alone, where nothing has equal risks
    p = p_values(pooled, test) if several else torch.full_like(pooled.overall, torch.nan)
    slope = pooled.slope if pooled.slope.ndim == 2 else torch.linalg.vector_norm(pooled.slope, dim=-1)
    mass = torch.where(slope.isfinite(), pooled.rows, 0)
    variation = torch.where(mass > 0, mass * slope.abs(), 0).sum(-1) / mass.sum(-1)
    worst = pooled.risk.nan_to_num(-torch.inf).amax(-1)
    points: list[PathPoint] = []
    for members in _by_weight(searches):
        weight = joined.path_of(members[0]).penalty_weight
        if not isinstance(weight, (int, float)):
            continue
        passing = [i for i in members if bool(p[i] >= options["level"])] if several else []
        best = _shown(searches, members, passing, pooled.overall)
        known = finite(p[best])
        family, path = searches.owner(best)[0], joined.path_of(best)
        beside = path.objective.name if path.objective.name not in (searches.data.objective.name, "erm") else None
        prefix = [beside] if beside else [family.name] if len(searches.each) > 1 else []
        tried = {name: path.combination[name] for name in ("classifier", "start") if name in path.combination}
        more = ({} if beside is None else {"objective": beside}) | (tried if weight else {})
        points.append(
            {
                "penalty_weight": float(weight),
                "label": ": ".join([*prefix, f"{float(weight):g}"]),
                "step": joined.candidates[best].step,
                "risk": finite(pooled.overall[best]),
                "worst": finite(worst[best]),
                "variation": finite(variation[best]),
                "p": known,
                "passes": None if known is None else known >= options["level"],
                "chosen": joined.choice.index in members,
                "model": searches.model_of(best),
                "solver": family.solver(path),
                **more,  # type: ignore[typeddict-item]  # by variable
            }
        )
    names = [family.name for family in searches.families]

    def place(point: PathPoint) -> tuple[int, str, float]:
        return names.index(point["model"].split()[0]), point.get("objective", ""), point["penalty_weight"]

    return sorted(points, key=place)


def _by_weight(searches: Searches) -> list[list[int]]:
    """The candidates of every penalty weight of every family."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i in range(len(searches.joined.candidates)):
        path = searches.joined.path_of(i)
        key = searches.owner(i)[0].name, path.objective.name, str(path.penalty_weight)
        groups.setdefault(key, []).append(i)
    return list(groups.values())


def _shown(searches: Searches, members: Sequence[int], passing: Sequence[int], risk: torch.Tensor) -> int:
    """Of a weight's candidates: the chosen one, ERM where it predicts best, else the lowest risk that passes."""
    if searches.joined.choice.index in members:
        return searches.joined.choice.index
    begin = 0
    for search in searches.each:
        if begin + search.erm in members:  # as the rule has it
            return begin + search.erm
        begin += len(search.candidates)
    among = torch.tensor(passing or members)
    return int(among[int(risk[among].nan_to_num(torch.inf).argmin())])


def curves(searches: Searches) -> Curves | None:
    """The risk of every environment while the final model was trained; Newton's method has ERM and the solution."""
    family, search = searches.winner
    history, solver = searches.estimator.history_, family.solver(search.path)
    if history.empty or (solver == "newton" and search.path.is_erm):
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
    family, search = searches.winner
    return [
        {"name": str(name), "erm": float(a), "chosen": float(b), "invariant": None}
        for name, a, b in zip(searches.feature_names, *family.feature_weights(search), strict=True)
    ]


def loss_curves(searches: Searches) -> list[LossCurve]:
    """Held-out risk by environment: ERM, and the two total variations at the same weight, of which one is trained.

    A choice of another objective, beside the path, comes before them.
    """
    joined = searches.joined
    made = [_loss_curve(searches, joined, joined.erm, "ERM")]
    index = _penalised(joined)
    if index is None:
        return made
    name = searches.data.objective.name
    chosen = joined.path_of(index).objective.name
    if chosen not in (name, "erm"):
        made.append(_loss_curve(searches, joined, index, chosen))
        index = _penalised(joined, name)
        if index is None:
            return made
    made.append(_loss_curve(searches, joined, index, {"l1": "TV-l1", "l2": "TV-l2"}.get(name[-2:], name)))
    other = {"irm-tv-l1": "irm-tv-l2", "minimax-tv-l1": "minimax-tv-l2"}.get(name)
    if other is not None:
        path, step = joined.path_of(index), joined.candidates[index].step
        twin = searches.owner(index)[0].search_objective(OBJECTIVES[other], path, step)
        made.append(_loss_curve(searches, *twin, "TV-l2"))
    return made


def _penalised(search: Search, objective: str | None = None) -> int | None:
    """The choice; where that is ERM, or one of this objective is wanted, the candidate nearest to invariance."""
    records = search.records
    if objective is None and not bool(records.reference[search.choice.index]):
        return search.choice.index
    if records.risk.shape[-1] < 2:
        return None
    pooled = records.pooled()
    # a model that predicts nothing is invariant, and no example
    example = ~records.reference & (pooled.overall < records.constant)
    if objective is not None:
        mine = [search.path_of(i).objective.name == objective for i in range(len(search.candidates))]
        example &= torch.tensor(mine)
    p = p_values(pooled, search.choice.figures.get("test", "both")).masked_fill(~example, torch.nan)
    return int(p.nan_to_num(-1).argmax()) if bool(p.isfinite().any()) else None


def _loss_curve(searches: Searches, search: Search, index: int, label: str) -> LossCurve:
    task = searches.data.task
    f, y = search.held_out_outputs(index).double(), task.train.y
    loss = task.loss.value(f, y.to(f.dtype) if y.is_floating_point() else y).double().numpy()
    n = len(searches.names)
    rows = np.bincount(searches.codes, minlength=n)
    total = np.bincount(searches.codes, weights=loss, minlength=n)
    weight = search.path_of(index).penalty_weight
    return {
        "model": label,
        "penalty_weight": float(weight) if isinstance(weight, (int, float)) else None,
        "risk": [float(t / r) if r else None for t, r in zip(total, rows, strict=True)],
    }
