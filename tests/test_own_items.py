"""Nobody is ever recommended an item that the data says they have, on any way to a recommendation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedgrec import FedGRec, cli
from fedgrec.cli import training
from fedgrec.data import load
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.gateway import open_gateway
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.store import NodeStore
from fedgrec.models.model import Model
from tests.federation.worlds import world

QUICK = ["--dim", "8", "--negatives", "16", "--rounds", "6", "--quiet"]
Lists = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_report", lambda *_: None)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, set[str]]]:
    """30 people and 60 items; everybody has between 5 and 25 of them."""
    rng, people = np.random.default_rng(5), {}
    for person in range(30):
        people[f"p{person}"] = {f"i{item}" for item in rng.choice(60, rng.integers(5, 26), replace=False)}
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    rows = [f"{person},{item}" for person, items in people.items() for item in sorted(items)]
    path.write_text("user,item\n" + "\n".join(rows) + "\n")
    return path, people


def own_items(people: dict[str, set[str]], lists: Lists) -> int:
    """How many people find one of their own items in their list although other items are left."""
    found = {person: lists(person) for person in people}
    assert all(found.values())
    return sum(bool(set(found[person]) & items) for person, items in people.items())


def of_run(run: Path) -> Lists:
    model = Model.load(run)

    def lists(person: str) -> list[str]:
        user = model.user_ids.parse(person)
        return [str(model.item_ids[int(item)]) for item in model.recommend_to(user, model.seen(user), 20)[0]]

    return lists


def run(*words: Any, command: str = "train") -> None:
    assert cli.main([command, *map(str, words)]) == 0


@pytest.mark.parametrize("protocol", ["honest", "paper"])
def test_train_then_final(clicks: Any, tmp_path: Path, protocol: str) -> None:
    path, people = clicks
    run("--data", path, "--out", tmp_path / "held", "--protocol", protocol, *QUICK)
    assert own_items(people, of_run(tmp_path / "held")) == 0
    run(tmp_path / "held", "--quiet", command="finish")
    assert own_items(people, of_run(tmp_path / "held-final")) == 0
    final = Model.load(tmp_path / "held-final")
    assert len(final.users.items) == sum(map(len, people.values()))  # it learned from everything
    held = json.loads((tmp_path / "held" / "result.json").read_text())
    assert final.round == held["round"] == json.loads((tmp_path / "held-final" / "result.json").read_text())["round"]


def test_the_command_line_says_it_too(clicks: Any, tmp_path: Path, capsys: Any) -> None:
    path, people = clicks
    run("--data", path, "--out", tmp_path / "run", *QUICK)
    capsys.readouterr()
    for person in list(people)[:5]:
        assert cli.main(["recommend", str(tmp_path / "run"), "--user", person, "-n", "20", "--json"]) == 0
        assert not {line["item"] for line in json.loads(capsys.readouterr().out)} & people[person]
    mine = sorted(people["p0"])  # of somebody the model has never met
    assert cli.main(["recommend", str(tmp_path / "run"), "--items", ",".join(mine), "-n", "20", "--json"]) == 0
    assert not {line["item"] for line in json.loads(capsys.readouterr().out)} & set(mine)


@pytest.mark.parametrize("more", [[], ["--k-core", "3"]], ids=str)
def test_what_was_rated_too_low_to_learn_from(clicks: Any, tmp_path: Path, more: list[str]) -> None:
    _, people = clicks
    rng = np.random.default_rng(6)
    ratings = [f"{person},{item},{rng.integers(1, 6)}" for person, items in people.items() for item in sorted(items)]
    path = tmp_path / "ratings.csv"
    path.write_text("user,item,rating\n" + "\n".join(ratings) + "\n")
    run("--data", path, "--min-rating", "3", *more, "--out", tmp_path / "run", *QUICK)
    ids = Model.load(tmp_path / "run").user_ids
    kept = {person: items for person, items in people.items() if ids.knows(person)}
    assert own_items(kept, of_run(tmp_path / "run")) == 0
    run(tmp_path / "run", "--quiet", command="finish")
    assert own_items(kept, of_run(tmp_path / "run-final")) == 0


def test_a_federation_reads_no_ratings_so_it_takes_no_such_file(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(
        "user,item,rating\n" + "".join(f"p{p},i{i},{1 + (p + i) % 5}\n" for p in range(9) for i in range(9))
    )
    words = ["federation", "init", "--data", str(path), "--out", str(tmp_path / "fed"), "--set", "min_rating=3"]
    assert cli.main(words) == 2
    assert "nodes read no ratings" in capsys.readouterr().err
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize("options", [{}, {"validation": 0.2}, {"protocol": "paper"}], ids=str)
def test_fit_and_load(clicks: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    path, people = clicks
    frame = pd.read_csv(path)
    held = frame.groupby("user").sample(2, random_state=0)
    quick = {"dim": 8, "negatives": 16, "rounds": 4, **options}
    model = FedGRec(**quick).fit(frame.drop(held.index), test=held)
    model.save(tmp_path / "model")
    for ready in (model, FedGRec.load(tmp_path / "model")):
        assert own_items(people, lambda person, ready=ready: ready.recommend(person, N=20)[0].tolist()) == 0


def test_fit_trains_on_everything_unless_it_is_asked_not_to(clicks: Any) -> None:
    path, people = clicks
    frame = pd.read_csv(path)
    whole = FedGRec(dim=4, negatives=4, rounds=1).fit(frame)
    assert whole.model
    assert len(whole.model.users.items) == sum(map(len, people.values()))
    part = FedGRec(dim=4, negatives=4, rounds=1, validation=0.2).fit(frame)
    assert part.model
    assert len(part.model.users.items) < sum(map(len, people.values()))


def test_the_demo(tmp_path: Path) -> None:
    everything = load("demo", split="all").split.train
    people = {str(user): {str(item) for item in everything.of(user)} for user in range(0, everything.n_users, 20)}
    run("--data", "demo", "--out", tmp_path / "run", *QUICK)
    assert own_items(people, of_run(tmp_path / "run")) == 0
    run(tmp_path / "run", "--quiet", command="finish")
    assert own_items(people, of_run(tmp_path / "run-final")) == 0


@pytest.mark.parametrize("per_user_masks", [False, True])
def test_a_federation_and_its_devices(tmp_path: Path, per_user_masks: bool) -> None:
    home = world(tmp_path, users=3, per_user_masks=per_user_masks, layers=1)
    home.run()
    for folder in home.transport.folders.values():
        people = {}
        for node in [folder] if not per_user_masks else list(open_gateway(folder).members.values()):
            with NodeStore(node) as store:
                for user, row in zip(store.ids(), store.first_rows(store.count()), strict=True):
                    items = store.cohort(open_node(node).method(1), [row]).items
                    people[user] = {str(t) for t in [*items, *store.held_out([row])[0]]}
        assert any(people)
        assert own_items(people, lambda user, at=folder: [str(t) for t in recommend(at, user, 20)[0].tolist()]) == 0
