"""Model files as a whole: what is written comes back, the same content gives the same bytes, versions, kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import irmtv
from irmtv.persistence import FORMAT, ModelFile, ModelFileError, read_model, write_model
from persistence.files import entries, reheader, reseal, small

NUMBERS = {
    "f64": np.array([[0.1, np.nan, -np.inf], [-0.0, 5e-324, 1e308]]),
    "f32": np.array([0.1], dtype="f4"),
    "f16": np.array([0.1], dtype="f2"),
    "i64": np.array([2**62, -1]),
    "u8": np.array([[0], [255]], dtype="u1"),
    "u64": np.array([2**64 - 1], dtype="u8"),
    "bool": np.array([True, False]),
    "zero_d": np.array(1.5),
    "empty": np.zeros((0, 3)),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(10)[::3],
    "net.W0": np.ones((1, 1, 1)),
}


def test_numbers_come_back_to_the_last_bit(tmp_path):
    back = read_model(write_model(tmp_path / "m.irmtv", "demo", NUMBERS, {})).arrays
    assert set(back) == set(NUMBERS)
    for name, array in NUMBERS.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape, name
        assert back[name].tobytes() == array.tobytes(), name
        assert back[name].flags.writeable, name  # torch.from_numpy warns otherwise


def test_big_endian_numbers_come_back_as_equal_native_ones(tmp_path):
    array = np.array([1.5, 2.5], dtype=">f8")
    back = read_model(write_model(tmp_path / "m.irmtv", "demo", {"a": array}, {})).arrays["a"]
    assert back.dtype == np.dtype("=f8") and (back == array).all()


def test_tensors_come_back_as_arrays(tmp_path):
    w = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    arrays = {"w": w, "t": w.detach().T, "b": torch.tensor([True]), "n": torch.tensor(3)}
    back = read_model(write_model(tmp_path / "m.irmtv", "demo", arrays, {})).arrays
    for name, tensor in arrays.items():
        made = torch.from_numpy(back[name])
        assert made.dtype == tensor.dtype and torch.equal(made, tensor.detach()), name


def test_labels_meta_kind_and_version(tmp_path):
    labels = {"names": np.array(["b", "ä"]), "mixed": np.array([1, "a", None, True], dtype=object)}
    meta = {"z": (1, 2), "a": {"x": float("inf")}, "none": None}
    model = read_model(write_model(tmp_path / "m.irmtv", "demo-2", labels, meta))
    assert isinstance(model, ModelFile)
    assert (model.kind, model.version, model.path) == ("demo-2", irmtv.__version__, tmp_path / "m.irmtv")
    assert model.meta == meta and list(model.meta) == ["z", "a", "none"] and model.parts == {}
    assert model.arrays["names"].tolist() == ["b", "ä"] and model.arrays["names"].dtype.kind == "U"
    assert [type(v) for v in model.arrays["mixed"]] == [int, str, type(None), bool]


def test_the_same_content_gives_the_same_bytes(tmp_path):
    arrays = {**NUMBERS, "names": np.array(["b", "a"]), "mixed": np.array([1, "a"], dtype=object)}
    first = write_model(tmp_path / "a", "demo", arrays, {"x": 1}).read_bytes()
    turned = dict(reversed(arrays.items()))
    assert write_model(tmp_path / "b", "demo", turned, {"x": 1}).read_bytes() == first
    again = read_model(tmp_path / "a")
    assert write_model(tmp_path / "c", again.kind, again.arrays, again.meta).read_bytes() == first
    assert write_model(tmp_path / "d", "demo", arrays, {"x": 1.0}).read_bytes() != first


@pytest.mark.parametrize("kind", ["", "Classifier", "a b", None, "-a", "a\n"])
def test_a_wrong_kind_is_refused(tmp_path, kind):
    with pytest.raises(ModelFileError, match="kind must be small letters, digits and hyphens"):
        write_model(tmp_path / "m", kind, {}, {})


@pytest.mark.parametrize("name", ["", "__metadata__", 3, "a\nb", "\ud800"])
@pytest.mark.parametrize("what", ["arrays", "meta", "parts"])
def test_a_wrong_name_is_refused(tmp_path, what, name):
    given = {"arrays": {}, "meta": {}, "parts": {}, what: {name: np.zeros(1) if what == "arrays" else 1}}
    with pytest.raises(ModelFileError, match=f"{what} must have names that are printable text. Got "):
        write_model(tmp_path / "m", "demo", **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ([1.0], "must be a numpy array or a tensor. Got list"),
        (np.ones((1, 1)).view(np.matrix), "must be a numpy array or a tensor. Got matrix"),
        (np.ma.masked_array([1.0], [True]), "must be a numpy array or a tensor. Got MaskedArray"),
        (np.array([1j]), "numbers of up to 64 bits, .* Got complex128"),
        (np.array([1], dtype=np.longdouble), "Got float128|Got longdouble"),
        (np.array([b"a"]), r"Got \|S1"),
        (np.array([(1, 2)], dtype="i4,i4"), "Got "),
        (np.array([object()], dtype=object), r"arrays\['a'\]\[0\] must be None, a bool"),
        (torch.zeros(1, dtype=torch.bfloat16), "must be a dense tensor of a type that numpy has. Got torch.bfloat16"),
        (torch.zeros(2, 2).to_sparse(), "must be a dense tensor .* torch.sparse_coo"),
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_an_array_that_cannot_be_stored(tmp_path, array, message):
    with pytest.raises(ModelFileError, match=message) as raised:
        write_model(tmp_path / "m", "demo", {"a": array}, {})
    assert "arrays['a']" in str(raised.value)


def test_a_newer_format_says_what_to_do(tmp_path):
    path = small(tmp_path / "m.irmtv")
    reheader(path, format=FORMAT + 3, irmtv="9.8.7", kind=..., meta="other")
    reseal(path, {"new_entry.bin": b"x"})
    with pytest.raises(ModelFileError) as raised:
        read_model(path)
    assert f"written by irmtv 9.8.7, format {FORMAT + 3}; this is irmtv {irmtv.__version__}, which" in str(raised.value)
    assert f"reads up to format {FORMAT}: upgrade" in str(raised.value)


@pytest.mark.parametrize("number", [..., None, 0, -1, "1", 1.0, True])
def test_a_wrong_format_number(tmp_path, number):
    path = reheader(small(tmp_path / "m.irmtv"), format=number)
    with pytest.raises(ModelFileError, match=r"must say its format, an integer of at least 1. Got"):
        read_model(path)


@pytest.mark.parametrize("key", ["irmtv", "kind", "written_with", "meta", "labels", "parts"])
@pytest.mark.parametrize("value", [..., None, 7])
def test_a_wrong_header(tmp_path, key, value):
    path = reheader(small(tmp_path / "m.irmtv"), **{key: value})
    with pytest.raises(ModelFileError, match=f"irmtv.json has wrong or no '{key}'"):
        read_model(path)


def test_json_that_is_none(tmp_path):
    for data in (b"{", b'{"format": NaN}', b"[1]", b""):
        path = reseal(small(tmp_path / "m.irmtv"), {"irmtv.json": data})
        with pytest.raises(ModelFileError, match=r"irmtv.json of .* is not JSON|must say its format"):
            read_model(path)


def test_parts_that_are_announced_but_missing(tmp_path):
    path = reheader(small(tmp_path / "m.irmtv"), parts=["scaler"])
    with pytest.raises(ModelFileError, match=r"Missing: \['parts.skops'\]"):
        read_model(path)
    reheader(path, parts=[1])
    with pytest.raises(ModelFileError, match="wrong or no 'parts'"):
        read_model(path)


def test_an_array_that_stands_twice(tmp_path):
    path = reheader(small(tmp_path / "m.irmtv"), labels={"w": {"dtype": "str", "shape": [1], "values": ["a"]}})
    with pytest.raises(ModelFileError, match="has the array 'w' twice"):
        read_model(path)


@pytest.mark.parametrize(
    "header",
    [
        b'{"w":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,16]}}',
        b'{"w":{"dtype":"F64","shape":[2],"data_offsets":[0,8000000000000]}}',
        b'{"w":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}}',
        b'{"w":{"dtype":"OBJECT","shape":[2],"data_offsets":[0,16]}}',
        b'{"w":{"dtype":"F64","shape":[-2],"data_offsets":[0,16]}}',
        b"{" * 50,
        b"",
    ],
)
def test_absurd_sizes_and_types_in_the_numbers(tmp_path, header):
    data = len(header).to_bytes(8, "little") + header + b"\0" * 16
    for changed in (data, (2**62).to_bytes(8, "little") + data[8:]):
        path = reseal(small(tmp_path / "m.irmtv"), {"arrays.safetensors": changed})
        with pytest.raises(ModelFileError, match=r"arrays.safetensors of .* is not as irmtv writes it"):
            read_model(path)


def test_an_unknown_kind_is_refused_before_anything_else_is_read(tmp_path):
    path = small(tmp_path / "m.irmtv")
    reseal(path, {"arrays.safetensors": b"broken"})
    with pytest.raises(
        ModelFileError, match=r"holds a 'demo', which this irmtv .* it loads 'classifier', 'demos'"
    ) as e:
        read_model(path, ["classifier", "demos"])
    assert "Did you mean 'demos'?" in str(e.value) and f"written by irmtv {irmtv.__version__}" in str(e.value)


def test_check_names_what_is_missing(tmp_path):
    model = read_model(small(tmp_path / "m.irmtv"))
    model.check(arrays=["w", "classes"], meta=["a"])
    with pytest.raises(ModelFileError, match=r"must have the arrays 'W9' to be a demo. It has 'classes', 'w'"):
        model.check(arrays=["w", "W9"])
    with pytest.raises(ModelFileError, match="must have the meta 'b'"):
        model.check(meta=["b"])
    with pytest.raises(ModelFileError, match=r"must have the parts 'scaler' to be a demo. It has none"):
        model.check(parts=["scaler"])


def test_the_layout_is_the_documented_one(tmp_path):
    path = small(tmp_path / "m.irmtv")
    assert entries(path)["irmtv.json"] == (
        b'{"format":1,"irmtv":"%s","kind":"demo","written_with":{},"meta":{"a":{"$":"tuple","items":[1,null]}},'
        b'"labels":{"classes":{"dtype":"str","shape":[2],"values":["no","yes"]}},"parts":[]}'
        % irmtv.__version__.encode()
    )
