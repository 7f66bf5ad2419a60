"""From a table to an answer: does the environment matter, does invariance help, and a model to use tomorrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from irmtv.app.fit.summary import FitSummary

if TYPE_CHECKING:
    from irmtv.app.fit.workflow import Answer, fit_table

__all__ = ["Answer", "FitSummary", "fit_table"]


def __getattr__(name: str) -> Any:
    if name not in {"Answer", "fit_table"}:
        raise AttributeError(f"module 'irmtv.app.fit' has no attribute {name!r}")
    from irmtv.app.fit import workflow  # what trains needs torch; what reads a summary does not

    return getattr(workflow, name)
