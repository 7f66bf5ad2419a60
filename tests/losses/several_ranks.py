"""One process of a data-parallel training: `python several_ranks.py RANK RANKS FOLDER`.

Each case takes three steps on its share of the rows and writes the losses, the gradients and the parameters.
RANKS = 1 is the plain training on all rows that several ranks must equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from irmtv.losses import GroupDROLoss, IRMTVLoss, MinimaxTVLoss, VRExLoss

N = 30
CASES = {
    "irm-tv-l1": lambda: IRMTVLoss("binary", "l1", 20.0, n_environments=3),
    "irm-tv-l2": lambda: IRMTVLoss("binary", "l2", 20.0, "uniform", n_environments=3),
    "vector": lambda: IRMTVLoss("binary", "l1", 20.0, (0.2, 0.5, 0.3), classifier="vector"),
    "soft": lambda: IRMTVLoss("binary", "l1", 20.0),
    "one-rank-has-no-rows": lambda: IRMTVLoss("binary", "l1", 20.0, n_environments=3),
    "vrex": lambda: VRExLoss("binary", 20.0, n_environments=3),
    "groupdro": lambda: GroupDROLoss("binary", 3, 0.5),
    "minimax-l1": lambda: MinimaxTVLoss("binary", "l1", 20.0, 2, 2),
    "minimax-l2": lambda: MinimaxTVLoss("binary", "l2", 20.0, 2, 3),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x).tanh()
        return self.head(h), h


def train(case: str, rank: int, ranks: int) -> dict[str, list[Tensor]]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=g, dtype=torch.float64)
    y = (torch.rand(N, generator=g) > 0.5).double()
    codes = torch.arange(N) // 10  # the last environment is on the last rank alone
    q, aux = torch.rand(N, 3, generator=g).double().softmax(1), torch.rand(N, 2, generator=g).double()
    split = N if case == "one-rank-has-no-rows" else 18
    mine = slice(0, N) if ranks == 1 else (slice(0, split), slice(split, N))[rank]

    torch.manual_seed(1)
    net: nn.Module = Net().double()
    head = net.head
    criterion = CASES[case]().double()
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    sgd = torch.optim.SGD([*net.parameters(), *criterion.parameters()], lr=0.1, momentum=0.5)
    kept: dict[str, list[Tensor]] = {"losses": [], "gradients": [], "parameters": [], "log": []}
    for _ in range(3):
        sgd.zero_grad()
        logits, h = model(x[mine])
        extra = {"environment": codes[mine]}
        if case == "soft":
            extra = {"membership": q[mine]}
        elif case.startswith("minimax"):
            extra = {"aux": aux[mine]}
        elif case == "vector":
            extra |= {"features": h, "weight": head.weight}
        total = criterion(logits, y[mine], **extra)
        total.backward()
        kept["losses"].append(total.detach())
        kept["gradients"] += [p.grad.clone() for p in (*net.parameters(), *criterion.parameters())]
        kept["log"].append(criterion.by_environment_["risk"])
        sgd.step()
    kept["parameters"] = [p.detach() for p in (*net.parameters(), *criterion.parameters(), *criterion.buffers())]
    return kept


def messages(rank: int) -> list[str]:
    """Errors on every rank, and an evaluation on one rank that waits for nobody."""
    f, y, codes = torch.zeros(4), torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    said = []
    try:
        IRMTVLoss()(f, y, environment=codes)
    except ValueError as error:
        said.append(str(error))
    if rank == 0:
        IRMTVLoss().eval()(f, y, environment=codes)
        IRMTVLoss(reduce_across_ranks=False)(f, y, environment=codes)
        said.append("rank 0 went on alone")
    return said


def main(rank: int, ranks: int, folder: Path) -> None:
    if ranks > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=ranks)
    results = {case: train(case, rank, ranks) for case in CASES}
    said = messages(rank) if ranks > 1 else []
    torch.save({"results": results, "said": said}, folder / f"{ranks}-{rank}.pt")
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
