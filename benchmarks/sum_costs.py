"""What a secure sum costs each side: seconds and bytes of every stage."""

import time
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from fedgrec.secagg import Client, Outcome, Server, local, run_round


@dataclass
class StageCost:
    """What one stage took, over all clients."""

    clients: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


def measured_round(*given: Any, **named: Any) -> tuple[Outcome, dict[str, StageCost]]:
    """`run_round`, and the cost of each stage."""
    costs: dict[str, StageCost] = {}

    class TimedClient(Client):
        def start(self) -> bytes:
            return self._timed(super().start)

        def receive(self, data: bytes) -> bytes:
            return self._timed(super().receive, data)

        def _timed(self, step: Any, *message: bytes) -> bytes:
            begun = time.perf_counter()
            answer: bytes = step(*message)
            took.append(time.perf_counter() - begun)
            return answer

    class TimedServer(Server):
        def receive(self, sender: int, data: bytes) -> None:
            cost, begun = costs.setdefault(self.stage.value, StageCost()), time.perf_counter()
            super().receive(sender, data)
            cost.server_seconds += time.perf_counter() - begun
            cost.client_seconds += took.pop()
            cost.clients += 1
            cost.bytes_up += len(data)

        def close(self) -> dict[int, bytes]:
            cost, begun = costs.setdefault(self.stage.value, StageCost()), time.perf_counter()
            messages = super().close()
            cost.server_seconds += time.perf_counter() - begun
            cost.bytes_down = sum(map(len, messages.values()))
            return messages

    took: list[float] = []  # of the client whose answer comes next
    with patch.object(local, "Client", TimedClient), patch.object(local, "Server", TimedServer):
        return run_round(*given, **named), costs
