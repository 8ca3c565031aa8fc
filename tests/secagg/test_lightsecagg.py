"""LightSecAgg: exact sums from any U answers, and nothing from T pieces."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.secagg import LightClient, LightServer, Session, Stage, field, run_round
from fedgrec.secagg.errors import (
    SecAggError,
    TooFewLeft,
)
from fedgrec.secagg.field import PRIME
from fedgrec.secagg.lightsecagg import LARGEST_DIGIT, MOST_CLIENTS, Code, from_digits, to_digits
from fedgrec.secagg.messages import Masked
from tests.secagg.rounds import Round, in_ring, random_vectors, session, vectors_for
from tests.secagg.test_sum import some_rings

STAGES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK]


def light(n: int, values: int, needed: int, private: int = 1, **more) -> Session:
    return session(n, values, needed, mechanism="lightsecagg", privacy=private, **more)


# --------------------------------------------------------------------------------------------------- the law


def sum_law_holds(run: Round, lost: dict[int, Stage]) -> bool:
    """The sum of all vectors that arrived, if U clients are left at the end; otherwise TooFewLeft and no sum."""
    n, U = len(run.vectors), run.session.threshold
    until = {me: STAGES.index(lost[me]) if me in lost else 4 for me in range(n)}
    included = [me for me in range(n) if until[me] > 2]
    enough = sum(stage == 4 for stage in until.values()) >= U
    try:
        run.play(lost)
        values, users = run.server.result()
    except SecAggError as error:
        return type(error) is TooFewLeft and not enough and run.server.included == []
    right = np.array_equal(values, run.plain_sum(included)) and users == len(included)
    return enough and right and run.server.included == included


def test_every_way_to_lose_three_clients() -> None:
    for fate in itertools.product([None, *STAGES], repeat=3):
        lost = {me: stage for me, stage in enumerate(fate) if stage}
        assert sum_law_holds(Round(light(3, 2, needed=2), random_vectors(3, 2)), lost)


@settings(max_examples=60)
@given(data=st.data())
def test_the_sum_is_the_plain_sum_or_there_is_none(data) -> None:
    n = data.draw(st.integers(2, 9))
    U = data.draw(st.integers(max(n // 2 + 1, 2), n))
    here = light(
        n,
        0,
        U,
        data.draw(st.integers(1, U - 1)),
        rings=data.draw(some_rings()),
    )
    lost = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from(STAGES), max_size=n - U + 1))
    vectors = vectors_for(n, here.rings, data.draw(st.integers(0, 2**32)))
    assert sum_law_holds(Round(here, vectors, threads=data.draw(st.integers(1, 3))), lost)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("n", "U", "T"), [(5, 3, 1), (5, 3, 2), (5, 5, 4), (6, 4, 2)])
def test_exactly_u_must_be_left(n, U, T, stage) -> None:
    vectors = random_vectors(n, 3)
    assert sum_law_holds(Round(light(n, 3, U, T), vectors), dict.fromkeys(range(n - U), stage))
    with pytest.raises(TooFewLeft):
        Round(light(n, 3, U, T), vectors).play(dict.fromkeys(range(n - U + 1), stage))


@pytest.mark.parametrize("bits", [8, 14, 32, 64])
def test_a_large_vector_and_clients_with_any_ids(bits) -> None:
    from fedgrec.secagg import Population

    ids, values = [0, 7, 1_000, 2**32 - 1], 30_001
    vectors = dict(zip(ids, random_vectors(4, values, bits).values(), strict=True))
    rings = ((values, bits),)
    outcome = run_round(light(4, values, 3, 2, bits=bits), vectors.__getitem__, Population(ids), {7: Stage.UNMASK})
    assert np.array_equal(outcome.values, in_ring(sum(v.astype(object) for v in vectors.values()), rings))
    assert (outcome.users, outcome.included) == (4, ids)


@pytest.mark.parametrize("bits", [8, 10, 16, 18, 32, 64])
@pytest.mark.parametrize("word", [-1, 0, "least", "most"])
def test_extreme_words(bits, word) -> None:
    word = {"least": -(2 ** (bits - 1)), "most": 2 ** (bits - 1) - 1}.get(word, word)
    vectors = {me: np.full(5, word) for me in range(5)}
    assert sum_law_holds(Round(light(5, 5, 3, 2, bits=bits), vectors), {})


@pytest.mark.keep(1)
@pytest.mark.parametrize("bits", [64, 32])
def test_the_digits_of_as_many_clients_as_are_allowed_stay_below_the_prime(bits) -> None:
    """All clients send the same largest vector under the same mask; only two of them need to answer."""
    here = light(MOST_CLIENTS, 2, 2, users=MOST_CLIENTS, bits=bits)
    server = LightServer(here, {})
    code = server._code = Code(range(MOST_CLIENTS), 2, 1, len(server._digits))
    rng = np.random.default_rng(0)
    pieces = rng.integers(0, PRIME, (2, code.size), np.uint32)
    digits = np.zeros(len(server._digits), np.uint64)
    digits[: 2 * bits // 16] = LARGEST_DIGIT
    digits[2 * bits // 16] = 1  # its user
    masked = Masked(here.round_id, ((digits + pieces[0]) % PRIME).astype("<u4").tobytes())
    for client in range(MOST_CLIENTS):
        server._take_masked(client, masked)
    total = field.multiply(pieces, np.array(MOST_CLIENTS)).astype(np.uint32)  # of all masks
    coded = code.encode(total)
    server._coded = {client: coded[client] for client in (3, MOST_CLIENTS - 1)}
    server._close_unmask()
    values, users = server.result()
    assert values.tolist() == [-MOST_CLIENTS] * 2
    assert users == MOST_CLIENTS


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), bits=st.sampled_from([8, 16, 32, 64]))
def test_sums_of_digits_are_digits_of_sums(words, bits) -> None:
    words = [word % 2**bits for word in words]
    parts = [[np.array([word, 1], f"<u{bits // 8}"), np.array([word % 256], np.uint8)] for word in words]
    found = from_digits(sum(to_digits(part).astype(np.uint64) for part in parts), ((2, bits), (1, 8)))
    assert [part.tolist() for part in found] == [[sum(words) % 2**bits, len(words)], [sum(words) % 256]]


# ------------------------------------------------------------------------------------------------ the code


@pytest.mark.parametrize("T", [0, 1, 2, 3])
@pytest.mark.parametrize("length", [1, 8, 11])
def test_every_u_coded_pieces_give_the_mask_back(T, length) -> None:
    code = Code([2, 3, 5, 7, 11, 13], 4, T, length)
    pieces = np.random.default_rng(length).integers(0, PRIME, (4, code.size), np.uint32)
    coded = code.encode(pieces)
    for chosen in itertools.combinations(coded, 4):
        assert np.array_equal(code.decode({c: coded[c] for c in chosen}), pieces.ravel()[:length])
    with pytest.raises(TooFewLeft):
        code.decode({c: coded[c] for c in (2, 3, 5)})


def say_nothing(encode, masks: int, randoms: int, together: int, prime: int) -> bool:
    """Exhaustively: whatever the mask is, do `together` coded pieces take all their values equally often?

    One column for each choice of the mask pieces and the random pieces, all of which are equally likely.
    """
    everything = np.array(list(itertools.product(range(prime), repeat=masks + randoms)), np.uint32).T
    coded = encode(everything)
    mask = np.ravel_multi_index(everything[:masks], (prime,) * masks)
    for seen in itertools.combinations(coded, together):
        view = np.ravel_multi_index([coded[c] for c in seen], (prime,) * together)
        counts = np.bincount(mask * prime**together + view, minlength=prime ** (masks + together))
        if (counts != counts[0]).any():
            return False
    return True


@pytest.mark.parametrize(("n", "U", "T"), [(4, 2, 1), (4, 3, 1), (4, 3, 2), (5, 4, 2), (4, 4, 3)])
def test_any_t_coded_pieces_say_nothing_and_one_more_does(n, U, T) -> None:
    prime = 11
    encode = Code(range(n), U, T, prime**U * (U - T), prime).encode
    for together in range(1, T + 1):
        assert say_nothing(encode, U - T, T, together, prime)
    assert not say_nothing(encode, U - T, T, T + 1, prime)

    def without_randomness(pieces):
        return encode(np.concatenate([pieces[: U - T], np.zeros_like(pieces[U - T :])]))

    assert not say_nothing(without_randomness, U - T, T, T, prime)

    def one_random_piece_for_all(pieces):
        return encode(np.concatenate([pieces[: U - T], np.repeat(pieces[-1:], T, axis=0)]))

    assert say_nothing(one_random_piece_for_all, U - T, T, T, prime) == (T == 1)


def test_clients_draw_their_random_pieces_and_never_the_same() -> None:
    """A client codes its mask and T pieces that are not zero and differ from each other and from other clients'."""
    seen = []

    class Watched(Code):
        def encode(self, pieces):
            seen.extend(pieces)
            return super().encode(pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedgrec.secagg.lightsecagg.Code", Watched)
        Round(light(4, 60, 3, 2), random_vectors(4, 60)).until(Stage.MASKED)
    assert len(seen) == 4 * 3
    assert len({piece.tobytes() for piece in seen}) == len(seen)
    assert len(np.unique(seen)) > 0.99 * np.size(seen)


# -------------------------------------------------------------------------------------------------- mutants


def signed_words_overflow(patch) -> None:
    def multiply(a, b, prime=PRIME):
        return (a.astype(np.int64) * b.astype(np.int64) % prime).astype(np.uint64)

    patch.setattr(field, "multiply", multiply)


def floats_round(patch) -> None:
    def product(matrix, columns, prime=PRIME):
        return (matrix.astype(np.float64) @ columns.astype(np.float64) % prime).astype(np.uint32)

    patch.setattr(field, "product", product)


def sums_overflow(patch) -> None:
    def product(matrix, columns, prime=PRIME):
        return (matrix.astype(np.uint64) @ columns.astype(np.uint64) % prime).astype(np.uint32)

    patch.setattr(field, "product", product)


def limbs_too_wide(patch) -> None:
    patch.setattr(field, "LIMB_BITS", 22)


def words_are_not_cut(patch) -> None:
    """Mutation: field elements of 32 bits, so the field wraps where the ring does not."""
    patch.setattr("fedgrec.secagg.lightsecagg.DIGIT_BITS", 32)
    patch.setattr("fedgrec.secagg.lightsecagg.LARGEST_DIGIT", 2**32 - 1)
    patch.setattr("fedgrec.secagg.lightsecagg.to_digits", lambda words: np.concatenate(words).view("<u4"))


def the_lost_are_in_the_answers(patch) -> None:
    real = LightClient._believe

    def believe(self, message):
        alive, dropped = real(self, message)
        return alive | dropped, dropped

    patch.setattr(LightClient, "_believe", believe)


@pytest.mark.parametrize(
    "mutate",
    [
        signed_words_overflow,
        floats_round,
        sums_overflow,
        limbs_too_wide,
        words_are_not_cut,
        the_lost_are_in_the_answers,
    ],
)
def test_mutants_break_the_law(mutate, monkeypatch) -> None:
    lost = {1: Stage.SHARES, 2: Stage.MASKED, 3: Stage.UNMASK}
    assert sum_law_holds(Round(light(7, 9, 4, 2), random_vectors(7, 9)), lost)
    mutate(monkeypatch)
    assert not sum_law_holds(Round(light(7, 9, 4, 2), random_vectors(7, 9)), lost)
