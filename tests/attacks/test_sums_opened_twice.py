"""A sum that is taken once, such as the degree count, is opened for two companies: they differ by only a few nodes."""

from pathlib import Path

import pytest

from fedgrec.federation.node.store import NodeStore
from fedgrec.secagg.parameters import choose, opens_once
from tests.attacks.lying_server import DEGREES, Liar, counts, total
from tests.federation.worlds import world


def test_all_seven_opened_by_four_then_five_opened_by_three_others(tmp_path: Path) -> None:
    """Each node helps once; four and three nodes are enough if the threshold depends on each sum's own size."""
    liar = Liar(world(tmp_path, nodes=7, users=2, options={"least_nodes": 5, "corrupt": 0.0}))
    first = liar.sum(range(7), DEGREES, openers=[0, 1, 2, 3])
    second = liar.sum([0, 3, 4, 5, 6], DEGREES, openers=[4, 5, 6], threshold=3)
    assert first is not None
    if second is not None:
        difference = [a - b for a, b in zip(total(first, "degrees"), total(second, "degrees"), strict=True)]
        assert difference != counts(liar, [1, 2]), "two nodes' degree counts, exactly"
    assert second is None
    assert liar.refused("could be opened for two companies")


def test_any_two_companies(tmp_path: Path) -> None:
    """Whatever threshold the second sum has, the nodes that may open it are too few, or have opened the first."""
    liar = Liar(world(tmp_path, nodes=7, users=2, options={"least_nodes": 5, "corrupt": 0.0}))
    assert liar.sum(range(7), DEGREES, openers=[0, 1, 2, 3]) is not None
    for threshold in range(3, 6):
        assert liar.sum([0, 3, 4, 5, 6], DEGREES, openers=[4, 5, 6], threshold=threshold) is None


def test_what_a_node_reveals_is_on_its_disk_before_it_answers(tmp_path: Path) -> None:
    """A node that is killed right after its answer still knows which company it helped."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    liar.sum([0, 1, 2], DEGREES)
    for path in liar.fed.nodes.values():
        with NodeStore(path) as store:
            assert store.opened(DEGREES.place) is not None


@pytest.mark.parametrize("n", [4, 7, 20, 64, 65, 200, 400, 401, 2000])
@pytest.mark.parametrize("corrupt", [0.0, 0.05, 0.1])
def test_honest_servers_choose_what_can_be_opened_once(n: int, corrupt: float) -> None:
    """By counting: R openers of n clients give each of them t of k holders, so two companies take 2R of F + c."""
    p = choose(n, corrupt, 0.1, founders=n)
    assert opens_once(p.least, p.neighbours, p.threshold, p.corrupt, n)
    holders = p.neighbours if p.neighbours < p.least - 1 else p.least
    openers = -(-p.threshold * p.least // holders)
    assert 2 * openers > n + p.corrupt


def test_fewer_founders_than_the_roster_has_is_a_sentence(tmp_path: Path) -> None:
    """Two of five nodes cannot start: the other three could be made to count again without them."""
    from fedgrec.errors import FedgrecError

    fed = world(tmp_path, nodes=5, options={"start_nodes": 2, "corrupt": 0.0})
    fed.transport.away = {2, 3, 4}
    with pytest.raises(FedgrecError, match="2 of 3 nodes are there"):
        fed.run()
    fed.transport.away = {3, 4}
    fed.run()
    assert fed.is_its_simulation()
