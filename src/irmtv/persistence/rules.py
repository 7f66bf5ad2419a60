"""Rules for values in a model file: what a parameter of a trusted class may be."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from datetime import date, timedelta, timezone
from types import FunctionType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

MOST_COLUMNS = 2**20  # that one step makes of a row; HashingVectorizer's default
MOST_JOBS = 64
MOST_DEGREE = 20
_MOST_REPEATS = 2  # of a regular expression: with two, matching takes quadratic time at most


class Rule(NamedTuple):
    """`expected` completes "must be ..."; `allows` says whether a value is that."""

    expected: str
    allows: Callable[[Any], bool]


def is_plain(value: Any) -> bool:
    """Data without objects or functions: numbers, texts, dates, arrays, and containers of these."""
    if isinstance(value, np.ndarray):
        return value.dtype != object or all(is_plain(v) for v in value.ravel())
    if type(value) is dict:
        return all(is_plain(k) and is_plain(v) for k, v in value.items())
    if type(value) in (list, tuple, set):
        return all(is_plain(v) for v in value)
    if type(value) is slice:
        return all(is_plain(v) for v in (value.start, value.stop, value.step))
    return value is None or isinstance(value, (bool, int, float, str, np.generic, date, timedelta))


def is_integer(value: Any, low: float, high: float) -> bool:
    """Whether it is an integer from low to high, not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high


def one_of(*values: Any) -> Rule:
    """One of these, of the same type."""
    allowed = [(type(v), v) for v in values]
    return Rule("one of " + ", ".join(map(repr, values)), lambda v: is_plain_scalar(v) and (type(v), v) in allowed)


def is_plain_scalar(value: Any) -> bool:
    """Whether comparing it with another value gives a boolean."""
    return value is None or type(value) in (bool, int, float, str)


def either(*rules: Rule) -> Rule:
    """What one of several rules allows."""
    return Rule(" or ".join(rule.expected for rule in rules), lambda v: any(rule.allows(v) for rule in rules))


def _is_pair(value: Any, low: int, high: int) -> bool:
    return type(value) in (tuple, list) and len(value) == 2 and all(is_integer(v, low, high) for v in value)


def _is_type(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(_is_type(v) for v in value)
    if isinstance(value, str):  # no commas, parentheses: numpy parses such texts
        return re.fullmatch(r"[A-Za-z0-9_<>=|\[\]]{1,40}", value) is not None
    return value is None or isinstance(value, (type, np.dtype))


def is_simple_pattern(value: Any) -> bool:
    r"""Whether matching it takes little time for any text: few repeats, none of a group, no references.

    >>> is_simple_pattern(r"(?u)\b\w\w+\b"), is_simple_pattern(r"(a+)+b"), is_simple_pattern(r"(.)\1")
    (True, False, False)
    """
    if not isinstance(value, str) or len(value) > 200 or re.search(r"\\[1-9]", value):
        return False
    rest = re.sub(r"\\.", "x", value, flags=re.DOTALL)
    rest = re.sub(r"\[\^?\]?[^\]]*\]", "x", rest)
    if re.search(r"\(\?(?!:|u\)|i\))", rest) or re.search(r"\)[*+{]", rest):
        return False
    return len(re.findall(r"[*+{]", rest)) <= _MOST_REPEATS


def _is_step(value: Any) -> bool:
    """A transformer: its type and its own parameters are checked where the walk comes to it."""
    if value is None or isinstance(value, str):
        return value in (None, "passthrough", "drop")
    return not is_plain(value) and not _is_function(value)


def _is_steps(value: Any) -> bool:
    """(name, transformer) or (name, transformer, columns), several of them; without names in skrub."""
    return type(value) in (list, tuple) and all(
        type(item) in (list, tuple) and 2 <= len(item) <= 3 and not any(_is_function(part) for part in item)
        for item in value
    )


def _is_function(value: Any) -> bool:
    return isinstance(value, (FunctionType, np.ufunc))


def _is_of(module: str) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, FunctionType) and v.__module__.startswith(module)


def _is_weights(value: Any) -> bool:
    return value is None or (type(value) is dict and is_plain(value))


def _is_seed(value: Any) -> bool:
    if value is None or isinstance(value, (str, np.random.RandomState)):
        return not isinstance(value, str) or value == "deprecated"  # the default of some
    return is_integer(value, 0, math.inf)


def _is_zone(value: Any) -> bool:
    """A time zone, or its name; not one that pandas would open a file for, such as dateutil/PATH."""
    if isinstance(value, str):
        return re.fullmatch(r"[A-Za-z0-9_+:-]+(/[A-Za-z0-9_+-]+)*", value) is not None and value[:8] != "dateutil"
    return value is None or type(value) in (ZoneInfo, timezone)


def _are_counts(value: Any) -> bool:
    """Numbers, a word or None; several numbers count together, as columns of one step do."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return all(_are_counts(v) and isinstance(v, numbers.Real) for v in value) and _are_counts(float(sum(value)))
    if isinstance(value, numbers.Real):
        return 0 <= float(value) <= MOST_COLUMNS
    return value is None or isinstance(value, str)


def _has_fields(value: Any, *fields: str) -> bool:
    """Whether a text to be formatted has these fields alone: others could reach attributes, or ask for any width."""
    if not isinstance(value, str):
        return False
    for field in fields:
        value = value.replace(field, "")
    return not set("{}") & set(value)


NOTHING = Rule("None", lambda v: v is None)
FLAG = Rule("True or False", lambda v: isinstance(v, (bool, np.bool_)))
NUMBER = Rule("a number or None", lambda v: v is None or isinstance(v, (numbers.Real, np.bool_)))
DATA = Rule("plain data", is_plain)
TEXT = Rule("a text of at most 100 characters or None", lambda v: v is None or (isinstance(v, str) and len(v) <= 100))
CHARACTER = Rule("one character or None", lambda v: v is None or (isinstance(v, str) and len(v) <= 1))
ZONE = Rule("a time zone or None", _is_zone)
COUNTS = Rule(f"numbers from 0 to {MOST_COLUMNS} together, or None", _are_counts)
HASHED = Rule(f"an integer from 1 to {MOST_COLUMNS}", lambda v: is_integer(v, 1, MOST_COLUMNS))
COLUMN_TYPE = Rule("a type of columns or None", lambda v: not isinstance(v, str) or _is_type(v))
COLUMNS = Rule(f"an integer of at most {MOST_COLUMNS} or None", lambda v: v is None or is_integer(v, 0, MOST_COLUMNS))
JOBS = Rule(
    f"an integer from -{MOST_JOBS} to {MOST_JOBS} or None",
    lambda v: v is None or is_integer(v, -MOST_JOBS, MOST_JOBS),
)
DEGREE = Rule(
    f"an integer from 0 to {MOST_DEGREE}, or two",
    lambda v: is_integer(v, 0, MOST_DEGREE) or _is_pair(v, 0, MOST_DEGREE),
)
NGRAMS = Rule("two integers from 1 to 50", lambda v: _is_pair(v, 1, 50))
TYPE = Rule("a type of numbers or None", _is_type)
SEED = Rule("an integer, a RandomState or None", _is_seed)
PATTERN = Rule(
    "a regular expression of at most two repeats, none of them of a group, or None",
    lambda v: v is None or is_simple_pattern(v),
)
RENAME = Rule("a text with {} for the name", lambda v: _has_fields(v, "{}"))
NAMES = Rule(
    "a text with {transformer_name} and {feature_name}",
    lambda v: _has_fields(v, "{transformer_name}", "{feature_name}"),
)
STEP = Rule("a transformer, 'passthrough', 'drop' or None", _is_step)
STEPS = Rule("a list of names with transformers", _is_steps)
SELECTOR = Rule("names of columns or a selector", lambda v: not _is_function(v))
UFUNC = Rule("a function of numpy on single numbers or None", lambda v: v is None or isinstance(v, np.ufunc))
SCORE = Rule("a score of scikit-learn's feature selection", _is_of("sklearn.feature_selection."))
PREDICATE = Rule("a predicate of skrub", _is_of("skrub."))
WEIGHTS = Rule("a dict of numbers or None", _is_weights)
