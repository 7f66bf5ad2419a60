"""The page of a model from summaries of every shape: what is there is shown, what is not is left out."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from urllib.parse import unquote

import pytest

from app.pages.summaries import ODD, summary, with_erm_kept, with_gaps, with_some_gaps, with_unseen
from irmtv.app.fit.answer import answer
from irmtv.app.pages.inferred import binned
from irmtv.app.pages.model import is_summary, model_content
from irmtv.core.numbers import MetricFormat
from irmtv.html.page import page, value_text

CASES = {
    "plain": lambda: summary(),
    "one environment, one feature": lambda: summary(1, 1, outcome="erm-invariant"),
    "two environments": lambda: summary(2, 2),
    "sixty environments, 5,000 features": lambda: summary(60, 5000),
    "regression, one aux": lambda: summary(task="regression", n_aux=1),
    "several classes, two aux": lambda: summary(task="multiclass", n_aux=2, outcome="none-found"),
    "two aux, four environments": lambda: summary(3, n_aux=2, n_found=4, outcome=None),
    "many aux": lambda: summary(n_aux=12, n_found=3, known_features=False),
    "all is missing": lambda: with_gaps(summary(n_aux=2)),
    "much is missing": lambda: with_some_gaps(summary(9, n_aux=1)),
    "ERM is kept": lambda: with_erm_kept(summary(outcome="erm-invariant")),
    "unseen environments": lambda: with_unseen(summary(), missing="red", kept=False),
    "unseen environments, one kind": lambda: with_unseen(summary(task="regression"), ["trees"]),
    "unseen environments, all is missing": lambda: with_gaps(with_unseen(summary())),
    "unseen environments, odd names": lambda: with_unseen(summary(len(ODD), names=ODD)),
    "odd names": lambda: summary(len(ODD), len(ODD), names=ODD, features=ODD),
}


@cache
def plain_content():
    """That of the plain summary, made once."""
    return model_content(summary())


def blocks_of(content):
    return {s["id"]: s["blocks"] for chapter in content["chapters"] for s in chapter["sections"]}


def figure_of(content, section):
    return next(b for b in blocks_of(content)[section] if b["kind"] == "figure")


def downloaded(page_text, name):
    """The lines of a CSV that a page carries."""
    link = re.search(rf'href="data:text/csv;charset=utf-8,([^"]*)" download="{name}"', page_text).group(1)
    return list(csv.DictReader(io.StringIO(unquote(html.unescape(link)), newline="")))


@pytest.mark.parametrize("name", CASES)
def test_every_summary_has_a_page(name):
    made = CASES[name]()
    made = made if name.endswith("odd names") else json.loads(json.dumps(made))  # as it comes from a model file
    content = model_content(made)
    shown = page(content)
    assert shown.count("<section id=") == sum(len(c["sections"]) for c in content["chapters"])
    for blocks in blocks_of(content).values():
        for block in blocks:
            if block["kind"] == "figure":
                assert len(block["alt"]) > 40 and block["name"]
                assert len(block["data"]["rows"]) > 0
                assert all(len(row) == len(block["data"]["columns"]) for row in block["data"]["rows"])
                assert ET.fromstring(block["svg"]).tag == "{http://www.w3.org/2000/svg}svg"
                assert "nan" not in block["alt"] and "None" not in block["alt"]
    body = shown[shown.index("<body>") :]
    assert not re.search(r">(nan|None|inf)<", body)


def test_the_answer_stands_first_in_three_paragraphs_and_its_words_are_explained_under_it():
    made, content = summary(), plain_content()
    said, headline = answer(made), content["headline"]
    assert headline["badge"] == {"text": said["title"], "kind": "partly"}
    whole = f"{headline['text']} {headline['more']}".replace("\u00a0", " ").replace("\n\n", " ")
    assert whole == f"{said['expect']} {said['choice']} {said['next']}"
    assert headline["command"] == said["command"] and headline["numbers"] == []
    shown = page(content)
    assert shown.index('class="headline partly"') < shown.index("<dl>") < shown.index("<nav") < shown.index("<main")
    facts = dict(content["facts"])
    assert facts["plain model"] == ("a linear model, trained on all rows alike (ERM, empirical risk minimisation)")
    assert facts["environment"] == "where a row came from: a value of site; the table has 5"
    assert "the penalty is what it pays for fitting environments differently" in facts["chosen model"]
    assert facts["accuracy"].startswith("the share of rows") and facts["held-out rows"].startswith("rows that a model")
    assert "chosen model" not in dict(model_content(with_erm_kept(summary(outcome="erm-kept")))["facts"])


def test_every_number_is_shown_once():
    """In a figure, with its table folded under it, and not in a table beside."""
    for blocks in blocks_of(model_content(with_unseen(summary(known_features=False), kept=False))).values():
        kinds = [block["kind"] for block in blocks]
        assert not {"figure", "table"} <= set(kinds), kinds
        assert all(
            "numbers" in b or b["name"] in ("training", "loss-by-environment") for b in blocks if b["kind"] == "figure"
        )


def test_an_unseen_environment_is_the_first_figure():
    made = with_unseen(summary(), missing="red", kept=False)
    content = model_content(made)
    taken = made["new_environment"]["families"][-1]
    of = MetricFormat("accuracy")
    blocks = blocks_of(content)
    assert next(iter(blocks)) == "unseen"
    block = figure_of(content, "unseen")
    assert len(block["data"]["rows"]) == 15 and block["data"]["rows"][-1][0] == "trees"
    for text in ("linear, plain", "mlp, plain", "trees, plain", "trees, chosen (taken)", "a new one", "Erfurt"):
        assert text in block["svg"]
    assert "linear, chosen" not in block["svg"], "the same as the plain one"
    table = block["numbers"]
    assert table["columns"][2:] == [
        "linear, plain", "mlp, plain", "trees, plain", "trees, chosen (taken)", "classes missing in training",
    ]  # fmt: skip
    assert [row[0] for row in table["rows"]][:3] == ["mean", "worst", "90 % of new ones"]
    for row, line in zip(table["rows"][3:], taken["environments"], strict=True):
        assert row[-2:] == [of.value(line["chosen"]), "red"]


def test_without_an_estimate_the_answer_says_why():
    made = with_unseen(summary(2))
    made["new_environment"].update(expected=None, families=[], message="It is not known: there are two.")
    content = model_content(made)
    assert "unseen" not in blocks_of(content)
    assert content["headline"]["text"] == "What to expect in a new environment is not known: there are two."
    assert not {"unseen", "kinds"} & set(blocks_of(plain_content()))


def test_times_stand_in_their_order_as_a_line():
    years = [str(year) for year in (2015, 2011, 2013, 2012, 2014)]
    content = model_content(summary(names=years))
    block = figure_of(content, "environments")
    assert [row[0] for row in block["data"]["rows"]] == ["overall", *sorted(years)]
    assert [row[0] for row in block["numbers"]["rows"]][2:] == sorted(years)
    assert (
        "in the order of time" in block["text"]
        and "the worst for" in figure_of(plain_content(), "environments")["text"]
    )
    texts = [t.text for t in ET.fromstring(block["svg"]).iter("{http://www.w3.org/2000/svg}text")]
    assert [t for t in texts if t in years] == sorted(years)


def test_how_the_environments_differ_and_the_command_that_shows_all_of_it():
    made = summary()
    assert "differ" not in blocks_of(model_content(made)), "older files do not say"
    column = {"name": "zip", "environment": "Aachen", "share": 0.991}
    made["first_look"] = {"overlap": "The features clearly tell.", "auc": 0.9, "p": 0.02, "loss_p": 0.001,
                          "telling": [column], "smallest": "Erfurt", "smallest_rows": 80}  # fmt: skip
    blocks = blocks_of(model_content(made))["differ"]
    texts = [b["text"] for b in blocks if b["kind"] == "text"]
    assert texts[0] == "The features clearly tell." and "differs between the environments (p = 0.001" in texts[1]
    assert next(b for b in blocks if b["kind"] == "table")["rows"] == [["zip", "Aachen", "99.1"]]
    assert "The smallest environment is Erfurt: 80 rows." in texts
    assert blocks[-1]["text"] == "irmtv diagnose sites.csv --target ill --environment site"


def test_the_kinds_of_models_are_compared_in_a_table():
    text, table = blocks_of(model_content(with_unseen(summary())))["kinds"]
    assert text["text"] == "Trees is taken." and table["columns"][1] == "loss where left out"
    assert [row[-1] for row in table["rows"]] == ["", "", "taken"] and table["rows"][0][3] == "–"
    made = with_unseen(summary())
    made["families"]["by"] = "held-out"
    assert blocks_of(model_content(made))["kinds"][1]["columns"][1] == "loss"


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        ("erm-invariant", "plain", "The plain model is kept: nothing was found against it"),
        ("erm-kept", "plain", "The plain model is kept"),
        ("none-found", "partly", "The plain model is kept, with a warning"),
        (None, "plain", "Chosen by the rule iid"),
    ],
)
def test_the_outcome_is_said_in_words_and_colour(outcome, kind, words):
    assert model_content(summary(outcome=outcome))["headline"]["badge"] == {"text": words, "kind": kind}


def test_where_erm_is_kept_there_is_one_model_to_show():
    content = model_content(with_erm_kept(summary(outcome="erm-invariant")))
    block = figure_of(content, "environments")
    assert "plain model, which is kept" in block["svg"] and ">chosen" not in block["svg"]
    assert block["numbers"]["columns"] == ["environment", "rows", "plain, accuracy (%)"]
    assert block["data"]["columns"] == ["environment", "rows", "plain value", "plain low", "plain high"]
    assert "losses" not in blocks_of(content)


def test_the_worst_environment_is_named_where_it_is_one():
    made = summary()
    rows = figure_of(plain_content(), "environments")["numbers"]["rows"]
    assert rows[1][0] == f"worst: {made['worst']['name']}"
    made["worst"]["name"] = "worst environment"
    rows = figure_of(model_content(made), "environments")["numbers"]["rows"]
    assert rows[1][0] == "worst environment"


def test_a_map_has_the_north_above():
    made = summary(n_aux=2)
    made["inferred"]["aux"] = ["lat", "long"]
    made["inferred"]["is_date"] = [False, False]
    block = figure_of(model_content(made), "inferred")
    texts = [t.text for t in ET.fromstring(block["svg"]).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.index("long") < texts.index("lat"), "x is drawn first"
    assert block["data"]["columns"][:2] == ["lat", "long"]


def test_the_sections_and_what_is_left_out():
    all_of_them = [
        "environments",
        "features",
        "rule",
        "path",
        "losses",
        "inferred",
        "training",
        "data",
        "missing",
        "settings",
        "again",
    ]
    assert list(blocks_of(model_content(summary(n_aux=1)))) == all_of_them
    made = summary()
    made.update(path=[], curves=None, inferred=None, features=[], losses=[], message="")
    made["data"]["missing"] = {}
    assert list(blocks_of(model_content(made))) == ["environments", "data", "settings", "again"]
    drawn = [
        i for i, b in blocks_of(model_content(with_gaps(summary()))).items() if any(x["kind"] == "figure" for x in b)
    ]
    assert drawn == [], "nothing is drawn where there is no number"


def test_environments_are_in_the_order_of_the_chosen_model_with_all_in_the_table_and_the_file():
    made = summary(60)
    content = model_content(made)
    block = figure_of(content, "environments")
    rows = block["data"]["rows"]
    assert len(rows) == 61 and rows[0][0] == "overall"
    chosen = [row[5] for row in rows[1:]]
    assert chosen == sorted(chosen) == sorted(r["chosen"]["value"] for r in made["environments"])
    assert "24 of 60 are drawn" in block["text"] and "36 in between" in block["svg"]
    table = block["numbers"]
    assert len(table["rows"]) == 62 and table["rows"][0][0] == "all rows" and table["rows"][1][0].startswith("worst: ")
    regression = figure_of(model_content(summary(task="regression")), "environments")["data"]["rows"]
    chosen = [row[5] for row in regression[1:]]
    assert chosen == sorted(chosen, reverse=True), "of errors the largest is the worst"


def test_all_numbers_of_the_environments_are_in_the_file():
    made = summary(3)
    shown = page(model_content(made))
    by_name = {line["environment"]: line for line in downloaded(shown, "environments.csv")}
    for row in made["environments"]:
        assert float(by_name[row["name"]]["plain low"]) == row["erm"]["low"]
        assert float(by_name[row["name"]]["difference high"]) == row["difference"]["high"]
        assert int(by_name[row["name"]]["rows"]) == row["rows"]


def test_features_largest_first_the_rest_summed():
    made = summary(n_features=5000, known_features=False)
    content = model_content(made)
    block = figure_of(content, "features")
    size = [max(abs(row[1]), abs(row[2])) for row in block["data"]["rows"]]
    assert len(size) == 5000 and size == sorted(size, reverse=True)
    assert "4,975 others, sum" in block["svg"] and block["svg"].count("feature ") == 25
    table = block["numbers"]
    assert len(table["rows"]) == 25 and "known to be" not in table["columns"]


def test_invariant_and_spurious_features_are_apart_and_summed():
    made = summary(n_features=4)
    for f, (invariant, erm, chosen) in zip(
        made["features"], [(True, 0.1, 0.4), (False, -0.4, 0.1), (True, -0.2, 0.5), (False, 0.3, 0.0)], strict=True
    ):
        f.update(invariant=invariant, erm=erm, chosen=chosen)
    blocks = blocks_of(model_content(made))["features"]
    assert "30 % of the weight in the plain model and 90 % in the chosen model" in blocks[1]["text"]
    drawn = re.findall(r">(feature \d · \w+)<", blocks[0]["svg"])
    assert [d.split(" · ")[1] for d in drawn] == ["invariant", "invariant", "spurious", "spurious"]


def of_trees(shares, model="trees (4 leaves)", plain="trees (12 leaves)"):
    made = summary(n_features=len(shares), known_features=False)
    made.update(model=model, plain_model=plain, features_kind="contributions")
    for f, (erm, chosen) in zip(made["features"], shares, strict=True):
        f.update(erm=erm, chosen=chosen)
    for p in made["path"]:
        p["model"] = model if p["penalty_weight"] else plain
    return made


def test_importances_of_trees_in_the_order_of_their_change():
    content = model_content(of_trees([(0.5, 0.45), (0.1, 0.4), (0.4, 0.15)]))
    (block,) = blocks_of(content)["features"]
    table = block["numbers"]
    assert [row[0] for row in table["rows"]] == ["feature 2", "feature 3", "feature 1"]
    assert table["columns"][3] == "change, points"
    assert [row[3] for row in table["rows"]] == ["+30.0", "−25.0", "−5.0"]
    assert [row[0] for row in block["data"]["rows"]] == ["feature 2", "feature 3", "feature 1"]
    assert "share in how far all move the score" in block["svg"] and "chosen − plain, points" in block["svg"]
    assert "the largest is that of feature 2, from 10 % to 40 %" in block["alt"]
    assert block["text"].startswith("Feature importances: how far a feature moves the score")
    assert figure_of(content, "training")["data"]["columns"][0] == "round"
    assert figure_of(content, "path")["numbers"]["columns"][1] == "round"


def test_where_plain_boosting_is_kept_there_is_one_series_of_importances():
    content = model_content(of_trees([(0.2, 0.2), (0.5, 0.5), (0.3, 0.3)]))
    (block,) = blocks_of(content)["features"]
    table = block["numbers"]
    assert table["columns"] == ["feature", "plain, %"] and "plain model, which is kept" in block["svg"]
    assert [row[0] for row in table["rows"]] == ["feature 2", "feature 3", "feature 1"], "by their size"
    assert "chosen" not in block["svg"]


def test_features_are_compared_within_one_kind_of_model_and_that_is_said():
    content = model_content(of_trees([(0.2, 0.1), (0.8, 0.9)], plain="linear"))
    said = blocks_of(content)["features"][0]["text"]
    assert said.startswith("Elsewhere in this page the plain model is linear") and "one kind of model, trees" in said
    assert dict(content["facts"])["plain model"].startswith("a linear model")


def test_paths_of_two_kinds_of_models_stand_side_by_side():
    made = of_trees([(0.2, 0.1), (0.8, 0.9)])
    lines = [{**p, "model": "linear", "label": f"linear: {p['label']}", "chosen": False} for p in made["path"]]
    one = figure_of(model_content(made), "path")["svg"]
    made["path"] = [*lines, *({**p, "label": f"trees: {p['label']}"} for p in made["path"])]
    content = model_content(made)
    (block,) = blocks_of(content)["path"]
    table = block["numbers"]
    assert table["columns"][1] == "step or round" and len(table["rows"]) == 12
    assert "kind of model: penalty weight" in block["svg"] and "kind of model" not in one
    assert "linear: 1000" in block["svg"] and "trees: 1000" in block["svg"]
    assert [row[-1] for row in table["rows"]].index("chosen") == 10


def by_newton(made):
    """The same summary, as Newton's method makes it: every weight at its best classifier and start."""
    for p in made["path"]:
        p.update(step=1, solver="newton", model="linear")
        if p["penalty_weight"]:
            p.update(classifier="vector", start="erm" if p["penalty_weight"] < 1000 else "equal-risks")
    first_and_last = [[risk[0], risk[-1]] for risk in made["curves"]["risk"]]
    made["curves"] = {**made["curves"], "steps": [0, 1], "risk": first_and_last, "solver": "newton"}
    return made


def test_newtons_method_has_classifiers_and_starts_and_no_steps():
    content = model_content(by_newton(summary()))
    (block,) = blocks_of(content)["path"]
    table = block["numbers"]
    assert block["text"].startswith("Each weight at its best classifier and start. ")
    assert table["columns"][:3] == ["penalty weight λ", "classifier, start", "log loss"]
    tried = [row[1] for row in table["rows"]]
    assert tried == ["–", *["vector, from ERM"] * 3, *["vector, from equal risks"] * 2]
    training = figure_of(content, "training")
    assert "step" not in training["alt"] + training["text"] and "from ERM to the final model" in training["alt"]
    assert "final model" in training["svg"]


def test_newtons_method_beside_trees():
    made = of_trees([(0.2, 0.1), (0.8, 0.9)])
    lines = by_newton(summary())["path"]
    made["path"] = [*({**p, "chosen": False} for p in lines), *made["path"]]
    (block,) = blocks_of(model_content(made))["path"]
    table = block["numbers"]
    assert block["text"].startswith("Each weight at its best classifier and start, or at its best round. ")
    assert table["columns"][1:3] == ["classifier, start", "round"]
    assert [row[2] for row in table["rows"]][:6] == ["–"] * 6 and [row[1] for row in table["rows"]][6:] == ["–"] * 6
    assert table["rows"][6][2] != "–"


def test_summaries_of_before_there_were_trees_have_the_same_page():
    """Schema 1 without the keys that came later."""
    made = summary(known_features=False)
    assert not {"plain_model", "features_kind"} & set(made)
    assert is_summary(made)
    content = model_content(made)
    section = next(s for c in content["chapters"] for s in c["sections"] if s["id"] == "features")
    assert section["note"] == "linear model: coefficients"
    made["model"] = "mlp 32"
    content = model_content(made)
    section = next(s for c in content["chapters"] for s in c["sections"] if s["id"] == "features")
    assert section["note"] == "permutation importance on held-out rows"
    assert figure_of(content, "path")["numbers"]["columns"][1] == "step"


def test_the_path_marks_the_choice_and_what_passed():
    content = plain_content()
    (block,) = blocks_of(content)["path"]
    table = block["numbers"]
    assert "Log loss on held-out rows" in block["svg"], "the risk by its name"
    assert "Chosen: 1000" in block["alt"] and "2 of 6 pass" in block["alt"]
    assert [row[-1] for row in table["rows"]] == ["", "", "", "", "chosen", ""]
    assert table["marks"] == ["plain"] * 4 + ["good", "plain"]
    assert [row[6] for row in table["rows"]] == ["no"] * 4 + ["yes"] * 2
    made = summary(outcome=None)
    for p in made["path"]:
        p.update(p=None, passes=None)
    other = figure_of(model_content(made), "path")
    assert "p of the test" not in other["svg"] and "pass" not in other["alt"] + other["text"]


def test_losses_are_in_the_order_of_erm():
    made = summary(7)
    (block,) = blocks_of(model_content(made))["losses"]
    assert block["data"]["columns"] == ["environment", "ERM", "TV-l1"], "nobody asked for TV-l2"
    erm = [row[1] for row in block["data"]["rows"]]
    assert erm == sorted(made["losses"][0]["risk"])
    names = {row["name"]: i for i, row in enumerate(made["environments"])}
    for name, *risks in block["data"]["rows"]:
        assert risks == [curve["risk"][names[name]] for curve in made["losses"][:2]]
    made["objective"] = "irm-tv-l2"
    assert figure_of(model_content(made), "losses")["data"]["columns"][-1] == "TV-l2"


@pytest.mark.parametrize(("n_aux", "kind"), [(1, "A curve"), (2, "A map"), (3, "Curves")])
def test_inferred_environments_by_the_number_of_aux_columns(n_aux, kind):
    made = summary(n_aux=n_aux)
    block = figure_of(model_content(made), "inferred")
    assert block["alt"].startswith(f"{kind} of the probability of 2 environments")
    assert "Rows of inferred 1 have a median sold of 2014" in block["alt"]
    assert len(block["data"]["rows"]) == 400 and len(block["data"]["columns"]) == n_aux + 2
    assert "sold (year)" in block["svg"], "of a date it is said what the numbers are"


def test_binned_means():
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=1000), rng.normal(size=1000)
    at, mean = binned(x, y, 10)
    parts = np.array_split(np.argsort(x), 10)
    assert at == pytest.approx([x[p].mean() for p in parts], abs=0.02)
    assert mean == pytest.approx([y[p].mean() for p in parts], abs=0.05)


def test_odd_names_are_text_everywhere():
    shown = page(model_content(CASES["odd names"]()))
    assert shown.count("<script") == 1 and "<img" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "غرفة النوم" in shown and "👩‍👩‍👧" in shown
    assert "\x00" not in shown and "\u202e" not in shown
    shown.encode("utf-8")
    names = [line["feature"] for line in downloaded(shown, "features.csv")]
    kept = {n for n in ODD if "\ud800" not in n and not n.startswith("=")}
    assert kept <= set(names) and "'" + ODD[2] in names


def test_metric_formats():
    accuracy, error = MetricFormat("accuracy"), MetricFormat("rmse")
    assert accuracy.interval({"value": -0.0123, "low": -0.02, "high": 0.001}, sign=True) == "−1.2 (−2.0 to +0.1)"
    assert accuracy.value(-0.0001) == "0.0" and accuracy.value(None) == "–" and accuracy.value(float("nan")) == "–"
    assert error.interval({"value": 12345.6, "low": 2e-7, "high": None}) == "12,346"
    assert error.value(-2e-7) == "−2e-07"


def test_settings_are_text():
    made = summary()
    made["settings"] = {"grid": {"l2": [0.0, 0.1]}, "seed": None, "refit": False, "path": [], "name": "x"}
    table, fold = blocks_of(model_content(made))["settings"]
    words = dict(table["rows"])
    assert words["rule of the choice"] == "invariance" and words["method"] == "irm-tv-l1" and "grid" not in words
    assert fold["text"] == "All settings"
    rows = dict(fold["blocks"][1]["rows"])
    assert rows == {"seed": "none", "refit": "no", "path": "none", "name": "x"}
    assert fold["blocks"][2]["text"] == "grid:" and fold["blocks"][3]["rows"] == [["l2", "0, 0.1"]]
    assert value_text(1e-5) == "1e-05"
    assert made["command"] in page(model_content(made))


def test_what_is_a_summary():
    assert is_summary(summary()) and not is_summary({}) and not is_summary({"schema": 1, "mine": 2})
    with pytest.raises(ValueError, match="schema 2, of a newer irmtv"):
        is_summary({**summary(), "schema": 2})


def test_other_rows_have_a_section_where_there_are_some():
    made = summary()
    assert "test" not in blocks_of(model_content(made))
    pairs = zip(made["environments"][:2], ("Gotha <b>", "Hof"), strict=True)
    rows = [{**r, "name": name, "verdict": "worse"} for r, name in pairs]
    scores = {"file": "later.csv", "rows": 321, "environments": rows, "notes": ["a note"], "verdict": ["It is worse."]}
    made["test"] = {**scores, "overall": made["overall"], "worst": made["worst"]}
    text, shown, note = blocks_of(model_content(made))["test"]
    said = "By accuracy on 321 rows of later.csv, which had no part in training and choice: It is worse."
    assert said in str(text) and "a note" in str(note)
    assert len(shown["rows"]) == 4 and {r[0] for r in shown["rows"][2:]} == {"Gotha <b>", "Hof"}
    assert [r[-1] for r in shown["rows"]] == ["", "", "worse", "worse"]
    made["test"] = {**scores, "environments": rows[:1], "overall": made["overall"], "worst": made["worst"]}
    assert len(blocks_of(model_content(made))["test"][1]["rows"]) == 2  # the worst of one is that one
    made["test"] = {**scores, "environments": [], "notes": [], "overall": made["overall"], "worst": None}
    assert len(blocks_of(model_content(made))["test"][1]["rows"]) == 1
    assert "later.csv" in page(model_content(made))
