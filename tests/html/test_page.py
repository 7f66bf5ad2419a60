"""One self-contained page: nothing is fetched, only its own script runs, nothing collides."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from browser import seen
from irmtv.html.page import (
    GENERATOR,
    check_page,
    code,
    figure,
    figure_svg,
    fold,
    formula,
    page,
    table,
    text,
    write_page,
)


def drawn(title="a drawing"):
    made = Figure(figsize=(9, 2))
    axes = made.subplots()
    axes.plot([0, 1], [1, 0])
    axes.set_title(title)
    return made


def content(*blocks, title="A page", sections=("one", "two")):
    return {
        "title": title,
        "lead": ["What this is."],
        "facts": [("rows", "12")],
        "chapters": [
            {
                "title": "Chapter",
                "sections": [
                    {"id": i, "title": f"Section {i}", "note": "somewhere", "badge": None, "blocks": list(blocks)}
                    for i in sections
                ],
            }
        ],
        "foot": "The end.",
    }


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


EVERYTHING = (
    text("A paragraph."),
    formula(r"$\int_\Omega |\nabla f|$"),
    figure(drawn(), "a line that falls"),
    table(["name", "value"], [["a", "1.0"], ["b", "2.0"]], [False, True], ["plain", "good"]),
)


def test_the_page_fetches_nothing_and_executes_its_own_script_alone():
    html = page(content(*EVERYTHING))
    elements = Elements(html).found
    assert {tag for tag, _ in elements} & {"link", "iframe", "object", "embed", "img", "form"} == set()
    assert [attributes for tag, attributes in elements if tag == "script"] == [{}]
    policy = next(a["content"] for tag, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search("<script>(.*)</script>", html, re.DOTALL).group(1)
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{own}'; ")
    for _, attributes in elements:
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
        assert not [name for name in attributes if name.startswith("on")]
    style = re.search("<style>(.*)</style>", page(content()), re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style


def test_ids_are_unique_and_everything_that_is_referred_to_is_there():
    """Two drawings of the same figure share their names until the page gives them prefixes."""
    html = page(content(*EVERYTHING))
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)) > 20
    referred = set(re.findall(r'(?:url\(|href=")#([^")]+)', html))
    assert len(referred) > 10 and referred <= set(ids)


def test_text_is_escaped_everywhere():
    bad = "<script>alert(1)</script>"
    data = {"columns": [bad], "rows": [[bad]]}
    blocks = (text(bad), code(bad), table([bad], [[bad]]), figure(drawn(bad), bad, name=bad, data=data, text=bad))
    made = content(*blocks, title=bad)
    made["facts"] = [(bad, bad)]
    number = {"name": bad, "value": bad, "note": bad}
    made["headline"] = {"badge": {"text": bad, "kind": "good"}, "text": bad, "more": bad, "numbers": [number]}
    made["foot"] = bad
    made["chapters"][0]["sections"][0] |= {"title": bad, "note": bad, "badge": {"text": bad, "kind": "good"}}
    html = page(made)
    assert html.count("<script") == 1 and "<script>alert" not in html
    assert html.count("&lt;script&gt;") >= 12


def test_the_same_content_gives_the_same_page():
    assert page(content(*EVERYTHING)) == page(content(*EVERYTHING))
    assert figure_svg(drawn()) == figure_svg(drawn())
    assert "<metadata" not in figure_svg(drawn()) and "<?xml" not in figure_svg(drawn())


def test_tables_formulas_and_figures_say_what_they_are():
    elements = Elements(page(content(*EVERYTHING, sections=("one",)))).found
    labels = [a["aria-label"] for tag, a in elements if a.get("role") == "img"]
    assert labels == [r"\int_\Omega |\nabla f|", "a line that falls"]
    assert [a.get("class") for tag, a in elements if tag in ("th", "td")] == [None, "number"] * 3
    assert all(a.get("scope") == "col" for tag, a in elements if tag == "th")
    assert [a.get("class") for tag, a in elements if tag == "tr"] == [None, "plain", "good"]
    assert sum(tag == "svg" for tag, _ in elements) == 2


def test_a_figure_carries_its_numbers():
    rows = [['a, "b"', 0.1 + 0.2, None, True], ["=1+1", float("nan"), 3, False], ["-x", -1.5, 0, None]]
    data = {"columns": ["name", "@value", "n", "good"], "rows": rows}
    made = content(figure(drawn(), "alt", name="A <figure>", data=data, text="How to read it."), sections=("one",))
    elements = Elements(page(made)).found
    (svg, csv_link) = [a for tag, a in elements if tag == "a" and "download" in a]
    assert (svg["download"], csv_link["download"]) == ("a-figure.svg", "a-figure.csv")
    assert "hidden" in svg, "shown by the script, which makes the file"
    kind, _, content_ = csv_link["href"].partition(",")
    assert kind == "data:text/csv;charset=utf-8"
    assert list(csv.reader(io.StringIO(unquote(content_)))) == [
        ["name", "'@value", "n", "good"],
        ['a, "b"', "0.30000000000000004", "", "yes"],
        ["'=1+1", "", "3", "no"],
        ["'-x", "-1.5", "0", ""],
    ]
    assert sum(tag == "details" for tag, _ in elements) == 1
    classes = [a.get("class") for tag, a in elements if tag == "th"]
    assert classes == [None, "number", "number", None]
    assert "How to read it." in page(made)


def test_a_long_table_of_numbers_is_cut_in_the_page_and_whole_in_the_file():
    data = {"columns": ["i"], "rows": [[i] for i in range(500)]}
    html = page(content(figure(drawn(), "alt", data=data), sections=("one",)))
    assert html.count('<td class="number">') == 60
    assert "The first 60 of 500 rows" in html
    link = next(a for tag, a in Elements(html).found if tag == "a" and a.get("download", "").endswith(".csv"))
    assert len(unquote(link["href"]).splitlines()) == 501
    assert link["download"] == "one.csv", "named by the section where the figure has no name"


def test_the_headline_stands_first_and_only_where_there_is_one():
    made = content(text("x"))
    assert 'class="headline' not in page(made)
    number = {"name": "worst", "value": "70 → 85 %", "note": "ERM → chosen"}
    made["headline"] = {
        "badge": {"text": "Found", "kind": "good"},
        "text": "So it is.",
        "more": "",
        "numbers": [number],
    }
    html = page(made)
    assert html.index("So it is.") < html.index("70 → 85 %") < html.index("What this is.") < html.index("<nav")
    assert '<div class="headline good">' in html


def test_what_cannot_be_shown_is_replaced(tmp_path):
    made = content(table(["a"], [["half \ud800 pair \x00 \u202eturned עברית\nline"]]), code("a\n\tb"))
    html = write_page(made, tmp_path / "x.html").read_text(encoding="utf-8")
    assert "half � pair � �turned עברית\nline" in html and "<code>a\n\tb</code>" in html
    assert [p.name for p in tmp_path.iterdir()] == ["x.html"]


def test_drawings_take_the_colours_of_the_theme():
    html = page(content(figure(drawn(), "a"), formula("$a$"), sections=("one",)))
    body = html[html.index("<body>") :]
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", body))
    assert {"ffffff", "1f77b4"} <= used
    assert not re.search(r"(fill|stroke): #", body)
    light, dark = re.findall(r":root { (--c.*?) }", html)
    for colour in used:
        assert f"--c{colour}: #{colour};" in light
        assert re.search(f"--c{colour}: #[0-9a-f]{{6}};", dark)
    assert "--cffffff: #14171a;" in dark


def test_letters_of_a_figure_are_letters():
    assert ">a drawing</text>" in figure(drawn(), "a")["svg"]
    assert ">a drawing</text>" not in figure_svg(drawn())
    assert "<text" not in formula("$a$")["svg"]


def test_links_lead_to_every_section():
    elements = Elements(page(content(text("x"), sections=("a", "b", "c")))).found
    assert [a["href"] for tag, a in elements if tag == "a"] == ["#a", "#b", "#c"]
    assert [a["id"] for tag, a in elements if tag == "section"] == ["a", "b", "c"]


def test_errors():
    with pytest.raises(ValueError, match="id must be its own"):
        page(content(text("x"), sections=("a", "a")))
    with pytest.raises(ValueError, match=r"one cell per column: expected 2\. Got 1"):
        table(["a", "b"], [["1"]])
    with pytest.raises(ValueError, match=r"expected 1 and 1\. Got 2 and 1"):
        table(["a"], [["1"]], numeric=[True, False])
    incomplete = content()
    del incomplete["foot"]
    with pytest.raises(UndefinedError, match="has no attribute 'foot'"):
        page(incomplete)


OVERFLOW = (
    "const box = document.documentElement;"
    "return {inner: box.clientWidth, scroll: box.scrollWidth, "
    "figure: document.querySelector('figure .scroll').getBoundingClientRect().width, "
    "drawing: document.querySelector('figure svg').getBoundingClientRect().width, "
    "formula: document.querySelector('.formula svg').getBoundingClientRect().height, "
    "ground: window.getComputedStyle(document.body).backgroundColor}"
)


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_nothing_runs_out_of_the_page(tmp_path, width):
    wide = table([f"column {i}" for i in range(12)], [[f"{i / 7:.12f}" for i in range(12)]])
    found = seen(page(content(*EVERYTHING, wide)), OVERFLOW, tmp_path, width)
    assert found["inner"] in range(width - 20, width + 1)
    assert found["scroll"] <= found["inner"]
    assert 200 < found["figure"] <= width
    assert found["drawing"] > 500, "a wide figure scrolls in its box before its letters are too small"
    assert 5 < found["formula"] < 60
    assert found["ground"] == "rgb(255, 255, 255)"


@pytest.mark.browser
def test_in_a_browser_a_dark_page_is_dark(tmp_path):
    found = seen(page(content(*EVERYTHING)), OVERFLOW, tmp_path, dark=True)
    assert found["ground"] == "rgb(20, 23, 26)"


def test_detail_is_folded_with_its_blocks_and_a_figure_has_one_table():
    rounded = table(["x", "y"], [["one", "0.12"]], [False, True])
    data = {"columns": ["x", "y"], "rows": [["one", 0.123456789]]}
    shown = page(
        content(fold("More of it", [text("inside"), rounded]), figure(drawn(), "a line", data=data, numbers=rounded))
    )
    folded = shown[shown.index('<details class="fold">') :]
    assert "<summary>More of it</summary>" in folded and folded.index("inside") < folded.index("</details>")
    body = shown[shown.index("<figure>") : shown.index("</figure>")]
    assert body.count("<table>") == 1 and ">0.12<" in body and "0.1235" not in body
    assert "0.123456789" in body, "the CSV has every digit"


def test_pages_are_marked_and_replace_nothing_but_pages(tmp_path):
    own, other = tmp_path / "own.html", tmp_path / "other.html"
    write_page(content(text("x")), own)
    assert GENERATOR in own.read_text()[:400]
    check_page(own)
    check_page(tmp_path / "not there yet.html")
    other.touch()
    check_page(other)  # empty: nothing is lost
    other.write_text("<html><title>mine</title></html>")
    with pytest.raises(
        ValueError, match=r"--report must not replace a file that irmtv did not write\. Got '.*other\.html'"
    ):
        check_page(other, "--report")
    other.write_bytes(b"\xff\xfe\x00 no text at all")
    with pytest.raises(ValueError, match="did not write"):
        check_page(other)
