"""Pickles of arrays: read as pickle itself reads them; hostile ones are refused and nothing of them runs."""

from __future__ import annotations

import builtins
import copyreg
import doctest
import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from irmtv.datasets import safe_pickle
from irmtv.datasets.safe_pickle import RefusedPickleError, load_pickle, read_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def load(content):
    return load_pickle(io.BytesIO(content))


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype.newbyteorder("=") and a.shape == b.shape and a.flags.writeable
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


RNG = np.random.default_rng(0)
GOOD = {
    0: (RNG.normal(size=(3, 8, 46)), RNG.normal(size=(3, 2)).astype(">f4"), np.arange(3), 0, RNG.normal(size=(3, 12))),
    "texts": [np.array(["a", "bcd"]), np.array([b"x", b"yz"]), "Öl", b"raw", b""],
    "orders": (np.asfortranarray(RNG.normal(size=(4, 3))), RNG.normal(size=(6, 4))[::2, ::2]),
    "small": [np.zeros((0, 3)), np.array(True), np.array([True, False]), np.array(7, "i2"), np.arange(3, dtype="u1")],
    "half": np.array([1, 2], "<f2"),
    "numbers": [1, -5, 2**70, 1.5, float("inf"), True, None],
    ("a", 1): {"inner": []},
}  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_arrays_and_plain_containers_of_every_protocol(protocol):
    content = pickle.dumps(GOOD, protocol)
    assert_same(load(content), pickle.loads(content))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_names_of_numpy_before_2(protocol):
    content = pickle.dumps(GOOD, protocol).replace(b"numpy._core", b"numpy.core")
    if protocol >= 4:  # there a name's length goes before it, and the frame's length before that
        content = pickle.dumps(GOOD, 3).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core" in content
    assert_same(load(content), GOOD)


def test_scalars_of_numpy_become_pythons():
    for protocol in PROTOCOLS:
        found = load(pickle.dumps([np.float64(1.5), np.int16(-2), np.bool_(True)], protocol))
        assert found == [1.5, -2, True] and [type(v) for v in found] == [float, int, bool]


def test_texts_of_python_2():
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2\nt"
    array += b"cnumpy\ndtype\n(S'i2'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\nS'\\x01\\x00\\xff\\x00'\ntb."
    np.testing.assert_array_equal(load(array), np.array([1, 255], "<i2"))


def test_an_array_in_two_places_is_one():
    one = np.arange(3)
    found = load(pickle.dumps([one, {"again": one}]))
    assert found[0] is found[1]["again"]


# ---- hostile


class Calls:
    """Its pickle calls `function(*args)`."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


class Sets(Calls):
    def __init__(self, function, args, state):
        self.call = (function, args, state)


@pytest.fixture
def marker(tmp_path):
    """A file that a hostile pickle would touch."""
    path = tmp_path / "touched"
    yield path
    assert not path.exists()


def hostile(path):
    """Every one of these, read by pickle itself, touches the file or runs something."""
    code = f"open({str(path)!r}, 'w').close()"
    many = np.empty(2, dtype=object)
    many[:] = [Calls(os.system, f"touch {path}"), 1]
    return {
        "system": Calls(os.system, f"touch {path}"),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "getattr": Calls(getattr, builtins.open, "__self__"),
        "import": Calls(__import__, "os"),
        "open": Calls(open, str(path), "w"),
        "subprocess": Calls(subprocess.call, ["touch", str(path)]),
        "partial": partial(os.system, f"touch {path}"),
        "numpy.save": Calls(np.save, str(path), 1),
        "numpy.load": Calls(np.load, str(path)),
        "numpy.fromfile": Calls(np.fromfile, str(path)),
        "numpy.memmap": Calls(np.memmap, str(path), "u1", "w+", 0, (3,)),
        "numpy.vectorize": Calls(np.vectorize, eval),
        "numpy.apply_along_axis": Calls(np.apply_along_axis, os.system, 0, np.zeros(1)),
        "object array": many,
        "in a dict": {0: (np.zeros(2), Calls(os.system, f"touch {path}"))},
        "as a key": {Calls(hash, 1): 1},
        "class": Calls,
        "ordered dict": OrderedDict(a=1),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", list(hostile("x")))
def test_a_hostile_pickle_is_refused_and_nothing_runs(marker, name, protocol):
    try:
        content = pickle.dumps(hostile(marker)[name], protocol)
    except (pickle.PicklingError, ValueError, AttributeError):
        pytest.skip("not in this protocol")
    with pytest.raises(RefusedPickleError, match=r"it asks for|it holds"):
        load(content)


def test_the_hostile_one_is_hostile(tmp_path):
    """Else the test above could not fail."""
    path = tmp_path / "touched"
    pickle.loads(pickle.dumps(hostile(path)["system"]))
    assert path.exists()


def name_of(module, name):
    """The instructions that put a name onto the stack."""
    return f"c{module}\n{name}\n".encode()


def text(value):
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "eval"),
        ("numpy", "load"),
        ("numpy.f2py", "compile"),
        ("numpy.f2py.diagnose", "run_command"),
        ("numpy.testing._private.utils", "runstring"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__class__"),
        ("numpy.core.multiarray", "_reconstruct.__globals__"),
        ("numpy._core.multiarray", "fromfile"),
        ("numpy._core.numeric", "_frombuffer.__globals__"),
        ("numpy.ma.core", "_mareconstruct"),
        ("irmtv.datasets.safe_pickle", "os.system"),
        ("builtins", "bytes"),
        ("copyreg", "_reconstructor"),
        ("copy_reg", "_reconstructor"),
        ("torch", "load"),
    ],
)
def test_names_are_not_looked_up(monkeypatch, module, name):
    monkeypatch.setattr(builtins, "__import__", None)  # looking one up would need it
    for content in (name_of(module, name) + b".", b"\x80\x04" + text(module) + text(name) + b"\x93."):
        with pytest.raises(RefusedPickleError) as caught:
            load(content)
        assert str(caught.value) == f"it asks for {module}.{name}"


def test_other_ways_to_call(marker):
    command = f"touch {marker}"
    inst = f"(S'{command}'\nios\nsystem\n.".encode()
    obj = b"(" + name_of("os", "system") + text(command) + b"o."
    for content in (inst, obj):
        with pytest.raises(RefusedPickleError, match=r"it asks for os\.system"):
            load(content)
    for content in (b"Pid\n.", text("id") + b"Q."):
        with pytest.raises(RefusedPickleError, match="outside of the file"):
            load(content)


def test_a_registered_extension_is_a_name_too(marker):
    copyreg.add_extension("os", "system", 200)
    try:
        with pytest.raises(RefusedPickleError, match=r"it asks for os\.system"):
            load(b"\x80\x02\x82\xc8" + text(f"touch {marker}") + b"\x85R.")
    finally:
        copyreg.remove_extension("os", "system", 200)


DTYPE = name_of("numpy", "dtype")
RECONSTRUCT = name_of("numpy.core.multiarray", "_reconstruct")
BEGUN = RECONSTRUCT + b"(tR"  # an array before its state


def dtype(code, state=b"(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"):
    return DTYPE + b"(" + text(code) + b"tR" + state


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (dtype("O8"), "of type 'O8'"),
        (dtype("O"), "of type 'O'"),
        (dtype("V8"), "of type 'V8'"),
        (dtype("M8"), "of type 'M8'"),
        (dtype("f8,O"), "of type 'f8,O'"),
        (dtype("numpy.float64"), "of type"),
        (DTYPE + b"(NtR", "of type None"),
        (DTYPE + DTYPE + b"\x85R", "of type <"),
        (dtype("i8", b"(I3\nS'|'\nN(S'a'\ntNI-1\nI-1\nI63\ntb"), "records"),
        (dtype("i8", b"(I3\nS'|'\n(I1\nI2\ntNNI-1\nI-1\nI63\ntb"), "records"),
        (dtype("i8", b"(I3\nS'!'\nNNNI-1\nI-1\nI63\ntb"), "byte order"),
        (BEGUN, "an array without values"),
        (dtype("i8"), "an object of type _Dtype"),
        (DTYPE, r"it holds numpy\.dtype"),
        (DTYPE + b"(N(dS'_call'\nNstb", "sets attributes of numpy.dtype"),
        (name_of("numpy", "ndarray") + b"(I3\ntR", "makes an array by itself"),
        (BEGUN + b"(I1\n(I2\nt" + dtype("i8") + b"I00\n" + text("short") + b"tb", r"shape \(2,\) .* 5 bytes"),
        (BEGUN + b"(I1\n(I-2\nt" + dtype("i8") + b"I00\n" + text("") + b"tb", "shape"),
        (BEGUN + b"(I1\n(I1\nt" + dtype("i8") + b"I00\n]tb", "not made of bytes"),
        (BEGUN + b"(I1\n(I1\ntNI00\n" + text("12345678") + b"tb", "not made of bytes"),
        (name_of("_codecs", "encode") + b"(S'x'\nS'rot13'\ntR", "encodes"),
        (name_of("_codecs", "encode") + b"(I5\nS'latin1'\ntR", "encodes"),
        (name_of("__builtin__", "bytes") + b"(I99999999\ntR", "makes bytes"),
        (b"\x80\x04\x8f", "an object of type set"),
        (b"\x80\x05\x96\x01\0\0\0\0\0\0\0a", "an object of type bytearray"),
        (b"]q\x00h\x00a", "in themselves"),
    ],
)  # fmt: skip
def test_what_numpy_would_trust(content, says):
    with pytest.raises(RefusedPickleError, match=says):
        load(content + b".")


def test_a_refused_file_leaves_nothing_behind():
    with pytest.raises(RefusedPickleError):
        load(DTYPE + b"(N(dS'_call'\nNstb.")
    assert_same(load(pickle.dumps(GOOD)), GOOD)


def test_containers_that_stand_in_many_places_are_gone_through_once():
    laughs = []
    for _ in range(60):  # 2 ** 60 places
        laughs = [laughs, laughs]
    found = load(pickle.dumps(laughs))
    assert found[0] is found[1]


def test_every_truncation_is_an_error():
    for protocol in PROTOCOLS:
        content = pickle.dumps({0: (np.arange(3.0), np.zeros((2, 2)), "a")}, protocol)
        for end in range(len(content)):
            with pytest.raises((ValueError, EOFError)):
                load(content[:end])


def test_any_bytes_give_a_value_or_an_error_of_these(marker):
    rng = np.random.default_rng(1)
    for protocol in PROTOCOLS:
        content = pickle.dumps([hostile(marker)["system"], np.arange(5.0), {"a": np.zeros((2, 3), ">i4")}], protocol)
        content = content.replace(b"posix", b"numpy").replace(b"system", b"dtype ")
        for _ in range(400):
            changed = bytearray(content)
            for place in rng.integers(len(content), size=rng.integers(1, 4)):
                changed[place] = rng.integers(256)
            if b"r" in changed and struct.unpack("<I", (changed + b"\0" * 8)[changed.index(b"r") + 1 :][:4])[0] > 1e6:
                continue  # a memo of that many entries: memory, nothing else
            with suppress(ValueError, EOFError):
                load(bytes(changed))


# ---- files


def test_files_plain_and_packed(tmp_path):
    content = pickle.dumps(GOOD)
    (tmp_path / "a.pkl").write_bytes(content)
    (tmp_path / "a.pkl.gz").write_bytes(gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "a.pkl.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.pkl", content)
    for name in ("a.pkl", "a.pkl.gz", "a.pkl.zip"):
        assert_same(read_pickle(tmp_path / name), GOOD)
        assert_same(read_pickle(str(tmp_path / name)), GOOD)


@pytest.mark.parametrize("kind", ["", ".gz", ".zip"])
def test_broken_files(tmp_path, kind):
    path = tmp_path / f"a.pkl{kind}"
    content = pickle.dumps(GOOD)
    if kind == ".gz":
        content = gzip.compress(content)
    elif kind == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.pkl", content)
        content = path.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"<html>not found</html>"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"cannot be read to its end|not a whole pickle") as caught:
            read_pickle(path)
        assert not isinstance(caught.value, RefusedPickleError)
    with pytest.raises(FileNotFoundError):
        read_pickle(tmp_path / f"none{kind}")


def test_a_zip_of_several(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.pkl", b"")
        archive.writestr("b.pkl", b"")
    with pytest.raises(ValueError, match=r"must hold one file\. Got 2"):
        read_pickle(tmp_path / "a.zip")


def test_docstring_examples():
    outcome = doctest.testmod(safe_pickle)
    assert outcome.attempted == 3
    assert outcome.failed == 0


@pytest.mark.parametrize("index", [2**25, 2**26])
def test_a_large_index_takes_no_memory(index):
    """In a process of its own, whose peak is its own."""
    put = b"r" + struct.pack("<I", index)
    get = b"j" + struct.pack("<I", index)
    content = b"N" + put + b"0" + get + b"."
    code = (
        "import io, resource\n"
        "from irmtv.datasets.safe_pickle import load_pickle\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert load_pickle(io.BytesIO({content!r})) is None\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(printed.stdout) < 5_000  # kilobytes
