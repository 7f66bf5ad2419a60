"""The losses on a GPU: equal to the CPU, under autocast, compiled, and in a step of training."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from irmtv.losses import IRMTVLoss, MinimaxTVLoss
from losses.by_hand import problem
from losses.test_precision_and_compile import KINDS, batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.filterwarnings(
        "ignore:.*torch.jit:DeprecationWarning"
    ),  # torch's compiler imports what torch deprecates
]


def value_and_gradient(criterion, f, y, **where):
    f = f.detach().requires_grad_()
    total = criterion(f, y, **where)
    total.backward()
    return total.detach().cpu(), f.grad.cpu(), criterion.risk_.cpu()


@pytest.mark.parametrize("loss", ["binary", "multiclass", "squared"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_what_the_cpu_gives(kind, loss):
    make, where = KINDS[kind]
    f, y, codes = problem(loss, n=64)
    extra = {**batch("binary")[2], "environment": codes}[where]
    extra = extra.double() if extra.is_floating_point() else extra
    torch.manual_seed(0)
    criterion = make(loss).double()
    expected = value_and_gradient(criterion, f, y, **{where: extra})
    torch.manual_seed(0)
    criterion = make(loss).double().cuda()
    found = value_and_gradient(criterion, f.detach().cuda(), y.cuda(), **{where: extra.cuda()})
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_leaves_the_statistics_in_float32(kind, dtype):
    make, where = KINDS[kind]
    f, y, extra = batch("binary")
    torch.manual_seed(0)
    criterion = make("binary").cuda()
    half, at = f.to(dtype).cuda(), {where: extra[where].cuda()}
    plain = value_and_gradient(criterion, half.float(), y.cuda(), **at)
    torch.manual_seed(0)
    criterion = make("binary").cuda()
    with torch.autocast("cuda", dtype=dtype):
        total = criterion(half, y.cuda(), **at)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.detach().cpu(), plain[0], rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore::UserWarning")  # the compiler gives advice on speed
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_to_kernels(kind):
    make, where = KINDS[kind]
    f, y, extra = batch("binary")
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        criterion = make("binary").cuda()
        called = torch.compile(criterion, fullgraph=True) if compiled else criterion
        results.append(value_and_gradient(called, f.cuda(), y.cuda(), **{where: extra[where].cuda()}))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_gradient_scaler_trains_in_half_precision():
    _, y, extra = batch("binary")
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).cuda()
    torch.manual_seed(0)
    model, criterion = nn.Linear(4, 1).cuda(), IRMTVLoss("binary", "l1", 10.0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    for _ in range(30):
        sgd.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            total = criterion(model(x), y.cuda(), environment=extra["environment"].cuda())
        scaler.scale(total).backward()
        scaler.step(sgd)
        scaler.update()
        losses.append(float(total.detach()))
    assert min(losses[-5:]) < losses[0] and all(torch.isfinite(p).all() for p in model.parameters())


def test_the_scale_of_aux_moves_along_in_float64():
    seconds = 1.7e9 + torch.linspace(0, 60, 100, dtype=torch.float64)
    criterion = MinimaxTVLoss(n_aux=1).standardise(seconds)
    wanted = criterion.membership(seconds)
    for moved in (criterion.to("cuda", torch.float16), criterion.float()):
        assert moved.aux_mean.is_cuda and moved.aux_mean.dtype == moved.aux_deviation.dtype == torch.float64
        q = moved.membership(seconds.cuda()).cpu().float()
        torch.testing.assert_close(q, wanted, rtol=1e-2, atol=1e-2)
