"""SparseIRM: an invariance penalty, and a predictor that may use only a share of its weights.

    min_{Phi, s}  E_m [ sum_e mu_e R_e(m * Phi)  +  lambda P(m * Phi) ],   0 <= s <= 1,  sum_j s_j <= k n

Every weight j (biases are left alone) is kept with probability s_j, which is learned; m_j is 1 or 0. So that the
gradient reaches s, training relaxes m_j to

    m_j = sigmoid((logit s_j + L_j) T),   L_j logistic noise, new at each step,   T = 1 / (0.97 (1 - t) + 0.03),

t being the share of the steps that is done: T rises from 1 to 33, and m_j goes from soft to nearly 0 or 1. The kept
share falls from 1 to k on a cubic curve between two moments; before the first of them all weights are kept. P is
the penalty of IRM (the l2 form), of IRM-TV-l1 or of V-REx.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.objectives.base import HyperParameter, Objective
from irmtv.objectives.build import AUTHORS_L2
from irmtv.objectives.irm_tv_l1 import IRM_TV_L1
from irmtv.objectives.irm_tv_l2 import IRM_TV_L2
from irmtv.objectives.parameters import (
    check_in,
    choice,
    common_hyperparameters,
    number,
)
from irmtv.objectives.vrex import VREX

NEAREST = 1e-7  # to 0 and 1, for the logit of a probability strictly between them: what float32 can tell from 1
SOFTEST, HARDEST = 1.0, 0.03  # 1 / T at the first step and at the last


def temperature(step: Tensor, steps: int) -> Tensor:
    """T: it multiplies the logit, so that a mask is soft at first and nearly 0 or 1 at the end."""
    return 1 / ((SOFTEST - HARDEST) * (1 - step / steps) + HARDEST)


def kept_at(step: Tensor, first: int, last: int, kept_share: Tensor) -> Tensor:
    """The share of the weights that may be kept at a step: 1 until `first`, `kept_share` (R,) from `last` on: (R,)."""
    progress = ((step - first) / max(last - first, 1)).clamp(0, 1)
    return kept_share + (1 - kept_share) * (1 - progress) ** 3


def soft_mask(scores: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
    """sigmoid((logit s + noise) T). Where s is exactly 1 or 0, so is the mask, whatever the noise, with slope 0.

    That is the limit of mask and slope for T > 1. A run whose kept share stays 1 is thus a run without a mask.
    """
    soft = torch.sigmoid((torch.logit(scores, NEAREST) + noise) * temperature)
    return torch.where(scores >= 1, 1.0, torch.where(scores <= 0, 0.0, soft))


def kept_weights(scores: Tensor, share: Tensor) -> Tensor:
    """Which weights a fitted model uses, of scores (R, n): those more likely kept than not, within the budget.

    s >= 0.5, and of these at most the `share` n (rounded, at least one) with the highest scores, the first among
    equals. Without the second part scores that have not decided could exceed the budget: all at 0.5 would all stay.
    """
    budget = (share * scores.shape[1]).round().clamp_min(1).unsqueeze(1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(scores.shape[1], device=scores.device).expand_as(order)
    )
    return (scores >= 0.5) & (rank < budget)


# one name and one weight for whichever is chosen: weights are given by the name of the objective
PENALTIES = {
    o.name: replace(o.penalties[0], name="sparse-irm", default_weight=1e4) for o in (IRM_TV_L2, IRM_TV_L1, VREX)
}


def choose_penalty(objective: Objective, settings: Mapping[str, Any]) -> Objective:
    """With the penalty that the settings name."""
    if settings["sparsify_until"] < settings["sparsify_from"]:
        raise ValueError(
            "sparsify_until must be at least sparsify_from: weights are switched off between these shares of the "
            f"steps. Got sparsify_from={settings['sparsify_from']!r} and sparsify_until={settings['sparsify_until']!r}."
        )
    return replace(objective, penalties=(PENALTIES[settings["penalty"]],))


def _hyperparameters() -> tuple[HyperParameter, ...]:
    common = common_hyperparameters((PENALTIES["irm-tv-l2"],))
    return (
        *(replace(h, default=0.13) if h.name == "warmup" else h for h in common),
        choice(
            "penalty",
            tuple(PENALTIES),
            "the invariance penalty: that of IRM ('irm-tv-l2'), of IRM-TV-l1 or of V-REx",
        ),
        number(
            "kept_share",
            0.95,
            "share of the weights that may be kept in the end; 1 is the penalty without a mask",
            ("linear", 0.1, 1.0),
            check_in("(0, 1]"),
        ),
        HyperParameter(
            "sparsify_from",
            0.28,
            "share of the steps after which the kept share begins to fall from 1",
            ("linear", 0.0, 0.5),
            False,
            check_in("[0, 1]"),
        ),
        HyperParameter(
            "sparsify_until",
            0.6,
            "share of the steps after which the kept share stands at kept_share",
            ("linear", 0.5, 1.0),
            False,
            check_in("[0, 1]"),
        ),
        number(
            "score_learning_rate",
            6e-3,
            "Adam's rate for the keep probabilities; that of the weights is learning_rate (the authors: 6e-4)",
            ("log", 1e-3, 1e-1),
        ),
    )


SPARSE_IRM = Objective(
    name="sparse-irm",
    formula="E_m [sum_e mu_e R_e + lambda P] of m * Phi, m_j ~ Bernoulli(s_j), sum_j s_j <= k n",
    summary="an invariance penalty on a predictor that may keep only a share of its weights; environments given",
    source="Zhou et al., ICML",
    year=2022,
    needs="environment",
    penalties=(PENALTIES["irm-tv-l2"],),
    hyperparameters=_hyperparameters(),
    mask="sparse",
    mask_from="sparsify_from",
    choose=choose_penalty,
    not_applicable={
        "zero-weight-is-erm": "the mask remains without the penalty; with kept_share=1 too it is ERM, which "
        "tests/engine/components/test_sparse_mask.py checks",
        "authors-reduction": AUTHORS_L2,
        "textbook-steps": "its steps have a mask; tests/engine/components/test_sparse_mask.py has them by hand",
    },
)
