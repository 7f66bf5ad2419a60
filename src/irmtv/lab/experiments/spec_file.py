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

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from irmtv.core.messages import did_you_mean
from irmtv.lab.experiments.spec import Data, Head, Method, Published, PublishedTable, Selection, Spec, Training
from irmtv.lab.experiments.spec_checks import (
    compared_problems,
    data_problems,
    environments_problems,
    invariance_problems,
    label_problems,
    method_problems,
    network_problems,
    pool_problems,
    published_key_problems,
    read_published,
    reference_problems,
    rule_problems,
    summary_problems,
)
from irmtv.lab.experiments.spec_values import METHOD_KEYS, SpecError, validated
from irmtv.objectives import OBJECTIVES

__all__ = ["load_spec", "parse_spec"]

_SECTIONS = ("data", "training", "methods", "selection", "published")


def load_spec(path: str | Path) -> Spec:
    """Read and check a spec file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except IsADirectoryError:
        inside = sorted(p.name for p in path.glob("*.toml"))
        raise SpecError(
            str(path), [f"a spec is a TOML file, and this is a folder; TOML files in it: {inside}."]
        ) from None
    except FileNotFoundError:
        beside = [str(p) for p in path.parent.glob("*.toml")]
        raise SpecError(str(path), [f"there is no such spec file.{did_you_mean(path, beside)}"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(str(path), [f"the spec file cannot be read as UTF-8 text: {error}."]) from None
    return parse_spec(text, path.parent, str(path))


def parse_spec(text: str, folder: Path | None = None, source: str = "spec") -> Spec:
    """Check the text of a spec. `folder`: where the file of published results is looked for; else here."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(source, [f"this is not valid TOML: {error}."]) from None
    problems: list[str] = []
    head = validated(Head, {k: v for k, v in raw.items() if k not in _SECTIONS}, "", problems, _SECTIONS)
    if head is not None:
        problems += summary_problems(head.summaries)
    data = _data(raw, problems)
    training = validated(
        Training,
        raw.get("training", {}),
        "training",
        problems,
        note=" Hyper-parameters of an objective belong in its [[methods]].",
    )
    selection = validated(Selection, raw.get("selection", {}), "selection", problems)
    if selection is not None:
        problems += rule_problems(selection.rules) + invariance_problems(selection.invariance)
    published = _published(raw, folder or Path(), problems)
    methods = _methods(raw, problems)
    known = {place: method for place, method in methods.items() if method is not None}
    available = None if published is None else published.results
    for place, method in known.items():
        rules = selection.rules if selection is not None else ()
        problems += _problems_of_method(place, method, training, "fixed" in rules)
        if "published" not in raw or published is not None:  # otherwise the table is what is wrong
            problems += published_key_problems(place, method.published, available)
    problems += label_problems({place: method.label for place, method in known.items()})
    if methods and len(known) == len(methods):  # otherwise a misspelt "erm" would be reported twice
        problems += _problems_of_choice(head, selection, known, training or Training())
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


def _problems_of_method(place: str, method: Method, training: Training | None, fixed_needed: bool) -> list[str]:
    objective, engine = OBJECTIVES[method.objective], (training or Training()).keywords
    problems = environments_problems(place, objective, method.environments)
    problems += method_problems(place, objective, method.axes, method.fixed, engine, fixed_needed)
    if training is not None:
        hidden = method.axes.get("hidden", (training.hidden,))
        problems += network_problems(place, method.network_of(training), hidden)
    return problems


def _problems_of_choice(
    head: Head | None, selection: Selection | None, methods: Mapping[str, Method], training: Training
) -> list[str]:
    """Whether rules, pools and comparisons fit the methods, which are by place."""
    problems = reference_problems(selection.rules if selection is not None else (), methods, training)
    pools = selection.pools if selection is not None else {}
    problems += pool_problems(pools, methods.values())
    if head is not None:
        problems += compared_problems(head.compare_with, [*(m.label for m in methods.values()), *pools])
    return problems


def _data(raw: Mapping[str, Any], problems: list[str]) -> Data | None:
    if "data" not in raw:
        problems.append('data is missing: add the lines [data] and name = "...", the name of a data set.')
        return None
    data = validated(Data, raw["data"], "data", problems)
    if data is not None:
        problems += data_problems(data.name, data.arguments, data.settings)
    return data


def _published(raw: Mapping[str, Any], folder: Path, problems: list[str]) -> Published | None:
    table = validated(PublishedTable, raw["published"], "published", problems) if "published" in raw else None
    if table is None:
        return None
    content, wrong = read_published(folder / table.file, table.table)
    problems += wrong
    if wrong:
        return None
    metric = content.get("metric")
    return Published(
        **table.model_dump(), results=content["results"], metric=metric if isinstance(metric, str) else None
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
        place = f"methods[{i}]"
        own = {key: value for key, value in table.items() if key in METHOD_KEYS}
        settings = {key: value for key, value in table.items() if key not in METHOD_KEYS}
        methods[place] = validated(Method, {**own, "settings": settings}, place, problems)
    return methods
