"""Empirical risk minimisation.

min_Phi  sum_e mu_e R_e        (with the empirical measure: the mean loss)
"""

from irmtv.objectives.base import Objective
from irmtv.objectives.parameters import measure_hyperparameters

ERM = Objective(
    name="erm",
    formula="sum_e mu_e R_e",
    summary="the mean loss; no invariance asked",
    source="Vapnik",
    year=1992,
    needs="nothing",
    penalties=(),
    hyperparameters=tuple(measure_hyperparameters("empirical")),
    not_applicable={
        "zero-weight-is-erm": "it has no penalty weight",
        "penalty-gradient": "it has no penalty",
        "authors-reduction": "it uses no slopes",
    },
)
