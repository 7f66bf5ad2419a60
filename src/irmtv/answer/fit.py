"""A table, a target, and where each row came from: a model to use tomorrow, and what was found out on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_numeric_dtype
from sklearn.pipeline import Pipeline

from irmtv.answer.found import Found, curves, feature_weights, inferred, losses, path_points
from irmtv.answer.held_out import compare, held_out_outputs, score_for, target_of
from irmtv.answer.summary import Data, FitSummary
from irmtv.answer.words import headline, versions
from irmtv.core.messages import did_you_mean, shown
from irmtv.estimators.base import Prepared
from irmtv.estimators.cv import InvariantClassifierCV, InvariantRegressorCV
from irmtv.estimators.parameters import as_seed
from irmtv.progress import ProgressBar
from irmtv.search import Searched, search
from irmtv.tabular import Columns, Table, split_columns, table_steps, task_of

MODELS = ("auto", "linear", "mlp")
HIDDEN = (32,)  # of the network that "auto" compares with a linear model
# training on batches above so many rows, for a network and for a linear model
BATCH, MANY_ROWS, VERY_MANY_ROWS = 2048, 10_000, 100_000
SEARCHED_ROWS = 200_000  # of more rows so many are drawn for the search; the choice is trained on all
COMPARED_ROWS = 50_000  # and so many for "linear or network"


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
    model : {"auto", "linear", "mlp"}, default "auto"
        "auto" takes that of the two with which plain risk minimisation has the lower risk on held-out rows.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the target's values.
    rule : str, default "invariance"
        How penalty weight and step are chosen; see :class:`irmtv.InvariantClassifierCV`.
    penalty_weights : sequence or None, default None
        The path; 0 is always in it.
    folds, steps : int, default 3 and 1000
        Of the search.
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
    >>> from irmtv.answer import fit_table
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
    made = InvariantRegressorCV if kind == "regression" else InvariantClassifierCV
    estimator: Any = made(
        objective,
        hidden=() if model == "linear" else HIDDEN,
        rule=rule,
        penalty_weights=penalty_weights,
        cv=folds,
        max_steps=steps,
        min_rows=min_rows,
        random_state=random_state,
    )
    estimator._check_parameters()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        everything = estimator._prepare(features, _target(columns.y), columns.environment, columns.aux, None)
        del features
        _refuse_readers_of_aux(everything)
        if aux and everything.objective.infers is None:
            data["notes"].append(
                f"aux ({', '.join(aux)}) is not used, since environments are given, and is no feature either"
            )
        prepared = _some_rows(everything, SEARCHED_ROWS, random_state)
        if prepared is not everything:
            data["notes"].append(
                f"the path was compared on {len(prepared.task.train):,} rows, drawn at random from every environment; "
                "the model is trained on all"
            )
        found = _search(estimator, prepared, model, random_state, bar)
        estimator._finish(everything, found, as_seed(random_state))
    data["notes"] += [note for note in dict.fromkeys(str(w.message) for w in told) if not _is_verdict(note, estimator)]
    _stage(bar, "comparing", 0.05)
    fitted = Found(estimator, prepared, found, pre.get_feature_names_out().tolist(), random_state)
    by_environment, weights = losses(fitted), feature_weights(fitted)  # which train a model each
    clock.lap("training")

    rows, overall, worst = compare(
        held_out_outputs(found, found.plain, prepared),
        held_out_outputs(found, found.choice.index, prepared),
        target_of(prepared),
        fitted.codes,
        fitted.names,
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
        "objective": prepared.objective.name,
        "model": "linear" if not estimator.hidden else "mlp " + " ".join(map(str, estimator.hidden)),
        "settings": _settings(estimator, found, n_rows),
        "rule": rule,
        "outcome": estimator.selected_["outcome"],
        "headline": "",
        "message": estimator.selected_["message"],
        "metric": score.name,
        "greater_is_better": score.greater_is_better,
        "environments": rows,
        "overall": overall,
        "worst": worst,
        "path": path_points(fitted),
        "curves": curves(fitted),
        "inferred": inferred(fitted, aux, columns.aux_is_date),
        "features": weights,
        "losses": by_environment,
    }
    summary["headline"] = headline(summary)
    clock.lap("comparing")
    summary["seconds"] = {**clock.laps, "all": clock.total()}
    _stage(bar, "done", 0.0)
    return Answer(Pipeline([*pre.steps, ("model", estimator)]), summary)


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


def _refuse_readers_of_aux(prepared: Prepared) -> None:
    if prepared.objective.reads_aux or prepared.objective.procedure is not None:
        raise ValueError(
            f"objective {prepared.objective.name!r} keeps more than a predictor of the features: it cannot be compared "
            "on held-out rows here. Use 'minimax-tv-l1' or 'irm-tv-l1', or the class InvariantClassifierCV in Python."
        )


def _search(estimator: Any, prepared: Prepared, model: str, seed: int, bar: ProgressBar | None) -> Searched:
    """The path, with the network that suits the rows."""
    n_rows = len(prepared.task.train)
    if model == "auto":
        _stage(bar, "linear or network", 0.15)
        estimator.hidden = _better_network(estimator, _some_rows(prepared, COMPARED_ROWS, seed), seed, bar)
    estimator.batch_size = _batch_size(estimator.hidden, n_rows)
    _stage(bar, "penalty path", 0.7)
    found: Searched = estimator._searched(prepared, as_seed(seed), keep_states=True, progress=bar)
    _stage(bar, "training on all rows", 0.1)
    return found


def _batch_size(hidden: Sequence[int], n_rows: int) -> int | str:
    return BATCH if n_rows > (MANY_ROWS if hidden else VERY_MANY_ROWS) else "auto"


def _some_rows(prepared: Prepared, most: int, seed: int) -> Prepared:
    """At most so many rows, at random: of every environment its share, and no fewer than a thousand of its rows."""
    rows = prepared.task.train
    n = len(rows)
    if n <= most:
        return prepared
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    codes = torch.zeros(n, dtype=torch.int64) if rows.environment is None else rows.environment
    in_order = shuffled[torch.argsort(codes[shuffled], stable=True)]
    sizes = torch.bincount(codes).tolist()
    wanted = [min(size, max(1000, round(size * most / n))) for size in sizes]
    parts = torch.split(in_order, sizes)
    index = torch.cat([part[:count] for part, count in zip(parts, wanted, strict=True)]).sort().values
    return replace(prepared, task=replace(prepared.task, train=rows.take(index)))


def _better_network(estimator: Any, prepared: Prepared, seed: int, bar: ProgressBar | None) -> tuple[int, ...]:
    """Hidden layers with which plain risk minimisation predicts held-out rows better; linear where they are alike.

    The choice rests on rows of the training environments alone, as that of l2 does: it is made before any penalty.
    """
    task = replace(prepared.task, test=None)
    lowest = {}
    for hidden in ((), HIDDEN):
        risks = search(
            task,
            "erm",
            [{"l2": value} for value in (0.0, 3e-3)],
            rule="iid",
            n_folds=2,
            seed=as_seed(seed),
            by_class=True,
            steps=estimator.max_steps,
            hidden=hidden,
            learning_rate=estimator.learning_rate,
            batch_size=_batch_size(hidden, len(task.train)),
            progress=bar,
        ).records.pooled()
        lowest[hidden] = float(risks.overall.nan_to_num(np.inf).min())
    return HIDDEN if lowest[HIDDEN] < 0.99 * lowest[()] else ()


def _settings(estimator: Any, found: Searched, n_rows: int) -> dict[str, Any]:
    chosen = {k: v for k, v in estimator.selected_.items() if k not in ("figures", "message", "outcome", "rule")}
    return {
        "folds": estimator.cv,
        "steps": estimator.max_steps,
        "learning_rate": estimator.learning_rate,
        "batch_size": estimator.batch_size,
        "random_state": estimator.random_state,
        "rows": n_rows,
        "candidates": len(found.candidates),
        "chosen": {k: _plain(v) for k, v in chosen.items()},
        "figures": {k: _plain(v) for k, v in found.choice.figures.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _is_verdict(warning: str, estimator: Any) -> bool:
    """The rule's own message comes as a warning, too, where it is bad news."""
    return str(estimator.selected_["message"]) in warning


def _stage(bar: ProgressBar | None, name: str, share: float) -> None:
    if bar is not None:
        bar.stage(name, share)
