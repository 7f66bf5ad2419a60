"""Networks of the user's own in model files: the numbers are saved, the code is given again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import irmtv
from irmtv import InvariantClassifier, InvariantClassifierCV, InvariantRegressor
from irmtv.engine.networks import Conv1d, Module
from irmtv.persistence import ModelFileError, read_model, write_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, 100]
SERIES = RNG.normal(size=(120, 2, 9)) * [[1.0], [50.0]] + [[0.0], [7.0]]
SITE = np.repeat(["north", "south"], 60)
Y = (X[:, 0] + SERIES[:, 0, 0] > 0).astype(int)
TIME = np.linspace(0, 1, 120)
SMALL = {"max_steps": 15, "random_state": 3}


class OnSeries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv1d(2, 3, kernel_size=3)
        self.decide = nn.Linear(3, 1)

    def forward(self, x):  # (N, 2, L) -> (N, 1)
        return self.decide(self.look(x).relu().mean(-1))


def normed(averages=True):
    norm = nn.BatchNorm1d(6, track_running_stats=averages)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 1))


def frozen(*after):
    """Random features that are not trained: another start at every call."""
    first = nn.Linear(4, 6)
    first.weight.requires_grad_(False)
    return nn.Sequential(first, *after, nn.ReLU(), nn.Linear(6, 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(2, 3, batch_first=True)
        self.decide = nn.Linear(3, 1)

    def forward(self, x):
        return self.decide(self.read(x.transpose(1, 2))[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.arange(4.0), persistent=False)  # not in its state_dict

    def forward(self, x):
        return self.b(self.a(x + self.shift).tanh()).sum(1)


def classifier(module, objective="irm-tv-l1", **settings):
    return InvariantClassifier(objective, module=module, **{**SMALL, **settings})


MODULES = {
    "linear": (lambda: nn.Linear(4, 1), X),
    "series": (OnSeries, SERIES),
    "batch norm and dropout": (normed, X),
    "frozen": (frozen, X),
    "frozen, in a loop": (lambda: frozen(nn.Dropout(0.1)), X),
    "recurrent": (Recurrent, SERIES),
    "tied": (Tied, X),
    "a network of irmtv's": (Conv1d(2, 1, channels=(3,), kernels=(3, 3), pool_after=(), last_relu=False), SERIES),
    "its wrapper": (Module(OnSeries), SERIES),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    module, rows = MODULES[name]
    model = classifier(module).fit(rows, Y, environment=SITE)
    path = model.save(tmp_path / "model.irmtv")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    loaded = irmtv.load(path, module=module)
    assert torch.equal(before, torch.get_rng_state())
    assert loaded.module is module and repr(loaded.get_params()) == repr(model.get_params())
    expected = model.decision_function(rows)
    assert np.ptp(expected) > 1e-3
    np.testing.assert_array_equal(loaded.decision_function(rows), expected)
    np.testing.assert_array_equal(loaded.decision_function(rows[::-1][:7]), model.decision_function(rows[::-1][:7]))
    assert loaded.save(tmp_path / "again.irmtv").read_bytes() == path.read_bytes()
    with pytest.raises(ModelFileError, match=r"module must be given to load .*a file holds no code.*load\(path, mod"):
        irmtv.load(path)


def test_other_estimators_with_a_module(tmp_path):
    several = classifier(lambda: nn.Linear(4, 3), "erm").fit(X, Y + (X[:, 1] > 9))
    targets = InvariantRegressor("erm", module=lambda: nn.Linear(4, 2), **SMALL).fit(X, X[:, :2])
    half = classifier(normed, dtype="float64").fit(X, Y, environment=SITE)
    half.predict_proba(X)
    chosen = InvariantClassifierCV(module=OnSeries, cv=2, n_seeds=2, rule="iid", penalty_weights=(0, 10), **SMALL)
    chosen.fit(SERIES, Y, environment=SITE)
    assert len(chosen.predictor_.members) == 2
    inferred = classifier(lambda: nn.Linear(4, 1), "minimax-tv-l1").fit(X, Y, aux=TIME)
    beside = classifier(lambda: nn.Linear(5, 1), "tiva").fit(X, Y, aux=TIME)
    for i, (model, rows) in enumerate(
        ((several, X), (targets, X), (half, X), (chosen, SERIES), (inferred, X), (beside, X))
    ):
        loaded = irmtv.load(model.save(tmp_path / f"{i}.irmtv"), module=model.module)
        more = {"aux": TIME} if model is beside else {}
        np.testing.assert_array_equal(loaded.predict(rows, **more), model.predict(rows, **more))
        if hasattr(model, "classes_"):
            np.testing.assert_array_equal(loaded.predict_proba(rows, **more), model.predict_proba(rows, **more))
        if model is inferred:
            np.testing.assert_array_equal(loaded.membership(aux=TIME), model.membership(aux=TIME))


def test_a_pipeline_that_ends_in_a_module(tmp_path):
    model = make_pipeline(StandardScaler(), classifier(normed)).fit(X, Y, invariantclassifier__environment=SITE)
    path = irmtv.save(model, tmp_path / "model.irmtv")
    np.testing.assert_array_equal(irmtv.load(path, module=normed).predict_proba(X), model.predict_proba(X))
    with pytest.raises(ModelFileError, match="module must be given"):
        irmtv.load(path)


def test_training_goes_on_after_loading(tmp_path):
    model = classifier(OnSeries, warm_start=True).fit(SERIES, Y, environment=SITE)
    loaded = irmtv.load(model.save(tmp_path / "model.irmtv"), module=OnSeries)
    for found in (model, loaded):
        found.fit(SERIES, Y, environment=SITE)
    np.testing.assert_array_equal(loaded.predict_proba(SERIES), model.predict_proba(SERIES))
    anew = clone(loaded).fit(SERIES, Y, environment=SITE)
    assert anew.module is OnSeries and not np.array_equal(anew.predict_proba(SERIES), model.predict_proba(SERIES))


# ---- what is refused ------------------------------------------------------------------------------------------------


class Wider(OnSeries):
    def __init__(self) -> None:
        super().__init__()
        self.decide = nn.Linear(3, 1, bias=False)
        self.look = nn.Conv1d(2, 3, kernel_size=5)


def thawed():
    made = frozen()
    return made.requires_grad_(True)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {
        name: classifier(module).fit(rows, Y, environment=SITE).save(folder / f"{i}.irmtv")
        for i, (name, (module, rows)) in enumerate(MODULES.items())
    }


def broken():
    raise TypeError("mine")


same = nn.Linear(4, 1)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("series", Wider, r"look.weight \(parameters\) \(3, 2, 3\) in the file and \(3, 2, 5\) here"),
        ("series", Wider, r"decide.bias \(parameters\) \(1,\) in the file and missing here"),
        ("linear", OnSeries, r"bias \(parameters\) \(1,\) in the file and missing here, decide.bias .* missing in the"),
        ("frozen", thawed, r"0.weight \(frozen\) \(6, 4\) in the file and missing here"),
        ("batch norm and dropout", lambda: normed(False), r"1.running_mean \(buffers\)"),
        ("a network of irmtv's", OnSeries, r"W0 \(parameters\)"),
    ],
)
def test_another_module(written, name, module, message):
    with pytest.raises(
        ModelFileError, match=f"module must make the network that .* Got one with .*{message}.*Give the f"
    ):
        irmtv.load(written[name], module=module)


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (broken, TypeError, "^mine$"),  # the user's own error, as it is
        (same, ValueError, "module must be a function"),
        (lambda: same, ValueError, "a new module at every call"),
        (dict, ValueError, "module must be a function that returns a torch.nn.Module"),
        (3, ValueError, "module must be a function"),
    ],
)
def test_what_is_no_module(written, module, error, message):
    with pytest.raises(error, match=message) as raised:
        irmtv.load(written["linear"], module=module)
    assert not isinstance(raised.value, ModelFileError)


def test_a_module_where_none_belongs(tmp_path):
    path = InvariantClassifier("erm", hidden=(), **SMALL).fit(X, Y).save(tmp_path / "model.irmtv")
    with pytest.raises(ModelFileError, match=r"module must be left out: .*Use load\(path\)"):
        irmtv.load(path, module=OnSeries)


def changed(path, edit):
    content = read_model(path)
    edit(content)
    return write_model(path.with_name("changed.irmtv"), content.kind, content.arrays, content.meta)


def set_array(name, value):
    return lambda content: content.arrays.__setitem__(name, value)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("linear", lambda c: c.arrays.pop("member0/parameters/bias"), "member 0 has parameters .* for a network of"),
        ("linear", set_array("member0/parameters/more", np.ones(1)), "member 0 has parameters"),
        ("linear", set_array("member0/parameters/bias", np.ones(1, int)), "not floating point"),
        ("linear", set_array("x/scale", np.ones((4, 2))), "must have the shape"),
        ("series", set_array("x/scale", np.ones((3, 1))), "must have the shape"),
        ("frozen", lambda c: c.arrays.pop("member0/frozen/0.weight"), "member 0 has frozen"),
        ("batch norm and dropout", lambda c: c.arrays.pop("member0/buffers/1.running_mean"), "member 0 has buffers"),
        ("linear", lambda c: c.meta["members"][0].pop("step"), "KeyError: 'step'"),
        ("linear", lambda c: c.meta["members"][0]["net"].pop("shapes"), "KeyError: 'shapes'"),
        ("linear", lambda c: c.meta["members"][0]["net"].update(shapes=3), "TypeError"),
        ("linear", lambda c: c.meta["members"].append({"net": {"type": "mlp"}, "step": 1}), "some of its networks"),
    ],
)
def test_a_sealed_file_with_something_else_in_it(written, name, edit, message):
    with pytest.raises(ModelFileError, match=f"does not hold a whole InvariantClassifier: .*{message}"):
        irmtv.load(changed(written[name], edit), module=MODULES[name][0])


def test_a_damaged_file_is_noticed_before_the_module_is_called(written, tmp_path):
    data = bytearray(written["series"].read_bytes())
    data[len(data) // 2] ^= 1
    path = tmp_path / "damaged.irmtv"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="damaged"):
        irmtv.load(path, module=broken)
