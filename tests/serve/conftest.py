from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgrec.serve import served
from fedgrec.serve.door import Door
from tests.cli.small import clicks, train
from tests.serve.callers import TOKENS


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    return train(clicks(place / "clicks.csv"), place / "run")


@pytest.fixture
def door(run: Path) -> Iterator[Door]:
    with served(run, TOKENS, port=0) as door:
        yield door
