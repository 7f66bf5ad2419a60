"""The pages in a real browser: nothing is loaded, nothing is hidden, everything can be reached, read and kept."""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from contextlib import contextmanager

import pandas as pd
import pytest
from tests.html.test_page import content, drawn

from app.pages.summaries import ODD, summary, with_erm_kept, with_some_gaps, with_unseen
from browser import artefacts, browser
from irmtv.app.pages.model import model_content
from irmtv.html.page import code, figure, formula, page, table, text
from irmtv.lab.experiments import parse_spec
from irmtv.lab.tables import paired_tests, summarise
from irmtv.lab.tables.experiment import ExperimentReport
from irmtv.lab.tables.experiment_page import experiment_content
from lab.tables.results import PUBLISHED, small

DESKTOP, PHONE = 1280, 390
SVG = "{http://www.w3.org/2000/svg}"


def experiment_page():
    results = small()
    results = results.assign(hyperparameters=None, figures=None)
    spec = parse_spec('name = "toy"\ndata.name = "simulation"\n[[methods]]\nobjective = "erm"\n')
    made = ExperimentReport("toy", results, summarise(results, PUBLISHED), paired_tests(results))
    return experiment_content(made, spec, [{"irmtv": "0.1.0", "torch": "2.13.0"}])


def statements_page():
    """As the page of the theory: formulas, figures without numbers, tables with marks and empty headings."""
    marked = table(["", "what", "true"], [["as printed", "x", "yes"], ["ours", "y", "no"]], marks=["good", "bad"])
    wide = table([f"column {i}" for i in range(14)], [[f"{i / 7:.12f}" for i in range(14)]] * 3)
    picture = {**figure(drawn(), "a line that falls"), "svg": figure(drawn(), "a")["svg"]}
    return content(text("x"), formula(r"$\int_\Omega |\nabla f|$"), picture, marked, wide, code("irmtv " + "x" * 300))


def kept_page():
    """The plain model of ten years, with all that a new file says."""
    made = with_unseen(with_erm_kept(summary(10, names=[str(2001 + k) for k in range(10)], outcome="erm-kept")))
    telling = [
        {"name": "zip", "environment": "2003", "share": 0.99},
        {"name": ODD[0], "environment": "2004", "share": 0.96},
    ]
    made["first_look"] = {"overlap": "The features clearly tell the environments apart.", "auc": 0.9, "p": 0.02,
                          "loss_p": 0.001, "telling": telling, "smallest": "2001", "smallest_rows": 80}  # fmt: skip
    return model_content(made)


PAGES = {
    "model": lambda: model_content(summary()),
    "kept": kept_page,
    "many": lambda: model_content(summary(60, 40, n_aux=1)),
    "odd": lambda: model_content(summary(len(ODD), len(ODD), names=ODD, features=ODD, n_aux=2)),
    "gaps": lambda: model_content(with_some_gaps(summary(2, 3, task="regression", n_aux=3, outcome="none-found"))),
    "experiment": experiment_page,
    "statements": statements_page,
}


pytestmark = [pytest.mark.browser, pytest.mark.time_limit(120)]


@pytest.fixture(scope="module")
def chrome():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Every page as a file, made once."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, of in PAGES.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(page(of()), encoding="utf-8")
    return made


@contextmanager
def opened(chrome, path, width=DESKTOP, dark=False, **options):
    """The page; afterwards whether it said, asked for or asked anything."""
    scheme = "dark" if dark else "light"
    context = chrome.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    tab = context.new_page()
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(path.as_uri())
    try:
        yield tab
        assert said == []
        assert [url for url in asked if not url.startswith(("blob:", "data:"))] == [path.as_uri()], (
            "nothing else is loaded"
        )
    finally:
        context.close()


def problems(tab):
    """What axe-core finds serious or critical, with the elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    found = axe.Axe().run(tab).response["violations"]
    return [(v["id"], v["nodes"][0]["html"][:150]) for v in found if v["impact"] in ("serious", "critical")]


# contrast of every text of the figures with what is behind it, by the formula of WCAG 2
LETTERS = """() => {
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
                       return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b); };
  return [...document.querySelectorAll(".drawing text")].map(t => {
    const a = light(getComputedStyle(t).fill), b = light(getComputedStyle(t.closest("figure")).backgroundColor);
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), t.textContent];
  });
}"""
BOXES = """of => [...document.querySelectorAll(of)].map(s => {
  const b = s.getBoundingClientRect(); return [b.width, b.height, s.querySelectorAll("path, text, use").length]; })"""
MODES = [(DESKTOP, False), (PHONE, True)]


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [*((name, *mode) for name in PAGES for mode in MODES), ("model", DESKTOP, True), ("model", PHONE, False)],
)
def test_the_page_is_whole(chrome, files, name, width, dark):
    with opened(chrome, files[name], width, dark) as tab:
        shot = artefacts() / f"{name}-{'phone' if width == PHONE else 'desktop'}-{'dark' if dark else 'light'}.png"
        tab.screenshot(path=shot, full_page=True)
        assert shot.stat().st_size > 10_000
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, "no horizontal scroll"
        assert tab.evaluate("performance.getEntriesByType('resource').length") == 0
        figures, formulas = (tab.evaluate(BOXES, f".{of} svg") for of in ("drawing", "formula"))
        assert figures and all(w > 250 and h > 50 and parts > 10 for w, h, parts in figures)
        assert all(w > 20 and 5 < h < 100 and parts > 3 for w, h, parts in formulas)
        low = [(contrast, letters) for contrast, letters in tab.evaluate(LETTERS) if contrast < 4.5]
        assert low == []
        ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
        if name in ("model", "kept"):
            tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            tab.wait_for_timeout(50)  # the boxes of the tables become stops of the keyboard
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert problems(tab) == []


def test_a_problem_would_be_found(chrome, tmp_path):
    """The checks can fail: pale letters, a picture without words, something loaded, something said."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><html lang=en><title>x</title><main><h1>x</h1><p style='color:#ddd;background:#fff'>pale</p>"
        "<div role=img>y</div><figure style='background:#fff'><div class=drawing><svg><text style='fill:#ccc'>z</text>"
        "</svg></div></figure><img src='other.png' alt=o></main>"
    )
    found = []
    with pytest.raises(AssertionError, match=r"other\.png|ERR_FILE_NOT_FOUND"), opened(chrome, bad) as tab:
        found = [{name for name, _ in problems(tab)}, tab.evaluate(LETTERS)[0][0]]
    assert {"color-contrast", "role-img-alt"} <= found[0] and found[1] < 2


def column(tab, place, index):
    return tab.locator(f"{place} tbody tr td:nth-child({index + 1})").all_inner_texts()


ODD_NUMBERS = ["60.0 ± 2.8", "–", "1,234", "−0.4 (p = 0.02)", "< 0.001", "2e-05", "", "12 %", "+7", "-3"]
IN_ORDER = ["-3", "−0.4 (p = 0.02)", "2e-05", "< 0.001", "+7", "12 %", "60.0 ± 2.8", "1,234"]
NAMES = ["b10", "b9", "–", "a", "Z", "ä", "b1", "c", "c", "d"]


def test_tables_sort_on_click_and_by_keyboard_and_go_back(chrome, tmp_path):
    rows = [[name, number] for name, number in zip(NAMES, ODD_NUMBERS, strict=True)]
    path = tmp_path / "x.html"
    path.write_text(page(content(table(["name", "number"], rows, [False, True]), sections=("one",))), encoding="utf-8")
    with opened(chrome, path) as tab:
        head = tab.locator("th").nth(1)
        button = head.get_by_role("button", name="number")
        assert head.get_attribute("aria-sort") is None
        button.click()
        assert head.get_attribute("aria-sort") == "ascending"
        assert column(tab, "table", 1) == [*IN_ORDER, "–", ""], "missing ones last"
        button.click()
        assert head.get_attribute("aria-sort") == "descending"
        assert column(tab, "table", 1) == [*reversed(IN_ORDER), "–", ""], "missing ones last"
        button.click()
        assert head.get_attribute("aria-sort") is None
        assert column(tab, "table", 1) == ODD_NUMBERS
        tab.locator("th button").first.focus()
        tab.keyboard.press("Enter")
        assert column(tab, "table", 0) == ["a", "ä", "b1", "b9", "b10", "c", "c", "d", "Z", "–"]
        tab.keyboard.press("Tab")
        tab.keyboard.press("Space")
        assert column(tab, "table", 1) == [*IN_ORDER, "–", ""]
        assert tab.locator("th").first.get_attribute("aria-sort") is None, "one column at a time"


def test_the_table_of_environments_sorts(chrome, files):
    with opened(chrome, files["model"]) as tab:
        place = "#environments details table"
        tab.locator("#environments summary").click()
        before = column(tab, place, 2)
        tab.locator(f"{place} th button").nth(2).click()
        values = [float(re.match(r"[\d.]+", cell)[0]) for cell in column(tab, place, 2)]
        assert values == sorted(values) and sorted(column(tab, place, 2)) == sorted(before)


def test_figures_and_their_numbers_can_be_kept(chrome, files, tmp_path):
    made = PAGES["odd"]()
    blocks = [b for chapter in made["chapters"] for section in chapter["sections"] for b in section["blocks"]]
    drawn_ones = {b["name"]: b for b in blocks if b["kind"] == "figure"}
    kept = set()
    for suffix in ("svg", "csv"):  # apart: a browser stops a page that gives more than ten files within a second
        with opened(chrome, files["odd"], dark=True) as tab:
            links = tab.locator(f'figure .keep a[download$="{suffix}"]')
            for i in range(links.count()):
                with tab.expect_download() as waiting:
                    links.nth(i).click()
                name = waiting.value.suggested_filename
                waiting.value.save_as(tmp_path / name)
                kept.add(name)
    assert kept == {f"{name}.{suffix}" for name in drawn_ones for suffix in ("svg", "csv")} and len(kept) > 8
    for name, block in drawn_ones.items():
        root = ET.fromstring((tmp_path / f"{name}.svg").read_bytes())
        assert root.tag == f"{SVG}svg" and root.findall(f".//{SVG}text")
        source = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        assert "var(" not in source and "#ffffff" in source, "as on paper, also from a dark page"
        found = list(csv.reader(io.StringIO((tmp_path / f"{name}.csv").read_bytes().decode(), newline="")))
        assert len(found[0]) == len(block["data"]["columns"])
        for line, row in zip(found[1:], block["data"]["rows"], strict=True):
            for cell, value in zip(line, row, strict=True):
                assert cell == "" if value is None else isinstance(value, (str, bool)) or float(cell) == value


def test_printed_it_is_light_whole_and_without_what_only_a_screen_needs(chrome, files):
    with opened(chrome, files["model"], dark=True) as tab:
        tab.emulate_media(media="print", color_scheme="dark")
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert all(contrast >= 4.5 for contrast, _ in tab.evaluate(LETTERS))
        assert not tab.locator("nav").is_visible() and not tab.locator(".keep").first.is_visible()
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.locator("details:not([open])").count() == 0 < tab.locator("details").count()
        tab.screenshot(path=artefacts() / "model-print.png", full_page=True)
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.locator("details[open]").count() == 0
        made = tab.pdf(path=artefacts() / "model.pdf", format="A4")
        assert made.startswith(b"%PDF") and 4 <= len(re.findall(rb"/Type\s*/Page\b", made)) <= 20


def test_what_scrolls_is_a_stop_of_the_keyboard_and_nothing_else(chrome, files):
    for width in (PHONE, DESKTOP):
        with opened(chrome, files["statements"], width) as tab:
            boxes = tab.evaluate(
                "[...document.querySelectorAll('.scroll')].map(b => [b.scrollWidth > b.clientWidth, b.tabIndex])"
            )
            assert all((index == 0) == scrolls for scrolls, index in boxes)
            assert any(scrolls for scrolls, _ in boxes)


def test_without_its_script_everything_is_there_to_read(chrome, files):
    with opened(chrome, files["model"], java_script_enabled=False) as tab:
        assert tab.locator(".drawing svg").count() >= 4 and tab.locator("table").count() >= 5
        assert tab.locator("th button").count() == 0
        assert not tab.locator("a.svg").first.is_visible()
        with tab.expect_download() as waiting:
            tab.get_by_role("link", name=re.compile("as CSV")).first.click()
        assert pd.read_csv(waiting.value.path())["environment"].iloc[0] == "overall"


def test_the_policy_of_the_page_stops_what_got_in(chrome, files):
    with chrome.new_context() as context:
        tab = context.new_page()
        failed, answered = [], []
        tab.on("requestfailed", lambda request: failed.append(request.failure))
        tab.on("response", lambda response: answered.append(response.url))
        tab.goto(files["model"].as_uri())
        tab.evaluate(
            """() => { const d = document.createElement("div"); document.body.append(d);
                       d.innerHTML = '<img src="http://127.0.0.1:9/x.png" onerror="window.hit = 1">';
                       const s = document.createElement("script"); s.textContent = "window.hit = 2"; d.append(s); }"""
        )
        refused = tab.evaluate("fetch('http://127.0.0.1:9/').then(() => false, () => true)")
        tab.wait_for_timeout(100)
        assert refused and tab.evaluate("window.hit") is None
        assert answered == [files["model"].as_uri()] and set(failed) <= {"csp"}
