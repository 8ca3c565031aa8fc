"""A party accepts any bytes or refuses them with SecAggError; nothing else happens."""

import copy
import struct
import tracemalloc

import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.secagg import SecAggError, Server, Stage
from fedgrec.secagg.errors import (
    BadCiphertext,
    BadLists,
    BadSignature,
    MalformedMessage,
    UnknownSender,
    WrongRound,
    WrongStage,
)
from fedgrec.secagg.messages import (
    HEADER,
    KINDS,
    MAGIC,
    VERSION,
    Confirm,
    Confirmations,
    Delivery,
    Keys,
    Masked,
    Message,
    Neighbourhood,
    Reader,
    Reveal,
    Shares,
    Survivors,
    parse,
)
from fedgrec.secagg.shamir import PRIME
from tests.secagg.mangle import ROUND_ID, knock, mangled, target
from tests.secagg.rounds import Round, random_vectors, session


def test_mangled_messages_are_taken_or_refused() -> None:
    here = target()
    outcomes = knock(here, mangled(here.valid, 4_000))
    got_far = {BadSignature, BadCiphertext, BadLists, UnknownSender, WrongRound, WrongStage}
    assert {error.__name__ for error in got_far} | {"taken"} <= outcomes.keys()


def test_every_door_takes_some_valid_message() -> None:
    """Otherwise the tests would only see closed doors."""
    here = target()
    for name, door in here.doors.items():
        if not (name.startswith("client") and name.endswith("keys")):  # these wait for no message
            taken = 0
            for data in here.valid:
                try:
                    door(data)
                    taken += 1
                except SecAggError:
                    pass
            assert taken, name


def state(server: Server) -> list[object]:
    """Everything that a server remembers and may change, as values."""
    known = {name: value for name, value in vars(server).items() if name != "_graph"}
    return [(name, [part.tobytes() for part in v] if name == "_sum" else repr(v)) for name, v in sorted(known.items())]


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK])
def test_a_refused_message_leaves_no_trace_in_the_server(stage) -> None:
    run = Round(session(5, 6, 3, round_id=ROUND_ID), random_vectors(5, 6)).until(stage)
    proper = [run.give(me, message) for me, message in run.inbox.items()]
    server, before, refused = copy.deepcopy(run.server), state(run.server), 0
    for data in mangled(proper, 600):
        try:
            server.receive(0, data)
            server = copy.deepcopy(run.server)  # accepted: a vector with other bits is still a vector
        except SecAggError:
            refused += 1
            assert state(server) == before
    assert refused > 300


def test_mutants_let_other_errors_through(monkeypatch) -> None:
    here = target()
    messages = list(mangled(here.valid, 500))
    knock(here, messages)

    def take_what_there_is(self, size):
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    with monkeypatch.context() as mutant:  # Mutation: lengths are not checked.
        mutant.setattr(Reader, "count", lambda self, entry_bytes: min(self.number(), 1000))
        mutant.setattr(Reader, "take", take_what_there_is)
        with pytest.raises(struct.error):
            knock(here, messages)
    with monkeypatch.context() as mutant:  # Mutation: a forged share is not expected.
        mutant.setattr("fedgrec.secagg.client.InvalidTag", ZeroDivisionError)
        with pytest.raises(InvalidTag):
            knock(here, messages)


# --------------------------------------------------------------------------------------- the binary form

ids = st.integers(0, 2**32 - 1)
id_lists = st.sets(ids, max_size=5).map(lambda some: tuple(sorted(some)))
round_ids = st.binary(min_size=16, max_size=16)
key_bytes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
texts = st.dictionaries(ids, st.binary(max_size=99), max_size=4)
shares = st.dictionaries(ids, st.integers(0, PRIME - 1), max_size=4)


@st.composite
def neighbourhoods(draw) -> Neighbourhood:
    round_id = draw(round_ids)
    keys = {draw(ids): (draw(key_bytes), draw(key_bytes), draw(key_bytes) * 2) for _ in range(draw(st.integers(0, 3)))}
    return Neighbourhood(
        round_id, draw(id_lists), tuple(Keys(round_id, sender, *fields) for sender, fields in sorted(keys.items()))
    )


MESSAGES: dict[type[Message], st.SearchStrategy] = {
    Keys: st.builds(Keys, round_ids, ids, key_bytes, key_bytes, st.binary(min_size=64, max_size=64)),
    Neighbourhood: neighbourhoods(),
    Shares: st.builds(Shares, round_ids, texts),
    Delivery: st.builds(Delivery, round_ids, texts),
    Masked: st.builds(Masked, round_ids, st.binary(max_size=99)),
    Survivors: st.builds(Survivors, round_ids, id_lists, id_lists),
    Reveal: st.builds(Reveal, round_ids, shares, shares),
    Confirm: st.builds(Confirm, round_ids, signatures),
    Confirmations: st.builds(Confirmations, round_ids, st.dictionaries(ids, signatures, max_size=4)),
}


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_is_written_is_read(kind) -> None:
    @settings(max_examples=50)
    @given(MESSAGES[kind])
    def law(message) -> None:
        packed = message.pack()
        assert parse(packed) == message
        assert type(parse(packed)) is kind
        if kind is not Masked:  # its vector is all of the rest of the message
            for wrong in (packed + b"\0", packed[:-1]):
                with pytest.raises(MalformedMessage):
                    parse(wrong)

    law()


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        (Neighbourhood, b""),
        (Neighbourhood, bytes(4)),  # no clients; then keys
        (Shares, b""),
        (Delivery, b"\0\0\0\1" + bytes(4)),  # one ciphertext, for client 0; then its length
        (Survivors, b""),
        (Survivors, bytes(4)),
        (Reveal, b""),
        (Reveal, bytes(4)),
    ],
)
def test_a_length_of_four_billion_costs_nothing(kind, before) -> None:
    data = HEADER.pack(MAGIC, VERSION, kind.kind, ROUND_ID) + before + b"\xff" * 4 + bytes(64)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match=str(2**32 - 1)):
            parse(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
