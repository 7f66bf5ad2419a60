"""A summary over its settings: for each method a table of settings by rules, and the averages over settings.

A value counts in an average only where the setting has one under every rule that is compared: otherwise two
rules would be averaged over different settings. A rule without any value (such as one that needs more
environments than there are) is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from irmtv.core.numbers import is_accuracy
from irmtv.lab.tables.compare import NOT_RUN, WORST
from irmtv.lab.tables.layout import (
    PUBLISHED,
    Cell,
    Column,
    Table,
    caption_of,
    plain_cell,
    published_cell,
    rows_of,
    rule_name,
    value_cell,
)

LIMIT = "limit"
_MANY = 4  # methods; with more, their own tables are detail


def overview(summary: pd.DataFrame, detail: bool = True) -> list[Table]:
    """The tables over settings, metric by metric; none for a metric in one setting only.

    For each method that was run and each summary ("worst" first): a row per setting and last their average.
    With many methods these are detail, and tables of the averages alone, a row per method, stand before them.
    `detail=False` leaves the detail out.
    """
    made = []
    for metric in summary["metric"].unique():
        block = summary[summary["metric"] == metric]
        run = block[block["rule"] != NOT_RUN]
        if run["setting"].nunique() < 2:
            continue
        caption = tuple(caption_of(metric, block))
        summaries = sorted(run["summary"].unique(), key=lambda name: name != WORST)
        methods = list(run["method"].unique())
        grids = {(m, s): grid for s in summaries for m, grid in _grids(block, methods, s).items()}
        many = len(methods) > _MANY
        if many:
            for name in summaries:
                of_summary = [grid for (_, s), grid in grids.items() if s == name]
                made += _compact(metric, name, of_summary, caption)
        if detail or not many:
            most = int(run["n"].max())
            pairs = [(m, s) for m in methods for s in summaries]
            made += [_by_setting(metric, s, grids[m, s], caption, most, detail=many) for m, s in pairs]
    return made


@dataclass(frozen=True)
class _Grid:
    """One method under one summary. Frames have the settings as rows, the rules as columns."""

    method: str
    frame: pd.DataFrame  # its rows of the summary
    values: pd.DataFrame
    published: pd.Series[float]  # by setting, as the next
    limit: pd.Series[float]

    @cached_property
    def averaged(self) -> list[str]:
        """The settings that count in the averages."""
        compared = self.values.loc[:, self.values.notna().any()]
        return list(compared.index[compared.notna().all(axis=1)]) if len(compared.columns) else []

    @cached_property
    def limited(self) -> list[str]:
        """Those of them that have a limit."""
        return [setting for setting in self.averaged if not np.isnan(self.limit[setting])]

    def counted(self, settings: Sequence[str]) -> str:
        """'5 of 6 settings', or '6 settings' for all."""
        total = len(self.values)
        return f"{total} settings" if len(settings) == total else f"{len(settings)} of {total} settings"

    def named(self, settings: Sequence[str]) -> str:
        """The method; and over how many settings, if not all."""
        return self.method if len(settings) == len(self.values) else f"{self.method} ({self.counted(settings)})"

    def average(self, rule: str) -> float:
        return _mean(self.values.loc[self.averaged, rule])

    def distance(self, rule: str, metric: str) -> float:
        """How much worse than the limit, on average."""
        distance = self.limit[self.limited] - self.values.loc[self.limited, rule]
        return _mean(distance if is_accuracy(metric) else -distance)


def _grids(block: pd.DataFrame, methods: Sequence[str], summary: str) -> dict[str, _Grid]:
    """Of the methods that were run, by their names. (A frame's own operations take a millisecond, whatever its size:
    here are a hundred methods times summaries, so each is done once for all.)"""
    run = block[block["rule"] != NOT_RUN]
    settings, rules = list(run["setting"].unique()), list(run["rule"].unique())
    here = block[block["summary"] == summary]
    limit = here.drop_duplicates("setting").set_index("setting")["limit"].reindex(settings)
    values = np.full((len(methods), len(settings), len(rules)), np.nan)
    published = np.full((len(methods), len(settings)), np.nan)
    ran = here[here["rule"] != NOT_RUN]
    place = tuple(
        pd.Index(names).get_indexer(pd.Index(ran[c]))
        for c, names in (("method", methods), ("setting", settings), ("rule", rules))
    )
    values[place] = ran["mean"]
    known = here[here["method"].isin(methods) & here["setting"].isin(settings)].dropna(subset="published_mean")
    known = known.drop_duplicates(["method", "setting"])
    published[
        pd.Index(methods).get_indexer(pd.Index(known["method"])),
        pd.Index(settings).get_indexer(pd.Index(known["setting"])),
    ] = known["published_mean"]
    frames = dict(iter(here.groupby("method", sort=False, observed=True)))
    return {
        m: _Grid(
            m,
            frames.get(m, here[:0]),
            pd.DataFrame(values[i], settings, rules),
            pd.Series(published[i], settings),
            limit,
        )
        for i, m in enumerate(methods)
    }


def _mean(values: pd.Series[float]) -> float:
    """NaN where one is missing, or all are."""
    with np.errstate(invalid="ignore"):  # of +inf and -inf
        return float(np.mean(values.to_numpy(np.float64))) if len(values) else np.nan


# --- tables -----------------------------------------------------------------------------------------------


def _by_setting(metric: str, summary: str, grid: _Grid, caption: tuple[str, ...], most: int, detail: bool) -> Table:
    records = {(r["setting"], r["rule"]): r for r in grid.frame.to_dict("records")}
    settings, averaged = list(grid.values.index), grid.averaged
    columns: dict[str, list[Cell]] = {}  # under each heading the cells, the average last
    if grid.published.notna().any():
        known = grid.frame.dropna(subset="published_mean").drop_duplicates("setting")
        first = {r["setting"]: r for r in known.to_dict("records")}
        columns[PUBLISHED] = [published_cell(first.get(s), metric) for s in settings]
        columns[PUBLISHED].append(plain_cell(_mean(grid.published[averaged]), metric))
    for rule in grid.values.columns:
        cells = [replace(value_cell(records.get((s, rule)), metric, most), difference="") for s in settings]
        columns[rule_name(rule)] = [*cells, plain_cell(grid.average(rule), metric)]
    if grid.limit.notna().any():
        limits = [*(float(grid.limit[s]) for s in settings), _mean(grid.limit[averaged])]
        columns[LIMIT] = [plain_cell(limit, metric) for limit in limits]
    labels = [*settings, f"average ({grid.counted(averaged)})"]
    title = f"{grid.method} by setting, {summary}"
    notes = _distances(metric, grid)
    return _table(metric, labels, columns, notes, caption, title, stub="setting", detail=detail)


def _distances(metric: str, grid: _Grid) -> tuple[str, ...]:
    distances = {rule: grid.distance(rule, metric) for rule in grid.values.columns}
    shown = [f"{rule} {_distance_cell(d, metric)}" for rule, d in distances.items() if not np.isnan(d)]
    if not shown:
        return ()
    whole = grid.limited == grid.averaged
    return (f"{_distance_name(metric)}{'' if whole else f' ({grid.counted(grid.limited)})'}: {', '.join(shown)}",)


def _compact(metric: str, summary: str, grids: Sequence[_Grid], caption: tuple[str, ...]) -> list[Table]:
    """The averages of all methods; and where there are limits, the distances from them."""
    rules = list(grids[0].values.columns)
    published = [_mean(grid.published[grid.averaged]) for grid in grids]
    limit = [_mean(grid.limit[grid.averaged]) for grid in grids]
    columns = {PUBLISHED: [plain_cell(p, metric) for p in published]} if not np.isnan(published).all() else {}
    columns |= {rule_name(rule): [plain_cell(grid.average(rule), metric) for grid in grids] for rule in rules}
    columns |= {LIMIT: [plain_cell(at, metric) for at in limit]} if not np.isnan(limit).all() else {}
    labels = [grid.named(grid.averaged) for grid in grids]
    title = f"average over {len(grids[0].values)} settings, {summary}"
    made = [_table(metric, labels, columns, (), caption, title)]
    if any(grid.limited for grid in grids):
        labels = [grid.named(grid.limited) for grid in grids]
        columns = {rule_name(r): [_distance_cell(grid.distance(r, metric), metric) for grid in grids] for r in rules}
        made.append(_table(metric, labels, columns, (), caption, f"{_distance_name(metric)}, {summary}"))
    return made


def _table(
    metric: str,
    labels: Sequence[str],
    columns: dict[str, list[Cell]],
    notes: tuple[str, ...],
    caption: tuple[str, ...],
    title: str,
    stub: str = "method",
    detail: bool = False,
) -> Table:
    heads = tuple(Column("", name) for name in columns)
    return Table(metric, "", heads, rows_of(labels, columns), notes, caption, title, stub, detail)


def _distance_name(metric: str) -> str:
    return f"average distance from the limit{', in points' if is_accuracy(metric) else ''}"


def _distance_cell(distance: float, metric: str) -> Cell:
    if is_accuracy(metric) and np.isfinite(distance):
        distance = round(distance, 3) + 0.0  # no "-0.0"
    return plain_cell(distance, metric)
