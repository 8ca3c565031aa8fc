"""`fedgrec grow`: a run that goes on with data that has grown, in its folder."""

import gzip
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.config.configuration import recorded
from fedgrec.data.datasets import load_for
from fedgrec.data.split import read_split
from fedgrec.models.model import GROWN, Model
from fedgrec.runs.growth import grown_run, split_of
from fedgrec.runs.simulation import Observer
from tests.cli.small import lines, train
from tests.interrupted import Killed, deadly_files, files, outcome


@pytest.fixture(scope="module")
def more(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two new people, a new book, new clicks; one person has left; the lines in another order."""
    head, *rows = data.read_text().splitlines()
    rows = [row for row in rows if not row.startswith("ann5,")]
    rows += ["zoe,book1", "zoe,fresh", "zoe,book2", "zoe,book3", "zoe,book9", "yan,book4", "ann2,fresh", "ann1,book40"]
    random.Random(0).shuffle(rows)
    path = tmp_path_factory.mktemp("more") / "more.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of six rounds, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


def go_on(run: Path, *words: object) -> int:
    return cli.main(["train", "--out", str(run), "--resume", *map(str, words), "--quiet"])


def grow(run: Path, *words: object) -> int:
    return cli.main(["grow", str(run), *map(str, words), "--quiet"])


def ids(run: Path, name: str) -> list[str]:
    return json.loads((run / f"{name}.json").read_text())["ids"]


def held_out(run: Path) -> set[tuple[str, str]]:
    split = read_split(run)
    return {
        (part.user_ids[u], part.item_ids[i])
        for part in (split.validation, split.test)
        for u, i in zip(part.users(), part.items, strict=True)
    }


def test_a_grown_run_is_a_whole_run(run: Path, data: Path, more: Path, capsys: Any) -> None:
    users, items, held = ids(run, "users"), ids(run, "items"), held_out(run)
    assert grow(run, "--data", more) == 0
    assert ids(run, "users")[:-2] == users
    assert set(ids(run, "users")[-2:]) == {"zoe", "yan"}
    assert ids(run, "items") == [*items, "fresh"]
    assert {pair for pair in held if pair[0] != "ann5"} <= held_out(run)
    about, config = json.loads((run / "data.json").read_text()), recorded(run / "config.toml")
    assert set(about["checksums"]) == {"more.csv"}
    assert about["sizes"]["users"] == len(users) + 2
    assert (config.data.data, config.data.split, config.run.rounds) == (str(more), "ratio", 8)  # a fifth of 6, upwards
    metrics = lines(run / "metrics.jsonl")
    assert [line["round"] for line in metrics] == [2, 4, 6, 8, 8]
    assert [line["split"] for line in metrics][-2:] == ["validation", "test"]
    assert json.loads((run / "result.json").read_text()) == metrics[-1]
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recall@20"] == metrics[-1]["recall@20"]
    assert cli.main(["recommend", str(run), "--user", "zoe"]) == 0
    assert "fresh" not in [line.split()[1] for line in capsys.readouterr().out.splitlines() if line[:1] == " "]
    assert not (run / GROWN).exists()

    before = files(run)
    assert grow(run) == 0  # nothing has changed since
    assert "is complete" in capsys.readouterr().out
    assert files(run) == before
    assert go_on(run, "--rounds", 9) == 0
    assert grow(run, "--data", data, "--rounds", 12) == 0  # the first data again: two people left
    assert ids(run, "users")[:-2] == users
    assert Model.load(run).seen(len(users)).tolist() == []
    assert [line["round"] for line in lines(run / "metrics.jsonl")][:-1] == [2, 4, 6, 8, 9, 10, 12]


def test_a_cut_in_time_is_found_again_and_moves_on_with_grown_data(data: Path, tmp_path: Path, capsys: Any) -> None:
    """With gzipped files. A click that is in no part of the split is left out again whenever the data is read."""

    def measured() -> tuple[float, float]:
        assert cli.main(["evaluate", str(run), "--json"]) == 0
        return json.loads(capsys.readouterr().out)["map@20"], json.loads((run / "result.json").read_text())["map@20"]

    clicks = data.read_text().splitlines()[1:]
    random.Random(1).shuffle(clicks)
    for name, n in (("early.csv.gz", 60), ("all.csv.gz", len(clicks))):
        timed = [f"{click},{when}" for when, click in enumerate(clicks[:n])]
        (tmp_path / name).write_bytes(gzip.compress("\n".join(["user,item,time", *timed]).encode()))
    run = train(tmp_path / "early.csv.gz", tmp_path / "run", split="time", test_ratio=0.4)
    before, held = read_split(run), held_out(run)
    assert before.train.n_pairs + len(held) < 60  # some are new after the cut
    assert len(set(measured())) == 1
    assert grow(run, "--data", tmp_path / "all.csv.gz") == 0
    assert held < held_out(run)
    assert read_split(run).train.n_pairs > before.train.n_pairs
    assert len(set(measured())) == 1


def test_a_report_of_a_grown_run(run: Path, more: Path) -> None:
    from fedgrec.pages.report import write_report

    assert grow(run, "--data", more) == 0
    page = write_report(run).read_text()
    assert "How well users are served" in page  # drawn only if the data is what the run was trained on


@pytest.mark.parametrize("stop", [6, 7, 9, 11])
def test_stopped_in_its_season_a_grown_run_ends_the_same(run: Path, more: Path, tmp_path: Path, stop: int) -> None:
    class Stops(Observer):
        done = 6

        def round_done(self, done: int) -> None:
            self.done = done

        def stop_wanted(self) -> bool:
            return self.done >= stop

    cut = shutil.copytree(run, tmp_path / "cut")
    assert grow(run, "--data", more, "--rounds", 12) == 0
    config = recorded(cut / "config.toml").changed({"data": str(more)})
    stopped = grown_run(config, cut, load_for(config, split_of(cut)), 12, Stops())
    stopped.run()
    assert stopped.server.round == stop
    assert go_on(cut) == 0
    assert outcome(cut) == outcome(run)


def test_another_file_is_not_taken_for_grown_data(run: Path, more: Path, capsys: Any) -> None:
    before = files(run)
    assert go_on(run, "--data", more) == 2
    assert f"if the data has grown, go on with  fedgrec grow {run}" in capsys.readouterr().err
    assert files(run) == before


def test_a_file_that_changed_is_not_taken_for_grown_data(data: Path, more: Path, tmp_path: Path, capsys: Any) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(data.read_text())
    train(mine, tmp_path / "own")
    mine.write_text(more.read_text())
    before = files(tmp_path / "own")
    assert go_on(tmp_path / "own", "--rounds", 9) == 2
    assert "if it has grown, go on with  fedgrec grow" in capsys.readouterr().err
    assert files(tmp_path / "own") == before
    assert grow(tmp_path / "own") == 0
    assert [line["round"] for line in lines(tmp_path / "own" / "metrics.jsonl")] == [2, 4, 6, 8, 8]


@pytest.mark.parametrize(
    ("options", "words", "sentence"),
    [
        ({}, ["--rounds", 6], "has trained 6 rounds"),
        ({}, ["--set", "dim=4"], "so dim cannot change"),
        ({"checkpoint_every": 0}, [], "has no checkpoint of its last round"),
        ({"latent_rate": 0.5}, [], "with latent_rate other than 1"),
        ({"method": "fcf"}, [], "only fedgrec, two-parts, fedmf, federank do"),
        ({"method": "ordered"}, [], "new sums cost as much as the first, so train anew"),
    ],
)
def test_what_cannot_grow_says_so_and_stays(
    data: Path, more: Path, tmp_path: Path, capsys: Any, options: Any, words: Any, sentence: str
) -> None:
    run = tmp_path / "run"
    if "method" in options:  # another method has few of fedgrec's options
        short = ["--method", options["method"], "--kernel", "reference", "--rounds", "2", "--quiet"]
        assert cli.main(["train", "--data", str(data), "--out", str(run), *short]) == 0
    else:
        train(data, run, **options)
    before = files(run)
    capsys.readouterr()
    assert grow(run, "--data", more, *words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert files(run) == before


def test_grown_needs_a_run(data: Path, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["train", "--grown", "--data", str(data), "--out", str(tmp_path / "new")]) == 2
    assert "--grown is a command of its own now: fedgrec grow RUN" in capsys.readouterr().err
    assert grow(tmp_path / "new", "--data", data) == 2
    assert "new holds no run to resume" in capsys.readouterr().err


def test_a_run_without_its_split_does_not_grow(run: Path, more: Path, capsys: Any) -> None:
    (run / "split.safetensors").unlink()
    assert grow(run, "--data", more) == 2
    assert "did not write down what it held out" in capsys.readouterr().err


def test_killed_between_any_two_file_operations_a_run_is_the_old_one_or_the_grown_one(
    finished: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shutil.copytree(finished, tmp_path / "expected")
    config = recorded(finished / "config.toml").changed({"data": str(more)})
    data = load_for(config, split_of(finished))
    words, old, kill_at, ended = ("--data", more), files(finished), deadly_files(monkeypatch), set[str]()
    assert grow(expected, *words) == 0
    for n in range(1, 1000):
        run = shutil.copytree(finished, tmp_path / str(n))
        kill_at(n)
        try:
            grown_run(config, run, data, 0, Observer())
        except Killed:
            kill_at(0)
        else:
            break
        state = "moving" if (run / GROWN).exists() else "old" if (run / "result.json").exists() else "grown"
        ended.add(state)
        if state == "old":
            assert {name.replace(str(run), str(finished)): bytes_ for name, bytes_ in files(run).items()} == old
        if state == "moving":
            assert cli.main(["recommend", str(run), "--user", "zoe"]) == 2
        if n % 4 == 0 or state == "moving":
            assert grow(run, *words) == 0
            assert outcome(run) == outcome(expected), f"killed before file operation {n}"
            assert not [*run.rglob("*.part"), *run.rglob(GROWN)]
        shutil.rmtree(run)
    assert {"old", "moving"} <= ended


def test_what_a_killed_process_left_half_written_goes(run: Path) -> None:
    (run / f"{GROWN}.part").mkdir()
    (run / f"{GROWN}.part" / "config.toml").write_text("half of it")
    Model.load(run)
    assert go_on(run, "--rounds", 7) == 0
    assert not (run / f"{GROWN}.part").exists()


def test_a_folder_of_train_and_test_says_what_is_held_out(tmp_path: Path) -> None:
    """New pairs are split as in the files; a test pair that moved to the train file is still not trained on."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{user} " + " ".join(str((user * 3 + n) % 20) for n in range(8)) for user in range(12)]
    (folder / "train.txt").write_text("\n".join(rows) + "\n")
    (folder / "test.txt").write_text("0 9 10\n1 12\n")
    run = train(folder, tmp_path / "run")
    (folder / "train.txt").write_text("\n".join([rows[0] + " 9 15", *rows[1:], "12 1 2 3"]) + "\n")
    (folder / "test.txt").write_text("0 10\n1 12\n12 4\n")
    assert grow(run) == 0
    split = read_split(run)
    assert split.test.of(0).tolist() == [9, 10]
    assert split.test.of(12).tolist() == [4]
    assert 15 in [*split.train.of(0), *split.validation.of(0)]
