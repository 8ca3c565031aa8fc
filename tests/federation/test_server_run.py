"""What a federation's server leaves can be read, and whoever takes it for a run with users is told whom to ask."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedgrec.cli import main
from fedgrec.config import read_toml
from tests.federation.worlds import N_ITEMS, world

WORDS = [["recommend", "--user", "0/0"], ["recommend", "--similar", "3"], ["evaluate"]]


def test_the_run_says_what_it_is(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"rounds": 2})
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
    assert load_file(run / "server.safetensors")["item_embeddings"].shape == (3, N_ITEMS, 4)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert json.loads((run / "result.json").read_text()) == lines[-1]
    assert (lines[-1]["round"], lines[-1]["protocol"]) == (1, "federation"), "of the model that was trained on last"


@pytest.mark.parametrize("by_an_earlier_version", [False, True])
def test_it_has_no_users_to_recommend_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by_an_earlier_version: bool
) -> None:
    run = world(tmp_path, options={"rounds": 1}).run()
    if by_an_earlier_version:
        for name in ("data.json", "items.json", "result.json"):
            (run / name).unlink()
    for words in WORDS:
        assert main([words[0], str(run), *words[1:]]) == 2
        err = capsys.readouterr().err
        assert "which has no users" in err
        assert "fedgrec device recommend NODE --user ID" in err
        assert "--resume" not in err
        assert len(err.splitlines()) == 1
