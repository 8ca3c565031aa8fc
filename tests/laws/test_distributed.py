"""Several processes leave the same bits as one; if a process dies, nothing that was saved is lost."""

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgrec import cli
from fedgrec.cable.core import Cohort
from fedgrec.cli import training
from fedgrec.config.configuration import Config, options
from fedgrec.config.options import METHODS, RunOptions
from fedgrec.data.datasets import load_for
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.models import ranking
from fedgrec.runs import distributed
from fedgrec.runs.distributed import Processes, Ranks, launched
from fedgrec.runs.resolve import resolved
from fedgrec.runs.simulation import Observer, Simulation
from tests.cli.small import QUICK, clicks, train, train_words
from tests.laws.test_resume_law import assert_whole, outcome
from tests.waits import seconds

pytest.importorskip("torch")
TRAIN = {"rounds": 12, "users_per_round": 12, "evaluate_every": 4, "checkpoint_every": 5, "dropout": 0.1}
LONG = {"rounds": 200, "evaluate_every": 30, "checkpoint_every": 1, "dropout": 0.2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_report", lambda *_: None)


# -------------------------------------------------------------------------------------- several processes


FORKS = multiprocessing.get_context("forkserver")  # of one process that has imported PyTorch: it takes seconds
FORKS.set_forkserver_preload([__name__])
Work = Callable[[], Any]


# What processes on this machine are told; not the tests themselves, whose loops may run on more threads by then.
ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


class Rank(FORKS.Process):
    """A process that ends with what its work returns, and leaves what it said."""

    def __init__(self, work: Work, folder: Path, environment: dict[str, Any]) -> None:
        super().__init__()
        self.work, self.folder = work, Path(tempfile.mkdtemp(dir=folder))
        self.environment = {key: str(value) for key, value in environment.items()}

    def run(self) -> None:
        os.environ.update(self.environment)
        for name in ("out", "err"):
            os.dup2(os.open(self.folder / name, os.O_WRONLY | os.O_CREAT), getattr(sys, f"std{name}").fileno())
        sys.exit(self.work())

    def ended(self, within: float) -> str:
        """What it complained of."""
        self.join(seconds(within))
        return (self.folder / "err").read_text()


class Group:
    """Processes of one training on this machine's loopback; none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[Rank]()

    def ranks(self, *works: Work) -> list[Rank]:
        """As torchrun starts them."""
        meet = ALONE | {"WORLD_SIZE": len(works), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        ranks = [Rank(work, self.folder, meet | {"RANK": rank}) for rank, work in enumerate(works)]
        self.processes += ranks
        for rank in ranks:
            rank.start()
        return ranks


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    yield group
    for process in group.processes:
        process.kill()
        process.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_torchrun_leaves_the_bits_that_one_process_leaves(data: Path, tmp_path: Path) -> None:
    chosen = TRAIN | {"dim": 16, "layers": 3, "negatives": 50, "kernel": "cpu"}
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    torchrun += ["--master-port", str(free_port()), "-m", "fedgrec"]
    one = outcome(train(data, tmp_path / "one", **chosen))  # first: it compiles what the others then find
    two = subprocess.run(
        [sys.executable, *torchrun, *train_words(data, tmp_path / "two", **chosen)],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(120),
        env=os.environ | ALONE,
    )
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("The run is in") == 1  # the first process alone speaks
    assert outcome(tmp_path / "two") == one
    assert_whole(tmp_path / "two")


def begun(group: Group, words: list[str], folder: Path, since: str) -> list[Rank]:
    """Two processes that have saved more than what was there."""
    both, latest = group.ranks(*[partial(cli.main, [*words, "--quiet"])] * 2), folder / "checkpoints" / "latest"
    deadline = time.monotonic() + seconds(60)
    while (latest.read_text() if latest.exists() else "") == since and time.monotonic() < deadline:
        time.sleep(0.01)
    return both


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_ends_one_process_ends_all_and_the_run_goes_on(
    group: Group, data: Path, tmp_path: Path, victim: int
) -> None:
    """Ctrl-C at one of them: all end after the same round, which is saved. A killed one: the others say so and end."""
    folder, latest = tmp_path / "cut", tmp_path / "cut" / "checkpoints" / "latest"
    resume = ["train", "--out", str(folder), "--resume"]
    both = begun(group, train_words(data, folder, **LONG), folder, since="")
    both[1].terminate()
    said = [process.ended(within=30) for process in both]
    assert [process.exitcode for process in both] == [130, 130], said
    assert f"Stopped after round {int(latest.read_text()):,};" in said[0]
    assert said[1] == ""
    both = begun(group, resume, folder, since=latest.read_text())
    both[victim].kill()
    complaint = both[1 - victim].ended(within=20)
    assert both[1 - victim].exitcode == 2, complaint
    assert f"fedgrec: process {1 - victim} of 2 lost another one" in complaint
    assert "start all again with --resume" in complaint
    assert "Traceback" not in complaint
    assert_whole(folder)
    assert 0 < int(latest.read_text()) < LONG["rounds"]
    assert cli.main([*resume, "--quiet"]) == 0
    assert outcome(folder) == outcome(train(data, tmp_path / "uncut", **LONG))


def fall_silent(patience: timedelta) -> str | None:
    try:
        with launched(patience) as ranks:
            ranks.any(False)
            time.sleep(0 if ranks.first else 600)
            ranks.any(False)
    except FedgrecError as error:
        return str(error)
    return None


def test_a_process_that_falls_silent_is_not_waited_for_without_end(group: Group) -> None:
    first, _ = group.ranks(*[partial(fall_silent, timedelta(seconds=seconds(2)))] * 2)
    said = first.ended(within=40)
    assert said.startswith("process 0 of 2 lost another one"), said


def test_processes_that_never_come_are_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    with (
        pytest.raises(FedgrecError, match=r"process 1 of 2 did not meet the others at 127\.0\.0\.1:\d+: start all of"),
        launched(timedelta(seconds=1)),
    ):
        pass


# ------------------------------------------------------------- several ranks in one process, for all else


class Meeting:
    """Where the threads of one process exchange arrays."""

    def __init__(self, size: int) -> None:
        self.barrier, self.left = threading.Barrier(size, timeout=seconds(30)), [np.zeros(0)] * size

    def exchange(self, rank: int, array: np.ndarray) -> list[np.ndarray]:
        self.left[rank] = np.array(array)
        self.barrier.wait()
        found = [part.copy() for part in self.left]
        self.barrier.wait()
        return found


class Thread(Processes):
    """A rank that meets the others in memory."""

    meeting: Meeting

    def added(self, numbers: np.ndarray) -> np.ndarray:
        parts = self.meeting.exchange(self.rank, numbers)
        return np.sum(parts, axis=0, dtype=parts[0].dtype)

    def gathered(self, rows: np.ndarray) -> list[np.ndarray]:
        return self.meeting.exchange(self.rank, rows)


class Concatenates(Thread):
    """Mutant: users come back in the order of their processes."""

    def everyone(self, users: Cohort) -> Cohort:
        whole = super().everyone(users)
        return whole.take(np.concatenate([np.arange(r, len(whole), self.size) for r in range(self.size)]))


class Selfish(Thread):
    """Mutant: everyone's server adds up what its own users sent."""

    def added(self, numbers: np.ndarray) -> np.ndarray:
        total = super().added(numbers)
        return numbers if numbers.size > 1000 else total


def simulations(
    data: Path, folder: Path, size: int, kind: type[Thread] = Thread, method: str = "fedgrec", **values: Any
) -> list[Simulation]:
    """Train with that many ranks, of which the first writes to the folder."""
    known = {option.name for option in options(method)} - ({"layers"} if method != "fedgrec" else set())
    chosen = {key: value for key, value in (QUICK | {"dropout": 0.3} | values).items() if key in known}
    config = Config().changed(chosen | {"method": method, "data": str(data)}, "test")
    dataset = load_for(config)
    meeting, runs, errors = Meeting(size), dict[int, Simulation](), list[BaseException]()

    def work(rank: int) -> None:
        ranks = kind(rank, size) if size > 1 else Ranks()
        object.__setattr__(ranks, "meeting", meeting)
        try:
            out = folder if ranks.first else None
            runs[rank] = Simulation(resolved(config, dataset), dataset, out, Observer(), ranks)
            runs[rank].run()
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [runs[rank] for rank in range(size)]


Law = Callable[..., bool]


@pytest.fixture
def law(data: Path, tmp_path: Path) -> Law:
    """Whether several ranks, each with its own users, end like one."""

    def holds(size: int, kind: type[Thread] = Thread, **values: Any) -> bool:
        simulations(data, tmp_path / "one", 1, **values)
        runs = simulations(data, tmp_path / kind.__name__, size, kind, **values)
        assert [len(run.users) for run in runs] == [len(range(rank, 16, size)) for rank in range(size)]
        return outcome(tmp_path / "one") == outcome(tmp_path / kind.__name__)

    return holds


@pytest.mark.parametrize("size", [2, 7, 20])
def test_any_number_of_ranks_leaves_the_same_bits(law: Law, size: int) -> None:
    assert law(size, protocol="paper", precision="float64")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_the_same_bits(law: Law, method: str) -> None:
    assert law(3, method=method)


def test_ranks_without_a_sampled_user_take_part(law: Law) -> None:
    assert law(5, users_per_round=1, dropout=0.0)


def test_ranks_share_the_ranking_by_whole_blocks(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ranking, distributed):
        monkeypatch.setattr(module, "users_at_once", lambda n_items: 3)
    assert law(3)


@pytest.mark.parametrize("mutant", [Concatenates, Selfish])
def test_mutants_break_the_law(law: Law, mutant: type[Thread]) -> None:
    assert not law(2, mutant, latents_every=1)


@given(size=st.integers(2, 5), n=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_every_arrived_user_is_found_by_one_rank(size: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sampled = rng.choice(60, n, replace=False)
    arrived = np.flatnonzero(rng.random(n) < 0.7)
    found = []
    for rank in range(size):
        users, there = Processes(rank, size).local(sampled, arrived)
        found += (users[there] * size + rank).tolist()
    assert sorted(found) == sorted(sampled[arrived].tolist())


def test_processes_that_were_asked_for_different_things_do_not_train_together(
    group: Group, data: Path, tmp_path: Path
) -> None:
    words = [[*train_words(data, tmp_path / "run", dim=dim), "--quiet"] for dim in (8, 9)]
    both = group.ranks(*(partial(cli.main, each) for each in words))
    said = [process.ended(within=60) for process in both]
    assert [process.exitcode for process in both] == [2, 2], said
    assert "process 1 of 2 has other options or data than the first" in said[1]
    assert "process 0 of 2 lost another one" in said[0]


def test_secure_sums_are_refused() -> None:
    with pytest.raises(ConfigError, match="secure sums run in one process"):
        Processes(0, 2).sums(RunOptions(secure="exact"), 1)


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as a job script may have it, with no place to meet
    monkeypatch.delenv("RANK", raising=False)
    with launched() as ranks:
        assert (ranks.rank, ranks.size, ranks.first) == (0, 1, True)
