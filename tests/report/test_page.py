"""One self-contained page: nothing is fetched, nothing is executed, nothing collides."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from browser import seen
from irmtv.report.page import figure, figure_svg, formula, page, table, text


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


def test_the_page_fetches_and_executes_nothing():
    elements = Elements(page(content(*EVERYTHING))).found
    assert {tag for tag, _ in elements} & {"script", "link", "iframe", "object", "embed", "img"} == set()
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
    blocks = (text(bad), table([bad], [[bad]]), {**figure(drawn(), bad)})
    made = content(*blocks, title=bad)
    made["facts"] = [(bad, bad)]
    made["foot"] = bad
    made["chapters"][0]["sections"][0] |= {"title": bad, "note": bad, "badge": {"text": bad, "kind": "good"}}
    html = page(made)
    assert "<script" not in html
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
    assert [a.get("class") for tag, a in elements if tag == "tr"] == [None, "plain", "good"]
    assert sum(tag == "svg" for tag, _ in elements) == 2


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
    "figure: document.querySelector('figure svg').getBoundingClientRect().width, "
    "formula: document.querySelector('.formula svg').getBoundingClientRect().height, "
    "ground: window.getComputedStyle(document.body).backgroundColor}"
)


@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser_nothing_runs_out_of_the_page(tmp_path, width):
    wide = table([f"column {i}" for i in range(12)], [[f"{i / 7:.12f}" for i in range(12)]])
    found = seen(page(content(*EVERYTHING, wide)), OVERFLOW, tmp_path, width)
    assert found["inner"] in range(width - 20, width + 1)
    assert found["scroll"] <= found["inner"]
    assert 200 < found["figure"] <= width
    assert 5 < found["formula"] < 60
    assert found["ground"] == "rgb(255, 255, 255)"


def test_in_a_browser_a_dark_page_is_dark(tmp_path):
    found = seen(page(content(*EVERYTHING)), OVERFLOW, tmp_path, dark=True)
    assert found["ground"] == "rgb(20, 23, 26)"
