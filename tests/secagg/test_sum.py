"""The sum law: a secure sum is the plain integer sum of the vectors that arrived, to the bit, or there is none."""

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.secagg import Client, Server, Session, Stage, ring, run_round
from fedgrec.secagg import client as client_module
from fedgrec.secagg.errors import BadInput, NotASum, SecAggError, TooFewLeft, WrongStage
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.prg import add_masks
from tests.secagg.rounds import Round, population, random_vectors, session, vectors_for

STAGES = [Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.CONFIRM, Stage.UNMASK]


# ------------------------------------------------------------------------------------------------- the law


Groups = Sequence[Collection[int]]


def in_the_sum(session: Session, n: int, lost: dict[int, Stage], together: Groups = ()) -> set[int] | None:
    """The clients whose vectors are in the sum by the rules, or None if there can be no sum."""
    t, groups = session.threshold, {me: set(group) for group in together for me in group}

    def whole(clients: set[int]) -> set[int]:
        return {me for me in clients if groups.get(me, {me}) <= clients}

    def still_there(stage: Stage) -> set[int]:
        return {me for me in range(n) if me not in lost or STAGES.index(lost[me]) > STAGES.index(stage)}

    keys, shared, sent, _, opened = map(still_there, STAGES)
    if len(keys) < max(t, 2) or len(whole(keys)) < session.fewest:
        return None
    company = whole(keys) if len(whole(keys)) >= max(t, 2) else keys
    members = company & shared
    if session.neighbours >= len(company) - 1:  # Bonawitz 2017: everybody holds shares of everybody
        summed = whole(members & sent)
        return summed if len(members & opened) >= t and len(summed) >= session.fewest else None
    graph = Graph(company, session.neighbours, session.round_id)
    around = {me: set(graph.neighbours(me)) for me in company}
    for _ in range(n):  # clients that have t holders among themselves
        members = {me for me in members if len(around[me] & members) >= t}
    summed, opened = whole(members & sent), members & opened
    helpers = {me: around[me] & opened & (summed if me in summed else members) for me in members}
    enough = len(summed) >= session.fewest and all(len(each) >= t for each in helpers.values())
    return summed if members and enough else None


def sum_law_holds(run: Round, lost: dict[int, Stage], users: dict[int, int], together: Groups = ()) -> bool:
    included = in_the_sum(run.session, len(run.vectors), lost, together)
    try:
        run.play(lost)
    except SecAggError as error:
        with pytest.raises(WrongStage):
            run.server.result()
        return included is None and type(error) is TooFewLeft
    values, total = run.server.result()
    return (
        included == set(run.server.included) == set(run.server.survivors)
        and np.array_equal(values, run.plain_sum(included))
        and total == sum(users[me] for me in included)
    )


def some_rings() -> st.SearchStrategy[ring.Rings]:
    """Parts of every width, alone and mixed."""
    parts = st.tuples(st.integers(1, 33), st.sampled_from(range(8, 65, 2)))
    return st.lists(parts, min_size=1, max_size=4).map(tuple)


@st.composite
def sessions(draw) -> tuple[int, Session]:
    k = draw(st.sampled_from([6, 4, 2, 100, 100]))  # 100: everybody
    n = draw(st.integers(3 if k == 100 else k + 2, 10))
    holders = min(k, n)
    return n, session(
        n,
        values=0,
        rings=draw(some_rings()),
        threshold=holders // 2 + 1 + draw(st.integers(0, (holders - 1) // 2)),
        neighbours=k,
        users=5 * n,
    )


def test_the_sum_is_the_plain_sum_or_there_is_none() -> None:
    outcomes = []

    @settings(max_examples=100, deadline=None)
    @given(data=st.data())
    def law(data) -> None:
        n, session = data.draw(sessions())
        count = data.draw(st.sampled_from([1, 2, 3, 0, n // 2, n - 1]))
        who = data.draw(st.permutations(range(n)))[:count]
        lost = {me: data.draw(st.sampled_from(STAGES)) for me in who}
        users = {me: data.draw(st.integers(0, 5)) for me in range(n)}
        vectors = vectors_for(n, session.rings, data.draw(st.integers(0, 2**32)))
        run = Round(session, vectors, users, threads=data.draw(st.integers(1, 3)))
        assert sum_law_holds(run, lost, users)
        outcomes.append((in_the_sum(session, n, lost) is not None, session.neighbours < n - 1, bool(lost)))

    law()
    for graph_is_sparse in (True, False):  # the law means something only if both outcomes are frequent
        assert outcomes.count((True, graph_is_sparse, True)) > 5
        assert outcomes.count((False, graph_is_sparse, True)) > 5


@pytest.mark.parametrize("bits", [14, 32, 58, 64])
def test_vectors_of_many_chunks_on_many_threads(bits) -> None:
    values = 140_001  # two chunks of 16-bit words, three of 32, five of 64, and an odd end
    here = session(3, values, threshold=2, bits=bits)
    vectors = random_vectors(3, values, bits)
    outcome = run_round(here, vectors.__getitem__, population(3), threads=3)
    assert np.array_equal(outcome.values, Round(here, vectors).plain_sum(range(3)))
    assert (outcome.users, outcome.included) == (3, [0, 1, 2])


# -------------------------------------------------------------------------------------------- its borders


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("n", "t"), [(5, 3), (5, 5), (6, 4), (2, 2)])
def test_of_a_complete_graph_exactly_the_threshold_must_be_left(n, t, stage) -> None:
    """With t clients alive in total the sum opens; with one fewer it does not, in whatever stage they were lost."""
    vectors = random_vectors(n, 3)
    enough = Round(session(n, 3, t), vectors).play(dict.fromkeys(range(n - t), stage))
    values, _ = enough.server.result()
    assert set(enough.server.included) == set(range(0 if stage in STAGES[3:] else n - t, n))
    assert np.array_equal(values, enough.plain_sum(enough.server.included))

    too_few = Round(session(n, 3, t), vectors)
    with pytest.raises(TooFewLeft):
        too_few.play(dict.fromkeys(range(n - t + 1), stage))
    with pytest.raises(WrongStage):
        too_few.server.result()
    assert too_few.server.done  # the server noticed it, before any client
    assert too_few.server.included == []


@pytest.mark.parametrize("stage", [Stage.MASKED, Stage.UNMASK])
def test_of_a_sparse_graph_exactly_the_threshold_of_holders_must_be_left(stage) -> None:
    n, k, t = 9, 4, 3
    here = session(n, 3, t, neighbours=k)
    holders = Graph(range(n), k, here.round_id).neighbours(0)
    enough = Round(here, random_vectors(n, 3)).play({holders[0]: stage})
    assert np.array_equal(enough.server.result()[0], enough.plain_sum(enough.server.included))
    too_few = Round(here, random_vectors(n, 3))
    with pytest.raises(TooFewLeft):
        too_few.play(dict.fromkeys(holders[:2], stage))
    with pytest.raises(WrongStage):
        too_few.server.result()


def test_a_client_without_enough_holders_is_left_out_while_it_costs_nothing() -> None:
    n, k, t = 20, 12, 7
    here = session(n, 3, t, neighbours=k)
    circle = Graph(range(n), k, here.round_id)._circle
    lost = {circle[place]: Stage.SHARES for place in (-6, -5, -1, 1, 5, 6)}  # half of the first one's holders
    run = Round(here, random_vectors(n, 3))
    assert sum_law_holds(run, lost, dict.fromkeys(range(n), 1))
    assert set(run.server.included) == set(range(n)) - lost.keys() - {circle[0]}


def test_more_users_than_the_numbers_were_sized_for_are_refused() -> None:
    here = session(3, 3, 2, users=5)
    with pytest.raises(BadInput, match="holds 6 users"):
        Round(here, random_vectors(3, 3), users=dict.fromkeys(range(3), 2)).play()


def test_a_session_takes_no_more_users_than_its_trailer_can_count() -> None:
    assert session(3, 3, 2, bits=8, users=2**32 - 1).users
    with pytest.raises(BadInput):
        session(3, 3, 2, bits=64, users=2**32)


# ------------------------------------------------------------------------------------- masks and the graph


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 200),
    bits=st.sampled_from([8, 16, 32, 64]),
    masks=st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.sampled_from([1, -1])), max_size=4),
    threads=st.integers(0, 5),
    blocks=st.integers(1, 20),
)
def test_masks_depend_on_neither_chunks_nor_threads(n, bits, masks, threads, blocks) -> None:
    """The slow twin: each key stream made in one piece."""
    expected = np.arange(n).astype(f"<u{bits // 8}")
    words = expected.copy()
    for key, sign in masks:
        stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(words.nbytes))
        mask = np.frombuffer(stream, words.dtype)
        expected = expected + mask if sign > 0 else expected - mask
    add_masks(words, masks, threads, chunk_bytes=16 * blocks)
    assert np.array_equal(words, expected)


@pytest.mark.parametrize("chunk", [0, -16, 24])
def test_chunks_that_would_cut_a_block_are_refused(chunk) -> None:
    with pytest.raises(BadInput):
        add_masks(np.zeros(9, "<u4"), [(bytes(16), 1)], chunk_bytes=chunk)


@given(ids=st.sets(st.integers(0, 2**32 - 1), min_size=2, max_size=30), half=st.integers(1, 5), seed=st.binary())
def test_the_graph_is_regular_mutual_and_connected(ids, half, seed) -> None:
    graph = Graph(ids, 2 * half, seed)
    around = {me: set(graph.neighbours(me)) for me in ids}
    assert all(len(near) == min(2 * half, len(ids) - 1) and me not in near for me, near in around.items())
    assert all(me in around[other] for me, near in around.items() for other in near)
    reached = {min(ids)}
    for _ in ids:
        reached |= set().union(*(around[me] for me in reached))
    assert reached == ids


def test_the_graph_of_another_round_is_another() -> None:
    graphs = {tuple(Graph(range(30), 4, seed).neighbours(0)) for seed in (b"a", b"b", b"c")}
    assert len(graphs) == 3


# -------------------------------------------------------------------------------------------------- mutants


def flipped_sign(monkeypatch) -> None:
    real = client_module.pair_mask
    monkeypatch.setattr(client_module, "pair_mask", lambda *arguments: (real(*arguments)[0], 1))


def masks_with_the_lost(monkeypatch) -> None:
    monkeypatch.setattr(Client, "_there", lambda self: set(self._keys))


def lost_masks_stay_on(monkeypatch) -> None:
    monkeypatch.setattr("fedgrec.secagg.server.pair_mask", lambda *arguments: (bytes(16), 1))


def silent_clients_count(monkeypatch) -> None:
    real = Server._open

    def open_(self, masks):
        self._alive |= self._sharing
        return real(self, masks)

    monkeypatch.setattr(Server, "_open", open_)


@pytest.mark.parametrize("mutate", [flipped_sign, masks_with_the_lost, lost_masks_stay_on, silent_clients_count])
def test_mutants_break_the_law(mutate, monkeypatch) -> None:
    lost, users = {1: Stage.SHARES, 2: Stage.MASKED, 3: Stage.UNMASK}, dict.fromkeys(range(7), 1)
    assert sum_law_holds(Round(session(7, 5, 4), random_vectors(7, 5)), lost, users)
    mutate(monkeypatch)
    assert not sum_law_holds(Round(session(7, 5, 4), random_vectors(7, 5)), lost, users)


@pytest.mark.parametrize("bits", [8, 12, 32, 64])
def test_a_sum_whose_masks_did_not_cancel_is_called_noise(bits, monkeypatch) -> None:
    flipped_sign(monkeypatch)
    run = Round(session(3, 5, 2, bits=bits), random_vectors(3, 5, bits))
    with pytest.raises(NotASum):
        run.play()
    with pytest.raises(WrongStage):
        run.server.result()
