"""A comparison from the command line: the files it writes, and how it handles failures."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.cli.progress import Lines
from fedgrec.data.datasets import load
from fedgrec.studies.compare import comparison
from fedgrec.studies.compare.runs import half_width
from tests.cli.small import clicks, lines
from tests.compare.small import FEDGREC, MF, compared, read, timeless, words
from tests.pages import checked
from tests.waits import seconds

RUNS = [f"{name}-seed{seed}" for name in ("fedgrec-dim-8-layers-2-users_per_round-6-negatives-6",
        "mf-bpr-dim-8-rate-0.05-batch-32", "popularity", "turbocf") for seed in (0, 1)]  # fmt: skip


def test_every_method_and_seed_has_a_run_folder(finished: Path) -> None:
    assert sorted(path.name for path in (finished / "runs").iterdir()) == sorted(RUNS)
    for name in RUNS:
        files = {path.name for path in (finished / "runs" / name).iterdir()}
        assert {"config.toml", "data.json", "metrics.jsonl", "result.json"} <= files
    assert {path.name for path in finished.iterdir()} == {
        "compare.csv", "compare.html", "compare.json", "compare.md", "compare.tex", "runs",
    }  # fmt: skip


def test_the_rows_are_the_means_of_the_runs(finished: Path) -> None:
    found = read(finished)
    recalls = [row["recall"]["mean"] for row in found["rows"]]
    assert len(recalls) == 4
    assert recalls == sorted(recalls, reverse=True)
    for row in found["rows"]:
        mine = [run["result"] for run in found["runs"] if run["label"] == row["label"]]
        for metric in ("recall", "ndcg"):
            values = [result[f"{metric}@20"] for result in mine]
            assert row[metric] == {"mean": np.mean(values), "half": half_width(values), "over": "seeds", "n": 2}
        assert row["chosen"] == [result["round"] for result in mine]
        assert (row["up"] is None) == (not row["federated"])
        if row["federated"]:
            assert row["up"] == np.mean([result["bytes_up"] for result in mine]) / 16


def test_a_run_that_patience_ends_says_how_long_it_was(data: Path, tmp_path: Path) -> None:
    """Rates of 0 learn nothing: the second evaluation is no better and is the last; of equal rounds the last counts."""
    methods = f"{FEDGREC},user_rate=0,server_rate=0,patience=1"
    (row,) = compared(data, tmp_path / "out", methods=methods, seeds="1")["rows"]
    assert (row["chosen"], row["length"]) == ([4], 4)


def test_under_honest_test_items_choose_nothing(finished: Path) -> None:
    """Test is measured once, at the end, for the round that was best on validation: federated or not."""
    for name in RUNS:
        *judged, last = lines(finished / "runs" / name / "metrics.jsonl")
        assert {line["split"] for line in judged} == {"validation"}
        best = max(judged, key=lambda line: (line["recall@20"], line["ndcg@20"], line["round"]))
        assert (last["split"], last["round"]) == ("test", best["round"])
        assert json.loads((finished / "runs" / name / "result.json").read_text()) == last


def test_the_protocol_is_named_in_every_table(finished: Path) -> None:
    for name in ("compare.md", "compare.tex", "compare.html"):
        assert "protocol honest" in (finished / name).read_text(), name
    for line in (finished / "compare.csv").read_text().splitlines()[1:]:
        assert ",honest," in line


def test_the_page_says_what_the_runs_say(finished: Path) -> None:
    page, found = checked((finished / "compare.html").read_text()), read(finished)
    for row in found["rows"]:
        for metric in ("recall", "ndcg"):
            said = f"{row[metric]['mean']:.4f} ± {row[metric]['half']:.4f}"
            assert page.count(said) >= 2, said  # in the table and in its chart
    for name in RUNS:
        if not name.startswith(("popularity", "turbocf")):
            *judged, _ = lines(finished / "runs" / name / "metrics.jsonl")
            assert all(f"{'round' if 'fedgrec' in name else 'epoch'} {line['round']}\n" in page for line in judged)


def test_finished_runs_are_not_run_again_and_seeds_can_be_added(
    capsys: Any, data: Path, finished: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    times = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}
    again = compared(data, out, "--set", "threads=1", "--set", "checkpoint_every=5")
    assert again["rows"] == read(finished)["rows"]
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")} == times
    assert capsys.readouterr().out.count("(finished before)") == 8
    more = compared(data, out, methods="popularity,turbocf", seeds="0,1,5")
    assert [row["seeds"] for row in more["rows"]] == [[0, 1, 5]] * 2
    assert capsys.readouterr().out.count("(finished before)") == 4


def test_further_metrics_are_columns_of_the_records_that_have_them(
    capsys: Any, data: Path, finished: Path, tmp_path: Path
) -> None:
    """One record is of an earlier version: it lacks a metric, and an option at its default. It is not trained again."""
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    for name, gone in (("result.json", r'^ *"map@20".*\n'), ("config.toml", r"^leave_out.*\n")):
        path = next((out / "runs").glob("turbocf-seed0")) / name
        path.write_text(re.sub(gone, "", path.read_text(), flags=re.MULTILINE))
    found = compared(data, out, "--metrics", "recall,map,novelty")
    assert "(finished before)" in capsys.readouterr().out
    rows = {row["method"]: row["more"] for row in found["rows"]}
    assert rows["turbocf"]["map"] is None
    assert rows["turbocf"]["novelty"] is not None
    results = [run["result"] for run in found["runs"] if run["label"] == "popularity"]
    assert rows["popularity"]["map"]["mean"] == pytest.approx(np.mean([result["map@20"] for result in results]))
    head = (out / "compare.md").read_text().splitlines()[0]
    assert re.search(r"\| Recall@20 +\| NDCG@20 +\| map@20 +\| novelty@20 +\| chosen", head)
    assert "map@20,map@20_half_width,novelty@20" in (out / "compare.csv").read_text()
    assert cli.main([*words(data, out), "--metrics", "mapp"]) == 2
    assert "no metric 'mapp'. Did you mean 'map'?" in capsys.readouterr().err


def test_one_seed_has_an_interval_over_users_that_is_marked(
    capsys: Any, data: Path, finished: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    found = compared(data, out, seeds="1")
    said = capsys.readouterr().out
    assert "ᵘ: one seed; ± is the 95 % interval over its users" in " ".join(said.split())
    for row in found["rows"]:
        assert row["recall"]["over"] == "users"
        assert f"{row['recall']['mean']:.4f} ± {row['recall']['half']:.4f}ᵘ" in said
    rows = {row["method"]: row for row in found["rows"]}
    dataset = load(data, validation=0.1, seed=0)
    test, seen = dataset.split.test, dataset.split.before_test
    by_degree = np.argsort(-dataset.split.train.degrees(), kind="stable")
    each = []
    for u in range(test.n_users):
        wanted = set(test.of(u).tolist())
        shown = [i for i in by_degree.tolist() if i not in set(seen.of(u).tolist())][:20]
        if wanted:
            each.append(len(wanted & set(shown)) / len(wanted))
    assert rows["popularity"]["recall"]["mean"] == pytest.approx(np.mean(each))
    assert rows["popularity"]["recall"]["half"] == pytest.approx(half_width(each))


def test_the_model_that_users_are_judged_by_is_the_one_of_the_result(data: Path, finished: Path) -> None:
    from fedgrec.cli.compare import settings_of

    arguments = cli.parser().parse_args(words(data, finished))
    settings = settings_of(arguments)
    dataset = settings.load(1)
    for run in settings.runs(finished, dataset)[4:]:
        for metric, values in run.per_user(dataset).items():
            assert values.mean() == pytest.approx(run.result()[metric], abs=1e-6), (run.entry.label, metric)


# --------------------------------------------------------------------------------- interrupted, killed


def test_a_stopped_comparison_says_how_to_go_on_and_ends_the_same(
    capsys: Any, data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after more and more rounds and epochs, until nothing is left to stop."""
    out, asked = tmp_path / "out", {"n": 0}
    for patience in (3, 9, 9, 60):
        asked["n"] = 0

        def wanted(_: Lines, patience: int = patience) -> bool:
            asked["n"] += 1
            return asked["n"] > patience

        monkeypatch.setattr(Lines, "stop_wanted", wanted)
        code = cli.main(words(data, out))
        said = capsys.readouterr()
        assert code == (0 if patience == 60 else 130)
        assert ("Go on with:\n  fedgrec compare --data" in said.err) == (code == 130)
        if code == 130:
            assert "not finished" in said.out
            assert all(word in said.err for word in ("--methods", "--rounds 6", "--evaluate-every 2,1", "--set"))
    assert timeless(read(out)["rows"]) == timeless(read(finished)["rows"])
    assert timeless(read(out)["runs"]) == timeless(read(finished)["runs"])


def test_a_killed_comparison_goes_on_and_ends_with_the_same_numbers(tmp_path: Path) -> None:
    data = clicks(tmp_path / "clicks.csv")
    long = {"methods": f"{FEDGREC},{MF}", "seeds": "1", "rounds": "120", "epochs": "3", "evaluate_every": "40"}
    long["checkpoint_every"] = "20"
    expected = compared(data, tmp_path / "uncut", **long)
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-m", "fedgrec", *words(data, out, **long)], stdout=subprocess.DEVNULL)
    pointer = out / "runs" / f"{RUNS[0]}" / "checkpoints" / "latest"
    while not pointer.exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert pointer.exists()
    assert not (pointer.parents[1] / "result.json").exists(), "it was faster than the kill: raise the rounds"
    assert timeless(compared(data, out, **long)["rows"]) == timeless(expected["rows"])


# --------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounds": "7"}, "rounds was 6 and is now 7"),
        ({"epochs": "5"}, "epochs was 4 and is now 5"),
        ({"protocol": "paper"}, "protocol was 'honest' and is now 'paper'"),
    ],
)
def test_changed_options_are_refused(
    capsys: Any, data: Path, finished: Path, change: dict[str, str], said: str
) -> None:
    before = sorted(finished.rglob("*"))
    assert cli.main(words(data, finished, **change)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "name another --out, or remove that folder" in error
    assert sorted(finished.rglob("*")) == before


def test_a_changed_section_is_refused(capsys: Any, data: Path, tmp_path: Path) -> None:
    """The same name with other options: the folder's name alone would not show the difference."""
    tuned = tmp_path / "tuned.toml"
    for layers, code in ((1, 0), (2, 2)):
        tuned.write_text(f'[compare.mine]\nmethod = "lightgcn"\ndim = 8\nlayers = {layers}\n')
        given = ["compare", "--data", str(data), "--out", str(tmp_path / "out"), "--config", str(tuned)]
        assert cli.main([*given, "--seeds", "1", "--epochs", "2", "--device", "cpu"]) == code
    assert "layers was 1 and is now 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rate", "code"), [("0.05", 0), ("0.0", 2)], ids=["patience was not needed", "patience ended it"]
)
def test_patience_that_changed_nothing_may_be_dropped(
    capsys: Any, data: Path, tmp_path: Path, rate: str, code: int
) -> None:
    """At rate 0 no evaluation is better than the first, so after five more patience ends the run, an epoch early."""
    tuned = tmp_path / "tuned.toml"
    given = ["compare", "--data", str(data), "--out", str(tmp_path / "out"), "--config", str(tuned), "--seeds", "1"]
    for patience, wanted in ((5, 0), (0, code)):
        section = f'[compare.mine]\nmethod = "mf-bpr"\nrate = {rate}\nevaluate_every = 1\npatience = {patience}\n'
        tuned.write_text(section)
        assert cli.main([*given, "--epochs", "7", "--device", "cpu"]) == wanted
    assert ("patience was 5 and is now 0" in capsys.readouterr().err) == (code == 2)


def test_changed_data_is_refused(capsys: Any, finished: Path, tmp_path: Path, data: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    before = data.read_text()
    try:
        data.write_text(before + "ann0,book47\nann0,book46\nann0,book45\nann1,book47\n")
        assert cli.main(words(data, out)) == 2
    finally:
        data.write_text(before)
    assert "the data is not what" in capsys.readouterr().err


def test_a_strange_folder_is_left_alone(capsys: Any, data: Path, tmp_path: Path) -> None:
    strange = tmp_path / "out" / "runs" / "popularity-seed0"
    strange.mkdir(parents=True)
    (strange / "diary.txt").write_text("dear diary")
    assert cli.main(words(data, tmp_path / "out", "popularity")) == 2
    assert "holds no run" in capsys.readouterr().err
    assert os.listdir(strange) == ["diary.txt"]


# ---------------------------------------------------------------------------------------------- failing


def test_one_failing_method_does_not_lose_the_others(
    capsys: Any, data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgrec.centralized.untrained import Popularity

    def broken(_: Any) -> None:
        raise ZeroDivisionError("no | likes\nat all")

    out = Path(shutil.copytree(finished, tmp_path / "out"))
    shutil.rmtree(out / "runs" / "popularity-seed1")
    with monkeypatch.context() as patch:
        patch.setattr(Popularity, "embeddings", broken)
        found = compared(data, out, methods=f"popularity,{MF},mf-bpr:rate=1e30,turbocf", code=1)
    rows = {row["label"]: row for row in found["rows"]}
    assert rows["turbocf"]["seeds"] == rows[MF]["seeds"] == [0, 1]
    assert rows["turbocf"]["note"] == ""
    assert (rows["popularity"]["seeds"], rows["mf-bpr:rate=1e30"]["seeds"]) == ([0], [])
    # The only seed left needs an interval over users, which is broken too.
    assert rows["popularity"]["note"] == "failed: ZeroDivisionError: no | likes at all"
    assert "diverged" in rows["mf-bpr:rate=1e30"]["note"]
    said = capsys.readouterr().out
    assert "mf-bpr:rate=1e30: failed: " in said
    assert "diverged" in (out / "compare.md").read_text()
    assert "ZeroDivisionError" in (out / "runs" / "popularity-seed1" / "failure.txt").read_text()
    mended = compared(data, out, methods=f"popularity,{MF},turbocf")
    assert [row["seeds"] for row in mended["rows"]] == [[0, 1]] * 3
    assert not (out / "runs" / "popularity-seed1" / "failure.txt").exists()


def test_data_without_test_items_cannot_be_compared(capsys: Any, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "train-only"
    folder.mkdir()
    shutil.copy(data, folder / "train.csv")
    assert cli.main(words(folder, tmp_path / "out", "popularity")) == 2
    assert "has no test items" in capsys.readouterr().err
    assert cli.main([*words(data, tmp_path / "out", "popularity"), "--set", "validation=0"]) == 2
    assert "raise `validation`" in capsys.readouterr().err


@contextmanager
def somebody(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds this folder until it is ended."""
    program = "import sys, time\nfrom pathlib import Path\nfrom fedgrec.data.files import claimed\n"
    program += "with claimed(Path(sys.argv[1])):\n    print('here', flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "here\n"
            yield other
        finally:
            other.kill()


def test_what_another_process_is_at_comes_last(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process is killed while we wait for it, so we do its run."""
    with somebody(tmp_path / "out/runs/popularity-seed0") as other:
        monkeypatch.setattr(comparison.time, "sleep", lambda seconds: other.kill() if seconds else None)
        found = compared(data, tmp_path / "out", methods="popularity,turbocf", seeds="1")
    assert all(run["result"] for run in found["runs"])
    said = [line for line in capsys.readouterr().out.splitlines() if ", seed 0: " in line]
    assert [line[: line.index("]")] for line in said] == ["[1/2", "[2/2", "[1/2"]
    assert said[0].endswith("another process is at it")


def test_however_long_we_wait_it_is_said_once(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the busy run is left, so the comparison waits for it."""
    waits = iter(range(3))
    with somebody(tmp_path / "out/runs/popularity-seed0") as other:
        monkeypatch.setattr(comparison.time, "sleep", lambda seconds: other.kill() if next(waits, 9) == 2 else None)
        compared(data, tmp_path / "out", methods="popularity", seeds="1")
    assert capsys.readouterr().out.count("another process is at it") == 1


# A process that prints what it trains.
SAYING = """
import sys
from fedgrec import cli
from fedgrec.studies.compare.runs import CentralizedRun, FederatedRun
def saying(train):
    def said(run, *more):
        print("trains", run.folder.name, flush=True)
        train(run, *more)
    return said
for kind in (CentralizedRun, FederatedRun):
    kind.train = saying(kind.train)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_two_processes_share_the_runs_out(data: Path, tmp_path: Path) -> None:
    """Each run is trained once, and both show all results."""
    command = [sys.executable, "-c", SAYING, *words(data, tmp_path / "out")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        said = [process.communicate(timeout=seconds(120)) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    trained = [line.split()[1] for out, _ in said for line in out.splitlines() if line.startswith("trains")]
    assert sorted(trained) == sorted(RUNS)
    shown = [[line for line in out.splitlines() if ", seed " in line and "recall@20" in line] for out, _ in said]
    assert [len(each) for each in shown] == [len(RUNS), len(RUNS)]


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("result.json", "", "result.json is damaged"),
        ("result.json", "[]", "result.json is damaged"),
        ("result.json", "{}", "result.json is damaged (there is no 'round')"),
        ("metrics.jsonl", '{"round": 1, "split": "test"}\n{"rou', "metrics.jsonl:2 is damaged"),
        ("data.json", "{", "data.json is damaged"),
    ],
)
def test_a_damaged_run_is_one_sentence(
    capsys: Any, finished: Path, data: Path, tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    (out / "runs" / "popularity-seed0" / name).write_text(content)
    assert cli.main([*words(data, out), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_damaged_interval_is_made_again(data: Path, tmp_path: Path) -> None:
    before = compared(data, tmp_path / "out", methods="popularity", seeds="1")
    path = tmp_path / "out" / "runs" / "popularity-seed0" / "users-interval.json"
    for content in ("{", "[]"):
        path.write_text(content)
        assert timeless(compared(data, tmp_path / "out", methods="popularity", seeds="1")) == timeless(before)


def test_a_full_disk_ends_the_comparison(
    capsys: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is not one method's failure: the others would fail too."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert cli.main([*words(data, tmp_path / "out"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "the disk is full" in said
    assert said.count("\n") == 1
    assert not list(tmp_path.rglob("*.part"))


# ------------------------------------------------------------------------------------------- device


def test_the_device_reaches_federated_methods(data: Path) -> None:
    from fedgrec.studies.compare.names import File, entries
    from fedgrec.studies.compare.plan import Settings

    def devices(text: str, device: str, named: str = "") -> list[str]:
        settings = Settings(
            entries(text, File()),
            (0,),
            named={"device": named} if named else {},
            flags={"data": str(data)},
            device=device,
        )
        runs = settings.runs(Path("out"), settings.load(0))
        return [run.config.run.device for run in runs]

    assert devices("fedgrec,fcf,mf-bpr,popularity", "cuda") == ["cuda", "cuda", "cuda", "cpu"]
    assert devices("fedgrec,fcf,mf-bpr,popularity", "cpu") == ["cpu"] * 4
    assert devices("fedgrec,fedgrec:device=cpu", "cuda") == ["cuda", "cpu"]
    assert devices("fedgrec,mf-bpr", "auto", "cuda") == ["cuda", "cuda"]  # --set device=cuda
    assert devices("fedgrec,mf-bpr", "cpu", "cuda") == ["cpu", "cpu"]  # the flag wins


@pytest.mark.parametrize("method", ["fedgrec", "fcf", "mf-bpr"])
def test_a_gpu_that_is_not_there_is_said_before_anything_is_trained(
    capsys: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    torch = pytest.importorskip("torch")

    def no_driver() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "init", no_driver)
    given = ["compare", "--data", str(data), "--methods", f"popularity,{method}", "--out", str(tmp_path / "out")]
    assert cli.main([*given, "--seeds", "1", "--device", "cuda", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "there is no GPU for device 'cuda'" in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []
