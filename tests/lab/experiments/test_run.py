"""Running a spec: what is trained, what is stored, what happens when it is stopped or something fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from irmtv.engine import FittedRuns, Progress
from irmtv.lab.experiments import (
    ExperimentInterrupted,
    Spec,
    Store,
    StoreFull,
    parse_spec,
    read_results,
    run_experiment,
)
from irmtv.lab.experiments import plan as plan_module
from irmtv.lab.experiments import run as run_module
from irmtv.lab.experiments.store import RunRecord
from lab.experiments.comparison import store_differences
from lab.experiments.records import raw, small_disk
from lab.experiments.small import ERM, MINIMAX, THREE, TV, small

INFERRED = {"objective": "vrex", "label": "inferred", "environments": "inferred", "penalty_weight": 10.0}


@pytest.fixture(autouse=True)
def short_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan_module.INFERENCE, "steps", 30)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Every call of `train` but for models of one environment: the objective and how many runs."""
    calls: list[tuple[str, int]] = []
    train = run_module.train

    def counted(tasks: Any, objective: str, runs: Any, **settings: Any) -> FittedRuns:
        if "progress" in settings:
            calls.append((objective, len(runs)))
        return train(tasks, objective, runs, **settings)

    monkeypatch.setattr(run_module, "train", counted)
    return calls


def fail_in(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str, int], bool], error: Exception) -> None:
    """`train` raises where `fails(objective, number of the call)`; models of one environment are not counted."""
    calls: list[str] = []
    train = run_module.train

    def failing(tasks: Any, objective: str, runs: Any, **settings: Any) -> FittedRuns:
        if "progress" not in settings:
            return train(tasks, objective, runs, **settings)
        calls.append(objective)
        if fails(objective, len(calls)):
            raise error
        return train(tasks, objective, runs, **settings)

    monkeypatch.setattr(run_module, "train", failing)


def stored(folder: Path) -> dict[str, RunRecord]:
    with Store.read(folder) as store:
        return {r.key: r for r in store.runs()}


def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """One combination of one repetition per group."""
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", 1)


# --- what is stored ------------------------------------------------------------------------------------------------


def test_what_a_run_leaves(tmp_path):
    spec = small(ERM, TV, repetitions=2, first_seed=3, rules=["iid", "leave-one-env-out"], arguments=THREE)
    report = run_experiment(spec, tmp_path / "x")
    assert (report.runs, report.found, report.trained, report.diverged, report.failed) == (36, 0, 36, 0, ())
    with Store.read(tmp_path / "x") as store:
        assert store.specs() == [(spec.hash, spec.text)]
        assert set(store.versions()[0]) == {"irmtv", "torch", "numpy", "python"}
        runs = store.runs()
    assert len(runs) == 36
    shapes = {
        part: {name: array.shape for name, array in run.arrays.items()}
        for part in ("all", "fold 1/2", "without t<0.333333")
        for run in runs
        if run.part == part
    }
    steps, by_environment = 7, ("rows", "risk", "risk_cov", "slope", "slope_cov")  # 0, 5, ..., 30
    assert shapes["all"] == {
        "steps": (steps,),
        **{f"train/{name}": (steps, 3) for name in by_environment},
        "test/accuracy": (steps, 4),
        "population/accuracy": (steps, 4),
        "coefficients": (steps, 15),
        "training/accuracy": (steps,),
        "rows/test": (4,),
    }
    assert shapes["fold 1/2"] == {
        "steps": (steps,),
        **{f"held-out/{name}": (steps, 3) for name in by_environment},
        "held-out/constant": (2,),
    }
    for run in runs:  # ERM says whether all environments would choose the same direction
        directions = run.arrays.get("held-out/directions")
        assert (directions is not None) == (run.method == "erm" and run.part.startswith("fold"))
        assert directions is None or (directions.shape == (3,) and 0 <= directions[0] <= 1)
    assert shapes["without t<0.333333"] == {"steps": (steps,), "left-out/risk": (steps,)}
    for run in runs:
        assert run.seed == 3 + run.repetition
        assert run.hyperparameters["steps"] == 30
        assert run.arrays["steps"].tolist() == [0, 5, 10, 15, 20, 25, 30]
        last = {(m.environment, m.metric): m.value for m in run.metrics}
        if run.part != "all":
            assert last == {}  # parts have no test rows
            continue
        names = ["p_s=0.999", "p_s=0.8", "p_s=0.2", "p_s=0.001"]
        assert [last[name, "accuracy"] for name in names] == run.arrays["test/accuracy"][-1].tolist()
        assert [last[name, "population accuracy"] for name in names] == run.arrays["population/accuracy"][-1].tolist()


def test_folds_hold_out_every_row_once_and_what_they_report_is_theirs(tmp_path):
    """The fold that is left out has its own rows only, and a model that has not seen them."""
    run_experiment(small(ERM, folds=3), tmp_path / "x")
    runs = stored(tmp_path / "x").values()
    folds = [r.arrays for r in runs if r.part != "all"]
    assert [r.part for r in runs if r.part != "all"] == ["fold 1/3", "fold 2/3", "fold 3/3"]
    assert sum(a["held-out/rows"][0] for a in folds).tolist() == [120, 120]
    assert [a["held-out/constant"][1] for a in folds] == [80, 80, 80]
    for a in folds:
        assert abs(a["held-out/constant"][0] - np.log(2)) < 0.05  # labels are balanced
    assert len({a["held-out/risk"][-1].tobytes() for a in folds}) == 3


def test_grids_of_hidden_layers_and_environments_do_not_change_what_the_others_leave(tmp_path):
    """A run's arrays are its own: nothing in them comes from the shapes of those it was trained beside."""
    minimax = {**MINIMAX, "n_environments": [2, 3]}
    run_experiment(small({**ERM, "hidden": [[], [4]]}, minimax), tmp_path / "beside")
    run_experiment(small(ERM, MINIMAX), tmp_path / "alone")
    alone, beside = stored(tmp_path / "alone"), stored(tmp_path / "beside")
    assert len(beside) == 2 * len(alone) and set(alone) <= set(beside)
    for key, run in alone.items():
        assert {n: a.shape for n, a in run.arrays.items()} == {n: a.shape for n, a in beside[key].arrays.items()}
        for name, array in run.arrays.items():
            np.testing.assert_allclose(beside[key].arrays[name], array, rtol=1e-3, atol=1e-4)
    other = [r for key, r in beside.items() if key not in alone]
    assert {"population/accuracy" in r.arrays for r in other if r.objective == "erm"} == {False}
    assert {r.arrays["train/rows"].shape for r in other if r.objective != "erm" and r.part == "all"} == {(7, 3)}


def test_a_spec_with_other_comments_is_the_same_spec(tmp_path, trained):
    spec = small()
    run_experiment(spec, tmp_path / "x")
    report = run_experiment(parse_spec("# another comment\n" + spec.text), tmp_path / "x")
    assert (report.found, report.trained) == (3, 0)
    with Store.read(tmp_path / "x") as store:
        assert store.specs() == [(spec.hash, spec.text)]


# --- the same numbers ----------------------------------------------------------------------------------------------


def test_a_second_call_trains_nothing(tmp_path, trained):
    spec = small(ERM, TV, MINIMAX, INFERRED, repetitions=2)
    first = run_experiment(spec, tmp_path / "x")
    assert first.trained == first.runs == 2 * 3 * (1 + 2 + 2 + 1)
    assert sum(n for _, n in trained) == first.runs
    trained.clear()
    before = stored(tmp_path / "x")
    told: list[Any] = []
    again = run_experiment(spec, tmp_path / "x", progress=told.append, stage=told.append)
    assert (again.runs, again.found, again.trained, again.failed) == (first.runs, first.runs, 0, ())
    assert trained == [] and told == []
    assert stored(tmp_path / "x").keys() == before.keys()


def test_two_experiments_with_one_spec_are_equal_bit_for_bit(tmp_path):
    spec = small(ERM, TV, MINIMAX, INFERRED, repetitions=2)
    for name in "ab":
        run_experiment(spec, tmp_path / name)
    with Store.read(tmp_path / "a") as a, Store.read(tmp_path / "b") as b:
        assert store_differences(a, b) == []
        assert len(a) == 36


def extended(tmp_path: Path, first: Spec, then: Spec) -> tuple[dict[str, RunRecord], dict[str, RunRecord]]:
    run_experiment(first, tmp_path / "extended")
    run_experiment(then, tmp_path / "extended")
    run_experiment(then, tmp_path / "at once")
    return stored(tmp_path / "extended"), stored(tmp_path / "at once")


def test_more_repetitions_later_are_the_same_bits_where_groups_are_the_same(tmp_path, monkeypatch, trained):
    small_groups(monkeypatch)
    methods = (ERM, TV, MINIMAX, INFERRED)
    a, b = extended(tmp_path, small(*methods), small(*methods, repetitions=2))
    assert a.keys() == b.keys() and len(a) == 36
    assert sum(n for _, n in trained) == 72  # 18, then the 18 that were missing, and 36 at once
    for key in a:
        for name, array in a[key].arrays.items():
            assert array.tobytes() == b[key].arrays[name].tobytes()
        assert a[key].metrics == b[key].metrics


def test_more_repetitions_later_are_the_same_numbers_where_groups_differ(tmp_path, trained):
    """A group of another size adds up in another order: equal but for rounding."""
    methods, options = (ERM, TV, MINIMAX, INFERRED), {"training": {"dtype": "float64"}}
    a, b = extended(tmp_path, small(*methods, **options), small(*methods, repetitions=3, **options))
    assert a.keys() == b.keys() and len(a) == 54
    assert sum(n for _, n in trained) == 54 + 54
    for key in a:
        for name, array in a[key].arrays.items():
            # what own models would gain is the little by which sums differ
            least = 1e-10 if name == "held-out/directions" else 1e-12
            np.testing.assert_allclose(array, b[key].arrays[name], rtol=1e-9, atol=least)


def test_settings_that_share_groups_as_on_a_gpu_give_the_same_numbers(tmp_path, monkeypatch, trained):
    erm_of_inferred = {**ERM, "label": "ERM of inferred", "environments": "inferred"}
    methods = (ERM, TV, MINIMAX, INFERRED, erm_of_inferred)
    settings = {"easy": {"p_v": 0.9}, "hard": {"p_v": 0.8, "p_s": [0.99, 0.7]}}
    rules = ("invariance", "iid", "oracle")
    spec = small(*methods, rules=rules, settings=settings, repetitions=2, training={"dtype": "float64"})
    run_experiment(spec, tmp_path / "apart")
    assert sum(n for _, n in trained) == 84 and len(trained) == 20
    together = plan_module._together
    monkeypatch.setattr(plan_module, "_together", lambda tasks, device: together(tasks, "cuda"))
    run_experiment(spec, tmp_path / "together")
    assert len(trained) == 20 + 10
    a, b = stored(tmp_path / "apart"), stored(tmp_path / "together")
    assert a.keys() == b.keys() and len(a) == 84
    for key in a:
        assert (a[key].setting, a[key].seed, a[key].part) == (b[key].setting, b[key].seed, b[key].part)
        assert a[key].arrays.keys() == b[key].arrays.keys()
        for name, array in a[key].arrays.items():
            least = 1e-10 if name == "held-out/directions" else 1e-12
            np.testing.assert_allclose(array, b[key].arrays[name], rtol=1e-8, atol=least, err_msg=name)
        for one, two in zip(a[key].metrics, b[key].metrics, strict=True):
            assert one.environment == two.environment and one.value == pytest.approx(two.value, rel=1e-9)


def test_a_longer_grid_later_trains_what_is_new(tmp_path, trained):
    options = {"training": {"dtype": "float64"}}
    grid = {**TV, "penalty_weight": [10.0, 1.0, 100.0]}
    a, b = extended(tmp_path, small(ERM, TV, **options), small(ERM, grid, **options))
    assert trained[:6] == [
        ("erm", 1),
        ("erm", 2),
        ("irm-tv-l1", 2),
        ("irm-tv-l1", 4),
        ("irm-tv-l1", 1),
        ("irm-tv-l1", 2),
    ]
    assert a.keys() == b.keys()
    for key in a:
        for name, array in a[key].arrays.items():
            # what own models would gain is the little by which sums differ
            least = 1e-10 if name == "held-out/directions" else 1e-12
            np.testing.assert_allclose(array, b[key].arrays[name], rtol=1e-9, atol=least)


def test_states_of_all_snapshots_are_kept_for_test_results_and_for_directions_only(tmp_path, monkeypatch):
    kept: dict[tuple[str, str], set[bool]] = {}
    train = run_module.train

    def watched(tasks: Any, objective: str, runs: Any, **settings: Any) -> FittedRuns:
        rows = tasks[0].held_out
        part = "all" if rows is None else "left out" if len(rows.environment.unique()) == 1 else "fold"
        kept.setdefault((part, objective), set()).add(settings["keep_states"])
        return train(tasks, objective, runs, **settings)

    monkeypatch.setattr(run_module, "train", watched)
    run_experiment(small(ERM, TV, rules=["iid", "leave-one-env-out"], arguments=THREE), tmp_path / "x")
    whole = {("all", "erm"): {True}, ("all", "irm-tv-l1"): {True}}
    parts = {("fold", "irm-tv-l1"): {False}, ("left out", "erm"): {False}, ("left out", "irm-tv-l1"): {False}}
    assert kept == {**whole, **parts, ("fold", "erm"): {True}}


def test_what_a_setting_lacks_is_found_before_anything_is_trained(tmp_path, trained, monkeypatch):
    whole = run_module._Tasks._whole

    def lacking(self: Any, setting: str, seed: int) -> Any:
        task = whole(self, setting, seed)
        return task if setting == "good" else replace(task, train=replace(task.train, aux=None))

    monkeypatch.setattr(run_module._Tasks, "_whole", lacking)
    spec = small(ERM, MINIMAX, settings={"good": {}, "bad": {"p_v": 0.9}})
    with pytest.raises(ValueError, match=r"^method 'minimax-tv-l1', setting 'bad': .*has no aux"):
        run_experiment(spec, tmp_path / "x")
    assert trained == []


# --- inferred environments of the folds ----------------------------------------------------------------------------


@pytest.mark.parametrize(("divided", "wanted"), [(True, [(0,), (0, 0), (1,), (1, 1)]), (False, [(0, 0, 1, 1), (0, 1)])])
def test_environments_are_inferred_once_for_each_repetition_and_kind(tmp_path, monkeypatch, divided, wanted):
    """Methods that come later, and groups of a repetition that was divided, take the same labels; those of all
    repetitions of a group are inferred in one program."""
    if divided:
        small_groups(monkeypatch)
    calls: list[tuple[int, ...]] = []
    seen: dict[bytes, set[bytes]] = {}  # labels by the rows
    infer, train = run_module.infer_environments, run_module.train

    def inferring(tasks: Any, seeds: Any, *more: Any, **settings: Any) -> Any:
        calls.append(tuple(seeds))
        return infer(tasks, seeds, *more, **settings)

    def watched(tasks: Any, objective: str, runs: Any, **settings: Any) -> FittedRuns:
        for task in tasks if "progress" in settings else ():  # models of one environment do not count
            rows = [task.train, *([] if task.held_out is None else [task.held_out])]
            codes = b"".join(r.environment.numpy().tobytes() for r in rows)
            seen.setdefault(task.train.x.numpy().tobytes(), set()).add(codes)
        return train(tasks, objective, runs, **settings)

    monkeypatch.setattr(run_module, "infer_environments", inferring)
    monkeypatch.setattr(run_module, "train", watched)
    erm = {**ERM, "environments": "inferred"}
    tv = {**TV, "environments": "inferred"}
    run_experiment(small(erm, tv, INFERRED, repetitions=2, rules=["invariance"]), tmp_path / "x")
    assert sorted(calls) == wanted
    assert len(seen) == 2 * 3 and all(len(codes) == 1 for codes in seen.values())


# --- of a method's own, the folds ----------------------------------------------------------------------------


@pytest.mark.parametrize("flipped_folds", [(1,), (2,), (1, 2)])
def test_environments_of_the_folds_are_matched_to_those_of_the_first(tmp_path, monkeypatch, flipped_folds):
    """Inferred environments have no names. Had a fold found them in the other order, the store would be the same."""
    spec = small({**MINIMAX, "environment_learning_rate": 0.05}, folds=3, repetitions=2)
    run_experiment(spec, tmp_path / "as found")
    train, membership = run_module.train, FittedRuns.membership
    flipped: set[int] = set()

    def flipping_train(tasks: Any, objective: str, runs: Any, **settings: Any) -> FittedRuns:
        fitted = train(tasks, objective, runs, **settings)
        flipped.clear()
        if tasks[0].held_out is not None:  # runs come combination by combination, fold by fold
            flipped.update(r for r in range(len(runs)) if r % 3 in flipped_folds)
        history = fitted.history
        for name in ("rows", "risk", "slope", "risk_cov", "slope_cov"):
            values = getattr(history, name)
            for r in flipped:
                axes = (1, 2) if name.endswith("_cov") else (1,)
                values[:, r] = values[:, r].flip(*axes)
        return fitted

    def flipping_membership(self: FittedRuns, aux: Any, **which: Any) -> Any:
        q = membership(self, aux, **which).clone()
        for i, r in enumerate(sorted(r for c in self.chunks for r in c.chunk.runs)):
            if r in flipped:
                q[i] = q[i].flip(-1)
        return q

    monkeypatch.setattr(run_module, "train", flipping_train)
    monkeypatch.setattr(FittedRuns, "membership", flipping_membership)
    run_experiment(spec, tmp_path / "flipped")
    with Store.read(tmp_path / "as found") as a, Store.read(tmp_path / "flipped") as b:
        assert store_differences(a, b) == []
        fold = next(r for r in a.runs() if r.part == "fold 2/3")
    assert fold.arrays["held-out/risk_cov"].shape == (7, 2, 2)
    rows = fold.arrays["held-out/rows"][-1]
    assert abs(rows[0] - rows[1]) > 0.01  # or else nothing was shown


# --- stopped, failed, diverged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 3, 4])
@pytest.mark.parametrize("at_step", [0, 12, 30])
def test_ctrl_c_keeps_the_finished_groups(tmp_path, trained, group, at_step):
    spec = small(ERM, TV)  # groups of 1, 2, 2, 4 runs
    begun: list[str] = []

    def stop(p: Progress) -> None:
        if len(begun) == group and p.step >= at_step:
            raise KeyboardInterrupt

    done = sum([1, 2, 2, 4][: group - 1])
    with pytest.raises(ExperimentInterrupted, match=rf"stopped: {done} of 9 runs are stored in .*x; the same command"):
        run_experiment(spec, tmp_path / "x", progress=stop, stage=begun.append)
    if done:
        assert len(stored(tmp_path / "x")) == done
    with Store.read(tmp_path / "x") as store:
        assert store.failures() == []
    trained.clear()
    report = run_experiment(spec, tmp_path / "x")
    assert (report.found, report.trained) == (done, 9 - done)
    assert sum(n for _, n in trained) == 9 - done
    run_experiment(spec, tmp_path / "undisturbed")
    with Store.read(tmp_path / "x") as a, Store.read(tmp_path / "undisturbed") as b:
        assert store_differences(a, b) == []


def test_ctrl_c_twice_counts_what_was_there_before_too(tmp_path):
    spec = small(ERM, TV)  # groups of 1, 2, 2, 4 runs
    for stored_then, group in ((1, 2), (3, 2), (5, 2)):
        begun: list[str] = []

        def stop(p: Progress, begun: list[str] = begun, group: int = group) -> None:
            if len(begun) == group:
                raise KeyboardInterrupt

        with pytest.raises(ExperimentInterrupted, match=rf"stopped: {stored_then} of 9 runs are stored"):
            run_experiment(spec, tmp_path / "x", progress=stop, stage=begun.append)
        assert len(stored(tmp_path / "x")) == stored_then


def test_ctrl_c_while_a_group_is_stored(tmp_path, monkeypatch):
    """The group is lost as a whole, and the message is the usual one."""
    monkeypatch.setattr(Store, "_transaction", _interrupted(Store._transaction, 3))
    with pytest.raises(ExperimentInterrupted, match=r"stopped: 1 of 9 runs are stored"):
        run_experiment(small(ERM, TV), tmp_path / "x")
    monkeypatch.undo()
    assert len(stored(tmp_path / "x")) == 1
    assert run_experiment(small(ERM, TV), tmp_path / "x").trained == 8


def _interrupted(transaction: Any, number: int) -> Any:
    """The transaction of that number is interrupted at its end; the first is that of the spec."""
    count = [0]

    @contextmanager
    def interrupted(self: Store) -> Iterator[Any]:
        count[0] += 1
        with transaction(self) as connection:
            yield connection
            if count[0] == number:
                raise KeyboardInterrupt

    return interrupted


def test_a_group_that_raises_is_noted_the_others_go_on_and_the_next_call_tries_again(tmp_path, monkeypatch):
    spec = small(ERM, TV, {"objective": "vrex"})
    with monkeypatch.context() as patch:
        fail_in(patch, lambda objective, _: objective == "irm-tv-l1", RuntimeError("out of memory [/oh]"))
        report = run_experiment(spec, tmp_path / "x")
    assert (report.runs, report.found, report.trained) == (12, 0, 6)
    assert report.failed == tuple(
        f"simulation, irm-tv-l1, {kind}, seeds 0: RuntimeError: out of memory [/oh]" for kind in ("all", "folds")
    )
    with Store.read(tmp_path / "x") as store:
        assert {r.method for r in store.runs()} == {"erm", "vrex"}
        failures = store.failures()
    assert [f.label for f in failures] == [text.split(": ")[0] for text in report.failed]
    assert "RuntimeError: out of memory" in failures[0].text and "Traceback" in failures[0].text
    again = run_experiment(spec, tmp_path / "x")
    assert (again.found, again.trained, again.failed) == (6, 6, ())
    run_experiment(spec, tmp_path / "undisturbed")
    with Store.read(tmp_path / "x") as a, Store.read(tmp_path / "undisturbed") as b:
        assert store_differences(a, b) == []


def test_a_value_error_is_the_users_and_loses_nothing(tmp_path, monkeypatch):
    spec = small(ERM, TV)
    with monkeypatch.context() as patch:
        fail_in(patch, lambda _, call: call == 3, ValueError("this cannot be"))
        with pytest.raises(ValueError, match=r"^this cannot be$"):
            run_experiment(spec, tmp_path / "x")
    with Store.read(tmp_path / "x") as store:
        assert len(store) == 3 and store.failures() == []
    report = run_experiment(spec, tmp_path / "x")
    assert (report.found, report.trained) == (3, 6)


def test_arguments_that_the_data_set_refuses_are_found_before_anything_is_trained(tmp_path, trained):
    spec = small(ERM, settings={"good": {}, "bad": {"p_v": 1.5}})
    with pytest.raises(ValueError, match=r"p_v must be .*1\.5"):
        run_experiment(spec, tmp_path / "x")
    assert trained == []


def test_a_full_disk_ends_the_run_with_what_was_stored(tmp_path, monkeypatch):
    spec = small(ERM, TV, repetitions=4)
    small_groups(monkeypatch)
    with (
        small_disk(monkeypatch),
        pytest.raises(StoreFull, match=r"the disk is full. [1-9]\d* runs? (is|are) safe in it"),
    ):
        run_experiment(spec, tmp_path / "x")
    left = len(stored(tmp_path / "x"))
    assert 0 < left < 36
    report = run_experiment(spec, tmp_path / "x")
    assert (report.found, report.trained) == (left, 36 - left)


DIVERGES = {"objective": "irm-tv-l2", "learning_rate": [0.05, 1e38], "penalty_weight": 1e4, "warmup": 0}


def test_runs_that_diverge_are_stored_as_such_and_never_chosen(tmp_path, trained):
    spec = small(DIVERGES, rules=["iid", "worst-env", "oracle"], repetitions=2)
    report = run_experiment(spec, tmp_path / "x")
    runs = stored(tmp_path / "x").values()
    bad = [r for r in runs if r.hyperparameters["learning_rate"] == 1e38]
    assert len(bad) == report.diverged == 6
    assert all(r.status == "diverged" and r.diverged_at is not None for r in bad)
    assert {(r.status, r.diverged_at) for r in runs if r not in bad} == {("finished", None)}
    frame = read_results(spec, tmp_path / "x")
    assert {h["learning_rate"] for h in frame["hyperparameters"]} == {0.05}
    assert frame["value"].notna().all()
    trained.clear()
    assert run_experiment(spec, tmp_path / "x").trained == 0  # they are not tried again
    assert trained == []


def test_where_all_runs_diverge_there_is_a_note_in_place_of_a_value(tmp_path):
    spec = small({**DIVERGES, "learning_rate": 1e38}, rules=["iid", "oracle"])
    assert run_experiment(spec, tmp_path / "x").diverged == 3
    frame = read_results(spec, tmp_path / "x")
    assert len(frame) == 8 and frame["value"].isna().all()
    assert frame["note"].str.contains("rule '(?:iid|oracle)'").all()


# --- progress ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1], ids=["from nothing", "half was there"])
def test_progress_only_rises_and_ends_at_one(tmp_path, before):
    methods = (ERM, TV, MINIMAX, INFERRED)
    if before:
        run_experiment(small(*methods), tmp_path / "x")
    told: list[Progress] = []
    report = run_experiment(small(*methods, repetitions=2), tmp_path / "x", progress=told.append)
    assert (report.runs, report.found) == (36, 18 * before)
    assert {p.runs for p in told} == {36 - 18 * before}  # those still to be trained
    shares = [p.share for p in told]
    assert shares == sorted(shares)
    assert shares[0] == 0 and shares[-1] == 1
    assert told[-1].runs_done + told[-1].runs_now == told[-1].runs
    seconds = [p.seconds for p in told]
    assert seconds == sorted(seconds)


def test_progress_counts_groups_that_fail_as_passed(tmp_path, monkeypatch):
    fail_in(monkeypatch, lambda objective, _: objective == "irm-tv-l1", RuntimeError("no"))
    told: list[Progress] = []
    run_experiment(small(ERM, TV, {"objective": "vrex"}), tmp_path / "x", progress=told.append)
    shares = [p.share for p in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_every_group_is_named_when_it_begins(tmp_path):
    stages: list[str] = []
    run_experiment(small(ERM, INFERRED, repetitions=2, first_seed=4), tmp_path / "x", stage=stages.append)
    assert stages == [
        f"simulation, {label}, {kind}, seeds 4-5" for label in ("erm", "inferred") for kind in ("all", "folds")
    ]


def test_groups_say_where_and_with_what_they_were_trained(tmp_path):
    run_experiment(small(), tmp_path / "x")
    with raw(tmp_path / "x") as connection:
        rows = connection.execute("SELECT label, device, seconds > 0 FROM groups ORDER BY id").fetchall()
    assert rows == [("simulation, erm, all, seeds 0", "cpu", 1), ("simulation, erm, folds, seeds 0", "cpu", 1)]
