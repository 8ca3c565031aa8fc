"""All that a federation needs of a network: carry packets there and back before a deadline.

`flower.transport.FlowerTransport` sends Flower messages. The `LocalTransport` of the tests calls the nodes in their own
process. The server cannot tell them apart.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from fedgrec.federation.common.packets import Packet

Left = Callable[[], float]  # seconds that an exchange may still last, which may change with every answer


class Sign(NamedTuple):
    """The network's own last sign of life from a node, whether or not the server asked the node anything."""

    since: str = ""  # when the node connected; it changes when the node restarts
    last: float = 0.0  # grows whenever the network hears of the node


class Transport(Protocol):
    """The server's end. An address is the network's own name for a node; the coordinator sees to names and trust."""

    def signs(self) -> Mapping[int, Sign]:
        """The nodes that can be reached now, with the last sign of life of each."""
        ...

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        """Send each node its packet and yield answers as they come, until all came or no time is left.

        A node that fails answers with a packet of kind "error" and a header {"reason": sentence}. A silent node yields
        nothing, and the exchange does not wait for a node that is known to be gone. An answer that comes after the end
        is dropped: no later exchange sees it.
        """
        ...


def within(seconds: float) -> Left:
    """This many seconds from now, whoever answers."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()
