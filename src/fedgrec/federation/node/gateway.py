"""A gateway whose users mask for themselves: one folder, one connection, and behind it a node for every user.

    GATEWAY/gateway.json                          federation, name
    GATEWAY/users/7/                              node.json, identity.key and node.sqlite of the user at place 7 of the
                                                  roster, as in a node's folder
    GATEWAY/roster.json, config.toml, items.bin   as in a node's folder, once for all users

Each user is its own client of secure aggregation: its key is on the roster, and it has its own shares, masks and
memory. The gateway hands each user its packet and carries the answers back (common/bundles.py); it adds up nothing.
"""

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgrec.federation.common import bundles, packets
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import GATEWAY, NODE, Terms, read_kind
from fedgrec.federation.common.packets import Packet, disagreement, failure
from fedgrec.federation.common.roster import Member
from fedgrec.federation.common.values import as_json, filled, parse_json
from fedgrec.federation.node import changes, node
from fedgrec.federation.node.changes import Renewal
from fedgrec.federation.node.current_sum import Sums
from fedgrec.federation.node.folder import USERS, NodeFolder, create_node, open_node
from fedgrec.federation.node.sources import Marks
from fedgrec.federation.node.store import STORE, NodeStore

Keys = Mapping[int, Ed25519PrivateKey]  # by place on the roster
log = logging.getLogger("fedgrec.node")


@dataclass(frozen=True)
class Gateway:
    """A gateway's folder, opened."""

    path: Path
    federation: str
    name: str

    @property
    def members(self) -> dict[int, Path]:
        """The folders of its users' nodes, by their place on the roster."""
        found = {int(path.name): path for path in (self.path / USERS).glob("*") if path.name.isdecimal()}
        if not found:
            raise FederationError(f"{self.path / USERS} has no user's folder: restore it from where it was made")
        return dict(sorted(found.items()))

    def hosted(self) -> dict[int, str]:
        """The user at each taken place; the key of a free place waits for a user, the first or the next one."""
        found: dict[int, str] = {}
        for index, path in self.members.items():
            with NodeStore(path, read_only=True) as store:
                if store.count():
                    (found[index],) = store.ids(1)
        return found

    def answering(self) -> list[int]:
        """Places with a user, and places whose user has left: batches stay whole, and nobody sees in a sum who left.

        A place that was in no sum yet waits for its first user.
        """
        found = []
        for index, path in self.members.items():
            with NodeStore(path) as store:
                if store.count() or store.was_in_sums():
                    found.append(index)
        return found

    def take_in(self, people: Mapping[str, Marks], share: float = 0.0) -> tuple[Renewal, int]:
        """Give each new user a key; return what changed, and how many users got no key.

        Keys are drawn at random: places in the order of names would tell the server that order. A user who was
        forgotten at one place is refused at all places.
        """
        members, found, hosted = self.members, Renewal(), self.hosted()
        free, salt = [index for index in members if index not in hosted], anyone(self.path).user_salt
        secrets.SystemRandom().shuffle(free)
        gone = self._forgotten()
        waiting = [user for user in people if user not in hosted.values() and changes.tag(user, salt) not in gone]
        found += Renewal(back=sum(changes.tag(user, salt) in gone for user in people))
        while free and waiting:
            home, user = open_node(members[free[-1]]), waiting.pop(0)
            came = renewed(home, {user: people[user]}, share)
            found += came
            if came.came:
                free.pop()
        return found, len(waiting)

    def _forgotten(self) -> set[bytes]:
        """Tags of users who were forgotten, at any place."""
        found = set[bytes]()
        for path in self.members.values():
            with NodeStore(path) as store:
                found |= set(store.column("forgotten", "tag"))
        return found

    def answer(self, request: Packet, sums: Sums) -> Packet:
        """The answers of its users, each to its own packet."""
        if request.kind == packets.WHO:
            return Packet(packets.WHO, {bundles.MEMBERS: self.answering()})
        if request.kind != packets.BUNDLE:
            raise FederationError(
                f"{self.name} is a gateway whose users mask for themselves, and the server's roster.json does not say "
                f"so: copy the gateway's to the server"
            )
        members, parts = self.members, bundles.unpack(request)
        nobody = failure(f"{self.name} does not host this user")
        return bundles.pack(
            {
                index: node.handle(members[index], part, sums) if index in members else nobody
                for index, part in parts.items()
            }
        )


@dataclass
class NodeProcess:
    """The process of a node or of a gateway: it alone has the secrets of the sums that its nodes are in."""

    folder: Path
    sums: Sums = field(default_factory=dict)

    def handle(self, request: Packet) -> Packet:
        """One message of the server → the answer."""
        if request.kind != packets.REFUSED and (why := disagreement(request.protocol, "server", "node")):
            log.error("%s", why)
            return failure(why)
        if not (self.folder / GATEWAY).exists():
            if request.kind == packets.WHO:
                return Packet(packets.WHO, {bundles.MEMBERS: []})
            return node.handle(self.folder, request, self.sums)
        return node.answered("gateway", lambda: open_gateway(self.folder).answer(request, self.sums))

    def work_ahead(self, request: Packet) -> None:
        """What can be computed before the next message comes."""
        node.work_ahead(self.folder, request, self.sums)


def renewed(home: NodeFolder, source: Mapping[str, Marks], share: float) -> Renewal:
    """Update one node's users from a source."""
    with NodeStore(home.path) as store:
        store.check()
        return changes.renew(store, home.method(1), source, share, home.user_salt, home.agreed.decoys_epsilon)


# ---------------------------------------------------------------------------------------------- opening


def open_gateway(path: Path) -> Gateway:
    if not (path / GATEWAY).exists() and (path / NODE).exists():
        raise FederationError(f"{path} is one node, which adds its users up, and not a gateway whose users mask")
    return filled(Gateway, parse_json(path / GATEWAY, read_kind(path, GATEWAY)), path / GATEWAY, path=path)


def opened(path: Path) -> NodeFolder | Gateway:
    """The node or gateway to start; the roster must name it as what it is."""
    if not (path / GATEWAY).exists():
        if (path / USERS).exists():
            raise FederationError(f"{path} has a gateway's users and no {GATEWAY}: restore it from where it was made")
        home = open_node(path)
        home.check()
        if home.gateway:
            raise FederationError(f"{path} is one user of a gateway, not a node by itself: start {home.shared}")
        if (line := home.roster.get(home.index)) and line.gateway:
            raise FederationError(
                f"{path} is made to add its users up, and by roster.json it is a user of {line.gateway} who masks for "
                f"itself: restore the file that is not this node's"
            )
        return home
    gateway = open_gateway(path)
    if (path / NODE).exists() or (path / STORE).exists():
        raise FederationError(
            f"{path} is a gateway whose users mask for themselves ({GATEWAY}), and has a {NODE} or {STORE} of a node "
            f"that adds its users up: a folder is one or the other, and the users of one cannot move to the other"
        )
    for index, member in gateway.members.items():
        home = open_node(member)
        home.check()
        line = home.membership.members.get(index)  # a new user's comes from the server
        if line and line.gateway != gateway.name:
            raise FederationError(
                f"{member} is not a user of {gateway.name} by roster.json: restore the file that is not this gateway's"
            )
    return gateway


def node_folders(path: Path) -> list[Path]:
    """The folders with a node in them: this one, or those of a gateway's users."""
    return list(open_gateway(path).members.values()) if (path / GATEWAY).exists() else [path]


def anyone(path: Path) -> NodeFolder:
    """A node's folder, or that of any user of a gateway: all of them have the same limits and the same salt."""
    return open_node(node_folders(path)[0])


# ----------------------------------------------------------------------------------------------- making


def enrol(name: str, first: int, users: int = 0) -> tuple[dict[int, Member], dict[int, Ed25519PrivateKey]]:
    """Lines of the roster and their keys: for a node, or for this many users of a gateway, from this place on."""
    keys = {index: Ed25519PrivateKey.generate() for index in range(first, first + (users or 1))}
    public = {index: key.public_key().public_bytes_raw() for index, key in keys.items()}
    if not users:
        return {first: Member(name, public[first])}, keys
    return {index: Member(f"{name}.{index}", key, name) for index, key in public.items()}, keys


def create(path: Path, terms: Terms, keys: Keys, salt: bytes, floors: Mapping[str, Any]) -> None:
    """Write the files of a node or of a gateway: the roster says which of them these keys are."""
    name = terms.membership.members[min(keys)].gateway
    if name and not (path / GATEWAY).exists():
        terms.write(path)
        write_private(path / GATEWAY, as_json({"federation": terms.federation, "name": name}))
        (path / USERS).mkdir(mode=0o700)
    for index, key in keys.items():
        create_node(path / USERS / str(index) if name else path, terms, index, key, salt, floors)
