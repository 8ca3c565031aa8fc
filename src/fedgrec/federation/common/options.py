"""The options of a federation: how the server drives the nodes. The options of the method are in config.toml."""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from fedgrec.config import checked
from fedgrec.errors import ConfigError, nearest
from fedgrec.options import option


@dataclass(frozen=True)
class FederationOptions:
    """How the server drives the nodes."""

    rounds: int = option(100, "training rounds", least=0)
    nodes_per_round: int = option(0, "nodes that take part in a training round; 0: all that can be reached", least=0)
    spares: int = option(
        0, "nodes asked beyond nodes_per_round; the first to answer take part, the others' turn comes later", least=0
    )
    start_nodes: int = option(0, "nodes that must have joined before the first sum; 0: all of the roster", least=0)
    start_seconds: float = option(600.0, "how long the server waits for them", least=0)
    # Nodes keep the next three in their own folders and insist on them: nodes made before a change have the old ones.
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
    deadline: float = option(60.0, "seconds that nodes have for an exchange", least=0)
    work_deadline: float = option(600.0, "seconds that they have for the one in which they train", least=0)
    retries: int = option(3, "sums that may be lost in a row before the federation stops", least=0)
    pause: float = option(2.0, "seconds before a lost sum is tried again", least=0)
    evaluate_every: int = option(10, "rounds between evaluations; 0: only at the end", least=0)
    topk: tuple[int, ...] = option((20,), "list lengths k of Recall@k and NDCG@k")

    def __post_init__(self) -> None:
        if bool(self.neighbours) != bool(self.threshold):
            raise ConfigError("neighbours and threshold go together: set both, or neither")
        if not self.topk or min(self.topk) < 1:
            raise ConfigError("topk needs at least one list length, each 1 or more, such as  topk = [20]")
        if 0 < self.nodes_per_round < self.least_nodes:
            raise ConfigError(f"nodes_per_round is below least_nodes = {self.least_nodes}: no sum could be opened")

    def changed(self, values: Mapping[str, Any], where: str) -> "FederationOptions":
        """A copy with these options replaced; values are checked."""
        fields = {f.name: f for f in dataclasses.fields(self)}
        hints, new = get_type_hints(FederationOptions), {}
        for name, value in values.items():
            if name not in fields:
                raise ConfigError(f"{where}: there is no option {name!r}.{nearest(name, list(fields))}")
            new[name] = checked(fields[name], hints[name], value, where)
        return dataclasses.replace(self, **new)

    def to_toml(self) -> str:
        lines = ["# How the server drives this federation."]
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            lines += [f"\n# {f.metadata['help']}", f"{f.name} = {list(value) if isinstance(value, tuple) else value}"]
        return "\n".join(lines) + "\n"


def read_options(path: Path) -> FederationOptions:
    """The options in a TOML file."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    return FederationOptions().changed(values, str(path))
