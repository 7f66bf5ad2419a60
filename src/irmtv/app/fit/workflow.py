"""`fit_table`: from a table, a target and environments to a fitted model and a summary of what was learned."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from typing import Any

import pandas as pd
from sklearn.pipeline import Pipeline

from irmtv.app.fit.all_rows import about_rows, reading_reports, train_choice
from irmtv.app.fit.answer import answer
from irmtv.app.fit.comparison import compare, target_of
from irmtv.app.fit.expectation import named_place
from irmtv.app.fit.families import BOTH_ROWS, Family, Networks, Trees, comparable_families, searched_rows, start_stage
from irmtv.app.fit.first_look import first_look
from irmtv.app.fit.new_environment import new_environment
from irmtv.app.fit.other_rows import judged, read_other_rows, score_other_rows
from irmtv.app.fit.preparation import (
    Prepared,
    about_gaps,
    looks_at_labels,
    needs_labels,
    prepare,
    prepare_stream,
)
from irmtv.app.fit.ranks import agreed, check_same_table
from irmtv.app.fit.summary import Feature, FirstLook, FitSummary, LossCurve
from irmtv.app.fit.summary_parts import (
    Searches,
    compared_families,
    curves,
    feature_weights,
    held_out_loss,
    inferred,
    loss_curves,
    path_points,
)
from irmtv.app.io import ParquetTable, Table, open_table
from irmtv.app.io.memory import give_back_memory, memory_limit
from irmtv.core.messages import check_positive, did_you_mean
from irmtv.core.plain_json import plain_json
from irmtv.core.progress_bar import ProgressBar
from irmtv.core.ranks import Ranks
from irmtv.core.versions import versions
from irmtv.estimators.new_environment import SCORES, what_was_left_out
from irmtv.models.base import KeepOutputs
from irmtv.models.families import pick_family
from irmtv.models.trees.library import lightgbm
from irmtv.models.trees.settings import suits_trees
from irmtv.objectives import OBJECTIVES

MEMORY_OF_PROCESS = "4GB"
MODELS = ("auto", "linear", "mlp", "trees")


@dataclass(frozen=True)
class Answer:
    """A fitted pipeline (raw table in, predictions out) and what is known of it."""

    pipeline: Pipeline
    summary: FitSummary


def fit_table(
    source: str | PathLike[str] | Table | ParquetTable | pd.DataFrame,
    target: str,
    environment: Sequence[str] = (),
    aux: Sequence[str] = (),
    *,
    objective: str = "auto",
    model: str = "auto",
    task: str | None = None,
    drop: Sequence[str] = (),
    features: Sequence[str] = (),
    categorical: Sequence[str] = (),
    rule: str = "invariance",
    max_price: float | None = None,
    penalty_weights: Sequence[float] | None = None,
    folds: int = 3,
    steps: int = 1000,
    rounds: int = 100,
    metric: str | None = None,
    test: str | PathLike[str] | Table | pd.DataFrame | None = None,
    min_rows: int = 10,
    time_ordered: bool | None = None,
    random_state: int = 0,
    encoding: str | None = None,
    memory: str | int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    process_group: Any = None,
    command: str = "",
    bar: ProgressBar | None = None,
) -> Answer:
    """Fit a penalty path to a raw table, choose by the rule, and compare with ERM.

    Parameters
    ----------
    source : path, Table, ParquetTable or DataFrame
        CSV, TSV, Parquet, or a folder of Parquet files; columns of numbers, categories, text and dates, with missing
        values.
    target : str
        The column to be predicted.
    environment : names of columns, default ()
        Where each row came from; several are joined.
    aux : names of columns, default ()
        What environments are inferred from, where none are given: numbers or dates.
    objective : str, default "auto"
        "irm-tv-l1" where environments are given, else "minimax-tv-l1"; or a name in `irmtv.OBJECTIVES`.
    model : {"auto", "linear", "mlp", "trees"}, default "auto"
        "auto" compares a linear model, a network and trees on the same folds by their ERM. With three or more given
        environments the kind with the lowest risk in environments that it was not trained on is taken; with two, the
        lowest risk on held-out rows; a simpler kind within one standard error. The rule then chooses from the path of
        that kind. With more than 20,000 rows a linear model or a network is taken beforehand, by held-out rows. Where
        environments are inferred, those of different kinds of models are different ones: then the kind with the lowest
        held-out risk of ERM is taken before its path is trained.
    task : {"binary", "multiclass", "regression"} or None, default None
        None: by the target's values.
    drop : names of columns, default ()
        Columns that are no features.
    features : names of columns, default ()
        Only these are features; all others where none are named.
    categorical : names of columns, default ()
        Features whose values are categories, also where they are numbers (codes).
    rule : str, default "invariance"
        How penalty weight and step are chosen; see :class:`irmtv.InvariantClassifierCV`.
    max_price : float or None, default None
        The largest price of invariance that is accepted, of rule "invariance": how much higher than that of ERM the
        held-out risk (log loss, squared error) over all training rows may be, as a share: 0.05 is 5 %.
    penalty_weights : sequence or None, default None
        The path; 0 is always in it.
    folds : int, default 3
        Every row is held out once, in so many folds.
    steps : int, default 1000
        Of training, for networks, and for linear models that are too large for Newton's method.
    rounds : int, default 100
        Of boosting, for trees.
    metric : str or None, default None
        What is shown: "accuracy", "log_loss", "roc_auc", "f1", "balanced_accuracy" or "average_precision"; "rmse",
        "mae", "mse" or "r2". None is the first of them. The choice does not depend on it.
    test : path, Table, DataFrame or None, default None
        Other rows, with the target: the chosen model and ERM are scored on them, by environment where these columns are
        there. They play no part in the choice.
    min_rows : int, default 10
        Environments with fewer rows are pooled into one.
    time_ordered : bool or None, default None
        Environments are times: what to expect in a new one comes from models of what came before each of them. It takes
        four or more. None: where their labels are dates, months, quarters or years; see
        :class:`irmtv.InvariantClassifierCV`.
    random_state : int, default 0
        Seed of the folds and the models.
    encoding : str or None, default None
        Of a text file; None is UTF-8.
    memory : str, int or None, default None
        "2GB", "500MB" or bytes; None is half of what is available. Parquet files that are too large for it are read
        block by block: what is compared and shown rests on a sample of at most 200,000 rows, the choice is trained on
        all.
    checkpoint : path or None, default None
        Where the training on all rows of such files writes how far it is, so that the same call goes on from there.
    process_group : ProcessGroup or None, default None
        A group of torch.distributed, each of whose processes makes this call: they share the blocks of the table, and
        all get the model of all rows. Linear models and networks.
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
    _check(objective, model, bool(environment), bool(aux), steps, rounds)
    if process_group is not None and model == "trees":
        raise ValueError("model must be linear or mlp with several processes: trees are grown by one. Got 'trees'.")
    clock = _Clock()
    # processes must cut the table in the same way, whatever the memory of their machines
    limit = memory_limit(memory if process_group is None else memory or MEMORY_OF_PROCESS)
    if isinstance(source, (str, PathLike)):
        opened = partial(open_table, source, limit, encoding=encoding, in_blocks=process_group is not None)
        source = agreed(process_group, opened)
    if process_group is not None and not isinstance(source, ParquetTable):
        raise ValueError(
            "several processes share the row groups of a Parquet file or a folder of them. Got another table; write it "
            "as Parquet, or use one process."
        )
    if process_group is not None and isinstance(source, ParquetTable):
        check_same_table(process_group, source)
    if isinstance(source, ParquetTable) and process_group is None and source.fits(limit):
        source = Table.of(source)
    clock.lap("reading")
    roles = target, _names(environment), _names(aux)
    how: dict[str, Any] = {"drop": _names(drop), "features": _names(features), "categorical": _names(categorical)}
    if isinstance(source, ParquetTable):
        prepare_here = partial(
            prepare_stream,
            source,
            *roles,
            **how,
            task=task,
            metric=metric,
            memory=limit,
            sample=searched_rows(random_state, limit),
            keep_labels=looks_at_labels(objective),
            needed=needs_labels(objective, bool(roles[1])),
            min_rows=min_rows,
            processes=1 if process_group is None else Ranks.of(process_group).size,
            progress=reading_reports(bar, "reading all rows"),
        )
        prepared = agreed(process_group, prepare_here)
        give_back_memory()  # pieces of the files
    else:
        prepared = prepare(Table.of(source), *roles, **how, task=task, metric=metric, encoding=encoding)
    other = None if test is None else read_other_rows(test, prepared, encoding)
    del source
    clock.lap("preparing")
    if objective == "erm" and rule == "invariance" and not prepared.has_environments:
        rule = "iid"  # nothing to compare, and nothing but the step to choose
    parameters = {
        "objective": objective,
        "rule": rule,
        "penalty_weights": penalty_weights,
        "cv": folds,
        "min_rows": min_rows,
        "time_ordered": "auto" if time_ordered is None else time_ordered,
        "random_state": random_state,
        "rule_options": None if max_price is None else {"max_price": max_price},
    }
    together = {"checkpoint": checkpoint, "process_group": process_group}
    searches = _search_and_train(prepared, model, parameters, steps, rounds, bar, together)
    start_stage(bar, "comparing", 0.05)
    losses, weights = loss_curves(searches), feature_weights(searches)
    clock.lap("training")
    summary = _summary(prepared, searches, rule, losses, weights, command)
    clock.lap("comparing")
    if other is not None:
        summary["test"] = judged(score_other_rows(other, prepared, searches), summary)
        clock.lap("test rows")
    summary["answer"] = answer(summary)
    summary["headline"] = summary["answer"]["choice"]
    in_blocks = {} if prepared.stream is None else {"all rows": prepared.stream.seconds}  # a part of training
    summary["seconds"] = {**clock.laps, **in_blocks, "all": clock.total()}
    start_stage(bar, "done", 0.0)
    return Answer(Pipeline([*prepared.steps[searches.family.reads].steps, ("model", searches.estimator)]), summary)


def _check(objective: str, model: str, environment: bool, aux: bool, steps: int, rounds: int) -> None:
    if model not in MODELS:
        raise ValueError(f"model must be one of {list(MODELS)}. Got {model!r}.{did_you_mean(model, MODELS)}")
    _check_columns(objective, environment, aux)
    check_positive(steps, "steps")
    check_positive(rounds, "rounds")


def _search_and_train(
    prepared: Prepared,
    model: str,
    parameters: Mapping[str, Any],
    steps: int,
    rounds: int,
    bar: ProgressBar | None,
    together: Mapping[str, Any],
) -> Searches:
    """The path of every model family, one of the families, and its choice trained on all rows.

    Warnings on the way become notes of the summary, except what the rule says of its choice: that has its own place.
    """
    notes = prepared.data["notes"]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        alone = together["process_group"] is None
        families = _families(prepared, model, parameters, steps, rounds, with_trees=alone)
        prepared.features.clear()
        about_rows(families[0], prepared)
        families = comparable_families(families, bar)
        keep: KeepOutputs = True if prepared.score.name in SCORES else "left-out"
        each = [family.search(bar, 0.85 / len(families), keep) for family in families]
        picked = pick_family(each, [family.name for family in families])
        names = prepared.steps[families[picked.index].reads].get_feature_names_out().tolist()
        searches = Searches(families, each, picked, names, parameters["random_state"])
        prepared.data["features"] = len(names)
        notes += about_gaps(prepared.columns, searches.family.reads)
        start_stage(bar, "training on all rows", 0.1)
        train_choice(prepared, searches, bar, together)
    if parameters["time_ordered"] == "auto" and what_was_left_out(searches.search) == "in order":
        column = " / ".join(prepared.data["environment"])
        notes.append(f"{column!r} is read as times, in their order; --no-time-ordered leaves each out in turn instead")
    message = searches.estimator.selected_["message"]
    notes += [note for note in dict.fromkeys(str(w.message) for w in warned) if message not in note]
    return searches


def _summary(
    prepared: Prepared,
    searches: Searches,
    rule: str,
    losses: list[LossCurve],
    weights: list[Feature],
    command: str,
) -> FitSummary:
    """Everything that is printed, stored beside the model and shown on the page."""
    family, search = searches.family, searches.search
    selected, choice = family.estimator.selected_, search.choice
    rows, overall, worst = compare(
        searches.outputs(search.erm),
        searches.outputs(choice.index),
        target_of(searches.data),
        searches.codes,
        searches.names,
        prepared.score,
        searches.random_state,
    )
    summary: FitSummary = {
        "schema": 1,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": {},
        "versions": versions(),
        "data": prepared.data,
        "task": prepared.task,
        "classes": [] if prepared.task == "regression" else [str(c) for c in family.estimator.classes_],
        "objective": _objective(searches),
        "model": searches.model_of(choice.index),
        "plain_model": searches.model_of(search.erm),
        "settings": _settings(searches, prepared.data["rows_used"]),
        "families": compared_families(searches),
        "rule": rule,
        "sought": searches.data.objective.name != "erm",
        "outcome": selected["outcome"],
        "headline": "",
        "message": selected["message"],
        "new_environment": new_environment(searches, prepared.score),
        "first_look": _first_look(prepared, searches),
        "metric": prepared.score.name,
        "greater_is_better": prepared.score.greater_is_better,
        "environments": rows,
        "overall": overall,
        "worst": worst,
        "path": path_points(searches),
        "curves": curves(searches),
        "inferred": inferred(searches, prepared.data["aux"], prepared.columns.aux_is_date),
        "features": weights,
        "features_kind": family.features_kind,
        "losses": losses,
    }
    return summary


def _first_look(prepared: Prepared, searches: Searches) -> FirstLook | None:
    """How the environments that are given differ."""
    rows, columns = searches.data.task.train, prepared.columns
    if columns.environment is None or rows.environment is None:
        return None
    called = partial(named_place, columns=prepared.data["environment"])
    return first_look(
        rows.x.numpy(),
        columns.features,
        columns.environment,
        held_out_loss(searches, searches.search, searches.search.erm),
        searches.codes,
        [called(str(name)) for name in searches.names],
        called,
        searches.random_state,
    )


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


def _names(given: Sequence[str]) -> list[str]:
    """A single name is one name, not its letters."""
    return [given] if isinstance(given, str) else list(given)


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


def _families(
    prepared: Prepared, model: str, parameters: Mapping[str, Any], steps: int, rounds: int, with_trees: bool = True
) -> list[Family]:
    """The model families that are asked for, of "auto" those that can minimise the objective; the simplest first."""

    def networks(kind: str) -> Family:
        table, whole = prepared.table(Networks.reads), prepared.whole(Networks.reads)
        return Networks(kind, prepared.task, table, steps=steps, parameters=parameters, whole=whole)

    def trees() -> Family:
        table, whole = prepared.table(Trees.reads), prepared.whole(Trees.reads)
        return Trees(prepared.task, table, rounds=rounds, parameters=parameters, whole=whole)

    if model == "trees":
        return [trees()]
    families = [networks(model)]
    if model != "auto":
        return families
    first = families[0].all_rows
    given = len(first.task.train.names) > 1 and not first.objective.infers_held_out
    if given and len(first.task.train) <= BOTH_ROWS:
        families = [networks("linear"), networks("mlp")]
    adaptive = any(isinstance(weight, str) for weight in parameters["penalty_weights"] or ())  # follows a network
    if adaptive or not suits_trees(first.objective):
        return families
    if not with_trees:
        prepared.data["notes"].append("trees are not compared: several processes cannot grow them together")
        return families
    try:
        lightgbm()
    except ImportError as error:
        prepared.data["notes"].append(f"trees are not compared: {error}")
        return families
    return [*families, trees()]


def _objective(searches: Searches) -> str:
    """That of the choice; of ERM, that of the path it was chosen from."""
    path = searches.search.path
    return searches.data.objective.name if path.is_erm else path.objective.name


def _settings(searches: Searches, n_rows: int) -> dict[str, Any]:
    family, search = searches.family, searches.search
    selected = family.estimator.selected_
    chosen = {k: v for k, v in selected.items() if k not in ("figures", "message", "outcome", "rule")}
    if family.solver(search.path) == "newton":
        chosen = {"newton_steps" if k == "step" else k: v for k, v in chosen.items()}
    return {
        **family.settings(search.path),
        "random_state": searches.random_state,
        "rows": n_rows,
        "candidates": sum(len(one.candidates) for one in searches.each),
        "chosen": plain_json(chosen),
        **{name.replace("_", " "): value for name, value in (family.estimator.rule_options or {}).items()},
        "figures": plain_json(search.choice.figures),
    }
