"""The options of a federation: what everybody agrees on, and how the server drives the nodes.

    FOLDER/agreement.toml     the same in every folder: nodes sign it and bind their masks to it, so that the server
                              cannot ask for other list lengths, for more evaluations, or for less noise
    SERVER/federation.toml    the server's own

The options of the method are in config.toml.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from fedgrec.config.checking import changed
from fedgrec.config.configuration import toml, toml_value
from fedgrec.config.options import PrivacyOptions, option
from fedgrec.errors import ConfigError
from fedgrec.federation.common import evaluation
from fedgrec.secagg.parameters import SECURITY

AGREEMENT = "agreement.toml"


@dataclass(frozen=True)
class _Options:
    """Options in a TOML file of their own."""

    title: ClassVar[str]

    def changed(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy with these options replaced; values are checked."""
        return changed(self, values, where)

    def to_toml(self) -> str:
        lines = [f"# {self.title}"]
        for f in dataclasses.fields(self):
            lines += [f"\n# {f.metadata['help']}", f"{f.name} = {toml_value(getattr(self, f.name))}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Agreement(_Options, PrivacyOptions):
    """What nodes hold the server to, beside the floors in their own node.json."""

    title = "What everybody in this federation has agreed on: the same file in every folder."

    fewest_people: int = option(
        20,
        "the fewest people of a batch: sums of people's items open over whole batches, so of each item that one of a "
        "batch's people has, a server does not know whose it is; 1: each node is a batch of its own",
        least=1,
        group="privacy",
    )
    batches_for_training: int = option(
        4,
        "where there are so many batches, training rounds open over whole ones, too; with fewer, a node that is away "
        "would stop training, so they open over any nodes, and two of them tell what one node's people have; 1: always",
        least=1,
        group="privacy",
    )
    topk: tuple[int, ...] = option((20,), "list lengths k of Recall@k and NDCG@k")
    evaluations: int = option(20, "evaluations that a node takes part in, in all", least=0)
    evaluation_users: int = option(50, "the fewest users over whom an evaluation is summed", least=1)
    evaluation_epsilon: float = option(
        8.0, "what all evaluations together may tell of one person, by noise; 0: no noise", least=0, group="privacy"
    )
    dp_rounds: int = option(
        20, "under noise: training rounds that a node takes part in, in all; they are the first ones", least=1
    )
    recount_users: int = option(
        50, "the fewest users whose changes are counted in one sum; until there are so many, changes wait", least=1
    )
    season_rounds: int = option(10, "the fewest training rounds from one recount of changes to the next", least=1)
    most_users: int = option(1_000_000, "the most users that there may be at any time", least=1, most=2**31 - 1)
    most_items: int = option(1_000_000, "the most items that the catalogue may ever have", least=1, most=2**31 - 1)
    security: int = option(
        SECURITY, "a sparse graph of more than 400 nodes fails with a chance below one in two to this power", least=40
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topk or min(self.topk) < 1:
            raise ConfigError("topk needs at least one list length, each 1 or more, such as  topk = [20]")

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the noise in each number of an evaluation."""
        return evaluation.deviation(self.evaluation_epsilon, self.topk, self.evaluations) if self.evaluations else 0.0


AS_USUAL = Agreement()


@dataclass(frozen=True)
class FederationOptions(_Options):
    """How the server drives the nodes."""

    title = "How the server drives this federation."

    rounds: int = option(100, "training rounds of the first season", least=0)
    seasons: int = option(1, "seasons, after which the server stops; 0: it goes on until it is stopped", least=0)
    later_rounds: int = option(0, "training rounds of a later season; 0: a fifth of the first one's", least=0)
    rest: float = option(86_400.0, "seconds from the end of a season to the next one", least=0)
    look: float = option(
        3600.0,
        "seconds between two counts of users who have changes: the next season begins once there are enough of "
        "them; 0: it begins after `rest` alone",
        least=0,
    )
    enough: int = option(0, "users with changes who are enough; 0: as many as nodes insist on (recount_users)", least=0)
    models: int = option(5, "models of past seasons that are kept", least=1)
    nodes_per_round: int = option(0, "nodes that take part in a training round; 0: all that can be reached", least=0)
    spares: int = option(
        0, "nodes asked beyond nodes_per_round; the first to answer take part, the others' turn comes later", least=0
    )
    start_nodes: int = option(0, "nodes that must have joined before the first sum; 0: all of the roster", least=0)
    start_seconds: float = option(600.0, "how long the server waits for them", least=0)
    # Each node keeps its own copy of the next three and insists on it: a node made before a change has the old values.
    least_nodes: int = option(2, "the fewest nodes in any sum; nodes refuse sums of fewer", least=2)
    least_users: int = option(
        2,
        "the fewest users that a node adds up in a training round (all, if it has fewer), or judges by without noise",
        least=1,
    )
    corrupt: float = option(0.05, "share of the roster's nodes that may work for the server", least=0, most=1)
    dropped: float = option(
        0.34, "share of the nodes that may be lost in a sum that can still be opened, if `corrupt` leaves room", most=1
    )
    neighbours: int = option(0, "nodes that a node masks with; 0: chosen for `corrupt` and `dropped`", least=0)
    threshold: int = option(0, "holders of a node's shares that must be left; 0: chosen with the above", least=0)
    deadline: float = option(
        60.0, "the most seconds that nodes have for an exchange; usually measured times decide", least=0
    )
    work_deadline: float = option(600.0, "the same for the exchange in which they train", least=0)
    retries: int = option(3, "sums that may be lost in a row before the federation stops", least=0)
    pause: float = option(2.0, "seconds before a lost sum is tried again", least=0)
    evaluate_every: int = option(10, "rounds between evaluations; 0: only at the end", least=0)
    copies: str = option(
        "", 'a folder, on another disk, for copies that the server keeps of itself; "": one beside its own folder'
    )
    record: int = option(
        0, "the last opened training sums that are kept in SERVER/recordings, for `fedgrec audit`; 0: none", least=0
    )

    def __post_init__(self) -> None:
        if bool(self.neighbours) != bool(self.threshold):
            raise ConfigError("neighbours and threshold go together: set both, or neither")
        if 0 < self.nodes_per_round < self.least_nodes:
            raise ConfigError(f"nodes_per_round is below least_nodes = {self.least_nodes}: no sum could be opened")


Kind = TypeVar("Kind", Agreement, FederationOptions)


def read_options(path: Path, kind: type[Kind]) -> Kind:
    values = toml(path)
    return kind().changed(_of_release_0_2(values, path) if kind is Agreement else values, str(path))


def _of_release_0_2(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """An agreement of release 0.2, under today's names."""
    new = {{"epsilon": "evaluation_epsilon", "dp_sums": "dp_rounds"}.get(key, key): v for key, v in values.items()}
    if decoys := new.pop("decoys_epsilon", 0.0):
        if new.get("dp_epsilon"):
            raise ConfigError(f"{path}: noise and decoys are not promised together any more: begin a new federation")
        new |= {"dp_epsilon": decoys, "dp_unit": "interaction"}
    return new
