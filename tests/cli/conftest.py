"""One small file of clicks, and one finished run on it that tests look at but never change."""

from pathlib import Path

import pytest

from fedgrec.cli import training
from tests.cli.small import clicks, train


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take a second and have their own tests."""
    monkeypatch.setattr(training, "_report", lambda *_: None)


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_report", lambda *_: None)
        return train(data, tmp_path_factory.mktemp("runs") / "finished")
