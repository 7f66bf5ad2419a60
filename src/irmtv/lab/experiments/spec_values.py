"""Values of a spec: which keys there are, what each must be, and how a problem is put into words.

A place in the file is a dotted path: `training.steps`, `methods[1].warmup` (the second method), and
`data.settings."a b".n_samples` where a key needs quotes. Functions called `..._problems` return what is wrong, one or
two sentences each.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from irmtv.core.messages import did_you_mean
from irmtv.engine.named_networks import NETWORKS
from irmtv.engine.settings import ENGINE_CHECKS, OTHER_NAMES
from irmtv.selection import RULES as SELECTION_RULES

RULES = tuple(SELECTION_RULES)
MLP = "mlp"  # the network that `hidden` describes, for a method where [training] names another
SUMMARIES = ("train", "iid", "pooled", "mean", "worst")  # columns of the tables, under every rule
METHOD_KEYS = (
    "objective",
    "label",
    "published",
    "environments",
    "network",
    "fixed",
)  # everything else in a method is a setting of its runs
LIST_VALUED = frozenset({"hidden", "measure"})  # one value of these is itself a list
RUN_KEYWORDS = tuple(name for name in ENGINE_CHECKS if name != "seed")  # of [training], and of single methods
TOML_WORDS = {  # TOML has neither tuples nor None
    "hidden": "a list of whole numbers of at least 1; [] is a linear model",
    "batch_size": "'auto' or a whole number of at least 2",
}

Check = tuple[Callable[[Any], bool], str]
RUN_CHECKS: Mapping[str, Check] = {
    name: (ENGINE_CHECKS[name][0], TOML_WORDS.get(name, ENGINE_CHECKS[name][1])) for name in RUN_KEYWORDS
}
TRAINING_CHECKS: Mapping[str, Check] = {
    **RUN_CHECKS,
    "dtype": (lambda v: v in ("float32", "float64"), "'float32' or 'float64'"),
    "snapshot_every": ENGINE_CHECKS["steps"],
    "network": (lambda v: v is None or v in NETWORKS, f"one of {', '.join(map(repr, NETWORKS))}"),
}


class SpecError(ValueError):
    """Everything that is wrong with a spec, one problem per line."""

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        one = len(self.problems) == 1
        text = self.problems[0] if one else "\n".join([f"{len(self.problems)} problems", *self.problems])
        super().__init__(f"{source}: {text}")


def at(place: str, key: str) -> str:
    """The path of a key inside `place`.

    >>> at(at("data.settings", "a b"), "n_samples")
    'data.settings."a b".n_samples'
    """
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
    return f"{place}.{name}" if place else name


def expected_but_got(place: str, expected: str, value: object) -> str:
    """The sentence "must be ..., got ..."; a near miss of a quoted word in `expected` is pointed out."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    hint = did_you_mean(value, re.findall(r"'([^']+)'", expected)) if isinstance(value, str) else ""
    return f"{place} must be {expected}. Got {text}.{hint}"


M = TypeVar("M", bound=BaseModel)


def validated(
    model: type[M], raw: object, place: str, problems: list[str], others: Sequence[str] = (), note: str = ""
) -> M | None:
    """`raw` as a model; or None, with what is wrong added to `problems`. `others`: known keys beside the fields."""
    if not isinstance(raw, dict):
        problems.append(f"{place} must be a table, begun with [{place}]. Got {raw!r}.")
        return None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        known = [*model.model_fields, *others]
        # one sentence per key, whatever number of errors pydantic finds below it
        by_key = {str(one["loc"][0]): one for one in error.errors()}
        keys = sorted(by_key, key=lambda k: [*raw, *known].index(k))
        problems += [_worded(model, by_key[key], at(place, key), raw, known, note) for key in keys]
        return None


def _worded(model: type[BaseModel], error: Any, place: str, raw: Mapping[str, Any], known: list[str], note: str) -> str:
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        hint = did_you_mean(OTHER_NAMES.get(key, key), known)
        return f"{place} is not a known key; expected one of {known}.{note}{hint}"
    expected = model.model_fields[key].description or "of another type"
    if error["type"] == "missing":
        return f"{place} is missing: it must be {expected}."
    if error["type"] == "value_error":  # raised by a validator of this package
        text = str(error["ctx"]["error"])
        return f"{place} {text.removeprefix(key + ' ')}" if text.startswith(f"{key} must") else f"{place}: {text}"
    return expected_but_got(place, expected, raw[key])


def one_value(key: str, value: Any) -> Any:
    """A value as `irmtv.train` takes it: a list that is one value becomes a tuple."""
    return tuple(value) if key in LIST_VALUED and isinstance(value, list) else value


def axis(key: str, value: Any) -> tuple[Any, ...]:
    """The values of a setting: the members of a grid, or the one value.

    >>> axis("warmup", [0, 100]), axis("hidden", [32]), axis("hidden", [[], [32]])
    ((0, 100), ((32,),), ((), (32,)))
    """
    if not isinstance(value, list) or (key in LIST_VALUED and not any(isinstance(v, (list, str)) for v in value)):
        return (one_value(key, value),)
    return tuple(one_value(key, v) for v in value)


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination, the last key fastest."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def fixed_problems(place: str, axes: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any], needed: bool) -> list[str]:
    """Whether `fixed` names one member of each grid."""
    problems = []
    for key, value in fixed.items():
        here = at(at(place, "fixed"), key)
        if key not in axes:
            problems.append(f"{here} is not a setting of this method, which has {list(axes)}.{did_you_mean(key, axes)}")
        elif one_value(key, value) not in axes[key]:
            problems.append(f"{here} must be one of the method's values {list(axes[key])}. Got {value!r}.")
    missing = [key for key, values in axes.items() if len(values) > 1 and key not in fixed]
    if needed and missing and not problems:  # a misspelt key is missing too
        example = ", ".join(f"{key} = ..." for key in missing)
        problems.append(
            f"{at(place, 'fixed')} must say which value of {missing} the rule 'fixed' takes. "
            f"Add fixed = {{ {example} }}, or leave 'fixed' out of selection.rules."
        )
    return problems


def pick(names: Iterable[str], known: Mapping[str, Iterable[str]], what: str, problems: list[str]) -> list[str]:
    """The labels of the given names, in the order of the spec. `known`: label to its other names."""
    names = [names] if isinstance(names, str) else list(names)
    chosen = set()
    if not names:
        problems.append(f"{what}s must name at least one {what} of {list(known)}. Got none.")
    for name in names:
        by_other_name = [label for label, others in known.items() if name in others]
        if name not in known and not by_other_name:
            others = dict.fromkeys([*known, *itertools.chain.from_iterable(known.values())])
            problems.append(
                f"{name!r} is not a {what} of this spec, which has {list(known)}.{did_you_mean(name, others)}"
            )
        chosen |= {name} if name in known else set(by_other_name)
    return [label for label in known if label in chosen]
