"""A name or a reason holds codes that clear a terminal or write something else on it: no terminal gets them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from fedgrec import cli
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.store import NodeStore
from tests.attacks.lying_server import Liar
from tests.federation.local_transport import Answer
from tests.federation.meddlers import on
from tests.federation.worlds import N_ITEMS, world


def test_escape_sequences_in_item_names_reach_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of the catalogue holds codes that clear the screen, or write something else on it."""
    fed = world(tmp_path, options={"rounds": 1})
    names = [f"\x1b[2Jitem\x07 {i}" for i in range(N_ITEMS)]
    for folder in (fed.server, *fed.nodes.values()):
        (folder / "items.txt").write_text("".join(f"{name}\n" for name in names))
    fed.run()
    assert cli.main(["device", "recommend", str(fed.nodes[0]), "--user", "0/0"]) == 0
    shown = capsys.readouterr().out
    assert "item" in shown
    assert shown.replace("\n", "").isprintable()
    assert cli.main(["device", "recommend", str(fed.nodes[0]), "--user", "\x1b[2J"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_node_cannot_write_to_the_operators_terminal(tmp_path: Path) -> None:
    def rude(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        return [Packet("error", {"reason": "\x1b[2J\x1b]0;owned\x07\nnode0 joined" + "x" * 10**5})]

    fed = world(tmp_path, options={"rounds": 1})
    fed.run(on("shares", 1, rude))
    (notice,) = fed.witness.notices
    assert notice.isprintable()
    assert len(notice) < 400


def test_nor_the_server_to_a_nodes(tmp_path: Path) -> None:
    liar = Liar(world(tmp_path))
    liar.ask(0, Packet("refused", {"reason": "\x1b[2J" + "x" * 10**5}))
    with NodeStore(liar.fed.nodes[0]) as store:
        assert store.get("refused").isprintable()
        assert len(store.get("refused")) < 400
