"""What a model's features weigh, the plain beside the chosen model: figure, table and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from irmtv.app.fit.summary import Feature, FeaturesKind, FitSummary
from irmtv.core.numbers import NO_VALUE, percent, several, short
from irmtv.html import drawing, page
from irmtv.html.texts import FigureData

MOST_FEATURES = 25
BOTH: tuple[Literal["erm", "chosen"], ...] = ("erm", "chosen")  # models
NOTES: Mapping[FeaturesKind, str] = {
    "coefficients": "linear model: coefficients",
    "shuffling": "permutation importance on held-out rows",
    "contributions": "trees: how far features move the score",
}
AXES: Mapping[FeaturesKind, str] = {
    "coefficients": "share of all absolute weights, in %",
    "shuffling": "share of the rise in risk when shuffled, in %",
    "contributions": "share in how far all move the score, in %",
}
TEXTS: Mapping[FeaturesKind, str] = {
    "coefficients": "Coefficient times standard deviation, as a share of the sum over all features, with its sign.",
    "shuffling": "How much the held-out risk rises when a column is shuffled, as a share of the sum over all features.",
    "contributions": "Feature importances: how far a feature moves the score of a row (the mean absolute value of its "
    "Shapley values over 500 training rows), as a share of the sum over all features.",
}


def features_kind(summary: FitSummary) -> FeaturesKind:
    """What the weights are; older summaries, which know no trees, do not say."""
    older: FeaturesKind = "coefficients" if summary["model"].startswith("linear") else "shuffling"
    return summary.get("features_kind", older)


def size(feature: Feature) -> float:
    """The larger of its two weights, without sign."""
    return max(abs(feature["erm"] or 0.0), abs(feature["chosen"] or 0.0))


def change(feature: Feature) -> float | None:
    """By how much the size of its weight differs in the chosen model."""
    erm, chosen = feature["erm"], feature["chosen"]
    return None if erm is None or chosen is None else abs(chosen) - abs(erm)


def feature_blocks(summary: FitSummary) -> list[page.Block]:
    """A figure, a table, and what is to be said about them.

    Importances of trees stand in the order of how far they changed: that is what there is to be seen. Weights of other
    models have signs or noise of their own, and stand in the order of their size.
    """
    kind = features_kind(summary)
    same = all(f["erm"] == f["chosen"] for f in summary["features"])
    by_change = kind == "contributions" and not same
    ordered = sorted(summary["features"], key=size, reverse=True)
    if by_change:
        ordered.sort(key=lambda f: abs(change(f) or 0.0), reverse=True)
    blocks = [page.text(note) for note in _which_models(summary, same)]
    drawn = any(size(f) > 0 for f in ordered)
    blocks.append(
        features_figure(ordered, kind, by_change, same) if drawn else _features_table(ordered, by_change, same)
    )
    if any(f["invariant"] is not None for f in ordered):
        blocks.append(_share_of_invariant(ordered))
    return blocks


def _drawn(ordered: Sequence[Feature]) -> int:
    """How many are shown one by one: a rest of one is no rest."""
    return MOST_FEATURES if len(ordered) > MOST_FEATURES + 1 else len(ordered)


def _share_of_invariant(features: Sequence[Feature]) -> page.Block:
    """How much of the weight lies on invariant features, where it is known which these are."""
    shares = []
    labelled = [f for f in features if f["invariant"] is not None]
    for key in BOTH:
        weights = [abs(f[key] or 0.0) for f in labelled]
        of_invariant = sum(w for w, f in zip(weights, labelled, strict=True) if f["invariant"])
        shares.append(short(of_invariant / sum(weights) if sum(weights) else None, 100, " %"))
    return page.text(
        f"Which features are invariant is known here. They have {shares[0]} of the weight in the plain model and "
        f"{shares[1]} in the chosen model."
    )


def _features_table(ordered: Sequence[Feature], by_change: bool, same: bool) -> page.Block:
    """In numbers; one model where both are `same`."""
    labelled = any(f["invariant"] is not None for f in ordered)
    columns = ["feature", "plain, %"]
    columns += [] if same else ["chosen, %", "change, points" if by_change else "change of size"]
    rows = []
    for f in ordered[: _drawn(ordered)]:
        what = NO_VALUE if f["invariant"] is None else "invariant" if f["invariant"] else "spurious"
        weights = [percent(f["erm"])]
        weights += [] if same else [percent(f["chosen"]), percent(change(f), sign=True)]
        rows.append([f["name"], *weights, *([what] if labelled else [])])
    if labelled:
        columns.append("known to be")
    return page.table(columns, rows, [title not in ("feature", "known to be") for title in columns])


def _which_models(summary: FitSummary, same: bool) -> list[str]:
    """Which two models are compared, where that is not plain to see."""
    model, plain = summary["model"], summary.get("plain_model", summary["model"])
    if same and any(f["chosen"] is not None for f in summary["features"]):
        return []
    kind, plain_kind = (name.partition(" ")[0] for name in (model, plain))
    if kind != plain_kind:
        return [
            f"Elsewhere in this page the plain model is {plain}, which predicts held-out rows best. What features "
            f"weigh is compared within one kind of model, {kind}: the plain model is here that of this kind."
        ]
    return []


def features_figure(
    ordered: Sequence[Feature], kind: FeaturesKind, by_change: bool = False, same: bool = False
) -> page.Block:
    """Bars of the first features, the plain beside the chosen model, and the rest as one; `by_change`: also the change;
    `same`: one model."""
    first, rest = list(ordered[: _drawn(ordered)]), ordered[_drawn(ordered) :]
    kinds = {True: " · invariant", False: " · spurious", None: ""}
    if any(f["invariant"] is not None for f in ordered):
        first.sort(key=lambda f: list(kinds).index(f["invariant"]))
    erm, chosen = (100 * _weights(first, rest, key) for key in BOTH)
    names = [drawing.label(f["name"], 20) + kinds[f["invariant"]] for f in first]
    names += [f"{len(rest):,} others, sum"] if rest else []
    place = _places([f["invariant"] for f in first], bool(rest))
    made = drawing.new_figure(1.0 + 0.3 * (place[0] - place[-1] + 1))
    ratios = (1.55, 1.0) if by_change else (1.0,)
    ax, *others = made.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    handles = [drawing.bars(ax, place + (0 if same else 0.19), erm, 0.56 if same else 0.36, drawing.PLAIN)]
    if not same:
        handles.append(drawing.bars(ax, place - 0.19, chosen, 0.36, drawing.CHOSEN))
    drawing.plain_axes(ax, x=AXES[kind], grid="x")
    drawing.zero_line(ax)
    drawing.name_rows(ax, place, names)
    for changes in others:
        by = np.nan_to_num(np.abs(chosen) - np.abs(erm))
        changes.hlines(place, 0, by, color=drawing.INK, lw=1.4)
        changes.plot(by, place, "o", color=drawing.INK, ms=4, ls="none")
        drawing.second_panel(changes, "chosen − plain, points", 4)
    drawing.legend(made, handles, ["plain model, which is kept"] if same else ["plain model", "chosen model"])
    data: FigureData = {
        "columns": ["feature", "plain", "chosen", "invariant"],
        "rows": [[f["name"], f["erm"], f["chosen"], f["invariant"]] for f in ordered],
    }
    return page.figure(
        made,
        _alt(ordered, len(first), by_change, same),
        name="features",
        data=data,
        text=_caption(kind, ordered, by_change),
        numbers=_features_table(ordered, by_change, same),
    )


def _weights(first: Sequence[Feature], rest: Sequence[Feature], key: Literal["erm", "chosen"]) -> drawing.Floats:
    """The weights of the first features, and the sum of the others without sign, where there are any."""
    others = [sum(abs(f[key] or 0.0) for f in rest)] if rest else []
    return drawing.floats([*(f[key] for f in first), *others])


def _places(kinds: Sequence[bool | None], rest: bool) -> drawing.Floats:
    """Where the rows stand: a gap between invariant and spurious features, and before the rest."""
    place = -np.arange(len(kinds) + rest, dtype=np.float64)
    for i in range(1, len(kinds)):
        if kinds[i] != kinds[i - 1]:
            place[i:] -= 0.6
    if rest:
        place[-1] -= 0.4
    return place


def _caption(kind: FeaturesKind, ordered: Sequence[Feature], by_change: bool) -> str:
    caption = TEXTS[kind]
    if by_change:
        caption += " What changed most stands first."
    if len(ordered) > _drawn(ordered):
        which = "that changed most" if by_change else "largest"
        caption += f" The {MOST_FEATURES} {which} of {len(ordered):,}; the others are summed, without sign."
    return caption


def _alt(features: Sequence[Feature], shown: int, by_change: bool, same: bool) -> str:
    if same:
        first = max(features, key=size)
        return (
            f"Bars: the weight of {several(shown, 'feature')} in the plain model. Most: {first['name']} "
            f"({short(first['erm'], 100, ' %')})."
        )
    most = [max(features, key=lambda f: abs(f[key] or 0.0)) for key in ("erm", "chosen")]
    words = (
        f"Bars: the weight of {several(shown, 'feature')} in the plain and in the chosen model. Most in the plain one: "
        f"{most[0]['name']} ({short(most[0]['erm'], 100, ' %')}); in the chosen one: "
        f"{most[1]['name']} ({short(most[1]['chosen'], 100, ' %')})."
    )
    if by_change:
        first = features[0]
        words += (
            f" Beside them the change; the largest is that of {first['name']}, from {short(first['erm'], 100, ' %')} "
            f"to {short(first['chosen'], 100, ' %')}."
        )
    return words
