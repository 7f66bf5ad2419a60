"""The parameters of boosted trees, checked when `fit` is called, and what they mean for `boost`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from irmtv.core.messages import check_positive, is_non_negative, plain, plain_repr
from irmtv.models.base import own_hyperparameters
from irmtv.models.trees.inferred import RATE
from irmtv.models.trees.library import threads
from irmtv.models.trees.rounds import Trees
from irmtv.objectives import OBJECTIVES
from irmtv.objectives.base import FOLLOWS_PHI, Objective, warmup_steps

# hyper-parameters of objectives that say nothing to a tree
NOT_OF_TREES = {
    "normalise": "the length of a round does not depend on the objective's scale",
    "penalty_schedule": "the trust region lets the penalty in as far as the risk allows",
    "penalty_ramp": "the trust region lets the penalty in as far as the risk allows",
    "max_penalty_weight": "penalty weights of trees are numbers",
    "weight_learning_rate": "penalty weights of trees are numbers",
    "batch_estimator": "every round sees all rows",
    "sampling": "every round sees all rows",
}
# parameters of LightGBM that are ours to set, by LightGBM's names and those of scikit-learn
OURS = (
    "objective", "metric", "boosting", "boosting_type", "num_class", "learning_rate", "num_leaves", "verbosity",
    "min_data_in_leaf", "min_child_samples", "num_threads", "n_jobs", "seed", "random_state", "num_iterations",
    "n_estimators", "boost_from_average", "deterministic", "feature_pre_filter", "linear_tree", "init_score",
    "device_type",
)  # fmt: skip


@dataclass(frozen=True)
class TreeParameters:
    """The parameters of a boosting estimator, as they were given."""

    n_estimators: Any = 100
    learning_rate: Any = 0.1
    num_leaves: Any = 31
    min_child_samples: Any = 20
    warmup: Any = None
    reserve: Any = 0.3
    objective_params: Any = None
    lightgbm_params: Any = None
    n_jobs: Any = None
    owner: str = "InvariantBoostingClassifier"  # whose they are, for messages


@dataclass(frozen=True)
class BoostingSettings:
    """What `boost` minimises, and how."""

    objective: Objective
    settings: Mapping[str, Any]
    weights: tuple[float, ...]
    warmup: int
    trees: Trees
    reserve: Fraction  # of the rows, for penalties


def suits_trees(objective: Objective) -> bool:
    """Whether the objective is a function of scores and of environments that are given or inferred from aux."""
    more = objective.mask or objective.row_weights or objective.procedure or objective.choose or objective.reads_aux
    return not more and objective.infers in (None, "aux") and objective.weight_mode == "given"


def check_objective(objective: Objective) -> None:
    if not suits_trees(objective):
        known = [name for name, o in OBJECTIVES.items() if suits_trees(o)]
        raise ValueError(
            f"objective must be one that trees can minimise: {known}, or a sum of penalties. Got {objective.name!r}, "
            "which is more than a function of scores and environments. Networks have it: InvariantClassifier and "
            "InvariantRegressor, or --model mlp."
        )


def boosting_settings(
    parameters: TreeParameters, objective: Objective, seed: int, penalty_weight: Any
) -> BoostingSettings:
    """The parameters, checked, for one objective and penalty weight."""
    check_objective(objective)
    trees = _trees(parameters, seed)
    given = own_hyperparameters(parameters.objective_params, objective, parameters.owner)
    for name in given:
        if name in NOT_OF_TREES:
            raise ValueError(f"objective_params must not hold {name!r} for trees: {NOT_OF_TREES[name]}. Leave it out.")
    known = {h.name: h for h in objective.hyperparameters}
    if "environment_learning_rate" in known:
        given = {"environment_learning_rate": RATE, **given}
    if "penalty_weight" in known and penalty_weight is not None:
        weight = plain(penalty_weight)
        if isinstance(weight, str) and weight in FOLLOWS_PHI:
            raise ValueError(
                f"penalty_weight must be a number, or a mapping of numbers, for trees. Got {weight!r}, which follows a "
                "network; InvariantClassifier and InvariantRegressor have it."
            )
        given = {**given, "penalty_weight": weight}
    settings = objective.resolve(given)
    weights = tuple(objective.weights(settings.get("penalty_weight")))
    penalised = any(weights) or objective.measure_of(settings) == "learned"
    reserve = _reserve(parameters.reserve)
    warmup = _warmup(parameters.warmup, objective, settings, trees)
    if any(weights) and warmup >= trees.n_estimators:
        raise ValueError(
            f"n_estimators must be more than the rounds of the warm-up, {warmup}, for objective {objective.name!r}, "
            f"whose penalties would else never act. Got {trees.n_estimators}. Use more rounds, or a shorter warmup."
        )
    return BoostingSettings(objective, settings, weights, warmup, trees, reserve if penalised else Fraction(0))


def _reserve(value: Any) -> Fraction:
    number = plain(value)
    if not is_non_negative(number) or number > 0.9:
        raise ValueError(
            f"reserve must be a number from 0 to 0.9. Got {number!r}. Use 0.3 for three tenths of the rows."
        )
    return Fraction(number).limit_denominator(20)


def _warmup(given: Any, objective: Objective, settings: Mapping[str, Any], trees: Trees) -> int:
    """Rounds of plain boosting. None: a twentieth where environments are looked for in them, one for slopes.

    A constant has no slopes to speak of: there must be a tree first.
    """
    value = plain(given)
    if not objective.penalties:
        return 0
    if value is None:
        slopes = any("slope" in p.uses for p in objective.penalties)
        return max(1, trees.n_estimators // 20) if objective.infers else int(slopes)
    good = is_non_negative(value) and (isinstance(value, int) or value < 1)
    if not good:
        raise ValueError(
            f"warmup must be a whole number of rounds, a share of all rounds in [0, 1), or None. Got {value!r}. Use "
            "None to leave it to the objective."
        )
    rounds = warmup_steps(value, trees.n_estimators)
    if rounds == 0 and objective.infers and objective.climbs(settings) == "warm-up":
        raise ValueError(
            f"warmup must be at least 1 round for objective {objective.name!r}, which looks for environments in it. "
            f"Got {value!r}. Use None, or objective_params={{'schedule': 'alternating'}}."
        )
    return rounds


def _trees(parameters: TreeParameters, seed: int) -> Trees:
    for name in ("n_estimators", "min_child_samples"):
        check_positive(plain(getattr(parameters, name)), name)
    leaves = plain(parameters.num_leaves)
    if not isinstance(leaves, int) or isinstance(leaves, bool) or not 2 <= leaves <= 131072:
        raise ValueError(f"num_leaves must be a whole number from 2 to 131072. Got {plain_repr(leaves)}. Use 31.")
    rate = plain(parameters.learning_rate)
    if not is_non_negative(rate) or rate == 0:
        raise ValueError(f"learning_rate must be a finite number above 0. Got {plain_repr(rate)}. Use 0.1.")
    return Trees(
        n_estimators=int(parameters.n_estimators),
        learning_rate=float(rate),
        num_leaves=leaves,
        min_child_samples=int(parameters.min_child_samples),
        n_jobs=threads(parameters.n_jobs),
        seed=seed,
        more=_more(parameters.lightgbm_params),
    )


def _more(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"lightgbm_params must be a dict of parameters of LightGBM, or None. Got {given!r}. Use "
            "lightgbm_params={'lambda_l2': 1.0}, for example."
        )
    ours = [name for name in given if name in OURS]
    if ours:
        raise ValueError(
            f"lightgbm_params must not hold {ours[0]!r}, which is set by the estimator itself. Leave it out."
        )
    return {str(name): plain(value) for name, value in given.items()}
