"""The answer of a fit in three paragraphs, by its full text: every outcome, for classes and for numbers."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from app.pages.summaries import row, summary, with_erm_kept, with_gaps, with_unseen
from irmtv.app.fit.answer import answer
from irmtv.core.outcomes import OUTCOMES
from irmtv.selection import invariance
from irmtv.selection.directions import Directions
from selection.candidates import ASKEW, SE, columns, two, written

LEFT_OUT = [[0.4, 0.4, 0.4], [0.4, 0.4, 0.4]]
EVEN = [[[0.0, 0.0], [0.0, 0.0]]] * 2
PASSES = {"risk": [[0.4, 0.4], [0.45, 0.45]], "se": SE, "rows": 2000.0}
DIFFERS = {"risk": [[0.3, 0.5], [0.45, 0.45]], "se": SE, "slope": [ASKEW, [0.0, 0.0]], "slope_se": SE}
NEVER_FLAT = {"risk": [[0.3, 0.5], [0.3, 0.5]], "se": SE, "slope": [ASKEW, ASKEW], "slope_se": SE}

KEPT = "The plain model is kept"
ALIKE = f"{KEPT}: the features go with ill alike in every environment, as far as these rows show"
FOUND = (
    "A model was found that holds in every environment alike (an invariant model), which the plain model does not, and "
    "it is chosen: a linear model with a penalty on differences (irm-tv-l1, weight 1000)."
)
BETTER_THERE = (
    "A model was found that does better where it was not trained than the plain model, and it is chosen: a linear "
    "model with a penalty on differences (irm-tv-l1, weight 1000)."
)
# what the rule says of records, and the words for it
KINDS = {
    "passes, without power": (written(**PASSES), f"{ALIKE}.", "plain", f"{KEPT}: nothing was found against it"),
    "passes, with power": (
        written(**PASSES, **columns(EVEN, 0.01)),
        f"{ALIKE}, and they would have shown a difference that matters.",
        "good",
        f"{KEPT}: it is already invariant",
    ),
    "contradicted": (
        written(**PASSES, left_out=two([[0.7, 0.7, 0.7]] * 2)),
        f"{KEPT}, with a warning: on known environments nothing was found against it, but its loss is much higher in "
        "environments that it was not trained on, and no other model wins that back.",
        "partly",
        f"{KEPT}, with a warning",
    ),
    "contradicted, infinite": (
        written(**PASSES, left_out=two([[np.inf] * 3] * 2)),
        f"{KEPT}, with a warning: on known environments nothing was found against it, but its loss is much higher in "
        "environments that it was not trained on, and no other model wins that back.",
        "partly",
        f"{KEPT}, with a warning",
    ),
    "blind": (
        written(**PASSES, **columns(EVEN, 0.5)),
        f"{KEPT}: nothing was found against it, but these rows could not have shown much.",
        "plain",
        KEPT,
    ),
    "same direction": (
        written(**DIFFERS, directions=Directions(0.5, 0.0)),
        f"{KEPT}: environments differ in how noisy they are or in how frequent the values of ill are, but each of them "
        "would choose the same model, apart from how sure it is, so another one would not help.",
        "plain",
        KEPT,
    ),
    "none found": (
        written(**NEVER_FLAT),
        f"{KEPT}, with a warning: how the features go with ill differs between environments, and none of the other "
        "models that were tried holds in all of them and predicts well enough.",
        "partly",
        f"{KEPT}, with a warning",
    ),
}


def small(task="binary", *, chosen=(0.80, 0.82), plain=(0.70, 0.90), half=0.02, outcome="invariant-found"):
    """Two environments, with scores of both models; errors are ten times as large."""
    made = summary(2, 3, task=task, outcome=outcome)
    factor = 10.0 if task == "regression" else 1.0
    scores = [(factor * a, factor * b) for a, b in zip(plain, chosen, strict=True)]
    names = ["Aachen", "Bremen"]
    made["environments"] = [row(name, 1000, a, b, half) for name, (a, b) in zip(names, scores, strict=True)]
    made["overall"] = row("all rows", 2000, *np.mean(scores, 0), half)
    worst = np.max if task == "regression" else np.min
    made["worst"] = row("worst environment", 1000, *worst(scores, 0), half)
    made["first_look"] = look()
    return made


def look(**more):
    said = "The features do not tell the environments apart."
    fine = {"overlap": said, "auc": 0.5, "p": 0.6, "loss_p": 0.7, "telling": [], "smallest": "Aachen"}
    return {**fine, "smallest_rows": 1000, **more}


def decided(records, made=None):
    """A summary with what the rule says of these records."""
    verdict = invariance(records)
    made = small() if made is None else made
    made["outcome"] = verdict.outcome
    made["settings"] = {**made["settings"], "figures": verdict.figures}
    return made if verdict.outcome == "invariant-found" else with_erm_kept(made)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_every_way_of_keeping_the_plain_model(name, task):
    records, words, kind, title = KINDS[name]
    said = answer(decided(records, small(task)))
    target = "price" if task == "regression" else "ill"
    assert said["choice"] == words.replace(" ill ", f" {target} ")
    assert (said["kind"], said["title"]) == (kind, title)


def test_little_to_gain_by_own_models():
    made = with_erm_kept(small(outcome="erm-kept"))
    made["settings"]["figures"] = {"p_own": 1e-9, "own_gain": 1e-4, "blind": False, "contradicted": False}
    assert answer(made)["choice"] == (
        f"{KEPT}: environments differ, but nothing shows that a model of its own would gain any of them much, so there "
        "is little for another model to win."
    )


def test_too_little_shows_that_environments_want_another_model():
    made = with_erm_kept(small(outcome="erm-kept"))
    made["settings"]["figures"] = {"p_own": 0.01, "own_gain": 0.1, "toward": True}
    assert answer(made)["choice"] == (
        f"{KEPT}: environments differ, but these rows do not show clearly that another model suits them."
    )


SCORES = {
    "binary": "By accuracy on held-out rows of known environments it is about as good as the plain model over all rows "
    "(81.0 % against 80.0 %) and better in the worst environment (80.0 % against 70.0 %).",
    "regression": "By root mean squared error on held-out rows of known environments it is worse than the plain model "
    "over all rows (8.1 against 8) and better in the worst environment (8.2 against 9).",
}


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_a_model_that_is_found_is_better_or_worse_in_words(task):
    made = decided(written(**DIFFERS), small(task, half=0.04))
    said = answer(made)
    known = SCORES["regression" if task == "regression" else "binary"]
    assert said["choice"] == f"{FOUND} {known} This could not be confirmed on rows that did not choose it."
    made["settings"]["figures"]["p_confirmed"] = 0.5
    assert (answer(made)["kind"], answer(made)["title"]) == ("good", "An invariant model was chosen")
    made["settings"]["figures"]["p_confirmed"] = 1e-4
    said = answer(made)
    assert said["choice"].endswith(
        " This is not confirmed: what one half of the rows chooses, the other half does not bear out."
    )
    assert (said["kind"], said["title"]) == ("partly", "Another model was chosen, with a warning")


def test_a_model_that_is_worse_everywhere_is_never_green_and_the_plain_one_is_advised():
    made = decided(written(**DIFFERS), small("regression", plain=(0.30, 0.40), chosen=(0.60, 0.64)))
    made["settings"]["figures"]["p_confirmed"] = 0.9
    said = answer(made)
    assert said["choice"].endswith(
        "it is worse than the plain model over all rows (6.2 against 3.5) and worse in the worst environment (6.4 "
        "against 4)."
    )
    assert said["kind"] == "partly" and "+" not in said["choice"]
    assert said["next"].startswith(
        "In known environments the plain model is better (--objective erm): prefer it unless new ones will differ a "
        "lot from these. "
    )


def test_a_model_that_does_better_where_it_was_left_out():
    records = written(**PASSES, left_out=two([[0.4, 0.4, 1.1], [0.4, 0.4, 0.4]]))
    made = with_unseen(decided(records), ["linear"], kept=False)
    family = made["new_environment"]["families"][0]
    family["plain_expected"]["mean"], family["expected"]["mean"] = 0.612, 0.751
    said = answer(made)
    assert said["choice"].startswith(
        f"{BETTER_THERE} By accuracy in environments that training left out it is better than the plain model on "
        "average (75.1 % against 61.2 %). By accuracy on held-out rows"
    )
    assert said["kind"] == "good"
    family["plain_expected"]["mean"] = 0.8
    worse = answer(made)
    assert "it is worse than the plain model on average (75.1 % against 80.0 %)" in worse["choice"]
    assert worse["kind"] == "partly"


def test_a_plain_model_that_was_asked_for_is_not_a_search_that_failed():
    made = with_erm_kept(small(outcome="none-found"))
    made["objective"] = "erm"
    said = answer(made)
    assert said["choice"] == (
        "A plain model was asked for and trained (a linear model). How the features go with ill differs between "
        "environments; whether another model would hold in all of them was not tried."
    )
    assert (said["title"], said["kind"]) == ("A plain model, as asked for", "plain")
    made["outcome"] = "erm-invariant"
    assert answer(made)["choice"] == (
        "A plain model was asked for and trained (a linear model). No model with a penalty on differences was tried."
    )
    made.update(outcome=None, rule="iid")
    made["environments"] = made["environments"][:1]
    made["data"].update(environment=[], aux=[])
    said = answer(made)
    assert said["choice"].endswith("(a linear model). No model with a penalty on differences was tried.")
    assert said["command"] == "" and said["next"] == (
        "Name the column that says where each row came from (--environment), to learn what to expect elsewhere."
    )


def test_other_rules_name_themselves():
    made = small(outcome=None, half=0.04)
    assert answer(made)["choice"] == (
        "The rule 'iid' chose a linear model with a penalty on differences (irm-tv-l1, weight 1000). "
        + SCORES["binary"]
    )
    assert answer(made)["title"] == "Chosen by the rule iid"


# --- what to expect -----------------------------------------------------------------------------------------


def test_what_to_expect_is_the_first_paragraph():
    made = with_unseen(with_erm_kept(summary(outcome="erm-invariant")), ["linear"])
    expected = made["new_environment"]["families"][0]["expected"]
    expected.update(
        mean=0.754, low=0.56, high=0.948, worst=made["new_environment"]["families"][0]["environments"][3]["chosen"]
    )
    made["new_environment"]["expected"] = expected
    mean = np.mean([line["chosen"]["value"] for line in made["environments"]])
    worst, known = (f"{100 * v:.1f} %" for v in (expected["worst"], mean))
    start = (
        "In a new environment expect an accuracy of about 75.4 %, and between 56.0 % and 94.8 % in 90 % of new ones, "
        "if they are drawn as the known ones were. "
    )
    end = f"had {worst}. Held-out rows of known environments have {known} on average."
    assert answer(made)["expect"] == (
        f"{start}Models were trained without each of the 5 environments and scored there; the worst (Dresden) {end}"
    )
    made["new_environment"]["left_out"] = "in order"
    said = answer(made)["expect"]
    assert said == (
        f"{start.replace('they are drawn as the known ones were', 'the next are like those before')}Each of 5 groups "
        f"(3 times in all) was predicted by models of what came before it; the worst (Dresden) {end}"
    )
    for line in made["new_environment"]["families"][0]["environments"][:1]:
        line["missing"] = "red"
    assert answer(made)["expect"].endswith(
        " Rows of a class that did not come before are always predicted wrong there: red (in Aachen)."
    )


def test_an_interval_of_everything_is_not_one():
    made = with_unseen(summary(3))
    made["new_environment"]["expected"].update(low=0.0, high=1.0)
    said = answer(made)["expect"]
    assert "; how far from it a new one may lie, 3 environments cannot tell. " in said and "between" not in said


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (None, "the model was written by a version that did not estimate it"),
        ("What to expect is not known: it takes 3 or more environments, and 2 are given.", "it takes 3 or more "
         "environments, and 2 are given"),
    ],
)  # fmt: skip
def test_where_nothing_is_known_of_new_environments_those_that_are_known_are_said(message, why):
    made = with_unseen(small())
    made["new_environment"].update(expected=None, families=[], message=message)
    if message is None:
        del made["new_environment"]
    assert answer(made)["expect"] == (
        f"What to expect in a new environment is not known: {why}. In the known environments accuracy on held-out rows "
        "goes from 80.0 % (Aachen) to 82.0 % (Bremen)."
    )


# --- what to do next ----------------------------------------------------------------------------------------


def test_a_column_that_gives_the_environment_away_is_to_be_left_out():
    made = small()
    made["data"]["path"] = "my data/sites.csv"
    column = {"name": "zip code", "environment": "Aachen", "share": 0.99}
    made["first_look"] = look(telling=[column])
    said = answer(made)
    assert said["next"] == (
        "Try it without zip code (--drop 'zip code'): zip code alone tells Aachen from the other, and a model can "
        "learn the place by it. Three or more environments would show what to expect in a new one; a finer column may "
        "have them. To see how the environments differ, and which features carry it, run:"
    )
    assert said["command"] == "irmtv diagnose 'my data/sites.csv' --target ill --environment site"
    made["first_look"] = look(telling=[column, {**column, "name": "day"}, {**column, "name": "id", "environment": "3"}])
    assert answer(made)["next"].startswith(
        "Try it without zip code, day and id (--drop 'zip code,day,id'): zip code and day each alone tell Aachen from "
        "the other and id alone tells site 3 from the other, and a model can learn the place by them. "
    )
    made["first_look"] = look(telling=[{**column, "name": f"s{i}"} for i in range(9)])
    assert answer(made)["next"].startswith(
        "9 columns give an environment away, each by itself (s0, s1, s2, ...): the environments hardly overlap, and a "
        "new one may look like none of them. "
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"figures": {"contradicted": True}},
            "Do not rely on these scores elsewhere before the difference is understood.",
        ),
        ({"figures": {"blind": True}}, "More rows would tell more."),
        (
            {"falls": True},
            "More environments in training would help most: models fall in those that they have not seen.",
        ),
        ({"look": {"smallest_rows": 45}}, "Aachen has only 45 rows: its score is rough."),
        ({"numbered": True}, "If site is a time, add --time-ordered: each is then predicted from what came before."),
        (
            {"figures": {"detectable": 0.01}},
            "Use the model, and check it on the first labelled rows of a new environment with irmtv evaluate.",
        ),
        ({}, ""),
    ],
)
def test_what_the_answer_lacks_is_the_next_step(change, words):
    made = with_unseen(with_erm_kept(summary(outcome="erm-kept" if "figures" in change else "erm-invariant")))
    for line, known in zip(made["new_environment"]["families"][-1]["environments"], made["environments"], strict=True):
        line["chosen"] = known["chosen"]["value"] - (0.2 if change.get("falls") else 0.0)
    made["first_look"] = look(**change.get("look", {}))
    made["settings"]["figures"] = change.get("figures", {})
    made["outcome"] = "erm-kept" if {"blind", "contradicted"} & set(change.get("figures", {})) else "erm-invariant"
    if change.get("numbered"):
        for i, line in enumerate(made["environments"]):
            line["name"] = f"batch{i + 1}"
    tail = "To see how the environments differ, and which features carry it, run:"
    assert answer(made)["next"] == f"{words} {tail}".strip()


def test_a_plain_model_that_predicts_some_environments_better_is_not_green_and_says_so():
    """As `irmtv diagnose` would: a shift that hurts."""
    made = with_unseen(decided(written(**PASSES, **columns(EVEN, 0.01))))
    made["first_look"] = look(loss_p=0.01)
    said = answer(made)
    assert said["kind"] == "plain" and said["title"] == f"{KEPT}: nothing was found against it"
    assert said["choice"].endswith(
        " It predicts some environments better than others: accuracy 70.0 % in Aachen, 90.0 % in Bremen."
    )
    del made["new_environment"]  # then the first paragraph has these numbers
    assert answer(made)["choice"].endswith(" It predicts some environments better than others.")


def test_summaries_of_older_versions_and_those_without_numbers_have_an_answer():
    for outcome in (*OUTCOMES, None):
        for made in (
            summary(),
            with_gaps(with_unseen(summary(), kept=False)),
            summary(1),
            summary(2, task="regression"),
        ):
            changed = copy.deepcopy(made)
            changed["outcome"] = outcome
            said = answer(changed)
            text = " ".join([said["expect"], said["choice"], said["next"], said["title"]])
            assert "None" not in text and "nan" not in text and "  " not in text


# --- warnings that numbers call for -------------------------------------------------------------------------


def falling(made, by, apart=0.0):
    """The same where environments that were left out are worse than held-out rows of them, by `by` and about it."""
    made = with_unseen(made, ["linear"])
    rows = made["new_environment"]["families"][0]["environments"]
    for k, (line, known) in enumerate(zip(rows, made["environments"], strict=True)):
        line["chosen"] = known["chosen"]["value"] - by + apart * (-1) ** k
    return made


FALLS = (
    " In environments that training left out it does clearly worse than in known ones: count on the first number, not "
    "on held-out scores."
)


@pytest.mark.parametrize(
    ("by", "apart", "warned"), [(0.06, 0.01, True), (0.04, 0.01, False), (0.06, 0.2, False), (-0.2, 0.0, False)]
)
def test_a_clear_fall_where_training_has_not_been_is_a_warning(by, apart, warned):
    """By five points, and more than chance; whatever the test of invariance says."""
    made = falling(with_erm_kept(summary(outcome="erm-kept")), by, apart)
    said = answer(made)
    assert said["choice"].endswith(FALLS) == warned
    assert (said["kind"], said["title"]) == (("partly", f"{KEPT}, with a warning") if warned else ("plain", KEPT))
    assert said["next"].startswith("More environments in training would help most") == warned
    found = falling(summary(outcome="invariant-found"), by, apart)
    assert answer(found)["choice"].endswith(FALLS) == warned


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_other_rows_that_are_worse_take_the_green_away(task):
    made = decided(written(**PASSES, **columns(EVEN, 0.01)), small(task))
    assert answer(made)["kind"] == "good"
    line = {**made["environments"][0], "name": "Zwolle", "verdict": "worse"}
    made["test"] = {"file": "late.csv", "environments": [line], "overall": made["overall"]}
    said = answer(made)
    assert (said["kind"], said["title"]) == ("partly", f"{KEPT}, with a warning")
    assert said["next"].startswith(
        "Have rows like those of late.csv in training: Zwolle is unlike the known environments. "
    )
    line["verdict"] = "as expected"
    assert answer(made)["kind"] == "good"


def test_columns_that_give_the_environment_away_take_the_green_away():
    made = decided(written(**PASSES, **columns(EVEN, 0.01)))
    made["first_look"] = look(telling=[{"name": "zip code", "environment": "Aachen", "share": 0.99}])
    assert answer(made)["kind"] == "plain"


def test_a_limit_on_the_price_is_named_as_the_reason():
    made = with_erm_kept(small(outcome="none-found"))
    made["settings"].update({"max price": 0.01, "figures": {"not_paying": 3}})
    assert answer(made)["choice"] == (
        f"{KEPT}, with a warning: how the features go with ill differs between environments, and 3 models that may "
        "hold in all of them cost more than your limit on the price allows (1 % more loss)."
    )


def test_slopes_alone_leave_some_environments_harder():
    made = decided(written(**DIFFERS), small())
    made["settings"]["figures"].update(test="columns", p_confirmed=0.5)
    said = answer(made)["choice"]
    assert said.startswith(
        "A model was found that uses the features in a way that suits every environment alike (an invariant model), "
        "which the plain model does not, and it is chosen: "
    )
    assert "). Some environments stay harder to predict than others. By " in said


def test_columns_that_were_chosen_outright_are_called_that():
    made = decided(written(**DIFFERS), small())
    for point in made["path"]:
        point["objective"] = "eills"
    assert (
        "it is chosen: a linear model of columns, or mixtures of them, that go with ill alike in every environment "
        "(eills)." in answer(made)["choice"]
    )


TASKS = pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])


def target_of(task):
    return "price" if task == "regression" else "ill"


@TASKS
@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (
            {"p_own": 1e-9, "own_gain": 1e-4},
            "environments differ, but nothing shows that a model of its own would gain any of them much, so there is "
            "little for another model to win.",
        ),
        (
            {"p_own": 0.01, "own_gain": 0.1, "toward": True},
            "environments differ, but these rows do not show clearly that another model suits them.",
        ),
        ({}, "environments differ, but nothing shows that another model would do better."),
    ],
)
def test_further_ways_of_keeping_the_plain_model_in_every_task(task, figures, words):
    made = with_erm_kept(small(task, outcome="erm-kept"))
    made["settings"]["figures"] = figures
    assert answer(made)["choice"] == f"{KEPT}: {words}"


@TASKS
def test_a_plain_model_that_was_asked_for_in_every_task(task):
    made = with_erm_kept(small(task, outcome="none-found"))
    made["objective"] = "erm"
    assert answer(made)["choice"] == (
        f"A plain model was asked for and trained (a linear model). How the features go with {target_of(task)} differs "
        "between environments; whether another model would hold in all of them was not tried."
    )


@TASKS
def test_other_rules_in_every_task(task):
    known = SCORES["regression" if task == "regression" else "binary"]
    assert answer(small(task, outcome=None, half=0.04))["choice"] == (
        f"The rule 'iid' chose a linear model with a penalty on differences (irm-tv-l1, weight 1000). {known}"
    )


@TASKS
def test_a_model_that_does_better_where_it_was_left_out_in_every_task(task):
    records = written(**PASSES, left_out=two([[0.4, 0.4, 1.1], [0.4, 0.4, 0.4]]))
    made = with_unseen(decided(records, small(task, half=0.04)), ["linear"], kept=False)
    family, factor = made["new_environment"]["families"][0], 10.0 if task == "regression" else 1.0
    plain, chosen = (0.9, 0.75) if task == "regression" else (0.612, 0.751)
    family["plain_expected"]["mean"], family["expected"]["mean"] = factor * plain, factor * chosen
    for line, known in zip(family["environments"], made["environments"], strict=True):
        line.update(plain=0.9 * factor, chosen=known["chosen"]["value"])
    metric = "root mean squared error" if task == "regression" else "accuracy"
    values = "7.5 against 9" if task == "regression" else "75.1 % against 61.2 %"
    known = SCORES["regression" if task == "regression" else "binary"]
    assert answer(made)["choice"] == (
        f"{BETTER_THERE} By {metric} in environments that training left out it is better than the plain model on "
        f"average ({values}). {known}"
    )
