"""ERM of every model family on chosen rows, and what it reads when it is trained to be invariant.

For questions about the rows, not for a model to keep: a family is trained on some rows of a task, and its outputs for
all rows are looked at. When to stop, and how large to be, is decided on a fifth of the rows that it is trained on; the
other rows have no part in it.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from irmtv.core.losses import as_loss
from irmtv.core.types import Rows, Runs, Task
from irmtv.data.categories import CategoricalColumns
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.engine import FittedRuns, train
from irmtv.models.base import FittedModel
from irmtv.models.importances import output_shares
from irmtv.models.networks.settings import BATCH, DEFAULT_HIDDEN, MANY_ROWS
from irmtv.models.trees.fit import fit_trees
from irmtv.models.trees.model import TreeModel
from irmtv.models.trees.settings import TreeParameters
from irmtv.objectives import OBJECTIVES
from irmtv.selection.folds import deal_folds

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Size = tuple[int, int]  # leaves and rounds of trees; (0, 0) of other families
ASIDE = 5  # one of so many training rows says when to stop
ALIKE = 0.99  # a simpler family is taken where the best one has at least this share of its risk


class ErmFamily(ABC):
    """One model family. Outputs are logits or predictions, (N, C) or (N, 1); y of a regression is standardised."""

    name: str
    text: str  # in a sentence

    @abstractmethod
    def outputs(self, task: Task, trained_on: Sequence[Mask], seed: int) -> tuple[list[Floats], Size]:
        """Outputs for all rows of a model for each mask (N,) of training rows; and the (median) size of trees."""

    @abstractmethod
    def shares(self, task: Task, size: Size, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
        """How much the outputs depend on each feature, of ERM and under TV-l1: (D,) each."""


class LinearErm(ErmFamily):
    """Logistic or ridge regression of scikit-learn."""

    name, text = "linear", "a linear model"

    def outputs(self, task: Task, trained_on: Sequence[Mask], seed: int) -> tuple[list[Floats], Size]:
        x, y = task.train.x.numpy(), task.train.y.numpy()
        return [self._outputs(task, x, y, part) for part in trained_on], (0, 0)

    def _outputs(self, task: Task, x: Floats, y: Any, part: Mask) -> Floats:
        if task.loss.name == "squared":
            return np.asarray(Ridge(alpha=1.0).fit(x[part], y[part]).predict(x)).reshape(-1, 1)
        model = fit_quietly(logistic(), x[part], y[part].astype(np.int64))
        return for_every_class(model.decision_function(x), model.classes_, task)

    def shares(self, task: Task, size: Size, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
        raise NotImplementedError("the weights of a linear model are its coefficients")


class NetworkErm(ErmFamily):
    """A network with one hidden layer. The networks of all masks are runs of one tensor program."""

    name, text = "mlp", "a network"
    L2 = (0.0, 3e-3)
    STEPS, LEARNING_RATE, EVERY = 600, 1e-2, 20

    def outputs(self, task: Task, trained_on: Sequence[Mask], seed: int) -> tuple[list[Floats], Size]:
        n_parts, n_l2 = len(trained_on), len(self.L2)
        tasks = [self._stopped_by_held_out_rows(_part(task, part), seed) for part in trained_on]
        data = [k for k in range(n_parts) for _ in self.L2]
        runs = Runs(seed=[seed] * len(data), data=data, l2=[*self.L2] * n_parts)
        settings = self._settings(len(tasks[0].train))
        fitted = train(tasks, "erm", runs, hidden=DEFAULT_HIDDEN, select="iid", snapshot_every=self.EVERY, **settings)
        assert fitted.history is not None
        lowest = fitted.history.risk[:, :, 0].nan_to_num(torch.inf).amin(0).reshape(n_parts, n_l2)
        logits = _logits(fitted, task.train.x)  # (R, N, C)
        return [logits[k * n_l2 + best] for k, best in enumerate(lowest.argmin(1).tolist())], (0, 0)

    def shares(self, task: Task, size: Size, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
        runs = Runs(seed=seed, penalty_weight=[0.0, penalty_weight])
        settings = self._settings(len(task.train))
        fitted = train(_in_float32(task), "irm-tv-l1", runs, hidden=DEFAULT_HIDDEN, l2=self.L2[-1], **settings)

        def share(run: int) -> Floats:
            return output_shares(
                lambda x: np.asarray(_logits(fitted, torch.as_tensor(x))[run]), task.train.x.numpy(), seed
            )

        return share(0), share(1)

    def _settings(self, n_rows: int) -> dict[str, Any]:
        batch = BATCH if n_rows > MANY_ROWS else None
        return {"steps": self.STEPS, "learning_rate": self.LEARNING_RATE, "batch_size": batch}

    def _stopped_by_held_out_rows(self, task: Task, seed: int) -> Task:
        aside = deal_folds(task, ASIDE, seed + 1, by_class=True) == 0
        train_rows, held_out = (task.train.take(index.nonzero().squeeze(1)) for index in (~aside, aside))
        without: dict[str, Any] = {"environment": None, "names": (), "aux": None}
        return _in_float32(replace(task, train=replace(train_rows, **without), held_out=replace(held_out, **without)))


class TreeErm(ErmFamily):
    """Boosted trees."""

    name, text = "trees", "boosted trees"
    LEAVES = (4, 16)
    ROUNDS = 200  # at most

    def outputs(self, task: Task, trained_on: Sequence[Mask], seed: int) -> tuple[list[Floats], Size]:
        outputs, sizes = [], []
        for part in trained_on:
            some = _part(task, part)
            leaves, rounds = self._size(some, seed)
            model, classes = self._fit(some, "erm", seed, num_leaves=leaves, n_estimators=rounds)
            outputs.append(self._outputs(model, classes, task.train.x.numpy(), task))
            sizes.append((leaves, rounds))
        leaves, rounds = (int(v) for v in np.median(sizes, axis=0))
        return outputs, (leaves, rounds)

    def _size(self, task: Task, seed: int) -> Size:
        """Leaves and rounds with the lowest risk on rows that were set aside; then trees are grown on all rows."""
        tried = [
            (n, self._fit(task, "erm", seed, stop=True, num_leaves=n, n_estimators=self.ROUNDS)[0]) for n in self.LEAVES
        ]
        leaves, best = min(tried, key=lambda one: float(one[1].history["risk"].min()))
        return leaves, max(1, int(best.step))

    def shares(self, task: Task, size: Size, penalty_weight: float, seed: int) -> tuple[Floats, Floats]:
        leaves, rounds = size
        x = task.train.x.numpy()

        def share(weight: float) -> Floats:
            # the first round of a penalty on slopes is ERM
            model, classes = self._fit(
                task, "irm-tv-l1", seed, penalty_weight=weight, num_leaves=leaves, n_estimators=max(2, rounds)
            )
            return output_shares(lambda values: self._outputs(model, classes, values, task), x, seed)

        return share(0.0), share(penalty_weight)

    def _fit(
        self,
        task: Task,
        objective: str,
        seed: int,
        *,
        stop: bool = False,
        penalty_weight: float | None = None,
        **parameters: Any,
    ) -> tuple[FittedModel, npt.NDArray[np.int64]]:
        """A booster, and the classes that its outputs are for: those that these rows have."""
        model = TreeModel(TreeParameters(**parameters), seed)
        data, classes = _tree_data(task, objective)
        settings = model.settings(data.objective, penalty_weight)
        return fit_trees(model, data, settings, "iid" if stop else None, Fraction(1, ASIDE)), classes

    def _outputs(self, model: FittedModel, classes: npt.NDArray[np.int64], x: Floats, task: Task) -> Floats:
        logits: Floats = model.predictor.logits(x)
        if task.loss.name == "squared":
            return logits.reshape(-1, 1)
        return for_every_class(logits, classes, task)


FAMILIES: dict[str, ErmFamily] = {family.name: family for family in (LinearErm(), NetworkErm(), TreeErm())}


def logistic(c: float = 1.0) -> Any:
    """scikit-learn's, with enough steps for standardised features."""
    return LogisticRegression(C=c, max_iter=300)


def fit_quietly(model: Any, x: Floats, y: Any) -> Any:
    """Fitted, without a warning that the last digit has not converged: it changes no finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x, y)


def _part(task: Task, rows: Mask) -> Task:
    return replace(task, train=task.train.take(torch.as_tensor(rows.nonzero()[0])))


def _in_float32(task: Task) -> Task:
    def converted(rows: Rows) -> Rows:
        return replace(rows, x=rows.x.float(), y=rows.y.float() if rows.y.is_floating_point() else rows.y)

    held_out = None if task.held_out is None else converted(task.held_out)
    return replace(task, train=converted(task.train), held_out=held_out)


def _tree_data(task: Task, objective: str) -> tuple[TrainingData[CategoricalColumns], npt.NDArray[np.int64]]:
    """The rows as trees read them, numbers standardised by these rows; and the classes that they have."""
    rows, n_features = task.train, task.train.x.shape[1]
    classes = np.zeros(0, dtype=np.int64)
    y_scaler, y, loss, n_outputs = None, rows.y, task.loss, 1
    if task.loss.name == "squared":
        values = rows.y.numpy().reshape(len(rows), -1)
        y_scaler = Scaler.of(values, None, constant=1.0)
        y = torch.as_tensor(y_scaler(values).reshape(rows.y.shape))
    else:
        classes, codes = np.unique(rows.y.numpy().astype(np.int64), return_inverse=True)
        n_outputs = 1 if len(classes) == 2 else len(classes)
        loss = as_loss("binary" if n_outputs == 1 else "multiclass", n_outputs)
        y = torch.as_tensor(codes, dtype=torch.float64 if n_outputs == 1 else torch.int64)
    rows = replace(rows, y=y, aux=None)
    if objective == "erm":
        rows = replace(rows, environment=None, names=())
    made = Task(rows, loss, n_outputs, name="erm")
    columns = CategoricalColumns((None,) * n_features)
    return TrainingData(made, columns, y_scaler, OBJECTIVES[objective]), classes


def for_every_class(decided: Any, classes: Any, task: Task) -> Floats:
    """(n,) or (n, c) of a classifier -> (n, 1), or (n, C) with every class that the task has."""
    outputs = np.asarray(decided, dtype=np.float64).reshape(len(decided), -1)
    if task.loss.name != "multiclass" or outputs.shape[1] == task.n_outputs:
        return outputs
    # fewer classes in the training rows than there are (or two of them): the absent ones get what is least
    filled = np.full((len(outputs), task.n_outputs), outputs.min() - 3.0)
    filled[:, np.asarray(classes, dtype=np.int64)] = (
        np.hstack([-outputs / 2, outputs / 2]) if outputs.shape[1] == 1 else outputs
    )
    return filled


def _logits(fitted: FittedRuns, x: Tensor) -> Floats:
    """(R, N, C), or (R, N, 1)."""
    f = fitted.logits(x.float()).double().numpy()
    return np.asarray(f if f.ndim == 3 else f[:, :, None])
