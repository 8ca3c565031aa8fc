"""What LightSecAgg refuses; noise is never taken for a sum."""

import numpy as np
import pytest

from fedgrec.secagg import Stage, ring
from fedgrec.secagg.errors import (
    BadCiphertext,
    BadInput,
    BadLists,
    MalformedMessage,
    NotASum,
    SecondAnswer,
    TooFewLeft,
    UnknownSender,
    WrongRound,
    WrongStage,
)
from fedgrec.secagg.field import PRIME
from fedgrec.secagg.lightsecagg import MOST_CLIENTS, Code, from_digits
from fedgrec.secagg.messages import Coded, Delivery, Masked, Reveal, Shares, Survivors, parse
from fedgrec.secagg.session import Session
from tests.secagg.rounds import Round, random_vectors, remembers
from tests.secagg.test_lightsecagg import light


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"needed": 3, "private": 3}, BadInput),  # T < U
        ({"needed": 3, "private": 4}, BadInput),
        ({"needed": 4, "neighbours": 2}, BadInput),  # the complete graph
        ({"needed": 6}, TooFewLeft),  # U ≤ n
        ({"needed": 2}, TooFewLeft),  # U > n/2: two halves must not both open a sum
    ],
)
def test_sessions_that_cannot_be_or_are_not_safe(change, error) -> None:
    with pytest.raises(error):
        Round(light(5, 3, **change), random_vectors(5, 3)).play()


def test_too_many_clients_for_the_field() -> None:
    with pytest.raises(BadInput):
        Code(range(MOST_CLIENTS + 1), 2, 1, 8)
    with pytest.raises(BadInput):
        Code(range(6), 5, 1, 8, prime=11)


def survivors(run: Round, alive, dropped=()) -> bytes:
    return Survivors(run.session.round_id, tuple(sorted(alive)), tuple(sorted(dropped))).pack()


@pytest.mark.parametrize(
    ("alive", "dropped", "error"),
    [
        (range(5), [4], BadLists),  # both
        ([1, 2, 3, 4], [], BadLists),  # it is missing itself
        (range(4), [], BadLists),  # somebody is missing
        (range(6), [], BadLists),  # somebody unknown
        ([0, 1], [2, 3, 4], TooFewLeft),
    ],
)
def test_a_client_believes_no_lists_that_cannot_be_and_forgets(alive, dropped, error) -> None:
    run = Round(light(5, 3, 3), random_vectors(5, 3)).until(Stage.UNMASK)
    with pytest.raises(error):
        run.clients[0].receive(survivors(run, alive, dropped))
    assert not remembers(run, 0)
    with pytest.raises(WrongStage):
        run.clients[0].receive(survivors(run, range(5)))


def test_a_client_answers_once() -> None:
    run = Round(light(5, 3, 3), random_vectors(5, 3)).until(Stage.UNMASK)
    answer = parse(run.clients[0].receive(survivors(run, range(5))))
    assert isinstance(answer, Coded)
    assert len(answer.vector) == 4 * -(-14 // 2)  # three words and a trailer of four are 14 digits: two pieces of 7
    assert not remembers(run, 0)
    with pytest.raises(WrongStage):
        run.clients[0].receive(survivors(run, range(4), [4]))


def test_pieces_are_for_one_client_of_one_round_and_model() -> None:
    other_model = Round(light(4, 3, 3), random_vectors(4, 3), contexts={2: b"another model"}).until(Stage.MASKED)
    with pytest.raises(BadCiphertext):
        other_model.step()
    run = Round(light(4, 3, 3), random_vectors(4, 3)).until(Stage.MASKED)
    delivery = parse(run.inbox[1])
    assert isinstance(delivery, Delivery)
    texts = dict(delivery.ciphertexts)
    with pytest.raises(UnknownSender):
        run.clients[0].receive(Delivery(run.session.round_id, texts | {9: texts[2]}).pack())
    with pytest.raises(BadCiphertext):  # what client 2 sent to client 1 is not for client 3
        run.clients[3].receive(Delivery(run.session.round_id, {2: texts[2]}).pack())
    with pytest.raises(WrongRound):
        run.clients[1].receive(Delivery(bytes(16), texts).pack())
    with pytest.raises(TooFewLeft):
        run.clients[1].receive(Delivery(run.session.round_id, {2: texts[2]}).pack())


@pytest.mark.parametrize("plain", [b"", bytes(27), bytes(29), PRIME.to_bytes(4, "little") * 7])
def test_a_neighbour_that_sends_no_piece_is_named(plain) -> None:
    run = Round(light(4, 3, 3), random_vectors(4, 3)).until(Stage.SHARES)
    bad = {}
    for me, message in run.inbox.items():
        answer = parse(run.give(me, message))
        assert isinstance(answer, Shares)
        if me == 2:
            bad = {1: run.clients[2]._seal(1, plain)}
        run.server.receive(me, Shares(run.session.round_id, answer.ciphertexts | (bad if me == 2 else {})).pack())
    with pytest.raises(BadCiphertext, match="client 2 sent client 1"):
        run.clients[1].receive(run.server.close()[1])


@pytest.mark.parametrize(("stage", "kind"), [(Stage.MASKED, Masked), (Stage.UNMASK, Coded)])
def test_the_server_takes_a_proper_vector_once(stage, kind) -> None:
    run = Round(light(4, 3, 3), random_vectors(4, 3)).until(stage)
    answers = {me: run.give(me, message) for me, message in run.inbox.items()}
    size = len(parse(answers[0]).vector)
    for wrong in (b"", bytes(size - 4), bytes(size + 4), b"\xff" * size):
        with pytest.raises(MalformedMessage, match="client 0"):
            run.server.receive(0, kind(run.session.round_id, wrong).pack())
    with pytest.raises(WrongStage):
        run.server.receive(0, Reveal(run.session.round_id, {}, {}).pack())
    run.server.receive(0, answers[0])
    with pytest.raises(SecondAnswer):
        run.server.receive(0, answers[0])
    with pytest.raises(UnknownSender):
        run.server.receive(9, answers[0])
    for me in (1, 2, 3):
        run.server.receive(me, answers[me])
    run.inbox = dict(run.server.close())
    run.play()
    assert np.array_equal(run.server.result()[0], run.plain_sum(range(4)))


def test_a_false_answer_makes_noise_and_noise_is_no_sum() -> None:
    for at in range(7):  # whichever of its elements is false
        run = Round(light(4, 3, 3), random_vectors(4, 3)).until(Stage.UNMASK)
        for me, message in run.inbox.items():
            answer = np.frombuffer(parse(run.give(me, message)).vector, np.uint32).copy()
            if me == 1:
                answer[at] = (int(answer[at]) + 2**31) % PRIME
            run.server.receive(me, Coded(run.session.round_id, answer.tobytes()).pack())
        with pytest.raises(NotASum):
            run.server.close()
        with pytest.raises(WrongStage):
            run.server.result()


def test_clients_that_answer_for_other_survivors_make_noise() -> None:
    run = Round(light(4, 3, 3), random_vectors(4, 3)).until(Stage.MASKED)
    run.step(silent=[3])
    run.inbox[0] = survivors(run, range(4))  # the server lies to one of three
    with pytest.raises(NotASum):
        run.step()


@pytest.mark.parametrize(("U", "told_of_all"), [(3, [0]), (3, [0, 2]), (4, [0]), (4, [0, 2])])
def test_a_lying_server_with_friends_opens_two_sums_unless_2u_exceeds_n_plus_t(U, told_of_all) -> None:
    """n = 5, T = 2: clients 3 and 4 tell the server all that they hold; 0 to 2 answer once. Client 0 is the victim."""
    run = Round(light(5, 3, U, 2), random_vectors(5, 3)).until(Stage.UNMASK)
    lists = {me: ([0, 1, 2, 3, 4], []) if me in told_of_all else ([1, 2, 3, 4], [0]) for me in range(3)}
    answers = {me: parse(run.give(me, survivors(run, *told))).vector for me, told in lists.items()}
    code = Code(range(5), U, 2, 14)

    def masks(alive) -> np.ndarray:
        told = {me: np.frombuffer(answers[me], "<u4") for me, (who, _) in lists.items() if who == alive}
        friends = {me: sum(run.held[me][owner].astype(np.uint64) for owner in alive) % PRIME for me in (3, 4)}
        return code.decode(told | friends).astype(np.int64)

    try:
        mask = masks([0, 1, 2, 3, 4]) - masks([1, 2, 3, 4])
    except TooFewLeft:
        assert 2 * U > 5 + 2
    else:
        assert 2 * U <= 5 + 2
        masked = np.frombuffer(parse(run.sent[0][2]).vector, "<u4")
        opened = from_digits(((masked - mask) % PRIME).astype(np.uint64), run.session.parts)
        assert np.array_equal(ring.decode(opened, run.session.rings, 1)[0], run.vectors[0])


@pytest.mark.parametrize(("threshold", "privacy"), [(4, 1), (5, 3), (6, 5)])
def test_lightsecagg_needs_more_than_half_of_all_and_the_colluding(threshold: int, privacy: int) -> None:
    """With 2U ≤ n + T, a lying server can get two lists of survivors confirmed."""
    session = Session(bytes(16), ((3, 32),), 7, 6, threshold, mechanism="lightsecagg", privacy=privacy, least=7)
    with pytest.raises(BadInput, match="2U > n \\+ T"):
        Round(session, random_vectors(7, 3)).play({})
