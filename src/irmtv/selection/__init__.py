"""Which candidate to keep, from records alone: no rule sees a row, and only `oracle` sees test results."""

from irmtv.selection.choose import RULES, Choice, choose
from irmtv.selection.invariant import Verdict, check_options, equal_means, invariance, p_values, zero_means
from irmtv.selection.records import Pooled, Records
from irmtv.selection.scores import Rule, as_rule, iid, worst_environment

__all__ = [
    "RULES",
    "Choice",
    "Pooled",
    "Records",
    "Rule",
    "Verdict",
    "as_rule",
    "check_options",
    "choose",
    "equal_means",
    "iid",
    "invariance",
    "p_values",
    "worst_environment",
    "zero_means",
]
