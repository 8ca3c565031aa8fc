"""The server's folder: what must be in it before the server starts, how it is made, how it is opened.

SERVER/server.json                        federation, number of items
SERVER/roster.json, config.toml           as in every folder (common/folder.py)
SERVER/federation.toml                    how the server drives the nodes (common/options.py)
SERVER/server.sqlite, model-<n>.bin       the server's store (store.py)
SERVER/recordings/                        the last opened training sums, if `record` asks for them
SERVER/run/                               what the trained federation leaves (run_folder.py)
"""

import contextlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedgrec.config import Config
from fedgrec.federation.common import catalogue
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import SERVER, Folder, Roster, read_kind, write_common
from fedgrec.federation.common.network import read_authority
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions, read_options
from fedgrec.federation.common.values import as_json, filled, parse_json

OPTIONS = "federation.toml"


@dataclass(frozen=True)
class ServerFolder(Folder):
    """The server's folder, opened."""

    path: Path
    federation: str
    n_items: int

    @cached_property
    def options(self) -> FederationOptions:
        return read_options(self.path / OPTIONS, FederationOptions)

    @property
    def _floors(self) -> tuple[int, float]:
        return self.options.least_nodes, self.options.corrupt


def create_server(
    path: Path,
    federation: str,
    roster: Roster,
    config: Config,
    n_items: int,
    options: FederationOptions,
    agreed: Agreement = AS_USUAL,
) -> None:
    """The files of the server."""
    write_common(path, roster, config, n_items, agreed)
    write_private(path / SERVER, as_json({"federation": federation, "n_items": n_items}))
    write_private(path / OPTIONS, options.to_toml().encode())


def open_server(path: Path) -> ServerFolder:
    return filled(ServerFolder, parse_json(path / SERVER, read_kind(path, SERVER)), path / SERVER, path=path)


def with_catalogue(folder: ServerFolder, version: catalogue.Version) -> ServerFolder:
    """The folder with this version of the catalogue, if the authority vouches for it."""
    path, home = folder.path, folder.path / SERVER
    catalogue.check(version, path, folder.federation, read_authority(path), folder.agreed.most_items)
    catalogue.install(version, path, {home: parse_json(home, home.read_bytes())})
    return open_server(path)


def with_whole_catalogue(folder: ServerFolder) -> ServerFolder:
    """Finish a catalogue that a killed server had begun to write: otherwise the server would refuse all nodes."""
    version = catalogue.newest(folder.path)
    now = catalogue.installed(folder.path) if version else None
    if version and now and version.number > now.number and version.items == now.items:
        with contextlib.suppress(FederationError):  # the next season says why
            return with_catalogue(folder, version)
    return folder
