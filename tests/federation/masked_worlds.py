"""Small federations of gateways whose users mask for themselves, and meddling with one of their users."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgrec.federation.common import packets
from fedgrec.federation.common.bundles import pack, unpack
from fedgrec.federation.common.packets import Packet
from tests.federation.local_transport import Answer, Meddler, honest
from tests.federation.worlds import World, world

USERS = 2  # of each of three gateways
ALL = list(range(3 * USERS))


def masked_world(root: Path, method: str = "fedgrec", users: int = USERS, options: Any = None, **more: Any) -> World:
    """Three gateways; all users take part in every sum, as they do behind a gateway that adds them up."""
    return world(root, method, users=users, options=options, per_user_masks=True, **{"users_per_round": 100} | more)


def to_user(kind: str, user: int, meddler: Meddler, times: int = 1, after: int = 0) -> Meddler:
    """Meddle with one user's packets of this kind, inside the gateway's bundles."""
    seen = [0]

    def meddle(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        parts = unpack(request) if request.kind == packets.BUNDLE else {}
        if user in parts and parts[user].kind == kind:
            seen[0] += 1
            if after < seen[0] <= after + times:
                alone: Answer = lambda part: unpack(answer(pack({user: part})))[user]  # noqa: E731
                others = {index: part for index, part in parts.items() if index != user}
                answers = unpack(answer(pack(others))) if others else {}
                for part in meddler(address, parts[user], alone):
                    answers[user] = part
                return [pack(answers)]
        return honest(address, request, answer)

    return meddle
