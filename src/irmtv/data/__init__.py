"""Arrays and tables -> training data. What is wrong with the input raises here, before training starts.

Rows are matched by position; pandas objects with the same row labels in another order are refused. Everything is
copied, so later edits of the caller's arrays do not reach the data.

The two ways in:

- `task`: `make_task`, from arrays or frames of numbers to a `Task`;
- `training`: `read_training_data`, from what `fit` of an estimator was given to `TrainingData`.

What both are made of: `columns` (which columns of a table are environment and aux), `rows` (their order, and numbers
in any container: aux, weights), `features` (X for networks and for trees), `scaling` and `categories` (how it is
standardised, and coded for trees), `target` (y of a task) and `environments` (labels).

`tables` reads raw tables with text, dates and gaps, for the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from irmtv.data.task import make_task

__all__ = ["make_task"]


def __getattr__(name: str) -> Any:
    if name != "make_task":  # a task is of tensors: loaded when it is asked for, since tables need no torch
        raise AttributeError(f"module 'irmtv.data' has no attribute {name!r}")
    from irmtv.data.task import make_task

    return make_task
