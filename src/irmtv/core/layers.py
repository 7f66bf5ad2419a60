"""The layers of irmtv's own networks, by their widths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

__all__ = ["layer_shapes"]


def layer_shapes(widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a network's parameters, of inputs, hidden layers and outputs of these widths.

    >>> layer_shapes((3, 1))
    {'W0': (1, 3), 'b0': (1, 1)}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (n_in, n_out) in enumerate(pairwise(widths)):
        shapes[f"W{i}"] = (n_out, n_in)
        shapes[f"b{i}"] = (n_out, 1)  # a column, so that no step has to reshape it
    return shapes
