"""What a model file may contain of preprocessing: a fixed list, which ships with irmtv and no file can extend.

Every entry is a pair of how skops rebuilds it (the name of its node) and what it rebuilds. A class is here only
if building it executes nothing but setting its own state: `__new__` and then its attributes. A function is here
only if it is a pure function of numbers or of one column, and it is only looked up by its name, not called.
Nothing else that skops knows is allowed: no methods, partial functions, operators, trees, losses, or compressed
sparse matrices; and of skops' own list of trusted types, which grows with its versions, only what stands here.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TRUSTED", "all_names"]


def _in(module: str, names: str) -> frozenset[str]:
    return frozenset(f"{module}.{name}" for name in names.split())


def _union(*families: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*families)


# numbers and types of numbers: what arrays hold, `dtype=` parameters, keys of dicts
_NUMPY_SCALARS = _in(
    "numpy", "bool bool_ float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 str_ datetime64"
)

# scikit-learn: scaling, encoding, imputing. State: arrays, numbers, strings
_SKLEARN_PREPROCESSING = _union(
    _in(
        "sklearn.preprocessing._data",
        "Binarizer KernelCenterer MaxAbsScaler MinMaxScaler Normalizer PowerTransformer QuantileTransformer "
        "RobustScaler StandardScaler",
    ),
    _in("sklearn.preprocessing._encoders", "OneHotEncoder OrdinalEncoder"),
    _in("sklearn.preprocessing._label", "LabelBinarizer LabelEncoder MultiLabelBinarizer"),
    _in("sklearn.preprocessing._target_encoder", "TargetEncoder"),
    _in("sklearn.preprocessing._polynomial", "PolynomialFeatures SplineTransformer"),
    _in("sklearn.preprocessing._discretization", "KBinsDiscretizer"),
    _in("sklearn.preprocessing._function_transformer", "FunctionTransformer"),  # of the functions below only
    _in("sklearn.impute._base", "MissingIndicator SimpleImputer"),
    _in("sklearn.impute._knn", "KNNImputer"),  # holds the training rows: so does the file then
)

# scikit-learn: fewer columns, and numbers from text (skrub's StringEncoder is made of these)
_SKLEARN_FEATURES = _union(
    _in("sklearn.decomposition._pca", "PCA"),
    _in("sklearn.decomposition._incremental_pca", "IncrementalPCA"),
    _in("sklearn.decomposition._truncated_svd", "TruncatedSVD"),
    _in("sklearn.feature_selection._variance_threshold", "VarianceThreshold"),
    _in("sklearn.feature_selection._univariate_selection", "SelectKBest SelectPercentile"),
    _in("sklearn.feature_extraction.text", "CountVectorizer HashingVectorizer TfidfTransformer TfidfVectorizer"),
)

# scikit-learn: what holds other transformers; each of these must be on this list itself
_SKLEARN_COMPOSITION = _union(
    _in("sklearn.pipeline", "FeatureUnion Pipeline"),
    _in("sklearn.compose._column_transformer", "ColumnTransformer make_column_selector _RemainderColsList"),
)

# skrub: TableVectorizer and Cleaner, the steps these are made of, and the encoders a user may put in
_SKRUB_TRANSFORMERS = _union(
    _in("skrub._table_vectorizer", "Cleaner PassThrough ShortReprDict TableVectorizer"),
    _in("skrub._apply_to_cols", "ApplyToCols"),
    _in("skrub._apply_to_each_col", "ApplyToEachCol"),
    _in("skrub._apply_to_sub_frame", "ApplyToSubFrame"),
    _in("skrub._cat_encoder", "CatEncoder"),
    _in("skrub._check_input", "CheckInputDataFrame"),
    _in("skrub._clean_categories", "CleanCategories"),
    _in("skrub._clean_null_strings", "CleanNullStrings"),
    _in("skrub._datetime_encoder", "DatetimeEncoder _CircularEncoder _SplineEncoder"),
    _in("skrub._drop_uninformative", "DropUninformative"),
    _in("skrub._duration_to_float", "DurationToFloat"),
    _in("skrub._gap_encoder", "GapEncoder"),
    _in("skrub._minhash_encoder", "MinHashEncoder"),
    _in("skrub._select_cols", "Drop DropCols SelectCols"),
    _in("skrub._squashing_scaler", "SquashingScaler _MinMaxScaler"),
    _in("skrub._string_encoder", "StringEncoder"),
    _in("skrub._to_categorical", "ToCategorical"),
    _in("skrub._to_datetime", "ToDatetime"),
    _in("skrub._to_float", "ToFloat"),
    _in("skrub._to_str", "ToStr"),
    _in("skrub._utils", "LRUDict PassThrough"),
)

# irmtv: the steps of a table's Pipeline. State: names, numbers, and what skrub's has
_OWN = _in("irmtv.data.tables.steps", "LevelEncoder TableColumns TableForTrees TableNumbers")
# modules of irmtv that have moved since a file was written
MOVED = {
    f"{package}.{module}": "irmtv.data.tables.steps"
    for package in ("irmtv.tabular", "irmtv.data.tables")
    for module in ("align", "vectorize")
}

# skrub: how it chose columns when it was fitted; state: names of columns and the functions below
_SKRUB_SELECTORS = _in("skrub.selectors._base", "All And Cols Filter Inv NameFilter Or Sub XOr")

# types of columns, as the encoders of dates remember them; scipy's spline, which SplineTransformer evaluates
_COLUMN_TYPES = _union(
    {"pandas.DatetimeTZDtype", "pandas.core.dtypes.dtypes.DatetimeTZDtype"},  # its name in pandas 3 and in pandas 2
    _in("polars.datatypes.classes", "Date Datetime Duration"),
    {"scipy.interpolate._bsplines.BSpline"},
)

# pure functions, by name. skrub's look at one column while fitting; scikit-learn's score columns while fitting;
# numpy's are applied by FunctionTransformer to numbers; scipy's is how BSpline turns its argument into an array
_FUNCTIONS = _union(
    _in(
        "skrub._dataframe._common",
        "has_nulls is_any_date is_bool is_categorical is_duration is_float is_integer is_numeric is_string",
    ),
    _in("skrub._table_vectorizer", "_created_by_predicate"),
    _in("skrub.selectors._selectors", "_cardinality_below _null_count_check _regex"),
    _in("sklearn.feature_selection._univariate_selection", "chi2 f_classif f_regression"),
    _in("numpy", "abs absolute cbrt exp expm1 log log10 log1p log2 sign sqrt square tanh"),
    _in("scipy._lib.array_api_compat.numpy._aliases", "asarray"),
)

TRUSTED: dict[str, frozenset[str]] = {
    "DictNode": frozenset({"builtins.dict", "collections.OrderedDict"}),
    "ListNode": frozenset({"builtins.list"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "SetNode": frozenset({"builtins.set"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "JsonNode": frozenset({"builtins.str"}),  # how skops writes all of None, bool, int, float and str
    "NdArrayNode": _NUMPY_SCALARS | {"numpy.ndarray"},
    "DTypeNode": frozenset({"numpy.dtype"}),
    "TypeNode": _NUMPY_SCALARS | _in("builtins", "bool float int object str"),
    "RandomStateNode": frozenset({"numpy.random.mtrand.RandomState"}),  # GapEncoder keeps its generator
    # built by a call with plain arguments: time zones of date columns
    "ConstructorFromReduceNode": frozenset({"zoneinfo.ZoneInfo", "datetime.timezone", "datetime.timedelta"}),
    "FunctionNode": _FUNCTIONS,
    "ObjectNode": _union(
        _SKLEARN_PREPROCESSING,
        _SKLEARN_FEATURES,
        _SKLEARN_COMPOSITION,
        _SKRUB_TRANSFORMERS,
        _OWN,
        _SKRUB_SELECTORS,
        _COLUMN_TYPES,
    ),
}
# keys of dicts are text in JSON, rebuilt by calling the type: bool("false") would be True
KEY_TYPES = frozenset(
    {"builtins.str", "builtins.int", *_in("numpy", "int8 int16 int32 int64 uint8 uint16 uint32 uint64 str_")}
)


def all_names() -> list[str]:
    """Every trusted name, for skops' own audit, which does not tell nodes apart."""
    return sorted(_union(*TRUSTED.values()))
