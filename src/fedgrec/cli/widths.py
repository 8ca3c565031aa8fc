"""Lines and bars that fit the terminal. Without a terminal lines are not wrapped, because programs read them."""

import shutil
import sys
import textwrap
from typing import Any

LABEL = 18  # the longest name of a method beside its bar
# What fits 80 columns: which run, how far, how long it will take, how good it is.
BAR = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"


def fitted(text: str, indent: str = "  ") -> str:
    """The text in lines as wide as the terminal, the later ones indented."""
    width = shutil.get_terminal_size((10_000, 24)).columns
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(lines)


def shortened(text: str, most: int = LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def bar(name: str, done: int, total: int, quiet: bool) -> Any:
    """A bar that disappears when it is closed; disabled without a terminal or without work."""
    from tqdm import tqdm

    off = quiet or not sys.stderr.isatty() or not total
    look: dict[str, Any] = {"bar_format": BAR, "dynamic_ncols": True, "smoothing": 0.05, "leave": False}
    return tqdm(total=total, initial=done, desc=name, disable=off, **look)
