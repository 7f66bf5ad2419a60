"""What trusted classes may be told by a model file: each parameter is judged, and what could do harm is refused."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pandas as pd
import pytest
import skrub
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    PolynomialFeatures,
    SplineTransformer,
    StandardScaler,
)

from irmtv.persistence import ModelFileError, read_model, write_model
from irmtv.persistence.parameters import PARAMETERS
from irmtv.persistence.parts import dump_parts, load_parts
from irmtv.persistence.rules import is_simple_pattern
from irmtv.persistence.trusted import TRUSTED
from persistence.files import reseal

X = np.random.default_rng(0).normal(size=(30, 3))


def changed(part, **attributes):
    for name, value in attributes.items():
        setattr(part, name, value)
    return part


def unchecked(parts, monkeypatch):
    """The bytes that somebody would write who means harm: as irmtv does, without its check."""
    with monkeypatch.context() as patch:
        patch.setattr("irmtv.persistence.parts.check_state", lambda _part: None, raising=False)
        return dump_parts(parts)


HOSTILE = {
    "file names": (lambda: CountVectorizer(input="filename"), "CountVectorizer's input must be one of 'content'"),
    "files": (lambda: TfidfVectorizer(input="file"), "TfidfVectorizer's input must be"),
    "hashed files": (lambda: HashingVectorizer(input="filename"), "HashingVectorizer's input must be"),
    "a path that is filled in": (
        lambda: make_pipeline(SimpleImputer(strategy="constant", fill_value="/x"), CountVectorizer(input="filename")),
        "CountVectorizer's input must be",
    ),
    "a codec": (lambda: CountVectorizer(encoding="zlib"), "encoding must be one of"),
    "a slow pattern": (lambda: CountVectorizer(token_pattern="(a+)+b"), "token_pattern must be a regular expression"),
    "a slow selector": (lambda: make_column_selector(pattern="(a|a)*b"), "make_column_selector's pattern must be"),
    "an analyzer": (lambda: CountVectorizer(analyzer=np.exp), "analyzer must be one of 'word'.* Got a ufunc"),
    "a tokenizer": (lambda: CountVectorizer(tokenizer=np.exp), "tokenizer must be None"),
    "a preprocessor": (lambda: CountVectorizer(preprocessor=np.exp), "preprocessor must be None"),
    "n-grams": (lambda: CountVectorizer(ngram_range=(1, 10**9)), "ngram_range must be two integers"),
    "a folder": (lambda: Pipeline([("s", StandardScaler())], memory="/x"), "Pipeline's memory must be None. Got '/x'"),
    "a folder inside": (
        lambda: FeatureUnion([("p", Pipeline([("s", StandardScaler())], memory="/x"))]),
        "Pipeline's memory must be None",
    ),
    "processes": (lambda: FeatureUnion([("s", StandardScaler())], n_jobs=10**6), "FeatureUnion's n_jobs must be"),
    "more processes": (lambda: ColumnTransformer([], n_jobs=-(10**6)), "ColumnTransformer's n_jobs must be"),
    "a degree": (lambda: PolynomialFeatures(10**6), "PolynomialFeatures's degree must be an integer from 0 to 20"),
    "a fitted degree": (lambda: changed(PolynomialFeatures(2).fit(X), _max_degree=10**6), "_max_degree must be"),
    "many products": (
        lambda: changed(PolynomialFeatures(2).fit(X), _max_degree=20, n_features_in_=1000),
        "of a degree that suits its number of columns",
    ),
    "many columns": (lambda: changed(SplineTransformer().fit(X), n_features_out_=10**12), "n_features_out_ must be"),
    "a function of columns": (lambda: FunctionTransformer(f_regression), "func must be a function of numpy on single"),
    "a score": (lambda: SelectKBest(np.exp), "score_func must be a score"),
    "weights": (lambda: KNNImputer(weights=np.exp), "weights must be one of 'uniform'"),
    "a strategy": (lambda: SimpleImputer(strategy=np.exp), "strategy must be one of"),
    "names": (lambda: OneHotEncoder(feature_name_combiner=np.exp), "feature_name_combiner must be one of 'concat'"),
    "a text of names": (
        lambda: ColumnTransformer([], verbose_feature_names_out="{0.__class__}{1:>999999999}"),
        "verbose_feature_names_out must be",
    ),
    "hashed columns": (
        lambda: HashingVectorizer(n_features=2**31 - 1),
        "n_features must be an integer from 1 to 1048576",
    ),
    "no hashed columns": (lambda: HashingVectorizer(n_features=0), "n_features must be an integer from 1"),
    "bins": (lambda: changed(KBinsDiscretizer(3).fit(X), n_bins_=np.array([10**12])), "n_bins_ must be numbers from 0"),
    "categories' columns": (
        lambda: changed(OneHotEncoder(sparse_output=False).fit(X), _n_features_outs=[10**9, 1, 1]),
        "_n_features_outs must be numbers from 0",
    ),
    "categories beyond the columns": (
        lambda: changed(OneHotEncoder(sparse_output=False).fit(X), _n_features_outs=[1, 1, 1]),
        "OneHotEncoder must be of as many columns as its categories have",
    ),
    "rare categories beyond the columns": (
        lambda: changed(
            OneHotEncoder(min_frequency=2).fit([["a"], ["a"], ["b"], ["c"]]),
            _default_to_infrequent_mappings=[np.array([0, 10**9, 1])],
        ),
        "of as many columns as its categories have",
    ),
    "a category before the first": (
        lambda: changed(OneHotEncoder(drop="first").fit(X), _drop_idx_after_grouping=np.array([-5, 0, 0], object)),
        "of as many columns as its categories have",
    ),
    "a category after the last": (
        lambda: changed(
            OneHotEncoder(drop="first").fit(X), _drop_idx_after_grouping=np.array([10**6, 10**6, 10**6], object)
        ),
        "of as many columns as its categories have",
    ),
    "words beyond the columns": (
        lambda: changed(CountVectorizer().fit(["aa bb"]), vocabulary_={"aa": 5 * 10**8, "bb": 0}),
        "CountVectorizer must be of words with a column each",
    ),
    "a file of a time zone": (
        lambda: changed(skrub.ToDatetime(), output_time_zone_="dateutil//etc/hostname"),
        "ToDatetime's output_time_zone_ must be a time zone",
    ),
    "a type with a file": (
        lambda: changed(skrub.ToDatetime(), output_dtype_="datetime64[ns, dateutil//etc/hostname]"),
        "ToDatetime's output_dtype_ must be a type of columns",
    ),
    "a zone of a type": (
        lambda: changed(skrub.ToDatetime(), output_dtype_=changed(pd.DatetimeTZDtype("ns", "UTC"), _tz="dateutil//x")),
        "DatetimeTZDtype's _tz must be a time zone",
    ),
    "a method": (lambda: changed(StandardScaler().fit(X), transform=np.exp), "'transform' in place of its own method"),
    "a dtype": (lambda: OneHotEncoder(dtype=",i4"), "dtype must be a type of numbers"),
    "a deep one": (lambda: [{"a": (np.array([[CountVectorizer(input="file")]], dtype=object),)}], "input must be"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_setting_is_refused_at_saving_and_at_loading(tmp_path, monkeypatch, case):
    make, message = HOSTILE[case]
    part = make()
    with pytest.raises(ModelFileError, match=rf"parts\['p'\] cannot be stored: .*{message}"):
        dump_parts({"p": part})
    path = write_model(tmp_path / "m.irmtv", "demo", {}, {}, {"p": 1})
    reseal(path, {"parts.skops": unchecked({"p": part}, monkeypatch)})
    with pytest.raises(ModelFileError, match=f"has a setting that this irmtv does not trust: .*{message}"):
        read_model(path)


@pytest.mark.parametrize(
    "change",
    [
        {"_c": np.zeros((2, 1))},
        {"_t": np.zeros(2)},
        {"_t": np.array([0.0, np.nan] * 6)},
        {"_t": np.zeros((3, 4))},
        {"k": 15},
        {"axis": 7},
    ],
    ids=str,
)
def test_a_spline_whose_arrays_do_not_fit_is_refused(monkeypatch, change):
    """scipy's compiled code would read beyond them."""
    part = SplineTransformer().fit(X)
    load_parts(dump_parts({"p": part}), ["p"], "x")
    spline = part.bsplines_[0]
    for name, value in change.items():
        name = name if name in vars(spline) else name.removeprefix("_")  # before scipy 1.17
        assert name in vars(spline)
        vars(spline)[name] = value
    data = unchecked({"p": part}, monkeypatch)
    with pytest.raises(ModelFileError, match="BSpline must be knots, values and a degree that fit together"):
        load_parts(data, ["p"], "x")


def test_a_spline_is_checked_by_the_names_of_older_scipy_too(monkeypatch):
    """Before 1.17 its attributes had no underscore, by which fitted steps are known."""
    part = SplineTransformer().fit(X)
    spline = part.bsplines_[0]
    older = {name.removeprefix("_"): value for name, value in vars(spline).items() if name in PARAMETERS["BSpline"]}
    vars(spline).clear()
    vars(spline).update(older, k=15)
    with pytest.raises(ModelFileError, match="BSpline must be knots, values and a degree that fit together"):
        load_parts(unchecked({"p": part}, monkeypatch), ["p"], "x")


def test_skrub_renames_columns_by_a_plain_text_only(monkeypatch):
    part = skrub.ApplyToCols(StandardScaler(), rename_columns="{0.__class__}")
    with pytest.raises(ModelFileError, match=r"rename_columns must be a text with \{\} for the name"):
        load_parts(unchecked({"p": part}, monkeypatch), ["p"], "x")


def test_a_parameter_that_nobody_has_judged_must_have_its_default(monkeypatch):
    rules = {name: rule for name, rule in PARAMETERS["StandardScaler"].items() if name != "with_std"}
    monkeypatch.setattr("irmtv.persistence.state.PARAMETERS", {**PARAMETERS, "StandardScaler": rules})
    load_parts(dump_parts({"p": StandardScaler()}), ["p"], "x")
    with pytest.raises(ModelFileError, match=r"StandardScaler's with_std must have its default value. Got False"):
        dump_parts({"p": StandardScaler(with_std=False)})


@pytest.mark.parametrize(
    "part",
    [
        CountVectorizer(token_pattern=r"[a-z]+-?[a-z]+", ngram_range=(1, 3), stop_words=["a"], max_df=0.5),
        TfidfVectorizer(stop_words="english", strip_accents="unicode", vocabulary={"a": 0, "b": 1}),
        FeatureUnion([("s", StandardScaler()), ("d", "drop")], n_jobs=-1, transformer_weights={"s": 2.0}),
        SimpleImputer(strategy="constant", fill_value="missing"),
        HashingVectorizer(),
        TfidfVectorizer().fit(["aa bb", "bb cc"]),
        OneHotEncoder(drop="first", min_frequency=2).fit([["a"], ["a"], ["b"], ["c"], ["d"], ["d"]]),
        KBinsDiscretizer(3).fit(X),
        PolynomialFeatures((1, 3), interaction_only=True),
        make_column_selector("x_.*", dtype_include=["number", object]),
        ColumnTransformer(
            [("a", StandardScaler(), [0])], verbose_feature_names_out="{feature_name}_{transformer_name}"
        ),
        FunctionTransformer(np.log1p, np.expm1, kw_args={"casting": "unsafe"}, feature_names_out="one-to-one"),
    ],
    ids=lambda p: type(p).__name__,
)
def test_usual_settings_are_kept(part):
    back = load_parts(dump_parts({"p": part}), ["p"], "x")["p"]
    assert repr(vars(back)) == repr(vars(part))


@pytest.mark.parametrize("pattern", [r"(?u)\b\w\w+\b", r"[a-z()*+]+", r"(?:a|b)c?", r"\(\w+\)*", r"[]a]+", r"x_.*", ""])
def test_simple_patterns(pattern):
    assert is_simple_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a|a)*", r"(a)\1", "(?P<n>a)", "a*a*a*b", "(?:a{9}){9}", "(?x)(a+) +", "(?=a)", "a" * 201, 5, b"a"],
)
def test_patterns_that_could_take_forever(pattern):
    assert not is_simple_pattern(pattern)


# --- the table itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(TRUSTED["ObjectNode"]))
def test_every_parameter_of_every_trusted_class_is_judged(name):
    module, _, short = name.rpartition(".")
    assert short in PARAMETERS, f"add {short} to irmtv.persistence.parameters"
    try:
        cls = getattr(importlib.import_module(module), short)
    except (ImportError, AttributeError):  # of another version of its package, or not installed
        pytest.skip("not installed")
    if cls.__init__ is object.__init__:
        return
    listed = list(inspect.signature(cls.__init__).parameters)[1:]
    unjudged = [parameter for parameter in listed if parameter not in PARAMETERS[short]]
    assert not unjudged, f"judge {unjudged} of {name} in irmtv.persistence.parameters"


def test_the_table_has_no_class_that_is_not_trusted():
    assert set(PARAMETERS) == {name.rpartition(".")[2] for name in TRUSTED["ObjectNode"]}
