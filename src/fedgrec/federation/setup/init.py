"""`fedgrec federation init`, and later changes of a federation: authority, certificates, keys, roster, folders.

    FED/authority/   ca.key, ca.crt: signs the server's certificates, rosters and catalogues; keep it off the network
    FED/server/      for the server's machine      FED/node-0/, node-1/, …   one for each node's machine

server/folder.py, node/folder.py, node/gateway.py and common/network.py say what is in each folder.
"""

import ipaddress
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgrec.config.configuration import Config
from fedgrec.config.options import falling
from fedgrec.errors import ConfigError
from fedgrec.federation.common import certificates, network
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.common.certificates import as_pem, open_authority
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import NODE, Terms, new_federation
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.roster import Member, Membership, Roster, homes, write_roster
from fedgrec.federation.common.web import host_and_port, is_address
from fedgrec.federation.node.folder import IDENTITY, floors
from fedgrec.federation.node.gateway import Keys, anyone, create, enrol, open_gateway
from fedgrec.federation.server.folder import create_server, open_server
from fedgrec.federation.setup import services

SERVER_FOLDER = "server"
MOST_USERS = 1000  # the most users that a node may bring, by default
ONE = {"users": 1, "people": 1}  # what is said of a user who masks for itself


@dataclass(frozen=True)
class Made:
    """What `init` made."""

    server: Path
    nodes: list[Path]


def init(
    out: Path,
    nodes: int,
    catalogue: Sequence[str],
    config: Config,
    options: FederationOptions,
    host: str = "127.0.0.1",
    port: int = 9092,
    fill: Callable[[Path, int], str] = lambda folder, index: "",
    per_user_masks: Sequence[int] = (),
    most_users: Sequence[int] = (),
    people: Sequence[int] = (),
    agreed: Agreement = AS_USUAL,
) -> Made:
    """Make a federation; `fill` puts a node's interactions into its folder and returns their source.

    With `per_user_masks` each node is a gateway for that many users, each with its own key. `most_users`: the most
    users that each node may bring, by default MOST_USERS; `people`: the fewest that it is sure to bring, by default 1.
    """
    if nodes < 3:
        raise ConfigError(f"{nodes} nodes: a secure sum of fewer than three hides nothing from one of them")
    if per_user_masks and min(per_user_masks) < 1:
        raise ConfigError("a gateway whose users mask for themselves needs at least one: a key is made for each")
    if out.exists():
        raise ConfigError(f"{out} exists: choose a folder that does not, keys are never overwritten")
    if broken := next((name for name in catalogue if "\n" in name or "\r" in name), ""):
        raise ConfigError(f"the item {broken!r} has a line break, and a catalogue has one item a line: rename it")
    config.model.check_rounds(options.rounds)
    config = replace(config, model=falling(config.model, options.rounds))
    with all_or_nothing(out):
        ca = certificates.authority("fedgrec")
        certificates.write_authority(out, ca)
        members: dict[int, Member] = {}
        keys = []
        for number in range(nodes):
            lines, own = enrol(f"node-{number}", len(members), per_user_masks[number] if per_user_masks else 0)
            most = most_users[number] if most_users else MOST_USERS
            members |= stated(lines, most, people[number] if people else 1)
            keys.append(own)
        membership = Membership(new_federation(), 1, members).signed(ca[0])
        terms, salt = Terms(membership, as_pem(ca[1]), config, len(catalogue), agreed), secrets.token_bytes(32)
        listing = "".join(f"{name}\n" for name in catalogue)
        server = out / SERVER_FOLDER
        create_server(server, terms, options)
        (server / network.KEYS).mkdir(mode=0o700)
        write_private(server / CATALOGUE, listing.encode())
        renew(out, host)
        network.write_network(server, network.ServerNetwork("127.0.0.1" if _is_loopback(host) else "0.0.0.0", port))
        services.write_unit(server, services.SERVER)
        services.write_alerts(server)
        made = Made(server, [])
        for number, own in enumerate(keys):
            folder = out / f"node-{number}"
            create(folder, terms, own, salt, floors(options))
            _connect(folder, server, listing, host_and_port(host, port), fill(folder, number))
            made.nodes.append(folder)
        return made


def stated(lines: Roster, most: int, people: int, joined: int = 1) -> Roster:
    """Lines of the roster with the most and the fewest users that each may bring: a gateway's user is one."""
    if most < 1:
        raise ConfigError(f"{most} users: a node brings at least one")
    if not 1 <= people <= most:
        raise ConfigError(f"{people} people: a node is sure to bring at least one, and at most its {most} users")
    said: dict[str, Any] = {"users": most, "people": people, "joined": joined}
    return {index: replace(line, **said | (ONE if line.gateway else {})) for index, line in lines.items()}


def secrets_of(per_user_masks: bool) -> dict[str, str]:
    """The files in FED that hold a secret, and where each belongs."""
    own, here = "users/*/" if per_user_masks else "", "that node alone"
    return {
        f"node-*/{own}{IDENTITY}": here,
        f"node-*/{own}{NODE}": f"{here}; it has the salt of users' names",
        f"node-*/{network.FLOWER}": here,
        f"{SERVER_FOLDER}/{network.TLS_KEY}": "the server alone",
        f"{certificates.AUTHORITY}/{certificates.CA_KEY}": "offline: who has it enrols nodes",
    }


@contextmanager
def all_or_nothing(out: Path) -> Iterator[None]:
    """A new folder, which is removed if something fails: an incomplete set of keys is of no use."""
    out.mkdir(parents=True, mode=0o700)
    try:
        yield
    except BaseException:
        shutil.rmtree(out)
        raise


def add_node(out: Path, users: int = 0, most: int = MOST_USERS, people: int = 1) -> Path:
    """Add a node to FED that may bring at most `most` users, or a gateway for `users` users; return its folder."""
    folder = out / new_name(open_server(out / SERVER_FOLDER).membership)
    _enrol(out, folder, users, most, people)
    return folder


def new_name(membership: Membership) -> str:
    """A name that no node has or had."""
    tails = [name.rpartition("-")[2] for name in homes(membership.members)]
    return f"node-{1 + max((int(tail) for tail in tails if tail.isdecimal()), default=-1)}"


def add_users(out: Path, name: str, users: int) -> list[Path]:
    """Make keys for this many more users of a gateway in FED, and return their folders; or let a node bring more."""
    if users < 1:
        raise ConfigError(f"{users} users: add at least one")
    folder, members = out / name, open_server(out / SERVER_FOLDER).membership.members
    here = {place: line for place, line in members.items() if line.name == name and not line.gateway and not line.left}
    if here:
        more = {place: replace(line, users=line.users and line.users + users) for place, line in here.items()}
        write_roster(out / SERVER_FOLDER, next_roster(out, {**members, **more}))
        return []
    before = open_gateway(folder).members.keys()
    _enrol(out, folder, users)
    return [path for index, path in open_gateway(folder).members.items() if index not in before]


def _enrol(out: Path, folder: Path, users: int, most: int = MOST_USERS, people: int = 1) -> None:
    """Make new keys for a folder, and a roster with them; after an interruption the server's is the old one."""
    now = open_server(out / SERVER_FOLDER).membership
    lines, keys = enrol(folder.name, max(now.members) + 1, users)
    following = next_roster(out, {**now.members, **stated(lines, most, people, now.number + 1)})
    create_again(out, folder, keys, following)
    write_roster(out / SERVER_FOLDER, following)


def some_node(out: Path) -> Path:
    """A node's folder in FED: the nodes share what the server must not know."""
    there = (out / name for name in homes(open_server(out / SERVER_FOLDER).roster))
    if (found := next((path for path in there if path.is_dir()), None)) is None:
        raise FederationError(
            f"{out} has no other node's folder, which has what all nodes share: copy one back for this"
        )
    return found


def create_again(out: Path, folder: Path, keys: Keys, membership: Membership) -> None:
    """Write a node's files, with what another node has; a new folder also gets those for the network."""
    server = open_server(out / SERVER_FOLDER)
    other = some_node(out)
    certificate, first = (server.path / network.CA).read_bytes(), anyone(other)
    terms = Terms(membership, certificate, server.config, server.n_items, server.agreed)
    if folder.is_dir() and folder.name in homes(server.roster):
        create(folder, terms, keys, first.user_salt, floors(first))
        return
    listing = (server.path / CATALOGUE).read_text("utf-8")
    superlink = network.read_network(other, network.NodeNetwork).superlink
    with nullcontext() if folder.is_dir() else all_or_nothing(folder):  # an interrupted command leaves a part of one
        create(folder, terms, keys, first.user_salt, floors(first))
        _connect(folder, server.path, listing, superlink, "")


def next_roster(out: Path, members: Roster) -> Membership:
    """The roster that follows the server's, signed."""
    now = open_server(out / SERVER_FOLDER).membership
    return Membership(now.federation, now.number + 1, members).signed(open_authority(out)[0])


def renew(out: Path, host: str) -> Path:
    """A fresh key and certificate for the server; it also names this machine: its own parts talk over loopback."""
    server = out / SERVER_FOLDER
    key, certificate = certificates.server_certificate(open_authority(out), [host, "127.0.0.1", "localhost"])
    write_private(server / network.TLS_KEY, certificates.pem(key))
    write_private(server / network.TLS_CERTIFICATE, as_pem(certificate))
    return server / network.TLS_CERTIFICATE


def _connect(folder: Path, server: Path, catalogue: str, superlink: str, source: str) -> None:
    """Write what a node needs to reach the server, and what the server needs to know the node."""
    give_network_key(folder, server)
    write_private(folder / CATALOGUE, catalogue.encode())
    network.write_network(folder, network.NodeNetwork(superlink, source))
    services.write_unit(folder, services.NODE)


def give_network_key(folder: Path, server: Path) -> None:
    private, public = certificates.ssh_pair()
    write_private(folder / network.FLOWER, private)
    write_private(server / network.KEYS / f"{folder.name}.pub", public)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
