"""What a model's features weigh, plain risk minimisation beside the chosen model: figure, table and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from irmtv.app.fit.summary import Feature, FeaturesKind, FitSummary
from irmtv.core.numbers import NO_VALUE, several, short
from irmtv.html.drawing import CHOSEN, INK, PLAIN, SOFT, few_ticks, floats, label, legend, new_figure, plain_axes
from irmtv.html.figure_data import FigureData
from irmtv.html.page import Block, figure, table, text

MOST_FEATURES = 25
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
    """By how much its weight differs in size in the chosen model."""
    erm, chosen = feature["erm"], feature["chosen"]
    return None if erm is None or chosen is None else abs(chosen) - abs(erm)


def feature_blocks(summary: FitSummary) -> list[Block]:
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
    blocks = [text(said) for said in _words(summary, same)]
    if any(size(f) > 0 for f in ordered):
        blocks.append(features_figure(ordered, kind, by_change))
    told = [f for f in ordered if f["invariant"] is not None]
    if told:
        shares = {}
        for key in ("erm", "chosen"):
            total = sum(abs(f[key] or 0.0) for f in told)
            of_invariant = sum(abs(f[key] or 0.0) for f in told if f["invariant"])
            shares[key] = of_invariant / total if total else None
        blocks.append(
            text(
                f"Which features are invariant is known here. They have {short(shares['erm'], 100, ' %')} of the "
                f"weight under ERM and {short(shares['chosen'], 100, ' %')} in the chosen model."
            )
        )
    columns = ["feature", "ERM, %", "chosen, %", "change of size", *(["known to be"] if told else [])]
    if by_change:
        columns[3] = "change, points"
    rows = []
    shown = MOST_FEATURES if len(ordered) > MOST_FEATURES + 1 else len(ordered)
    for f in ordered[:shown]:
        what = NO_VALUE if f["invariant"] is None else "invariant" if f["invariant"] else "spurious"
        weights = [_share(f["erm"]), _share(f["chosen"]), _share(change(f), "+")]
        rows.append([f["name"], *weights, *([what] if told else [])])
    blocks.append(table(columns, rows, [False, True, True, True, *([False] if told else [])]))
    if len(ordered) > shown:
        which = "that changed most" if by_change else "largest"
        blocks.append(text(f"The {MOST_FEATURES} {which} of {len(ordered):,}. The CSV of the figure has all of them."))
    return blocks


def _words(summary: FitSummary, same: bool) -> list[str]:
    """Which two models are compared, where that is not plain to see."""
    model, plain = summary["model"], summary.get("plain_model", summary["model"])
    if same and known_weights(summary):
        return ["The chosen model is plain risk minimisation (ERM): nothing changed in what its features weigh."]
    kind, plain_kind = (name.partition(" ")[0] for name in (model, plain))
    if kind != plain_kind:
        return [
            f"Elsewhere in this page ERM is {plain}, with which plain risk minimisation predicts held-out rows best. "
            f"What features weigh is compared within one kind of model, {kind}: ERM is here plain risk minimisation "
            "with that kind."
        ]
    return []


def known_weights(summary: FitSummary) -> bool:
    """Whether there is any weight at all."""
    return any(f["chosen"] is not None for f in summary["features"])


def _share(value: float | None, sign: str = "") -> str:
    if value is None:
        return NO_VALUE
    written = format(100 * value, f"{sign}.1f").replace("-", "−")
    return "0.0" if written.strip("+−") == "0.0" else written


def features_figure(ordered: Sequence[Feature], kind: FeaturesKind, by_change: bool = False) -> Block:
    """Bars of the first features, ERM beside the chosen model, and the rest as one; with `by_change` also the change.

    Parameters
    ----------
    ordered : the features, in the order in which they are shown.
    kind : what their weights are.
    by_change : whether a second panel shows chosen minus ERM.
    """
    most = MOST_FEATURES if len(ordered) > MOST_FEATURES + 1 else len(ordered)  # a rest of one is no rest
    first, rest = list(ordered[:most]), ordered[most:]
    if any(f["invariant"] is not None for f in ordered):
        first.sort(key=lambda f: {True: 0, False: 1, None: 2}[f["invariant"]])
    names = [label(f["name"], 20) + _kind(f["invariant"]) for f in first]
    values = {key: [f[key] for f in first] for key in ("erm", "chosen")}
    if rest:
        names.append(f"{len(rest):,} others, sum")
        for key in values:
            values[key].append(sum(abs(f[key] or 0.0) for f in rest))  # type: ignore[literal-required]  # "erm" or "chosen"
    place = -np.arange(len(names), dtype=np.float64)
    kinds = [f["invariant"] for f in first]
    for i in range(1, len(first)):  # a gap between invariant and spurious
        if kinds[i] != kinds[i - 1]:
            place[i:] -= 0.6
    if rest:
        place[-1] -= 0.4
    made = new_figure(1.0 + 0.3 * (place[0] - place[-1] + 1))
    ratios = (1.55, 1.0) if by_change else (1.0,)
    ax, *others = made.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)[0]
    handles = [
        ax.barh(place + offset, 100 * np.nan_to_num(floats(values[key])), 0.36, color=style.colour, hatch=style.hatch,
                edgecolor="#ffffff", linewidth=0.0)
        for key, style, offset in (("erm", PLAIN, 0.19), ("chosen", CHOSEN, -0.19))
    ]  # fmt: skip
    plain_axes(ax, x=AXES[kind], grid="x")
    ax.axvline(0, color=SOFT, lw=0.8)
    ax.set_yticks(place, names)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(place[-1] - 0.6, place[0] + 0.6)
    for changes in others:
        by = 100 * np.nan_to_num(np.abs(floats(values["chosen"])) - np.abs(floats(values["erm"])))
        changes.hlines(place, 0, by, color=INK, lw=1.4)
        changes.plot(by, place, "o", color=INK, ms=4, ls="none")
        plain_axes(changes, x="chosen − ERM, points", grid="x")
        changes.axvline(0, color=SOFT, lw=0.8)
        changes.spines["left"].set_visible(False)
        changes.tick_params(axis="y", length=0, labelleft=False)
        few_ticks(changes, 4)
    legend(made, handles, ["ERM", "chosen"])
    said = TEXTS[kind]
    if by_change:
        said += " What changed most stands first."
    if rest:
        which = "that changed most" if by_change else "largest"
        said += f" The {MOST_FEATURES} {which} of {len(ordered):,}; the others are summed, without sign."
    data: FigureData = {
        "columns": ["feature", "ERM", "chosen", "invariant"],
        "rows": [[f["name"], f["erm"], f["chosen"], f["invariant"]] for f in ordered],
    }
    return figure(made, _alt(ordered, len(first), by_change), name="features", data=data, text=said)


def _alt(features: Sequence[Feature], shown: int, by_change: bool) -> str:
    most = [max(features, key=lambda f: abs(f[key] or 0.0)) for key in ("erm", "chosen")]
    told = (
        f"Bars: the weight of {several(shown, 'feature')} under ERM and in the chosen model. Most under ERM: "
        f"{most[0]['name']} ({short(most[0]['erm'], 100, ' %')}); in the chosen model: "
        f"{most[1]['name']} ({short(most[1]['chosen'], 100, ' %')})."
    )
    if by_change:
        first = features[0]
        told += (
            f" Beside them the change; the largest is that of {first['name']}, from {short(first['erm'], 100, ' %')} "
            f"to {short(first['chosen'], 100, ' %')}."
        )
    return told


def _kind(invariant: bool | None) -> str:
    return "" if invariant is None else (" · invariant" if invariant else " · spurious")
