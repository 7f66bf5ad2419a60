"""What a search found, part by part, as the summary holds it: the path, the curves, the features, the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from irmtv.app.fit.contenders import Contender, Floats, Path, weight_of
from irmtv.app.fit.held_out import as_outputs, in_units_of_training
from irmtv.app.fit.summary import Curves, Feature, Inferred, LossCurve, PathPoint
from irmtv.app.fit.together import owner
from irmtv.data.training import TrainingData
from irmtv.models.search import Searched
from irmtv.selection import p_values
from irmtv.selection.invariant import DEFAULTS

POINTS = 1000  # rows whose inferred environments are shown


@dataclass(frozen=True)
class Found:
    """A fitted model, and what it was found among."""

    contenders: Sequence[Contender[Any]]
    paths: Sequence[Path]  # of each
    path: Path  # all of them together
    feature_names: Sequence[str]
    random_state: int

    @property
    def search(self) -> Searched:
        """All candidates, and the choice."""
        return self.path.searched

    @cached_property
    def chosen(self) -> tuple[Contender[Any], Searched]:
        """The kind of model that was chosen, and its own candidates with the choice among them."""
        which, place = owner(self.paths, self.search.choice.index)
        return self.contenders[which], replace(
            self.paths[which].searched, choice=replace(self.search.choice, index=place)
        )

    @property
    def estimator(self) -> Any:
        """An Invariant*CV."""
        return self.chosen[0].estimator

    @property
    def prepared(self) -> TrainingData[Any]:
        """The rows of the search."""
        rows: TrainingData[Any] = self.chosen[0].rows
        return rows

    def model_of(self, index: int) -> str:
        """What a candidate is: "linear", "trees (12 leaves)"."""
        which, place = owner(self.paths, index)
        return self.contenders[which].name_of(self.paths[which].searched, place)

    @property
    def aux(self) -> Floats | None:
        """(N, A)."""
        aux = self.prepared.task.train.aux
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
        rows = self.prepared.task.train
        if rows.environment is not None and len(rows.names) > 1:
            return np.asarray(rows.environment.numpy(), dtype=np.int64)
        if self.membership is not None:
            return np.asarray(self.membership.argmax(1), dtype=np.int64)
        return np.zeros(len(rows), dtype=np.int64)

    @cached_property
    def names(self) -> list[str]:
        rows = self.prepared.task.train
        if rows.environment is not None and len(rows.names) > 1:
            return [str(name) for name in rows.names]
        if self.membership is not None:
            return [f"inferred {e + 1}" for e in range(self.membership.shape[1])]
        return ["all"]


def path_points(found: Found) -> list[PathPoint]:
    """Every penalty weight at one step: the chosen one; else, of its steps that pass, that of the lowest risk."""
    searched = found.search
    pooled = searched.records.pooled()
    several = searched.records.risk.shape[-1] > 1
    options = {**DEFAULTS, **(found.estimator.rule_options or {})}
    test = searched.choice.figures.get("test", options["test"])  # slopes alone, where nothing has equal risks
    p = p_values(pooled, test) if several else torch.full_like(pooled.overall, torch.nan)
    slope = pooled.slope if pooled.slope.ndim == 2 else torch.linalg.vector_norm(pooled.slope, dim=-1)
    mass = torch.where(slope.isfinite(), pooled.rows, 0)
    variation = torch.where(mass > 0, mass * slope.abs(), 0).sum(-1) / mass.sum(-1)
    worst = pooled.risk.nan_to_num(-torch.inf).amax(-1)
    sizes = [len(path.searched.candidates) for path in found.paths]
    plain = {sum(sizes[:i]) + path.searched.plain for i, path in enumerate(found.paths)}
    points: list[PathPoint] = []
    groups: dict[tuple[int, int], list[int]] = {}
    for i, candidate in enumerate(searched.candidates):
        groups.setdefault((candidate.family, candidate.combination), []).append(i)
    for members in groups.values():
        weight = weight_of(searched, members[0])
        if not isinstance(weight, (int, float)):
            continue
        good = [i for i in members if bool(p[i] >= options["level"])] if several else []
        among = torch.tensor(good or members)
        best = int(among[int(pooled.overall[among].nan_to_num(torch.inf).argmin())])
        chosen = searched.choice.index in members
        if chosen or plain & set(members):  # plain risk minimisation is where it predicts best, as the rule has it
            best = searched.choice.index if chosen else (plain & set(members)).pop()
        kind = found.contenders[owner(found.paths, best)[0]].kind
        known = _number(p[best])
        points.append(
            {
                "penalty_weight": float(weight),
                "label": f"{float(weight):g}" if len(found.paths) == 1 else f"{kind}: {float(weight):g}",
                "step": searched.candidates[best].step,
                "risk": _number(pooled.overall[best]),
                "worst": _number(worst[best]),
                "variation": _number(variation[best]),
                "p": known,
                "passes": None if known is None else known >= options["level"],
                "chosen": chosen,
                "model": found.model_of(best),
            }
        )
    kinds = [contender.kind for contender in found.contenders]
    return sorted(points, key=lambda point: (kinds.index(point["model"].split()[0]), point["penalty_weight"]))


def curves(found: Found) -> Curves | None:
    """The risk of every environment while the final model was trained."""
    history = found.estimator.history_
    if history.empty:
        return None
    by = history.pivot_table(index="environment", columns="step", values="risk", sort=False)
    risk = [[_number(v) for v in row] for row in by.to_numpy()]
    return {"steps": [int(s) for s in by.columns], "environments": [str(e) for e in by.index], "risk": risk}


def inferred(found: Found, aux: Sequence[str], is_date: Sequence[bool]) -> Inferred | None:
    """Which environments a network found in aux, at some of the rows."""
    q = found.membership
    if q is None or found.aux is None:
        return None
    rng = np.random.default_rng(found.random_state)
    rows = np.sort(rng.choice(len(q), min(POINTS, len(q)), replace=False))
    return {
        "aux": list(aux),
        "is_date": [bool(d) for d in is_date],
        "points": found.aux[rows].tolist(),
        "membership": q[rows].tolist(),
        "names": [f"inferred {e + 1}" for e in range(q.shape[1])],
    }


def feature_weights(found: Found) -> list[Feature]:
    """What each feature weighs under plain risk minimisation, of the same kind of model, and in the chosen model."""
    contender, searched = found.chosen
    return [
        {"name": str(name), "erm": float(a), "chosen": float(b), "invariant": None}
        for name, a, b in zip(found.feature_names, *contender.feature_weights(searched), strict=True)
    ]


def losses(found: Found) -> list[LossCurve]:
    """Held-out risk by environment: plain, and the two total variations at the same penalty weight."""
    searched = found.search
    index = _penalised(searched)
    made = [_loss_curve(found, found.path, searched.plain, "ERM")]
    if index is None:
        return made
    name = found.prepared.objective.name
    label = {"l1": "TV-l1", "l2": "TV-l2"}.get(name[-2:], name)
    made.append(_loss_curve(found, found.path, index, label))
    other = {"irm-tv-l1": "irm-tv-l2", "minimax-tv-l1": "minimax-tv-l2"}.get(name)
    if other is not None:
        which, place = owner(found.paths, index)
        twin = found.contenders[which].with_objective(other, found.paths[which].searched, place)
        made.append(_loss_curve(found, *twin, "TV-l2"))
    return made


def _penalised(searched: Searched) -> int | None:
    """The choice; where that is plain risk minimisation, the candidate that comes nearest to invariance."""
    if not bool(searched.records.reference[searched.choice.index]):
        return searched.choice.index
    pooled = searched.records.pooled()
    if searched.records.risk.shape[-1] < 2:
        return None
    # a model that predicts nothing is invariant, and no example
    example = ~searched.records.reference & (pooled.overall < searched.records.constant)
    p = p_values(pooled, searched.choice.figures.get("test", "both")).masked_fill(~example, torch.nan)
    return int(p.nan_to_num(-1).argmax()) if bool(p.isfinite().any()) else None


def _loss_curve(found: Found, path: Path, index: int, label: str) -> LossCurve:
    task = found.prepared.task
    f = torch.as_tensor(in_units_of_training(path.outputs(index), found.prepared.y))
    loss = task.loss.value(f, as_outputs(task.train.y, f)).double().numpy()
    n = len(found.names)
    rows = np.bincount(found.codes, minlength=n)
    total = np.bincount(found.codes, weights=loss, minlength=n)
    weight = weight_of(path.searched, index)
    return {
        "model": label,
        "penalty_weight": float(weight) if isinstance(weight, (int, float)) else None,
        "risk": [float(t / r) if r else None for t, r in zip(total, rows, strict=True)],
    }


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
