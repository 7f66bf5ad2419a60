"""The page of a diagnosis, from its summary alone: the answer first, then every part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.app.pages.diagnosis_figures import differ_figure, features_figure, losses_figure, splits_figure
from irmtv.app.pages.inferred_figures import inferred_figure
from irmtv.core.numbers import several, short
from irmtv.html.page import Badge, Block, Chapter, Content, Headline, Number, Section, code, table, text

LEVEL = 0.05
_TESTED = {"linear": "linear models", "mlp": "what the network leaves", "trees": "what the trees leave"}
_ABOUT_WEIGHTS = (
    "",
    " Weights are how far the outputs move when a feature is shuffled. The tests ask whether what the model leaves of "
    "the target depends on a feature in one environment otherwise than in another.",
)  # of linear models, of others


def diagnosis_content(summary: Mapping[str, Any]) -> Content:
    """The page of `irmtv diagnose`.

    Parameters
    ----------
    summary : mapping
        `Diagnosis.summary`, or what `irmtv diagnose --json` printed.

    Returns
    -------
    Content
        For `irmtv.html.page.page`.
    """
    chapters: list[Chapter] = [
        {"title": "The environments", "sections": _environments(summary)},
        {"title": "What changes", "sections": _changes(summary)},
        {"title": "The data", "sections": _data(summary)},
    ]
    target = summary.get("target", "")
    return {
        "title": f"What shifts in what predicts {target}?" if target else "What shifts?",
        "headline": _headline(summary),
        "lead": [],
        "facts": _facts(summary),
        "chapters": [chapter for chapter in chapters if chapter["sections"]],
        "foot": f"Made by irmtv {summary.get('versions', {}).get('irmtv', '')}. Nothing in this page was loaded from "
        "elsewhere.",
    }


def _headline(summary: Mapping[str, Any]) -> Headline:
    losses, informative = summary["losses"], summary["informative"]
    hurts = losses is not None and losses["p"] is not None and losses["p"] < LEVEL
    badge: Badge
    if losses is None:
        badge = {"text": "Nothing to compare", "kind": "unknown"}
    elif hurts:
        badge = {"text": "A shift that hurts", "kind": "bad"}
    elif any(i["informative"] for i in informative):
        badge = {"text": "Not invariant", "kind": "partly"}
    else:
        badge = {"text": "No shift that hurts is shown", "kind": "good"}
    numbers: list[Number] = []
    if summary["differ"] is not None:
        area = summary["differ"]["auc"]
        numbers.append(
            {
                "name": "environments told apart",
                "value": short(area["value"]),
                "note": f"area under the curve, {short(area['low'])} to {short(area['high'])}; 0.5 is guessing",
            }
        )
    if losses is not None:
        worst = next(row for row in losses["environments"] if row["name"] == losses["worst"])
        numbers.append(
            {
                "name": f"loss in {losses['worst']}",
                "value": short(worst["loss"]["value"]),
                "note": f"{losses['loss']}; {short(losses['overall']['loss']['value'])} over all rows",
            }
        )
    numbers += [
        {
            "name": f"penalty, {i['source']} environments",
            "value": f"{short(i['ratio'])} ×",
            "note": f"chance; p = {short(i['p'])}",
        }
        for i in informative
    ]
    first, *more = summary["headline"]
    return {"badge": badge, "text": first, "more": " ".join(more), "numbers": numbers}


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("file", summary.get("file", "")), ("target", f"{summary.get('target', '')} ({summary['task']})")]
    facts += [(name, ", ".join(summary.get(name, ()))) for name in ("environment", "aux")]
    facts.append(("model", _model(summary)))
    facts.append(("rows", f"{summary['rows']:,}"))
    if summary["names"]:
        facts.append(("environments", f"{len(summary['names'])}, {summary['environments']}"))
    if "features_in" in summary:
        facts.append(("features", f"{summary['features_in']} numbers"))
    return [(name, value) for name, value in facts if value]


def _model(summary: Mapping[str, Any]) -> str:
    """Its name; a summary of an earlier version is of a linear model, and does not say so."""
    name: str = summary.get("models", {}).get("name", "a linear model")
    return name


def _about_model(summary: Mapping[str, Any]) -> str:
    """Which model it was and, where it was chosen, among which."""
    models = summary.get("models", {})
    size = f" ({models['leaves']} leaves, {several(models['rounds'], 'round')})" if "leaves" in models else ""
    name = _model(summary)
    said = f"{name[0].upper()}{name[1:]}{size} on standardised features."
    risks = models.get("risks", {})
    if models.get("asked") == "auto" and len(risks) > 1:
        told = ", ".join(f"{kind} {short(risk)}" for kind, risk in risks.items())
        said += f" It was chosen by the held-out loss over all rows ({told}): the simplest within 1 % of the lowest."
    return said


def _section(name: str, title: str, note: str, part: Mapping[str, Any], blocks: list[Block], badge: Badge) -> Section:
    return {"id": name, "title": title, "note": note, "badge": badge, "blocks": [text(part["said"]), *blocks]}


def _badge(found: bool, yes: str, no: str, kind: str = "partly") -> Badge:
    return {
        "text": yes if found else no,
        "kind": "partly" if found and kind == "partly" else "bad" if found else "good",
    }


def _below(p: float | None) -> bool:
    return p is not None and p < LEVEL


def _environments(summary: Mapping[str, Any]) -> list[Section]:
    made: list[Section] = []
    if (differ := summary["differ"]) is not None:
        made.append(
            _section(
                "differ",
                "How different are the environments?",
                "classifier two-sample test",
                differ,
                [
                    differ_figure(differ),
                    text(
                        "A classifier (ridge regression on the features, their squares and products) guesses the "
                        "environment of rows that it has not seen. The p-value compares it with "
                        f"{differ['permutations']} classifiers that were trained on permuted labels; "
                        f"{several(differ['rows'], 'row')}. That the features differ does not yet mean "
                        "that predictions suffer."
                    ),
                ],
                _badge(_below(differ["p"]), "different", "not told apart"),
            )
        )
    if (losses := summary["losses"]) is not None:
        made.append(
            _section(
                "losses",
                "How does the loss of plain risk minimisation differ across them?",
                "held-out rows, five folds",
                losses,
                [
                    losses_figure(losses),
                    text(
                        f"{_about_model(summary)} A loss may also differ because one environment is harder to predict "
                        f"for anyone; a constant has a loss of {short(losses['constant'])}."
                    ),
                ],
                _badge(_below(losses["p"]), "differs", "not shown to differ", "bad"),
            )
        )
    if (found := summary["found"]) is not None:
        made.append(
            _section(
                "found",
                "What environments are found in aux, and where?",
                "minimax network",
                found,
                [inferred_figure(found)],
                {"text": "two found" if found["divides"] else "none found", "kind": "plain"},
            )
        )
    return made + [_informative(part) for part in summary["informative"]]


def _informative(part: Mapping[str, Any]) -> Section:
    searched = "the labels" if part["source"] == "given" else "aux, each searched anew"
    return _section(
        f"informative-{part['source']}",
        f"Are the {part['source']} environments informative at all?",
        "invariance test with permutations",
        part,
        [
            table(
                ["", "penalty"],
                [["reached", short(part["penalty"])], ["by chance, on average", short(part["by_chance"])]],
                [False, True],
            ),
            text(
                f"p = {short(part['p'])} from {part['permutations']} permutations of {searched}; "
                f"{several(part['rows'], 'row')}."
            ),
        ],
        _badge(part["informative"], "informative", "not shown to be"),
    )


def _changes(summary: Mapping[str, Any]) -> list[Section]:
    made: list[Section] = []
    if (features := summary["features"]) is not None:
        kind = features.get("model", "linear")
        made.append(
            _section(
                "features",
                "Which features' relation to the target changes?",
                _TESTED[kind],
                features,
                [
                    features_figure(features),
                    text(
                        f"p = {short(features['joint_p'])} for all features together; p = {short(features['level_p'])} "
                        "for the level of the target given the features. The invariant model is TV-l1 with penalty "
                        f"weight {short(features['penalty_weight'])}.{_ABOUT_WEIGHTS[kind != 'linear']}"
                    ),
                ],
                _badge(
                    _below(features["joint_p"]) or any(f["changes"] for f in features["features"]),
                    "changes",
                    "not shown",
                ),
            )
        )
    if (splits := summary["splits"]) is not None:
        rows = [row["said"] for row in splits["environments"]]
        made.append(
            _section(
                "splits",
                "How does the loss split into change in X and change in y given X?",
                "each environment against the rest",
                splits,
                [
                    splits_figure(splits),
                    text(
                        "Compared on what both sides share of X. Intervals come from resampled rows, the weights "
                        f"held; {several(splits['rows'], 'row')}."
                    ),
                    *([text(" ".join(rows))] if 1 < len(rows) <= 6 else []),
                ],
                {"text": "parts", "kind": "plain"},
            )
        )
    return made


def _data(summary: Mapping[str, Any]) -> list[Section]:
    blocks: list[Block] = [text(note if note.endswith(".") else f"{note}.") for note in summary["notes"]]
    if summary.get("command"):
        blocks.append(code(summary["command"]))
    versions = summary.get("versions", {})
    blocks.append(table(["package", "version"], [[name, version] for name, version in versions.items()]))
    section: Section = {"id": "data", "title": "Notes, command, versions", "note": "", "badge": None, "blocks": blocks}
    return [section]
