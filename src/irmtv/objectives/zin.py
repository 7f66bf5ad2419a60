"""ZIN: Minimax-TV-l2 with the reduction of the published code.

min_Phi  mean_i l_i  +  lambda max_rho sum_e (m_e S_e)^2,      q = rho(aux)
"""

from irmtv.objectives.base import Penalty
from irmtv.objectives.build import penalised
from irmtv.objectives.irm_tv_l2 import AUTHORS_L2, tv_l2

ZIN = penalised(
    "zin",
    Penalty("zin", tv_l2, power=2, reduction="authors"),
    needs="aux",
    formula="mean l + lambda max_rho sum_e |m_e S_e|^2, q = rho(aux)",
    summary="sum of squared mass-weighted slopes, worst environments inferred from aux",
    source="Lin et al., NeurIPS",
    year=2022,
    not_applicable={"authors-reduction": f"the authors' l2 {AUTHORS_L2}"},
)
