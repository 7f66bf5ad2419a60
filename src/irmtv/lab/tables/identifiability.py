"""The paper's feature weights beside ours: shares of the invariant columns, paired differences, one figure.

The paper's percentages are the sums of w1 to w5 of its table of normalised absolute weights. It averages over
repetitions before it normalises; here every repetition is normalised, so that there is a standard deviation, and the
share in the paper's order stands beside it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.stats import wilcoxon

from irmtv.core.files import write_files
from irmtv.core.numbers import NO_VALUE, mean_and_sd
from irmtv.core.outcomes import short_outcome
from irmtv.core.plain_json import finite, floats, json_text
from irmtv.datasets import DATASETS
from irmtv.datasets.simulation import population_accuracy
from irmtv.html.drawing import BLUE, INK, ORANGE, SKY, SMALL, SOFT, new_figure, plain_axes
from irmtv.html.page import figure_svg
from irmtv.html.text_table import TextTable, frame_csv
from irmtv.lab.experiments import Spec
from irmtv.lab.experiments.feature_weights import (
    Floats,
    invariant_share,
    net_share,
    normalised,
    read_weights,
    risk_minimiser,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Which features a linear Phi looks at"
# an l1 method and what the paper compares it with
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {"irm-tv-l1": ("irm-tv-l2",), "minimax-tv-l1": ("zin", "minimax-tv-l2")}
PANELS = {"irm-tv-l1": "environments given", "minimax-tv-l1": "environments inferred from time"}
COLOURS = (ORANGE, SKY, BLUE)  # l2 as published, l2 as the formula has it, l1
PAPER: Mapping[str, Any] = {"marker": "D", "ls": "none", "ms": 4, "mfc": "#ffffff", "mec": INK, "mew": 0.9}  # its marks
NOTES = (
    "share: sum of |w| over the invariant columns / sum over all, settings as the spec states them, last step; ± is "
    "the standard deviation over repetitions. averaged first: |w| is averaged over the repetitions, then normalised, "
    "as in the paper.",
    "net share: the same of the sums with their signs, |V| / (|V| + |S|): weights of both signs on spurious columns "
    "cancel there, as they do in a prediction. worst accuracy: in the worst test environment, exact.",
    "population: the linear predictor of the lowest risk over infinitely many rows, without l2, of all columns and of "
    "the invariant ones alone, whose accuracy no invariant predictor exceeds.",
)


@dataclass(frozen=True)
class Difference:
    """Share of an l1 method minus that of an l2 method, repetition by repetition."""

    l1: str
    l2: str
    rule: str
    values: Floats  # (n,) in percentage points
    published: float | None

    @property
    def p(self) -> float:
        """Two-sided, of Wilcoxon's signed-rank test; 1 where nothing differs."""
        differ = self.values[self.values != 0]
        return float(wilcoxon(differ).pvalue) if len(differ) else 1.0


@dataclass(frozen=True)
class Identifiability:
    """What `irmtv reproduce identifiability` prints and writes."""

    spec: Spec
    setting: str
    arguments: Mapping[str, Any]  # of the data
    chosen: pd.DataFrame  # a row for every method, rule and repetition: see `irmtv.lab.experiments.read_weights`

    @property
    def name(self) -> str:
        """The name of the files."""
        return self.spec.name

    @property
    def n_invariant(self) -> int:
        return int(self.arguments["n_invariant"])

    @property
    def methods(self) -> list[str]:
        return [m.label for m in self.spec.methods if m.label in set(self.chosen["method"])]

    @property
    def repetitions(self) -> int:
        return int(self.chosen["repetition"].nunique())

    def weights(self, method: str, rule: str = "fixed") -> Floats:
        """Of all repetitions, in their order: (n, D). NaN where the rule could not choose."""
        found = self._choices(method, rule).sort_values("repetition")["weights"]
        nothing = np.full(self.n_invariant + int(self.arguments["n_spurious"]), np.nan)
        return np.stack([nothing if w is None else w for w in found]) if len(found) else nothing[None][:0]

    def share(self, method: str, rule: str = "fixed") -> Floats:
        """Of the invariant columns, in %: (n,)."""
        return 100 * invariant_share(self.weights(method, rule), self.n_invariant)

    def _choices(self, method: str, rule: str) -> pd.DataFrame:
        return self.chosen[(self.chosen["method"] == method) & (self.chosen["rule"] == rule)]

    @property
    def _objectives(self) -> dict[str, str]:
        """By method."""
        return {m.label: m.objective for m in self.spec.methods if m.label in self.methods}

    def published(self, method: str) -> Floats | None:
        """The paper's normalised weights (D,) of a method, where it has them and the columns are as many."""
        key = next(m.published for m in self.spec.methods if m.label == method)
        if key is None or self.spec.published is None:
            return None
        found = np.asarray(self.spec.published.results[key], dtype=np.float64)
        return found if found.shape == self.weights(method).shape[1:] else None

    def published_share(self, method: str) -> float | None:
        """The paper's share: the sum of its numbers as printed, which are rounded and need not sum to 1."""
        found = self.published(method)
        return None if found is None else float(found[: self.n_invariant].sum())

    def differences(self, rule: str) -> list[Difference]:
        """Every l1 method against its l2 counterparts."""
        found, of = [], self._objectives
        for l1, l2 in ((a, b) for a in of for b in of if of[b] in COUNTERPARTS.get(of[a], ())):
            first, second = self.published_share(l1), self.published_share(l2)
            published = None if first is None or second is None else 100 * (first - second)
            values = self.share(l1, rule) - self.share(l2, rule)
            found.append(Difference(l1, l2, rule, values[np.isfinite(values)], published))
        return found

    def tables(self) -> list[TextTable]:
        """Shares as stated and as chosen, differences, and the weights themselves."""
        chosen = [self._by_invariance()] if "invariance" in self.spec.selection.rules else []
        return [self._shares(), *chosen, self._differences(), self._weights()]

    def _shares(self) -> TextTable:
        columns = ["method", "paper", "share", "averaged first", "net share", "worst accuracy"]
        rows = [[method, *self._shares_of(method)] for method in self.methods]
        rows += [[label, NO_VALUE, *cells] for label, *cells in self._population()]
        title = f"Share of the invariant features in %, {self.setting}, {self.repetitions} repetitions"
        return TextTable(title, columns, rows, NOTES)

    def _shares_of(self, method: str) -> list[str]:
        w, n = self.weights(method), self.n_invariant
        theirs = self.published_share(method)
        worst = self._choices(method, "fixed")["worst"].to_numpy(np.float64)
        together = 100 * invariant_share(_mean(np.abs(w)), n)
        ours: tuple[Floats, ...] = (self.share(method), together, 100 * net_share(w, n), 100 * worst)
        return [NO_VALUE if theirs is None else f"{100 * theirs:.2f}", *map(mean_and_sd, ours)]

    def _by_invariance(self) -> TextTable:
        rows = []
        for method in self.methods:
            of = self._choices(method, "invariance")
            net = 100 * net_share(self.weights(method, "invariance"), self.n_invariant)
            numbers = (self.share(method, "invariance"), net, 100 * of["worst"].to_numpy(np.float64))
            counts = of["outcome"].dropna().value_counts(sort=False)
            outcomes = ", ".join(f"{short_outcome(str(o))} {n}" for o, n in counts.items()) or NO_VALUE
            rows.append([method, *map(mean_and_sd, numbers), outcomes])
        columns = ("method", "share", "net share", "worst accuracy", "outcomes")
        note = "the penalty weight and step that the rule `invariance` chooses without the test rows; outcomes: in how "
        note += "many repetitions an invariant model was found, or none, and ERM was kept."
        return TextTable("The same where the rule `invariance` chooses", columns, rows, (note,))

    def _population(self) -> Iterator[tuple[str, ...]]:
        """What can be known without rows: ERM, and the best that ignores the spurious columns."""
        given = self.arguments
        if given["generator"] != "code" or callable(given["p_s"]):
            return
        for label, best in self.population_limits().items():
            n = self.n_invariant
            worst = min(population_accuracy(best, 0.0, list(given["test_p_s"]), given["p_v"], n))
            shares = [f"{100 * float(share(best, n)):.1f}" for share in (invariant_share, net_share)]
            yield label, shares[0], NO_VALUE, shares[1], f"{100 * worst:.1f}"

    def population_limits(self) -> dict[str, Floats]:
        """Weights (D,) of the best linear predictors in the population."""
        given = self.arguments
        erm = risk_minimiser(given["p_s"], given["p_v"], self.n_invariant, given["n_spurious"])
        invariant = np.r_[np.ones(self.n_invariant), np.zeros(given["n_spurious"])]
        return {"ERM, population": erm, "invariant, population": invariant}

    def _differences(self) -> TextTable:
        rows = []
        for rule in self.spec.selection.rules:
            for d in self.differences(rule):
                larger = f"{int((d.values > 0).sum())} of {len(d.values)}"
                theirs = NO_VALUE if d.published is None else f"{d.published:+.2f}"
                p = f"{d.p:.3f}" if len(d.values) else NO_VALUE
                rows.append([f"{d.l1} - {d.l2}", rule, theirs, mean_and_sd(d.values), larger, p])
        columns = ("difference of shares", "rule", "paper", "ours", "l1 larger", "p")
        note = "in percentage points, paired by repetition; p by Wilcoxon's signed-rank test, not corrected."
        return TextTable("l1 minus l2", columns, rows, (note,), labels=2)

    def _weights(self) -> TextTable:
        columns = ["method", *(f"w{j + 1}" for j in range(self.weights(self.methods[0]).shape[1]))]
        rows = []
        for method in self.methods:
            w = normalised(self.weights(method))
            rows.append([method, *(f"{v:.4f}" for v in _mean(w))])
            theirs = self.published(method)
            if theirs is not None:
                rows.append([f"{method}, paper", *(f"{v:.4f}" for v in theirs)])
        n = self.n_invariant
        note = f"w1 to w{n}: invariant columns, the others are spurious. Mean over repetitions; sd in the CSV and JSON."
        return TextTable("Normalised absolute weights", columns, rows, (note,), wide=True)

    def table(self) -> pd.DataFrame:
        """A row for every method, rule and repetition: what was chosen, shares, normalised weights."""
        rows = []
        for row in self.chosen.to_dict("records"):
            w = row["weights"]
            known = w is not None
            rows.append(
                {
                    **{c: row[c] for c in ("method", "rule", "repetition", "chosen_method", "step", "outcome")},
                    "penalty_weight": (row["hyperparameters"] or {}).get("penalty_weight") if known else None,
                    "share": float(invariant_share(w, self.n_invariant)) if known else np.nan,
                    "net_share": float(net_share(w, self.n_invariant)) if known else np.nan,
                    "worst_accuracy": row["worst"],
                    **({f"w{j + 1}": v for j, v in enumerate(normalised(w))} if known else {}),
                }
            )
        return pd.DataFrame(rows)

    def numbers(self) -> dict[str, Any]:
        """For programs. Shares are shares, not percent."""

        def of(method: str, rule: str) -> dict[str, Any]:
            w = self.weights(method, rule)
            shares = {"share": invariant_share(w, self.n_invariant), "net_share": net_share(w, self.n_invariant)}
            of_weights = {"mean": floats(_mean(normalised(w))), "sd": floats(_sd(normalised(w)))}
            return {name: over_repetitions(s) for name, s in shares.items()} | {"weights": of_weights}

        def over_repetitions(shares: Floats) -> dict[str, Any]:
            column = shares[:, None]
            return {"mean": finite(_mean(column)[0]), "sd": finite(_sd(column)[0]), "repetitions": floats(shares)}

        theirs = {m: self.published(m) for m in self.methods}
        return {
            "setting": self.setting,
            "repetitions": self.repetitions,
            "n_invariant": self.n_invariant,
            "methods": {m: {rule: of(m, rule) for rule in self.spec.selection.rules} for m in self.methods},
            "paper": {
                m: {"share": self.published_share(m), "weights": floats(w)}
                for m, w in theirs.items()
                if w is not None
            },
            "population": {
                label: {"share": float(invariant_share(w, self.n_invariant)), "weights": floats(normalised(w))}
                for label, w in self.population_limits().items()
            },
            "differences": [
                {
                    "l1": d.l1, "l2": d.l2, "rule": d.rule, "points": floats(d.values), "published": d.published,
                    "p": d.p if len(d.values) else None,
                }
                for rule in self.spec.selection.rules
                for d in self.differences(rule)
            ],
        }  # fmt: skip

    def markdown(self) -> str:
        """All tables, and the figure by its name."""
        parts = [f"## {TITLE}", *(t.markdown() for t in self.tables()), f"![{self.alt()}]({self.name}.svg)"]
        return "\n\n".join(parts) + "\n"

    def alt(self) -> str:
        """What the figure shows, in words."""
        return (
            "Bars: normalised absolute weight of each feature, l1 and both reductions of l2, with standard deviations; "
            "diamonds: the paper's values; grey lines: ERM. Invariant features left, spurious ones right."
        )

    def figure(self) -> Figure:
        """A panel for given and one for inferred environments: a group of bars per feature."""
        of, panels = self._objectives, {}
        for l1, l2 in COUNTERPARTS.items():
            drawn = [m for m in of if of[m] in l2] + [m for m in of if of[m] == l1]
            if drawn:
                panels[PANELS[l1]] = drawn
        made = new_figure(0.4 + 2.9 * max(1, len(panels)), width=9.5)
        axes = made.subplots(max(1, len(panels)), squeeze=False)[:, 0]
        for ax, (title, drawn) in zip(axes, panels.items(), strict=False):
            self._panel(ax, title, drawn, next((m for m in of if of[m] == "erm"), None))
        return made

    def _panel(self, ax: Axes, title: str, drawn: Sequence[str], erm: str | None) -> None:
        n, d = self.n_invariant, self.weights(drawn[0]).shape[1]
        place = np.arange(d) + 0.6 * (np.arange(d) >= n)  # a gap between the two kinds
        plain_axes(ax, f"{title} (share of w1 to w{n}: mean ± sd)", y="normalised |weight|")
        tops = [self._bars(ax, place, k, drawn) for k in range(len(drawn))]
        if erm is not None:
            mean = _mean(normalised(self.weights(erm)))
            share = mean_and_sd(self.share(erm))
            ax.hlines(mean, place - 0.42, place + 0.42, color=SOFT, lw=1.2, label=f"{erm}: {share} %", zorder=2)
        ax.plot([], [], label="the paper's value", **PAPER)
        ax.axvline((place[n - 1] + place[n]) / 2 if d > n else place[-1] + 0.5, color=SOFT, lw=0.8, ls=":")
        ax.set_ylim(0, 1.5 * max(tops) if max(tops) > 0 else 1.0)
        for first, last, text in ((0, n - 1, "invariant"), (n, d - 1, "spurious")):
            if first <= last:
                ax.text((place[first] + place[last]) / 2, 0.97, text, transform=ax.get_xaxis_transform(), ha="center",
                        va="top", fontsize=SMALL, style="italic")  # fmt: skip
        ax.set_xticks(place, [f"w{j + 1}" for j in range(d)])
        ax.set_xlim(place[0] - 0.6, place[-1] + 0.6)
        handles, labels = ax.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: labels[i].split(":")[0] not in drawn)  # the bars first
        ax.legend([handles[i] for i in order], [labels[i] for i in order], fontsize=SMALL, frameon=False, ncols=2,
                  loc="upper right", bbox_to_anchor=(1.0, 0.92))  # fmt: skip

    def _bars(self, ax: Axes, place: Floats, k: int, drawn: Sequence[str]) -> float:
        """The bars of one method, with the paper's values; returns how high they reach."""
        method, width = drawn[k], 0.8 / len(drawn)
        w = normalised(self.weights(method))
        at = place + (k + 0.5) * width - 0.4
        mean, sd = _mean(w), np.nan_to_num(_sd(w))
        share = mean_and_sd(self.share(method))
        theirs, their_share = self.published(method), self.published_share(method)
        label = f"{method}: {share} %" + ("" if their_share is None else f"; paper {100 * their_share:.1f}")
        colour = COLOURS[-1] if k == len(drawn) - 1 else COLOURS[k % 2]
        ax.bar(at, mean, 0.92 * width, yerr=sd, color=colour, label=label, error_kw={"lw": 0.6, "ecolor": INK})
        if theirs is not None:
            ax.plot(at, theirs, zorder=3, **PAPER)
        return max(float(np.nan_to_num(mean + sd).max()), 0.0 if theirs is None else float(theirs.max()))

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """NAME.md, .csv, .json, .svg and .png, by the spec's name."""
        drawn, picture = self.figure(), io.BytesIO()
        drawn.savefig(picture, dpi=150)
        contents: dict[str, str | bytes] = {
            "md": self.markdown(),
            "csv": frame_csv(self.table()),
            "json": json_text(self.numbers(), indent=1) + "\n",
            "svg": figure_svg(drawn) + "\n",
            "png": picture.getvalue(),
        }
        return write_files(folder, {f"{self.name}.{end}": content for end, content in contents.items()})


def report_identifiability(spec: Spec, folder: str | os.PathLike[str]) -> Identifiability | None:
    """Read the weights that `run_experiment` stored in the folder; None where nothing is stored yet.

    The spec is that of the paper's feature weights, or another of one setting of the simulation.
    """
    if len(spec.data.settings) != 1:
        raise ValueError(
            f"feature weights are shown for one setting. Spec {spec.name!r} has {list(spec.data.settings)}; use "
            "spec.with_(settings=[...])."
        )
    (setting,) = spec.data.settings
    chosen = read_weights(spec, Path(folder))
    if chosen.empty:
        return None
    return Identifiability(spec, setting, DATASETS[spec.data.name].arguments(spec.data.arguments_of(setting)), chosen)


def _mean(values: Floats) -> Floats:
    """Over the repetitions that have a value: (n, D) -> (D,); NaN where none has."""
    known = values[np.isfinite(values).all(-1)]
    return np.asarray(known.mean(0)) if len(known) else np.full(values.shape[1:], np.nan)


def _sd(values: Floats) -> Floats:
    known = values[np.isfinite(values).all(-1)]
    return np.asarray(known.std(0, ddof=1)) if len(known) > 1 else np.full(values.shape[1:], np.nan)
