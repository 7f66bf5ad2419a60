"""Reading a spec from a TOML file, and checking it as a whole before anything is trained.

>>> spec = parse_spec('''
... name = "small"
... data.name = "simulation"
... training.steps = 200
... [[methods]]
... objective = "erm"
... [[methods]]
... objective = "irm-tv-l1"
... penalty_weight = [1.0, 100.0]
... ''')
>>> [len(method.combinations(spec.training)) for method in spec.methods]
[1, 2]
"""

from __future__ import annotations

import inspect
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from irmtv.core.files import read_regular
from irmtv.core.messages import did_you_mean
from irmtv.core.types import Runs
from irmtv.datasets import DATASETS
from irmtv.engine.settings import OTHER_NAMES, resolve_settings
from irmtv.lab.experiments.spec import (
    METHOD_KEYS,
    MLP,
    RULES,
    RUN_CHECKS,
    RUN_KEYWORDS,
    SUMMARIES,
    TRAINING_CHECKS,
    Data,
    Head,
    Method,
    Published,
    PublishedTable,
    Selection,
    Spec,
    SpecError,
    Training,
    at,
    combinations,
    expected_but_got,
    fixed_problems,
    settled_from,
    validated,
)  # fmt: skip
from irmtv.objectives import OBJECTIVES, Objective
from irmtv.objectives.base import warmup_steps
from irmtv.selection import check_options

MOST_BYTES = 10_000_000  # of a spec file, and of a file of published results
_SECTIONS = ("data", "training", "methods", "selection", "published")


def load_spec(path: str | Path) -> Spec:
    """Read and check a spec file."""
    path = Path(path)
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except IsADirectoryError:
        inside = sorted(p.name for p in path.glob("*.toml"))
        problem = f"a spec is a TOML file, and this is a folder; TOML files in it: {inside}."
    except FileNotFoundError:
        beside = [str(p) for p in path.parent.glob("*.toml")]
        problem = f"there is no such spec file.{did_you_mean(path, beside)}"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"the spec file cannot be read as UTF-8 text: {error}."
    else:
        return parse_spec(text, path.parent, str(path))
    raise SpecError(str(path), [problem])


def parse_spec(text: str, folder: Path | None = None, source: str = "spec") -> Spec:
    """Check the text of a spec. `folder`: where the file of published results is looked for; else here."""
    try:
        raw = tomllib.loads(text)
    except ValueError as error:  # also a number of thousands of digits
        raise SpecError(source, [f"this is not valid TOML: {error}."]) from None
    except RecursionError:
        raise SpecError(source, ["this is not valid TOML: it is nested too deeply."]) from None
    problems: list[str] = []
    head = validated(Head, {k: v for k, v in raw.items() if k not in _SECTIONS}, "", problems, _SECTIONS)
    if head is not None:
        problems += _list_problems("summaries", head.summaries, SUMMARIES)
    data = None
    if "data" not in raw:
        problems.append('data is missing: add the lines [data] and name = "...", the name of a data set.')
    elif (data := validated(Data, raw["data"], "data", problems)) is not None:
        problems += data_problems(data)
    of_method = " Hyper-parameters of an objective belong in its [[methods]]."
    training = validated(Training, raw.get("training", {}), "training", problems, note=of_method)
    selection = validated(Selection, raw.get("selection", {}), "selection", problems)
    if selection is not None:
        problems += [*_list_problems("selection.rules", selection.rules, RULES), *_option_problems(selection)]
    published = _published(raw, folder or Path(), problems)
    methods = _methods(raw, problems)
    known = {place: method for place, method in methods.items() if method is not None}
    chosen = selection or Selection(rules=())
    for place, method in known.items():
        problems += _method_problems(place, method, training, fixed_needed="fixed" in chosen.rules)
        if "published" not in raw or published is not None:  # otherwise the table is what is wrong
            problems += _published_key_problems(place, method.published, published)
    problems += _label_problems(known)
    if methods and len(known) == len(methods):  # otherwise a misspelt "erm" would be reported twice
        if "invariance" in chosen.rules:
            problems += dict.fromkeys(_reference_problems(known, training or Training()))
        problems += _pool_problems(chosen.pools, {m.label: m for m in known.values()}, training or Training())
        labels = [*(m.label for m in known.values()), *chosen.pools]
        if head is not None and head.compare_with not in (None, *labels):
            hint = did_you_mean(head.compare_with, labels)
            problems.append(f"compare_with must be a label, one of {labels}. Got {head.compare_with!r}.{hint}")
    if problems or head is None or data is None or training is None or selection is None:
        raise SpecError(source, problems)
    return Spec(
        **head.model_dump(),
        data=data,
        training=training,
        methods=tuple(known.values()),
        selection=selection,
        published=published,
        text=text,
    )


def _methods(raw: Mapping[str, Any], problems: list[str]) -> dict[str, Method | None]:
    """By place; None where a method cannot be read."""
    tables = raw.get("methods", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(f"methods must be a list of tables, each begun with [[methods]]. Got {tables!r}.")
        return {}
    if not tables:
        problems.append('methods is empty: add the lines [[methods]] and objective = "...", one pair per method.')
    methods = {}
    for i, table in enumerate(tables):
        own = {key: value for key, value in table.items() if key in METHOD_KEYS}
        settings = {key: value for key, value in table.items() if key not in METHOD_KEYS}
        methods[f"methods[{i}]"] = validated(Method, {**own, "settings": settings}, f"methods[{i}]", problems)
    return methods


# ---- data and methods -----------------------------------------------------------------------------------------------


def data_problems(data: Data) -> Iterator[str]:
    """Whether there is such a data set, and whether it takes these arguments."""
    name = data.name
    if name not in DATASETS:
        yield f"data.name must be one of {sorted(DATASETS)}. Got {name!r}.{did_you_mean(name, DATASETS)}"
        return
    parameters = dict(inspect.signature(DATASETS[name].make).parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    by_keyword = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    named = [n for n in by_keyword if n != "random_state"]
    places = {"data.arguments": data.arguments, **{at("data.settings", k): v for k, v in data.settings.items()}}
    for here, key in ((at(place, key), key) for place, given in places.items() for key in given):
        if key == "random_state":
            yield (
                f"{here} is not allowed: it is the seed of the repetition. Remove it; first_seed says where the seeds "
                "begin."
            )
        elif key not in named and not takes_any:
            yield f"{here} is not an argument of data set {name!r}, which takes {named}.{did_you_mean(key, named)}"
    required = [n for n in named if parameters[n].default is inspect.Parameter.empty]
    for label in data.settings:
        lacking = [n for n in required if n not in data.arguments_of(label)]
        if lacking:
            where = at("data.settings", label)
            yield f"{where} lacks {lacking}, which data set {name!r} needs. Add them there or in data.arguments."


def _method_problems(place: str, method: Method, training: Training | None, fixed_needed: bool) -> Iterator[str]:
    """Whether the objective has these settings with these values, and whether `fixed` names one of each grid."""
    objective, axes = OBJECTIVES[method.objective], method.axes
    if method.environments == "inferred" and method.infers:
        yield (
            f"{at(place, 'environments')} is for objectives that need environments. {objective.name!r} infers its own "
            "from aux: remove the key."
        )
    unknown = {key: text for key in axes if (text := _unknown_setting(at(place, key), key, objective))}
    known = {key: values for key, values in axes.items() if key not in unknown}
    wrong = {key: list(_value_problems(at(place, key), key, values, objective)) for key, values in known.items()}
    of_settings = [*unknown.values(), *itertools.chain.from_iterable(wrong.values())]
    yield from of_settings or _combination_problems(place, objective, axes, (training or Training()).keywords)
    if not unknown:  # what is wrong with a setting itself is not reported again for `fixed`
        sound = {key: values for key, values in known.items() if not wrong[key]}
        chosen = {key: value for key, value in method.fixed.items() if not wrong.get(key)}
        yield from fixed_problems(place, sound, chosen, fixed_needed)
    if training is not None and (network := method.network_of(training)) is not None:
        hidden = axes.get("hidden", (training.hidden,))
        if any(h != () for h in hidden):
            yield (
                f"{at(place, 'hidden')} must be [] where network is {network!r}, which replaces it. Got "
                f'{[list(h) for h in hidden]}. Remove it, or give the method network = "{MLP}".'
            )


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


def _value_problems(place: str, key: str, values: Sequence[Any], objective: Objective) -> Iterator[str]:
    if not values:
        yield f"{place} is an empty grid. Give at least one value, or leave the key out."
    for i, value in enumerate(values):
        here = f"{place}[{i}]" if len(values) > 1 else place
        if value in values[:i]:
            yield f"{here} is {value!r}, which the grid has already. Every value of a grid must differ."
        elif isinstance(value, list):
            yield f"{here} must be a single value, since a list is a grid already. Got {value!r}."
        elif key in RUN_CHECKS:
            good, expected = RUN_CHECKS[key]
            if not good(value):
                yield expected_but_got(here, expected, value)
        else:
            try:
                next(h for h in objective.hyperparameters if h.name == key).validate(value, objective.name)
            except ValueError as error:
                yield f"{here}: {error}"


def _label_problems(methods: Mapping[str, Method]) -> Iterator[str]:
    """Whether labels differ."""
    first: dict[str, str] = {}
    for place, method in methods.items():
        if first.setdefault(method.label, place) != place:
            yield (
                f"{place}.label must be unique. Got {method.label!r}, the label of {first[method.label]} (the default "
                'is the objective\'s name). Add label = "..." to one of them.'
            )


# ---- selection ------------------------------------------------------------------------------------------------------


def _list_problems(place: str, words: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """Whether all words are known, each named once."""
    if not words:
        yield f"{place} is empty. Give at least one of {list(known)}."
    for i, word in enumerate(words):
        if word not in known:
            yield f"{place}[{i}] must be one of {list(known)}. Got {word!r}.{did_you_mean(word, known)}"
        elif word in words[:i]:
            yield f"{place}[{i}] is {word!r}, which the list has already. Remove one."


def _option_problems(selection: Selection) -> Iterator[str]:
    try:
        check_options(**selection.invariance)
    except ValueError as error:
        yield f"selection.invariance: {error}"


def _pool_problems(
    pools: Mapping[str, Sequence[str]], methods: Mapping[str, Method], training: Training
) -> Iterator[str]:
    """Whether pools name methods, by label, whose candidates can be compared with each other."""
    labels = list(methods)
    for pool, members in pools.items():
        here = at("selection.pools", pool)
        if pool in methods:
            yield f"{here} must differ from the labels of the methods. Got {pool!r}."
        if not members:
            yield f"{here} is empty. Give labels of methods, from {labels}."
        for label in members:
            if label not in methods:
                yield f"{here} must name methods of {labels}. Got {label!r}.{did_you_mean(label, labels)}"
        kinds = {methods[label].measured_on for label in members if label in methods}
        by = {methods[label].inferred_by(training) for label in members if label in methods}
        alike = len(by) == 1 and by != {None}  # Newton's method infers the same ones for all of them
        if len(kinds) > 1 or (kinds == {"own"} and len(members) > 1 and not alike):
            yield (
                f"{here} mixes methods that are measured on different environments ({sorted(kinds)}); their tests "
                "cannot be compared."
            )


def _reference_problems(methods: Mapping[str, Method], training: Training) -> Iterator[str]:
    """Whether the rule 'invariance' has ERM to compare every method with; `methods` is by place."""
    resolved = {place: _all_settings(method, training) for place, method in methods.items()}
    # whether a run is ERM throughout; where settings are wrong, that is a problem of its own
    plain = {
        place: not resolved[place]
        or any(OBJECTIVES[method.objective].plain_until(s) >= int(s["steps"]) for s in resolved[place])
        for place, method in methods.items()
    }
    erm = {place: m for place, m in methods.items() if m.objective == "erm"}
    for place, method in methods.items():
        several = [name for name, values in method.axes.items() if len(values) > 1 and name != "penalty_weight"]
        if method.infers and several and method.inferred_by(training) is None:
            yield (
                f"{place}: the rule 'invariance' tests all candidates of a method on the same inferred environments; a "
                f"grid over {several[0]} would give them different ones. Use one method for each value."
            )
        if plain[place]:
            continue
        if method.infers:
            yield from _own_reference_problems(place, method, resolved[place], training.snapshot_every)
        elif method.environments not in {m.environments for at_place, m in erm.items() if plain[at_place]}:
            more = "" if method.environments == "given" else f' and environments = "{method.environments}"'
            learned = method.environments in {m.environments for m in erm.values()}
            but = ' with a measure that is not "learned"' if learned else ""
            yield (
                "methods: the rule 'invariance' compares with ERM, and no method has objective "
                f'"erm"{more}{but}. Add the lines [[methods]] and objective = "erm"{more}, or set selection.rules to '
                "other rules."
            )


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
) -> Iterator[str]:
    """Of a method that infers its environments, with no run that is ERM throughout: does a warm-up serve?"""
    objective = OBJECTIVES[method.objective]
    begins = [settled_from(objective, s) for s in resolved]
    # ERM on the environments that the run ends with, at a snapshot
    if all(
        0 < b <= objective.plain_until(s) and b % snapshot_every == 0 for b, s in zip(begins, resolved, strict=True)
    ):
        return
    compares = f"{place}: the rule 'invariance' compares with ERM on the environments that the method infers"
    if all(any(objective.weights(s["penalty_weight"])) for s in resolved):
        yield (
            f"{compares}. Add 0 to its grid: penalty_weight = [0, ...]. Or let its warm-up, at whose end the "
            f'environments stand, end at a snapshot: schedule = "annealed", and warmup a multiple of snapshot_every = '
            f"{snapshot_every} above 0."
        )
    else:
        yield (
            f"{compares}, and with its other settings (such as a learned measure, or gates) it is none even at "
            "penalty_weight = 0. Change them, or set selection.rules to other rules."
        )


# ---- published results ----------------------------------------------------------------------------------------------


def _published(raw: Mapping[str, Any], folder: Path, problems: list[str]) -> Published | None:
    named = validated(PublishedTable, raw["published"], "published", problems) if "published" in raw else None
    if named is None:
        return None
    try:
        if Path(named.file).is_absolute() or ".." in Path(named.file).parts:
            raise ValueError(
                f"published.file must be the name of a file beside the spec file, or below. Got {named.file!r}. Copy "
                "the file there."
            )
        content = _read_published(folder / named.file, named.table)
    except ValueError as error:
        problems.append(str(error))
        return None
    metric = content.get("metric") if isinstance(content.get("metric"), str) else None
    return Published(**named.model_dump(), results=content["results"], metric=metric)


def _read_published(path: Path, table: str) -> Mapping[str, Any]:
    """One table of published results; raises where there is none."""
    try:
        tables = json.loads(read_regular(path, MOST_BYTES).decode())
    except OSError as error:
        raise ValueError(
            f"published.file cannot be read: {path} ({error.strerror}). It is looked for beside the spec file."
        ) from None
    except ValueError as error:
        raise ValueError(f"published.file must be a JSON file. {path} is not: {error}.") from None
    except RecursionError:
        raise ValueError(f"published.file must be a JSON file of a few levels. {path} is nested too deeply.") from None
    if not isinstance(tables, dict):
        raise ValueError(f"published.file must hold a JSON object of tables. {path} holds a {type(tables).__name__}.")
    if table not in tables:
        known = sorted(tables)
        raise ValueError(
            f"published.table must be one of {known}, as in {path}. Got {table!r}.{did_you_mean(table, known)}"
        )
    content = tables[table]
    if not isinstance(content, dict) or not isinstance(content.get("results"), dict):
        raise ValueError(f'published.table {table!r} of {path} must have an object "results" (method to numbers).')
    return content


def _published_key_problems(place: str, key: str | None, published: Published | None) -> Iterator[str]:
    """Whether a method's published key exists."""
    here = at(place, "published")
    if key is not None and published is None:
        yield f"{here} is {key!r}, but the spec has no [published] with file and table. Add them, or remove the key."
    elif key is not None and published is not None and key not in published.results:
        known = published.results
        yield f"{here} must be one of {sorted(known)}. Got {key!r}.{did_you_mean(key, known)}"
