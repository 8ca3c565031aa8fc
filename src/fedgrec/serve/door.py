"""HTTP in front of a served model: who may ask, how much, and for how long.

A caller shows a token with every request but `/health`. The Host header must be a name of the site, no header lets the
pages of other sites in, and a request has a largest size and a latest end.
"""

import errno
import hmac
import io
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgrec.errors import ConfigError, DataError, FedgrecError
from fedgrec.federation.common.web import LOOPBACK, Site, Visit, as_json
from fedgrec.serve.questions import DESCRIPTION, HEALTH, QUESTIONS, RefusedError, answer, openapi
from fedgrec.serve.shelf import Shelf

LARGEST = 2**20  # bytes of a request's body
PATIENCE = 10.0  # seconds for a request to arrive, and for its answer to be taken
MOST_CALLERS = 64  # connections at a time
SHORTEST = 16  # characters of a token
PORT = 8642

Tokens = Mapping[str, str | None]  # each with the one user about whom it may ask; None: about everybody


class _Arriving(io.RawIOBase):
    """What a connection sends until a moment, however slowly it sends."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(self.until - time.monotonic(), 0.001))
        return self.connection.recv_into(buffer)


class _Caller(Visit):
    """One connection."""

    server: "Door"
    protocol_version = "HTTP/1.1"  # a connection stays open for the next request
    wbufsize = -1  # an answer is one packet, not two of which the second waits for the first

    def setup(self) -> None:
        super().setup()
        self.arriving = _Arriving(self.connection)
        self.rfile = io.BufferedReader(self.arriving)

    def handle_one_request(self) -> None:
        self.arriving.until = time.monotonic() + PATIENCE
        super().handle_one_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the library finds wrong with a request."""
        self._send(code if code < 500 else 400, {"error": f"this request cannot be answered: {message}"})

    def _send(self, code: int, content: Any) -> None:
        self.close_connection |= code != 200 or self.command != "POST"  # its body was not read: it is no next request
        self.request_version = self.protocol_version  # also to a caller of HTTP/0.9
        self.connection.settimeout(PATIENCE)
        self._say(as_json(content, code), {"Connection": "close"} if self.close_connection else None)

    def _serve(self) -> None:
        try:
            self._send(200, self._found())
        except FedgrecError as why:
            self._send(why.code if isinstance(why, RefusedError) else 400, {"error": str(why)})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _serve  # noqa: N815

    def _found(self) -> Any:
        hosts, path = self.headers.get_all("Host") or [], self.path.partition("?")[0]
        if len(hosts) != 1 or not self.server.goes_by(hosts[0]):
            raise RefusedError(421, "this server goes by another name")
        if path == HEALTH and self.command == "GET":
            return {"ok": True}
        only_user = self._bound()
        if path not in (HEALTH, DESCRIPTION, *QUESTIONS):
            raise RefusedError(404, f"there is no such path: {DESCRIPTION} lists them")
        method = "POST" if path in QUESTIONS else "GET"
        if self.command != method:
            raise RefusedError(405, f"{path} is asked with {method}")
        opened = self.server.shelf.opened  # to the end, whatever is opened meanwhile
        return answer(opened, path, self._body(), only_user) if path in QUESTIONS else openapi()

    def _bound(self) -> str | None:
        """The user to whom the caller's token is bound. How long this takes tells nothing about the tokens."""
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")  # the bytes that were sent
        known = self.server.tokens.items()
        right = [user for token, user in known if hmac.compare_digest(f"Bearer {token}".encode(), given)]
        if not right:
            raise RefusedError(401, "show a token of this server, with  Authorization: Bearer TOKEN")
        return right[0]

    def _body(self) -> Any:
        lengths = self.headers.get_all("Content-Length") or [""]
        if "Transfer-Encoding" in self.headers or len(lengths) > 1 or not lengths[0].isdecimal():
            raise RefusedError(411, "say the length of the body once, with  Content-Length")
        if len(lengths[0]) > 9 or int(lengths[0]) > LARGEST:
            raise RefusedError(413, f"a request has at most {LARGEST:,} bytes")
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(415, "send JSON, with  Content-Type: application/json")
        try:
            return json.loads(self.rfile.read(int(lengths[0])))
        except (ValueError, RecursionError) as error:
            raise RefusedError(400, f"the body is not JSON: {error}") from None


class Door(Site):
    """The site of a folder."""

    request_queue_size = MOST_CALLERS

    def __init__(self, shelf: Shelf, tokens: Tokens, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.shelf, self.tokens, self.tls, self._room = shelf, tokens, tls, threading.Semaphore(MOST_CALLERS)
        super().__init__(host, port, {}, _Caller, "https" if tls else "http")

    def verify_request(self, *_: Any) -> bool:
        """Whether there is room for one more."""
        return self._room.acquire(blocking=False)

    def process_request_thread(self, *caller: Any) -> None:
        try:
            super().process_request_thread(*caller)
        finally:
            self._room.release()

    def get_request(self) -> tuple[Any, Any]:
        connection, caller = super().get_request()
        if self.tls:  # hands are shaken with the first read, in a thread of the connection's own
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, caller

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away, or speaks no TLS, is no error of this server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextmanager
def served(
    folder: str | Path,
    tokens: Tokens,
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    socket_path: str | Path | None = None,
    tls: tuple[str | Path, str | Path] | None = None,
    tell: Callable[[str], None] = print,
) -> Iterator[Door]:
    """Serve the model of a run's, a node's or a gateway's folder for as long as the block lasts.

    `tokens`: whoever shows one of them may ask, about everybody (None) or about one user. `socket_path`: a Unix socket
    instead of host and port. `tls`: the files of a certificate and its key; without them only this machine may ask.
    """
    if not tokens or min(map(len, tokens)) < SHORTEST:
        raise ConfigError(f"give at least one token, each of at least {SHORTEST} characters")
    if not (tls or host == LOOPBACK):
        raise ConfigError(f"host {host}: other machines may ask by TLS alone; give a certificate and its key")
    place, context = (str(Path(socket_path).absolute()) if socket_path else host), _context(*tls) if tls else None
    with socket.socket(socket.AF_UNIX) as probe:
        if socket_path and probe.connect_ex(place) == errno.ECONNREFUSED:  # left by a process that was killed
            Path(place).unlink()
    shelf = Shelf(Path(folder), tell)
    with Door(shelf, tokens, place, port, context) as door:
        if socket_path:
            Path(place).chmod(0o600)
        for work in (door.serve_forever, shelf.follow):
            threading.Thread(target=work, daemon=True).start()
        try:
            yield door
        finally:
            shelf.end.set()
            door.shutdown()
            if socket_path:
                Path(place).unlink(missing_ok=True)


def _context(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise DataError(f"{certificate} and {key} are not a certificate and its key: {error}") from None
    return context
