"""One secure sum over the network: the five exchanges of secure aggregation, each with a deadline.

keys      session                     → fresh public keys, unless they came with the previous sum
shares    who takes part, plan, model → shares of secrets, encrypted for the holders
masked    shares of the others        → the masked vector; this is where nodes train
confirm   who is in the sum           → a signature under that
unmask    the others' signatures      → shares that open the sum, and keys for the next one
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast
from fedgrec.errors import SumLostError
from fedgrec.federation.common import packets
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.packets import Packet, pack_broadcast, plain
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.common.shared_messages import for_everybody
from fedgrec.federation.server.liveness import About
from fedgrec.federation.server.members import Members
from fedgrec.secagg import SecAggError, Server, Session


@dataclass
class Prepared:
    """A sum that is about to begin."""

    plan: Plan
    session: Session
    nodes: list[int]  # the nodes to ask
    wanted: int  # how many of them should take part
    all_of_them: bool = False  # the sum is lost if one of them is missing
    patient: bool = False  # so it is here, and it is tried again without harm
    attempt: int = 0
    roster: str = ""  # the digest of the roster for which it was prepared
    together: Sequence[Collection[int]] = ()  # batches, all or none of whose members are in the sum
    as_before: bool = False  # the nodes have the model from the previous sum
    keys: dict[int, bytes] = field(default_factory=dict)  # keys that came already
    committed: dict[int, str] = field(default_factory=dict)  # nodes' commitments, if the sum is taken once

    @property
    def announcement(self) -> dict[str, Any]:
        """What the server tells nodes before they make keys."""
        return {"session": self.session.to_json(), "place": list(self.plan.place), "attempt": self.attempt}


@dataclass(frozen=True)
class Outcome:
    values: NDArray[np.signedinteger[Any]]
    users: int
    included: list[int]
    least: int = 2  # the fewest nodes that had to be in it


def secure_sum(
    members: Members, ready: Prepared, broadcast: Broadcast, upcoming: Prepared | None, options: FederationOptions
) -> Outcome:
    """The sum over the nodes' uploads, or SumLostError. Keys for the next sum are put into `upcoming`."""
    session, name = ready.session, ready.session.round_id.hex()
    roster = {node: members.folder.roster[node].key for node in ready.nodes}
    server = Server(session, roster, together=ready.together)

    def take(node: int, message: bytes | None) -> bool:
        """A message that is refused changes nothing: its sender counts as silent."""
        try:
            server.receive(node, message or b"")
            return True
        except Exception as error:  # only the message can be the cause
            members.observer.noticed(f"node {members.folder.roster[node].name}: {plain(error)}")
            return False

    def close() -> dict[int, bytes]:
        """Close the stage. A node may have signed a key that nobody can use, which shows only here."""
        try:
            return server.close()
        except SecAggError:
            raise
        except Exception as error:
            raise SecAggError(f"{type(error).__name__}: {error}") from error

    try:
        joined = _keys(members, ready, take, options.deadline)
        if any(ready.committed.values()):
            words = tuple(ready.committed.get(node, "") for node in sorted(joined))
            ready.plan = replace(ready.plan, committed=words)
        told = members.folder.agreement, ready.roster, members.history.head, str(members.store.founded())
        server.context = ready.plan.context(broadcast, *told)
        model, arrays = pack_broadcast(broadcast)
        for kind in (packets.SHARES, packets.MASKED, packets.CONFIRM, packets.UNMASK):
            header: dict[str, Any] = {"session": name}
            tables: dict[str, NDArray[Any]] = {}
            if kind == packets.SHARES:
                header |= {"plan": asdict(ready.plan), "model": model, packets.AS_BEFORE: ready.as_before}
                tables = {} if ready.as_before else arrays
            requests, messages = {}, for_everybody(close())
            whole = not (ready.all_of_them or ready.patient) or len(server.survivors) == len(ready.nodes)
            if kind == packets.CONFIRM and not whole:
                raise SumLostError(f"nodes {ready.nodes} must all be in it, and some were lost")
            fewest = session.least if ready.plan.stage == EVALUATE else members.folder.fewest_nodes
            if kind == packets.CONFIRM and len(server.survivors) < fewest:
                raise SumLostError(f"{len(server.survivors)} nodes are left, and this sum has no fewer than {fewest}")
            if kind == packets.UNMASK:
                members.store.opening(name, server.survivors)
            for node, message in messages.items():
                rides = kind == packets.UNMASK and upcoming is not None and node in upcoming.nodes
                more = {"next": upcoming.announcement} if rides and upcoming else {}
                requests[node] = Packet(kind, header | more, {packets.SECAGG: message}, tables)
            most = options.work_deadline if kind == packets.MASKED else options.deadline
            enough = len(requests) if ready.all_of_them else len(requests) // 2 + 1
            for node, answer in members.ask(requests, _about(kind, ready), most, enough):
                take(node, _message(answer))
                if upcoming is not None and packets.NEXT in answer.blobs:
                    upcoming.keys[node] = answer.blobs[packets.NEXT]
                    upcoming.committed[node] = answer.blobs.get(packets.COMMITTED + packets.NEXT, b"").hex()
        close()
    except SecAggError as error:
        raise SumLostError(f"{type(error).__name__}: {error}") from error
    values, users = server.result()
    return Outcome(values, users, server.included, session.least)


def _about(kind: str, ready: Prepared) -> About:
    """Work on models and vectors takes longer in some stages and for some sizes; other work always takes the same."""
    if kind not in (packets.SHARES, packets.MASKED):
        return About(kind)
    return About(kind, ready.plan.stage, sum(values * bits for values, bits in ready.session.rings))


def _keys(members: Members, ready: Prepared, take: Any, most: float) -> set[int]:
    """The nodes that take part, as many as wanted: first those whose keys came already, then the first to answer."""
    joined: set[int] = set()
    for node, message in ready.keys.items():
        if len(joined) < ready.wanted and take(node, message):
            joined.add(node)
    here = set(ready.nodes) - joined
    here &= set(members.reachable() if ready.all_of_them else members.present())
    if len(joined) >= ready.wanted or not here:
        return joined
    question = Packet(packets.KEYS, ready.announcement)
    enough = len(here) if ready.all_of_them else ready.wanted // 2 + 1 - len(joined)
    for node, answer in members.ask(dict.fromkeys(sorted(here), question), About(packets.KEYS), most, enough):
        if take(node, _message(answer)):
            joined.add(node)
            ready.committed[node] = answer.blobs.get(packets.COMMITTED + packets.SECAGG, b"").hex()
        if len(joined) >= ready.wanted:
            break
    return joined


def _message(answer: Packet) -> bytes | None:
    """The message of secure aggregation in an answer; a masked vector comes as an array."""
    if packets.SECAGG in answer.arrays:
        return answer.arrays[packets.SECAGG].tobytes()
    return answer.blobs.get(packets.SECAGG)
