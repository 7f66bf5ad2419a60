"""The page of an experiment: the paper's numbers beside ours, the rules, what they found, how to run it again."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from irmtv.html.page import page
from irmtv.lab.experiments import SpecError, load_spec, parse_spec, run_experiment
from irmtv.lab.experiments.papers import paper_spec
from irmtv.lab.tables import paired_tests, report_experiment, summarise
from irmtv.lab.tables.experiment import ExperimentReport, stored_spec
from irmtv.lab.tables.experiment_figures import counted_outcomes
from irmtv.lab.tables.experiment_page import (
    experiment_content,
    folder_content,
    identifiability_content,
    main_rule,
    running_times_content,
)
from lab.experiments.small import ERM, TV, small_text
from lab.tables.results import ODD, PUBLISHED, frame, random_results, rows, small
from lab.tables.test_identifiability import made as made_identifiability
from lab.tables.test_identifiability import spec as identifiability_spec
from lab.tables.test_running_times import made as made_running_times

SPEC = 'name = "toy"\ndescription = "A toy. It is small."\ndata.name = "simulation"\n[[methods]]\nobjective = "erm"\n'
VERSIONS = [{"irmtv": "0.1.0", "torch": "2.13.0"}, {"irmtv": "0.2.0", "numpy": "2.4"}]

identifiability_made = made_identifiability
spec = identifiability_spec
times_made = made_running_times


def content_of(results, published=None):
    results = results.assign(hyperparameters=None, figures=None)
    made = ExperimentReport("toy", results, summarise(results, published), paired_tests(results))
    return experiment_content(made, parse_spec(SPEC), VERSIONS)


def blocks_of(content):
    return {s["id"]: s["blocks"] for chapter in content["chapters"] for s in chapter["sections"]}


def only(blocks, kind):
    return next(b for b in blocks if b["kind"] == kind)


def test_the_papers_numbers_stand_beside_ours():
    content = content_of(small(), PUBLISHED)
    table = only(blocks_of(content)["setting-0-0"], "table")
    assert table["columns"][:4] == ["method", "published: mean", "published: worst", "fixed: mean"]
    by_method = {row[0]: row[1:] for row in table["rows"]}
    assert by_method["ERM"][:2] == ["76.2 ± 1.2", "58.8 ± 2.0"]
    assert by_method["ERM"][2].startswith("71.0 ± 1.4 (-4.3 sd")
    assert by_method["hrm"][1] == "59.8 ± 2.7" and "not run" in by_method["hrm"]
    assert "oracle (chosen on test): mean" in table["columns"]


def test_the_figure_has_the_main_rule_as_bars_and_the_rest_as_marks():
    content = content_of(small(), PUBLISHED)
    block = only(blocks_of(content)["setting-0-0"], "figure")
    assert "rule invariance. IRM: 70.0 %; ERM: 61.0 %." in block["alt"]
    for word in ("published", "oracle (chosen on test)", "fixed", "invariance"):
        assert f">{word}</text>" in block["svg"]
    lines = {(r[0], r[1]): r for r in block["data"]["rows"]}
    assert lines["ERM", "invariance"][3] == pytest.approx(0.61)
    assert lines["ERM", "invariance"][7:9] == pytest.approx([0.588, 0.02])
    assert lines["hrm", "not run"][3] is None and lines["hrm", "not run"][7] == pytest.approx(0.598)


def test_the_headline_names_the_best_and_how_many_published_values_are_met():
    headline = content_of(small(), PUBLISHED)["headline"]
    assert (
        headline["text"]
        == "Under the rule invariance, IRM has the best accuracy in the worst test environment: 70.0 %."
    )
    # ERM, fixed: mean 0.71 against 0.762 ± 0.012 is 4.3 away, worst 0.61 against 0.588 ± 0.02 is 1.1
    assert headline["more"].startswith(
        "1 of 2 published values are met within 2 published standard deviations (rule fixed)"
    )
    assert "the largest difference is 4.333" in headline["more"]
    two = frame(
        rows("a", [0.5, 0.6], setting="one"), rows("b", [0.7, 0.8], setting="one"),
        rows("a", [0.5, 0.6], setting="two"), rows("b", [0.1, 0.2], setting="two"),
    )  # fmt: skip
    headline = content_of(two)["headline"]
    assert "of 2 settings the best accuracy in the worst test environment has b in 1, a in 1" in headline["text"]
    assert headline["more"] == "" and [n["value"] for n in headline["numbers"]] == ["75.0 %", "55.0 %"]
    less = frame(rows("a", [2.0, 3.0], metric="mse"), rows("b", [4.0, 5.0], metric="mse"))
    assert ", a has the best mse in the worst test environment: 2.5." in content_of(less)["headline"]["text"]


def test_the_main_rule_never_looks_at_test_rows_where_another_does_not():
    assert main_rule(pd.DataFrame({"rule": ["oracle", "iid", "invariance", "not run"]})) == "invariance"
    assert main_rule(pd.DataFrame({"rule": ["oracle", "iid", "not run"]})) == "iid"
    assert main_rule(pd.DataFrame({"rule": ["oracle", "not run"]})) == "oracle"


def test_outcomes_are_counted_once_for_every_repetition():
    counts = counted_outcomes(small(), "invariance").set_index("method")
    assert counts.loc["ERM"].to_list() == ["toy", 1, 1, 0, 0]
    assert counts.loc["IRM"].to_list() == ["toy", 0, 0, 0, 2]
    blocks = blocks_of(content_of(small()))["outcomes"]
    assert (
        "an invariant model was found: 1; ERM is invariant and was kept: 1; none was found, ERM was kept: 2"
        in blocks[0]["alt"]
    )
    assert "outcomes" not in blocks_of(content_of(frame(rows("a", [0.5, 0.6]))))


def test_many_methods_rules_and_odd_labels_have_a_page():
    many = random_results([*ODD, *(f"method {i}" for i in range(12))], n_rules=5)
    shown = page(content_of(many))
    assert shown.count("<script") == 1 and "&lt;b&gt;#~^" in shown
    nothing = small().assign(value=math.nan)
    assert content_of(nothing)["headline"]["text"] == "No method has a value yet."
    page(content_of(nothing))


def test_settings_and_versions_to_run_it_again():
    content = content_of(small())
    blocks = blocks_of(content)
    assert [b["text"] for b in blocks["spec"] if b["kind"] == "code"] == [
        "irmtv run spec.toml --out FOLDER",
        SPEC.strip(),
    ]
    assert only(blocks["versions"], "table")["rows"] == [
        ["irmtv", "0.1.0", "0.2.0"],
        ["torch", "2.13.0", "–"],
        ["numpy", "–", "2.4"],
    ]
    assert content["title"] == "toy: A toy"
    assert any("accuracy, in %" in b["text"] for b in blocks["reading"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An experiment as it is stored."""
    target = tmp_path_factory.mktemp("experiment") / "runs"
    made = parse_spec(small_text(ERM, TV, rules=["iid", "oracle"]))
    run_experiment(made, target)
    return target, made


def test_a_folder_has_the_page_of_its_last_spec(folder):
    target, made = folder
    content = folder_content(target)
    assert content == experiment_content(report_experiment(made, target), made, content_versions(content))
    assert {"irmtv", "torch"} <= {row[0] for row in only(blocks_of(content)["versions"], "table")["rows"]}
    assert page(content) == page(folder_content(target)), "the same at every call"


def content_versions(content):
    table = only(blocks_of(content)["versions"], "table")
    return [dict(table["rows"])]


def test_a_part_of_a_spec_is_shown_as_what_is_there(folder, tmp_path):
    _, made = folder
    run_experiment(made.with_(methods=["erm"]), tmp_path / "part")
    content = folder_content(tmp_path / "part")
    assert dict(content["facts"])["methods"] == "erm"


def test_a_folder_without_results(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        folder_content(tmp_path / "x")
    (tmp_path / "y").mkdir()
    with pytest.raises(ValueError, match=r"holds no experiment \(experiment.sqlite\). It is empty"):
        folder_content(tmp_path / "y")


def test_published_numbers_are_found_again_or_it_is_said(tmp_path):
    """The store has the text of the spec, not the file of published numbers beside it."""
    source = load_spec(paper_spec("simulation")).text
    found, notes = stored_spec(source, tmp_path)
    assert found.published is not None and notes == []
    other = small_text({**ERM, "published": "erm"}, {**TV, "label": "x"})
    other += '[published]\nfile = "mine.json"\ntable = "t"\n'
    found, notes = stored_spec(other, tmp_path)
    assert found.published is None and [m.label for m in found.methods] == ["erm", "x"]
    assert "mine.json" in notes[0] and str(tmp_path) in notes[0]
    (tmp_path / "mine.json").write_text('{"t": {"results": {"erm": {"mean": 1}}}}')
    found, notes = stored_spec(other, tmp_path)
    assert found.published.results == {"erm": {"mean": 1}} and notes == []
    with pytest.raises(SpecError, match="objective"):
        stored_spec(small_text({"objective": "irm-tv-11"}), tmp_path)


def test_identifiability_has_its_figure_and_every_weight(identifiability_made):
    content = identifiability_content(identifiability_made, VERSIONS)
    block = only(blocks_of(content)["figure"], "figure")
    table = identifiability_made.table()
    assert block["data"]["columns"] == list(table.columns) and len(block["data"]["rows"]) == len(table)
    assert block["name"] == "identifiability" and "w15" in block["svg"]
    # L1: 14 of 20 and 6 of 10 on the invariant columns
    assert (
        content["headline"]["text"]
        == "Of 3 methods IRM-TV-l1 puts most of its weight on the invariant features: 65.0 %."
    )
    assert {n["name"]: (n["value"], n["note"]) for n in content["headline"]["numbers"]}["IRM-TV-l1"] == (
        "65.0 %",
        "paper 64.9 %",
    )
    shown = page(content)
    assert "Share of the invariant features in %" in shown and not re.search(r">(nan|None)<", shown)


def test_running_times_have_a_page(times_made):
    shown = page(running_times_content(times_made))
    assert "Seconds of 5,300 steps" in shown and "13.5" in shown and "a machine" in shown
