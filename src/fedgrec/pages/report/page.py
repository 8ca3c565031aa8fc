"""The frame of every page: one file with its style, script and data, which loads nothing else."""

import json
from collections.abc import Iterable
from html import escape
from typing import Any

from fedgrec.pages.report.charts import own_file


def render(title: str, subtitle: str, sections: Iterable[tuple[str, str]], data: Any = None) -> str:
    """A page of sections (a title and HTML); empty sections are left out. `data` is for the script.

    A policy in page.html makes the browser refuse to load anything else.
    """
    body = "".join(f"<section>\n<h2>{escape(name)}</h2>\n{html}</section>\n" for name, html in sections if html)
    return own_file("page.html").format(
        title=escape(title),
        subtitle=escape(subtitle),
        css=own_file("charts.css") + own_file("page.css"),
        body=body,
        data="" if data is None else f'<script type="application/json" id="data">{embedded(data)}</script>\n',
        script=own_file("page.js"),
    )


def embedded(data: Any) -> str:
    """JSON that is safe inside a script tag: `<` is escaped, so no text in it can open or close a tag."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def tile_row(tiles: Iterable[tuple[str, str, str]]) -> str:
    """A few numbers in large letters: name, value, explanation."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(about)}</small></dd></div>\n"
        for name, value, about in tiles
    )
    return f"<dl class=tiles>{cells}</dl>\n"


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>\n"
