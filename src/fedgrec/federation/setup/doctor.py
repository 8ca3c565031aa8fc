"""`fedgrec federation doctor`: looks at a folder, and at what runs there, and says what to do next."""

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedgrec import __version__
from fedgrec.errors import FedgrecError, many
from fedgrec.federation.common import network
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.common.folder import SERVER, check_kind
from fedgrec.federation.common.lock import is_taken
from fedgrec.federation.common.packets import PROTOCOL
from fedgrec.federation.common.roster import homes
from fedgrec.federation.common.upkeep import backup_age
from fedgrec.federation.flower import internals
from fedgrec.federation.flower.clients import clock_trouble, tls
from fedgrec.federation.node.folder import IDENTITY, LOCK, open_node
from fedgrec.federation.node.gateway import node_folders, opened
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.status import status

ROOM = 1e9  # bytes that should be free
OLD, LONG = 2 * 86_400.0, 3600.0  # seconds that a backup may be older than what is in the folder; of a node's silence


class Finding(NamedTuple):
    what: str
    wrong: bool = True  # then it also says what to do


def examine(folder: Path) -> Iterator[Finding]:
    """All findings about the folder of a server, a node or a gateway."""
    check_kind(folder)
    for check in (_program, _files, _certificates, _upkeep, _server if (folder / SERVER).exists() else _node):
        try:
            yield from check(folder)
        except (FedgrecError, OSError) as trouble:
            yield Finding(str(trouble))


def _program(folder: Path) -> Iterator[Finding]:
    internals.check()  # the version of Flower
    yield Finding(f"fedgrec {__version__} speaks version {PROTOCOL} of the protocol", wrong=False)


def _files(folder: Path) -> Iterator[Finding]:
    """Everything belongs to one account, and no other may read it."""
    owner, paths = folder.stat().st_uid, [folder, *folder.rglob("*")]
    if bare := [path for path in paths if path.stat().st_mode & 0o077]:
        yield Finding(f"others may use {bare[0]} and {len(bare) - 1} more: chmod -R go= {folder}")
    if foreign := [path for path in paths if path.stat().st_uid != owner]:
        yield Finding(f"{foreign[0]} and {len(foreign) - 1} more are another account's: chown -R OWNER {folder}")


def _certificates(folder: Path) -> Iterator[Finding]:
    for name, certificate in (found := network.certificates_of(folder)).items():
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        is_early = begin > datetime.now(UTC)
        yield Finding(f"{name} holds from {begin:%Y-%m-%d} to {end:%Y-%m-%d}" + ": set the clock" * is_early, is_early)
        try:
            certificate.verify_directly_issued_by(found[network.CA])
        except (InvalidSignature, KeyError, ValueError):
            yield Finding(f"{name} is not of the authority of {network.CA}: copy both again")
    if note := network.expiry_note(folder):
        yield Finding(note)


def _upkeep(folder: Path) -> Iterator[Finding]:
    free, age = shutil.disk_usage(folder).free, backup_age(folder)
    yield Finding(f"{free / 1e9:.1f} GB are free" + "; remove old logs and backups" * (free < ROOM), free < ROOM)
    said = "there is no backup" if age is None else f"the newest backup is {age / 86_400:.1f} days old"
    written = max((path.stat().st_mtime for path in folder.rglob("*.sqlite*")), default=0.0)
    is_old = written > 0 and (age is None or written > time.time() - age + OLD)
    yield Finding(said + f": fedgrec federation backup {folder} --out COPY" * is_old, is_old)


def _server(folder: Path) -> Iterator[Finding]:
    home, port = open_server(folder), network.read_network(folder, network.ServerNetwork).port
    home.check()
    network.check_tls(folder)
    key = load_pem_private_key((folder / network.TLS_KEY).read_bytes(), None)
    if key.public_key() != network.certificates_of(folder)[network.TLS_CERTIFICATE].public_key():
        yield Finding(f"{network.TLS_KEY} does not belong to {network.TLS_CERTIFICATE}: copy both again")
    enrolled, keys = set(homes(home.roster)), {path.stem for path in (folder / network.KEYS).glob("*.pub")}
    for name in sorted(enrolled ^ keys):
        yield Finding(f"{network.KEYS}/{name}.pub " + ("lacks: copy it" if name in enrolled else "has left: delete it"))
    yield Finding(f"{home.membership}, {many(len(enrolled), 'node')}, port {port}", wrong=False)
    s = status(folder)
    yield Finding(s.trouble or f"{s.state}, round {s.round:,} of {s.rounds:,}", bool(s.trouble))
    for node in s.nodes if s.running and s.round else []:
        if not node.removed and (node.heard_seconds is None or node.heard_seconds > LONG):
            yield Finding(f"{node.name} has not answered for an hour: fedgrec federation doctor on its machine")


def _node(folder: Path) -> Iterator[Finding]:
    opened(folder)
    for path in node_folders(folder):
        node = open_node(path)
        if (line := node.roster.get(node.index)) is None:
            yield Finding(f"{node.name} is not on {node.membership}: enrol it, or stop it")
        elif line.key != node.identity.public_key().public_bytes_raw():
            yield Finding(f"{path / IDENTITY} is not the key of {node.name} on the roster: {network.NEW_KEYS}")
        with NodeStore(path, read_only=True) as store:
            if why := store.get("refused"):
                yield Finding(f"the server refused {node.name}: {why}")
    yield Finding(f"{node.membership}, {folder.name}", wrong=False)
    about = network.read_network(folder, network.NodeNetwork)
    if about.source:
        found = read_source(str(folder / about.source), read_catalogue(folder / CATALOGUE))
        yield Finding(f"the source has {many(len(found.users), 'user')}", wrong=False)
    runs = is_taken(folder / LOCK)
    yield Finding("it runs" if runs else f"nobody runs it: fedgrec federation node {folder}", not runs)
    network.read_flower_key(folder)
    try:  # whatever the answer, it comes with the server's certificate and its clock
        trouble = clock_trouble(
            httpx.get(f"https://{about.superlink}/", verify=tls((folder / network.CA).read_bytes()))
        )
        yield Finding(trouble or f"the server at {about.superlink} answers, and the clocks agree", bool(trouble))
    except httpx.TransportError as error:
        yield Finding(f"the server at {about.superlink} does not answer ({error}): does it run? is the port open?")
