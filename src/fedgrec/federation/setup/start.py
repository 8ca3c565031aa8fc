"""Starts a federation's parts: a server, a node, or all of them on this machine to try it out."""

import logging
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedgrec.config import Config
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.lock import held
from fedgrec.federation.common.network import (
    CA,
    NodeNetwork,
    ServerNetwork,
    check_tls,
    expiry_note,
    read_flower_key,
    read_network,
)
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions
from fedgrec.federation.common.web import LOOPBACK, Pages, Site, watched
from fedgrec.federation.flower.processes import Processes, end_with_parent
from fedgrec.federation.node.contact import Contact
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.federation.node.gateway import Gateway, node_folders, opened
from fedgrec.federation.node.sources import read_people
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import LOGS, Following
from fedgrec.federation.setup.init import Made, init

LOOK, ASK = 0.3, 1.0  # seconds between two looks at the log, and between two questions to the SuperLink
DAY = 86400.0  # seconds between two looks at the certificates
Say = Callable[[str], None]
log = logging.getLogger("fedgrec.node")


@dataclass(frozen=True)
class Watch:
    """Where `/metrics` and `/health` are served; nowhere without a port."""

    port: int | None = None
    host: str = LOOPBACK


UNWATCHED = Watch()


def serve(folder: Path, say: Say, watch: Watch = UNWATCHED) -> None:
    """Run the server of this folder until its federation is trained."""
    open_server(folder).check()
    read_network(folder, ServerNetwork)
    check_tls(folder)
    pages = _of_server(folder) if watch.port is not None else {}
    with watched(watch.host, watch.port, pages) as site, Processes(folder / LOGS) as processes:
        if site:
            say(_where(site))
        _drive(folder, [], processes, say)


def _of_server(folder: Path) -> Pages:
    from fedgrec.federation.server import metrics

    return metrics.pages(folder)


def _of_node(contact: Contact) -> Pages:
    from fedgrec.federation.node import metrics

    return metrics.pages(contact)


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
        server.start()
        say(f"the SuperLink listens on {server.network.listen}:{server.network.port}")
        if assumption := open_server(folder).assumption:
            say(f"note: {assumption}")
        for node in nodes:
            start_node(node, processes)
        ended, asked, warned = None, 0.0, -DAY
        while ended is None:
            time.sleep(LOOK)
            if time.monotonic() - warned >= DAY:
                warned = time.monotonic()
                if note := expiry_note(folder):
                    say(f"note: {note}")
            if time.monotonic() - asked >= ASK:
                ended, asked = server.ended(), time.monotonic()
            for line in following.new():
                say(line)
    finally:
        server.close()
    if ended:
        raise FederationError(f"the federation stopped: {ended}; see {following.path} and {processes.logs}")


def node(folder: Path, trust_again: bool = False, watch: Watch = UNWATCHED) -> None:
    """Be a node until somebody ends this process."""
    from fedgrec.federation.flower.node_end import serve as answer_messages

    opened(folder)
    with held(folder / "node.lock", "the node of this folder"):
        users = load(folder)
        if trust_again:
            for path in node_folders(folder):
                with NodeStore(path) as store, store.transaction():
                    store.trust_again()
        network, key = read_network(folder, NodeNetwork), read_flower_key(folder)
        log.info("%s with %d users connects to %s", folder.name, users, network.superlink)
        end_with_parent()
        contact = Contact()
        with watched(watch.host, watch.port, _of_node(contact) if watch.port is not None else {}) as site:
            if site:
                log.info("%s", _where(site))
            answer_messages(folder, network.superlink, folder / CA, key, contact=contact)


def load(folder: Path) -> int:
    """Take the users of the node's source into its store, those who are there already excepted."""
    home, network, people = opened(folder), read_network(folder, NodeNetwork), list[Person]()
    if network.source:
        source = str(folder / network.source)  # an absolute path stays what it is
        found = read_people(source, read_catalogue(folder / CATALOGUE), network.held_out)
        people = found.people
        if found.unknown or found.empty or found.nameless:
            log.warning(
                "%d interactions have items that the catalogue lacks, %d have no user or no item; %d users have "
                "nothing to learn from",
                found.unknown,
                found.nameless,
                found.empty,
            )
    users = _take_in(home, people)
    if not users:
        raise FederationError(f"{folder} has no users: name their data as `source` in network.toml")
    return users


def _take_in(home: NodeFolder | Gateway, people: list[Person]) -> int:
    """How many users there are now."""
    if isinstance(home, Gateway):
        if without := home.take_in(people):
            log.warning("%d users have no key and take no part: fedgrec federation add-users makes keys", without)
        return len(home.hosted())
    with NodeStore(home.path) as store:
        store.check()
        known = set(store.ids())
        fresh = [person for person in people if person.id not in known]
        store.add_users(home.method(1), fresh)
        log.info("%d new users", len(fresh))
        return store.count()


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
) -> Made:
    """A federation over the users of a data set, dealt out to nodes; `users` limits those of a node (0: all)."""
    from fedgrec.federation.setup.dataset import Deal

    deal = Deal.of(config, nodes, users)
    counts = [len(deal.users_of(index)) for index in range(nodes)]
    keys, most = counts if per_user_masks else [], [max(count, 1) for count in counts]
    return init(out, nodes, deal.catalogue, config, options, host, port or free_port(), deal.write, keys, most, agreed)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
