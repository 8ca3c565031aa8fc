"""What the tests of the federation share."""

from collections.abc import Iterator

import pytest

from fedgrec.federation.common import arrays, sqlite_store


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of crashes kill processes, not machines: what the operating system was given it has."""
    monkeypatch.setattr(sqlite_store, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(arrays.os, "fsync", lambda handle: None)


@pytest.fixture
def a_run() -> Iterator[None]:
    """Flower's messages belong to a run, which the process of an app is told of."""
    from flwr.supercore.task_identity import TaskIdentity

    before = {name: getattr(TaskIdentity, f"_{name}") for name in ("run_id", "task_id", "node_id")}
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    yield
    for name, value in before.items():
        setattr(TaskIdentity, f"_{name}", value)
