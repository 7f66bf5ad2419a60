"""Every refusal of `train`, and where a setting's value comes from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.problems import arrays, parameters, refuse, task_of
from irmtv import OBJECTIVES, Runs, make_task, train
from irmtv.core.types import Rows, Task
from irmtv.engine.settings import ENGINE_CHECKS, free_memory, pick_device, resolve_settings

S = {"dtype": torch.float64, "steps": 3}
DEFAULTS = {
    "hidden": (),
    "classifier": "scalar",
    "steps": 5,
    "learning_rate": 5e-3,
    "l2": 0.0,
    "batch_size": "auto",
}


def resolved(runs, objective="irm-tv-l1", n_tasks=1, engine=None, **hyperparameters):
    return resolve_settings(OBJECTIVES[objective], runs, {**DEFAULTS, **(engine or {})}, hyperparameters, n_tasks)


def rows(**parts):
    x, y, e, t = arrays(n=40)
    full = {"x": x, "y": y, "environment": e, "aux": t}
    return {k: v for k, v in full.items() if parts.get(k, True)}


def task_with(environment=True, aux=True, held_out=None, loss="auto"):
    return make_task(
        **rows(environment=environment, aux=aux), held_out=held_out, loss=loss, dtype=torch.float64, min_rows=1
    )


# Values


def test_a_runs_own_value_goes_first_then_the_calls_then_the_default():
    runs = Runs([0, 1], penalty_weight=[1.0, 2.0], l2=0.25)
    ours = resolved(runs, penalty_weight=7.0, measure="uniform", engine={"l2": 0.5, "steps": 9})
    assert [s["penalty_weight"] for s in ours] == [1.0, 2.0]
    assert [s["seed"] for s in ours] == [0, 1]
    for s in ours:
        assert s["l2"] == 0.25 and s["steps"] == 9 and s["measure"] == "uniform"
        assert s["warmup"] == 0.5 and s["normalise"] is True and s["data"] == 0
        assert set(s) == {*ENGINE_CHECKS, "data", *(h.name for h in OBJECTIVES["irm-tv-l1"].hyperparameters)}


@pytest.mark.parametrize("scalar", [np.float64(0.5), np.float32(0.5), torch.tensor(0.5), np.array(0.5)])
def test_scalars_of_numpy_and_torch_are_numbers(scalar):
    (s,) = resolved(Runs(l2=scalar), penalty_weight=scalar)
    assert type(s["l2"]) is float and s["l2"] == 0.5
    assert type(s["penalty_weight"]) is float


def test_whole_numbers_of_numpy():
    (s,) = resolved(Runs(np.int64(3), data=np.int32(1), warmup=np.int64(4)), n_tasks=2)
    assert (s["seed"], s["data"], s["warmup"]) == (3, 1, 4) and type(s["warmup"]) is int


def test_hidden_may_be_a_list():
    assert [s["hidden"] for s in resolved(Runs(0, hidden=[[4], (5, 6)]))] == [(4,), (5, 6)]
    fitted = train(task_of(), "erm", hidden=[4, 2], **S)
    assert fitted.settings[0]["hidden"] == (4, 2)


# Settings of the call


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("seed", -1, "a whole number of at least 0"),
        ("seed", 2**63, "a whole number of at least 0"),
        ("seed", 1.5, "a whole number of at least 0"),
        ("seed", None, "a whole number of at least 0"),
        ("steps", 0, "a whole number of at least 1"),
        ("steps", 10.0, "a whole number of at least 1"),
        ("steps", True, "a whole number of at least 1"),
        ("learning_rate", 0, "a finite number above 0"),
        ("learning_rate", -0.1, "a finite number above 0"),
        ("learning_rate", float("nan"), "a finite number above 0"),
        ("learning_rate", float("inf"), "a finite number above 0"),
        ("learning_rate", "fast", "a finite number above 0"),
        ("l2", -1e-3, "a finite number of at least 0"),
        ("l2", float("nan"), "a finite number of at least 0"),
        ("l2", True, "a finite number of at least 0"),
        ("batch_size", 1, "None, 'auto' or a whole number of at least 2"),
        ("batch_size", 0, "None, 'auto' or a whole number of at least 2"),
        ("batch_size", "all", "None, 'auto' or a whole number of at least 2"),
        ("batch_size", 32.0, "None, 'auto' or a whole number of at least 2"),
        ("classifier", "matrix", "'scalar' or 'vector'"),
        ("hidden", (0,), "a tuple of whole numbers of at least 1; () is a linear model"),
        ("hidden", (8, -1), "a tuple of whole numbers of at least 1"),
        ("hidden", (8.0,), "a tuple of whole numbers of at least 1"),
        ("hidden", "wide", "a tuple of whole numbers of at least 1"),
    ],
)
def test_engine_settings_out_of_range(name, value, expected):
    runs = Runs(**{name: value}) if name == "seed" else Runs(0, **{name: [DEFAULTS[name], value]})
    run = 0 if name == "seed" else 1
    with refuse(f"{name} must be {expected}", f"Got {value!r}", f"(run {run})"):
        train(task_of(), "erm", runs)
    if name != "seed":
        with refuse(f"{name} must be {expected}"):
            train(task_of(), "erm", **{name: value})


@pytest.mark.parametrize("value", [8, 4.5, None])
def test_hidden_that_is_no_sequence(value):
    with refuse("hidden must be a tuple of whole numbers", f"Got {value!r}"):
        train(task_of(), "erm", hidden=value)


def test_hidden_as_a_list_of_zero():
    with refuse("hidden must be", "Got (0,)"):
        train(task_of(), "erm", hidden=[0])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("penalty_wieght", "penalty_weight"),
        ("learning_rat", "learning_rate"),
        ("batchsize", "batch_size"),
        ("warm_up", "warmup"),
        ("banana", None),
    ],
)
@pytest.mark.parametrize("by_run", [False, True])
def test_an_unknown_setting(name, near, by_run):
    runs, call = (Runs(0, **{name: 1}), {}) if by_run else (None, {name: 1})
    with pytest.raises(ValueError, match="is neither a setting of train") as error:
        train(task_of(), "irm-tv-l1", runs, **call)
    text = str(error.value)
    assert repr(name) in text and "hyper-parameter of 'irm-tv-l1'" in text
    assert ("Did you mean" in text) == (near is not None)
    assert near is None or f"Did you mean {near!r}?" in text


def test_a_setting_of_another_objective():
    with refuse(
        "'penalty_weight' is neither", "hyper-parameter of 'erm'", "['measure', 'measure_distance', 'measure_rate']"
    ):
        train(task_of(), "erm", penalty_weight=1.0)


@pytest.mark.parametrize(
    ("objective", "name", "value"),
    [
        ("irm-tv-l1", "penalty_weight", -1.0),
        ("irm-tv-l1", "warmup", 1.0),
        ("irm-tv-l1", "warmup", -1),
        ("irm-tv-l1", "measure", "mean"),
        ("irm-tv-l1", "measure", (-1.0, 1.0, 1.0)),
        ("irm-tv-l1", "reduction", "sum"),
        ("irm-tv-l1", "normalise", "yes"),
        ("irm-tv-l1", "batch_estimator", "thirds"),
        ("minimax-tv-l1", "schedule", "cosine"),
        ("minimax-tv-l1", "n_environments", 1),
        ("minimax-tv-l1", "environment_learning_rate", 0.0),
        ("minimax-tv-l1", "aux_scaling", "row"),
    ],
)
def test_hyperparameters_out_of_range(objective, name, value):
    with refuse(f"{name} of {objective!r} must be", f"Got {value!r}"):
        train(task_of(), objective, **{name: value})


@pytest.mark.parametrize("name", ["seed", "data"])
def test_seed_and_data_are_said_by_the_runs(name):
    """As settings of the call they would be overruled by every run's own, silently."""
    with refuse(f"{name} belongs to the runs", f"Runs({name}=3)"):
        train(task_of(), "erm", **{name: 3})


@pytest.mark.parametrize("data", [1, -1, 0.5, "first"])
def test_a_run_on_a_task_that_there_is_not(data):
    with refuse("data must be the number of a task, 0 to 0", f"Got {data!r} (run 1)", "list of tasks"):
        train(task_of(), "erm", Runs(0, data=[0, data]))


@pytest.mark.parametrize("name", ["snapshot_every", "max_chunk"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True, "often"])
def test_counts_of_the_call(name, value):
    with refuse(f"{name} must be None or a whole number of at least 1", f"Got {value!r}"):
        train(task_of(), "erm", **{name: value})


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, "float32", None])
def test_precisions_there_are_not(dtype):
    with refuse("dtype must be torch.float32 or torch.float64", f"Got {dtype!r}"):
        train(task_of(), "erm", dtype=dtype)


def test_an_unknown_objective():
    with refuse("objective must be one of", "Got 'irm-tv-l3'", "Did you mean"):
        train(task_of(), "irm-tv-l3")


def test_an_objective_itself_instead_of_its_name():
    by_name = train(task_of(), "irm-tv-l1", **S)
    itself = train(task_of(), OBJECTIVES["irm-tv-l1"], **S)
    assert torch.equal(parameters(by_name)[0], parameters(itself)[0])


# Tasks


@pytest.mark.parametrize(
    ("task", "got"),
    [(np.zeros((4, 2)), "ndarray"), ("data", "str"), (7, "int"), (None, "NoneType"), ([arrays()], "tuple")],
)
def test_something_that_is_no_task(task, got):
    with refuse("task must be an irmtv.Task", f"Got {got}", "make_task(x, y"):
        train(task, "erm")


def test_no_task_at_all():
    with refuse("task must be a Task or a non-empty list of them", "empty list"):
        train([], "erm")


@pytest.mark.parametrize("objective", ["irm-tv-l1", "irm-tv-l2", "irmv1", "vrex", "mm-rex"])
def test_environments_that_are_not_given(objective):
    with refuse(f"{objective!r} needs to know the environment of every row", "environment=", "'minimax-tv-l1'"):
        train(task_with(environment=False), objective)


@pytest.mark.parametrize("measure", ["uniform", (1.0, 1.0, 2.0)])
def test_erm_needs_environments_for_a_measure_on_them(measure):
    train(task_with(environment=False), "erm", **S)
    with refuse("'erm' needs to know the environment of every row"):
        train(task_with(environment=False), "erm", measure=measure)


def test_one_environment_only():
    task = make_task(*arrays()[:2], environment=["here"] * 100)
    with refuse("'irm-tv-l1' compares environments and needs at least 2", "only ['here']", "'erm'", "'minimax-tv-l1'"):
        train(task, "irm-tv-l1")


@pytest.mark.parametrize("objective", ["minimax-tv-l1", "minimax-tv-l2", "zin"])
def test_auxiliary_variables_that_are_not_given(objective):
    with refuse(f"{objective!r} infers environments from auxiliary variables", "aux=", "'irm-tv-l1'", "has no aux"):
        train(task_with(aux=False), objective)


def test_held_out_rows_without_auxiliary_variables():
    task = task_with(held_out=rows(aux=False))
    with refuse("'minimax-tv-l1' needs aux for the held-out rows too"):
        train(task, "minimax-tv-l1")
    train(task, "irm-tv-l1", snapshot_every=1, **S)


def test_held_out_rows_without_environments():
    task = task_with(held_out=rows(environment=False))
    with refuse("'irm-tv-l1' needs the environment of the held-out rows too"):
        train(task, "irm-tv-l1")
    train(task, "minimax-tv-l1", snapshot_every=1, **S)
    train(task, "erm", snapshot_every=1, **S)


@pytest.mark.parametrize("measure", [(1.0, 1.0), (1.0,) * 4])
def test_a_measure_of_the_wrong_length(measure):
    with refuse("measure must have one weight per environment, 3 for [0, 1, 2]", f"Got {len(measure)} weights"):
        train(task_with(), "irm-tv-l1", measure=measure)
    with refuse("measure must have one weight per environment, n_environments=3", f"Got {len(measure)} weights"):
        train(task_with(), "minimax-tv-l1", measure=measure, n_environments=3)


def test_a_measure_of_the_right_length():
    train(task_with(), "irm-tv-l1", measure=(1.0, 2.0, 1.0), **S)
    train(task_with(), "minimax-tv-l1", measure=(1.0, 2.0), **S)


def test_an_objective_for_other_tasks():
    base = OBJECTIVES["irm-tv-l1"]
    classes_only = type(base)(**{**vars(base), "tasks": ("binary", "multiclass")})
    train(task_of(), classes_only, **S)
    with refuse("'irm-tv-l1' is for ['binary', 'multiclass']", "is regression"):
        train(task_of("squared"), classes_only)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: task_of(features=4), "features"),
        (lambda: task_of("squared"), "loss"),
        (lambda: task_of("multiclass"), "number of outputs"),
    ],
)
def test_tasks_of_one_call_must_suit_one_network(other, what):
    with refuse(f"tasks of one call must have the same {what}"):
        train([task_of(), other()], "erm", Runs(0, data=[0, 1]))


def test_tasks_of_one_call_must_have_equal_auxiliary_columns():
    tasks = [task_of(), task_of(aux=np.random.default_rng(0).normal(size=(100, 2)))]
    with refuse("same number of aux columns", "[1, 2]"):
        train(tasks, "minimax-tv-l1", Runs(0, data=[0, 1]))
    train(tasks, "irm-tv-l1", Runs(0, data=[0, 1]), **S)


def test_a_task_made_by_hand():
    x, y, e, _ = arrays()
    made = Rows(torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(e), names=("a", "b", "c"))
    fitted = train(Task(made, task_of().loss), "irm-tv-l1", **S)
    assert torch.equal(parameters(fitted)[0], parameters(train(task_of(), "irm-tv-l1", **S))[0])


# Devices


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    auto = train(task_of(), "irm-tv-l1", device="auto", **S)
    assert torch.equal(parameters(auto)[0], parameters(train(task_of(), "irm-tv-l1", device="cpu", **S))[0])


def test_auto_is_the_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto") == torch.device("cuda")
    assert pick_device("cuda:1") == torch.device("cuda:1")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_gpu_that_there_is_not(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refuse(f"device={str(device)!r} was asked for", "no CUDA device", "device='cpu' or 'auto'"):
        train(task_of(), "erm", device=device)


@pytest.mark.parametrize(("device", "near"), [("cdua", "cuda"), ("gpu", None), ("CPU", "cpu"), ("", None)])
def test_a_device_of_another_name(device, near):
    with pytest.raises(ValueError, match="device must be 'cpu', 'cuda' or 'auto'") as error:
        train(task_of(), "erm", device=device)
    assert f"Got {device!r}" in str(error.value)
    assert near is None or f"Did you mean {near!r}?" in str(error.value)


def test_a_device_of_torch():
    train(task_of(), "erm", device=torch.device("cpu"), **S)


def test_free_memory_is_a_number_of_bytes(monkeypatch):
    assert free_memory(torch.device("cpu")) > 1e6

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", unknown)
    assert free_memory(torch.device("cpu")) > 1e6


def test_a_rate_that_does_not_fit_the_precision():
    with refuse("learning_rate must fit into torch.float32", "1e+39", "dtype=torch.float64"):
        train(task_of(), "erm", learning_rate=1e39)


def test_hidden_beside_net():
    with refuse("hidden describes the network that net= replaces", "(8,)"):
        train(task_of(), "erm", net=lambda: torch.nn.Linear(3, 1), hidden=(8,))


def test_a_vector_classifier_needs_to_see_the_last_layer():
    with refuse("classifier='vector'", "hidden=", "Module"):
        train(task_of(), "irm-tv-l1", net=lambda: torch.nn.Linear(3, 1), classifier="vector")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"objective": Runs(seed=2)}, ("objective must be a name", "Runs")),
        ({"runs": 3}, ("runs must be irmtv.Runs", "int")),
        ({"progress": True}, ("progress must be a function", "ProgressBar", "True")),
        ({"lr": 0.1}, ("'lr' is neither", "Did you mean 'learning_rate'?")),
        ({"objective": "irm-tv-l1", "penalty_weight": [1, 10]}, ("penalty_weight", "Runs.grid(penalty_weight=[...])")),
    ],
)
def test_typical_mistakes(arguments, parts):
    with refuse(*parts):
        train(task_of(), **{"objective": "erm", **arguments})


def test_worst_env_needs_environments_to_look_at():
    x, y, _, _ = arrays()
    with refuse("select='worst-env'", "needs their environments", "select='iid'"):
        train(make_task(x, y), "erm", select="worst-env")


def test_snapshots_follow_the_runs_own_steps():
    fitted = train(task_of(), "erm", Runs([0, 1], steps=[50, 100]), select="iid")
    assert fitted.history.steps == tuple(range(0, 102, 2))


def test_a_loss_of_ones_own_with_several_targets():
    x, y, e, _ = arrays("targets")
    settings = {"steps": 20, "warmup": 5}
    with refuse("one number per row", "2 outputs", "mean or sum over the outputs"):
        train(make_task(x, y, environment=e, loss=lambda f, y: (f - y) ** 2), "irm-tv-l1", **settings)
    own = make_task(x, y, environment=e, loss=lambda f, y: ((f - y) ** 2).mean(-1), dtype=torch.float64)
    built_in = make_task(x, y, environment=e, dtype=torch.float64)
    results = [train(t, "irm-tv-l1", dtype=torch.float64, **settings).logits(x) for t in (own, built_in)]
    torch.testing.assert_close(*results)


def test_evaluate_asks_for_rows():
    x, y, e, _ = arrays()
    with refuse("rows must be irmtv.Rows", "make_task", "dict"):
        train(task_of(), "erm", steps=2).evaluate({"x": x, "y": y, "environment": e})
