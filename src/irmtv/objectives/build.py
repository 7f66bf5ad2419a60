"""Ways to build an objective: one penalty with the usual hyper-parameters, or a sum of objectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from irmtv.core.types import Measure
from irmtv.objectives.base import HyperParameter, Needs, Objective, Penalty, as_scheduled
from irmtv.objectives.parameters import common_hyperparameters, minimax_hyperparameters

INFERRED = {
    "environment-order": "its environments are inferred from aux; none are given",
    "duplicate-environment": "its environments are inferred from aux; none are given",
}
AUTHORS_L2 = (
    "the authors' l2 (sum of squared mass-weighted slopes) is another penalty than the expectation: m_e^2 in place of "
    "m_e"
)


def penalised(
    name: str, penalty: Penalty, *, needs: Needs = "environment", measure: Measure = "empirical", **about: Any
) -> Objective:
    """An objective with one penalty and the usual hyper-parameters."""
    parameters = common_hyperparameters((penalty,), measure)
    reasons = {} if needs == "environment" else dict(INFERRED)
    if "slope" not in penalty.uses:
        reasons["authors-reduction"] = "it uses no slopes"
    elif penalty.power == 2:
        reasons["authors-reduction"] = AUTHORS_L2
    if needs == "aux":
        parameters += minimax_hyperparameters()
    about["not_applicable"] = reasons | about.get("not_applicable", {})
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
    penalties = tuple(replace(p, name=o.name) for o in parts for p in o.penalties)
    _check_parts(name, parts, penalties)
    inferring = next((o for o in parts if o.infers is not None), None)
    return Objective(
        name=name,
        formula=" + ".join(["risk", *(f"lambda_{i} [penalty of {p.name}]" for i, p in enumerate(penalties, 1))]),
        summary="sum of " + " and ".join(p.name for p in penalties),
        source="; ".join(dict.fromkeys(o.source for o in parts)),
        year=max(o.year for o in parts),
        needs="environment" if inferring is None else inferring.needs,
        penalties=penalties,
        hyperparameters=_hyperparameters_of_sum(parts, penalties),
        measure=parts[0].measure,
        infers=None if inferring is None else inferring.infers,
        climbs=as_scheduled if inferring is None else inferring.climbs,
        tasks=tuple(t for t in parts[0].tasks if all(t in o.tasks for o in parts)),
        not_applicable={k: f"{o.name}: {why}" for o in parts for k, why in o.not_applicable.items()},
    )


def _check_parts(name: str, parts: tuple[Objective, ...], penalties: tuple[Penalty, ...]) -> None:
    """Whether these objectives are nothing but different penalties that can see the same environments."""
    alone = [o.name for o in parts if _is_more_than_penalties(o)]
    if alone:
        raise ValueError(
            f"{alone[0]!r} is a way of training, not a penalty that can be added to others. Got {name!r}; use it alone."
        )
    if len({p.name for p in penalties}) < len(penalties) or len(penalties) < len(parts):
        raise ValueError(
            f"a sum of objectives must name different penalties. Got {name!r}; 'erm' has none and adds nothing, "
            "and the same penalty twice is one penalty with the sum of the weights."
        )
    ways = {o.infers for o in parts if o.infers is not None}
    if len(ways) > 1:
        raise ValueError(
            f"the parts of a sum must see the same environments. Got {name!r}, whose parts infer them in different "
            "ways; add a penalty for given environments to one of them, such as 'vrex'."
        )
    if ways and len({p.function for p in penalties}) < len(penalties):
        raise ValueError(
            f"{name!r} is the same penalty twice: in a sum with inferred environments every part is computed on "
            "those, the ones for given environments too."
        )


def _is_more_than_penalties(o: Objective) -> bool:
    more = o.row_weights or o.mask or o.procedure or o.choose or o.weight_mode != "given"
    return bool(more) or o.measure == "learned"


def _hyperparameters_of_sum(parts: tuple[Objective, ...], penalties: tuple[Penalty, ...]) -> tuple[HyperParameter, ...]:
    parameters = {h.name: h for h in common_hyperparameters(penalties, parts[0].measure)}
    for part in parts:
        for h in part.hyperparameters:
            parameters.setdefault(h.name, h)
    # every penalty keeps its own measure and reduction unless the user overrides them for all
    for shared in ("measure", "reduction"):
        if shared in parameters:
            parameters[shared] = replace(parameters[shared], default=None, check=_or_none(parameters[shared].check))
    return tuple(parameters.values())


def _or_none(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    return lambda value: None if value is None else check(value)
