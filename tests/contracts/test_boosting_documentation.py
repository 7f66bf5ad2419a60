"""Docstrings: every parameter with its true default, examples that run."""

from __future__ import annotations

import ast
import doctest
import inspect
import re

import pytest

from contracts.test_estimators_documentation import defaults, documented
from irmtv import InvariantBoostingClassifier, InvariantBoostingRegressor
from irmtv.estimators import boosting as estimators
from paths import REPOSITORY


def test_every_parameter_is_documented_with_its_default():
    docs = documented(InvariantBoostingClassifier)
    given = defaults(InvariantBoostingClassifier)
    assert set(docs) == set(given)
    for name, default in given.items():
        said = re.search(r"default ([^ ]+)", docs[name]).group(1)
        assert ast.literal_eval(said) == default, name


@pytest.mark.parametrize("kinds", [("", ""), ("CV", "CV")])
def test_the_two_classes_have_the_same_parameters(kinds):
    import irmtv

    ours = defaults(getattr(irmtv, f"InvariantBoostingClassifier{kinds[0]}"))
    theirs = defaults(getattr(irmtv, f"InvariantBoostingRegressor{kinds[1]}"))
    assert ours.pop("class_weight") is None
    assert list(ours.items()) == list(theirs.items())


@pytest.mark.parametrize("kind", [InvariantBoostingClassifier, InvariantBoostingRegressor])
def test_every_public_method_is_documented(kind):
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and member.__module__.startswith("irmtv."):
            assert inspect.getdoc(member), name


def test_examples_run():
    tried = doctest.testmod(estimators)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_the_page_s_example_runs(capsys):
    page = (REPOSITORY / "docs" / "boosting.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, "docs/boosting.md", "exec"), {})
    assert "an invariant model was found" in capsys.readouterr().out
