"""A small HTTP server for people and programs that watch a server or a node: a few pages, only GET.

It is meant for this machine. A foreign page in a browser on this machine could reach it under a name that points here
(DNS rebinding), so the Host header must be one of the site's own names.
"""

import errno
import ipaddress
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.errors import FederationError

LOOK = 0.1  # seconds between two checks whether the site should end
LOOPBACK = "127.0.0.1"
LOCAL = {"localhost", LOOPBACK, "::1"}
EVERYWHERE = {"0.0.0.0", "::"}
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # a page may load nothing else
SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class Answer:
    """What a page says."""

    body: bytes
    kind: str  # of content
    code: int = 200
    policy: str = NOTHING


Pages = Mapping[str, Callable[[], Answer]]


def as_json(content: Any, code: int = 200) -> Answer:
    return Answer(json.dumps(content).encode(), "application/json", code)


def health(trouble: str, about: Mapping[str, Any]) -> Answer:
    """`/health`: 200 where there is no trouble, else 503 and the reason."""
    return as_json({"ok": not trouble, **({"reason": trouble} if trouble else {}), **about}, 503 if trouble else 200)


class Site(ThreadingHTTPServer):
    """Pages at an address; a thread answers until `closed`. A host with a slash is the path of a Unix socket."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, pages: Pages, visit: "type[Visit] | None" = None, scheme: str = "http"
    ) -> None:
        self.host, self.pages, self.scheme, is_file = host, pages, scheme, "/" in host
        self.address_family = socket.AF_UNIX if is_file else socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__(host if is_file else (host, port), visit or Visit)  # type: ignore[arg-type]
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            why = "end what uses it, or choose another port" if busy else "choose another address or port"
            raise FederationError(
                f"port {port} of {host} {'is in use' if busy else f'cannot be used ({error.strerror})'}: {why}"
            ) from None

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.host, 0 if "/" in self.host else self.server_address[1]

    @property
    def address(self) -> str:
        return (
            f"unix:{self.host}" if "/" in self.host else f"{self.scheme}://{host_and_port(self.host, self.server_port)}"
        )

    def goes_by(self, host: str) -> bool:
        """Whether a Host header is a name of this site. An IP address is safe: DNS cannot point it elsewhere."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
        name = name.removeprefix("[").removesuffix("]").lower().removesuffix(".")
        if name in LOCAL | {self.host.lower()}:
            return True
        return self.host in EVERYWHERE and (name == socket.gethostname().lower() or is_address(name))


class Visit(BaseHTTPRequestHandler):
    """One request."""

    server: Site
    timeout = 10  # seconds that a caller has to send its request
    server_version, sys_version = "fedgrec", ""

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host") or []
        page = self.server.pages.get(self.path.partition("?")[0])
        if len(hosts) != 1 or not self.server.goes_by(hosts[0]):
            answer = Answer(b"This site goes by another name.\n", "text/plain", 421)
        elif page is None:
            answer = Answer(b"There is no such page.\n", "text/plain", 404)
        else:
            try:
                answer = page()
            except FedgrecError as error:
                answer = health(str(error), {})
        self._say(answer)

    def _not_allowed(self) -> None:
        self._say(Answer(b"This site answers GET alone.\n", "text/plain", 405), {"Allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _not_allowed  # noqa: N815

    def _say(self, answer: Answer, more: Mapping[str, str] | None = None) -> None:
        self.send_response(answer.code)
        kind = {"Content-Type": f"{answer.kind}; charset=utf-8" if ";" not in answer.kind else answer.kind}
        length = {"Content-Length": str(len(answer.body)), "Content-Security-Policy": answer.policy}
        for name, value in {**kind, **length, **SAFE, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *words: Any) -> None:  # noqa: A002 (the library's name)
        """Requests are not logged."""


@contextmanager
def watched(host: str, port: int | None, pages: Pages) -> Iterator[Site | None]:
    """The site, for as long as the block lasts; None without a port."""
    if port is None:
        yield None
        return
    with Site(host, port, pages) as site:
        threading.Thread(target=site.serve_forever, args=(LOOK,), daemon=True).start()
        try:
            yield site
        finally:
            site.shutdown()


def host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
