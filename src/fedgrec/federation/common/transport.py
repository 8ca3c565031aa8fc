"""What the network has to do for a federation, and nothing else: carry packets there and back before a deadline.

Two transports carry them: `in_process.transport.LocalTransport` calls the nodes in this process, and
`flower.transport.FlowerTransport` sends Flower messages. The server cannot tell them apart.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from fedgrec.federation.common.packets import Packet

Left = Callable[[], float]  # seconds that an exchange may still last, which may change with every answer


class Sign(NamedTuple):
    """The last that the network heard of a node by itself, whether or not the node was asked anything."""

    since: str = ""  # when the node connected: another word where it was started again
    last: float = 0.0  # grows whenever the network hears of the node


class Transport(Protocol):
    """The server's end. An address is whatever the network knows a node by; names and trust are the coordinator's."""

    def addresses(self) -> Sequence[int]:
        """The nodes that can be reached now."""
        ...

    def signs(self) -> Mapping[int, Sign]:
        """The same, with the last sign of life of each."""
        ...

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        """Send each node its packet and yield answers as they come, until all came or no time is left.

        A node that fails answers with a packet of kind "error" and a header {"reason": sentence}; one that is silent
        does not occur, and one that is known to be gone is not waited for. An answer that comes after the end is never
        seen, also not by a later exchange.
        """
        ...


def within(seconds: float) -> Left:
    """So many seconds from now, whoever answers."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()
