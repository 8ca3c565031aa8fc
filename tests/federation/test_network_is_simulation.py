"""Law 6: a federation equals the simulation that replays its log, bit for bit, whoever falls silent."""

from pathlib import Path

import numpy as np
import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common import packets
from fedgrec.federation.node.folder import SERVED
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from tests.federation.meddlers import killed_after_writing, on, silent
from tests.federation.worlds import EXCHANGES, N_ITEMS, at_random, world


@pytest.mark.parametrize("method", ["fedgrec", "federank", "spectral", "ordered"])
def test_three_nodes_of_ten_users(tmp_path: Path, method: str) -> None:
    layers = {"layers": 2} if method == "fedgrec" else {}
    fed = world(tmp_path, method, users=10, options={"rounds": 3, "evaluations": 9}, **layers)
    fed.run()
    assert fed.is_its_simulation()
    assert fed.model().round == 3
    assert [line["included"] for line in fed.applied("train")] == [[0, 1, 2]] * 3
    assert not fed.pending()
    assert not fed.witness.notices
    assert all((node / SERVED).exists() for node in fed.nodes.values()), "nodes recommend with it"
    # The server asks for keys once, and for the evaluation. Other keys come with the previous sum's answers, so a sum
    # has four exchanges, not five. How many bits the words of spectral's first sum take follows from the counts.
    kinds, asked = [packet.kind for _, packet in fed.transport.received], 3 if method in ("spectral", "ordered") else 2
    found = {kind: kinds.count(kind) for kind in EXCHANGES}
    assert found == dict.fromkeys(EXCHANGES, 3 * len(fed.log())) | {"keys": 3 * asked}


def test_two_parts_are_served_after_the_sums(tmp_path: Path) -> None:
    """Nodes have a model once four sums are open, and another one at the end; they judge rounds, and no sums."""
    fed = world(tmp_path, "two-parts", layers=2, users=10, options={"rounds": 7, "evaluations": 9, "evaluate_every": 1})
    fed.run()
    assert fed.is_its_simulation()
    assert not fed.pending()
    assert not fed.witness.notices
    assert len([packet for _, packet in fed.transport.received if packet.kind == packets.FINISH]) == 6
    assert [line["round"] for line in fed.applied("evaluate")] == [4, 5, 6]
    for node in fed.nodes.values():
        with NodeStore(node) as store:
            user = store.ids()[0]
        found, scores = recommend(node, user, 5)
        assert len(found) == 5
        assert (np.diff(scores) <= 0).all()


def test_latents_travel_when_they_are_due(tmp_path: Path) -> None:
    """After the first turns, in rounds 3 and 5, three nodes each send two more tables."""
    fed = world(tmp_path, layers=2, latents_every=2, options={"rounds": 7})
    fed.run()
    assert fed.is_its_simulation()
    up = {line["round"]: line["bytes_up"] for line in fed.applied("train")}
    method = open_server(fed.server).method(18)
    ((_, _), (words, bits)) = method.spec(method.training(3)).rings
    more = 3 * words * bits / 8
    assert words == 2 * N_ITEMS * fed.model().items.shape[2]
    assert min(up[3], up[5]) - max(up[4], up[6]) >= 0.9 * more


def test_everybody_sends_latents_in_a_sweep(tmp_path: Path) -> None:
    """Twelve of 18 users take part in a round; after one, two and four turns, in rounds 2, 3 and 6, all of them do."""
    fed = world(tmp_path, layers=2, latents_every=0, options={"rounds": 8})
    fed.run()
    assert fed.is_its_simulation()
    users = {line["round"]: line["users"] for line in fed.applied("train")}
    assert users == dict.fromkeys(range(8), 12) | dict.fromkeys((2, 3, 6), 18)
    method = open_server(fed.server).method(18)
    kinds = [[leaf.name for leaf in method.spec(method.training(round_)).leaves] for round_ in range(8)]
    assert [kind == ["latents"] for kind in kinds] == [round_ in (2, 3, 6) for round_ in range(8)]
    assert all(kind in (["latents"], ["items"]) for kind in kinds)


@pytest.mark.parametrize("method", ["fcf", "fedmf", "fedncf", "ordered-parts"])
def test_every_method_without_a_third_party(tmp_path: Path, method: str) -> None:
    rounds, sums = (3, {"sums": 2}) if method == "ordered-parts" else (2, {})  # one of them knows order
    fed = world(tmp_path, method, options={"rounds": rounds}, **sums)
    fed.run(on("masked", 1, silent, after=1))
    assert fed.is_its_simulation()
    assert sorted(line["included"] for line in fed.applied("train")) == [*[[0, 1, 2]] * (rounds - 1), [0, 2]]


@pytest.mark.keep(3)
@pytest.mark.parametrize("how", [silent, killed_after_writing])
@pytest.mark.parametrize("kind", EXCHANGES)
def test_a_node_is_lost_in_any_exchange(tmp_path: Path, kind: str, how: object) -> None:
    """In the warm-up (degrees, a level) or in training, each way once; the node takes part again later."""
    in_training = kind != "keys" and (EXCHANGES.index(kind) % 2 == 0) == (how is silent)
    fed = world(tmp_path, options={"rounds": 3})
    fed.run(on(kind, 1, how, after=2 if in_training else 0))  # type: ignore[arg-type]
    assert fed.is_its_simulation()
    assert not fed.pending()
    lost = [line for line in fed.log() if line["applied"] and 1 not in line["included"]]
    if kind in ("shares", "masked") or kind == "keys":
        assert lost
    assert fed.applied("train")[-1]["included"] == [0, 1, 2]
    assert fed.model().round == 3


@pytest.mark.keep(2)
@pytest.mark.parametrize("method", ["fedgrec", "federank"])
@pytest.mark.parametrize("seed", range(2))
def test_many_dropouts(tmp_path: Path, method: str, seed: int) -> None:
    fed = world(tmp_path, method, nodes=4, users=3, options={"rounds": 4, "retries": 30})
    fed.run(at_random(0.06, seed))
    assert fed.is_its_simulation()
    assert not fed.pending()
    assert len({tuple(line["included"]) for line in fed.log()}) > 1, "nobody was lost"


def test_the_law_needs_the_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: a node that keeps its new state whether its upload counted or not."""
    settle = NodeStore.settle
    monkeypatch.setattr(NodeStore, "settle", lambda self, session, included: settle(self, session, True))
    fed = world(tmp_path)
    fed.run(on("masked", 1, killed_after_writing, after=2))
    assert not fed.is_its_simulation()


def test_a_few_nodes_of_many_and_their_spares(tmp_path: Path) -> None:
    fed = world(tmp_path, nodes=6, users=2, options={"nodes_per_round": 3, "spares": 1, "rounds": 8})
    fed.run(on("keys", 2, silent, times=100, after=1))
    assert fed.is_its_simulation()
    assert all(len(line["included"]) <= 3 for line in fed.applied("train"))
    assert len({node for line in fed.applied("train") for node in line["included"]}) > 3


def test_a_round_holds_no_more_users_than_it_was_sized_for(tmp_path: Path) -> None:
    """Six nodes of one user each, three users a round: some nodes have to wait."""
    fed = world(tmp_path, nodes=6, users=1, users_per_round=3)
    fed.run()
    assert fed.is_its_simulation()
    assert [line["users"] for line in fed.applied("train")] == [3, 3]
    assert fed.applied("degrees")[0]["users"] == 6


def test_the_degrees_are_what_the_users_have(tmp_path: Path) -> None:
    fed = world(tmp_path)
    fed.run()
    counts = np.zeros(30, np.int64)
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            for (item,) in store.db.execute("SELECT item FROM interactions WHERE held_out = 0"):
                counts[item] += 1
    assert fed.model().degrees.tolist() == counts.tolist()


def test_what_a_federation_cannot_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="third party"):
        world(tmp_path, "fedgnn")
