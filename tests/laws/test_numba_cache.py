"""Numba's cache on disk: loops are compiled anew when any source of their folders has changed, and only then."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedgrec
from fedgrec.kernels import _numba

HOME, ROOT = Path(_numba.__file__).parent, Path(fedgrec.__file__).parent
ROOMS = (
    "centralized._compiled",
    *(f"kernels.{room}" for room in ("_compiled", "_draws_numba", "_steps_numba", "_sums_numba")),
)


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_kept_is_stamped_with_all_sources(room: str) -> None:
    """The stamp is in a private place of Numba: this test fails if Numba moves it."""
    here = importlib.import_module(f"fedgrec.{room}")
    stamp = _numba.stamp(*sorted({HOME, Path(str(here.__file__)).parent}))
    found = [getattr(each, "part", each) for each in vars(here).values()]
    compiled = [each for each in found if hasattr(each, "py_func")]
    assert compiled
    assert all(each._cache._cache_file._source_stamp == stamp for each in compiled if each.__module__ == here.__name__)


def test_a_change_in_any_source_changes_the_stamp(tmp_path: Path) -> None:
    def stamp() -> str:
        _numba.stamp.cache_clear()
        return _numba.stamp(tmp_path)

    (tmp_path / "draws.py").write_text("a = 1", encoding="utf-8")
    before = stamp()
    os.utime(tmp_path / "draws.py", (0, 0))  # a new copy of the same
    assert stamp() == before
    (tmp_path / "loops.py").write_text("b = 1", encoding="utf-8")
    both = stamp()
    (tmp_path / "draws.py").write_text("a = 2", encoding="utf-8")
    assert len({before, both, stamp()}) == 3


ONE_ROUND = """
from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load_for
from fedgrec.runs.simulation import Simulation

config = Config().changed({"method": "fedgrec", "data": "demo", "kernel": "cpu", "device": "cpu"})
run = Simulation(config, load_for(config))
run.warm_up()
run._round()
print(run.server.items.tobytes().hex())
"""


@pytest.mark.slow
def test_who_compiles_the_loops_has_the_bits_of_those_who_find_them_on_disk(tmp_path: Path) -> None:
    here = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, then = (
        subprocess.run([sys.executable, "-c", ONE_ROUND], env=here, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == then


def test_all_of_numba_is_in_these_rooms() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    using = [
        path for path, text in texts.items() if "kernels._numba import" in text and "import in_threads\n" not in text
    ]
    assert {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in using} == set(ROOMS)
    assert {path.name for path, text in texts.items() if "njit(" in text} == {"_numba.py", "_topk.py"}
