"""All parts of a diagnosis together, and what they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from irmtv.app.diagnose.features import FeatureChanges, feature_changes
from irmtv.app.diagnose.found import NAMES, FoundEnvironments, find_environments
from irmtv.app.diagnose.informative import Informative, found_informative, given_informative
from irmtv.app.diagnose.loss_split import LossSplits, split_losses
from irmtv.app.diagnose.losses import LossByEnvironment, loss_by_environment
from irmtv.app.diagnose.plain_model import PlainModel, fit_plain_model
from irmtv.app.diagnose.rows import DiagnosisRows
from irmtv.app.diagnose.two_sample import TwoSample, two_sample_test
from irmtv.app.diagnose.words import LEVEL
from irmtv.core.numbers import listed, number, p_text
from irmtv.engine import Progress

Tell = Callable[[float, str], None]  # share of the work that is done, and what is being done


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a table before anything is fitted to it; `summary` is all of it as JSON.

    A part is None where there is nothing to compute it from: `found` without aux; those of environments where none are
    given and none are found.
    """

    headline: tuple[str, ...]  # a shift that hurts? what carries it? would invariance have something to work with?
    task: Literal["binary", "multiclass", "regression"]
    environments: Literal["given", "found", "none"]  # which those are that the parts compare
    names: tuple[str, ...]
    rows: int
    differ: TwoSample | None
    losses: LossByEnvironment | None
    features: FeatureChanges | None
    found: FoundEnvironments | None
    informative: tuple[Informative, ...]
    splits: LossSplits | None
    model: PlainModel
    notes: tuple[str, ...] = ()
    about: tuple[tuple[str, Any], ...] = ()  # file, columns, command, versions

    @property
    def summary(self) -> dict[str, Any]:
        """JSON: None where a number is not finite."""

        def part(of: Any) -> Any:
            return None if of is None else of.summary()

        return {
            "schema": 1,
            "kind": "diagnosis",
            "headline": list(self.headline),
            **dict(self.about),
            "task": self.task,
            "environments": self.environments,
            "names": list(self.names),
            "rows": self.rows,
            "model": self.model.kind,
            "models": self.model.summary(),
            "notes": list(self.notes),
            "differ": part(self.differ),
            "losses": part(self.losses),
            "features": part(self.features),
            "found": part(self.found),
            "informative": [i.summary() for i in self.informative],
            "splits": part(self.splits),
        }


def diagnose_rows(
    rows: DiagnosisRows,
    seed: int,
    tell: Tell | None = None,
    about: tuple[tuple[str, Any], ...] = (),
    model: str = "auto",
) -> Diagnosis:
    """Every part in turn. `tell` hears how much is done."""
    tell = tell or (lambda share, what: None)

    def inside(start: float, end: float, what: str) -> Callable[[Progress], None]:
        return lambda report: tell(start + (end - start) * report.share, what)

    tell(0.0, "plain risk minimisation")
    plain = fit_plain_model(
        rows, seed, model, lambda share, what: tell(0.2 * share, f"plain risk minimisation: {what}")
    )
    notes = [*rows.notes, *plain.notes]
    found, informative = None, []
    if rows.environment is not None:
        tell(0.2, "permuted labels")
        informative.append(given_informative(rows, plain, seed))
    if rows.aux is not None:
        what = "environments in aux"
        found = find_environments(rows, plain, seed, inside(0.22, 0.35, what))
        what = "permuted aux"
        informative.append(found_informative(rows, plain, seed, progress=inside(0.35, 0.55, what)))
        if rows.environment is None and found.divides:
            rows = rows.with_environments(found.labels, NAMES)
            notes.append(
                "No environments are given: what follows compares those that were found in aux. Each row's is that of "
                "a network which has not seen the row."
            )
    differ = losses = features = splits = None
    if rows.environment is not None:
        tell(0.55, "telling environments apart")
        differ = two_sample_test(rows, seed)
        tell(0.7, "loss by environment")
        losses = loss_by_environment(rows, plain, seed)
        tell(0.75, "features")
        features = feature_changes(rows, seed, plain)
        tell(0.85, "splitting the loss")
        splits = split_losses(rows, plain, seed)
    tell(1.0, "done")
    return Diagnosis(
        headline=headline(losses, features, splits, tuple(informative)),
        task=rows.task,
        environments="none" if rows.environment is None else "given" if rows.given else "found",
        names=rows.names,
        rows=len(rows),
        differ=differ,
        losses=losses,
        features=features,
        found=found,
        informative=tuple(informative),
        splits=splits,
        model=plain,
        notes=tuple(notes),
        about=about,
    )


def headline(
    losses: LossByEnvironment | None,
    features: FeatureChanges | None,
    splits: LossSplits | None,
    informative: tuple[Informative, ...],
) -> tuple[str, ...]:
    """A shift that hurts? What carries it? Would invariance have something to work with?"""
    if losses is None or features is None:
        return ("No environments to compare: none are given, and the network finds no division in aux.",)
    sentences = [_hurts(losses), *_carries(losses, features, splits), _invariance(features, informative)]
    return tuple(sentences)


def _hurts(losses: LossByEnvironment) -> str:
    worst, overall = losses.loss[losses.worst]["value"], losses.overall["value"]
    name = losses.environments[losses.worst]
    if not losses.differs or worst is None or overall is None:
        return (
            f"No shift that hurts is shown: plain risk minimisation ({losses.model}) has a similar loss in every "
            f"environment ({p_text(losses.p)} for equality)."
        )
    times = worst / overall if overall > 0 else float("inf")
    more = (
        f"{100 * (times - 1):.0f} % above that of all rows"
        if times < 2
        else f"{number(times, 2)} times that of all rows"
    )
    return (
        f"There is a shift that hurts: in {name} the loss of plain risk minimisation ({losses.model}) is {more} "
        f"({p_text(losses.p)})."
    )


def _carries(losses: LossByEnvironment, features: FeatureChanges, splits: LossSplits | None) -> list[str]:
    said = []
    split = None if splits is None else splits.of(losses.environments[losses.worst])
    if losses.differs and split is not None:
        x, y = split.from_x["value"], split.from_y_given_x["value"]
        if not split.trusted:
            said.append(f"{split.environment} and the rest hardly share any X, so that what carries it is not known.")
        elif x is not None and y is not None:
            if y > 2 * x:
                what = "mostly from a change in y given X"
            elif x > 2 * y:
                what = "mostly from a change in X"
            else:
                what = "from both a change in X and one in y given X"
            said.append(f"It comes {what}.")
    if features.changing:
        names = [f.name for f in features.changing]
        few = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
        said.append(f"The relation to the target changes for {listed(few)}.")
    elif features.joint_p < LEVEL:
        said.append(
            f"The relation of the features to the target changes ({p_text(features.joint_p)} for all together), though "
            "no single one can be named."
        )
    elif features.level_p < LEVEL:
        said.append(
            "No feature's relation to the target is shown to change; its level, given the features, does "
            f"({p_text(features.level_p)})."
        )
    return said


def _invariance(features: FeatureChanges, informative: tuple[Informative, ...]) -> str:
    good = [i for i in informative if i.informative]
    if good:
        where = listed("the given environments" if i.source == "given" else "those found in aux" for i in good)
        return (
            f"Invariance has something to work with: plain risk minimisation is not invariant over {where} "
            f"({p_text(max(i.p for i in good))})."
        )
    if features.changes:
        return (
            "Invariance may have something to work with: the relation of features to the target changes, though plain "
            "risk minimisation as a whole passes the test."
        )
    return (
        "Invariance has nothing to work with as far as these rows show: plain risk minimisation passes the test "
        f"({p_text(min((i.p for i in informative), default=1.0))})."
    )
