"""Networks on all training rows: training that can be interrupted, and what a fitted model tells of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from irmtv.core.messages import shown, users_stacklevel
from irmtv.core.progress_bar import ProgressBar
from irmtv.core.types import Rows, Runs, Task
from irmtv.data.blocks import BlockSource
from irmtv.data.scaling import Scaler
from irmtv.data.training import TrainingData
from irmtv.engine import FittedRuns, train
from irmtv.engine.networks import MLP, Module
from irmtv.engine.train import TrainingInterrupted
from irmtv.models.base import FittedModel, environment_labels, history_frame
from irmtv.models.networks.batches import divergence_is_recorded
from irmtv.models.networks.model import SNAPSHOTS, NetworkPath
from irmtv.models.networks.predictor import Predictor, carried_over, keep
from irmtv.objectives.base import warmup_steps
from irmtv.objectives.environments.aux_network import AuxScaler
from irmtv.selection.folds import constant_risk

Floats = npt.NDArray[np.float64]
# shares of a constant's training risk: a model at the first or above predicts nothing, one below the second did
NOTHING, SOMETHING = 0.98, 0.95
ENOUGH_STEPS = 100  # fewer train nothing, with or without a penalty
FLAT = 0.2  # standard deviation of outputs (logits, or standardised predictions) of a model that hardly moves


def train_network(
    data: TrainingData[Scaler], runs: Runs, *, label: str, verbose: bool = False, **settings: Any
) -> FittedRuns:
    """Train, with a progress bar of this label; after Ctrl-C the runs as they were, with a warning."""
    bar = ProgressBar(f"{label}, {data.objective.name}") if verbose else nullcontext()
    try:
        with bar as report:
            return train(data.task, data.objective, runs, progress=report, **settings)
    except TrainingInterrupted as stopped:
        steps = shown(stopped.partial.steps.tolist(), form=lambda s: f"{int(s)}")
        warnings.warn(
            f"training was interrupted at step {steps}: the estimator is fitted as it was then.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )
        return stopped.partial


def fitted_network(
    fitted: FittedRuns, runs: Sequence[int], data: TrainingData[Scaler], counts: Sequence[float] = ()
) -> FittedModel:
    """The mean of some runs of one training, as an estimator keeps it.

    `counts` (E,) are the rows of the given environments, where those of `data` are a sample.
    """
    predictor = keep(fitted, runs, data.x, data.y)
    run, rows = runs[0], data.task.train
    environments = environment_labels(_environment_names(fitted, run, rows, predictor))
    return FittedModel(
        predictor,
        data.objective,
        step=_steps_taken(fitted, run, predictor),
        environments=environments,
        environment_weights=_environment_weights(fitted, run, rows, predictor, len(environments), counts),
        history=history_frame(fitted.history, run, environments),
    )


def _steps_taken(fitted: FittedRuns, run: int, predictor: Predictor) -> int:
    """Of Newton's method those on the way to the solution, else the step of the state that is kept."""
    if fitted.settings[run]["solver"] == "newton":
        return max(1, int(fitted.learned("newton_steps")[run]))
    return predictor.members[0].step


def refit_network(
    data: TrainingData[Scaler],
    path: NetworkPath,
    step: int,
    *,
    label: str,
    verbose: bool = False,
    blocks: BlockSource | None = None,
    **more: Any,
) -> FittedModel:
    """A combination that was searched, up to a step, on all rows and with every seed.

    With `blocks` these have all rows, and `data` a sample; `more` (checkpoint, process_group) is for `train`.
    """
    data, model = replace(data, objective=path.objective), path.batch.model
    seeds = list(model.seeds)
    runs = Runs(seed=seeds, **{name: [value] * len(seeds) for name, value in path.combination.items()})
    every = max(1, int(model.settings["steps"]) // SNAPSHOTS)
    kept = {"snapshot_every": every, "keep_states": True}
    # Newton's method goes on from a fold's model: so of several stationary points it finds the one that was measured
    begin = None if path.objective.procedure is not None else path.middle_model
    start = {} if begin is None else {"start": {"W0": begin[None, :, :-1], "b0": begin[None, :, -1:]}}
    with divergence_is_recorded():
        settings = {**path.batch.settings, **start, **more}
        fitted = train_network(data, runs, label=label, verbose=verbose, blocks=blocks, **kept, **settings)
    # a run may diverge after the chosen step; an interrupted one is as it was
    sound = [r for r in range(len(fitted)) if fitted.diverged.get(r, step + 1) > step]
    if not sound:
        raise ValueError(
            f"training diverged on all rows with {path.combination!r}, though not on parts of them. Lower "
            "learning_rate, or look for extreme values in X and y."
        )
    if len(sound) < len(fitted):
        warnings.warn(
            f"{label}: {len(fitted) - len(sound)} of {len(fitted)} models diverged and are left out.",
            UserWarning,
            stacklevel=users_stacklevel(),
        )
    known = [s for c in fitted.chunks for s in c.kept if s <= step]
    beyond = int(fitted.steps.max()) > step  # not so where training was interrupted before
    counts = () if blocks is None else blocks.rows_of_environments
    return fitted_network(fitted.at(max(known)) if known and beyond else fitted, sound, data, counts)


def warm_start(present: Predictor, data: TrainingData[Scaler], settings: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The parameters of a fitted model, to go on from, in the units of these rows; `settings` are for `train`."""
    rows, member, own_module = data.task.train, present.members[0], "net" in settings
    n_inputs = rows.x[0].numel()
    if data.objective.reads_aux:
        assert rows.aux is not None
        n_inputs += rows.aux.shape[1]
    if own_module:
        net = settings["net"]
        new: Any = net if hasattr(net, "shapes") else Module(net, data.task.n_outputs)
    else:
        new = MLP(n_inputs, settings["hidden"], data.task.n_outputs)
    reads_same = (present.aux is not None) == data.objective.reads_aux
    if new.shapes != member.net.shapes or not reads_same or (present.y is None) != (data.y is None):
        raise ValueError(
            f"warm_start=True goes on with the present network, whose parameters are {_shapes(member.net)}. Got "
            f"rows and parameters that ask for {_shapes(new)}. Use set_params(warm_start=False) to start anew."
        )
    if member.buffers or data.objective.procedure is not None:
        batch_norm = "a module with state of its own (batch norm)"
        what = batch_norm if member.buffers else f"objective {data.objective.name!r}"
        raise ValueError(
            f"warm_start=True goes on from parameters alone, and {what} is more than those: it would not begin as "
            "the present model. Use set_params(warm_start=False)."
        )
    if own_module or not isinstance(member.net, MLP):
        return member.parameters
    scaler = None
    if present.aux is not None:
        assert rows.aux is not None
        scaler = AuxScaler.of(rows.aux, settings.get("aux_scaling", "column"), rows.weight)
    return carried_over(present, data.x, data.y, scaler)


def _shapes(net: Any) -> str:
    return shown(net.shapes.items(), form=lambda item: f"{item[0]} {item[1]}")


def _environment_names(fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor) -> list[Any]:
    """Those given, "inferred 1", ... where they were inferred."""
    if fitted.objective.infers is not None:
        n = 2 if predictor.rho is None else predictor.rho.net.n_environments  # row by row: two
    elif fitted.objective.finds_clusters and "n_clusters" in fitted.settings[run]:
        n = fitted.settings[run]["n_clusters"]
    else:
        return list(rows.names)
    return [f"inferred {e + 1}" for e in range(n)]


def _environment_weights(
    fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor, n: int, counts: Sequence[float] = ()
) -> Floats:
    """mu: what each of the n environments counts; NaN where nothing is known of inferred ones."""
    settings, objective = fitted.settings[run], fitted.objective
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    kind = objective.measure_of(settings)
    if kind == "learned":
        return _floats(fitted.learned("measure")[run])
    if objective.infers is None and not objective.finds_clusters and rows.environment is None:
        return np.ones(1)
    if kind == "uniform" or (isinstance(kind, tuple) and len(kind) == n):
        given = np.ones(n) if kind == "uniform" else np.asarray(kind, dtype=np.float64)
        return np.asarray(given / given.sum())
    if counts and objective.infers is None:
        return np.asarray(counts, dtype=np.float64) / sum(counts)
    membership = _membership(fitted, run, rows, predictor, n)
    if membership is None or len(membership) != len(rows):
        return np.full(n, np.nan)
    return _floats((weight[:, None] * membership).sum(0) / weight.sum())


def _membership(fitted: FittedRuns, run: int, rows: Rows, predictor: Predictor, n: int) -> Tensor | None:
    """q of the training rows: (N, E)."""
    if predictor.rho is not None:
        assert rows.aux is not None
        return predictor.rho.membership(rows.aux, rows.x)
    codes = rows.environment
    if fitted.objective.infers is not None:
        return fitted.membership()[run].double()
    if fitted.objective.finds_clusters:
        codes = fitted.learned("clusters")[run].long()
    return None if codes is None else torch.nn.functional.one_hot(codes, n).double()


def warn_of_a_constant(fitted: FittedRuns, run: int, history: pd.DataFrame, predictor: Predictor, task: Task) -> None:
    """Warn where the penalty has made a constant of the model: that is invariant, and rarely wanted.

    What tells is the training risk in the history, so that it costs next to nothing: it is again that of the best
    constant, though before the penalty acted it was well below. On rows from which nothing can be predicted it never
    was, and nothing is said; without a warm-up there is no before, and the warning says that it may be either. A model
    whose risk is as large for another reason (it diverges, it predicts wildly) is told by how far its outputs differ.
    """
    settings, objective = fitted.settings[run], fitted.objective
    weight = settings.get("penalty_weight")
    acts = objective.penalties and "warmup" in settings and any(objective.weights(weight))
    by_newton = settings["solver"] == "newton"  # ERM is the first point of its history, whatever the steps
    enough = by_newton or settings["steps"] >= ENOUGH_STEPS
    if not acts or not enough or history.empty or (history["on"] != "train").any():
        return
    risks = _risk_by_step(history)
    constant = constant_risk(replace(task, held_out=None))  # on the training rows
    final, lowest = risks.get(predictor.members[0].step, np.nan), risks.min()
    if not (final >= NOTHING * constant and _is_flat(predictor, task.train)):  # NaN: it was not measured
        return
    by_chance = 2 * task.train.x[0].numel() / len(task.train)  # about what a linear model gains from noise, twice
    figures = f"its training risk is {final:.3g}, that of the best constant {constant:.3g}"
    smaller = "a number" if isinstance(weight, str) else "a smaller one"
    if lowest <= (SOMETHING - by_chance) * constant:
        what = (
            f"{figures}, and it was {lowest:.3g} before the penalty had its effect. A constant is invariant: "
            f"penalty_weight={weight!r} is too much for these rows. Use {smaller},"
        )
    elif not by_newton and warmup_steps(settings["warmup"], settings["steps"]) == 0:
        what = (
            f"{figures}. Either X says little about y, or penalty_weight={weight!r} is too much where it acts from the "
            f"first step. Use {smaller}, warmup=0.5,"
        )
    else:
        return
    path = "InvariantRegressorCV" if task.loss.name == "squared" else "InvariantClassifierCV"
    warnings.warn(
        f"the model predicts nearly a constant: {what} or {path}, which looks at a path of weights.",
        UserWarning,
        stacklevel=users_stacklevel(),
    )


def _is_flat(predictor: Predictor, rows: Rows) -> bool:
    """Whether the outputs for a thousand of these rows are nearly the same."""
    some = rows.take(torch.arange(0, len(rows), max(1, len(rows) // 1000)))
    inputs = some.x.double()
    if predictor.aux is not None and some.aux is not None:
        inputs = torch.cat([inputs, predictor.aux(some.aux)], 1)
    outputs = predictor.members[0].logits(inputs).reshape(len(some), -1)  # (n, C)
    return bool((outputs.std(0, correction=0) < FLAT).all())


def _risk_by_step(history: pd.DataFrame) -> pd.Series[float]:
    """Mean over all rows at every step; environments without rows have no risk and count nothing."""
    known = history[history["rows"] > 0]
    total = (known["risk"] * known["rows"]).groupby(known["step"]).sum(min_count=1)
    return total / known.groupby("step")["rows"].sum()


def _floats(values: Tensor) -> Floats:
    result: Floats = values.double().numpy()
    return result
