"""From the store to results: every rule's choice for every setting, method and repetition. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from irmtv.lab.experiments.evaluation import IN_TABLES, TEST_ROWS
from irmtv.lab.experiments.fold_arrays import DIRECTIONS, OWN, SCALAR_SLOPES
from irmtv.lab.experiments.outputs import with_toward
from irmtv.lab.experiments.plan import ALL, LEFT_OUT, STATISTICS, Member, leaves_out, members, metric_name, parts_of
from irmtv.lab.experiments.spec import Method, Spec, settled_from
from irmtv.lab.experiments.store import RunRecord, Store
from irmtv.lab.workers import side_by_side
from irmtv.metrics import METRICS
from irmtv.objectives import OBJECTIVES
from irmtv.selection import Choice, Measurements, Records, build_records, choose
from irmtv.selection.directions import Directions
from irmtv.selection.records import COLUMNWISE

RUNS_PER_JOB = 300  # to begin a process takes as long as choosing among some hundred runs
COLUMNS = (
    "setting", "method", "rule", "repetition", "metric", "summary", "value", "outcome", "published_key", "note",
    "chosen_method", "hyperparameters", "step", "message", "figures",
)  # fmt: skip
Stored = Mapping[str, RunRecord]  # by key


@dataclass(frozen=True)
class Candidate:
    """One combination of hyper-parameters: the run on all rows, and those on parts of them."""

    member: Member
    whole: RunRecord
    folds: tuple[RunRecord, ...]
    left_out: tuple[RunRecord, ...]
    stated: bool  # the combination that was stated beforehand

    @cached_property
    def steps(self) -> np.ndarray:
        """Steps at which all its runs were measured, and at which its environments mean what they mean at the end."""
        steps = self.whole.arrays["steps"]
        steps = steps[steps > 0]  # the random start is no model
        for part in (*self.folds, *self.left_out):
            steps = steps[_are_among(steps, part.arrays["steps"])]
        if self.member.method.infers and len(steps):
            # environments that are still being looked for are others at every step: nothing can be tested on them
            begin = settled_from(OBJECTIVES[self.member.method.objective], self.member.settings)
            steps = steps[steps >= min(begin, steps.max())]
        return steps

    @cached_property
    def _known(self) -> dict[tuple[str, str], Tensor]:
        return {}  # every rule and every metric asks for the same

    def at(self, record: RunRecord, name: str) -> Tensor:
        """An array of one of its runs at `steps`: (S, ...)."""
        place = (record.key, name)
        if place not in self._known:
            kept = _are_among(record.arrays["steps"], self.steps)
            self._known[place] = torch.from_numpy(record.arrays[name][kept]).double()
        return self._known[place]


def _are_among(steps: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(S,); of few steps, ten times as fast as NumPy's own."""
    found: np.ndarray = (steps[:, None] == others).any(1)
    return found


def read_results(spec: Spec, folder: str | Path, jobs: int = 1) -> pd.DataFrame:
    """One row for every setting, method or pool, rule, repetition, metric and summary of the spec.

    The value is that of the model trained on all rows, at the chosen combination and step: the mean over the test
    environments or the worst of them, over all their rows ("pooled"), over test rows that are drawn as the training
    rows are ("iid"), over the training rows ("train"). Where a rule cannot choose, or a summary was not measured, the
    value is NaN and `note` says why. Runs that are not stored are left out.

    `jobs` processes share the work; each is begun where it has a few hundred runs to look at.
    """
    parts, runs = _parts(spec, folder)
    jobs = min(jobs, runs // RUNS_PER_JOB, len(parts))
    chosen = partial(_rows_of, spec, folder)
    rows: list[dict[str, Any]] = []
    if jobs < 2:
        rows = [row for part in parts for row in chosen(part)]
    else:
        by_part = {}
        with closing(side_by_side(parts, chosen, jobs, None)) as outcomes:
            for part, outcome in outcomes:
                if outcome.error is not None:
                    raise RuntimeError(f"{part.label}: {outcome.error}\n{outcome.traceback}")
                by_part[part] = outcome.result
        rows = [row for part in parts for row in by_part[part]]
    order = {"setting": list(spec.data.settings), "method": list(_pools(spec)), "rule": list(spec.selection.rules)}
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    keys = [frame[c].map({v: i for i, v in enumerate(values)}).to_numpy() for c, values in order.items()]
    return frame.iloc[np.lexsort(list(reversed(keys)))].reset_index(drop=True)  # lexsort is stable


def read_records(spec: Spec, folder: str | Path, metric: str) -> Iterator[tuple[str, str, int, Records, np.ndarray]]:
    """For a rule of one's own: setting, method or pool, repetition, the records of all candidates, their worst values.

    `metric` is that of the values, such as "test/accuracy" or "population/accuracy"; ERM is
    among the candidates, as for the rule "invariance".
    """
    for part in _parts(spec, folder)[0]:
        for name, _, own, references in _groups(spec, folder, part):
            candidates = [*own, *references]
            known = _metrics(candidates)
            if metric not in known:
                raise ValueError(f"metric must be one that all candidates have: {known}. Got {metric!r}.")
            values = np.concatenate([_worst(c.at(c.whole, metric).numpy(), metric) for c in candidates])
            yield part.setting, name, part.repetition, _records(candidates, "invariance", metric), values


def _metrics(candidates: Sequence[Candidate]) -> list[str]:
    """Those that all have: the population accuracy of a network with hidden layers is not known."""
    return [
        a
        for a in candidates[0].whole.arrays
        if a.startswith(IN_TABLES) and all(a in c.whole.arrays for c in candidates)
    ]


def _pools(spec: Spec) -> dict[str, tuple[Method, ...]]:
    """What is chosen among together: each method alone, and the pools."""
    by_label = {m.label: m for m in spec.methods}
    alone: dict[str, tuple[Method, ...]] = {label: (m,) for label, m in by_label.items()}
    return alone | {name: tuple(by_label[label] for label in labels) for name, labels in spec.selection.pools.items()}


@dataclass(frozen=True)
class _Part:
    """A repetition of a setting: rules choose within it. `environments` are those that were left out in turn."""

    setting: str
    repetition: int
    environments: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.setting}, repetition {self.repetition}"


def _parts(spec: Spec, folder: str | Path) -> tuple[list[_Part], int]:
    """The parts of the results, in order, and how many runs there are to look at."""
    if not isinstance(spec, Spec):
        raise ValueError(f"spec must be a Spec: load_spec(path). Got {type(spec).__name__}.")
    with Store.read(folder) as store:
        store.check_structure()
        part_of = store.parts()
    parts = [
        _Part(setting, repetition, environments)
        for setting in spec.data.settings
        for environments in [_left_out_names(spec, setting, part_of)]
        for repetition in range(spec.repetitions)
    ]
    return parts, len(part_of)


def _rows_of(spec: Spec, folder: str | Path, part: _Part) -> list[dict[str, Any]]:
    return [
        row
        for name, methods, own, references in _groups(spec, folder, part)
        for row in _results(spec, part.setting, name, methods, part.repetition, own, references)
    ]


def _groups(
    spec: Spec, folder: str | Path, part: _Part
) -> Iterator[tuple[str, tuple[Method, ...], list[Candidate], list[Candidate]]]:
    """What is chosen among together: name, methods, candidates, references."""
    planned = {m.label: _combinations(spec, m, part) for m in spec.methods}
    keys = {m.key for each in planned.values() for kinds in each.values() for some in kinds.values() for m in some}
    with Store.read(folder) as store:
        stored = {record.key: record for record in store.runs(keys=keys)}
    known = {m.label: list(_candidates(spec, m, planned[m.label], stored)) for m in spec.methods}
    for name, methods in _pools(spec).items():
        own = [c for m in methods for c in known[m.label]]
        if own:
            yield name, methods, own, _references(spec, methods, known)


def _combinations(spec: Spec, method: Method, part: _Part) -> dict[int, dict[str, list[Member]]]:
    """The method's runs, by combination of hyper-parameters and by kind."""
    found: dict[int, dict[str, list[Member]]] = {}
    for kind, parts in parts_of(spec, method, part.environments).items():
        for m in members(spec, part.setting, method, kind, parts, [part.repetition]):
            found.setdefault(m.combination, {}).setdefault(kind, []).append(m)
    return found


def _candidates(
    spec: Spec, method: Method, planned: Mapping[int, Mapping[str, list[Member]]], stored: Stored
) -> Iterator[Candidate]:
    """The method's combinations, those with a missing run left out."""
    fixed = None
    if "fixed" in spec.selection.rules:
        fixed = method.combinations(spec.training).index(method.fixed_combination(spec.training))
    for c, kinds in planned.items():
        whole = {kind: some for kind, some in kinds.items() if all(m.key in stored for m in some)}
        # an older version did not leave environments out for the rule "invariance", which can do without
        if not {*kinds} <= {*whole, *(() if leaves_out(spec) else ("left-out",))}:
            continue
        records = {kind: tuple(stored[m.key] for m in some) for kind, some in whole.items()}
        folds, left_out = records.get("folds", ()), records.get("left-out", ())
        yield Candidate(kinds[ALL][0], records[ALL][0], folds, left_out, stated=c == fixed)


def _left_out_names(spec: Spec, setting: str, part_of: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the environments that were left out in turn: the store knows them, without making the data again."""
    if not {"leave-one-env-out", "invariance"} & set(spec.selection.rules):
        return ()
    # found by key: the label of a setting may have had other arguments, or these arguments another label
    parts = tuple(dict.fromkeys(part for part in part_of.values() if part.startswith(LEFT_OUT)))
    names = dict.fromkeys(
        m.part.removeprefix(LEFT_OUT)
        for method in spec.methods
        for m in members(spec, setting, method, "left-out", parts, range(spec.repetitions))
        if m.key in part_of
    )
    return tuple(names)


def _references(spec: Spec, methods: Sequence[Method], known: Mapping[str, list[Candidate]]) -> list[Candidate]:
    """ERM, measured on the same environments, where the methods do not have it themselves."""
    return [c for m in spec.references(methods) if m not in methods for c in known[m.label]]


def _results(
    spec: Spec,
    setting: str,
    name: str,
    methods: Sequence[Method],
    repetition: int,
    own: Sequence[Candidate],
    references: Sequence[Candidate],
) -> Iterator[dict[str, Any]]:
    """Rows of one method or pool in one repetition."""
    metrics = _metrics([*own, *references])
    for rule in spec.selection.rules:
        # ERM stands beside every method, so that all rules choose among the same; what was stated is the method's own
        # alone, with no eye to its folds: where these diverged, it still has its last step
        candidates = [replace(c, folds=(), left_out=()) for c in own] if rule == "fixed" else [*own, *references]
        options = spec.selection.invariance if rule == "invariance" else {}
        places = [(c, s) for c in candidates for s in range(len(c.steps))]
        choice: Choice | None = None
        note = None
        for metric in metrics:
            if rule == "oracle" or metric == metrics[0]:  # the others do not look at the metric
                choice, note = None, None
                try:
                    if rule == "fixed":
                        _check_stated(candidates)
                    if rule == "leave-one-env-out" and methods[0].measured_on != "given":
                        raise ValueError("rule 'leave-one-env-out' is for given environments; these are inferred.")
                    choice = choose(rule, _records(candidates, rule, metric, options), **options)
                except ValueError as error:
                    note = str(error)
            shared = {
                "setting": setting,
                "method": name,
                "rule": rule,
                "repetition": repetition,
                "metric": metric_name(metric),
                "published_key": methods[0].published if len(methods) == 1 else None,
                "note": note,
            }
            if choice is None:
                for summary in _summaries(spec, metric):
                    yield {**shared, "summary": summary, "value": np.nan}
                continue
            candidate, s = places[choice.index]
            chosen = {
                "outcome": choice.outcome,
                "chosen_method": candidate.member.method.label,
                "hyperparameters": dict(candidate.member.settings),
                "step": int(candidate.steps[s]),
                "message": choice.message,
                "figures": dict(choice.figures),
            }
            for summary in _summaries(spec, metric):
                value = _summary(summary, candidate, s, metric)
                unknown = {"note": f"{summary!r} was not measured"} if np.isnan(value) else {}
                yield {**shared, "summary": summary, "value": value, **chosen, **unknown}


def _summaries(spec: Spec, metric: str) -> list[str]:
    """The columns of a metric: one that is known by test environment only has no other."""
    return [s for s in spec.summaries if metric.startswith("test/") or s in ("mean", "worst")]


def _summary(summary: str, candidate: Candidate, s: int, metric: str) -> float:
    """NaN where it was not measured: the data set has no such rows, or the runs are of an earlier version."""
    by_environment = candidate.at(candidate.whole, metric)[s].numpy()
    if summary == "mean":
        return float(by_environment.mean())
    if summary == "worst":
        return float(_worst(by_environment, metric))
    stored = candidate.whole.arrays
    if summary == "pooled":
        return float(np.average(by_environment, weights=stored[TEST_ROWS])) if TEST_ROWS in stored else np.nan
    name = metric.replace("test/", {"iid": "iid/", "train": "training/"}[summary])
    return float(candidate.at(candidate.whole, name)[s]) if name in stored else np.nan


def _check_stated(candidates: Sequence[Candidate]) -> None:
    """Whether what was stated beforehand got to its last step."""
    stated = [c.whole for c in candidates if c.stated]
    if len(stated) == 1 and stated[0].status == "diverged":
        raise ValueError(f"the stated run diverged at step {stated[0].diverged_at}.")


def _records(
    candidates: Sequence[Candidate], rule: str, metric: str, options: Mapping[str, Any] | None = None
) -> Records:
    """All candidates at all their steps; `options` are those of the rule.

    What some of them lack, the records lack: of candidates by Adam beside solved ones (and of runs that an older
    version stored) neither columns nor left-out environments are known, so all are tested by slopes and risks alone.
    Where candidates differ in the classifier, all have the slopes of a scalar one, if these are known.
    """
    if not any(len(c.steps) for c in candidates):  # all diverged, each at a step of its own
        raise ValueError(f"rule {rule!r} has nothing to choose from: no step was measured in all runs of a candidate.")
    n_folds = 0
    if rule not in ("fixed", "oracle", "leave-one-env-out"):
        n_folds = min(len(c.folds) for c in candidates)
    constants = [tuple(r.arrays["held-out/constant"].tolist()) for r in candidates[0].folds[:n_folds]]
    scalar = any(r.arrays["held-out/slope"].ndim == 2 for c in candidates for r in c.folds[:1])
    measured = [_measurements(c, rule, metric, n_folds, scalar) for c in candidates]
    records = build_records(measured, constants, inferred=all(bool(c.member.method.infers) for c in candidates))
    if rule != "invariance":
        return records
    folds = [([r.arrays for r in c.folds[:n_folds]], step) for c in candidates for step in c.steps]
    records = replace(records, **_compared(candidates))
    return with_toward(records, folds, "accuracy" in metric, options or {})


def _compared(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """What the environments' own models would do better than ERM: `own` or `directions` of the records.

    Of several combinations of ERM that with the lowest risk counts.
    """
    known = [
        c for c in candidates if len(c.steps) and c.folds and all({OWN, DIRECTIONS} & {*r.arrays} for r in c.folds)
    ]
    if not known:
        return {}
    arrays = [r.arrays for r in min(known, key=_lowest_risk).folds]
    if all(DIRECTIONS in a for a in arrays):
        return {"directions": Directions(*arrays[0][DIRECTIONS].tolist())}
    return {"own": torch.stack([torch.as_tensor(a[OWN].copy()) for a in arrays])}


def _measurements(candidate: Candidate, rule: str, metric: str, n_folds: int, scalar: bool) -> Measurements:
    """What the rule looks at of one combination; without folds it is measured nowhere."""
    folds = [_on_fold(candidate, record, scalar) for record in candidate.folds[:n_folds]]
    if not n_folds:
        shape = len(candidate.steps), candidate.whole.arrays["train/rows"].shape[1]
        folds = [{name: torch.full(shape, torch.nan, dtype=torch.float64) for name in STATISTICS}]
    left_out = test = None
    if rule in ("leave-one-env-out", "invariance") and candidate.left_out:
        left_out = torch.stack([candidate.at(r, "left-out/risk") for r in candidate.left_out], 1)
    if rule == "oracle":
        sign = 1 if _greater_is_better(metric) else -1
        test = sign * torch.as_tensor(_worst(candidate.at(candidate.whole, metric).numpy(), metric))
    objective, settings = OBJECTIVES[candidate.member.method.objective], candidate.member.settings
    return Measurements(
        steps=candidate.steps.tolist(),
        folds=folds,
        erm_until=objective.plain_until(settings),
        stated=candidate.stated,
        diverged=_diverged(candidate, rule),
        left_out=left_out,
        test=test,
    )


def _on_fold(candidate: Candidate, record: RunRecord, scalar: bool) -> dict[str, Tensor]:
    """The statistics of one fold, (S, E, ...) each; of a model that is solved also those of its columns.

    With `scalar`, the slopes of a vector classifier are those of a scalar one, if they are stored.
    """
    found = {name: candidate.at(record, f"held-out/{name}") for name in STATISTICS}
    if candidate.steps.tolist() != [1]:  # what follows is of the solution alone
        return found
    others = {name: f"held-out/{name}" for name in COLUMNWISE}
    if scalar and found["slope"].ndim > 2:
        others |= dict(zip(("slope", "slope_cov"), SCALAR_SLOPES, strict=True))
    known = {name: record.arrays[array] for name, array in others.items() if array in record.arrays}
    return found | {name: torch.as_tensor(values.copy()).double().unsqueeze(0) for name, values in known.items()}


def _lowest_risk(candidate: Candidate) -> float:
    """On its held-out rows, at its best step; infinite where a run diverged."""
    if _diverged(candidate, "invariance"):
        return float("inf")
    rows = torch.stack([candidate.at(r, "held-out/rows") for r in candidate.folds])  # (F, S, E)
    risk = torch.stack([candidate.at(r, "held-out/risk") for r in candidate.folds])
    total = torch.where(rows > 0, rows * risk, 0).sum((0, 2)) / rows.sum((0, 2))
    return float(total.nan_to_num(torch.inf).min())


def _diverged(candidate: Candidate, rule: str) -> bool:
    """Whether one of the runs that the rule looks at diverged."""
    parts = {"oracle": (), "leave-one-env-out": candidate.left_out}.get(rule, candidate.folds)
    return any(r.status == "diverged" for r in (candidate.whole, *parts))


def _greater_is_better(array: str) -> bool:
    return METRICS[array.split("/")[1]].greater_is_better


def _worst(by_environment: np.ndarray, array: str) -> np.ndarray:
    return np.asarray(by_environment.min(-1) if _greater_is_better(array) else by_environment.max(-1))
