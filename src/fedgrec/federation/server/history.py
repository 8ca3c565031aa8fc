"""The history of sums (common/history.py) as the server tells it, and how much of it each node has heard."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.history import chained, is_line, unpack
from fedgrec.federation.common.plan import CHANGES, EVALUATE
from fedgrec.federation.server.store import ServerStore
from fedgrec.methods.contract import TRAIN


class History:
    """All sums that are over, in order."""

    def __init__(self, store: ServerStore) -> None:
        self.store = store
        self._lines: list[str] = []
        self._heads = [""]
        self._heard: dict[int, int] = {}  # by node: how many lines

    @property
    def lines(self) -> list[str]:
        for line in self.store.over(after=len(self._lines)):
            self._lines.append(line.pack())
            self._heads.append(chained(self._heads[-1], self._lines[-1]))
        return self._lines

    @property
    def head(self) -> str:
        return self._heads[len(self.lines)]

    def unheard(self, node: int) -> list[str]:
        return self.lines[self._heard.get(node, 0) :]

    def message(self, node: int) -> dict[str, Any]:
        """What a question tells the node beside the question."""
        return {"after": self._heard.get(node, 0), "lines": self.unheard(node)}

    def heard(self, node: int, message: Mapping[str, Any]) -> None:
        """The node has answered a question with this message."""
        self._heard[node] = message["after"] + len(message["lines"])

    def believe(self, tellings: Sequence[Any], fewest: int) -> int:
        """If the server is a restored copy, take up lines on which so many nodes agree; return how many."""
        known = len(self.lines)
        while True:
            following = (lines[len(self.lines) - known :] for lines in tellings if isinstance(lines, list))
            votes = Counter(lines[0] for lines in following if lines and is_line(lines[0]))
            packed, count = next(iter(votes.most_common(1)), ("", 0))
            if count < fewest:
                return len(self.lines) - known
            line = unpack(packed)
            if line.stage not in (EVALUATE, CHANGES, TRAIN.name) and line.included:
                raise FederationError(
                    f"this server has forgotten the sum of stage {line.stage!r} of round {line.round + 1}, which "
                    f"counts for its nodes and is not sent again: restore a newer backup of the server, or begin a new "
                    f"federation"
                )
            self.store.hear_of(line)

    def let_in(self, node: int, told: Any, name: str) -> None:
        """A node that has joined says what it has heard; refuse one that was told something else."""
        number, head = (told.get("number"), told.get("head")) if isinstance(told, Mapping) else (None, None)
        if type(number) is not int or not 0 <= number <= len(self.lines) or self._heads[number] != head:
            raise FederationError(
                f"node {name} was told another history of sums than this server's: restore the server's newest backup, "
                f"or start the node with  --trust-again"
            )
        self._heard[node] = number
