"""The comparison as one page in the look of a run's report."""

from html import escape
from importlib import resources

from fedgrec.compare import tables
from fedgrec.report.drawing import Picture
from fedgrec.report.page import PAGE, figure, listing, table


def render(found: tables.Table, picture: Picture | None) -> str:
    shown = tables.columns(found)
    rows = [[column.text(row) for column in shown] for row in found.rows]
    sections = [
        ("Table", table([column.title for column in shown], rows) + listing(tables.notes(found))),
        ("Learning", figure(picture) if picture else ""),
    ]
    return PAGE.format(
        title=escape(f"Methods on {found.data}"),
        css=(resources.files("fedgrec.report") / "page.css").read_text("utf-8"),
        subtitle=escape(f"{len(rows)} methods, best first, under the protocol {found.protocol}."),
        body="".join(f"<section>\n<h2>{title}</h2>\n{html}</section>\n" for title, html in sections if html),
    )
