"""What the folders of a federation have in common, and how to tell a server's folder from a node's.

    FOLDER/roster.json    who is in the federation, signed (roster.py); the server's travels to all nodes
    FOLDER/ca.crt         the authority's certificate; the same everywhere
    FOLDER/config.toml    the method and its options; the same everywhere
    FOLDER/agreement.toml what else everybody agrees on (options.py); the same everywhere
    FOLDER/items.txt      the catalogue (catalogue.py); the same everywhere

server/folder.py, node/folder.py and node/gateway.py list the other files of each folder, network.py those for the
network. Only their owner can read these files.
"""

import hashlib
import json
import math
import secrets
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from fedgrec.config.configuration import Config, recorded
from fedgrec.config.options import method_module
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import CA
from fedgrec.federation.common.options import AGREEMENT, AS_USUAL, Agreement, read_options
from fedgrec.federation.common.roster import ROSTER, Membership, Roster, write_roster
from fedgrec.federation.common.values import read_bytes
from fedgrec.methods.budget import with_noise
from fedgrec.methods.contract import Method, able

CONFIG = "config.toml"
NODE, GATEWAY, SERVER = "node.json", "gateway.json", "server.json"  # the file that makes a folder what it is
KINDS = {
    NODE: ("a node's folder", "node"),
    GATEWAY: ("a gateway's folder", "node"),
    SERVER: ("a server's folder", "server"),
}


class Folder:
    """What the folders of server and nodes have in common, opened."""

    path: Path
    federation: str
    n_items: int
    membership: Membership

    def __post_init__(self) -> None:
        if self.n_items < 1:
            raise ValueError(f"n_items cannot be {self.n_items}: a catalogue has at least one item")

    @property
    def roster(self) -> Roster:
        """Those who are in the federation now."""
        return self.membership.present

    @property
    def shared(self) -> Path:
        """Where roster, configuration and item tables are."""
        return self.path

    @property
    def corrupt_nodes(self) -> int:
        """How many nodes may work for the server, possibly all in one sum: at least one, if there are four nodes."""
        return self._corrupt_among(len(self.roster))

    def _corrupt_among(self, n: int) -> int:
        share = self._floors[1]
        return max(math.floor(share * n + 1e-9), int(share > 0 and n > 3))

    @property
    def assumption(self) -> str:
        """A warning where nodes must trust all other nodes; "" where they need not."""
        if self.corrupt_nodes:
            return ""
        return f"none of the {len(self.roster)} nodes may work for the server: from four nodes on, one may"

    @property
    def fewest_nodes(self) -> int:
        """The fewest nodes in any sum: at least two of them are honest."""
        return self.fewest_among(len(self.roster))

    def fewest_among(self, n: int) -> int:
        """The same, if the roster had n nodes."""
        return max(self._floors[0], self._corrupt_among(n) + 2)

    @property
    def _floors(self) -> tuple[int, float]:
        raise NotImplementedError

    @property
    def config(self) -> Config:
        return _config(self.shared / CONFIG, read_bytes(self.shared / CONFIG))

    @property
    def agreed(self) -> Agreement:
        """The options that every node holds the server to."""
        path = self.shared / AGREEMENT
        return _agreement(path, path.read_bytes() if path.exists() else b"")

    @property
    def agreement(self) -> str:
        """A hash of what server and nodes must agree on: the method, all options, and which item has which number."""
        names = self.shared / CATALOGUE
        catalogue = hashlib.sha256(names.read_bytes()).hexdigest() if names.exists() else ""
        about = [self.config.method, asdict(self.config.model), self.n_items, catalogue, asdict(self.agreed)]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def check(self) -> None:
        """Read what the folder needs, so that a mistake is found before anything starts."""
        self.method(1)
        if self.fewest_nodes > len(self.roster):
            raise FederationError(
                f"{self.path}: no sum has fewer than {self.fewest_nodes} nodes, and {ROSTER} has {len(self.roster)}: "
                f"lower least_nodes or corrupt (in federation.toml and node.json), or add nodes"
            )

    def method(self, n_users: int, begun: int = 0) -> Method:
        """The method, in the season that began with this round."""
        return make_method(self.config, self.n_items, n_users, self.agreed).season(begun, self.agreed.most_users)


@lru_cache(8)
def _config(path: Path, content: bytes) -> Config:
    """Cached, because checking a configuration takes longer than answering most messages."""
    return recorded(path)


@lru_cache(8)
def _agreement(path: Path, content: bytes) -> Agreement:
    return read_options(path, Agreement) if content else Agreement()


def check_kind(path: Path) -> None:
    if not any((path / name).exists() for name in KINDS):
        raise FederationError(f"{path} is no folder of a server, a node or a gateway: name one of these")


def read_kind(path: Path, wanted: str) -> bytes:
    """The file that makes a folder a node's, a gateway's or a server's; `FederationError` if it is another kind."""
    if not (path / wanted).exists():
        for name, (what, command) in KINDS.items():
            if (path / name).exists():
                raise FederationError(
                    f"{path} is {what} (it has {name}), not {KINDS[wanted][0]} ({wanted} is missing): name another "
                    f"folder, or run this one with  fedgrec federation {command} {path}"
                )
    return read_bytes(path / wanted)


def _only_sums(method: Method) -> bool:
    return all(stage.combine == "sum" for stage in method.stages)


def make_method(config: Config, n_items: int, n_users: int, agreed: Agreement) -> Method:
    """The method, on the kernel that every device has, with noise; `FederationError` if a federation cannot run it."""
    method: Method = method_module(config.method).make(config.model, n_items, n_users)
    if not _only_sums(method):
        raise FederationError(
            f"{config.method} matches users through a third party, which a federation has not: choose one of "
            f"{able(_only_sums)}"
        )
    if config.data.weight_ceiling > 0:
        raise FederationError("nodes read no ratings: leave out weight_ceiling")
    if config.run.candidates or config.run.repeats:
        raise FederationError("nodes rank all items that a user has not seen: leave out candidates and repeats")
    if agreed.decoys_epsilon:
        method.check_decoys()
    if agreed.noisy:  # a node takes part in each round once
        method = with_noise(method, agreed.dp_epsilon, agreed.dp_delta, agreed.dp_rounds, agreed.dp_rounds)
    return method


def new_federation() -> str:
    """A name that no other federation has."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Terms:
    """What is the same in all folders of a federation."""

    membership: Membership
    authority: bytes  # its certificate
    config: Config
    n_items: int
    agreed: Agreement = AS_USUAL

    @property
    def federation(self) -> str:
        return self.membership.federation

    def check(self) -> None:
        """Refuse what no federation can run."""
        make_method(self.config, self.n_items, 1, self.agreed)

    def write(self, path: Path) -> None:
        """Write the files that all folders have."""
        self.check()
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path / CA, self.authority)
        write_roster(path, self.membership)
        write_private(path / CONFIG, self.config.to_toml().encode())
        write_private(path / AGREEMENT, self.agreed.to_toml().encode())
