"""Half precision under autocast, gradient scaling, and torch.compile without a graph break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from irmtv.losses import GroupDROLoss, IRMTVLoss, MinimaxTVLoss, VRExLoss
from losses.by_hand import absolute, problem

# torch's compiler imports what torch deprecates
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

KINDS = {
    "irm-tv-l1": (lambda loss: IRMTVLoss(loss, "l1", 10.0, n_environments=3), "environment"),
    "irm-tv-l2": (lambda loss: IRMTVLoss(loss, "l2", 10.0, "uniform", n_environments=3), "environment"),
    "given": (lambda loss: IRMTVLoss(loss, "l2", 10.0, (0.2, 0.5, 0.3)), "environment"),
    "soft": (lambda loss: IRMTVLoss(loss, "l1", 10.0), "membership"),
    "vrex": (lambda loss: VRExLoss(loss, 10.0, n_environments=3), "environment"),
    "groupdro": (lambda loss: GroupDROLoss(loss, 3, 0.5), "environment"),
    "minimax": (lambda loss: MinimaxTVLoss(loss, "l1", 10.0, 2, 3), "aux"),
}


def batch(loss: str) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    f, y, codes = problem(loss, n=64)
    g = torch.Generator().manual_seed(5)
    q = torch.rand(64, 3, generator=g).softmax(1)
    y = y.float() if y.is_floating_point() else y
    return f.detach().float(), y, {"environment": codes, "membership": q, "aux": torch.rand(64, 2, generator=g)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_logits_give_float32_statistics(kind, dtype):
    make, where = KINDS[kind]
    f, y, extra = batch("binary")
    half = f.to(dtype).requires_grad_()
    wide = half.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):  # whose matmul and einsum would round the sums
        ours = make("binary")(half, y, **{where: extra[where]})
    theirs = make("binary")(wide, y, **{where: extra[where]})
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    ours.backward()
    theirs.backward()
    assert half.grad.dtype == dtype
    torch.testing.assert_close(half.grad, wide.grad.to(dtype))


def test_half_precision_membership_and_features():
    _, y, extra = batch("binary")
    layer = nn.Linear(4, 1)
    h = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(h)
        criterion = IRMTVLoss(classifier="vector")
        total = criterion(logits, y, membership=extra["membership"].bfloat16(), features=h, weight=layer.weight)
    total.backward()
    assert total.dtype == torch.float32 and layer.weight.grad.isfinite().all()


def test_a_gradient_scaler_gives_the_step_without_it():
    _, y, extra = batch("binary")
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    weights = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model, criterion = nn.Linear(4, 1), IRMTVLoss("binary", "l1", 100.0)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=2.0**12)
        for _ in range(5):
            sgd.zero_grad()
            scaler.scale(criterion(model(x), y, environment=extra["environment"])).backward()
            scaler.step(sgd)
            scaler.update()
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-6, atol=1e-7)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("irm-tv-l1", "binary"),
        ("irm-tv-l2", "multiclass"),
        ("given", "several"),
        ("soft", "squared"),
        ("vrex", "multiclass"),
        ("groupdro", "binary"),
        ("minimax", "binary"),
    ],
)
def test_compiled_in_one_graph(kind, loss):
    make, where = KINDS[kind]
    f, y, extra = batch(loss)
    plain, other = (make("squared" if loss == "several" else loss) for _ in range(2))
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    results = []
    for criterion in (plain, compiled):
        logits = f.clone().requires_grad_()
        total = criterion(logits, y, **{where: extra[where]})
        total.backward()
        results.append((total.detach(), logits.grad, [p.grad for p in criterion.parameters()]))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(other.risk_, plain.risk_)
    torch.testing.assert_close(other.by_environment_, plain.by_environment_)
    torch.testing.assert_close(other.state_dict(), plain.state_dict())


@pytest.mark.parametrize("settings", [{"loss": absolute}, {"loss": "binary", "classifier": "vector"}])
def test_compiled_functions_and_vector_classifiers(settings):
    f, y, extra = batch("squared" if callable(settings["loss"]) else "binary")
    layer, h = nn.Linear(4, 1), torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    vector = {"features": h, "weight": layer.weight} if "classifier" in settings else {}
    criterion = IRMTVLoss(**settings, n_environments=3)

    def step(f: Tensor) -> Tensor:
        logits = layer(h).squeeze(1) if vector else f
        return criterion(logits, y, environment=extra["environment"], **vector)

    results = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        logits = f.clone().requires_grad_()
        total = run(logits)
        results.append((total.detach(), torch.autograd.grad(total, layer.weight if vector else logits)))
    torch.testing.assert_close(results[1], results[0])


def test_a_weight_that_changes_is_not_compiled_anew_each_time():
    f, y, extra = batch("binary")
    criterion = IRMTVLoss(n_environments=3)
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(criterion, fullgraph=True, backend=count)
    for weight in (0.0, 1.0, 2.5, 10.0, 100.0, 1e3, 1e4, 1e5, 2e5, 3e5, 4e5, 5e5):
        criterion.penalty_weight = weight
        total = compiled(f, y, environment=extra["environment"])
        torch.testing.assert_close(total, (criterion.risk_ + weight * criterion.penalty_) / (1 + weight))
    assert len(graphs) <= 4
