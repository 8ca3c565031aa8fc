"""The options of a federation: what everybody agrees on, and how the server drives the nodes.

    FOLDER/agreement.toml     the same in every folder: nodes sign it and bind their masks to it, so that the server
                              cannot ask for other list lengths, for more evaluations, or for less noise
    SERVER/federation.toml    the server's own

The options of the method are in config.toml.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from fedgrec.config import checked
from fedgrec.errors import ConfigError, nearest
from fedgrec.federation.common import evaluation
from fedgrec.options import option
from fedgrec.secagg.parameters import SECURITY

AGREEMENT = "agreement.toml"


@dataclass(frozen=True)
class _Options:
    """Options in a TOML file of their own."""

    title: ClassVar[str]

    def changed(self, values: Mapping[str, Any], where: str) -> Self:
        """A copy with these options replaced; values are checked."""
        fields = {f.name: f for f in dataclasses.fields(self)}
        hints, new = get_type_hints(type(self)), {}
        for name, value in values.items():
            if name not in fields:
                raise ConfigError(f"{where}: there is no option {name!r}.{nearest(name, list(fields))}")
            new[name] = checked(fields[name], hints[name], value, where)
        return dataclasses.replace(self, **new)

    def to_toml(self) -> str:
        lines = [f"# {self.title}"]
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            lines += [f"\n# {f.metadata['help']}", f"{f.name} = {list(value) if isinstance(value, tuple) else value}"]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Agreement(_Options):
    """What nodes hold the server to, beside the floors in their own node.json."""

    title = "What everybody in this federation has agreed on: the same file in every folder."

    topk: tuple[int, ...] = option((20,), "list lengths k of Recall@k and NDCG@k")
    evaluations: int = option(20, "evaluations that a node takes part in, in all", least=0)
    evaluation_users: int = option(50, "the fewest users over whom an evaluation is summed", least=1)
    epsilon: float = option(8.0, "what all evaluations together may tell of one person, by noise; 0: no noise", least=0)
    decoys_epsilon: float = option(
        0.0,
        "ε of every single interaction, by decoys: what users tell of each item is true by chance alone; 0: none",
        least=0,
        most=700,
    )
    dp_epsilon: float = option(
        0.0,
        "what all training sums together may tell of one user, with all of its items, by noise; 0: no noise",
        least=0,
    )
    dp_delta: float = option(1e-6, "the chance that dp_epsilon does not hold", least=1e-15, most=0.1)
    dp_sums: int = option(
        20, "under dp_epsilon: training rounds that a node takes part in, in all; they are the first ones", least=1
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
        if not self.topk or min(self.topk) < 1:
            raise ConfigError("topk needs at least one list length, each 1 or more, such as  topk = [20]")
        if 0 < self.dp_epsilon < 0.01:
            raise ConfigError("dp_epsilon is 0, which means no noise, or at least 0.01")

    @cached_property
    def deviation(self) -> float:
        """The standard deviation of the noise in each number of an evaluation."""
        return evaluation.deviation(self.epsilon, self.topk, self.evaluations) if self.evaluations else 0.0


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
        "the fewest users that a node adds up in a training round or judges by; one that has fewer gives all",
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
    """The options in a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    if kind is FederationOptions:
        values.pop("topk", None)  # a server of version 0.1 had it in this file
    return kind().changed(values, str(path))
