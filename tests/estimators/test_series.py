"""Series, (rows, channels, length): rows of another shape are told of in these words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import irmtv
from irmtv import InvariantClassifier

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2, 16))
Y, SITE = np.arange(40) % 2, np.arange(40) // 20


def of_fixed_length():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 1))


def of_any_length():
    pool = torch.nn.AdaptiveAvgPool1d(1)
    return torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3), pool, torch.nn.Flatten(), torch.nn.Linear(3, 1))


def fitted(module):
    return InvariantClassifier(module=module, max_steps=3, random_state=0).fit(X, Y, environment=SITE)


@pytest.mark.parametrize("call", ["predict", "predict_proba"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (5, 16, 2),
            r"\(channels, length\) = \(2, 16\) as in training. Got \(16, 2\). .*swapped, use X.transpose\(0, 2, 1",
        ),
        (
            (5, 3, 16),
            r"\(channels, length\) = \(2, 16\) as in training. Got \(3, 16\). Select the channels of training",
        ),
        (
            (5, 2, 9),
            r"training, \(channels, length\) = \(2, 16\): the module cannot read X of shape \(5, 2, 9\).*length of",
        ),
        ((5, 32), r"X must be \(rows, channels, length\), series, as in training. Got shape \(5, 32\)|32 features"),
    ],
)
def test_another_shape(call, shape, message):
    with pytest.raises(ValueError, match=message):
        getattr(fitted(of_fixed_length), call)(np.zeros(shape))


def test_another_length_is_read_where_the_module_can():
    model = fitted(of_any_length)
    assert model.predict(X[:, :, :9]).shape == (40,)
    with pytest.raises(ValueError, match=r"Got \(3, 9\)"):
        model.predict(np.zeros((5, 3, 9)))


def test_a_warm_start_on_other_channels():
    model = fitted(of_any_length).set_params(warm_start=True)
    with pytest.raises(ValueError, match=r"Got \(3, 16\).*warm_start=True goes on from a model of other rows"):
        model.fit(np.zeros((40, 3, 16)), Y, environment=SITE)


def test_a_model_from_a_file_does_not_know_the_length(tmp_path):
    path = fitted(of_fixed_length).save(tmp_path / "m.irmtv")
    with pytest.raises(ValueError, match=r"= \(2, any that the module reads\) as in training. Got \(3, 16\)"):
        irmtv.load(path, module=of_fixed_length).predict(np.zeros((5, 3, 16)))
