"""`fedgrec federation remove-node`, `rotate-keys` and `catalogue`: a node leaves, gets other keys, or items change.

The first two change the roster in FED/server. The operator copies it to the server, which hands it to all nodes.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.errors import ConfigError, nearest
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import NEWEST, Version, installed, newest
from fedgrec.federation.common.certificates import open_authority
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import KEYS
from fedgrec.federation.common.roster import Roster, homes, write_roster
from fedgrec.federation.node.folder import USERS, write_identity
from fedgrec.federation.server.folder import ServerFolder, open_server
from fedgrec.federation.setup.init import SERVER_FOLDER, create_again, give_network_key, next_roster


def remove_node(out: Path, name: str) -> list[int]:
    """Take a node, a gateway or one user of a gateway off the roster; return its places.

    What it has contributed stays in the model. Nobody else ever gets its places or its name.
    """
    server = open_server(out / SERVER_FOLDER)
    gone, members = _places(server, name), server.membership.members
    left = {index: replace(members[index], left=server.membership.number + 1) for index in gone}
    following = next_roster(out, {**members, **left})
    _check_enough(server, following.present, name)
    (server.path / KEYS / f"{name}.pub").unlink(missing_ok=True)
    write_roster(server.path, following)
    return gone


def rotate_keys(out: Path, name: str) -> Path:
    """Make fresh keys for a node, for a gateway and all its users, or for one user; return the folder with them.

    The places stay, and so does all that the server and the node's store know of its users. A folder that is not in FED
    any more is made again, without a store.
    """
    server = open_server(out / SERVER_FOLDER)
    places, members = _places(server, name), server.membership.members
    keys = {index: Ed25519PrivateKey.generate() for index in places}
    public = {index: key.public_key().public_bytes_raw() for index, key in keys.items()}
    renewed = {index: replace(members[index], key=key) for index, key in public.items()}
    following = next_roster(out, {**members, **renewed})
    gateway = members[places[0]].gateway
    folder = out / (gateway or name)
    if not folder.is_dir():
        if name != folder.name:
            raise FederationError(
                f"{folder} is not there: copy it back, or name {folder.name} for new keys of all users"
            )
        create_again(out, folder, keys, following)
    else:
        for index, key in keys.items():
            write_identity(folder / USERS / str(index) if gateway else folder, key)
        if name == folder.name:
            give_network_key(folder, server.path)
    write_roster(server.path, following)
    return folder


def _places(server: ServerFolder, name: str) -> list[int]:
    """The places on the roster of a node, of a gateway's users, or of one such user."""
    found = [index for index, member in server.roster.items() if name and name in (member.name, member.gateway)]
    if not found:
        known = homes(server.roster)
        hint = nearest(name, known)
        raise ConfigError(f"there is no node {name!r} on the roster of {server.path}: {', '.join(known)}.{hint}")
    return found


def _check_enough(server: ServerFolder, roster: Roster, name: str) -> None:
    nodes, members = len(homes(roster)), len(roster)
    if nodes < 3:
        raise ConfigError(
            f"without {name} there are {nodes} nodes, and a secure sum of fewer than three hides nothing from one of "
            f"them: add a node first"
        )
    if (fewest := server.fewest_among(members)) > members:
        raise ConfigError(
            f"without {name} the roster has {members}, and no sum has fewer than {fewest} (least_nodes and corrupt): "
            f"add a node first"
        )


def change_catalogue(out: Path, add: Sequence[str], withdraw: Sequence[str], bring_back: Sequence[str] = ()) -> Version:
    """A new version of the catalogue, signed: add items, withdraw items or bring them back."""
    key, _ = open_authority(out)
    server = open_server(out / SERVER_FOLDER)
    now = newest(server.path) or installed(server.path)
    if again := sorted(set(add) & set(now.items)):
        raise ConfigError(f"{again[0]!r} is in the catalogue already, as item {now.items.index(again[0])}")
    items = (*now.items, *add)
    for name in (*withdraw, *bring_back):
        if name not in items:
            raise ConfigError(f"there is no item {name!r} in the catalogue.{nearest(name, list(items))}")
    if len(items) > server.agreed.most_items:
        raise ConfigError(
            f"{len(items):,} items: all agreed on {server.agreed.most_items:,} at most (most_items in agreement.toml)"
        )
    gone = tuple(sorted({*now.withdrawn, *withdraw} - set(bring_back)))
    if (items, gone) == (now.items, now.withdrawn):
        raise ConfigError("nothing changes: name new items with --add, or items to withdraw with --withdraw")
    version = Version(now.number + 1, items, gone)
    signature = key.sign(version.part(server.federation), ec.ECDSA(hashes.SHA384()))
    version = Version(version.number, items, gone, signature)
    write_private(server.path / NEWEST, version.pack())
    return version
