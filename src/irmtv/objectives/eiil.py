"""EIIL: environments inferred row by row from the slopes of a reference model, then IRM on them (Creager 2021).

    q = arg max  [ (mean_i q_i s_i)^2 + (mean_i (1 - q_i) s_i)^2 ] / 2,      s_i the slopes of the reference model
    min_Phi  mean_i l_i  +  lambda sum_e (m_e S_e)^2,                        environments (q, 1 - q)

`variant="two-stage"` is the paper's: the reference model is Phi at the end of its warm-up, where the rows are split
once and for all. Phi goes on from there; a restart with the same seed would come to the same state, since nothing but
the risk acts before. A run with warmup=0 is split by its random start.

The largest value of the bracket has a closed form. With G = mean q s and H = mean (1 - q) s the sum G + H is fixed, so
the bracket, ((G + H)^2 + (G - H)^2) / 4, grows with |G - H| = |mean (2 q - 1) s|, which is largest, mean |s|, where q
is [s > 0] or its complement; the squared total variation (|G| + |H|)^2 is largest there too. `inference="exact"`
takes that split, `inference="ascent"` the published way to it: logits a, q = sigmoid(a), gradient steps from a random
start, a hard split at 0.5. For the expectation form of l2, G^2 / m + H^2 / (1 - m), the best split is another: it cuts
the slopes at some other value than 0.

`variant="joint"`, of the code base on which the total variation paper's experiments are built, has no reference model
and no hard split: every a_i climbs the penalty of the present Phi, one step per step, through the whole run.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from irmtv.objectives.base import Climbs, Objective, Penalty
from irmtv.objectives.build import AUTHORS_L2
from irmtv.objectives.irm_tv_l2 import tv_l2, tv_l2_by_sums, tv_l2_subgradient
from irmtv.objectives.parameters import (
    choice,
    common_hyperparameters,
    environment_rate,
    whole,
)


def inference_gradient(a: Tensor, slope: Tensor) -> Tensor:
    """Of the bracket / 2 in a, q = sigmoid(a): (G - H) s_i / N times q_i (1 - q_i), (..., N)."""
    q = torch.sigmoid(a)
    difference = ((2 * q - 1) * slope).mean(-1, keepdim=True)
    return difference * slope * q * (1 - q) / a.shape[-1]


def exact_split(slope: Tensor) -> Tensor:
    """The q of 0 and 1 at which the value is largest, [s_i > 0]: (..., N)."""
    return (slope > 0).to(slope.dtype)


def _climbs(settings: Mapping[str, Any]) -> Climbs:
    return "always" if settings["variant"] == "joint" else "never"


PENALTY = Penalty(
    "eiil", tv_l2, power=2, reduction="authors", subgradient=tv_l2_subgradient, norm="l2", by_sums=tv_l2_by_sums
)

EIIL = Objective(
    name="eiil",
    formula="mean l + lambda sum_e |m_e S_e|^2, q = [s > 0] of the warmed-up Phi (or climbing, one a_i per row)",
    summary="sum of squared mass-weighted slopes, environments inferred row by row, nothing given",
    source="Creager, Jacobsen & Zemel, ICML",
    year=2021,
    needs="nothing",
    infers="rows",
    climbs=_climbs,
    penalties=(PENALTY,),
    hyperparameters=(
        *common_hyperparameters((PENALTY,)),
        choice(
            "variant",
            ("two-stage", "joint"),
            "'two-stage': rows are split at the end of the warm-up by the slopes that Phi has there (the paper); "
            "'joint': soft memberships climb the penalty at every step of Phi",
        ),
        choice(
            "inference",
            ("exact", "ascent"),
            "how 'two-stage' splits: 'exact' by the sign of the slopes; 'ascent' by gradient steps that lead there",
        ),
        whole("inference_steps", 10_000, "gradient steps of inference='ascent'", (1_000, 3_000, 10_000)),
        replace(
            environment_rate(), meaning="Adam's rate for the rows' logits, where they climb ('joint', or 'ascent')"
        ),
    ),
    not_applicable={
        "authors-reduction": AUTHORS_L2,
        "textbook-steps": "its own steps are checked by hand in tests/engine/components/test_row_environments.py",
    },
)
