"""Every target in its quick form, once, for tests that look at it but never change it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgrec import cli
from tests.cli.small import clicks

USERS, ITEMS = 100, 200  # of a file: the demo takes twice as long
DATA = Path(tempfile.gettempdir(), f"fedgrec-reproduce-{os.getpid()}", "small.csv")  # runs remember where it is
QUICK = ["--quick", "--seeds", "1", "--protocol", "paper", "--device", "cpu", "--data", str(DATA)]


def words(folder: Path, *more: str) -> list[str]:
    return ["reproduce", *more, *QUICK, "--out", str(folder / "out"), "--runs", str(folder / "runs")]


@pytest.fixture(scope="session", autouse=True)
def _data() -> Iterator[None]:
    DATA.parent.mkdir(exist_ok=True)
    clicks(DATA, USERS, ITEMS)
    yield
    shutil.rmtree(DATA.parent)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    assert cli.main([*words(folder, "all"), "--quiet"]) == 0
    return folder
