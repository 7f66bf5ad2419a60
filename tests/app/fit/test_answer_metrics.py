"""The answer and the verdict in every metric: its words, its unit, and which way is better."""

from __future__ import annotations

from html import unescape

import numpy as np
import pytest

from app.pages.summaries import row, summary, with_unseen
from irmtv.app.fit.answer import answer
from irmtv.app.fit.comparison import SCORES, score_for
from irmtv.app.fit.verdict import verdict
from irmtv.app.pages.model import MEANINGS, model_content
from irmtv.core.numbers import IN_WORDS
from irmtv.html.page import page

OF_NUMBERS = ("rmse", "mae", "mse", "r2")
# words with their article, and how 0.7 is written
WORDS = {
    "accuracy": ("an accuracy", "70.0 %"),
    "balanced_accuracy": ("a balanced accuracy", "70.0 %"),
    "log_loss": ("a log loss", "0.7"),
    "roc_auc": ("an area under the ROC curve", "0.7"),
    "f1": ("an F1", "0.7"),
    "average_precision": ("an average precision", "0.7"),
    "rmse": ("a root mean squared error", "0.7"),
    "mae": ("a mean absolute error", "0.7"),
    "mse": ("a mean squared error", "0.7"),
    "r2": ("an R²", "0.7"),
}


def of_metric(metric, plain=(0.6, 0.8, 0.7), chosen=(0.7, 0.9, 0.8)):
    """Three environments, and what was expected in a new one."""
    task = "regression" if metric in OF_NUMBERS else "binary"
    greater = score_for(task, metric).greater_is_better
    made = summary(3, 3, task=task)
    made.update(metric=metric, greater_is_better=greater)
    pairs = list(zip(plain, chosen, strict=True))
    made["environments"] = [row(name, 500, a, b) for name, (a, b) in zip(("A", "B", "C"), pairs, strict=True)]
    made["overall"] = row("all rows", 1500, *np.mean(pairs, 0))
    made["worst"] = row("worst environment", 500, *(np.min if greater else np.max)(pairs, 0))
    made = with_unseen(made, ["linear"], kept=False)
    unseen = made["new_environment"]
    unseen["expected"].update(mean=0.7, low=0.5, high=0.9, worst=unseen["families"][0]["environments"][1]["chosen"])
    unseen["families"][0]["plain_expected"].update(mean=0.6)
    return made


def test_every_metric_has_words():
    assert set(WORDS) == set(SCORES) == set(MEANINGS)
    assert set(SCORES) - set(IN_WORDS) == {"accuracy"}


@pytest.mark.parametrize("metric", SCORES)
def test_what_is_expected_and_what_is_better(metric):
    made = of_metric(metric)
    said, (words, seven) = answer(made), WORDS[metric]
    low, high = seven.replace("7", "5"), seven.replace("7", "9")
    begins = f"In a new environment expect {words} of about {seven}, and between {low} and {high} in 90 % of new ones, "
    assert said["expect"].startswith(begins)
    word = "better" if made["greater_is_better"] else "worse"
    noun, eight, six = words.partition(" ")[2], seven.replace("7", "8"), seven.replace("7", "6")
    worst = f"{seven} against {six}" if made["greater_is_better"] else f"{high} against {eight}"
    assert (
        f"By {noun} in environments that training left out it is {word} than the plain model on average ({seven} "
        f"against {six}). By {noun} on held-out rows of known environments it is {word} than the plain model over all "
        f"rows ({eight} against {seven}) and {word} in the worst environment ({worst})." in said["choice"]
    )
    html = unescape(page(model_content(made)))
    assert noun in html and MEANINGS[metric].partition(";")[0] in html


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "roc_auc", "f1", "average_precision"])
def test_an_interval_of_all_that_a_share_can_be_says_nothing(metric):
    made = of_metric(metric)
    made["new_environment"]["expected"].update(low=0.0, high=1.0)
    assert "; how far from it a new one may lie, 3 environments cannot tell." in answer(made)["expect"]


def test_errors_have_no_such_end():
    made = of_metric("log_loss")
    made["new_environment"]["expected"].update(low=0.0, high=1.2)
    assert "and between 0 and 1.2 in 90 % of new ones" in answer(made)["expect"]


@pytest.mark.parametrize("metric", SCORES)
@pytest.mark.parametrize("value", [0.3, 0.7, 1.1])
def test_the_verdict_of_other_rows(metric, value):
    made, written = of_metric(metric), WORDS[metric][1]
    shown, low, high = (written.replace("0.7", f"{v:.1f}").replace("70.0", f"{100 * v:.1f}") for v in (value, 0.5, 0.9))
    score = {"environment": "D", "rows": 400, "value": value, "low": value - 0.02, "high": value + 0.02}
    said = verdict(made, metric, ["site"], [score])
    basis = f"the 90 % interval of what was expected in a new environment, {low} to {high}"
    if value == 0.7:
        assert said == {"sentences": [f"{shown} is within {basis}."], "words": ["as expected"]}
        return
    good = (value > 0.7) == made["greater_is_better"]
    side, means = ("below" if value < 0.7 else "above"), ("easier than" if good else "unlike")
    assert said["words"] == ["better" if good else "worse"]
    assert said["sentences"] == [f"{shown} is {side} {basis}: this environment is {means} those in training."]
