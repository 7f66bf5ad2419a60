"""A real browser for pages: `seen` asks one question of a page, `browser` gives the browser itself to a test.

Chromium is used where it is, installed by apt where that is possible, and the test is skipped with a reason elsewhere.
Pictures that tests take are kept in the folder that IRMTV_TEST_ARTEFACTS names, else in test-artefacts.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from paths import REPOSITORY

NAMES = ("chromium", "chromium-browser", "google-chrome")


@cache
def chromium() -> str | None:
    """Its path; None where there is none and none can be installed."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
        try:
            subprocess.run(["apt-get", "update"], timeout=120, **quiet)
            subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "chromium"], timeout=300, **quiet)
        except subprocess.TimeoutExpired:
            return None
        found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found


def artefacts() -> Path:
    """The folder of what tests keep to be looked at."""
    folder = Path(os.environ.get("IRMTV_TEST_ARTEFACTS", REPOSITORY / "test-artefacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium, driven by Playwright's core: no browser of its own is downloaded."""
    reason = "playwright is not installed: pip install irmtv[dev]"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = chromium()
    if path is None:
        pytest.skip("no chromium, and apt cannot install it here")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


def seen(page: str, script: str, folder: Path, width: int = 1200, dark: bool = False):
    """What `script` (the body of a function of `document` and `window`) returns for a page `width` pixels wide."""
    path = chromium()
    if path is None:
        pytest.skip("no chromium, and apt cannot install it here")
    outer = folder / "outer.html"
    outer.write_text(
        f'<!doctype html><iframe id="f" style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{html.escape(page)}"></iframe><pre id="answer"></pre><script>'
        'const f = document.getElementById("f");'
        "const look = new Function('document', 'window', " + json.dumps(script) + ");"
        'f.addEventListener("load", () => { document.getElementById("answer").textContent = '
        '"[[" + JSON.stringify(look(f.contentDocument, f.contentWindow)) + "]]"; });</script>',
        encoding="utf-8",
    )
    result = subprocess.run(
        [
            path,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width + 100},1000",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            "--virtual-time-budget=10000",
            "--dump-dom",
            outer.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    answer = re.search(r'<pre id="answer">\[\[(.*)\]\]</pre>', result.stdout, re.DOTALL)
    assert answer, f"the page did not load: {result.stderr[-500:]}"
    return json.loads(html.unescape(answer.group(1)))
