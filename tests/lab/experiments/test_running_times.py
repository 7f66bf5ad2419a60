"""Running times: the arithmetic with a clock that is not one, the shapes, the order of the measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from irmtv.engine import Progress
from irmtv.lab.experiments import running_times
from irmtv.lab.experiments.running_times import COLUMNS, METHODS, Cost, cost_of_a_step, measure_running_times, tasks_of

CPU = torch.device("cpu")


def test_steps_are_mixed_as_the_published_schedule_has_them():
    cost = Cost(warmup=1.0, penalised=3.0)
    assert cost.of(COLUMNS["simulation"]) == pytest.approx(5000 + 3 * 300)
    assert cost.of(COLUMNS["landcover"], 400) == pytest.approx(40 + 3 * 360)
    assert cost.of(COLUMNS["house-prices"], 5901) == pytest.approx(5000 + 3 * 901)


@pytest.mark.parametrize("steps", [5, 60, 150, 300])
@pytest.mark.parametrize("chunks", [1, 3])
def test_the_cost_of_a_step_is_that_of_the_settled_part_of_each_phase(monkeypatch, steps, chunks):
    """A warm-up step takes 2 seconds and a penalised one 5; the first steps of each phase take 100."""
    now = [0.0]
    asked = {}

    def slow_train(tasks, objective, runs, *, steps, warmup, progress, **settings):
        asked.update(settings, steps=steps, warmup=warmup, runs=runs, objective=objective)
        for chunk in range(chunks):
            now[0] += 1000.0  # what a program takes to begin is no step
            for step in range(steps):
                if step % max(1, steps // 100) == 0:
                    progress(Progress(step, steps, chunk, 1, chunks, 0.0))
                first = step % warmup == 0
                now[0] += 100.0 if first else 2.0 if step < warmup else 5.0
            progress(Progress(steps, steps, chunk, 1, chunks, 0.0))

    monkeypatch.setattr(running_times, "train", slow_train)
    monkeypatch.setattr(running_times.time, "perf_counter", lambda: now[0])
    column = COLUMNS["simulation"]
    cost = cost_of_a_step(tasks_of(column)[0], column, "IRM-TV-l2 (authors)", 10, steps, CPU)
    assert cost.warmup == pytest.approx(2.0 * chunks)  # runs that do not train together add up
    assert cost.penalised == pytest.approx(5.0 * chunks)
    assert (asked["steps"], asked["warmup"], asked["objective"]) == (2 * steps, steps, "irm-tv-l2")
    assert asked["reduction"] == "authors" and asked["penalty_weight"] == 1e4
    assert asked["runs"].column("data") == list(range(10))


@pytest.mark.parametrize(("asked", "trained"), [(1, 5), (7, 7), (99, 99), (100, 100), (149, 100), (300, 300)])
def test_numbers_of_steps_whose_parts_are_told_of(asked, trained):
    steps = running_times._even(asked)
    assert steps == trained
    told = max(1, 2 * steps // 100)
    assert steps % told == 0 and max(1, round(running_times.SETTLED * steps)) % told == 0


def test_without_the_data_random_numbers_of_their_shape_stand_in(monkeypatch):
    monkeypatch.delenv("IRMTV_DATA", raising=False)
    found = {name: tasks_of(column) for name, column in COLUMNS.items() if name != "celeba"}
    assert {name for name, (_, stand_in) in found.items() if stand_in} == {"house-prices", "landcover", "adult"}
    assert {name: tuple(tasks[0].train.x.shape) for name, (tasks, _) in found.items()} == {
        "simulation": (5000, 15),
        "house-prices": (5187, 15),
        "landcover": (16_000, 8, 46),
        "adult": (10_840, 59),
    }
    assert {name: len(tasks) for name, (tasks, _) in found.items()} == {
        "simulation": 10, "house-prices": 1, "landcover": 1, "adult": 10,
    }  # fmt: skip
    assert found["landcover"][0][0].train.environment is None  # no environments are known there


def test_a_folder_without_the_files_is_no_reason_to_stop(monkeypatch, tmp_path):
    monkeypatch.setenv("IRMTV_DATA", str(tmp_path))
    assert tasks_of(COLUMNS["house-prices"])[1]


@pytest.mark.data
def test_stand_ins_have_the_shape_of_the_data():
    for name in ("house-prices", "adult"):
        column = COLUMNS[name]
        assert column.real is not None
        real, drawn = column.real(0), column.stand_in(0)
        assert real.train.x.shape == drawn.train.x.shape
        assert real.train.aux is not None and drawn.train.aux is not None
        assert real.train.aux.shape == drawn.train.aux.shape
        assert len(real.train.names) == len(drawn.train.names)
        assert real.loss.name == drawn.loss.name


def test_measurements_take_turns_and_are_of_one_run(monkeypatch):
    calls = []

    def cost(tasks, column, method, n_runs, steps, device):
        calls.append((method, n_runs))
        return Cost(n_runs * 1.0, n_runs * 1.0)

    monkeypatch.setattr(running_times, "cost_of_a_step", cost)
    told = []
    found = measure_running_times(
        ["simulation"], repetitions=2, progress=lambda share, name: told.append((share, name))
    )
    methods = list(METHODS)
    assert calls == [(m, n) for n in (1, 1, 1, 10, 10) for m in methods]  # once without a clock
    (timing,) = found.timings
    assert timing.alone == timing.together == dict.fromkeys(methods, (5300.0, 5300.0))
    assert not timing.stand_in and timing.steps == (300, 60)
    assert [share for share, _ in told] == sorted(share for share, _ in told) and told[-1][0] < 1


def test_the_cnn_and_every_method_train(monkeypatch):
    """Fewer rows; the rest as it is timed."""
    monkeypatch.delenv("IRMTV_DATA", raising=False)
    column = COLUMNS["landcover"]
    task = column.stand_in(0)
    small = replace(task, train=task.train.take(torch.arange(1100)))
    for method in ("ZIN (authors)", "Minimax-TV-l1"):
        cost = cost_of_a_step(
            [small], replace(column, settings={**column.settings, "batch_size": 32}), method, 1, 5, CPU
        )
        assert cost.warmup > 0 and cost.penalised > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["adlut"]}, r"settings must be data sets of the paper's table.*Did you mean 'adult'\?"),
        ({"columns": []}, "settings must name at least one data set"),
        ({"steps": 0}, "steps must be a positive integer. Got 0"),
        ({"repetitions": 0}, "repetitions must be a positive integer"),
        ({"device": "gpu"}, "device must be 'cpu'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        measure_running_times(**arguments)
