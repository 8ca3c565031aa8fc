"""Shamir's law: any t shares rebuild the secret, and t − 1 of them look the same for every secret."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.secagg import Stage
from fedgrec.secagg.errors import BadInput, BadShare, MalformedMessage, NotASum, TooFewLeft
from fedgrec.secagg.messages import HEADER, Reveal, parse
from fedgrec.secagg.shamir import PRIME, SHARE_BYTES, combine, share
from tests.secagg.rounds import Round, random_vectors, session


@given(
    secret=st.integers(0, PRIME - 1),
    holders=st.lists(st.integers(1, 2**32), min_size=1, max_size=12, unique=True),
    data=st.data(),
)
def test_any_threshold_of_shares_rebuilds_the_secret(secret, holders, data) -> None:
    t = data.draw(st.integers(1, len(holders)))
    shares = share(secret, t, holders)
    some = data.draw(st.permutations(holders))[: data.draw(st.integers(t, len(holders)))]
    assert combine({holder: shares[holder] for holder in some}, t) == secret
    with pytest.raises(TooFewLeft):
        combine({holder: shares[holder] for holder in some[: t - 1]}, t)


def says_nothing(p: int, t: int, seen: int, coefficients: Iterable[int], share: Callable = share) -> bool:
    """Whether, over all polynomials, `seen` holders see every tuple of shares equally often for every secret."""
    for watching in itertools.combinations(range(1, p), seen):
        for secret in range(p):
            views = Counter()
            for polynomial in itertools.product(coefficients, repeat=t - 1):
                drawn = iter(polynomial)
                shares = share(secret, t, range(1, p), p, lambda _, drawn=drawn: next(drawn))
                views[tuple(shares[holder] for holder in watching)] += 1
            if len(views) != p**seen or len(set(views.values())) > 1:
                return False
    return True


@pytest.mark.parametrize(("p", "t"), [(5, 1), (5, 2), (5, 3), (5, 4), (7, 2), (7, 3)])
def test_fewer_shares_than_the_threshold_are_uniform(p, t) -> None:
    assert says_nothing(p, t, t - 1, range(p))


def test_mutants_say_something() -> None:
    assert not says_nothing(5, 3, 3, range(5))  # the law itself: t shares say everything
    assert not says_nothing(5, 3, 2, range(1, 5))  # Mutation: coefficients that are never zero.
    assert not says_nothing(5, 3, 2, range(4))  # Mutation: one value too few.

    def one_degree_less(secret, t, holders, p, draw):
        return share(secret, t - 1, holders, p, draw)

    def shifted(secret, t, holders, p, draw):  # Mutation: holders from 0 on, as clients are numbered.
        shares = share(secret, t, holders, p, draw)
        return {holder: secret if holder == 1 else shares[holder - 1] for holder in shares}

    assert not says_nothing(5, 3, 2, range(5), one_degree_less)
    assert not says_nothing(5, 3, 2, range(5), shifted)


def test_coefficients_come_from_the_whole_field_and_from_the_operating_system() -> None:
    asked = []
    share(1, 4, range(1, 6), draw=lambda bound: asked.append(bound) or 0)
    assert asked == [PRIME] * 3
    assert share.__defaults__[-1].__module__ == "secrets"


def test_the_field_is_the_smallest_prime_above_all_secrets() -> None:
    def is_prime(n: int) -> bool:  # Miller and Rabin; only a number made for it fools the first 40 bases
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        return all(
            (x := pow(base, odd, n)) in (1, n - 1) or any((x := x * x % n) == n - 1 for _ in range(twos - 1))
            for base in range(2, 42)
        )

    assert [n for n in range(2**256, PRIME + 1) if is_prime(n)] == [PRIME]
    assert PRIME < 2 ** (8 * SHARE_BYTES)


@pytest.mark.parametrize("shares", [{0: 1, 2: 3}, {-1: 1, 2: 3}, {7: 1, 2: 3}, {1: 7, 2: 3}, {1: -1, 2: 3}])
def test_shares_outside_the_field_are_refused(shares) -> None:
    with pytest.raises(BadShare):
        combine(shares, 2, prime=7)


@pytest.mark.parametrize(
    ("secret", "threshold", "holders"),
    [
        (7, 2, [1, 2]),
        (-1, 2, [1, 2]),
        (3, 2, [0, 1]),  # its share would be the secret
        (3, 2, [7, 1]),  # so would this
        (3, 2, [1, 1]),
        (3, 0, [1, 2]),
        (3, 3, [1, 2]),
    ],
)
def test_what_cannot_be_shared_is_refused(secret, threshold, holders) -> None:
    with pytest.raises(BadInput):
        share(secret, threshold, holders, prime=7)


# --------------------------------------------------------------------------- shares that reach the server


def to_be_opened() -> Round:
    """Five clients, of which client 4 was lost, about to open the sum."""
    run = Round(session(5, 4, threshold=3), random_vectors(5, 4)).until(Stage.MASKED)
    run.step(silent=[4])
    run.step()
    return run


def without(shares: dict[int, int], owner: int) -> dict[int, int]:
    return {other: value for other, value in shares.items() if other != owner}


@pytest.mark.parametrize(
    "tamper",
    [
        lambda r: replace(r, seeds=without(r.seeds, 2)),
        lambda r: replace(r, mask_keys={}),
        lambda r: replace(r, seeds=r.seeds | {4: 1}),  # both secrets of client 4
        lambda r: replace(r, mask_keys=r.mask_keys | {2: 1}),  # both secrets of client 2
        lambda r: replace(r, seeds=r.seeds | {77: 1}),
        lambda r: replace(r, seeds=without(r.seeds, 2) | {77: r.seeds[2]}),
        lambda r: replace(r, seeds=r.mask_keys, mask_keys=r.seeds),
    ],
)
def test_the_server_takes_exactly_the_shares_that_it_asked_for(tamper) -> None:
    run = to_be_opened()
    answer = run.give(0, run.inbox[0])
    with pytest.raises(BadShare):
        run.server.receive(0, tamper(parse(answer)).pack())
    run.server.receive(0, answer)  # nothing has changed: the server still accepts the proper answer
    del run.inbox[0]
    run.step()
    assert (run.server.result()[0] == run.plain_sum(range(4))).all()


def test_a_double_or_oversized_share_is_no_message() -> None:
    run = to_be_opened()
    answer = run.give(0, run.inbox[0])
    reveal, entry, first = parse(answer), 4 + SHARE_BYTES, HEADER.size + 4
    assert isinstance(reveal, Reveal)
    double = answer[: first + entry] + answer[first : first + entry] + answer[first + 2 * entry :]
    too_large = answer[: first + 4] + PRIME.to_bytes(SHARE_BYTES, "big") + answer[first + entry :]
    for wrong in (double, too_large):
        with pytest.raises(MalformedMessage):
            run.server.receive(0, wrong)
    largest = replace(reveal, seeds=reveal.seeds | {0: PRIME - 1})
    assert parse(largest.pack()) == largest


def opened_with(tamper: Callable[[Reveal], Reveal]) -> Round:
    """The round with another answer of client 0; all else is proper."""
    run = to_be_opened()
    for me, message in run.inbox.items():
        answer = run.give(me, message)
        run.server.receive(me, tamper(parse(answer)).pack() if me == 0 else answer)
    return run


def test_a_lost_mask_key_that_is_not_its_owners_is_refused() -> None:
    """A share that was moved from another owner, or changed, rebuilds a key that does not fit the public one."""
    for wrong in (lambda r: r.seeds[1], lambda r: (r.mask_keys[4] + 1) % PRIME):
        run = opened_with(lambda r, wrong=wrong: replace(r, mask_keys={4: wrong(r)}))
        with pytest.raises(BadShare):
            run.server.close()
        assert run.server.done
        assert run.server.included == []


def test_a_seed_that_is_not_its_owners_gives_no_sum() -> None:
    """The server cannot know which seed is right, but the trailer shows that the mask did not cancel."""
    run = opened_with(lambda r: replace(r, seeds=r.seeds | {1: r.seeds[2], 2: r.seeds[1]}))
    with pytest.raises(NotASum):
        run.server.close()


def test_a_number_that_is_no_secret_is_refused(monkeypatch) -> None:
    """Rebuilt numbers from 2²⁵⁶ to the prime are elements of the field, but no client's secret."""
    run = opened_with(lambda r: r)
    monkeypatch.setattr("fedgrec.secagg.server.shamir.combine", lambda shares, threshold: 2**256)
    with pytest.raises(BadShare):
        run.server.close()
