"""LfF: learning from failure. A biased network b learns what is easy; Phi learns the rows at which b fails.

    b:    min  mean_i  q stopgrad(p_i^q) l_i^b                  p_i = b's probability of row i's class
    Phi:  min  mean_i  W_i l_i,      W_i = L_i^b / (L_i^b + L_i + 1e-8),   without a gradient

l^b and l are the cross-entropies under b and Phi. b's loss favours rows that it already has right, so whatever
is learned first (a shortcut, where there is one) it learns more and more. The rows that the shortcut misleads keep a
high loss under b, and a weight W near 1.

variant "averaged", the published method: L^b and L are moving averages of the losses, kept for every training row,
each divided by its largest value among the training rows of the same class (else a class that is hard for b as a
whole would have all the weight). "plain", as in the code base on which the paper's experiments are built: b minimises
the generalised cross-entropy (1 - p^q) / q itself, whose gradient is that of the published loss divided by q, and
L^b and L are the present losses.

A cross-entropy is l = -log p, so everything here is a function of the losses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irmtv.objectives.base import Objective
from irmtv.objectives.parameters import check_in, choice, number

NO_DIVISION_BY_ZERO = 1e-8  # the authors' constant


def gce_weight(loss: Tensor, exponent: Tensor | float) -> Tensor:
    """q p^q, without a graph: what b's cross-entropies are multiplied with. (...) each.

    Divided by q it is the derivative of the generalised cross-entropy (1 - p^q) / q in the cross-entropy -log p.
    """
    return exponent * torch.exp(-exponent * loss.detach())


def relative_difficulty(biased: Tensor, debiased: Tensor) -> Tensor:
    """W in [0, 1): near 1 where b fails and Phi does not."""
    return biased / (biased + debiased + NO_DIVISION_BY_ZERO)


def moving_average(old: Tensor, value: Tensor, averaging: Tensor | float) -> Tensor:
    """alpha old + (1 - alpha) value; the value itself at the first visit, which a NaN in `old` says."""
    return torch.where(old.isnan(), value, averaging * old + (1 - averaging) * value)


def class_maximum(average: Tensor, classes: Tensor, n_classes: int) -> Tensor:
    """(..., N) averages and class codes, both of all training rows -> (..., C).

    Rows that were never visited (NaN) do not count; 0 where a class has no other.
    """
    seen = average.nan_to_num(0.0, posinf=torch.inf)  # losses are at least 0
    start = seen.new_zeros(*average.shape[:-1], n_classes)
    return start.scatter_reduce(-1, classes.expand_as(seen), seen, "amax")


def relative_to_class(average: Tensor, classes: Tensor, largest: Tensor) -> Tensor:
    """(..., n) averages of some rows, their classes, and (..., C) maxima -> (..., n) in [0, 1]."""
    return average / largest.gather(-1, classes.expand_as(average)).clamp_min(torch.finfo(average.dtype).tiny)


LFF = Objective(
    name="lff",
    formula="mean_i W_i l_i, W_i = L_i^b / (L_i^b + L_i)",
    summary="a second, biased network learns what is easy; rows at which it fails count more; no environments",
    source="Nam et al., NeurIPS",
    year=2020,
    needs="nothing",
    penalties=(),
    hyperparameters=(
        choice(
            "variant",
            ("averaged", "plain"),
            "'averaged': weights from moving averages of the losses, relative to the largest in the row's class (the "
            "published method); 'plain': from the present losses, and the biased network minimises the generalised "
            "cross-entropy itself (the code base on which the paper's experiments are built)",
        ),
        number(
            "gce_exponent",
            0.7,
            "q of the generalised cross-entropy: the larger, the more the biased network keeps to what it has right",
            ("linear", 0.1, 1.0),
            check_in("(0, 1]"),
        ),
        number(
            "averaging",
            0.7,
            "variant='averaged': the share of the past in the moving averages of the losses at each visit of a row",
            ("linear", 0.0, 0.99),
            check_in("[0, 1)"),
        ),
    ),
    tasks=("binary", "multiclass"),
    undefined={
        "regression": "its biased network is trained by the probability of the right class, which needs classes"
    },
    row_weights="relative-difficulty",
    not_applicable={
        "zero-weight-is-erm": "it has no penalty weight",
        "penalty-gradient": "it has no penalty",
        "authors-reduction": "it uses no slopes",
        "textbook-steps": "two networks train side by side, as tests/engine/components/test_biased_net.py checks",
    },
)
