"""Every statement that can be run, in the order in which the paper makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from irmtv.core.messages import did_you_mean
from irmtv.lab.theory.adaptive_weight import detached_weight_stops_short, optima_agree
from irmtv.lab.theory.blocky import blockiness_in_w, coarea_prefers_blocks
from irmtv.lab.theory.blocky_time import blocky_over_time
from irmtv.lab.theory.coarea import coarea_1d, coarea_2d
from irmtv.lab.theory.coarea_readings import coarea_needs_lipschitz, coarea_piecewise_constant
from irmtv.lab.theory.coarea_trained import coarea_trained
from irmtv.lab.theory.coarse_labels import coarse_measure
from irmtv.lab.theory.extrapolation import risk_extrapolation, vrex_l2, vrex_sum_is_no_expectation
from irmtv.lab.theory.finding import Finding, statement_name
from irmtv.lab.theory.fixed_weight import fixed_weight_misses
from irmtv.lab.theory.induced_measure import induced_measure
from irmtv.lab.theory.integrability import l1_allows_more
from irmtv.lab.theory.minimax import minimax_penalties_coincide
from irmtv.lab.theory.ood import lambda_phi_makes_worst_risk, ood_over_w
from irmtv.lab.theory.recovery import recovery_1d, recovery_2d
from irmtv.lab.theory.requirements import normalised_measure, sufficient_condition
from irmtv.lab.theory.span import environment_span
from irmtv.lab.theory.subgradient import subgradient_scalar, subgradient_vector
from irmtv.lab.theory.surrogate import irmv1_is_tv_l2, zero_slope_may_be_a_maximum
from irmtv.lab.theory.variation import dual_total_variation
from irmtv.lab.theory.zero_slopes import zero_penalty_without_constancy
from irmtv.lab.theory.zin import tiva_is_minimax_tv_l2, zin_rewriting

_CHAPTERS: dict[str, tuple[Callable[[], Finding], ...]] = {
    "Total variation": (dual_total_variation, coarea_prefers_blocks, recovery_1d, recovery_2d),
    "IRM is a TV-l2 model": (
        zero_slope_may_be_a_maximum,
        induced_measure,
        irmv1_is_tv_l2,
        normalised_measure,
        vrex_l2,
        vrex_sum_is_no_expectation,
        risk_extrapolation,
        zin_rewriting,
        tiva_is_minimax_tv_l2,
    ),
    "IRM-TV-l1": (
        l1_allows_more,
        minimax_penalties_coincide,
        subgradient_scalar,
        subgradient_vector,
        coarea_1d,
        coarea_2d,
        coarea_trained,
        coarea_piecewise_constant,
        coarea_needs_lipschitz,
        blockiness_in_w,
        blocky_over_time,
    ),
    "Out-of-distribution generalization": (
        ood_over_w,
        lambda_phi_makes_worst_risk,
        zero_penalty_without_constancy,
        fixed_weight_misses,
        optima_agree,
        detached_weight_stops_short,
        environment_span,
        coarse_measure,
        sufficient_condition,
    ),
}


class UnknownStatementError(KeyError, ValueError):
    """No statement of that name. A KeyError, so that `STATEMENTS` is a mapping; a ValueError to users."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class _Statements(dict[str, Callable[[], Finding]]):
    """By name; a name that is not there is answered with those that are."""

    def __missing__(self, name: str) -> Callable[[], Finding]:
        raise UnknownStatementError(f"a statement must be one of {list(self)}. Got {name!r}.{did_you_mean(name, self)}")


STATEMENTS: Mapping[str, Callable[[], Finding]] = _Statements(
    {statement_name(f): f for chapter in _CHAPTERS.values() for f in chapter}
)
CHAPTERS: Mapping[str, tuple[str, ...]] = {
    title: tuple(map(statement_name, chapter)) for title, chapter in _CHAPTERS.items()
}
