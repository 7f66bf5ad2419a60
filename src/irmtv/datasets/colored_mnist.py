"""Colored MNIST: is a digit below 5? Its colour says more in training, and the opposite in the test.

The example that everybody in the field knows (Arjovsky et al., 2019). ERM learns the colour; the shape of the digit,
which says less, is what stays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from irmtv.core.losses import Binary
from irmtv.core.types import Rows, Task
from irmtv.datasets.common import (
    Home,
    Integers,
    Seed,
    card_seed,
    equal_sizes,
    one_of,
    probability,
    streams,
)
from irmtv.datasets.fetch import BROKEN, DataFile, find_files, open_unpacked
from irmtv.datasets.sources import SOURCES

Images = Literal["auto", "train", "t10k"]
Bytes = npt.NDArray[np.uint8]

SOURCE = SOURCES["colored-mnist"]
TEST_SHARE = 6  # one image in six is tested on: 10,000 of 60,000


def load_colored_mnist(
    random_state: Seed = None,
    *,
    data_home: Home = None,
    images: Images = "auto",
    flips: Sequence[float] = (0.2, 0.1),
    test_flips: Sequence[float] = (0.9,),
    label_noise: float = 0.25,
    grey: bool = False,
) -> Task:
    """Load MNIST's digits and colour them: two classes, two colours, one environment for each share of wrong colours.

    The class of a digit is 0 for 0 to 4 and 1 for 5 to 9. The label y is the class, flipped with probability
    ``label_noise``. The colour is y, flipped with the probability e of the environment. Images are subsampled to 14 x
    14 by every second row and column; the colour says which of two channels holds the image, the other is 0.

    Parameters
    ----------
    random_state : int, numpy Generator or None, default None
        Which images are tested on, which environment each gets, the labels' noise and the colours. A Generator is
        advanced. With one seed, ``grey`` leaves images, environments and labels as they are.
    data_home : path or None, default None
        Folder that holds MNIST's IDX files, at its top or in a folder "mnist" ("mnist_t10k" for the 10,000 images),
        plain or as .gz. None: the folder in the environment variable IRMTV_DATA; where that is not set, they are
        downloaded once.
    images : {"auto", "train", "t10k"}, default "auto"
        MNIST's 60,000 training images, as published, or its 10,000 test images, a smaller version. "auto": the
        60,000, or the 10,000 where a folder is named that has no others.
    flips : sequence of float, default (0.2, 0.1)
        Share of wrong colours in each training environment.
    test_flips : sequence of float, default (0.9,)
        The same of each test environment.
    label_noise : float, default 0.25
        Share of wrong labels, in all environments.
    grey : bool, default False
        Leave the colour out: one channel. Environments then do not differ, and ERM is right.

    Returns
    -------
    Task
        ``train`` and ``test``: x, pixels from 0 to 1, (N, 392), the channel of colour 0 first, or (N, 196) for
        ``grey``; y 0/1; environment. Five images in six are trained on, in environments of equal size. ``card``:
        source, licence, rows by environment, what differs, and ``limits``.

    Notes
    -----
    Who knows the digit's class is right in 1 - label_noise = 75 % of every environment. Who knows the colour is right
    in 80 and 90 % in training, and in 10 % in the test.

    Published (60,000 images, two hidden layers of 256, accuracy in the test): ERM 17.1 ± 0.6 %, IRM 66.9 ± 2.5, grey
    images 73.0 ± 0.4, where no model can exceed 75 on average.

    Examples
    --------
    >>> task = load_colored_mnist(random_state=0, images="t10k")
    >>> task
    Task('colored mnist', 8334 rows, features (392,), loss binary, 2 environments, 1666 test rows)
    >>> task.train.names, task.test.names
    (('e=0.2', 'e=0.1'), ('e=0.9',))
    """
    images = one_of("images", images, get_args(Images))
    train_flips, test_flips = _flips("flips", flips), _flips("test_flips", test_flips)
    noise = probability("label_noise", label_noise)
    train_stream, test_stream = streams(random_state)
    files, paths = _find(images, data_home)
    pixels, digits = read_mnist(*paths)
    n_test = len(digits) // TEST_SHARE
    least = max(len(train_flips), len(test_flips)) * TEST_SHARE
    if len(digits) < least:
        raise ValueError(f"{paths[0]} must hold at least {least} images, one per environment. Got {len(digits)}.")
    order = train_stream.permutation(len(digits))

    def rows(rng: np.random.Generator, chosen: Integers, each: Sequence[float]) -> Rows:
        environment = np.repeat(np.arange(len(each)), equal_sizes(len(chosen), len(each)))  # (N,)
        y = (digits[chosen] > 4) ^ (rng.random(len(chosen)) < noise)  # (N,)
        colour = y ^ (rng.random(len(chosen)) < np.asarray(each)[environment])  # (N,)
        x = pixels[chosen].reshape(len(chosen), 1, -1).astype(np.float32) / 255  # (N, 1, 196)
        if not grey:
            x = x * (colour[:, None, None] == np.arange(2)[:, None])  # (N, 2, 196)
        x = x.reshape(len(chosen), -1)
        codes = torch.from_numpy(environment)
        return Rows(torch.from_numpy(x), torch.from_numpy(y).float(), codes, names=_names(each))

    train = rows(train_stream, order[n_test:], train_flips)
    test = rows(test_stream, order[:n_test], test_flips)
    card = {
        **SOURCE.card,
        "n_images": len(digits),
        "files": tuple(file.name for file in files),
        "n_train": dict(zip(_names(train_flips), equal_sizes(len(train), len(train_flips)), strict=True)),
        "n_test": dict(zip(_names(test_flips), equal_sizes(len(test), len(test_flips)), strict=True)),
        "random_state": card_seed(random_state),
        "flips": train_flips,
        "test_flips": test_flips,
        "label_noise": noise,
        "grey": bool(grey),
        "limits": tuple(max(noise, 1 - noise) for _ in test_flips),
        "shift": (
            "Nothing: the images have no colour."
            if grey
            else "The share of wrong colours e, which is the environment's name. The digits and the labels' noise stay."
        ),
        "looks_at_test": "Nothing: pixels are divided by 255.",
        "differs_from_published": (
            "Published with MNIST's 60,000 training images, of which the last 10,000 are the test; here the images are "
            "dealt by random_state."
        ),
    }
    return Task(train=train, loss=Binary(), test=test, name=f"{'grey' if grey else 'colored'} mnist", card=card)


def read_mnist(image_path: Path, label_path: Path) -> tuple[Bytes, Bytes]:
    """Images (N, 14, 14), every second row and column, and digits (N,) of a pair of IDX files."""
    pixels, digits = read_idx(image_path, 3), read_idx(label_path, 1)
    if pixels.shape[1:] != (28, 28):
        raise ValueError(f"{image_path} must hold images of 28 x 28. Got {pixels.shape[1:]}. {_AGAIN}")
    if len(pixels) != len(digits):
        raise ValueError(
            f"{label_path} must hold one label for each of the {len(pixels)} images of {image_path}. "
            f"Got {len(digits)}. {_AGAIN}"
        )
    if (digits > 9).any():
        raise ValueError(f"{label_path} must hold digits, 0 to 9. Got {int(digits.max())}. {_AGAIN}")
    return pixels[:, ::2, ::2], digits


def read_idx(path: Path, n_dimensions: int) -> Bytes:
    """An IDX file of bytes, plain or packed.

    Two zeros, the type (8: bytes without sign), the number of dimensions; each of these as four bytes, the highest
    first; then the values, the last dimension fastest.
    """
    try:
        with open_unpacked(path) as file:
            content = file.read()
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise ValueError(f"{path} must be a whole IDX file. Got {type(error).__name__}: {error}. {_AGAIN}") from error
    start = 4 + 4 * n_dimensions
    if len(content) < start or content[:4] != bytes([0, 0, 8, n_dimensions]):
        raise ValueError(
            f"{path} must be an IDX file of bytes with {n_dimensions} dimensions, which begins with "
            f"{bytes([0, 0, 8, n_dimensions])!r}. Got {content[:4]!r}. {_AGAIN}"
        )
    shape = struct.unpack(f">{n_dimensions}I", content[4:start])
    size = int(np.prod(shape, dtype=np.uint64))
    if len(content) != start + size:
        raise ValueError(
            f"{path} must hold {size} bytes behind its head, for shape {shape}. Got {len(content) - start}. {_AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


_AGAIN = f"Take it again, from {SOURCE.source}."


def _find(images: Images, data_home: Home) -> tuple[tuple[DataFile, ...], list[Path]]:
    """Which pair of files is read, images first, and where they lie."""
    copies = {"auto": (SOURCE.files, SOURCE.instead), "train": (SOURCE.files,), "t10k": (SOURCE.instead,)}[images]
    problems = []
    for files in copies:
        try:
            return files, find_files(files, data_home)
        except FileNotFoundError as error:
            problems.append(error)
    raise problems[0]


def _flips(name: str, values: Any) -> tuple[float, ...]:
    """Shares of wrong colours, one per environment, all different."""
    try:
        given = tuple(values)
    except TypeError:
        given = ()
    found = tuple(probability(f"{name}[{i}]", value) for i, value in enumerate(given))
    if not found or isinstance(values, str) or len(set(found)) < len(found):
        raise ValueError(
            f"{name} must be one share of wrong colours per environment, all different. Got {values!r}. "
            "Use (0.2, 0.1), for example."
        )
    return found


def _names(flips: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"e={e:g}" for e in flips)
