"""Which candidate to keep, from records alone: no rule sees a row, and only `oracle` sees test results."""

from irmtv.selection.choose import RULES, Choice, choose
from irmtv.selection.equality import equal_means, spread, zero_means
from irmtv.selection.invariant import Verdict, invariance
from irmtv.selection.options import check_options
from irmtv.selection.records import (
    Measurements,
    Pooled,
    Records,
    Rule,
    as_rule,
    build_records,
    iid,
    worst_environment,
)
from irmtv.selection.views import extrapolated_risk, p_values

__all__ = [
    "RULES",
    "Choice",
    "Measurements",
    "Pooled",
    "Records",
    "Rule",
    "Verdict",
    "as_rule",
    "build_records",
    "check_options",
    "choose",
    "equal_means",
    "extrapolated_risk",
    "iid",
    "invariance",
    "p_values",
    "spread",
    "worst_environment",
    "zero_means",
]
