"""A server is lost with its disk: another one takes over with a copy that the first one kept of itself."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fedgrec.cli import main
from fedgrec.errors import FedgrecError
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import HISTORY, Packet
from fedgrec.federation.setup.copies import KEPT, keep_copy, place_of, take_over
from tests.federation.living import Life
from tests.federation.local_transport import Answer, honest
from tests.federation.worlds import N_ITEMS, World, world


def kept(fed: World) -> list[str]:
    """Run; after each sum that counts, the server looks whether it is worth a copy. Names of the copies."""
    found = list[str]()

    def summed(line: dict[str, int]) -> None:
        if copy := keep_copy(fed.server):
            found.append(copy.name)

    fed.witness.summed = summed  # type: ignore[method-assign,assignment]
    fed.run()
    return found


@pytest.mark.parametrize("method", ["fedgrec", "spectral"])
def test_each_sum_that_is_taken_once_is_worth_a_copy_and_few_are_kept(tmp_path: Path, method: str) -> None:
    more = {"layers": 2} if method == "fedgrec" else {}
    fed = world(tmp_path, method, users=2, options={"rounds": 4, "evaluations": 9, "evaluate_every": 2}, **more)
    names = kept(fed)
    worth = [sum_["number"] for sum_ in fed.log() if sum_["stage"] != "train"]
    assert len(worth) > (KEPT if method == "fedgrec" else 1)
    assert names == [f"{number:09}-{1:06}" for number in worth]
    assert sorted(path.name for path in place_of(fed.server).iterdir()) == names[-KEPT:]
    assert keep_copy(fed.server) is None, "there is nothing new"


def test_a_server_lost_after_a_recount_is_followed_by_another_and_nodes_refuse_the_first(tmp_path: Path) -> None:
    """A backup from before the recount would be of no use: users send only what is new."""
    life = Life(tmp_path)
    life.train()
    keep_copy(life.world.server)
    for step in (life.click, life.join):
        step()
    life.reread()
    fed, first = life.world, tmp_path / "first"

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if fed.log()[-1]["stage"] == "train":
            keep_copy(fed.server)
        return honest(address, request, node)

    life.train(meddle)
    counted = next(sum_["number"] for sum_ in fed.log() if sum_["stage"] == "recount")
    copies = place_of(fed.server)
    fed.server.rename(first)
    copy = take_over(fed.server, copies)
    assert copy.name.startswith(f"{counted:09}")
    life.season += 1
    life.click()
    life.reread()
    life.train()
    assert fed.applied("train")[-1]["round"] > 3, "no round is used twice"
    have = [item for people in life.people.values() for items in people.values() for item in items]
    np.testing.assert_array_equal(fed.model().degrees, np.bincount(have, minlength=N_ITEMS))
    shutil.rmtree(fed.server)
    first.rename(fed.server)
    toml = fed.server / "federation.toml"
    toml.write_text(re.sub(r"^seasons = .*", "seasons = 9", toml.read_text(), flags=re.MULTILINE))
    with pytest.raises(FederationError):
        fed.run()
    assert any("another server has taken over" in notice for notice in fed.witness.notices)


def test_nodes_hear_that_a_sum_counts_once_there_is_a_copy_with_it(tmp_path: Path) -> None:
    """Else a server that is lost right after the sum would have forgotten it, and nobody sends it again."""
    pytest.importorskip("flwr", exc_type=ImportError)
    from fedgrec.federation.setup.server_app import Keeping

    fed, said, told = world(tmp_path, users=2, options={"rounds": 2, "evaluations": 9}, layers=2), [], set[int]()
    keeping = Keeping(fed.server, said.append)
    fed.witness.summed, fed.witness.noticed = keeping.summed, keeping.noticed  # type: ignore[method-assign]

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        history = request.header.get(HISTORY, {"after": 0, "lines": []})
        over = fed.log()[: history["after"] + len(history["lines"])]
        once = [line["number"] for line in over if line["stage"] != "train" and line["applied"]]
        if once:
            told.add(once[-1])
            assert max(path.name for path in place_of(fed.server).iterdir()) >= f"{once[-1]:09}"
        return honest(address, request, node)

    fed.run(meddle)
    assert len(told) >= 3
    assert sum("is a copy of this server, with its key" in line for line in said) >= 3


def test_nothing_is_taken_over_from_nowhere_or_into_what_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flwr", exc_type=ImportError)
    fed = world(tmp_path)
    assert main(["federation", "server", str(tmp_path / "new"), "--from", str(tmp_path)]) == 2
    assert "has no copy of a server" in capsys.readouterr().err
    with pytest.raises(FedgrecError, match="exists"):
        take_over(fed.server, tmp_path)
    assert not (tmp_path / "new").exists()
