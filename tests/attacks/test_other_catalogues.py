"""A node whose catalogue has the same size but other lines would train other items than it names."""

from pathlib import Path

import pytest

from fedgrec.errors import FedgrecError
from fedgrec.federation.common.catalogue import CATALOGUE
from fedgrec.federation.server.folder import ServerFolder
from tests.federation.worlds import N_ITEMS, World, world

NAMES = [f"item {i}" for i in range(N_ITEMS)]


def with_catalogues(path: Path, *names: list[str], **options: object) -> World:
    fed = world(path, options={"retries": 0} | options)
    for folder, lines in zip((fed.server, *fed.nodes.values()), names, strict=True):
        (folder / CATALOGUE).write_text("".join(f"{name}\n" for name in lines))
    return fed


def test_a_node_with_shuffled_lines_is_refused_by_name(tmp_path: Path) -> None:
    """The catalogue's digest is part of what every node signs."""
    fed = with_catalogues(tmp_path, NAMES, NAMES, NAMES[::-1], NAMES, start_nodes=2)
    fed.run()
    assert fed.witness.joiners == ["node0", "node2"]
    assert any("node1 has another method, options or catalogue" in notice for notice in fed.witness.notices)


def test_a_server_that_lets_it_in_gets_no_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are bound to the catalogue: nobody can open the odd node's shares."""
    fed = with_catalogues(tmp_path, NAMES, NAMES, NAMES[::-1], NAMES)
    agreement = ServerFolder.agreement.fget  # type: ignore[attr-defined]

    class Anything(str):
        """Equal to any text that a node sends."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(ServerFolder, "agreement", property(lambda self: Anything(agreement(self))))
    with pytest.raises(FedgrecError, match="sums in a row"):
        fed.run()
    assert any("was not encrypted by it for this round and this model" in notice for notice in fed.witness.notices)
