"""A spec: what an experiment is, from a TOML file, checked as a whole before anything is trained.

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

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from irmtv.core.messages import did_you_mean
from irmtv.engine.named_networks import NETWORKS
from irmtv.lab.experiments.spec_checks import (
    METHOD_KEYS,
    MLP,
    RULES,
    RUN_KEYWORDS,
    SUMMARIES,
    TRAINING_CHECKS,
    SpecError,
    axis,
    combinations,
    compared_problems,
    data_problems,
    environments_problems,
    expected_but_got,
    fixed_problems,
    invariance_problems,
    label_problems,
    method_problems,
    network_problems,
    one_value,
    pick,
    pool_problems,
    published_key_problems,
    read_published,
    reference_problems,
    rule_problems,
    summary_problems,
    validated,
)
from irmtv.objectives import OBJECTIVES

__all__ = ["Data", "Method", "Published", "Selection", "Spec", "SpecError", "Training", "load_spec", "parse_spec"]


def _tuple_of_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


TupleFromList = BeforeValidator(_tuple_of_list)


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


class Selection(_Frozen):
    """The rules that choose among candidates when results are read."""

    rules: Annotated[tuple[str, ...], TupleFromList] = Field(
        default=("invariance",), description=f"a list of rules, from {', '.join(map(repr, RULES))}"
    )
    folds: int = Field(default=5, ge=2, description="a whole number of at least 2")
    invariance: dict[str, Any] = Field(default={}, description="a table of options of the rule")
    pools: dict[str, Annotated[tuple[str, ...], TupleFromList]] = Field(
        default={}, description="a table: a name for several methods whose candidates are chosen among together"
    )


class _PublishedTable(_Frozen):
    file: str = Field(description="the name of a JSON file, relative to the spec file")
    table: str = Field(description="a top-level key of that file")


class Published(_PublishedTable):
    """The numbers to compare with."""

    results: dict[str, Any]
    metric: str | None = None


class _Head(_Frozen):
    name: str = Field(
        pattern=r"^[^/\\\x00-\x1f]+$",
        description="a text of at least one character, without slashes: files are named by it",
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


_SECTIONS = ("data", "training", "methods", "selection", "published")


class Spec(_Head):
    """An experiment. Made by `load_spec` or `parse_spec`, which check it as a whole."""

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
        content = self.model_dump(
            exclude={
                "name": True,
                "description": True,
                "text": True,
                "device": True,
                "summaries": True,
                "published": {"results", "metric"},
            }
        )
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
        head = {name: getattr(self, name) for name in _Head.model_fields}
        changed = validated(_Head, head | {k: v for k, v in given.items() if v is not None}, "", problems)
        data, kept = self.data, self.methods
        if settings is not None:
            labels = pick(settings, dict.fromkeys(data.settings, ()), "setting", problems)
            data = data.model_copy(update={"settings": {label: data.settings[label] for label in labels}})
        if methods is not None:
            labels = pick(methods, {m.label: (m.objective,) for m in kept}, "method", problems)
            kept = tuple(m for m in kept if m.label in labels)
            kept = tuple(m for m in self.methods if m.label in labels or self._is_reference(m, kept))
        labels = [m.label for m in kept]
        whole = {name: pool for name, pool in self.selection.pools.items() if set(pool) <= set(labels)}
        selection = self.selection.model_copy(update={"pools": whole})
        if changed is not None and changed.compare_with not in [*labels, *whole]:
            changed = changed.model_copy(update={"compare_with": None})
        if problems or changed is None:
            raise SpecError(self.name, problems)
        as_run = (
            f"\n# as run: repetitions = {changed.repetitions}, settings = {list(data.settings)}, methods = {labels}\n"
        )
        text = self.text + as_run
        return self.model_copy(
            update={**changed.model_dump(), "data": data, "methods": kept, "selection": selection, "text": text}
        )

    def _is_reference(self, method: Method, of: Iterable[Method]) -> bool:
        """Whether the rule 'invariance' compares one of these methods with it."""
        if "invariance" not in self.selection.rules or method.objective != "erm":
            return False
        return any(m.measured_on == method.measured_on for m in of)


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
    head = validated(_Head, {k: v for k, v in raw.items() if k not in _SECTIONS}, "", problems, _SECTIONS)
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
    rules = selection.rules if selection is not None else ()
    for place, method in methods.items():
        if method is None:
            continue
        engine = (training or Training()).keywords
        objective = OBJECTIVES[method.objective]
        problems += environments_problems(place, objective, method.environments)
        problems += method_problems(place, objective, method.axes, method.fixed, engine, "fixed" in rules)
        if training is not None:
            hidden = method.axes.get("hidden", (training.hidden,))
            problems += network_problems(place, method.network_of(training), hidden)
        if "published" not in raw or published is not None:  # otherwise the table is what is wrong
            problems += published_key_problems(place, method.published, published.results if published else None)
    known = {place: method for place, method in methods.items() if method is not None}
    problems += label_problems({place: method.label for place, method in known.items()})
    if methods and len(known) == len(methods):  # otherwise a misspelt "erm" would be reported twice
        problems += reference_problems(rules, known, training or Training())
        pools = selection.pools if selection is not None else {}
        problems += pool_problems(pools, known.values())
        if head is not None:
            problems += compared_problems(head.compare_with, [*(m.label for m in known.values()), *pools])
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


def _data(raw: Mapping[str, Any], problems: list[str]) -> Data | None:
    if "data" not in raw:
        problems.append('data is missing: add the lines [data] and name = "...", the name of a data set.')
        return None
    data = validated(Data, raw["data"], "data", problems)
    if data is not None:
        problems += data_problems(data.name, data.arguments, data.settings)
    return data


def _published(raw: Mapping[str, Any], folder: Path, problems: list[str]) -> Published | None:
    table = validated(_PublishedTable, raw["published"], "published", problems) if "published" in raw else None
    if table is None:
        return None
    found, wrong = read_published(folder / table.file, table.table)
    problems += wrong
    if wrong:
        return None
    metric = found.get("metric")
    return Published(**table.model_dump(), results=found["results"], metric=metric if isinstance(metric, str) else None)


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
