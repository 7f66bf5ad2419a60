"""The environments that the minimax network infers from aux, and where their boundaries lie.

A network on aux divides the rows so that ERM has the largest TV-l1 penalty (`minimax-tv-l1` with the predictor held at
ERM). It reads the cross-fitted outputs of that model in place of the features: the predictor is then a number that
stays at 1, and a step costs next to nothing.

The labels that other parts of the diagnosis use come from networks that have not seen the rows they label: a division
found in the y of these very rows would look like a difference where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from irmtv.app.diagnose.erm_model import ErmModel
from irmtv.app.diagnose.rows import FEWEST, DiagnosisRows, Floats, Ints
from irmtv.app.diagnose.words import Part, place
from irmtv.core.numbers import listed
from irmtv.core.types import Rows, Runs, Task
from irmtv.engine import FittedRuns, Progress, train
from irmtv.estimators.clusters import lexicographic
from irmtv.models.inference import INFERRING, only_inferring
from irmtv.selection.folds import align

STEPS, LEARNING_RATE = 400, 2e-2
POINTS, GRID = 1000, 401
NAMES = ("found 1", "found 2")


@dataclass(frozen=True)
class InferredEnvironments(Part):
    """Probability of each of two environments as a function of aux."""

    ALSO = ("names", "boundaries", "divides")

    aux: tuple[str, ...]
    is_date: tuple[bool, ...]
    points: Floats  # (P, A) some of the rows
    membership: Floats  # (P, 2)
    mass: tuple[float, ...]  # share of the rows that each environment has
    centres: Floats  # (2, A) mean of aux in each
    curve: Floats | None  # (G, 2) aux and the probability of the second environment, for one aux column
    crossings: tuple[float, ...]  # where that is 1/2
    labels: Ints = field(repr=False)  # (N,) the environment of every row, by a network that has not seen it

    @property
    def names(self) -> tuple[str, ...]:
        return NAMES

    @property
    def boundaries(self) -> list[str]:
        return [place(c, self.is_date[0]) for c in self.crossings]

    @property
    def divides(self) -> bool:
        """Whether both environments have rows enough to compare."""
        return bool(np.bincount(self.labels, minlength=2).min() >= FEWEST)

    @property
    def sentence(self) -> str:
        """One sentence: where the boundary lies."""
        names = listed(self.aux)
        if not self.divides:
            return f"The network finds no division of the rows by {names}: nearly all are in one environment."
        share = f"{100 * self.mass[0]:.0f} % and {100 * self.mass[1]:.0f} % of the rows"
        if self.curve is not None and self.crossings:
            where = listed(self.boundaries)
            many = "boundary" if len(self.crossings) == 1 else "boundaries"
            return f"The network divides the rows by {names} at {where} ({many} of two environments, {share})."
        means = "; ".join(
            f"{name} {place(first, date)} and {place(second, date)}"
            for name, date, first, second in zip(self.aux, self.is_date, *self.centres, strict=True)
        )
        return f"The network divides the rows by {names} into two environments, {share}, with means: {means}."


def environments_in_aux(
    rows: DiagnosisRows, model: ErmModel, seed: int, progress: Callable[[Progress], None] | None = None
) -> InferredEnvironments:
    """The environments of one network on all rows; labels are of networks trained without the fold of a row."""
    assert rows.aux is not None
    aux = torch.as_tensor(rows.aux)
    n_folds = int(model.fold.max()) + 1
    everyone = torch.arange(len(rows))
    parts = [everyone, *(everyone[torch.as_tensor(model.fold != k)] for k in range(n_folds))]
    fitted = train_environment_networks(rows, model, [(part, aux[part]) for part in parts], seed, progress)
    q = fitted.membership(aux).double()  # (1 + folds, N, 2)
    mass = q[0].sum(0).clamp_min(1e-300)
    order = torch.as_tensor(lexicographic(((q[0] / mass).T @ aux).numpy()))
    main = q[0][:, order]
    labels = np.empty(len(rows), dtype=np.int64)
    for k in range(n_folds):
        here = model.fold == k
        own = q[1 + k][:, align(main, q[1 + k])]
        labels[here] = own[torch.as_tensor(here)].argmax(1).numpy()
    member = main.numpy()
    shares = member.sum(0).clip(1e-300)
    some = np.sort(np.random.default_rng(seed).permutation(len(rows))[:POINTS])
    curve = _curve(fitted, aux, order) if aux.shape[1] == 1 else None
    return InferredEnvironments(
        aux=rows.aux_names,
        is_date=rows.aux_is_date,
        points=rows.aux[some],
        membership=member[some],
        mass=tuple((shares / len(rows)).tolist()),
        centres=(member / shares).T @ rows.aux,
        curve=curve,
        crossings=() if curve is None else crossings_of(curve),
        labels=labels,
    )


def _curve(fitted: FittedRuns, aux: Tensor, order: Tensor) -> Floats:
    """(G, 2): values of the one aux column and the probability of the second environment there."""
    grid = torch.linspace(float(aux.min()), float(aux.max()), GRID, dtype=torch.float64)
    second = fitted.membership(grid[:, None])[0][:, order][:, 1].double().numpy()
    return np.column_stack([grid.numpy(), second])


def train_environment_networks(
    rows: DiagnosisRows,
    model: ErmModel,
    parts: Sequence[tuple[Tensor, Tensor]],
    seed: int,
    progress: Callable[[Progress], None] | None = None,
) -> FittedRuns:
    """Train a network on aux for every part, (rows, their aux); in one tensor program where sizes allow."""
    f = torch.as_tensor(model.outputs, dtype=torch.float32).reshape(len(rows), -1)
    y = torch.as_tensor(rows.y) if rows.task == "multiclass" else torch.as_tensor(rows.y, dtype=torch.float32)
    tasks = [Task(Rows(f[index], y[index], aux=aux), rows.loss, rows.n_outputs) for index, aux in parts]
    start = {"W0": torch.eye(rows.n_outputs)[None], "b0": torch.zeros(1, rows.n_outputs, 1)}
    return train(
        tasks,
        INFERRING,
        Runs(seed=[seed] * len(tasks), data=list(range(len(tasks)))),
        start=start,
        steps=STEPS,
        learning_rate=LEARNING_RATE,
        batch_size=None,
        progress=progress,
        **only_inferring(STEPS),
    )


def crossings_of(curve: Floats) -> tuple[float, ...]:
    """Where a curve (G, 2) of probabilities goes through 1/2, between the points by a straight line."""
    at, above = curve[:, 0], curve[:, 1] - 0.5
    turns = np.flatnonzero(np.sign(above[:-1]) * np.sign(above[1:]) < 0)
    exact = at[1:-1][(above[1:-1] == 0) & (np.sign(above[:-2]) * np.sign(above[2:]) < 0)]
    between = at[turns] - above[turns] * (at[turns + 1] - at[turns]) / (above[turns + 1] - above[turns])
    return tuple(sorted([*between.tolist(), *exact.tolist()]))
