"""MinimaxTVLoss: one optimizer does what a hand-written pair does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from irmtv.losses import MinimaxTVLoss
from losses.by_hand import penalised

EXACT = {"rtol": 1e-10, "atol": 1e-10}
N = 60


def data() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=g, dtype=torch.float64)
    return x, (torch.rand(N, generator=g) > 0.5).double(), torch.rand(N, 2, generator=g, dtype=torch.float64)


def membership(rho: nn.Module, z: Tensor) -> Tensor:
    out = rho(z)
    return torch.cat([out.sigmoid(), 1 - out.sigmoid()], 1) if out.shape[1] == 1 else out.softmax(1)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("reduction", ["expectation", "authors"])
@pytest.mark.parametrize(("norm", "n_environments"), [("l1", 2), ("l2", 3)])
@pytest.mark.parametrize("weight", [0.0, 20.0])
def test_one_optimizer_is_two(norm, n_environments, weight, reduction, optimizer):
    x, _, z = data()
    torch.manual_seed(1)
    phi = nn.Linear(4, 1).double()
    criterion = MinimaxTVLoss("binary", norm, weight, 2, n_environments, reduction=reduction).double()
    # right on one side of aux, wrong on the other, and a rho that parts the sides: slopes of both signs, which l1 needs
    y = ((phi(x).squeeze(1) > 0) == (z[:, 0] > 0.5)).double()
    with torch.no_grad():
        criterion.network[0].weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).repeat(8, 1))
        criterion.network[0].bias.copy_(torch.tensor([-0.5, 0.5]).repeat(8))
        last = criterion.network[2].weight  # (1 or 3, 16)
        last.copy_(torch.tensor([2.0, -2.0]).repeat(8) * torch.tensor([[1.0], [-1.0], [0.1]])[: len(last)])
    phi2, rho2 = copy.deepcopy(phi), copy.deepcopy(criterion.network)
    one = optimizer([{"params": phi.parameters()}, {"params": criterion.parameters(), "lr": 0.05}], lr=0.1)
    down = optimizer(phi2.parameters(), lr=0.1)
    up = optimizer(rho2.parameters(), lr=0.05, maximize=True)

    def textbook(f: Tensor, q: Tensor, lam: float) -> Tensor:
        w = torch.ones((), dtype=torch.float64)
        authors = reduction == "authors"
        return penalised("binary", lambda w: w * f, w, y, q, norm, lam, authors=authors, mean_loss=True)

    for _ in range(3):
        one.zero_grad()
        ours = criterion(phi(x), y, aux=z)
        ours.backward()

        f = phi2(x).squeeze(1)
        theirs = textbook(f, membership(rho2, z).detach(), weight) / (1 + weight)
        down.zero_grad()
        theirs.backward()
        up.zero_grad()
        still = f.detach().requires_grad_()  # the textbook's slope asks for a graph
        q = membership(rho2, z)
        penalty = textbook(still, q, 1.0) - textbook(still, q, 0.0)
        penalty.backward()

        torch.testing.assert_close(ours, theirs, **EXACT)
        torch.testing.assert_close(criterion.penalty_, penalty.detach(), **EXACT)
        for mine, other, sign in (
            *((a, b, 1) for a, b in zip(phi.parameters(), phi2.parameters(), strict=True)),
            *((a, b, -1) for a, b in zip(criterion.network.parameters(), rho2.parameters(), strict=True)),
        ):
            torch.testing.assert_close(mine.grad, sign * other.grad, **EXACT)
        assert criterion.network[2].weight.grad.abs().max() > 1e-6  # atol is 1e-10
        one.step()
        down.step()
        up.step()
    for mine, other in zip(criterion.network.parameters(), rho2.parameters(), strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


def test_vector_classifier():
    x, y, z = data()
    torch.manual_seed(1)
    phi = nn.Linear(4, 1).double()
    criterion = MinimaxTVLoss("binary", "l1", 9.0, 2, classifier="vector", normalise=False).double()
    ours = criterion(phi(x), y, aux=z, features=x, weight=phi.weight)
    q = membership(criterion.network, z).detach()
    w = torch.ones(4, dtype=torch.float64)
    theirs = penalised("binary", lambda w: phi(x * w).squeeze(1), w, y, q, "l1", 9.0)
    torch.testing.assert_close(ours, theirs, **EXACT)
    mine, other = (torch.autograd.grad(t, phi.weight)[0] for t in (ours, theirs))
    torch.testing.assert_close(mine, other, **EXACT)


def test_frozen_environments_do_not_move():
    x, y, z = data()
    phi, criterion = nn.Linear(4, 1).double(), MinimaxTVLoss(n_aux=2, penalty_weight=5.0).double()
    both = torch.optim.AdamW([*phi.parameters(), *criterion.parameters()], lr=0.1, weight_decay=0.1)

    def step() -> None:
        criterion(phi(x), y, aux=z).backward()
        both.step()

    step()
    moved = copy.deepcopy(criterion.network.state_dict())
    criterion.freeze_environments()  # between a backward and a step: no stale gradient, momentum or decay counts
    assert criterion.environments_frozen
    for _ in range(3):
        both.zero_grad(set_to_none=False)
        step()
    torch.testing.assert_close(criterion.network.state_dict(), moved, rtol=0, atol=0)
    criterion.unfreeze_environments()
    assert not criterion.environments_frozen
    step()
    assert not torch.equal(criterion.network.state_dict()["0.weight"], moved["0.weight"])


def test_rho_climbs_the_penalty_where_the_predictor_stands_still():
    *_, z = data()
    f = torch.randn(N, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = ((f > 0) == (z[:, 0] > 0.5)).double()  # right on one side of aux, wrong on the other
    criterion = MinimaxTVLoss("binary", "l2", 0.0, 2).double()
    adam = torch.optim.Adam(criterion.parameters(), lr=0.01)
    seen = []
    for _ in range(60):
        adam.zero_grad()
        criterion(f, y, aux=z).backward()
        adam.step()
        seen.append(float(criterion.penalty_))
    assert seen[-1] > 2 * seen[0]


def test_standardised_aux_and_membership():
    seconds = 1.7e9 + 60.0 * torch.arange(N, dtype=torch.float64)  # a row a minute
    criterion = MinimaxTVLoss(n_aux=1, n_environments=3).standardise(seconds)
    q = criterion.membership(seconds)
    z = (seconds - seconds.mean()) / seconds.std(correction=0)
    wanted = criterion.network(z.float().unsqueeze(1)).softmax(1)
    torch.testing.assert_close(q, wanted.detach())
    assert q.shape == (N, 3) and not q.requires_grad
    assert len(q.unique(dim=0)) == N  # neighbouring minutes are told apart
    torch.testing.assert_close(q.sum(1), torch.ones(N))
    again = MinimaxTVLoss(n_aux=1, n_environments=3, seed=5)
    again.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(again.membership(seconds), q)


class Seen(nn.Module):
    """An environment network that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, z: Tensor) -> Tensor:
        self.z = z.detach()
        return self.layer(z)


CHANGES = {
    "none": lambda c: c,
    "half": lambda c: c.half(),
    "bfloat16 and back": lambda c: c.bfloat16().float(),
    "to": lambda c: c.to(torch.float16).to("cpu").double(),
    "inside another module": lambda c: nn.ModuleList([c]).half()[0],
    "a copy": lambda c: copy.deepcopy(c.half()),
}


@pytest.mark.parametrize("before", [False, True])  # standardise
@pytest.mark.parametrize("change", CHANGES)
def test_a_time_in_seconds_keeps_its_digits(change, before):
    """A minute long, seconds since 1970: float32 has steps of 128 s there, and half precision ends at 65504."""
    seconds = 1.7e9 + torch.linspace(0, 60, 1000, dtype=torch.float64)
    criterion = MinimaxTVLoss(n_aux=1, network=Seen())
    criterion = criterion.standardise(seconds) if before else criterion
    criterion = CHANGES[change](criterion)
    criterion = criterion if before else criterion.standardise(seconds)
    q = criterion.membership(seconds)
    assert q.isfinite().all() and q.dtype == criterion.network.layer.weight.dtype == criterion.network.z.dtype
    wanted = (seconds - seconds.mean()) / seconds.std(correction=0)
    torch.testing.assert_close(criterion.network.z[:, 0], wanted.to(q.dtype))
    assert criterion.aux_mean.dtype == criterion.aux_deviation.dtype == torch.float64
    assert float(criterion.aux_mean) == pytest.approx(1.7e9 + 30, abs=1e-5)
    total = criterion(torch.ones(1000, dtype=q.dtype, requires_grad=True), (seconds > seconds.mean()).float(), seconds)
    total.backward()
    assert total.isfinite() and criterion.network.layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_with_the_numbers_in_float32_is_still_read(assign):
    years = torch.linspace(2000, 2020, N, dtype=torch.float64)
    criterion = MinimaxTVLoss(n_aux=1).standardise(years)
    old = {k: v.float() if k.startswith("aux_") else v for k, v in criterion.state_dict().items()}
    again = MinimaxTVLoss(n_aux=1, seed=3)
    again.load_state_dict(old, assign=assign)
    torch.testing.assert_close(again.membership(years), criterion.membership(years), rtol=1e-4, atol=1e-4)


def test_the_numbers_move_with_the_module():
    criterion = MinimaxTVLoss(n_aux=2).half().to("meta")
    assert criterion.aux_mean.is_meta and criterion.aux_deviation.is_meta and criterion.network[0].weight.is_meta


def test_an_own_network_and_the_start():
    x, y, z = data()
    own = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    criterion = MinimaxTVLoss(network=own, n_environments=3)
    criterion(x[:, 0], y, aux=z).backward()
    assert own[0].weight.grad.abs().max() > 0
    torch.testing.assert_close(criterion.membership(z), own(z).softmax(1).detach(), **EXACT)
    before = torch.random.get_rng_state()
    same, other = MinimaxTVLoss(n_aux=2, seed=1), MinimaxTVLoss(n_aux=2, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())
    torch.testing.assert_close(same.state_dict(), MinimaxTVLoss(n_aux=2, seed=1).state_dict(), rtol=0, atol=0)
    assert not torch.equal(same.network[0].weight, other.network[0].weight)


def test_integer_aux_and_evaluation():
    x, y, _ = data()
    years = torch.arange(N) // 20 + 2000
    criterion = MinimaxTVLoss(n_aux=1).standardise(years).eval()
    with torch.no_grad():
        assert criterion(x[:, 0], y, aux=years).isfinite()
