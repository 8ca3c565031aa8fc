"""What a node's process remembers of its server, for the person who runs the node. None of it is about users."""

import time
from dataclasses import dataclass, field

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet, plain
from fedgrec.federation.common.web import Answer, Pages, health

LONG = 60.0  # seconds of silence after which somebody should look; a working server is heard every second
GREETINGS = {packets.HELLO, packets.WHO}  # a node that is about to be refused gets them too


@dataclass
class Contact:
    """A record that the network's end of a node writes and another thread reads."""

    heard: float = field(default_factory=time.monotonic)  # or when the node started
    connected: bool = False
    answered: int = 0  # messages
    failed: int = 0  # messages that could not be answered
    refusal: str = ""  # why the server refuses this node

    def hear(self) -> None:
        """The server has said something, if only that there is nothing to do."""
        self.heard, self.connected = time.monotonic(), True

    def note_answer(self, request: Packet) -> None:
        """A message of the server was answered."""
        self.answered += 1
        if request.kind == packets.REFUSED:
            self.refusal = plain(request.header.get("reason"))
        elif request.kind not in GREETINGS:
            self.refusal = ""

    @property
    def silence(self) -> float:
        """Seconds since the server was heard."""
        return time.monotonic() - self.heard

    @property
    def trouble(self) -> str:
        """Why somebody should look at the node; "" if all is well."""
        if self.refusal:
            return f"the server refused this node: {self.refusal}"
        if self.silence > LONG:
            return f"the server was not heard for {self.silence:.0f} s: see whether it runs and can be reached"
        return ""

    def pages(self) -> Pages:
        """`/metrics` and `/health` of the node: only what the server knows too."""
        from fedgrec.federation.common.exposition import Exposition

        def numbers() -> Answer:
            shown = Exposition("fedgrec_node_")
            shown.gauges(
                ("connected", "1 while the server answers", self.connected),
                ("heard_seconds", "seconds since the server was heard", self.silence),
                ("refused", "1 where the server will not have this node", bool(self.refusal)),
            )
            shown.counters(
                ("messages_answered", "messages that were answered", self.answered),
                ("messages_failed", "messages that could not be answered", self.failed),
            )
            return shown.page()

        def well() -> Answer:
            return health(self.trouble, {"connected": self.connected, "heard_seconds": round(self.silence, 1)})

        return {"/metrics": numbers, "/health": well}
