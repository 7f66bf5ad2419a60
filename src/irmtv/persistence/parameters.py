"""The parameters of every trusted class, and what each may be in a model file.

A class that only sets its state can still do harm later by what the state says: `CountVectorizer(input="filename")`
opens files, `Pipeline(memory=...)` makes folders, a regular expression can take forever. So each constructor parameter
is judged here; a test fails for one that is not. Beside parameters stand those fitted attributes by which `transform`
decides how much memory or time it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from irmtv.persistence.rules import (
    CHARACTER,
    COLUMN_TYPE,
    COLUMNS,
    COUNTS,
    DATA,
    DEGREE,
    FLAG,
    HASHED,
    JOBS,
    MOST_COLUMNS,
    NAMES,
    NGRAMS,
    NOTHING,
    NUMBER,
    PATTERN,
    PREDICATE,
    RENAME,
    SCORE,
    SEED,
    SELECTOR,
    STEP,
    STEPS,
    TEXT,
    TYPE,
    UFUNC,
    WEIGHTS,
    ZONE,
    Rule,
    either,
    is_integer,
    one_of,
)

__all__ = ["ANYWHERE", "PARAMETERS", "TOGETHER"]

Rules = Mapping[str, Rule]


def _all(rule: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_UNKNOWN = one_of("error", "ignore", "infrequent_if_exist", "warn", "use_encoded_value")
_ANALYZER = one_of("word", "char", "char_wb")
_STOP_WORDS = DATA  # "english" or words
_VECTORIZER: Rules = {
    "input": one_of("content"),  # else each text would be a file to open
    "encoding": one_of("utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1", "cp1252", "utf-16", "utf-32"),
    "decode_error": one_of("strict", "ignore", "replace"),
    "strip_accents": one_of(None, "ascii", "unicode"),
    **_all(NOTHING, "preprocessor tokenizer"),  # functions of the user's own
    "stop_words": _STOP_WORDS,
    "token_pattern": PATTERN,
    "ngram_range": NGRAMS,
    "analyzer": _ANALYZER,
    **_all(FLAG, "lowercase binary"),
    "dtype": TYPE,
}
_COUNTS: Rules = {**_VECTORIZER, **_all(NUMBER, "max_df min_df"), "max_features": NUMBER, "vocabulary": DATA}
_NORM = one_of("l1", "l2", "max", None)
_TFIDF: Rules = {"norm": _NORM, **_all(FLAG, "use_idf smooth_idf sublinear_tf")}
_SVD: Rules = {
    "n_components": either(COLUMNS, NUMBER, one_of("mle")),
    "power_iteration_normalizer": one_of("auto", "QR", "LU", "none"),
    **_all(NUMBER, "tol n_oversamples"),
    "random_state": SEED,
}
_STRINGS: Rules = {
    "n_components": COLUMNS,
    "n_components_": COLUMNS,
    "vectorizer": one_of("tfidf", "hashing"),
    "ngram_range": NGRAMS,
    "analyzer": _ANALYZER,
    "stop_words": _STOP_WORDS,
    "random_state": SEED,
    "vocabulary": DATA,
}
_ENCODER: Rules = {
    "categories": DATA,
    "dtype": TYPE,
    "handle_unknown": _UNKNOWN,
    **_all(NUMBER, "min_frequency max_categories"),
}
_UNION: Rules = {
    "n_jobs": JOBS,
    "transformer_weights": WEIGHTS,
    **_all(FLAG, "verbose force_int_remainder_cols"),
    "verbose_feature_names_out": either(FLAG, NAMES),
}
_APPLY: Rules = {
    "transformer": STEP,
    **_all(SELECTOR, "cols exclude_cols"),
    **_all(FLAG, "allow_reject keep_original"),
    "rename_columns": RENAME,
    "n_jobs": JOBS,
}
_IMPUTER: Rules = {"missing_values": DATA, **_all(FLAG, "copy add_indicator keep_empty_features")}
_TABLE: Rules = {
    **_all(NUMBER, "drop_null_fraction cardinality_threshold"),
    **_all(FLAG, "drop_if_constant drop_if_unique parse_numbers cast_to_str cast_to_float32"),
    "datetime_format": TEXT,
    "null_strings": DATA,
    "n_jobs": JOBS,
}
_TWO: Rules = _all(SELECTOR, "left right")
_FILTER: Rules = {
    "predicate": PREDICATE,
    "args": Rule("simple arguments", lambda v: _are_arguments(v)),
    "kwargs": Rule("simple arguments", lambda v: type(v) is dict and _are_arguments(list(v.values()))),
    **_all(TEXT, "name selector_repr"),
}


def _are_arguments(values: Any) -> bool:
    """Of a selector's predicate: texts are regular expressions."""
    return type(values) in (tuple, list) and all(PATTERN.allows(v) for v in values if isinstance(v, str))


# by the name of the class, without its module; a key that is no parameter is a fitted attribute
PARAMETERS: Mapping[str, Rules] = {
    # scikit-learn: scaling, encoding, imputing
    "Binarizer": {"threshold": NUMBER, "copy": FLAG},
    "KernelCenterer": {},
    "MaxAbsScaler": _all(FLAG, "copy clip"),
    "MinMaxScaler": {"feature_range": DATA, **_all(FLAG, "copy clip")},
    "Normalizer": {"norm": _NORM, "copy": FLAG},
    "PowerTransformer": {"method": one_of("yeo-johnson", "box-cox"), **_all(FLAG, "standardize copy")},
    "QuantileTransformer": {
        **_all(NUMBER, "n_quantiles subsample"),
        "output_distribution": one_of("uniform", "normal"),
        **_all(FLAG, "ignore_implicit_zeros copy"),
        "random_state": SEED,
    },
    "RobustScaler": {**_all(FLAG, "with_centering with_scaling copy unit_variance"), "quantile_range": DATA},
    "StandardScaler": _all(FLAG, "copy with_mean with_std"),
    "OneHotEncoder": {
        **_ENCODER,
        "drop": DATA,
        **_all(FLAG, "sparse_output sparse"),
        "feature_name_combiner": one_of("concat"),  # the other is a function of the user's own
    },
    "OrdinalEncoder": {**_ENCODER, **_all(NUMBER, "unknown_value encoded_missing_value")},
    "LabelBinarizer": {**_all(NUMBER, "neg_label pos_label"), "sparse_output": FLAG},
    "LabelEncoder": {},
    "MultiLabelBinarizer": {"classes": DATA, "sparse_output": FLAG},
    "TargetEncoder": {
        "categories": DATA,
        "target_type": one_of("auto", "continuous", "binary", "multiclass"),
        "smooth": either(NUMBER, one_of("auto")),
        "cv": NUMBER,
        "shuffle": either(FLAG, one_of("deprecated")),
        "random_state": SEED,
    },
    "PolynomialFeatures": {
        **_all(DEGREE, "degree _min_degree _max_degree"),
        **_all(FLAG, "interaction_only include_bias"),
        "order": one_of("C", "F"),
        **_all(COLUMNS, "n_output_features_ _n_out_full"),
    },
    "SplineTransformer": {
        **_all(COLUMNS, "n_knots n_features_out_"),
        "degree": DEGREE,
        "knots": DATA,
        "extrapolation": one_of("error", "constant", "linear", "continue", "periodic"),
        **_all(FLAG, "include_bias sparse_output"),
        "order": one_of("C", "F"),
        "handle_missing": one_of("error", "zeros"),
    },
    "KBinsDiscretizer": {
        "n_bins": DATA,
        "encode": one_of("onehot", "onehot-dense", "ordinal"),
        "strategy": one_of("uniform", "quantile", "kmeans"),
        "quantile_method": TEXT,
        "dtype": TYPE,
        "subsample": NUMBER,
        "random_state": SEED,
    },
    "FunctionTransformer": {
        **_all(UFUNC, "func inverse_func"),
        **_all(FLAG, "validate accept_sparse check_inverse"),
        "feature_names_out": one_of(None, "one-to-one"),
        **_all(WEIGHTS, "kw_args inv_kw_args"),
    },
    "MissingIndicator": {
        "missing_values": DATA,
        "features": one_of("missing-only", "all"),
        "sparse": either(FLAG, one_of("auto")),
        "error_on_new": FLAG,
    },
    "SimpleImputer": {
        **_IMPUTER,
        "strategy": one_of("mean", "median", "most_frequent", "constant"),  # the other is a function
        "fill_value": DATA,
    },
    "KNNImputer": {
        **_IMPUTER,
        "n_neighbors": NUMBER,
        "weights": one_of("uniform", "distance", None),
        "metric": one_of("nan_euclidean"),
    },
    # scikit-learn: fewer columns, numbers from text, composition
    "PCA": {
        **_SVD,
        **_all(FLAG, "copy whiten"),
        "svd_solver": one_of("auto", "full", "covariance_eigh", "arpack", "randomized"),
        "iterated_power": either(NUMBER, one_of("auto")),
    },
    "IncrementalPCA": {"n_components": COLUMNS, **_all(FLAG, "whiten copy"), "batch_size": NUMBER},
    "TruncatedSVD": {**_SVD, "algorithm": one_of("arpack", "randomized"), "n_iter": NUMBER},
    "VarianceThreshold": {"threshold": NUMBER},
    "SelectKBest": {"score_func": SCORE, "k": either(NUMBER, one_of("all"))},
    "SelectPercentile": {"score_func": SCORE, "percentile": NUMBER},
    "CountVectorizer": _COUNTS,
    "HashingVectorizer": {**_VECTORIZER, "n_features": HASHED, "norm": _NORM, "alternate_sign": FLAG},
    "TfidfTransformer": _TFIDF,
    "TfidfVectorizer": {**_COUNTS, **_TFIDF},
    "FeatureUnion": {**_UNION, "transformer_list": STEPS},
    "Pipeline": {"steps": STEPS, "transform_input": DATA, "memory": NOTHING, "verbose": FLAG},
    "ColumnTransformer": {
        **_UNION,
        **_all(STEPS, "transformers transformers_"),
        "remainder": STEP,
        "sparse_threshold": NUMBER,
    },
    "make_column_selector": {"pattern": PATTERN, **_all(TYPE, "dtype_include dtype_exclude")},
    "_RemainderColsList": _all(DATA, "columns initlist")
    | _all(FLAG, "warning_enabled warning_was_emitted")
    | {"future_dtype": TYPE},
    # skrub
    "TableVectorizer": {
        **_TABLE,
        **_all(STEP, "low_cardinality high_cardinality numeric datetime"),
        "specific_transformers": STEPS,
    },
    "Cleaner": {**_TABLE, "numeric_dtype": one_of(None, "float32")},
    "PassThrough": {},
    "ShortReprDict": {"dict": DATA, "kwargs": DATA},
    **dict.fromkeys(["ApplyToCols", "ApplyToEachCol", "ApplyToSubFrame"], _APPLY),
    "CatEncoder": {"max_categories": NUMBER},
    "All": {},
    "CheckInputDataFrame": {},
    "CleanCategories": {},
    "Drop": {},
    "DurationToFloat": {},
    "_MinMaxScaler": {},
    "CleanNullStrings": {"null_strings": DATA},
    "DatetimeEncoder": {
        "resolution": TEXT,
        **_all(FLAG, "add_weekday add_total_seconds add_day_of_year"),
        "periodic_encoding": one_of(None, "circular", "spline"),
    },
    "_CircularEncoder": {"period": NUMBER},
    "_SplineEncoder": {"period": NUMBER, **_all(COLUMNS, "n_splines n_components_"), "degree": DEGREE},
    "DropUninformative": {**_all(FLAG, "drop_if_constant drop_if_unique"), "drop_null_fraction": NUMBER},
    "GapEncoder": {
        **_all(COLUMNS, "n_components hashing_n_features max_iter max_iter_e_step max_no_improvement batch_size"),
        **_all(NUMBER, "gamma_shape_prior gamma_scale_prior rho verbose"),
        **_all(FLAG, "rescale_rho hashing add_words rescale_W"),
        "init": one_of("k-means++", "random", "k-means"),
        "ngram_range": NGRAMS,
        "analyzer": _ANALYZER,
        "random_state": SEED,
    },
    "MinHashEncoder": {
        **_all(COLUMNS, "n_components n_components_"),
        "ngram_range": NGRAMS,
        "hashing": one_of("fast", "murmur"),
        "minmax_hash": FLAG,
        "n_jobs": JOBS,
    },
    "DropCols": {"cols": SELECTOR},
    "SelectCols": {"cols": SELECTOR},
    "SquashingScaler": {"max_absolute_value": NUMBER, "quantile_range": DATA},
    "StringEncoder": _STRINGS,
    "ToCategorical": {"accept_int": FLAG},
    "ToDatetime": {**_all(TEXT, "format format_"), "output_time_zone_": ZONE},
    "ToFloat": {**_all(CHARACTER, "decimal thousand _thousand"), "parentheses": FLAG},
    "ToStr": {"convert_category": FLAG},
    "LRUDict": {"capacity": COLUMNS},
    **dict.fromkeys(["And", "Or", "Sub", "XOr"], _TWO),
    "Cols": {"columns": DATA},
    "Inv": {"complement": SELECTOR},
    "Filter": _FILTER,
    "NameFilter": _FILTER,
    # irmtv
    "LevelEncoder": _STRINGS,
    "TableColumns": {"categorical": DATA},
    "TableForTrees": {},
    "TableNumbers": {},
    # types of columns, splines
    "DatetimeTZDtype": {"unit": TEXT, **_all(ZONE, "tz _tz")},
    "Date": {},
    "Datetime": {"time_unit": TEXT, "time_zone": ZONE},
    "Duration": {"time_unit": TEXT},
    "BSpline": {
        **_all(DATA, "t c _t _c"),
        "k": DEGREE,
        "extrapolate": either(FLAG, one_of("periodic")),
        "axis": NUMBER,
    },
}


# of attributes of any class that have no rule of their own, by their names: how much is made of a row, and types of
# columns (a type in words may name a time zone, and that a file)
ANYWHERE: Mapping[str, Rule] = {r"_?n_(features|components|bins|quantiles|out).*": COUNTS, r".*dtype_?": COLUMN_TYPE}


# --- attributes that must fit together --------------------------------------------------------------------


def _few_products(state: Mapping[str, Any]) -> bool:
    """PolynomialFeatures: the number of products grows with columns and degree."""
    columns, degree = state.get("n_features_in_", 0), state.get("_max_degree", 0)
    degree = max(degree) if isinstance(degree, (tuple, list)) else degree
    if not is_integer(columns, 0, MOST_COLUMNS):
        return False
    return math.comb(int(columns) + int(degree), int(degree)) <= 100 * MOST_COLUMNS


def _is_spline(state: Mapping[str, Any]) -> bool:
    """BSpline: scipy's compiled code trusts these to fit, and would read memory beyond its arrays."""
    knots, values = state.get("_t", state.get("t")), state.get("_c", state.get("c"))
    k, axis = state.get("k"), state.get("axis")
    if not isinstance(knots, np.ndarray) or not isinstance(values, np.ndarray) or values.ndim < 1:
        return False
    if knots.ndim != 1 or knots.dtype != np.float64 or values.dtype not in (np.float64, np.complex128):
        return False
    if not is_integer(k, 0, len(knots)) or not is_integer(axis, 0, values.ndim - 1):
        return False
    count = len(knots) - int(k or 0) - 1
    return bool(k is not None and k + 1 <= count <= len(values) and np.isfinite(knots).all() and _rises(knots))


def _rises(knots: np.ndarray[Any, Any]) -> bool:
    return bool((np.diff(knots) >= 0).all())


def _counts_its_words(state: Mapping[str, Any]) -> bool:
    """CountVectorizer: scipy's compiled code writes to the column of each word, wherever that is."""
    words = state.get("vocabulary_", {})
    return isinstance(words, dict) and all(is_integer(place, 0, len(words) - 1) for place in words.values())


def _has_room(state: Mapping[str, Any]) -> bool:
    """OneHotEncoder: scipy's compiled code writes to the column of each category, wherever that is."""
    categories = state.get("categories_", [])
    nothing = [None] * len(categories)
    columns = state.get("_n_features_outs", [len(c) for c in categories])
    codes, dropped = state.get("_default_to_infrequent_mappings", nothing), state.get("_drop_idx_after_grouping")
    dropped = nothing if dropped is None else list(dropped)
    if not len(categories) == len(columns) == len(codes) == len(dropped):
        return False
    for values, room, code, drop in zip(categories, columns, codes, dropped, strict=True):
        places = np.arange(len(values)) if code is None else np.asarray(code)
        if places.ndim != 1 or places.dtype.kind not in "iu" or len(places) != len(values):
            return False
        if drop is not None and not is_integer(drop, 0, places.max(initial=-1)):
            return False
        if len(places) and not 0 <= places.min() <= places.max() < room + (drop is not None):
            return False
    return True


TOGETHER: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "PolynomialFeatures": ("of a degree that suits its number of columns", _few_products),
    **dict.fromkeys(
        ["CountVectorizer", "TfidfVectorizer"], ("of words with a column each, counted from 0", _counts_its_words)
    ),
    "OneHotEncoder": ("of as many columns as its categories have", _has_room),
    "BSpline": ("knots, values and a degree that fit together", _is_spline),
}
