"""SparseIRM's formulas by hand, and its settings."""

from __future__ import annotations

import math

import pytest
import torch

from irmtv import OBJECTIVES
from irmtv.core.types import Statistics
from irmtv.objectives.sparse_irm import kept_at, kept_weights, soft_mask, temperature

F64 = torch.float64
SPARSE = OBJECTIVES["sparse-irm"]


def number(x):
    return torch.tensor(float(x), dtype=F64)


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (750, 1 / 0.515), (420, 1 / 0.7284), (1500, 1 / 0.03)])
def test_the_temperature(step, expected):
    assert temperature(number(step), 1500).item() == pytest.approx(expected, rel=1e-12)


def test_the_kept_share_falls_on_a_cubic_curve():
    shares = torch.tensor([0.95, 0.2, 1.0], dtype=F64)
    for step, left in ((0, 1), (420, 1), (540, 27 / 64), (660, 1 / 8), (780, 1 / 64), (900, 0), (1500, 0)):
        expected = [0.95 + 0.05 * left, 0.2 + 0.8 * left, 1.0]
        assert kept_at(number(step), 420, 900, shares).tolist() == pytest.approx(expected, rel=1e-12)
    at_once = [kept_at(number(step), 30, 30, shares).tolist() for step in (30, 31)]
    assert at_once == [[1.0, 1.0, 1.0], shares.tolist()]


def test_the_mask_by_hand():
    scores = torch.tensor([[0.2, 0.5, 0.9]], dtype=F64)
    noise = torch.tensor([[0.7, -1.0, 2.0]], dtype=F64)
    for t in (1.0, 1.4, 33.0):
        expected = [
            1 / (1 + math.exp(-t * (math.log(s / (1 - s)) + g)))
            for s, g in zip(scores[0].tolist(), noise[0].tolist(), strict=True)
        ]
        assert soft_mask(scores, noise, number(t))[0].tolist() == pytest.approx(expected, rel=1e-12)


def test_hard_masks_are_drawn_with_the_keep_probability():
    """At the highest temperature a mask is above one half exactly when logit s + noise > 0: with probability s."""
    uniform = (torch.arange(100_000, dtype=F64) + 0.5) / 100_000
    for s in (0.05, 0.3, 0.5, 0.95):
        mask = soft_mask(torch.full_like(uniform, s), torch.logit(uniform), number(33))
        assert (mask > 0.5).double().mean().item() == pytest.approx(s, abs=1e-4)
        assert ((mask > 0.01) & (mask < 0.99)).double().mean() < 0.08


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_certain_weight_has_a_certain_mask_without_a_slope(dtype):
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=dtype, requires_grad=True)
    noise = torch.tensor([-17.0, 17.0, 17.0, -17.0], dtype=dtype)
    for t in (1.0, 1.4, 33.0):
        mask = soft_mask(scores, noise, torch.tensor(t, dtype=dtype))
        assert mask.tolist() == [1, 0, 1, 0]
        (slope,) = torch.autograd.grad(mask.sum(), scores)
        assert (slope == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_slopes_are_those_of_the_formula_and_finite_up_to_the_bounds(dtype):
    tiny = torch.finfo(dtype).tiny
    extreme = torch.tensor([tiny, 1e-30, 1e-9, 1 - 1e-6, 1 - torch.finfo(dtype).eps / 2], dtype=dtype)
    for g in (-17.0, 0.0, 17.0):
        scores = extreme.clone().requires_grad_()
        mask = soft_mask(scores, torch.full_like(extreme, g), torch.tensor(33.0, dtype=dtype))
        (slope,) = torch.autograd.grad(mask.sum(), scores)
        assert mask.isfinite().all() and slope.isfinite().all()
    if dtype == F64:
        noise = torch.tensor([0.3, -0.4, 1.0, -2.0], dtype=F64)
        inside = torch.tensor([0.1, 0.4, 0.6, 0.97], dtype=F64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda s: soft_mask(s, noise, number(2.0)), inside)


def test_which_weights_a_fitted_model_keeps():
    scores = torch.tensor(
        [
            [1.0, 0.9, 0.6, 0.5, 0.49, 0.0],  # four are likely, and may all stay
            [1.0, 0.9, 0.6, 0.5, 0.49, 0.0],  # but only three may
            [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],  # undecided: the first ones, no more than may
            [0.3, 0.2, 0.1, 0.0, 0.0, 0.0],  # none is likely
            [0.4, 0.1, 0.7, 0.0, 0.0, 0.0],
        ]
    )
    share = torch.tensor([5 / 6, 0.5, 1 / 3, 0.1, 0.01])
    assert kept_weights(scores, share).int().tolist() == [
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],  # at least one may stay
    ]


@pytest.mark.parametrize("name", ["irm-tv-l2", "irm-tv-l1", "vrex"])
def test_the_penalty_is_that_of_the_named_objective(name):
    generator = torch.Generator().manual_seed(0)
    risk, slope = torch.randn(2, 4, 3, generator=generator, dtype=F64)
    e = Statistics(risk.mean(1), torch.tensor([[0.5, 0.3, 0.2]], dtype=F64), risk, slope)
    settings = SPARSE.resolve({"penalty": name})
    chosen, plain = SPARSE.chosen(settings), OBJECTIVES[name]
    assert chosen.uses(settings) == plain.uses(settings)
    assert torch.equal(chosen.penalty_values(e, settings)[0], plain.penalty_values(e, settings)[0])
    assert chosen.explicit and chosen.mask == "sparse"
    assert chosen.weights(settings["penalty_weight"]) == [1e4]
    assert chosen.weights({"sparse-irm": 7.0}) == [7.0]


def test_defaults_are_the_published_commands():
    settings = SPARSE.resolve({})
    expected = {
        "penalty": "irm-tv-l2",
        "penalty_weight": 1e4,
        "warmup": 0.13,
        "kept_share": 0.95,
        "sparsify_from": 0.28,
        "sparsify_until": 0.6,
        "score_learning_rate": 6e-3,
    }
    assert {k: settings[k] for k in expected} == expected
    assert {h.name for h in SPARSE.hyperparameters if h.per_run} >= {"kept_share", "score_learning_rate", "warmup"}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("kept_share", 0),
        ("kept_share", 1.1),
        ("kept_share", True),
        ("sparsify_from", -0.1),
        ("sparsify_until", 1.5),
        ("score_learning_rate", 0.0),
        ("penalty", "irmv1"),
    ],
)
def test_bad_settings_are_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=f"{name} of 'sparse-irm' must be"):
        SPARSE.resolve({name: bad})


def test_it_is_no_part_of_a_sum():
    with pytest.raises(ValueError, match="'sparse-irm' is a way of training"):
        OBJECTIVES["sparse-irm+vrex"]
