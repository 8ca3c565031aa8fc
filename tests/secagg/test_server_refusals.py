"""Each refusal of a server has its own error and changes nothing: the server still accepts the proper answer."""

import os
from dataclasses import replace

import numpy as np
import pytest

from fedgrec.secagg import Stage, ring
from fedgrec.secagg.errors import (
    BadLists,
    BadShare,
    BadSignature,
    MalformedMessage,
    SecAggError,
    SecondAnswer,
    UnknownSender,
    WrongRound,
    WrongStage,
)
from fedgrec.secagg.messages import Masked, Shares, Survivors, parse
from tests.secagg.rounds import (
    GRAPHS,
    STRANGER,
    flip,
    fresh_round,
    keys_for_other_parameters,
    keys_of_another_round,
)


def without_last(shares: Shares) -> Shares:
    return replace(shares, ciphertexts=dict(sorted(shares.ciphertexts.items())[:-1]))


ANSWERS = {
    "keys: flipped signature": (
        Stage.KEYS,
        BadSignature,
        lambda r, m: (0, replace(m, signature=flip(m.signature))),
    ),
    "keys: of another client": (Stage.KEYS, UnknownSender, lambda r, m: (1, m)),
    "keys: renamed": (Stage.KEYS, BadSignature, lambda r, m: (1, replace(m, sender=1))),
    "keys: of nobody": (Stage.KEYS, UnknownSender, lambda r, m: (STRANGER, replace(m, sender=STRANGER))),
    "keys: of another round": (Stage.KEYS, BadSignature, lambda r, m: (0, keys_of_another_round(r, m))),
    "keys: for other parameters": (Stage.KEYS, BadSignature, lambda r, m: (0, keys_for_other_parameters(r, m))),
    "shares: one missing": (Stage.SHARES, BadLists, lambda r, m: (0, without_last(m))),
    "shares: for a stranger": (
        Stage.SHARES,
        BadLists,
        lambda r, m: (0, replace(m, ciphertexts=m.ciphertexts | {STRANGER: b""})),
    ),
    "shares: for itself": (
        Stage.SHARES,
        BadLists,
        lambda r, m: (0, replace(m, ciphertexts=m.ciphertexts | {0: b""})),
    ),
    "vector: a byte short": (
        Stage.MASKED,
        MalformedMessage,
        lambda r, m: (0, replace(m, vector=bytes(m.vector)[:-1])),
    ),
    "vector: a word short": (
        Stage.MASKED,
        MalformedMessage,
        lambda r, m: (0, replace(m, vector=bytes(m.vector)[:-4])),
    ),
    "vector: a word long": (
        Stage.MASKED,
        MalformedMessage,
        lambda r, m: (0, replace(m, vector=bytes(m.vector) + bytes(4))),
    ),
    "shares opened: one too few": (
        Stage.UNMASK,
        BadShare,
        lambda r, m: (0, replace(m, seeds=dict(list(m.seeds.items())[1:]))),
    ),
    **{
        f"{stage.value}: {name}": (stage, error, tamper)
        for stage in (Stage.KEYS, Stage.SHARES, Stage.MASKED, Stage.UNMASK)
        for name, error, tamper in (
            ("of a stranger", UnknownSender, lambda r, m: (STRANGER, m)),
            ("another round", WrongRound, lambda r, m: (0, replace(m, round_id=os.urandom(16)))),
            ("another kind", WrongStage, lambda r, m: (0, Survivors(r.session.round_id, (), ()))),
        )
    },
}


@pytest.mark.parametrize("graph", ["complete", "sparse"])
@pytest.mark.parametrize(("stage", "error", "tamper"), ANSWERS.values(), ids=ANSWERS)
def test_the_server_refuses_and_goes_on(graph, stage, error, tamper) -> None:
    run = fresh_round(graph).until(stage)
    proper = run.give(0, run.inbox.pop(0))
    sender, wrong = tamper(run, parse(proper))
    with pytest.raises(SecAggError) as refusal:
        run.server.receive(sender, wrong.pack())
    assert type(refusal.value) is error
    assert run.server.waiting == set(run.clients)
    run.server.receive(0, proper)
    run.play()
    assert run.server.included == sorted(run.clients)
    assert np.array_equal(run.server.result()[0], run.plain_sum(run.clients))


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_first_answer_stands_and_old_ones_are_not_taken(graph) -> None:
    run = fresh_round(graph)
    while not run.server.done:
        proper = run.give(0, run.inbox.pop(0))
        run.server.receive(0, proper)
        with pytest.raises(SecondAnswer):
            run.server.receive(0, proper)
        for replayed in run.sent[0][:-1]:
            with pytest.raises(WrongStage):
                run.server.receive(0, replayed)
        run.step()
    with pytest.raises(WrongStage):
        run.server.receive(0, proper)
    with pytest.raises(WrongStage):
        run.server.close()
    assert np.array_equal(run.server.result()[0], run.plain_sum(run.clients))


def test_whoever_was_silent_takes_no_part_any_more() -> None:
    run = fresh_round("complete").until(Stage.SHARES)
    late = run.give(0, run.inbox[0])
    run.step(silent=[0])
    with pytest.raises(WrongStage):
        run.server.receive(0, late)
    with pytest.raises(UnknownSender):
        run.server.receive(0, Masked(run.session.round_id, bytes(ring.packed_bytes(run.session.parts))).pack())
    run.play()
    assert np.array_equal(run.server.result()[0], run.plain_sum(range(1, 5)))
