"""ERM, cross-fitted: for every row the outputs of a model that was not trained on it.

The model family is linear, a network, or boosted trees; "auto" takes the one with the lowest risk on the rows it was
not trained on, and a simpler one that comes within 1 % of it. That risk is over all rows: which environment a row is in
is not looked at, so tests that compare environments keep their level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Ints
from irmtv.core.messages import did_you_mean
from irmtv.models.erm import ALIKE, FAMILIES
from irmtv.models.trees.library import lightgbm

KINDS = {name: family.text for name, family in FAMILIES.items()}  # the simplest first
MODELS = ("auto", *KINDS)


@dataclass(frozen=True)
class ErmModel:
    """What ERM does on rows that it has not seen."""

    outputs: Floats  # (N,) logits or predictions; (N, C) logits of several classes
    loss: Floats  # (N,) log loss; squared error in units of the variance of y
    slope: Floats  # (N,) derivative of the loss as the outputs are multiplied by w, at w = 1
    fold: Ints  # (N,)
    kind: str = "linear"  # one of KINDS
    asked: str = "linear"  # one of MODELS
    risks: Mapping[str, float] = field(default_factory=dict)  # held-out risk of every kind that was looked at
    trees: tuple[int, int] = (0, 0)  # leaves and rounds, where it is trees
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """In a sentence."""
        return KINDS[self.kind]

    def summary(self) -> dict[str, Any]:
        """Beside the kind: what was asked for, and the held-out risk of every kind that was looked at."""
        size = {"leaves": self.trees[0], "rounds": self.trees[1]} if self.kind == "trees" else {}
        return {"name": self.name, "asked": self.asked, "risks": dict(self.risks), **size}


def check_model(model: str) -> None:
    """Raise unless it is a kind, and what it needs is installed."""
    if model not in MODELS:
        raise ValueError(f"model must be one of {list(MODELS)}. Got {model!r}.{did_you_mean(model, MODELS)}")
    if model == "trees":
        lightgbm()


def fit_erm(
    rows: DiagnosisRows, seed: int, model: str = "linear", tell: Callable[[float, str], None] | None = None
) -> ErmModel:
    """One kind, or the best, trained on four fifths of the rows at a time. `tell` hears the share and the kind."""
    check_model(model)
    kinds, notes = [kind for kind in KINDS if model in (kind, "auto")], []
    if model == "auto":
        try:
            lightgbm()
        except ImportError:
            kinds.remove("trees")
            notes.append("Trees were not looked at, since LightGBM is missing: pip install 'irmtv[boosting]' adds it.")
    fold = rows.folds(seed)
    made = {}
    for i, kind in enumerate(kinds):
        if tell is not None:
            tell(i / len(kinds), KINDS[kind])
        made[kind] = _cross_fitted(kind, rows, fold, seed)
    risks = {kind: float(found.loss.mean()) for kind, found in made.items()}
    return replace(made[simplest(risks)], asked=model, risks=risks, notes=tuple(notes))


def simplest(risks: Mapping[str, float]) -> str:
    """The first, in the order of KINDS, whose risk comes within 1 % of the lowest.

    >>> simplest({"linear": 1.0, "mlp": 0.995, "trees": 0.992}), simplest({"linear": 1.0, "mlp": 0.9, "trees": 0.895})
    ('linear', 'mlp')
    """
    known = {kind: risks[kind] for kind in KINDS if kind in risks and np.isfinite(risks[kind])}
    lowest = min(known.values())
    return next(kind for kind, risk in known.items() if lowest >= ALIKE * risk)


def _cross_fitted(kind: str, rows: DiagnosisRows, fold: Ints, seed: int) -> ErmModel:
    folds = range(int(fold.max()) + 1)
    fitted, size = FAMILIES[kind].outputs(rows.as_task(), [fold != k for k in folds], seed)
    outputs = np.empty((len(rows), rows.n_outputs))
    for k in folds:
        outputs[fold == k] = fitted[k][fold == k]
    f = outputs if rows.task == "multiclass" else outputs[:, 0]
    both = rows.loss.value_and_slope(torch.as_tensor(f)[None, None], torch.as_tensor(rows.y)[None, None])
    value, slope = (np.asarray(v[0, 0].numpy()) for v in both)
    return ErmModel(f, value, slope, fold, kind, kind, trees=size)
