"""Cuts of one auxiliary column: the best one by brute force, and the network that says the same."""

from __future__ import annotations

import pytest
import torch

from irmtv.objectives.environments.aux_network import AuxNetwork
from irmtv.objectives.environments.segments import LEAST_SHARE, Segments, as_network, find_segments


def between(codes: torch.Tensor, slopes: torch.Tensor, weight: torch.Tensor) -> float:
    """sum_e m_e |S_e|^2, written plainly."""
    total = 0.0
    for e in codes.unique():
        w = weight[codes == e]
        mean = w @ slopes[codes == e] / w.sum()
        total += float(w.sum() / weight.sum() * mean.square().sum())
    return total


def changing(n: int, at: tuple[float, ...], seed: int = 0, n_slopes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """A column in [0, 1], and noisy slopes whose mean changes its sign at these places."""
    g = torch.Generator().manual_seed(seed)
    column = torch.rand(n, generator=g, dtype=torch.float64)
    sign = 1.0 - 2 * (torch.bucketize(column, torch.tensor(at, dtype=torch.float64)) % 2)
    return column, sign.unsqueeze(1) + torch.randn(n, n_slopes, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weighted", [False, True])
def test_one_cut_is_the_best_of_all(seed, weighted):
    g = torch.Generator().manual_seed(seed)
    column = torch.randint(0, 15, (60,), generator=g).double()  # with ties
    slopes = torch.randn(60, 2, generator=g, dtype=torch.float64)
    weight = torch.rand(60, generator=g, dtype=torch.float64) + 0.1 if weighted else torch.ones(60).double()
    found = find_segments(column, slopes, 2, most_cuts=1, weight=weight if weighted else None)
    least = LEAST_SHARE * weight.sum()
    values = []
    for cut in column.unique()[1:]:
        left = column < cut
        if weight[left].sum() >= least and weight[~left].sum() >= least:
            values.append(between(left.long(), slopes, weight))
    assert between(found.of(column), slopes, weight) == pytest.approx(max(values), rel=1e-10)


def test_weights_are_rows_that_stand_several_times():
    column, slopes = changing(80, (0.4,))
    times = torch.randint(1, 4, (80,), generator=torch.Generator().manual_seed(1))
    weighted = find_segments(column, slopes, 2, 1, times.double())
    repeated = find_segments(column.repeat_interleave(times), slopes.repeat_interleave(times, 0), 2, 1)
    assert torch.equal(weighted.of(column), repeated.of(column))


def test_an_environment_may_come_back():
    column, slopes = changing(2000, (0.25, 0.5, 0.75))
    found = find_segments(column, slopes, 2, most_cuts=7)
    truth = torch.bucketize(column, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)) % 2
    agree = (found.of(column) == truth).double().mean()
    assert len(found.below) == 3 and max(agree, 1 - agree) > 0.99


def test_further_cuts_must_not_be_noise():
    """One change: a second cut would be noise, in most of 20 draws it is not made."""
    counts = [len(find_segments(*changing(600, (0.5,), seed), 2, most_cuts=7).below) for seed in range(20)]
    assert min(counts) == 1 and sum(n == 1 for n in counts) >= 15


def test_a_column_that_does_not_vary_has_no_cut():
    found = find_segments(torch.ones(50).double(), torch.randn(50, 2).double(), 2, 3)
    assert len(found.below) == 0 and found.of(torch.tensor([0.0, 9.0]).double()).tolist() == [0, 0]


@pytest.mark.parametrize("n_environments", [2, 3])
def test_the_network_says_the_same(n_environments):
    column, slopes = changing(400, (0.2, 0.6))
    found = find_segments(column, slopes, n_environments, most_cuts=5)
    net = AuxNetwork(1, n_environments, hidden=16)
    p = {name: value.unsqueeze(0) for name, value in as_network(found, net).items()}
    q = net.from_logits(net.logits(p, column.view(1, 1, -1)), 1).q[0, 0]  # (E, N)
    assert torch.equal(q.argmax(0), found.of(column))
    assert float(q.amax(0).min()) > 1 - 1e-8
    assert q.sum(0) == pytest.approx(1.0)


def test_values_between_the_rows_go_to_the_nearer_side():
    segments = Segments(torch.tensor([1.0]).double(), torch.tensor([3.0]).double(), torch.tensor([1, 0]))
    assert segments.of(torch.tensor([0.0, 1.9, 2.1, 5.0]).double()).tolist() == [1, 1, 0, 0]
