"""The look of every picture of the benchmarks. Functions return figures: no pyplot, no global style."""

import io
from typing import Any

# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, GREEN, RED, PURPLE = "#0072B2", "#009E73", "#D55E00", "#CC79A7"
INK, SOFT, GREY, LINE = "#22272e", "#6b7480", "#a9b0b8", "#d9dde2"
DPI = 160


def new_figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure((width, height), layout="constrained", facecolor="white")


def png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    nameless = {"Software": None}  # leave out matplotlib's version, so that equal runs give equal files
    figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.12, metadata=nameless)
    return buffer.getvalue()


def set_title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=12, color=INK, fontweight="bold", pad=8)


def set_frame(axes: Any, title: str, x: str, y: str = "") -> None:
    """Title, labels and only those lines that help to read a value."""
    set_title(axes, title)
    axes.set_xlabel(x, fontsize=10, color=SOFT)
    axes.set_ylabel(y, fontsize=10, color=SOFT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=SOFT, labelsize=9, length=0)
    axes.grid(axis="y", color=LINE, lw=0.7)
    axes.set_axisbelow(True)


def legend_below(figure: Any, axes: Any, columns: int) -> None:
    """One legend for all panels, which share their lines."""
    handles, labels = axes.get_legend_handles_labels()
    place, columns = "outside lower center", min(columns, len(labels))
    figure.legend(handles, labels, loc=place, ncols=columns, frameon=False, fontsize=10, labelcolor=INK)
