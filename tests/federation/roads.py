"""Roads of TCP on loopback, one for each node, on which messages may be lost as behind a route that has changed."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

PIECE = 2**16


class Road:
    """Carries bytes between whoever connects and a server. While it is `lost`, all of them vanish, without an error.

    A connection that was open meanwhile stays dead, as one does whose other end has been forgotten on the way.
    """

    def __init__(self, there: tuple[str, int]) -> None:
        self.there, self.lost, self.vanished = there, False, 0
        self.open = set[Connection]()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.door.getsockname()[1]

    def lose(self) -> None:
        self.lost = True
        for connection in list(self.open):
            connection.dead = True

    def mend(self) -> None:
        self.lost = False

    async def serve(self) -> None:
        async with await asyncio.start_server(self._met, sock=self.door) as server:
            await server.serve_forever()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self)
        with connection.among(self.open), contextlib.suppress(OSError):
            try:
                to = None if self.lost else await asyncio.open_connection(*self.there)
            except OSError:  # nobody listens there
                writer.transport.abort()
                return
            ways = [connection.carry(reader, to[1]), connection.carry(to[0], writer)] if to else []
            await asyncio.gather(*ways or [connection.carry(reader, None)])
        for end in (writer, *(to or ())[1:]):
            end.close()


class Connection:
    def __init__(self, road: Road) -> None:
        self.road, self.dead = road, road.lost
        self.task = asyncio.current_task()  # asyncio itself forgets tasks that wait for nothing but each other

    @contextmanager
    def among(self, others: set["Connection"]) -> Iterator[None]:
        others.add(self)
        try:
            yield
        finally:
            others.discard(self)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> None:
        """Carry what comes from one end to the other; the end of it too, unless that is lost."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                if self.dead or writer is None:
                    self.road.vanished += len(piece)
                else:
                    writer.write(piece)
                    await writer.drain()
        if not self.dead and writer is not None:
            writer.close()


class Roads:
    """So many roads to one server, carried by a thread of this process until the end of the block."""

    def __init__(self, there: tuple[str, int], number: int) -> None:
        self.each = [Road(there) for _ in range(number)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def _carry(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(road.serve() for road in self.each))

        with contextlib.suppress(asyncio.CancelledError, RuntimeError):
            self._loop.run_until_complete(all_of_them())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        def cancel() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)
        self._thread.join(10)
        for road in self.each:
            road.door.close()
