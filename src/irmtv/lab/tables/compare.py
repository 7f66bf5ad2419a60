"""Results over repetitions: means, intervals, distance from published numbers, paired tests.

`results` is a long frame with one row per setting, method, rule, repetition, metric and summary, and columns
value, outcome, published_key and note (the last three may be absent). A value is NaN where there is none.
Settings, methods and rules keep the order of their first appearance. Units are those of the results.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from irmtv.core.messages import check_positive, did_you_mean, shown
from irmtv.core.numbers import is_accuracy, several
from irmtv.selection.equality import holm

Floats = npt.NDArray[np.float64]

CELL = ("setting", "method", "rule", "metric", "summary")
WORST = "worst"  # the summary over test environments that limits are about
NOT_RUN = "not run"  # the rule of a method that is published but not among the results
_NEEDED = (*CELL, "repetition", "value")
_OPTIONAL = ("outcome", "published_key", "note")
_COLUMNS = [*CELL, "n", "missing", "mean", "sd", "low", "high", "published_mean", "published_sd"]
_COLUMNS += ["difference_in_sd", "limit", "outcomes", "note", "published_key"]
_TAILS = (0.025, 0.975)
_FEW = 6  # with fewer pairs no two-sided signed-rank test reaches 5 %
_EXACT = 50  # pairs up to which p is exact
# what published tables call their columns, and which of ours may be meant: the first that there is
_SUMMARY = {"test": ("pooled", "mean"), "ood_test": ("pooled", "mean"), "iid_test": ("iid",)}
_PERCENT = "_percent"


class PublishedValue(NamedTuple):
    """Mean and standard deviation, in the unit of our results: accuracy as a share."""

    mean: float
    sd: float  # NaN where none is published


class Where(NamedTuple):
    """What a published value belongs to."""

    key: str  # of the method
    setting: str
    metric: str
    summary: str


_UNKNOWN = PublishedValue(np.nan, np.nan)


def summarise(
    results: pd.DataFrame,
    published: Mapping[str, Any] | None = None,
    n_bootstrap: int = 2000,
    random_state: int | np.random.Generator | None = 0,
    limits: Mapping[str, float] | None = None,
    limits_metric: str | None = None,
) -> pd.DataFrame:
    """One row per setting, method, rule, metric and summary, over the repetitions.

    Columns: `n` repetitions with a value and `missing` without one (of those that the setting has); `mean`,
    `sd` (ddof=1; NaN for one repetition); `low` and `high`, a 95 % bootstrap interval of the mean (NaN for one
    repetition); `published_mean`, `published_sd` and `difference_in_sd` = (mean - published_mean) /
    published_sd; `limit`; `outcomes` of the invariance rule, as "invariant-found=7; erm-invariant=3"; `note`, why
    values are missing; `published_key`. Text is "" and a number NaN where there is none.

    `published` is one table of published results or its results alone. Methods that are published but not
    run follow with rule "not run" and n = 0.

    `limits` gives for settings the best value of `limits_metric` that can be reached in the worst test
    environment. It becomes the column `limit`, NaN for other metrics and summaries: one number bounds the worst
    environment, and a mean over environments may lie above it.
    """
    check_positive(n_bootstrap, "n_bootstrap")
    frame = _checked(results)
    _check_limits(limits, limits_metric, frame)
    columns = (list(frame[c].unique()) for c in ("setting", "metric", "summary"))
    known = read_published(published, *columns)
    seed = int(np.random.default_rng(random_state).integers(2**63))
    repetitions = frame.groupby("setting")["repetition"].nunique()
    rows = []
    for cell, group in _cells(frame, CELL):
        values = group["value"].to_numpy(np.float64)
        values = values[~np.isnan(values)]
        key = next((k for k in group["published_key"] if k), "")
        there = known.get(Where(key, cell["setting"], cell["metric"], cell["summary"]), _UNKNOWN)
        expected = int(repetitions[cell["setting"]])
        outcomes = Counter(outcome for outcome in group["outcome"] if outcome)
        texts = {
            "outcomes": "; ".join(f"{outcome}={count}" for outcome, count in outcomes.items()),
            "note": _notes(group["note"], expected),
            "published_key": key,
        }
        rows.append(
            cell
            | {"n": len(values), "missing": expected - len(values)}
            | (ours := _over_repetitions(values, n_bootstrap, seed))
            | _compared(ours["mean"], there)
            | texts
        )
    rows += _not_run(frame, known)
    rows.sort(key=_position(frame, "setting"))
    for row in rows:
        limited = row["metric"] == limits_metric and row["summary"] == WORST
        row["limit"] = float((limits or {}).get(row["setting"], np.nan)) if limited else np.nan
    return pd.DataFrame(rows, columns=_COLUMNS)


def paired_tests(
    results: pd.DataFrame, reference: str | None = None, metric: str | None = None, summary: str = "worst"
) -> pd.DataFrame:
    """Wilcoxon signed-rank tests between methods, paired by repetition.

    For each setting, rule and metric (default: each that there is): every method against the `reference`, or
    all pairs. `median_difference` is that of method minus other; `n` counts the complete pairs and `dropped`
    the repetitions without a value in one of the two; `p_holm` is corrected over the comparisons of that
    setting, rule and metric. Exact up to 50 pairs; zero differences are left out of the
    ranking. `note` says where so few pairs are left that p cannot be small.
    """
    frame = _checked(results)
    _check_known(reference, frame["method"], "reference", "a method of the results")
    _check_known(metric, frame["metric"], "metric", "a metric of the results")
    _check_known(summary, frame["summary"], "summary", "a summary of the results")
    order = list(frame["method"].unique())
    frame = frame[frame["summary"] == summary]
    if metric is not None:
        frame = frame[frame["metric"] == metric]
    families = []
    for family, group in _cells(frame, ("setting", "rule", "metric", "summary")):
        wide = group.pivot(index="repetition", columns="method", values="value")
        methods = [m for m in order if m in wide]
        if reference is None:
            pairs = list(itertools.combinations(methods, 2))
        else:
            pairs = [(m, reference) for m in methods if m != reference and reference in methods]
        tests = [
            family | {"method": a, "other": b} | _paired(wide[a].to_numpy(np.float64), wide[b].to_numpy(np.float64))
            for a, b in pairs
        ]
        corrected = holm(np.array([t["p"] for t in tests]))
        families += [t | {"p_holm": p} for t, p in zip(tests, corrected, strict=True)]
    columns = ["setting", "rule", "metric", "summary", "method", "other", "n", "dropped"]
    return pd.DataFrame(families, columns=[*columns, "median_difference", "p", "p_holm", "note"])


# --- over repetitions -------------------------------------------------------------------------------------


@np.errstate(invalid="ignore")  # an infinite value has a mean, but no deviation
def _over_repetitions(values: Floats, n_bootstrap: int, seed: int) -> dict[str, float]:
    """The draws are the same for every cell with as many repetitions: no cell depends on the others."""
    n = len(values)
    low = high = np.nan
    if n > 1:
        low, high = np.quantile(values[_draws(seed, n_bootstrap, n)].mean(1), _TAILS)
    return {
        "mean": float(values.mean()) if n > 0 else np.nan,
        "sd": float(values.std(ddof=1)) if n > 1 else np.nan,
        "low": float(low),
        "high": float(high),
    }


@lru_cache(maxsize=4)
def _draws(seed: int, n_bootstrap: int, n: int) -> npt.NDArray[np.int64]:
    """(B, n) positions."""
    return np.random.default_rng(seed).integers(n, size=(n_bootstrap, n))


def _compared(mean: float, there: PublishedValue) -> dict[str, float]:
    difference = (mean - there.mean) / there.sd if there.sd > 0 else np.nan
    return {"published_mean": there.mean, "published_sd": there.sd, "difference_in_sd": difference}


def _notes(notes: pd.Series[str], expected: int) -> str:
    counts = Counter(note for note in notes if note)
    texts = [str(note) if count == expected else f"{note} ({count} of {expected})" for note, count in counts.items()]
    return shown(texts, limit=3, form=str)


def _not_run(frame: pd.DataFrame, known: Mapping[Where, PublishedValue]) -> list[dict[str, Any]]:
    """Rows of what is published for a setting of ours, under a key that no method there has."""
    run = set(zip(frame["setting"], frame["published_key"], strict=True))
    first = frame.drop_duplicates("published_key")
    labels = dict(zip(first["published_key"], first["method"], strict=True))
    taken = set(frame["method"])
    present = set(frame["metric"]), set(frame["summary"])
    rows: list[dict[str, Any]] = []
    for where, value in known.items():
        if (where.setting, where.key) in run or where.metric not in present[0] or where.summary not in present[1]:
            continue
        # a method of ours may be called like a published one without being declared to be it
        label = labels.get(where.key) or (f"{where.key} (published)" if where.key in taken else where.key)
        cell = dict(zip(CELL, (where.setting, label, NOT_RUN, where.metric, where.summary), strict=True))
        empty = dict.fromkeys(("mean", "sd", "low", "high"), np.nan)
        numbers = {"n": 0, "missing": 0} | empty | _compared(np.nan, value)
        rows.append(cell | numbers | {"outcomes": "", "note": "", "published_key": where.key})
    return rows


# --- pairs ------------------------------------------------------------------------------------------------


def _paired(a: Floats, b: Floats) -> dict[str, Any]:
    complete = ~(np.isnan(a) | np.isnan(b))
    n = int(complete.sum())
    result: dict[str, Any] = {"n": n, "dropped": len(a) - n}
    if n == 0:
        return result | {"median_difference": np.nan, "p": np.nan, "note": "no complete pairs"}
    difference = _difference(a[complete], b[complete])
    unequal = difference[difference != 0]
    with np.errstate(invalid="ignore"):  # the median of +inf and -inf
        result["median_difference"] = float(np.median(difference))
    if len(unequal) == 0:
        return result | {"p": 1.0, "note": "all differences are zero"}
    result["p"] = _signed_rank_p(unequal)
    pairs = several(len(unequal), "pair") + ("" if len(unequal) == n else " that differ")
    few = f"the smallest possible two-sided p with {pairs} is {2 / 2 ** len(unequal):g}"
    return result | {"note": few if len(unequal) < _FEW else ""}


def _signed_rank_p(difference: Floats) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; no difference is zero.

    scipy is exact without ties. With ties it enumerates the signs, a tenth of a second for ten pairs, or
    approximates; here the null distribution is built up rank by rank instead.
    """
    size = np.abs(difference)
    if len(size) > _EXACT or len(np.unique(size)) == len(size):
        return float(stats.wilcoxon(difference, zero_method="wilcox", method="auto").pvalue)
    ranks = np.round(2 * stats.rankdata(size)).astype(int)  # doubled, so that shared ranks are integers
    chance = np.zeros(ranks.sum() + 1)  # of each value of the rank sum of the positive differences
    chance[0] = 1.0
    for rank in ranks:
        chance[rank:] += chance[:-rank].copy()
        chance /= 2
    positive = int(ranks[difference > 0].sum())
    smaller = min(positive, int(ranks.sum()) - positive)
    return float(min(1.0, 2 * chance[: smaller + 1].sum()))


def _difference(a: Floats, b: Floats) -> Floats:
    """a - b, without the digits that rounding in float32 decides: 0.9 - 0.8 and 0.8 - 0.7 must tie."""
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0.0, a - b)  # also inf - inf
    scale = max(np.abs(a).max(), np.abs(b).max())
    if scale == 0 or not np.isfinite(scale):
        return difference
    return np.asarray(np.round(difference / scale, 7) * scale)


# --- what is published -------------------------------------------------------------------------------------


def read_published(
    published: Mapping[str, Any] | None,
    settings: Sequence[str],
    metrics: Sequence[str],
    summaries: Sequence[str] = ("mean", "worst"),
) -> dict[Where, PublishedValue]:
    """The published values of these settings, in the order in which they are published.

    Shapes of the results of one method: setting -> summary -> value, or summary -> value where the table has one
    setting only. A value is ``{"value": 1.0, "std": 0.1}`` or a plain number. Anything else (lists of feature weights,
    seconds) is no result of this kind and is passed over.

    `published` is a whole table (with its "metric" and "results") or its results alone; these are then taken
    for the first of `metrics` that is not a population value, in percent where it is an accuracy. A table
    without settings is compared only where there is one setting: it does not say which of several it means.
    """
    if not published:
        return {}
    results = published.get("results", published)
    metric, scale = _metric(published.get("metric"), metrics)
    found: dict[Where, PublishedValue] = {}
    for key, by_label in results.items():
        for setting, summary, value in _values(by_label, settings):
            ours = next((s for s in _SUMMARY.get(summary, ()) if s in summaries), summary)
            where = Where(str(key), setting, metric, ours)
            found.setdefault(where, PublishedValue(value.mean * scale, value.sd * scale))
    return found


def _metric(name: object, metrics: Sequence[str]) -> tuple[str, float]:
    """The metric as our results call it, and the factor from the published unit to ours."""
    if isinstance(name, str):
        return name.removesuffix(_PERCENT), 0.01 if name.endswith(_PERCENT) else 1.0
    own = next((m for m in metrics if not m.startswith("population")), "")
    return own, 0.01 if is_accuracy(own) else 1.0


def _values(by_label: object, settings: Sequence[str]) -> Iterator[tuple[str, str, PublishedValue]]:
    """(setting, summary, value) of one method."""
    if not isinstance(by_label, Mapping):
        return
    for label, entry in by_label.items():
        value = _value(entry)
        if value is not None and len(settings) == 1:
            yield settings[0], label, value
        elif value is None and isinstance(entry, Mapping) and label in settings:
            for summary, inner in entry.items():
                if (value := _value(inner)) is not None:
                    yield label, summary, value


def _value(entry: object) -> PublishedValue | None:
    if isinstance(entry, Mapping):
        mean, sd = entry.get("value"), entry.get("std")
    else:
        mean, sd = entry, None
    if not isinstance(mean, Real) or isinstance(mean, bool):
        return None
    return PublishedValue(float(mean), float(sd) if isinstance(sd, Real) else math.nan)


# --- the frame --------------------------------------------------------------------------------------------


def _checked(results: pd.DataFrame) -> pd.DataFrame:
    """A copy with all columns, text as str ("" for none) and values as floats."""
    absent = [c for c in _NEEDED if c not in results.columns]
    if absent:
        raise ValueError(
            f"results must have the columns {', '.join(_NEEDED)}. Got no {shown(absent)}."
            f"{did_you_mean(absent[0], results.columns)}"
        )
    if results.empty:
        raise ValueError("results must have at least one row. Got none: run the experiment first.")
    frame = pd.DataFrame({"repetition": results["repetition"], "value": results["value"].astype(np.float64)})
    for column in CELL:
        if results[column].isna().any():
            raise ValueError(f"results: every row needs a {column}. Got {results[column].isna().sum()} without one.")
        frame[column] = results[column].astype(str)
    for column in _OPTIONAL:
        given = results[column] if column in results.columns else pd.Series("", index=results.index)
        frame[column] = given.astype(object).where(given.notna(), "").astype(str)
    twice = frame.duplicated([*CELL, "repetition"])
    if twice.any():
        first = frame.loc[twice, [*CELL, "repetition"]].iloc[0].to_dict()
        raise ValueError(
            "results must have one row per setting, method, rule, repetition, metric and summary. "
            f"Got {int(twice.sum())} more, the first for {first}. Drop the duplicates."
        )
    return frame


def _cells(frame: pd.DataFrame, by: tuple[str, ...]) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    """The groups, ordered by the first appearance of each key in the whole frame."""
    groups = [
        (dict(zip(by, map(str, keys), strict=True)), group) for keys, group in frame.groupby(list(by), sort=False)
    ]
    places = [_position(frame, column) for column in by]
    yield from sorted(groups, key=lambda item: [place(item[0]) for place in places])


def _position(frame: pd.DataFrame, column: str) -> Any:
    order = {label: i for i, label in enumerate(frame[column].unique())}
    return lambda row: order[row[column]]


def _check_known(name: str | None, labels: pd.Series[str], parameter: str, what: str) -> None:
    known = list(labels.unique())
    if name is not None and name not in known:
        raise ValueError(
            f"{parameter} must be {what}: {shown(known, limit=12)}. Got {name!r}.{did_you_mean(name, known)}"
        )


def _check_limits(limits: Mapping[str, float] | None, metric: str | None, frame: pd.DataFrame) -> None:
    if limits is None and metric is None:
        return
    if limits is None or metric is None:
        raise ValueError(
            f"limits and limits_metric belong together. Got only {'limits_metric' if limits is None else 'limits'}. "
            "Give both or none."
        )
    worst = frame[frame["summary"] == WORST]
    _check_known(metric, worst["metric"], "limits_metric", f"a metric of the results with summary {WORST!r}")
    for setting, limit in limits.items():
        _check_known(setting, frame["setting"], "every label of limits", "a setting of the results")
        if not np.isfinite(limit):
            raise ValueError(f"limits must be finite. Got {limit!r} for {setting!r}. Leave the setting out instead.")
