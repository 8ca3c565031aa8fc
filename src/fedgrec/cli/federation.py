"""`fedgrec federation`, a recommender trained over machines that keep their own data, and `fedgrec device` there."""

import argparse
import itertools
import json
import logging
import os
import shlex
import signal
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedgrec.cli import federation_changes, federation_watch
from fedgrec.cli.configured import add_item_names, add_set, assigned, command
from fedgrec.cli.recommend import check_number
from fedgrec.config.options import METHODS
from fedgrec.errors import ConfigError, missing_extra

say = partial(print, flush=True)  # a line that a person or a program waits for
TITLES = "item-names.csv"  # item_names.KEPT, but a node need not have what that module imports


def register(commands: Any) -> None:
    federation = commands.add_parser(
        "federation",
        help="train over machines that keep their own data",
        description="A real federation: a server, and nodes that keep their users' data. docs/deploy.md has the whole "
        "story; `up` tries it out on this machine.",
    )
    tasks = federation.add_subparsers(title="tasks", metavar="TASK", required=True)
    init = command(tasks, "init", run_init, "make keys, certificates and folders")
    init.add_argument("--out", type=Path, required=True, metavar="FED", help="a folder that does not exist yet")
    init.add_argument("--host", default="127.0.0.1", help="the server's name or address (default: 127.0.0.1)")
    init.add_argument("--port", type=int, default=9092, metavar="P", help="the server's port (default: 9092)")
    what = init.add_mutually_exclusive_group(required=True)
    what.add_argument("--catalogue", type=Path, metavar="FILE", help="the items' names, one a line")
    what.add_argument("--data", metavar="WORD", help="deal this data set's users out to the nodes, to try it out")
    init.add_argument(
        "--people",
        type=int,
        default=0,
        metavar="N",
        help="the fewest users that each node is sure to bring (default: half of those that --data deals it, else 1)",
    )
    _shared(init)
    up = command(tasks, "up", run_up, "try it out: server and nodes on this machine")
    up.add_argument("--data", default="demo", metavar="WORD", help="(default: demo)")
    up.add_argument(
        "--out",
        type=Path,
        metavar="FED",
        help="a folder that does not exist yet (default: runs/federation, or runs/federation-2, ...)",
    )
    _shared(up)
    _of_folders(tasks)
    federation_changes.register(tasks)
    device = commands.add_parser(
        "device",
        help="use the model that a node has on its disk",
        description="What a node of a federation can do with no network at all.",
    )
    tasks = device.add_subparsers(title="tasks", metavar="TASK", required=True)
    recommend = command(tasks, "recommend", run_device, "what a user of the node should see next")
    recommend.add_argument("node", type=Path, metavar="NODE", help="the node's folder")
    recommend.add_argument("--user", required=True, metavar="ID", help="a user of the node")
    recommend.add_argument("-n", "--number", type=int, default=10, metavar="N", help="how many (default: 10)")
    add_item_names(recommend, "what items are called: a CSV with item and title (default: NODE/item-names.csv)")
    recommend.add_argument("--json", action="store_true", help="print JSON")


def _of_folders(tasks: Any) -> None:
    """Tasks that work on the folder of a server or a node."""
    server = command(tasks, "server", run_server, "run the server of a folder until its federation is trained")
    node = command(tasks, "node", run_node, "be the node of a folder until stopped")
    for task in (server, node):
        task.add_argument("folder", type=Path, metavar="FOLDER")
        federation_watch.add_flags(task)
    server.add_argument(
        "--from",
        dest="copies",
        type=Path,
        metavar="COPIES",
        help="take over from a server that is lost: make FOLDER from the newest of the copies that it kept there",
    )
    server.add_argument(
        "--grace",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="after SIGTERM, wait so long at most for the sum that goes on (default: 60)",
    )
    node.add_argument(
        "--trust-again",
        action="store_true",
        help="hear the whole history of sums anew, after the server told another one than before",
    )
    federation_watch.register(tasks)
    copy = command(tasks, "backup", run_backup, "a copy of a folder that is safe to restore")
    copy.add_argument("folder", type=Path, metavar="FOLDER")
    copy.add_argument("--out", type=Path, required=True, metavar="COPY", help="a folder that does not exist yet")
    copy.add_argument(
        "--with-keys",
        action="store_true",
        help="also the private keys, with which whoever has the copy can pose as the original (default: no)",
    )


def _shared(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    add("--nodes", type=int, default=3, metavar="N", help="(default: 3)")
    add(
        "--users",
        type=int,
        default=0,
        metavar="N",
        help="the most users that a node may bring (default: 1000, or as many as the data deals it)",
    )
    add(
        "--per-user-masks",
        action="store_true",
        help="every user of a node masks for itself, with a key of its own, instead of the node adding its users up "
        "first (default: no); with --catalogue, --users says how many keys each node gets",
    )
    add("--rounds", type=int, metavar="N", help="training rounds")
    add("--method", help=f"{', '.join(METHODS)} (default: fedgrec)")
    add_set(task, "an option of the method or of the federation")


def settings(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The method's configuration, the server's options and the agreement of all parties.

    --set KEY changes the first that has KEY: the server's options, the agreement, the method's configuration.
    """
    import dataclasses

    from fedgrec.config.checking import bare
    from fedgrec.config.configuration import Config
    from fedgrec.federation.common.options import Agreement, FederationOptions

    named = assigned(arguments)
    if arguments.rounds is not None:
        named["rounds"] = arguments.rounds

    def of(kind: Any) -> Any:
        names = {field.name for field in dataclasses.fields(kind)}
        mine = [key for key in named if bare(key) in names]
        return kind().changed({key: named.pop(key) for key in sorted(mine)}, "--set")

    is_said, sums_said = (name in map(bare, named) for name in ("rounds", "dp_rounds"))
    options, agreed = of(FederationOptions), of(Agreement)
    values = named | ({"dp_epsilon": agreed.dp_epsilon, "dp_delta": agreed.dp_delta} if agreed.noisy else {})
    values |= {"method": arguments.method} if arguments.method else {}
    values |= {"data": arguments.data} if arguments.data else {}
    config = Config().changed(values, "--set")
    if not is_said:  # a method may have its own number of rounds
        rounds = (config.run.noisy and config.model.noisy_rounds) or config.model.rounds or options.rounds
        options = dataclasses.replace(options, rounds=rounds)
    if config.run.noisy and not sums_said:
        agreed = dataclasses.replace(agreed, dp_rounds=max(options.rounds, 1))
    return config, options, agreed


def run_init(arguments: argparse.Namespace) -> int:
    """Make everything that server and nodes need, and print the commands that start them."""
    from fedgrec.federation.common.batches import batches_of, in_words
    from fedgrec.federation.common.catalogue import read_catalogue
    from fedgrec.federation.server.folder import open_server
    from fedgrec.federation.setup.init import init, secrets_of

    config, options, agreed = settings(arguments)
    if not 1 <= arguments.port <= 65535:
        raise ConfigError(f"--port {arguments.port}: a port is a number from 1 to 65535")
    place, out, n, users = (arguments.host, arguments.port), arguments.out, arguments.nodes, arguments.users
    if arguments.data:
        from fedgrec.federation.setup.start import try_out

        made = try_out(out, n, config, options, users, *place, arguments.per_user_masks, agreed, arguments.people)
    else:
        catalogue = list(read_catalogue(arguments.catalogue))
        keys, most = [users] * n if arguments.per_user_masks else [], [users] * n if users else []
        if keys and users < 1:
            raise ConfigError("--per-user-masks needs --users N here: a key is made for each user of a node")
        sure = [arguments.people] * n if arguments.people else []
        made = init(
            out, n, catalogue, config, options, *place, per_user_masks=keys, most_users=most, people=sure, agreed=agreed
        )
    print(f"{out} holds a federation of {len(made.nodes)} nodes.")
    if arguments.per_user_masks:
        print("Every user has a key and masks of its own: floors and options that count nodes count users.")
    if not arguments.data:
        print("Name each node's data as `source` in its network.toml (docs/deploy.md says what it may be).")
    print("\nOn the server, with its folder; it registers the nodes' keys and runs the training:")
    print(f"  {shlex.join(['fedgrec', 'federation', 'server', str(made.server)])}")
    print("On each node, with its folder:")
    for node in made.nodes:
        print(f"  {shlex.join(['fedgrec', 'federation', 'node', str(node)])}")
    print("\nSecret, and where each belongs:")
    for file, where in secrets_of(arguments.per_user_masks).items():
        print(f"  {file:<28} {where}")
    home = open_server(made.server)
    print(f"Operators compare the fingerprint of {home.membership}.")
    print(textwrap.fill(f"Note: {in_words(batches_of(home, 1), home.agreed)}.", 78))
    if sums := sum(map(home.method(1).prepares, range(home.options.rounds))):
        opened = f"each season opens {sums} sums over everybody, of rows of people's own items, before its rounds"
        print(textwrap.fill(f"Note: {opened}; fedgrec audit measures what they tell.", 78))
    return 0


def run_up(arguments: argparse.Namespace) -> int:
    """Deal a data set out to nodes, start server and nodes as processes on this machine, train, stop."""
    _require_flower()
    from fedgrec.federation.node.person import users_of
    from fedgrec.federation.setup.start import try_out, up

    config, options, agreed = settings(arguments)
    out: Path = arguments.out or _unused(Path("runs") / "federation")
    made = try_out(
        out, arguments.nodes, config, options, arguments.users, per_user_masks=arguments.per_user_masks, agreed=agreed
    )
    print(f"{len(made.nodes)} nodes in {out}; their logs are in {out / 'logs'}")
    try:
        up(made, say)
        somebody = users_of(made.nodes[0])[0]
        print(f"\nTrained. The server's run is in {made.server / 'run'}. Next:")
        print(f"  {shlex.join(['fedgrec', 'federation', 'status', str(made.server)])}")
        print(f"  {shlex.join(['fedgrec', 'device', 'recommend', str(made.nodes[0]), '--user', somebody])}")
    finally:
        print(f"{out} stays, with the private keys of server and nodes and their users' data. To remove it:")
        print(f"  {shlex.join(['rm', '-r', str(out)])}", flush=True)
    return 0


def _unused(folder: Path) -> Path:
    """This folder, or the first of FOLDER-2, FOLDER-3, … that does not exist."""
    names = (folder if number == 1 else folder.with_name(f"{folder.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def run_server(arguments: argparse.Namespace) -> int:
    """Run the server of a folder until its federation is trained."""
    _require_flower()
    from fedgrec.federation.common import json_log
    from fedgrec.federation.setup.copies import take_over
    from fedgrec.federation.setup.start import serve

    # A service manager ends the server with SIGTERM; the processes that the server started must end with it. At the
    # second one it does not wait for a sum any more.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    log = logging.getLogger("fedgrec.server")
    tell: Callable[[str], None] = say
    if arguments.log_json:
        log.addHandler(json_log.handler("server", arguments.folder.absolute().name, sys.stdout))
        log.setLevel(logging.INFO)
        tell = json_log.sayer(log)
    with federation_watch.errors_in(log, arguments.log_json):
        if arguments.copies:
            tell(f"{arguments.folder} is made from {take_over(arguments.folder, arguments.copies)}.")
        serve(arguments.folder, tell, federation_watch.watch_of(arguments), arguments.grace)
    tell(f"Trained. The run is in {arguments.folder / 'run'}.")
    return 0


def run_node(arguments: argparse.Namespace) -> int:
    """Be the node of a folder until stopped."""
    _require_flower()
    from fedgrec.federation.common import json_log
    from fedgrec.federation.flower.internals import flower_log
    from fedgrec.federation.setup.start import node

    as_json = [json_log.handler("node", arguments.folder.absolute().name)] if arguments.log_json else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", handlers=as_json)
    logging.captureWarnings(arguments.log_json)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs a line at every poll for work
    flower_log.handlers.clear()  # our handler writes Flower's lines too
    with federation_watch.errors_in(logging.getLogger("fedgrec.node"), arguments.log_json):
        node(arguments.folder, arguments.trust_again, federation_watch.watch_of(arguments))
    return 0


def run_device(arguments: argparse.Namespace) -> int:
    """Recommend items to a user of a node, from the node's store and the item table downloaded last."""
    from fedgrec.cable.core import printable
    from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
    from fedgrec.federation.node.person import recommend

    check_number(arguments)
    items, scores = recommend(arguments.node, arguments.user, arguments.number)
    ids = list(read_catalogue(arguments.node / CATALOGUE))
    titles = [""] * len(ids)
    if arguments.item_names or (arguments.node / TITLES).exists():
        from fedgrec.data import IdMap, item_names

        titles = [*item_names.names_for(IdMap(ids), arguments.node, arguments.item_names).titles]
    found = [(ids[item], titles[item], float(score)) for item, score in zip(items.tolist(), scores, strict=True)]
    if arguments.json:
        named = ({"item": name, **({"title": title} if title else {}), "score": score} for name, title, score in found)
        print(json.dumps([*named]))
        return 0
    for rank, (name, title, score) in enumerate(found, 1):
        print(f"{rank:>3}. {printable(f'{title} (item {name})' if title else name):<50} {score:8.4f}")
    return 0


def run_backup(arguments: argparse.Namespace) -> int:
    """Copy the folder of a server, a node or a gateway, also while it is at work."""
    from fedgrec.federation.common.folder import SERVER
    from fedgrec.federation.setup.backup import backup

    copy = backup(arguments.folder, arguments.out, arguments.with_keys)
    if arguments.with_keys:
        print(f"{copy} is a copy of {arguments.folder}, with its keys: keep it as safe.")
    else:
        renew = (
            "certificate FED --host HOST" if (copy / SERVER).exists() else f"rotate-keys FED {arguments.folder.name}"
        )
        print(f"{copy} is a copy of {arguments.folder} without its private keys. To restore it, put them back, or make")
        print(f"new ones where `init` ran, with  fedgrec federation {renew}")
    return 0


def _require_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise missing_extra("a federation over the network", "deploy")
    from fedgrec.federation.flower.superlink import QUIET

    os.environ.update(QUIET)  # before Flower is imported
