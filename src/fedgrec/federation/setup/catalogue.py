"""`fedgrec federation catalogue`: a new version of the catalogue, signed by the authority."""

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedgrec.errors import ConfigError, nearest
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.catalogue import NEWEST, Version, installed, newest
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.init import SERVER_FOLDER, read_authority


def change(out: Path, add: Sequence[str], withdraw: Sequence[str], bring_back: Sequence[str] = ()) -> Version:
    """Add items, withdraw items or bring them back; return the new version."""
    key, _ = read_authority(out)
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
