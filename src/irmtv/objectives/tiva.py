"""TIVA: environments inferred from whatever does not predict y, inputs and auxiliary variables alike.

    min_Phi  mean_i l(Phi(u_i), y_i)  +  lambda max_rho sum_e (m_e S_e)^2,      q = rho((1 - g) u),  u = [x, aux]

The gates g, one per input, are learned beside it by a linear model h on the inputs that predict y:

    min_(mu, h)  mean_i l(h(g u_i), y_i)  +  gate_weight mean_j NormalCDF((mu_j + 0.5) / sigma),
    g = clip(mu + 0.5 + sigma noise, 0, 1)

Phi reads u in the released code, g u in the paper (`gated`). Where others than h use the gates, they are without noise.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from irmtv.objectives.base import HyperParameter, Objective, Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l2 import tv_l2, tv_l2_by_sums, tv_l2_subgradient
from irmtv.objectives.parameters import check_at_least_zero, choice, number

RATE = 0.01  # of Phi, rho and the selector in the released code; Phi's is a setting of `train`


def selector_loss(loss: Tensor, density: Tensor, gate_weight: Tensor) -> Tensor:
    """loss (R,) of h, and the share of the gates (R, D) that are expected to be open: (R,)."""
    return loss + gate_weight * density.mean(-1)


def _hyperparameters(common: tuple[HyperParameter, ...]) -> tuple[HyperParameter, ...]:
    return (
        *(replace(h, default=RATE) if h.name == "environment_learning_rate" else h for h in common),
        choice(
            "gated",
            (False, True),
            "whether Phi reads the inputs through the gates (the paper), or as they are (the released code)",
        ),
        number("gate_noise", 1.0, "sigma, the standard deviation of the noise in the gates", ("log", 0.1, 2.0)),
        number(
            "gate_weight",
            1e-3,
            "what open gates cost the selector; the released code's 0.001 often leaves gates open of inputs that do "
            "not predict y, and rho then has little to read: 0.03 closes them",
            ("log", 1e-4, 1.0),
            check_at_least_zero,
        ),
        number(
            "selector_learning_rate",
            RATE,
            "Adam's rate for the gates and the selector's own model",
            ("log", 1e-4, 1e-1),
        ),
    )


def _choose(objective: Objective, settings: Mapping[str, Any]) -> Objective:
    return replace(objective, mask="gates") if settings["gated"] else objective


_ZIN_LIKE = penalised(
    "tiva",
    Penalty(
        "tiva", tv_l2, power=2, reduction="authors", subgradient=tv_l2_subgradient, norm="l2", by_sums=tv_l2_by_sums
    ),
    needs="aux",
    formula="mean l + lambda max_rho sum_e |m_e S_e|^2, q = rho((1 - gates) [x, aux])",
    summary="as ZIN, with environments inferred from the inputs and aux that do not predict y",
    source="Tan et al., ICML",
    year=2023,
    not_applicable={
        "zero-weight-is-erm": "its predictor reads aux beside x: it is ERM on those, checked in tests/engine/"
        "components/test_selector.py",
        "textbook-steps": "its own steps, the selector's among them, are checked by hand in tests/engine/"
        "components/test_selector.py",
    },
)
TIVA = replace(
    _ZIN_LIKE,
    hyperparameters=_hyperparameters(_ZIN_LIKE.hyperparameters),
    infers="rest",
    reads_aux=True,
    choose=_choose,
)
