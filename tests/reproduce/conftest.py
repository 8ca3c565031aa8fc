"""Every target in its quick form, once, for tests that look at it but never change it."""

from pathlib import Path

import pytest

from fedgrec import cli

QUICK = ["--quick", "--seeds", "1", "--protocol", "paper", "--device", "cpu"]


def words(folder: Path, *more: str) -> list[str]:
    return ["reproduce", *more, *QUICK, "--out", str(folder / "out"), "--runs", str(folder / "runs")]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce")
    assert cli.main([*words(folder, "all"), "--quiet"]) == 0
    return folder
