"""What a node's process remembers of its server, for the person who runs the node. None of it is about users."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgrec.federation.common import packets, upkeep
from fedgrec.federation.common.packets import Packet, plain
from fedgrec.federation.common.web import Answer, Pages, health

LONG = 60.0  # seconds of silence after which somebody should look; a working server answers a look for work before
AT_REST, NOTHING = ("/pull-messages", "/send-node-heartbeat"), 16  # calls; the most bytes of an answer without work
GREETINGS = {packets.HELLO, packets.WHO}  # a node that is about to be refused gets them too


@dataclass
class Contact:
    """A record that the network's end of a node writes and another thread reads."""

    heard: float = field(default_factory=time.monotonic)  # or when the node started
    connected: bool = False
    answered: int = 0  # messages
    failed: int = 0  # messages that could not be answered
    refusal: str = ""  # why the server refuses this node
    at_rest: int = 0  # bytes of looks for work that found none, and of signs of life

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

    def count(self, response: Any) -> None:
        """Count the bytes of a call at rest, without TLS: a hook of the node's HTTP client."""
        request = response.request
        lengths = [int(each.headers.get("content-length", 0)) for each in (request, response)]
        if request.url.path.endswith(AT_REST) and lengths[1] <= NOTHING:
            heads = [*request.headers.raw, *response.headers.raw]
            self.at_rest += sum(lengths) + sum(len(name) + len(value) + len(": \r\n") for name, value in heads)

    def pages(self, folder: Path) -> Pages:
        """`/metrics` and `/health` of the node: nothing of its users."""
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
                ("bytes_at_rest", "bytes of looks for work that found none, and of signs of life", self.at_rest),
            )
            upkeep.show(folder, shown)
            return shown.page()

        def well() -> Answer:
            return health(self.trouble, {"connected": self.connected, "heard_seconds": round(self.silence, 1)})

        return {"/metrics": numbers, "/health": well}
