"""The roster: everybody who is or was in a federation, by place; numbered, and signed by the authority.

    FOLDER/roster.json    number, nodes (place → a `Member`), signature

A new roster has a larger number and keeps all earlier lines: nobody vanishes from it, and no place is given again. The
authority's operator copies it to the server; the server takes it up by itself, and hands it to every node that has an
older one. Operators compare its fingerprint over the phone.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import read_authority
from fedgrec.federation.common.values import as_json, filled, parse_json, read_bytes

ROSTER = "roster.json"
KEPT = ("name", "gateway", "people", "joined")  # what a line says as long as the federation lives
SIGNING = ec.ECDSA(hashes.SHA384())


@dataclass(frozen=True)
class Member:
    name: str
    key: bytes  # Ed25519, public
    gateway: str = ""  # the gateway that hosts it, if it is one user with masks of its own
    users: int = 0  # the most users that it may bring; 0: not stated
    people: int = 1  # the fewest people that it is sure to bring
    joined: int = 1  # the number of the roster with which it came
    left: int = 0  # the number of the roster with which it went; 0: it is here

    def __post_init__(self) -> None:
        if self.users < 0:
            raise ValueError(
                f"users cannot be {self.users}: name the most that the node may bring, or 0 for any number"
            )
        if self.people < 1 or self.people > (self.users or self.people):
            raise ValueError(
                f"people cannot be {self.people}: a node brings at least one, and at most its {self.users} users"
            )
        if self.joined < 1 or self.left < 0:
            raise ValueError(f"joined and left cannot be {self.joined} and {self.left}: they are numbers of rosters")
        if len(self.key) != 32:
            raise ValueError(f"key cannot be {len(self.key)} bytes long: an Ed25519 key has 32")


Roster = Mapping[int, Member]


def home_of(member: Member) -> str:
    """The name of the folder that has a member's keys."""
    return member.gateway or member.name


def homes(roster: Roster) -> list[str]:
    """The names of all nodes' folders: the users of a gateway share one."""
    return sorted({home_of(member) for member in roster.values()})


@dataclass(frozen=True)
class Membership:
    """A numbered roster that the authority has signed."""

    federation: str
    number: int
    members: Roster  # everybody who was ever on it, also who left
    signature: bytes = b""

    @cached_property
    def present(self) -> dict[int, Member]:
        """Those that have not left."""
        return {place: member for place, member in self.members.items() if not member.left}

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def _lines(self) -> dict[str, dict[str, Any]]:
        return {str(place): _line(member) for place, member in sorted(self.members.items())}

    @property
    def part(self) -> bytes:
        """The bytes that the authority signs."""
        return b"fedgrec roster" + json.dumps([self.federation, self.number, self._lines]).encode()

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.part).hexdigest()

    @property
    def fingerprint(self) -> str:
        return short(self.digest)

    def __str__(self) -> str:
        return f"roster {self.number} ({self.fingerprint})"

    def signed(self, key: ec.EllipticCurvePrivateKey) -> "Membership":
        return replace(self, signature=key.sign(self.part, SIGNING))

    def pack(self) -> bytes:
        return as_json({"number": self.number, "nodes": self._lines, "signature": self.signature.hex()})


def short(digest: str) -> str:
    """The start of a digest, which people can read to each other."""
    return " ".join(digest[at : at + 4] for at in range(0, 16, 4))


def _line(member: Member) -> dict[str, Any]:
    """What a line says beyond the defaults."""
    said = {f.name: getattr(member, f.name) for f in fields(member) if getattr(member, f.name) != f.default}
    return said | {"key": member.key.hex()}


def write_roster(folder: Path, membership: Membership) -> None:
    write_private(folder / ROSTER, membership.pack())


def read_roster(folder: Path, federation: str) -> Membership:
    """The roster of a folder, if the folder's authority has signed it."""
    return unpack(read_bytes(folder / ROSTER), folder, federation, str(folder))


def unpack(content: bytes, folder: Path, federation: str, source: str) -> Membership:
    """The roster in these packed bytes, if this folder's authority has signed it; `source`: where they come from."""
    try:
        return _checked(content, read_authority(folder), federation)
    except FederationError as error:
        raise FederationError(f"{source}: {error}") from None


@lru_cache(8)
def _checked(content: bytes, authority: x509.Certificate, federation: str) -> Membership:
    """Cached, because a node reads it with every message, and all users of a gateway have the same."""
    values = parse_json(Path(ROSTER), content)
    try:
        number, lines, signature = values["number"], dict(values["nodes"]), bytes.fromhex(values["signature"])
        if type(number) is not int or number < 1 or not lines or not all(place.isdecimal() for place in lines):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise FederationError(f"{ROSTER} is no numbered and signed list of nodes: copy the server's again") from None
    members = {int(place): filled(Member, line, f"{ROSTER}, node {place}") for place, line in lines.items()}
    membership, key = Membership(federation, number, members, signature), authority.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(signature, membership.part, SIGNING)
    except InvalidSignature:
        raise FederationError(
            f"the authority of this federation has not signed {ROSTER}: it is refused; copy the one that was made "
            f"where authority/ is"
        ) from None
    return membership


def check_successor(new: Membership, now: Membership) -> None:
    """Refuse a roster that does not continue the one that is here."""
    refused = f"{new} does not continue {now}, which is here, and is refused"
    if new.number <= now.number:
        raise FederationError(f"{refused}: its number is not larger")
    for place, line in now.members.items():
        after = new.members.get(place)
        if after is None:
            raise FederationError(f"{refused}: {line.name} has vanished from it")
        if any(getattr(after, name) != getattr(line, name) for name in KEPT):
            raise FederationError(f"{refused}: what it says of {line.name} has changed ({', '.join(KEPT)} never do)")
        if after.left != line.left and (line.left or not now.number < after.left <= new.number):
            raise FederationError(f"{refused}: {line.name} cannot have left with roster {after.left}")
    for line in (new.members[place] for place in new.members.keys() - now.members.keys()):
        if not now.number < line.joined <= new.number:
            raise FederationError(f"{refused}: {line.name} cannot have joined with roster {line.joined}")


def differences(new: Membership, now: Membership) -> str:
    """Who came, who went, and who has another key, in words."""
    old = now.members
    came = sorted({home_of(new.members[place]) for place in new.present.keys() - old.keys()})
    went = sorted(old[place].name for place in now.present.keys() - new.present.keys())
    other = sorted(old[p].name for p in old.keys() & new.present.keys() if old[p].key != new.members[p].key)
    said = (("came", came), ("went", went), ("with other keys", other))
    return "; ".join(f"{how}: {', '.join(names)}" for how, names in said if names) or "nobody came and nobody went"
