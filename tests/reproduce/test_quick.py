"""`fedgrec reproduce` from the command line: the files it writes, and how it handles failures."""

import csv
import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.cli.progress import Lines
from fedgrec.data import load
from fedgrec.studies.compare.packed import PACKED, pack
from fedgrec.studies.compare.runs import half_width
from fedgrec.studies.reproduce import NAMES
from fedgrec.studies.reproduce.targets import TARGETS
from tests.pages import checked
from tests.reproduce.conftest import DATA, ITEMS, QUICK, USERS, words

GROUP = "small-paper-12-rounds-quick"
CURVES = ("figure-s", "figure-tau", "figure-curves")


def table(folder: Path, target: str, file: str = "table.csv") -> list[dict[str, str]]:
    with (folder / "out" / target / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def result(folder: Path, label: str, seed: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder / "runs" / GROUP / "runs" / f"{label}-seed{seed}/result.json").read_text()
    )
    return found


# ------------------------------------------------------------------------------------------- what it leaves


@pytest.mark.parametrize("target", NAMES)
def test_every_target_leaves_its_tables_and_pictures(made: Path, target: str) -> None:
    files = {path.name: path for path in (made / "out" / target).iterdir()}
    picture = {"table1": set(), "communication": {"small.svg"}}.get(target, {"small-paper.svg"})
    curves = {"curves.csv"} if target in CURVES else set()
    assert set(files) == {"table.md", "table.csv", "table.tex", "table.html"} | picture | curves
    checked(files["table.html"].read_text(encoding="utf-8"))
    for name in picture:
        assert ElementTree.parse(files[name]).getroot().tag.endswith("}svg")
        assert f"]({name})" in files["table.md"].read_text(encoding="utf-8")


@pytest.mark.parametrize("target", NAMES)
def test_every_table_names_its_command_and_its_origin(made: Path, target: str) -> None:
    for name in ("table.md", "table.tex"):
        text = (made / "out" / target / name).read_text(encoding="utf-8")
        assert f"`fedgrec reproduce {target} --quick --seeds 1 --protocol paper --device cpu" in text
        assert "fedgrec 0." in text
        if shutil.which("git") and Path(".git").exists():
            assert ", commit " in text


def test_the_numbers_are_those_of_the_runs(made: Path) -> None:
    rows = {row["label"]: row for row in table(made, "table2")}
    assert list(rows) == [entry.label for entry in TARGETS["table2"].entries]  # in the paper's order
    for label, row in rows.items():
        found = result(made, label.replace(" ", "-"))
        assert float(row["recall@20"]) == found["recall@20"]
        assert float(row["ndcg@20"]) == found["ndcg@20"]
        assert row["interval_over"] == "users"
        assert row["note"] == ""


def test_a_way_to_combine_is_shown_with_the_runs_that_belong_to_it(made: Path) -> None:
    """Tables 3 and 4 show the same runs by two metrics; `last` with one latent is FedGRec-1."""
    for target, metric in (("table3", "ndcg@20"), ("table4", "recall@20")):
        lines = (made / "out" / target / "table.md").read_text(encoding="utf-8").splitlines()
        cells = {
            parts[1]: [parts[i] for i in (3, 6, 9)]
            for parts in ([cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| FedGRec"))
        }
        plans = {"FedGRec": "FedGRec-{}", "FedGRec-last": "FedGRec-last-{}", "FedGRec-concat": "FedGRec-concat-{}"}
        for name, plan in plans.items():
            labels = [plan.format(k) if (name, k) != ("FedGRec-last", 1) else "FedGRec-1" for k in (1, 2, 3)]
            assert [cell.split(" ± ")[0] for cell in cells[name]] == [
                f"{result(made, label)[metric]:.4f}" for label in labels
            ]


@pytest.mark.parametrize("target", CURVES)
def test_curves_have_every_evaluation_of_every_run(made: Path, target: str) -> None:
    lines, plan = table(made, target, "curves.csv"), TARGETS[target]
    for entry in plan.entries:
        mine = [line for line in lines if line["label"] == plan.names.get(entry.label, entry.label)]
        assert [int(line["round"]) for line in mine] == [3, 6, 9, 12]
        folder = entry.label.replace(" ", "-").replace("=", "-")
        assert max(float(line["recall@20"]) for line in mine) == result(made, folder)["recall@20"]


def test_the_table_says_how_many_rounds_were_run(made: Path) -> None:
    text = (made / "out" / "figure-tau" / "table.md").read_text(encoding="utf-8")
    assert "Rounds run: 12 (τ = 1, τ = 2, τ = 10, τ = 20). The paper ran 100,000." in text
    assert "Quick: tiny embeddings" in text


def test_table1_counts_every_pair(made: Path) -> None:
    rows = {row["what"]: row for row in table(made, "table1")}
    whole = load(DATA, test_ratio=0.0).split.train
    assert int(rows["interactions"]["ours"]) == whole.n_pairs
    assert (int(rows["users"]["ours"]), int(rows["items"]["ours"])) == (USERS, ITEMS)
    assert float(rows["density"]["ours"]) == pytest.approx(whole.n_pairs / (USERS * ITEMS))
    assert rows["users"]["paper"] == ""


def test_a_reading_has_runs_and_tables_of_its_own(made: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    assert cli.main([*words(tmp_path, "table4"), "--only", "FedGRec-1", "--reading", "sgd-10"]) == 0
    assert os.listdir(tmp_path / "out") == ["table4-sgd-10"]
    said = capsys.readouterr().out
    assert "Reading sgd-10: items learn by local SGD at rate 10" in said
    usual, read = (tmp_path / "runs" / name for name in (GROUP, GROUP.replace("-12", "-sgd-10-12")))
    found = [json.loads((folder / "runs/FedGRec-1-seed0/result.json").read_text()) for folder in (usual, read)]
    assert found[0]["recall@20"] != found[1]["recall@20"]
    assert "--reading sgd-10" in (tmp_path / "out/table4-sgd-10/table.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------- going on, and trouble


def test_finished_runs_are_shared_and_kept_and_seeds_can_be_added(made: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    assert cli.main(words(tmp_path, "table3", "figure-tau")) == 0
    said = " ".join(capsys.readouterr().out.split())  # lines are broken to fit a terminal
    assert said.count("(finished before)") == 8 + 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == times
    assert table(tmp_path, "table3") == table(made, "table3")

    more = [*words(tmp_path, "figure-tau"), "--seeds", "0,3", "--only", "τ = 1,FedGRec-2"]
    assert cli.main(more) == 0
    rows = {row["label"]: row for row in table(tmp_path, "figure-tau")}
    assert set(rows) == {"τ = 1", "τ = 10"}
    values = [result(tmp_path, "FedGRec-2", seed)["recall@20"] for seed in (0, 3)]
    assert float(rows["τ = 10"]["recall@20"]) == np.mean(values)
    assert float(rows["τ = 10"]["recall@20_half_width"]) == half_width(values)
    assert rows["τ = 10"]["interval_over"] == "seeds"


def test_a_stopped_target_says_how_to_go_on_and_ends_the_same(
    made: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after more and more rounds, within the first run and between two runs."""
    only = ["--only", "FedGRec-1,FedGRec-concat-1"]
    for patience in (4, 16):
        count = iter(range(10**6))
        with monkeypatch.context() as patch:
            patch.setattr(Lines, "stop_wanted", lambda _, count=count, patience=patience: next(count) > patience)
            assert cli.main([*words(tmp_path, "table4"), *only]) == 130
        captured = capsys.readouterr()
        assert shlex.join(["fedgrec", *words(tmp_path, "table4"), *only]) in captured.err
        assert "not finished" in (tmp_path / "out" / "table4" / "table.csv").read_text()
    assert cli.main([*words(tmp_path, "table4"), *only]) == 0
    for label in ("FedGRec-1", "FedGRec-concat-1"):
        ours, theirs = result(tmp_path, label), result(made, label)
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def test_one_failing_run_does_not_lose_the_others(
    made: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedgrec.runs.simulation import Simulation

    shutil.copytree(made / "runs", tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / GROUP / "runs" / "FedGRec-concat-2-seed0")

    def broken(_: Any) -> None:
        raise ZeroDivisionError("no likes")

    monkeypatch.setattr(Simulation, "_round", broken)
    assert cli.main(words(tmp_path, "table3")) == 1
    rows = {row["label"]: row for row in table(tmp_path, "table3")}
    assert rows["FedGRec-concat-2"]["note"] == "failed: ZeroDivisionError: no likes"
    assert rows["FedGRec-concat-3"]["recall@20"]


def test_what_is_finished_is_shown_and_nothing_is_run(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    cut = tmp_path / "runs" / GROUP / "runs" / "FedGRec-2-seed0"
    (cut / "result.json").unlink()
    shutil.rmtree(cut.with_name("FedGRec-3-seed0"))
    bare = cut.with_name("FedGRec-1-seed0")  # kept for its numbers alone
    for name in ("server.safetensors", "users.safetensors", "users-interval.json"):
        (bare / name).unlink(missing_ok=True)
    assert cli.main([*words(tmp_path, "table4"), "--finished", "--quiet"]) == 0
    rows = {row["label"]: row for row in table(tmp_path, "table4")}
    assert {label for label, row in rows.items() if row["recall@20"] == ""} == {"FedGRec-2", "FedGRec-3"}
    assert float(rows["FedGRec-1"]["recall@20"]) == result(made, "FedGRec-1")["recall@20"]
    assert rows["FedGRec-1"]["note"] == ""
    assert not (bare / "failure.txt").exists()
    assert not (cut / "result.json").exists()
    assert not cut.with_name("FedGRec-3-seed0").exists()


def test_packed_runs_are_shown_as_if_they_were_there(made: Path, tmp_path: Path) -> None:
    """Runs packed in one file give the same tables, and existing run folders are not overwritten."""
    group = tmp_path / "runs" / GROUP
    shutil.copytree(made / "runs" / GROUP / "runs", group / "runs")
    pack(group)
    own = group / "runs" / "FedGRec-1-seed0"
    for folder in own.parent.iterdir():
        if folder != own:
            shutil.rmtree(folder)
    (own / "mine").touch()
    assert cli.main([*words(tmp_path, "table4"), "--finished", "--quiet"]) == 0
    for path in (tmp_path / "out").rglob("table.csv"):
        assert path.read_text() == (made / "out" / path.relative_to(tmp_path / "out")).read_text()
    assert (own / "mine").exists()
    assert [path.name for path in own.parent.iterdir() if path.suffix == ".part"] == []
    (group / PACKED).write_text('{"run": "../elsewhere"}\n')
    assert cli.main([*words(tmp_path, "table4"), "--finished", "--quiet"]) == 2


def test_runs_made_with_other_options_are_refused(made: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    config = tmp_path / "runs" / GROUP / "runs" / "FedGRec-1-seed0" / "config.toml"
    config.write_text(config.read_text().replace("negatives = 64", "negatives = 65"))
    assert cli.main([*words(tmp_path, "table3"), "--only", "FedGRec-1"]) == 2
    said = capsys.readouterr().err
    assert "negatives was 65 and is now 64" in said
    assert "name another --runs" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "name a table or figure"),
        (["tabel2"], "Did you mean 'table2'?"),
        (["table2", "--rounds", "0"], "--rounds cannot be '0'"),
        (["table2", "--only", "FedGrec-1"], "Did you mean 'FedGRec-1'?"),
        (["table2", "--seeds", "x"], "--seeds x"),
        (["table1", "--data", "gowala"], "gowala"),
        (["table2", "--reading", "sdg-10"], "Did you mean 'sgd-10'?"),
        (["table1", "--reading", "sgd-10"], "--reading sgd-10 changes nothing here"),
    ],
)
def test_mistakes_are_one_sentence(given: list[str], sentence: str, tmp_path: Path, capsys: Any) -> None:
    assert cli.main(["reproduce", *given, "--out", str(tmp_path / "a"), "--runs", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "out").write_text("")
    assert cli.main(words(tmp_path, "table1")) == 2
    assert "is a file" in capsys.readouterr().err


def test_list_shows_every_target_with_its_runs_in_80_columns(capsys: Any) -> None:
    assert cli.main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in NAMES)
    assert max(map(len, said.splitlines())) <= 80
    assert "48 runs on gowalla: 8 settings, paper and honest, 3 seeds" in said
    assert cli.main(["reproduce", "table4", "--list", *QUICK]) == 0
    assert f"8 runs on {DATA}: 8 settings, paper, 1 seed" in " ".join(capsys.readouterr().out.split())


def test_under_honest_curves_are_of_validation_and_the_number_of_one_look_at_test(tmp_path: Path) -> None:
    assert cli.main([*words(tmp_path, "figure-tau"), "--protocol", "honest", "--only", "τ = 1"]) == 0
    lines = table(tmp_path, "figure-tau", "curves.csv")
    assert [line["split"] for line in lines] == ["validation"] * 4 + ["test"]
    (row,) = table(tmp_path, "figure-tau")
    assert (row["recall@20"], row["protocol"]) == (lines[-1]["recall@20"], "honest")
    shown = next(
        line for line in (tmp_path / "out/figure-tau/table.md").read_text().splitlines() if line.startswith("| τ = 1")
    )
    early = [cell.strip() for cell in shown.split("|")][-4:-1]
    # 12 rounds evaluated at 3, 6, 9 and 12: nothing within a twentieth, one within a quarter
    assert early == ["–", f"{float(lines[0]['recall@20']):.4f}", f"{float(lines[3]['recall@20']):.4f}"]
