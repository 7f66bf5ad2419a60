"""Published results, in whatever of the known shapes they come, as one mapping.

Shapes of the results of one method: setting -> summary -> value, or summary -> value where the table has one
setting only. A value is ``{"value": 1.0, "std": 0.1}`` or a plain number. Anything else (lists of feature
weights, seconds) is no result of this kind and is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from irmtv.core.numbers import is_accuracy

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


def read_published(
    published: Mapping[str, Any] | None,
    settings: Sequence[str],
    metrics: Sequence[str],
    summaries: Sequence[str] = ("mean", "worst"),
) -> dict[Where, PublishedValue]:
    """The published values of these settings, in the order in which they are published.

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
