"""Flower's SuperLink with a door, and with limits on what strangers cost.

Flower 1.41 serves nodes, the control of runs and the apps of runs on one port. It asks no password for control, and
reads a whole request before it checks the sender: anybody who reaches that port could start their own app on the
server, or fill its memory. Here, control and apps answer only callers who know the secret of this start, which the
server makes and its own processes inherit. The door reads only the headers of a node's request until it has checked the
signature.
"""

import asyncio
import base64
import gc
import hmac
import ipaddress
import logging
import os
import resource
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread

from fedgrec.federation.common.web import is_address
from fedgrec.federation.flower import internals
from fedgrec.federation.flower.connections import AT_A_TIME, Listener
from fedgrec.federation.flower.handlers import MOST_HELD, Questions, patient_claim
from fedgrec.federation.flower.processes import end_with_parent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
NODES, BEGIN = "/v1/fleet/", "/v1/control/start-run"  # the server begins a run once Flower knows all nodes' keys
# In the environment: this start's secret, the bytes of a node's request, the server's log.
SECRET, BODY, LOG = "FEDGREC_SECRET", "FEDGREC_BODY", "FEDGREC_LOG"
LATE, EARLY = 300.0, 5.0  # seconds that the clock of a signed request may be behind and ahead
TELL = 3600.0  # seconds between two lines about the same refused node
HEADER = "x-fedgrec-secret"  # the header in which the server's own processes show it
UPLOAD = 300.0  # seconds that a request has to arrive
OWN = 2**31  # the most bytes of a request of the server's own processes
KEEP = 60  # seconds that a client keeps an unused connection; the SuperLink keeps it longer
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # Flower calls nobody outside
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1.0"}
# For uvicorn: asyncio's own loop, which takes our listening socket; h11, which bounds headers; no headers in which a
# caller names its own address.
LIMITS = {
    "loop": "asyncio",
    "http": "h11",
    "ws": "none",
    "proxy_headers": False,
    "access_log": False,
    "backlog": AT_A_TIME,
    "timeout_keep_alive": KEEP + 15,
    "timeout_graceful_shutdown": 1,  # looks for work wait
}
CLOSE, UNAUTHORIZED = (b"connection", b"close"), 401
LOOK, RUNS = "pull-messages", "/v1/runtime/"  # a look for work or answers, which waits; calls of the server's app
# Calls that come for every message: their types, and Flower's handlers or what we put in their place.
CALLS = {
    NODES + LOOK: ("PullMessagesRequest", "pull_messages"),
    NODES + "push-messages": ("PushMessagesRequest", "push_messages"),
    RUNS + LOOK: ("PullAppMessagesRequest", "pull_answers"),
    RUNS + "push-messages": ("PushAppMessagesRequest", "push_questions"),
    RUNS + "get-nodes": ("GetNodesRequest", "get_nodes"),
}
BRIEF = CapacityLimiter(2)  # calls at a time that do not wait: each holds a few copies of the parts in it
CHILDREN = "fedgrec.federation.flower.children"
log = logging.getLogger("fedgrec.server")


def is_here(client: str, server: str) -> bool:
    """Whether a caller is on this machine."""
    if not is_address(client):
        return False
    address = ipaddress.ip_address(client)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback or client == server


async def whole_body(receive: Receive, most: int) -> bytes | None:
    """A request's body, up to `most` bytes; None if it is longer, or the caller is gone.

    Flower waits for the whole body anyway, and its middlewares spend much time on each of the dozens of events of an
    upload.
    """
    pieces, length, more = list[bytes](), 0, True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            return None
        pieces.append(event.get("body", b""))
        length, more = length + len(pieces[-1]), event.get("more_body", False)
        if length > most:
            return None
    return b"".join(pieces)


def is_signed(scope: Scope) -> bool:
    """Whether a node that Flower knows has signed a request's headers: Flower's own check, which needs no body."""
    from fastapi import HTTPException, Request

    request = Request(scope)
    try:
        key = base64.b64decode(request.headers.get(internals.FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
        if internals.get_linkstate(request).get_node_id_by_public_key(key) is None:
            return False
        # Flower also checks that a request is about its sender; it checks the real one later, with the body.
        about = internals.ActivateNodeRequest(public_key=key)
        internals.authenticate_node(Request({**scope, "state": {"protobuf_request": about}}))
    except (HTTPException, ValueError):
        return False
    return True


def clock_error(ahead: float) -> str:
    """How many seconds the clock of a caller is ahead or behind; "" where we take what is signed by it."""
    where = "ahead of" if ahead > 0 else "behind"
    return "" if -LATE < ahead < EARLY else f"{abs(ahead):.0f} s {where}"


def refused_node(scope: Scope) -> tuple[str, float] | None:
    """The node that signed a refused request, and how many seconds its clock is ahead; None of a stranger."""
    from fastapi import Request

    request = Request(scope)
    names = (internals.FLEET_HTTP_PUBLIC_KEY_HEADER, internals.FLEET_HTTP_SIGNATURE_HEADER)
    try:
        key, signature = (base64.b64decode(request.headers[name], validate=True) for name in names)
        stamp = request.headers[internals.TIMESTAMP_HEADER]
        number = (nodes := internals.get_linkstate(request)).get_node_id_by_public_key(key)
        if number is None or not internals.verify_signature(
            internals.bytes_to_public_key(key), stamp.encode("ascii"), signature
        ):
            return None
        ahead = datetime.fromisoformat(stamp) - datetime.now(UTC)
        return nodes.get_node_info(node_ids=[number])[0].name, ahead.total_seconds()
    except (KeyError, TypeError, ValueError):
        return None


class Door:
    """ASGI middleware: closed paths answer 404, and no body is read before the caller has proved who it is.

    Nodes hear 503 until the server has begun its run: only then does a refusal mean that a node is not wanted.
    """

    def __init__(
        self, app: Callable[..., Awaitable[None]], secret: str, body: int, listener: Listener, signed: Any = is_signed
    ) -> None:
        self.app, self.secret, self.body, self.listener, self.signed = app, secret, body, listener, signed
        self.has_begun = False
        self.named: dict[str, float] = {}  # by node: when the log last named it

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        if scope["type"] == "lifespan":
            to_thread.current_default_thread_limiter().total_tokens += MOST_HELD  # a look that waits holds a thread
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            status = self._refused(scope)
            body = None if status else await self._body(scope, receive)

            async def answered(event: Scope) -> None:
                if event.get("status") == UNAUTHORIZED:  # the door's own answer, or Flower's
                    self._name_wrong_clock(scope)
                await send(event)

            if body is None:
                await answered({"type": "http.response.start", "status": status or 413, "headers": [CLOSE]})
                await send({"type": "http.response.body", "body": b""})
            else:
                if scope["path"] in CALLS and scope["method"] == "POST":
                    await answer_call(scope, body, answered)
                else:
                    await self.app(scope, _once(body, receive), answered)
                self.has_begun |= scope["path"] == BEGIN

    def _name_wrong_clock(self, scope: Scope) -> None:
        """Say in the server's log which node is refused, and how wrong its clock is; strangers cannot fill the log."""
        (name, ahead), now = refused_node(scope) or ("", 0.0), time.monotonic()
        if (error := clock_error(ahead)) and now - self.named.get(name, -TELL) >= TELL:
            self.named[name] = now
            log.warning("note: node %s is refused: its clock is %s this server's: set it (NTP)", name, error)

    def _refused(self, scope: Scope) -> int:
        """The status with which a caller is refused; 0 if it may come in."""
        path, shown = str(scope.get("path", "")), dict(scope.get("headers", ())).get(HEADER.encode(), b"")
        client, server = (str((scope.get(end) or ("", 0))[0]) for end in ("client", "server"))
        if path.startswith(NODES):
            if not self.has_begun:
                return 503
            return 0 if self.listener.is_trusted(scope["client"]) or self.signed(scope) else UNAUTHORIZED
        return 0 if is_here(client, server) and hmac.compare_digest(shown, self.secret.encode()) else 404

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        self.listener.trust(scope["client"])
        most = self.body if scope["path"].startswith(NODES) else OWN
        length = dict(scope.get("headers", ())).get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            return None
        try:
            async with asyncio.timeout(UPLOAD):
                return await whole_body(receive, most)
        except TimeoutError:
            return None


def _once(body: bytes, receive: Receive) -> Receive:
    """A `receive` for a request whose body is here already."""
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Scope:
        return events.pop() if events else await receive()

    return replayed


def call(request: Any, body: bytes) -> Any:
    """Answer a call, as Flower's layers around its handlers would."""
    from starlette.responses import Response

    (kind, handler), state = CALLS[request.url.path], internals.get_linkstate(request)
    message = request.state.protobuf_request = getattr(internals, kind).FromString(body)
    who = dict[str, Any]()
    if request.url.path.startswith(NODES):
        internals.authenticate_node(request)
    else:
        who["task"] = internals.authenticate_task(request, request.headers.get(internals.TASK_TOKEN_HEADER), state)
    answer = getattr(internals, handler)(request=message, state=state, **who)
    return Response(answer.SerializeToString(), media_type="application/protobuf")


async def answer_call(scope: Scope, body: bytes, send: Any) -> None:
    """An ASGI app for `CALLS`: Flower's nine middlewares and its router took two thirds of the SuperLink's time."""
    from fastapi import Request

    async def called(request: Any) -> Any:
        return await to_thread.run_sync(call, request, body, limiter=None if scope["path"].endswith(LOOK) else BRIEF)

    await (await internals.http_error_translator(Request(scope), called))(scope, None, send)


def http_server(app: Any, **options: Any) -> Any:
    """uvicorn, with our limits."""
    import uvicorn

    def only_tls_1_3(config: Any, usual: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        context = usual()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return context

    config = uvicorn.Config(app, **options | LIMITS, ssl_context_factory=only_tls_1_3)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers must not fill our log
    return uvicorn.Server(config)


def run(server: Any, listener: Listener) -> None:
    """Run until somebody ends this process; the garbage collector skips the objects that exist by now."""
    gc.freeze()
    server.run(sockets=[listener])


def main() -> None:
    """`flower-superlink` with its own arguments, and the door in front."""
    os.environ.update(QUIET | QUICK)
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")  # otherwise Flower logs every look at a run
    # Flower starts its parts by name: they are beside this Python, even if its environment is not active.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    end_with_parent()
    internals.leave_out_sql()
    from types import SimpleNamespace

    from starlette.middleware import Middleware

    internals.check()
    to = logging.FileHandler(os.environ[LOG], delay=True)
    to.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))  # as server/log.py writes lines
    log.addHandler(to)
    options = internals.superlink_options().parse_args()
    listener = Listener(options.host, options.port)
    door = Middleware(Door, secret=os.environ[SECRET], body=int(os.environ[BODY]), listener=listener)
    before, superexec = internals.middlewares, internals.superexec_command
    internals.replace("middlewares", lambda: (door, *before()))  # Flower's own hook for this
    questions = Questions(internals.pull_messages, internals.push_messages)
    internals.replace("pull_messages", questions.pull)
    internals.replace("push_messages", questions.push)
    internals.replace("push_questions", partial(questions.announced, internals.push_questions))
    internals.replace("pull_answers", partial(questions.answers, internals.pull_answers))
    internals.replace("claim_task", patient_claim(internals.claim_task))
    internals.replace("superexec_apart", dict)
    internals.replace("superexec_command", lambda **how: [sys.executable, "-m", CHILDREN, *superexec(**how)])
    internals.replace(
        "superlink_uvicorn", SimpleNamespace(run=lambda app, **how: run(http_server(app, **how), listener))
    )
    internals.superlink()


if __name__ == "__main__":
    main()
