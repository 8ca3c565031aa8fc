"""The transport over Flower: the server's exchanges as messages that Flower's grid pushes and pulls."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.flower.records import ACTION, POLL, Shared, read_answer, to_records

LOOKS = 50  # nodes are told how long to wait between two looks, so that all together make so many looks a second
TOGETHER = 5  # messages announced at a time: nodes ask for parts again and again until the last part has come
PULLERS = 4  # threads that pull answers
AFTERWARDS = 60.0  # seconds that a request stays with Flower beyond its deadline: the clocks of nodes differ


class FlowerTransport:
    """The server's end of a federation over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        # Flower announces a message before its parts are there, and then looks for them after 1, 2, 4, .. seconds.
        sooner = {"initial_backoff": POLL / 4, "backoff_cap": 4 * POLL}
        pull_objects.__kwdefaults__ = {**(pull_objects.__kwdefaults__ or {}), **sooner}
        self.late: list[str] = []  # messages whose answers are not wanted any more

    def addresses(self) -> Sequence[int]:
        """The nodes that Flower heard from within the last minute."""
        return sorted(self.grid.get_node_ids())

    def exchange(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet]]:
        """See `Transport`. What an exchange did not wait for is taken from Flower later, and thrown away."""
        end, shared = time.monotonic() + seconds, Shared()
        pause = max(POLL, len(requests) / LOOKS)
        messages = [
            Message(to_records(packet, shared, pause), address, ACTION, ttl=seconds + AFTERWARDS)
            for address, packet in requests.items()
        ]
        groups = (messages[at : at + TOGETHER] for at in range(0, len(messages), TOGETHER))
        names = [name for group in groups for name in self.grid.push_messages(group)]
        waiting = {name: address for name, address in zip(names, requests, strict=True) if name}
        late, self.late = self.late, []
        if late:
            threading.Thread(target=self._sweep, args=(late,), daemon=True).start()
        try:
            yield from self._collect(waiting, end)
        finally:  # also where the caller has heard enough
            self.late += waiting

    def _collect(self, waiting: dict[str, int], end: float) -> Iterator[tuple[int, Packet]]:
        """Pull in a few threads, each for messages of its own: Flower hands an answer out once, to one who asks.

        A node that dies while it uploads keeps Flower waiting for minutes, and then only the thread that asked.
        """
        arrived: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        shares = [list(waiting)[place::PULLERS] for place in range(PULLERS)]
        pullers: dict[int, threading.Thread] = {}
        looked = dict.fromkeys(range(PULLERS), -POLL)
        while waiting and (now := time.monotonic()) < end:
            for place, share in enumerate(shares):
                names = [name for name in share if name in waiting]
                busy = place in pullers and pullers[place].is_alive()
                if names and not busy and now - looked[place] >= POLL:
                    pullers[place] = threading.Thread(target=self._pull, args=(names, arrived), daemon=True)
                    pullers[place].start()
                    looked[place] = now
            try:
                message = arrived.get(timeout=min(POLL / 4, end - now))
            except queue.Empty:
                continue
            if isinstance(message, Exception):
                raise message
            address = waiting.pop(message.metadata.reply_to_message_id, None)
            if address is not None and (packet := read_answer(message)) is not None:
                yield address, packet

    def _sweep(self, names: list[str]) -> None:
        """Flower keeps an answer, megabytes of it, until somebody asks; or says that its time is over."""
        try:
            came = {message.metadata.reply_to_message_id for message in self.grid.pull_messages(names)}
        except Exception:
            came = set()
        self.late += [name for name in names if name not in came]

    def _pull(self, names: list[str], arrived: "queue.SimpleQueue[Message | Exception]") -> None:
        try:
            for message in self.grid.pull_messages(names):
                arrived.put(message)
        except Exception as error:  # raised again where somebody can see it
            arrived.put(error)
