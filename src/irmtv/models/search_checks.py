"""Whether a rule can choose on these rows, before anything is trained, and among these runs, after."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean, shown, users_stacklevel
from irmtv.core.types import Rows, Task
from irmtv.models.base import TrainedPath, infers_held_out
from irmtv.objectives.base import Objective
from irmtv.selection import Records, check_options
from irmtv.selection.folds import left_out_tasks
from irmtv.selection.invariant import MIN_ROWS

RULES = ("invariance", "iid", "worst-env", "leave-one-env-out")


def check_search(
    task: Task,
    objective: Objective,
    combinations: Sequence[Mapping[str, Any]],
    *,
    rule: str,
    n_folds: int,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Whether the rule can choose on these rows; a warning where it cannot see all of their environments."""
    if rule not in RULES:
        raise ValueError(f"rule must be one of {list(RULES)}. Got {rule!r}.{did_you_mean(rule, RULES)}")
    if options is not None and not isinstance(options, Mapping):
        raise ValueError(
            f"rule_options must be a dict of options of rule 'invariance', or None. Got {options!r}. Use "
            "rule_options={'level': 0.01}, for example."
        )
    if options and rule != "invariance":
        raise ValueError(f"only rule 'invariance' has options. Got {sorted(options)} for {rule!r}.")
    check_options(**(options or {}))
    rows = task.train
    counts = [] if rows.environment is None else torch.bincount(rows.environment, minlength=len(rows.names)).tolist()
    _check_folds(rows, n_folds, counts)
    if rule == "iid":
        return
    if infers_held_out(objective):
        _check_inferred(objective, combinations, rule)
        return
    if len(counts) < 2:
        why = (
            f"objective {objective.name!r} infers environments of training rows alone"
            if objective.infers is not None
            else f"Got {len(counts) or 'no'} environment{'' if len(counts) == 1 else 's'}"
        )
        raise ValueError(
            f"rule {rule!r} compares environments of held-out rows and needs at least 2. {why}; pass environment=..., "
            "or use rule='iid'."
        )
    if rule == "leave-one-env-out":
        left_out_tasks(task)  # says what is missing
        if isinstance((settings or {}).get("measure"), tuple):
            raise ValueError(
                "rule 'leave-one-env-out' trains without each environment in turn: measure must be a word, such as "
                f"'uniform'. Got measure={(settings or {})['measure']!r}, one weight per environment."
            )
    if rule == "invariance":
        _check_rows_to_test(rows)


def _check_folds(rows: Rows, n_folds: int, counts: Sequence[int]) -> None:
    if isinstance(n_folds, bool) or not isinstance(n_folds, (int, np.integer)) or n_folds < 2:
        raise ValueError(f"cv must be a number of folds, 2 or more. Got {n_folds!r}.")
    if n_folds > len(rows):
        raise ValueError(
            f"cv must be at most the number of rows. Got cv={n_folds} and n_samples={len(rows)}. Use fewer folds."
        )
    small = [f"{name!r} ({n} rows)" for name, n in zip(rows.names, counts, strict=False) if n < n_folds]
    if small:
        sizes = torch.tensor(counts, dtype=torch.float64)
        pooling = _pooling_leaves_two(sizes, sizes, sizes, n_folds)
        ways = [f"cv={min(counts)}"] if min(counts) >= 2 else []
        ways += [f"min_rows={n_folds}, which pools small environments"] if pooling else []
        raise ValueError(
            f"cv must be at most the rows of the smallest environment, so that every fold has some of each. Got "
            f"cv={n_folds}, and {shown(small, form=str)}. Use {', or '.join(ways) or 'a coarser label'}."
        )


def _pooling_leaves_two(n_rows: Tensor, total: Tensor, squares: Tensor, least: int) -> bool:
    """Whether two environments worth `least` rows are there once those with fewer rows are pooled into one.

    `total` and `squares` are sums of the rows' weights and of their squares, (E,).
    """
    few = n_rows < least
    worth = torch.cat([total, total[few].sum(0, keepdim=True)]).square()
    worth = worth / torch.cat([squares, squares[few].sum(0, keepdim=True)])  # NaN without any
    return int((worth >= least)[torch.cat([~few, few.new_ones(1)])].sum()) >= 2


def _check_inferred(objective: Objective, combinations: Sequence[Mapping[str, Any]], rule: str) -> None:
    if rule == "leave-one-env-out":
        raise ValueError(
            "rule 'leave-one-env-out' is for given environments. Objective "
            f"{objective.name!r} infers its own; use 'invariance' or 'iid'."
        )
    differ = [
        n for n in combinations[0] if n != "penalty_weight" and any(c[n] != combinations[0][n] for c in combinations)
    ]
    if differ and rule == "invariance":
        raise ValueError(
            "rule 'invariance' tests all candidates on the same inferred environments; a grid over "
            f"{differ[0]!r} would give them different ones. Leave it out of the grid, or use rule='iid'."
        )


def _check_rows_to_test(rows: Rows) -> None:
    """Every row is held out once: the rows of an environment are those that it is tested on."""
    assert rows.environment is not None
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double()
    nothing = torch.zeros(len(rows.names), dtype=torch.float64)
    total, squares = (nothing.index_add(0, rows.environment, w) for w in (weight, weight.square()))
    counted = torch.where(total > 0, total.square() / squares, 0)
    small = [f"{name!r} ({n:.4g})" for name, n in zip(rows.names, counted.tolist(), strict=True) if n < MIN_ROWS]
    how = "" if rows.weight is None else " Rows with weights w are worth (sum w)^2 / sum w^2 rows of equal weight."
    if len(rows.names) - len(small) < 2:
        pooling = f"Pool small environments (min_rows={MIN_ROWS}), or use rule='iid'."
        n_rows = torch.bincount(rows.environment, minlength=len(rows.names))
        if not _pooling_leaves_two(n_rows, total, squares, MIN_ROWS):
            pooling = "Pooling would not leave two such either: use rule='iid', or more rows."
        raise ValueError(
            f"rule 'invariance' tests environments with at least {MIN_ROWS} rows and needs 2 such. Got too few rows in "
            f"{shown(small, form=str)}.{how} {pooling}"
        )
    if small:
        warnings.warn(
            f"rule 'invariance' does not test environments with fewer than {MIN_ROWS} rows: {shown(small, form=str)}. "
            f"They are trained on all the same; min_rows={MIN_ROWS} pools them.{how}",
            UserWarning,
            stacklevel=users_stacklevel(),
        )


def check_trained(records: Records, paths: Sequence[TrainedPath], rule: str) -> None:
    """Whether something is left to choose from; a warning where combinations are lost."""
    lost = [dict(path.combination) for path in paths if path.diverged]
    if not lost:
        return
    total = len(paths)
    hint = "Lower learning_rate or the penalty weights, or look for extreme values in X and y."
    overall = records.pooled().overall
    if not bool(overall.isfinite().any()):
        raise ValueError(f"training diverged with all {total} combinations of hyper-parameters. {hint}")
    if rule == "invariance" and not bool(overall[records.reference].isfinite().any()):
        raise ValueError(f"ERM, which rule 'invariance' compares with, diverged. {hint}")
    warnings.warn(
        f"training diverged with {len(lost)} of {total} combinations of hyper-parameters, which cannot be chosen: "
        f"{shown(lost, limit=3)}. {hint}",
        UserWarning,
        stacklevel=users_stacklevel(),
    )
