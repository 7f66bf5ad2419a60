"""A trained network as an ONNX graph: from rows in the user's units to probabilities or targets, without torch.

The graph is written node by node from the arrays, so what runs elsewhere is what stands here. x comes as float64, any
number of rows, and is standardised in float64, as the estimators do: a time stamp in seconds has a resolution of two
minutes in float32, and no scaling brings back what the input has lost. The network is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from irmtv._version import __version__
from irmtv.core.messages import did_you_mean, shown
from irmtv.engine.networks import MLP, Conv1d
from irmtv.persistence.encoding import dump_json, encode

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["to_onnx"]

Array = npt.NDArray[Any] | Tensor
OPSET = 17  # old enough for every runtime in use, new enough for everything below
IR_VERSION = 8  # the one that belongs to it
_LOSSES = ("binary", "multiclass", "squared")
_INPUTS = {"float64": "DOUBLE", "float32": "FLOAT"}


def to_onnx(
    net: MLP | Conv1d,
    members: Sequence[Mapping[str, Array]],
    loss: str,
    *,
    mean: npt.ArrayLike | None = None,
    scale: npt.ArrayLike | None = None,
    target_mean: npt.ArrayLike | None = None,
    target_scale: npt.ArrayLike | None = None,
    classes: Sequence[Any] | npt.NDArray[Any] | None = None,
    input_dtype: str = "float64",
) -> ModelProto:
    """Build the graph of a model, or of the mean of several.

    Parameters
    ----------
    net : MLP or Conv1d
        The form of the network: its layers, kernels and pools.
    members : sequence of mappings of str to array or tensor
        Parameters by name, in the shapes of `net.shapes`, also with a run axis of 1 before them. Of several members
        the logits are averaged.
    loss : {"binary", "multiclass", "squared"}
        What the outputs mean. "binary" and "multiclass": `probabilities` (N, C) and `label` (N,), the position in
        `classes`. "squared": `prediction`, (N,) for one target and (N, C) for several.
    mean, scale : array or None, default None
        x is standardised to (x - mean) / scale; they have the shape of one row or broadcast to it. None: 0 and 1. A
        scale may be inf: the column is then 0, whatever comes (as of one that is constant in training).
    target_mean, target_scale : array or None, default None
        Predictions are target_scale * output + target_mean, one number per target. None: 0 and 1.
    classes : sequence, array or None, default None
        Stored as JSON in the metadata "classes", for whoever turns positions into labels.
    input_dtype : {"float64", "float32"}, default "float64"
        The type of x. float32 halves what is sent, and is enough where columns are not far from 0 compared with how
        much they vary: it has 7 digits, those of the offset included.

    Returns
    -------
    onnx.ModelProto
        Checked; `model.SerializeToString()` are the bytes of a file. The input is `x`, of `input_dtype`: (N, D) for an
        MLP and (N, channels, length) for a Conv1d. The outputs are float32, `label` int64.

    Examples
    --------
    >>> parameters = {"W0": np.array([[1.0, -1.0]]), "b0": np.array([[0.5]])}
    >>> model = to_onnx(MLP(2), [parameters], "squared")
    >>> [node.op_type for node in model.graph.node], [output.name for output in model.graph.output]
    (['Cast', 'Gemm', 'Squeeze'], ['prediction'])
    """
    onnx = _import_onnx()
    if not isinstance(net, (MLP, Conv1d)):
        raise ValueError(
            f"net must be an MLP or a Conv1d. Got {type(net).__name__}; export your own module with torch.onnx.export."
        )
    if loss not in _LOSSES:
        raise ValueError(f"loss must be one of {shown(_LOSSES)}. Got {loss!r}.{did_you_mean(loss, _LOSSES)}")
    if input_dtype not in _INPUTS:
        near = did_you_mean(input_dtype, _INPUTS)
        raise ValueError(f"input_dtype must be one of {shown(_INPUTS)}. Got {input_dtype!r}.{near}")
    several = {"binary": net.n_outputs != 1, "multiclass": net.n_outputs < 2, "squared": False}
    if several[loss]:
        need = "one output" if loss == "binary" else "an output per class"
        raise ValueError(f"net must have {need} for loss {loss!r}. Got {net.n_outputs} outputs.")
    if loss != "squared" and (target_mean is not None or target_scale is not None):
        raise ValueError(f"target_mean and target_scale must be None for loss {loss!r}: classes have no units.")
    if len(members) == 0:
        raise ValueError("members must hold the parameters of at least one model. Got none.")
    row = (net.widths[0],) if isinstance(net, MLP) else (net.widths[0], "length")
    graph = _Graph(onnx)
    z = _affine_in(graph, "x", input_dtype, mean, scale, row)
    outputs = [_forward(graph, net, _checked(net, parameters, i), z, f"m{i}_") for i, parameters in enumerate(members)]
    logits = outputs[0] if len(outputs) == 1 else graph.add("Mean", outputs, "logits")  # (N, C)
    results = _results(graph, loss, net.n_outputs, logits, target_mean, target_scale)
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        "irmtv",
        [value("x", getattr(onnx.TensorProto, _INPUTS[input_dtype]), ["N", *row])],
        [value(r.name, getattr(onnx.TensorProto, r.dtype), ["N", *r.shape]) for r in results],
        graph.constants,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    model: ModelProto = onnx.helper.make_model(made, opset_imports=[opset], ir_version=IR_VERSION)
    model.producer_name, model.producer_version = "irmtv", __version__
    if classes is not None:
        labels = classes.tolist() if isinstance(classes, np.ndarray) else list(classes)
        listed = dump_json(encode(labels, "classes")).decode("ascii")
        onnx.helper.set_model_props(model, {"classes": listed})
    onnx.checker.check_model(model, full_check=True)
    return model


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError("to_onnx needs the package onnx: pip install 'irmtv[onnx]'") from error
    return onnx


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


class _Result(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]  # without the rows


def _affine_in(
    graph: _Graph,
    x: str,
    dtype: str,
    mean: npt.ArrayLike | None,
    scale: npt.ArrayLike | None,
    row: tuple[Any, ...],
) -> str:
    """(x - mean) / scale in float64, the result in float32."""
    given = {"mean": mean, "scale": scale}
    if mean is None and scale is None and dtype == "float32":
        return x
    value = x if dtype == "float64" else graph.cast(x, "DOUBLE", "x_double")
    for (name, numbers), op in zip(given.items(), ("Sub", "Div"), strict=True):
        if numbers is not None:
            array = _numbers(numbers, name, may_be_infinite=name == "scale")
            fits = array.ndim <= len(row) and all(
                n in (1, have) or have == "length" for n, have in zip(array.shape[::-1], row[::-1], strict=False)
            )
            if not fits:
                raise ValueError(
                    f"{name} must have the shape of one row, {row}, or broadcast to it. Got {array.shape}."
                )
            if name == "scale" and not (array > 0).all():
                raise ValueError(f"scale must be positive. Got {array.min()}; use inf for a constant column.")
            value = graph.add(op, [value, graph.constant(array, name, "float64")], f"x_{op.lower()}")
    return graph.cast(value, "FLOAT", "z")


def _numbers(values: npt.ArrayLike, name: str, may_be_infinite: bool = False) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    wrong = np.isnan(array) if may_be_infinite else ~np.isfinite(array)
    if wrong.any():
        raise ValueError(f"{name} must be finite numbers. Got {shown(array[wrong].tolist())}.")
    return array


def _checked(net: MLP | Conv1d, parameters: Mapping[str, Array], member: int) -> dict[str, npt.NDArray[Any]]:
    """The parameters of one member as numpy arrays in the shapes of `net.shapes`."""
    made = {}
    for name, shape in net.shapes.items():
        if name not in parameters:
            raise ValueError(
                f"members[{member}] must have the parameters {shown(net.shapes)}. Got {shown(parameters)}: no {name!r}."
            )
        value = parameters[name]
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.shape not in (shape, (1, *shape)):
            raise ValueError(f"members[{member}][{name!r}] must have the shape {shape}. Got {array.shape}.")
        made[name] = array.reshape(shape)
    return made


def _forward(graph: _Graph, net: MLP | Conv1d, p: Mapping[str, npt.NDArray[Any]], z: str, prefix: str) -> str:
    """The network of one member on standardised rows: (N, C)."""

    def constant(name: str, shape: tuple[int, ...]) -> str:
        return graph.constant(p[name].reshape(shape), f"{prefix}{name}", "float32")

    h = z
    if isinstance(net, MLP):
        for i in range(len(net.widths) - 1):
            if i > 0:
                h = graph.add("Relu", [h], f"{prefix}relu{i}")
            inputs = [h, constant(f"W{i}", net.shapes[f"W{i}"]), constant(f"b{i}", (-1,))]  # (out, in), (out,)
            h = graph.add("Gemm", inputs, f"{prefix}layer{i}", transB=1)
        return h
    for i, kernel in enumerate(net.kernels):
        inputs = [h, constant(f"W{i}", net.shapes[f"W{i}"]), constant(f"b{i}", (-1,))]  # (out, in, kernel), (out,)
        h = graph.add("Conv", inputs, f"{prefix}layer{i}", kernel_shape=[kernel], pads=[kernel // 2, kernel // 2])
        if i < len(net.kernels) - 1 or net.last_relu:
            h = graph.add("Relu", [h], f"{prefix}relu{i}")
        if i in net.pool_after:
            h = graph.add("MaxPool", [h], f"{prefix}pool{i}", kernel_shape=[2], strides=[2])
    return graph.add("ReduceMean", [h], f"{prefix}mean", axes=[2], keepdims=0)


def _results(
    graph: _Graph,
    loss: str,
    n_outputs: int,
    logits: str,
    target_mean: npt.ArrayLike | None,
    target_scale: npt.ArrayLike | None,
) -> list[_Result]:
    if loss == "binary":  # both columns by the sigmoid: 1 - p would lose small probabilities
        minus = graph.add("Neg", [logits], "minus_logits")
        columns = [graph.add("Sigmoid", [value], f"p{i}") for i, value in enumerate((minus, logits))]
        graph.add("Concat", columns, "probabilities", axis=1)
        # by the logit, as predict does: a probability rounds to 0.5 before a logit rounds to 0
        positive = graph.add("Greater", [logits, graph.constant(0.0, "zero", "float32")], "positive")
        label = graph.cast(positive, "INT64", "label_column")
        graph.add("Squeeze", [label, graph.constant([1], "axis", "int64")], "label")
        return [_Result("probabilities", "FLOAT", (2,)), _Result("label", "INT64", ())]
    if loss == "multiclass":
        graph.add("Softmax", [logits], "probabilities", axis=1)
        graph.add("ArgMax", [logits], "label", axis=1, keepdims=0)
        return [_Result("probabilities", "FLOAT", (n_outputs,)), _Result("label", "INT64", ())]
    value = logits
    units = {"target_scale": (target_scale, "Mul"), "target_mean": (target_mean, "Add")}
    for name, (numbers, op) in units.items():
        if numbers is not None:
            array = _numbers(numbers, name).reshape(-1)
            if len(array) not in (1, n_outputs):
                raise ValueError(f"{name} must have one number per target, {n_outputs}. Got {len(array)}.")
            if value == logits:
                value = graph.cast(logits, "DOUBLE", "outputs_double")
            value = graph.add(op, [value, graph.constant(array, name, "float64")], f"outputs_{op.lower()}")
    if value != logits:
        value = graph.cast(value, "FLOAT", "outputs")
    if n_outputs == 1:
        graph.add("Squeeze", [value, graph.constant([1], "axis", "int64")], "prediction")
        return [_Result("prediction", "FLOAT", ())]
    graph.add("Identity", [value], "prediction")
    return [_Result("prediction", "FLOAT", (n_outputs,))]
