"""A diagnosis: all its parts together, and the sentences that sum them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from irmtv.app.diagnose.erm_model import ErmModel, fit_erm
from irmtv.app.diagnose.features import FeatureChanges, feature_changes
from irmtv.app.diagnose.inferred_environments import NAMES, InferredEnvironments, environments_in_aux
from irmtv.app.diagnose.informative import Informative, given_informative, inferred_informative
from irmtv.app.diagnose.loss_split import LossSplits, split_losses
from irmtv.app.diagnose.losses import LossByEnvironment, loss_by_environment
from irmtv.app.diagnose.rows import DiagnosisRows
from irmtv.app.diagnose.two_sample import TwoSample, two_sample_test
from irmtv.app.diagnose.words import LEVEL
from irmtv.core.numbers import Estimate, listed, number, p_text
from irmtv.engine import Progress as TrainingProgress

Progress = Callable[[float, str], None]  # share of the work that is done, and what is being done


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of a table; `summary` is all of it as JSON.

    A part is None where there is nothing to compute it from: `found` without aux; those that compare environments
    where none are given and none are found in aux.
    """

    headline: tuple[str, ...]  # a shift that hurts? what carries it? would invariance have something to work with?
    task: Literal["binary", "multiclass", "regression"]
    environments: Literal["given", "found", "none"]  # those that the parts compare
    names: tuple[str, ...]
    rows: int
    differ: TwoSample | None
    losses: LossByEnvironment | None
    features: FeatureChanges | None
    found: InferredEnvironments | None  # inferred from aux
    informative: tuple[Informative, ...]
    splits: LossSplits | None
    model: ErmModel
    notes: tuple[str, ...] = ()
    about: tuple[tuple[str, Any], ...] = ()  # file, columns, command, versions

    @property
    def summary(self) -> dict[str, Any]:
        """JSON: None where a number is not finite."""
        parts: dict[str, Any] = {
            name: getattr(self, name) for name in ("differ", "losses", "features", "found", "splits")
        }
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
            "informative": [i.summary() for i in self.informative],
            **{name: None if part is None else part.summary() for name, part in parts.items()},
        }


def diagnose_rows(
    rows: DiagnosisRows,
    seed: int,
    progress: Progress | None = None,
    about: tuple[tuple[str, Any], ...] = (),
    model: str = "auto",
) -> Diagnosis:
    """Every part in turn. `progress` is called with the share of the work that is done and what is being done."""
    report = progress or (lambda share, what: None)
    report(0.0, "ERM")
    erm = fit_erm(rows, seed, model, lambda share, what: report(0.2 * share, f"ERM: {what}"))
    notes = [*rows.notes, *erm.notes]
    inferred, informative = None, []
    if rows.environment is not None:
        report(0.2, "permuted labels")
        informative.append(given_informative(rows, erm, seed))
    if rows.aux is not None:
        inferred = environments_in_aux(rows, erm, seed, _between(report, 0.22, 0.35, "environments in aux"))
        permuting = _between(report, 0.35, 0.55, "permuted aux")
        informative.append(inferred_informative(rows, erm, seed, progress=permuting))
        if rows.environment is None and inferred.divides:
            rows = rows.with_environments(inferred.labels, NAMES)
            notes.append(
                "No environments are given: what follows compares those that were found in aux. Each row's is that of "
                "a network which has not seen the row."
            )
    differ = losses = features = splits = None
    if rows.environment is not None:
        report(0.55, "telling environments apart")
        differ = two_sample_test(rows, seed)
        report(0.7, "loss by environment")
        losses = loss_by_environment(rows, erm, seed)
        report(0.75, "features")
        features = feature_changes(rows, seed, erm)
        report(0.85, "splitting the loss")
        splits = split_losses(rows, erm, seed)
    report(1.0, "done")
    return Diagnosis(
        headline=headline(losses, features, splits, tuple(informative)),
        task=rows.task,
        environments="none" if rows.environment is None else "given" if rows.given else "found",
        names=rows.names,
        rows=len(rows),
        differ=differ,
        losses=losses,
        features=features,
        found=inferred,
        informative=tuple(informative),
        splits=splits,
        model=erm,
        notes=tuple(notes),
        about=about,
    )


def _between(report: Progress, start: float, end: float, what: str) -> Callable[[TrainingProgress], None]:
    """For `train`: its progress as a share of the whole diagnosis."""
    return lambda training: report(start + (end - start) * training.share, what)


def headline(
    losses: LossByEnvironment | None,
    features: FeatureChanges | None,
    splits: LossSplits | None,
    informative: tuple[Informative, ...],
) -> tuple[str, ...]:
    """A shift that hurts? What carries it? Would invariance have something to work with?"""
    if losses is None or features is None:
        return ("No environments to compare: none are given, and the network finds no division in aux.",)
    return (_hurts(losses), *_carries(losses, features, splits), _invariance(features, informative))


def _hurts(losses: LossByEnvironment) -> str:
    worst, overall = losses.loss[losses.worst]["value"], losses.overall["value"]
    name = losses.environments[losses.worst]
    if not losses.differs or worst is None or overall is None:
        return (
            f"No shift that hurts is shown: the plain model (ERM, {losses.model}) has a similar loss in every "
            f"environment ({p_text(losses.p)} for equality)."
        )
    times = worst / overall if overall > 0 else float("inf")
    more = f"{100 * (times - 1):.0f} % above" if times < 2 else f"{number(times, 2)} times"
    return (
        f"There is a shift that hurts: in {name} the loss of the plain model (ERM, {losses.model}) is {more} that of "
        f"all rows ({p_text(losses.p)})."
    )


def _carries(losses: LossByEnvironment, features: FeatureChanges, splits: LossSplits | None) -> list[str]:
    sentences = []
    split = None if splits is None else splits.of(losses.environments[losses.worst])
    if losses.differs and split is not None:
        x, y = split.from_x["value"], split.from_y_given_x["value"]
        if not split.trusted:
            sentences.append(f"{split.name} and the rest hardly share any X, so that what carries it is not known.")
        elif x is not None and y is not None:
            parts = {"X": split.from_x, "y given X": split.from_y_given_x}
            shown = [name for name, part in parts.items() if _above_0(part)]
            most = "y given X" if y > 2 * x else "X" if x > 2 * y else ""
            if most in shown:
                sentences.append(f"It comes mostly from a change in {most}.")
            elif len(shown) == 2:
                sentences.append("It comes from both a change in X and one in y given X.")
            else:
                sentences.append("Whether it comes from a change in X or in y given X is not clear.")
    if features.changing:
        names = [f.name for f in features.changing]
        few = names if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
        sentences.append(f"The relation to the target changes for {listed(few)}.")
    elif features.joint_p < LEVEL:
        sentences.append(
            f"The relation of the features to the target changes ({p_text(features.joint_p)} for all together), though "
            "no single one can be named."
        )
    elif features.level_p < LEVEL:
        sentences.append(
            "No feature's relation to the target is shown to change; its level, given the features, does "
            f"({p_text(features.level_p)})."
        )
    return sentences


def _above_0(part: Estimate) -> bool:
    """Whether a part of the rise in loss is there beyond noise."""
    low = part.get("low")
    return low is None or low > 0


def _invariance(features: FeatureChanges, informative: tuple[Informative, ...]) -> str:
    shown = [i for i in informative if i.informative]
    if shown:
        where = listed("the given environments" if i.source == "given" else "those found in aux" for i in shown)
        return (
            f"Invariance has something to work with: the plain model is not invariant over {where} "
            f"({p_text(max(i.p for i in shown))})."
        )
    if features.changes:
        return (
            "Invariance may have something to work with: the relation of features to the target changes, though the "
            "plain model as a whole passes the test."
        )
    return (
        "Invariance has nothing to work with as far as these rows show: the plain model passes the test "
        f"({p_text(min((i.p for i in informative), default=1.0))})."
    )
