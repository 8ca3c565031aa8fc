"""A node is restored from a copy of its folder, so that it masks a second vector with the same masks."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.errors import FedgrecError
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.upkeep import BACKED_UP
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.setup.backup import backup
from tests.attacks.lying_server import DEGREES, JUDGE, Liar, total
from tests.federation.masked_worlds import masked_world
from tests.federation.worlds import world


def masked_request(liar: Liar) -> Packet:
    """The request for node 0's masked vector, in the middle of a sum."""
    liar.sum([0, 1, 2], DEGREES, until="masked", lost=[0])
    return Packet("masked", liar.asked["masked", 1].header, {"secagg": liar.sent["masked"][0]})


@pytest.mark.parametrize("process", ["another process", "the same process"])
def test_two_vectors_under_one_mask(tmp_path: Path, process: str) -> None:
    """Copied in mid-sum and restored with one new user: the difference of two masked vectors was that user's items."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    request, folder, copy = masked_request(liar), liar.fed.nodes[0], tmp_path / "copy"
    shutil.copytree(folder, copy)
    first = handle(folder, request, liar.fed.sums)
    assert first.kind == "masked"
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    if process == "another process":
        liar.fed.sums.clear()
    with NodeStore(folder) as store:
        store.add_users(open_node(folder).method(1), [Person("new", [3, 7, 11])])
    liar.greet(0)
    second = handle(folder, request, liar.fed.sums)
    if second.kind == "masked":
        vectors = [answer.arrays["secagg"][22:] for answer in (first, second)]  # a byte for each degree
        difference = vectors[1] - vectors[0]
        assert np.flatnonzero(difference[:30]).tolist() != [3, 7, 11], "bare"
    assert second.kind == "error"
    refusals = ("takes no part in this sum", "commits itself to what it sends")
    assert any(words in second.header["reason"] for words in refusals)


def test_a_copy_elsewhere_knows_no_mask(tmp_path: Path) -> None:
    """A thief of a backup or of a folder gets nothing that was ever used to mask."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    request = masked_request(liar)
    shutil.copytree(liar.fed.nodes[0], tmp_path / "stolen")
    assert "takes no part" in handle(tmp_path / "stolen", request, {}).header["reason"]


def test_counted_again_with_one_user_more(tmp_path: Path) -> None:
    """Restored from before the count with one new user, while all others helped again: the difference was that user."""
    liar = Liar(world(tmp_path, options={"evaluations": 9}))
    folder, copy = liar.fed.nodes[0], tmp_path / "copy"
    with NodeStore(folder) as store:
        assert store.node_key
    shutil.copytree(folder, copy)
    first = liar.sum([0, 1, 2], DEGREES)
    shutil.rmtree(folder)
    copy.rename(folder)
    liar.fed.sums.pop(folder)
    with NodeStore(folder) as store:
        store.add_users(open_node(folder).method(1), [Person("new", [3, 7, 11])])
    liar.greet(0)
    second = liar.sum([0, 1, 2], DEGREES)
    if second is not None:
        difference = np.array(total(second, "degrees")) - np.array(total(first, "degrees"))
        assert np.flatnonzero(difference).tolist() != [3, 7, 11], "bare"
    assert second is None
    assert liar.refused("all of them must be there to do it again")


# --------------------------------------------------------------------------------------- fedgrec federation backup


def test_a_backup_is_a_node_that_is_lost_to_its_sum_and_joins_the_next(tmp_path: Path) -> None:
    """The command makes a backup in mid-sum; it is restored, and the federation goes on to its end."""
    fed = world(tmp_path / "fed", nodes=4, options={"corrupt": 0.0})
    copy, folder = tmp_path / "copy", fed.nodes[1]
    seen: list[str] = []

    def restored(address: int, request: Packet, node: object) -> list[Packet]:
        if address == 1:
            seen.append(request.kind)
        if address == 1 and seen.count("masked") == 3 and request.kind == "masked" and not copy.exists():
            assert cli.main(["federation", "backup", str(folder), "--out", str(copy), "--with-keys"]) == 0
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
            fed.sums.pop(folder, None)
        return [node(request)]  # type: ignore[operator]

    fed.run(restored)
    assert copy.exists()
    assert fed.model().round == 2
    assert any("takes no part in this sum" in notice for notice in fed.witness.notices)
    assert fed.is_its_simulation()
    assert 1 in fed.applied("train")[-1]["included"]


def test_a_backup_has_no_evaluations_left(tmp_path: Path) -> None:
    """A backup cannot know later evaluations: restored again and again, it would answer too many."""
    liar = Liar(world(tmp_path / "fed", options={"evaluations": 9})).trained()
    backup(liar.fed.nodes[0], tmp_path / "copy", with_keys=True)
    shutil.rmtree(liar.fed.nodes[0])
    (tmp_path / "copy").rename(liar.fed.nodes[0])
    assert liar.sum([0, 1, 2], JUDGE) is None
    assert liar.refused("has taken part in 9 evaluations")


def test_backups_of_every_kind_of_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Server, node and gateway; another folder, or a copy that exists already, is an error."""
    fed = masked_world(tmp_path / "fed")
    fed.run()
    gateway = tmp_path / "fed" / "node0"
    for folder in (fed.server, gateway):
        copy = backup(folder, tmp_path / "copies" / folder.name, with_keys=True)
        names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == {
            name for name in names if not name.name.endswith(("-wal", "-shm", BACKED_UP))
        }
        assert all(path.stat().st_mode & 0o77 == 0 for path in copy.rglob("*") if path.suffix in {".sqlite", ".key"})
        with pytest.raises(FedgrecError, match="never overwritten"):
            backup(folder, copy)
    original = fed.model()
    fed.server = tmp_path / "copies" / "server"
    assert fed.model().items.tobytes() == original.items.tobytes()
    assert cli.main(["federation", "backup", str(tmp_path), "--out", str(tmp_path / "x")]) == 2
    assert "no folder of a server, a node or a gateway" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert json.loads((fed.server / "server.json").read_text())["federation"]


def test_a_damaged_folder_gives_no_backup_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """The error names the file, and no half copy stays."""
    fed = world(tmp_path / "fed", users=2, options={"rounds": 1})
    fed.run()
    for model in fed.server.glob("model-*.bin"):
        content = bytearray(model.read_bytes())
        content[-70] ^= 1
        model.write_bytes(content)
    with pytest.raises(FedgrecError, match=r"model-.*was damaged"):
        backup(fed.server, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fed"]
