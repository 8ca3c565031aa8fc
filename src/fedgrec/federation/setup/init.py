"""`fedgrec federation init`, and later changes of a federation: authority, certificates, keys, roster, folders.

    FED/authority/   ca.key, ca.crt: signs the server's certificates; keep it away from the server
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

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from fedgrec.config.configuration import Config
from fedgrec.config.options import falling
from fedgrec.errors import ConfigError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import Member, Roster, Terms, homes, new_federation, write_roster
from fedgrec.federation.common.network import (
    CA,
    FLOWER,
    KEYS,
    TLS_CERTIFICATE,
    TLS_KEY,
    NodeNetwork,
    ServerNetwork,
    read_network,
    write_network,
)
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.values import parse_json
from fedgrec.federation.common.web import host_and_port, is_address
from fedgrec.federation.node.folder import floors
from fedgrec.federation.node.gateway import Keys, anyone, create, enrol, open_gateway
from fedgrec.federation.server.folder import create_server, open_server
from fedgrec.federation.setup import certificates

AUTHORITY, CA_KEY, SERVER_FOLDER = "authority", "ca.key", "server"
REMOVED = "removed.json"  # in the authority's folder: place and name of nodes that left; no other node gets them
MOST_USERS = 1000  # the most users that a node may bring, by default


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
    agreed: Agreement = AS_USUAL,
) -> Made:
    """Make a federation; `fill` puts a node's interactions into its folder and returns their source.

    With `per_user_masks` each node is a gateway for that many users, each with its own key. `most_users`: the most
    users that each node may bring, by default MOST_USERS.
    """
    if nodes < 3:
        raise ConfigError(f"{nodes} nodes: a secure sum of fewer than three hides nothing from one of them")
    if per_user_masks and min(per_user_masks) < 1:
        raise ConfigError("a gateway whose users mask for themselves needs at least one: a key is made for each")
    if out.exists():
        raise ConfigError(f"{out} exists: choose a folder that does not, keys are never overwritten")
    if broken := next((name for name in catalogue if "\n" in name or "\r" in name), ""):
        raise ConfigError(f"the item {broken!r} has a line break, and a catalogue has one item a line: rename it")
    config = replace(config, model=falling(config.model, options.rounds))
    with all_or_nothing(out):
        (out / AUTHORITY).mkdir(mode=0o700)
        key, certificate = certificates.authority("fedgrec")
        write_private(out / AUTHORITY / CA_KEY, certificates.pem(key))
        write_private(out / AUTHORITY / CA, certificate.public_bytes(Encoding.PEM))
        roster: dict[int, Member] = {}
        keys = []
        for number in range(nodes):
            lines, own = enrol(f"node-{number}", len(roster), per_user_masks[number] if per_user_masks else 0)
            roster |= _with_ceiling(lines, most_users[number] if most_users else MOST_USERS)
            keys.append(own)
        terms, salt = Terms(new_federation(), roster, config, len(catalogue), agreed), secrets.token_bytes(32)
        listing = "".join(f"{name}\n" for name in catalogue)
        server = out / SERVER_FOLDER
        create_server(server, terms, options)
        (server / KEYS).mkdir(mode=0o700)
        _shared_files(server, certificate, listing)
        renew(out, host)
        write_network(server, ServerNetwork("127.0.0.1" if _is_loopback(host) else "0.0.0.0", port))
        made = Made(server, [])
        for number, own in enumerate(keys):
            folder = out / f"node-{number}"
            create(folder, terms, own, salt, floors(options))
            _connect(folder, server, certificate, listing, host_and_port(host, port), fill(folder, number))
            made.nodes.append(folder)
        return made


def _with_ceiling(lines: Roster, most: int) -> Roster:
    """Lines of the roster with the most users that each may bring: a gateway's user is one."""
    if most < 1:
        raise ConfigError(f"{most} users: a node brings at least one")
    return {index: replace(line, users=1 if line.gateway else most) for index, line in lines.items()}


@contextmanager
def all_or_nothing(out: Path) -> Iterator[None]:
    """A new folder, which is removed if something fails: an incomplete set of keys is of no use."""
    out.mkdir(parents=True, mode=0o700)
    try:
        yield
    except BaseException:
        shutil.rmtree(out)
        raise


def add_node(out: Path, users: int = 0, most: int = MOST_USERS) -> Path:
    """Add a node to FED that may bring at most `most` users, or a gateway for `users` users.

    The node gets a folder, and all others get a new roster.
    """
    read_authority(out)
    names = [*homes(open_server(out / SERVER_FOLDER).roster), *removed(out).values()]
    tails = [name.partition(".")[0].rpartition("-")[2] for name in names]
    folder = out / f"node-{1 + max((int(tail) for tail in tails if tail.isdecimal()), default=-1)}"
    _enrol(out, folder, users, most)
    return folder


def add_users(out: Path, name: str, users: int) -> list[Path]:
    """Make keys for this many more users of a gateway in FED; return their folders."""
    if users < 1:
        raise ConfigError(f"{users} users: add at least one")
    folder = out / name
    before = open_gateway(folder).members.keys()
    _enrol(out, folder, users)
    return [path for index, path in open_gateway(folder).members.items() if index not in before]


def _enrol(out: Path, folder: Path, users: int, most: int = MOST_USERS) -> None:
    """Make new keys for a folder, and give everybody a roster with them."""
    server = open_server(out / SERVER_FOLDER)
    lines, keys = enrol(folder.name, max([*server.roster, *removed(out)]) + 1, users)
    roster: Roster = {**server.roster, **_with_ceiling(lines, most)}
    create_again(out, folder, keys, roster)
    give_roster(out, roster)


def create_again(out: Path, folder: Path, keys: Keys, roster: Roster) -> None:
    """Write a node's files, with what another node has; a new folder also gets those for the network."""
    server = open_server(out / SERVER_FOLDER)
    other = next((out / name for name in homes(server.roster) if (out / name).is_dir()), None)
    if other is None:
        raise FederationError(
            f"{out} has no other node's folder, which has what all nodes share: copy one back for this"
        )
    terms, first = Terms(server.federation, roster, server.config, server.n_items, server.agreed), anyone(other)
    if folder.is_dir() and folder.name in homes(server.roster):
        create(folder, terms, keys, first.user_salt, floors(first))
        return
    listing, superlink = (server.path / CATALOGUE).read_text("utf-8"), read_network(other, NodeNetwork).superlink
    with nullcontext() if folder.is_dir() else all_or_nothing(folder):  # an interrupted command leaves a part of one
        create(folder, terms, keys, first.user_salt, floors(first))
        _connect(folder, server.path, read_authority(out)[1], listing, superlink, "")


def give_roster(out: Path, roster: Roster) -> None:
    """Write the roster, the server's copy last: after an interruption it is the old one, and the command runs again."""
    for other in [*(out / name for name in homes(roster)), out / SERVER_FOLDER]:
        if other.is_dir():  # a folder that was moved to its machine gets the roster by hand
            write_roster(other, roster)


def removed(out: Path) -> dict[int, str]:
    """Places of removed nodes, and their names: old sums name these places, so no other node gets them."""
    path = out / AUTHORITY / REMOVED
    lines = parse_json(path, path.read_bytes()) if path.exists() else {}
    return {int(index): str(name) for index, name in lines.items()}


def renew(out: Path, host: str) -> Path:
    """A fresh key and certificate for the server; it also names this machine: its own parts talk over loopback."""
    server = out / SERVER_FOLDER
    key, certificate = certificates.server_certificate(read_authority(out), [host, "127.0.0.1", "localhost"])
    write_private(server / TLS_KEY, certificates.pem(key))
    write_private(server / TLS_CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return server / TLS_CERTIFICATE


def read_authority(out: Path) -> certificates.Authority:
    try:
        key = load_pem_private_key((out / AUTHORITY / CA_KEY).read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((out / AUTHORITY / CA).read_bytes())
    except FileNotFoundError as error:
        raise FederationError(f"{error.filename} is missing: only where `init` ran can this be done") from None
    except ValueError as error:
        raise FederationError(f"{out / AUTHORITY} has no readable key and certificate ({error}): restore it") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, certificate


def _connect(
    folder: Path, server: Path, certificate: x509.Certificate, catalogue: str, superlink: str, source: str
) -> None:
    """Write what a node needs to reach the server, and what the server needs to know the node."""
    give_network_key(folder, server)
    _shared_files(folder, certificate, catalogue)
    write_network(folder, NodeNetwork(superlink, source))


def give_network_key(folder: Path, server: Path) -> None:
    private, public = certificates.ssh_pair()
    write_private(folder / FLOWER, private)
    write_private(server / KEYS / f"{folder.name}.pub", public)


def _shared_files(folder: Path, certificate: x509.Certificate, catalogue: str) -> None:
    write_private(folder / CA, certificate.public_bytes(Encoding.PEM))
    write_private(folder / CATALOGUE, catalogue.encode())


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)
