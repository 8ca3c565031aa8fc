"""Vectors that count only together: the sum is over whole groups, and clients that are left out help to open it.

The attacks are those of a server that calls clients dropped whose vectors it has.
"""

from collections.abc import Collection

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.secagg import Client, SecAggError, Session, Stage, ring, shamir
from fedgrec.secagg.errors import BadInput, BadShare, BadSignature, TooFewLeft
from fedgrec.secagg.keys import pair_mask, seed_mask, survivors_part
from fedgrec.secagg.messages import Confirmations, Masked, Reveal, Survivors, parse
from fedgrec.secagg.prg import mask_parts
from tests.secagg.rounds import Round, leaks, population, random_vectors, remembers, session
from tests.secagg.test_sum import STAGES, Groups, in_the_sum, sum_law_holds

VALUES = 9


def read(run: Round) -> list[int]:
    """Clients whose vectors a server reads that rebuilds every secret of which enough shares were sent to it."""
    here, t = run.session, run.session.threshold
    seeds, keys = ({me: dict[int, int]() for me in run.vectors} for _ in range(2))
    for me, sent in run.sent.items():
        for message in map(parse, sent):
            if isinstance(message, Reveal):
                for opened, shares in ((seeds, message.seeds), (keys, message.mask_keys)):
                    for owner, share in shares.items():
                        opened[owner][me + 1] = share

    def secrets(opened: dict[int, dict[int, int]]) -> dict[int, bytes]:
        return {me: shamir.combine(s, t).to_bytes(32, "big") for me, s in opened.items() if len(s) >= t}

    known, found = {me: X25519PrivateKey.from_private_bytes(key) for me, key in secrets(keys).items()}, list[int]()
    public = {me: own.mask_key.public_key().public_bytes_raw() for me, own in run.secrets.items()}
    for me, seed in secrets(seeds).items():
        masks = [(seed_mask(seed, here, run.server.bound), -1)]
        for peer in run.held[me].keys() - {me}:
            for owner, other, sign in ((peer, me, 1), (me, peer, -1)):
                if owner in known:
                    key, own = pair_mask(known[owner], owner, public[other], other, here, run.server.bound)
                    masks.append((key, sign * own))
                    break
        for upload in (message for message in map(parse, run.sent[me]) if isinstance(message, Masked)):
            words = [part.copy() for part in ring.unpack(upload.vector, here.parts)]
            mask_parts(words, masks)
            if np.array_equal(words[0], ring.encode(run.vectors[me], 1, here.rings)[0]):
                found.append(me)
    return found


# ------------------------------------------------------------------------------------------------- the law


def drawn(rng: np.random.Generator) -> tuple[int, Session, Groups, dict[int, Stage]]:
    """Clients, a session on either graph, groups of two or three beside clients that stand alone, and losses."""
    n, k, size = int(rng.integers(6, 11)), int(rng.choice([100, 6, 4])), int(rng.integers(2, 4))
    holders = n if k >= n - 1 else k
    here = session(
        n,
        VALUES,
        threshold=holders // 2 + 1 + int(rng.integers(0, 2)),
        neighbours=k,
        least_summed=int(rng.choice([0, 2, 3])),
    )
    order = rng.permutation(n).tolist()
    together = [order[at : at + size] for at in range(0, n - size, size)]
    who = rng.permutation(n)[: rng.integers(0, 4)].tolist()
    return n, here, together, {me: STAGES[rng.integers(len(STAGES))] for me in who}


def test_the_sum_is_the_plain_sum_of_whole_groups() -> None:
    outcomes = []

    @settings(max_examples=40, deadline=None)
    @given(seed=st.integers(0, 2**64))
    def law(seed) -> None:
        n, here, together, lost = drawn(np.random.default_rng(seed))
        run = Round(here, random_vectors(n, VALUES), together=together)
        assert sum_law_holds(run, lost, dict.fromkeys(range(n), 1), together)
        assert run.server._partial == {}
        assert not read(run)
        summed, alone = (in_the_sum(here, n, lost, groups) for groups in (together, ()))
        kind = "none" if summed is None else "fewer" if alone is not None and summed < alone else "all"
        outcomes.append(kind)

    law()
    assert min(map(outcomes.count, ("none", "fewer", "all"))) > 3  # else the law means little


# ------------------------------------------------------------------------- a round whose groups are known

GROUPS = [range(at, at + 3) for at in range(0, 12, 3)]
LOST = {0: Stage.MASKED, 4: Stage.MASKED, 8: Stage.MASKED}  # one of each group but the last


def twelve(together: Groups = GROUPS, **more) -> Round:
    here = session(12, VALUES, 8, **({"least_summed": 3} | more))
    return Round(here, random_vectors(12, VALUES), together=together)


def test_those_who_are_left_out_open_the_sum_of_the_rest() -> None:
    run = twelve().play(LOST)
    assert run.server.included == [9, 10, 11]  # three, and a secret takes eight
    assert np.array_equal(run.server.result()[0], run.plain_sum([9, 10, 11]))
    assert all(leaks(run, me) == [] for me in range(12))
    assert read(run) == []
    assert not any(remembers(run, me) for me in run.clients if me not in LOST)


def test_without_their_help_there_is_no_sum(monkeypatch) -> None:
    """Mutation: a client that is not alive refuses."""
    believe = Client._believe

    def refuse(self, message):
        if self.me not in message.alive:
            raise TooFewLeft("this client is not alive")
        return believe(self, message)

    monkeypatch.setattr(Client, "_believe", refuse)
    run = twelve().until(Stage.MASKED)
    run.step(LOST)
    for me in (9, 10, 11):
        run.server.receive(me, run.give(me, run.inbox[me]))
    with pytest.raises(TooFewLeft):
        run.give(1, run.inbox[1])
    with pytest.raises(TooFewLeft):
        run.server.close()


def test_of_each_group_one_partial_sum_is_kept_while_it_may_become_whole() -> None:
    run = twelve().until(Stage.SHARES)
    run.step(silent=[0])  # so the vectors of 1 and 2 can never count
    kept = []
    for me in sorted(run.inbox, key=lambda me: (me % 3, me)):
        run.server.receive(me, run.give(me, run.inbox[me]))
        kept.append(len(run.server._partial))
    assert kept == [1, 2, 3, 3, 3, 3, 3, 3, 2, 1, 0]
    assert run.server.survivors == list(range(3, 12))


def test_a_group_that_is_not_whole_at_the_beginning_takes_no_part() -> None:
    run = twelve()
    run.step(silent=[0])
    assert set(run.inbox) == set(range(3, 12))
    assert np.array_equal(run.play().server.result()[0], run.plain_sum(range(3, 12)))


def test_it_helps_if_too_few_others_are_there() -> None:
    run = twelve()
    run.step(silent=[0, 3])
    assert set(run.inbox) == set(range(12)) - {0, 3}
    run.play()
    assert run.server.included == list(range(6, 12))
    assert read(run) == []


@pytest.mark.parametrize("stage", [Stage.KEYS, Stage.SHARES, Stage.MASKED])
def test_a_sum_of_too_few_is_not_opened(stage) -> None:
    with pytest.raises(TooFewLeft):
        twelve(least_summed=4).play(dict.fromkeys(LOST, stage))
    run = twelve(least_summed=0)  # as many as the threshold
    with pytest.raises(TooFewLeft):
        run.play(dict.fromkeys(LOST, stage))
    assert run.server.done
    assert run.server.included == []


def test_groups_and_floors_that_cannot_be() -> None:
    for least in (-1, 1, 2**31):
        with pytest.raises(BadInput, match="out of range"):
            twelve(least_summed=least)
    with pytest.raises(BadInput, match="two groups"):
        twelve([[0, 1], [1, 2]])


# ------------------------------------------------------------------------------------------ what must stay closed


def test_a_client_that_opens_its_own_seed_while_it_is_left_out_is_caught(monkeypatch) -> None:
    reveal = Client._reveal

    def more(self, alive, dropped):
        return reveal(self, alive | {self.me}, dropped)

    monkeypatch.setattr(Client, "_reveal", more)
    run = twelve().until(Stage.MASKED)
    run.step(LOST)
    run.step()
    answer = run.give(1, run.inbox[1])
    assert leaks(run, 1) == ["both secrets of client 1"]
    with pytest.raises(BadShare):
        run.server.receive(1, answer)


def test_helpers_that_open_all_that_they_hold_are_caught(monkeypatch) -> None:
    """Mutation: both secrets of those who are left out. The server then reads their vectors."""
    reveal = Client._reveal
    monkeypatch.setattr(Client, "_reveal", lambda self, alive, dropped: reveal(self, alive | dropped, dropped))
    run = twelve().until(Stage.MASKED)
    run.step(LOST)
    run.step()
    for me, message in run.inbox.items():
        run.give(me, message)
    assert read(run) == [1, 2, 3, 5, 6, 7]
    assert all("both secrets of client 1" in leaks(run, me) for me in run.inbox)


def tell(run: Round, lists: dict[int, Survivors], corrupt: Collection[int] = ()) -> None:
    """Each client hears its own lists, and who else signed them; many refuse. Corrupt clients sign all lists."""
    signed = {}
    for me, message in lists.items():
        try:
            signed[me] = parse(run.give(me, message.pack()))
        except SecAggError:
            assert not remembers(run, me)
    for me in signed:
        near, about = run.server._graph.neighbours(me), survivors_part(run.session, run.server.bound, lists[me])
        agreeing = {n: signed[n].signature for n in near if n in signed and lists[n] == lists[me]}
        agreeing |= {n: population(len(run.vectors)).identities[n].sign(about) for n in near if n in corrupt}
        try:
            run.give(me, Confirmations(run.session.round_id, agreeing).pack())
        except SecAggError:
            assert not remembers(run, me)


def dropping(run: Round, dropped: set[int]) -> Survivors:
    clients = set(run.vectors)
    return Survivors(run.session.round_id, tuple(sorted(clients - dropped)), tuple(sorted(dropped)))


def opened(run: Round, owner: int) -> tuple[int, int]:
    """How many shares of this client's seed, and of its mask key, were sent."""
    answers = [message for sent in run.sent.values() for message in map(parse, sent) if isinstance(message, Reveal)]
    return sum(owner in a.seeds for a in answers), sum(owner in a.mask_keys for a in answers)


def arrived(n: int, t: int, **more) -> Round:
    """A round in which all vectors have arrived."""
    here = session(n, VALUES, t, **({"least_summed": 2, "round_id": bytes(16)} | more))
    return Round(here, random_vectors(n, VALUES)).until(Stage.CONFIRM)


@pytest.mark.parametrize(("n", "t", "k"), [(7, 4, 7), (7, 5, 7), (14, 6, 8)])
def test_a_client_that_is_alive_to_some_and_dropped_to_others_stays_closed(n, t, k) -> None:
    """However the server splits the others, and whatever it tells the client itself."""
    openings = 0
    for split in range(0, n, 1 if k >= n else 4):
        for itself in (True, False):
            run = arrived(n, t, neighbours=k)
            alive = {me for me in range(1, n) if me <= split} | ({0} if itself else set())
            tell(run, {me: dropping(run, set() if me in alive else {0}) for me in range(n)})
            assert read(run) == []
            seeds, keys = opened(run, 0)
            assert min(seeds, keys) < t
            if k >= n:
                assert not (seeds and keys)
            openings += max(seeds, keys) >= t
            assert all(leaks(run, me) == [] for me in range(n))
    assert openings > 1  # where nearly all hear the same, they open one of its secrets


@pytest.mark.parametrize(("t", "count"), [(6, 0), (5, 3)])
def test_with_two_corrupt_clients_of_eight_a_threshold_of_six_keeps_one_list(t, count) -> None:
    """With five, 2t is no more than n + c: three honest clients and the two are enough for either list."""
    run = arrived(8, t)
    tell(run, {me: dropping(run, set() if me < 3 else {0}) for me in range(6)}, corrupt=(6, 7))
    assert opened(run, 0) == (count, count)


def test_the_signature_of_a_client_that_heard_otherwise_does_not_count() -> None:
    run = arrived(7, 4)
    lists = {me: dropping(run, {0} if me < 3 else set()) for me in range(7)}
    signed = {me: parse(run.give(me, message.pack())) for me, message in lists.items()}
    for me in range(7):
        others = {n: answer.signature for n, answer in signed.items() if n != me}
        with pytest.raises(BadSignature):
            run.give(me, Confirmations(run.session.round_id, others).pack())
        assert not remembers(run, me)


def all_but_one_dropped(monkeypatch, fewest: int | None = None) -> Round:
    run = arrived(7, 4)
    if fewest is not None:
        monkeypatch.setattr(Session, "fewest", fewest)
    tell(run, dict.fromkeys(range(7), dropping(run, set(range(1, 7)))))
    return run


def test_a_server_cannot_leave_out_all_but_one(monkeypatch) -> None:
    run = all_but_one_dropped(monkeypatch)
    assert read(run) == []
    assert opened(run, 0) == (0, 0)
    assert read(all_but_one_dropped(monkeypatch, fewest=1)) == [0]  # mutation: clients count no vectors


def all_around_dropped() -> Round:
    """Of a sparse graph, the server calls all neighbours of one client dropped."""
    run = arrived(20, 4, neighbours=6)
    tell(run, dict.fromkeys(range(20), dropping(run, set(run.server._graph.neighbours(0)))))
    return run


def test_in_a_sparse_graph_helpers_open_no_seeds(monkeypatch) -> None:
    run = all_around_dropped()
    assert read(run) == []
    assert opened(run, 0) == (0, 0)

    def believe(self, message):
        near = {self.me, *self._graph.neighbours(self.me)}
        return set(message.alive) & near, set(message.dropped) & near

    monkeypatch.setattr(Client, "_believe", believe)  # mutation: they do, as in the complete graph
    assert 0 in read(all_around_dropped())
