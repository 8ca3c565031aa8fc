"""A node's folder: what must be in it before the node starts, how it is made, how it is opened.

    NODE/node.json        federation, name, index on the roster, number of items, the users' salt; and what the node
                          insists on (rules.py): fewest nodes in a sum, fewest users of its own, share of corrupt nodes
    NODE/identity.key     the node's Ed25519 key
    NODE/roster.json, config.toml             as in every folder (common/folder.py)
    NODE/node.sqlite      the node's store (store.py says what is in it)
    NODE/items.bin        the item tables downloaded last, for training
    NODE/served.bin       those of the last model that the server published, for recommendations

A gateway, whose users mask for themselves, has a folder of its own kind: gateway.py. The server has neither the users'
salt nor any identity key.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.config import Config
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY, NODE, Folder, Roster, read_kind, write_common
from fedgrec.federation.common.network import NEW_KEYS
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.values import as_json, filled, parse_json

IDENTITY, TABLE, SERVED, USERS = "identity.key", "items.bin", "served.bin", "users"


@dataclass(frozen=True)
class NodeFolder(Folder):
    """A node's folder, opened."""

    path: Path
    federation: str
    name: str
    index: int
    n_items: int
    least_nodes: int
    user_salt: bytes
    least_users: int = FederationOptions.least_users
    corrupt: float = FederationOptions.corrupt
    gateway: str = ""  # as on the roster

    @property
    def shared(self) -> Path:
        """A gateway's users share these files: GATEWAY/users/7 uses those of GATEWAY."""
        return self.path.absolute().parents[1] if self.gateway else self.path

    @property
    def _floors(self) -> tuple[int, float]:
        return self.least_nodes, self.corrupt

    def check(self) -> None:
        super().check()
        self.identity.public_key()

    @cached_property
    def identity(self) -> Ed25519PrivateKey:
        path = self.path / IDENTITY
        if not path.exists():
            raise FederationError(f"{path} is missing (backups leave keys out): {NEW_KEYS}")
        try:
            return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text()))
        except ValueError:
            raise FederationError(f"{path} is not a key: {NEW_KEYS}") from None


def write_identity(path: Path, identity: Ed25519PrivateKey) -> None:
    write_private(path / IDENTITY, identity.private_bytes_raw().hex().encode())


def create_node(
    path: Path,
    federation: str,
    index: int,
    identity: Ed25519PrivateKey,
    user_salt: bytes,
    roster: Roster,
    config: Config,
    n_items: int,
    least_nodes: int = FederationOptions.least_nodes,
    least_users: int = FederationOptions.least_users,
    corrupt: float = FederationOptions.corrupt,
    agreed: Agreement = AS_USUAL,
) -> None:
    """The files of a node; its users are added to its store afterwards (`store.add_users`).

    If the roster says that the node is a user of a gateway, the node uses the gateway's shared files.
    """
    about = {
        "federation": federation,
        "name": roster[index].name,
        "index": index,
        "n_items": n_items,
        "least_nodes": least_nodes,
        "least_users": least_users,
        "corrupt": corrupt,
        "user_salt": user_salt.hex(),
    }
    if gateway := roster[index].gateway:
        about["gateway"] = gateway
        path.mkdir(mode=0o700)
    else:
        write_common(path, roster, config, n_items, agreed)
    write_private(path / NODE, as_json(about))
    write_identity(path, identity)


def open_node(path: Path) -> NodeFolder:
    if (path / GATEWAY).exists():
        raise FederationError(
            f"{path} is a gateway whose users mask for themselves ({GATEWAY}), not one node: its users are the nodes "
            f"in {path / USERS}"
        )
    return filled(NodeFolder, parse_json(path / NODE, read_kind(path, NODE)), path / NODE, path=path)
