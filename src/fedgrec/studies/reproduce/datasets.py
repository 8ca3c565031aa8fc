"""Table 1: the sizes of the data sets, as the paper prints them and as the published files have them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedgrec.data import Dataset
from fedgrec.pages.tables import NOTHING, Grid
from fedgrec.studies.compare.published import public_name
from fedgrec.studies.reproduce.plan import Group, Shown


class Sizes(NamedTuple):
    users: int
    items: int
    interactions: int
    density: float


PAPER = {
    "gowalla": Sizes(29_858, 40_981, 1_027_370, 0.00084),
    "yelp2018": Sizes(31_831, 40_841, 1_666_869, 0.00128),
    "amazon-book": Sizes(52_643, 91_599, 2_984_108, 0.00062),
}
SLIP = (
    "The paper's sizes of yelp2018 are those of an older version: the split of LightGCN, which it says it follows and "
    "all published numbers are about, is the smaller one."
)


def statistics(groups: Sequence[Group]) -> Shown:
    """The paper's number, our number, and their difference in %."""
    rows: list[list[str]] = []
    records: list[dict[str, Any]] = []
    slips = False
    for group in groups:
        dataset = group.settings.load(group.settings.seeds[0])
        ours, name = measure(dataset), public_name(dataset) or dataset.name
        paper = PAPER.get(name)
        slips |= name == "yelp2018"
        for i, what in enumerate(Sizes._fields):
            form = ".5f" if what == "density" else ",d"
            theirs = paper[i] if paper else None
            apart = 100 * (ours[i] / theirs - 1) if theirs else None
            said = f"{theirs:{form}}" if theirs is not None else NOTHING
            away = NOTHING if apart is None else f"{round(apart, 1) + 0.0:+.1f} %"
            rows.append([name, what, said, f"{ours[i]:{form}}", away])
            records.append({"data": name, "what": what, "paper": theirs, "ours": ours[i], "difference_percent": apart})
    notes = ["Interactions are train and test pairs together; density is their share of all pairs."]
    notes += [SLIP] if slips else []
    grid = Grid("Data sets", ["data", "", "paper", "ours", "diff"], rows, notes, align="ll")
    return Shown([grid], records)


def measure(dataset: Dataset) -> Sizes:
    """The sizes of all parts of a split together."""
    parts, train = dataset.split, dataset.split.train
    pairs = sum(part.n_pairs for part in (train, parts.validation, parts.test) if part is not None)
    return Sizes(train.n_users, train.n_items, pairs, pairs / (train.n_users * train.n_items))
