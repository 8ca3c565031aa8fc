"""Who masks with whom: a k-regular graph drawn afresh in every round (Bell et al. 2020), or everybody with everybody.

The order of the clients on a circle comes from a hash of the round's name and of all clients that take part, so every
client can compute it and refuse a neighbourhood that the server has chosen.
"""

import hashlib
from collections.abc import Iterable

from fedgrec.secagg.errors import BadInput


class Graph:
    """The neighbours of each client: on a circle in random order, those up to k/2 places away on either side."""

    def __init__(self, clients: Iterable[int], neighbours: int, seed: bytes) -> None:
        self.clients = sorted(clients)
        self.complete = neighbours >= len(self.clients) - 1
        if not self.complete and (neighbours < 2 or neighbours % 2):
            raise BadInput(f"a sparse graph needs an even number of neighbours, at least 2, not {neighbours}")
        names = b"".join(client.to_bytes(4, "big") for client in self.clients)
        order = hashlib.sha256(b"fedgrec graph" + seed + names).digest()
        self._circle = self.clients
        if not self.complete:
            self._circle = sorted(self.clients, key=lambda c: hashlib.sha256(order + c.to_bytes(4, "big")).digest())
        self._place = {client: place for place, client in enumerate(self._circle)}
        self._reach = neighbours // 2

    def neighbours(self, client: int) -> list[int]:
        """The clients that this client masks with, sorted."""
        if self.complete:
            return [other for other in self.clients if other != client]
        place, n = self._place[client], len(self._circle)
        steps = range(1, self._reach + 1)
        return sorted({self._circle[(place + sign * step) % n] for step in steps for sign in (1, -1)})

    def holders(self, client: int) -> list[int]:
        """The holders of this client's shares: its neighbours; in a complete graph all clients, as in 2017."""
        return self.clients if self.complete else self.neighbours(client)
