"""What may be wrong with a spec as a whole: every function returns problems, one or two sentences each."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from irmtv.core.messages import did_you_mean
from irmtv.core.types import Runs
from irmtv.datasets import DATASETS
from irmtv.engine.settings import OTHER_NAMES, resolve_settings
from irmtv.lab.experiments.spec import Method, Training
from irmtv.lab.experiments.spec_values import (
    METHOD_KEYS,
    MLP,
    RULES,
    RUN_CHECKS,
    RUN_KEYWORDS,
    SUMMARIES,
    TRAINING_CHECKS,
    at,
    combinations,
    expected_but_got,
    fixed_problems,
)
from irmtv.objectives import OBJECTIVES, Objective
from irmtv.objectives.base import warmup_steps
from irmtv.selection import check_options

# ---- data and methods -----------------------------------------------------------------------------------------------


def data_problems(name: str, arguments: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Whether there is such a data set, and whether it takes these arguments."""
    if name not in DATASETS:
        return [f"data.name must be one of {sorted(DATASETS)}. Got {name!r}.{did_you_mean(name, DATASETS)}"]
    parameters = dict(inspect.signature(DATASETS[name].make).parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    named = [n for n in named if n != "random_state"]
    problems = []
    for place, given in [("data.arguments", arguments), *((at("data.settings", k), v) for k, v in settings.items())]:
        for key in given:
            if key == "random_state":
                problems.append(
                    f"{at(place, key)} is not allowed: it is the seed of the repetition. Remove it; first_seed says "
                    "where the seeds begin."
                )
            elif key not in named and not takes_any:
                problems.append(
                    f"{at(place, key)} is not an argument of data set {name!r}, which takes {named}."
                    f"{did_you_mean(key, named)}"
                )
    required = [n for n in named if parameters[n].default is inspect.Parameter.empty]
    for label, own in settings.items():
        lacking = [n for n in required if n not in own and n not in arguments]
        if lacking:
            where = at("data.settings", label)
            problems.append(
                f"{where} lacks {lacking}, which data set {name!r} needs. Add them there or in data.arguments."
            )
    return problems


def method_problems(
    place: str,
    objective: Objective,
    axes: Mapping[str, Sequence[Any]],
    fixed: Mapping[str, Any],
    engine: Mapping[str, Any],
    fixed_needed: bool,
) -> list[str]:
    """Whether the objective has these settings with these values, and whether `fixed` names one of each grid."""
    unknown = {key: text for key in axes if (text := _unknown_setting(at(place, key), key, objective))}
    known = {key: values for key, values in axes.items() if key not in unknown}
    wrong = {key: _value_problems(at(place, key), key, values, objective) for key, values in known.items()}
    problems = [*unknown.values(), *itertools.chain.from_iterable(wrong.values())]
    problems = problems or _combination_problems(place, objective, axes, engine)
    if not unknown:  # what is wrong with a setting itself is not reported again for `fixed`
        sound = {key: values for key, values in known.items() if not wrong[key]}
        chosen = {key: value for key, value in fixed.items() if not wrong.get(key)}
        problems += fixed_problems(place, sound, chosen, fixed_needed)
    return problems


def _combination_problems(
    place: str, objective: Objective, axes: Mapping[str, Sequence[Any]], engine: Mapping[str, Any]
) -> list[str]:
    """Whether values that are good alone go together: the first combination that the engine refuses."""
    for combination in combinations(axes):
        try:
            (settings,) = resolve_settings(objective, Runs(), engine, combination, n_tasks=1)
        except ValueError as error:
            return [f"{place}: {error}"]
        weighs = objective.penalties and any(objective.weights(settings["penalty_weight"]))
        waits = weighs and objective.silent_in_warmup
        if waits and warmup_steps(settings["warmup"], settings["steps"]) >= settings["steps"]:
            return [
                f"{place}: warmup must be shorter than steps={settings['steps']}, or the penalty never acts. "
                f"Got warmup={settings['warmup']!r}."
            ]
    return []


def _unknown_setting(place: str, key: str, objective: Objective) -> str | None:
    own = [h.name for h in objective.hyperparameters]
    if key in own or key in RUN_KEYWORDS:
        return None
    if key in TRAINING_CHECKS:
        return f"{place} is the same for all methods. Move it to [training]."
    if key in ("seed", "random_state"):
        return f"{place} is not allowed: the seed is the repetition's. Remove it; first_seed says where seeds begin."
    return (
        f"{place} is neither a hyper-parameter of {objective.name!r}, which has {sorted(own)}, nor a training setting "
        f"({', '.join(RUN_KEYWORDS)}).{did_you_mean(OTHER_NAMES.get(key, key), [*own, *RUN_KEYWORDS, *METHOD_KEYS])}"
    )


def _value_problems(place: str, key: str, values: Sequence[Any], objective: Objective) -> list[str]:
    if not values:
        return [f"{place} is an empty grid. Give at least one value, or leave the key out."]
    problems = []
    for i, value in enumerate(values):
        here = f"{place}[{i}]" if len(values) > 1 else place
        if value in values[:i]:
            problems.append(f"{here} is {value!r}, which the grid has already. Every value of a grid must differ.")
        elif isinstance(value, list):
            problems.append(f"{here} must be a single value, since a list is a grid already. Got {value!r}.")
        elif key in RUN_CHECKS:
            good, expected = RUN_CHECKS[key]
            problems += [] if good(value) else [expected_but_got(here, expected, value)]
        else:
            try:
                next(h for h in objective.hyperparameters if h.name == key).validate(value, objective.name)
            except ValueError as error:
                problems.append(f"{here}: {error}")
    return problems


def network_problems(place: str, network: str | None, hidden: Sequence[Any]) -> list[str]:
    """Whether a method with a network by name describes no other one. `hidden`: of all its combinations."""
    if network is None or all(h == () for h in hidden):
        return []
    return [
        f"{at(place, 'hidden')} must be [] where network is {network!r}, which replaces it. Got "
        f'{[list(h) for h in hidden]}. Remove it, or give the method network = "{MLP}".'
    ]


def environments_problems(place: str, objective: Objective, environments: str) -> list[str]:
    """Whether the method can take labels that were inferred."""
    if environments == "inferred" and objective.needs == "aux":
        return [
            f"{at(place, 'environments')} is for objectives that need environments. {objective.name!r} infers its "
            "own from aux: remove the key."
        ]
    return []


def label_problems(labels: Mapping[str, str]) -> list[str]:
    """Whether labels differ; `labels` is by place."""
    first: dict[str, str] = {}
    problems = []
    for place, label in labels.items():
        if label in first:
            problems.append(
                f"{place}.label must be unique. Got {label!r}, the label of {first[label]} (the default is the "
                'objective\'s name). Add label = "..." to one of them.'
            )
        first.setdefault(label, place)
    return problems


# ---- selection ------------------------------------------------------------------------------------------------------


def rule_problems(rules: Sequence[str]) -> list[str]:
    """Whether these are rules, each named once."""
    return _list_problems("selection.rules", rules, RULES)


def summary_problems(summaries: Sequence[str]) -> list[str]:
    """Whether these are columns, each named once."""
    return _list_problems("summaries", summaries, SUMMARIES)


def _list_problems(place: str, words: Sequence[str], known: Sequence[str]) -> list[str]:
    problems = [] if words else [f"{place} is empty. Give at least one of {list(known)}."]
    for i, word in enumerate(words):
        here = f"{place}[{i}]"
        if word not in known:
            problems.append(f"{here} must be one of {list(known)}. Got {word!r}.{did_you_mean(word, known)}")
        elif word in words[:i]:
            problems.append(f"{here} is {word!r}, which the list has already. Remove one.")
    return problems


def invariance_problems(options: Mapping[str, Any]) -> list[str]:
    """Whether the rule 'invariance' has these options."""
    try:
        check_options(**options)
    except ValueError as error:
        return [f"selection.invariance: {error}"]
    return []


def pool_problems(pools: Mapping[str, Sequence[str]], methods: Iterable[Method]) -> list[str]:
    """Whether pools name methods whose candidates can be compared with each other."""
    known = {m.label: m for m in methods}
    problems = []
    for pool, members in pools.items():
        here = at("selection.pools", pool)
        if pool in known:
            problems.append(f"{here} must differ from the labels of the methods. Got {pool!r}.")
        if not members:
            problems.append(f"{here} is empty. Give labels of methods, from {list(known)}.")
        problems += [
            f"{here} must name methods of {list(known)}. Got {label!r}.{did_you_mean(label, known)}"
            for label in members
            if label not in known
        ]
        kinds = {known[label].measured_on for label in members if label in known}
        if len(kinds) > 1 or (kinds == {"own"} and len(members) > 1):
            problems.append(
                f"{here} mixes methods that are measured on different environments ({sorted(kinds)}); their tests "
                "cannot be compared."
            )
    return problems


def compared_problems(label: str | None, known: Sequence[str]) -> list[str]:
    """Whether there is a method or pool to compare the others with."""
    if label is None or label in known:
        return []
    return [f"compare_with must be a label, one of {list(known)}. Got {label!r}.{did_you_mean(label, known)}"]


# ---- what the rule "invariance" compares with -----------------------------------------------------------------------


def settled_from(objective: Objective, settings: Mapping[str, Any]) -> int:
    """The step from which inferred environments stay what they are at the end."""
    if objective.climbs(settings) != "warm-up":
        return int(settings["steps"])
    return warmup_steps(settings["warmup"], settings["steps"])


def _erm_at_the_end(objective: Objective, settings: Mapping[str, Any]) -> bool:
    """Whether the whole run is ERM."""
    return objective.plain_until(settings) >= int(settings["steps"])


def _erm_where_settled(objective: Objective, settings: Mapping[str, Any], snapshot_every: int) -> bool:
    """Whether a snapshot is ERM on the environments that the run ends with."""
    begin = settled_from(objective, settings)
    return 0 < begin <= objective.plain_until(settings) and begin % snapshot_every == 0


def reference_problems(rules: Sequence[str], methods: Mapping[str, Method], training: Training) -> list[str]:
    """Whether the rule 'invariance' has what it compares every method with; `methods` is by place."""
    if "invariance" not in rules:
        return []
    problems = []
    resolved = {place: _all_settings(method, training) for place, method in methods.items()}
    # where settings are wrong, that is a problem of its own
    plain = {
        place: not settings or any(_erm_at_the_end(OBJECTIVES[methods[place].objective], s) for s in settings)
        for place, settings in resolved.items()
    }
    erm = {m.environments for place, m in methods.items() if m.objective == "erm" and plain[place]}
    for place, method in methods.items():
        several = [name for name, values in method.axes.items() if len(values) > 1 and name != "penalty_weight"]
        if method.infers and several:
            problems.append(
                f"{place}: the rule 'invariance' tests all candidates of a method on the same inferred environments; a "
                f"grid over {several[0]} would give them different ones. Use one method for each value."
            )
        if plain[place]:
            continue
        if method.infers:
            problems += _own_reference_problems(place, method, resolved[place], training.snapshot_every)
        elif method.environments not in erm:
            more = "" if method.environments == "given" else f' and environments = "{method.environments}"'
            learned = any(m.objective == "erm" and m.environments == method.environments for m in methods.values())
            but = ' with a measure that is not "learned"' if learned else ""
            problems.append(
                "methods: the rule 'invariance' compares with ERM, and no method has objective "
                f'"erm"{more}{but}. Add the lines [[methods]] and objective = "erm"{more}, or set selection.rules to '
                "other rules."
            )
    return list(dict.fromkeys(problems))


def _all_settings(method: Method, training: Training) -> list[dict[str, Any]]:
    """Of every combination, defaults included; none where a setting is wrong."""
    try:
        return [
            resolve_settings(OBJECTIVES[method.objective], Runs(), keywords, {}, n_tasks=1)[0]
            for keywords in method.combinations(training)
        ]
    except ValueError:
        return []


def _own_reference_problems(
    place: str, method: Method, resolved: Sequence[Mapping[str, Any]], snapshot_every: int
) -> list[str]:
    """Of a method that infers its environments, with no run that is plain throughout: does a warm-up serve?"""
    objective = OBJECTIVES[method.objective]
    if all(_erm_where_settled(objective, s, snapshot_every) for s in resolved):
        return []
    begins = f"{place}: the rule 'invariance' compares with ERM on the environments that the method infers"
    if not all(any(objective.weights(s["penalty_weight"])) for s in resolved):
        return [
            f"{begins}, and with its other settings (such as a learned measure, or gates) it is none even at "
            "penalty_weight = 0. Change them, or set selection.rules to other rules."
        ]
    return [
        f"{begins}. Add 0 to its grid: penalty_weight = [0, ...]. Or let its warm-up, at whose end the environments "
        f'stand, end at a snapshot: schedule = "annealed", and warmup a multiple of snapshot_every = '
        f"{snapshot_every} above 0."
    ]


# ---- published results ----------------------------------------------------------------------------------------------


def read_published(path: Path, table: str) -> tuple[Mapping[str, Any], list[str]]:
    """One table of published results, or what is wrong with it."""
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"published.file cannot be read: {path} ({error.strerror}). It is looked for beside the spec file."]
    except ValueError as error:
        return {}, [f"published.file must be a JSON file. {path} is not: {error}."]
    if not isinstance(tables, dict):
        return {}, [f"published.file must hold a JSON object of tables. {path} holds a {type(tables).__name__}."]
    if table not in tables:
        known = sorted(tables)
        return {}, [f"published.table must be one of {known}, as in {path}. Got {table!r}.{did_you_mean(table, known)}"]
    content = tables[table]
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        return {}, [f'published.table {table!r} of {path} must have an object "results" (method to numbers).']
    return content, []


def published_key_problems(place: str, key: str | None, results: Mapping[str, Any] | None) -> list[str]:
    """Whether a method's published key exists; `results` is None without [published]."""
    if key is None:
        return []
    here = at(place, "published")
    if results is None:
        return [f"{here} is {key!r}, but the spec has no [published] with file and table. Add them, or remove the key."]
    if key not in results:
        return [f"{here} must be one of {sorted(results)}. Got {key!r}.{did_you_mean(key, results)}"]
    return []
