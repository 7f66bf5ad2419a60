"""Minimax-TV and ZIN: the total variation models where only auxiliary variables are known.

    min_Phi  mean_i l_i  +  lambda max_rho ( sum_e m_e |S_e| )^2,      q = rho(aux)       (eq. Minimax-TV-l1)
    min_Phi  mean_i l_i  +  lambda max_rho sum_e m_e |S_e|^2                              (eq. Minimax-TV-l2)
    min_Phi  mean_i l_i  +  lambda max_rho sum_e (m_e S_e)^2                              (ZIN's published code)

rho gives every sample a probability of each environment from its auxiliary variables (time, place, ...).

While all slopes have one sign the bracket of l1 is |mean slope| whatever rho is, so rho has nothing to climb: give
the warm-up steps enough for the slopes to part.
"""

from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l1 import tv_l1, tv_l1_by_sums, tv_l1_subgradient
from irmtv.objectives.irm_tv_l2 import tv_l2, tv_l2_by_sums, tv_l2_subgradient

MINIMAX_TV_L1 = penalised(
    "minimax-tv-l1",
    Penalty("minimax-tv-l1", tv_l1, subgradient=tv_l1_subgradient, norm="l1", by_sums=tv_l1_by_sums),
    needs="aux",
    formula="mean l + lambda max_rho (sum_e m_e |S_e|)^2, q = rho(aux)",
    summary="squared total variation (l1), worst environments inferred from aux",
    source="Lai & Wang, ICML",
    year=2024,
)
MINIMAX_TV_L2 = penalised(
    "minimax-tv-l2",
    Penalty("minimax-tv-l2", tv_l2, power=2, subgradient=tv_l2_subgradient, norm="l2", by_sums=tv_l2_by_sums),
    needs="aux",
    formula="mean l + lambda max_rho sum_e m_e |S_e|^2, q = rho(aux)",
    summary="mean squared slope, worst environments inferred from aux",
    source="Lai & Wang, ICML",
    year=2024,
)
ZIN = penalised(
    "zin",
    Penalty(
        "zin", tv_l2, power=2, reduction="authors", subgradient=tv_l2_subgradient, norm="l2", by_sums=tv_l2_by_sums
    ),
    needs="aux",
    formula="mean l + lambda max_rho sum_e |m_e S_e|^2, q = rho(aux)",
    summary="sum of squared mass-weighted slopes, worst environments inferred from aux",
    source="Lin et al., NeurIPS",
    year=2022,
)
