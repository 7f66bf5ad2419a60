"""THE loop: trees that follow the gradient of an invariant objective.

Every round: the objective's gradient at the present scores (`gradients`), made safe (`trust_region`), one tree of
LightGBM fitted to it (one per class), its values shortened where the objective would rise. Scores are kept here, since
shortened trees are not what LightGBM adds to its own; the trees are shortened for good at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.boosting.gradients import Base, ScoreObjective
from irmtv.boosting.inferred import RhoOnRounds
from irmtv.boosting.library import lightgbm
from irmtv.boosting.trust_region import LineSearch, combined
from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Codes
from irmtv.core.types import Rows, Task
from irmtv.estimators.predictor import Rho
from irmtv.objectives.base import Objective

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trees:
    """How trees are grown."""

    n_estimators: int = 200
    learning_rate: float = 0.1
    num_leaves: int = 31
    min_child_samples: int = 20
    n_jobs: int = 1
    seed: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)  # of LightGBM

    def parameters(self, n_outputs: int) -> dict[str, Any]:
        """For LightGBM."""
        return {
            **self.more,
            "objective": "none",
            "metric": "none",
            "boosting": "gbdt",
            "num_class": n_outputs,
            "learning_rate": self.learning_rate,
            "num_leaves": self.num_leaves,
            "min_data_in_leaf": self.min_child_samples,
            "num_threads": self.n_jobs,
            "seed": self.seed % (2**31 - 1),
            "deterministic": True,
            "force_row_wise": True,  # which of the two is faster would else be tried at each start
            "feature_pre_filter": False,
            "verbosity": -1,
        }


class Binned:
    """A task's rows in LightGBM's bins, made once for all that is trained on them."""

    def __init__(self, task: Task, categorical: Sequence[int], trees: Trees) -> None:
        library = lightgbm()
        self.task = task
        how = {"params": trees.parameters(task.n_outputs), "free_raw_data": False}
        x = np.ascontiguousarray(task.train.x.numpy(), dtype=np.float64)
        self.train = library.Dataset(x, np.zeros(len(x)), categorical_feature=list(categorical), **how)
        self.held_out = None
        if task.held_out is not None:
            rows = np.ascontiguousarray(task.held_out.x.numpy(), dtype=np.float64)
            self.held_out = library.Dataset(rows, np.zeros(len(rows)), reference=self.train, **how)

    @property
    def watched(self) -> Rows:
        """The rows that are measured: held-out ones, where there are any."""
        return self.task.train if self.task.held_out is None else self.task.held_out


@dataclass(frozen=True)
class Watched:
    """Scores of the watched rows after some round, and their environments where these are inferred."""

    round: int
    trees: int  # iterations of the booster that stand for this round
    scores: Tensor  # (N,) or (N, C)
    membership: Base | None


@dataclass(frozen=True)
class Boosted:
    """A trained booster."""

    booster: Any
    base: Floats  # (C,) the constant that trees are added to
    watched: tuple[Watched, ...]
    rho: Rho | None
    lengths: tuple[float, ...]  # how much of each round's trees was taken

    def iterations(self, at: int | None = None) -> int:
        """Iterations of the booster at a round that was watched; None is the last."""
        found = {w.round: w.trees for w in self.watched}
        return found[max(found) if at is None else at]


def best_constant(loss: ClosedForm, y: Tensor, weight: Tensor | None, n_outputs: int) -> Tensor:
    """Where boosting begins: (C,). The log-odds, or the mean."""
    w = torch.ones(len(y), dtype=torch.float64) if weight is None else weight.double()
    if loss.name == "multiclass":
        share = torch.zeros(n_outputs, dtype=torch.float64).index_add(0, y, w) / w.sum()
        logs = share.clamp_min(1e-15).log()
        return logs - logs.mean()
    mean = (w * y.double()).sum() / w.sum()
    if loss.name == "binary":
        return torch.logit(mean.clamp(1e-15, 1 - 1e-15)).reshape(1)
    return mean.reshape(1)


def boost(
    binned: Binned,
    objective: Objective,
    settings: Mapping[str, Any],
    trees: Trees,
    *,
    weights: Sequence[float],
    warmup: int = 0,
    every: int = 10,
) -> Boosted:
    """Train one booster.

    Parameters
    ----------
    binned : rows, with environments or aux as the objective needs them.
    objective, settings : what is minimised; its hyper-parameters, all of them.
    trees : how many, and how they are grown.
    weights : one per penalty of the objective.
    warmup : rounds of plain boosting before the penalties act. Environments that are inferred are looked for in these,
        with schedule="alternating" in all.
    every : every how many rounds the watched rows' scores are kept.
    """
    task, rows = binned.task, binned.task.train
    loss = task.loss
    assert isinstance(loss, ClosedForm)
    rho = RhoOnRounds(rows, settings, trees.seed) if objective.infers == "aux" else None
    of = ScoreObjective(
        objective, settings, loss, _double(rows.y), _environments(rows, rho), rows.weight, _mixtures(rows, settings, trees)
    )
    climbs = objective.climbs(settings)
    base = best_constant(loss, rows.y, rows.weight, task.n_outputs)
    ensemble = _Ensemble(binned, trees, base)
    search = LineSearch()
    watched, silent = [], [0.0] * len(objective.penalties)
    for r in range(trees.n_estimators):
        acting = weights if r >= warmup else silent
        if rho is not None and (climbs == "always" or (climbs == "warm-up" and r < warmup)):
            rho.climb(of, ensemble.scores, weights)
            of.move_to(rho.membership())
        pull = of.pull(ensemble.scores, acting)
        direction = combined(pull)
        grew = ensemble.grow(direction.gradient, direction.curvature)
        if grew:
            length = 1.0
            if pull.penalty_gradient is not None:
                length = search.length(
                    (pull.risk, pull.penalty), direction.share, lambda a: of.values(ensemble.after(a), acting)
                )
            ensemble.take(length)
        if (r + 1) % every == 0 or r + 1 == trees.n_estimators:
            there = None if rho is None else rho.membership(binned.watched)
            watched.append(Watched(r + 1, ensemble.iterations, ensemble.watched.clone(), there))
    return Boosted(
        ensemble.finished(), base.numpy(), tuple(watched), None if rho is None else rho.fitted(), tuple(ensemble.lengths)
    )


def _double(y: Tensor) -> Tensor:
    return y.double() if y.is_floating_point() else y


def _environments(rows: Rows, rho: RhoOnRounds | None) -> Base:
    if rho is not None:
        return rho.membership()
    codes = torch.zeros(len(rows), dtype=torch.int64) if rows.environment is None else rows.environment
    return Codes(codes[None, None], max(1, len(rows.names)))


def _mixtures(rows: Rows, settings: Mapping[str, Any], trees: Trees) -> Tensor | None:
    if settings.get("expand") is None:
        return None
    n = int(settings.get("n_environments") or len(rows.names))
    found: Tensor = settings["expand"].draw(n, [torch.Generator().manual_seed(trees.seed)])
    return found


class _Ensemble:
    """The booster and the scores of its shortened trees."""

    def __init__(self, binned: Binned, trees: Trees, base: Tensor) -> None:
        self.booster = lightgbm().Booster(trees.parameters(len(base)), binned.train)
        self.has_others = binned.held_out is not None
        if self.has_others:
            self.booster.add_valid(binned.held_out, "held out")
        self.n_outputs = len(base)

        def begin(rows: Rows) -> Tensor:
            shape = (len(rows),) if len(base) == 1 else (len(rows), len(base))
            return base.expand(shape).clone()

        self.scores, self.others = begin(binned.task.train), begin(binned.watched) if self.has_others else None
        self.inner = [torch.zeros_like(self.scores), None if self.others is None else torch.zeros_like(self.others)]
        self.steps: list[Tensor] = []
        self.lengths: list[float] = []

    @property
    def watched(self) -> Tensor:
        return self.scores if self.others is None else self.others

    @property
    def iterations(self) -> int:
        return len(self.lengths)

    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        """One tree per output; False where no split is worth making."""
        pair = gradient.numpy(), curvature.numpy()
        if self.booster.update(fobj=lambda *_: pair):
            return False
        self.steps = []
        for i, look in enumerate((self.booster.eval_train, self.booster.eval_valid)[: 1 + self.has_others]):
            now = self._inner(look)
            before = self.inner[i]
            assert before is not None
            self.steps.append(now - before)
            self.inner[i] = now
        return True

    def _inner(self, look: Any) -> Tensor:
        """The scores that LightGBM has of its unshortened trees: a metric is where it tells them."""
        found: list[Floats] = []

        def metric(scores: Floats, _: Any) -> tuple[str, float, bool]:
            found.append(scores)
            return "", 0.0, False

        look(metric)
        return torch.from_numpy(np.array(found[0], dtype=np.float64, order="C"))

    def after(self, length: float) -> Tensor:
        return self.scores + length * self.steps[0]

    def take(self, length: float) -> None:
        self.scores = self.after(length)
        if self.others is not None:
            self.others = self.others + length * self.steps[1]
        self.lengths.append(length)

    def finished(self) -> Any:
        """The booster with every tree as long as it was taken; the rows it was trained on are let go."""
        text: str = self.booster.model_to_string()
        leaves = [int(n) for n in re.findall(r"^num_leaves=(\d+)$", text, re.MULTILINE)]
        for r, length in enumerate(self.lengths):
            for tree in range(r * self.n_outputs, (r + 1) * self.n_outputs) if length != 1 else ():
                for leaf in range(leaves[tree]):
                    value = self.booster.get_leaf_output(tree, leaf)
                    self.booster.set_leaf_output(tree, leaf, length * value)
        return lightgbm().Booster(model_str=self.booster.model_to_string())
