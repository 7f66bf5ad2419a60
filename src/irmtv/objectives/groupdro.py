"""groupDRO: empirical risk minimisation under a measure that follows the worst environments.

    q_e <- q_e exp(rate R_e), normalised;     min_Phi  sum_e q_e R_e   with the new q, held fixed in the gradient

This is ERM with a learned measure and no bound on it: the game's value is min_Phi max_e R_e. Three additions:

* a finite `measure_distance` keeps q within that KL divergence of the shares of the rows: distributionally robust
  optimisation over a ball in place of the whole simplex;
* `adjustment` C: the update sees R_e + C / sqrt(n_e), since a small environment's risk on new rows exceeds that on its
  own by more; Phi's gradient does not see it;
* `sampling="balanced"`: mini-batches with each environment equally often. On the full batch R_e is a mean over all rows
  of the environment, and sampling changes nothing.

An environment that a mini-batch does not have has risk 0 in the update, as published; in Phi's step the weights of
those that it has are normalised. Where Phi can fit all rows every R_e goes to 0, and with them what sets groupDRO apart
from ERM: the published recipe therefore adds a strong l2 or stops early on the worst environment.
"""

import math
from dataclasses import replace

from irmtv.objectives.base import Objective
from irmtv.objectives.parameters import (
    check_at_least_zero,
    choice,
    measure_hyperparameters,
    number,
)

DEFAULTS = {"measure_distance": math.inf, "measure_rate": 0.01}

GROUPDRO = Objective(
    name="groupdro",
    formula="sum_e q_e R_e,  q_e <- q_e exp(eta R_e) / const",
    summary="the mean loss under weights on the environments that follow the largest risks",
    source="Sagawa et al., ICLR",
    year=2020,
    needs="environment",
    penalties=(),
    # the measure is what the method is: no setting of its own says so
    hyperparameters=(
        *(replace(h, default=DEFAULTS[h.name]) for h in measure_hyperparameters("learned") if h.name in DEFAULTS),
        choice(
            "measure_start", ("uniform", "empirical"), "q before the first step: uniform, or the shares of the rows"
        ),
        number(
            "adjustment",
            0.0,
            "C of R_e + C / sqrt(n_e), which the update of q sees in place of R_e",
            ("linear", 0.0, 5.0),
            check_at_least_zero,
        ),
        choice(
            "sampling",
            ("stratified", "balanced"),
            "mini-batches with each environment in its share of the rows, or 'balanced': equally often; no difference "
            "on the full batch",
        ),
    ),
    measure="learned",
    not_applicable={
        "zero-weight-is-erm": "it has no penalty weight",
        "penalty-gradient": "it has no penalty",
        "authors-reduction": "it uses no slopes",
        "duplicate-environment": "it starts uniform over the names, and an environment of two names counts twice",
        "textbook-steps": "its own steps are checked by hand in tests/objectives/test_groupdro.py",
    },
)
