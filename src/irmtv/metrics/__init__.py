"""A metric per environment, for many runs at once: overall, by environment, mean, worst, spread, intervals.

Most metrics are the mean of a score per sample, so one pass of segment sums gives the whole table and a bootstrap
is a matrix product with resampling counts. Statistics (roc_auc, f1, r2, rmse, ...) are of all rows together.

Axes: R runs, N rows, E environments, C outputs, B bootstrap draws.

To read it: `evaluate` (outputs -> table), `definitions` (the metrics), `table` (the result), `inputs` (checks).

>>> import numpy as np
>>> logits = np.array([[2.0, -1.0, 0.5, -3.0], [2.0, 1.0, 0.5, -3.0]])  # (R, N)
>>> table = evaluate_environments(logits, [1, 0, 1, 1], ["a", "a", "b", "b"])
>>> table.by_environment
array([[1. , 0.5],
       [0.5, 0.5]])
>>> table.worst_environment
['b', 'a']
"""

from __future__ import annotations

from irmtv.metrics.definitions import METRICS, STATISTICS, Metric, Statistic, metric_for
from irmtv.metrics.evaluate import evaluate_environments
from irmtv.metrics.table import EnvironmentTable, Interval

__all__ = [
    "METRICS",
    "STATISTICS",
    "EnvironmentTable",
    "Interval",
    "Metric",
    "Statistic",
    "evaluate_environments",
    "metric_for",
]
