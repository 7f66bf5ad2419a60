"""A spec: what an experiment is, as frozen data. `spec_file` reads one from TOML and checks it as a whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from irmtv.core.messages import did_you_mean
from irmtv.engine.named_networks import NETWORKS
from irmtv.lab.experiments.spec_values import (
    MLP,
    RULES,
    RUN_KEYWORDS,
    SUMMARIES,
    TRAINING_CHECKS,
    SpecError,
    axis,
    combinations,
    expected_but_got,
    fixed_problems,
    one_value,
    pick,
    validated,
)
from irmtv.objectives import OBJECTIVES

__all__ = ["Data", "Head", "Method", "Published", "PublishedTable", "Selection", "Spec", "Training"]


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
        head = {name: getattr(self, name) for name in Head.model_fields}
        changed = validated(Head, head | {k: v for k, v in given.items() if v is not None}, "", problems)
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
