"""A few minutes of the soak test: random faults hit nodes and server, and the laws must hold afterwards."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from benchmarks.soak import soak

SECONDS = 180.0


@pytest.mark.slow
def test_a_federation_that_is_struck_at_random_counts_everything_once(tmp_path: Path) -> None:
    result = soak(tmp_path, SECONDS, seed=1)
    assert {"server killed", "server lost", "starved", "lossy"} <= set(result["strikes"])
    assert result["bytes_vanished"] > 0
    assert len(result["losses"]) == result["strikes"]["server lost"]
    assert result["law"]["latents"] > 0
    assert result["holds"], result
