"""Choosing among candidates after training, by any rule, from their records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.selection.invariant import invariance
from irmtv.selection.options import check_options
from irmtv.selection.records import Records, worst_environment


@dataclass(frozen=True)
class Choice:
    """What a rule chose."""

    rule: str
    index: int  # which candidate
    outcome: str | None = None  # of `invariance`, one of `irmtv.core.outcomes`
    figures: Mapping[str, Any] = field(default_factory=dict)  # what it rests on
    message: str = ""

    @property
    def oracle(self) -> bool:
        """Whether test rows were looked at: such a choice shows what is among the candidates, nothing more."""
        return self.rule == "oracle"


def _best(score: Tensor, rule: str, what: str) -> Choice:
    if not bool(score.isfinite().any()):
        raise ValueError(f"rule {rule!r} needs {what} of at least one candidate. Got none that is finite.")
    index = int(score.nan_to_num(torch.inf, posinf=torch.inf, neginf=torch.inf).argmin())
    return Choice(rule, index, figures={"score": float(score[index]), "candidates": len(score)})


def _fixed(records: Records) -> Choice:
    stated = records.stated.nonzero().flatten().tolist()
    if len(stated) != 1:
        raise ValueError(
            f"rule 'fixed' takes the one candidate that was stated beforehand. Got {len(stated)} such candidates."
        )
    return Choice("fixed", stated[0], figures={"candidates": 1})


def _iid(records: Records) -> Choice:
    return _best(records.pooled().overall, "iid", "held-out risks")


def _worst(records: Records) -> Choice:
    if records.risk.shape[-1] < 2:
        raise ValueError("rule 'worst-env' needs the environments of the held-out rows. Got one; use 'iid'.")
    return _best(worst_environment(records.pooled()), "worst-env", "held-out risks by environment")


def _leave_one_out(records: Records) -> Choice:
    if records.left_out is None or records.left_out.shape[1] < 3:
        n = records.risk.shape[-1]
        raise ValueError(
            "rule 'leave-one-env-out' trains without each environment in turn and needs three or more, so that two "
            f"remain to compare. Got {n}; use 'invariance', which needs two."
            if n < 3
            else "rule 'leave-one-env-out' needs the risks of models trained without each environment. Got none."
        )
    return _best(records.left_out.double().mean(1), "leave-one-env-out", "risks in environments left out")


def _oracle(records: Records) -> Choice:
    if records.test is None:
        raise ValueError("rule 'oracle' looks at test rows. Got no scores on test rows.")
    return _best(-records.test, "oracle", "scores on test rows")


def _invariance(records: Records, **options: Any) -> Choice:
    verdict = invariance(records, **options)
    return Choice("invariance", verdict.index, verdict.outcome, verdict.figures, verdict.message)


RULES: Mapping[str, Callable[..., Choice]] = {
    "fixed": _fixed,
    "invariance": _invariance,
    "iid": _iid,
    "worst-env": _worst,
    "leave-one-env-out": _leave_one_out,
    "oracle": _oracle,
}


def choose(rule: str, records: Records, **options: Any) -> Choice:
    """Choose one candidate.

    `fixed`: the one stated beforehand. `invariance`: see :func:`irmtv.selection.invariance`, which takes the
    `options`. `iid`, `worst-env`: the lowest risk on held-out rows, over all of them or in the worst environment.
    `leave-one-env-out`: the lowest mean risk in environments that training did not see. `oracle`: the best on test
    rows; for benchmarks, to be labelled as such.
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {list(RULES)}. Got {rule!r}.{did_you_mean(rule, RULES)}")
    if options and rule != "invariance":
        raise ValueError(f"only rule 'invariance' has options. Got {sorted(options)} for {rule!r}.")
    if rule == "invariance":
        check_options(**options)
    return RULES[rule](records, **options)
