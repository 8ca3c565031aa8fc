"""`python -m benchmarks tables`: write the pages of results that are made from kept records.

Three pages are made as a whole; the README has a table of results between two markers.
"""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import field, measured_tables, recall_tables
from benchmarks.markdown import DOCUMENTS, ROOT

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- made by `python -m benchmarks tables` -->\n\n).*?(\n\n<!-- until here -->)", re.DOTALL)


def readme() -> str:
    text = README.read_text(encoding="utf-8")
    return MARKED.sub(lambda found: found[1] + recall_tables.headline() + found[2], text, count=1)


MADE: dict[Path, Callable[[], str]] = {
    DOCUMENTS / "README.md": recall_tables.page,
    DOCUMENTS / "measurements.md": measured_tables.page,
    DOCUMENTS / "field.md": field.page,
    README: readme,
}


def write() -> None:
    for path, make in MADE.items():
        path.write_text(make(), encoding="utf-8")
        print(path.relative_to(ROOT))
