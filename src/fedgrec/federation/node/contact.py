"""What a node's process remembers of its server, for whoever runs the node: nothing of it is about users."""

import time
from dataclasses import dataclass, field

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet, plain

LONG = 60.0  # seconds without a word from the server that are worth a look; a server that works is heard every second
GREETINGS = {packets.HELLO, packets.WHO}  # they are sent to a node that is about to be refused, too


@dataclass
class Contact:
    """The network's end of a node writes it; another thread reads it."""

    heard: float = field(default_factory=time.monotonic)  # or when the node started
    connected: bool = False
    answered: int = 0  # messages
    failed: int = 0  # messages that could not be answered
    refusal: str = ""  # why the server will not have this node

    def hear(self) -> None:
        """The server has said something, if only that there is nothing to do."""
        self.heard, self.connected = time.monotonic(), True

    def told(self, request: Packet) -> None:
        """A message of the server's was answered."""
        self.answered += 1
        if request.kind == packets.REFUSED:
            self.refusal = plain(request.header.get("reason"))
        elif request.kind not in GREETINGS:
            self.refusal = ""

    @property
    def silence(self) -> float:
        """Seconds."""
        return time.monotonic() - self.heard

    @property
    def trouble(self) -> str:
        """Why somebody should look after the node; "" where all is well."""
        if self.refusal:
            return f"the server refused this node: {self.refusal}"
        if self.silence > LONG:
            return f"the server was not heard for {self.silence:.0f} s: see whether it runs and can be reached"
        return ""
