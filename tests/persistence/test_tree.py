"""Trees that unfold to more than their file has: refused before anything is built, in linear time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from irmtv.persistence import ModelFileError
from irmtv.persistence.archive import pack
from irmtv.persistence.parts import dump_parts, load_parts
from irmtv.persistence.tree import MAX_DEPTH, check_tree


def node(loader, module, name, **more):
    return {"__loader__": loader, "__module__": module, "__class__": name, **more}


def items(*content, **more):
    return node("ListNode", "builtins", "list", content=list(content), **more)


def mapping(**content):
    text = node("TypeNode", "builtins", "str")
    return node("DictNode", "builtins", "dict", content=content, key_types=items(*[text] * len(content)))


def scaler(number, content):
    return node("ObjectNode", "sklearn.preprocessing._data", "StandardScaler", content=content, __id__=number)


def reference(number):
    return node("CachedNode", None, None, __id__=number)


def doubling(levels):
    """A list of scalers, each with two references to the one before it: small in the file, 2**levels unfolded."""
    first = scaler(1, mapping(a=json_node("1")))
    rest = [scaler(i, mapping(a=reference(i - 1), b=reference(i - 1))) for i in range(2, levels + 1)]
    return items(first, *rest)


def json_node(text):
    return node("JsonNode", "builtins", "str", content=text, is_json=True)


def load(tree, **files):
    schema = {**mapping(p=tree), "protocol": 2, "_skops_version": "0"}
    data = {f"{name[1:]}.npy": content for name, content in files.items()}
    return load_parts(pack({"schema.json": json.dumps(schema).encode(), **data}), ["p"], "x")["p"]


@pytest.fixture
def nothing_is_built(monkeypatch):
    def must_not_run(*_args, **_kwargs):
        raise SystemExit("skops was asked to build it")

    monkeypatch.setattr("skops.io.loads", must_not_run)


@pytest.mark.parametrize("levels", [30, 60, 2000])
def test_two_references_at_each_level_are_refused(nothing_is_built, levels):
    with pytest.raises(ModelFileError, match=r"x is not as irmtv writes it: it has [0-9]+ nodes, which unfold to more"):
        load(doubling(levels))


@pytest.mark.filterwarnings("ignore:Trying to unpickle")  # the nodes do not say which scikit-learn wrote them
def test_few_levels_are_read_and_stay_shared():
    scalers = load(doubling(5))
    assert scalers[4].a is scalers[4].b is scalers[3]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (items(items(json_node("1"), __id__=7), reference(7)), "a ListNode has the id 7"),  # the writer shares no list
        (items(scaler(7, mapping()), scaler(7, mapping())), "ObjectNode has the id 7"),
        (items({"__id__": 7}), "an id stands outside of a node"),
        (items(reference(7), scaler(7, mapping())), "refers to 7, which is no node before it"),
        (scaler(7, mapping(a=reference(7))), "refers to 7, which is no node before it"),
        (items(scaler(1, mapping()), reference(True)), "refers to True"),
        (items(scaler(1, mapping()), reference(1.0)), "refers to 1.0"),
        (items(scaler(1, mapping()), reference([1])), r"refers to \[1\]"),
        (scaler(0, mapping()), "ObjectNode has the id 0"),
        (scaler("a", mapping()), "ObjectNode has the id 'a'"),
        (json_node("[1, 2]"), "a JsonNode holds something other than"),
        (json_node(' {"a": 1}'), "a JsonNode holds something other than"),
        (json_node(5), "a JsonNode holds something other than"),
    ],
)
def test_sharing_that_the_writer_does_not_make_is_refused(nothing_is_built, tree, message):
    with pytest.raises(ModelFileError, match=message):
        load(tree)


def test_a_deep_tree_is_refused(nothing_is_built):
    tree = json_node("1")
    for _ in range(MAX_DEPTH):
        tree = items(tree)
    with pytest.raises(ModelFileError, match="it is nested too deeply, more than 200 levels"):
        load(tree)


def test_an_array_that_is_read_too_often_is_refused():
    array = node("NdArrayNode", "numpy", "ndarray", type="numpy", file="0.npy")
    check_tree(items(*[array] * 5), {"0.npy": 10**8})
    with pytest.raises(ValueError, match="it has 100000000 bytes of arrays, which unfold to 1000000000"):
        check_tree(items(*[array] * 10), {"0.npy": 10**8})


def test_what_could_not_be_read_is_not_written():
    nested = [StandardScaler().fit(np.eye(2))]
    for _ in range(MAX_DEPTH // 2):
        nested = [nested]
    with pytest.raises(ModelFileError, match="parts cannot be stored: it is nested too deeply"):
        dump_parts({"p": nested})
