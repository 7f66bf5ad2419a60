"""What to expect in an environment that nobody has seen, for the summary: of every kind of model."""

from __future__ import annotations

from typing import Any

import pandas as pd

from irmtv.app.fit.comparison import Score
from irmtv.app.fit.summary import Expected, LeftOutFamily, LeftOutRow, NewEnvironment
from irmtv.app.fit.summary_parts import Searches
from irmtv.core.plain_json import finite
from irmtv.estimators.new_environment import (
    ASSUMPTION,
    COVERAGE,
    expected_score,
    left_out_table,
    what_was_left_out,
)

LEAST = 3  # environments that must be given


def new_environment(searches: Searches, score: Score) -> NewEnvironment:
    """Scores of every kind of model where it was not trained; where there are none, the reason."""
    metric = score.name
    tables = [
        left_out_table(family.rows, search, metric)
        for family, search in zip(searches.families, searches.each, strict=True)
    ]
    families: list[LeftOutFamily] = [
        {
            "name": family.name,
            "model": family.describe(search.path),
            "taken": family is searches.family,
            "plain_expected": _expected(table, metric, "plain"),
            "expected": _expected(table, metric, "chosen"),
            "environments": _rows(table),
        }
        for family, search, table in zip(searches.families, searches.each, tables, strict=True)
        if table is not None
    ]
    taken = next((family for family in families if family["taken"]), None)
    expected = None if taken is None or taken["expected"]["mean"] is None else taken["expected"]
    return {
        "metric": metric,
        "message": _why_not(searches, metric) if expected is None else "",
        "left_out": what_was_left_out(searches.search),
        "expected": expected,
        "coverage": COVERAGE,
        "assumption": ASSUMPTION,
        "families": families,
        "seconds": sum(search.left_out_seconds for search in searches.each),
    }


def _rows(table: pd.DataFrame) -> list[LeftOutRow]:
    return [
        {
            "name": row["environment"],
            "rows": int(row["n"]),
            "plain": finite(row["plain"]),
            "chosen": finite(row["chosen"]),
            "missing": row.get("missing", ""),
        }
        for row in table.to_dict("records")
    ]


def _expected(table: pd.DataFrame, metric: str, column: str) -> Expected:
    values: dict[str, Any] = expected_score(table, metric, column)
    return {
        "mean": finite(values["mean"]),
        "worst": finite(values["worst"]),
        "low": finite(values["low"]),
        "high": finite(values["high"]),
    }


def _why_not(searches: Searches, metric: str) -> str:
    rows, objective = searches.data.task.train, searches.data.objective
    n = 0 if rows.environment is None else len(rows.names)
    if objective.infers_held_out:
        why = "environments are inferred here, from fewer than three distinct values"
    elif n < LEAST:
        given = {0: "none is given", 1: "one is given"}.get(n, f"{n} are given")
        why = f"it takes {LEAST} or more environments, to leave each out in turn, and {given}"
    elif searches.search.split.groups or searches.search.elsewhere is not None:
        why = f"fewer than two of the environments that were left out have a value of {metric}"
    else:
        rule = searches.estimator.rule
        why = f"rule {rule!r} does not leave environments out"
        if rule == "invariance":
            why = "the chosen model was not trained again without each environment"
    return f"What to expect in an environment that nobody has seen is not known: {why}."
