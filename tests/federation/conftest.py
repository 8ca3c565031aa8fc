"""Tests of crashes kill processes, not machines: what the operating system was given it has."""

import pytest

from fedgrec.federation import arrays, store


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SYNCHRONOUS", "OFF")
    monkeypatch.setattr(arrays.os, "fsync", lambda handle: None)
