"""A trained network as an ONNX graph: from rows in the user's units to probabilities or targets, without torch.

The graph is written node by node from the arrays, so what runs elsewhere is what stands here. x comes as float64, any
number of rows, and is standardised in float64, as the estimators do: a time stamp in seconds has a resolution of two
minutes in float32, and no scaling brings back what the input has lost. The network is computed in float32.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from irmtv._version import __version__
from irmtv.data.scaling import Scaler
from irmtv.engine.networks import MLP
from irmtv.models.networks.predictor import Predictor
from irmtv.persistence.archive import write_bytes
from irmtv.persistence.encoding import dump_json, encode

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 17  # old enough for every runtime in use, new enough for everything below
IR_VERSION = 8  # the one that belongs to it


def write_onnx(predictor: Predictor, classes: npt.NDArray[Any] | None, path: str | os.PathLike[str]) -> Path:
    """Write the graph of `to_onnx`, whole or not at all."""
    return write_bytes(Path(path), to_onnx(predictor, classes).SerializeToString())


def to_onnx(predictor: Predictor, classes: npt.NDArray[Any] | None = None) -> ModelProto:
    """Build the graph of a predictor; of several members the logits are averaged.

    Parameters
    ----------
    predictor : Predictor
        Its networks are MLPs that read X alone.
    classes : array or None, default None
        Labels of a classifier, stored as JSON in the metadata "classes"; None for a regression.

    Returns
    -------
    onnx.ModelProto
        Checked. The input is `x`, (N, D) float64. The outputs are `probabilities` (N, C) float32 and `label` (N,), its
        int64 position in `classes`; or `prediction` float32, (N,) for one target and (N, C) for several.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("to_onnx needs the package onnx: pip install 'irmtv[onnx]'") from error
    if predictor.aux is not None:
        raise ValueError("to_onnx is for predictors of X alone; that of this estimator reads aux beside it.")
    net = predictor.members[0].net
    if not isinstance(net, MLP):
        raise ValueError("to_onnx is for hidden=(...); export your own module with torch.onnx.export.")
    graph = _Graph(onnx)
    z = graph.add("Sub", ["x", graph.constant(predictor.x.mean, "mean", "float64")], "x_sub")
    z = graph.add("Div", [z, graph.constant(predictor.x.scale, "scale", "float64")], "x_div")
    z = graph.cast(z, "FLOAT", "z")
    outputs = [_forward(graph, net, member.parameters, z, f"m{i}_") for i, member in enumerate(predictor.members)]
    logits = outputs[0] if len(outputs) == 1 else graph.add("Mean", outputs, "logits")  # (N, C)
    if classes is None:
        results = _prediction(graph, net.n_outputs, logits, predictor.y)
    else:
        results = _probabilities(graph, net.n_outputs, logits)
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        "irmtv",
        [value("x", onnx.TensorProto.DOUBLE, ["N", net.widths[0]])],
        [value(name, getattr(onnx.TensorProto, dtype), ["N", *shape]) for name, dtype, shape in results],
        graph.constants,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    model: ModelProto = onnx.helper.make_model(made, opset_imports=[opset], ir_version=IR_VERSION)
    model.producer_name, model.producer_version = "irmtv", __version__
    if classes is not None:
        listed = dump_json(encode(classes.tolist(), "classes")).decode("ascii")
        onnx.helper.set_model_props(model, {"classes": listed})
    onnx.checker.check_model(model, full_check=True)
    return model


class _Graph:
    """Nodes and constants in the order in which they are used; a name is what the node's result is called."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def add(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(self._onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: npt.ArrayLike, name: str, dtype: str) -> str:
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
        self.constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def cast(self, value: str, to: str, name: str) -> str:
        return self.add("Cast", [value], name, to=getattr(self._onnx.TensorProto, to))


_Results = list[tuple[str, str, tuple[int, ...]]]  # name, type, and shape without the rows


def _forward(graph: _Graph, net: MLP, parameters: Mapping[str, Tensor], z: str, prefix: str) -> str:
    """The network of one member on standardised rows: (N, C). The parameters have a run axis of 1."""
    h = z
    for i in range(len(net.widths) - 1):
        if i > 0:
            h = graph.add("Relu", [h], f"{prefix}relu{i}")
        shapes = {f"W{i}": net.shapes[f"W{i}"], f"b{i}": (-1,)}  # (out, in), (out,)
        arrays = {name: parameters[name].detach().cpu().numpy().reshape(shape) for name, shape in shapes.items()}
        inputs = [h, *(graph.constant(array, f"{prefix}{name}", "float32") for name, array in arrays.items())]
        h = graph.add("Gemm", inputs, f"{prefix}layer{i}", transB=1)
    return h


def _probabilities(graph: _Graph, n_outputs: int, logits: str) -> _Results:
    if n_outputs == 1:  # both columns by the sigmoid: 1 - p would lose small probabilities
        minus = graph.add("Neg", [logits], "minus_logits")
        columns = [graph.add("Sigmoid", [value], f"p{i}") for i, value in enumerate((minus, logits))]
        graph.add("Concat", columns, "probabilities", axis=1)
        # by the logit, as predict does: a probability rounds to 0.5 before a logit rounds to 0
        positive = graph.add("Greater", [logits, graph.constant(0.0, "zero", "float32")], "positive")
        label = graph.cast(positive, "INT64", "label_column")
        graph.add("Squeeze", [label, graph.constant([1], "axis", "int64")], "label")
        return [("probabilities", "FLOAT", (2,)), ("label", "INT64", ())]
    graph.add("Softmax", [logits], "probabilities", axis=1)
    graph.add("ArgMax", [logits], "label", axis=1, keepdims=0)
    return [("probabilities", "FLOAT", (n_outputs,)), ("label", "INT64", ())]


def _prediction(graph: _Graph, n_outputs: int, value: str, units: Scaler | None) -> _Results:
    if units is not None:
        value = graph.cast(value, "DOUBLE", "outputs_double")
        value = graph.add("Mul", [value, graph.constant(units.scale, "target_scale", "float64")], "outputs_mul")
        value = graph.add("Add", [value, graph.constant(units.mean, "target_mean", "float64")], "outputs_add")
        value = graph.cast(value, "FLOAT", "outputs")
    if n_outputs == 1:
        graph.add("Squeeze", [value, graph.constant([1], "axis", "int64")], "prediction")
        return [("prediction", "FLOAT", ())]
    graph.add("Identity", [value], "prediction")
    return [("prediction", "FLOAT", (n_outputs,))]
