"""Law 4 for the kernel that keeps rows on a GPU's chip: its rounds are those of the verbs.

Without a GPU the same source is compiled by g++ against `emulated.h`: small blocks of C++ threads, real barriers.
"""

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from fedgrec.config import FedGRecOptions, preset
from tests.laws.worlds import Run, World, worlds

pytest.importorskip("triton", reason="Triton is not installed: no loops for a GPU")
from fedgrec.kernels import cuda, resident
from tests.laws import test_engine
from tests.laws.test_engine import DEVICE, differences, results_of_two

if DEVICE == "cpu" and shutil.which("g++") is None:
    pytest.skip("there is neither a GPU nor g++ to emulate one", allow_module_level=True)

HERE = Path(__file__).parent
CUTS = {  # by D
    16: resident.Cut(cluster=3, threads=16, warp=8),
    32: resident.Cut(cluster=1, threads=32, warp=8),
    64: resident.Cut(cluster=2, threads=32, warp=16),
}
LAUNCH = cuda.Launch(rows=32, drawn=64, items=64, registers=None)  # few programs: what they do is not tested here
MOST, HOMES = 40, 1  # positives of a user here, and those of a block that are in shared memory
FIXED = ("REAL", "D", "THREADS", "CLUSTER", "WARP", "SHARED", "HOMES", "CAP")  # the others vary without compiling


@cache
def library(source: str, D: int, varying: tuple[tuple[str, str], ...]) -> Any:
    """The source compiled for the host; names that are not fixed stand for an array's entries."""
    cut = CUTS[D]
    shared = cut.fixed(D, MOST, real=8) + HOMES * cut.home(D, real=8)
    fixed = ("double", D, cut.threads, cut.cluster, cut.warp, shared, HOMES, MOST)
    lines = [f"#define {name} {value}" for name, value in zip(FIXED, fixed, strict=True)]
    lines += ['#include "emulated.h"', "static double option[64];"]
    lines += [f"#define {name} {kind}(option[{i}])" for i, (name, kind) in enumerate(varying)]
    lines += [source, 'extern "C" void launch(void **arguments, const double *options, int clusters) {']
    lines += [f"std::copy(options, options + {len(varying)}, option); emulate(resident, arguments, clusters); }}"]
    folder = Path(tempfile.mkdtemp(prefix="fedgrec-emulated-"))
    try:
        (folder / "resident.cpp").write_text("\n".join(lines), encoding="utf-8")
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", f"-I{HERE}", "-w"]
        subprocess.run([*command, "-o", "resident.so", "resident.cpp"], cwd=folder, check=True, timeout=60)
        return ctypes.CDLL(str(folder / "resident.so"))
    finally:
        shutil.rmtree(folder)


def emulated(source: str, constants: resident.Constants, shared: int) -> Any:
    """As resident.nvrtc."""
    assert int(constants["MOST_POSITIVES"]) <= MOST
    varying = {name: value for name, value in constants.items() if name not in FIXED}
    kinds = tuple((name, "int" if isinstance(value, int) else "real") for name, value in varying.items())
    there = library(source, int(constants["D"]), kinds)

    def kernel(grid: tuple[int, ...], block: tuple[int, ...], args: list[Any], shared_mem: int) -> None:
        pointers = (ctypes.c_void_p * len(args))(*(tensor.data_ptr() for tensor in args))
        options = (ctypes.c_double * len(varying))(*(float(value) for value in varying.values()))
        there.launch(pointers, options, grid[0] // int(constants["CLUSTER"]))

    return kernel


def on_the_chip(o: FedGRecOptions, device: Any, sizes: dict[str, int], numbers: Any) -> resident.Resident:
    """As resident.where_it_fits, for the double precision of these tests."""
    if DEVICE == "cuda":
        return resident.Resident(sizes, numbers, cut=resident.Cut(threads=64))
    return resident.Resident(sizes, numbers, emulated, CUTS[sizes["D"]])


@pytest.fixture(autouse=True, scope="module")
def chip() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "where_it_fits", on_the_chip)
        patch.setattr(test_engine, "SMALL", LAUNCH)
        yield


KNOWN = {"loss": "bpr", "precision": "float64", "local_steps": 3, "similarity": "inner", "popular_negatives": 0.0}
OPTIONS = replace(
    preset("bpr").model, dim=8, negatives=30, users_per_round=5, l2=0.1, item_rate=0.05, server_optimizer="sum",
    precision="float64", local_steps=3, item_optimizer="adam", user_rate=0.05,
)  # fmt: skip


def world_of(options: FedGRecOptions, density: float = 0.3) -> World:
    return World(np.random.default_rng(4).random((6, 40)) < density, options, seed=1)


@settings(max_examples=5)
@given(worlds(max_users=5, max_items=40, combine="mean", **KNOWN))
def test_a_round_is_that_of_the_verbs(world: World) -> None:
    n = min(world.options.users_per_round, world.n_users)
    assert max(differences(world, [np.arange(n)]).values()) < 1e-6


VARIANTS = {
    "as the paper": {"live": False, "user_moments": "fresh"},
    "sums of steps": {"item_optimizer": "sgd", "user_optimizer": "sgd", "reduction": "sum", "item_rate": 0.01},
    "decay of rows": {"l2_scaling": "row", "exclude_positives": False, "combine": "last"},
    "some feedback": {"feedback": 0.5, "max_positives": 7, "latent_rate": 0.5},
    "many positives": {"negatives": 5, "layers": 0},
    "clipped": {"item_clip": 0.05, "item_rate": 0.1},
    "one block": {"dim": 20, "live": False},
    "wide rows": {"dim": 64, "negatives": 29},
    "not quite as wide": {"dim": 45, "live": False},
}


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_options_and_rounds_follow_the_verbs(change: dict[str, Any]) -> None:
    """Rates that fall, users who come again, some who drop out, a round in which nobody arrives."""
    world = world_of(replace(OPTIONS, half_life=2, **change), 0.7 if "layers" in change else 0.3)
    world.Y[3] = False  # a user without items
    rounds = [np.array(users, int) for users in ([0, 1, 3], [], [1])]
    assert max(differences(world, rounds).values()) < 1e-6


@pytest.mark.parametrize("slow", range(CUTS[16].cluster))
def test_no_block_runs_away_from_a_slow_one(slow: int, monkeypatch: Any) -> None:
    """A user with one positive, which one block owns: the other blocks wait for no slopes."""
    world = World(np.arange(60) == np.array([[7], [8]]), replace(OPTIONS, negatives=48, live=False), seed=1)
    monkeypatch.setenv("SLOW_BLOCK", str(slow))
    assert max(differences(world, [np.arange(2)]).values()) < 1e-6


def test_the_same_bits_every_time() -> None:
    results = results_of_two(world_of(OPTIONS), [np.arange(4)], LAUNCH)
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


MUTANTS = {
    "nothing": {},
    "no penalty": {"l2": 0.0},
    "frozen latents": {"live": False},
    "another rate": {"item_rate": 0.049},
    "positives among the negatives": {"exclude_positives": False},
    "fresh moments": {"user_moments": "fresh"},
    "rates that fall": {"half_life": 1},
    "one step less": {"local_steps": 2},
    "plain steps": {"item_optimizer": "sgd"},
    "a sum": {"reduction": "sum"},
}


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_mutants_break_the_law(change: dict[str, Any]) -> None:
    far = max(differences(world_of(OPTIONS), [np.arange(1)] * 2, replace(OPTIONS, **change)).values())
    assert far > 1e-5 if change else far < 1e-6


def test_the_papers_options_fit_and_others_do_not() -> None:
    paper, cut = preset("paper").model, resident.Cut()
    assert resident.fits(paper, 64, paper.negatives, 811, cut)  # Gowalla's longest user has 811 items
    for change in ({"loss": "mse0"}, {"combine": "concat"}, {"local_steps": 1}, {"precision": "float64"}):
        assert not resident.fits(replace(paper, **change), 64, paper.negatives, 811, cut)
    assert not resident.fits(paper, 64, cut.held(64) + 1, 811, cut)
    assert not resident.fits(paper, 64, paper.negatives, 10_000, cut)
    assert not resident.fits(paper, 512, 16, 10, cut)


@pytest.mark.skipif(not resident.can_run(cuda.place(DEVICE)), reason="there is no GPU with clusters")
def test_the_kernel_as_it_trains_agrees_with_the_loops() -> None:
    """On a GPU, in single precision and at full size, where the last digits may differ."""
    options = replace(preset("paper").model, users_per_round=20)
    world, results = World(np.random.default_rng(4).random((20, 4000)) < 0.05, options, seed=1), []
    run = Run.warmed_up(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "where_it_fits", resident.where_it_fits)
        for launch in (cuda.Launch(), cuda.Launch(resident=False)):
            engine = cuda.Engine(run.method, run.server, run.users, DEVICE, launch)
            assert (engine.resident is not None) == launch.resident
            engine.run([np.arange(20)] * 2)
            server, state = run.method.init(0), run.users.state.copy()
            engine.give_back(server, state)
            results.append((server.items[0] - run.server.items[0], state.embeddings))
    for found, expected in zip(*results, strict=True):
        assert np.abs(found - expected).mean() < 1e-4 * np.abs(expected).mean()
