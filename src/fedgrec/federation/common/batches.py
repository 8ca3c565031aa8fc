"""Batches: people stand together in them for the federation's life, and sums of their items open over whole batches.

Every such sum, of whatever kind, holds all members of a batch or none. So whatever sums a server has opened and however
it combines them, it finds out about a batch as a whole, never about some of its members: of a click, only that one of
the batch's people has made it. (A node chooses who of its own people takes part. What two such choices differ by may be
one person, of whom the server knows only that the batch has it.)

Every node draws the same batches from the roster. Nodes of many people are a batch each: their people hide each other.
Founders that bring few people are put together in an order that no one chooses; who joins later waits until those who
wait are a batch. A federation of too few people for that is one batch. Whoever leaves, nobody changes batches: what is
left of a batch that got too small goes on in another one as a whole.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import cycle

from fedgrec.federation.common.folder import Folder
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan
from fedgrec.federation.common.roster import Member, Membership, home_of
from fedgrec.methods.contract import Method

# If one node in 20 works for the server, fewer than two of seven are honest with a chance of one in ten million.
FEWEST_NODES = 7
Batch = frozenset[int]  # places on the roster


def batches(federation: str, members: Mapping[int, Member], fewest_people: int, founded: int = 1) -> list[Batch]:
    """The batches of those who are here.

    `members` are all who ever were on the roster; `founded`: the number of the roster with which the first sum began.
    """

    def is_enough(group: Sequence[int]) -> bool:
        people = sum(members[node].people for node in group)
        return people >= fewest_people and (len(group) == 1 or len(group) >= FEWEST_NODES)

    found: list[list[int]] = []
    is_short = False  # the first one, because somebody has left
    for group in _drawn(federation, members, founded, is_enough):
        here = [node for node in group if not members[node].left]
        fell_short = len(here) < len(group) and not is_enough(here)
        if found and (fell_short or is_short):  # it goes on as a part of the batch before it
            found[-1] += here
            is_short = False
        elif here:
            found.append(here)
            is_short = fell_short
    return [frozenset(batch) for batch in found]


def _drawn(
    federation: str, members: Mapping[int, Member], founded: int, is_enough: Callable[[Sequence[int]], bool]
) -> list[list[int]]:
    """Batches as if nobody had left, oldest first: who joins later changes none of them."""

    def filled(nodes: Iterable[int]) -> tuple[list[list[int]], list[int]]:
        """Groups that are enough, one after the other, and the rest."""
        groups, rest = list[list[int]](), list[int]()
        for node in nodes:
            rest.append(node)
            if is_enough(rest):
                groups.append(rest)
                rest = []
        return groups, rest

    def lot(node: int) -> tuple[bytes, bytes]:
        """Users of one gateway stand next to each other, so that a gateway that is away breaks few batches."""
        return _hashed(federation, home_of(members[node])), _hashed(federation, node)

    alone = {node for node in members if is_enough([node])}
    founders = sorted((node for node in members if members[node].joined <= founded), key=lot)
    small, rest = filled(node for node in founders if node not in alone)
    if small:
        for node, group in zip(rest, cycle(small), strict=False):
            group.append(node)
        rest = []
    large, rest = filled([*rest, *(node for node in founders if node in alone)])
    later = sorted(members.keys() - set(founders), key=lambda node: (members[node].joined, node))
    came = [[node] for node in later if node in alone] + filled(node for node in later if node not in alone)[0]
    came.sort(key=lambda group: (members[group[-1]].joined, group[-1]))
    return [*small, *large, *([rest] if rest else []), *came]  # a rest of the founders is all of them


def _hashed(*about: str | int) -> bytes:
    return hashlib.sha256(json.dumps(["fedgrec batches", *about]).encode()).digest()


def batches_of(folder: Folder, founded: int) -> list[Batch]:
    """The batches of a federation, as its roster has them."""
    return _batches_of(folder.membership, folder.agreed.fewest_people, founded)


@lru_cache(8)
def _batches_of(membership: Membership, fewest_people: int, founded: int) -> list[Batch]:
    """Cached, because a node asks in every sum."""
    return batches(membership.federation, membership.members, fewest_people, founded)


# ------------------------------------------------------------------------------------------- what they bind


def binding(folder: Folder, founded: int, method: Method, plan: Plan) -> list[Batch]:
    """The batches over which this sum opens; none if it opens over any nodes.

    All sums of people's items are bound to them, and training rounds where there are many. An evaluation with noise is
    not: its noise hides each person, whoever else is in it.
    """
    drawn, agreed = batches_of(folder, founded), folder.agreed
    if plan.stage == EVALUATE:
        return [] if plan.deviation else drawn
    many = len(drawn) >= agreed.batches_for_training
    return drawn if many or plan.stage == CHANGES or method.sums_items(plan.stage_of(method)) else []


def names(folder: Folder, nodes: Iterable[int]) -> str:
    return ", ".join(folder.roster[node].name if node in folder.roster else str(node) for node in sorted(nodes))


def whole(drawn: Sequence[Batch], nodes: Iterable[int]) -> list[Batch]:
    """The batches all of whose members are among these nodes."""
    return [batch for batch in drawn if batch <= set(nodes)]


def in_words(drawn: Sequence[Batch], agreed: Agreement) -> str:
    """What the batches of a federation hide, and what they do not."""
    if all(len(batch) == 1 for batch in drawn):
        return (
            "each node is a batch of its own: its people hide each other, and a server that lies can tell their sum "
            "from that of the other nodes"
        )
    nodes, number = sum(map(len, drawn)), f"{len(drawn)} batch{'es' * (len(drawn) > 1)}"
    said = f"{nodes} nodes in {number} (who is sure to bring {agreed.fewest_people} people stands alone)"
    if len(drawn) >= agreed.batches_for_training:
        return f"{said}: every sum opens over whole batches"
    return (
        f"{said}: sums of people's items need all nodes of a batch. Training rounds open over any nodes: a server that "
        f"lies can find out by two of them what one node's people have; with  batches_for_training = 1  they need "
        f"whole batches, too"
    )
