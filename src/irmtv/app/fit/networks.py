"""Linear models and networks with a hidden layer, as one kind of model for `fit_table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from irmtv.app.fit.contenders import COMPARED_ROWS, SEARCHED_ROWS, Contender, Floats, Path, some_rows, stage
from irmtv.app.fit.held_out import as_outputs, held_out_outputs
from irmtv.app.fit.summary import FeaturesKind
from irmtv.core.types import Runs
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.engine.progress_bar import ProgressBar
from irmtv.estimators.cv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.models.networks.predictor import Predictor, keep
from irmtv.models.search import Searched, search
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import Objective

HIDDEN = (32,)
# training on batches above so many rows, for a network and for a linear model
BATCH, MANY_ROWS, VERY_MANY_ROWS = 2048, 10_000, 100_000
ALIKE = 0.99  # a more complex kind of model must have at most this share of the simpler one's risk
SHUFFLED_ROWS = 2000  # rows on which features of a network are shuffled


class Networks(Contender[TrainingData[Scaler]]):
    """A linear model or a network; where both are asked for, the one that predicts better without any penalty.

    Parameters
    ----------
    model : "linear", "mlp", or "auto" for the better of the two.
    kind : "binary", "multiclass" or "regression".
    table : what `_prepare` of an estimator takes: features, target, environment, aux, weights.
    steps : of training.
    how : further parameters of the estimator.
    """

    rhythm = "step"

    def __init__(self, model: str, kind: str, table: Sequence[Any], *, steps: int, how: Mapping[str, Any]) -> None:
        made = InvariantRegressorCV if kind == "regression" else InvariantClassifierCV
        hidden = () if model == "linear" else HIDDEN
        super().__init__(made(hidden=hidden, max_steps=steps, **how), how["random_state"])
        self.undecided = model == "auto"
        self.estimator._check_parameters()
        self.everything = self.estimator._prepare(*table)
        objective = self.everything.objective
        if objective.reads_aux or objective.procedure is not None:
            raise ValueError(
                f"objective {objective.name!r} keeps more than a predictor of the features: it cannot be compared on "
                "held-out rows here. Use 'minimax-tv-l1' or 'irm-tv-l1', or the class InvariantClassifierCV in Python."
            )
        self.rows = some_rows(self.everything, SEARCHED_ROWS, self.random_state)

    @property
    def kind(self) -> str:
        return "mlp" if self.estimator.hidden else "linear"

    def name_of(self, searched: Searched, index: int) -> str:
        return " ".join([self.kind, *map(str, self.estimator.hidden)])

    @property
    def features_kind(self) -> FeaturesKind:
        return "shuffling" if self.estimator.hidden else "coefficients"

    def plain_risk(self, bar: ProgressBar | None, share: float) -> float:
        """Of the network that was asked for, or of the better one, which is then settled.

        The choice rests on rows of the training environments alone, as that of l2 does: it is made before any penalty.
        """
        either = ((), HIDDEN) if self.undecided else (self.estimator.hidden,)
        stage(bar, "linear or network" if self.undecided else "plain networks", share / len(either))
        prepared = some_rows(self.rows, COMPARED_ROWS, self.random_state)
        task = replace(prepared.task, test=None)
        lowest = {}
        for hidden in either:
            risks = search(
                task,
                "erm",
                [{"l2": value} for value in (0.0, 3e-3)],
                rule="iid",
                n_folds=2,
                seed=self.seed,
                by_class=True,
                steps=self.estimator.max_steps,
                hidden=hidden,
                learning_rate=self.estimator.learning_rate,
                batch_size=_batch_size(hidden, len(task.train)),
                progress=bar,
            ).records.pooled()
            lowest[hidden] = float(risks.overall.nan_to_num(np.inf).min())
        if self.undecided:
            self.estimator.hidden = HIDDEN if lowest[HIDDEN] < ALIKE * lowest[()] else ()
            self.undecided = False
        return lowest[self.estimator.hidden]

    def search(self, bar: ProgressBar | None, share: float) -> Path:
        if self.undecided:
            self.plain_risk(bar, 0.2 * share)
            share *= 0.8
        self.estimator.batch_size = _batch_size(self.estimator.hidden, len(self.rows.task.train))
        stage(bar, f"penalty path, {self.kind}", share)
        return self._path(self.estimator, self.rows.objective, bar)

    def _path(self, estimator: Any, objective: Objective, bar: ProgressBar | None) -> Path:
        prepared = replace(self.rows, objective=objective)
        searched: Searched = estimator._searched(prepared, self.seed, keep_states=True, plain_beside=True, progress=bar)
        return Path(searched, partial(held_out_outputs, searched, prepared=prepared))

    def _path_of(self, objective: Objective, weight: Any, like: Searched, index: int) -> Path:
        l2 = like.families[like.candidates[index].family].settings.get("l2", 0.0)
        twin = self._twin(objective=objective.name, penalty_weights=[weight], rule="iid", l2=l2)
        return self._path(twin, objective, None)

    def finish(self, searched: Searched) -> None:
        self.estimator._finish(self.everything, searched, self.seed)

    def settings(self) -> dict[str, Any]:
        names = {"folds": "cv", "steps": "max_steps", "learning_rate": "learning_rate", "batch_size": "batch_size"}
        return {name: getattr(self.estimator, attribute) for name, attribute in names.items()}

    def feature_weights(self, searched: Searched) -> tuple[Floats, Floats]:
        """A linear model: coefficient x standard deviation. Others: how much risk rises when a feature is shuffled."""
        erm, chosen = (self._weights(model) for model in (self._plain_model(searched), self.estimator.predictor_))
        return erm, chosen

    def _plain_model(self, searched: Searched) -> Predictor:
        """Plain risk minimisation on the rows of the search, stopped where it did best on held-out rows."""
        candidate = searched.candidates[searched.plain]
        if candidate == searched.chosen:
            predictor: Predictor = self.estimator.predictor_
            return predictor
        family = searched.families[candidate.family]
        erm = OBJECTIVES["erm"]
        settings = {**self.estimator._settings(erm), "l2": family.folds.settings[candidate.combination]["l2"]}
        settings["steps"] = max(1, candidate.step)
        fitted = self.estimator._train(replace(self.rows, objective=erm), Runs(seed=self.seed), **settings)
        return keep(fitted, [0], self.rows.x, self.rows.y)

    def _weights(self, model: Predictor) -> Floats:
        linear = model.linear()
        if linear is not None:
            scale = np.where(np.isfinite(model.x.scale), model.x.scale, 0.0)
            per_deviation = linear[0] * scale  # (1 or C, D)
            weights = per_deviation[0] if len(per_deviation) == 1 else np.linalg.norm(per_deviation, axis=0)
        else:
            weights = self._by_shuffling(model)
        total = np.abs(weights).sum()
        return np.asarray(weights / total if total > 0 else weights)

    def _by_shuffling(self, model: Predictor) -> Floats:
        """How much the risk rises when a feature is shuffled: (D,), at least 0."""
        task = self.rows.task
        rng = np.random.default_rng(self.random_state)
        n = len(task.train)
        rows = rng.choice(n, min(SHUFFLED_ROWS, n), replace=False)
        x = task.train.x[torch.as_tensor(rows)].double()
        y = task.train.y[torch.as_tensor(rows)]
        order = torch.as_tensor(rng.permutation(len(rows)))

        def risk(values: torch.Tensor) -> float:
            f = torch.stack([m.logits(values) for m in model.members]).mean(0)
            return float(task.loss.value(f, as_outputs(y, f)).double().mean())

        before, found_weights = risk(x), np.zeros(x.shape[1])
        for j in range(x.shape[1]):
            shuffled = x.clone()
            shuffled[:, j] = x[order, j]
            found_weights[j] = max(0.0, risk(shuffled) - before)
        return found_weights


def _batch_size(hidden: Sequence[int], n_rows: int) -> int | str:
    return BATCH if n_rows > (MANY_ROWS if hidden else VERY_MANY_ROWS) else "auto"
