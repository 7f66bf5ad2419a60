"""The tables of `irmtv reproduce real`: every split, what the choice did, its intervals, and all of it together."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from irmtv.core.numbers import NO_VALUE, several
from irmtv.core.outcomes import short_outcome
from irmtv.html.text_table import TextTable, tables_markdown, write_tables
from irmtv.lab.real.measure import LINEAR, TREES
from irmtv.lab.real.results import INTERVALS, VERDICTS, IntervalResult, SplitResult, coverage, mean, split_results
from irmtv.lab.real.run import NAME, RealRun
from irmtv.lab.real.scores import higher_is_better

TITLE = "Real tables, every environment left out in turn"
ENOUGH = 0.8  # share of the seeds that give the same outcome where it counts as stable
BINARY = ("heart",)  # tables whose balanced accuracy and log loss are shown beside accuracy
MODELS = ("linear", "trees", "Logistic /Ridge", "HistGB")
CHOICE = ("unseen", "family", "outcome", "gain", "se", "verdict")
READING = (
    "accuracy in %, of bike-season, bike-year and king-county root mean squared error of logarithms. Linear and trees "
    "are ours without a penalty; Logistic / Ridge and HistGB are scikit-learn's with their defaults.",
    "chosen: of the family whose ERM did better in left-out training environments, what the rule `invariance` chose. "
    "worst: in the worst unseen environment, where there are several. oracle: the best of our plain and chosen models "
    "on the unseen rows themselves, no result to be had in practice.",
)


@dataclass(frozen=True)
class RealReport:
    """What `irmtv reproduce real` prints and writes."""

    run: RealRun

    @property
    def every(self) -> list[SplitResult]:
        """All splits and seeds."""
        return split_results(self.run.records)

    @property
    def results(self) -> list[SplitResult]:
        """All splits, with the first seed."""
        return [result for result in self.every if result.seed == 0]

    def by_table(self) -> dict[str, list[SplitResult]]:
        grouped: dict[str, list[SplitResult]] = {}
        for result in self.results:
            grouped.setdefault(result.table, []).append(result)
        return grouped

    # --- tables ---------------------------------------------------------------------------------------------------

    def tables(self) -> list[TextTable]:
        """All that were measured; none where nothing was."""
        if not self.results:
            return []
        made = [
            self._scores(),
            *self._further(),
            self._choices(),
            *self._not_picked(),
            self._intervals(),
            *self._means(),
            self._overall(),
        ]
        return [*made, self._stability()] if any(result.seed for result in self.every) else made

    def _scores(self) -> TextTable:
        rows = []
        for r in self.results:
            several_unseen = len(r.choice["chosen"]["by_environment"]) > 1
            scores = [r.score(LINEAR), r.score(TREES), r.baseline(LINEAR), r.baseline(TREES)]
            scores += [r.choice["chosen"]["score"], r.worst if several_unseen else None, r.oracle]
            rows.append([r.label, *(_value(v, r.metric) for v in scores)])
        columns = ("unseen", *MODELS, "chosen", "worst", "oracle")
        return TextTable("Score on the unseen rows", columns, rows, (*READING, *self.run.notes, *self._missing()))

    def _further(self) -> Iterator[TextTable]:
        """Balanced accuracy and log loss, where classes are unequal and differently so."""
        rows = []
        for r in (r for r in self.results if r.table in BINARY):
            models = [r.families.get(f, {}).get("plain") for f in (LINEAR, TREES)]
            models += [(r.baselines or {}).get(f) for f in (LINEAR, TREES)] + [r.choice["chosen"]]
            pairs = [(m or {}).get("balanced_accuracy") for m in models], [(m or {}).get("log_loss") for m in models]
            texts = [f"{_value(b, 'accuracy')}, {_value(loss, 'log_loss')}" for b, loss in zip(*pairs, strict=True)]
            rows.append([r.label, *texts, _value((models[0] or {}).get("se"), "accuracy")])
        if rows:
            columns = ("unseen", *MODELS, "chosen", "se linear")
            notes = ("se linear: the standard error of the accuracy of plain linear, in points.",)
            yield TextTable("Balanced accuracy in %, and log loss", columns, rows, notes)

    def _choices(self) -> TextTable:
        rows = [_choice_row(r, r.picked) for r in self.results]
        notes = (
            "gain: chosen minus ERM of the same family on the unseen rows, positive where the choice is better; se: "
            "its bootstrap standard error, the rows drawn in pairs.",
            "; ".join(f"{verdict}: {meaning}" for verdict, meaning in VERDICTS.items()) + ".",
        )
        return TextTable("What the choice did", CHOICE, rows, notes, labels=3)

    def _not_picked(self) -> Iterator[TextTable]:
        """What somebody has who trains the other family alone, where the rule did not keep ERM."""
        others = [(r, family) for r in self.results for family in r.families if family != r.picked]
        rows = [_choice_row(r, family) for r, family in others if not r.families[family]["kept_plain"]]
        note = f"ERM was kept in the other {len(others) - len(rows)} of {len(others)}."
        if rows:
            yield TextTable("What the rule did in the family that is not picked", CHOICE, rows, (note,), labels=3)

    def _intervals(self) -> TextTable:
        rows = []
        for r in self.results:
            scores = r.choice["chosen"]["by_environment"]
            intervals = {name: {i.environment: i for i in r.intervals(name)} for name in INTERVALS}
            for environment, value in scores.items():
                row = [r.label if len(scores) == 1 else f"{r.label}: {environment}", _value(value, r.metric)]
                for name in INTERVALS:
                    row += _interval_cells(intervals[name].get(environment), r.metric)
                rows.append(row)
        columns = ["unseen", "score"]
        for name in ("left-out", "held-out"):
            columns += [f"{name} interval", f"{name} score"]
        notes = (
            "90 % intervals of the chosen model for one more environment, from training environments that were left "
            "out, and from held-out rows of training environments; * the score is outside. Their scores (Winkler): "
            "width plus 20 times the distance of a score outside, lower is better.",
        )
        return TextTable("What was expected in a new environment", columns, rows, notes)

    def _means(self) -> Iterator[TextTable]:
        scores, intervals = [], []
        for name, results in self.by_table().items():
            numbers, metric = self._table_numbers(results), results[0].metric
            shown = ("linear", "trees", "logistic_or_ridge", "hist_gb", "chosen", "oracle")
            beats = {True: "yes", False: "no", None: NO_VALUE}[numbers["chosen_beats_both"]]
            scores.append([name, str(len(results)), *(_value(numbers[key], metric) for key in shown), beats])
            row = [name]
            for key in INTERVALS:
                covered, of = coverage(results, key)
                row += [
                    f"{covered} of {of}",
                    *(_value(numbers[f"{key}_{of_it}"], metric) for of_it in ("width", "score")),
                ]
            intervals.append(row)
        columns: Sequence[str] = ("table", "splits", *MODELS, "chosen", "oracle", "beats both")
        note = "beats both: whether the mean of the choice is better than that of plain linear and of plain trees."
        yield TextTable("Means over the splits of each table", columns, scores, (note,))
        columns = [
            "table",
            *(f"{name} {of_it}" for name in ("left-out", "held-out") for of_it in ("covers", "width", "score")),
        ]
        yield TextTable("Intervals, means over the unseen environments of each table", columns, intervals)

    def _table_numbers(self, results: Sequence[SplitResult]) -> dict[str, Any]:
        sign = 1 if higher_is_better(results[0].metric) else -1
        numbers: dict[str, Any] = {
            "splits": len(results),
            "metric": results[0].metric,
            "linear": mean([r.score(LINEAR) for r in results]),
            "trees": mean([r.score(TREES) for r in results]),
            "logistic_or_ridge": mean([r.baseline(LINEAR) for r in results]),
            "hist_gb": mean([r.baseline(TREES) for r in results]),
            "chosen": mean([r.choice["chosen"]["score"] for r in results]),
            "oracle": mean([r.oracle for r in results]),
            "gain": mean([r.choice["gain"] for r in results]),
        }
        plain = [numbers["linear"], numbers["trees"]]
        known = None not in plain
        numbers["chosen_beats_both"] = all(sign * (numbers["chosen"] - p) > 0 for p in plain) if known else None
        for key in INTERVALS:
            each = [interval for r in results for interval in r.intervals(key)]
            numbers[f"{key}_width"] = mean([i.width for i in each])
            numbers[f"{key}_score"] = mean([i.score for i in each])
        return numbers

    def _overall(self) -> TextTable:
        numbers = self.overall()
        n = numbers["splits"]
        rows = [
            [f"{verdict}: {meaning}", f"{numbers['verdicts'][verdict]} of {n}"] for verdict, meaning in VERDICTS.items()
        ]
        rows.append(["worse by more than one standard error, in all", f"{numbers['harmed']} of {n}"])
        for key, name in INTERVALS.items():
            c = numbers["coverage"][key]
            share = f" ({100 * c['covered'] / c['of']:.0f} %)" if c["of"] else ""
            rows.append(
                [
                    f"unseen environments that the 90 % interval from {name} covers",
                    f"{c['covered']} of {c['of']}{share}",
                ]
            )
        beating = numbers["tables_where_chosen_beats_both"]
        text = NO_VALUE if beating is None else ", ".join(beating) or "none"
        rows.append(["tables where the mean of the choice beats both plain models", text])
        if numbers["times_without_left_out"]:
            median, most = numbers["times_without_left_out"].values()
            text = "time of a fit with models of left-out environments, in times of that without: median, most"
            rows.append([text, f"{median:.1f}, {most:.1f}"])
        rows.append(["seconds of training", f"{numbers['seconds']:,.0f}"])
        return TextTable("All splits together", ("", "splits"), rows)

    def overall(self) -> dict[str, Any]:
        """Counts over all splits with the first seed."""
        counts = Counter(result.verdict for result in self.results)
        by_table = {name: self._table_numbers(results) for name, results in self.by_table().items()}
        covered = {key: coverage(self.results, key) for key in INTERVALS}
        beating = [name for name, numbers in by_table.items() if numbers["chosen_beats_both"]]
        comparable = any(numbers["chosen_beats_both"] is not None for numbers in by_table.values())
        return {
            "splits": len(self.results),
            "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
            "verdicts_by_family": {
                family: Counter(r.verdict_in(family) for r in self.results if family in r.families)
                for family in (LINEAR, TREES)
            },
            "harmed": counts["harmed"] + counts["harmed by 2 se"],
            "coverage": {key: {"covered": c, "of": of} for key, (c, of) in covered.items()},
            "tables_where_chosen_beats_both": beating if comparable else None,
            "times_without_left_out": self._times_without_left_out(),
            "seconds": sum(record["seconds"] for record in self.run.records),
        }

    def _times_without_left_out(self) -> dict[str, float]:
        """Over all fits that were measured: how much longer they take for what to expect in a new environment."""
        known = [record for record in self.run.records if "left_out_seconds" in record]
        each = [r["fit_seconds"] / (r["fit_seconds"] - r["left_out_seconds"]) for r in known]
        return {"median": float(np.median(each)), "most": max(each)} if each else {}

    def stability(self) -> list[dict[str, Any]]:
        """How often the seeds of the folds give the same outcome, for every split with several seeds."""
        seeds: dict[tuple[str, str], list[SplitResult]] = {}
        for result in self.every:
            seeds.setdefault((result.table, result.split), []).append(result)
        found = []
        for (table, split), each in seeds.items():
            if len(each) > 1:
                outcomes = Counter(str(r.choice["outcome"]) for r in each)
                most = outcomes.most_common(1)[0][1]
                found.append(
                    {
                        "table": table,
                        "split": split,
                        "seeds": len(each),
                        "outcomes": dict(outcomes),
                        "families": dict(Counter(r.picked for r in each)),
                        "same": most,
                        "stable": most >= ENOUGH * len(each),
                    }
                )
        return found

    def _stability(self) -> TextTable:
        found = self.stability()
        rows = [
            [
                f"{s['table']}: {s['split']}",
                ", ".join(f"{n} {family}" for family, n in s["families"].items()),
                ", ".join(f"{n} {short_outcome(outcome)}" for outcome, n in s["outcomes"].items()),
                f"{s['same']} of {s['seeds']}",
            ]
            for s in found
        ]
        stable = sum(s["stable"] for s in found)
        note = f"the same outcome with at least {100 * ENOUGH:.0f} % of the seeds: {stable} of {len(found)} splits."
        columns = ("unseen", "family", "outcomes", "same")
        return TextTable("Seeds of the folds", columns, rows, (note,), labels=3)

    def _missing(self) -> list[str]:
        """What was left out, in sentences."""
        return [f"left out: {text}" for text in (*self.run.left_out, *(f"failed, {text}" for text in self.run.failed))]

    # --- files ----------------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """A row for every split and seed."""
        rows = []
        for r in self.every:
            row: dict[str, Any] = {"table": r.table, "split": r.split, "seed": r.seed, "metric": r.metric}
            row |= {key: r.any[key] for key in ("n_train", "n_unseen", "n_features", "n_environments", "in_time")}
            for family in (LINEAR, TREES):
                record = r.families.get(family)
                for model in ("plain", "chosen"):
                    row[f"{family}_{model}"] = r.score(family, model)
                for key in ("outcome", "gain", "se", "seconds"):
                    row[f"{family}_{key}"] = None if record is None else record[key]
                left_out = None if record is None else record["left_out"]
                row[f"{family}_left_out"] = None if left_out is None else left_out["plain"]
            row |= {"logistic_or_ridge": r.baseline(LINEAR), "hist_gb": r.baseline(TREES)}
            row |= {"family": r.picked, "chosen": r.choice["chosen"]["score"], "worst": r.worst, "oracle": r.oracle}
            row |= {"outcome": r.choice["outcome"], "gain": r.choice["gain"], "se": r.choice["se"]}
            row["verdict"] = r.verdict
            for key in INTERVALS:
                each = r.intervals(key)
                row[f"{key}_low"], row[f"{key}_high"] = (each[0].low, each[0].high) if each else (None, None)
                row[f"{key}_covered"] = sum(i.covered for i in each)
                row[f"{key}_score"] = mean([i.score for i in each])
            row["unseen_environments"] = len(r.choice["chosen"]["by_environment"])
            rows.append(row)
        return pd.DataFrame(rows)

    def numbers(self) -> dict[str, Any]:
        """For programs. Accuracy is a share."""
        return {
            "splits": self.table(),
            "tables": {name: self._table_numbers(results) for name, results in self.by_table().items()},
            "overall": self.overall(),
            "stability": self.stability(),
            "left_out": self.run.left_out,
            "failed": self.run.failed,
        }

    def markdown(self) -> str:
        """All tables."""
        return tables_markdown(TITLE, self.tables())

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """real.md, .csv and .json."""
        return write_tables(folder, NAME, self.markdown(), self.table(), self.numbers())

    def done(self) -> str:
        """What was measured, in a line or two."""
        n = len(self.run.records)
        lines = [f"{several(n, 'result')}: {self.run.found} were there, {n - self.run.found} measured."]
        return "\n".join([*lines, *self._missing()])


def _choice_row(r: SplitResult, family: str) -> list[str]:
    record = r.families[family]
    label = r.label + (" (later)" if record["in_time"] else "")
    numbers = _signed(record["gain"], r.metric), _value(record["se"], r.metric)
    return [label, family, short_outcome(str(record["outcome"])), *numbers, r.verdict_in(family)]


def _interval_cells(interval: IntervalResult | None, metric: str) -> list[str]:
    if interval is None:
        return [NO_VALUE, NO_VALUE]
    outside = "" if interval.covered else "*"
    between = f"{_value(interval.low, metric)}–{_value(interval.high, metric)}{outside}"
    return [between, _value(interval.score, metric)]


def _value(value: float | None, metric: str) -> str:
    if value is None:
        return NO_VALUE
    return f"{100 * value:.1f}" if higher_is_better(metric) else f"{value:.3f}"


def _signed(value: float, metric: str) -> str:
    text = _value(value, metric)
    return text.removeprefix("-") if float(text) == 0 else f"{'+' if value > 0 else ''}{text}"
