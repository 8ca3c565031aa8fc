"""`fedgrec federation` for a federation that is there: nodes come, leave and get new keys, certificates are renewed."""

import argparse
from pathlib import Path
from typing import Any

from fedgrec.errors import ConfigError


def register(tasks: Any) -> None:
    add = tasks.add_parser("add-node", help="one more node", description="One more node in a federation.")
    add.add_argument("fed", type=Path, metavar="FED", help="where `init` put the federation")
    add.add_argument(
        "--per-user-masks", type=int, default=0, metavar="N", help="a gateway for N users who mask for themselves"
    )
    add.add_argument("--users", type=int, default=0, metavar="N", help="the most that it may bring (default: 1000)")
    add.set_defaults(command=run_add)
    more = tasks.add_parser(
        "add-users",
        help="keys for more users of a gateway",
        description="Keys for more users of a gateway whose users mask for themselves. (Any other node takes new users "
        "in by itself.)",
    )
    more.add_argument("fed", type=Path, metavar="FED", help="where `init` put the federation")
    more.add_argument("node", metavar="NODE", help="the gateway's name, such as node-0")
    more.add_argument("--users", type=int, default=1, metavar="N", help="how many (default: 1)")
    more.set_defaults(command=run_add_users)
    for name, command, help_, text in (
        (
            "remove-node",
            run_remove,
            "a node leaves",
            "Take a node, a gateway or one user of a gateway off the roster; what it contributed stays in the model.",
        ),
        (
            "rotate-keys",
            run_rotate,
            "new keys for a node whose keys leaked or were lost",
            "Make new keys for a node, or for a gateway and all its users, and refuse the old ones from now on.",
        ),
    ):
        change = tasks.add_parser(name, help=help_, description=text)
        change.add_argument("fed", type=Path, metavar="FED", help="where `init` put the federation")
        change.add_argument("node", metavar="NODE", help="its name, such as node-0")
        change.set_defaults(command=command)
    renew = tasks.add_parser("certificate", help="a fresh certificate for the server")
    renew.add_argument("fed", type=Path, metavar="FED", help="where `init` put the federation")
    renew.add_argument("--host", required=True, help="the server's name or address")
    renew.set_defaults(command=run_certificate)


def run_add(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.common.network import KEYS
    from fedgrec.federation.setup.init import MOST_USERS, SERVER_FOLDER, add_node

    if arguments.per_user_masks < 0:
        raise ConfigError(f"--per-user-masks {arguments.per_user_masks}: a gateway needs at least one user")
    if arguments.users < 0:
        raise ConfigError(f"--users {arguments.users}: a node brings at least one user")
    folder = add_node(arguments.fed, arguments.per_user_masks, arguments.users or MOST_USERS)
    key = arguments.fed / SERVER_FOLDER / KEYS / f"{folder.name}.pub"
    print(f"{folder} is a new node; the roster.json of the other folders has it too.")
    print(
        f"Copy roster.json to every machine and {key} to the server's keys/, name the node's data in its network.toml,"
    )
    print("restart the server, then start the node.")
    return 0


def run_add_users(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.setup.init import add_users

    folders = add_users(arguments.fed, arguments.node, arguments.users)
    print(
        f"{arguments.node} has keys for {len(folders)} more users; the roster.json of the other folders has them too."
    )
    print("Copy roster.json to every machine, and to the gateway's users/ there:")
    for folder in folders:
        print(f"  {folder}")
    print("Then restart the gateway, which gives them to users of its source who have none, and the server.")
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.common.network import KEYS
    from fedgrec.federation.setup.leave import remove_node

    places = remove_node(arguments.fed, arguments.node)
    gateway, _, user = arguments.node.partition(".")
    print(f"{arguments.node} is off the roster. What it has contributed stays in the model.")
    print("Stop the server, copy the new roster.json to every machine, and start the server again.")
    if user:
        print(f"On {gateway}'s machine also delete users/{places[0]} and restart the gateway.")
    else:
        print(f"On the server also delete {KEYS}/{arguments.node}.pub; stop the node: the server refuses it.")
    return 0


def run_rotate(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.common.network import FLOWER, KEYS
    from fedgrec.federation.node.folder import IDENTITY, USERS
    from fedgrec.federation.setup.leave import rotate_keys

    folder = rotate_keys(arguments.fed, arguments.node)
    own = f"{USERS}/*/{IDENTITY}" if (folder / USERS).exists() else IDENTITY
    print(f"{arguments.node} has new keys in {folder}; its users and what they sent stay as they are.")
    print("Stop the server and the node. Copy roster.json to every machine,")
    print(f"{own} and {FLOWER} from {folder} to the node, and {KEYS}/{folder.name}.pub to the server's {KEYS}/.")
    print("Start the server, then the node. From then on the old keys are refused.")
    return 0


def run_certificate(arguments: argparse.Namespace) -> int:
    from fedgrec.federation.setup.init import renew

    path = renew(arguments.fed, arguments.host)
    print(f"{path} and server.key beside it are new: copy both to the server and restart it. Nodes need nothing.")
    return 0
