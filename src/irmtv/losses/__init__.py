"""Losses for a PyTorch user's own network and training loop.

Each is a ``torch.nn.Module``: give it the logits, the labels and where the rows came from, and call ``backward()``.

>>> import torch
>>> from irmtv.losses import IRMTVLoss, warmup_weight
>>> model, criterion = torch.nn.Linear(3, 1), IRMTVLoss(loss="binary", norm="l1")
>>> optimizer = torch.optim.Adam(model.parameters())
>>> x, y, environment = torch.randn(30, 3), torch.randint(2, (30,)), torch.arange(30) % 2
>>> for step in range(20):
...     criterion.penalty_weight = warmup_weight(step, 1e3, warmup=10)
...     optimizer.zero_grad()
...     criterion(model(x), y, environment=environment).backward()
...     optimizer.step()

What is known of each row decides: its environment (:class:`IRMTVLoss`, :class:`VRExLoss`, :class:`GroupDROLoss`) or
only what the environments may depend on (:class:`MinimaxTVLoss`).

To read it: `irm_tv` (a loss from end to end), `base` (what they share), `batch` (the user's batch -> the mathematics),
`ranks` (several processes).
"""

from irmtv.losses.base import EnvironmentLoss, warmup_weight
from irmtv.losses.groupdro import GroupDROLoss
from irmtv.losses.irm_tv import IRMTVLoss, VRExLoss
from irmtv.losses.minimax import MinimaxTVLoss

__all__ = ["EnvironmentLoss", "GroupDROLoss", "IRMTVLoss", "MinimaxTVLoss", "VRExLoss", "warmup_weight"]
