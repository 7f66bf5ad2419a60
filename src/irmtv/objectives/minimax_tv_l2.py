"""Minimax-TV-l2: ZIN written as a total variation model (theorem ZIN, eq. Minimax-TV-l2).

min_Phi  mean_i l_i  +  lambda max_rho sum_e m_e |S_e|^2,      q = rho(aux)
"""

from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l2 import AUTHORS_L2, tv_l2

MINIMAX_TV_L2 = penalised(
    "minimax-tv-l2",
    Penalty("minimax-tv-l2", tv_l2, power=2),
    needs="aux",
    formula="mean l + lambda max_rho sum_e m_e |S_e|^2, q = rho(aux)",
    summary="mean squared slope, worst environments inferred from aux",
    source="Lai & Wang, ICML",
    year=2024,
    not_applicable={"authors-reduction": f"the authors' l2 {AUTHORS_L2}"},
)
