"""The server's end of the network: a SuperLink that knows the roster's keys, and one run of our app on it."""

import hashlib
import logging
import secrets
import socket
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedgrec import __version__
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import CA, KEYS, TLS_CERTIFICATE, TLS_KEY, ServerNetwork, read_network
from fedgrec.federation.common.web import host_and_port
from fedgrec.federation.flower.clients import Secret, connected, patient, public_bytes
from fedgrec.federation.flower.internals import (
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    build_fab_from_files,
    user_config_to_proto,
)
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.flower.records import PIECE
from fedgrec.federation.flower.superlink import BODY, LOG, SECRET
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.log import log_of

SUPERLINK = "superlink"
START = 300.0  # seconds that the SuperLink has to come up
A_MEMBER, A_SHARE = 2**16, 2**10  # the most bytes of a member's message without vector and shares; of one share
THRIFTY = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}  # for glibc: give freed messages back
GROWTH = 2  # nodes may join while the server runs
KNOWN_ALREADY = "already in use"
APP = {
    "pyproject.toml": f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedgrec-federation"
version = "{__version__}"
description = "The apps of a fedgrec federation; their code is the installed fedgrec"
license = "Apache-2.0"
dependencies = ["fedgrec[deploy]"]

[tool.flwr.app]
publisher = "fedgrec"

[tool.flwr.app.components]
serverapp = "fedgrec_app.apps:server_app"
clientapp = "fedgrec_app.apps:client_app"

[tool.flwr.app.config]
folder = ""
""",
    "fedgrec_app/__init__.py": "",
    "fedgrec_app/apps.py": "from fedgrec.federation.flower.client_app import client_app\n"
    "from fedgrec.federation.setup.server_app import server_app\n\n"
    '__all__ = ["client_app", "server_app"]\n',
}
log = logging.getLogger("fedgrec.server")


class FlowerServer:
    """A SuperLink as our child process, and a run on it.

    The SuperLink keeps everything in memory, and so answers in half the time. All that must survive is in our own
    store. The server tells it the keys at each start. Messages under way are lost together with their sum.
    """

    def __init__(self, folder: Path, processes: Processes, app: dict[str, str] | None = None) -> None:
        self.folder, self.processes, self.app = folder.absolute(), processes, app or APP
        self.network = read_network(folder, ServerNetwork)
        self.run = 0
        self.registered: set[tuple[Path, bytes]] = set()  # names and keys that the SuperLink knows
        host = "127.0.0.1" if self.network.listen in ("0.0.0.0", "::") else self.network.listen
        self.secret = secrets.token_hex(32)  # a new one for each start; it stays on this machine
        self.client = connected(
            ControlHttpClient,
            host_and_port(host, self.network.port),
            (self.folder / CA).read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="flwr"), Secret(self.secret)],
            patient(httpx.ConnectError, httpx.ConnectTimeout, seconds=START),  # no error after the request arrived
        )
        self.here = (host, self.network.port)

    def start(self) -> None:
        """Start the SuperLink, tell it the keys, start the run."""
        if is_taken(self.here):
            raise FederationError(f"port {self.network.port} is in use: end what uses it, or change network.toml")
        words = [sys.executable, "-m", "fedgrec.federation.flower.superlink"]
        words += ["--host", self.network.listen, "--port", str(self.network.port)]
        for flag, name in (("ca-certfile", CA), ("certfile", TLS_CERTIFICATE), ("keyfile", TLS_KEY)):
            words += [f"--ssl-{flag}", str(self.folder / name)]
        words += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        environment = {SECRET: self.secret, BODY: str(largest_request(self.folder))}  # everybody can see arguments
        environment |= {LOG: str(log_of(self.folder)), **THRIFTY}
        self.processes.start(SUPERLINK, words, {"FLWR_HOME": str(self.folder / "flower"), **environment})
        self._wait()
        self.register()
        self.run = self._start_run()

    def _wait(self) -> None:
        end = time.monotonic() + START
        while not is_taken(self.here):
            self.processes.check()
            if time.monotonic() > end:
                raise FederationError(f"the SuperLink did not come up: {self.processes.last_words(SUPERLINK)}")
            time.sleep(0.1)

    def register(self) -> None:
        """Tell the SuperLink the keys of all nodes that it does not know yet."""
        found = {(path, path.read_bytes()) for path in sorted((self.folder / KEYS).glob("*.pub"))}
        for path, content in sorted(found - self.registered):
            self.registered.add((path, content))
            try:
                key: Any = load_ssh_public_key(content)
            except ValueError as error:
                raise FederationError(f"{path} is not a node's public key ({error}): copy it again") from None
            try:
                self.client.RegisterNode(RegisterNodeRequest(public_key=public_bytes(key), name=path.stem))
            except httpx.HTTPStatusError as error:
                if KNOWN_ALREADY not in error.response.text:
                    raise FederationError(f"the SuperLink refused the key {path}: {error.response.text}") from None

    def _start_run(self) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Flower uses a deprecated name of a library
            fab, _ = build_fab_from_files({name: text.encode() for name, text in self.app.items()})
        request = StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
            override_config=user_config_to_proto({"folder": str(self.folder)}),
        )
        return int(self.client.StartRun(request).run_id)

    def ended(self) -> str | None:
        """None while the run goes on; then how it ended: "" if it ended well."""
        self.processes.check()
        try:
            status = self.client.ListRuns(ListRunsRequest(run_id=self.run)).run_dict[self.run].status
        except httpx.TransportError:  # the SuperLink may have died just now: the next check will say so
            return None
        if status.status != "finished":
            return None
        return "" if status.sub_status == "completed" else status.details or status.sub_status

    def close(self) -> None:
        """Call this before the SuperLink ends, because it waits for open connections."""
        self.client.close()


def largest_request(folder: Path) -> int:
    """Bytes of the longest request that a node may need to send.

    It is a piece of a masked vector and the rest of each user's message, with a share for each member of the roster;
    gateways bundle the packets of all their users. There is room for GROWTH times as many members.
    """
    members = list(open_server(folder).roster.values())
    together = GROWTH * max(Counter(member.gateway for member in members if member.gateway).values(), default=1)
    return 2 * PIECE + together * (A_MEMBER + A_SHARE * GROWTH * len(members))


def is_taken(address: tuple[str, int]) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex(address) == 0
