"""Numba's cache on disk: loops are compiled anew when any source of the folder has changed."""

import importlib
from pathlib import Path

import pytest

from fedgrec.kernels import _numba

ROOMS = ("_compiled", "_draws_numba", "_fcf", "_gnn", "_neumf", "_product", "_steps_numba", "_sums_numba")


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_kept_is_stamped_with_all_sources(room: str) -> None:
    """The stamp is in a private place of Numba: this test fails if Numba moves it."""
    here = vars(importlib.import_module(f"fedgrec.kernels.{room}"))
    compiled = [each for each in here.values() if hasattr(each, "py_func")]
    assert compiled
    assert all(each._cache._cache_file._source_stamp == _numba.STAMP for each in compiled)


def test_a_change_in_any_source_changes_the_stamp(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text("a = 1", encoding="utf-8")
    before = _numba.stamp(tmp_path)
    assert _numba.stamp(tmp_path) == before
    (tmp_path / "loops.py").write_text("b = 1", encoding="utf-8")
    both = _numba.stamp(tmp_path)
    (tmp_path / "draws.py").write_text("a = 1 + 1", encoding="utf-8")
    assert len({before, both, _numba.stamp(tmp_path)}) == 3


def test_all_of_numba_is_in_these_rooms() -> None:
    folder = Path(_numba.__file__).parent
    found = {path.stem for path in folder.glob("*.py") if "kernels._numba import" in path.read_text(encoding="utf-8")}
    assert found == set(ROOMS)
    assert not [
        path.name for path in folder.glob("*.py") if "njit(" in path.read_text("utf-8") and path.stem != "_numba"
    ]
