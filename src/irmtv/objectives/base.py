"""What an objective is: a risk, penalties on a few numbers per environment, and its hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.types import Measure, Reduction, Statistics
from irmtv.objectives.environments.affine import expanded, gathered

Needs = Literal["nothing", "environment", "aux"]
Climbs = Literal["warm-up", "always", "never"]
Uses = Literal["risk", "slope"]
Subgradient = tuple[Tensor, Tensor | None, Tensor | None]  # value (R,), d/dR_e (R, E), d/dS_e (R, E)
Weight = tuple[Tensor, Tensor]  # lambda (R,), and lambda times the scale of the gradient (R, 1)
FOLLOWS_PHI = ("adaptive", "adaptive-exact", "learned")  # penalty_weight, where it is not a number


def warmup_steps(warmup: float, steps: int) -> int:
    """Number of warm-up steps: a whole number is steps, another a share of them."""
    return warmup if isinstance(warmup, int) else round(warmup * steps)


@dataclass(frozen=True)
class HyperParameter:
    """A setting of an objective, with what a user or a search needs to know about it."""

    name: str
    default: Any
    meaning: str
    search: tuple[Any, ...] = ()  # ("log", low, high), ("linear", low, high) or the choices themselves
    per_run: bool = False  # may differ between the runs of one batch (a number that changes no shape)
    check: Callable[[Any], str | None] = field(default=lambda value: None, repr=False)  # what is expected
    convert: Callable[[Any], Any] = field(default=lambda value: value, repr=False)  # of a value that passed

    def validate(self, value: Any, objective: str) -> None:
        expected = self.check(value)
        if expected is not None:
            raise ValueError(f"{self.name} of {objective!r} must be {expected}. Got {value!r}.")


@dataclass(frozen=True)
class Penalty:
    """A function of a few numbers per environment, and of the weights of the environments.

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
    # the penalty, and its (sub)gradient in R_e and S_e, in closed form; without it autograd computes the latter
    subgradient: Callable[[Statistics, Tensor], Subgradient] | None = field(default=None, repr=False)
    # how it sums S_e (or R_e - sum mu R, where it uses risks): sum mu |.|^2 or (sum mu |.|)^2; None: in another way
    norm: Literal["l1", "l2"] | None = None
    # of a penalty on slopes under the empirical measure, with the reduction: its gradient in G_e = m_e S_e and in m_e,
    # (R, E) each; None: m_e does not matter. Without it inferred environments climb by autograd
    by_sums: Callable[[Tensor, Callable[[], Tensor], Reduction], tuple[Tensor, Tensor | None]] | None = field(
        default=None, repr=False
    )

    def wants_halves(self, estimator: str | None) -> bool:
        """Whether a mini-batch step must compute the slopes of two half batches."""
        return "slope" in self.uses and (estimator == "halves" or (estimator == "auto" and self.power == 2))

    def __call__(self, e: Statistics, measure: Measure | None = None, reduction: Reduction | None = None) -> Tensor:
        return self.function(e, self.weights(e, measure, reduction))

    def weights(self, e: Statistics, measure: Measure | None, reduction: Reduction | None) -> Tensor:
        """What each environment counts: mu_e, or the authors' powers of the masses."""
        if (reduction or self.reduction) == "authors" and "slope" in self.uses:
            return e.mass**self.power
        return e.measure(measure or self.measure)

    def check_reduction(self, settings: Mapping[str, Any]) -> None:
        """Whether the authors' reduction, which weighs slopes by the masses, goes with measure and mixtures."""
        measure, reduction = settings.get("measure") or self.measure, settings.get("reduction") or self.reduction
        if reduction != "authors" or "slope" not in self.uses:
            return
        if measure != "empirical":
            raise ValueError(
                "reduction='authors' weighs slopes by the environments' masses, which fixes the measure: it goes "
                f"with measure='empirical' only. Got measure={measure!r} for {self.name!r}; use "
                "reduction='expectation' with it."
            )
        if settings.get("expand") is not None:
            raise ValueError(
                "reduction='authors' weighs slopes by the environments' masses, and mixtures of environments have "
                f"none. Got expand={settings['expand']!r} for {self.name!r}; use reduction='expectation' with it."
            )


def _weight_after_warmup(weight: Tensor) -> Tensor:
    return 1 + weight


def _no_weight_in_warmup(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight)


def as_scheduled(settings: Mapping[str, Any]) -> Climbs:
    """When inferred environments climb, by the setting `schedule`."""
    return "always" if settings.get("schedule") == "alternating" else "warm-up"


@dataclass(frozen=True)
class Objective:
    """risk + sum_k lambda_k penalty_k, minimised over Phi (and, where environments are inferred, maximised over q).

    The last fields name what else a method brings to training; the engine has the components of these names.
    """

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
    undefined: Mapping[str, str] = field(default_factory=dict)  # task that is not among `tasks` -> why
    infers: str | None = None  # where inferred environments come from: "aux", ...; None where they are given
    # with these settings, at which steps inferred environments climb the penalties
    climbs: Callable[[Mapping[str, Any]], Climbs] = field(default=as_scheduled, repr=False)
    weight_mode: str = "given"  # how lambda comes about, unless the penalty weight says
    row_weights: str | None = None  # the component that gives every row a weight
    mask: str | None = None  # the component that switches weights of Phi off
    mask_from: str | None = None  # the setting that says from which share of the steps on; None: from the first
    reads_aux: bool = False  # whether the predictor reads aux beside x
    procedure: str | None = None  # a training procedure of its own, in place of the common steps
    erm_at_zero: bool = False  # whether the procedure is ERM where its penalty weight is 0
    # what the method cannot do of what these settings (its own and the engine's) ask for; None if it can do all
    refuses: Callable[[Mapping[str, Any]], str | None] = field(default=lambda settings: None, repr=False)
    # the objective for these settings, where a setting chooses among penalties
    choose: Callable[[Objective, Mapping[str, Any]], Objective] | None = field(default=None, repr=False)

    def chosen(self, settings: Mapping[str, Any]) -> Objective:
        """This objective as these settings make it."""
        return self if self.choose is None else self.choose(self, settings)

    def measure_of(self, settings: Mapping[str, Any]) -> Measure:
        """Of the risk term with these settings; in a sum it may be left to the objective."""
        measure: Measure = settings.get("measure") or self.measure
        return measure

    @property
    def finds_clusters(self) -> bool:
        """Whether its procedure takes clusters of the training rows for environments."""
        return self.procedure is not None and self.needs == "nothing"

    @property
    def infers_held_out(self) -> bool:
        """Whether it infers the environments of held-out rows too, not of training rows alone."""
        return self.infers in ("aux", "rest")

    def plain_until(self, settings: Mapping[str, Any]) -> int:
        """Up to this step training is ERM: all steps of ERM itself; else the warm-up, if nothing acts in it."""
        if self.choose is not None:
            return replace(self.chosen(settings), choose=None).plain_until(settings)
        steps = int(settings["steps"])
        if self.procedure is not None:
            return steps if self.erm_at_zero and settings["penalty_weight"] == 0 else 0
        if settings.get("solver") == "newton":
            return 0 if self.penalties and any(self.weights(settings["penalty_weight"])) else steps
        # where environments are inferred the risk is the mean loss, whatever their measure
        learned = self.infers is None and self.measure_of(settings) == "learned"
        if self.row_weights or learned:
            return 0
        if self.mask is not None:
            steps = round(settings[self.mask_from] * steps) if self.mask_from else 0
        if not self.penalties or not any(self.weights(settings["penalty_weight"])):
            return steps
        if not self.silent_in_warmup:
            return 0
        return min(warmup_steps(settings["warmup"], int(settings["steps"])), steps)

    @property
    def silent_in_warmup(self) -> bool:
        """Whether no penalty acts on Phi in the warm-up."""
        return self.warmup_weight is _no_weight_in_warmup

    def weight_mode_of(self, settings: Mapping[str, Any]) -> str:
        """How lambda comes about: "given", or one of the ways in which it follows Phi."""
        weight = settings.get("penalty_weight")
        return weight if isinstance(weight, str) else self.weight_mode

    def uses(self, settings: Mapping[str, Any]) -> frozenset[Uses]:
        """Which statistics a step must compute."""
        used = frozenset[Uses]().union(*(p.uses for p in self.penalties))
        measure = self.measure_of(settings)
        follows_risks = self.weight_mode_of(settings).startswith("adaptive")
        plain = measure == "empirical" or (self.infers is not None and measure != "learned")
        return used if plain and not follows_risks else used | {"risk"}

    def risk(self, e: Statistics, settings: Mapping[str, Any]) -> Tensor:
        """sum_e mu_e R_e, or the mean loss where environments are inferred: (R,)."""
        return e.mean_risk if self.infers is not None else e.expected_risk(self.measure_of(settings))

    def penalty_values(self, e: Statistics, settings: Mapping[str, Any]) -> list[Tensor]:
        """One (R,) tensor per penalty."""
        measure, reduction = settings.get("measure"), settings.get("reduction")
        if e.mixtures is not None:  # environments and mixtures count the same
            e, measure = expanded(e), "empirical"
        return [p(self._batch_form(p, e, settings), measure, reduction) for p in self.penalties]

    def worst_risk(self, e: Statistics) -> Tensor:
        """max_e R_e over the environments (and mixtures) that penalties see: (R,)."""
        seen = expanded(e)
        assert seen.risk is not None
        return seen.risk.masked_fill(seen.mass <= 0, -torch.inf).amax(-1)

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
        measure = self.measure_of(settings)
        total = self.risk(e, settings)
        plain = measure == "empirical" or self.infers is not None
        by_mean = scale if plain else None
        by_risk = None if plain else scale.unsqueeze(1) * e.measure(measure)
        by_slope = None
        acting = self.penalties if weights else ()
        for penalty, (weight, factor) in zip(acting, weights, strict=True):
            value, in_risk, in_slope = self._subgradient(penalty, e, settings)
            total = torch.addcmul(total, weight, value)
            by_risk = _add(by_risk, in_risk, factor)
            by_slope = _add(by_slope, in_slope, factor)
        return total, by_mean, by_risk, by_slope

    def _subgradient(self, penalty: Penalty, e: Statistics, settings: Mapping[str, Any]) -> Subgradient:
        """Of one penalty, in the environments' own numbers."""
        assert penalty.subgradient is not None
        if e.mixtures is None:
            return penalty.subgradient(e, penalty.weights(e, settings.get("measure"), settings.get("reduction")))
        seen = expanded(e)
        value, *grads = penalty.subgradient(seen, seen.mass)
        in_risk, in_slope = (None if g is None else gathered(g, e.mixtures) for g in grads)
        return value, in_risk, in_slope

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
        settings = {name: h.convert(given[name]) if name in given else h.default for name, h in known.items()}
        self._check_schedule(settings)
        for penalty in self.chosen(settings).penalties:
            penalty.check_reduction(settings)
        self._check_learned_measure(settings)
        return settings

    def _check_schedule(self, settings: Mapping[str, Any]) -> None:
        if settings.get("penalty_schedule", "constant") != "constant" and isinstance(settings["penalty_weight"], str):
            raise ValueError(
                "penalty_schedule lets a number rise; a penalty weight that follows Phi has no schedule. Got "
                f"penalty_schedule={settings['penalty_schedule']!r} and penalty_weight={settings['penalty_weight']!r}."
            )

    def _check_learned_measure(self, settings: Mapping[str, Any]) -> None:
        if self.infers is not None and settings.get("measure") == "learned" and settings.get("expand") is not None:
            raise ValueError(
                "measure='learned' has nothing to act on here: the risk of inferred environments is the mean loss, and "
                "with expand the penalties count every environment and mixture the same. Got "
                f"expand={settings['expand']!r} for {self.name!r}; use expand=None, or measure='empirical'."
            )

    def weights(self, penalty_weight: Any) -> list[float]:
        """One weight per penalty from what a user writes: a number for all, or a mapping by penalty name."""
        if isinstance(penalty_weight, Mapping):
            return [float(penalty_weight.get(p.name, p.default_weight)) for p in self.penalties]
        if penalty_weight is None:
            return [p.default_weight for p in self.penalties]
        if penalty_weight in FOLLOWS_PHI:
            return [1.0] * len(self.penalties)  # what follows Phi is the weight of their sum
        return [float(penalty_weight)] * len(self.penalties)


def _add(total: Tensor | None, part: Tensor | None, factor: Tensor) -> Tensor | None:
    if part is None:
        return total
    return part * factor if total is None else torch.addcmul(total, part, factor)
