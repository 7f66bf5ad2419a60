"""Fitted preprocessing in model files: what comes back transforms alike; nothing that is not on the list gets in."""

from __future__ import annotations

import importlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from irmtv.persistence import ModelFileError, read_model, write_model
from irmtv.persistence.archive import pack
from irmtv.persistence.parts import dump_parts, load_parts
from irmtv.persistence.trusted import KEY_TYPES, TRUSTED
from older import AVERAGED, ZONE
from persistence.files import entries, reheader, reseal

N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 4))
Y = (X[:, 0] > 0).astype(int)


class MyScaler(StandardScaler):
    """A user's own class."""


class Loud(TransformerMixin, BaseEstimator):
    """Building it by its own set-state would tell."""

    def __setstate__(self, state):
        raise SystemExit("code of an untrusted class ran")


def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=N),
            "count": rng.integers(0, 5, N),
            "nullable": pd.array(rng.integers(0, 5, N), dtype="Int64"),
            "few": rng.choice(["a", "b", "c"], N),
            "many": [f"name {i} of {i % 7}" for i in range(N)],
            "date": pd.date_range("2020-01-01", periods=N, freq="37h"),
            "date_text": pd.date_range("2020-01-01", periods=N).strftime("%Y-%m-%d"),
            "paris": pd.date_range("2020-01-01", periods=N, freq="h", tz=ZONE),
            "utc": pd.date_range("2020-01-01", periods=N, freq="h", tz="UTC"),
            "flag": rng.random(N) > 0.5,
            "maybe": pd.array(rng.random(N) > 0.5, dtype="boolean"),
            "category": pd.Categorical(rng.choice(["u", "v"], N)),
            "codes": pd.Categorical(rng.choice([1, 2, 30], N)),
            "constant": "k",
            "number_text": [str(i / 2) for i in range(N)],
            "duration": pd.to_timedelta(rng.integers(0, 99, N), unit="h"),
        }
    )
    for name in ("number", "nullable", "few", "many", "date", "maybe", "category"):
        frame.loc[rng.choice(N, 5, replace=False), name] = np.nan if name == "number" else None
    return frame


def same_transform(a, b, rows):
    x, y = a.transform(rows), b.transform(rows)
    if hasattr(x, "columns"):
        assert list(x.columns) == list(y.columns)
        x, y = x.to_numpy(), y.to_numpy()
    x, y = (v.toarray() if hasattr(v, "toarray") else v for v in (x, y))
    np.testing.assert_array_equal(x, y)


def through(part):
    return load_parts(dump_parts({"p": part}), ["p"], "parts.skops")["p"]


ON_NUMBERS = [
    *(StandardScaler(), MinMaxScaler(), RobustScaler(), PowerTransformer(), QuantileTransformer(n_quantiles=10)),
    *(KBinsDiscretizer(3, **AVERAGED), PolynomialFeatures(2), SplineTransformer()),
    *(SimpleImputer(add_indicator=True), KNNImputer(), PCA(2), TruncatedSVD(2, random_state=0), SelectKBest(k=2)),
    *(FunctionTransformer(), FunctionTransformer(np.tanh)),
    FeatureUnion([("p", PCA(2)), ("s", StandardScaler())]),
    make_pipeline(SimpleImputer(), StandardScaler(), PCA(3)),
    ColumnTransformer([("a", StandardScaler(), slice(0, 2)), ("b", "passthrough", [3])], remainder=MinMaxScaler()),
]


@pytest.mark.parametrize("part", ON_NUMBERS, ids=lambda p: type(p).__name__)
def test_preprocessing_of_numbers_comes_back(part):
    fitted = part.fit(X, Y)
    back = through(fitted)
    assert type(back) is type(fitted)
    same_transform(fitted, back, X)


@pytest.mark.parametrize(
    "part",
    [
        OneHotEncoder(handle_unknown="ignore", min_frequency=3),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        TargetEncoder(random_state=0),
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), make_column_selector(dtype_include="number")),
            (OneHotEncoder(sparse_output=False), ["few"]),
            (OrdinalEncoder(), ["category"]),
        ),
    ],
    ids=lambda p: type(p).__name__,
)
def test_preprocessing_of_tables_comes_back(part):
    rows = table()[["few", "category", "number", "count"]]
    rows = rows if isinstance(part, ColumnTransformer) else rows[["few", "category"]]
    fitted = part.fit(rows, Y)
    same_transform(fitted, through(fitted), rows)


def test_labels_come_back():
    encoder = LabelEncoder().fit(["b", "a"])
    assert through(encoder).classes_.tolist() == ["a", "b"]


@pytest.fixture(scope="module")
def vectorizer():
    skrub = pytest.importorskip("skrub", reason="skrub is not installed")
    return skrub.TableVectorizer().fit(table())


def test_a_table_vectorizer_comes_back(tmp_path, vectorizer):
    path = write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"table": vectorizer, "scaler": StandardScaler().fit(X)})
    model = read_model(path)
    assert set(model.parts) == {"table", "scaler"}
    same_transform(vectorizer, model.parts["table"], table())
    same_transform(vectorizer, model.parts["table"], table().iloc[:3])
    header = json.loads(entries(path)["irmtv.json"])
    assert set(header["written_with"]) == {"numpy", "scikit-learn", "skops", "skrub"}
    assert path.stat().st_size < 2_000_000  # skops' own file of it has 13 MB


@pytest.mark.parametrize("encoder", ["gap", "minhash", "spline", "circular", "squashing", "specific", "cleaner"])
def test_other_steps_of_skrub_come_back(encoder):
    skrub = pytest.importorskip("skrub", reason="skrub is not installed")
    make, columns = {
        "gap": (lambda: skrub.TableVectorizer(high_cardinality=skrub.GapEncoder(3, random_state=0)), ["many", "few"]),
        "minhash": (
            lambda: skrub.TableVectorizer(high_cardinality=skrub.MinHashEncoder(n_components=4)),
            ["many", "number"],
        ),
        "spline": (lambda: skrub.DatetimeEncoder(periodic_encoding="spline"), ["date"]),
        "circular": (lambda: skrub.DatetimeEncoder(periodic_encoding="circular"), ["utc"]),
        "squashing": (lambda: skrub.TableVectorizer(numeric=skrub.SquashingScaler()), ["number", "count"]),
        "specific": (
            lambda: skrub.TableVectorizer(specific_transformers=[(OrdinalEncoder(), ["few"]), ("drop", ["count"])]),
            ["few", "count", "number"],
        ),
        "cleaner": (lambda: make_pipeline(skrub.Cleaner(), skrub.DropCols(["many"])), ["many", "few", "date_text"]),
    }[encoder]
    if encoder in ("spline", "circular"):
        fitted = skrub.TableVectorizer(datetime=make()).fit(table()[columns])
    else:
        fitted = make().fit(table()[columns])
    rows = table()[columns]
    x, y = fitted.transform(rows), through(fitted).transform(rows)
    pd.testing.assert_frame_equal(x, y)


def test_a_table_vectorizer_of_polars_comes_back():
    skrub = pytest.importorskip("skrub", reason="skrub is not installed")
    pl = pytest.importorskip("polars", reason="polars is not installed")
    rows = pl.from_pandas(table()[["number", "few", "many", "date", "paris", "flag", "category"]])
    fitted = skrub.TableVectorizer().fit(rows)
    assert through(fitted).transform(rows).equals(fitted.transform(rows))


def test_the_same_parts_give_the_same_bytes(vectorizer):
    first = dump_parts({"a": vectorizer, "b": {"s": {"x", "yy", "zzz"}}})
    assert dump_parts({"b": {"s": {"zzz", "yy", "x"}}, "a": vectorizer}) == first
    again = load_parts(first, ["a", "b"], "parts.skops")
    assert dump_parts(again) == first  # also of what was loaded


def test_the_same_bytes_in_another_process():
    """Strings hash differently there, memory lies elsewhere."""
    code = (
        "import numpy as np; from sklearn.preprocessing import OneHotEncoder\n"
        "from irmtv.persistence.parts import dump_parts\n"
        "x = np.array([['a', 'x'], ['b', 'y']], dtype=object)\n"
        "some = {'alpha', 'beta', 'gamma', 'delta', 'epsilon', ('zeta', 1)}\n"
        "data = dump_parts({'p': [OneHotEncoder().fit(x), some]})\n"
    )
    here: dict[str, object] = {}
    exec(code, here)
    printed = subprocess.run(
        [sys.executable, "-c", f"{code}import sys; sys.stdout.buffer.write(data)"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert printed.stdout == here["data"]


def test_what_is_shared_is_written_once_and_stays_shared():
    scaler = StandardScaler().fit(X)
    data = dump_parts({"p": [scaler, scaler]})
    assert len(data) < 1.2 * len(dump_parts({"p": [scaler]}))
    a, b = load_parts(data, ["p"], "x")["p"]
    assert a is b


def test_a_file_of_skops_is_what_is_written():
    """Nothing of irmtv is needed to read the parts."""
    skops_io = importlib.import_module("skops.io")
    scaler = StandardScaler().fit(X)
    same_transform(scaler, skops_io.loads(dump_parts({"p": scaler}))["p"], X)


# --- refused at saving ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (MyScaler(), "test_parts.MyScaler"),
        (make_pipeline(StandardScaler(), MyScaler()), "test_parts.MyScaler"),
        (Loud(), "test_parts.Loud"),
        (FunctionTransformer(lambda x: x), "<lambda>"),
        (FunctionTransformer(os.system), "posix.system|nt.system"),
        (FunctionTransformer(np.load), "numpy.*load"),
        (partial(print, 1), "functools.partial"),
        (StandardScaler().fit, "sklearn.preprocessing._data.StandardScaler"),
        (eval, "builtins.eval"),
        (LogisticRegression(), "sklearn.linear_model._logistic.LogisticRegression"),
        (RandomForestClassifier(), "sklearn.ensemble._forest.RandomForestClassifier"),
        (np.random.default_rng(0), "numpy.random._generator.Generator"),
        ({True: 1}, "a dict with keys of type builtins.bool"),  # skops would read True and False as True
        ({"a": {1.5: 1}}, "a dict with keys of type builtins.float"),
        (pd.DataFrame({"a": [1]}), r"pandas\..*DataFrame"),
        (make_pipeline(StandardScaler(), {"deep": [threading.Lock()]}), r"_thread\.lock"),
        (Pipeline([("s", StandardScaler())], memory=None).fit(X).named_steps, "Bunch"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_any_other_type_is_refused_at_saving(tmp_path, part, named):
    with pytest.raises(ModelFileError, match=rf"parts\['mine'\] must consist of .* Got .*({named})"):
        write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"fine": StandardScaler(), "mine": part})
    assert not list(tmp_path.iterdir())


def test_a_part_that_contains_itself():
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ModelFileError, match=r"parts\['p'\] must consist of .* Got an object that contains itself"):
        dump_parts({"p": cycle})


# --- refused at loading -----------------------------------------------------------------------------------


def without_ids(tree):
    """skops gives every node the address of its object; irmtv only those that are shared."""
    if isinstance(tree, list):
        return [without_ids(value) for value in tree]
    return {k: without_ids(v) for k, v in tree.items() if k != "__id__"} if isinstance(tree, dict) else tree


def by_skops(value, change=None):
    """A file as skops itself writes it, with its schema changed."""
    skops_io = importlib.import_module("skops.io")
    with zipfile.ZipFile(io.BytesIO(skops_io.dumps(value))) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    schema = without_ids(json.loads(content.pop("schema.json")))
    if change is not None:
        change(schema)
    names = {name: f"{i}.npy" for i, name in enumerate(content)}
    text = json.dumps(schema)
    for old, new in names.items():
        text = text.replace(old, new)
    return pack({"schema.json": text.encode(), **{names[n]: d for n, d in content.items()}})


def node(loader, module, name, **more):
    return {"__loader__": loader, "__module__": module, "__class__": name, **more}


JSON_1 = node("JsonNode", "builtins", "str", content="1", is_json=True)
ARGS = node("TupleNode", "builtins", "tuple", content=[node("JsonNode", "builtins", "str", content='"exit 1"')])
NO_KEYS = node("ListNode", "builtins", "list", content=[])
EMPTY = node("DictNode", "builtins", "dict", content={}, key_types=NO_KEYS)
EVIL = {
    "function": (node("FunctionNode", "os", "system"), "os.system"),
    "type": (node("TypeNode", "builtins", "eval"), "builtins.eval"),
    "object": (node("ObjectNode", "subprocess", "Popen", content=EMPTY), "subprocess.Popen"),
    "call": (node("ConstructorFromReduceNode", "os", "system", content=ARGS), "os.system"),
    "known type, other loader": (
        node("ConstructorFromReduceNode", "sklearn.pipeline", "Pipeline", content=ARGS),
        r"sklearn.pipeline.Pipeline \(as ConstructorFromReduceNode\)",
    ),
    "trusted function as a class": (node("ObjectNode", "numpy", "tanh", content=EMPTY), r"numpy.tanh \(as ObjectNode"),
    "list": (node("ListNode", "os", "system", content=[JSON_1]), "os.system"),
    "dict": (node("DictNode", "os", "getcwd", content={}, key_types=NO_KEYS), "os.getcwd"),
    "key": (
        node("DictNode", "builtins", "dict", content={"exit 1": JSON_1},
             key_types=node("ListNode", "builtins", "list", content=[node("TypeNode", "os", "system")])),
        "os.system",
    ),
    "keys not listed": (node("DictNode", "builtins", "dict", content={}, key_types=5), "a dict with keys of type None"),
    "array": (node("NdArrayNode", "os", "system", type="json", content=[JSON_1], shape=ARGS), "os.system"),
    "partial": (
        node("PartialNode", "functools", "partial",
             content={"func": node("FunctionNode", "os", "system"), "args": ARGS, "kwds": EMPTY, "namespace": EMPTY}),
        "functools.partial, os.system",
    ),
    "operator": (node("OperatorFuncNode", "operator", "methodcaller", attrs=ARGS), "operator.methodcaller"),
    "method": (
        node("MethodNode", "builtins", "dict", content={"func": "clear", "obj": EMPTY}),
        r"builtins.dict \(as MethodNode\)",
    ),
    "unknown loader": (node("EvalNode", "builtins", "str", content="1"), r"builtins.str \(as EvalNode\)"),
    "no names": ({"__loader__": "ObjectNode"}, "None.None"),
    "hidden beside": ({**JSON_1, "more": [{"deep": node("FunctionNode", "os", "system")}]}, "os.system"),
    "an own class": (node("ObjectNode", __name__, "Loud", content=EMPTY), "Loud"),
    "skops trusts it, irmtv does not": (
        node("ObjectNode", "sklearn.linear_model._logistic", "LogisticRegression", content=EMPTY),
        "LogisticRegression",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EVIL)
def test_an_untrusted_type_is_refused_before_anything_is_built(tmp_path, monkeypatch, case):
    evil, named = EVIL[case]

    def change(schema):
        schema["content"]["p"] = evil

    def must_not_run(*_args, **_kwargs):
        raise SystemExit("skops was asked to build an untrusted file")

    path = write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"p": 1})
    reseal(path, {"parts.skops": by_skops({"p": 1}, change)})
    monkeypatch.setattr("skops.io.loads", must_not_run)
    with pytest.raises(ModelFileError, match=f"contains what this irmtv does not trust: .*{named}") as raised:
        read_model(path)
    assert "Nothing of it was loaded" in str(raised.value)


def test_the_list_of_the_file_counts_for_nothing(tmp_path):
    def change(schema):
        schema["trusted"] = ["os.system"]
        schema["content"]["p"] = {**node("FunctionNode", "os", "system"), "trusted": ["os.system"]}

    with pytest.raises(ModelFileError, match=r"does not trust: os\.system"):
        load_parts(by_skops({"p": 1}, change), ["p"], "x")


def test_a_name_of_several_lines_is_one_in_the_message():
    def change(schema):
        schema["content"]["p"] = node("FunctionNode", "a\nirmtv: all is well\tb", "system")

    with pytest.raises(ModelFileError, match=r"does not trust: a\\nirmtv: all is well\\tb\.system") as raised:
        load_parts(by_skops({"p": 1}, change), ["p"], "x")
    assert "\n" not in str(raised.value)


def test_skops_audits_as_well(monkeypatch):
    """Were the walk over the tree to miss something, skops' own audit with the same list stands behind it."""
    monkeypatch.setattr("irmtv.persistence.parts._refused", lambda _tree: iter(()))

    def change(schema):
        schema["content"]["p"] = node("FunctionNode", "os", "system")

    with pytest.raises(ModelFileError, match=r"UntrustedTypesFoundException.*os\.system"):
        load_parts(by_skops({"p": 1}, change), ["p"], "x")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("0.npy", b"not numpy", "0.npy of x is not a numpy array as irmtv writes it"),
        ("0.npy", b"\x93NUMPY\x09\x00", "0.npy of x is not a numpy array"),
        ("schema.json", b"{", "schema.json of x is not JSON"),
        ("schema.json", b"[" * 5000 + b"]" * 5000, "is not JSON|nested too deeply"),
        ("schema.json", b"[]", "cannot be rebuilt"),
        ("../0.npy", b"", "contains entries that no model file has"),
        ("evil.npz", b"", "contains entries that no model file has"),
        ("1.bin", b"", "contains entries that no model file has"),
    ],
)
def test_a_wrong_file_of_parts(name, data, message):
    with zipfile.ZipFile(io.BytesIO(dump_parts({"p": np.arange(3)}))) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    with pytest.raises(ModelFileError, match=message):
        load_parts(pack({**content, name: data}), ["p"], "x", "numpy 0.0")


def npy(dtype, shape, data):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


@pytest.mark.parametrize(
    "data",
    [
        npy("<f8", (10**15,), b"\0" * 24),
        npy("<f8", (2,), b"\0" * 24),
        npy("<f8", (3,), b"\0" * 23),
        npy("<f8", (-3, -1), b"\0" * 24),
        npy("|O", (3,), b"\0" * 24),
    ],
)
def test_an_array_that_declares_what_it_is_not(data):
    with zipfile.ZipFile(io.BytesIO(dump_parts({"p": np.arange(3)}))) as archive:
        content = {n: archive.read(n) for n in archive.namelist()}
    with pytest.raises(ModelFileError, match=r"0.npy of x is not a numpy array as irmtv writes it .declares an array"):
        load_parts(pack({**content, "0.npy": data}), ["p"], "x")


def test_parts_without_a_schema_or_with_other_names(tmp_path):
    with pytest.raises(ModelFileError, match=r"x lacks schema\.json"):
        load_parts(pack({"0.npy": b""}), ["p"], "x")
    path = write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"scaler": StandardScaler()})
    reheader(path, parts=["encoder", "scaler"])
    with pytest.raises(ModelFileError, match=r"must contain the parts 'encoder', 'scaler'. Got 'scaler'"):
        read_model(path)


def test_a_state_that_another_version_cannot_take_says_with_what_it_was_written(tmp_path, monkeypatch):
    path = write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"scaler": StandardScaler().fit(X)})

    def fail(_self, _state):
        raise AttributeError("'StandardScaler' has no attribute 'then'")

    monkeypatch.setattr(BaseEstimator, "__setstate__", fail)
    with pytest.raises(ModelFileError, match=r"cannot be rebuilt .*AttributeError.* written with numpy [0-9].*skops"):
        read_model(path)


# --- the list itself --------------------------------------------------------------------------------------


def _find(name):
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return None


def test_building_a_trusted_class_only_sets_its_state():
    """A class that has its own set-state or reduction, besides those read and known, must not slip onto the list."""
    known = {BaseEstimator.__setstate__}
    with_own = set()
    for name in TRUSTED["ObjectNode"]:
        cls = _find(name)
        if cls is None:  # of another version of its package, or not installed
            continue
        assert isinstance(cls, type), name
        setstate = getattr(cls, "__setstate__", None)
        if setstate is not None and setstate not in known:
            with_own.add(name)
    # sets its unit and time zone; polars' types set their attributes
    allowed = {"pandas.DatetimeTZDtype", "pandas.core.dtypes.dtypes.DatetimeTZDtype"}
    assert {n for n in with_own if not n.startswith("polars.")} <= allowed


def test_the_list_names_what_exists():
    absent = {n for names in TRUSTED.values() for n in names if _find(n) is None}
    # classes of other versions of scikit-learn and pandas; extras that may not be installed
    expected = {"sklearn.compose._column_transformer._RemainderColsList", "numpy.bool"}
    assert {n for n in absent if not n.startswith(("polars.", "skrub.", "scipy._lib."))} <= expected


def test_keys_are_rebuilt_from_text_exactly():
    for name in KEY_TYPES:
        made = _find(name)("7")
        assert str(made) == "7" and type(made).__name__ == name.rpartition(".")[2]


def test_functions_on_the_list_are_no_gate():
    for name in TRUSTED["FunctionNode"]:
        assert name.split(".")[0] in {"skrub", "sklearn", "numpy", "scipy"}
    forbidden = {"builtins.eval", "builtins.exec", "builtins.getattr", "builtins.type", "builtins.open"}
    assert not forbidden & TRUSTED["TypeNode"]
