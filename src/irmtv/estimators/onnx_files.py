"""A fitted estimator as an ONNX file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from irmtv.engine.networks import MLP
from irmtv.models.networks.onnx_export import to_onnx
from irmtv.models.networks.predictor import Predictor
from irmtv.persistence.archive import write_bytes


def write_onnx(estimator: Any, path: str | os.PathLike[str]) -> Path:
    """Whole or not at all; x is float64, as the estimators read it."""
    predictor: Predictor = estimator.predictor_
    if predictor.aux is not None:
        raise ValueError(
            f"to_onnx is for predictors of X alone; that of objective {estimator.objective_!r} reads aux beside it."
        )
    net = predictor.members[0].net
    if not isinstance(net, MLP):
        raise ValueError("to_onnx is for hidden=(...); export your own module with torch.onnx.export.")
    classes = getattr(estimator, "classes_", None)
    loss = "squared" if classes is None else "binary" if len(classes) == 2 else "multiclass"
    target = predictor.y
    graph = to_onnx(
        net,
        [m.parameters for m in predictor.members],
        loss,
        mean=predictor.x.mean,
        scale=predictor.x.scale,
        target_mean=None if target is None else target.mean,
        target_scale=None if target is None else target.scale,
        classes=classes,
    )
    return write_bytes(Path(path), graph.SerializeToString())
