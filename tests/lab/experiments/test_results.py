"""What is chosen and reported, against computations by hand from the arrays of the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from irmtv.lab.experiments import Spec, Store, parse_spec, read_records, read_results, run_experiment
from irmtv.lab.experiments import plan as plan_module
from irmtv.lab.experiments.results import COLUMNS
from irmtv.lab.experiments.store import RunRecord
from irmtv.lab.tables import report_experiment
from irmtv.selection import Records, invariance
from irmtv.selection.directions import Directions
from lab.experiments.records import a_group
from lab.experiments.small import ERM, MINIMAX, THREE, TV, small

STATISTICS = ("rows", "risk", "risk_cov", "slope", "slope_cov")
THIRDS = ("t<0.333333", "0.333333<=t<0.666667", "t>=0.666667")
OPTIONS = {"level": 0.2, "min_gain": 0.0}
RULES = ["fixed", "invariance", "iid", "worst-env", "leave-one-env-out", "oracle"]
FIXED = {"fixed": {"penalty_weight": 1.0}}
ERM_INFERRED = {**ERM, "label": "erm, inferred", "environments": "inferred"}
TV_INFERRED = {**TV, **FIXED, "label": "tv, inferred", "environments": "inferred"}
MINIMAX_LONG = {**MINIMAX, "penalty_weight": [0.0, 1e4], "warmup": 15, "fixed": {"penalty_weight": 1e4}}
METHODS = (ERM, {**TV, **FIXED}, {"objective": "vrex", "warmup": 0.2}, ERM_INFERRED, TV_INFERRED, MINIMAX_LONG)


class Experiment:
    """A spec, its results, and its runs by hand."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        run_experiment(spec, folder)
        with Store.read(folder) as store:
            self.runs = store.runs()
        self.frame = read_results(spec, folder)

    def row(self, method: str, rule: str, repetition: int, metric: str = "accuracy", summary: str = "worst") -> Any:
        f = self.frame
        mask = (f["method"] == method) & (f["rule"] == rule) & (f["repetition"] == repetition)
        (row,) = f[mask & (f["metric"] == metric) & (f["summary"] == summary)].itertuples()
        return row

    def candidates(self, method: str, repetition: int, from_step: int = 1) -> list[tuple[dict[str, RunRecord], int]]:
        """Every combination's runs by part, with every step that counts: position among the steps."""
        combinations: dict[str, dict[str, RunRecord]] = {}
        for run in self.runs:
            if run.method == method and run.repetition == repetition:
                combinations.setdefault(repr(sorted(run.hyperparameters.items())), {})[run.part] = run
        return [
            (parts, s)
            for parts in combinations.values()
            for s, step in enumerate(parts["all"].arrays["steps"])
            if step >= from_step
        ]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    """Two environments, all kinds of methods, and two pools."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(plan_module.INFERENCE, "steps", 60)
        pools = {"both": ["irm-tv-l1", "vrex"], "with ERM": ["erm", "vrex"]}
        spec = small(*METHODS, rules=RULES, repetitions=2, folds=3, pools=pools, invariance=OPTIONS)
        yield Experiment(spec, tmp_path_factory.mktemp("two") / "x")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    spec = small(ERM, {**TV, **FIXED}, MINIMAX_LONG, rules=RULES, repetitions=2, arguments=THREE)
    return Experiment(spec, tmp_path_factory.mktemp("three") / "x")


def folds(parts: dict[str, RunRecord]) -> list[RunRecord]:
    return [run for part, run in parts.items() if part.startswith("fold")]


def held_out(parts: dict[str, RunRecord], s: int, name: str) -> np.ndarray:
    """(F, E)"""
    return np.stack([run.arrays[f"held-out/{name}"][s].astype(float) for run in folds(parts)])


def pooled_risk(parts: dict[str, RunRecord], s: int) -> float:
    rows, risk = held_out(parts, s, "rows"), held_out(parts, s, "risk")
    assert (np.isnan(risk) == (rows == 0)).all()  # an inferred environment may have no rows in a fold
    return float(np.nansum(rows * risk) / rows.sum())


def worst_risk(parts: dict[str, RunRecord], s: int) -> float:
    """Of an environment the mean over the folds that have it, each by all its rows."""
    rows, risk = held_out(parts, s, "rows"), held_out(parts, s, "risk")
    means = []
    for e in range(rows.shape[1]):
        having = [f for f in range(len(rows)) if rows[f, e] > 0]
        if having:
            means.append(np.average(risk[having, e], weights=rows[having].sum(1)))
    return float(max(means))


def assert_chosen(row: Any, parts: dict[str, RunRecord], s: int, array: str = "test/accuracy") -> None:
    whole = parts["all"]
    assert row.step == whole.arrays["steps"][s]
    assert row.hyperparameters == whole.hyperparameters
    assert row.chosen_method == whole.method
    values = whole.arrays[array][s]
    worst = values.max() if array == "test/mse" else values.min()
    assert row.value == pytest.approx(worst if row.summary == "worst" else values.mean(), rel=1e-12)
    assert pd.isna(row.note)


def warm_up(run: RunRecord) -> int:
    """The last step of ERM, by hand."""
    if run.objective == "erm" or run.hyperparameters["penalty_weight"] == 0:
        return run.hyperparameters["steps"]
    warmup = run.hyperparameters["warmup"]
    return warmup if isinstance(warmup, int) else round(warmup * run.hyperparameters["steps"])


def plain(parts: dict[str, RunRecord], s: int) -> bool:
    return bool(parts["all"].arrays["steps"][s] <= warm_up(parts["all"]))


REFERENCE = {"irm-tv-l1": "erm", "vrex": "erm", "tv, inferred": "erm, inferred"}


def with_reference(experiment: Experiment, method: str, repetition: int) -> list[tuple[dict[str, RunRecord], int]]:
    """What all rules but `fixed` choose among: the method's own candidates and ERM on the same environments."""
    labels = [method, *([REFERENCE[method]] if method in REFERENCE else [])]
    return [c for label in labels for c in experiment.candidates(label, repetition)]


GIVEN = ["erm", "irm-tv-l1", "vrex"]
HARD = [*GIVEN, "erm, inferred", "tv, inferred"]


# --- rules by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repetition", [0, 1])
@pytest.mark.parametrize("method", HARD)
def test_iid_takes_the_lowest_pooled_risk_on_held_out_rows(two, method, repetition):
    best = min(with_reference(two, method, repetition), key=lambda c: pooled_risk(*c))
    row = two.row(method, "iid", repetition)
    assert_chosen(row, *best)
    assert row.figures["score"] == pytest.approx(pooled_risk(*best), rel=1e-9)
    assert_chosen(two.row(method, "iid", repetition, "population accuracy", "mean"), *best, "population/accuracy")


@pytest.mark.parametrize("repetition", [0, 1])
@pytest.mark.parametrize("method", HARD)
def test_worst_env_takes_the_lowest_risk_in_the_worst_environment(two, method, repetition):
    best = min(with_reference(two, method, repetition), key=lambda c: worst_risk(*c))
    row = two.row(method, "worst-env", repetition, summary="mean")
    assert_chosen(row, *best)
    assert row.figures["score"] == pytest.approx(worst_risk(*best), rel=1e-9)


@pytest.mark.parametrize("repetition", [0, 1])
@pytest.mark.parametrize("metric", ["accuracy", "population accuracy"])
@pytest.mark.parametrize("method", HARD)
def test_oracle_takes_the_best_worst_environment_of_the_test_rows(two, method, metric, repetition):
    array = "test/accuracy" if metric == "accuracy" else "population/accuracy"
    best = max(with_reference(two, method, repetition), key=lambda c: c[0]["all"].arrays[array][c[1]].min())
    assert_chosen(two.row(method, "oracle", repetition, metric), *best, array)
    assert_chosen(two.row(method, "oracle", repetition, metric, "mean"), *best, array)


@pytest.mark.parametrize(
    ("method", "weight"), [("erm", None), ("irm-tv-l1", 1.0), ("tv, inferred", 1.0), ("minimax-tv-l1", 1e4)]
)
def test_fixed_takes_the_last_step_of_the_stated_combination(two, method, weight):
    for repetition in (0, 1):
        (stated,) = [
            (parts, s)
            for parts, s in two.candidates(method, repetition)
            if parts["all"].arrays["steps"][s] == 30
            and (weight is None or parts["all"].hyperparameters["penalty_weight"] == weight)
        ]
        assert_chosen(two.row(method, "fixed", repetition), *stated)


def left_out_risk(parts: dict[str, RunRecord], s: int) -> float:
    left = [run for part, run in parts.items() if part.startswith("without ")]
    assert {run.part for run in left} == {f"without {name}" for name in THIRDS} and len(left) == 3
    return float(np.mean([run.arrays["left-out/risk"][s] for run in left]))


@pytest.mark.parametrize("repetition", [0, 1])
@pytest.mark.parametrize("method", ["erm", "irm-tv-l1"])
def test_leave_one_env_out_takes_the_lowest_mean_risk_in_environments_not_trained_on(three, method, repetition):
    best = min(with_reference(three, method, repetition), key=lambda c: left_out_risk(*c))
    row = three.row(method, "leave-one-env-out", repetition)
    assert_chosen(row, *best)
    assert row.figures["score"] == pytest.approx(left_out_risk(*best), rel=1e-9)


def test_what_is_left_out_was_not_trained_on(three):
    """The last environment, where the spurious sign says least, is the hardest for who has not seen it."""
    parts, s = three.candidates("erm", 0)[-1]
    seen = parts["all"].arrays["train/risk"][s]
    unseen = [parts[f"without {name}"].arrays["left-out/risk"][s] for name in THIRDS]
    assert unseen[2] > seen[2] and unseen[2] > max(unseen[:2])


# --- invariance ----------------------------------------------------------------------------------------------------


def records(own: Sequence[tuple[dict[str, RunRecord], int]], reference: Sequence[bool]) -> Records:
    """What the rule is given, put together anew."""
    held = {
        name: torch.tensor(
            np.stack(
                [
                    np.stack([folds(parts)[k].arrays[f"held-out/{name}"][s].astype(float) for parts, s in own])
                    for k in range(len(folds(own[0][0])))
                ]
            )
        )
        for name in STATISTICS
    }
    sizes = np.array([run.arrays["held-out/constant"] for run in folds(own[0][0])])
    constant = float(np.average(sizes[:, 0], weights=sizes[:, 1]))
    risk = [np.average(held["risk"][:, c].mean(1), weights=sizes[:, 1]) for c in range(len(own))]
    by_risk = [own[c][0] for c in np.argsort(risk)]
    erm = next((parts for parts in by_risk if "held-out/directions" in folds(parts)[0].arrays), None)
    return Records(
        **held,
        constant=constant,
        reference=torch.tensor(reference),
        stated=torch.zeros(len(own)).bool(),
        directions=erm and Directions(*folds(erm)[0].arrays["held-out/directions"].tolist()),
    )


@pytest.mark.parametrize("repetition", [0, 1])
@pytest.mark.parametrize(
    ("methods", "reference", "name"),
    [
        (["irm-tv-l1"], "erm", "irm-tv-l1"),
        (["vrex"], "erm", "vrex"),
        (["erm"], None, "erm"),
        (["tv, inferred"], "erm, inferred", "tv, inferred"),
        (["irm-tv-l1", "vrex"], "erm", "both"),
        (["erm", "vrex"], None, "with ERM"),
    ],
)
def test_invariance_compares_with_erm_on_the_same_environments(two, methods, reference, name, repetition):
    labels = [*methods, *([reference] if reference else [])]
    own = [c for label in labels for c in two.candidates(label, repetition)]
    reference = [plain(*c) for c in own]
    assert sum(reference) > sum(c[0]["all"].objective == "erm" for c in own) or name == "erm"  # warm-ups are ERM too
    verdict = invariance(records(own, reference), **OPTIONS)
    row = two.row(name, "invariance", repetition)
    assert_chosen(row, *own[verdict.index])
    assert (row.outcome, row.message) == (verdict.outcome, verdict.message)
    assert row.figures == verdict.figures


def steps_of(candidate: tuple[dict[str, RunRecord], int]) -> int:
    return int(candidate[0]["all"].arrays["steps"][candidate[1]])


def test_no_snapshot_of_a_warm_up_is_an_invariant_model(two):
    """It is ERM that was stopped early, whatever weight the penalty is given later."""
    seen = 0
    for label, repetition in product(("irm-tv-l1", "vrex"), (0, 1)):
        own = [c for name in (label, "erm") for c in two.candidates(name, repetition)]
        for level in (0.001, 0.003, 0.004):  # thirty steps make no invariant model, but one that is less rejected
            of_all = records(own, [plain(*c) for c in own])
            verdict = invariance(of_all, test="risks", own_level=1, level=level, min_gain=0)
            if verdict.outcome == "invariant-found":
                seen += 1
                run = own[verdict.index][0]["all"]
                assert run.objective == label and run.hyperparameters["penalty_weight"] != 0
                assert steps_of(own[verdict.index]) > warm_up(run)
    assert seen


@pytest.mark.parametrize(
    ("method", "until"),
    [
        (ERM, 30),
        ({**TV, "penalty_weight": 1.0}, 10),
        ({**TV, "penalty_weight": 0.0}, 30),
        ({"objective": "vrex", "warmup": 0.5}, 15),
        ({"objective": "vrex", "warmup": 0}, 0),
        ({"objective": "irmv1", "warmup": 10}, 0),  # its warm-up has a weight
        ({"objective": "irmv1", "warmup": 10, "penalty_weight": 0.0}, 30),
        ({"objective": "irm-tv-l1+vrex", "warmup": 10}, 10),
        ({**MINIMAX, "penalty_weight": 5.0}, 10),
    ],
)
def test_which_steps_are_plain_risk_minimisation(tmp_path, method, until):
    """As the rule sees them, and as training has them: there it is ERM, step by step."""
    spec = small({**method, "label": "a"}, rules=["iid"])
    run_experiment(spec, tmp_path / "x")
    ((*_, mine, _),) = read_records(spec, tmp_path / "x", "test/accuracy")
    steps = [10, 15, 20, 25, 30] if method["objective"] == "minimax-tv-l1" else [5, 10, 15, 20, 25, 30]
    assert mine.reference.tolist() == [step <= until for step in steps]
    run_experiment(small(ERM, rules=["iid"]), tmp_path / "x")
    ((*_, erm, _),) = read_records(small(ERM, rules=["iid"]), tmp_path / "x", "test/accuracy")
    both = mine.pooled().overall, erm.pooled().overall[-len(steps) :]  # over all rows: whatever the environments are
    assert ((both[0] - both[1]).abs() < 1e-6).tolist() == [step <= until for step in steps]


def test_the_oracle_is_never_below_another_rule(two, three):
    for experiment in (two, three):
        worst = experiment.frame[experiment.frame["summary"] == "worst"]
        by = ["method", "repetition", "metric"]
        oracle = worst[worst["rule"] == "oracle"].set_index(by)["value"]
        others = worst[worst["rule"] != "oracle"].dropna(subset=["value"])
        assert others["rule"].nunique() >= 4
        for row in others.itertuples():
            assert row.value <= oracle[row.method, row.repetition, row.metric]


def test_without_the_rule_invariance_erm_does_not_stand_beside_the_others(two):
    """Nothing says then that there is an ERM to compare with."""
    text = two.spec.text.replace('"invariance", "iid"', '"iid"')
    frame = read_results(parse_spec(text), two.folder)
    for repetition in (0, 1):
        best = min(two.candidates("irm-tv-l1", repetition), key=lambda c: pooled_risk(*c))
        row = frame[(frame["method"] == "irm-tv-l1") & (frame["rule"] == "iid") & (frame["repetition"] == repetition)]
        assert set(row["chosen_method"]) == {"irm-tv-l1"} and set(row["step"]) == {steps_of(best)}


def test_erm_and_what_is_compared_with_it_have_the_same_inferred_environments(two):
    """Which rows are in which is decided once for each repetition and part."""
    for repetition in (0, 1):
        rows = [
            {part: run.arrays[f"{where}/rows"][-1].tolist() for part, run in parts.items() for where in places(part)}
            for label in ("erm, inferred", "tv, inferred")
            for parts, _ in two.candidates(label, repetition)
        ]
        assert len(rows) == 3 * 6 and all(r == rows[0] for r in rows)
        constants = {
            tuple(run.arrays["held-out/constant"])
            for label in ("erm", "erm, inferred", "tv, inferred")
            for run in [folds(two.candidates(label, repetition)[0][0])[0]]
        }
        assert len(constants) == 1


def places(part: str) -> tuple[str, ...]:
    return ("train",) if part == "all" else ("held-out",)


def test_invariance_of_a_method_that_infers_compares_with_its_own_weight_of_0(two):
    for repetition in (0, 1):
        own = two.candidates("minimax-tv-l1", repetition, from_step=15)
        reference = [c[0]["all"].hyperparameters["penalty_weight"] == 0 or steps_of(c) == 15 for c in own]
        assert reference == [plain(*c) for c in own] and sum(reference) == 4 + 1 and len(own) == 8
        verdict = invariance(records(own, reference), **OPTIONS)
        row = two.row("minimax-tv-l1", "invariance", repetition)
        assert_chosen(row, *own[verdict.index])
        assert row.figures == verdict.figures


# of minimax-tv-l1 rho stands still while both slopes have one sign, as they do from a random start
@pytest.mark.parametrize("objective", ["minimax-tv-l2", "tiva"])
def test_without_a_weight_of_0_the_end_of_the_warm_up_is_what_invariance_compares_with(tmp_path, objective):
    """There it is what a run without a penalty is, on environments that change no more."""
    method = {"objective": objective, "warmup": 15, "environment_learning_rate": 0.1, "label": "own"}
    options = {"rules": ["invariance"], "folds": 3, "invariance": {**OPTIONS, "level": 0.5}}
    options |= {"arguments": {"n_samples": 600}, "training": {"dtype": "float64"}}
    spec = small({**method, "penalty_weight": [10.0, 1e4]}, **options)
    experiment = Experiment(spec, tmp_path / "x")
    own = experiment.candidates("own", 0, from_step=15)
    reference = [steps_of(c) == 15 for c in own]
    assert reference == [plain(*c) for c in own] and len(own) == 8 and sum(reference) == 2
    verdict = invariance(records(own, reference), **options["invariance"])
    row = experiment.row("own", "invariance", 0)
    assert_chosen(row, *own[verdict.index])
    assert row.outcome == verdict.outcome != "erm-invariant" and row.figures == verdict.figures

    without = {**method, "label": "plain", "penalty_weight": 0.0}
    (never, s), *_ = Experiment(small(without, **options), tmp_path / "y").candidates("plain", 0, from_step=15)
    for parts, place in own:
        for mine, theirs in zip(folds(parts), folds(never), strict=True):
            shares = mine.arrays["held-out/rows"]
            assert (shares[place] == shares[-1]).all()
            assert (shares[0] != shares[-1]).any()  # the random start had others
            if place == s:
                for name in STATISTICS:
                    of_both = [run.arrays[f"held-out/{name}"][s] for run in (mine, theirs)]
                    np.testing.assert_allclose(*of_both, rtol=1e-8, atol=1e-10)


def test_the_options_of_the_spec_reach_the_rule(two):
    """With level 0 nothing is rejected, and ERM is kept."""
    text = two.spec.text.replace('"level" = 0.2', '"level" = 0.0')
    frame = read_results(parse_spec(text), two.folder)
    outcomes = frame[(frame["rule"] == "invariance") & frame["outcome"].notna()]["outcome"]
    assert set(outcomes) == {"erm-invariant"}
    assert set(two.frame["outcome"].dropna()) != {"erm-invariant"}


# --- inferred environments -----------------------------------------------------------------------------------------


def test_before_the_environments_stand_a_method_that_infers_them_has_no_candidates(two):
    for repetition in (0, 1):
        allowed = two.candidates("minimax-tv-l1", repetition, from_step=15)
        for rule, score in (("iid", pooled_risk), ("worst-env", worst_risk)):
            assert_chosen(two.row("minimax-tv-l1", rule, repetition), *min(allowed, key=lambda c: score(*c)))
        oracle = max(allowed, key=lambda c: c[0]["all"].arrays["test/accuracy"][c[1]].min())
        assert_chosen(two.row("minimax-tv-l1", "oracle", repetition), *oracle)
        assert two.row("minimax-tv-l1", "oracle", repetition).figures["candidates"] == 2 * 4  # steps 15 to 30


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"warmup": 0.5}, [15, 20, 25, 30]),
        ({"warmup": 12}, [15, 20, 25, 30]),
        ({"warmup": 0.95}, [30]),
        ({"warmup": 40, "penalty_weight": 0.0}, [30]),  # longer than the training: what there is at the end
        ({"warmup": 15, "schedule": "alternating"}, [30]),  # the environments are others at every step
        ({"warmup": 0, "schedule": "alternating"}, [30]),
    ],
)
def test_which_steps_a_method_that_infers_is_chosen_among(tmp_path, changes, steps):
    experiment = Experiment(small({**MINIMAX, "penalty_weight": 10.0, **changes}, rules=["iid"]), tmp_path / "x")
    row = experiment.row("minimax-tv-l1", "iid", 0)
    assert row.figures["candidates"] == len(steps)
    parts, _ = experiment.candidates("minimax-tv-l1", 0)[0]
    risks = {step: pooled_risk(parts, list(parts["all"].arrays["steps"]).index(step)) for step in steps}
    assert row.step == min(risks, key=risks.__getitem__)


# --- what is read --------------------------------------------------------------------------------------------------


def test_step_0_is_never_a_candidate(tmp_path):
    """Training that only makes it worse: the random start would be chosen by every rule, were it a candidate."""
    training = {"learning_rate": 30.0, "steps": 10, "l2": 0.0}
    experiment = Experiment(small(ERM, rules=["iid", "worst-env", "oracle"], training=training), tmp_path / "x")
    run = experiment.runs[0]
    assert run.arrays["steps"].tolist() == [0, 5, 10]
    risks = [pooled_risk({r.part: r for r in experiment.runs}, s) for s in range(3)]
    assert risks[0] == min(risks)
    assert set(experiment.frame["step"]) <= {5, 10}


def test_the_frame_has_a_row_for_every_setting_method_rule_repetition_metric_and_summary(two):
    frame = two.frame
    assert list(frame.columns) == list(COLUMNS)
    labels = [m.label for m in two.spec.methods] + ["both", "with ERM"]
    assert len(frame) == len(labels) * len(RULES) * 2 * 2 * 2
    by = ["setting", "method", "rule", "repetition", "metric", "summary"]
    assert not frame.duplicated(by).any()
    assert list(dict.fromkeys(frame["method"])) == labels  # in the order of the spec
    assert list(dict.fromkeys(frame["rule"])) == RULES
    assert frame["published_key"].isna().all()
    assert (frame["value"].isna() == frame["note"].notna()).all()


def test_a_pool_chooses_among_the_candidates_of_all_its_methods(two):
    for repetition in (0, 1):
        own = [c for label in ("irm-tv-l1", "vrex", "erm") for c in two.candidates(label, repetition)]
        assert_chosen(two.row("both", "iid", repetition), *min(own, key=lambda c: pooled_risk(*c)))
        oracle = max(own, key=lambda c: c[0]["all"].arrays["test/accuracy"][c[1]].min())
        assert_chosen(two.row("both", "oracle", repetition), *oracle)
    chosen = set(two.frame[two.frame["method"] == "both"]["chosen_method"].dropna())
    assert chosen <= {"irm-tv-l1", "vrex", "erm"}  # of ERM those on the same environments


@pytest.mark.parametrize(
    ("method", "rule", "note"),
    [
        ("both", "fixed", "takes the one candidate that was stated beforehand. Got 2 such candidates"),
        ("erm", "leave-one-env-out", "needs three or more, so that two remain to compare. Got 2; use 'invariance'"),
        ("minimax-tv-l1", "leave-one-env-out", "is for given environments; these are inferred."),
        ("tv, inferred", "leave-one-env-out", "is for given environments; these are inferred."),
    ],
)
def test_where_a_rule_cannot_choose_the_value_is_nan_and_the_note_says_why(two, method, rule, note):
    for repetition in (0, 1):
        for summary in ("mean", "worst"):
            row = two.row(method, rule, repetition, summary=summary)
            assert np.isnan(row.value) and note in row.note
            assert pd.isna(row.chosen_method) and pd.isna(row.step)


def test_results_of_what_is_there_of_a_larger_spec(tmp_path):
    """Runs that are missing are left out, and what is there is as it would be alone."""
    smaller = Experiment(small(ERM, TV, rules=["iid"]), tmp_path / "x")
    larger = small(
        ERM,
        {**TV, "penalty_weight": [1.0, 7.0, 100.0]},
        {"objective": "vrex"},
        rules=["iid"],
        repetitions=3,
        settings={"simulation": {}, "another": {"p_v": 0.9}},
        pools={"p": ["irm-tv-l1", "vrex"]},
    )
    frame = read_results(larger, tmp_path / "x")
    assert set(frame["setting"]) == {"simulation"} and set(frame["repetition"]) == {0}
    assert list(dict.fromkeys(frame["method"])) == ["erm", "irm-tv-l1", "p"]
    columns = ["method", "metric", "summary", "value", "step", "hyperparameters"]
    pd.testing.assert_frame_equal(frame[frame["method"] != "p"][columns], smaller.frame[columns])


def test_a_combination_without_its_folds_is_no_candidate(tmp_path):
    spec = small(TV, rules=["oracle"])
    run_experiment(spec, tmp_path / "x")  # on all rows only
    assert read_results(small(TV, rules=["iid"]), tmp_path / "x").empty
    assert len(read_results(spec, tmp_path / "x")) == 4


def cut_arrays(arrays, kept):
    """At some of the steps; the rows of the test environments are the same at all."""
    return {name: a if name == "rows/test" else a[kept] for name, a in arrays.items()}


def copied(experiment: Experiment, folder: Path, change: Any) -> None:
    with Store.create_or_open(folder) as store:
        store.add_group(a_group(*(change(run) for run in experiment.runs)))


@pytest.mark.parametrize("part", ["all", "fold 1/2"])
def test_a_candidate_with_a_run_that_diverged_is_not_chosen_however_good_it_was_before(tmp_path, part):
    experiment = Experiment(small(TV, rules=["iid", "worst-env"]), tmp_path / "x")
    best = experiment.row("irm-tv-l1", "iid", 0).hyperparameters["penalty_weight"]

    def diverged(run: RunRecord) -> RunRecord:
        hit = run.part == part and run.hyperparameters["penalty_weight"] == best
        return replace(run, status="diverged", diverged_at=30) if hit else run

    copied(experiment, tmp_path / "y", diverged)
    frame = read_results(experiment.spec, tmp_path / "y")
    assert frame["value"].notna().all()
    assert best not in {h["penalty_weight"] for h in frame["hyperparameters"]}


def test_where_the_reference_diverged_invariance_says_so(tmp_path):
    no_warm_up = {**TV, "warmup": 0}  # one is ERM, too
    experiment = Experiment(small(ERM, no_warm_up, rules=["invariance", "iid"]), tmp_path / "x")
    copied(
        experiment,
        tmp_path / "y",
        lambda run: replace(run, status="diverged", diverged_at=3) if run.method == "erm" else run,
    )
    frame = read_results(experiment.spec, tmp_path / "y").set_index(["method", "rule"]).sort_index()
    assert frame.loc[("irm-tv-l1", "iid"), "value"].notna().all()
    assert frame.loc[("irm-tv-l1", "invariance"), "value"].isna().all()
    assert frame.loc[("irm-tv-l1", "invariance"), "note"].str.contains("needs a candidate of ERM").all()


def test_runs_whose_steps_have_nothing_in_common_get_a_note(tmp_path):
    """Runs that all diverged stop, each at a step of its own."""
    experiment = Experiment(small(ERM, rules=["iid", "fixed", "oracle"]), tmp_path / "x")

    def cut(run: RunRecord) -> RunRecord:
        kept = [0, 1 + ["all", "fold 1/2", "fold 2/2"].index(run.part)]
        arrays = {n: a if n in ("held-out/constant", "held-out/directions") else a[kept] for n, a in run.arrays.items()}
        return replace(run, status="diverged", diverged_at=3, arrays=arrays)

    copied(experiment, tmp_path / "y", cut)
    frame = read_results(experiment.spec, tmp_path / "y")
    assert len(frame) == 12 and frame["value"].isna().all()
    fixed = frame["rule"] == "fixed"
    assert frame[~fixed]["note"].str.contains("no step was measured in all runs").all()
    assert set(frame[fixed]["note"]) == {"the stated run diverged at step 3."}


@pytest.mark.parametrize("kept", [[0], [0, 1, 2], [0, 1, 2, 3, 4, 5, 6]], ids=["at once", "later", "among others"])
def test_a_stated_run_that_diverged_has_no_value(tmp_path, kept):
    """It may have been measured to the end, frozen (others of its group went on), or not even once."""
    spec = small({**TV, **FIXED}, rules=["fixed", "oracle"])
    experiment = Experiment(spec, tmp_path / "x")

    def cut(run: RunRecord) -> RunRecord:
        if run.hyperparameters["penalty_weight"] != 1.0:
            return run
        return replace(run, status="diverged", diverged_at=3, arrays=cut_arrays(run.arrays, kept))

    copied(experiment, tmp_path / "y", cut)
    frame = read_results(spec, tmp_path / "y")
    fixed = frame["rule"] == "fixed"
    assert len(frame[fixed]) == 4 and frame[fixed]["value"].isna().all()
    assert set(frame[fixed]["note"]) == {"the stated run diverged at step 3."}
    assert frame[fixed]["step"].isna().all()
    assert frame[~fixed]["value"].notna().all()
    assert {h["penalty_weight"] for h in frame[~fixed]["hyperparameters"]} == {100.0}


def test_folds_that_diverged_do_not_move_the_stated_step(tmp_path):
    """The rule takes the run on all rows at its last step, and looks at nothing else."""
    spec = small({**TV, **FIXED}, rules=["fixed", "iid"])
    experiment = Experiment(spec, tmp_path / "x")

    def cut(run: RunRecord) -> RunRecord:
        if run.part == "all":
            return run
        arrays = {n: a if n == "held-out/constant" else a[:3] for n, a in run.arrays.items()}
        return replace(run, status="diverged", diverged_at=12, arrays=arrays)

    copied(experiment, tmp_path / "y", cut)
    frame = read_results(spec, tmp_path / "y")
    columns = ["value", "step"]
    before = experiment.frame[experiment.frame["rule"] == "fixed"]
    after = frame[frame["rule"] == "fixed"]
    pd.testing.assert_frame_equal(after[columns], before[columns], check_dtype=False)
    assert set(before["step"]) == {30} and after["note"].isna().all()
    assert frame[frame["rule"] == "iid"]["value"].isna().all()


def test_a_regression_has_squared_errors_and_the_worst_is_the_largest(tmp_path):
    methods = (ERM, {"objective": "vrex", "penalty_weight": [0.1, 10.0], "fixed": {"penalty_weight": 10.0}})
    options = {"data": "control", "arguments": {"differ": "outcome-noise"}}
    rules = ["fixed", "iid", "worst-env", "oracle", "invariance"]
    experiment = Experiment(small(*methods, rules=rules, repetitions=2, **options), tmp_path / "x")
    assert set(experiment.frame["metric"]) == {"mse"}
    scores = {
        "iid": lambda c: pooled_risk(*c),
        "worst-env": lambda c: worst_risk(*c),
        "oracle": lambda c: c[0]["all"].arrays["test/mse"][c[1]].max(),
    }
    for repetition in (0, 1):
        for rule, score in scores.items():
            best = min(with_reference(experiment, "vrex", repetition), key=score)
            assert_chosen(experiment.row("vrex", rule, repetition, "mse"), *best, "test/mse")
            assert_chosen(experiment.row("vrex", rule, repetition, "mse", "mean"), *best, "test/mse")
        assert experiment.row("vrex", "fixed", repetition, "mse").hyperparameters["penalty_weight"] == 10.0
        mean, worst = (experiment.row("erm", "iid", repetition, "mse", s).value for s in ("mean", "worst"))
        assert worst > mean


def test_settings_have_results_of_their_own(tmp_path):
    settings = {"easy": {"p_v": 0.95}, "hard": {"p_v": 0.6}}
    experiment = Experiment(small(ERM, rules=["iid"], settings=settings), tmp_path / "x")
    by = experiment.frame[experiment.frame["metric"] == "accuracy"].set_index(["setting", "summary"])["value"]
    for setting in settings:
        own = [r for r in experiment.runs if r.setting == setting]
        parts = {r.part: r for r in own}
        s = min(range(1, 7), key=lambda s, parts=parts: pooled_risk(parts, s))
        assert by[setting, "mean"] == pytest.approx(parts["all"].arrays["test/accuracy"][s].mean())
    assert list(dict.fromkeys(experiment.frame["setting"])) == ["easy", "hard"]


# --- labels and shapes that may change -----------------------------------------------------------------------------


def test_environments_left_out_are_found_whatever_the_setting_is_called(tmp_path):
    options = {"rules": ["leave-one-env-out"]}
    first = Experiment(small(ERM, settings={"a": THREE}, **options), tmp_path / "x")
    renamed = read_results(small(ERM, settings={"b": THREE}, **options), tmp_path / "x")
    assert renamed["value"].tolist() == first.frame["value"].tolist()
    assert set(renamed["setting"]) == {"b"}
    # and the same label may stand for other arguments than it did
    four = {"p_s": [0.999, 0.8, 0.7, 0.6]}
    again = Experiment(small(ERM, settings={"a": four}, **options), tmp_path / "x")
    assert len(again.frame) == 4 and again.frame["value"].notna().all()


def test_three_environments_that_were_not_left_out_get_the_right_note(three):
    row = three.row("minimax-tv-l1", "leave-one-env-out", 0)  # it infers two of its own
    note = "rule 'leave-one-env-out' is for given environments; these are inferred."
    assert row.note == note
    minimax = small({**MINIMAX, "n_environments": 3}, rules=["leave-one-env-out"], arguments=THREE)
    run_experiment(minimax, three.folder)
    frame = read_results(minimax, three.folder)
    assert set(frame["note"]) == {note}


@pytest.mark.parametrize(
    "others",
    [
        [{**ERM, "label": "b", "hidden": [4]}],
        [{**ERM, "label": "b", "hidden": [4], "classifier": "vector"}],
        [{**ERM, "label": "b", "classifier": "vector"}],
    ],
    ids=["hidden layers", "vector classifier on hidden layers", "vector classifier"],
)
def test_methods_with_networks_of_other_shapes_can_be_compared(tmp_path, others):
    """Slopes of other components, and population accuracies that only linear models have."""
    spec = small(
        {**TV, "label": "a"},
        ERM,
        *others,
        rules=["invariance", "iid", "oracle"],
        pools={"p": ["a", "b"]},
    )
    experiment = Experiment(spec, tmp_path / "x")
    frame = experiment.frame
    assert frame["value"].notna().all()
    linear = "hidden" not in others[0]
    assert set(frame[frame["method"] == "p"]["metric"]) == {"accuracy"} | ({"population accuracy"} if linear else set())
    own = [c for label in ("a", "b", "erm") for c in experiment.candidates(label, 0)]
    assert_chosen(experiment.row("p", "iid", 0), *min(own, key=lambda c: pooled_risk(*c)))


def test_numbers_of_environments_are_a_grid_like_any_other(tmp_path):
    spec = small({**MINIMAX, "n_environments": [2, 3]}, rules=["iid", "worst-env"])
    experiment = Experiment(spec, tmp_path / "x")
    own = experiment.candidates("minimax-tv-l1", 0, from_step=10)
    assert {c[0]["all"].arrays["train/rows"].shape[1] for c in own} == {2, 3}
    for rule, score in (("iid", pooled_risk), ("worst-env", worst_risk)):
        row = experiment.row("minimax-tv-l1", rule, 0)
        assert_chosen(row, *min(own, key=lambda c: score(*c)))
        assert row.figures["candidates"] == len(own)
    assert experiment.frame["value"].notna().all()


# --- for a rule of one's own ---------------------------------------------------------------------------------------


def test_records_are_what_the_rules_see(two):
    found = {(name, repetition): (mine, values) for _, name, repetition, mine, values in read_records(
        two.spec, two.folder, "test/accuracy"
    )}  # fmt: skip
    assert len(found) == 2 * (len(METHODS) + 2)
    for method in HARD:
        for repetition in (0, 1):
            mine, values = found[method, repetition]
            own = with_reference(two, method, repetition)
            assert mine.reference.tolist() == [plain(*c) for c in own]
            np.testing.assert_allclose(values, [p["all"].arrays["test/accuracy"][s].min() for p, s in own])
            np.testing.assert_allclose(mine.pooled().overall, [pooled_risk(*c) for c in own])
            assert values.max() == two.row(method, "oracle", repetition).value


@pytest.mark.parametrize("metric", ["accuracy", "test/acuracy", "train/risk", "steps", "population/mse"])
def test_records_of_a_metric_that_is_not_there(two, metric):
    message = (
        rf"metric must be one that all candidates have: \['test/accuracy', 'population/accuracy'\]. Got '{metric}'"
    )
    with pytest.raises(ValueError, match=message):
        next(read_records(two.spec, two.folder, metric))


def test_a_path_is_no_spec(two, tmp_path):
    for wrong in (str(tmp_path / "spec.toml"), {"name": "a"}):
        kind = type(wrong).__name__
        message = rf"^spec must be a Spec: load_spec\(path\)\. Got {kind}\.$"
        for call in (
            lambda w=wrong: read_results(w, two.folder),
            lambda w=wrong: next(read_records(w, two.folder, "test/accuracy")),
            lambda w=wrong: run_experiment(w, tmp_path / "x"),
            lambda w=wrong: report_experiment(w, two.folder),
        ):
            with pytest.raises(ValueError, match=message):
                call()
    assert not (tmp_path / "x").exists()
