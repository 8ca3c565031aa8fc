"""The SuperLink's listening socket: callers who have not said who they are get few connections, for a short time.

A connection costs the server a file and some memory before its caller has said who it is. So the kernel keeps callers
who say nothing; a stranger's connection gives way to newer ones where there are many, and ends where the caller takes
too long. The door says which connections are no stranger's any more (`trust`): a signed request came over them.
"""

import asyncio
import contextlib
import gc
import socket
from asyncio import sslproto
from collections import defaultdict
from typing import Any

STRANGERS, OF_ONE_ADDRESS = 1024, 512  # connections of callers who have not said who they are
PATIENCE = 15.0  # seconds that such a caller has, from the first byte to a signed request
QUEUE = 4096  # callers that the kernel keeps until we come to them
AT_A_TIME = 16  # of them that we take before we listen to the others again
SILENCE = 5  # seconds after which the kernel forgets a caller who has said nothing
BUFFER = 2**16  # bytes that asyncio sets aside for what a connection sends, a quarter of what it would
TIDY = 512  # connections after which what asyncio leaves of those that failed is collected: circles, each with buffers
Caller = tuple[Any, ...]  # address and port


class Listener(socket.socket):
    """A listening socket, bound to an address, that ends strangers' connections."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.strangers: dict[Caller, socket.socket] = {}  # the oldest first
        self.alike: dict[str, dict[Caller, None]] = defaultdict(dict)  # the same, by address
        self.trusted: dict[Caller, socket.socket] = {}
        self.accepted = 0
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENCE)
        sslproto.SSLProtocol.max_size = BUFFER
        self.bind((host, port))

    def listen(self, backlog: int = QUEUE) -> None:
        """asyncio takes as many callers at a time as it lets wait; the kernel shall let more of them wait."""
        super().listen(QUEUE)

    def close(self) -> None:
        """Strangers do not hold up the end."""
        for caller in list(self.strangers):
            self._end(caller)
        super().close()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        caller = address[:2]
        self._forget(caller)
        self.strangers[caller] = connection
        alike = self.alike[caller[0]]
        alike[caller] = None
        if len(alike) > OF_ONE_ADDRESS:
            self._end(next(iter(alike)))
        elif len(self.strangers) > STRANGERS:
            self._end(next(iter(self.strangers)))
        self.accepted += 1
        if self.accepted % TIDY == 0:
            gc.collect()
        asyncio.get_running_loop().call_later(PATIENCE, self._end_if, caller, connection)
        return connection, address

    def trust(self, caller: Caller) -> None:
        """This caller has said who it is."""
        if connection := self.strangers.get(caller):
            self._forget(caller)
            self.trusted = {each: at for each, at in self.trusted.items() if at.fileno() >= 0}
            self.trusted[caller] = connection

    def is_trusted(self, caller: Caller) -> bool:
        return caller in self.trusted and self.trusted[caller].fileno() >= 0

    def _forget(self, caller: Caller) -> None:
        self.trusted.pop(caller, None)
        if self.strangers.pop(caller, None):
            del self.alike[caller[0]][caller]
            if not self.alike[caller[0]]:
                del self.alike[caller[0]]

    def _end_if(self, caller: Caller, connection: socket.socket) -> None:
        """End this connection, unless its caller has another one by now, or is no stranger."""
        if self.strangers.get(caller) is connection:
            self._end(caller)

    def _end(self, caller: Caller) -> None:
        """asyncio finds that the caller has gone, and tidies up."""
        connection = self.strangers[caller]
        self._forget(caller)
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)
