"""Flower's SuperLink with a door: from other machines only the nodes' interface can be reached.

Flower 1.41 serves nodes, the control of runs and the apps of runs on one port, and asks no password for control:
whoever reaches that port could start an app of his own on the server. Here control and apps answer this machine alone.
"""

import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedgrec.federation.flower.processes import end_with_parent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
NODES = "/v1/fleet/"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # nothing is told to anybody outside
QUICK = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}


def is_open(path: str, client: str, server: str) -> bool:
    """Whether a caller may use this path: nodes' paths for all, the others from this machine."""
    try:
        here = ipaddress.ip_address(client).is_loopback or client == server
    except ValueError:
        here = False
    return here or path.startswith(NODES)


def in_one_piece(receive: Receive) -> Receive:
    """A request's body as one event: Flower's middlewares take long over an event, and an upload has dozens of them.

    Flower waits for the whole body anyhow before it looks at anything of it.
    """
    whole = False

    async def collected() -> Scope:
        nonlocal whole
        event = await receive()
        if whole or event["type"] != "http.request":
            return event
        pieces, whole = [event.get("body", b"")], True
        while event.get("more_body"):
            event = await receive()
            if event["type"] != "http.request":  # the caller is gone
                return event
            pieces.append(event.get("body", b""))
        return {"type": "http.request", "body": b"".join(pieces), "more_body": False}

    return collected


class Door:
    """ASGI middleware: what is not open is not there."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        client, server = (str((scope.get(end) or ("", 0))[0]) for end in ("client", "server"))
        if scope["type"] == "lifespan" or is_open(str(scope.get("path", "")), client, server):
            await self.app(scope, in_one_piece(receive), send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """`flower-superlink` with its own arguments, and the door in front."""
    os.environ.update(QUIET | QUICK)
    os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")  # it would write lines for every look at a run
    # Flower starts its parts by name: they are beside this Python, whether or not its environment is active.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.umask(0o077)
    end_with_parent()
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    before = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(Door), *before())  # the hook Flower keeps for this
    flower_superlink()


if __name__ == "__main__":
    main()
