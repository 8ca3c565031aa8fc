"""Checks of every page: well formed, self-contained and harmless; and a browser to try its script in."""

import json
import re
import subprocess
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

from tests.browser import CHROMIUM
from tests.waits import seconds

EMPTY = {"meta", "input", "br"}  # elements that are never closed
SCRIPT = (resources.files("fedgrec.pages.report") / "page.js").read_text("utf-8")


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order; collects scripts and references."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.references: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]
        assert not [name for name, _ in attrs if name.startswith("on")], "no code in attributes"
        if tag == "script":
            self.scripts.append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += text


def checked(page: str) -> str:
    """The page without its script and data, once it is known to be sound and to need nothing from elsewhere."""
    parsed = Balanced(page)
    assert parsed.scripts[-1].strip() == SCRIPT.strip()
    assert len(parsed.scripts) == 1 + ('id="data"' in page)
    assert all(reference.startswith("#") for reference in parsed.references)
    assert not re.search(r"https?:|<link|<img|<iframe|@import|url\(", page)
    return page[: page.index("</main>")]


def data_of(page: str) -> Any:
    """What the page embeds for its script."""
    return json.loads(Balanced(page).scripts[0])


def in_browser(page: str, folder: Path, script: str = "", fragment: str = "") -> str:
    """The page as Chromium has it after its script and after ours."""
    path = folder / "tried.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}"]
    done = subprocess.run(
        [*command, "--dump-dom", f"file://{path}{fragment}"],
        capture_output=True,
        text=True,
        timeout=seconds(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
