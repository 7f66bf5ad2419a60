"""A table, a target, and where each row came from: a model to use tomorrow, and what was found out on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.pipeline import Pipeline

from irmtv.app.fit.contenders import Contender, stage
from irmtv.app.fit.found import Found, curves, feature_weights, inferred, losses, path_points
from irmtv.app.fit.held_out import compare, score_for, target_of
from irmtv.app.fit.networks import ALIKE, Networks
from irmtv.app.fit.summary import Data, FitSummary
from irmtv.app.fit.together import together
from irmtv.app.fit.trees import Trees
from irmtv.app.fit.words import headline, versions
from irmtv.app.io import Columns, Table, split_columns, table_steps, task_of
from irmtv.core.messages import check_positive, did_you_mean, shown
from irmtv.engine.progress_bar import ProgressBar
from irmtv.estimators.parameters import as_seed
from irmtv.models.search.families import infers_held_out
from irmtv.models.trees.library import lightgbm
from irmtv.models.trees.parameters import suits_trees
from irmtv.objectives import OBJECTIVES

MODELS = ("auto", "linear", "mlp", "trees")


@dataclass(frozen=True)
class Answer:
    """A fitted pipeline (raw table in, predictions out) and what is known of it."""

    pipeline: Pipeline
    summary: FitSummary


def fit_table(
    source: str | PathLike[str] | Table | pd.DataFrame,
    target: str,
    environment: Sequence[str] = (),
    aux: Sequence[str] = (),
    *,
    objective: str = "auto",
    model: str = "auto",
    task: str | None = None,
    rule: str = "invariance",
    penalty_weights: Sequence[float] | None = None,
    folds: int = 3,
    steps: int = 1000,
    rounds: int = 100,
    metric: str | None = None,
    min_rows: int = 10,
    random_state: int = 0,
    encoding: str | None = None,
    command: str = "",
    bar: ProgressBar | None = None,
) -> Answer:
    """Fit a penalty path to a raw table, choose by the rule, and compare with plain risk minimisation.

    Parameters
    ----------
    source : path, Table or DataFrame
        CSV, TSV, Parquet; columns of numbers, categories, text and dates, with missing values.
    target : str
        The column to be predicted.
    environment : names of columns, default ()
        Where each row came from; several are joined.
    aux : names of columns, default ()
        What environments are inferred from, where none are given: numbers or dates.
    objective : str, default "auto"
        "irm-tv-l1" where environments are given, else "minimax-tv-l1"; or a name in `irmtv.OBJECTIVES`.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        "auto" lets the rule choose among two paths on the same folds: that of trees, and that of a linear model or a
        network, whichever of the two has the lower risk on held-out rows without any penalty. Where environments are
        inferred, those of different kinds of models are different ones: then the kind with the lowest risk without any
        penalty is taken, and the rule chooses from its path.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the target's values.
    rule : str, default "invariance"
        How penalty weight and step, and kind of model, are chosen; see :class:`irmtv.InvariantClassifierCV`.
    penalty_weights : sequence or None, default None
        The path; 0 is always in it.
    folds : int, default 3
        Every row is held out once, in so many folds.
    steps : int, default 1000
        Of training, for linear models and networks.
    rounds : int, default 100
        Of boosting, for trees.
    metric : str or None, default None
        For the comparison: "accuracy" or "log_loss"; "rmse", "mae" or "mse". None is the first of them.
    min_rows : int, default 10
        Environments with fewer rows are pooled into one.
    random_state : int, default 0
        Seed of the folds and the models.
    encoding : str or None, default None
        Of a text file; None is UTF-8.
    command : str, default ""
        What to write into the summary as the way to run this again.
    bar : ProgressBar or None, default None
        Shows how far it is.

    Returns
    -------
    Answer

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from irmtv.app.fit import fit_table
    >>> rng = np.random.default_rng(0)
    >>> frame = pd.DataFrame({"size": rng.normal(size=400), "site": np.repeat(["a", "b"], 200)})
    >>> frame["price"] = 3 * frame["size"] + rng.normal(size=400)
    >>> answer = fit_table(frame, "price", ["site"], model="linear", steps=200)
    >>> answer.summary["outcome"]
    'erm-invariant'
    >>> answer.pipeline.predict(frame.drop(columns=["site", "price"])).shape
    (400,)
    """
    if model not in MODELS:
        raise ValueError(f"model must be one of {list(MODELS)}. Got {model!r}.{did_you_mean(model, MODELS)}")
    _check_columns(objective, bool(environment), bool(aux))
    check_positive(steps, "steps")
    check_positive(rounds, "rounds")
    clock = _Clock()
    table = Table.of(source, encoding)
    clock.lap("reading")
    columns = split_columns(table.frame, target=target, environment=environment, aux=aux)
    assert columns.y is not None
    kind, why = task_of(columns.y, task)
    score = score_for(kind, metric)
    pre = Pipeline(table_steps())
    features = pre.fit_transform(columns.features)
    notes = [*table.notes, *columns.notes, *([why] if why else []), *_about_gaps(columns)]
    data = _data(table, columns, target, environment, aux, features.shape[1], notes)
    n_rows = len(features)
    del table
    clock.lap("preparing")

    if (
        objective == "erm"
        and rule == "invariance"
        and (columns.environment is None or columns.environment.nunique() < 2)
    ):
        rule = "iid"  # nothing to compare, and nothing but the step to choose
    how = {
        "objective": objective,
        "rule": rule,
        "penalty_weights": penalty_weights,
        "cv": folds,
        "min_rows": min_rows,
        "random_state": random_state,
    }
    numbers = (features, _target(columns.y), columns.environment, columns.aux, None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        contenders = _contenders(model, kind, numbers, how, steps, rounds, data["notes"])
        del features, numbers
        _about_rows(contenders[0], aux, data["notes"])
        contenders = _that_can_be_compared(contenders, bar)
        paths = [contender.search(bar, 0.85 / len(contenders)) for contender in contenders]
        found = Found(contenders, paths, together(paths, rule), pre.get_feature_names_out().tolist(), random_state)
        stage(bar, "training on all rows", 0.1)
        winner, its_path = found.chosen
        winner.finish(its_path)
    estimator, choice = winner.estimator, found.search.choice
    said = estimator.selected_["message"]  # which comes as a warning, too, where it is bad news
    data["notes"] += [note for note in dict.fromkeys(str(w.message) for w in told) if said not in note]
    stage(bar, "comparing", 0.05)
    by_environment, weights = losses(found), feature_weights(found)  # which train a model each
    clock.lap("training")

    rows, overall, worst = compare(
        found.path.outputs(found.search.plain),
        found.path.outputs(choice.index),
        target_of(found.prepared),
        found.codes,
        found.names,
        score,
        as_seed(random_state),
    )
    summary: FitSummary = {
        "schema": 1,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": {},
        "versions": versions(),
        "data": data,
        "task": kind,
        "classes": [] if kind == "regression" else [str(c) for c in estimator.classes_],
        "objective": winner.rows.objective.name,
        "model": found.model_of(choice.index),
        "plain_model": found.model_of(found.search.plain),
        "settings": _settings(found, n_rows),
        "rule": rule,
        "outcome": estimator.selected_["outcome"],
        "headline": "",
        "message": said,
        "metric": score.name,
        "greater_is_better": score.greater_is_better,
        "environments": rows,
        "overall": overall,
        "worst": worst,
        "path": path_points(found),
        "curves": curves(found),
        "inferred": inferred(found, aux, columns.aux_is_date),
        "features": weights,
        "features_kind": winner.features_kind,
        "losses": by_environment,
    }
    summary["headline"] = headline(summary)
    clock.lap("comparing")
    summary["seconds"] = {**clock.laps, "all": clock.total()}
    stage(bar, "done", 0.0)
    return Answer(Pipeline([*pre.steps, ("model", estimator)]), summary)


def _check_columns(objective: str, environment: bool, aux: bool) -> None:
    """Whether what the objective learns from is there; in words for a table."""
    if objective == "auto":
        missing = "environment or aux" if not (environment or aux) else None
    else:
        needs = OBJECTIVES[objective].needs
        missing = needs if {"environment": not environment, "aux": not aux}.get(str(needs)) else None
    if missing is not None:
        raise ValueError(
            f"objective {objective!r} needs {missing}. Got none. Name a column that says where each row came from, "
            "--environment site (in Python environment=['site']), or columns of numbers or dates that environments are "
            "inferred from, --aux year; --objective erm needs neither."
        )


class _Clock:
    """How long each part took."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._begin = self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now

    def total(self) -> float:
        return self._last - self._begin


def _about_gaps(columns: Columns) -> list[str]:
    """Which features have gaps, and what is done about them."""
    if not columns.missing:
        return []
    told = shown([f"{name} ({100 * share:.2g} %)" for name, share in columns.missing.items()], form=str)
    return [f"missing values are filled (numbers with their mean, categories with none of them) and marked: {told}"]


def _data(
    table: Table,
    columns: Columns,
    target: str,
    environment: Sequence[str],
    aux: Sequence[str],
    n_features: int,
    notes: Sequence[str],
) -> Data:
    return {
        "file": table.path.name if table.path is not None else "a DataFrame",
        "rows": len(table.frame),
        "rows_used": len(columns.kept),
        "target": target,
        "environment": list(environment),
        "aux": list(aux),
        "columns": [str(c) for c in columns.features.columns],
        "features": n_features,
        "missing": dict(columns.missing),
        "notes": list(notes),
    }


def _target(y: pd.Series) -> Any:
    """Numbers as they are; anything else as text of a fixed width, which is looked through far faster than objects."""
    return y.to_numpy() if is_numeric_dtype(y.dtype) else y.to_numpy(dtype=str)


def _contenders(
    model: str,
    kind: str,
    numbers: Sequence[Any],
    how: Mapping[str, Any],
    steps: int,
    rounds: int,
    notes: list[str],
) -> list[Contender[Any]]:
    """The kinds of models that are asked for, of "auto" those that can minimise the objective; the simplest first."""
    if model == "trees":
        return [Trees(kind, numbers, rounds=rounds, how=how)]
    networks = Networks(model, kind, numbers, steps=steps, how=how)
    adaptive = any(isinstance(weight, str) for weight in how["penalty_weights"] or ())  # which follows a network
    if model != "auto" or adaptive or not suits_trees(networks.everything.objective):
        return [networks]
    try:
        lightgbm()
    except ImportError as error:
        notes.append(f"trees are not compared: {error}")
        return [networks]
    return [networks, Trees(kind, numbers, rounds=rounds, how=how)]


def _about_rows(contender: Contender[Any], aux: Sequence[str], notes: list[str]) -> None:
    """What of the rows is not used."""
    objective, task = contender.everything.objective, contender.everything.task
    if aux and objective.infers is None:
        given = task.train.environment is not None and len(task.train.names) > 1
        why = "environments are given" if given else f"objective {objective.name!r} infers none"
        notes.append(f"aux ({', '.join(aux)}) is not used, since {why}, and is no feature either")
    if contender.rows is not contender.everything:
        notes.append(
            f"the path was compared on {len(contender.rows.task.train):,} rows, drawn at random from every "
            "environment; the model is trained on all"
        )


def _that_can_be_compared(contenders: list[Contender[Any]], bar: ProgressBar | None) -> list[Contender[Any]]:
    """All of them where environments are given. Inferred ones are each model's own, and their risks mean different
    things: then one of them, which plain risk minimisation suits best; a simpler one where they are alike."""
    if len(contenders) == 1 or not infers_held_out(contenders[0].rows.objective):
        return contenders
    best, lowest = contenders[0], contenders[0].plain_risk(bar, 0.1)
    for other in contenders[1:]:
        risk = other.plain_risk(bar, 0.1)
        if risk < ALIKE * lowest:
            best, lowest = other, risk
    return [best]


def _settings(found: Found, n_rows: int) -> dict[str, Any]:
    winner, _ = found.chosen
    selected = winner.estimator.selected_
    chosen = {k: v for k, v in selected.items() if k not in ("figures", "message", "outcome", "rule")}
    several = {"models compared": [contender.kind for contender in found.contenders]} if len(found.paths) > 1 else {}
    return {
        **several,
        **winner.settings(),
        "random_state": found.random_state,
        "rows": n_rows,
        "candidates": len(found.search.candidates),
        "chosen": {k: _plain(v) for k, v in chosen.items()},
        "figures": {k: _plain(v) for k, v in found.search.choice.figures.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
