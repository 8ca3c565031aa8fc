"""One table in five formats: every character of a name survives in each, and every cell is in its place."""

import csv as csv_module
import io
import re
from html.parser import HTMLParser

import pytest

from fedgrec.pages.tables import LATEX, Cell, Grid, csv, html, latex, markdown, number, terminal

HOSTILE = 'a|b_c&d<e>,"f"\\g*h`i$j%k{l}~m^'
GRID = Grid("A|B", ["method", "share & more", "x" * 30, "y" * 30], [["a_1", "5 %", "1", "2"]], ["One.", "Zwei ± 1."])
NAMED = Grid("", ["name", HOSTILE, "n"], [[HOSTILE, "–", "12"], ["b", HOSTILE, "3"]], [HOSTILE])


class Tables(HTMLParser):
    """The texts of the cells of a page, row by row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        self.inside = tag in ("th", "td", "button", "span")
        assert tag in ("div", "table", "thead", "tbody", "tr", "th", "td", "button", "span", "ul", "li", "code")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("th", "td")

    def handle_data(self, text: str) -> None:
        if self.inside:
            self.rows[-1][-1] += text


def from_markdown(line: str) -> list[str]:
    """The cells of a row, as a Markdown reader sees them: a backslash escapes the next mark."""
    cells = re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1]
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells]


def from_latex(line: str) -> list[str]:
    """The cells of a row with every escape undone."""
    back = {text: c for c, text in LATEX.items() if c not in "\n"}
    pieces = "|".join(re.escape(text) for text in sorted(back, key=len, reverse=True))
    cells = re.split(r"(?<!\\)&", line.removesuffix(" \\\\"))
    return [re.sub(pieces, lambda found: back[found[0]], cell.strip()) for cell in cells]


def test_names_survive_every_format() -> None:
    cells = [list(NAMED.head), *map(list, NAMED.rows)]
    assert Tables(html(NAMED)).rows == cells
    lines = [line for line in markdown(NAMED).splitlines() if line.startswith("|")]
    assert [from_markdown(line) for line in (lines[0], *lines[2:])] == cells
    bare = re.sub(r"\\.", "", lines[2])
    assert not set(bare) & set("<>&*_`")  # no mark that Markdown or HTML would interpret
    rows = [line for line in latex(NAMED, "x").splitlines() if line.endswith("\\\\")]
    assert [from_latex(line) for line in rows] == cells
    said = terminal(NAMED, 120)
    assert all(cell in said for row in cells for cell in row)
    records = [dict(zip(("name", HOSTILE), row, strict=False)) for row in NAMED.rows]
    assert list(csv_module.DictReader(io.StringIO(csv(records)))) == records


@pytest.mark.parametrize("width", [45, 80, 200])
def test_a_terminal_holds_every_cell(width: int) -> None:
    said = terminal(GRID, width)
    assert max(map(len, said.splitlines())) <= width
    assert all(word in said for word in ("share & more", "x" * 30, "y" * 30, "5 %", "Zwei ± 1."))
    assert said.count("a_1") == {45: 3, 80: 2, 200: 1}[width]  # the first column again
    assert terminal(Grid("t", ["only"], [["cell"]])) == "t\n\nonly\ncell\n\n"


def test_a_column_of_sentences_is_said_below() -> None:
    why = "failed: " + "the loss is not a number " * 6
    said = terminal(Grid("", ["method", "Recall", "note"], [["a", "0.1", ""], ["b", "–", why]], align="lrl"), 80)
    assert max(map(len, said.splitlines())) <= 80
    assert " ".join(f"b: {why}".split()) in " ".join(said.split())
    assert "note" not in said
    assert "a:" not in said


def test_columns_are_flush_as_the_grid_says() -> None:
    grid = Grid("", ["name", "word", "number"], [["a", "b", "1"], ["cccccc", "dddddd", "22222222"]], align="ll")
    assert terminal(grid) == "name    word      number\na       b              1\ncccccc  dddddd  22222222\n\n"
    lines = markdown(grid).splitlines()
    assert lines[1] == "| ------ | ------ | -------: |"
    assert len({len(line) for line in lines[:4]}) == 1
    assert "{tabular}{llr}" in latex(grid, "x")


def test_markdown_and_latex_say_the_notes() -> None:
    assert markdown(GRID).splitlines()[-1] == "- Zwei ± 1."
    text = latex(GRID, "here & there_1")
    assert "a\\_1 & 5 \\% & 1 & 2 \\\\" in text
    assert "\\caption{A\\textbar{}B. One. Zwei $\\pm$ 1.}" in text
    assert "\\label{tab:herethere1}" in text


def test_csv_keeps_every_digit_and_the_keys_of_all_records() -> None:
    back = list(csv_module.DictReader(io.StringIO(csv([{"a": 0.1 + 0.2}, {"a": 1, "b": "x,y"}]))))
    assert back == [{"a": "0.30000000000000004", "b": ""}, {"a": "1", "b": "x,y"}]


def test_a_page_sorts_by_the_number_behind_the_text() -> None:
    page = html(Grid("", ["a", "b"], [["x", Cell("1.2 GB", 1.2e9, 0.5)], ["y", number(None, ".1f")]], strong="x"))
    assert 'data-value="1200000000.0"' in page
    assert "width:50.0%" in page
    assert page.count("data-value") == 1
    assert "<tr class=strong><th" in page
