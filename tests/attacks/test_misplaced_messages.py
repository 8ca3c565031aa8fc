"""A misplaced message, or a vector that does not fit the session, does not harm a client.

Clients that got different models end with a refusal or with noise.
"""

import numpy as np
import pytest

from fedgrec.secagg import Stage, ring
from fedgrec.secagg.errors import (
    BadCiphertext,
    BadInput,
    BadSignature,
    MalformedMessage,
    SecAggError,
    TooFewLeft,
    WrongRound,
    WrongStage,
)
from fedgrec.secagg.messages import HEADER, Keys, Shares, Survivors, parse
from tests.secagg.rounds import GRAPHS, VALUES, Round, flip, fresh_round, leaks, random_vectors, remembers, session


def error_for_header_bit(bit: int) -> tuple[type[SecAggError], ...]:
    kind_at = 5
    if bit // 8 == kind_at:  # no kind, a kind with other fields, or a kind that the client does not wait for
        return MalformedMessage, WrongStage
    return (MalformedMessage,) if bit // 8 < kind_at else (WrongRound,)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_misplaced_message_changes_nothing(graph) -> None:
    """At every stage: messages of another round, of other kinds, replays, flipped header bits and cut messages."""
    here = fresh_round(graph)
    earlier, again = fresh_round(graph), Round(here.session, here.vectors)  # another round, and this one twice
    to_it: dict[Stage, bytes | None] = {}
    while not again.server.done:
        to_it[again.server.stage] = again.inbox[0]
        again.step()
    while not here.server.done:
        stage, client = here.server.stage, here.clients[0]
        proper = here.inbox[0] or again.sent[0][0]
        for bit in range(8 * HEADER.size):
            with pytest.raises(error_for_header_bit(bit)):
                client.receive(flip(proper, bit))
        for wrong in (b"", proper[:-1], proper + b"\0"):
            with pytest.raises(MalformedMessage):
                client.receive(wrong)
        if earlier.inbox[0] is not None:
            with pytest.raises(WrongRound):
                client.receive(earlier.inbox[0])
        not_awaited = [message for awaited, message in to_it.items() if message and awaited is not stage]
        for message in not_awaited + again.sent[0]:
            with pytest.raises(WrongStage):
                client.receive(message)
        here.step()
        earlier.step()
    assert leaks(here, 0) == []
    assert not remembers(here, 0)
    assert np.array_equal(here.server.result()[0], here.plain_sum(here.vectors))


def test_a_client_answers_once() -> None:
    run = fresh_round("complete").until(Stage.UNMASK)
    survivors = run.inbox[0]
    run.give(0, survivors)
    assert not remembers(run, 0)
    for again in (survivors, Survivors(run.session.round_id, (0, 1, 2), (3, 4)).pack()):
        with pytest.raises(WrongStage):
            run.give(0, again)
    assert leaks(run, 0) == []


def test_a_client_starts_once_and_keeps_to_its_vector() -> None:
    run = fresh_round("complete").until(Stage.UNMASK)
    with pytest.raises(WrongStage):
        run.clients[0].start()
    with pytest.raises(WrongStage):
        run.clients[0].submit(run.vectors[1])


@pytest.mark.parametrize(
    ("values", "users"),
    [
        (np.full(VALUES, np.nan), 1),
        (np.ones(VALUES), 1),
        (np.ones(VALUES, bool), 1),
        (np.ones(VALUES, object), 1),
        (np.ones(VALUES - 1, int), 1),
        (np.ones(VALUES + 1, int), 1),
        (np.ones((VALUES, 1), int), 1),
        (np.full(VALUES, 2**31), 1),
        (np.full(VALUES, -(2**31) - 1), 1),
        (np.full(VALUES, 2**32, np.uint64), 1),
        (np.full(VALUES, 2**31, np.uint32), 1),
        (np.ones(VALUES, int), 6),
        (np.ones(VALUES, int), -1),
    ],
)
def test_a_vector_that_the_session_cannot_carry_is_refused(values, users) -> None:
    run = fresh_round("complete")
    with pytest.raises(BadInput):
        run.clients[0].submit(values, users)
    run.play()  # with the vector it had before
    assert np.array_equal(run.server.result()[0], run.plain_sum(range(5)))


@pytest.mark.parametrize("dtype", ["i1", ">i4", "i8", "u4", "u8"])
def test_any_integers_that_fit_are_taken(dtype) -> None:
    values = np.arange(VALUES).astype(dtype)
    rings = ((VALUES - 3, 32), (3, 8))
    assert ring.decode(ring.encode(values, 1, rings), rings, 1)[0].tolist() == list(range(VALUES))


# ------------------------------------------------------------------------------------------ two models


def models(n: int) -> dict[int, bytes]:
    return {me: b"model A" if me % 2 else b"model B" for me in range(n)}


def test_clients_with_different_models_refuse_before_a_vector_leaves() -> None:
    run = Round(session(4, VALUES, 3), random_vectors(4, VALUES), contexts=models(4)).until(Stage.MASKED)
    for me, message in run.inbox.items():
        with pytest.raises(BadCiphertext):
            run.give(me, message)
        assert [type(parse(message)) for message in run.sent[me]] == [Keys, Shares]
        assert leaks(run, me) == []
        assert not remembers(run, me)
    with pytest.raises(TooFewLeft):
        run.server.close()


def test_a_server_with_another_model_than_the_clients_gets_nothing() -> None:
    run = Round(session(4, VALUES, 3), random_vectors(4, VALUES), contexts=dict.fromkeys(range(4), b"model A"))
    run.server.context = b"model B"
    with pytest.raises(BadSignature):
        run.play()
