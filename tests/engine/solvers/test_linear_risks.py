"""Risks of linear models and their derivatives, against torch's own differentiation of a risk that is written out."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import hessian, jacobian
from torch.func import grad
from torch.nn import functional

from engine.problems import losses
from irmtv.core.losses import Binary, Multiclass, Squared
from irmtv.core.types import Rows
from irmtv.engine.solvers import linear_risks
from irmtv.engine.solvers.linear_risks import LinearRisks, row_slopes

N, D, E = 90, 3, 4  # the third of the four environments has no rows
OUTPUTS = {"binary": 1, "three classes": 3, "four classes": 4, "squared": 1, "two targets": 2, "three targets": 3}
LOSS = {"binary": "binary", "three classes": "multiclass", "four classes": "multiclass"}  # else squared
CASES = [
    (kind, weighted, kept)
    for kind in OUTPUTS
    for weighted in (False, True)
    for kept in ((True, False) if kind in LOSS else (True,))  # squared errors keep their moments instead
]


def problem(kind, weighted=False, seed=0):
    """Rows and their environments, in no order."""
    g = torch.Generator().manual_seed(seed)
    c = OUTPUTS[kind]
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    codes = torch.tensor([0, 1, 3])[torch.multinomial(torch.tensor([1.0, 2.0, 3.0]), N, True, generator=g)]
    y = {
        "binary": lambda: torch.randint(2, (N,), generator=g).double(),
        "multiclass": lambda: torch.randint(c, (N,), generator=g),
        "squared": lambda: torch.randn(N, c, generator=g, dtype=torch.float64).squeeze(1),
    }[LOSS.get(kind, "squared")]()
    weight = None
    if weighted:
        weight = torch.rand(N, generator=g, dtype=torch.float64) * (torch.rand(N, generator=g) > 0.2)
    loss = {"binary": Binary(), "multiclass": Multiclass()}.get(LOSS.get(kind, ""), Squared(c))
    return Rows(x, y, environment=codes, names=tuple("abcd"), weight=weight), codes, loss


def plain_risk(kind, rows, codes, e, theta):
    """The weighted mean of the losses in one environment, for one model (P,)."""
    layer = theta.view(OUTPUTS[kind], D + 1)
    f = rows.x @ layer[:, :D].T + layer[:, D]
    each = losses(LOSS.get(kind, "squared"), f.squeeze(1), rows.y)
    weight = (codes == e) * (torch.ones(N, dtype=torch.float64) if rows.weight is None else rows.weight)
    return (weight * each).sum() / weight.sum() if bool(weight.any()) else 0 * each.sum()


def risks_and_models(kind, weighted, kept, monkeypatch):
    if not kept:
        monkeypatch.setattr(linear_risks, "PRODUCTS_KEPT", 0)
    rows, codes, loss = problem(kind, weighted)
    risks = LinearRisks(rows, codes, E, loss, OUTPUTS[kind])
    theta = torch.randn(2, risks.n_parameters, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return rows, codes, risks, theta


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("kind", "weighted", "kept"), CASES)
def test_risks_gradients_and_hessians(kind, weighted, kept, monkeypatch):
    rows, codes, risks, theta = risks_and_models(kind, weighted, kept, monkeypatch)
    assert (risks.shared.products is not None) == (kept and kind in LOSS)
    assert risks.n_parameters == OUTPUTS[kind] * (D + 1)
    point = risks.at(theta)
    for e in range(E):

        def of_one(one, e=e):
            return plain_risk(kind, rows, codes, e, one)

        for k in range(len(theta)):
            same(point.risk[k, e], of_one(theta[k]))
            same(point.gradient[k, e], grad(of_one)(theta[k]))
            same(point.hessian[k, e], hessian(of_one, theta[k]))
    assert not point.risk[:, 2].any() and not point.gradient[:, 2].any() and not point.hessian[:, 2].any()


@pytest.mark.parametrize(("kind", "weighted", "kept"), CASES)
def test_the_third_derivative_along_a_direction(kind, weighted, kept, monkeypatch):
    rows, codes, risks, theta = risks_and_models(kind, weighted, kept, monkeypatch)
    v = torch.randn(2, E, risks.n_parameters, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = risks.along(risks.at(theta), v)
    for k in range(2):

        def slope(one, k=k):
            by_environment = [grad(lambda o, e=e: plain_risk(kind, rows, codes, e, o))(one) for e in range(E)]
            return (torch.stack(by_environment) * v[k]).sum()

        expected = hessian(slope, theta[k])
        same(found[k], expected)


@pytest.mark.parametrize("kind", OUTPUTS)
def test_slopes_of_rows(kind):
    """In a classifier that multiplies the columns, or the outputs where there are several."""
    rows, _, loss = problem(kind)
    c = OUTPUTS[kind]
    theta = torch.randn(c * (D + 1), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = theta.view(c, D + 1)

    def each(w):
        f = (rows.x * w if c == 1 else rows.x) @ layer[:, :D].T + layer[:, D]
        return losses(LOSS.get(kind, "squared"), f.squeeze(1) if c == 1 else f * w, rows.y)

    ones = torch.ones(D if c == 1 else c, dtype=torch.float64)
    same(row_slopes(rows, theta, loss, c), jacobian(each, ones))


@pytest.mark.parametrize("weighted", [False, True])
def test_masses_and_shares(weighted):
    rows, codes, loss = problem("binary", weighted)
    risks = LinearRisks(rows, codes, E, loss, 1)
    counts = torch.ones(N, dtype=torch.float64) if rows.weight is None else rows.weight
    same(risks.mass, torch.stack([counts[codes == e].sum() for e in range(E)]) / counts.sum())
    assert risks.mass[2] == 0
    sums = torch.stack([risks.share[part].sum() for part in risks.parts])
    same(sums, torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=torch.float64))


def test_an_environment_whose_rows_count_nothing_is_one_without_rows():
    rows, codes, loss = problem("binary")
    silent = Rows(rows.x, rows.y, environment=codes, names=rows.names, weight=(codes != 1).double())
    without = Rows(rows.x[codes != 1], rows.y[codes != 1], environment=codes[codes != 1], names=rows.names)
    theta = torch.linspace(-1, 1, D + 1, dtype=torch.float64).unsqueeze(0)
    a, b = LinearRisks(silent, codes, E, loss, 1), LinearRisks(without, without.environment, E, loss, 1)
    same(a.mass, b.mass)
    for mine, theirs in zip(
        (a.at(theta).risk, a.at(theta).gradient, a.at(theta).hessian),
        (b.at(theta).risk, b.at(theta).gradient, b.at(theta).hessian),
        strict=True,
    ):
        same(mine, theirs)
    v = torch.ones(1, E, D + 1, dtype=torch.float64)
    same(a.along(a.at(theta), v), b.along(b.at(theta), v))


@pytest.mark.parametrize("kind", ["binary", "three classes", "squared"])
def test_rows_of_single_precision_are_computed_in_double(kind):
    rows, codes, loss = problem(kind)
    y = rows.y.float() if rows.y.is_floating_point() else rows.y
    single = Rows(rows.x.float(), y, environment=codes, names=rows.names)
    back = Rows(single.x.double(), y.double() if y.is_floating_point() else y, environment=codes, names=rows.names)
    c = OUTPUTS[kind]
    theta = torch.full((1, c * (D + 1)), 0.3, dtype=torch.float64)
    a, b = (LinearRisks(r, codes, E, loss, c).at(theta) for r in (single, back))
    assert a.risk.dtype == a.gradient.dtype == a.hessian.dtype == torch.float64
    assert torch.equal(a.risk, b.risk) and torch.equal(a.hessian, b.hessian)


def test_logits_of_a_thousand_overflow_nothing():
    for kind in ("binary", "three classes"):
        rows, codes, loss = problem(kind)
        risks = LinearRisks(rows, codes, E, loss, OUTPUTS[kind])
        theta = 1000 * torch.randn(1, risks.n_parameters, generator=torch.Generator().manual_seed(3)).double()
        point = risks.at(theta)
        same(point.risk[0, 0], plain_risk(kind, rows, codes, 0, theta[0]))
        for part in (point.risk, point.gradient, point.hessian, risks.along(point, point.gradient)):
            assert bool(part.isfinite().all())


def test_series_are_read_as_one_long_row():
    rows, codes, loss = problem("binary")
    wide = Rows(functional.pad(rows.x, (0, 1)).view(N, 2, 2), rows.y, environment=codes, names=rows.names)
    theta = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(0)
    short = theta[:, [0, 1, 2, 4]]
    a, b = LinearRisks(wide, codes, E, loss, 1).at(theta), LinearRisks(rows, codes, E, loss, 1).at(short)
    same(a.risk, b.risk)
    same(a.gradient[..., [0, 1, 2, 4]], b.gradient)


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_folds_share_their_rows_and_have_the_risks_of_their_own(kind, weighted):
    rows, codes, loss = problem(kind, weighted)
    rows = rows.take(torch.arange(N).repeat(2)[: N + 5])  # some rows twice
    codes, c = codes.repeat(2)[: N + 5], OUTPUTS[kind]
    parts = [(torch.arange(N + 5) % 5 != k).nonzero().squeeze(1) for k in range(5)]
    folds = [rows.take(index) for index in parts]
    shared = LinearRisks.several(folds, [codes[index] for index in parts], E, loss, c)
    assert len({id(one.shared) for one in shared}) == 1 and len(shared[0].x) == N
    theta = torch.randn(2, c * (D + 1), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    v = torch.randn(2, E, c * (D + 1), generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    for one, fold, index in zip(shared, folds, parts, strict=True):
        alone = LinearRisks(fold, codes[index], E, loss, c)
        same(one.mass, alone.mass)
        same(one.effective, alone.effective)
        a, b = one.at(theta), alone.at(theta)
        for name in ("risk", "gradient", "hessian"):
            same(getattr(a, name), getattr(b, name))
        same(one.spread(theta), alone.spread(theta))
        same(one.along(a, v), alone.along(b, v))


def test_data_sets_without_common_rows_share_nothing():
    rows, codes, loss = problem("binary")
    half = [torch.arange(N // 2), torch.arange(N // 2, N)]
    sets = LinearRisks.several([rows.take(h) for h in half], [codes[h] for h in half], E, loss, 1)
    assert sets[0].shared is not sets[1].shared


def test_rows_that_differ_only_in_zeros_and_ones_are_told_apart():
    table = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 12).double()
    first, place = linear_risks._distinct(table)
    assert len(first) == 4096 and torch.equal(table[first][place], table)
    twice = torch.cat([table, table[:100]])
    first, place = linear_risks._distinct(twice)
    assert len(first) == 4096 and torch.equal(twice[first][place], twice)
