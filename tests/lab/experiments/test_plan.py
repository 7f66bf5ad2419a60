"""Which runs a spec asks for, what their keys depend on, and how they are grouped."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from irmtv.core.types import Task
from irmtv.datasets import DATASETS
from irmtv.lab.experiments import Spec
from irmtv.lab.experiments import plan as plan_module
from irmtv.lab.experiments import run as run_module
from irmtv.lab.experiments.plan import Member, Work, key_of, members, parts_of, plan
from lab.experiments.small import ERM, MINIMAX, THREE, TV, small

FOLDS = ("fold 1/2", "fold 2/2")


def task_of(spec: Spec) -> Any:
    def make(setting: str) -> Task:
        return DATASETS[spec.data.name].make(**spec.data.arguments_of(setting), random_state=0)

    return make


def planned(spec: Spec, finished: Any = ()) -> tuple[list[Work], int, int]:
    return plan(spec, frozenset(finished), "cpu", task_of(spec))


def every(spec: Spec) -> list[Member]:
    return [m for w in planned(spec)[0] for m in w.members]


def keys(spec: Spec) -> set[str]:
    return {m.key for m in every(spec)}


def the_key(spec: Spec) -> str:
    """Of the one method's first run on all rows."""
    (member,) = members(spec, next(iter(spec.data.settings)), spec.methods[0], "all", ("all",), [0])
    return member.key


TV_ONE = {"objective": "irm-tv-l1", "penalty_weight": 10.0, "warmup": 10}
BASE = the_key(small(TV_ONE))

DECIDES = {
    "data set": small(TV_ONE, data="control"),
    "size": small(TV_ONE, arguments={"n_samples": 241}),
    "test rows": small(TV_ONE, arguments={"n_test": 121}),
    "argument of a setting": small(TV_ONE, settings={"simulation": {"p_v": 0.9}}),
    "list argument": small(TV_ONE, arguments={"p_s": [0.9, 0.999]}),
    "objective": small({**TV_ONE, "objective": "irm-tv-l2"}),
    "sum of penalties": small({**TV_ONE, "objective": "irm-tv-l1+vrex"}),
    "penalty weight": small({**TV_ONE, "penalty_weight": 11.0}),
    "warm-up in steps": small({**TV_ONE, "warmup": 11}),
    "warm-up as a share": small({**TV_ONE, "warmup": 0.5}),
    "reduction": small({**TV_ONE, "reduction": "authors"}),
    "inferred environments": small({**TV_ONE, "environments": "inferred"}),
    "seed": small(TV_ONE, first_seed=1),
    "snapshot_every": small(TV_ONE, training={"snapshot_every": 6}),
    "dtype": small(TV_ONE, training={"dtype": "float64"}),
    "steps": small(TV_ONE, training={"steps": 31}),
    "steps of the method": small({**TV_ONE, "steps": 31}),
    "learning rate": small(TV_ONE, training={"learning_rate": 0.06}),
    "l2": small(TV_ONE, training={"l2": 0.01}),
    "hidden": small(TV_ONE, training={"hidden": [4]}),
    "classifier": small(TV_ONE, training={"classifier": "vector"}),
    "batch size": small(TV_ONE, training={"batch_size": 50}),
    "solver": small(TV_ONE, training={"solver": "newton"}),
    "start": small({**TV_ONE, "start": "small"}),
    "start of the other solver": small({**TV_ONE, "start": "small"}, training={"solver": "newton"}),
}


@pytest.mark.parametrize("what", DECIDES)
def test_a_key_changes_with_everything_that_decides_the_numbers(what):
    assert the_key(DECIDES[what]) != BASE


def test_no_two_of_these_changes_give_one_key():
    found = [the_key(spec) for spec in DECIDES.values()]
    # steps may be given for all methods or for one: these two are one run
    assert the_key(DECIDES["steps"]) == the_key(DECIDES["steps of the method"])
    assert len(set(found)) == len(found) - 1


SAME = {
    "label": small({**TV_ONE, "label": "another"}),
    "label of the setting": small(TV_ONE, settings={"another": {}}),
    "argument moved into the setting": small(TV_ONE, settings={"s": {"n_samples": 240}}),
    "device": small(TV_ONE, device="auto"),
    "name and description": small(TV_ONE, name="another", description="words"),
    "repetitions": small(TV_ONE, repetitions=7),
    "other methods": small(TV_ONE, ERM, MINIMAX),
    "rules and folds": small({**TV_ONE, "fixed": {"penalty_weight": 10.0}}, rules=["fixed", "oracle"], folds=3),
    "pools": small(TV_ONE, ERM, pools={"p": ["irm-tv-l1", "erm"]}),
    "argument's default made explicit": small(TV_ONE, arguments={"p_s": [0.999, 0.9], "p_v": 0.8, "n_spurious": 10}),
    "engine default made explicit": small(TV_ONE, training={"l2": 0.0, "dtype": "float32", "classifier": "scalar"}),
    "hyper-parameter's default made explicit": small({**TV_ONE, "reduction": "expectation"}),
    "engine setting moved into the method": small({**TV_ONE, "learning_rate": 0.05, "hidden": []}),
    "environments given": small({**TV_ONE, "environments": "given"}),
    "solver's default made explicit": small({**TV_ONE, "solver": "adam"}),
    "solver's default made explicit for all": small(TV_ONE, training={"solver": "adam"}),
}


@pytest.mark.parametrize("what", SAME)
def test_a_key_does_not_change_with_what_decides_no_number(what):
    assert the_key(SAME[what]) == BASE


def test_keys_and_hashes_are_those_of_stores_that_were_written_before_there_was_a_choice_of_solvers():
    """A new setting that says nothing must not train everything again; where numbers change, NUMBERS is raised."""
    assert plan_module.NUMBERS == 3
    assert BASE.startswith("18930bbd66cde116")
    assert the_key(DECIDES["hidden"]).startswith("735242339c208d50")
    assert the_key(DECIDES["sum of penalties"]).startswith("d6c62924f325d3f2")
    assert small(ERM, TV).hash.startswith("b5992ad0b81057f2")


def test_keys_do_not_depend_on_the_order_of_the_grid_or_of_the_methods():
    forward = small(ERM, {**TV, "learning_rate": [0.01, 0.02]})
    backward = small({**TV, "penalty_weight": [100.0, 1.0], "learning_rate": [0.02, 0.01]}, ERM)
    assert keys(forward) == keys(backward)
    assert len(keys(forward)) == 3 + 12  # combinations on all rows and on two folds


def test_keys_of_parts_and_seeds_differ():
    assert len(keys(small(TV, repetitions=3, rules=["iid", "leave-one-env-out"], arguments=THREE))) == 3 * 2 * (
        1 + 2 + 3
    )


def test_the_steps_of_the_inference_decide_the_numbers_of_inferred_environments_only(monkeypatch):
    inferred = small({**TV_ONE, "environments": "inferred"})
    before = the_key(inferred)
    monkeypatch.setitem(plan_module.INFERENCE, "steps", 7)
    assert the_key(inferred) != before
    assert the_key(small(TV_ONE)) == BASE


def test_key_of_does_not_see_the_order_of_a_mapping_or_whether_a_list_is_a_tuple():
    assert key_of({"a": (1, 2), "b": {"c": 1, "d": 2}}) == key_of({"b": {"d": 2, "c": 1}, "a": [1, 2]})
    assert key_of({"a": [1, 2]}) != key_of({"a": [2, 1]})
    assert key_of({"a": {"b": [1, {"c": 1000}]}}) == key_of({"a": {"b": (1.0, {"c": 1000.0})}})
    assert key_of({"a": 1.5}) != key_of({"a": 1}) and key_of({"a": True}) != key_of({"a": 1})
    for nested in ({"warmup": 1}, {"settings": {"warmup": 1}}):
        as_float = {k: 1.0 if v == 1 else {"warmup": 1.0} for k, v in nested.items()}
        assert key_of(nested) != key_of(as_float)  # one step, and all steps


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["oracle"], {"all": ("all",)}),
        (["iid"], {"all": ("all",), "folds": FOLDS}),
        (["worst-env"], {"all": ("all",), "folds": FOLDS}),
        (["invariance"], {"all": ("all",), "folds": FOLDS}),
        (["leave-one-env-out"], {"all": ("all",), "left-out": ("without a", "without b", "without c")}),
    ],
)
def test_parts_follow_from_the_rules(rules, expected):
    spec = small(ERM, rules=rules)
    assert parts_of(spec, spec.methods[0], ["a", "b", "c"]) == expected


def test_environments_are_left_out_only_where_two_remain_and_where_they_are_given():
    spec = small(ERM, {**ERM, "label": "i", "environments": "inferred"}, MINIMAX, rules=["leave-one-env-out"])
    given, inferred, own = spec.methods
    assert parts_of(spec, given, ["a", "b"]) == {"all": ("all",)}
    assert list(parts_of(spec, given, ["a", "b", "c"])) == ["all", "left-out"]
    assert parts_of(spec, inferred, ["a", "b", "c"]) == {"all": ("all",)}
    assert parts_of(spec, own, ["a", "b", "c"]) == {"all": ("all",)}


def test_the_rule_invariance_has_environments_left_out_where_models_are_solved():
    newton = {"objective": "vrex", "solver": "newton"}
    inferred = {**newton, "label": "i", "environments": "inferred"}
    erm = {**ERM, "label": "erm, inferred", "environments": "inferred"}
    spec = small(ERM, newton, {"objective": "eills"}, erm, inferred, rules=["invariance"])
    for method, solved in zip(spec.methods, (False, True, True, False, True), strict=True):
        assert method.solved(spec.training) == solved
        left_out = parts_of(spec, method, ["a", "b", "c"]).get("left-out")
        assert left_out == (("without a", "without b", "without c") if solved and method.label != "i" else None)
        assert "left-out" not in parts_of(spec, method, ["a", "b"])
        assert "left-out" not in parts_of(spec, method, list("abcdefghijk"))  # eleven would take long
    grid = small({**newton, "solver": ["adam", "newton"]}, rules=["iid"])
    assert not grid.methods[0].solved(grid.training)
    assert "left-out" not in parts_of(small(newton, rules=["iid"]), spec.methods[1], ["a", "b", "c"])


def test_members_come_repetition_by_repetition_combination_by_combination_part_by_part():
    spec = small(TV, repetitions=2, first_seed=5)
    found = list(members(spec, "simulation", spec.methods[0], "folds", FOLDS, range(2)))
    assert [(m.repetition, m.seed, m.combination, m.part) for m in found] == [
        (r, 5 + r, c, part) for r in range(2) for c in range(2) for part in FOLDS
    ]
    assert [m.keywords["penalty_weight"] for m in found[::2]] == [1.0, 100.0] * 2
    assert found[0].settings["reduction"] == "expectation"  # defaults included
    assert not {"seed", "data"} & set(found[0].settings)


def test_groups_hold_whole_repetitions_and_at_most_so_many_runs(monkeypatch):
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", 9)
    spec = small(TV, repetitions=5, settings={"a": {}, "b": {"p_v": 0.9}})
    work, total, found = planned(spec)
    assert (total, found) == (2 * 5 * 2 * 3, 0)
    sizes = [(w.kind, w.members[0].setting, [m.repetition for m in w.members]) for w in work]
    # two runs per repetition on all rows: four repetitions fit; four runs on folds: two do
    expected = [("all", [0, 1, 2, 3]), ("all", [4]), ("folds", [0, 1]), ("folds", [2, 3]), ("folds", [4])]
    assert sizes == [
        (kind, setting, [r for r in some for _ in range(2 if kind == "all" else 4)])
        for setting in "ab"
        for kind, some in expected
    ]
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", 3)
    assert [len(w.members) for w in planned(small(TV, repetitions=2))[0]] == [2, 2, 2, 2, 2, 2]
    assert planned(small(TV, repetitions=2))[0][0].label == "simulation, irm-tv-l1, all, seeds 0"
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", 64)
    assert planned(small(TV, repetitions=2))[0][1].label == "simulation, irm-tv-l1, folds, seeds 0-1"


@pytest.mark.parametrize(
    ("limit", "on_all", "on_folds"),
    [
        # three combinations; on three folds nine runs a repetition
        (1, [1, 1, 1], [3, 3, 3]),  # the parts of a combination are never torn apart
        (2, [2, 1], [3, 3, 3]),
        (5, [3], [3, 3, 3]),
        (7, None, [6, 3]),  # on all rows two repetitions fit
        (8, None, [6, 3]),
        (9, None, [9]),
    ],
)
def test_where_a_repetition_does_not_fit_its_combinations_are_divided(monkeypatch, limit, on_all, on_folds):
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", limit)
    spec = small({**TV, "penalty_weight": [1.0, 10.0, 100.0]}, repetitions=2, folds=3)
    work, total, _ = planned(spec)
    assert total == 2 * 3 * 4 == sum(len(w.members) for w in work)
    by_kind = {kind: [w.members for w in work if w.kind == kind] for kind in ("all", "folds")}
    assert [len(m) for m in by_kind["folds"]] == on_folds * 2
    if on_all is not None:
        assert [len(m) for m in by_kind["all"]] == on_all * 2
    for group in by_kind["folds"]:
        assert len({m.repetition for m in group}) == 1
        combinations = {m.combination for m in group}
        assert [(m.combination, m.part) for m in group] == [
            (c, f"fold {k}/3") for c in sorted(combinations) for k in (1, 2, 3)
        ]


def test_what_is_there_does_not_move_the_others_into_other_groups(monkeypatch):
    """A group that was killed is repeated with the same members."""
    monkeypatch.setitem(plan_module.RUNS_PER_GROUP, "cpu", 2)
    spec = small({**TV, "penalty_weight": [1.0, 10.0, 100.0]}, repetitions=2)
    whole = [w.members for w in planned(spec)[0]]
    for done in range(len(whole)):
        finished = {m.key for group in whole[:done] for m in group}
        assert [w.members for w in planned(spec, finished)[0]] == whole[done:]


def test_finished_runs_are_left_out_and_counted():
    spec = small(ERM, TV, repetitions=2)
    first = every(small(ERM, TV))
    work, total, found = planned(spec, [m.key for m in first] + ["some other run"])
    assert (total, found) == (18, 9)
    assert {m.repetition for w in work for m in w.members} == {1}
    assert sum(len(w.members) for w in work) == 9
    assert planned(spec, keys(spec)) == ([], 18, 18)


def test_a_run_that_two_methods_share_is_trained_once():
    spec = small(ERM, {"objective": "erm", "label": "again"}, {"objective": "erm", "label": "more", "l2": [0.0, 0.1]})
    work, total, found = planned(spec)
    assert (total, found) == (6, 0)  # two combinations, on all rows and on two folds
    assert [(w.members[0].method.label, len(w.members)) for w in work] == [
        ("erm", 1),
        ("erm", 2),
        ("more", 1),
        ("more", 2),
    ]
    once = [m.key for m in every(small(ERM))]
    work, total, found = planned(spec, [*once, "some other run"])
    assert (total, found) == (6, 3) and {w.members[0].method.label for w in work} == {"more"}


def test_wide_networks_train_in_smaller_groups(monkeypatch):
    """The states of all snapshots are kept until a group is evaluated: (15 + 1) 100 + (100 + 1) 1 numbers each."""
    spec = small({**TV_ONE, "hidden": [100]}, repetitions=6)
    snapshots = spec.training.steps // spec.training.snapshot_every + 2
    size = {"float32": 4, "float64": 8}[spec.training.dtype]
    one_run = ((15 + 1) * 100 + 101) * snapshots * size
    monkeypatch.setattr(plan_module, "STATE_BYTES", 2 * one_run)
    assert [len(w.members) for w in planned(spec)[0] if w.kind == "all"] == [2, 2, 2]
    monkeypatch.setattr(plan_module, "STATE_BYTES", one_run // 2)  # a run is trained all the same
    assert [len(w.members) for w in planned(spec)[0] if w.kind == "all"] == [1] * 6
    assert [len(w.members) for w in planned(spec)[0] if w.kind == "folds"] == [12]  # these keep no states
    erm = small({**ERM, "hidden": [100]}, repetitions=6)  # but ERM does: both folds of one repetition together
    assert [len(w.members) for w in planned(erm)[0] if w.kind == "folds"] == [2] * 6


ONE_NUMBER = {
    "penalty weight": small({**TV_ONE, "penalty_weight": 10}),
    "learning rate": (small(TV_ONE, training={"learning_rate": 1}), small(TV_ONE, training={"learning_rate": 1.0})),
    "data argument": (small(TV_ONE, arguments={"p_v": 1}), small(TV_ONE, arguments={"p_v": 1.0})),
    "list argument": (small(TV_ONE, arguments={"p_s": [1, 0.9]}), small(TV_ONE, arguments={"p_s": [1.0, 0.9]})),
    "weights of a sum": tuple(
        small({"objective": "irm-tv-l1+vrex", "warmup": 5, "penalty_weight": {"irm-tv-l1": one, "vrex": two}})
        for one, two in ((1, 2.0), (1.0, 2))
    ),
    "measure": tuple(small({**TV_ONE, "measure": m}) for m in ([1, 2], [1.0, 2.0])),
}


@pytest.mark.parametrize("what", ONE_NUMBER)
def test_a_number_has_one_key_however_it_is_written(what):
    specs = ONE_NUMBER[what]
    a, b = specs if isinstance(specs, tuple) else (specs, small(TV_ONE))
    assert the_key(a) == the_key(b)


def test_keys_change_with_the_version_of_the_numbers(monkeypatch):
    monkeypatch.setattr(plan_module, "NUMBERS", plan_module.NUMBERS + 1)
    assert the_key(small(TV_ONE)) != BASE


# --- what cannot be trained ----------------------------------------------------------------------------------------


def without(what: str, names: Any = None) -> Any:
    """First tasks of which the one of setting "b" lacks something."""

    def make(setting: str) -> Task:
        task = task_of(small(TV_ONE))("simulation")
        if setting != "b":
            return task
        lacking = {what: None} if names is None else {what: torch.zeros(len(task.train), dtype=torch.int64)}
        return replace(task, train=replace(task.train, **lacking, **({} if names is None else {"names": names})))

    return make


@pytest.mark.parametrize(
    ("method", "first_task", "message"),
    [
        (MINIMAX, without("aux"), r"method 'minimax-tv-l1', setting 'b': .* infers environments from auxiliary"),
        (
            {**TV, "label": "i", "environments": "inferred"},
            without("aux"),
            r"""method 'i': environments = "inferred" needs auxiliary variables\. Setting 'b' has none""",
        ),
        (TV, without("environment"), r"method 'irm-tv-l1', setting 'b': .* needs to know the environment of every row"),
        (TV, without("environment", ("only",)), r"method 'irm-tv-l1', setting 'b': .* needs at least 2"),
        (
            {**TV, "measure": [1, 2, 3]},
            without("aux"),
            r"method 'irm-tv-l1', setting 'a': measure must have one weight per environment",
        ),
        (
            {**TV, "label": "i", "environments": "inferred", "measure": [1, 2, 3]},
            without("environment"),
            r"method 'i', setting 'a': measure must have one weight per environment",
        ),
    ],
)
def test_every_method_is_checked_on_every_setting_before_anything_is_planned(method, first_task, message):
    spec = small(ERM, method, settings={"a": {}, "b": {}})
    with pytest.raises(ValueError, match=message):
        plan(spec, frozenset(), "cpu", first_task)
    assert plan(small(ERM, settings={"a": {}, "b": {}}), frozenset(), "cpu", first_task)[1] == 3


def test_inferred_environments_need_none_that_are_given():
    spec = small({**TV, "environments": "inferred"}, settings={"a": {}, "b": {}})
    assert plan(spec, frozenset(), "cpu", without("environment"))[1] == 6


def test_on_a_gpu_settings_of_one_shape_share_groups():
    settings = {"a": {"p_v": 0.9}, "b": {"p_v": 0.8}, "larger": {"n_samples": 300}, "three": dict(THREE)}
    spec = small(TV_ONE, settings=settings, repetitions=2)
    tasks = {name: task_of(spec)(name) for name in settings}
    assert plan_module._together(tasks, "cpu") == [["a"], ["b"], ["larger"], ["three"]]
    assert plan_module._together(tasks, "cuda") == [["a", "b"], ["larger"], ["three"]]
    work, total, stored = plan(spec, frozenset(), "cuda", task_of(spec))
    assert {m.key for w in work for m in w.members} == keys(spec) and (total, stored) == (len(keys(spec)), 0)
    assert [w.label for w in work if w.kind == "all"] == [
        "2 settings, irm-tv-l1, all, seeds 0-1",
        "larger, irm-tv-l1, all, seeds 0-1",
        "three, irm-tv-l1, all, seeds 0-1",
    ]


def test_on_a_gpu_what_takes_longest_begins_first():
    hrm = {"objective": "hrm"}
    inferred = {**ERM, "label": "ERM, inferred", "environments": "inferred"}
    spec = small(ERM, TV, inferred, hrm)
    work, *_ = plan(spec, frozenset(), "cuda", task_of(spec))
    order = [(w.members[0].method.label, w.kind) for w in sorted(work, key=plan_module.costliest_first)]
    assert order == [
        ("hrm", "folds"),
        ("hrm", "all"),
        ("ERM, inferred", "folds"),
        ("ERM, inferred", "all"),
        ("irm-tv-l1", "folds"),
        ("erm", "folds"),
        ("irm-tv-l1", "all"),
        ("erm", "all"),
    ]


def test_a_gpu_is_shared_by_processes_where_there_is_work_for_them(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    memory = SimpleNamespace(total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert [run_module._job_count(None, gpu, n) for n in (1, 5, 6, 100)] == [1, 1, 2, 6]
    assert run_module._job_count(None, cpu, 100) == 1
    assert [run_module._job_count(3, device, 2) for device in (gpu, cpu)] == [2, 2]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert run_module._devices(gpu) == ("cuda:0", "cuda:1") and run_module._devices(torch.device("cuda:1")) == (
        "cuda:1",
    )
