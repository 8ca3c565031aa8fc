"""How a node joins: it proves who it is, names its users by keyed hashes, and takes up newer rosters and catalogues."""

import hmac
import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedgrec.errors import many
from fedgrec.federation.common import catalogue, packets
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import NODE
from fedgrec.federation.common.packets import Packet, hello_part, plain
from fedgrec.federation.node import history, known_roster, rules
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.federation.node.store import NodeStore

LEFT_OUT = "%s left out: other nodes brought these names first; once they are free, `refresh` brings these users"
log = logging.getLogger("fedgrec.node")


def hello(folder: NodeFolder, store: NodeStore, request: Packet) -> Packet:
    if request.header.get("federation") != folder.federation:
        raise FederationError(f"node {folder.name} belongs to another federation")
    turn = request.header.get(packets.TURN, 0)
    if type(turn) is not int or turn < store.get(packets.TURN, 0):
        raise FederationError("another server has taken over from this one: stop this one, its nodes hear the other")
    store.put(packets.TURN, turn)
    nonce = request.blobs.get("nonce", b"")
    if len(nonce) < 16:
        raise FederationError("a node signs only what the server made up for it: the nonce is too short")
    known_roster.check_server(folder, store, request.header.get("roster"))
    users = {_tag(folder, user, leaves): row for row, user, leaves in store.rows("users", "row, id, leaving")}
    left = [] if store.get("claims") else store.get("left_out", [])
    before = {tag for tag, row in users.items() if row in left}
    taken = before | _taken(folder, store, request.blobs.get(packets.TAKEN, b""), users)
    if taken:
        rules.check_people(folder, len(users) - len(taken), store.was_in_sums())
    store.put("claims", None)
    tags = np.frombuffer(b"".join(sorted(users.keys() - taken)), np.uint8).reshape(-1, 32)
    store.announce([users[tag] for tag in taken])
    store.put("refused", None)
    part = hello_part(folder.federation, nonce, folder.index, folder.agreement, tags)
    header = {
        "index": folder.index,
        "agreement": folder.agreement,
        packets.HISTORY: history.told(store, request.header.get("sums")),
        "serves": store.get("serves"),
        "catalogue": catalogue.version_of(folder.shared),
        "roster": folder.membership.number,
    }
    return Packet(packets.HELLO, header, {"signature": folder.identity.sign(part)}, {"tags": tags})


def _taken(folder: NodeFolder, store: NodeStore, packed: bytes, users: Mapping[bytes, int]) -> set[bytes]:
    """The tags of users whose names other nodes brought first, as the server says.

    A lying server could leave a person out of one sum, and see the difference to another. So whoever was in a sum
    stays in, and who is left out comes in only when the node's operator says so (refresh.py).
    """
    taken = [packed[at : at + 32] for at in range(0, len(packed), 32)]
    if len(set(taken)) < len(taken) or not users.keys() >= set(taken):
        raise FederationError(f"the server names users whom node {folder.name} did not bring, or one twice")
    if known := store.in_sums().intersection(users[tag] for tag in taken) if taken else None:
        raise FederationError(
            f"the server says that other nodes have {many(len(known), 'user')} of node {folder.name} who were "
            f"in its sums: only a lying or restored server says so; if they moved, take them off this node"
        )
    if taken:
        log.warning(LEFT_OUT, many(len(taken), "user"))
    return set(taken)


def _tag(folder: NodeFolder, user: str, leaves: bool) -> bytes:
    """The server's name for a user. A leaving user may be on another node already: its tag is this node's own."""
    salt = folder.user_salt
    if leaves:
        salt = hmac.digest(salt, b"leaves node %d" % folder.index, "sha256")
    return hmac.digest(salt, user.encode(), "sha256")


def refused(folder: NodeFolder, store: NodeStore, request: Packet) -> Packet:
    """The server refuses this node; keep the reason for the person who runs it."""
    reason = plain(request.header.get("reason"))
    store.put("refused", reason)
    log.error("the server refused this node: %s", reason)
    return Packet(packets.REFUSED)


def new_items(folder: NodeFolder, store: NodeStore, request: Packet) -> Packet:
    """The catalogue has grown, or items were withdrawn; the authority vouches for it."""
    path = folder.shared
    version = catalogue.unpack(request.blobs.get("catalogue", b""), path / catalogue.CATALOGUE)
    if version != replace(catalogue.installed(path), signature=version.signature):
        catalogue.check(version, path, folder.federation, folder.agreed.most_items)
    elif folder.n_items == len(version.items):  # another user of the gateway got it first
        return Packet(packets.NEW_ITEMS)
    catalogue.install(version, path, folder.path / NODE)
    log.info("version %d of the catalogue: %d items", version.number, len(version.items))
    return Packet(packets.NEW_ITEMS)


def new_roster(folder: NodeFolder, store: NodeStore, request: Packet) -> Packet:
    """A newer roster than the one here."""
    packed = request.arrays.get("roster", np.empty(0, np.uint8))
    known_roster.install(folder, store, packed.tobytes())
    return Packet(packets.NEW_ROSTER)


STEPS = {
    packets.HELLO: hello,
    packets.REFUSED: refused,
    packets.NEW_ITEMS: new_items,
    packets.NEW_ROSTER: new_roster,
}
