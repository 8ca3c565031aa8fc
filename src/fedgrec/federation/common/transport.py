"""What the network has to do for a federation, and nothing else: carry packets there and back before a deadline.

Two transports carry them: `in_process.transport.LocalTransport` calls the nodes in this process, and
`flower.transport.FlowerTransport` sends Flower messages. The server cannot tell them apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from fedgrec.federation.common.packets import Packet


class Transport(Protocol):
    """The server's end. An address is whatever the network knows a node by; names and trust are the coordinator's."""

    def addresses(self) -> Sequence[int]:
        """The nodes that can be reached now."""
        ...

    def exchange(self, requests: Mapping[int, Packet], seconds: float) -> Iterator[tuple[int, Packet]]:
        """Send each node its packet and yield answers as they come, until all came or the time is over.

        A node that fails answers with a packet of kind "error" and a header {"reason": sentence}; one that is silent
        does not occur. An answer that comes after the deadline is never seen, also not by a later exchange.
        """
        ...
