"""A server that is killed anywhere goes on with the next sum, and never opens a sum again."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.store import ServerStore
from tests.federation.local_transport import Answer, honest
from tests.federation.worlds import Killed, World, kill_server, world


def lives(fed: World, *deaths: Any) -> int:
    """Run the server, let it be killed, run it again; return how often it died."""
    died = 0
    for death in deaths:
        try:
            fed.run(death)
            return died
        except Killed:
            died += 1
    fed.run()
    return died


def well(fed: World) -> bool:
    places = [(line["stage"], line["level"], line["round"]) for line in fed.log() if line["applied"]]
    sessions = [line["session"] for line in fed.log()]
    return (
        fed.is_its_simulation()
        and not fed.pending()
        and len(places) == len(set(places))
        and len(sessions) == len(set(sessions))
        and all(line["applied"] is not None for line in fed.log())
    )


def test_killed_after_any_number_of_answers(tmp_path: Path) -> None:
    """Each life is a little longer than the last, so that every message is once the last one."""
    fed = world(tmp_path, users=1, options={"rounds": 8, "evaluate_every": 3})
    assert lives(fed, *(kill_server(after) for after in range(1, 40, 3))) > 7
    assert well(fed)
    assert fed.model().round == 8


@pytest.mark.keep(4)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["begin", "opening", "_write_model", "apply", "lose", "answered", "freeze", "join"])
def test_killed_around_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, when: str) -> None:
    """Before or after each transaction, the second time that it happens."""
    real, seen = getattr(ServerStore, step), [0]
    fed = world(tmp_path, users=1, options={"rounds": 3, "evaluate_every": 1})

    def killed(self: ServerStore, *args: Any, **more: Any) -> Any:
        seen[0] += 1
        now = seen[0] == (1 if step in ("freeze", "lose") else 2)
        if now and when == "before":
            raise Killed
        result = real(self, *args, **more)
        if now:
            raise Killed
        return result

    monkeypatch.setattr(ServerStore, step, killed)
    first = kill_server(20) if step == "lose" else honest  # something to lose when it starts again
    assert lives(fed, first, honest) >= 1
    assert well(fed)
    assert fed.model().round == 3


def test_a_sum_whose_outcome_was_not_stored_is_lost_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = world(tmp_path, users=3)
    real, seen = ServerStore.apply, [0]

    def killed(self: ServerStore, *args: Any, **more: Any) -> None:
        seen[0] += 1
        if seen[0] == 3:  # the first training round: it is open, in memory
            raise Killed
        real(self, *args, **more)

    monkeypatch.setattr(ServerStore, "apply", killed)
    assert lives(fed, honest) == 1
    assert well(fed)
    lost = [line for line in fed.log() if not line["applied"]]
    assert [line["stage"] for line in lost] == ["train"]
    assert [line["round"] for line in fed.applied("train")] == [1]
    assert "the server stopped" in lost[0]["reason"]


def test_a_warm_up_that_was_opened_and_lost_is_opened_again_only_for_the_same_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two degree counts may be one node's count, so the other nodes refuse."""
    fed = world(tmp_path, users=3, options={"retries": 1})
    real = ServerStore.apply
    monkeypatch.setattr(ServerStore, "apply", lambda *a: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        fed.run()
    monkeypatch.setattr(ServerStore, "apply", real)
    fed.transport.away = {2}
    with pytest.raises(coordinator.FederationError, match="half opened"):
        fed.run()
    # A server that forgets what it asked for is refused by the nodes themselves.
    with monkeypatch.context() as forgetful:
        forgetful.setattr(ServerStore, "half_opened", lambda *a: None)
        with pytest.raises(coordinator.FederationError, match="sums in a row"):
            fed.run()
    assert any("has helped to open stage 'degrees'" in notice for notice in fed.witness.notices)
    assert not fed.applied("degrees")
    fed.transport.away = set()
    fed.run()
    assert well(fed)
    assert fed.applied("degrees")[0]["included"] == [0, 1, 2]


def test_a_finished_federation_can_be_given_more_rounds(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3)
    fed.run()
    sums = len(fed.log())
    fed.run()  # nothing is left to do
    assert len(fed.log()) == sums
    toml = fed.server / "federation.toml"
    toml.write_text(toml.read_text().replace("rounds = 2", "rounds = 3"))
    fed.run()
    assert well(fed)
    assert fed.model().round == 3
    assert len(fed.applied("degrees")) == 1


@pytest.mark.keep(1)
@pytest.mark.parametrize("stage", ["degrees", "propagate"])
def test_half_opened_without_a_node_that_got_lost_is_opened_again_without_it(tmp_path: Path, stage: str) -> None:
    """A node is lost in a sum that is taken once, the server dies while the others open it, and all come back."""
    fed, opened = world(tmp_path, nodes=4), list[int]()

    def unlucky(address: int, request: Packet, answer: Answer) -> Iterable[Packet]:
        now = fed.log()[-1]["stage"] if fed.log() else ""
        if now == stage and request.kind == "masked" and address == 2:
            return []
        if now == stage and request.kind == "unmask":
            if opened:
                raise Killed
            opened.append(address)
        return [answer(request)]

    with pytest.raises(Killed):
        fed.run(unlucky)
    fed.sums.clear()
    fed.run()
    counted = [line["included"] for line in fed.log() if line["stage"] == stage and line["applied"]]
    assert counted[0] == [0, 1, 3]
    assert fed.is_its_simulation()
    assert not fed.pending()
