"""Law 7: killed at any point and resumed, a run ends as if nothing had happened; only `seconds` differs."""

import json
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from fedgrec import cli
from fedgrec.cli import training
from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load_for
from fedgrec.data.files import claimed
from fedgrec.errors import BusyError
from fedgrec.runs.resolve import resolved
from fedgrec.runs.simulation import Observer, Simulation
from tests.cli.small import QUICK, clicks, lines, train, train_words
from tests.interrupted import Killed, deadly_files, files, outcome

LOSSY = {**QUICK, "rounds": 7, "dropout": 0.3}  # 7: the last evaluation and checkpoint come early
LONG = {"rounds": 120, "evaluate_every": 5, "checkpoint_every": 1, "dropout": 0.2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_report", lambda *_: None)


class StopsAfter(Observer):
    """A person who presses Ctrl-C in a chosen round."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.done = rounds, 0

    def started(self, done: int, rounds: int) -> None:
        self.done = done

    def round_done(self, done: int) -> None:
        self.done = done

    def stop_wanted(self) -> bool:
        return self.done >= self.rounds


def simulation(
    data: Path, folder: Path, stop: int = 10**9, kind: type[Simulation] = Simulation, **options: Any
) -> Simulation:
    config = Config().changed(LOSSY | options | {"data": str(data)}, "test")
    dataset = load_for(config)
    return kind(resolved(config, dataset), dataset, folder, StopsAfter(stop))


def assert_whole(folder: Path) -> None:
    """Every file that has its final name is a whole file."""
    for path in folder.rglob("*"):
        if any(part.endswith(".part") for part in path.relative_to(folder).parts) or path.is_dir():
            continue
        if path.suffix == ".toml":
            tomllib.loads(path.read_text())
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            lines(path)
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="numpy") as file:
                assert all(file.get_tensor(name) is not None for name in file.keys())  # noqa: SIM118
        elif path.name == "latest":
            checkpoint = path.parent / path.read_text().strip()
            assert sorted(file.name for file in checkpoint.iterdir()) == ["state.json", "state.safetensors"]


# ----------------------------------------------------------------------------- stopped between rounds


@pytest.mark.parametrize(("protocol", "kernel"), [("honest", "reference"), ("paper", "cpu")])
def test_stopped_after_any_round_a_run_ends_the_same(data: Path, tmp_path: Path, protocol: str, kernel: str) -> None:
    simulation(data, tmp_path / "uncut", protocol=protocol, kernel=kernel).run()
    expected = outcome(tmp_path / "uncut")
    for stop in range(LOSSY["rounds"]):
        folder = tmp_path / str(stop)
        first = simulation(data, folder, stop, protocol=protocol, kernel=kernel)
        first.run()
        assert (first.finished, first.server.round) == (False, stop)
        second = simulation(data, folder, protocol=protocol, kernel=kernel)
        second.resume()
        assert second.server.round == stop
        second.run()
        assert outcome(folder) == expected, f"stopped after round {stop}"


@settings(max_examples=10, deadline=None)
@given(
    options=st.fixed_dictionaries(
        {
            "layers": st.integers(0, 2),
            "checkpoint_every": st.integers(1, 4),
            "evaluate_every": st.integers(1, 4),
            "patience": st.integers(0, 2),
            "dropout": st.sampled_from([0.0, 0.5, 1.0]),
            "server_optimizer": st.sampled_from(["sum", "adam"]),
            "user_moments": st.sampled_from(["kept", "fresh"]),
            "protocol": st.sampled_from(["honest", "paper"]),
            "precision": st.sampled_from(["float32", "float64"]),
        }
    ),
    stops=st.lists(st.integers(0, 6), max_size=3).map(sorted),
)
def test_stopped_again_and_again_any_run_ends_the_same(data: Path, options: dict[str, Any], stops: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        uncut, cut = Path(folder) / "uncut", Path(folder) / "cut"
        simulation(data, uncut, **options).run()
        for stop in [*stops, 10**9]:
            again = simulation(data, cut, stop, **options)
            again.resume()
            again.run()
        assert outcome(cut) == outcome(uncut)


def test_a_longer_run_is_the_same_whether_it_was_asked_for_at_once_or_later(data: Path, tmp_path: Path) -> None:
    """Where rates do not fall with the number of all rounds."""
    train(data, tmp_path / "grown", rounds=4, checkpoint_every=3, half_life=5)
    assert cli.main(["train", "--out", str(tmp_path / "grown"), "--resume", "--rounds", "8", "--quiet"]) == 0
    assert outcome(tmp_path / "grown") == outcome(
        train(data, tmp_path / "whole", rounds=8, checkpoint_every=3, half_life=5)
    )


FORGETFUL: dict[str, Callable[[Simulation], None]] = {
    "the users' moments": lambda s: s.users.state.moment1.fill(0),
    "the server's moments": lambda s: s.server.moment1.fill(0),
    "the Adam steps taken": lambda s: s.users.state.steps.fill(0),
    "what was sent": lambda s: s.users.state.sent.fill(0),
    "the round": lambda s: setattr(s.server, "round", s.server.round - 1),
    "the traffic": lambda s: setattr(s.progress, "traffic", type(s.progress.traffic)(1, 0, 0, 0)),
    "the evaluations": lambda s: s.progress.metrics.clear(),
}


@pytest.mark.parametrize("what", FORGETFUL)
def test_a_resume_that_forgets_breaks_the_law(data: Path, tmp_path: Path, what: str) -> None:
    class Forgetful(Simulation):
        def resume(self) -> None:
            super().resume()
            FORGETFUL[what](self)

    simulation(data, tmp_path / "uncut").run()
    simulation(data, tmp_path / "cut", 2).run()
    mutant = simulation(data, tmp_path / "cut", kind=Forgetful)
    mutant.resume()
    mutant.run()
    assert outcome(tmp_path / "cut") != outcome(tmp_path / "uncut")


# ----------------------------------------------------------------- killed between two file operations


@pytest.fixture
def kill_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return deadly_files(monkeypatch)


def go_on(data: Path, folder: Path, **options: Any) -> int:
    """What a person does after a crash: resume, or start where nothing had begun."""
    begun = (folder / "config.toml").exists()
    return cli.main(["train", "--out", str(folder), "--resume", "--quiet"] if begun
                    else [*train_words(data, folder, **options), "--quiet"])  # fmt: skip


@pytest.mark.keep(1)
@pytest.mark.parametrize("first", range(1, 6))  # five divides no number of operations that a file takes
def test_killed_between_any_two_file_operations_a_run_ends_the_same(
    data: Path, tmp_path: Path, kill_at: Callable[[int], None], first: int
) -> None:
    options = {"rounds": 2, "checkpoint_every": 1, "evaluate_every": 1, "dropout": 0.3}
    expected = outcome(train(data, tmp_path / "uncut", **options))
    for n in range(first, 1000, 5):
        folder = tmp_path / str(n)
        kill_at(n)
        try:
            go_on(data, folder, **options)
        except Killed:
            assert_whole(folder)
        else:
            break
        kill_at(1 + n // 2)  # and once more on the way
        try:
            go_on(data, folder, **options)
        except Killed:
            assert_whole(folder)
        kill_at(0)
        assert go_on(data, folder, **options) == 0
        assert outcome(folder) == expected, f"killed before file operation {n}"
        assert not list(folder.rglob("*.part"))
    assert n > 60


# ----------------------------------------------------------------------------------- killed processes


@pytest.fixture(scope="module")
def uncut(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_report", lambda *_: None)
        return outcome(train(data, tmp_path_factory.mktemp("long") / "uncut", **LONG))


def start(words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "fedgrec", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.002)


def survive(kills: int, data: Path, folder: Path, expected: dict[str, Any], **options: Any) -> None:
    """Kill -9 at random moments, looking at the files after each; then let the run end."""
    chance, pointer = random.Random(kills), folder / "checkpoints" / "latest"
    for n in range(kills):
        resume = (folder / "config.toml").exists()
        before = pointer.read_text() if pointer.exists() else ""
        words = ["train", "--out", str(folder), "--resume"] if resume else train_words(data, folder, **options)
        process = start(words)
        if n % 4:  # while it trains and saves
            while process.poll() is None and (pointer.read_text() if pointer.exists() else "") == before:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.2))
        else:  # at any time
            time.sleep(chance.uniform(0, 1.5))
        process.kill()
        process.communicate()
        if folder.exists():
            assert_whole(folder)
    assert go_on(data, folder, **options) == 0
    assert outcome(folder) == expected


def test_killed_processes_leave_whole_files_and_end_the_same(data: Path, tmp_path: Path, uncut: dict[str, Any]) -> None:
    survive(3, data, tmp_path / "cut", uncut, **LONG)


@pytest.mark.slow
def test_twenty_killed_processes(data: Path, tmp_path: Path) -> None:
    longer = LONG | {"rounds": 250}
    survive(20, data, tmp_path / "cut", outcome(train(data, tmp_path / "uncut", **longer)), **longer)


@pytest.mark.keep(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # one of several processes gets the latter
def test_an_interrupted_run_saves_and_says_how_to_go_on(
    data: Path, tmp_path: Path, uncut: dict[str, Any], number: int
) -> None:
    folder = tmp_path / "my run"  # the command that it prints must survive a shell
    process = start([*train_words(data, folder, **LONG), "--quiet"])
    wait_for(folder / "checkpoints" / "latest", process)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    reached = int((folder / "checkpoints" / "latest").read_text())
    assert f"Stopped after round {reached:,};" in said
    assert_whole(folder)
    assert not (folder / "result.json").exists()
    program, *words = shlex.split(said.splitlines()[-1])
    assert program == "fedgrec"
    assert cli.main([*words, "--quiet"]) == 0
    assert outcome(folder) == uncut


# ------------------------------------------------------------------------------------------- refusals


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_report", lambda *_: None)
        return train(data, tmp_path_factory.mktemp("finished") / "run", checkpoint_every=0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dim", "16"], "so dim cannot change"),
        (["--set", "users-per-round=3", "--seed", "4"], "so seed, users_per_round cannot change"),
        (["--preset", "paper"], "so the preset or configuration file cannot change"),
        (["--rounds", "2"], "can only get longer: rounds is 6 and cannot become 2"),
        (["--set", "layer=2"], "Did you mean 'layers'?"),
    ],
)
def test_a_resumed_run_keeps_its_options(finished: Path, capsys: Any, words: list[str], sentence: str) -> None:
    before = files(finished)
    assert cli.main(["train", "--out", str(finished), "--resume", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert files(finished) == before


def test_resuming_a_finished_run_says_so_and_touches_nothing(finished: Path, capsys: Any) -> None:
    before = files(finished)
    assert cli.main(["train", "--out", str(finished), "--resume", "--dim", "8"]) == 0
    assert "is complete; --rounds N" in capsys.readouterr().out
    assert files(finished) == before


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["train", "--out", str(tmp_path), "--resume"]) == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert cli.main(["train", "--resume"]) == 2
    assert "--resume needs --out RUN" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_two_processes_never_train_in_one_folder(data: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    assert cli.main(train_words(data, run)) == 0
    before = files(run)
    with claimed(run):  # as another process would
        assert cli.main(["train", "--out", str(run), "--resume", "--rounds", "1000"]) == 2
    assert f"another process is at work in {run}" in capsys.readouterr().err
    assert files(run) == before


def test_who_comes_second_leaves_the_folder_to_the_first(tmp_path: Path, monkeypatch: Any) -> None:
    """Also if both saw a moment before that there was no folder."""
    run = tmp_path / "run"
    with claimed(run):
        monkeypatch.setattr(Path, "exists", lambda path: False)
        with pytest.raises(BusyError), claimed(run):
            pass
        assert run.is_dir()
    assert not run.is_dir()


def test_a_new_run_never_writes_into_a_folder_of_something_else(data: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert cli.main(train_words(data, tmp_path)) == 2
    assert "is not empty: add --resume" in capsys.readouterr().err
    assert cli.main(train_words(data, tmp_path / "thesis.txt")) == 2
    assert "is a file: choose another --out" in capsys.readouterr().err
    assert files(tmp_path) == {str(tmp_path / "thesis.txt"): b"years of work"}


def test_a_run_is_not_resumed_on_other_data(data: Path, tmp_path: Path, capsys: Any) -> None:
    mine = Path(tmp_path / "mine.csv")
    mine.write_text(data.read_text())
    train(mine, tmp_path / "run")
    mine.write_text(data.read_text() + "zoe,book1\n")
    before = files(tmp_path / "run")
    assert cli.main(["train", "--out", str(tmp_path / "run"), "--resume", "--rounds", "8"]) == 2
    assert "the data is not what" in capsys.readouterr().err
    assert files(tmp_path / "run") == before
