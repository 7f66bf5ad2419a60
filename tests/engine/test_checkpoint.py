"""A training that is stopped and continued ends where one that was not does; damaged and other files are refused."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.problems import parameters, refuse, task_of
from irmtv import Runs, make_task, train
from irmtv.engine.checkpoint import packed, unpacked

S = {"steps": 40, "dtype": torch.float64, "learning_rate": 0.01}
P = S | {"penalty_weight": 20.0, "warmup": 15}
CASES = {
    "erm": ("erm", Runs(0), S),
    "a path, which shares its warm-up": ("irm-tv-l1", Runs.grid(seed=[0, 1], penalty_weight=[1.0, 20.0]), P),
    "several chunks": ("irm-tv-l1", Runs(range(3)), P | {"max_chunk": 1}),
    "warm-ups of their own": ("vrex", Runs([0, 1], warmup=[7, 23]), P | {"l2": 1e-3}),
    "inferred": ("minimax-tv-l1", Runs([0, 1]), P | {"hidden": (3,)}),
    "alternating": ("minimax-tv-l1", Runs([0, 1]), P | {"schedule": "alternating", "n_environments": 3}),
    "batches": ("minimax-tv-l1", Runs([0, 1]), P | {"batch_size": 30}),
    "balanced batches": ("groupdro", Runs([0, 1]), S | {"batch_size": 30, "sampling": "balanced"}),
    "a learned measure": ("groupdro", Runs([0, 1]), S | {"measure_rate": 0.3}),
    "a learned weight": ("ood-tv-irm-l1", Runs([0, 1]), S | {"warmup": 15}),
    "a run that diverges": ("irm-tv-l1", Runs([0, 1], learning_rate=[0.01, 1e200]), P),
    "snapshots": ("irm-tv-l1", Runs([0, 1]), P | {"snapshot_every": 6, "select": "worst-env", "keep_states": True}),
}


def shared(runs, settings):
    return {k: v for k, v in settings.items() if k not in runs.names}


class Stop(Exception):
    pass


def stopped(task, name, runs, settings, path, at):
    """A training that ends in the middle, before its step `at` of all steps of all chunks."""
    seen = 0

    def progress(_):
        nonlocal seen
        seen += 1
        if seen > at:
            raise Stop

    with pytest.raises(Stop):
        train(task, name, runs, checkpoint=path, checkpoint_every=4, progress=progress, **shared(runs, settings))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:1 of 2 runs diverged")
@pytest.mark.parametrize("case", CASES)
def test_stopped_twice_and_continued_is_the_same_bit_for_bit(case, tmp_path):
    name, runs, settings = CASES[case]
    task = task_of(held_out=40)
    whole = train(task, name, runs, **shared(runs, settings))
    path = tmp_path / "training"
    stopped(task, name, runs, settings, path, 11)
    assert path.exists()
    stopped(task, name, runs, settings, path, 50 if case == "several chunks" else 18)
    for _ in range(2):  # to the end, and once more when it is done
        continued = train(task, name, runs, checkpoint=path, **shared(runs, settings))
        for which in ("last", "selected"):
            for a, b in zip(parameters(whole, which), parameters(continued, which), strict=True):
                assert torch.equal(a, b)
        for a, b in zip(whole.state("last"), continued.state("last"), strict=True):
            for name_, value in {**(a.rho or {}), **a.learned}.items():
                assert torch.equal(value, {**(b.rho or {}), **b.learned}[name_])
        assert continued.diverged == whole.diverged and torch.equal(continued.steps, whole.steps)
        if whole.history is not None:
            assert continued.history.steps == whole.history.steps
            assert torch.equal(continued.history.risk, whole.history.risk)
            assert torch.equal(parameters(continued.at(12))[1], parameters(whole.at(12))[1])


def test_a_checkpoint_makes_no_difference(tmp_path):
    plain, kept = (train(task_of(), "irm-tv-l1", **P, **more) for more in ({}, {"checkpoint": tmp_path / "a"}))
    assert torch.equal(parameters(plain)[0], parameters(kept)[0])


@pytest.mark.parametrize("where", [5, 200, -9])
def test_a_damaged_file_is_noticed_and_the_one_before_used(tmp_path, where):
    path = tmp_path / "training"
    task, whole = task_of(), train(task_of(), "irm-tv-l1", **P)
    stopped(task, "irm-tv-l1", Runs(0), P, path, 25)
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    before = (tmp_path / "training.before").read_bytes()
    with pytest.warns(match="training is damaged; training continues from training.before"):
        stopped(task, "irm-tv-l1", Runs(0), P, path, 6)
    assert (tmp_path / "training.before").read_bytes() == before  # what is damaged does not take its place
    continued = train(task, "irm-tv-l1", checkpoint=path, **P)
    assert torch.equal(parameters(continued)[0], parameters(whole)[0])


def test_a_file_that_is_cut_off_or_gone_while_it_was_renamed(tmp_path):
    path = tmp_path / "training"
    task, whole = task_of(), train(task_of(), "irm-tv-l1", **P)
    stopped(task, "irm-tv-l1", Runs(0), P, path, 25)
    path.unlink()
    continued = train(task, "irm-tv-l1", checkpoint=path, **P)
    assert torch.equal(parameters(continued)[0], parameters(whole)[0])


def test_a_full_disk_leaves_both_files_as_they_were(tmp_path, monkeypatch):
    path, task = tmp_path / "training", task_of()
    whole = train(task, "irm-tv-l1", **P)
    stopped(task, "irm-tv-l1", Runs(0), P, path, 25)
    content = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="training was not written, and is as it was"):
            train(task, "irm-tv-l1", checkpoint=path, checkpoint_every=4, **P)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == content and len(content) == 2
    continued = train(task, "irm-tv-l1", checkpoint=path, **P)
    assert torch.equal(parameters(continued)[0], parameters(whole)[0])


@pytest.mark.parametrize("content", [b"", b"site,y\n1,2\n", b"\x10" + 7 * b"\0" + b'{"a": [1, 2, 3]}'])
def test_files_of_others_are_not_replaced(tmp_path, content):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with refuse("checkpoint must be a file that train() wrote, or a new name", "table.csv"):
        train(task_of(), "erm", checkpoint=path, **S)
    assert path.read_bytes() == content


def test_another_training_is_refused_with_what_differs(tmp_path):
    path = tmp_path / "training"
    task = task_of()
    train(task, "irm-tv-l1", checkpoint=path, **P)
    data = path.read_bytes()
    other_rows = replace(task, train=replace(task.train, x=task.train.x + 1))
    for other, name, settings, differs in (
        (task, "vrex", P, "objective was irm-tv-l1"),
        (task, "irm-tv-l1", P | {"penalty_weight": 21.0}, "penalty_weight was 20.0, is 21.0"),
        (task, "irm-tv-l1", P | {"dtype": torch.float32}, "dtype was torch.float64, is torch.float32"),
        (other_rows, "irm-tv-l1", P, "rows was ['100 rows, digest"),
        (task, "irm-tv-l1", P | {"snapshot_every": 3}, "snapshot_every was None, is 3"),
    ):
        with refuse("checkpoint must be of the same training", differs):
            train(other, name, checkpoint=path, **settings)
    with refuse("number of runs was 1, is 2"):
        train(task, "irm-tv-l1", Runs([0, 1]), checkpoint=path, **P)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("name", "more"), [("lff", {}), ("sparse-irm", {}), ("hrm", {}), ("irm-tv-l1", {"solver": "newton"})]
)
def test_what_has_no_checkpoints_says_so(tmp_path, name, more):
    with refuse("checkpoint must be None here: there are no checkpoints of"):
        train(task_of(), name, checkpoint=tmp_path / "a", **more)


def test_bad_settings(tmp_path):
    with refuse("checkpoint_every must be a whole number of at least 1. Got 0"):
        train(task_of(), "erm", checkpoint=tmp_path / "a", checkpoint_every=0)
    with refuse("checkpoint must be a file in a folder that can be written. Got", "no folder/a (No such file"):
        train(task_of(), "erm", checkpoint=tmp_path / "no folder" / "a", **S)


def test_the_digest_is_of_all_that_is_in_the_file():
    tensors = {"a": torch.arange(3.0), "b": torch.tensor(True), "c": torch.zeros(0, 2)}
    data = packed(tensors, {"x": [1, None]})
    found, about, _ = unpacked(data)
    assert about == {"x": [1, None]} and all(torch.equal(found[k], v) for k, v in tensors.items())
    header = 8 + int.from_bytes(data[:8], "little")
    for where in [*range(header, len(data)), data.index(b"[1, null]") + 1]:
        changed = bytearray(data)
        changed[where] ^= 1
        with pytest.raises(ValueError, match="not as it was written"):
            unpacked(bytes(changed))


def test_rows_of_text_environments_have_a_description(tmp_path):
    rng = np.random.default_rng(0)
    task = make_task(rng.normal(size=(60, 2)), rng.normal(size=60), environment=["north", "süd", "☂"] * 20)
    path = tmp_path / "training"
    first, second = (train(task, "irm-tv-l1", steps=5, checkpoint=path) for _ in range(2))
    assert torch.equal(parameters(first)[0], parameters(second)[0])
