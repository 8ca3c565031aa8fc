"""Tables of results as Markdown: how a figure, a mean with its interval and a row are written."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedgrec.studies.compare.runs import half_width

ROOT = Path(__file__).parents[1]
DOCUMENTS = ROOT / "docs" / "results"
KEPT = ROOT / "benchmarks" / "results"
DATA = {"gowalla": "Gowalla", "yelp2018": "Yelp2018"}
Scores = tuple[float, float]  # Recall@20 and NDCG@20


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def section(title: str, *parts: str) -> str:
    return "\n\n".join((f"## {title}", *parts))


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def kept(name: str) -> dict[str, Any]:
    """A file of benchmarks/results, with its machine and date."""
    found: dict[str, Any] = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
    return found


def figure(value: float, places: int = 4) -> str:
    """A share without its zero: .1787."""
    return f"{value:.{places}f}".removeprefix("0")


def pair(scores: Sequence[float]) -> str:
    return f"{figure(scores[0])} / {figure(scores[1])}"


def mean_pair(scores: Sequence[Scores]) -> str:
    """Means over seeds, with half of their 95 % intervals where there are several."""
    return " / ".join(
        figure(statistics.fmean(values)) + (f" ± {figure(half)}" if (half := half_width(values)) is not None else "")
        for values in zip(*scores, strict=True)
    )


def percent(share: float, places: int = 0) -> str:
    return f"{100 * share:.{places}f} %"


def quotient(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %".replace("-", "−")
