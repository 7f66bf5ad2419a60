"""Results of small experiments, and the terminal as lines."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pandas as pd
from rich.console import Console

from irmtv.lab.tables import to_terminal

PUBLISHED = {
    "metric": "accuracy_percent",
    "results": {
        "erm": {"toy": {"mean": {"value": 76.2, "std": 1.2}, "worst": {"value": 58.8, "std": 2.0}}},
        "hrm": {"toy": {"mean": {"value": 76.5, "std": 1.4}, "worst": {"value": 59.8, "std": 2.7}}},
    },
}
ODD = [r"a & b", "a_b", "a|b", "50 %", r"\x{y}$z$", "[i]*", "<b>#~^"]


def rows(method, values, *, setting="toy", rule="fixed", metric="accuracy", summary="worst", **more):
    """One row per repetition."""
    cell = {"setting": setting, "method": method, "rule": rule, "metric": metric, "summary": summary}
    columns = {k: v if isinstance(v, list) else [v] * len(values) for k, v in more.items()}
    return [cell | {"repetition": i, "value": v} | {k: c[i] for k, c in columns.items()} for i, v in enumerate(values)]


def frame(*parts):
    return pd.DataFrame(list(itertools.chain(*parts)))


def small(**more):
    """Two methods, three rules, one gap; ERM is published and run, HRM published only."""
    outcome = ["erm-invariant", "invariant-found"]
    parts = []
    for summary, lower in (("mean", 0.0), ("worst", 0.1)):
        s = {"summary": summary} | more
        parts += [
            rows("ERM", [0.70 - lower, 0.72 - lower], published_key="erm", **s),
            rows("ERM", [0.70 - lower, 0.72 - lower], rule="invariance", outcome=outcome, published_key="erm", **s),
            rows("IRM", [0.80 - lower, 0.84 - lower], **s),
            rows("IRM", [0.80 - lower, math.nan], rule="invariance", outcome="none-found", note=["", "lost"], **s),
            rows("IRM", [0.9 - lower, 0.9 - lower], rule="oracle", **s),
        ]
    return frame(*parts)


def terminal(summary, width, tests=None):
    out = io.StringIO()
    to_terminal(summary, Console(file=out, width=width), tests)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def random_results(methods, n_rules=1, repetitions=10, metric="accuracy", gap=0.1, scale=0.001):
    rng = np.random.default_rng(0)
    rules = ["fixed", "invariance", "iid", "worst-env", "oracle"][:n_rules]
    return frame(
        *(
            rows(m, 0.5 + gap * i + scale * rng.normal(size=repetitions), rule=r, metric=metric, summary=s)
            for i, m in enumerate(methods)
            for r in rules
            for s in ("mean", "worst")
        )
    )


def only(table):
    assert len(table) == 1
    return table.iloc[0]
