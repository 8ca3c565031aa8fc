"""The SuperLink's listening socket: strangers, who have not proved who they are, get few and short connections.

A connection costs the server a file and some memory before its caller proves who it is. So callers who send nothing
wait in the kernel. A stranger's connection ends when there are too many newer ones, or when the caller takes too long.
The door says which connections are trusted (`trust`): a signed request came over them.
"""

import asyncio
import contextlib
import gc
import socket
from asyncio import sslproto
from typing import Any

STRANGERS, OF_ONE_ADDRESS = 1024, 512  # the most connections of strangers: of all, and of one address
PATIENCE = 15.0  # seconds that a stranger has, from the first byte to a signed request
QUEUE = 4096  # callers that wait in the kernel
AT_A_TIME = 16  # waiting callers that we accept before we serve the others again
SILENCE = 5  # seconds after which the kernel drops a caller who has sent nothing
BUFFER = 2**16  # bytes that asyncio reserves for what a connection sends: a quarter of its default
TIDY = 512  # connections after which we collect what asyncio leaves of failed ones: reference cycles with buffers
Caller = tuple[Any, ...]  # address and port


class Listener(socket.socket):
    """A listening socket, bound to an address, that ends strangers' connections."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.strangers: dict[Caller, socket.socket] = {}  # the oldest first
        self.trusted: dict[Caller, socket.socket] = {}
        self.accepted = 0
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENCE)
        sslproto.SSLProtocol.max_size = BUFFER
        self.bind((host, port))

    def listen(self, backlog: int = QUEUE) -> None:
        """Let more callers wait in the kernel than asyncio accepts at a time; asyncio has one number for both."""
        super().listen(QUEUE)

    def close(self) -> None:
        """Close at once: do not wait for strangers."""
        for caller in list(self.strangers):
            self._end(caller)
        super().close()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        caller = address[:2]
        self._forget(caller)
        self.strangers[caller] = connection
        alike = [each for each in self.strangers if each[0] == caller[0]]
        if len(alike) > OF_ONE_ADDRESS:
            self._end(alike[0])
        elif len(self.strangers) > STRANGERS:
            self._end(next(iter(self.strangers)))
        self.accepted += 1
        if self.accepted % TIDY == 0:
            gc.collect()
        asyncio.get_running_loop().call_later(PATIENCE, self._end_if, caller, connection)
        return connection, address

    def trust(self, caller: Caller) -> None:
        """This caller has proved who it is."""
        if connection := self.strangers.get(caller):
            self._forget(caller)
            self.trusted = {each: at for each, at in self.trusted.items() if at.fileno() >= 0}
            self.trusted[caller] = connection

    def is_trusted(self, caller: Caller) -> bool:
        return caller in self.trusted and self.trusted[caller].fileno() >= 0

    def _forget(self, caller: Caller) -> None:
        self.trusted.pop(caller, None)
        self.strangers.pop(caller, None)

    def _end_if(self, caller: Caller, connection: socket.socket) -> None:
        """End this connection, unless its caller has another one by now, or is no stranger."""
        if self.strangers.get(caller) is connection:
            self._end(caller)

    def _end(self, caller: Caller) -> None:
        """Shut the connection down; asyncio then sees the caller as gone, and cleans up."""
        connection = self.strangers[caller]
        self._forget(caller)
        with contextlib.suppress(OSError):  # it has ended already
            connection.shutdown(socket.SHUT_RDWR)
