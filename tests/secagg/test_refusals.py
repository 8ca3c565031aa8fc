"""A client refuses a message that breaks a rule, with the rule's own error; no secret leaves, all is forgotten."""

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgrec.secagg import Client, Stage, shamir
from fedgrec.secagg import client as client_module
from fedgrec.secagg.errors import (
    BadCiphertext,
    BadInput,
    BadLists,
    BadShare,
    BadSignature,
    MalformedMessage,
    SecAggError,
    TooFewLeft,
    UnknownSender,
    WrongStage,
)
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import signed_part
from fedgrec.secagg.messages import (
    HEADER,
    Confirmations,
    Delivery,
    Keys,
    Neighbourhood,
    Reveal,
    Shares,
    Survivors,
    parse,
)
from tests.secagg.rounds import (
    GRAPHS,
    STRANGER,
    Round,
    flip,
    fresh_round,
    keys_for_other_parameters,
    keys_of_another_round,
    leaks,
    population,
    remembers,
    session,
    twin,
)

SMALL_ORDER = bytes(32)  # a public key that agrees on zero with everybody

# ------------------------------------------------------------------------------- stage 1: who takes part


def first_keys(change: Callable[[Round, Keys], Keys]) -> Callable[[Round, Neighbourhood], Neighbourhood]:
    return lambda run, m: replace(m, keys=(change(run, m.keys[0]), *m.keys[1:]))


def signed(run: Round, sender: int, mask_key: bytes, cipher_key: bytes) -> Keys:
    """Keys that a corrupt client properly signed."""
    signature = (
        population(len(run.vectors)).identities[sender].sign(signed_part(run.session, sender, mask_key, cipher_key))
    )
    return Keys(run.session.round_id, sender, mask_key, cipher_key, signature)


def another_identity_on_the_roster(run: Round, message: Neighbourhood) -> Neighbourhood:
    client, other = run.clients[0], message.keys[0].sender
    client.roster = {**client.roster, other: client.roster[0]}
    return message


def others_as_neighbours(run: Round, message: Neighbourhood) -> Neighbourhood:
    """Replace one neighbour by a client that is none; or, if all clients are neighbours, leave one out."""
    far = set(run.clients) - {0} - {keys.sender for keys in message.keys}
    keys = [parse(run.sent[other][0]) for other in sorted({k.sender for k in message.keys[1:]} | set(list(far)[:1]))]
    return replace(message, keys=tuple(keys))


def shrunk(size: Callable[[Round], int]) -> Callable[[Round, Neighbourhood], Neighbourhood]:
    """The neighbourhood of a proper graph of fewer clients."""

    def shrink(run: Round, message: Neighbourhood) -> Neighbourhood:
        clients = message.clients[: size(run)]
        graph = Graph(clients, run.session.neighbours, run.session.round_id)
        return replace(message, clients=clients, keys=tuple(parse(run.sent[n][0]) for n in graph.neighbours(0)))

    return shrink


NEIGHBOURHOODS = {
    "identity of another": (BadSignature, another_identity_on_the_roster),
    "flipped signature": (BadSignature, first_keys(lambda _, k: replace(k, signature=flip(k.signature)))),
    "flipped mask key": (BadSignature, first_keys(lambda _, k: replace(k, mask_key=flip(k.mask_key)))),
    "flipped cipher key": (BadSignature, first_keys(lambda _, k: replace(k, cipher_key=flip(k.cipher_key)))),
    "swapped keys": (BadSignature, first_keys(lambda _, k: replace(k, mask_key=k.cipher_key, cipher_key=k.mask_key))),
    "keys of another client": (
        BadSignature,
        lambda _, m: replace(
            m,
            keys=(
                replace(m.keys[1], sender=m.keys[0].sender),
                replace(m.keys[0], sender=m.keys[1].sender),
                *m.keys[2:],
            ),
        ),
    ),
    "keys of another round": (BadSignature, first_keys(keys_of_another_round)),
    "keys for other parameters": (BadSignature, first_keys(keys_for_other_parameters)),
    "not among them": (BadLists, lambda _, m: replace(m, clients=m.clients[1:])),
    "unknown client": (UnknownSender, lambda _, m: replace(m, clients=(*m.clients, STRANGER))),
    "neighbour missing": (BadLists, lambda _, m: replace(m, keys=m.keys[1:])),
    "neighbour unknown": (BadLists, lambda _, m: replace(m, keys=(*m.keys, replace(m.keys[-1], sender=STRANGER)))),
    "other neighbours": (BadLists, others_as_neighbours),
    "itself as a neighbour": (BadLists, lambda r, m: replace(m, keys=(parse(r.sent[0][0]), *m.keys))),
    "no neighbours": (BadLists, lambda _, m: replace(m, keys=())),
    "alone": (TooFewLeft, shrunk(lambda _: 1)),
    "fewer than the threshold": (TooFewLeft, shrunk(lambda r: r.session.threshold - 1)),
    "small order cipher key": (
        BadSignature,
        first_keys(lambda r, k: signed(r, k.sender, k.mask_key, SMALL_ORDER)),
    ),
}


# -------------------------------------------------------------------------- stage 2: the others' shares


def texts(change: Callable[[Round, dict[int, bytes]], dict[int, bytes]]) -> Callable[[Round, Delivery], Delivery]:
    return lambda run, m: replace(m, ciphertexts=m.ciphertexts | change(run, m.ciphertexts))


def first_text(change: Callable[[bytes], bytes]) -> Callable[[Round, Delivery], Delivery]:
    return texts(lambda _, t: {min(t): change(t[min(t)])})


def swapped(_: Round, text: dict[int, bytes]) -> dict[int, bytes]:
    one, two = sorted(text)[:2]
    return {one: text[two], two: text[one]}


def own_share_reflected(run: Round, text: dict[int, bytes]) -> dict[int, bytes]:
    """What client 0 encrypted for another client, as if that client had encrypted it for client 0."""
    shares = parse(run.sent[0][1])
    assert isinstance(shares, Shares)
    return {min(text): shares.ciphertexts[min(text)]}


def text_of_another_round(run: Round, text: dict[int, bytes]) -> dict[int, bytes]:
    while True:  # until the two are neighbours there, too
        other = Round(replace(run.session, round_id=os.urandom(16)), run.vectors).until(Stage.MASKED)
        message = parse(other.inbox[0])
        assert isinstance(message, Delivery)
        if min(text) in message.ciphertexts:
            return {min(text): message.ciphertexts[min(text)]}


def sealed(plain: bytes) -> Callable[[Round, dict[int, bytes]], dict[int, bytes]]:
    """A corrupt client encrypts something other than two shares."""
    return lambda run, text: {min(text): run.clients[min(text)]._seal(0, plain)}


def in_field(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(shamir.SHARE_BYTES, "big") for number in numbers)


def others_needed(run: Round) -> int:
    """Holders needed beside the client: in a complete graph it holds shares of its own."""
    return run.session.threshold - (0 in run.held[0])


def only(count: Callable[[Round], int]) -> Callable[[Round, Delivery], Delivery]:
    return lambda run, m: replace(m, ciphertexts=dict(sorted(m.ciphertexts.items())[: count(run)]))


def forget_the_vector(run: Round, message: Delivery) -> Delivery:
    run.clients[0]._words = None
    return message


DELIVERIES = {
    "flipped ciphertext": (BadCiphertext, first_text(flip)),
    "flipped tag": (BadCiphertext, first_text(lambda t: flip(t, 8 * len(t) - 1))),
    "cut ciphertext": (BadCiphertext, first_text(lambda t: t[:-1])),
    "empty ciphertext": (BadCiphertext, first_text(lambda t: b"")),
    "swapped senders": (BadCiphertext, texts(swapped)),
    "own share reflected": (BadCiphertext, texts(own_share_reflected)),
    "another round": (BadCiphertext, texts(text_of_another_round)),
    "not two shares": (BadCiphertext, texts(sealed(in_field(1)))),
    "share outside the field": (BadShare, texts(sealed(in_field(1, shamir.PRIME)))),
    "unknown sender": (UnknownSender, texts(lambda _, t: {STRANGER: t[min(t)]})),
    "from itself": (UnknownSender, texts(lambda _, t: {0: t[min(t)]})),
    "too few holders": (TooFewLeft, only(lambda r: others_needed(r) - 1)),
    "nobody": (TooFewLeft, only(lambda _: 0)),
    "no vector": (BadInput, forget_the_vector),
}


# ------------------------------------------------------------------------ stage 3: who is alive, who is lost


def told(change: Callable[[tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]) -> Callable[..., Survivors]:
    """Survivors and lost clients, made from all clients that should be named; client 0 itself is the first."""
    return lambda _, m: replace(m, **dict(zip(("alive", "dropped"), change(m.alive), strict=True)))


def alive(others: Callable[[Round], int]) -> Callable[[Round, Survivors], Survivors]:
    """This many others around client 0 are alive, and the rest are lost."""

    def tamper(run: Round, message: Survivors) -> Survivors:
        kept = {0, *run.server._graph.neighbours(0)[: others(run)]}
        lost = tuple(sorted(set(message.alive) - kept))
        return replace(message, alive=tuple(sorted(kept)), dropped=lost)

    return tamper


def without_a_neighbour(run: Round, message: Survivors) -> Survivors:
    last = run.server._graph.neighbours(0)[-1]
    return replace(message, alive=tuple(c for c in message.alive if c != last))


SURVIVORS = {
    "overlapping lists": (BadLists, told(lambda all_: (all_, all_[1:2]))),
    "itself both": (BadLists, told(lambda all_: (all_, all_[:1]))),
    "itself missing": (BadLists, told(lambda all_: (all_[1:], ()))),
    "unknown survivor": (BadLists, told(lambda all_: ((*all_, STRANGER), ()))),
    "unknown lost client": (BadLists, told(lambda all_: (all_, (STRANGER,)))),
    "somebody left out": (BadLists, without_a_neighbour),
    "nobody": (BadLists, told(lambda all_: ((), ()))),
    "too few alive": (TooFewLeft, alive(lambda r: others_needed(r) - 1)),
    "all others lost": (TooFewLeft, alive(lambda _: 0)),
}

# ---------------------------------------------------------------------------------------- all of them

RULES = [
    pytest.param(graph, stage, *rule, id=f"{graph}: {name}")
    for graph in GRAPHS
    for stage, rules in (
        (Stage.SHARES, NEIGHBOURHOODS),
        (Stage.MASKED, DELIVERIES),
        (Stage.CONFIRM, SURVIVORS),
    )
    for name, rule in rules.items()
]


@pytest.mark.parametrize(("graph", "stage", "error", "tamper"), RULES)
def test_a_broken_rule_is_refused_and_all_is_forgotten(graph, stage, error, tamper) -> None:
    run = fresh_round(graph).until(stage)
    proper, sent = run.inbox[0], len(run.sent[0])
    wrong = tamper(run, parse(proper)).pack()
    with pytest.raises(SecAggError) as refusal:
        run.give(0, wrong)
    assert type(refusal.value) is error
    assert len(run.sent[0]) == sent
    assert leaks(run, 0) == []
    assert not remembers(run, 0)
    for late in (proper, wrong):
        with pytest.raises(WrongStage):
            run.give(0, late)
    with pytest.raises(WrongStage):
        run.clients[0].submit(run.vectors[0])
    run.play({0: stage})  # the others do without it
    assert np.array_equal(run.server.result()[0], run.plain_sum(run.server.included))


@pytest.mark.parametrize("graph", ["complete", "sparse"])
@pytest.mark.parametrize(
    ("stage", "tamper"), [(Stage.MASKED, only(others_needed)), (Stage.CONFIRM, alive(others_needed))]
)
def test_exactly_the_threshold_is_enough_for_a_client(graph, stage, tamper) -> None:
    run = fresh_round(graph).until(stage)
    run.give(0, tamper(run, parse(run.inbox[0])).pack())
    assert leaks(run, 0) == []


def test_a_mask_key_of_small_order_is_refused_before_the_vector_leaves() -> None:
    """Otherwise everybody would know the mask of the two clients."""
    run = fresh_round("complete").until(Stage.SHARES)
    message = parse(run.inbox[0])
    assert isinstance(message, Neighbourhood)
    tamper = first_keys(lambda r, k: signed(r, k.sender, SMALL_ORDER, k.cipher_key))
    run.inbox[0] = tamper(run, message).pack()
    run.step()
    with pytest.raises(BadSignature):
        run.give(0, run.inbox[0])
    assert [type(parse(message)) for message in run.sent[0]] == [Keys, Shares]
    assert leaks(run, 0) == []
    assert not remembers(run, 0)


@pytest.mark.parametrize("t", [2, 6])
def test_a_threshold_that_is_not_safe_or_not_possible_is_refused(t) -> None:
    """With a threshold of two, each half of the four holders could open one secret; six holders do not exist."""
    run = fresh_round("sparse", threshold=t).until(Stage.SHARES)
    with pytest.raises(TooFewLeft):
        run.give(0, run.inbox[0])
    assert not remembers(run, 0)


def test_no_bit_of_keys_or_of_a_share_can_be_flipped() -> None:
    run = fresh_round("complete").until(Stage.SHARES)
    keys_at = HEADER.size + 4 + 4 * 5 + 4  # behind the list of clients
    for bit in range(8 * Keys.SIZE):
        with pytest.raises((BadSignature, BadLists, MalformedMessage)) as refusal:
            twin(run.clients[0]).receive(flip(run.inbox[0], 8 * keys_at + bit))
        assert (
            bit < 32 or refusal.type is BadSignature
        )  # the first 32 bits name the sender: out of order, or no neighbour
    run.until(Stage.MASKED)
    text_at, text_bytes = HEADER.size + 4 + 8, 2 * shamir.SHARE_BYTES + 16
    for bit in range(8 * text_bytes):
        with pytest.raises(BadCiphertext):
            twin(run.clients[0]).receive(flip(run.inbox[0], 8 * text_at + bit))
    run.play()  # the twins did not spoil the round
    assert np.array_equal(run.server.result()[0], run.plain_sum(range(5)))


# ------------------------------------------------------------------- mutants that the checks above must see


def test_a_vector_without_masks_is_a_leak(monkeypatch) -> None:
    assert leaks(fresh_round("complete").play(), 0) == []
    monkeypatch.setattr(client_module, "mask_parts", lambda *_: None)
    assert leaks(fresh_round("complete").until(Stage.UNMASK), 0) == ["vector"]


def test_shares_that_are_not_encrypted_are_a_leak(monkeypatch) -> None:
    monkeypatch.setattr(Client, "_seal", lambda self, to, plain: plain)
    monkeypatch.setattr(Client, "_open", lambda self, sender, text: text)
    assert leaks(fresh_round("complete").until(Stage.UNMASK), 0) == ["shares for others"]
    monkeypatch.setattr(shamir, "share", lambda secret, t, holders: dict.fromkeys(holders, secret))
    assert leaks(fresh_round("complete").until(Stage.MASKED), 0)[:2] == ["seed", "mask key"]


def test_a_client_that_believes_overlapping_lists_is_a_leak(monkeypatch) -> None:
    def reveal(self, alive, dropped):
        seeds = {owner: self._held[owner][0] for owner in alive}
        return Reveal(self.session.round_id, seeds, {owner: self._held[owner][1] for owner in dropped})

    monkeypatch.setattr(Client, "_believe", lambda self, message: (message.alive, message.dropped))
    monkeypatch.setattr(Client, "_reveal", reveal)
    monkeypatch.setattr(Client, "_compare", lambda *_: None)
    run = fresh_round("complete").until(Stage.CONFIRM)
    run.give(0, Survivors(run.session.round_id, (0, 1, 2, 3, 4), (3,)).pack())
    told = Confirmations(run.session.round_id, {}).pack()
    run.give(0, told)
    assert leaks(run, 0) == ["both secrets of client 3"]
    assert remembers(run, 0)
    run.give(0, told)
    assert "shares, twice" in leaks(run, 0)


def test_keys_of_small_order_are_the_ones_that_agree_on_zero() -> None:
    with pytest.raises(BadSignature):
        client_module.derive(X25519PrivateKey.generate(), SMALL_ORDER, b"", session(3, 1, 2), b"")
