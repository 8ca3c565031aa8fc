"""Figures that others published for these methods: Recall@20 and NDCG@20, all items ranked, LightGCN's split.

All of them are the best round on test, so compare them with results under the protocol `paper`.
"""

from dataclasses import dataclass
from importlib import resources
from typing import Any

from fedgrec.data import Dataset
from fedgrec.data.registry import SOURCES

SOURCE = {
    "T2": "Li and Huang 2022, Table 2",
    "T34": "Li and Huang 2022, Tables 3 and 4",
    "BARS": "the BARS leaderboard",
    "Turbo": "Park et al. 2024",
}
DATA = ("gowalla", "yelp2018", "amazon-book")


@dataclass(frozen=True)
class Figure:
    recall: float | None
    ndcg: float | None
    source: str


def table() -> list[list[str]]:
    """The lines of published.txt, its head first: method, K, combine, recall and NDCG on each of DATA, source."""
    text = (resources.files("fedgrec.studies.compare") / "published.txt").read_text("utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def public_name(dataset: Dataset) -> str | None:
    """The data set's public name, if this is the whole data set in the split that others report on."""
    parts = dataset.split
    pairs = parts.train.n_pairs + (parts.validation.n_pairs if parts.validation is not None else 0)
    sizes = parts.train.n_users, parts.train.n_items, pairs, parts.test.n_pairs if parts.test is not None else 0
    for name, source in SOURCES.items():
        published = source.users, source.items, source.train_pairs, source.test_pairs
        if dataset.split_kind == "given" and sizes == published:
            return name
    return None


def figure(data: str | None, method: str, options: Any) -> Figure | None:
    """What was published for a method with these options on a public data set."""
    if data not in DATA:
        return None
    at = 3 + 2 * DATA.index(data)
    for words in table():
        asked = [method, *(str(getattr(options, name, "-")) for name in ("layers", "combine"))]
        # A '-' in the table fits any value: FedGNN and matrix factorisation have no choice of layers.
        if all(word in (said, "-") for word, said in zip(words[:3], asked, strict=True)):
            recall, ndcg = (None if word == "-" else float(word) for word in words[at : at + 2])
            return Figure(recall, ndcg, SOURCE[words[-1]]) if recall is not None else None
    return None
