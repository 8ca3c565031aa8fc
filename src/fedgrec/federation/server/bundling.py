"""A transport that gives every member of the roster its own address, also members that share a connection.

Many members are behind the one connection of a gateway whose users mask for themselves. The rest of the server does not
know of gateways: it asks each member, and `Bundling` makes one bundle (common/bundles.py) for each connection. The
server need not trust a gateway's list of the users it hosts: each member proves who it is when it joins, and a bundle
of answers counts only for members that were asked in it.
"""

from collections.abc import Iterator, Mapping

from fedgrec.federation.common.bundles import MEMBERS, pack, unpack
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import BUNDLE, ERROR, WHO, Packet, checked, failure, plain, size
from fedgrec.federation.common.roster import Roster
from fedgrec.federation.common.transport import Left, Sign, Transport
from fedgrec.federation.server.liveness import About, Patience, Silences

PLACES = 2**32  # more than any roster has


class Bundling:
    """A transport on which each member of the roster has an address, also members that share a connection."""

    def __init__(self, transport: Transport, roster: Roster) -> None:
        self.transport = transport
        self.up = self.down = 0  # bytes, as they travel
        self.use(roster)

    def use(self, roster: Roster) -> None:
        """Know these members from now on, and ask again who hosts whom."""
        self.roster, self._has_gateways = roster, any(member.gateway for member in roster.values())
        self._hosted: dict[int, list[int]] = {}  # by the address of a connection: addresses of members behind it
        self._silences = Silences()  # of connections that did not say whom they host

    def meet(self, patience: Patience, most: float) -> list[str]:
        """Ask new connections whom they host, if the roster has gateways; return their refusals."""
        if not self._has_gateways:
            return []
        refusals = []
        signs = self.transport.signs()
        self._hosted = {address: members for address, members in self._hosted.items() if address in signs}
        self._silences.tick()
        new = sorted(signs.keys() - self._hosted.keys() - self._silences.hold(signs))
        wait = patience.begin(About(WHO), new, most)
        for address, answer in self._exchange({address: Packet(WHO) for address in new}, wait.left):
            wait.heard(address)
            found = answer.header.get(MEMBERS)
            if answer.kind == WHO and isinstance(found, list):
                self._silences.end(address)
                members = {member for member in found if type(member) is int and member in self.roster}
                self._hosted[address] = [self._member(address, member) for member in sorted(members)] or [address]
            elif answer.kind == ERROR:
                refusals.append(
                    f"the node at {address} does not say whom it hosts: {plain(answer.header.get('reason'))}"
                )
        wait.missed()
        if silent := set(new) - self._hosted.keys():
            self._silences.begin(silent, self.transport.signs())
        return refusals

    def _member(self, connection: int, member: int) -> int:
        """The address of a member: a number below zero, which no network uses; `_behind` reads it."""
        return -1 - (connection * PLACES + member)

    def _behind(self, address: int) -> tuple[int, int]:
        """The connection of this address, and the place of the member behind it; −1: the connection is a node's own."""
        return divmod(-1 - address, PLACES) if address < 0 else (address, -1)

    def signs(self) -> Mapping[int, Sign]:
        """The members that can be reached now; a connection's sign of life counts for all members behind it."""
        signs = self.transport.signs()
        if not self._has_gateways:
            return signs
        return {member: sign for address, sign in signs.items() for member in self._hosted.get(address, [])}

    def where(self, address: int) -> str:
        """An address in words."""
        connection, member = self._behind(address)
        return f"{connection} ({self.roster[member].name})" if member in self.roster else str(connection)

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        """See `Transport`: one message for each connection, however many members are behind it."""
        packets: dict[int, Packet] = {}
        asked: dict[int, dict[int, Packet]] = {}
        for address, request in requests.items():
            connection, member = self._behind(address)
            if member >= 0:
                asked.setdefault(connection, {})[member] = request
            else:
                packets[address] = request
        packets |= {connection: pack(parts) for connection, parts in asked.items()}
        for address, answer in self._exchange(packets, left):
            if address not in asked:
                yield address, answer
                continue
            for member, part in _answers(answer, asked[address]).items():
                yield self._member(address, member), part

    def _exchange(self, packets: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        """Yield the first answer of each address only, and count all bytes."""
        if not packets:
            return
        self.down += sum(size(packet) for packet in packets.values())
        heard = set[int]()
        for address, answer in self.transport.exchange(packets, left):
            if address in packets and address not in heard:
                heard.add(address)
                answer = checked(answer)  # the rest of the server sees nothing else  # noqa: PLW2901
                self.up += size(answer)
                yield address, answer


def _answers(answer: Packet, asked: Mapping[int, Packet]) -> dict[int, Packet]:
    """The answer of each member that was asked; a gateway that fails, fails for all of them."""
    try:
        if answer.kind != BUNDLE:
            raise FederationError(plain(answer.header.get("reason", f"an answer of kind {answer.kind!r}")))
        return {member: part for member, part in unpack(answer).items() if member in asked}
    except FederationError as error:
        return dict.fromkeys(asked, failure(error))
