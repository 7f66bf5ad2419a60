"""The ONNX graph computes what the network computes."""

from __future__ import annotations

import builtins
import json

import numpy as np
import pytest
import torch

from irmtv.data.scaling import Scaler
from irmtv.engine.networks import MLP, Linear
from irmtv.models.networks.onnx_export import OPSET, to_onnx
from irmtv.models.networks.predictor import Member, Predictor

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
ort = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

N = 37
TWO = np.array(["no", "yes"])


def predictor(net, members, mean=None, scale=None, y=None):
    """Members of these parameters, each with the run axis that a trained one has."""
    x = Scaler(np.zeros(net.widths[0]) if mean is None else mean, np.ones(net.widths[0]) if scale is None else scale)
    stacked = [{k: v.unsqueeze(0) for k, v in p.items()} for p in members]
    return Predictor(x, tuple(Member(net, p, {}, 0) for p in stacked), y, None, None)


def parameters(net, seed=0):
    """Parameters with biases that matter, float64."""
    generator = torch.Generator().manual_seed(seed)
    return {k: torch.randn(s, generator=generator, dtype=torch.float64) * 0.7 for k, s in net.shapes.items()}


def logits(net, members, z):
    """(N, C), in float64, by the network itself."""
    out = []
    for p in members:
        stacked = {k: v.unsqueeze(0) for k, v in p.items()}
        out.append(net.forward(stacked, net.prepare(torch.as_tensor(z).unsqueeze(0))).logits[0])
    mean = torch.stack(out).mean(0)
    return mean.reshape(len(z), net.n_outputs).numpy()


def by_hand(p, z):
    """A multi-layer perceptron in numpy, (N, C)."""
    h = z
    for i in range(len(p) // 2):
        h = np.maximum(h, 0) if i else h
        h = h @ p[f"W{i}"].numpy().T + p[f"b{i}"].numpy()[:, 0]
    return h


def run(model, x):
    assert model.opset_import[0].version == OPSET
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert session.get_inputs()[0].type == "tensor(double)"
    return dict(zip(names, session.run(None, {"x": x.astype(np.float64)}), strict=True))


def rows(net, seed=0):
    rng = np.random.default_rng(seed)
    mean = np.array([2000.0, -3.0, 1e-3, 1.6e9])[: net.widths[0]]
    scale = np.array([0.5, 100.0, 1e-4, 1e3])[: net.widths[0]]
    x = (mean + scale * rng.normal(size=(N, net.widths[0]))).astype(np.float32)
    return x, mean, scale


MLPS = [(), (5,), (16, 8)]


@pytest.mark.parametrize("hidden", MLPS)
def test_binary(hidden):
    net = MLP(4, hidden)
    p = parameters(net)
    x, mean, scale = rows(net)
    z = (x.astype(np.float64) - mean) / scale
    f = logits(net, [p], z)[:, 0]
    np.testing.assert_allclose(f, by_hand(p, z)[:, 0], rtol=1e-12)
    out = run(to_onnx(predictor(net, [p], mean, scale), TWO), x)
    assert out["probabilities"].shape == (N, 2) and out["probabilities"].dtype == np.float32
    expected = np.stack([1 / (1 + np.exp(f)), 1 / (1 + np.exp(-f))], 1)
    np.testing.assert_allclose(out["probabilities"], expected, atol=1e-5)
    assert out["label"].dtype == np.int64 and (out["label"] == (f > 0)).all()
    assert 0 < out["label"].mean() < 1


@pytest.mark.parametrize("hidden", MLPS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_multiclass(hidden, n_classes):
    net = MLP(4, hidden, n_classes)
    p = parameters(net)
    x, mean, scale = rows(net)
    z = (x.astype(np.float64) - mean) / scale
    p[f"b{len(hidden)}"] -= torch.as_tensor(logits(net, [p], z).mean(0)[:, None])  # so that every class is predicted
    f = logits(net, [p], z)
    out = run(to_onnx(predictor(net, [p], mean, scale), np.arange(n_classes)), x)
    e = np.exp(f - f.max(1, keepdims=True))
    np.testing.assert_allclose(out["probabilities"], e / e.sum(1, keepdims=True), atol=1e-5)
    assert out["label"].shape == (N,) and (out["label"] == f.argmax(1)).all()
    assert len(set(out["label"])) == n_classes


@pytest.mark.parametrize("hidden", MLPS)
@pytest.mark.parametrize("n_targets", [1, 3])
def test_regression_in_the_users_units(hidden, n_targets):
    net = MLP(4, hidden, n_targets)
    p = parameters(net)
    x, mean, scale = rows(net)
    y_mean, y_scale = np.array([1e6, -2.0, 0.0])[:n_targets], np.array([1e3, 1e-3, 1.0])[:n_targets]
    f = logits(net, [p], (x.astype(np.float64) - mean) / scale)
    out = run(to_onnx(predictor(net, [p], mean, scale, Scaler(y_mean, y_scale))), x)
    assert out["prediction"].shape == ((N,) if n_targets == 1 else (N, n_targets))
    got = (out["prediction"].reshape(N, n_targets) - y_mean) / y_scale
    close = np.abs(np.finfo(np.float32).eps * y_mean / y_scale) + 1e-5  # what float32 holds of 1e6, and 1e-5
    assert (np.abs(got - f) < close).all()


def test_a_time_stamp_survives_the_standardisation():
    """In float32 the mean alone would be off by up to 64 seconds, a sixteenth of the scale."""
    net = Linear(1)
    p = {"W0": torch.ones(1, 1, dtype=torch.float64), "b0": torch.zeros(1, 1, dtype=torch.float64)}
    mean, scale = np.array([1_600_000_063.0]), np.array([1000.0])
    x = np.array([[1_600_000_000.0], [1_600_000_128.0]], dtype=np.float32)
    out = run(to_onnx(predictor(net, [p], mean, scale)), x)
    np.testing.assert_allclose(out["prediction"], (x[:, 0].astype(float) - mean) / scale, atol=1e-7)


def test_an_offset_far_larger_than_the_deviation():
    """Seconds since 1970 that differ by a few: nothing of them is left in float32."""
    net = MLP(2, (5,))
    p, mean, scale = parameters(net), np.array([1.7e9, -1e12]), np.array([1.0, 0.5])
    x = mean + scale * np.random.default_rng(0).normal(size=(N, 2))
    f = by_hand(p, (x - mean) / scale)[:, 0]
    model = to_onnx(predictor(net, [p], mean, scale))
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    np.testing.assert_allclose(run(model, x)["prediction"], f, atol=1e-5, rtol=1e-5)


def test_a_column_of_infinite_scale_is_zero():
    """One that was constant in training: whatever comes later says nothing."""
    net = MLP(3, (5,))
    p, mean, scale = parameters(net), np.array([1.0, 7.0, 2.0]), np.array([2.0, np.inf, 3.0])
    x = np.random.default_rng(0).normal(size=(N, 3))
    x[:, 1] = np.resize([7.0, 8.0, -1e30, 0.0], N)
    x = x.astype(np.float32)
    z = (x - mean) / np.array([2.0, 1.0, 3.0])
    z[:, 1] = 0
    out = run(to_onnx(predictor(net, [p], mean, scale)), x)
    np.testing.assert_allclose(out["prediction"], by_hand(p, z)[:, 0], atol=1e-5, rtol=1e-5)


def test_several_members_are_averaged_by_their_logits():
    net = MLP(4, (5,))
    members = [parameters(net, seed) for seed in range(3)]
    x, mean, scale = rows(net)
    z = (x.astype(np.float64) - mean) / scale
    out = run(to_onnx(predictor(net, members, mean, scale), TWO), x)
    f = logits(net, members, z)[:, 0]
    np.testing.assert_allclose(out["probabilities"][:, 1], 1 / (1 + np.exp(-f)), atol=1e-5)
    alone = [1 / (1 + np.exp(-logits(net, [p], z)[:, 0])) for p in members]
    assert np.abs(np.mean(alone, 0) - out["probabilities"][:, 1]).max() > 1e-3  # which is another thing


def test_any_number_of_rows():
    net = MLP(4, (5,))
    p = parameters(net)
    model = to_onnx(predictor(net, [p]))
    x, _, _ = rows(net)
    z = np.random.default_rng(3).normal(size=(N, 4)).astype(np.float32)
    for n in (1, 2, N, 0):
        out = run(model, z[:n])["prediction"]
        assert out.shape == (n,)
        np.testing.assert_allclose(out, logits(net, [p], z[:n].astype(float))[:, 0], atol=1e-5)
    with pytest.raises(Exception, match="Got: 3 Expected: 4"):
        run(model, x[:, :3])


def test_small_probabilities_are_kept_and_a_tie_is_class_0():
    p = {"W0": torch.ones(1, 1), "b0": torch.zeros(1, 1)}
    x = np.array([[-50.0], [-1e-30], [0.0], [1e-30], [50.0]])
    out = run(to_onnx(predictor(MLP(1), [p]), TWO), x)
    assert out["probabilities"][4, 0] == pytest.approx(np.exp(-50), rel=1e-3)
    assert out["label"].tolist() == [0, 0, 0, 1, 1]


def test_the_model_says_who_made_it_and_its_classes():
    net = MLP(4)
    model = to_onnx(predictor(net, [parameters(net)]), TWO)
    assert model.producer_name == "irmtv"
    props = {p.key: json.loads(p.value) for p in model.metadata_props}
    assert props == {"classes": ["no", "yes"]}
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["N", 4]


def test_without_onnx_the_error_says_how_to_install_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "onnx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'irmtv\[onnx\]'"):
        to_onnx(predictor(MLP(4), [parameters(MLP(4))]), TWO)
