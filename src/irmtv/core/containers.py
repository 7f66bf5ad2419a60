"""What holds numbers, asked without importing its library: a tensor can only come from where torch is loaded."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_sparse", "is_tensor"]


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_sparse(value: Any) -> bool:
    """Whether it is a sparse matrix or array of scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(value))
