"""A lying server reads a person's vector if clients check nothing, and nobody's if they check.

Each lie works once the checks against it are removed. Otherwise a lie that fails would prove nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.secagg import Client, Session, Stage, client, server
from tests.secagg import lies

VECTOR = np.array([3, -1, 0, 70_000, -2])


def session(**changes: Any) -> Session:
    return replace(lies.agreed(((len(VECTOR), 32),)), **changes)


@pytest.mark.parametrize("lie", lies.LIES, ids=lambda lie: lie.__name__)
def test_clients_that_check_are_not_read(lie: Callable[..., Any]) -> None:
    assert lie(session(), VECTOR) is None


def held(found: Any) -> bool:
    return found is not None and np.array_equal(found, VECTOR)


def test_clients_that_accept_any_company_are_read() -> None:
    assert held(lies.with_an_accomplice(session(least=2, threshold=2), VECTOR))


def test_clients_that_do_not_bind_masks_to_the_model_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = client.bind
    for module in (client, server):
        monkeypatch.setattr(module, "bind", lambda context, clients: bind(b"", clients))
    assert held(lies.two_models(session(), VECTOR))


def test_clients_that_do_not_compare_what_they_were_told_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_compare", lambda *_: None)
    assert held(lies.two_stories(session(), VECTOR))


def test_clients_that_answer_twice_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def go_on(self: Client) -> None:
        """Instead of forgetting all secrets, and ending the round."""
        self.stage = Stage.CONFIRM

    monkeypatch.setattr(Client, "abandon", go_on)
    assert held(lies.asked_again(session(), VECTOR))
