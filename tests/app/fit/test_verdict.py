"""The verdict of `irmtv evaluate`, by its full text."""

from __future__ import annotations

import pytest

from irmtv.app.fit.verdict import verdict

EXPECTED = {"mean": 0.84, "worst": 0.7, "low": 0.7, "high": 0.98}
BASIS = "the 90 % interval of what was expected in a new environment, 70.0 % to 98.0 %"
SPREAD = "what the known environments had on held-out rows, 75.0 % to 90.0 %"


def estimate(value, half=0.02):
    return {"value": value, "low": value - half, "high": value + half}


def about(metric="accuracy", expected=EXPECTED, message="", **more):
    factor = 1.0 if metric == "accuracy" else 10.0
    rows = [("north", 0.9), ("south", 0.75)]
    scaled = expected and {key: factor * value for key, value in expected.items()}
    return {
        "metric": metric,
        "greater_is_better": metric == "accuracy",
        "data": {"environment": ["site"]},
        "environments": [{"name": name, "chosen": estimate(factor * value, 0.02 * factor)} for name, value in rows],
        "new_environment": {"metric": metric, "expected": scaled, "coverage": 0.9, "message": message},
        **more,
    }


def score(value, name="west", half=0.03, rows=200):
    if half is None:
        return {"environment": name, "rows": rows, "value": value, "low": None, "high": None}
    return {"environment": name, "rows": rows, **estimate(value, half)}


@pytest.mark.parametrize(
    ("of", "word", "sentence"),
    [
        (score(0.62), "worse", f"62.0 % is below {BASIS}: this environment is unlike those in training."),
        (
            score(0.68, rows=30),
            "perhaps worse",
            f"68.0 % is below {BASIS}, but with 30 rows (95 % interval 65.0 % to 71.0 %) that may be chance.",
        ),
        (
            score(0.5, half=None, rows=4),
            "perhaps worse",
            f"50.0 % is below {BASIS}, but with 4 rows that may be chance.",
        ),
        (score(0.8), "as expected", f"80.0 % is within {BASIS}."),
        (score(0.70001), "as expected", f"70.0 % is within {BASIS}."),
        (score(0.69999), "as expected", f"70.0 % is within {BASIS}."),
        (score(0.99), "as expected", f"99.0 % is above {BASIS}, but that may be chance."),
        (
            score(0.99, half=0.005),
            "better",
            f"99.0 % is above {BASIS}: this environment is easier than those in training.",
        ),
    ],
)
def test_a_new_environment(of, word, sentence):
    assert verdict(about(), "accuracy", ["site"], [of]) == {"sentences": [sentence], "words": [word]}


@pytest.mark.parametrize(
    ("value", "word", "sentence"),
    [
        (12.0, "worse", "12 is above {}: this environment is unlike those in training."),
        (8.0, "as expected", "8 is within {}."),
        (5.0, "better", "5 is below {}: this environment is easier than those in training."),
    ],
)
def test_of_errors_more_is_worse(value, word, sentence):
    basis = "the 90 % interval of what was expected in a new environment, 7 to 9.8"
    said = verdict(about("rmse"), "rmse", ["site"], [score(value)])
    assert said == {"sentences": [sentence.format(basis)], "words": [word]}


def test_without_environments_the_rows_are_one():
    said = verdict(about(), "accuracy", [], [score(0.62, "all")])
    assert said["sentences"] == [f"62.0 % is below {BASIS}: these rows are unlike those in training."]
    assert verdict(about(), "accuracy", [], [score(0.8, "north")])["sentences"] == [f"80.0 % is within {BASIS}."]


def test_several_new_environments():
    scores = [score(0.5, "a"), score(0.6, "b"), score(0.68, "c"), score(0.8, "d"), score(0.99, "e", 0.005)]
    assert verdict(about(), "accuracy", ["site"], scores)["sentences"] == [
        f"2 of 5 new environments are below {BASIS}: a (50.0 %) and b (60.0 %), unlike those in training.",
        f"1 of 5 new environments is below {BASIS}: c (68.0 %), though that may be chance.",
        f"1 of 5 new environments is above {BASIS}: e (99.0 %), easier than those in training.",
        f"1 of 5 new environments is within {BASIS}, up to noise.",
    ]
    said = verdict(about(), "accuracy", ["site"], [score(0.8, "a"), score(0.8, "b")])
    assert said["sentences"] == [f"Both new environments are within {BASIS}, up to noise."]


def test_known_environments_are_as_they_were_or_have_changed():
    scores = [score(0.62, "north"), score(0.76, "south")]
    assert verdict(about(), "accuracy", ["site"], scores) == {
        "sentences": [
            "north is known from training and worse than there: 62.0 %, where held-out rows had 90.0 %; it has changed "
            "since.",
            "1 of 2 known environments is as it was in training, up to noise.",
        ],
        "words": ["worse", "as expected"],
    }
    said = verdict(about(), "accuracy", ["site"], [score(0.89, "north"), score(0.95, "south")])
    assert said["sentences"] == [
        "south is known from training and better than there: 95.0 %, where held-out rows had 75.0 %; are these the "
        "rows of training?",
        "1 of 2 known environments is as it was in training, up to noise.",
    ]
    said = verdict(about(), "accuracy", ["site"], [score(0.9, "north"), score(0.75, "south")])
    assert said["sentences"] == ["Both known environments are as they were in training, up to noise."]
    said = verdict(about(), "accuracy", ["site"], [score(0.89, "north")])
    assert said["sentences"] == ["north is known from training and as it was there, up to noise."]
    said = verdict(about(), "accuracy", ["site"], [score(0.5, "north", half=None)])
    assert said == {
        "sentences": ["1 known environment cannot be compared: there is no interval."], "words": ["unknown"]
    }  # fmt: skip
    # names of another column are no known environments
    assert "new environment" in verdict(about(), "accuracy", ["town"], [score(0.8, "north")])["sentences"][0]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (about(expected=None), ""),
        (about(new_environment=None), ""),
        (about(expected=None, message="Not known: 2 are given."), " (2 are given)"),
        (about(expected={**EXPECTED, "low": 0.0, "high": 1.0}), " (too few environments for an interval)"),
    ],
)
def test_a_file_that_does_not_say_what_to_expect_has_scores_of_training(made, why):
    missing = f"What to expect in a new environment is not known{why}; training scores stand in for it."
    said = verdict(made, "accuracy", ["site"], [score(0.62)])
    assert said == {
        "sentences": [missing, f"62.0 % is below {SPREAD}: this environment is unlike those in training."],
        "words": ["worse"],
    }


def test_one_environment_of_training_has_a_score_and_no_range():
    made = about(expected=None)
    made["environments"] = made["environments"][:1]
    (_, said) = verdict(made, "accuracy", [], [score(0.91, "all rows")])["sentences"]
    assert said == "91.0 % is above what held-out rows had in training, 90.0 %, but that may be chance."


@pytest.mark.parametrize(
    ("value", "said", "word"),
    [(0.62, "is within", "as expected"), (0.3, "is below", "worse"), (0.9, "is above", "better")],
)
def test_where_there_are_too_few_environments_for_an_interval_it_is_their_range_when_left_out(value, said, word):
    """Held-out rows of known environments had 75 to 90 %: not what was to be expected."""
    made = about(expected={**EXPECTED, "low": 0.0, "high": 1.0})
    rows = [{"name": str(k), "rows": 100, "plain": v, "chosen": v, "missing": ""} for k, v in enumerate((0.5, 0.7))]
    made["new_environment"]["families"] = [{"name": "linear", "taken": True, "environments": rows}]
    found = verdict(made, "accuracy", ["site"], [score(value)])
    basis = "what environments had that models were trained without, 50.0 % to 70.0 %"
    means = {"worse": ": this environment is unlike those in training", "as expected": "",
             "better": ": this environment is easier than those in training"}[word]  # fmt: skip
    assert found == {
        "sentences": [
            "2 environments are too few for an interval for a new one; their range when left out stands in for it.",
            f"{100 * value:.1f} % {said} {basis}{means}.",
        ],
        "words": [word],
    }


def test_nothing_to_compare_with():
    assert verdict({}, "accuracy", [], [score(0.5)]) == {
        "sentences": ["Nothing to compare with: the model file does not say how well the model did in training."],
        "words": ["unknown"],
    }
    assert verdict(about(), "log_loss", [], [score(0.5)])["sentences"] == [
        "Nothing to compare with: the model was measured by accuracy in training, not by log loss. Use --metric "
        "accuracy for a verdict."
    ]
    none = verdict(about(), "accuracy", ["site"], [{**score(0.5), "value": None}])
    assert none == {"sentences": ["No verdict: there is no score to compare."], "words": ["unknown"]}


def test_several_known_environments_that_changed_are_one_sentence_and_numbers_have_names():
    made = about()
    made["environments"] = [{**row, "name": name} for row, name in zip(made["environments"], "12", strict=True)]
    said = verdict(made, "accuracy", ["site"], [score(0.99, "1"), score(0.95, "2")])
    assert said["sentences"] == [
        "Both known environments are better than in training: site 1 (99.0 %, where held-out rows had 90.0 %) and site "
        "2 (95.0 %, where held-out rows had 75.0 %); are these the rows of training?"
    ]
    said = verdict(made, "accuracy", ["site"], [score(0.5, "1"), score(0.5, "2")])
    assert said["sentences"][0].endswith("held-out rows had 75.0 %); they have changed since.")


def test_a_new_environment_without_a_score_is_counted():
    said = verdict(about(), "accuracy", ["site"], [score(0.8, "a"), score(0.8, "b"), score(None, "c", half=None)])
    assert said["sentences"][-1] == "1 new environment has no score."


def test_errors_of_several_new_and_known_environments():
    basis = "the 90 % interval of what was expected in a new environment, 7 to 9.8"
    scores = [score(12.0, "a"), score(9.9, "b", 0.3), score(8.0, "c"), score(5.0, "d")]
    assert verdict(about("rmse"), "rmse", ["site"], scores)["sentences"] == [
        f"1 of 4 new environments is above {basis}: a (12), unlike those in training.",
        f"1 of 4 new environments is above {basis}: b (9.9), though that may be chance.",
        f"1 of 4 new environments is below {basis}: d (5), easier than those in training.",
        f"1 of 4 new environments is within {basis}, up to noise.",
    ]
    said = verdict(about("rmse"), "rmse", ["site"], [score(12.0, "north"), score(5.0, "south")])
    assert said["sentences"] == [
        "north is known from training and worse than there: 12, where held-out rows had 9; it has changed since.",
        "south is known from training and better than there: 5, where held-out rows had 7.5; are these the rows of "
        "training?",
    ]
