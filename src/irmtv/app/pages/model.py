"""The report of a fitted model, from its summary alone: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

from irmtv.app.fit.answer import answer, chosen_words, model_words
from irmtv.app.fit.comparing import LEVEL, erm_is_kept
from irmtv.app.fit.summary import Data, Families, FamilyRow, FirstLook, FitSummary, LossCurve, TellingColumn
from irmtv.app.pages import new_environment, other_rows
from irmtv.app.pages.features import NOTES, feature_blocks, features_kind
from irmtv.app.pages.inferred import inferred_figure
from irmtv.app.pages.model_figures import (
    MODEL_KEYS,
    curves_figure,
    environments_figure,
    environments_table,
    losses_figure,
    path_figure,
    path_table,
)
from irmtv.core.numbers import MetricFormat, decimal, p_text, percent, several
from irmtv.html import drawing, page

MOST_COLUMNS = 60  # that are named among the settings
MOST_TELLING = 12  # columns that give an environment away
SCHEMA = 1  # of the summaries that are shown here
MEANINGS = {
    "accuracy": "the share of rows whose class is predicted right; more is better",
    "log_loss": "how surprising the true classes are to the model; less is better",
    "roc_auc": "how often a row of a class is ranked above one that is not of it; 1 is always, 0.5 is guessing",
    "f1": "the balance of how many of a class are found and how many of those found are right; 1 is best, 0 is worst",
    "balanced_accuracy": "the share of rows that are predicted right, in the mean over the classes; more is better",
    "average_precision": "the share of right ones among the rows ranked highest, on average over how many are looked "
    "at; 1 is best, and the share of the class is guessing",
    "r2": "the share of the target's variance that predictions explain; 1 is best, 0 is as good as the mean",
    "rmse": "how far predictions typically lie from the truth, in units of the target; less is better",
    "mae": "how far predictions lie from the truth on average, in units of the target; less is better",
    "mse": "the mean of squared errors; less is better",
}
# settings in words; what is not here is folded away
SETTINGS = {
    "folds": "folds of cross-validation",
    "steps": "training steps at most",
    "rounds": "boosting rounds at most",
    "learning_rate": "learning rate",
    "random_state": "random seed",
    "candidates": "models that were compared",
}


def model_content(summary: FitSummary) -> page.Content:
    """The page of a model that `irmtv fit` made, of the summary that its file holds (`read_about`)."""
    data = summary["data"]
    return page.content(
        f"What predicts {data['target']}{', whatever the environment' if data['environment'] or data['aux'] else ''}?",
        _headline(summary),
        _facts(summary),
        {
            "The answer in numbers": _answer(summary),
            "How it was chosen": _search(summary),
            "The data and the settings": _settings(summary),
        },
        summary["versions"].get("irmtv", ""),
        source=" from the summary that is stored with the model",
    )


def is_summary(about: Mapping[str, Any]) -> TypeGuard[FitSummary]:
    """Whether what a model file says about itself is a summary that this version can show."""
    if about.get("schema") == SCHEMA and "headline" in about:
        return True
    if isinstance(about.get("schema"), int) and about["schema"] > SCHEMA and "headline" in about:
        raise ValueError(
            f"the summary in the model file has schema {about['schema']}, of a newer irmtv. This one reads {SCHEMA}: "
            "update irmtv."
        )
    return False


def _headline(summary: FitSummary) -> page.Headline:
    said = answer(summary)
    first, stop, rest = said["expect"].partition(". ")
    paragraphs = "\n\n".join(filter(None, [rest, said["choice"], said["next"]]))
    expect, more = (text.replace(" %", "\u00a0%") for text in (first + stop.strip(), paragraphs))  # units stay beside
    badge: page.Badge = {"text": said["title"], "kind": said["kind"]}
    return {"badge": badge, "text": expect, "more": more, "numbers": [], "command": said["command"]}


def _facts(summary: FitSummary) -> list[tuple[str, str]]:
    """The words of the answer, each with what it means here; and where all this comes from."""
    data, classes, metric = summary["data"], summary["classes"], summary["metric"]
    better = "more is better" if summary["greater_is_better"] else "less is better"
    kind = f"{several(len(classes), 'class', 'classes')}: {_some(classes)}" if classes else "a number"
    folds = summary["settings"].get("folds")
    held_out = "rows that a model was not trained on" + (
        f": the rows are cut into {folds} parts, and each part is scored by models of the others" if folds else ""
    )
    chosen = f"{chosen_words(summary)}; the penalty is what it pays for fitting environments differently"
    plain = summary.get("plain_model", summary["model"])
    return [
        ("target", f"{data['target']}, {kind}"),
        ("environment", _environment_words(summary)),
        ("plain model", f"{model_words(plain)}, trained on all rows alike (ERM, empirical risk minimisation)"),
        ("chosen model", "" if erm_is_kept(summary) else chosen),
        (MetricFormat.in_words(metric).words, MEANINGS.get(metric, better)),
        ("held-out rows", held_out),
        ("table", f"{data['file']}, {several(data['rows_used'], 'row')} used"),
        ("made", f"{summary['created'].replace('T', ' ')[:16]}, in {summary['seconds'].get('all', 0.0):.0f} s"),
    ]


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _environment_words(summary: FitSummary) -> str:
    data, n = summary["data"], len(summary["environments"])
    if data["environment"]:
        return f"where a row came from: a value of {' with '.join(data['environment'])}; the table has {n}"
    if data["aux"]:
        found = several(n, "group")
        return f"a group of rows that training found by {', '.join(data['aux'])}; it found {found}"
    return "where a row came from; none is given here"


# --- the answer in numbers ----------------------------------------------------------------------------------


def _answer(summary: FitSummary) -> list[page.Section]:
    unseen, look = summary.get("new_environment"), summary.get("first_look")
    sections = [] if unseen is None or unseen["expected"] is None else [new_environment.section(summary, unseen)]
    sections.append(_environments(summary))
    other = other_rows.section(summary)
    sections += [] if other is None else [other]
    if look is not None:
        sections.append(_first_look(look, answer(summary)["command"]))
    if summary["features"]:
        note = NOTES[features_kind(summary)]
        sections.append(page.section("features", "Which features it looks at", note, feature_blocks(summary)))
    return sections


def _environments(summary: FitSummary) -> page.Section:
    title = "Every environment: the plain and the chosen model"
    if erm_is_kept(summary):
        title = "Every environment: the plain model, which is kept"
    drawn = any(
        row[key]["value"] is not None for row in [summary["overall"], *summary["environments"]] for key in MODEL_KEYS
    )
    block = environments_figure(summary) if drawn else environments_table(summary)
    return page.section("environments", title, "held-out rows", [block])


def _first_look(look: FirstLook, command: str) -> page.Section:
    """How the environments differ, as far as `fit` looked, and the command that shows all of it."""
    loss = {
        None: "",
        True: "How well the plain model predicts differs between the environments",
        False: "That the plain model predicts some environments better than others is not shown",
    }[None if look["loss_p"] is None else look["loss_p"] < LEVEL]
    blocks = [page.text(look["overlap"])]
    if loss:
        blocks.append(page.text(f"{loss} ({p_text(look['loss_p'])} for the same loss in all)."))
    if look["telling"]:
        columns: Mapping[str, Callable[[TellingColumn], str]] = {
            "column": lambda c: c["name"],
            "gives away": lambda c: c["environment"],
            "rows told right, %": lambda c: percent(c["share"]),
        }
        blocks.append(page.text("Columns that give an environment away by themselves, by their values or their gaps:"))
        blocks.append(page.table_of(look["telling"][:MOST_TELLING], columns, words=["column", "gives away"]))
    else:
        blocks.append(page.text("No column gives an environment away by itself."))
    rows = several(look["smallest_rows"], "row")
    blocks.append(page.text(f"The smallest environment is {look['smallest']}: {rows}."))
    blocks += [page.text("All of how they differ:"), page.code(command)] if command else []
    return page.section("differ", "How the environments differ", "a first look", blocks)


# --- how it was chosen ---------------------------------------------------------------------------------------


def _search(summary: FitSummary) -> list[page.Section]:
    families = summary.get("families")
    sections = [_rule(summary)] if summary["message"] else []
    sections += [] if families is None else [_families(families)]
    if summary["path"]:
        sections.append(_path(summary))
    losses = [c for c in summary["losses"] if drawing.known(c["risk"]) and _asked_for(c, summary)]
    names = [row["name"] for row in summary["environments"]]
    if len(losses) > 1 and names and not erm_is_kept(summary):
        blocks = [losses_figure(losses, names, risk_name(summary))]
        sections.append(page.section("losses", "The loss as a function of the environment", "held-out rows", blocks))
    inferred = summary["inferred"]
    if inferred is not None and inferred["points"] and inferred["aux"] and inferred["names"]:
        what = "curve" if len(inferred["aux"]) == 1 else "map" if len(inferred["aux"]) == 2 else "curves"
        note = f"{what} over {several(len(inferred['aux']), 'aux column')}"
        sections.append(page.section("inferred", "The environments that were found", note, [inferred_figure(inferred)]))
    curves, rhythm = summary["curves"], "round" if summary["model"].startswith("trees") else "step"
    if curves is not None and curves["steps"] and any(drawing.known(row) for row in curves["risk"]):
        sections.append(
            page.section(
                "training",
                "Training",
                "the final model, on all rows",
                [curves_figure(curves, rhythm, risk_name(summary))],
            )
        )
    return sections


def _rule(summary: FitSummary) -> page.Section:
    """What the rule says, in its own terms."""
    message = summary["message"]
    said = page.fold("What was tested, in the terms of the method", [page.text(message[:1].upper() + message[1:])])
    why = {"invariance": "It keeps the plain model unless another one holds in all environments alike and pays."}
    text = f"The rule {summary['rule']!r} chose. {why.get(summary['rule'], '')}".strip()
    return page.section("rule", "The choice", "", [page.text(text), said])


def _asked_for(curve: LossCurve, summary: FitSummary) -> bool:
    """Older summaries have a second penalty that nobody asked for."""
    return curve["model"] != "TV-l2" or summary["objective"].endswith("-l2")


def risk_name(summary: FitSummary) -> str:
    """What the models minimise, by its name and unit."""
    if summary["task"] == "regression":
        return f"squared error / variance of {summary['data']['target']}"
    return "log loss"


def _families(families: Families) -> page.Section:
    left_out = families["by"] == "left-out"
    columns: Mapping[str, Callable[[FamilyRow], str]] = {
        "kind of model": lambda row: row["model"],
        "loss where left out" if left_out else "loss": lambda row: decimal(row["risk"]),
        "log loss ratio to the lowest" if left_out else "loss − lowest": lambda row: decimal(row["behind"]),
        "standard error": lambda row: decimal(row["error"]),
        "choice": lambda row: "taken" if row["taken"] else "",
    }
    rows = families["compared"]
    marks: list[page.Kind] = ["good" if row["taken"] else "plain" for row in rows]
    table = page.table_of(rows, columns, words=["kind of model", "choice"], marks=marks)
    where = "environments that training left out" if left_out else "held-out rows"
    text = families["message"][:1].upper() + families["message"][1:]
    return page.section("kinds", "The kinds of models", f"ERM of each, {where}", [page.text(text), table])


def _path(summary: FitSummary) -> page.Section:
    path = summary["path"]
    model = summary["model"]
    name = risk_name(summary)
    numbers = path_table(path, model, risk=name)
    block = path_figure(path, model, name, numbers) if drawing.known([p["risk"] for p in path]) else numbers
    return page.section("path", "The path of penalty weights", "held-out rows", [block])


# --- data and settings ----------------------------------------------------------------------------------------


def _settings(summary: FitSummary) -> list[page.Section]:
    data = summary["data"]
    sections = [page.section("data", "What was done to the table", data["file"], _rows_and_columns(data))]
    if data["missing"]:
        ordered = sorted(data["missing"].items(), key=lambda pair: -pair[1])
        counted = (
            f"{several(len(ordered), 'column')} of {len(data['columns']):,} had missing values. Notes above say how "
            "they were read."
        )
        rows = [[name, percent(share)] for name, share in ordered]
        blocks = [page.text(counted), page.table(["column", "missing, %"], rows, [False, True])]
        sections.append(page.section("missing", "Missing values", "", blocks))
    sections.append(_how_trained(summary))
    again = page.text("The same command with the same versions gives the same model.")
    versions = page.fold("Versions", [page.versions_table(summary["versions"])])
    blocks = [again, page.code(summary["command"]), versions]
    sections.append(page.section("again", "To run it again", "", blocks))
    return sections


def _how_trained(summary: FitSummary) -> page.Section:
    """The settings that a reader may want, in words; all of them folded away."""
    data, settings = summary["data"], summary["settings"]
    more = len(data["columns"]) - MOST_COLUMNS
    words = {
        "model": summary["model"],
        "method": summary["objective"],
        "rule of the choice": summary["rule"],
        **{words: settings[name] for name, words in SETTINGS.items() if settings.get(name) not in (None, [], ())},
        "feature columns": ", ".join(data["columns"][:MOST_COLUMNS]) + (f" and {more:,} more" if more > 0 else ""),
    }
    nested = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    flat = {name: value for name, value in settings.items() if name not in nested}
    tables = [page.text("As the Python classes name them."), page.settings_table(flat)]
    for name, value in nested.items():
        tables += [page.text(f"{name}:"), page.settings_table(value)]
    return page.section("settings", "Settings", "", [page.settings_table(words), page.fold("All settings", tables)])


def _rows_and_columns(data: Data) -> list[page.Block]:
    counted = (
        f"{data['file']} has {several(data['rows'], 'row')}; {data['rows_used']:,} were used. "
        f"{several(len(data['columns']), 'column')} became {several(data['features'], 'feature')}."
    )
    return [page.text(counted), *(page.text(note) for note in data["notes"])]
