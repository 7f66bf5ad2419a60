"""The held-out loss of ERM by environment, and a test that it is the same in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from irmtv.app.diagnose.erm_model import KINDS, ErmModel
from irmtv.app.diagnose.rows import DiagnosisRows, Floats, Ints
from irmtv.app.diagnose.words import LEVEL
from irmtv.core.numbers import Estimate, number, p_text, within
from irmtv.core.plain_json import estimate, finite
from irmtv.metrics import EnvironmentTable, evaluate_environments
from irmtv.selection.equality import equal_means

DRAWS = 500


@dataclass(frozen=True)
class LossByEnvironment:
    """Held-out loss and metric of ERM, per environment."""

    environments: tuple[str, ...]
    rows: tuple[int, ...]
    loss: tuple[Estimate, ...]
    overall: Estimate  # over all rows
    p: float  # of "the loss has the same mean in every environment"
    loss_name: str
    metric: str
    metric_values: tuple[Estimate, ...]
    metric_overall: Estimate
    greater_is_better: bool
    constant: float  # loss of the best constant, to compare with
    model: str = KINDS["linear"]  # in a sentence

    @property
    def differs(self) -> bool:
        return self.p < LEVEL

    @property
    def worst(self) -> int:
        """The environment with the largest loss."""
        return int(np.argmax([-np.inf if e["value"] is None else e["value"] for e in self.loss]))

    @property
    def best(self) -> int:
        return int(np.argmin([np.inf if e["value"] is None else e["value"] for e in self.loss]))

    @property
    def sentence(self) -> str:
        """One sentence."""
        loss = f"The held-out loss of the plain model ({self.model}; {self.loss_name})"
        if not self.differs:
            return (
                f"{loss} is {within(self.overall)} over all rows; that it differs between the environments is not "
                f"shown ({p_text(self.p)})."
            )
        worst, best = self.worst, self.best
        return (
            f"{loss} differs between the environments ({p_text(self.p)}): {within(self.loss[worst])} in "
            f"{self.environments[worst]}, {within(self.loss[best])} in {self.environments[best]}, "
            f"{number(self.overall['value'])} over all rows."
        )

    def summary(self) -> dict[str, Any]:
        each = zip(self.environments, self.rows, self.loss, self.metric_values, strict=True)
        return {
            "said": self.sentence,
            "loss": self.loss_name,
            "metric": self.metric,
            "greater_is_better": self.greater_is_better,
            "p": finite(self.p),
            "overall": {"loss": self.overall, "metric": self.metric_overall},
            "constant": self.constant,
            "worst": self.environments[self.worst],
            "environments": [
                {"name": name, "rows": n, "loss": loss, "metric": metric} for name, n, loss, metric in each
            ],
        }


def loss_by_environment(rows: DiagnosisRows, model: ErmModel, seed: int) -> LossByEnvironment:
    """Means with bootstrap intervals (rows drawn within environments), and the test that they are all equal."""
    loss_metric, metric = ("mse", "rmse") if rows.task == "regression" else ("log_loss", "accuracy")
    drawing: dict[str, Any] = {"names": rows.names, "n_bootstrap": DRAWS, "random_state": seed}
    codes, scale = rows.codes, rows.y_scale
    table = evaluate_environments(model.outputs[None], rows.y, codes, metric=loss_metric, **drawing)
    y = scale * rows.y if metric == "rmse" else rows.y
    beside = evaluate_environments(scale * model.outputs[None], y, codes, metric=metric, **drawing)
    loss, overall = _estimates(table)
    metrics, metric_overall = _estimates(beside)
    return LossByEnvironment(
        environments=rows.names,
        rows=tuple(rows.sizes.tolist()),
        loss=loss,
        overall=overall,
        p=p_of_equal_losses(model.loss, codes, len(rows.names)),
        loss_name="squared error / variance of the target" if rows.task == "regression" else "log loss",
        metric=metric,
        metric_values=metrics,
        metric_overall=metric_overall,
        greater_is_better=metric == "accuracy",
        constant=_constant_loss(rows),
        model=model.name,
    )


def p_of_equal_losses(loss: Floats, codes: Ints, n_environments: int) -> float:
    """The p-value of "the loss has the same mean in every environment", of loss and environment of every row."""
    sizes = np.bincount(codes, minlength=n_environments)
    mean = np.bincount(codes, loss, n_environments) / sizes
    variance = np.bincount(codes, (loss - mean[codes]) ** 2, n_environments) / np.maximum(sizes - 1, 1)
    p = equal_means(torch.as_tensor(mean)[None], torch.as_tensor(variance / sizes)[None], torch.as_tensor(sizes)[None])
    return float(p[0])


def _estimates(table: EnvironmentTable) -> tuple[tuple[Estimate, ...], Estimate]:
    """By environment and overall, of a table of one run."""
    assert table.intervals is not None
    low, high = table.intervals["by_environment"]
    whole = table.intervals["overall"]
    each = tuple(map(estimate, table.by_environment[0], low[0], high[0]))
    return each, estimate(table.overall[0], whole.lower[0], whole.upper[0])


def _constant_loss(rows: DiagnosisRows) -> float:
    """The loss of the best constant prediction."""
    if rows.task == "regression":
        return float(np.mean(rows.y**2))
    shares = np.bincount(rows.y.astype(np.int64)) / len(rows)
    return float(-(shares * np.log(shares.clip(1e-300))).sum())
