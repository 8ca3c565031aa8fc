"""A client of secure aggregation that lives in another process for every message is the same client."""

import pytest

from fedgrec.secagg import Client, SecAggError, Stage
from fedgrec.secagg.errors import BadInput, WrongStage
from fedgrec.secagg.frozen import freeze, session_from_json, session_to_json, thaw
from tests.secagg.rounds import GRAPHS, Round, fresh_round, leaks, population

FREEZABLE = [graph for graph in GRAPHS if graph != "pairwise"]
STAGES = (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONFIRM, Stage.UNMASK)


def again(run: Round, me: int) -> Client:
    """What another process makes of the client's bytes."""
    people = population(len(run.vectors))
    return thaw(freeze(run.clients[me]), people.identities[me], people.roster)


class FrozenRound(Round):
    """Every client is frozen and thawed between any two messages."""

    def give(self, me: int, message: bytes | None) -> bytes:
        self.clients[me] = again(self, me)
        return super().give(me, message)


def frozen_round(graph: str) -> FrozenRound:
    run = fresh_round(graph)
    run.__class__ = FrozenRound
    return run  # type: ignore[return-value]


@pytest.mark.parametrize("lost", STAGES)
@pytest.mark.parametrize("graph", FREEZABLE)
def test_the_sum_is_the_same(graph: str, lost: Stage) -> None:
    run = frozen_round(graph).play({1: lost})
    values, users = run.server.result()
    assert values.tolist() == run.plain_sum(run.server.included).tolist()
    assert users == len(run.server.included)
    assert not any(leaks(run, me) for me in run.clients)


@pytest.mark.parametrize("graph", FREEZABLE)
def test_a_thawed_client_answers_nothing_twice(graph: str) -> None:
    run, asked = frozen_round(graph), list[bytes]()
    while not run.server.done:
        if run.inbox.get(0) is not None:
            asked.append(run.inbox[0])  # type: ignore[arg-type]
        run.step()
        for message in asked:
            with pytest.raises(WrongStage):
                again(run, 0).receive(message)
        with pytest.raises(SecAggError):
            again(run, 0).start()


def test_freezing_is_exact_and_ends_with_the_secrets() -> None:
    run = fresh_round("sparse, lists compared")
    while not run.server.done:
        assert all(freeze(again(run, me)) == freeze(client) for me, client in run.clients.items())
        run.step()
    text = freeze(run.clients[0])
    secrets = run.secrets[0]
    for secret in (secrets.seed, secrets.mask_key.private_bytes_raw(), secrets.cipher_key.private_bytes_raw()):
        assert secret.hex().encode() not in text


def test_a_client_that_gave_up_stays_so() -> None:
    run = fresh_round("complete").until(Stage.MASKED)
    run.clients[0].abandon()
    with pytest.raises(WrongStage):
        again(run, 0).receive(run.inbox[0])  # type: ignore[arg-type]


def test_what_is_not_submitted_is_missed_after_thawing_too() -> None:
    run = fresh_round("complete").until(Stage.MASKED)
    run.clients[0]._words = None
    with pytest.raises(BadInput, match="no vector"):
        again(run, 0).receive(run.inbox[0])  # type: ignore[arg-type]


def test_other_mechanisms_are_not_frozen() -> None:
    with pytest.raises(BadInput, match="secagg"):
        freeze(fresh_round("pairwise").clients[0])


@pytest.mark.parametrize(
    "change", [{"round_id": "zz"}, {"threshold": "2"}, {"bits": 31}, {"lying_server": 1}, {"more": 1}]
)
def test_what_is_no_session_is_refused(change: dict[str, object]) -> None:
    session = fresh_round("complete").session
    assert session_from_json(session_to_json(session)) == session
    with pytest.raises(BadInput):
        session_from_json(session_to_json(session) | change)
