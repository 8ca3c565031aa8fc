"""One small file of clicks, and one finished comparison on it that tests look at but never change."""

from pathlib import Path

import pytest

from tests.cli.small import clicks
from tests.compare.small import compared


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


@pytest.fixture(scope="session")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "finished"
    compared(data, out)
    return out
