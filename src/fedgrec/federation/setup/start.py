"""Starts a federation's parts: a server, a node, or all of them on this machine to try it out."""

import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgrec.config.configuration import Config
from fedgrec.errors import FedgrecError
from fedgrec.federation.common import network
from fedgrec.federation.common.batches import batches_of, in_words
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.lock import held
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.web import LOOPBACK, Site, watched
from fedgrec.federation.flower.processes import Processes, end_with_parent
from fedgrec.federation.node import history
from fedgrec.federation.node.contact import Contact
from fedgrec.federation.node.folder import LOCK
from fedgrec.federation.node.gateway import anyone, node_folders, opened
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server import seasons
from fedgrec.federation.server.folder import STOP, open_server
from fedgrec.federation.server.log import LOGS, Following
from fedgrec.federation.server.pages import metrics
from fedgrec.federation.server.status import status
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.init import MOST_USERS, Made, init

LOOK, ASK = 0.3, 1.0  # seconds between two looks at the log, and between two questions to the SuperLink
SLOW = 15.0  # seconds after which we say that we still wait for the server's app
DAY = 86400.0  # seconds between two looks at the certificates
Say = Callable[[str], None]
log = logging.getLogger("fedgrec.node")


@dataclass(frozen=True)
class Watch:
    """Where `/metrics` and `/health` are served; without a port, they are not."""

    port: int | None = None
    host: str = LOOPBACK


UNWATCHED = Watch()


def serve(folder: Path, say: Say, watch: Watch = UNWATCHED, grace: float = 0.0) -> None:
    """Run the server of this folder until its federation is trained.

    Whoever raises SystemExit meanwhile waits up to `grace` seconds for the sum that goes on.
    """
    home = open_server(folder)
    home.check()
    seasons.later_rounds(home.options, home.agreed)
    home.config.model.check_rounds(home.options.rounds)
    network.read_network(folder, network.ServerNetwork)
    network.check_tls(folder)
    pages = {} if watch.port is None else metrics(folder)
    with watched(watch.host, watch.port, pages) as site, Processes(folder / LOGS) as processes:
        if site:
            say(_where(site))
        try:
            _drive(folder, [], processes, say)
        except SystemExit:
            _let_finish(folder, grace)
            raise


def _let_finish(folder: Path, seconds: float) -> None:
    """Wait for the sum that goes on; no other one begins."""
    (folder / STOP).touch()
    end, idle = time.monotonic() + seconds, 0
    while time.monotonic() < end and idle < 2:  # a sum may begin at the first look
        time.sleep(LOOK)
        idle = 0 if status(folder).current_sum else idle + 1


def _where(site: Site) -> str:
    return f"{site.address}/metrics and {site.address}/health say how it goes"


def up(made: Made, say: Say) -> None:
    """Run server and nodes, each in a process of its own, until the federation is trained."""
    with Processes(made.server.parent / LOGS) as processes:
        _drive(made.server, made.nodes, processes, say)


def start_node(folder: Path, processes: Processes) -> None:
    processes.start(folder.name, [sys.executable, "-m", "fedgrec", "federation", "node", str(folder)])


def _drive(folder: Path, nodes: list[Path], processes: Processes, say: Say) -> None:
    from fedgrec.federation.flower.server_end import FlowerServer

    following, server = Following(folder), FlowerServer(folder, processes)
    try:
        say("the SuperLink is starting")
        server.start()
        say(f"the SuperLink listens on {server.network.listen}:{server.network.port}")
        home = open_server(folder)
        say(f"note: this is {home.membership}")
        if assumption := home.assumption:
            say(f"note: {assumption}")
        with ServerStore(home, read_only=True) as store:
            founded = store.founded() or home.membership.number
        say(f"note: {in_words(batches_of(home, founded), home.agreed)}")
        for node in nodes:
            start_node(node, processes)
        ended, asked, warned = None, 0.0, -DAY
        silent: float | None = time.monotonic()  # since then the app has said nothing
        while ended is None:
            time.sleep(LOOK)
            if time.monotonic() - warned >= DAY:
                warned = time.monotonic()
                if note := network.expiry_note(folder):
                    say(f"note: {note}")
            if time.monotonic() - asked >= ASK:
                ended, asked = server.ended(), time.monotonic()
                try:
                    server.register()  # a node that was added since
                except (FedgrecError, OSError) as trouble:  # such as a key that is half copied
                    say(f"note: {trouble}")
            lines = following.new()
            if silent and (lines or time.monotonic() - silent > SLOW):
                silent = None
                if not lines:
                    say("note: this machine is busy, and the server's app is still starting")
            for line in lines:
                say(line)
    finally:
        server.close()
    if ended:
        raise FederationError(f"the federation stopped: {ended}; see {following.path} and {processes.logs}")


def node(folder: Path, trust_again: bool = False, watch: Watch = UNWATCHED) -> None:
    """Be a node until somebody ends this process."""
    from fedgrec.federation.flower.node_end import serve as answer_messages

    opened(folder)
    with held(folder / LOCK, "the node of this folder"):
        watcher = Watcher(folder)
        users = watcher.load()
        if trust_again:
            for path in node_folders(folder):
                with NodeStore(path) as store:
                    history.forget(store)
        superlink, key = network.read_network(folder, network.NodeNetwork).superlink, network.read_flower_key(folder)
        roster = anyone(folder).membership
        log.info("%s with %d users and %s connects to %s", folder.name, users, roster, superlink)
        end_with_parent()
        contact = Contact()
        pages = {} if watch.port is None else contact.pages(folder)
        with watched(watch.host, watch.port, pages) as site, watcher:
            if site:
                log.info("%s", _where(site))
            answer_messages(folder, superlink, folder / network.CA, key, contact=contact)


def try_out(
    out: Path,
    nodes: int,
    config: Config,
    options: FederationOptions,
    users: int,
    host: str = "127.0.0.1",
    port: int = 0,
    per_user_masks: bool = False,
    agreed: Agreement = AS_USUAL,
    people: int = 0,
) -> Made:
    """A federation over the users of a data set, dealt out to nodes.

    `users` limits the users of a node (0: all). Each is sure to bring `people` (0: half of its users).
    """
    from fedgrec.federation.setup.dataset import Deal

    deal = Deal.of(config, nodes, users)
    counts = [len(deal.users_of(index)) for index in range(nodes)]
    keys, most = counts if per_user_masks else [], [users or max(count, MOST_USERS) for count in counts]
    sure = [people or max(count // 2, 1) for count in counts]
    port = port or free_port()
    return init(out, nodes, deal.catalogue, config, options, host, port, deal.write, keys, most, sure, agreed)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
