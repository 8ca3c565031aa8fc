"""The catalogue: a file with one item a line. The line is the item's number, for server and nodes alike.

    FOLDER/items.txt         the names
    FOLDER/withdrawn.json    once the catalogue has changed: its version, and the items that are no longer recommended
    SERVER/catalogue.json    the newest version, whole and signed by the authority; the server takes it up with the next
                             season, and hands it to every node that has an older one

A new version keeps all earlier items in their order and adds new ones at the end: an item's number never changes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedgrec.errors import DataError
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import read_authority
from fedgrec.federation.common.values import as_json, parse_json

CATALOGUE, WITHDRAWN, NEWEST = "items.txt", "withdrawn.json", "catalogue.json"


def read_catalogue(path: Path) -> dict[str, int]:
    """Item → number."""
    try:
        with path.open(encoding="utf-8-sig") as lines:  # splitlines() would split a name at U+2028 too
            names = [line.removesuffix("\n") for line in lines]
    except FileNotFoundError:
        raise DataError(f"{path} is missing: it lists the items, one a line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None
    numbers: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name.strip() or name.strip() in numbers:
            raise DataError(
                f"{path}:{line}: {'an empty line' if not name.strip() else f'{name!r} again'}; each item once"
            )
        numbers[name.strip()] = len(numbers)
    if not numbers:
        raise DataError(f"{path} lists no item")
    return numbers


# ------------------------------------------------------------------------------------------------ versions


@dataclass(frozen=True)
class Version:
    """A catalogue that the authority has signed. `init` makes the first version, which has no signature."""

    number: int
    items: tuple[str, ...]
    withdrawn: tuple[str, ...] = ()
    signature: bytes = b""

    def part(self, federation: str) -> bytes:
        """The bytes that the authority signs."""
        return b"fedgrec catalogue" + json.dumps([federation, self.number, self.items, self.withdrawn]).encode()

    def pack(self) -> bytes:
        about = {"version": self.number, "items": self.items, "withdrawn": self.withdrawn}
        return as_json(about | {"signature": self.signature.hex()})


def unpack(content: bytes, where: Path) -> Version:
    """The version in these packed bytes; `FederationError` if they hold none."""
    values = parse_json(where, content)
    try:
        items, withdrawn = (tuple(values[name]) for name in ("items", "withdrawn"))
        number, signature = values["version"], bytes.fromhex(values["signature"])
        if type(number) is not int or not all(type(name) is str for name in (*items, *withdrawn)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise FederationError(f"{where} is no version of a catalogue: make it again, or copy it again") from None
    return Version(number, items, withdrawn, signature)


def installed(folder: Path) -> Version:
    """The version that a folder uses now."""
    items = tuple(read_catalogue(folder / CATALOGUE)) if (folder / CATALOGUE).exists() else ()
    return Version(version_of(folder), items, tuple(_about(folder).get("withdrawn", ())))


def version_of(folder: Path) -> int:
    return int(_about(folder).get("version", 1))


def _about(folder: Path) -> dict[str, Any]:
    path = folder / WITHDRAWN
    return parse_json(path, path.read_bytes()) if path.exists() else {}


def withdrawn(folder: Path) -> list[int]:
    """The numbers of items that are not recommended any more."""
    if not _about(folder).get("withdrawn"):
        return []
    now = installed(folder)
    numbers = {name: number for number, name in enumerate(now.items)}
    return sorted(numbers[name] for name in now.withdrawn if name in numbers)


def newest(folder: Path) -> Version | None:
    """The version that waits in a server's folder, or is in use there."""
    path = folder / NEWEST
    return unpack(path.read_bytes(), path) if path.exists() else None


def check(version: Version, folder: Path, federation: str, most: int) -> None:
    """Refuse a version unless the authority signed it, it is newer than the installed one, and it continues it."""
    now, key = installed(folder), read_authority(folder).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(version.signature, version.part(federation), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        raise FederationError("the authority has not signed this catalogue: it is refused") from None
    if version.number <= now.number or version.items[: len(now.items)] != now.items:
        raise FederationError(
            f"version {version.number} of the catalogue does not continue version {now.number}, which is here: it is "
            f"refused"
        )
    if len(version.items) > most:
        raise FederationError(f"a catalogue of {len(version.items):,} items: all agreed on {most:,} at most")


def install(version: Version, folder: Path, home: Path) -> None:
    """Write the version; `home` is the file that holds the number of items.

    The version's number is written last, so an installation that was cut off runs again. Until then, names beyond the
    number of items do not count.
    """
    write_private(folder / CATALOGUE, "".join(f"{name}\n" for name in version.items).encode())
    write_private(home, as_json(parse_json(home, home.read_bytes()) | {"n_items": len(version.items)}))
    write_private(folder / WITHDRAWN, as_json({"version": version.number, "withdrawn": list(version.withdrawn)}))
