"""The hyper-parameters that objectives have in common, and checks of values that others use too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from irmtv.core.messages import did_you_mean, is_non_negative
from irmtv.core.types import Measure
from irmtv.objectives.base import FOLLOWS_PHI, HyperParameter, Penalty
from irmtv.objectives.environments.affine import Affine


def check_whole(least: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if good else f"a whole number of at least {least}"

    return check


def check_above_zero(value: Any) -> str | None:
    return None if is_non_negative(value) and value > 0 else "a finite number above 0"


def check_at_least_zero(value: Any) -> str | None:
    return None if is_non_negative(value) else "a finite number of at least 0"


def check_in(interval: str) -> Callable[[Any], str | None]:
    """From 0 to 1, each end included or not: "[0, 1]", "(0, 1]", "[0, 1)" or "(0, 1)"."""

    def check(value: Any) -> str | None:
        good = is_non_negative(value) and value <= 1
        good &= (value != 0 or interval[0] == "[") and (value != 1 or interval[-1] == "]")
        return None if good else f"a number in {interval}"

    return check


def choice(name: str, choices: tuple[Any, ...], meaning: str, default: Any = None) -> HyperParameter:
    """One of several values, by default the first; the same in all runs of a batch."""

    def check(value: Any) -> str | None:
        return None if any(value is c or value == c for c in choices) else f"one of {list(choices)}"

    return HyperParameter(name, choices[0] if default is None else default, meaning, choices, False, check)


def whole(name: str, default: int, meaning: str, search: tuple[int, ...], least: int = 1) -> HyperParameter:
    """A whole number, the same in all runs of a batch."""
    return HyperParameter(name, default, meaning, search, False, check_whole(least))


def number(
    name: str,
    default: float,
    meaning: str,
    search: tuple[str, float, float],
    check: Callable[[Any], str | None] = check_above_zero,
) -> HyperParameter:
    """A number that may differ between the runs of a batch."""
    return HyperParameter(name, default, meaning, search, True, check)


def _check_warmup(value: Any) -> str | None:
    good = is_non_negative(value) and (isinstance(value, int) or value < 1)
    return None if good else "a whole number of steps, or a share of all steps in [0, 1)"


def _check_ramp(value: Any) -> str | None:
    good = is_non_negative(value) and value > 0 and (isinstance(value, int) or value <= 1)
    return None if good else "a whole number of steps, or a share of the penalised steps in (0, 1]"


def _check_measure(value: Any) -> str | None:
    if value in ("empirical", "uniform", "learned"):
        return None
    good = isinstance(value, tuple) and value and all(map(is_non_negative, value)) and sum(value) > 0
    return None if good else "'empirical', 'uniform', 'learned', or a tuple with one weight >= 0 per environment"


def _check_distance(value: Any) -> str | None:
    return None if is_non_negative(value) or value == math.inf else "a number of at least 0 (inf for no bound)"


def _as_affine(value: Any) -> Affine | None:
    return Affine(**value) if isinstance(value, Mapping) else value


def _check_expand(value: Any) -> str | None:
    expected = "None, irmtv.objectives.environments.Affine(n=..., reach=...), or a mapping with n and reach"
    try:
        return None if isinstance(_as_affine(value), Affine | None) else expected
    except TypeError:  # a key that Affine does not have
        return expected


def _penalty_weight(penalties: tuple[Penalty, ...]) -> HyperParameter:
    names = [p.name for p in penalties]

    def check(value: Any) -> str | None:
        if isinstance(value, Mapping):
            unknown = [k for k in value if k not in names]
            if unknown:
                near = did_you_mean(unknown[0], names).strip()
                return f"a mapping over {names}" + (f" ({near})" if near else "")
            return None if all(map(is_non_negative, value.values())) else "finite numbers of at least 0"
        if is_non_negative(value) or (isinstance(value, str) and value in FOLLOWS_PHI):
            return None
        several = "; several weights are several runs: Runs.grid(penalty_weight=[...])"
        several = several if isinstance(value, (list, tuple)) else ""
        return f"a finite number of at least 0 (0 is ERM) or one of {list(FOLLOWS_PHI)}{several}"

    default: Any = penalties[0].default_weight
    meaning = (
        "lambda, the weight of the penalty: a number; 'adaptive' ((max_e R_e - E R) / penalty at each step), "
        "'adaptive-exact' (the same, differentiated: the worst risk), 'learned' (climbs lambda * penalty)"
    )
    if len(penalties) > 1:
        meaning = (
            "the weights: one number for all, or a mapping by name (a part not named keeps its default); 'adaptive', "
            "'adaptive-exact' or 'learned' weigh the sum of the penalties"
        )
        default = {p.name: p.default_weight for p in penalties}
    return number("penalty_weight", default, meaning, ("log", 1e-1, 1e6), check)


def measure_hyperparameters(measure: Measure) -> list[HyperParameter]:
    """What each environment counts."""
    return [
        HyperParameter(
            "measure",
            measure,
            "the probability of each environment: its share of the rows, uniform, a tuple of weights, or 'learned': "
            "moved up the objective by exponentiated gradient, within measure_distance of the shares",
            ("empirical", "uniform", "learned"),
            False,
            _check_measure,
        ),
        number(
            "measure_distance",
            0.1,
            "how far a learned measure may go from the shares of the rows: Kullback-Leibler divergence, in nats",
            ("log", 1e-3, 1.0),
            _check_distance,
        ),
        number(
            "measure_rate",
            0.1,
            "step size of a learned measure: mu_e <- mu_e exp(rate * d objective / d mu_e), normalised",
            ("log", 1e-3, 1.0),
        ),
    ]


def common_hyperparameters(penalties: tuple[Penalty, ...], measure: Measure = "empirical") -> list[HyperParameter]:
    """What every penalised objective has."""
    parameters = [
        _penalty_weight(penalties),
        number(
            "max_penalty_weight", 1e6, "the largest lambda that a weight which follows Phi reaches", ("log", 1e2, 1e8)
        ),
        number(
            "weight_learning_rate",
            0.05,
            "Adam's rate for log lambda where penalty_weight='learned'; it starts at 1",
            ("log", 1e-3, 1.0),
        ),
        choice(
            "penalty_schedule",
            ("constant", "linear", "geometric"),
            "lambda after the warm-up: at once, or rising to its value: 'linear' from 0, 'geometric' from 1",
        ),
        number(
            "penalty_ramp",
            1.0,
            "steps (or share of the penalised steps) over which lambda rises, if it does",
            ("linear", 0.1, 1.0),
            _check_ramp,
        ),
        number(
            "warmup",
            0.5,
            "steps (or share of the steps) of ERM before the penalty acts",
            ("linear", 0.0, 0.95),
            _check_warmup,
        ),
        choice(
            "normalise",
            (True, False),
            "divide the objective by 1 + lambda once the penalty acts, as the authors do, so that its size does not "
            "depend on lambda; the estimators do not: Adam, which remembers the warm-up, then moves too little",
        ),
        *measure_hyperparameters(measure),
        HyperParameter(
            "expand",
            None,
            "penalise affine mixtures of the environments too: Affine(n=64, reach=0.5); every environment and "
            "mixture then counts the same in the penalty",
            (None, Affine(64, 0.5)),
            False,
            _check_expand,
            _as_affine,
        ),
    ]
    if any("slope" in p.uses for p in penalties):
        parameters += [
            choice(
                "reduction",
                ("expectation", "authors"),
                "'expectation' as the paper writes it; 'authors' sums mass-weighted slopes as the published code does",
                default=penalties[0].reduction,
            ),
            choice(
                "batch_estimator",
                ("auto", "plain", "halves"),
                "mini-batches: 'halves' multiplies the slopes of two half batches, 'plain' squares one; 'auto' takes "
                "halves for l2 (unbiased) and plain for l1",
            ),
        ]
    return parameters


def environment_rate() -> HyperParameter:
    return number("environment_learning_rate", 1e-3, "Adam's rate for rho", ("log", 1e-4, 1e-1))


def minimax_hyperparameters() -> list[HyperParameter]:
    """What an objective has whose environments are inferred from aux by a network rho."""
    return [
        choice(
            "schedule",
            ("annealed", "alternating"),
            "'annealed': rho climbs during the warm-up and is frozen after it (the authors' code); "
            "'alternating': rho climbs one step before every step of Phi (the paper's update equations)",
        ),
        whole("n_environments", 2, "environments to infer", (2, 3, 4, 8), least=2),
        whole("environment_hidden", 16, "hidden units of rho", (8, 16, 32, 64), least=2),
        environment_rate(),
        choice(
            "aux_scaling",
            ("column", "authors"),
            "standardise aux by column, or with one mean and deviation for the whole matrix as the authors do",
        ),
    ]
