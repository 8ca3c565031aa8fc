"""The folders of a new federation in one process: the server's and the nodes', with users and without a network."""

import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fedgrec.config.configuration import Config
from fedgrec.federation.common.certificates import Authority, as_pem, authority, write_authority
from fedgrec.federation.common.folder import Terms, make_method, new_federation
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.roster import Member, Membership
from fedgrec.federation.node.folder import floors
from fedgrec.federation.node.gateway import create, enrol, open_gateway
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import create_server


def marks(person: Person) -> dict[int, bool | None]:
    """A user's items as in a source that marks held-out items."""
    return {**dict.fromkeys(person.items, False), **dict.fromkeys(person.held_out, True)}


@cache
def _authority() -> Authority:
    """One for all federations of this process: a key takes time."""
    return authority("fedgrec")


def make_folders(
    root: Path,
    config: Config,
    n_items: int,
    people: Sequence[Sequence[Person]],
    options: FederationOptions,
    per_user_masks: bool = False,
    agreed: Agreement = AS_USUAL,
) -> tuple[Path, dict[int, Path]]:
    """A new federation under `root`: its authority, and the server's and each node's (or gateway's) folder."""
    salt, roster, keys = secrets.token_bytes(32), dict[int, Member](), []
    for number, users in enumerate(people):
        lines, own = enrol(f"node{number}", len(roster), len(users) if per_user_masks else 0)
        roster |= lines
        keys.append(own)
    membership = Membership(new_federation(), 1, roster).signed(_authority()[0])
    terms = Terms(membership, as_pem(_authority()[1]), config, n_items, agreed)
    create_server(root / "server", terms, options)
    write_authority(root, _authority())
    folders = {}
    for number, (own, users) in enumerate(zip(keys, people, strict=True)):
        folder = folders[number] = root / f"node{number}"
        create(folder, terms, own, salt, floors(options))
        if per_user_masks:
            open_gateway(folder).take_in({user.id: marks(user) for user in users})
        else:
            with NodeStore(folder) as store:
                store.add_users(make_method(config, n_items, 1, agreed), users, agreed.decoys_epsilon)
    return root / "server", folders
