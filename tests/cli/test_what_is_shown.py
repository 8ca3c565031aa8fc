"""What a person sees of a training run: a live bar on a terminal, plain lines elsewhere, nothing if asked."""

import os
import pty
import re
import shlex
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from fedgrec import cli
from fedgrec.data.datasets import load_for
from fedgrec.models.model import Model
from tests.cli.small import lines, train_words


def on_a_terminal(words: list[str], columns: int = 100, **environment: str) -> tuple[int, str]:
    """The exit code and all that a terminal was sent."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, columns))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedgrec", *words], stdin=slave, stdout=slave, stderr=slave, env=os.environ | environment
    )
    os.close(slave)
    said = b""
    while True:
        try:
            block = os.read(master, 1 << 16)
        except OSError:  # Linux raises this when the other end is closed
            break
        if not block:
            break
        said += block
    os.close(master)
    return process.wait(), said.decode()


def test_on_a_terminal_a_bar_shows_rate_time_left_and_the_metric_in_80_columns(data: Path, tmp_path: Path) -> None:
    code, said = on_a_terminal(train_words(data, tmp_path / "r", rounds=60), 80)
    assert code == 0
    frames = said.split("\r")
    assert any(
        re.search(r"\d+/60 \[\d\d:\d\d<\d\d:\d\d, .*(round/s|s/round), recall@20 [01]\.\d{4}\]", f) for f in frames
    )
    assert "60/60" in said
    shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", said).replace(str(tmp_path), "runs")
    assert max(len(frame) for line in shown.split("\n") for frame in line.split("\r")) <= 80


def test_elsewhere_there_is_one_plain_line_for_each_evaluation(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main(train_words(data, tmp_path / "run")) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "\r" not in said.out
    assert "\x1b" not in said.out
    told = re.findall(r"^round +(\d+)  (\w+) +recall@20 (\S+)  ndcg@20 (\S+) ", said.out, re.MULTILINE)
    assert told == [
        (str(x["round"]), x["split"], f"{x['recall@20']:.4f}", f"{x['ndcg@20']:.4f}")
        for x in lines(tmp_path / "run" / "metrics.jsonl")
    ]


def test_the_result_says_its_protocol_and_the_next_command_works(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main(train_words(data, tmp_path / "a run")) == 0
    said = capsys.readouterr().out
    assert "(chosen on validation; protocol honest), 16 users:" in said
    program, *words = shlex.split(said.splitlines()[-1])
    assert program == "fedgrec"
    assert cli.main(words) == 0
    assert cli.main(train_words(data, tmp_path / "published", protocol="paper")) == 0
    assert "(the best round on test; protocol paper)" in capsys.readouterr().out


def test_quiet_is_quiet(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main([*train_words(data, tmp_path / "run"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_without_test_items_a_run_still_ends(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.txt").write_text("0 0\n1 1\n2 0\n")
    assert cli.main(train_words(tmp_path / "mine", tmp_path / "run")) == 0
    assert "no test items, so nothing was measured" in capsys.readouterr().out
    assert cli.main(["recommend", str(tmp_path / "run"), "--user", "1"]) == 0


def test_a_run_without_a_name_is_named_after_its_data(data: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = train_words(data, Path("unused"), seed=3)
    at = words.index("--out")
    assert cli.main([*words[:at], *words[at + 2 :], "--quiet"]) == 0
    assert (tmp_path / "runs" / "clicks-two-parts-3" / "result.json").exists()


def test_a_finished_run_has_a_report_to_look_at(data: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "fedgrec", *train_words(data, tmp_path / "run")],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stderr == ""
    assert f"report: {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_says_what_it_held_out_and_how_to_learn_from_everything(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main([*train_words(data, tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    split = load_for(Model.load(tmp_path / "run").config).split
    held = f"{split.validation.n_pairs:,} validation and {split.test.n_pairs:,} test items included"
    assert held in shown
    assert f"fedgrec finish {tmp_path / 'run'}" in shown
    assert cli.main(["finish", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "learns from all" not in shown
    assert f"{split.known.n_pairs:,} train" in shown


def test_a_final_run_says_that_the_data_has_changed(capsys: Any, data: Path, tmp_path: Path) -> None:
    clicks = tmp_path / "clicks.csv"
    clicks.write_text(data.read_text())
    assert cli.main([*train_words(clicks, tmp_path / "run")]) == 0
    clicks.write_text(data.read_text() + "ann3,a-new-book\n")
    assert cli.main(["finish", str(tmp_path / "run")]) == 0
    assert f"The data is not what {tmp_path / 'run'} was trained on" in capsys.readouterr().out
    assert "a-new-book" in Model.load(tmp_path / "run-final").item_ids


def test_a_final_run_takes_its_options_from_the_other_one(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main([*train_words(data, tmp_path / "run")]) == 0
    assert cli.main(["train", "--final", str(tmp_path / "run"), "--out", str(tmp_path / "x")]) == 2
    assert "--final is a command of its own now: fedgrec finish RUN" in capsys.readouterr().err
    assert cli.main(["finish", str(tmp_path / "nowhere")]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_a_small_federation_does_not_speak_of_rounds_of_400(capsys: Any, data: Path, tmp_path: Path) -> None:
    assert cli.main([*train_words(data, tmp_path / "run"), "--users-per-round", "400"]) == 0
    users = Model.load(tmp_path / "run").known.n_users
    assert f"rounds of {users} users" in capsys.readouterr().out


def test_compiling_is_said_where_it_happens_and_only_there(capsys: Any) -> None:
    import numba

    from fedgrec.cli.progress import Bar

    with Bar().watching():
        pass
    assert "compiling" not in capsys.readouterr().out
    with Bar().watching():
        for _ in range(2):
            numba.njit(lambda x: x + 1)(1)
    assert capsys.readouterr().out.count("compiling") == 1
    with Bar(quiet=True).watching():
        numba.njit(lambda x: x + 2)(1)
    assert capsys.readouterr().out == ""
