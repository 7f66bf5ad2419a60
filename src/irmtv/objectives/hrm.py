"""Heterogeneous risk minimisation: environments are clusters of rows, and gates select the features of a linear model.

Rounds of two halves. The front end finds clusters: n_clusters linear models, each fitted to its own rows by

    R_k + mean_j |density_j coef_kj|,

every row then going to the model with the least loss, until few rows move. The density of the round before (0 in the
first) says how much a feature is wanted by the back end: the models rather differ in the others. The back end takes
the clusters for environments e and learns the coefficients theta and one gate per feature,

    gate_j = clip(mu_j + 0.5 + sigma noise_j, 0, 1),    density_j = P(gate_j > 0) = NormalCDF((mu_j + 0.5) / sigma),

    min  mean_e R_e + alpha sum_j (mu_j + 0.5) sum_e |G_ej - mean_e G_ej|^2 + lambda (sum_j density_j - D)^2,

where R_e reads gated features, G_e is the gradient of R_e in theta (gates held still in it) and D is the number of
features. alpha and lambda grow by a factor from round to round. In the end the model is refitted on the features
whose density is above a limit. The mean over e is over the clusters that have rows.

The defaults are the published ones. They close no gate on the published kind of data: lambda holds all of them open,
and in clusters found at so little shrinkage the stable features differ as much as the biased one. What selects there
(the biased feature dropped and the stable ones kept in 50 of 50 draws): first_density=1, cluster_shrinkage=10,
gate_weight=0.01, penalty_weight=300 with rounds=3, steps=3000, learning_rate=1e-2, gate_learning_rate=1e-2,
cluster_steps=200, cluster_learning_rate=2e-2. The scale of the features matters to alpha and to the shrinkage, that
of the loss too: a classification wants a shrinkage of about 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from irmtv.objectives.base import HyperParameter, Objective
from irmtv.objectives.parameters import (
    check_above_zero,
    check_at_least_zero,
    check_in,
    choice,
    number,
    whole,
)


def gate_slope(opened: Tensor) -> Tensor:
    """Of a gate in mu: 1 between its ends, 0 where it is fully open or closed; (R, D) bool."""
    return opened * (1 - opened) > 0


def density_slope(mu: Tensor, sigma: Tensor) -> Tensor:
    """Of the density in mu: (R, D)."""
    z = (mu + 0.5) / sigma
    return z.square().mul_(-0.5).exp_().div_(sigma * math.sqrt(2 * math.pi))


def mean_weights(rows: Tensor) -> Tensor:
    """What each environment counts in a mean over those with rows: (R, E), from the numbers of rows."""
    present = (rows > 0).to(rows.dtype)
    return present / present.sum(1, keepdim=True)


def deviations(gradients: Tensor, weights: Tensor) -> Tensor:
    """G_e - mean_e G_e over the environments with rows, 0 for those without: (R, E, C, D); weights (R, E) as above."""
    weights = weights[:, :, None, None]
    mean = (weights * gradients).sum(1, keepdim=True)
    return (gradients - mean) * weights.sign()


def heterogeneity(deviation: Tensor) -> Tensor:
    """sum_e |G_ej - mean_e G_ej|^2, over the outputs too: (R, E, C, D) -> (R, D)."""
    return deviation.square().sum((1, 2))


def invariance_penalty(mu: Tensor, spread: Tensor) -> Tensor:
    """sum_j (mu_j + 0.5) heterogeneity_j: (R,)."""
    return ((mu + 0.5) * spread).sum(1)


def closed_gates(densities: Tensor) -> Tensor:
    """sum_j density_j - D, whose square holds the gates open: (R,)."""
    return densities.sum(1) - densities.shape[1]


def shrinkage_gradient(coef: Tensor, densities: Tensor) -> Tensor:
    """Of mean_j |density_j coef_kj| in the coefficients, 0 where they are 0: (R, K, C, D)."""
    return coef.sign() * (densities / densities.shape[1])[:, None, None]


def _check_above_one(value: object) -> str | None:
    good = check_above_zero(value) is None and isinstance(value, (int, float)) and value >= 1
    return None if good else "a finite number of at least 1"


def _refuses(settings: Mapping[str, Any]) -> str | None:
    if settings["hidden"] != ():
        return (
            "objective 'hrm' selects input features of a linear model: hidden must be empty. "
            f"Got hidden={settings['hidden']}."
        )
    if isinstance(settings["batch_size"], int):
        return (
            "objective 'hrm' clusters all rows and reads them all at every step: batch_size must be 'auto' or None. "
            f"Got batch_size={settings['batch_size']}."
        )
    if settings["steps"] < 3 * settings["rounds"]:
        return (
            f"objective 'hrm' divides steps over {settings['rounds']} rounds and a refit: steps must be at least three "
            f"times the rounds. Got steps={settings['steps']}."
        )
    return None


HRM = Objective(
    name="hrm",
    formula="mean_e R_e + alpha sum_j (mu_j + 0.5) sum_e |G_ej - mean_e G_ej|^2 + lambda (sum_j density_j - D)^2",
    summary="clusters of rows as environments; gates select features whose gradients agree in them; a linear model",
    source="Liu, Hu, Cui, Li & Shen, ICML",
    year=2021,
    needs="nothing",
    penalties=(),
    procedure="hrm",
    refuses=_refuses,
    hyperparameters=(
        number(
            "penalty_weight",
            1000.0,
            "alpha, the weight of the differences between the clusters' gradients, in the first round",
            ("log", 1e0, 1e5),
            check_at_least_zero,
        ),
        number(
            "gate_weight",
            0.1,
            "lambda, the weight of (sum_j density_j - D)^2, which holds gates open, in the first round",
            ("log", 1e-3, 1e1),
            check_at_least_zero,
        ),
        number(
            "growth", 1.05, "factor of alpha and lambda from round to round", ("linear", 1.0, 1.5), _check_above_one
        ),
        whole("rounds", 5, "rounds of front end and back end", (1, 2, 3, 5)),
        HyperParameter(
            "erm_share",
            1 / 3,
            "share of a round's back-end steps that are ERM, before gates and penalty act; the "
            "refit at the end is as long",
            ("linear", 0.1, 0.5),
            False,
            check_in("(0, 1)"),
        ),
        whole("n_clusters", 3, "clusters of rows, taken for environments", (2, 3, 4, 5), least=2),
        whole(
            "cluster_steps",
            3000,
            "steps of the clusters' models between two assignments of the rows; they come on top of `steps`",
            (300, 1000, 3000),
        ),
        number("cluster_learning_rate", 1e-3, "Adam's rate for the clusters' models", ("log", 1e-4, 1e-1)),
        number(
            "cluster_moves",
            0.125,
            "the clusters are settled when at most this share of the rows moves",
            ("linear", 0.0, 0.2),
            check_in("[0, 1]"),
        ),
        choice(
            "cluster_intercept",
            (False, True),
            "whether the clusters' models have intercepts; without, they read features (and a target of regression) "
            "less their means",
        ),
        number(
            "cluster_shrinkage",
            1.0,
            "weight of mean_j |density_j coef_kj| in the clusters' models",
            ("log", 0.1, 10.0),
            check_at_least_zero,
        ),
        number(
            "first_density",
            0.0,
            "the density of every feature in the front end of the first round",
            ("linear", 0.0, 1.0),
            check_in("[0, 1]"),
        ),
        whole("max_cluster_iterations", 20, "assignments of the rows per round, at most", (5, 20, 50)),
        number("gate_noise", 0.1, "sigma, standard deviation of the gates' noise", ("log", 1e-2, 1.0)),
        number("gate_learning_rate", 3e-4, "Adam's rate for mu, the gates", ("log", 1e-5, 1e-2)),
        number(
            "keep_density",
            0.2,
            "features with a larger density at the end are kept; where none is, the one with the largest",
            ("linear", 0.05, 0.5),
            check_in("[0, 1]"),
        ),
    ),
    not_applicable={
        "zero-weight-is-erm": "at alpha = 0 it still gates features and refits on those kept",
        "environment-order": "its environments are clusters that begin as random labels of the rows in their order",
        "duplicate-environment": "its environments are clusters of rows; none are given",
        "duplicate-rows": "its clusters begin as random labels, which two copies of a row need not share",
        "sample-weight": "its clusters begin as random labels, which two copies of a row need not share; with labels "
        "that they share it holds, as tests/engine/test_sample_weight.py shows",
        "authors-reduction": "it uses no slopes",
        "penalty-gradient": "its penalty is of gradients in theta; tests/engine/solvers/test_hrm.py has it by autograd",
        "textbook-steps": "its own steps are checked by hand in tests/engine/solvers/test_hrm.py",
    },
)
