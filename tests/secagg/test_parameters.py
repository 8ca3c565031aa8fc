"""Neighbours and thresholds: exact tails, graphs that fail as often as computed, and published figures."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec.secagg.errors import BadInput
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.parameters import (
    DENSE,
    NEVER,
    SMALL,
    Parameters,
    add,
    choose,
    gaps,
    risks,
    tail,
    unlikely,
    withstands,
)

# ---------------------------------------------------------------------------------------------------- tails


def exact_tail(population: int, marked: int, drawn: int, at_least: int) -> Fraction:
    ways = (
        math.comb(marked, x) * math.comb(population - marked, drawn - x) for x in range(max(at_least, 0), drawn + 1)
    )
    return Fraction(sum(ways), math.comb(population, drawn))


def log2(chance: Fraction) -> float:
    """log₂, also of numbers too small for a float."""
    return math.log2(chance.numerator) - math.log2(chance.denominator) if chance else NEVER


@given(data=st.data(), population=st.integers(1, 500))
def test_tails_are_exact(data, population) -> None:
    marked, drawn = (data.draw(st.integers(0, population)) for _ in range(2))
    at_least = data.draw(st.integers(-1, population + 1))
    assert tail(population, marked, drawn, at_least) == pytest.approx(
        log2(exact_tail(population, marked, drawn, at_least)), abs=1e-8
    )


@given(data=st.data(), population=st.integers(1, 200), level=st.floats(-60, -0.5))
def test_what_is_unlikely_is_the_first_that_is(data, population, level) -> None:
    marked, drawn = (data.draw(st.integers(0, population)) for _ in range(2))
    x = unlikely(population, marked, drawn, level)
    assert tail(population, marked, drawn, x) <= level < tail(population, marked, drawn, x - 1)


def test_drawing_more_than_there_are_is_drawing_all() -> None:
    assert tail(10, 4, 12, 4) == tail(10, 4, 10, 4) == 0
    assert tail(10, 4, 12, 5) == NEVER
    assert unlikely(10, 4, 12, -40) == 5


def test_adding_chances() -> None:
    assert add(-1, -1) == 0
    assert add(-3.0, NEVER) == add(NEVER, -3.0) == -3
    assert add(NEVER, NEVER) == NEVER
    assert add(-2000, -1) == pytest.approx(-1)


# --------------------------------------------------------------------------------------------- known figures


def test_known_figures() -> None:
    lying = choose(400)
    assert (lying.neighbours, lying.threshold) == (54, 38)
    assert 2 * 38 - 54 > 20  # a client cannot have more corrupt neighbours than there are corrupt clients
    assert (lying.opened, lying.failed) == (NEVER, pytest.approx(-34.2, abs=0.1))
    assert lying.cut == NEVER  # two gaps of 27 take 54 clients, and 40 are gone
    many = choose(29_858, security=40)
    assert (many.neighbours, many.threshold, many.corrupt, many.dropped) == (80, 55, 1_492, 1_492)
    assert (many.broken, many.failed) == (pytest.approx(-43.9, abs=0.05), pytest.approx(-32.2, abs=0.05))


@pytest.mark.parametrize(("corrupt", "dropped"), [(0.05, 0.05), (0.2, 0.1), (0.01, 0.2), (0, 0)])
@pytest.mark.parametrize("n", [65, 100, 333, 2_000])
def test_choices_keep_their_promises_and_no_smaller_graph_does(n, corrupt, dropped) -> None:
    chosen = choose(n, corrupt, dropped, 30, 20)

    def safe(p: Parameters) -> bool:
        return withstands(n, p.neighbours, p.threshold, p.corrupt, p.dropped, 30) and p.failed <= -20

    k, c, d = chosen.neighbours, chosen.corrupt, chosen.dropped
    assert (c, d) == (int(corrupt * n), int(dropped * n))
    if k < n - 1:
        assert k % 2 == 0
        assert chosen == risks(n, k, chosen.threshold, c, d)
        assert safe(chosen)
    smaller = range(max(2, k - 12), k, 2)
    assert not any(safe(risks(n, s, t, c, d)) for s in smaller for t in range(s // 2 + 1, s + 1))


@pytest.mark.parametrize("dropped", [0.34, 0.4])
def test_a_client_whose_neighbours_are_all_that_the_server_lets_in_is_safe_from_all_corrupt_ones(dropped) -> None:
    surrounded = 0
    for n in range(SMALL + 1, 340):
        p = choose(n, 0.05, dropped)
        if p.neighbours >= p.least - 1:
            surrounded += 1
            assert p.corrupt < 2 * p.threshold - p.neighbours
    assert surrounded > 10


@pytest.mark.parametrize("n", [2, 3, 10, 20, SMALL])
def test_few_clients_form_a_complete_graph(n) -> None:
    chosen = choose(n)
    t, c, d = chosen.threshold, chosen.corrupt, chosen.dropped
    assert chosen.neighbours == n - 1
    assert n < 2 * t
    assert t <= n - d
    assert c < 2 * t - n
    assert chosen.broken == chosen.failed == NEVER


def test_a_dense_graph_gives_way_to_the_complete_one() -> None:
    dense, sparse, large = choose(100, 0.05, 0.34), choose(100), choose(DENSE + 1, 0.05, 0.34)
    assert (dense.neighbours, dense.threshold, dense.least) == (99, 60, 66)
    assert (sparse.neighbours, sparse.threshold) == (16, 11)
    assert DENSE + 1 < 2 * large.neighbours < 2 * DENSE  # too large, however dense


def test_a_share_of_clients_is_counted_as_it_reads() -> None:
    assert choose(100, corrupt=0.29, dropped=0.07).corrupt == 29  # 0.29 · 100 is 28.999…
    assert choose(100, corrupt=0.29, dropped=0.07).dropped == 7


@pytest.mark.parametrize(
    "arguments", [(1,), (10, 0.5, 0.5), (400, 0.4, 0.3), (400, 0.1, 1.0), (400, -0.1, 0.1), (400, math.nan, 0.1)]
)
def test_what_cannot_be_is_refused(arguments) -> None:
    with pytest.raises(BadInput):
        choose(*arguments)


def test_too_many_corrupt_and_lost_ones_are_refused() -> None:
    with pytest.raises(BadInput, match="a lying server"):
        choose(400, 0.3, 0.4)


# ---------------------------------------------------------------------------------------------- simulation


def graphs(n: int, k: int, trials: int):
    """Neighbourhoods [n, k] of this many rounds."""
    for trial in range(trials):
        graph = Graph(range(n), k, trial.to_bytes(4, "big"))
        yield graph, np.array([graph.neighbours(client) for client in range(n)])


def agrees(counts, expected: float) -> bool:
    """Whether the mean of these counts, one for each graph, is within four standard errors of the expected one."""
    return abs(np.mean(counts) - expected) < 4 * np.std(counts) / math.sqrt(len(counts))


def test_graphs_fail_as_often_as_computed() -> None:
    """With parameters so weak that failures are frequent, the summed chances are the expected numbers of failures."""
    n, k, t, c, d = 40, 8, 6, 9, 8
    computed, opened, failed = risks(n, k, t, c, d), [], []
    for _, near in graphs(n - d, k, 1_500):  # the server left d honest ones out, the first c are corrupt
        opened.append(((near < c).sum(axis=1)[c:] >= 2 * t - k).sum())
    for _, near in graphs(n, k, 1_500):  # the last d are lost
        failed.append(((near < n - d).sum(axis=1)[: n - d] < t).sum())
    assert np.mean(opened) > 0.1
    assert np.mean(failed) > 0.1
    assert agrees(opened, 2**computed.opened)
    assert agrees(failed, 2**computed.failed * (n - d) / n)  # a lost client has one fewer possible lost neighbour
    assert np.mean(np.array(opened) > 0) <= 2**computed.opened  # a chance is at most what is expected
    assert not agrees(opened, 2 ** tail(n - d - 1, c, k, 2 * t - k + 1) * (n - d - c))  # off by one


def parts(graph: Graph, left: set[int]) -> int:
    """Into how many parts the remaining clients fall."""
    count, unseen = 0, set(left)
    while unseen:
        count, reached = count + 1, {unseen.pop()}
        while reached:
            reached = {other for client in reached for other in graph.neighbours(client)} & unseen
            unseen -= reached
    return count


def test_survivors_fall_apart_as_often_as_computed() -> None:
    n, k, removed = 24, 4, 9
    cuts, pairs = [], []
    for graph, _ in graphs(n, k, 2_000):
        gone = [client < removed for client in graph._circle]
        starts = sum(not gone[at - 1] and all(gone[(at + i) % n] for i in range(k // 2)) for at in range(n))
        pairs.append(math.comb(starts, 2))
        cuts.append(parts(graph, set(range(removed, n))) > 1)
        assert cuts[-1] == (starts > 1)  # one gap alone leaves a chain
    assert 0.1 < np.mean(cuts) <= 2 ** gaps(n, k, removed)
    assert agrees(pairs, 2 ** gaps(n, k, removed))
    assert gaps(n, k, k - 1) == NEVER  # too few are gone for two gaps
