"""A server that tells each client a different list of survivors, so that it can read one client's vector.

It opens the victim's seed, and the mask keys of the clients that the victim masked with: only one secret of each
client, so that no client sees anything wrong. Clients that compare their lists refuse; clients that do not compare
are read.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from fedgrec.secagg import Client, SecAggError, Stage, ring, shamir
from fedgrec.secagg.errors import BadCiphertext, BadLists, BadSignature, TooFewLeft, UnknownSender, WrongStage
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import pair_mask, seed_mask
from fedgrec.secagg.messages import Confirm, Confirmations, Delivery, Neighbourhood, Reveal, Survivors, parse
from fedgrec.secagg.prg import mask_parts
from tests.secagg.rounds import Round, flip, leaks, random_vectors, remembers, session

VICTIM, VALUES = 0, 9


@dataclass
class Lie:
    """The clients that the victim may mask with, and the clients that each client is told are lost."""

    near: list[int]
    lost: dict[int, set[int]]


def plan(graph: Graph, n: int, t: int) -> Lie | None:
    """For each of t neighbours of the victim, t holders that are told that it is lost; none is told of too many."""
    holders, own = {c: graph.holders(c) for c in range(n)}, int(graph.complete)
    near = graph.neighbours(VICTIM)[: t - own]
    told = sorted({h for v in near for h in holders[v]} - {VICTIM})
    at = {("v", v): 2 + i for i, v in enumerate(near)} | {("w", w): 2 + len(near) + i for i, w in enumerate(told)}
    edges = [(0, at["v", v], t) for v in near] + [(at["w", w], 1, len(holders[w]) - t) for w in told]
    edges += [(at["v", v], at["w", w], 1) for v in near for w in holders[v] if w not in (v, VICTIM)]
    rows, columns, capacity = zip(*edges, strict=True)
    network = csr_array((np.array(capacity, np.int32), (rows, columns)), shape=(2 + len(near) + len(told),) * 2)
    found = maximum_flow(network, 0, 1)
    if found.flow_value < len(near) * t:
        return None
    flow = found.flow.toarray()
    return Lie(near, {w: {v for v in near if flow[at["v", v], at["w", w]] > 0} for w in told})


def lied_to(n: int, k: int, t: int) -> tuple[Round, Lie, dict[int, Survivors]]:
    """A round up to the stage in which each client gets its own lists of survivors."""
    run = Round(session(n, VALUES, t, neighbours=k), random_vectors(n, VALUES))
    run.until(Stage.MASKED)
    graph = run.server._graph
    lie = plan(graph, n, t)
    assert lie is not None
    delivery = parse(run.inbox[VICTIM])
    assert isinstance(delivery, Delivery)
    fewer = {sender: text for sender, text in delivery.ciphertexts.items() if sender in lie.near}
    run.inbox[VICTIM] = replace(delivery, ciphertexts=fewer).pack()
    run.step()
    near = {c: set(lie.near if c == VICTIM else graph.neighbours(c)) for c in range(n)}
    return run, lie, {c: _lists(run, c, near[c], lie.lost.get(c, set())) for c in range(n)}


def _lists(run: Round, me: int, near: set[int], lost: set[int]) -> Survivors:
    return Survivors(run.session.round_id, tuple(sorted((near | {me}) - lost)), tuple(sorted(lost)))


def read(run: Round, lie: Lie, answers: dict[int, Reveal]) -> np.ndarray:
    """The victim's upload with all its masks subtracted."""
    s, t = run.session, run.session.threshold
    words = [part.copy() for part in ring.unpack(parse(run.sent[VICTIM][2]).vector, s.parts)]  # type: ignore[attr-defined]
    seeds = {w + 1: a.seeds[VICTIM] for w, a in answers.items() if VICTIM in a.seeds}
    masks = [(seed_mask(shamir.combine(seeds, t).to_bytes(32, "big"), s, run.server.bound), -1)]
    for v in lie.near:
        shares = {w + 1: a.mask_keys[v] for w, a in answers.items() if v in a.mask_keys}
        key = shamir.combine(shares, t)
        assert key == int.from_bytes(run.secrets[v].mask_key.private_bytes_raw(), "big")
        public = run.secrets[VICTIM].mask_key.public_key().public_bytes_raw()
        masks.append(pair_mask(run.secrets[v].mask_key, v, public, VICTIM, s, run.server.bound))
    mask_parts(words, masks)
    return ring.decode(words, s.rings, 1)[0]


@pytest.mark.parametrize(("n", "k", "t"), [(60, 12, 8), (24, 24, 13)])
def test_clients_who_do_not_compare_are_read(n: int, k: int, t: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_compare", lambda *_: None)
    run, lie, stories = lied_to(n, k, t)
    for c, story in stories.items():
        run.give(c, story.pack())
    nothing = Confirmations(run.session.round_id, {}).pack()
    answers: dict[int, Any] = {c: parse(run.give(c, nothing)) for c in stories}
    assert read(run, lie, answers).tolist() == run.vectors[VICTIM].tolist()


@pytest.mark.parametrize(("n", "k", "t"), [(60, 12, 8), (24, 24, 13)])
@pytest.mark.parametrize("passed_on", ["all", "agreeing"])
def test_clients_who_compare_what_they_were_told_are_not(n: int, k: int, t: int, passed_on: str) -> None:
    run, lie, stories = lied_to(n, k, t)
    signed = {c: parse(run.give(c, story.pack())) for c, story in stories.items()}
    opened = dict.fromkeys([VICTIM, *lie.near], 0)
    for c in range(n):
        around = {
            w: signed[w].signature  # type: ignore[attr-defined]
            for w in run.server._graph.neighbours(c)
            if passed_on == "all" or stories[w] == stories[c]
        }
        try:
            answer = parse(run.give(c, Confirmations(run.session.round_id, around).pack()))
        except (BadSignature, TooFewLeft):
            assert not remembers(run, c)
            continue
        assert isinstance(answer, Reveal)
        for owner in opened:
            opened[owner] += owner in answer.seeds if owner == VICTIM else owner in answer.mask_keys
    assert min(opened.values()) < t  # so one of the masks stays on
    assert all(leaks(run, c) == [] for c in range(n))


# ------------------------------------------------------------------------------------- the stage by itself


def waiting_for_confirmations() -> tuple[Round, int, Confirmations]:
    run = Round(session(8, VALUES, 3, neighbours=4), random_vectors(8, VALUES)).until(Stage.UNMASK)
    me = 2
    message = parse(run.inbox[me])
    assert isinstance(message, Confirmations)
    return run, me, message


def refused(run: Round, me: int, message: Confirmations) -> type[SecAggError]:
    with pytest.raises(SecAggError) as caught:
        run.give(me, message.pack())
    assert not remembers(run, me)
    assert leaks(run, me) == []
    return caught.type


def test_too_few_confirmations() -> None:
    run, me, message = waiting_for_confirmations()
    kept = dict(list(message.signatures.items())[:2])
    assert refused(run, me, replace(message, signatures=kept)) is TooFewLeft


def test_a_confirmation_of_another_client_does_not_count_twice() -> None:
    run, me, message = waiting_for_confirmations()
    a, b = list(message.signatures)[:2]
    swapped = message.signatures | {a: message.signatures[b]}
    assert refused(run, me, replace(message, signatures=swapped)) is BadSignature


def test_a_confirmation_that_was_tampered_with() -> None:
    run, me, message = waiting_for_confirmations()
    first = next(iter(message.signatures))
    spoiled = message.signatures | {first: flip(message.signatures[first])}
    assert refused(run, me, replace(message, signatures=spoiled)) is BadSignature


def test_a_confirmation_of_somebody_further_away_does_not_count() -> None:
    run, me, message = waiting_for_confirmations()
    far = next(c for c in range(8) if c != me and c not in message.signatures)
    more = message.signatures | {far: run.server._confirmed[far]}
    assert refused(run, me, replace(message, signatures=more)) is UnknownSender


def test_ones_own_confirmation_does_not_count_twice() -> None:
    """In a complete graph a client is one of its own holders, and knows its own lists."""
    run = Round(session(5, VALUES, 3), random_vectors(5, VALUES)).until(Stage.UNMASK)
    own_and_one = {0: run.server._confirmed[0], 1: run.server._confirmed[1]}
    assert refused(run, 0, Confirmations(run.session.round_id, own_and_one)) is UnknownSender


def test_a_confirmation_of_the_same_lists_in_another_round_does_not_count() -> None:
    run, earlier = (Round(session(5, VALUES, 3), random_vectors(5, VALUES)) for _ in range(2))
    run.until(Stage.UNMASK)
    earlier.until(Stage.UNMASK)
    replayed = {signer: earlier.server._confirmed[signer] for signer in (1, 2, 3, 4)}
    assert refused(run, 0, Confirmations(run.session.round_id, replayed)) is BadSignature


def test_lists_that_name_somebody_who_never_shared() -> None:
    """It has no secret to open, whether the lists call it alive or lost."""
    for called in ("alive", "dropped"):
        run = Round(session(5, VALUES, 3), random_vectors(5, VALUES)).until(Stage.SHARES)
        run.step(silent=[4])
        run.step()
        lists = run.server._survivors
        with pytest.raises(BadLists):
            run.give(0, replace(lists, **{called: (*getattr(lists, called), 4)}).pack())
        assert not remembers(run, 0)


def test_nothing_is_opened_before_lists_are_compared() -> None:
    run, me, _ = waiting_for_confirmations()
    with pytest.raises(WrongStage):
        run.give(me, run.server._survivors.pack())


def test_the_server_takes_no_confirmation_of_other_lists() -> None:
    run = Round(session(8, VALUES, 3, neighbours=4), random_vectors(8, VALUES)).until(Stage.CONFIRM)
    answer = parse(run.give(1, run.inbox[1]))
    assert isinstance(answer, Confirm)
    with pytest.raises(BadSignature):
        run.server.receive(1, replace(answer, signature=flip(answer.signature)).pack())
    run.server.receive(1, answer.pack())  # its sender may still answer properly


def test_lists_of_people_who_take_no_part() -> None:
    run = Round(session(8, VALUES, 3, neighbours=4), random_vectors(8, VALUES)).until(Stage.CONFIRM)
    message = run.server._survivors
    with pytest.raises(BadLists):
        run.give(1, replace(message, alive=(*message.alive, 99)).pack())


# --------------------------------------------------------------------------------------- chosen company


def test_company_that_the_server_picked_is_refused() -> None:
    """A client that sees only itself and t − 1 corrupt clients would have a complete graph of corrupt clients."""
    n, k, t = 30, 6, 4
    run = Round(session(n, VALUES, t, neighbours=k, least=28), random_vectors(n, VALUES))
    run.until(Stage.SHARES)
    few = (VICTIM, 5, 6, 7)
    keys = tuple(run.server._keys[c] for c in few[1:])
    with pytest.raises(TooFewLeft):
        run.give(VICTIM, Neighbourhood(run.session.round_id, few, keys).pack())
    assert not remembers(run, VICTIM)


def test_clients_who_were_shown_different_company_share_no_keys() -> None:
    n, k, t = 12, 10, 6  # so many neighbours that some are neighbours in both companies
    run = Round(session(n, VALUES, t, neighbours=k, least=11), random_vectors(n, VALUES))
    run.until(Stage.SHARES)
    less = tuple(range(n - 1))
    graph = Graph(less, k, run.session.round_id)
    keys = tuple(run.server._keys[c] for c in graph.neighbours(VICTIM))
    run.inbox[VICTIM] = Neighbourhood(run.session.round_id, less, keys).pack()
    shared = {c: parse(run.give(c, message)) for c, message in run.inbox.items()}
    both = next(c for c in graph.neighbours(VICTIM) if VICTIM in shared[c].ciphertexts)  # type: ignore[attr-defined]
    text = shared[both].ciphertexts[VICTIM]  # type: ignore[attr-defined]
    with pytest.raises(BadCiphertext):
        run.give(VICTIM, Delivery(run.session.round_id, {both: text}).pack())
