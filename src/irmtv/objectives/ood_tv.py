"""OOD-TV-IRM: a penalty weight that is itself a function of Phi, learned against it (a primal-dual problem).

    min_Phi max_Psi  risk + lambda(Psi, Phi) penalty,        lambda = unit * softplus( network_Psi(Phi) )

After the same warm-up as without, each step moves Psi up lambda * penalty and Phi down the whole. The network reads
all parameters of Phi; `penalty_weight` is the unit (1 as published; 0 is ERM).
"""

from collections.abc import Mapping
from dataclasses import replace

from irmtv.objectives.base import Objective
from irmtv.objectives.irm_tv_l1 import IRM_TV_L1
from irmtv.objectives.irm_tv_l2 import IRM_TV_L2
from irmtv.objectives.minimax_tv import MINIMAX_TV_L1, MINIMAX_TV_L2
from irmtv.objectives.parameters import check_at_least_zero, number, whole

DROPPED = ("penalty_schedule", "penalty_ramp", "penalty_weight", "weight_learning_rate")


def _with_weight_network(name: str, base: Objective) -> Objective:
    """`base` with lambda(Psi, Phi) in place of its penalty weight."""
    own = (
        number(
            "penalty_weight",
            1.0,
            "the unit of lambda(Phi): what softplus(network(Phi)) is multiplied with; 0 is ERM",
            ("log", 1e-1, 1e4),
            check_at_least_zero,
        ),
        number("weight_learning_rate", 1e-2, "Adam's rate for the network that gives lambda", ("log", 1e-4, 1e-1)),
        whole("weight_hidden", 16, "hidden units of that network", (8, 16, 32)),
    )
    kept = tuple(h for h in base.hyperparameters if h.name not in DROPPED)
    why: Mapping[str, str] = {
        **base.not_applicable,
        "textbook-steps": "the reference loop has no network for lambda; its steps are checked by hand beside it",
    }
    return replace(
        base,
        name=name,
        formula=base.formula.replace("lambda", "lambda(Phi)", 1),
        summary=f"{base.summary}; lambda a network on Phi, climbing",
        source="Wang, Lai & Zhong, ICLR",
        year=2025,
        penalties=tuple(replace(p, name=name) for p in base.penalties),
        hyperparameters=(*own, *kept),
        weight_mode="network",
        not_applicable=why,
    )


OOD_TV_IRM_L1 = _with_weight_network("ood-tv-irm-l1", IRM_TV_L1)
OOD_TV_IRM_L2 = _with_weight_network("ood-tv-irm-l2", IRM_TV_L2)
OOD_TV_MINIMAX_L1 = _with_weight_network("ood-tv-minimax-l1", MINIMAX_TV_L1)
OOD_TV_MINIMAX_L2 = _with_weight_network("ood-tv-minimax-l2", MINIMAX_TV_L2)
