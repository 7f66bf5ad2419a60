"""Networks by name, such as a paper's: specs name them, and `make_network` builds them.

A network has the run axis built in (:mod:`irmtv.engine`), so that many runs of it train in one program. What it reads
and how many outputs it needs are the data's: a name stands for the architecture alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from irmtv.core.messages import did_you_mean
from irmtv.engine import Conv1d


@dataclass(frozen=True)
class Network:
    """An architecture: how it is built, and what it is."""

    build: Callable[[int, int], Conv1d]  # (channels, outputs) -> a network for `irmtv.train(net=...)`
    layers: str
    source: str


NETWORKS: Mapping[str, Network] = {
    "landcover-cnn": Network(
        lambda n_channels, n_outputs: Conv1d(n_channels, n_outputs),
        "Conv1d(channels, 32, 5) - ReLU - Conv1d(32, 32, 3) - ReLU - MaxPool1d(2, 2) - Conv1d(32, 64, 3) - ReLU - "
        "MaxPool1d(2, 2) - Conv1d(64, outputs, 3) - ReLU - mean over time; paddings 2, 1, 1, 1",
        "The paper's architecture table for Landcover, channels and classes left open. Its last ReLU makes every "
        "logit at least 0: a row of which no output fires has equal logits and no gradient.",
    ),
    "series-cnn": Network(
        lambda n_channels, n_outputs: Conv1d(n_channels, n_outputs, last_relu=False),
        "the layers of landcover-cnn without the last ReLU",
        "Ours: logits of both signs, as a softmax expects them and one logit needs them.",
    ),
}


def make_network(name: str, inputs: Sequence[int], n_outputs: int) -> Conv1d:
    """The network of that name for data of that shape.

    Parameters
    ----------
    name : str
        One of `NETWORKS`: "landcover-cnn" or "series-cnn".
    inputs : (channels, length)
        The shape of one row of x, channels first: ``task.train.x.shape[1:]``.
    n_outputs : int
        Outputs, one per class: ``task.n_outputs``.

    Returns
    -------
    Conv1d
        What `irmtv.train` takes as ``net=`` and an estimator as ``module=``.

    Examples
    --------
    >>> net = make_network("landcover-cnn", (8, 46), 6)
    >>> net.shapes["W0"], net.shapes["W3"]
    ((32, 8, 5), (6, 64, 3))
    """
    network = NETWORKS.get(name) if isinstance(name, str) else None
    if network is None:
        raise ValueError(f"network must be one of {list(NETWORKS)}. Got {name!r}.{did_you_mean(name, NETWORKS)}")
    shape: tuple[Any, ...] = tuple(inputs)
    if len(shape) != 2:
        raise ValueError(
            f"network {name!r} reads series: inputs must be (channels, length), so x (rows, channels, length). Got "
            f"{shape}. Use hidden=... for a table."
        )
    if shape[1] < 4:
        raise ValueError(
            f"network {name!r} halves the length twice: series must have at least 4 times. Got {shape[1]}. Put "
            "channels first, (rows, channels, length), or use a network of your own."
        )
    return network.build(int(shape[0]), n_outputs)
