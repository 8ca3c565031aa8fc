"""The place of a gateway's user who has left: it answers with zeros, so that its batch stays whole."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import NodeProcess, open_gateway
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.status import status
from tests.attacks.lying_server import DEGREES, JUDGE, TRAIN, Liar
from tests.federation.living import Life
from tests.federation.masked_worlds import masked_world

ALL, PLACE = list(range(7)), 4  # one batch: the users of a gateway
COMES = {5, 6, 7, 8, 9}


def test_a_batch_goes_on_without_one_of_its_users(tmp_path: Path) -> None:
    """The user leaves; a season without it; another user takes its place."""
    more: dict[str, Any] = {"users_per_round": 5, "latents_every": 0}
    options = {"fewest_people": 7, "rounds": 3, "season_rounds": 1}  # the third round has everybody
    life = Life(tmp_path, nodes=1, users=7, per_user_masks=True, options=options, **more)
    fed, gateway = life.world, open_gateway(life.world.transport.folders[0])
    life.train()
    life.people[PLACE] = {}
    life.reread()
    life.train()
    life.holds()
    with NodeStore(fed.nodes[PLACE]) as store:
        assert store.count() == 0, "nothing of the user is at the server any more"
    assert PLACE not in gateway.hosted()
    assert NodeProcess(gateway.path).handle(Packet("who")).header == {"members": ALL}

    life.click()
    life.reread()
    life.train()
    life.holds()
    count, sweep, round_ = fed.applied("recount")[-1], *fed.applied("train")[-2:]
    assert [count["included"], sweep["included"]] == [ALL, ALL]
    assert [count["users"], sweep["users"]] == [6, 6]
    assert PLACE not in round_["nodes"], "it keeps nobody company where sums open over any nodes"
    assert status(fed.server).nodes[0].users == 6

    life.people[PLACE]["who comes next"] = COMES
    life.reread()
    life.train()
    life.holds()
    count, sweep = fed.applied("recount")[-1], fed.applied("train")[-2]
    assert [count["included"], sweep["included"]] == [ALL, ALL]
    assert [count["users"], sweep["users"]] == [7, 7]
    assert gateway.hosted()[PLACE] == "who comes next"
    assert not fed.witness.notices


# ------------------------------------------------------------------------------------- a server that lies


MEMBERS = range(6)  # one batch again: the users of three gateways


def lying(root: Path, was_in_sums: bool, empty: Iterable[int]) -> Liar:
    """Nobody is at these places; a round was opened with all of them before, or no sum at all."""
    liar = Liar(masked_world(root, options={"evaluations": 9, "fewest_people": 7}, latents_every=0))
    if was_in_sums:
        liar.trained(MEMBERS)
    for place in empty:
        with NodeStore(liar.fed.nodes[place]) as store:
            store.db.execute("DELETE FROM users")
        assert not len(greeted(liar, place).arrays["tags"])
    return liar


def greeted(liar: Liar, place: int, taken: bytes = b"") -> Packet:
    about = {"nonce": bytes(32), "taken": taken}
    return liar.ask(place, Packet("hello", {"federation": liar.home.federation}, about))


def test_nobody_is_no_company(tmp_path: Path) -> None:
    """In a round of one person and two places without users, the sum would be that person's upload."""
    liar = lying(tmp_path, True, [0, 1])
    assert liar.sum([0, 1, 2], replace(TRAIN, round=6)) is None
    assert liar.refused("nobody is at the place of node0.0 now")
    liar.trained([2, 3, 4, 5], replace(TRAIN, round=6))
    assert liar.sum(MEMBERS, replace(JUDGE, round=6)), "it opens over whole batches"


def test_a_place_waits_for_its_first_user(tmp_path: Path) -> None:
    """Nobody was ever there, so the batch would have fewer people from the start."""
    liar = lying(tmp_path, False, [0])
    assert liar.sum(MEMBERS, DEGREES) is None
    assert liar.refused("node node0.0 has 0 users, and was enrolled as one that brings 1 or more")
    gateway = liar.fed.transport.folders[0]
    assert NodeProcess(gateway).handle(Packet("who")).header == {"members": [1]}


@pytest.mark.parametrize("was_in_sums", [True, False])
def test_the_next_users_name_is_taken(tmp_path: Path, was_in_sums: bool) -> None:
    """The place goes on without anybody, if it had somebody; the first user of a place does not come in."""
    liar = lying(tmp_path, was_in_sums, [0])
    home = open_node(liar.fed.nodes[0])
    with NodeStore(home.path) as store:
        store.add_users(home.method(1), [Person("next", [1, 2])])
    taken = greeted(liar, 0).arrays["tags"].tobytes()
    answer = greeted(liar, 0, taken)
    assert answer.kind == ("hello" if was_in_sums else "error")
    if was_in_sums:
        assert not len(answer.arrays["tags"])
        assert liar.sum(MEMBERS, JUDGE)
        with NodeStore(home.path) as store:
            assert not store.in_sums().intersection(store.first_rows(-1))
