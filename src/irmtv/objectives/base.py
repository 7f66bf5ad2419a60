"""What an objective is: a risk, penalties on a few numbers per environment, and its hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.types import Measure, Reduction, Statistics

Needs = Literal["nothing", "environment", "aux"]
Uses = Literal["risk", "slope"]
Weight = tuple[Tensor, Tensor]  # lambda (R,), and lambda times the scale of the gradient (R, 1)
Subgradient = tuple[Tensor, Tensor | None, Tensor | None]  # value (R,), d/dR_e (R, E), d/dS_e (R, E)


@dataclass(frozen=True)
class HyperParameter:
    """A setting of an objective, with what a user or a search needs to know about it."""

    name: str
    default: Any
    meaning: str
    search: tuple[Any, ...] = ()  # ("log", low, high), ("linear", low, high) or the choices themselves
    per_run: bool = False  # may differ between the runs of one batch (a number that changes no shape)
    check: Callable[[Any], str | None] = field(default=lambda value: None, repr=False)  # what is expected

    def validate(self, value: Any, objective: str) -> None:
        expected = self.check(value)
        if expected is not None:
            raise ValueError(f"{self.name} of {objective!r} must be {expected}. Got {value!r}.")


@dataclass(frozen=True)
class Penalty:
    """One penalty: a function of the statistics and of weights on the environments.

    `power` says how the authors' reduction weighs an environment: their mass-weighted slopes
    G_e = m_e S_e give the l1 form weight m_e and the l2 form weight m_e^2.
    """

    name: str
    function: Callable[[Statistics, Tensor], Tensor] = field(repr=False)  # (R, E) numbers, (R, E) mu -> (R,)
    uses: frozenset[Uses] = frozenset({"slope"})
    power: int = 1
    default_weight: float = 1e3
    measure: Measure = "empirical"
    reduction: Reduction = "expectation"
    # the penalty, and its (sub)gradient in R_e and S_e, in closed form; without it autograd is asked
    subgradient: Callable[[Statistics, Tensor], Subgradient] | None = field(default=None, repr=False)

    def wants_halves(self, estimator: str | None) -> bool:
        return "slope" in self.uses and (estimator == "halves" or (estimator == "auto" and self.power == 2))

    def __call__(self, e: Statistics, measure: Measure | None = None, reduction: Reduction | None = None) -> Tensor:
        return self.function(e, self.weights(e, measure, reduction))

    def weights(self, e: Statistics, measure: Measure | None, reduction: Reduction | None) -> Tensor:
        """What each environment counts: mu_e, or the authors' powers of the masses."""
        if (reduction or self.reduction) == "authors" and "slope" in self.uses:
            return e.mass**self.power
        return e.measure(measure or self.measure)


def _add(total: Tensor | None, part: Tensor | None, factor: Tensor) -> Tensor | None:
    if part is None:
        return total
    return part * factor if total is None else torch.addcmul(total, part, factor)


def _weight_after_warmup(weight: Tensor) -> Tensor:
    return 1 + weight


def warmup_steps(warmup: float, steps: int) -> int:
    """How many of the steps are warm-up: a whole number is steps, another a share of them."""
    return warmup if isinstance(warmup, int) else round(warmup * steps)


def _no_weight_in_warmup(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight)


@dataclass(frozen=True)
class Objective:
    """risk + sum_k lambda_k penalty_k, minimised over Phi (and, with `needs="aux"`, maximised over rho)."""

    name: str
    formula: str
    summary: str
    source: str
    year: int
    needs: Needs
    penalties: tuple[Penalty, ...]
    hyperparameters: tuple[HyperParameter, ...]
    measure: Measure = "empirical"  # of the risk term
    tasks: tuple[str, ...] = ("binary", "multiclass", "regression")
    divisor: Callable[[Tensor], Tensor] = field(default=_weight_after_warmup, repr=False)  # if `normalise`
    warmup_weight: Callable[[Tensor], Tensor] = field(default=_no_weight_in_warmup, repr=False)
    not_applicable: Mapping[str, str] = field(default_factory=dict)  # contract -> why it does not apply

    def plain_until(self, settings: Mapping[str, Any]) -> int:
        """Up to this step training is plain risk minimisation: the warm-up, where no penalty acts in it."""
        if self.warmup_weight is not _no_weight_in_warmup or "warmup" not in settings:
            return 0
        steps = int(settings["steps"])
        return min(warmup_steps(settings["warmup"], steps), steps)

    def uses(self, settings: Mapping[str, Any]) -> frozenset[Uses]:
        """Which statistics a step must compute."""
        used = frozenset[Uses]().union(*(p.uses for p in self.penalties))
        measure = settings.get("measure") or self.measure
        return used if measure == "empirical" or self.needs == "aux" else used | {"risk"}

    def risk(self, e: Statistics, settings: Mapping[str, Any]) -> Tensor:
        """sum_e mu_e R_e, or the mean loss where environments are inferred: (R,)."""
        return e.mean_risk if self.needs == "aux" else e.expected_risk(settings.get("measure") or self.measure)

    def penalty_values(self, e: Statistics, settings: Mapping[str, Any]) -> list[Tensor]:
        """One (R,) tensor per penalty."""
        measure, reduction = settings.get("measure"), settings.get("reduction")
        return [p(self._batch_form(p, e, settings), measure, reduction) for p in self.penalties]

    @property
    def explicit(self) -> bool:
        """Whether every penalty has its subgradient in closed form."""
        return all(p.subgradient is not None for p in self.penalties)

    def value_and_gradient(
        self, e: Statistics, settings: Mapping[str, Any], weights: Sequence[Weight], scale: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """risk + sum_k weight_k penalty_k (R,), and `scale` times its gradient in the mean loss, R_e and S_e.

        Without weights: the risk alone, as in the warm-up.
        """
        measure = settings.get("measure") or self.measure
        total = self.risk(e, settings)
        plain = measure == "empirical" or self.needs == "aux"
        by_mean = scale if plain else None
        by_risk = None if plain else scale.unsqueeze(1) * e.measure(measure)
        by_slope = None
        acting = self.penalties if weights else ()
        for penalty, (weight, factor) in zip(acting, weights, strict=True):
            assert penalty.subgradient is not None
            mu = penalty.weights(e, settings.get("measure"), settings.get("reduction"))
            value, in_risk, in_slope = penalty.subgradient(e, mu)
            total = torch.addcmul(total, weight, value)
            by_risk = _add(by_risk, in_risk, factor)
            by_slope = _add(by_slope, in_slope, factor)
        return total, by_mean, by_risk, by_slope

    def wants_halves(self, settings: Mapping[str, Any]) -> bool:
        """Whether a mini-batch step must compute the slopes of two half batches."""
        return any(p.wants_halves(settings.get("batch_estimator")) for p in self.penalties)

    def _batch_form(self, p: Penalty, e: Statistics, settings: Mapping[str, Any]) -> Statistics:
        if e.slope_halves is None or p.wants_halves(settings.get("batch_estimator")):
            return e
        return replace(e, slope_halves=None)

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every hyper-parameter with its value: defaults, overridden by what is given and checked."""
        known = {h.name: h for h in self.hyperparameters}
        for name, value in given.items():
            if name not in known:
                raise ValueError(
                    f"{name!r} is not a hyper-parameter of {self.name!r}; it has {sorted(known)}."
                    f"{did_you_mean(name, known)}"
                )
            known[name].validate(value, self.name)
        settings = {name: given.get(name, h.default) for name, h in known.items()}
        for p in self.penalties:
            measure, reduction = settings.get("measure") or p.measure, settings.get("reduction") or p.reduction
            if reduction == "authors" and measure != "empirical" and "slope" in p.uses:
                raise ValueError(
                    "reduction='authors' weighs slopes by the environments' masses, which fixes the measure: it goes "
                    f"with measure='empirical' only. Got measure={measure!r} for {p.name!r}; use "
                    "reduction='expectation' with it."
                )
        return settings

    def weights(self, penalty_weight: Any) -> list[float]:
        """One weight per penalty from what a user writes: a number for all, or a mapping by penalty name."""
        if isinstance(penalty_weight, Mapping):
            return [float(penalty_weight.get(p.name, p.default_weight)) for p in self.penalties]
        if penalty_weight is None:
            return [p.default_weight for p in self.penalties]
        return [float(penalty_weight)] * len(self.penalties)


def is_non_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def check_choice(*choices: Any) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        return None if value in choices else f"one of {list(choices)}"

    return check


def check_count(value: Any) -> str | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 2
    return None if good else "a whole number of at least 2"


def check_above_zero(value: Any) -> str | None:
    return None if is_non_negative(value) and value > 0 else "a finite number above 0"


def _check_warmup(value: Any) -> str | None:
    good = is_non_negative(value) and (isinstance(value, int) or value < 1)
    return None if good else "a whole number of steps, or a share of all steps in [0, 1)"


def _check_measure(value: Any) -> str | None:
    if value in ("empirical", "uniform"):
        return None
    good = isinstance(value, tuple) and value and all(map(is_non_negative, value)) and sum(value) > 0
    return None if good else "'empirical', 'uniform', or a tuple with one weight >= 0 per environment"


def _penalty_weight(penalties: tuple[Penalty, ...]) -> HyperParameter:
    names = [p.name for p in penalties]

    def check(value: Any) -> str | None:
        if isinstance(value, Mapping):
            unknown = [k for k in value if k not in names]
            if unknown:
                near = did_you_mean(unknown[0], names).strip()
                return f"a mapping over {names}" + (f" ({near})" if near else "")
            return None if all(map(is_non_negative, value.values())) else "finite numbers of at least 0"
        several = "" if not isinstance(value, (list, tuple)) else "; several weights are several runs: Runs.grid("
        several += "penalty_weight=[...])" if several else ""
        return None if is_non_negative(value) else f"a finite number of at least 0 (0 is ERM){several}"

    default: Any = penalties[0].default_weight
    meaning = "lambda, the weight of the penalty"
    if len(penalties) > 1:
        meaning = "the weights: one number for all, or a mapping by name (a part not named keeps its default)"
        default = {p.name: p.default_weight for p in penalties}
    return HyperParameter("penalty_weight", default, meaning, ("log", 1e-1, 1e6), True, check)


def common_hyperparameters(penalties: tuple[Penalty, ...], measure: Measure = "empirical") -> list[HyperParameter]:
    """What every penalised objective has."""
    parameters = [
        *([_penalty_weight(penalties)] if penalties else []),
        HyperParameter(
            "warmup",
            0.5,
            "steps (or share of the steps) of plain risk minimisation before the penalty acts",
            ("linear", 0.0, 0.95),
            True,
            _check_warmup,
        ),
        HyperParameter(
            "normalise",
            True,
            "divide the objective by 1 + lambda once the penalty acts, so that its size does not depend on lambda",
            (True, False),
            False,
            check_choice(True, False),
        ),
        HyperParameter(
            "measure",
            measure,
            "the probability of each environment: its share of the rows, uniform, or a tuple of weights",
            ("empirical", "uniform"),
            False,
            _check_measure,
        ),
    ]
    if any("slope" in p.uses for p in penalties):
        parameters += [
            HyperParameter(
                "reduction",
                penalties[0].reduction,
                "'expectation' as the paper writes it; 'authors' sums mass-weighted slopes as the published code does",
                ("expectation", "authors"),
                False,
                check_choice("expectation", "authors"),
            ),
            HyperParameter(
                "batch_estimator",
                "auto",
                "mini-batches: 'halves' multiplies the slopes of two half batches, 'plain' squares one; 'auto' takes "
                "halves for l2 (unbiased) and plain for l1",
                ("auto", "plain", "halves"),
                False,
                check_choice("auto", "plain", "halves"),
            ),
        ]
    return parameters


def minimax_hyperparameters() -> list[HyperParameter]:
    """What an objective has whose environments are inferred from aux by a network rho."""
    return [
        HyperParameter(
            "schedule",
            "annealed",
            "'annealed': rho climbs during the warm-up and is frozen after it (the authors' code); "
            "'alternating': rho climbs one step before every step of Phi (the paper's update equations)",
            ("annealed", "alternating"),
            False,
            check_choice("annealed", "alternating"),
        ),
        HyperParameter("n_environments", 2, "environments to infer", (2, 3, 4, 8), False, check_count),
        HyperParameter("environment_hidden", 16, "hidden units of rho", (8, 16, 32, 64), False, check_count),
        HyperParameter(
            "environment_learning_rate",
            1e-3,
            "Adam's rate for rho",
            ("log", 1e-4, 1e-1),
            True,
            check_above_zero,
        ),
        HyperParameter(
            "aux_scaling",
            "column",
            "standardise aux by column, or with one mean and deviation for the whole matrix as the authors do",
            ("column", "authors"),
            False,
            check_choice("column", "authors"),
        ),
    ]


INFERRED = {
    "environment-order": "its environments are inferred from aux; none are given",
    "duplicate-environment": "its environments are inferred from aux; none are given",
}


def penalised(
    name: str, penalty: Penalty, *, needs: Needs = "environment", measure: Measure = "empirical", **about: Any
) -> Objective:
    """An objective with one penalty and the usual hyper-parameters."""
    parameters = common_hyperparameters((penalty,), measure)
    if needs == "aux":
        parameters += minimax_hyperparameters()
        about["not_applicable"] = {**INFERRED, **about.get("not_applicable", {})}
    return Objective(
        name=name,
        needs=needs,
        penalties=(penalty,),
        hyperparameters=tuple(parameters),
        measure=measure,
        **about,
    )


def combine(parts: tuple[Objective, ...]) -> Objective:
    """The sum of the penalties of several objectives, one weight each.

    The risk term is the first one's. Where a part infers environments from aux, all parts see those. The
    penalties start together after the warm-up and the sum is divided by 1 + the sum of the weights, whatever a
    part does alone.
    """
    name = "+".join(o.name for o in parts)
    penalties = tuple(replace(p, name=o.name) for o in parts for p in o.penalties)
    repeated = {p.name for p in penalties if [q.name for q in penalties].count(p.name) > 1}
    if repeated or len(penalties) < len(parts):
        raise ValueError(
            f"a sum of objectives must name different penalties. Got {name!r}; 'erm' has none and adds nothing, "
            "and the same penalty twice is one penalty with the sum of the weights."
        )
    needs: Needs = "aux" if any(o.needs == "aux" for o in parts) else "environment"
    if needs == "aux":  # every part then sees the inferred environments
        functions = [p.function for p in penalties]
        if len(set(functions)) < len(functions):
            raise ValueError(
                f"{name!r} is the same penalty twice: in a sum with inferred environments every part is computed on "
                "those, the ones for given environments too."
            )
    parameters = {h.name: h for h in common_hyperparameters(penalties, parts[0].measure)}
    for part in parts:
        for h in part.hyperparameters:
            parameters.setdefault(h.name, h)
    # every penalty keeps its own measure and reduction unless the user overrides them for all
    for shared in ("measure", "reduction"):
        if shared in parameters:
            parameters[shared] = replace(parameters[shared], default=None, check=_or_none(parameters[shared].check))
    return Objective(
        name=name,
        formula=" + ".join(["risk", *(f"lambda_{i} [penalty of {p.name}]" for i, p in enumerate(penalties, 1))]),
        summary="sum of " + " and ".join(p.name for p in penalties),
        source="; ".join(dict.fromkeys(o.source for o in parts)),
        year=max(o.year for o in parts),
        needs=needs,
        penalties=penalties,
        hyperparameters=tuple(parameters.values()),
        measure=parts[0].measure,
        tasks=tuple(t for t in parts[0].tasks if all(t in o.tasks for o in parts)),
        not_applicable={k: f"{o.name}: {why}" for o in parts for k, why in o.not_applicable.items()},
    )


def _or_none(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    return lambda value: None if value is None else check(value)
