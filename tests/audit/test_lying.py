"""A lying server reads a person's vector if clients check nothing, and nobody's if they check.

Each lie works once the checks against it are removed. Otherwise a lie that fails would prove nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgrec.secagg import Client, Session, client, server
from fedgrec.studies.audit import lies
from fedgrec.studies.audit.scores import Finding
from tests.audit.worlds import plain

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


def test_clients_that_do_not_compare_what_they_were_told_are_read() -> None:
    assert held(lies.two_stories(session(lying_server=False), VECTOR))


def test_clients_that_answer_twice_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = session(lying_server=False)
    assert lies.asked_again(trusting, VECTOR) is None
    monkeypatch.setattr(Client, "abandon", lambda self: None)  # which forgets all secrets, and ends the round
    assert held(lies.asked_again(trusting, VECTOR))


# -------------------------------------------------------------------------------------------- the lines


def lines() -> list[Finding]:
    view, truth = plain()
    found = lies.audit(view, truth)
    assert all(isinstance(line, Finding) for line in found)
    return [line for line in found if isinstance(line, Finding)]


def test_both_lines() -> None:
    unchecked, checked = lines()
    assert unchecked.attack.value == 1
    assert unchecked.better
    assert checked.attack.value == 0
    assert checked.people == lies.LIED_TO * len(lies.LIES)
    assert checked.more["lies"] == ["with_an_accomplice", "two_models", "two_stories", "asked_again"]


def test_what_is_read_is_the_upload() -> None:
    _, truth = plain()
    assert truth.trained is not None
    spec = truth.trained.sum.spec
    for upload in list(truth.trained.uploads.values())[:3]:
        read = lies.read(upload, truth.trained)
        assert read is not None
        assert (read.to_ring(spec) == upload.to_ring(spec)).all()


def test_a_lie_that_works_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: one of four lies works for every second person; another gives a wrong vector."""
    calls = iter(range(100))
    mixed = (
        lambda session, vector: vector if next(calls) % 2 == 0 else None,
        lambda session, vector: vector + 1,
        lambda session, vector: None,
        lambda session, vector: None,
    )
    monkeypatch.setattr(lies, "LIES", mixed)
    _, truth = plain()
    assert truth.trained is not None
    assert lies.attempts(truth.trained).sum() == 3  # of five people
