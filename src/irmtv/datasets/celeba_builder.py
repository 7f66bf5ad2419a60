"""Features of CelebA's images: every image through a network once, one line of a CSV each.

The network is a ResNet18 without its last layer, as an ONNX file, or torchvision's where that is installed. The CSV
has the published columns, which :func:`irmtv.datasets.load_celeba_features` reads: x_0 ... x_511, y_Smiling, z_ and the
seven attributes for the inference of environments, g_Agreement (1 where Smiling and Male agree), sp_Male.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from irmtv.core.messages import check_positive, shown
from irmtv.datasets.celeba_rows import AUX, SPURIOUS, TARGET, read_celeba_attributes

Singles = NDArray[np.float32]

SIDE = 224  # pixels, where the network does not say
CHANNEL_MEAN, CHANNEL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by which ResNets are trained
IMAGENET_CLASSES = 1000
ENDINGS = (".jpg", ".jpeg", ".png")
LAYOUT = "1"  # to be changed with anything that changes what is written: unfinished files are then begun anew


@dataclass(frozen=True)
class Network:
    """What makes features of images: (n, 3, height, width) -> (n, D)."""

    apply: Callable[[Singles], Any]
    height: int
    width: int
    batch: int | None = None  # images that must go through together; None: any number
    fingerprint: str = ""  # of its file


def build_celeba_features(
    images: Path,
    attributes: Path,
    network: Path | None,
    out: Path,
    *,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Make the file of CelebA features from images.

    It can be stopped and called again with the same arguments: it then goes on after the last whole line. Lines are
    gathered in a hidden file beside `out` (named after `out` and a hash of the inputs, ending in .part), which takes
    the place of `out` when the last image is done; until then `out` is not touched.

    Parameters
    ----------
    images : path
        Folder of the aligned images, 000001.jpg and so on (.jpg, .jpeg or .png, whatever the ending in the table).
    attributes : path
        CelebA's list_attr_celeba.txt, or a CSV of it. It says which images are read, and in which order.
    network : path or None
        ResNet18 without its last layer as an ONNX file: one input (n, 3, height, width), the first output (n, D) or
        (n, D, 1, 1). Needs ``pip install 'irmtv[onnx]'``. None: torchvision's, with its ImageNet weights.
    out : path
        The CSV that is written.
    batch_size : int, default 64
        Images that go through the network together, where the network leaves the choice.
    progress : callable or None, default None
        Called as ``progress(done, total)`` after every batch.

    Returns
    -------
    int
        Rows of the file. Features are written with as many digits as make the same float32 again.
    """
    check_positive(batch_size, "batch_size")
    images, attributes, out = Path(images), Path(attributes), Path(out)
    _check_places(images, attributes, out)
    table = read_celeba_attributes(attributes)
    paths = _find_images(images, table.index.tolist())
    model = _torchvision_network() if network is None else _onnx_network(Path(network))
    size = model.batch or batch_size

    part = out.with_name(f".{out.name}.{_fingerprint(images, table, model)}.part")
    done = _whole_lines(part) - 1  # less the header; -1: nothing was begun
    with part.open("ab") as file:
        for first in range(max(done, 0), len(paths), size):
            features = _features(model, paths[first : first + size], size)
            lines = _lines(features, table.iloc[first : first + size])
            file.write(lines.to_csv(index=False, header=done < 0 and first == 0, lineterminator="\n").encode())
            file.flush()  # what was reported is in the file
            if progress is not None:
                progress(min(first + size, len(paths)), len(paths))
    os.replace(part, out)
    return len(paths)


def _check_places(images: Path, attributes: Path, out: Path) -> None:
    if not images.is_dir():
        raise FileNotFoundError(
            f"images must be the folder of CelebA's aligned images. Got {str(images)!r}, which "
            f"{'is a file' if images.is_file() else 'does not exist'}. Unpack img_align_celeba.zip and name its folder."
        )
    if not attributes.is_file():
        raise FileNotFoundError(
            f"attributes must be CelebA's table of attributes. Got {str(attributes)!r}, which is no file. Name "
            "list_attr_celeba.txt (folder Anno of CelebA)."
        )
    if out.suffix != ".csv":
        raise ValueError(f"out must be the name of a CSV, which is written unpacked. Got {str(out)!r}. End it in .csv.")
    if out.is_dir() or not out.parent.is_dir():
        raise FileNotFoundError(
            f"out must be a file in a folder that exists. Got {str(out)!r}. Make the folder {str(out.parent)!r} first, "
            "or name another."
        )


def _find_images(folder: Path, names: Sequence[str]) -> list[Path]:
    """The image of every row, whatever the ending."""
    there = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in ENDINGS}
    missing = [name for name in names if Path(name).stem not in there]
    if missing:
        raise FileNotFoundError(
            f"images must hold every image of the table of attributes, as {', '.join(ENDINGS)}. In {str(folder)!r} "
            f"{len(missing):,} of {len(names):,} are missing: {shown(missing)}. Unpack img_align_celeba.zip again, or "
            "leave their lines out of the table."
        )
    return [there[Path(name).stem] for name in names]


def read_image(path: Path, height: int, width: int) -> Singles:
    """One image as the network takes it: (3, height, width), RGB, stretched by Pillow's bilinear filter, standardised
    by ImageNet's mean and standard deviation of each channel."""
    from PIL import Image  # takes time to import, and only this needs it

    try:
        with Image.open(path) as image:
            resized = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError) as error:  # Pillow raises each for files that are damaged
        raise ValueError(
            f"{path} must be an image. Got {type(error).__name__}: {error}. Unpack it again; what is done is kept."
        ) from error
    pixels = np.asarray(resized, np.float32) / np.float32(255)  # (height, width, 3)
    standardised = (pixels - np.array(CHANNEL_MEAN, np.float32)) / np.array(CHANNEL_STD, np.float32)
    return np.ascontiguousarray(standardised.transpose(2, 0, 1))


def _features(model: Network, paths: Sequence[Path], size: int) -> Singles:
    """(len(paths), D)."""
    batch = np.stack([read_image(path, model.height, model.width) for path in paths])  # (n, 3, height, width)
    if model.batch is not None and len(batch) < size:  # a network of fixed size: the last batch is filled up
        batch = np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])
    given = np.asarray(model.apply(batch), np.float32)
    if given.ndim < 2 or len(given) != len(batch) or any(side != 1 for side in given.shape[2:]):
        raise ValueError(
            f"network must give one row of features per image, (n, D) or (n, D, 1, 1). Got {given.shape} for "
            f"{len(batch)} images. Give a network that ends in a global average pool."
        )
    given = given.reshape(len(batch), -1)[: len(paths)]
    if given.shape[1] == IMAGENET_CLASSES:
        raise ValueError(
            f"network must end before its last layer: 512 features per image for a ResNet18. Got {IMAGENET_CLASSES}, "
            "ImageNet's classes. Cut it with onnx.utils.extract_model(file, new_file, [input], [input of the last "
            "layer])."
        )
    if not np.isfinite(given).all():
        row = int(np.argwhere(~np.isfinite(given))[0, 0])
        raise ValueError(
            f"network must give finite numbers. Got NaN or infinity for {paths[row]}. Look at the image, or try "
            "another network."
        )
    return given


def _lines(features: Singles, attributes: pd.DataFrame) -> pd.DataFrame:
    """In the published layout."""
    columns = pd.DataFrame(features, columns=[f"x_{j}" for j in range(features.shape[1])])
    target, spurious = attributes[TARGET].to_numpy(), attributes[SPURIOUS].to_numpy()
    labels = {f"y_{TARGET}": target}
    labels |= {f"z_{name}": attributes[name].to_numpy() for name in AUX}
    labels |= {"g_Agreement": (target == spurious).astype(np.int8), f"sp_{SPURIOUS}": spurious}
    return pd.concat([columns, pd.DataFrame(labels)], axis=1)


def _fingerprint(images: Path, table: pd.DataFrame, model: Network) -> str:
    """Of the inputs, so that an unfinished file is gone on with only where they are the same.

    Images count by folder and name: one that could not be read may be replaced without beginning anew.
    """
    digest = hashlib.sha256(f"{LAYOUT} {images.resolve()} {model.height}x{model.width} {model.fingerprint}".encode())
    digest.update(table.to_csv().encode())
    return digest.hexdigest()[:12]


def _whole_lines(part: Path) -> int:
    """How many whole lines an unfinished file has; what follows the last is cut off."""
    if not part.is_file():
        return 0
    lines, end, position = 0, 0, 0
    with part.open("r+b") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                end = position + last + 1
            position += len(block)
        file.truncate(end)
    return lines


def _onnx_network(path: Path) -> Network:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("network as ONNX needs the package onnxruntime: pip install 'irmtv[onnx]'") from error
    if not path.is_file():
        raise FileNotFoundError(
            f"network must be an ONNX file. Got {str(path)!r}, which is no file. Export a ResNet18 without its last "
            "layer, by torch.onnx.export for example."
        )
    there = onnxruntime.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in there]
    try:
        session = onnxruntime.InferenceSession(str(path), providers=providers)
    except Exception as error:  # onnxruntime's errors have no common type
        raise ValueError(
            f"network must be an ONNX file. Got {str(path)!r}, which onnxruntime cannot read: {error}. Export it again."
        ) from error
    inputs = session.get_inputs()
    shape = list(inputs[0].shape) if inputs else []
    if len(inputs) != 1 or len(shape) != 4 or inputs[0].type != "tensor(float)" or _fixed(shape[1]) not in (3, None):
        said = "; ".join(f"{one.name} {one.type} {one.shape}" for one in inputs) or "none"
        raise ValueError(
            "network must have one input of float images, (n, 3, height, width). Got "
            f"{said}. Export it for images with the channels first."
        )
    height, width = (_fixed(side) or SIDE for side in shape[2:])
    name = inputs[0].name
    digest = hashlib.sha256(path.read_bytes())
    if (weights := path.with_name(f"{path.name}.data")).is_file():  # where exporters may put them
        digest.update(weights.read_bytes())
    return Network(
        lambda x: session.run(None, {name: x})[0], height, width, _fixed(shape[0]), fingerprint=digest.hexdigest()
    )


def _fixed(side: Any) -> int | None:
    """What a network declares for a side of its input: a number, or a name or nothing where any will do."""
    return side if isinstance(side, int) and side > 0 else None


def _torchvision_network() -> Network:
    try:
        models = import_module("torchvision.models")
    except (ImportError, RuntimeError, OSError) as error:  # it may be there and not fit the torch that is
        raise ImportError(
            "network=None needs torchvision, which cannot be imported here "
            f"({type(error).__name__}: {error}). Install the torchvision that fits your torch, or give network=, "
            "a ResNet18 without its last layer as an ONNX file (pip install 'irmtv[onnx]')."
        ) from error
    import torch

    weights = models.ResNet18_Weights.IMAGENET1K_V1
    model = models.resnet18(weights=weights)
    model.fc = torch.nn.Identity()
    model.eval()

    def apply(x: Singles) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(x)).numpy()

    return Network(apply, SIDE, SIDE, fingerprint=f"torchvision {weights}")
