"""No sentence of an answer contradicts a number beside it: over generated summaries."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from app.pages.summaries import estimate, summary, with_erm_kept, with_unseen
from irmtv.app.fit.answer import answer
from irmtv.app.fit.comparison import SCORES
from irmtv.core.outcomes import OUTCOMES

OF_NUMBERS = ("rmse", "mae", "mse", "r2")
NUMBER = r"(-?[\d.,]+(?:e[+-]\d+)?)(?: %)?"
WORD = re.compile(rf"(better|worse|about as good) (?:(?:than|as) the plain model )?[a-z ]*\({NUMBER} against {NUMBER}")
KNOWN = re.compile(rf"goes from {NUMBER} \(.*?\) to {NUMBER} \(")
BETWEEN = re.compile(rf"about {NUMBER}, and between {NUMBER} and {NUMBER}")
OTHERS = re.compile(rf"better than others: [A-Za-z1² ]+? {NUMBER} in .*?, {NUMBER} in ")


TELLING = {"name": "zip code", "environment": "a", "share": 0.99}


def number(text: str) -> float:
    return float(text.replace(",", ""))


@st.composite
def summaries(draw):
    """Scores of both models at will, with intervals of the difference that hold 0 or not."""
    task = draw(st.sampled_from(["binary", "multiclass", "regression"]))
    n = draw(st.integers(1, 6))
    made = summary(n, 3, task=task, seed=draw(st.integers(0, 9)))
    made["outcome"] = draw(st.sampled_from([*OUTCOMES, None]))
    made["objective"] = draw(st.sampled_from(["irm-tv-l1", "erm"]))
    if draw(st.booleans()):  # older files do not say
        made["sought"] = made["objective"] != "erm"
    made["metric"] = draw(st.sampled_from([name for name in SCORES if (name in OF_NUMBERS) == (task == "regression")]))
    made["greater_is_better"] = SCORES[made["metric"]].greater_is_better
    scores = st.floats(0.0, 1.0) if task != "regression" else st.floats(1e-3, 1e6)
    scores = st.floats(-3.0, 1.0) if made["metric"] == "r2" else scores
    for row in [*made["environments"], made["overall"], made["worst"]]:
        plain, chosen = draw(scores), draw(scores)
        half = draw(st.sampled_from([0.0, 1e-3, 0.1, 1e3]))
        row.update(erm=estimate(plain, 0.01), chosen=estimate(chosen, 0.01))
        row["difference"] = estimate(chosen - plain, half)
    figures = st.fixed_dictionaries(
        {},
        optional={
            "p_confirmed": st.none() | st.floats(0, 1),
            "detectable": st.none() | st.floats(0, 1),
            "blind": st.booleans(),
            "contradicted": st.booleans(),
            "toward": st.booleans(),
            "not_paying": st.integers(0, 3),
            "own_gain": st.none() | st.floats(0, 1),
            "p_own": st.none() | st.floats(0, 1),
            "test": st.sampled_from(["both", "left-out", "slopes"]),
        },
    )
    made["settings"]["figures"] = draw(figures)
    if draw(st.booleans()):
        made = with_unseen(made, ["linear"], kept=draw(st.booleans()))
        expected = made["new_environment"]["expected"]
        low, mean, high = sorted(draw(scores) for _ in range(3))
        expected.update(low=low, mean=mean, high=high)
        made["new_environment"]["families"][0]["plain_expected"]["mean"] = draw(scores)
    if draw(st.booleans()):
        made["first_look"] = {"overlap": "", "auc": 0.5, "p": 0.5, "loss_p": draw(st.none() | st.floats(0, 1)),
                              "telling": [TELLING] * draw(st.integers(0, 5)), "smallest": "a",
                              "smallest_rows": draw(st.integers(1, 500))}  # fmt: skip
    if draw(st.booleans()):
        verdicts = st.sampled_from(["worse", "perhaps worse", "as expected", "better", "unknown"])
        rows = [{**row, "verdict": draw(verdicts)} for row in made["environments"]]
        given = draw(st.booleans())
        overall = {**made["overall"], "verdict": draw(verdicts)}
        made["test"] = {"file": "late.csv", "environments": rows if given else [], "overall": overall}
    if draw(st.booleans()):
        made["settings"]["max price"] = 0.01
    return with_erm_kept(made) if made["outcome"] not in ("invariant-found", None) else made


@settings(max_examples=300, deadline=None)
@given(summaries())
def test_no_sentence_contradicts_a_number_beside_it(made):
    said = answer(made)
    greater = made["greater_is_better"]
    for word, chosen, plain in WORD.findall(said["choice"]):
        a, b = number(chosen), number(plain)
        if word != "about as good":
            assert a != b and (word == "better") == ((a > b) == greater), said["choice"]
    for worst, best in [*KNOWN.findall(said["expect"]), *OTHERS.findall(said["choice"])]:
        a, b = number(worst), number(best)
        assert a <= b if greater else a >= b, said
    for mean, low, high in BETWEEN.findall(said["expect"]):
        assert number(low) <= number(mean) <= number(high)
    is_plain = "plain model is kept" in said["title"].lower()
    assert is_plain == ("plain model is kept" in said["choice"].lower())
    if said["kind"] == "good":
        assert "warning" not in said["title"] and "not confirmed" not in said["choice"]
        assert "could not have shown" not in said["choice"] and "differs between" not in said["choice"]
        assert not ("worse" in said["choice"] and "better" not in said["choice"])
        assert "predicts some environments better" not in said["choice"] and "clearly worse" not in said["choice"]
        assert "unlike the known environments" not in said["next"]
    assert ("warning" in said["title"]) == (said["kind"] == "partly")
    if made["objective"] == "erm":
        assert said["choice"].startswith("A plain model was asked for and trained") and said["kind"] == "plain"


def test_the_property_can_fail():
    """The patterns find the words that they are about."""
    made = summary()
    text = answer(made)["choice"]
    assert len(WORD.findall(text)) == 2, text
    assert KNOWN.search(answer(made)["expect"])
    assert BETWEEN.search(answer(with_unseen(made))["expect"])
