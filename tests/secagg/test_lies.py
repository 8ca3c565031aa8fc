"""A lying server reads a person's vector if clients check nothing, and nobody's if they check.

The clients are the state machines that a device runs; only the server is replaced. Each lie works once the check
against it is removed: otherwise a lie that fails would prove nothing. (tests/attacks/test_split_survivors.py has lies
about who was lost.)
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from fedgrec.secagg import Client, Population, SecAggError, Server, Session, client, server
from fedgrec.secagg.messages import Message

VICTIM, CLIENTS, THRESHOLD = 0, 10, 6
VECTOR = np.array([3, -1, 0, 70_000, -2])


class Uncritical(Server):
    """Goes on with any number of clients."""

    def _close_keys(self) -> dict[int, Message]:
        honest, self.session = self.session, replace(self.session, least=2, threshold=1)
        try:
            return super()._close_keys()
        finally:
            self.session = honest


def is_read(liar: Server, people: Population, contexts: Mapping[int, bytes]) -> bool:
    """Whether the sum is the victim's vector: all others send zeros. A client that refuses is silent from then on."""
    clients = {
        me: Client(liar.session, me, identity, people.roster, contexts.get(me, b""))
        for me, identity in people.identities.items()
    }
    for me, one in clients.items():
        one.submit(VECTOR if me == VICTIM else np.zeros_like(VECTOR), int(me == VICTIM))
    inbox: dict[int, bytes | None] = dict.fromkeys(clients)
    with suppress(SecAggError):  # a server that cannot go on gives up
        while not liar.done:
            for me, message in inbox.items():
                with suppress(SecAggError):
                    liar.receive(me, clients[me].start() if message is None else clients[me].receive(message))
            inbox = dict(liar.close())
        return np.array_equal(liar.result()[0], VECTOR)
    return False


def with_an_accomplice(session: Session) -> bool:
    """The sum has two members: the victim, and one client that works for the server."""
    people = Population([VICTIM, VICTIM + 1])
    return is_read(Uncritical(session, people.roster), people, {})


def two_models(session: Session) -> bool:
    """The server sends the others a different model, to which their updates are zeros."""
    people = Population(range(CLIENTS))
    contexts = {me: b"the model" if me == VICTIM else b"a model to which zeros are the answer" for me in range(CLIENTS)}
    return is_read(Server(session, people.roster, contexts[VICTIM]), people, contexts)


# Ten clients insist that all ten take part, and that the server told six of them the same.
AGREED = Session(os.urandom(16), ((len(VECTOR), 32),), CLIENTS, CLIENTS, THRESHOLD, least=CLIENTS)


@pytest.mark.parametrize("lie", [with_an_accomplice, two_models], ids=lambda lie: lie.__name__)
def test_clients_that_check_are_not_read(lie: Callable[[Session], bool]) -> None:
    assert not lie(AGREED)


def test_clients_that_accept_any_company_are_read() -> None:
    assert with_an_accomplice(replace(AGREED, least=2, threshold=2))


def test_clients_that_do_not_bind_masks_to_the_model_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = client.bind
    for module in (client, server):
        monkeypatch.setattr(module, "bind", lambda context, clients: bind(b"", clients))
    assert two_models(AGREED)
