"""The `invariance` rule: is a model invariant over the environments, and what does that cost?

A candidate is tested on rows that were held out: are its mean slopes equal over the environments (one scale of
its logits is then right for all of them), and are its risks equal? Among those that are not rejected the one with
the lowest extrapolated risk is taken,

    risk + reach * (how far the risks of the environments lie apart, beyond noise):

what it would be where the next environment lies `reach` times as far away as these lie from each other.

Why not simply the lowest risk of those that are not rejected: risk falls with every spurious feature, so that choice
sits at the edge of rejection, and of many candidates it takes the one whose noise hides most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from irmtv.core.outcomes import Outcome
from irmtv.core.plain_json import plain_json
from irmtv.selection.case import LOST, Case
from irmtv.selection.options import DEFAULTS, check_options
from irmtv.selection.records import Records
from irmtv.selection.views import MIN_ROWS, View, lowest
from irmtv.selection.wording import message


@dataclass(frozen=True)
class Verdict:
    """Which candidate, why, and the figures behind it."""

    index: int
    outcome: Outcome
    figures: Mapping[str, Any]
    message: str


def invariance(records: Records, **options: Any) -> Verdict:
    """Keep ERM where it is invariant already; else the best invariant candidate; else ERM, with a warning.

    Evidence, in this order (with test="both"):

    1. ERM's slopes are equal over the environments, of linear models in every column: "erm-invariant", or "erm-kept"
       where the test could not have seen much, or where ERM loses much in environments that were left out of training.
       Or all environments would choose the same direction as ERM: "erm-kept".
    2. A candidate has equal slopes and equal risks.
    3. Where noise or base rates differ no useful model has equal risks. Then one that is no worse in left-out
       environments: a linear model with equal slopes in every column; else equal slopes (without left-out environments:
       if its risk + reach * spread of the risks is below that of ERM).
    4. Where ERM loses much in environments that were left out of training, a candidate that wins back half of it. If
       nothing else speaks against ERM, it must lose there all that it gains over a constant.

    Before all of it: where ERM is worse than a constant in a left-out environment, a candidate that keeps nearly all of
    ERM's gain in every one of them.

    What is taken by 2 or 3 must pass on each half of the folds alone, and not be far worse where left out (less so
    where a choice on one half is refuted by the other; of linear models their columns tell more). Where ERM's slopes
    fail by little, or where it would pay only very far out, it may cost next to nothing. Where a linear ERM is right
    almost everywhere, so that its direction tells nothing, a model that costs next to nothing is taken if its risks and
    slopes are equal. `figures["p_confirmed"]` is of a choice on half of the folds that the other half tests: a low one
    says that the choice hangs by a thread.

    Other Parameters
    ----------------
    test : "both" (the above; default), or one test alone: "risks", "slopes", "columns" (linear models), or
        "zero-slopes" (the condition of IRM itself; a model that overfits fails it in every environment alike).
        `figures["test"]` says which one decided.
    level
        A candidate with a p-value below it is not invariant. Default 0.01.
    own_level
        ERM is kept, too, where all environments would choose the same direction: toward the candidate that would be
        taken (`records.toward`), else in all columns (`records.directions`, and what own models would gain must be
        worth something). They then differ in noise, not in what predicts. 1 leaves this out. Records of older
        experiments have models of single environments instead, which must beat ERM at this level (default 0.35).
    reach, slack
        Of those that pass, the lowest risk + reach * spread is taken, where `spread` is how far risks (with
        test="slopes" or "zero-slopes": slopes) of environments lie apart beyond `slack` standard errors. This is what
        keeps a choice among many candidates from being the luckiest one. Defaults 10 and 0.5.
    min_gain
        Share of ERM's gain over a constant prediction that a candidate must keep. A model that predicts nothing has
        equal risks everywhere. Default 0.25. Where environments were left out, a linear model with equal slopes needs
        no more than 0.05: one environment of much variance may be most of what ERM gains.
    max_price
        How much higher than that of ERM the held-out risk of a candidate may be, over all rows, as a share: 0.05 is 5
        %. Default: no limit.
    """
    check_options(**options)
    if records.risk.shape[-1] < 2:
        raise ValueError(
            f"rule 'invariance' compares environments and needs at least 2. Got {records.risk.shape[-1]}; use 'iid'."
        )
    o = {**DEFAULTS, **options}
    case = Case(records, o)
    whole = case.view(o["test"])
    if whole.erm is None and records.inferred:
        alone = lowest(whole.risk, whole.risk.isfinite() & records.reference)
        if alone is not None:
            return _nothing_to_compare(alone, whole, records, o)
    if whole.erm is None:
        raise ValueError(
            "rule 'invariance' needs a candidate of ERM that was measured in two or more "
            f"environments, at least {MIN_ROWS} rows of each. Got none: train 'erm' (or penalty_weight=0) too, on rows "
            "whose environments are known, and merge environments that are too small."
        )
    found = case.by_all() if o["test"] == "both" else case.by_one()
    figures = case.figures(found)
    return Verdict(found.candidate, found.outcome, figures, message(found.outcome, figures, o))


def worth_leaving_out(records: Records, **options: Any) -> Tensor:
    """Candidates whose risk in left-out environments may decide, where that of ERM is known: (C,) bool.

    All that predict something where ERM loses much there; else those that pass a test, if ERM does not. One test alone
    does not look there: what it chooses.
    """
    o = {**DEFAULTS, **options}
    case = Case(records, o)
    nothing = torch.zeros(len(records), dtype=torch.bool)
    if case.view(o["test"]).erm is None:
        return nothing
    if o["test"] != "both":
        return torch.arange(len(records)) == case.by_one().candidate
    if case.lost_left_out >= LOST or case.fails_left_out:
        return case.view("both").useful | case.view("slopes").useful
    if not case.p_erm < o["level"] or (case.view("both").alike and not case.is_settled):
        return nothing
    tests = ("both", "slopes") if case.pooled.column_slope is None else ("both", "slopes", "columns")
    return torch.stack([case.view(test).passing for test in tests]).any(0)


def would_be_taken(records: Records, **options: Any) -> int | None:
    """The candidate that the rule would take if environments did not all choose the same direction; None where it would
    take none, or take it for what it does where left out."""
    o = {**DEFAULTS, **options}
    if o["own_level"] == 1 or Case(records, o).view(o["test"]).erm is None:
        return None
    verdict = invariance(records, **{**options, "own_level": 1})
    found = verdict.outcome == "invariant-found" and verdict.figures["test"] != "left-out"
    return verdict.index if found else None


def _nothing_to_compare(erm: int, whole: View, records: Records, o: Mapping[str, Any]) -> Verdict:
    """Environments that were looked for and not found: there is one, and in it ERM is right."""
    risk = float(whole.risk[erm])
    by_column = ("p_columns", "p_columns_erm", "variation", "variation_erm", "detectable")
    left_out = ("left_out", "left_out_erm", "lost_left_out")
    others = ("p", "p_erm", "p_nearest", "pays_at", "p_own", "own_gain", "own_error", "p_confirmed", "p_halves")
    unknown = dict.fromkeys((*others, *by_column, *left_out))
    figures: dict[str, Any] = {
        "test": o["test"],
        "candidates": 0,
        "passing": 0,
        "not_paying": 0,
        "refused": None,
        "risk": risk,
        "risk_erm": risk,
        "risk_constant": records.constant,
        "risk_extrapolated": risk,
        "price": 0.0,
        "gain_kept": 1.0,
        "blind": True,
        "contradicted": False,
        "toward": False,
        "risks": plain_json(whole.pooled.risk[erm]),
        "risks_erm": plain_json(whole.pooled.risk[erm]),
        **unknown,
    }
    text = (
        "ERM is kept: of the environments that were inferred at most one has "
        f"{MIN_ROWS} held-out rows or more, so there is nothing to compare."
    )
    return Verdict(erm, "erm-kept", figures, text)
