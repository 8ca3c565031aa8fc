"""New rosters, as their authority would make them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgrec.federation.common.certificates import open_authority
from fedgrec.federation.common.roster import Membership, Roster, write_roster
from fedgrec.federation.server.folder import open_server


def following(root: Path, members: Roster, number: int = 0) -> Membership:
    """The roster after the server's, or the one of this number, signed by the federation under `root`."""
    now = open_server(root / "server").membership
    return Membership(now.federation, number or now.number + 1, members).signed(open_authority(root)[0])


def changed(root: Path, *places: int, **values: Any) -> dict[int, Any]:
    """The server's lines with other values at these places, or at all."""
    members = open_server(root / "server").membership.members
    return {p: replace(line, **values) if p in places or not places else line for p, line in members.items()}


def give(root: Path, members: Roster, *folders: Path) -> Membership:
    """Sign these lines, and write them into these folders, or the server's."""
    membership = following(root, members)
    for folder in folders or (root / "server",):
        write_roster(folder, membership)
    return membership


def without(root: Path, *places: int) -> dict[int, Any]:
    """The server's lines once these nodes have left."""
    return changed(root, *places, left=open_server(root / "server").membership.number + 1)
