"""Messages that are the same for all nodes tell each node what its own message would have told."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.shared_messages import for_everybody, without
from fedgrec.secagg.messages import Neighbourhood, parse
from tests.federation.local_transport import Answer, honest
from tests.federation.worlds import world
from tests.secagg.rounds import fresh_round

KINDS = ("Neighbourhood", "Delivery", "Survivors", "Confirmations")


def messages(graph: str) -> dict[str, dict[int, bytes]]:
    """What the server of secure aggregation sends, by the kind of message."""
    run, found = fresh_round(graph), dict[str, dict[int, bytes]]()
    while not run.server.done:
        run.step()
        sent = {client: text for client, text in run.inbox.items() if text is not None}
        if sent:
            found[type(parse(sent[0])).__name__] = sent
    assert tuple(found) == KINDS
    return found


def test_with_a_complete_graph_keys_and_signatures_are_the_same_for_all() -> None:
    for kind, own in messages("complete").items():
        shared = for_everybody(own)
        assert {client: without(parse(text), client).pack() for client, text in shared.items()} == own
        assert (len(set(shared.values())) == 1) == (kind != "Delivery"), "only shares are each one's own"


def test_with_a_sparse_graph_each_gets_its_own() -> None:
    for own in messages("sparse").values():
        assert for_everybody(own) == own


def test_nobody_is_told_what_it_should_not_be() -> None:
    """One message lacks a node that the others name: no message may change, or its receiver would learn that node."""
    keys = messages("complete")["Neighbourhood"]
    message = parse(keys[3])
    assert isinstance(message, Neighbourhood)
    fewer = keys | {3: replace(message, keys=message.keys[1:]).pack()}
    assert for_everybody(fewer) == fewer
    assert for_everybody({3: keys[3]}) == {3: keys[3]}
    assert for_everybody({}) == {}


def test_the_network_carries_one_question_for_all(tmp_path: Path) -> None:
    fed, asked = world(tmp_path, nodes=5, options={"rounds": 1}), dict[str, set[bytes]]()

    def listen(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        asked.setdefault(request.kind, set()).add(request.blobs.get("secagg", b""))
        return honest(address, request, node)

    fed.run(listen)
    assert fed.is_its_simulation()
    sums, kinds = len(fed.log()), ("shares", "masked", "confirm", "unmask")
    assert [len(asked[kind]) for kind in kinds] == [sums, 5 * sums, sums, sums]
