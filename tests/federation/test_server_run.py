"""The run folder of a federation's server can be read; commands that need users say which node to ask."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedgrec.cli import main
from fedgrec.config.configuration import read_toml
from fedgrec.federation.server.folder import STOP, open_server
from tests.federation.worlds import N_ITEMS, world

WORDS = [["recommend", "--user", "0/0"], ["evaluate"]]


def test_the_run_says_what_it_is(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"evaluations": 9})
    for path in (fed.server, *fed.nodes.values()):
        (path / "items.txt").write_text("".join(f"item {i}\n" for i in range(N_ITEMS)))
    run = fed.run()
    config, about = read_toml(run / "config.toml"), json.loads((run / "data.json").read_text())
    assert (config["rounds"], config["topk"], config["dim"]) == (2, [5], 4)
    assert about["protocol"] == "federation"
    assert about["sizes"] == {"nodes": 3, "users": 18, "items": N_ITEMS}
    assert json.loads((run / "items.json").read_text()) == {
        "kind": "item",
        "ids": [f"item {i}" for i in range(N_ITEMS)],
    }
    assert load_file(run / "server.safetensors")["item_embeddings"].shape == (2, N_ITEMS, 4)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert json.loads((run / "result.json").read_text()) == lines[-1]
    assert (lines[-1]["round"], lines[-1]["protocol"]) == (1, "federation"), "of the model that was trained on last"


def test_a_server_that_is_to_end_begins_no_other_sum_and_goes_on_later(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"rounds": 3})

    def summed(line: dict[str, Any]) -> None:
        if line["stage"] == "train" and line["round"] == 0:
            (fed.server / STOP).touch()

    fed.witness.summed = summed  # type: ignore[method-assign]
    fed.run()
    assert [line["round"] for line in fed.applied("train")] == [0]
    fed.witness.summed = lambda line: None  # type: ignore[method-assign]
    fed.run()
    assert [line["round"] for line in fed.applied("train")] == [0, 1, 2]
    assert all(line["applied"] for line in fed.log())
    assert fed.is_its_simulation()


def test_it_has_no_users_to_recommend_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = world(tmp_path, options={"rounds": 1}).run()
    for words in WORDS:
        assert main([words[0], str(run), *words[1:]]) == 2
        err = capsys.readouterr().err
        assert "which has no users" in err
        assert "fedgrec device recommend NODE --user ID" in err
        assert "--resume" not in err
        assert len(err.splitlines()) == 1
    assert main(["recommend", str(run), "--similar", "3", "-n", "2"]) == 0


def said(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_recommends_to_people_by_their_items_and_is_judged_by_people_who_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed = world(tmp_path)
    names = [f"item {i}" for i in range(N_ITEMS)]
    for path in (fed.server, *fed.nodes.values()):
        (path / "items.txt").write_text("".join(f"{name}\n" for name in names))
    run, home = fed.run(), open_server(fed.server)
    method, server = home.method(1), fed.model()
    scores = method.scores(server, method.strangers(np.array([0, 3]), np.array([2, 5, 7])))[0]
    order = [names[i] for i in np.argsort(-scores, kind="stable") if i not in (2, 5, 7)]
    found = said(capsys, "recommend", run, "--items", "item 5,item 2", "--items", "item 7", "-n", N_ITEMS)
    assert [line["item"] for line in found] == order
    assert len(said(capsys, "recommend", run, "--similar", "item 3", "-n", 4)) == 4
    table = tmp_path / "people"
    table.mkdir()
    (table / "train.csv").write_text("user,item\nann,item 2\nann,item 5\nann,item 7\nbob,unheard of\n")
    (table / "test.csv").write_text(f"user,item\nann,{order[0]}\nann,{order[-1]}\nbob,item 1\n")
    line = said(capsys, "evaluate", run, "--data", table, "--topk", "1,5")
    assert (line["users"], line["unknown_pairs"], line["round"]) == (1, 1, 2)
    assert (line["recall@1"], line["recall@5"]) == (0.5, 0.5)
    (table / "train.csv").write_text("user,item\nann,x\n")
    assert main(["evaluate", str(run), "--data", str(table)]) == 2
    assert "nobody in" in capsys.readouterr().err


def test_a_method_that_knows_no_strangers_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = world(tmp_path, "federank", users=3, options={"rounds": 1}).run()
    assert main(["recommend", str(run), "--similar", "3"]) == 0
    assert main(["recommend", str(run), "--items", "3,4"]) == 2
    assert "knows nothing of a person it has not met" in capsys.readouterr().err
