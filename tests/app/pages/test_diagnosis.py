"""The page of a diagnosis, from its JSON alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from irmtv.app.diagnose import diagnose
from irmtv.app.pages.diagnosis import diagnosis_content
from irmtv.datasets import make_simulation
from irmtv.html.page import page


@pytest.fixture(scope="module")
def summary():
    rows = make_simulation(600, p_s=(0.999, 0.6), random_state=0).train
    made = diagnose(rows.x.numpy(), rows.y.numpy(), rows.environment.numpy(), rows.aux.numpy(), model="linear").summary
    return json.loads(json.dumps(made, allow_nan=False))


def blocks(content, kind):
    return [b for c in content["chapters"] for s in c["sections"] for b in s["blocks"] if b["kind"] == kind]


def test_every_part_has_a_section_and_every_figure_words_and_numbers(summary):
    content = diagnosis_content(summary)
    ids = [s["id"] for c in content["chapters"] for s in c["sections"]]
    assert ids == ["differ", "losses", "found", "informative-given", "informative-found", "features", "splits", "data"]
    figures = blocks(content, "figure")
    assert len(figures) == 5
    for block in figures:
        assert len(block["alt"]) > 60 and block["data"]["rows"] and "<svg" in block["svg"]
        assert all(len(row) == len(block["data"]["columns"]) for row in block["data"]["rows"])
    assert content["headline"]["badge"]["text"] == "A shift that hurts"
    assert content["headline"]["text"] == summary["headline"][0]
    said = [b["text"] for b in blocks(content, "text")]
    for part in ("differ", "losses", "features", "found", "splits"):
        assert summary[part]["said"] in said


def test_the_page_is_one_file_with_the_answer(summary):
    made = page(diagnosis_content(summary))
    assert made.count("<svg") == 5
    assert "There is a shift that hurts" in made
    assert "https://" not in made.replace("https://www.w3.org", "").replace("https://matplotlib.org", "")


def test_parts_that_are_missing_and_names_that_are_odd(summary):
    bare = {**summary, "differ": None, "losses": None, "features": None, "splits": None, "informative": []}
    bare["headline"] = ["No environments to compare."]
    content = diagnosis_content(bare)
    assert content["headline"]["badge"]["text"] == "Nothing to compare"
    assert [s["id"] for c in content["chapters"] for s in c["sections"]] == ["found", "data"]
    odd = json.loads(json.dumps(summary).replace('"0"', '"<b>$x$</b>"'))
    assert "<b>$x$" not in page(diagnosis_content(odd))


def test_unknown_numbers_are_drawn_as_nothing(summary):
    holes = json.loads(json.dumps(summary))
    for row in holes["losses"]["environments"]:
        row["loss"] = {"value": None, "low": None, "high": None}
    for row in holes["features"]["features"]:
        row.update(p=None, p_holm=None, slopes=[None, None])
    assert "<svg" in page(diagnosis_content(holes))


def test_the_figure_of_losses_has_the_worst_first(summary):
    (figure,) = [b for b in blocks(diagnosis_content(summary), "figure") if b["name"] == "loss-by-environment"]
    values = [row[1] for row in figure["data"]["rows"][1:]]
    assert values == sorted(values, reverse=True) and figure["data"]["rows"][0][0] == "all rows"
    assert np.isclose(values[0], max(r["loss"]["value"] for r in summary["losses"]["environments"]))
