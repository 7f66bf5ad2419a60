"""The same training on a GPU: equal to the CPU, recorded steps equal to eager ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import distributed

from irmtv import OBJECTIVES, Runs, train
from irmtv.datasets import make_simulation
from irmtv.engine.step import GradientStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def has(name, hyperparameter):
    return any(h.name == hyperparameter for h in OBJECTIVES[name].hyperparameters)


def parameters(name, device, weighted=False, **more):
    tasks = [make_simulation(600, (0.999, 0.9), 0.8, random_state=i, n_test=8) for i in range(3)]
    if weighted:
        weight = torch.arange(len(tasks[0].train)) % 4 / 2  # some of them 0
        tasks = [replace(t, train=replace(t.train, weight=weight)) for t in tasks]
    settings = {"steps": 120, "l2": 1e-3, "dtype": torch.float64, **more}
    quick = {"warmup": 60, "penalty_weight": 1e3, "cluster_steps": 30, "rounds": 2}
    settings |= {k: v for k, v in quick.items() if k not in more and has(name, k)}
    fitted = train(tasks, name, Runs(seed=range(3), data=range(3)), device=device, **settings)
    return torch.cat([fitted.coefficients()[0], fitted.coefficients()[1].unsqueeze(1)], 1)


@pytest.mark.parametrize("name", [*OBJECTIVES, "irm-tv-l1+vrex", "minimax-tv-l1+vrex"])
def test_a_gpu_gives_what_the_cpu_gives(name, monkeypatch):
    expected = parameters(name, "cpu")
    recorded = parameters(name, "cuda")
    torch.testing.assert_close(recorded, expected, rtol=1e-8, atol=1e-10)
    monkeypatch.setattr(GradientStep, "recordable", False)
    torch.testing.assert_close(parameters(name, "cuda"), recorded, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("irm-tv-l1", {"penalty_weight": "adaptive"}),
        ("irm-tv-l1", {"penalty_weight": "adaptive-exact"}),
        ("irm-tv-l2", {"penalty_weight": "learned"}),
        ("irm-tv-l1", {"penalty_schedule": "geometric"}),
        ("vrex", {"expand": {"n": 8, "reach": 0.5}}),
        ("irm-tv-l1", {"measure": "learned"}),
        ("groupdro", {"adjustment": 1.0}),
        ("eiil", {"variant": "joint"}),
        ("lff", {"variant": "plain"}),
        ("tiva", {"gated": True}),
        ("sparse-irm", {"penalty": "vrex", "kept_share": 0.5}),
    ],
    ids=str,
)
def test_so_do_variants(name, settings):
    torch.testing.assert_close(
        parameters(name, "cuda", **settings), parameters(name, "cpu", **settings), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("batch_size", [None, 100])
@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1", "groupdro", "eiil", "tiva", "lff", "hrm"])
def test_so_do_weighted_rows(name, batch_size):
    if name == "hrm" and batch_size is not None:
        pytest.skip("it has no mini-batches")
    found = [parameters(name, device, True, batch_size=batch_size) for device in ("cuda", "cpu")]
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def test_a_diverged_run_is_frozen_on_a_gpu_too():
    task = make_simulation(600, (0.999, 0.9), 0.8, random_state=0, n_test=8)
    runs = Runs(seed=range(3), learning_rate=[5e-3, 1e30, 5e-3])
    fitted = {}
    for device in ("cpu", "cuda"):
        with pytest.warns(UserWarning, match="diverged"):
            fitted[device] = train(task, "irm-tv-l1", runs, device=device, steps=60, warmup=10)
    assert list(fitted["cuda"].diverged) == [1]
    assert fitted["cuda"].diverged == fitted["cpu"].diverged
    assert torch.isfinite(fitted["cuda"].coefficients()[0]).all()


@pytest.mark.parametrize("name", ["irm-tv-l1", "minimax-tv-l1", "vrex", "groupdro"])
def test_one_rank_of_nccl_is_no_rank(name, monkeypatch):
    """NCCL refuses two ranks on one GPU: here are its calls, the sums over several are tested with gloo."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    task = make_simulation(600, (0.999, 0.9), 0.8, random_state=0, n_test=8)
    settings = {"steps": 200, "device": "cuda", "dtype": torch.float64}
    alone = train(task, name, Runs(seed=range(3)), **settings).coefficients()
    distributed.init_process_group("nccl", rank=0, world_size=1)
    try:
        of_rank = train(task, name, Runs(seed=range(3)), process_group=distributed.group.WORLD, **settings)
    finally:
        distributed.destroy_process_group()
    for a, b in zip(of_rank.coefficients(), alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
