"""`fedgrec federation` for an existing federation: add and remove nodes, users and items, and renew keys."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.errors import ConfigError, many


def register(tasks: Any) -> None:
    def of_federation(name: str, run: Any, text: str) -> Any:
        task = command(tasks, name, run, text)
        task.add_argument("fed", type=Path, metavar="FED", help="where `init` put the federation")
        return task

    add = of_federation("add-node", run_add, "one more node")
    add.add_argument(
        "--per-user-masks", type=int, default=0, metavar="N", help="a gateway for N users who mask for themselves"
    )
    add.add_argument("--users", type=int, default=0, metavar="N", help="the most users it may bring (default: 1000)")
    add.add_argument("--people", type=int, default=1, metavar="N", help="the fewest it is sure to bring (default: 1)")
    add.add_argument("--request", type=Path, metavar="FILE", help="of a node that made its own keys with `join`")
    of_federation("invite", run_invite, "what a new node must know to `join`")
    joins = command(
        tasks, "join", run_join, "make a node's own keys, with an invitation; with a welcome, start to be one"
    )
    joins.add_argument(
        "letter", type=Path, metavar="FILE", help="an invitation, or the welcome that answers the request"
    )
    joins.add_argument("folder", type=Path, metavar="NODE", help="the node's folder, which an invitation makes")
    joins.add_argument("--source", default="", metavar="DATA", help="its users' interactions, as in network.toml")
    more = of_federation("add-users", run_add_users, "a node may bring more users; a gateway gets keys for them")
    more.add_argument("node", metavar="NODE", help="its name, such as node-0")
    more.add_argument("--users", type=int, default=1, metavar="N", help="how many (default: 1)")
    leaves = of_federation("remove-node", run_remove, "a node leaves")
    other_keys = of_federation("rotate-keys", run_rotate, "new keys for a node whose keys leaked or were lost")
    again = command(tasks, "refresh", run_refresh, "a node reads its source again")
    gone = command(tasks, "forget", run_forget, "a user leaves, or all users of a node")
    for task in (leaves, other_keys):
        task.add_argument("node", metavar="NODE", help="its name, such as node-0")
    for task in (again, gone):
        task.add_argument("folder", type=Path, metavar="NODE", help="the node's folder")
    again.add_argument("--let-go", action="store_true", help="also where more than half of the users have left it")
    who = gone.add_mutually_exclusive_group(required=True)
    who.add_argument("--user", metavar="ID", help="the user's name")
    who.add_argument("--everybody", action="store_true", help="all users: the node leaves")
    items = of_federation("catalogue", run_catalogue, "items come, or are withdrawn")
    items.add_argument("--add", type=Path, metavar="FILE", help="new items")
    items.add_argument("--withdraw", type=Path, metavar="FILE", help="items that are not to be recommended any more")
    items.add_argument("--bring-back", type=Path, metavar="FILE", help="items that were withdrawn")
    renew = of_federation("certificate", run_certificate, "a fresh certificate for the server")
    renew.add_argument("--host", required=True, help="the server's name or address")


def run_refresh(arguments: argparse.Namespace) -> int:
    """Read a node's source again now, whether the node runs or not, and say who came, changed and left."""
    from fedgrec.federation.node.refresh import claim, refresh

    claim(arguments.folder)
    print(f"{arguments.folder}: {refresh(arguments.folder, arguments.let_go)}.")
    print("New users take part from the next season on; what changed counts with its recount.")
    return 0


def run_forget(arguments: argparse.Namespace) -> int:
    """Forget a user: its name and what it is judged by at once, its part in the server's degrees and latents with
    the next recount and the latents after it, then all that its node knows of it.
    """
    from fedgrec.federation.node.person import forget, users_of

    users = users_of(arguments.folder) if arguments.everybody else [arguments.user]
    for user in users:
        forget(arguments.folder, user)
    print(f"{many(len(users), 'user')} of {arguments.folder} will be forgotten. Gone now: the name, and")
    print("what recommendations were judged by. The server's degrees and latents lose the user's part with the next")
    print("recount and with the latents after it, exactly; then the node deletes all that it knows of the user.")
    print("Not undone: what item embeddings have learned, models that were published, backups, and the source itself.")
    return 0


def run_catalogue(arguments: argparse.Namespace) -> int:
    """Make a new version of the catalogue, signed by the authority. Files have one item a line."""
    from fedgrec.federation.common.catalogue import NEWEST, read_catalogue
    from fedgrec.federation.setup.changes import change_catalogue
    from fedgrec.federation.setup.init import SERVER_FOLDER

    files = (arguments.add, arguments.withdraw, arguments.bring_back)
    version = change_catalogue(arguments.fed, *(list(read_catalogue(path)) if path else [] for path in files))
    path = arguments.fed / SERVER_FOLDER / NEWEST
    print(f"Version {version.number}: {len(version.items):,} items, {len(version.withdrawn):,} of them withdrawn.")
    print(f"Copy {path} to the server's folder; the server takes it up while it rests, or with")
    print("its next season, and nodes get it from there. Nothing needs to be restarted.")
    return 0


def run_add(arguments: argparse.Namespace) -> int:
    """One more node in a federation."""
    from fedgrec.federation.common.network import KEYS
    from fedgrec.federation.setup.init import MOST_USERS, SERVER_FOLDER, add_node

    if arguments.per_user_masks < 0:
        raise ConfigError(f"--per-user-masks {arguments.per_user_masks}: a gateway needs at least one user")
    if arguments.users < 0:
        raise ConfigError(f"--users {arguments.users}: a node brings at least one user")
    most, people, server = arguments.users or MOST_USERS, arguments.people, arguments.fed / SERVER_FOLDER
    if arguments.request:
        from fedgrec.federation.setup.join import admit, fingerprint

        if arguments.per_user_masks:
            raise ConfigError("--request and --per-user-masks: only a node that adds its users up makes its own keys")
        said = fingerprint(arguments.request)
        name, welcome = admit(arguments.fed, arguments.request, most, people)
        print(f"{name} is enrolled, if its operator reads the same from the request: {said}")
        print(f"Send {welcome} to it.")
    else:
        folder = add_node(arguments.fed, arguments.per_user_masks, most, people)
        name = folder.name
        print(f"{folder} is a new node: bring it to its machine, and name its data in its network.toml.")
    _say_roster(server, f"{KEYS}/{name}.pub")
    return 0


def _say_roster(server: Path, *more: str) -> None:
    """What the operator must bring to the server."""
    from fedgrec.federation.common.roster import ROSTER
    from fedgrec.federation.server.folder import open_server

    print(f"Copy {' and '.join([*more, ROSTER])} from {server} to the server's folder, {ROSTER} last.")
    print(f"The server takes it up and hands it to the nodes: {open_server(server).membership}")


def run_invite(arguments: argparse.Namespace) -> int:
    """Write an invitation: what a node must know before it makes its own keys. Nothing in it is secret."""
    from fedgrec.federation.setup.join import fingerprint, invite

    path = invite(arguments.fed)
    print(f"{path} is for new nodes, who run  fedgrec federation join INVITATION NODE")
    print(f"Read them its fingerprint, they must see the same: {fingerprint(path)}")
    return 0


def run_join(arguments: argparse.Namespace) -> int:
    """Join a federation with keys that never leave this machine: first with an invitation, then with a welcome."""
    from fedgrec.federation.setup.join import Invitation, Welcome, begin, fingerprint, finish, read_letter

    letter = read_letter(arguments.letter)
    if isinstance(letter, Invitation):
        said = fingerprint(arguments.letter)
        request = begin(arguments.letter, letter, arguments.folder, arguments.source)
        print(f"{arguments.folder} has keys of its own; they stay on this machine.")
        print(f"The invitation's fingerprint is {said}: ask who sent it whether that is right.")
        print(f"Then send back {request} and read out its fingerprint: {fingerprint(request)}")
        return 0
    if not isinstance(letter, Welcome):
        raise ConfigError(f"{arguments.letter} is a request: it goes to where authority/ is, to  add-node --request")
    node = finish(arguments.letter, letter, arguments.folder)
    print(f"{arguments.folder} is {node.name}; {node.membership}. Start it with")
    print(f"  {shlex.join(['fedgrec', 'federation', 'node', str(arguments.folder)])}")
    return 0


def run_add_users(arguments: argparse.Namespace) -> int:
    """A node may bring more users than it was enrolled for; a gateway whose users mask gets keys for them."""
    from fedgrec.federation.setup.init import SERVER_FOLDER, add_users

    folders = add_users(arguments.fed, arguments.node, arguments.users)
    print(f"{arguments.node} may bring {many(arguments.users, 'user')} more.")
    if folders:
        print("Copy to the gateway's users/ and restart it, so that it gives their keys to users who have none:")
        for folder in folders:
            print(f"  {folder}")
    _say_roster(arguments.fed / SERVER_FOLDER)
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """Take a node, a gateway or one user of a gateway off the roster; what it contributed stays in the model."""
    from fedgrec.federation.common.network import KEYS
    from fedgrec.federation.setup.changes import remove_node
    from fedgrec.federation.setup.init import SERVER_FOLDER

    places = remove_node(arguments.fed, arguments.node)
    gateway, _, user = arguments.node.partition(".")
    print(f"{arguments.node} is off the roster. What it has contributed stays in the model; a server that")
    print("lies can tell it from what the rest of its batch contributes.")
    _say_roster(arguments.fed / SERVER_FOLDER)
    if user:
        print(f"On {gateway}'s machine also delete users/{places[0]}.")
    else:
        print(f"On the server also delete {KEYS}/{arguments.node}.pub; stop the node: the server refuses it.")
    return 0


def run_rotate(arguments: argparse.Namespace) -> int:
    """Make new keys for a node, or for a gateway and all its users, and refuse the old ones from now on."""
    from fedgrec.federation.common.network import FLOWER, KEYS
    from fedgrec.federation.node.folder import IDENTITY, USERS
    from fedgrec.federation.setup.changes import rotate_keys
    from fedgrec.federation.setup.init import SERVER_FOLDER

    folder = rotate_keys(arguments.fed, arguments.node)
    own = f"{USERS}/*/{IDENTITY}" if (folder / USERS).exists() else IDENTITY
    print(f"{arguments.node} has new keys in {folder}; its users and what they sent stay as they are.")
    print(f"Stop the node, copy {own} and {FLOWER} from {folder} to it, and start it after this:")
    _say_roster(arguments.fed / SERVER_FOLDER, f"{KEYS}/{folder.name}.pub")
    print("From then on the old keys are refused.")
    return 0


def run_certificate(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.setup.init import renew

    path = renew(arguments.fed, arguments.host)
    print(f"{path} and server.key beside it are new: copy both to the server and restart it. Nodes need nothing.")
    return 0
