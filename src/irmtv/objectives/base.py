"""What an objective is: a risk, penalties on a few numbers per environment, and its hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from irmtv.core.messages import did_you_mean
from irmtv.core.types import Measure, Statistics
from irmtv.objectives.environments.affine import expanded, gathered
from irmtv.objectives.parameters import (
    FOLLOWS_PHI,
    HyperParameter,
    common_hyperparameters,
    minimax_hyperparameters,
    warmup_steps,
)
from irmtv.objectives.penalty import Penalty, Subgradient, Uses

Needs = Literal["nothing", "environment", "aux"]
Climbs = Literal["warm-up", "always", "never"]
Weight = tuple[Tensor, Tensor]  # lambda (R,), and lambda times the scale of the gradient (R, 1)


def _add(total: Tensor | None, part: Tensor | None, factor: Tensor) -> Tensor | None:
    if part is None:
        return total
    return part * factor if total is None else torch.addcmul(total, part, factor)


def _weight_after_warmup(weight: Tensor) -> Tensor:
    return 1 + weight


def _no_weight_in_warmup(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight)


def _as_scheduled(settings: Mapping[str, Any]) -> Climbs:
    return "always" if settings.get("schedule") == "alternating" else "warm-up"


@dataclass(frozen=True)
class Objective:
    """risk + sum_k lambda_k penalty_k, minimised over Phi (and, where environments are inferred, maximised over q).

    What else a method brings to training stands in the last fields, by name; the engine has the machinery.
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
    climbs: Callable[[Mapping[str, Any]], Climbs] = field(default=_as_scheduled, repr=False)
    weight_mode: str = "given"  # how lambda comes about, unless the penalty weight says
    row_weights: str | None = None  # somebody who says how much each row counts
    mask: str | None = None  # somebody who switches weights of Phi off
    mask_from: str | None = None  # the setting that says from which share of the steps on; None: from the first
    reads_aux: bool = False  # whether the predictor reads aux beside x
    procedure: str | None = None  # a training procedure of its own, in place of the common steps
    # what these settings of the call (its own and the engine's) ask for that the method cannot do, if anything
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

    def plain_until(self, settings: Mapping[str, Any]) -> int:
        """Up to this step training is plain risk minimisation: all of ERM; else the warm-up, if nothing acts in it."""
        if self.choose is not None:
            return replace(self.chosen(settings), choose=None).plain_until(settings)
        steps = int(settings["steps"])
        # where environments are inferred the risk is the mean loss, whatever their measure
        learned = self.infers is None and self.measure_of(settings) == "learned"
        if self.row_weights or self.procedure or learned:
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
        settings = {name: h.convert(given.get(name, h.default)) for name, h in known.items()}
        if settings.get("penalty_schedule", "constant") != "constant" and isinstance(settings["penalty_weight"], str):
            raise ValueError(
                "penalty_schedule lets a number rise; a penalty weight that follows Phi has no schedule. Got "
                f"penalty_schedule={settings['penalty_schedule']!r} and penalty_weight={settings['penalty_weight']!r}."
            )
        for p in self.chosen(settings).penalties:
            measure, reduction = settings.get("measure") or p.measure, settings.get("reduction") or p.reduction
            if reduction == "authors" and measure != "empirical" and "slope" in p.uses:
                raise ValueError(
                    "reduction='authors' weighs slopes by the environments' masses, which fixes the measure: it goes "
                    f"with measure='empirical' only. Got measure={measure!r} for {p.name!r}; use "
                    "reduction='expectation' with it."
                )
            if reduction == "authors" and settings.get("expand") is not None and "slope" in p.uses:
                raise ValueError(
                    "reduction='authors' weighs slopes by the environments' masses, and mixtures of environments have "
                    f"none. Got expand={settings['expand']!r} for {p.name!r}; use reduction='expectation' with it."
                )
        if self.infers is not None and settings.get("measure") == "learned" and settings.get("expand") is not None:
            raise ValueError(
                "measure='learned' has nothing to act on here: the risk of inferred environments is the mean loss, and "
                "with expand the penalties count every environment and mixture the same. Got "
                f"expand={settings['expand']!r} for {self.name!r}; use expand=None, or measure='empirical'."
            )
        return settings

    def weights(self, penalty_weight: Any) -> list[float]:
        """One weight per penalty from what a user writes: a number for all, or a mapping by penalty name."""
        if isinstance(penalty_weight, Mapping):
            return [float(penalty_weight.get(p.name, p.default_weight)) for p in self.penalties]
        if penalty_weight is None:
            return [p.default_weight for p in self.penalties]
        if penalty_weight in FOLLOWS_PHI:
            return [1.0] * len(self.penalties)  # what follows Phi is the weight of their sum
        return [float(penalty_weight)] * len(self.penalties)


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
        infers="aux" if needs == "aux" else None,
        **about,
    )


def combine(parts: tuple[Objective, ...]) -> Objective:
    """The sum of the penalties of several objectives, one weight each.

    The risk term is the first one's. Where a part infers environments from aux, all parts see those. The
    penalties start together after the warm-up and the sum is divided by 1 + the sum of the weights, whatever a
    part does alone.
    """
    name = "+".join(o.name for o in parts)

    def is_more(o: Objective) -> bool:
        more = o.row_weights or o.mask or o.procedure or o.choose or o.weight_mode != "given"
        return bool(more) or o.measure == "learned"

    alone = [o.name for o in parts if is_more(o)]
    if alone:
        raise ValueError(
            f"{alone[0]!r} is a way of training, not a penalty that can be added to others. Got {name!r}; use it alone."
        )
    penalties = tuple(replace(p, name=o.name) for o in parts for p in o.penalties)
    repeated = {p.name for p in penalties if [q.name for q in penalties].count(p.name) > 1}
    if repeated or len(penalties) < len(parts):
        raise ValueError(
            f"a sum of objectives must name different penalties. Got {name!r}; 'erm' has none and adds nothing, "
            "and the same penalty twice is one penalty with the sum of the weights."
        )
    infers = list(dict.fromkeys(o.infers for o in parts if o.infers is not None))
    if len(infers) > 1:
        raise ValueError(
            f"the parts of a sum must see the same environments. Got {name!r}, whose parts infer them in different "
            "ways; add a penalty for given environments to one of them, such as 'vrex'."
        )
    inferring = next((o for o in parts if o.infers is not None), None)
    needs: Needs = "environment" if inferring is None else inferring.needs
    if infers:  # every part then sees the inferred environments
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
        infers=infers[0] if infers else None,
        climbs=_as_scheduled if inferring is None else inferring.climbs,
        tasks=tuple(t for t in parts[0].tasks if all(t in o.tasks for o in parts)),
        not_applicable={k: f"{o.name}: {why}" for o in parts for k, why in o.not_applicable.items()},
    )


def _or_none(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    return lambda value: None if value is None else check(value)
