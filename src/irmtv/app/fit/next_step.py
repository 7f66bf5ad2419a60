"""The third paragraph of the answer: what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from irmtv.app.fit.comparing import (
    better_or_worse,
    falls_elsewhere,
    left_out_difference,
    rule_figures,
    worse_on_test,
)
from irmtv.app.fit.expectation import place
from irmtv.app.fit.summary import FitSummary, NewEnvironment, TellingColumn
from irmtv.core.numbers import MetricFormat, listed, several

MOST_NAMED = 3  # columns that give an environment away: more than these cannot be left out one by one
FEW_ROWS = 50  # of an environment: its score is then known to about 14 points
NUMBERED = 5  # environments with a number, from which on they may be times


def next_step(summary: FitSummary, kind: str, command: str) -> str:
    """At most two steps, and the command that shows how the environments differ, where there is one."""
    steps = [*_without_columns(summary), *_more_of(summary, kind)][:2]
    if not command:
        steps.append(
            "Name the column that says where each row came from (--environment), to learn what to expect elsewhere."
        )
    elif summary["data"]["environment"]:
        steps.append("To see how the environments differ, and which features carry it, run:")
    else:
        steps.append("To see which environments are found, and how they differ, run:")
    return " ".join(steps)


def _without_columns(summary: FitSummary) -> list[str]:
    """Columns that give the environment away, to be left out."""
    look = summary.get("first_look")
    found = [] if look is None else look["telling"]
    if not found:
        return []
    if len(found) > MOST_NAMED:
        return [
            f"{len(found)} columns give an environment away, each by itself ({_names(found[:MOST_NAMED])}, ...): the "
            "environments hardly overlap, and a new one may look like none of them."
        ]
    names = [column["name"] for column in found]
    told = listed(_told(found, environment, summary) for environment in dict.fromkeys(c["environment"] for c in found))
    them = "it" if len(names) == 1 else "them"
    option = _how_to_leave_out(names, summary)
    return [f"Try it without {listed(names)} ({option}): {told}, and a model can learn the place by {them}."]


def _how_to_leave_out(names: Sequence[str], summary: FitSummary) -> str:
    """What to type: features that were named one by one cannot be dropped as well."""
    given = summary["data"].get("options", {})
    if given.get("features"):
        return f"take {'it' if len(names) == 1 else 'them'} out of --features"
    also = listed(name for name in names if name in given.get("categorical", []))
    return shlex.join(_option("drop", names)) + (f", and take {also} out of --categorical" if also else "")


def _option(name: str, values: Sequence[str]) -> list[str]:
    """An option with all of its columns; a name with a comma is given by itself."""
    return [part for text in (values if any("," in v for v in values) else [",".join(values)])
            for part in (f"--{name}", text)]  # fmt: skip


def _told(columns: Sequence[TellingColumn], environment: str, summary: FitSummary) -> str:
    names = [column["name"] for column in columns if column["environment"] == environment]
    tells = "alone tells" if len(names) == 1 else "each alone tell"
    others = "the other" if len(summary["environments"]) == 2 else "the others"
    return f"{listed(names)} {tells} {place(environment, summary)} from {others}"


def _names(columns: Sequence[Any]) -> str:
    return ", ".join(column["name"] for column in columns)


def _more_of(summary: FitSummary, kind: str) -> list[str]:
    """What the answer lacks, or what to do with a good one."""
    figures, look, given = rule_figures(summary), summary.get("first_look"), len(summary["data"]["environment"]) > 0
    if unlike := worse_on_test(summary):
        test = summary["test"]
        which = f"{place(unlike[0]['name'], summary)} is" if test["environments"] else "they are"
        return [f"Have rows like those of {test['file']} in training: {which} unlike the known environments."]
    if given and len(summary["environments"]) < 3 and not _worse_everywhere(summary):
        return ["Three or more environments would show what to expect in a new one; a finer column may have them."]
    if _worse_everywhere(summary):
        return [
            "In known environments the plain model is better (--objective erm): prefer it unless new ones will differ "
            "a lot from these."
        ]
    if figures.get("contradicted") or summary["outcome"] == "none-found":
        return ["Do not rely on these scores elsewhere before the difference is understood."]
    if falls_elsewhere(summary) and not _may_be_times(summary):
        return ["More environments in training would help most: models fall in those that they have not seen."]
    if figures.get("blind"):
        return ["More rows would tell more."]
    if look is not None and look["smallest_rows"] < FEW_ROWS:
        return [
            f"{place(look['smallest'], summary)} has only {several(look['smallest_rows'], 'row')}: its score is rough."
        ]
    if _may_be_times(summary):
        return [
            f"If {' / '.join(summary['data']['environment'])} is a time, add --time-ordered: each is then predicted "
            "from what came before."
        ]
    if kind == "good":
        return ["Use the model, and check it on the first labelled rows of a new environment with irmtv evaluate."]
    return []


def _worse_everywhere(summary: FitSummary) -> bool:
    """Whether the choice is worse over all rows and in the worst environment, and not known to be better elsewhere."""
    form, greater = MetricFormat.in_words(summary["metric"]), summary["greater_is_better"]
    known = {better_or_worse(row, greater, form) for row in (summary["overall"], summary["worst"])}
    return known == {"worse"} and left_out_difference(summary) != "better"


def _may_be_times(summary: FitSummary) -> bool:
    """Whether environments are numbered ("batch1", "batch2", ...), enough to predict them in order, and were not."""
    unseen = summary.get("new_environment")
    stems = {row["name"].rstrip("0123456789") for row in summary["environments"]}
    numbered = len(stems) == 1 and all(row["name"][-1:].isdigit() for row in summary["environments"])
    return numbered and len(summary["environments"]) >= NUMBERED and unseen is not None and not _in_time(unseen)


def _in_time(unseen: NewEnvironment) -> bool:
    return unseen["left_out"] == "in order"


def diagnose_command(summary: FitSummary) -> str:
    """The command that shows all of how the environments differ, with the user's own arguments."""
    data = summary["data"]
    if not data["environment"] and not data["aux"]:
        return ""
    where = [part for name in data["environment"] for part in ("--environment", name)]
    where += [part for name in data["aux"] for part in ("--aux", name)]
    where += [part for name, values in data.get("options", {}).items() for part in _option(name, values)]
    return shlex.join(["irmtv", "diagnose", data.get("path", data["file"]), "--target", data["target"], *where])
