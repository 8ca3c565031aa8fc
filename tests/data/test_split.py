"""Splits are disjoint, lose nothing and repeat themselves; the k-core is a fixed point."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.data import IdMap, Interactions, Split
from fedgrec.data.split import hold_out_validation, k_core, leave_last_out, ratio
from fedgrec.errors import DataError

pairs = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1)
fractions = st.floats(0, 0.99)


def build(some: set[tuple[int, int]], times: list[float] | None = None) -> Interactions:
    some_list = sorted(some)
    users, items = [u for u, _ in some_list], [i for _, i in some_list]
    return Interactions.from_pairs(
        users, items, times=times, user_ids=IdMap.range(8, "user"), item_ids=IdMap.range(10, "item")
    )


def as_set(data: Interactions) -> set[int]:
    return set(data.keys().tolist())


@given(pairs, fractions, st.integers(0, 5))
def test_ratio_laws(some: set[tuple[int, int]], fraction: float, seed: int) -> None:
    data = build(some)
    kept, held = ratio(data, fraction, seed)
    assert as_set(kept) | as_set(held) == as_set(data)
    assert not as_set(kept) & as_set(held)
    n = data.user_degrees()
    assert (held.user_degrees() == np.minimum(np.rint(fraction * n), np.maximum(n - 1, 0))).all()
    assert as_set(ratio(data, fraction, seed)[1]) == as_set(held)


def test_another_seed_is_another_split() -> None:
    data = build({(u, i) for u in range(8) for i in range(10)})
    assert as_set(ratio(data, 0.5, 0)[0]) != as_set(ratio(data, 0.5, 1)[0])
    with pytest.raises(DataError, match="less than 1"):
        ratio(data, 1.0, 0)


def test_the_last_in_time_is_held_out_and_ties_go_to_the_larger_item() -> None:
    data = build({(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (2, 6)}, times=[30, 10, 20, 5, 7, 7])
    kept, held = leave_last_out(data)
    assert [held.of(u).tolist() for u in range(3)] == [[1], [], [6]]
    assert held.times is not None
    assert held.times.tolist() == [30, 7]
    assert as_set(kept) | as_set(held) == as_set(data)
    assert [leave_last_out(data, 5)[0].of(u).tolist() for u in range(3)] == [[2], [4], [5]]


def test_the_last_cannot_be_told_without_times() -> None:
    with pytest.raises(DataError, match="time column"):
        leave_last_out(build({(0, 1)}))


@given(pairs, st.integers(0, 5))
def test_validation_comes_out_of_train_alone(some: set[tuple[int, int]], seed: int) -> None:
    train, test = ratio(build(some), 0.3, seed)
    split = hold_out_validation(Split(train, test), 0.25, seed)
    assert split.validation is not None
    assert split.test is test
    assert as_set(split.train) | as_set(split.validation) == as_set(train)
    assert not as_set(split.train) & as_set(split.validation)
    assert as_set(hold_out_validation(Split(train, test), 0.25, seed).train) == as_set(split.train)


@given(pairs, st.integers(1, 4))
def test_a_k_core_is_the_largest_fixed_point(some: set[tuple[int, int]], k: int) -> None:
    # The slow twin: remove one offender at a time.
    left = set(some)
    while True:
        out = [
            (u, i)
            for u, i in left
            if sum(v == u for v, _ in left) < k or sum(j == i for _, j in left) < k
        ]  # fmt: skip
        if not out:
            break
        left.discard(out[0])
    if not left:
        with pytest.raises(DataError, match="smaller k_core"):
            k_core(build(some), k)
        return
    core = k_core(build(some), k)
    assert {
        (core.user_ids[u], core.item_ids[i]) for u, i in zip(core.users(), core.items.tolist(), strict=True)
    } == left
    assert min(core.degrees().min(), core.user_degrees().min()) >= k
    again = k_core(core, k)
    assert (as_set(again), again.user_ids, again.item_ids) == (as_set(core), core.user_ids, core.item_ids)


def test_parts_of_a_split_share_their_ids() -> None:
    one = Interactions.from_pairs(["a"], ["x"])
    two = Interactions.from_pairs(["b"], ["x"])
    with pytest.raises(DataError, match="share"):
        Split(one, two)
