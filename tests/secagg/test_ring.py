"""Rings as small as sums allow: which bits of a word travel, and which rings a session may not have."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.secagg import Session, Stage, ring
from fedgrec.secagg.errors import BadInput, MalformedMessage, NotASum
from fedgrec.secagg.messages import Masked, parse
from tests.secagg.rounds import Round, random_vectors, session, vectors_for
from tests.secagg.test_sum import some_rings

WIDTHS = range(8, 65, 2)
MIXED = ((5, 8), (3, 12), (4, 20), (1, 32), (2, 46), (6, 64))


# ----------------------------------------------------------------------------------------------- packing


def pack_slowly(words: list[np.ndarray], rings: ring.Rings) -> bytes:
    """The slow twin: each plane is one large number, the first word lowest."""
    packed = b""
    for part, (count, bits) in zip(words, rings, strict=True):
        low = 0
        for width in (2**n for n in reversed(range(7)) if bits & 2**n):
            plane = sum((int(word) >> low) % 2**width << at * width for at, word in enumerate(part))
            packed += plane.to_bytes(math.ceil(count * width / 8), "little")
            low += width
    return packed


@st.composite
def words(draw) -> tuple[ring.Rings, list[np.ndarray]]:
    """Parts of any widths, with any bits in their containers, also above the ring."""
    rings, rng = draw(some_rings()), np.random.default_rng(draw(st.integers(0, 2**32)))
    full = [np.frombuffer(rng.bytes(n * ring.container(b).itemsize), ring.container(b)).copy() for n, b in rings]
    for part in full:
        part[:2] = np.array([2**64 - 1, 0], np.uint64).astype(part.dtype)[: len(part)]
    return rings, full


@settings(max_examples=120, deadline=None)
@given(words())
def test_packing_is_its_slow_twin_and_unpacking_undoes_it(drawn) -> None:
    rings, full = drawn
    packed = ring.pack(full, rings).tobytes()
    assert packed == pack_slowly(full, rings)
    assert len(packed) == ring.packed_bytes(rings)
    back = ring.unpack(packed, rings)
    assert [part.dtype for part in back] == [part.dtype for part in full]
    for part, was, (_, bits) in zip(back, full, rings, strict=True):
        assert part.tolist() == [word % 2**bits for word in was.tolist()]


def test_packed_by_hand() -> None:
    """0x123, 0x456, …: the low bytes, then the high digits, two to a byte; the last byte is filled up with zeros."""
    twelve = np.array([0xF123, 0x0456, 0x0789, 0x0ABC, 0x0DEF], "<u2")
    assert ring.pack([twelve], ((5, 12),)).tobytes().hex() == "235689bcef" + "41a70d"
    ten = np.array([0b01_00000001, 0b10_00000010, 0b11_00000011, 0b00_00000100], "<u2")
    assert ring.pack([ten], ((4, 10),)).tobytes() == bytes([1, 2, 3, 4, 0b00_11_10_01])


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_word_takes_its_bits_and_no_container_is_too_small(bits) -> None:
    assert ring.packed_bytes(((1000, bits),)) * 8 == 1000 * bits
    assert 0 <= ring.packed_bytes(((1001, bits),)) - 1001 * bits / 8 < 2  # two planes may each end within a byte
    container = 8 * ring.container(bits).itemsize
    assert bits <= container < max(2 * bits, 9)


@pytest.mark.parametrize("bits", WIDTHS)
def test_integers_come_back_if_they_fit(bits) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    rings, numbers = ((4, bits),), np.array([low, -1, 0, high])
    words = ring.unpack(ring.pack(ring.encode(numbers, 7, rings), (*rings, ring.TRAILER)), (*rings, ring.TRAILER))
    back, users = ring.decode(words, rings, 7)
    assert (back.tolist(), users) == (numbers.tolist(), 7)
    assert back.dtype == (np.int32 if bits <= 32 else np.int64)
    for outside in (np.array([0, 0, 0, high + 1], np.uint64), [0, 0, 0, low - 1]):
        if bits < 64 or isinstance(outside, np.ndarray):
            with pytest.raises(BadInput, match=f"do not fit a ring of {bits} bits"):
                ring.encode(np.asarray(outside), 1, rings)


# ------------------------------------------------------------------------------------------------- a sum


@pytest.mark.parametrize("bits", [8, 12, 20, 32, 46])
def test_the_largest_sums_fit_and_in_a_ring_two_bits_smaller_they_are_others(bits) -> None:
    """Five clients at both ends of the ring's range; in the smaller ring each client alone still fits."""
    most = (2 ** (bits - 1) - 1) // 5
    vectors = dict.fromkeys(range(5), np.array([most, -most, 1, -1]))

    def summed(bits: int) -> list[int]:
        run = Round(session(5, 4, 3, bits=bits), vectors)
        values: list[int] = run.play().server.result()[0].tolist()
        return values

    assert summed(bits) == [5 * most, -5 * most, 5, -5]
    if bits > 8:
        assert summed(bits - 2) != [5 * most, -5 * most, 5, -5]


def test_parts_do_not_spill_into_each_other() -> None:
    """Wrapping sums in every part, with the ends of rings, and with lost clients."""
    run = Round(session(6, 0, 4, rings=MIXED), vectors_for(6, MIXED))
    run.play({0: Stage.SHARES, 3: Stage.UNMASK})
    values, users = run.server.result()
    assert np.array_equal(values, run.plain_sum(run.server.included))
    assert users == len(run.server.included) == 5


@pytest.mark.parametrize("bits", [8, 14, 64])
def test_one_user_too_many_is_refused(bits) -> None:
    here = session(3, 2, 2, bits=bits, users=300)
    users = {0: 100, 1: 100, 2: 100}
    assert Round(here, random_vectors(3, 2, bits), users=users).play().server.result()[1] == 300
    with pytest.raises(BadInput, match="holds 301 users"):
        Round(here, random_vectors(3, 2, bits), users=users | {2: 101}).play()


@pytest.mark.parametrize("place", [1, 2, 3])
def test_the_trailer_of_narrow_words_is_as_long_as_that_of_wide_ones(place) -> None:
    words = ring.encode(np.zeros(3, int), 1, ((3, 8),))
    assert [part.dtype.itemsize for part in words] == [1, 4]
    words[-1][place] = 1
    with pytest.raises(NotASum):
        ring.decode(words, ((3, 8),), 1)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_vector_of_another_length_is_refused(change) -> None:
    run = Round(session(3, 0, 2, rings=MIXED), vectors_for(3, MIXED)).until(Stage.MASKED)
    proper = parse(run.give(0, run.inbox[0]))
    assert isinstance(proper, Masked)
    assert len(proper.vector) == 5 + (3 + 2) + (8 + 2) + 4 + (8 + 2 + 1 + 1) + 48 + 16
    other = bytes(proper.vector)[:-1] if change < 0 else bytes(proper.vector) + b"x"
    with pytest.raises(MalformedMessage, match="sent a vector of"):
        run.server.receive(0, Masked(run.session.round_id, other).pack())
    run.server.receive(0, proper.pack())


# ------------------------------------------------------------------------------------------- the session


def test_a_session_travels_as_json() -> None:
    here = session(3, 0, 2, rings=MIXED)
    again = Session.from_json(json.loads(json.dumps(here.to_json())))
    assert again == here
    assert again.digest == here.digest
    assert here.values == 21


ODD: list[object] = [
    [],
    {},
    None,
    32,
    "((3, 32),)",
    [[]],
    [3, 32],
    [[3]],
    [[3, 32, 1]],
    [["3", 32]],
    [[3, 32.0]],
    [[True, 32]],
    [{"3": 32}],
    [[0, 32]],
    [[-3, 32], [9, 32]],
    [[3, 6]],
    [[3, 31]],
    [[3, 33]],
    [[3, 66]],
    [[3, -32]],
    [[3, 0]],
    [[2**48, 32]],
    [[2**47, 32], [2**47, 32]],
    [[2**200, 8]],
    [[1, 8]] * 1025,
]


@pytest.mark.parametrize("rings", ODD, ids=lambda rings: repr(rings)[:30])
def test_rings_that_are_none_are_refused(rings) -> None:
    right = session(3, 3, 2).to_json()
    assert Session.from_json(right)
    with pytest.raises(BadInput):
        Session.from_json(right | {"rings": rings})


def test_a_session_of_an_earlier_version_is_refused_in_a_sentence() -> None:
    values = session(3, 3, 2).to_json()
    del values["rings"]
    with pytest.raises(BadInput, match="version 5"):
        Session.from_json(values | {"values": 3, "bits": 32})
    earlier = bytearray(Masked(bytes(16), b"").pack())
    earlier[4] = 1
    with pytest.raises(MalformedMessage, match="version 5"):
        parse(bytes(earlier))
