"""`fedgrec federation join`: a node makes its keys on its own machine, and only their public halves travel.

    where authority/ is    invite FED                  → FED/invitation.json, with nothing secret in it
    on the node            join INVITATION NODE        → NODE with fresh keys; NODE/request.json, the public halves
    where authority/ is    add-node FED --request …    → a roster with the node; FED/welcome-NAME.json
    on the node            join WELCOME NODE           → NODE is a node's folder

A welcome holds the users' salt, sealed to a key that the node made for it alone. The authority signs the welcome: who
could give a node another salt would find its users by their names. Until the invitation has come, a node knows no
authority; so the two operators compare the fingerprints that `invite` and `join` print.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedgrec.config.configuration import recorded
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.common.certificates import open_authority, ssh_pair
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import CONFIG, NODE, Terms
from fedgrec.federation.common.network import CA, FLOWER, KEYS, NodeNetwork, read_authority, read_network, write_network
from fedgrec.federation.common.options import AGREEMENT, Agreement, read_options
from fedgrec.federation.common.roster import (
    ROSTER,
    SIGNING,
    Member,
    check_successor,
    read_roster,
    short,
    unpack,
    write_roster,
)
from fedgrec.federation.common.values import as_json, filled, parse_json
from fedgrec.federation.node.folder import NodeFolder, create_node, floors, open_node, read_identity, write_identity
from fedgrec.federation.node.gateway import anyone
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup import services
from fedgrec.federation.setup.init import SERVER_FOLDER, all_or_nothing, new_name, next_roster, some_node, stated

INVITATION, REQUEST, JOINING = "invitation.json", "request.json", "joining.json"
FILES = {"authority": CA, "config": CONFIG, "agreement": AGREEMENT, "items": CATALOGUE, "roster": ROSTER}


@dataclass(frozen=True)
class Invitation:
    """What a node must know before it asks to be enrolled: the texts of the files that all folders have."""

    federation: str
    authority: str
    config: str
    agreement: str
    items: str
    roster: str
    superlink: str  # host:port of the server
    least_nodes: int
    least_users: int
    corrupt: float


@dataclass(frozen=True)
class Request:
    """The public halves of a node's keys, signed with its identity: nobody asks in another's name."""

    federation: str
    identity: bytes
    flower: str
    seal: bytes  # X25519, for this once
    signature: bytes = b""

    @property
    def part(self) -> bytes:
        return b"fedgrec request" + json.dumps(_plain(self, "signature")).encode()


@dataclass(frozen=True)
class Welcome:
    """What an enrolled node needs, signed by the authority."""

    federation: str
    roster: str
    place: int
    name: str
    sender: bytes  # X25519, for this once
    salt: bytes  # the users' salt, sealed
    signature: bytes = b""

    @property
    def part(self) -> bytes:
        return b"fedgrec welcome" + json.dumps(_plain(self, "signature")).encode()


def _plain(made: Any, *without: str) -> dict[str, Any]:
    values = {name: value for name, value in asdict(made).items() if name not in without}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def _write(path: Path, made: Invitation | Request | Welcome) -> None:
    write_private(path, as_json({"kind": type(made).__name__.lower(), **_plain(made)}))


def read_letter(path: Path) -> Invitation | Request | Welcome:
    try:
        values = parse_json(path, path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path} is not readable ({error.strerror}): name an invitation, a request or a welcome"
        ) from None
    kinds: dict[Any, Any] = {kind.__name__.lower(): kind for kind in (Invitation, Request, Welcome)}
    kind = values.pop("kind", None)
    if type(kind) is not str or kind not in kinds:
        raise FederationError(f"{path} is no invitation, no request and no welcome: ask for the file again")
    letter: Invitation | Request | Welcome = filled(kinds[kind], values, path)
    return letter


def fingerprint(path: Path) -> str:
    """What the two operators compare."""
    return short(hashlib.sha256(path.read_bytes()).hexdigest())


# ------------------------------------------------------------------------------------------- where authority/ is


def invite(out: Path) -> Path:
    """Write what a new node must know into FED; return the file."""
    server, superlink = open_server(out / SERVER_FOLDER), read_network(some_node(out), NodeNetwork).superlink
    texts: dict[str, Any] = {name: (server.path / file).read_text("utf-8") for name, file in FILES.items()}
    told = {**texts, "superlink": superlink, **floors(server.options)}
    _write(out / INVITATION, Invitation(server.federation, **told))
    return out / INVITATION


def admit(out: Path, request: Path, most: int, people: int) -> tuple[str, Path]:
    """Enrol the node that made this request; return its name and its welcome. The roster is written last."""
    asks, server, (key, _) = read_letter(request), open_server(out / SERVER_FOLDER), open_authority(out)
    if not isinstance(asks, Request):
        raise FederationError(f"{request} is no request: name the request.json that `join` wrote on the node")
    now, identity = server.membership, asks.identity
    if asks.federation != server.federation:
        raise FederationError(f"{request} asks into another federation: send the node an invitation to this one")
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(asks.signature, asks.part)
        is_usable = isinstance(load_ssh_public_key(asks.flower.encode()), ec.EllipticCurvePublicKey)
        sender = X25519PrivateKey.generate()
        shared = sender.exchange(X25519PublicKey.from_public_bytes(asks.seal))
    except (InvalidSignature, ValueError):
        is_usable = False
    if not is_usable:
        raise FederationError(f"{request} was changed after the node had made it: ask for it again")
    if known := [line.name for line in now.members.values() if line.key == identity]:
        raise ConfigError(f"{request} is enrolled already, as {known[0]}")
    name, place = new_name(now), max(now.members) + 1
    following = next_roster(
        out, {**now.members, **stated({place: Member(name, identity)}, most, people, now.number + 1)}
    )
    public, salt = sender.public_key().public_bytes_raw(), anyone(some_node(out)).user_salt
    sealed = _cipher(shared, server.federation, name, public, asks.seal).encrypt(bytes(12), salt, None)
    welcome = Welcome(server.federation, following.pack().decode(), place, name, public, sealed)
    path = out / f"welcome-{name}.json"
    _write(path, Welcome(**{**vars(welcome), "signature": key.sign(welcome.part, SIGNING)}))
    write_private(server.path / KEYS / f"{name}.pub", asks.flower.encode())
    write_roster(server.path, following)
    return name, path


def _cipher(shared: bytes, federation: str, name: str, sender: bytes, seal: bytes) -> ChaCha20Poly1305:
    """Its key seals one text: sender and receiver made their halves for this welcome alone."""
    about = json.dumps([federation, name, sender.hex(), seal.hex()]).encode()
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, None, b"fedgrec welcome" + about).derive(shared))


# ------------------------------------------------------------------------------------------------- on the node


def begin(invitation: Path, told: Invitation, folder: Path, source: str = "") -> Path:
    """Make a node's keys and its request in a new folder; return the request."""
    if folder.exists():
        raise ConfigError(f"{folder} exists: choose a folder that does not, keys are never overwritten")
    identity, seal, (flower, public) = Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), ssh_pair()
    source = str(Path(source).absolute()) if source else ""
    with all_or_nothing(folder):
        try:
            for name, file in FILES.items():
                write_private(folder / file, getattr(told, name).encode())
            membership = read_roster(folder, told.federation)
            terms = _terms(folder, membership)
            terms.check()
            write_network(folder, NodeNetwork(told.superlink, source))
            services.write_unit(folder, services.NODE)
        except (FedgrecError, ValueError) as error:
            raise FederationError(f"{invitation} is no invitation that a node can accept: {error}") from None
        if source:
            read_source(source, read_catalogue(folder / CATALOGUE), terms.config.model.takes_order)
        write_identity(folder, identity)
        write_private(folder / FLOWER, flower)
        about = {"federation": told.federation, "seal": seal.private_bytes_raw().hex()}
        write_private(folder / JOINING, as_json(about | floors(told)))
        keys = identity.public_key().public_bytes_raw(), public.decode(), seal.public_key().public_bytes_raw()
        request = Request(told.federation, *keys)
        _write(folder / REQUEST, Request(told.federation, *keys, identity.sign(request.part)))
    return folder / REQUEST


def _terms(folder: Path, membership: Any) -> Terms:
    """What the files that came with the invitation say."""
    config, agreed = recorded(folder / CONFIG), read_options(folder / AGREEMENT, Agreement)
    items = len(read_catalogue(folder / CATALOGUE))
    return Terms(membership, (folder / CA).read_bytes(), config, items, agreed)


def finish(path: Path, welcome: Welcome, folder: Path) -> NodeFolder:
    """Make the folder with the request a node's folder. Everything is checked before anything is written."""
    if (folder / NODE).exists() or not (folder / JOINING).exists():
        raise FederationError(f"{folder} waits for no welcome: begin with  fedgrec federation join INVITATION NODE")
    joining = parse_json(folder / JOINING, (folder / JOINING).read_bytes())
    authority, identity = read_authority(folder).public_key(), read_identity(folder)
    assert isinstance(authority, ec.EllipticCurvePublicKey)
    try:
        authority.verify(welcome.signature, welcome.part, SIGNING)
        seal = X25519PrivateKey.from_private_bytes(bytes.fromhex(joining.pop("seal")))
        shared = seal.exchange(X25519PublicKey.from_public_bytes(welcome.sender))
        public = seal.public_key().public_bytes_raw()
        cipher = _cipher(shared, joining.pop("federation"), welcome.name, welcome.sender, public)
        salt = cipher.decrypt(bytes(12), welcome.salt, None)
    except InvalidSignature:
        raise FederationError(
            f"{path} is not signed by the authority that invited {folder}: ask for it again"
        ) from None
    except (InvalidTag, KeyError, TypeError, ValueError):
        raise FederationError(
            f"{path} is the welcome of another node or of another request than {folder} made"
        ) from None
    membership = unpack(welcome.roster.encode(), folder, welcome.federation, str(path))
    check_successor(membership, read_roster(folder, welcome.federation))
    line = membership.present.get(welcome.place)
    if line is None or (line.name, line.key) != (welcome.name, identity.public_key().public_bytes_raw()):
        raise FederationError(f"{path}: its roster has another node at place {welcome.place}: ask for it again")
    create_node(folder, _terms(folder, membership), welcome.place, identity, salt, joining)
    for name in (JOINING, REQUEST):
        (folder / name).unlink(missing_ok=True)
    return open_node(folder)
