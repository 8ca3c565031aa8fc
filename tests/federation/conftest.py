"""What the tests of the federation share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgrec.federation.common import arrays, sqlite_store
from tests.federation.living import Life
from tests.federation.worlds import World, world


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of crashes kill processes, not machines: the operating system keeps what it was given."""
    monkeypatch.setattr(sqlite_store, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(arrays.os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A small federation in this process that has been trained: four rounds, and an evaluation after every second."""
    fed = world(tmp_path_factory.mktemp("trained"), options={"rounds": 4, "evaluate_every": 2})
    fed.run()
    return fed


@pytest.fixture
def trained(tmp_path: Path, trained_once: World) -> World:
    """A copy of that federation, which a test may change."""
    for name in ("server", "authority"):
        shutil.copytree(trained_once.server.parent / name, tmp_path / name)
    return World(tmp_path / "server", trained_once.nodes, trained_once.transport, trained_once.witness)


@pytest.fixture(scope="session")
def lived_once(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A federation that lives, after its first season."""
    life = Life(tmp_path_factory.mktemp("lived"))
    life.train()
    return life


@pytest.fixture
def life(tmp_path: Path, lived_once: Life) -> Life:
    """A copy of that federation, which a test may change."""
    return lived_once.copied(tmp_path)


@pytest.fixture
def a_run() -> Iterator[None]:
    """A run for Flower's messages: Flower tells it to the process of an app."""
    from flwr.supercore.task_identity import TaskIdentity

    before = {name: getattr(TaskIdentity, f"_{name}") for name in ("run_id", "task_id", "node_id")}
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    yield
    for name, value in before.items():
        setattr(TaskIdentity, f"_{name}", value)
