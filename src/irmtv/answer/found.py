"""What a search found, part by part, as the summary holds it: the path, the curves, the features, the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from irmtv.answer.held_out import held_out_outputs
from irmtv.answer.summary import Curves, Feature, Inferred, LossCurve, PathPoint
from irmtv.core.types import Runs
from irmtv.estimators.base import Prepared
from irmtv.estimators.parameters import as_seed
from irmtv.estimators.predictor import Predictor, keep
from irmtv.objectives import OBJECTIVES
from irmtv.search import Searched
from irmtv.selection import p_values
from irmtv.selection.invariant import DEFAULTS

Floats = npt.NDArray[np.float64]
POINTS = 1000  # rows whose inferred environments are shown
SHUFFLED_ROWS = 2000  # rows on which features of a network are shuffled


@dataclass(frozen=True)
class Found:
    """A fitted estimator, and what it was found among."""

    estimator: Any  # an Invariant*CV
    prepared: Prepared  # the rows of the search
    search: Searched
    feature_names: Sequence[str]
    random_state: int

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

    @cached_property
    def plain_model(self) -> Predictor:
        """Plain risk minimisation on all rows, stopped where it did best on held-out rows."""
        candidate = self.search.candidates[self.search.plain]
        if candidate == self.search.chosen:
            predictor: Predictor = self.estimator.predictor_
            return predictor
        family = self.search.families[candidate.family]
        erm = OBJECTIVES["erm"]
        settings = {**self.estimator._settings(erm), "l2": family.folds.settings[candidate.combination]["l2"]}
        settings["steps"] = max(1, candidate.step)
        runs = Runs(seed=as_seed(self.random_state))
        fitted = self.estimator._train(replace(self.prepared, objective=erm), runs, **settings)
        return keep(fitted, [0], self.prepared.x, self.prepared.y)


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
    plain = searched.plain
    points: list[PathPoint] = []
    groups: dict[tuple[int, int], list[int]] = {}
    for i, candidate in enumerate(searched.candidates):
        groups.setdefault((candidate.family, candidate.combination), []).append(i)
    for (f, c), members in groups.items():
        combination = searched.families[f].combinations[c]
        weight = combination.get("penalty_weight", 0.0)
        if not isinstance(weight, (int, float)):
            continue
        good = [i for i in members if bool(p[i] >= options["level"])] if several else []
        among = torch.tensor(good or members)
        best = int(among[int(pooled.overall[among].nan_to_num(torch.inf).argmin())])
        chosen = searched.choice.index in members
        if chosen or plain in members:  # plain risk minimisation is where it predicts best, as the rule has it
            best = searched.choice.index if chosen else plain
        known = _number(p[best])
        points.append(
            {
                "penalty_weight": float(weight),
                "label": f"{float(weight):g}",
                "step": searched.candidates[best].step,
                "risk": _number(pooled.overall[best]),
                "worst": _number(worst[best]),
                "variation": _number(variation[best]),
                "p": known,
                "passes": None if known is None else known >= options["level"],
                "chosen": chosen,
            }
        )
    return sorted(points, key=lambda point: point["penalty_weight"])


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
    """What each feature weighs under plain risk minimisation and in the chosen model, as shares of all weights."""
    erm, chosen = (_weights(found, model) for model in (found.plain_model, found.estimator.predictor_))
    return [
        {"name": str(name), "erm": float(a), "chosen": float(b), "invariant": None}
        for name, a, b in zip(found.feature_names, erm, chosen, strict=True)
    ]


def _weights(found: Found, model: Predictor) -> Floats:
    linear = model.linear()
    if linear is not None:
        scale = np.where(np.isfinite(model.x.scale), model.x.scale, 0.0)
        per_deviation = linear[0] * scale  # (1 or C, D)
        weights = per_deviation[0] if len(per_deviation) == 1 else np.linalg.norm(per_deviation, axis=0)
    else:
        weights = _by_shuffling(found, model)
    total = np.abs(weights).sum()
    return np.asarray(weights / total if total > 0 else weights)


def _by_shuffling(found: Found, model: Predictor) -> Floats:
    """How much the risk rises when a feature is shuffled: (D,), at least 0."""
    task = found.prepared.task
    rng = np.random.default_rng(found.random_state)
    n = len(task.train)
    rows = rng.choice(n, min(SHUFFLED_ROWS, n), replace=False)
    x = task.train.x[torch.as_tensor(rows)].double()
    y = task.train.y[torch.as_tensor(rows)]
    order = torch.as_tensor(rng.permutation(len(rows)))

    def risk(values: torch.Tensor) -> float:
        f = torch.stack([m.logits(values) for m in model.members]).mean(0)
        return float(task.loss.value(f, _as(y, f)).double().mean())

    before, found_weights = risk(x), np.zeros(x.shape[1])
    for j in range(x.shape[1]):
        shuffled = x.clone()
        shuffled[:, j] = x[order, j]
        found_weights[j] = max(0.0, risk(shuffled) - before)
    return found_weights


def losses(found: Found) -> list[LossCurve]:
    """Held-out risk by environment: plain, and the two total variations at the same penalty weight."""
    searched = found.search
    index = _penalised(searched)
    made = [_loss_curve(found, searched, searched.plain, "ERM")]
    if index is None:
        return made
    name = found.prepared.objective.name
    label = {"l1": "TV-l1", "l2": "TV-l2"}.get(name[-2:], name)
    made.append(_loss_curve(found, searched, index, label))
    other = {"irm-tv-l1": "irm-tv-l2", "minimax-tv-l1": "minimax-tv-l2"}.get(name)
    if other is not None:
        made.append(_other_variation(found, index, other))
    return made


def _other_variation(found: Found, index: int, name: str) -> LossCurve:
    """The same weight, step and folds, with the other norm."""
    candidate = found.search.candidates[index]
    family = found.search.families[candidate.family]
    twin = type(found.estimator)(**found.estimator.get_params())
    weight = family.combinations[candidate.combination]["penalty_weight"]
    twin.set_params(objective=name, penalty_weights=[weight], rule="iid", l2=family.settings.get("l2", 0.0))
    twin.set_params(objective_params=None, rule_options=None)
    prepared = replace(found.prepared, objective=OBJECTIVES[name])
    searched = twin._searched(prepared, as_seed(found.random_state), keep_states=True)
    same = [
        i
        for i, c in enumerate(searched.candidates)
        if searched.families[c.family].combinations[c.combination]["penalty_weight"] == weight
    ]
    nearest = min(same, key=lambda i: abs(searched.candidates[i].step - candidate.step))
    return _loss_curve(found, searched, nearest, "TV-l2")


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


def _loss_curve(found: Found, searched: Searched, index: int, label: str) -> LossCurve:
    task = found.prepared.task
    f = torch.as_tensor(_in_units_of_training(found, held_out_outputs(searched, index, found.prepared)))
    loss = task.loss.value(f, _as(task.train.y, f)).double().numpy()
    n = len(found.names)
    rows = np.bincount(found.codes, minlength=n)
    total = np.bincount(found.codes, weights=loss, minlength=n)
    candidate = searched.candidates[index]
    weight = searched.families[candidate.family].combinations[candidate.combination].get("penalty_weight", 0.0)
    return {
        "model": label,
        "penalty_weight": float(weight) if isinstance(weight, (int, float)) else None,
        "risk": [float(t / r) if r else None for t, r in zip(total, rows, strict=True)],
    }


def _in_units_of_training(found: Found, outputs: Floats) -> Floats:
    y = found.prepared.y
    return outputs if y is None else (outputs - y.mean[0]) / y.scale[0]


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _as(y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """Targets beside outputs: numbers in their precision, codes of classes as they are."""
    return y.to(f.dtype) if y.is_floating_point() else y
