"""Who runs the server shows one node another roster, on which all others are invented.

Who runs the server has no key of the authority: whoever has, can put a node beside invented ones.
"""

from pathlib import Path

from fedgrec.federation.common import packets
from fedgrec.federation.common.certificates import as_pem, authority
from fedgrec.federation.common.folder import Terms
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.roster import Membership
from fedgrec.federation.node.folder import floors, open_node
from fedgrec.federation.node.gateway import create, enrol
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.folder import create_server, open_server
from tests.attacks.companies import Chooser, in_one_batch
from tests.attacks.lying_server import DEGREES, counts, total
from tests.federation.worlds import World

V, INVENTED = 0, [1, 2, 3]


def beside_invented_nodes(root: Path, fed: World) -> World:
    """The node V of this federation, and nodes whose keys and users who runs the server has made up."""
    home, insisting, mine = open_server(fed.server), open_node(fed.nodes[V]), authority("mine")
    roster, keys = {V: home.roster[V]}, {}
    for place in INVENTED:
        lines, keys[place] = enrol(f"invented{place}", place)
        roster |= lines
    other = Membership(home.federation, home.membership.number + 1, roster).signed(mine[0])
    terms = Terms(other, as_pem(mine[1]), home.config, home.n_items, home.agreed)
    create_server(root / "server", terms, home.options)
    nodes = {V: fed.nodes[V]} | {place: root / f"invented{place}" for place in INVENTED}
    for place in INVENTED:
        create(nodes[place], terms, keys[place], bytes(32), floors(insisting))
        with NodeStore(nodes[place]) as store:
            store.add_users(home.method(1), [Person(f"invented {place}", [0])])
    return World(root / "server", nodes, fed.transport)


def test_a_node_takes_no_part_beside_invented_nodes(tmp_path: Path) -> None:
    """Each node is a batch of its own, so that batches are no reason to refuse."""
    fed = in_one_batch(tmp_path, 4, options={"fewest_people": 1})
    liar = Chooser(beside_invented_nodes(tmp_path / "invented", fed))
    answer = liar.ask(V, Packet(packets.NEW_ROSTER, arrays={"roster": packets.as_array(liar.home.membership.pack())}))
    assert answer.kind == packets.ERROR
    assert "signed" in answer.header["reason"]
    found = total(liar.open(liar.everybody, liar.plan(DEGREES)), "degrees")
    known = counts(liar, INVENTED)
    alone = [both - other for both, other in zip(found, known, strict=True)]
    assert alone != counts(liar, [V]), "one node's degree counts, exactly"
    assert found == known, "the invented nodes open it among themselves"
