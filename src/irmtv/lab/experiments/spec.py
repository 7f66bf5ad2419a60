"""A spec: what an experiment is, as frozen data. `spec_file` reads one from TOML and checks it as a whole.

A place in the file is a dotted path: `training.steps`, `methods[1].warmup` (the second method), and
`data.settings."a b".n_samples` where a key needs quotes. Functions called `..._problems` return what is wrong, one or
two sentences each.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from irmtv.core.messages import did_you_mean
from irmtv.engine.named_networks import NETWORKS
from irmtv.engine.settings import ENGINE_CHECKS, NEW_SETTINGS, OTHER_NAMES
from irmtv.models.networks.linear import is_solved
from irmtv.objectives import OBJECTIVES, Objective
from irmtv.objectives.base import warmup_steps
from irmtv.selection import RULES as SELECTION_RULES

MOST_COMBINATIONS = 10_000  # of one method's grids
RULES = tuple(SELECTION_RULES)
MLP = "mlp"  # the network that `hidden` describes, for a method where [training] names another
SUMMARIES = ("train", "iid", "pooled", "mean", "worst")  # columns of the tables, under every rule
LIST_VALUED = frozenset({"hidden", "measure"})  # one value of these is itself a list
OF_SOLUTION = frozenset({"penalty_weight", "classifier", "start"})  # what Newton's method does not need to infer
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
    "network": (
        lambda v: v is None or (isinstance(v, str) and v in NETWORKS),
        f"one of {', '.join(map(repr, NETWORKS))}",
    ),
}


def without_new_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that came later and say nothing: keys of runs that are stored stay as they are."""
    return {k: v for k, v in settings.items() if k not in NEW_SETTINGS or v != NEW_SETTINGS[k]}


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


TupleFromList = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)


class _Frozen(BaseModel):
    """Unknown keys and silent conversions are errors; a field's description says what is expected of it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Data(_Frozen):
    """The data set and the arguments of its settings."""

    name: str = Field(description="the name of a data set")
    arguments: dict[str, Any] = Field(default={}, description="a table of arguments of the data set")
    settings: dict[str, dict[str, Any]] = Field(
        default={},
        min_length=1,
        description='one table of arguments per setting, each begun with [data.settings."LABEL"]',
    )

    @model_validator(mode="before")
    @classmethod
    def _one_setting_by_default(cls, raw: Any) -> Any:
        alone = isinstance(raw, dict) and isinstance(raw.get("name"), str) and "settings" not in raw
        return {**raw, "settings": {raw["name"]: {}}} if alone else raw

    def arguments_of(self, label: str) -> dict[str, Any]:
        """The arguments of one setting: its own go before the common ones."""
        if label not in self.settings:
            raise ValueError(
                f"setting must be one of {list(self.settings)}. Got {label!r}.{did_you_mean(label, self.settings)}"
            )
        return {**self.arguments, **self.settings[label]}


class Training(_Frozen):
    """How every method is trained, unless it says otherwise: keywords of `irmtv.train`."""

    hidden: Annotated[tuple[int, ...], TupleFromList] = ()
    classifier: Literal["scalar", "vector"] = "scalar"
    steps: int = 2000
    learning_rate: float = 5e-3
    l2: float = 0.0
    batch_size: int | Literal["auto"] = "auto"
    solver: Literal["adam", "newton"] = "adam"
    start: str | None = None
    layer: int | None = None
    dtype: Literal["float32", "float64"] = "float32"
    snapshot_every: int = 100
    network: str | None = None

    @field_validator("*", mode="before")
    @classmethod
    def _as_the_engine_expects(cls, value: Any, info: Any) -> Any:
        good, expected = TRAINING_CHECKS[info.field_name]
        if not good(one_value(info.field_name, value)):
            grid = " A grid belongs in [[methods]]." if isinstance(value, list) else ""
            raise ValueError(expected_but_got(info.field_name, expected, value) + grid)
        return value

    @property
    def keywords(self) -> dict[str, Any]:
        """What belongs to single runs, so that a method may override it."""
        return {name: getattr(self, name) for name in RUN_KEYWORDS}


class Method(_Frozen):
    """An objective with its settings, some of them grids."""

    objective: str = Field(description="the name of an objective; `irmtv list` shows them")
    label: str = Field(min_length=1, description="a text of at least one character")
    published: str | None = Field(default=None, description="a key of the published results")
    environments: Literal["given", "inferred"] = Field(
        default="given", description='"given", or "inferred": labels from the auxiliary variables, for any objective'
    )
    network: str | None = Field(
        default=None,
        description=f"{MLP!r} or one of {', '.join(map(repr, NETWORKS))}; [training] says it for all methods",
    )
    settings: dict[str, Any] = Field(default={}, description="a table of settings")
    fixed: dict[str, Any] = Field(
        default={}, description="a table with one value of each grid, such as { warmup = 100 }"
    )

    @model_validator(mode="before")
    @classmethod
    def _label_by_default(cls, raw: Any) -> Any:
        named = isinstance(raw, dict) and isinstance(raw.get("objective"), str)
        return {"label": raw["objective"], **raw} if named else raw

    @field_validator("objective")
    @classmethod
    def _as_registered(cls, name: str) -> str:
        return OBJECTIVES[name].name  # "a + b" and "a+b" are one

    @field_validator("network")
    @classmethod
    def _as_known(cls, name: str | None) -> str | None:
        known = [MLP, *NETWORKS]
        if name is not None and name not in known:
            raise ValueError(f"network must be one of {known}. Got {name!r}.{did_you_mean(name, known)}")
        return name

    @field_validator("settings")
    @classmethod
    def _few_combinations(cls, settings: dict[str, Any]) -> dict[str, Any]:
        count = math.prod(len(axis(key, value)) for key, value in settings.items())
        if count > MOST_COMBINATIONS:
            raise ValueError(f"the grids must have at most {MOST_COMBINATIONS:,} combinations. Got {count:,}.")
        return settings

    def network_of(self, training: Training) -> str | None:
        """The network by name; None where `hidden` describes it."""
        name = self.network or training.network
        return None if name == MLP else name

    @property
    def infers(self) -> bool:
        """Whether the objective infers environments itself, while it trains."""
        return OBJECTIVES[self.objective].needs == "aux"

    @property
    def measured_on(self) -> str:
        """The environments of its held-out statistics: only methods with the same can be compared by them."""
        return "own" if self.infers else self.environments

    def solved(self, training: Training) -> bool:
        """Whether all its runs are linear models that are solved outright: their slopes are known in every column."""
        return all(is_solved(OBJECTIVES[self.objective], keywords) for keywords in self.combinations(training))

    def inferred_by(self, training: Training) -> str | None:
        """What decides the environments that it infers, where all its runs infer the same ones; else None.

        Newton's method infers them from ERM, before any penalty acts. Adam's runs go on while the penalty does.
        """
        every = [{k: v for k, v in c.items() if k not in OF_SOLUTION} for c in self.combinations(training)]
        if not self.infers or not self.solved(training) or any(c != every[0] for c in every):
            return None
        return json.dumps([self.objective, every[0]], sort_keys=True, default=str)

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """Every setting with its values: one, or those of its grid."""
        return {key: axis(key, value) for key, value in self.settings.items()}

    def combinations(self, training: Training) -> tuple[dict[str, Any], ...]:
        """Keywords for `irmtv.train`, one dict per hyper-parameter combination, the last key of the grid fastest."""
        return tuple({**training.keywords, **own} for own in combinations(self.axes))

    def fixed_combination(self, training: Training) -> dict[str, Any]:
        """The combination that the rule "fixed" takes."""
        axes = self.axes
        problems = fixed_problems(f"method {self.label!r}", axes, self.fixed, needed=True)
        if problems:
            raise ValueError(problems[0])
        place = {key: axes[key].index(one_value(key, value)) for key, value in self.fixed.items()}
        return {**training.keywords, **{key: values[place.get(key, 0)] for key, values in axes.items()}}


# everything else in a method is a setting of its runs
METHOD_KEYS = tuple(name for name in Method.model_fields if name != "settings")


def settled_from(objective: Objective, settings: Mapping[str, Any]) -> int:
    """The step from which inferred environments stay what they are at the end."""
    if objective.climbs(settings) != "warm-up":
        return int(settings["steps"])
    return warmup_steps(settings["warmup"], settings["steps"])


class Selection(_Frozen):
    """The rules that choose among candidates when results are read."""

    rules: Annotated[tuple[str, ...], TupleFromList] = Field(
        default=("invariance",), description=f"a list of rules, from {', '.join(map(repr, RULES))}"
    )
    folds: int = Field(default=5, ge=2, le=1000, description="a whole number from 2 to 1000")
    invariance: dict[str, Any] = Field(default={}, description="a table of options of the rule")
    outputs: bool = Field(default=False, description="true or false")
    pools: dict[str, Annotated[tuple[str, ...], TupleFromList]] = Field(
        default={}, description="a table: a name for several methods whose candidates are chosen among together"
    )


class PublishedTable(_Frozen):
    """Where the numbers to compare with stand."""

    file: str = Field(description="the name of a JSON file, relative to the spec file")
    table: str = Field(description="a top-level key of that file")


class Published(PublishedTable):
    """The numbers to compare with."""

    results: dict[str, Any]
    metric: str | None = None


class Head(_Frozen):
    """What stands before the sections of a spec."""

    name: str = Field(
        pattern=r"^[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,59}$",
        description="a text of 1 to 60 characters, without slashes and not beginning with a dot: files are named by it",
    )
    description: str = Field(default="", description="a text")
    repetitions: int = Field(default=10, ge=1, description="a whole number of at least 1")
    first_seed: int = Field(default=0, ge=0, description="a whole number of at least 0")
    device: str = Field(
        default="cpu", pattern=r"^(cpu|auto|cuda(:\d+)?)$", description="'cpu', 'cuda', 'cuda:0' or 'auto'"
    )
    summaries: Annotated[tuple[str, ...], TupleFromList] = Field(
        default=("mean", "worst"),
        description=f"a list of columns of the tables, from {', '.join(map(repr, SUMMARIES))}",
    )
    compare_with: str | None = Field(
        default=None, description="the label of a method or pool that the others are tested against, in pairs"
    )


class Spec(Head):
    """An experiment. `load_spec` and `parse_spec` make one, and check it as a whole."""

    data: Data
    training: Training = Training()
    methods: tuple[Method, ...]
    selection: Selection = Selection()
    published: Published | None = None
    text: str = Field(default="", repr=False)  # the TOML source

    @property
    def seeds(self) -> range:
        """The seed of each repetition."""
        return range(self.first_seed, self.first_seed + self.repetitions)

    @property
    def hash(self) -> str:
        """Of what decides the results: comments, the order of keys, name, description and device do not matter."""
        left_out: dict[str, Any] = dict.fromkeys(("name", "description", "text", "device", "summaries"), True)
        content = self.model_dump(exclude={**left_out, "published": {"results", "metric"}})
        content["training"] = without_new_defaults(content["training"])
        if not self.selection.outputs:  # a key that came later
            del content["selection"]["outputs"]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def with_(
        self,
        repetitions: int | None = None,
        settings: Iterable[str] | None = None,
        methods: Iterable[str] | None = None,
        device: str | None = None,
    ) -> Spec:
        """The same spec with another number of repetitions or device, or limited to some settings and methods.

        `methods` are labels or names of objectives; everything keeps the order of the spec. What the rule
        "invariance" compares them with stays; a pool stays if all its methods do.
        """
        problems: list[str] = []
        given = {"repetitions": repetitions, "device": device}
        head = {name: getattr(self, name) for name in Head.model_fields}
        changed = validated(Head, head | {k: v for k, v in given.items() if v is not None}, "", problems)
        data, kept = self.data, self.methods
        if settings is not None:
            labels = pick(settings, dict.fromkeys(data.settings, ()), "setting", problems)
            data = data.model_copy(update={"settings": {label: data.settings[label] for label in labels}})
        if methods is not None:
            labels = pick(methods, {m.label: (m.objective,) for m in kept}, "method", problems)
            kept = tuple(m for m in kept if m.label in labels)
            references = [erm for m in kept for erm in self.references([m])]
            kept = tuple(m for m in self.methods if m.label in labels or m in references)
        labels = [m.label for m in kept]
        whole = {name: pool for name, pool in self.selection.pools.items() if set(pool) <= set(labels)}
        selection = self.selection.model_copy(update={"pools": whole})
        if changed is not None and changed.compare_with not in [*labels, *whole]:
            changed = changed.model_copy(update={"compare_with": None})
        if problems or changed is None:
            raise SpecError(self.name, problems)
        text = self.text + (
            f"\n# as run: repetitions = {changed.repetitions}, settings = {list(data.settings)}, methods = {labels}\n"
        )
        parts = {"data": data, "methods": kept, "selection": selection, "text": text}
        return self.model_copy(update={**changed.model_dump(), **parts})

    def references(self, methods: Sequence[Method]) -> tuple[Method, ...]:
        """The methods of ERM that the rule 'invariance' compares these with, on the same environments.

        Where the spec has ERM both by Adam and solved outright, those that were trained as these methods are: only
        solved ones have slopes in every column.
        """
        if "invariance" not in self.selection.rules:
            return ()
        places = {m.measured_on for m in methods}
        erm = [m for m in self.methods if m.objective == "erm" and m.measured_on in places]
        kinds = {m.solved(self.training) for m in methods}
        return tuple(m for m in erm if m.solved(self.training) in kinds) or tuple(erm)
