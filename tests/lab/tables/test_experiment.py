"""The report of an experiment folder, against its parts."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from irmtv.datasets import DATASETS
from irmtv.lab import experiments
from irmtv.lab import tables as report
from irmtv.lab.tables import ExperimentReport, paired_tests, report_experiment, summarise, to_csv, to_markdown
from lab.experiments.small import ERM, TV, small

VREX = {"objective": "vrex", "warmup": 5, "fixed": {}}
FIXED = {"fixed": {"penalty_weight": 1.0}}
RULES = ["fixed", "invariance", "leave-one-env-out"]
SETTINGS = {"easy": {"p_v": 0.9}, "hard": {"p_v": 0.7}}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    spec = small(ERM, {**TV, **FIXED}, VREX, rules=RULES, repetitions=2, settings=SETTINGS, compare_with="erm")
    folder = tmp_path_factory.mktemp("report") / "x"
    experiments.run_experiment(spec, folder)
    return spec, folder


def test_what_it_consists_of(done):
    spec, folder = done
    made = report_experiment(spec, folder)
    assert isinstance(made, ExperimentReport) and made.name == "small"
    results = experiments.read_results(spec, folder)
    pd.testing.assert_frame_equal(made.results, results)
    bare = summarise(results)
    pd.testing.assert_frame_equal(made.summary.drop(columns="limit"), bare.drop(columns="limit"))
    pd.testing.assert_frame_equal(made.tests, paired_tests(results, reference="erm"))
    assert set(made.tests["other"]) == {"erm"}
    # what no model can beat in the worst environment, beside the metric that it is of
    limited = made.summary[made.summary["limit"].notna()]
    assert set(limited["metric"]) == {"population accuracy"} and set(limited["summary"]) == {"worst"}
    for setting in SETTINGS:
        limit = DATASETS["simulation"].limit(spec.data.arguments_of(setting))
        assert set(limited[limited["setting"] == setting]["limit"]) == {limit}


def test_a_spec_without_the_worst_environment(done):
    spec, folder = done
    made = report_experiment(spec.model_copy(update={"summaries": ("train", "mean")}), folder)
    assert set(made.summary["summary"]) == {"train", "mean"}
    pd.testing.assert_frame_equal(made.tests, paired_tests(made.results, reference="erm", summary="mean"))


def test_the_files(done, tmp_path):
    spec, folder = done
    made = report_experiment(spec, folder)
    paths = made.write(tmp_path / "deep" / "out")
    names = ["small.md", "small.csv", "small.tex", "small-tests.csv", "small-choices.csv"]
    assert [p.name for p in paths] == names and sorted(p.name for p in paths[0].parent.iterdir()) == sorted(
        [".irmtv.json", *names]
    )
    assert paths[0].read_text() == to_markdown(made.summary, made.tests)
    assert paths[3].read_text() == to_csv(made.tests)
    choices = pd.read_csv(paths[-1])
    assert list(choices.columns) == list(made.results.columns) and len(choices) == len(made.results)
    np.testing.assert_allclose(choices["value"], made.results["value"], rtol=1e-12)
    some = 0
    for written, own in zip(choices.itertuples(), made.results.itertuples(), strict=True):
        if np.isnan(own.value):  # two environments: none can be left out
            assert own.rule == "leave-one-env-out" and "needs three or more" in written.note
            assert pd.isna(written.hyperparameters) and pd.isna(written.figures)
            continue
        assert json.loads(written.hyperparameters) == own.hyperparameters
        assert json.loads(written.figures) == own.figures
        some += 1
    assert some == len(made.results) * 2 // 3
    assert isinstance(made.results["figures"].iloc[0], dict)  # the report itself is as it was


def test_a_regression_has_no_limit(tmp_path):
    spec = small(ERM, rules=["iid"], data="control", arguments={"differ": "outcome-noise"})
    experiments.run_experiment(spec, tmp_path / "x")
    made = report_experiment(spec, tmp_path / "x")
    assert made.summary["limit"].isna().all() and made.tests.empty


def test_a_method_to_compare_with_whose_runs_are_missing(done):
    """All its runs may have failed: then all pairs are compared."""
    _, folder = done
    lacking = {**TV, "penalty_weight": 7.0, "label": "lacking", **{"fixed": {}}}
    methods = (ERM, {**TV, **FIXED}, VREX, lacking)
    spec = small(*methods, rules=RULES, repetitions=2, settings=SETTINGS, compare_with="lacking")
    made = report_experiment(spec, folder)
    assert "lacking" not in set(made.results["method"])
    pairs = set(zip(made.tests["method"], made.tests["other"], strict=True))
    assert pairs == {("erm", "irm-tv-l1"), ("erm", "vrex"), ("irm-tv-l1", "vrex")}


def test_a_folder_without_results(done):
    _, folder = done
    made = report_experiment(small({**TV, "penalty_weight": 7.0}, rules=["iid"]), folder)
    assert made.results.empty and made.summary.empty and made.tests.empty


def test_what_the_package_offers():
    assert {"ExperimentReport", "report_experiment"} <= set(report.__all__)
