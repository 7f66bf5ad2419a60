"""What to expect in an environment that nobody has seen, for the summary: every kind of model, and a sentence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from irmtv.app.fit.comparison import Score
from irmtv.app.fit.summary import Expected, LeftOutFamily, LeftOutRow, NewEnvironment
from irmtv.app.fit.summary_parts import Searches
from irmtv.core.numbers import MetricFormat, several
from irmtv.core.plain_json import finite
from irmtv.estimators.new_environment import ASSUMPTION, COVERAGE, SCORES, expected_score, left_out_table

LEAST = 3  # environments that must be given


def new_environment(searches: Searches, score: Score) -> NewEnvironment:
    """Scores of every kind of model where it was not trained; where there are none, the reason."""
    metric = score.name if score.name in SCORES else "rmse"  # of absolute errors no model is measured there
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
    return {
        "metric": metric,
        "message": _why_not(searches) if taken is None else _message(taken, metric, searches),
        "left_out": "environments" if searches.search.elsewhere is None else searches.search.elsewhere.kind,
        "expected": None if taken is None else taken["expected"],
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


def _message(family: LeftOutFamily, metric: str, searches: Searches) -> str:
    """The estimate in plain words, and the classes that nobody could have learned."""
    form, expected, rows = MetricFormat.in_words(metric), family["expected"], family["environments"]
    mean, worst, low, high = (form.with_unit(expected[key]) for key in ("mean", "worst", "low", "high"))
    plain = form.with_unit(family["plain_expected"]["mean"])
    beside = "" if all(row["plain"] == row["chosen"] for row in rows) else f", ERM {plain}"
    of = _counted(len(rows), searches)
    where = next((f" in {row['name']}" for row in rows if row["chosen"] == expected["worst"] and of.isdigit()), "")
    text = (
        f"In an environment that nobody has seen: {form.words} about {mean}{beside} (worst of {of}: {worst}{where}; "
        f"{100 * COVERAGE:.0f} % of new ones between {low} and {high}, if they are drawn as these were)."
    )
    missing = [f"{row['missing']} (in {row['name']})" for row in rows if row["missing"]]
    if missing:
        text += (
            f" Classes that no other environment has: {'; '.join(missing)}. Without them in training, every prediction "
            "of such rows is wrong."
        )
    return text


def _counted(n: int, searches: Searches) -> str:
    """What was left out: "4", "10 groups of 30 environments", "3 times, each from what came before"."""
    elsewhere, n_environments = searches.search.elsewhere, len(searches.names)
    if elsewhere is not None and elsewhere.kind == "in order":
        return f"{several(n, 'time')}, each predicted from what came before"
    if elsewhere is not None:
        return f"{several(n, 'block')} of the first aux column"
    return str(n) if n == n_environments else f"{several(n, 'group')} of {n_environments} environments"


def _why_not(searches: Searches) -> str:
    rows, objective = searches.data.task.train, searches.data.objective
    n = 0 if rows.environment is None else len(rows.names)
    if objective.infers_held_out:
        why = "environments are inferred here, from fewer than three distinct values"
    elif n < LEAST:
        given = {0: "none is given", 1: "one is given"}.get(n, f"{n} are given")
        why = f"it takes {LEAST} or more environments, to leave each out in turn, and {given}"
    else:
        why = f"rule {searches.estimator.rule!r} does not leave environments out"
    return f"What to expect in an environment that nobody has seen is not known: {why}."
