"""A data set whose users are dealt out to nodes, to try a federation on one machine. Real nodes have their own data."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load_data
from fedgrec.data.interactions import Interactions
from fedgrec.errors import DataError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.node.sources import HELD_OUT, ITEM, TIME, USER

FILE = "interactions.csv"


@dataclass(frozen=True)
class Deal:
    """User u goes to node u mod `nodes`; its test items are held out."""

    train: Interactions
    test: Interactions | None
    nodes: int
    most: int  # users of a node; 0: no limit
    order: bool = False  # whether the tables have times

    @classmethod
    def of(cls, config: Config, nodes: int, most: int = 0) -> "Deal":
        order = config.model.takes_order
        split = load_data(config.data, 0.0, config.run.seed, order=order).split
        if config.data.min_rating is not None:  # a node would recommend items that its users rated too low
            raise DataError("a federation's nodes read no ratings: leave out min_rating, or drop those lines yourself")
        if split.train.n_users < nodes:
            raise DataError(f"{config.data.data} has {split.train.n_users} users, and there are {nodes} nodes")
        return cls(split.train, split.test, nodes, most, order and split.train.times is not None)

    @property
    def catalogue(self) -> list[str]:
        return [str(item) for item in self.train.item_ids]

    def users_of(self, index: int) -> list[int]:
        """The users of a node that have items to train on."""
        users = [u for u in range(index, self.train.n_users, self.nodes) if len(self.train.of(u))]
        return users[: self.most or None]

    def write(self, folder: Path, index: int) -> str:
        """Write the node's table; return its source."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow([USER, ITEM, HELD_OUT, *[TIME] * self.order])
        for user in self.users_of(index):
            table.writerows(self._lines(user))
        write_private(folder / FILE, text.getvalue().encode())
        return FILE

    def _lines(self, user: int) -> Iterator[list[Any]]:
        for held, part in enumerate([self.train, *([] if self.test is None else [self.test])]):
            for place in range(*part.indptr[user : user + 2].tolist()):
                time = [] if part.times is None or not self.order else [float(part.times[place])]
                yield [part.user_ids[user], part.item_ids[int(part.items[place])], held, *time]
