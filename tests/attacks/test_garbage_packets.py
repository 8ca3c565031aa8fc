"""One bad node, or a server that sends nonsense: nobody else is disturbed, and nothing is stored."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.store import NodeStore
from tests.attacks.lying_server import TRAIN, Liar
from tests.federation.local_transport import Answer
from tests.federation.meddlers import on
from tests.federation.worlds import EXCHANGES, world


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(world(tmp_path))


GARBAGE: dict[str, Any] = {
    "nothing": {"blobs": {}, "arrays": {}},
    "noise": {"blobs": {"secagg": b"FGSA\x01" + bytes(range(200)), "next": bytes(70)}, "arrays": {}},
    "a large array": {"arrays": {"secagg": np.full(10**6, np.nan)}},
    "no array": {"arrays": {"secagg": np.float64(3)}},
    "an odd header": {"header": {"index": [1], "history": {"a": 1}, "reason": {"b": [2]}, "roster": 3}},
}


@pytest.mark.keep(2)
@pytest.mark.parametrize("what", GARBAGE)
def test_a_node_that_answers_with_garbage_disturbs_nobody_else(tmp_path: Path, what: str) -> None:
    """In every exchange after it has joined: the others train, and only they change the model."""

    def rude(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        reply = answer(request)
        spoilt = address == 1 and reply.kind in EXCHANGES and len(fed.log()) % 2
        return [replace(reply, **GARBAGE[what]) if spoilt else reply]

    fed = world(tmp_path, nodes=4, options={"retries": 20})
    fed.run(rude)
    assert fed.is_its_simulation()
    assert fed.model().round == 2
    assert np.isfinite(fed.model().items).all()


@pytest.mark.parametrize(
    "tags", [np.zeros((2, 31), np.uint8), np.zeros((1, 32)), np.uint8(3), np.zeros((0, 32), np.uint8)]
)
def test_a_node_that_introduces_itself_with_garbage_stays_out(tmp_path: Path, tags: np.ndarray) -> None:
    def rude(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return [replace(answer(request), arrays={"tags": tags})]

    fed = world(tmp_path, options={"start_nodes": 2, "rounds": 1})
    fed.run(on("hello", 1, rude, times=100))
    assert fed.witness.joiners == ["node0", "node2"]


@pytest.mark.keep(9)
@pytest.mark.parametrize("where", ["verdicts", "plan", "model", "session", "next"])
@pytest.mark.parametrize(
    "value", [None, 3, "x", [], [[1]], {"a": {}}, {"topk": None}, 10**400], ids=lambda v: str(v)[:9]
)
def test_nonsense_in_a_header_changes_nothing(liar: Liar, where: str, value: Any) -> None:
    def memory() -> list[Any]:
        with NodeStore(liar.fed.nodes[0]) as store:
            return [store.db.execute(f"SELECT * FROM {t}").fetchall() for t in ("users", "opened", "participation")]

    liar.sum([0, 1, 2], TRAIN, until="keys")
    before = memory()
    for kind in EXCHANGES:
        header = {"session": liar.sessions[-1], where: value}
        answer = liar.ask(0, Packet(kind, header, {packets.SECAGG: b""}))
        assert answer.kind == packets.ERROR
    assert memory() == before
