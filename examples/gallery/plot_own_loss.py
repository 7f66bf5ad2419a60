"""
Your own loss, in your own loop
===============================

`IRMTVLoss` takes the place of a loss in a PyTorch loop. Its first argument may be a function of your own: here a focal
loss, which counts rows that are predicted well less.
"""

# %%
# The function gets the outputs and the labels, and returns one number per row.
import matplotlib.pyplot as plt
import torch
from torch import nn

from irmtv.datasets import make_simulation
from irmtv.losses import IRMTVLoss, warmup_weight


def focal(logits, y):
    cross_entropy = nn.functional.binary_cross_entropy_with_logits(logits.squeeze(-1), y, reduction="none")
    return (1 - torch.exp(-cross_entropy)) * cross_entropy


# %%
# Only the lines with `criterion` differ from a plain loop.
data = make_simulation(2000, p_s=(0.999, 0.7), p_v=0.9, random_state=0).train
x, y, environment = data.x, data.y, data.environment
STEPS, WARMUP = 400, 200
risks = {}
for weight in (0.0, 1e3):
    torch.manual_seed(0)
    model = nn.Linear(15, 1)
    criterion = IRMTVLoss(loss=focal)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    risks[weight] = []
    for step in range(STEPS):
        criterion.penalty_weight = warmup_weight(step, weight, WARMUP)
        optimizer.zero_grad()
        criterion(model(x), y, environment=environment).backward()
        optimizer.step()
        risks[weight].append(criterion.by_environment_["risk"].tolist())
    print(f"penalty weight {weight:g}: risk by environment {[round(r, 3) for r in risks[weight][-1]]}")

# %%
alt_text = (
    "The risk in two environments over the training steps. Without a penalty the two lines stay apart. With a penalty "
    "they come close to each other after it begins to act at step 200."
)
fig, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
for axes, (weight, values) in zip(panels, risks.items(), strict=True):
    for e, colour in enumerate(("#1f6f8b", "#d08030")):
        axes.plot([step[e] for step in values], color=colour, label=f"environment {e}")
    axes.axvline(WARMUP, color="black", linewidth=1, linestyle="--")
    axes.set_title("no penalty" if weight == 0 else f"penalty weight {weight:g}")
    axes.set_xlabel("step")
panels[0].set_ylabel("risk (focal loss)")
panels[0].legend()
plt.show()
