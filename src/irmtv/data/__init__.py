"""Arrays or DataFrames -> Task. Whatever is wrong with the input is said here, before training starts.

Rows are counted from 0 and matched by position: pandas indexes are ignored. Everything is copied, so later
edits of the caller's arrays do not reach the task.

To read it: `task` (the front door), then `rows` (x, y, environment and aux together), then what these are
made of: `environments` (labels), `target` (y) and `numeric` (numbers).
"""

from __future__ import annotations

from irmtv.data.environments import encode_environment
from irmtv.data.task import make_task

__all__ = ["encode_environment", "make_task"]
