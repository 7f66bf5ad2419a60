"""Columns of a linear model, chosen outright: those on which one model is the best in every environment.

Environment invariant linear least squares penalises the gradients g_e of the environments' risks in the coefficients
of the columns in use. `form` says how; S is the set of columns, which the intercept does not belong to but goes with.

    published    min over beta, S = its support    sum_e mu_e R_e + gamma sum_e mu_e |g_e,S|^2
    l1           the same with total variation     sum_e mu_e R_e + gamma ( sum_e mu_e |g_e,S| )^2
    regret       min over S                        R(S) + BIC(S) + gamma regret(S) max(0, 1 - q / T(S))
    directions   min over U                        sum_e n_e [ R_e(U) + gamma regret_e(U) ] / s_e

"regret", the default, is ours. It measures a gradient by the inverse Hessian of its environment, and so is the regret
of a model against the best model of each environment on the same columns,

    1/2 sum_e mu_e g_e' H_e^-1 g_e = sum_e mu_e [R_e(beta) - min R_e on S],

up to third order. Then the pooled fit of S is its best model, R(S) is its risk, and scales of columns do not matter.
T(S) tests whether that fit is stationary in every environment: a chi-square statistic (of the generalised method of
moments, valid for unequal noise and models that are not true), and q is its quantile at 1 - level. Regret within noise
costs nothing. BIC(S) = log(n) / 2n trace(Hessian^-1 covariance of the gradient) is what columns must earn. Degrees of
freedom of q are counted for the intercept and the columns that do earn it: columns of noise would hide a spurious one.

With gamma = 0 each form is ERM on all columns. A large gamma takes, of the sets that the test accepts, the one of
least risk. The sets come from a short list by second moments (`irmtv.engine.solvers.column_sets`): all sets up to 16
columns are looked at (12 for the other forms), by a search beyond that may miss the best one. At most half as many
columns as rows are taken.

"directions", ours too, is for columns that are mixtures of others, squared errors and three or more environments: not
columns are left out, but directions of x, as few as the test asks for, and U is what is kept; gamma rises to
`penalty_weight` only as far as the test asks for. Environments count by
their rows n_e and by the variance s_e of their residuals (`irmtv.engine.solvers.dropped_directions`).

The forms "regret" and "directions" count evidence. A row twice, or an environment under two names, is more of it;
weights of rows count for (sum w)^2 / sum w^2 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from irmtv.core.messages import is_non_negative
from irmtv.objectives.base import HyperParameter, Objective
from irmtv.objectives.parameters import check_at_least_zero, check_in, choice, number

FORMS = ("regret", "published", "l1", "directions")


def _check_measure(value: Any) -> str | None:
    if value in ("empirical", "uniform"):
        return None
    good = isinstance(value, tuple) and value and all(map(is_non_negative, value)) and sum(value) > 0
    return None if good else "'empirical', 'uniform', or a tuple with one weight >= 0 per environment"


def _refuses(settings: Mapping[str, Any]) -> str | None:
    if settings["hidden"] != ():
        return (
            "objective 'eills' chooses columns of a linear model: hidden must be empty. "
            f"Got hidden={settings['hidden']}."
        )
    return None


EVIDENCE = "its default form tests: more rows are more evidence; {} holds for form='published', in tests/engine/solvers"

EILLS = Objective(
    name="eills",
    formula="R(S) + BIC(S) + gamma regret(S) max(0, 1 - q / T(S)),  regret = 1/2 sum_e mu_e g_e' H_e^-1 g_e",
    summary="columns of a linear model on which one model is best in all environments, of all sets of columns",
    source="Fan et al., Annals of Statistics",
    year=2024,
    needs="environment",
    penalties=(),
    procedure="columns",
    erm_at_zero=True,
    refuses=_refuses,
    hyperparameters=(
        number(
            "penalty_weight",
            1e3,
            "gamma, the weight of regret (of gradients, in the other forms); 0 is ERM on all columns",
            ("log", 1e-1, 1e4),
            check_at_least_zero,
        ),
        choice(
            "form",
            FORMS,
            "'regret': regret beyond noise, and what a column must earn; 'published': squared gradients of the columns "
            "in use; 'l1': their total variation; 'directions': regret of directions that are kept, for mixed columns",
        ),
        HyperParameter(
            "level",
            0.05,
            "of the test in the forms 'regret' and 'directions': how often noise alone counts as regret",
            ("log", 1e-3, 0.5),
            False,
            check_in("(0, 1)"),
        ),
        HyperParameter(
            "measure",
            "empirical",
            "the probability of each environment: its share of the rows, uniform, or a tuple of weights",
            ("empirical", "uniform"),
            False,
            _check_measure,
        ),
    ),
    not_applicable={
        "batched-equals-alone": "two weights may choose the same columns; tests/engine/solvers/test_columns.py has it",
        "zero-weight-is-erm": "it is, but at its minimum rather than after some steps: tests/engine/solvers/"
        "test_columns.py",
        "duplicate-rows": EVIDENCE.format("this"),
        "sample-weight": EVIDENCE.format("this"),
        "duplicate-environment": EVIDENCE.format("this"),
        "authors-reduction": "it uses no slopes",
        "penalty-gradient": "its penalty is of gradients in the coefficients, and of sets of columns",
        "textbook-steps": "it takes no such steps; tests/engine/solvers/test_columns.py has all sets by brute force",
    },
)
