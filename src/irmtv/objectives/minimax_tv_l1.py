"""Minimax-TV-l1: the paper's model where only auxiliary variables are known (eq. Minimax-TV-l1).

    min_Phi  mean_i l_i  +  lambda max_rho ( sum_e m_e |S_e| )^2,      q = rho(aux)

rho gives every sample a probability of each environment from its auxiliary variables (time, place, ...).

While all slopes have one sign the bracket is |mean slope| whatever rho is, so rho has nothing to climb: give
the warm-up steps enough for the slopes to part.
"""

from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l1 import tv_l1

MINIMAX_TV_L1 = penalised(
    "minimax-tv-l1",
    Penalty("minimax-tv-l1", tv_l1),
    needs="aux",
    formula="mean l + lambda max_rho (sum_e m_e |S_e|)^2, q = rho(aux)",
    summary="squared total variation (l1), worst environments inferred from aux",
    source="Lai & Wang, ICML",
    year=2024,
)
