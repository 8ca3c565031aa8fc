"""A lying server picks the name of a round, which decides who masks with whom."""

import os
from pathlib import Path

import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import sum_name
from fedgrec.federation.node.rules import MOST_ATTEMPTS
from fedgrec.secagg import Session, Stage
from fedgrec.secagg.parameters import SECURITY, SURE, choose
from tests.attacks.lying_server import DEGREES, TRAIN, Liar
from tests.federation.worlds import world
from tests.secagg.rounds import Round, random_vectors


def announced(liar: Liar, name: bytes, attempt: int, place: object = None) -> Packet:
    session = Session(name, ((30, 32),), 18, 2, 2, least=2).to_json()
    where = list(DEGREES.place) if place is None else place
    return liar.ask(0, Packet("keys", {"session": session, "place": where, "attempt": attempt}))


def test_the_name_follows_from_what_the_sum_is(tmp_path: Path) -> None:
    """Earlier, nodes accepted a name that the server drew until the graph suited it."""
    liar = Liar(world(tmp_path))
    federation = liar.home.federation
    assert announced(liar, sum_name(federation, DEGREES.place, 0), 0).kind == "keys"
    for _ in range(20):
        assert "chose the name" in announced(liar, os.urandom(16), 0).header["reason"]
    assert "chose the name" in announced(liar, sum_name("another", DEGREES.place, 1), 1).header["reason"]


@pytest.mark.parametrize("attempt", [MOST_ATTEMPTS, -1, 2**40, True, None, "1"])
def test_attempts_are_capped(tmp_path: Path, attempt: object) -> None:
    """Every attempt gives a lying server another graph to choose from."""
    liar = Liar(world(tmp_path))
    name = sum_name(liar.home.federation, DEGREES.place, attempt)  # type: ignore[arg-type]
    assert announced(liar, name, attempt).kind == "error"  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [[], ["degrees"], ["degrees", 0, "0"], "degrees", {"degrees": 1}, [None, 0, 0]])
def test_a_place_is_a_place(tmp_path: Path, place: object) -> None:
    liar = Liar(world(tmp_path))
    assert "without its stage" in announced(liar, bytes(16), 0, place).header["reason"]


def test_what_was_announced_is_what_is_planned(tmp_path: Path) -> None:
    """The server announces one sum, which gives the graph, and plans another."""
    liar = Liar(world(tmp_path))
    assert liar.sum([0, 1, 2], DEGREES, announced=TRAIN) is None
    assert liar.refused("of another stage, level or round than the sum was announced for")


def test_the_graph_follows_from_name_and_company_alone() -> None:
    """Other parameters of the session, some of which the server may choose, must not change the graph."""
    graphs = []
    for users in (40, 41, 99):
        run = Round(Session(bytes(16), ((3, 32),), users, 6, 5, least=39), random_vectors(40, 3)).until(Stage.MASKED)
        graphs.append({me: client._graph.neighbours(me) for me, client in run.clients.items()})
    assert graphs[0] == graphs[1] == graphs[2]


@pytest.mark.parametrize("n", [65, 100, 250, 400, 401, 1000, 10_000])
@pytest.mark.parametrize("dropped", [0.05, 0.34])
def test_the_defaults_leave_nothing_to_grind(n: int, dropped: float) -> None:
    """With up to 400 nodes, the corrupt ones are too few in every graph; with more, it takes 2⁸⁰ tries."""
    p = choose(n, 0.05, dropped)
    complete = p.neighbours == n - 1
    if complete or n <= SURE:
        assert 2 * p.threshold - (n if complete else p.neighbours) > p.corrupt
    else:
        assert p.broken <= -SECURITY == -80
