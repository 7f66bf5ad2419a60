"""Features from images: a small ONNX network against NumPy, the file read back, stopping and going on, damage."""

from __future__ import annotations

import csv
import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from irmtv.datasets.celeba import load_celeba_features
from irmtv.datasets.celeba_builder import build_celeba_features, read_image
from irmtv.datasets.celeba_rows import AUX, choices, draw_split

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

N, D = 120, 7
SIDES = (10, 8)  # height and width that the network declares
NAMES = ("Male", *AUX, "Smiling", "Bald")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def weights(d=D):
    return np.random.default_rng(0).normal(size=(3, d)).astype(np.float32)


def network(path, batch="n", sides=SIDES, channels=3, d=D, pool=True, scale=1.0):
    """Mean of every channel, times a matrix."""
    helper, numbers = onnx.helper, onnx.TensorProto.FLOAT
    matrix = onnx.numpy_helper.from_array(weights(d) * np.float32(scale), "matrix")
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["features"]),
    ]
    last = ("features", [batch, d])
    if not pool:
        nodes, last = [helper.make_node("Identity", ["image"], ["features"])], ("features", [batch, channels, *sides])
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("image", numbers, [batch, channels, *sides])],
        [helper.make_tensor_value_info(last[0], numbers, last[1])],
        [matrix] if pool else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def labels(n=N):
    return np.random.default_rng(1).choice([-1, 1], size=(n, len(NAMES)))


def attributes(path, n=N):
    lines = [f"{i + 1:06d}.jpg " + " ".join(f"{v:2d}" for v in row) for i, row in enumerate(labels(n))]
    path.write_text("\n".join([str(n), " ".join(NAMES), *lines]) + "\n")
    return path


@pytest.fixture
def inputs(tmp_path):
    """Images (two of them .jpg and in other modes), the table and the network."""
    rng = np.random.default_rng(2)
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(N):
        pixels = rng.integers(256, size=(22, 18, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        if i == 0:
            image.save(folder / "000001.jpg")
        elif i == 1:
            image.convert("L").save(folder / "000002.png")
        else:
            image.save(folder / f"{i + 1:06d}.png")
    return folder, attributes(tmp_path / "list_attr_celeba.txt"), network(tmp_path / "net.onnx"), tmp_path / "out.csv"


def by_hand(folder, sides=SIDES):
    """Features by NumPy from Pillow's pixels: (N, D)."""
    means = []
    for i in range(N):
        (path,) = folder.glob(f"{i + 1:06d}.*")
        pixels = np.asarray(Image.open(path).convert("RGB").resize(sides[::-1], Image.Resampling.BILINEAR), float) / 255
        means.append(((pixels - MEAN) / STD).mean(axis=(0, 1)))
    return np.array(means) @ weights()


def read(path):
    with path.open(newline="") as file:
        header, *lines = csv.reader(file)
    return header, np.array(lines, float)


def parts(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".part"))


def test_features_against_numpy(inputs):
    calls = []
    assert build_celeba_features(*inputs, batch_size=50, progress=lambda *at: calls.append(at)) == N
    header, values = read(inputs[-1])
    assert header == [*(f"x_{j}" for j in range(D)), "y_Smiling", *(f"z_{a}" for a in AUX), "g_Agreement", "sp_Male"]
    np.testing.assert_allclose(values[:, :D], by_hand(inputs[0]), rtol=2e-4, atol=2e-5)
    said = dict(zip(NAMES, (labels() == 1).T, strict=True))
    expected = [said["Smiling"], *(said[a] for a in AUX), said["Smiling"] == said["Male"], said["Male"]]
    np.testing.assert_array_equal(values[:, D:], np.array(expected).T)
    assert calls == [(50, N), (100, N), (N, N)]
    assert parts(inputs[-1].parent) == []


def test_pixels_of_one_colour(tmp_path):
    Image.new("RGB", (5, 9), (255, 0, 51)).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", 4, 6)
    assert found.shape == (3, 4, 6) and found.dtype == np.float32
    for channel, value in enumerate((1.0, 0.0, 0.2)):
        np.testing.assert_allclose(found[channel], (value - MEAN[channel]) / STD[channel], rtol=1e-5)


def test_the_file_is_read_back(inputs):
    folder, _, _, out = inputs
    out = out.with_name("celeba_features.csv")
    build_celeba_features(*inputs[:-1], out)
    task = load_celeba_features(0, data_home=out.parent, n_train=32, n_test=16)
    said = dict(zip(NAMES, (labels() == 1).T, strict=True))
    split = draw_split(said["Smiling"], said["Male"], 0, choices("gender", "half", 32, 16))
    x = by_hand(folder)
    mean, std = x[split.train].mean(0), x[split.train].std(0)
    np.testing.assert_allclose(task.test.x.numpy(), (x[split.test] - mean) / std, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(task.train.y.numpy(), said["Smiling"][split.train])
    assert task.card["aux"] == AUX and task.card["group_column"] == "It tells the agreement of y and sp."


@pytest.mark.parametrize("batch", [7, 200])
def test_a_network_of_fixed_batches(inputs, tmp_path, batch):
    folder, table, _, out = inputs
    assert build_celeba_features(folder, table, network(tmp_path / "f.onnx", batch=batch), out, batch_size=50) == N
    np.testing.assert_allclose(read(out)[1][:, :D], by_hand(folder), rtol=2e-4, atol=2e-5)


def test_224_where_the_network_does_not_say(inputs, tmp_path):
    folder, _, _, out = inputs
    few = attributes(tmp_path / "few.txt", 3)
    build_celeba_features(folder, few, network(tmp_path / "any.onnx", sides=("h", "w")), out)
    np.testing.assert_allclose(read(out)[1][:, :D], by_hand(folder, (224, 224))[:3], rtol=2e-4, atol=2e-5)


# ---- stopping and going on


class Stopped(KeyboardInterrupt):
    pass


def stop_after(n):
    def progress(done, total):
        if done >= n:
            raise Stopped

    return progress


def test_stopped_and_gone_on_with(inputs):
    out = inputs[-1]
    build_celeba_features(*inputs, batch_size=8)
    whole = out.read_bytes()
    out.write_text("an older file")
    with pytest.raises(Stopped):
        build_celeba_features(*inputs, batch_size=8, progress=stop_after(40))
    assert out.read_text() == "an older file"
    (part,) = parts(out.parent)
    with (out.parent / part).open("ab") as file:
        file.write(b"0.25,0.5,1")  # as a line that was being written
    calls = []
    assert build_celeba_features(*inputs, batch_size=16, progress=lambda *at: calls.append(at[0])) == N
    assert calls == [56, 72, 88, 104, 120]
    header, values = read(out)
    np.testing.assert_allclose(values, read_text(whole), rtol=1e-4, atol=1e-5)
    assert header[0] == "x_0" and len(values) == N and parts(out.parent) == []


def read_text(content):
    return np.array([line.split(",") for line in content.decode().splitlines()[1:]], float)


@pytest.mark.parametrize("left", ["", "x_0,x_1", "header"])
def test_hardly_anything_was_done(inputs, left):
    out = inputs[-1]
    with pytest.raises(Stopped):
        build_celeba_features(*inputs, batch_size=8, progress=stop_after(1))
    part = out.parent / parts(out.parent)[0]
    part.write_text(part.read_text().split("\n")[0] + "\n" if left == "header" else left)
    build_celeba_features(*inputs)
    np.testing.assert_allclose(read(out)[1][:, :D], by_hand(inputs[0]), rtol=2e-4, atol=2e-5)


def test_all_was_done_but_the_renaming(inputs):
    with pytest.raises(Stopped):
        build_celeba_features(*inputs, progress=stop_after(N))
    calls = []
    assert build_celeba_features(*inputs, progress=lambda *at: calls.append(at)) == N
    assert calls == [] and len(read(inputs[-1])[1]) == N


def test_other_inputs_begin_anew(inputs, tmp_path):
    folder, table, _, out = inputs
    with pytest.raises(Stopped):
        build_celeba_features(*inputs, batch_size=8, progress=stop_after(40))
    other = network(tmp_path / "other.onnx", scale=2.0)
    build_celeba_features(folder, table, other, out)
    np.testing.assert_allclose(read(out)[1][:, :D], 2 * by_hand(folder), rtol=2e-4, atol=2e-5)
    assert len(parts(out.parent)) == 1  # that of the first network


def test_a_damaged_image_is_named_and_what_is_done_is_kept(inputs):
    folder, out = inputs[0], inputs[-1]
    damaged = folder / "000100.png"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:100])
    with pytest.raises(ValueError, match=r"000100\.png must be an image\. Got \w+: .* Unpack it again"):
        build_celeba_features(*inputs, batch_size=10)
    assert not out.exists()
    damaged.write_bytes(content)
    calls = []
    build_celeba_features(*inputs, batch_size=10, progress=lambda *at: calls.append(at[0]))
    assert calls == [100, 110, 120]


# ---- what is wrong is said


def test_missing_images(inputs):
    (inputs[0] / "000003.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 120 are missing: '000003\.jpg'\. Unpack img_align_celeba\.zip"):
        build_celeba_features(*inputs)


def test_places(inputs, tmp_path):
    folder, table, net, out = inputs
    with pytest.raises(FileNotFoundError, match=r"images must be the folder.*nowhere', which does not exist"):
        build_celeba_features(tmp_path / "nowhere", table, net, out)
    with pytest.raises(FileNotFoundError, match=r"images must be the folder.* which is a file"):
        build_celeba_features(table, table, net, out)
    with pytest.raises(FileNotFoundError, match=r"attributes must be CelebA's table.* which is no file"):
        build_celeba_features(folder, folder, net, out)
    with pytest.raises(FileNotFoundError, match=r"network must be an ONNX file.* which is no file"):
        build_celeba_features(folder, table, tmp_path / "no.onnx", out)
    with pytest.raises(FileNotFoundError, match=r"out must be a file in a folder that exists"):
        build_celeba_features(folder, table, net, tmp_path / "no" / "out.csv")
    with pytest.raises(ValueError, match=r"out must be the name of a CSV.*End it in \.csv\."):
        build_celeba_features(folder, table, net, tmp_path / "out.csv.gz")
    with pytest.raises(ValueError, match="batch_size must be a positive integer"):
        build_celeba_features(*inputs, batch_size=0)
    assert parts(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"channels": 1, "pool": False},
            r"network must have one input of float images, .* Got image tensor\(float\) \['n', 1, 10, 8\]",
        ),
        ({"pool": False}, r"one row of features per image.* Got \(64, 3, 10, 8\) for 64 images"),
        ({"d": 1000}, r"must end before its last layer: 512 features .* Got 1000, ImageNet's classes\. Cut it with"),
        ({"scale": np.inf}, r"network must give finite numbers\. Got NaN or infinity for .*000001\.jpg"),
    ],
)
def test_networks_that_do_not_fit(inputs, tmp_path, arguments, said):
    folder, table, _, out = inputs
    with pytest.raises(ValueError, match=said):
        build_celeba_features(folder, table, network(tmp_path / "wrong.onnx", **arguments), out)
    assert not out.exists()


def test_a_damaged_network(inputs):
    inputs[2].write_bytes(inputs[2].read_bytes()[:50])
    with pytest.raises(ValueError, match=r"network must be an ONNX file.* which onnxruntime cannot read"):
        build_celeba_features(*inputs)


def test_without_onnxruntime(inputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"needs the package onnxruntime: pip install 'irmtv\[onnx\]'"):
        build_celeba_features(*inputs)


# ---- torchvision


def test_without_torchvision(inputs, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"network=None needs torchvision.*or give network=.*'irmtv\[onnx\]'"):
        build_celeba_features(*inputs[:2], None, inputs[3])


def test_torchvision_where_it_is(inputs, monkeypatch):
    """A package of that name, whose network has a last layer that must go and a dropout that must be off."""
    asked = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout, self.fc = torch.nn.Dropout(0.5), torch.nn.Linear(D, 1000)

        def forward(self, x):
            return self.fc(self.dropout(x.mean((2, 3)) @ torch.from_numpy(weights())))

    def resnet18(*, weights):
        asked.append(weights)
        return Net()

    models = types.ModuleType("torchvision.models")
    models.resnet18, models.ResNet18_Weights = resnet18, types.SimpleNamespace(IMAGENET1K_V1="imagenet")
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    few = attributes(inputs[1].with_name("few.txt"), 4)
    assert build_celeba_features(inputs[0], few, None, inputs[3]) == 4
    np.testing.assert_allclose(read(inputs[3])[1][:, :D], by_hand(inputs[0], (224, 224))[:4], rtol=2e-4, atol=2e-5)
    assert asked == ["imagenet"]
