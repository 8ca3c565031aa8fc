"""The server's folder: what must be in it before the server starts, how it is made, how it is opened.

SERVER/server.json                        federation, number of items
SERVER/roster.json, config.toml           as in every folder (common/folder.py)
SERVER/federation.toml                    how the server drives the nodes (common/options.py)
SERVER/server.sqlite, model-<n>.bin       the server's store (store.py)
SERVER/recordings/                        the last opened training sums, if `record` asks for them
SERVER/stop                               no further sum begins until the next start
SERVER/run/                               what the trained federation leaves (run_folder.py)
"""

import contextlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fedgrec.federation.common import catalogue
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.folder import SERVER, Folder, Terms, read_kind
from fedgrec.federation.common.options import FederationOptions, read_options
from fedgrec.federation.common.roster import Membership, read_roster
from fedgrec.federation.common.values import as_json, filled, parse_json

OPTIONS, STOP = "federation.toml", "stop"
NOBODY = Membership("", 0, {})  # until the roster is read


@dataclass(frozen=True)
class ServerFolder(Folder):
    path: Path
    federation: str
    n_items: int
    membership: Membership = field(compare=False, repr=False)  # as it was when the folder was opened

    @cached_property
    def options(self) -> FederationOptions:
        return read_options(self.path / OPTIONS, FederationOptions)

    @property
    def _floors(self) -> tuple[int, float]:
        return self.options.least_nodes, self.options.corrupt


def create_server(path: Path, terms: Terms, options: FederationOptions) -> None:
    terms.write(path)
    write_private(path / SERVER, as_json({"federation": terms.federation, "n_items": terms.n_items}))
    write_private(path / OPTIONS, options.to_toml().encode())


def open_server(path: Path) -> ServerFolder:
    about = parse_json(path / SERVER, read_kind(path, SERVER))
    home = filled(ServerFolder, about, path / SERVER, path=path, membership=NOBODY)
    return replace(home, membership=read_roster(path, home.federation))


def with_catalogue(folder: ServerFolder, version: catalogue.Version) -> ServerFolder:
    """The folder with this version of the catalogue, if the authority vouches for it."""
    catalogue.check(version, folder.path, folder.federation, folder.agreed.most_items)
    catalogue.install(version, folder.path, folder.path / SERVER)
    return replace(folder, n_items=len(version.items))


def with_whole_catalogue(folder: ServerFolder) -> ServerFolder:
    """Finish a catalogue that a killed server had begun to write: otherwise the server would refuse all nodes."""
    version = catalogue.newest(folder.path)
    now = catalogue.installed(folder.path) if version else None
    if version and now and version.number > now.number and version.items == now.items:
        with contextlib.suppress(FederationError):  # the next season says why
            return with_catalogue(folder, version)
    return folder
