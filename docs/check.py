"""What `make docs-check` looks at in the site that `make docs` has built.

    python docs/check.py [FOLDER]            links, pictures, what pages load, spelling, then in a browser
    python docs/check.py --no-browser        all but the browser

Links inside the site lead to pages and places that exist; every picture has a text alternative; no page loads anything
from another server; codespell finds no misspelt word. In a headless Chromium no page logs an error or is wider than a
phone, and the search finds pages. Pictures of some pages are kept in the folder that IRMTV_TEST_ARTEFACTS names.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "docs" / "_build" / "html"
SPELLED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "src")
# words that codespell takes for misspelt ones: names and abbreviations of this project
KNOWN_WORDS = ("fro", "nam", "whats")
PHONE, DESK = 375, 1280
SEARCHES = ("penalty weight", "InvariantClassifierCV", "hospital")
CUT_OFF = """[...document.querySelectorAll("h1, h2, h3, h4, p, dt")]
  .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 60))"""
LEFT = ("net::ERR_ABORTED",)  # the page was left before all of it had come
SHOWN = ("index", "guide/index", "gallery/index", "gallery/plot_simulation", "methods/index", "methods/irm-tv-l1")
SHOWN += ("reference/index", "reference/generated/irmtv.InvariantClassifierCV", "selection", "project/numbers")


@dataclass
class Page(HTMLParser):
    """What a page has: names of its places, links, pictures, and what it loads."""

    path: Path
    places: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    pictures: list[tuple[str, str | None]] = field(default_factory=list)  # source, text alternative
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := values.get(name))}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        if tag == "img":
            self.pictures.append((str(values.get("src")), values.get("alt")))
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loaded.append(str(values["src"]))
        if tag == "link" and values.get("href") and values.get("rel") not in ("canonical", "search", "index"):
            self.loaded.append(str(values["href"]))


def read_pages(folder: Path) -> dict[Path, Page]:
    """All pages below a folder, by path."""
    return {path: Page(path) for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}


def broken_links(pages: dict[Path, Page]) -> Iterator[str]:
    """Links that lead to no file, or to no place in a page."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            if not target.is_file():
                yield f"{path}: {link}: no such file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                yield f"{path}: {link}: no such place"


def bare_pictures(pages: dict[Path, Page]) -> Iterator[str]:
    """Pictures without a text alternative, or with the name of their file for one."""
    for path, page in pages.items():
        for source, text in page.pictures:
            if not (text or "").strip() or text == source or "/" in str(text):
                yield f"{path}: {source} has the text alternative {text!r}"


def loaded_from_elsewhere(pages: dict[Path, Page]) -> Iterator[str]:
    """What pages load from other servers."""
    for path, page in pages.items():
        yield from (f"{path}: loads {source}" for source in page.loaded if urlsplit(source).netloc)


def misspelt(paths: tuple[str, ...] = SPELLED) -> Iterator[str]:
    """What codespell finds in the sources of the pages, and in the code."""
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", ",".join(KNOWN_WORDS)]
    command += ["--skip", "*/_build,*/generated,*.svg,*.png,*.json,*/docs/gallery,*/docs/project,*/docs/methods"]
    found = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    yield from found.stdout.splitlines()
    yield from found.stderr.splitlines()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def in_browser(folder: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Errors that pages log, requests that fail or leave the machine, pages that are too wide, searches in vain."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import artefacts, browser

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    try:
        with browser() as started:
            for width in (DESK, PHONE):
                context = started.new_context(viewport={"width": width, "height": 900})
                yield from seen_at(context.new_page(), home, folder, pages, width, artefacts())
                context.close()
    finally:
        server.shutdown()


def seen_at(tab: Any, home: str, folder: Path, pages: dict[Path, Page], width: int, kept: Path) -> Iterator[str]:
    """What is wrong in a window of this width."""
    wrong: list[str] = []
    tab.on("console", lambda message: wrong.append(f"logs {message.text}") if message.type == "error" else None)
    tab.on("pageerror", lambda error: wrong.append(f"fails: {error}"))
    tab.on("requestfailed", lambda r: None if r.failure in LEFT else wrong.append(f"cannot load {r.url}: {r.failure}"))
    tab.on("request", lambda r: wrong.append(f"asks for {r.url}") if not r.url.startswith((home, "data:")) else None)
    for path in pages:
        name = path.relative_to(folder).with_suffix("").as_posix()
        tab.goto(f"{home}{name}.html", wait_until="load")
        wide = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            wrong.append(f"is {wide} pixels wider than the window")
        wrong += [f"cuts off {text!r}" for text in tab.evaluate(CUT_OFF)]
        if name in SHOWN:
            tab.screenshot(path=str(kept / f"site-{name.replace('/', '-')}-{width}.png"))
        yield from (f"{name} at {width}: {what}" for what in wrong)
        wrong.clear()
    for words in SEARCHES:
        tab.goto(f"{home}search.html?q={words.replace(' ', '+')}", wait_until="networkidle")
        try:
            tab.wait_for_selector("#search-results li a", timeout=20_000)
        except Exception as error:  # Playwright's own types need not be imported for this
            wrong.append(f"finds nothing for {words!r}: {error}")
        yield from (f"the search at {width}: {what}" for what in wrong)
        wrong.clear()
    tab.screenshot(path=str(kept / f"site-search-{width}.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Checks the documentation site.")
    parser.add_argument("folder", type=Path, nargs="?", default=BUILT)
    parser.add_argument("--no-browser", action="store_true", help="leave the browser out")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if not (folder / "index.html").exists():
        sys.exit(f"no site in {folder}: say make docs first")
    pages = read_pages(folder)
    checks: dict[str, Iterator[str]] = {
        "links": broken_links(pages),
        "text alternatives": bare_pictures(pages),
        "loaded from elsewhere": loaded_from_elsewhere(pages),
        "spelling": misspelt(),
    }
    if not asked.no_browser:
        checks["browser"] = in_browser(folder, pages)
    failed = False
    for name, found in checks.items():
        problems = list(found)
        print(f"{name}: {f'{len(problems)} problems' if problems else 'good'} ({len(pages)} pages)", flush=True)
        for problem in problems[:40]:
            print(f"  {problem}")
        failed |= bool(problems)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
