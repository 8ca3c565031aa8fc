"""Who runs the server shows one node another roster, on which all others are invented."""

from pathlib import Path

from fedgrec.federation.common import packets
from fedgrec.federation.common.folder import Roster, Terms, write_roster
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.folder import floors, open_node
from fedgrec.federation.node.gateway import create, enrol
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import open_server
from tests.attacks.companies import Chooser, in_one_batch
from tests.attacks.lying_server import DEGREES, counts, total
from tests.federation.worlds import World

V, INVENTED = 0, [1, 2, 3]


def show(folder: Path, roster: Roster) -> None:
    """Who runs the server has no key of the authority."""
    write_roster(folder, roster)


def beside_invented_nodes(root: Path, fed: World) -> World:
    """The node V of this federation, and nodes whose keys and users who runs the server has made up."""
    home, insisting = open_server(fed.server), open_node(fed.nodes[V])
    roster, keys = {V: home.roster[V]}, {}
    for place in INVENTED:
        lines, keys[place] = enrol(f"invented{place}", place)
        roster |= lines
    terms = Terms(home.federation, roster, home.config, home.n_items, home.agreed)
    nodes = {V: fed.nodes[V]} | {place: root / f"invented{place}" for place in INVENTED}
    for place in INVENTED:
        create(nodes[place], terms, keys[place], bytes(32), floors(insisting))
        with NodeStore(nodes[place]) as store:
            store.add_users(home.method(1), [Person(f"invented {place}", [0])])
    for folder in (fed.server, *nodes.values()):
        show(folder, roster)
    return World(fed.server, nodes, fed.transport)


def test_a_node_takes_no_part_beside_invented_nodes(tmp_path: Path) -> None:
    fed = beside_invented_nodes(tmp_path, in_one_batch(tmp_path, 4, latents_every=0))
    hello = Packet(packets.HELLO, {"federation": open_server(fed.server).federation}, {"nonce": bytes(32)})
    answer = handle(fed.nodes[V], hello, {})
    if answer.kind == packets.HELLO:
        liar = Chooser(fed)
        found = total(liar.open(liar.everybody, liar.plan(DEGREES)), "degrees")
        alone = [both - other for both, other in zip(found, counts(liar, INVENTED), strict=True)]
        assert alone != counts(liar, [V]), "one node's degree counts, exactly"
    assert answer.kind == packets.ERROR
    assert "roster" in answer.header["reason"]
