"""THE loop: trees that follow the gradient of an invariant objective.

Every round: the objective's gradient at the present scores (`gradients`), made safe (`trust_region`), one tree of
LightGBM fitted to it (one per class), its values shortened where the objective would rise. Scores are kept here, since
shortened trees are not what LightGBM adds to its own; the trees are shortened for good at the end.

Trees soon know their rows: risks that are equal on the rows that trees were grown on are not equal on others. So a part
of the rows is set aside where a penalty acts. Trees are not grown on these; they say how far environments are apart,
which is what decides how a penalty pulls at each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from irmtv.core.losses import ClosedForm
from irmtv.core.membership import Codes
from irmtv.core.types import Rows, Task
from irmtv.data.blocks import BlockSource
from irmtv.models.networks.predictor import Rho
from irmtv.models.trees.blocks import sequences
from irmtv.models.trees.gradients import Base, ScoreObjective
from irmtv.models.trees.inferred import RhoOnRounds
from irmtv.models.trees.library import lightgbm
from irmtv.models.trees.trust_region import After, LineSearch, combined, radius_of
from irmtv.objectives.base import Objective
from irmtv.selection.folds import hold_out

Floats = npt.NDArray[np.float64]
AT_ONCE = 25_000  # scores that a line search looks at in one go: below, calls cost more than numbers


@contextmanager
def its_errors_explained() -> Iterator[None]:
    """LightGBM's own errors as a ValueError."""
    library = lightgbm()
    try:
        yield
    except library.basic.LightGBMError as error:
        said = str(error).partition(" at /")[0].strip()  # without the line of its source
        raise ValueError(
            f"LightGBM cannot grow trees on X ({said}). It takes numbers below 1e-35 for 0, so that columns of them "
            "are constant: multiply them by a power of ten."
        ) from error


@dataclass(frozen=True)
class Trees:
    """How trees are grown."""

    n_estimators: int = 100
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
    """A task's rows in LightGBM's bins, made once for all that is trained on them.

    `reserve` says how many of every so many rows of each environment are set aside for penalties. With `blocks` these
    have the features, and the task has rows by their numbers (`blocks.py`).
    """

    def __init__(
        self,
        task: Task,
        categorical: Sequence[int],
        trees: Trees,
        reserve: Fraction = Fraction(0),
        blocks: BlockSource | None = None,
    ) -> None:
        self.task = task
        self.grown_on, self.aside = task.train, None
        if reserve and len(task.train) >= 2 * reserve.denominator:
            parts = hold_out(task, reserve.numerator, reserve.denominator, trees.seed)
            self.grown_on, self.aside = parts.train, parts.held_out
        how = {"params": trees.parameters(task.n_outputs), "free_raw_data": blocks is not None}
        library = lightgbm()

        def bins(rows: Rows, **more: Any) -> Any:
            if blocks is None:
                x: Any = np.ascontiguousarray(rows.x.numpy(), dtype=np.float64)
            else:
                x = sequences(blocks, rows.x[:, 0])
            return library.Dataset(x, np.zeros(len(rows)), **more, **how)

        self.train = bins(self.grown_on, categorical_feature=list(categorical))
        others = [rows for rows in (self.aside, task.held_out) if rows is not None]
        self.others = [bins(rows, reference=self.train) for rows in others]

    @property
    def parts(self) -> list[Rows]:
        """Rows that trees are grown on, that are set aside, that are held out."""
        return [rows for rows in (self.grown_on, self.aside, self.task.held_out) if rows is not None]

    @property
    def watched(self) -> Rows:
        """The rows that are measured: held-out ones, where there are any."""
        return self.grown_on if self.task.held_out is None else self.task.held_out


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
    measure: Floats  # (E,) mu: what each environment counts

    def iterations(self, at: int | None = None) -> int:
        """Iterations of the booster at a round that was watched; None is the last."""
        by_round = {w.round: w.trees for w in self.watched}
        return by_round[max(by_round) if at is None else at]


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
    radius: float | None = None,
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
    radius : how many times as hard as the risk penalties may pull; None: by their weights.
    """
    task, loss = binned.task, binned.task.loss
    assert isinstance(loss, ClosedForm)
    rho = RhoOnRounds(task.train, settings, trees.seed) if objective.infers == "aux" else None
    mixtures = _mixtures(task.train, settings, trees)

    def on(rows: Rows) -> ScoreObjective:
        environments = _environments(rows, rho)
        return ScoreObjective(objective, settings, loss, _double(rows.y), environments, rows.weight, mixtures)

    of = on(binned.grown_on)
    there = of if binned.aside is None else on(binned.aside)  # where penalties look
    there.measure = of.measure
    looked_at = binned.parts[0 if binned.aside is None else 1]
    climbs = objective.climbs(settings)
    base = best_constant(loss, task.train.y, task.train.weight, task.n_outputs)
    ensemble = _Ensemble(binned, trees, base)
    radius = radius_of(weights) if radius is None else radius
    outlook = _Outlook(of, there, ensemble)
    search = LineSearch(outlook.risk_of_all())
    at_once = max(1, AT_ONCE // ensemble.scores[0].numel())
    watched = []
    silent = [float(objective.warmup_weight(torch.tensor(w, dtype=torch.float64))) for w in weights]
    penalised = any(weights) or of.measure is not None
    for r in range(trees.n_estimators):
        acting = weights if r >= warmup else silent
        climbing = rho is not None and (climbs == "always" or (climbs == "warm-up" and r < warmup))
        if climbing or any(acting):
            there.rescale(ensemble.seen(there is not of))
            of.scale = there.scale
        if climbing:
            assert rho is not None
            rho.climb(there, ensemble.seen(there is not of), looked_at, weights)
            of.move_to(rho.membership(binned.grown_on))
            there.move_to(of.base if there is of else rho.membership(looked_at))
        elsewhere = there.statistics(ensemble.seen(True)) if penalised and there is not of else None
        pull = of.pull(ensemble.scores[0], acting, elsewhere)
        direction = combined(pull, radius)
        if ensemble.grow(direction.gradient, direction.curvature):
            length = 1.0
            if pull.penalty_gradient is not None:
                now = After(pull.risk, pull.penalty, outlook.risk_of_all())
                length = search.length(now, direction.share, partial(outlook.after, acting), at_once)
            ensemble.take(length)
        if (r + 1) % every == 0 or r + 1 == trees.n_estimators:
            inferred = None if rho is None else rho.membership(binned.watched)
            watched.append(Watched(r + 1, ensemble.iterations, ensemble.watched.clone(), inferred))
    return Boosted(
        booster=ensemble.finished(),
        base=base.numpy(),
        watched=tuple(watched),
        rho=None if rho is None else rho.fitted(),
        lengths=tuple(ensemble.lengths),
        measure=of.statistics(ensemble.scores[0]).measure(objective.measure_of(settings))[0].numpy(),
    )


def _double(y: Tensor) -> Tensor:
    return y.double() if y.is_floating_point() else y


def _environments(rows: Rows, rho: RhoOnRounds | None) -> Base:
    if rho is not None:
        return rho.membership(rows)
    codes = torch.zeros(len(rows), dtype=torch.int64) if rows.environment is None else rows.environment
    return Codes(codes[None, None], max(1, len(rows.names)))


def _mixtures(rows: Rows, settings: Mapping[str, Any], trees: Trees) -> Tensor | None:
    if settings.get("expand") is None:
        return None
    n = int(settings.get("n_environments") or len(rows.names))
    mixtures: Tensor = settings["expand"].draw(n, [torch.Generator().manual_seed(trees.seed)])
    return mixtures


class _Outlook:
    """What some of a round's trees come to, on the rows that trees are grown on and on those set aside."""

    def __init__(self, of: ScoreObjective, there: ScoreObjective, ensemble: _Ensemble) -> None:
        self.of, self.there, self.ensemble = of, there, ensemble
        self.part = int(there is not of)  # that penalties look at
        self.share = there.total / (of.total + there.total) if self.part else 0.0  # of its rows among all

    def risk_of_all(self) -> float:
        """As it is now."""
        here, aside = self.ensemble.seen(False), self.ensemble.seen(bool(self.part))
        return self._of_all(self.of.risk(here), self.there.risk(aside))

    def _of_all(self, grown_on: float, aside: float) -> float:
        return (1 - self.share) * grown_on + self.share * aside

    def after(self, weights: Sequence[float], lengths: Sequence[float]) -> list[After]:
        if len(lengths) == 1:  # remembered, for the round that begins there
            risks = [self.of.risk(self.ensemble.after(0, lengths[0]))]
            aside, penalty = self.there.values(self.ensemble.after(self.part, lengths[0]), weights)
            asides, penalties = [aside], [penalty]
        else:
            risks = self.of.risks(self.ensemble.after_each(0, lengths))
            asides, penalties = self.there.several(self.ensemble.after_each(self.part, lengths), weights)
        each = zip(risks, penalties, asides, strict=True)
        return [After(risk, penalty, self._of_all(risk, aside)) for risk, penalty, aside in each]


class _Ensemble:
    """The booster, and the scores that its shortened trees give to each part of the rows."""

    def __init__(self, binned: Binned, trees: Trees, base: Tensor) -> None:
        self.booster = lightgbm().Booster(trees.parameters(len(base)), binned.train)
        for i, rows in enumerate(binned.others):
            self.booster.add_valid(rows, f"part {i}")
        self.n_outputs, self.is_watched = len(base), 0 if binned.task.held_out is None else -1
        shapes = [(len(rows),) if len(base) == 1 else (len(rows), len(base)) for rows in binned.parts]
        self.scores = [base.expand(shape).clone() for shape in shapes]
        self.inner = [torch.zeros_like(scores) for scores in self.scores]
        self.steps: list[Tensor] = []
        self.tried: dict[tuple[int, float], Tensor] = {}
        self.lengths: list[float] = []

    @property
    def watched(self) -> Tensor:
        return self.scores[self.is_watched]

    def seen(self, aside: bool) -> Tensor:
        """Scores of the rows set aside, or of those that trees are grown on."""
        return self.scores[int(aside)]

    @property
    def iterations(self) -> int:
        return len(self.lengths)

    def grow(self, gradient: Tensor, curvature: Tensor) -> bool:
        """One tree per output; False where no split is worth making."""
        pair = gradient.numpy(), curvature.numpy()
        if self.booster.update(fobj=lambda *_: pair):
            if self.booster.current_iteration() > len(self.lengths):  # a first round without splits leaves a tree of 0
                self.lengths.append(1.0)
            return False
        now = self._inner()
        self.steps = [new - old for new, old in zip(now, self.inner, strict=True)]
        self.inner = now
        return True

    def _inner(self) -> list[Tensor]:
        """The scores that LightGBM has of its unshortened trees: a metric is where it tells them."""
        parts: list[Tensor] = []

        def metric(scores: Floats, _: Any) -> tuple[str, float, bool]:
            parts.append(torch.from_numpy(np.array(scores, dtype=np.float64, order="C")))
            return "", 0.0, False

        self.booster.eval_train(metric)
        if len(self.scores) > 1:
            self.booster.eval_valid(metric)
        return parts

    def after(self, part: int, length: float) -> Tensor:
        """The scores with so much of the new trees; the same tensor if it is asked for again."""
        if (part, length) not in self.tried:
            self.tried[part, length] = self.scores[part] + length * self.steps[part]
        return self.tried[part, length]

    def after_each(self, part: int, lengths: Sequence[float]) -> Tensor:
        """The same for several lengths: (K, N) or (K, N, C)."""
        several = torch.tensor(lengths, dtype=torch.float64).view(-1, *(1,) * self.steps[part].ndim)
        return self.scores[part] + several * self.steps[part]

    def take(self, length: float) -> None:
        self.scores = [self.after(part, length) for part in range(len(self.scores))]
        self.tried = {}
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
