"""Lines that fit the terminal. Without a terminal they are not wrapped, because programs read them."""

import shutil
import textwrap

LABEL = 18  # the longest name of a method beside its bar


def fitted(text: str, indent: str = "  ") -> str:
    """The text in lines as wide as the terminal, the later ones indented."""
    width = shutil.get_terminal_size((10_000, 24)).columns
    lines = textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return "\n".join(lines)


def shortened(text: str, most: int = LABEL) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
