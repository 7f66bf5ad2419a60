"""A linear layer Phi (k x D) before a linear model, for columns that are mixtures: sensors, pixels, embeddings.

Whether a column is spurious has no meaning where columns are mixtures of others, and a vector classifier on them
penalises the wrong things. Nor does it help to train Phi: for coefficients b = Phi' a,

    min over Phi, a with Phi' a = b  of  sum_e mu_e |a * Phi g_e|^2   =   (1 / k) sum_e mu_e (b . g_e)^2

(by Cauchy and Schwarz it is no less; Phi_j = b / (k a_j) reaches it), which is the scalar classifier's penalty with
lambda / k. So Phi is taken from the data: the k principal directions of x, turned so that the first ones are those
along which the covariance of x and y differs most between environments. What is spurious then stands in few columns,
which can be left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from irmtv.core.types import Rows


def contrast_layer(rows: Rows, codes: Tensor, n_environments: int, k: int, n_outputs: int) -> Tensor:
    """Orthonormal directions (D, k) of x, those of the largest contrast between environments first."""
    x = rows.x.double().cpu().flatten(1)
    weight = torch.ones(len(rows), dtype=torch.float64) if rows.weight is None else rows.weight.double().cpu()
    y = rows.y.cpu()
    target = y.double().reshape(len(rows), -1) if y.is_floating_point() else _one_hot(y, n_outputs)
    mean = weight @ x / weight.sum()
    centred = x - mean
    _, directions = torch.linalg.eigh((centred * weight.unsqueeze(1)).T @ centred)  # ascending
    top = directions.flip(1)[:, :k]
    covariances = []
    for e in range(n_environments):
        mine = codes == e
        share = weight[mine] / weight[mine].sum() if bool(mine.any()) else weight[mine]
        inputs, outputs = x[mine] - share @ x[mine], target[mine] - share @ target[mine]
        covariances.append((inputs * share.unsqueeze(1)).T @ outputs)  # (D, C)
    stacked = torch.stack(covariances)  # (E, D, C)
    contrast = (stacked - stacked.mean(0)).transpose(1, 2).flatten(0, 1) @ top  # (E C, k)
    turned = torch.linalg.svd(contrast, full_matrices=True)[2]
    layer: Tensor = top @ turned.T
    return layer


def _one_hot(y: Tensor, n: int) -> Tensor:
    return torch.nn.functional.one_hot(y, n).double()
