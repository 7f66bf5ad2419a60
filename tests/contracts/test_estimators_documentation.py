"""Docstrings: every parameter, its true default, the same words in both classes, examples that run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import subprocess
import sys

import pytest

from irmtv.data import scaling
from irmtv.estimators import InvariantClassifier, InvariantRegressor, classifier, regressor

KINDS = [InvariantClassifier, InvariantRegressor]


def documented(kind) -> dict[str, str]:
    """name -> what its docstring says, without line breaks."""
    text = inspect.getdoc(kind)
    section = text.split("Parameters\n----------\n")[1].split("\nAttributes\n")[0]
    parts = re.split(r"^(\w+) : ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(body.split()) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def defaults(kind) -> dict[str, object]:
    return {name: p.default for name, p in inspect.signature(kind).parameters.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_documented_with_its_default(kind):
    docs = documented(kind)
    assert list(docs) == list(defaults(kind))
    for name, default in defaults(kind).items():
        said = re.search(r"default ([^ ]+(, ?[^ ]*\))?)", docs[name]).group(1)
        assert ast.literal_eval(said) == default, name


def test_the_two_classes_say_the_same():
    ours, theirs = documented(InvariantClassifier), documented(InvariantRegressor)
    assert set(ours) - set(theirs) == {"class_weight"}
    assert {name: ours[name] for name in theirs} == theirs
    common = defaults(InvariantClassifier)
    common.pop("class_weight")
    assert list(common.items()) == list(defaults(InvariantRegressor).items())


@pytest.mark.parametrize("kind", KINDS)
def test_every_public_method_is_documented(kind):
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and member.__module__.startswith("irmtv."):
            assert inspect.getdoc(member), name


@pytest.mark.parametrize("module", [classifier, regressor, scaling])
def test_examples_run(module):
    tried = doctest.testmod(module)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_importing_irmtv_does_not_import_scikit_learn():
    check = (
        "import sys, irmtv; assert 'sklearn' not in sys.modules; assert 'InvariantClassifier' in dir(irmtv); "
        "irmtv.InvariantClassifier(); assert 'sklearn' in sys.modules; assert not hasattr(irmtv, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
