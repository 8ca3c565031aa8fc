"""What a folder holds for the network: the names of these files, and network.toml, in which an address can be changed.

FOLDER/network.toml                  see `NodeNetwork` and `ServerNetwork`
FOLDER/ca.crt                        the certificate of the authority
NODE/flower.key                      the key by which the SuperLink knows the node
SERVER/server.pem, server.key        the server's TLS certificate and its key
SERVER/keys/NAME.pub                 the public half of each node's flower.key
"""

import json
import tomllib
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.values import filled

NETWORK, CA, FLOWER = "network.toml", "ca.crt", "flower.key"
KEYS, TLS_CERTIFICATE, TLS_KEY = "keys", "server.pem", "server.key"
WARN_DAYS = 30  # before a certificate ends
NEW_KEYS = "restore it, or, where `init` ran, make new keys with  fedgrec federation rotate-keys FED NODE"


@dataclass(frozen=True)
class NodeNetwork:
    """A node's network.toml."""

    superlink: str  # host:port of the server
    source: str = ""  # where its users' interactions are (node/sources.py); "": they are in its store already
    held_out: float = 0.2  # share of a user's items, the last ones in order, to judge by, unless the source marks them
    refresh: float = 60.0  # seconds between two checks whether the source has changed; 0: it is read only at the start

    def __post_init__(self) -> None:
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"superlink cannot be {self.superlink!r}: it is host:port of the server")
        if not 0 <= self.held_out <= 1:
            raise ValueError(f"held_out cannot be {self.held_out!r}: it is a share from 0 to 1")
        if not self.refresh >= 0:
            raise ValueError(f"refresh cannot be {self.refresh!r}: it is a number of seconds, or 0")


@dataclass(frozen=True)
class ServerNetwork:
    """The server's network.toml."""

    listen: str  # the address that the SuperLink listens on
    port: int

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port cannot be {self.port!r}: it is a number from 1 to 65535")


Network = TypeVar("Network", NodeNetwork, ServerNetwork)


def read_network(folder: Path, kind: type[Network]) -> Network:
    path = folder / NETWORK
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FederationError(f"{path} is missing: is {folder} a folder made by  fedgrec federation init ?") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        known = ", ".join(f.name for f in fields(kind))
        raise FederationError(f"{path} is not readable ({error}): it may set {known}") from None
    return filled(kind, values, path)


def write_network(folder: Path, network: NodeNetwork | ServerNetwork) -> None:
    # Words and numbers look the same in JSON and in TOML.
    lines = [f"{f.name} = {json.dumps(getattr(network, f.name), ensure_ascii=False)}" for f in fields(network)]
    write_private(folder / NETWORK, ("\n".join(lines) + "\n").encode())


def read_flower_key(folder: Path) -> Any:
    """The key by which the SuperLink knows a node."""
    try:
        return load_ssh_private_key((folder / FLOWER).read_bytes(), None)
    except FileNotFoundError:
        raise FederationError(f"{folder / FLOWER} is missing: {NEW_KEYS}") from None
    except ValueError as error:
        raise FederationError(f"{folder / FLOWER} is not a key ({error}): {NEW_KEYS}") from None


def read_authority(folder: Path) -> x509.Certificate:
    """The certificate of the authority, which vouches for the server, for rosters and for catalogues."""
    try:
        return _certificate((folder / CA).read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise FederationError(f"{folder / CA} is missing or not readable ({error}): copy it from authority/") from None


@lru_cache(8)
def _certificate(content: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(content)


def check_tls(folder: Path) -> None:
    """Check that the certificate that the server shows to nodes is there, and its key."""
    for name in (TLS_CERTIFICATE, TLS_KEY):
        if not (folder / name).exists():
            raise FederationError(
                f"{folder / name} is missing (backups leave keys out): where authority/ is, "
                f"fedgrec federation certificate FED --host HOST  makes it; copy {TLS_CERTIFICATE} and {TLS_KEY} here"
            )


def certificates_of(folder: Path) -> dict[str, x509.Certificate]:
    """The certificates in a folder, by the names of their files: the authority's, and before it a server's own."""
    found = {}
    for path in (folder / name for name in (TLS_CERTIFICATE, CA) if (folder / name).exists()):
        try:
            found[path.name] = _certificate(path.read_bytes())
        except ValueError as error:
            raise FederationError(f"{path} is not a certificate ({error}): restore it, or renew it") from None
    return found


def expiry_note(folder: Path, now: datetime | None = None) -> str:
    """A sentence about a certificate in the folder that ends soon, or has ended; "" where none does."""
    now = now or datetime.now(UTC)
    for name, certificate in certificates_of(folder).items():
        what = "the authority's certificate" if name == CA else "the server's certificate"
        end, host = certificate.not_valid_after_utc, certificate.subject.rfc4514_string().removeprefix("CN=")
        if end - now > timedelta(days=WARN_DAYS):
            continue
        left = f"ends on {end:%Y-%m-%d}, in {(end - now).days} days" if end > now else f"ended on {end:%Y-%m-%d}"
        if name == CA:
            return f"{what} ({folder / name}) {left}: begin a new federation before that"
        return (
            f"{what} ({folder / name}) {left}: where authority/ is, run  fedgrec federation certificate FED --host "
            f"{host} , copy {TLS_CERTIFICATE} and {TLS_KEY} here and restart the server"
        )
    return ""
