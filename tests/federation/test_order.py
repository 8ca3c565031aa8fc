"""Nodes whose tables have times recommend what comes next, and a new click counts at once, as the last one."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import as_server
from fedgrec.cli import main
from fedgrec.errors import DataError
from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import everybody, recommend
from fedgrec.federation.node.refresh import refresh
from fedgrec.federation.node.sources import read_source, split
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.coordinator import run
from tests.federation.local_transport import LocalTransport
from tests.federation.worlds import Witness, world
from tests.methods.test_ordered import N, run_on, table, walks

SMALL = {"dim": 6, "spare": 2, "item_levels": 0, "split": "all", "rounds": 4, "fewest_people": 1, "evaluations": 0}
SMALL |= {"evaluate_every": 0}


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes whose tables are in no order, and the model after four sums."""
    fed = made(tmp_path_factory.mktemp("order"))
    for node in nodes(fed):
        header, *lines = (node / "interactions.csv").read_text().splitlines()
        lines = np.random.default_rng(0).permutation(lines).tolist()
        (node / "interactions.csv").write_text("\n".join([header, *lines]) + "\n")
        refresh(node)
    run(LocalTransport(dict(enumerate(nodes(fed)))), fed / "server")
    return fed


def made(root: Path, **options: Any) -> Path:
    """Three nodes that have not begun."""
    words = [word for name, value in {**SMALL, **options}.items() for word in ("--set", f"{name}={value}")]
    path, fed = table(root, walks(240)), root / "fed"
    assert not main(["federation", "init", "--out", str(fed), "--data", str(path), "--method", "ordered", *words])
    return fed


def nodes(fed: Path) -> list[Path]:
    return [fed / f"node-{index}" for index in range(3)]


def histories(node: Path) -> dict[str, list[int]]:
    """Each user's items as the node ranks by them, in their order."""
    _, people = everybody(node)
    order = people.cohort.order
    assert order is not None
    ends = zip(people.cohort.indptr, people.cohort.indptr[1:], strict=False)
    return {
        user: people.cohort.items[a:b][np.argsort(order[a:b])].tolist()
        for user, (a, b) in zip(people.ids, ends, strict=True)
    }


def first(node: Path, user: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert not main(["device", "recommend", str(node), "--user", user, "-n", "1", "--json"])
    return str(json.loads(capsys.readouterr().out)[0]["item"])


def test_devices_recommend_what_comes_next(fed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, hits = list(read_catalogue(fed / "server" / CATALOGUE)), []
    for node in nodes(fed):
        for user, mine in histories(node).items():
            assert [names[item] for item in mine] == [f"i{place}" for place in walks(240)[int(user[1:])]]
            hits.append(names[recommend(node, user, 1)[0][0]] == f"i{(int(names[mine[-1]][1:]) + 1) % N}")
    assert np.mean(hits) > 0.4
    user, mine = next(iter(histories(nodes(fed)[0]).items()))
    assert first(nodes(fed)[0], user, capsys) == names[recommend(nodes(fed)[0], user, 1)[0][0]]


def test_a_click_is_the_last_one_at_once(fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An old click that comes late is not; and neither changes what the user trains on."""
    catalogue = dict(read_catalogue(fed / "server" / CATALOGUE))
    for time, place in (("9e9", -1), ("-1", 0)):
        node = Path(shutil.copytree(nodes(fed)[0], tmp_path / str(place)))
        user, mine = next(iter(histories(node).items()))
        new, before = next(item for item in range(N) if item not in mine), recommend(node, user, N)[1]
        name = next(name for name, item in catalogue.items() if item == new)
        with (node / "interactions.csv").open("a") as file:
            file.write(f"{user},{name},0,{time}\n")
        assert refresh(node).changed == 1
        assert refresh(node).changed == 0
        now = [*mine, new] if place else [new, *mine]
        assert histories(node)[user] == now
        method = open_node(node).method(240)
        served, _ = everybody(node)
        scores = method.scores(as_server(served), method.strangers(np.array([0, len(now)]), np.array(now)))[0]
        scores[now] = -np.inf
        found, values = recommend(node, user, N)
        np.testing.assert_array_equal(found, np.argsort(-scores, kind="stable")[: N - len(now)])
        assert len(values) < len(before)
        assert first(node, user, capsys) == [*catalogue][found[0]]
        with NodeStore(node) as store:
            cohort = store.cohort(method, [store.row_of(user)])
            assert cohort.order is not None
            assert cohort.items[np.argsort(cohort.order)].tolist() == mine


def test_taking_back_the_last_click_and_a_corrected_time_count_too(fed: Path, tmp_path: Path) -> None:
    node = Path(shutil.copytree(nodes(fed)[1], tmp_path / "node"))
    user, mine = next(iter(histories(node).items()))
    lines = (node / "interactions.csv").read_text().splitlines()
    own = sorted((line for line in lines if line.startswith(f"{user},")), key=lambda line: float(line.split(",")[3]))
    (node / "interactions.csv").write_text("\n".join(line for line in lines if line != own[-1]) + "\n")
    refresh(node)
    assert histories(node)[user] == mine[:-1]
    turned = [",".join([*line.split(",")[:3], str(-place)]) for place, line in enumerate(own)]
    (node / "interactions.csv").write_text("\n".join([line for line in lines if line not in own] + turned) + "\n")
    assert refresh(node).changed == 1
    assert histories(node)[user] == mine[::-1]


def test_a_user_who_was_never_counted_is_in_order_at_once(tmp_path: Path) -> None:
    fed = world(tmp_path, "ordered")
    home = open_node(fed.nodes[0])
    with NodeStore(home.path) as store:
        store.add_user(home.method(1), Person("x", [7, 3, 5]))
        row = store.row_of("x")
        assert store.cohort(home.method(1), [row]).order.tolist() == [1, 2, 0]  # type: ignore[union-attr]  # of 3, 5, 7
        changes.want(store, row, [3, 5, 7, 9], {5: 0, 9: 1, 7: 2, 3: 3})
        cohort = store.cohort(home.method(1), [row])
    assert cohort.items[np.argsort(cohort.order)].tolist() == [5, 9, 7, 3]


def test_the_last_items_are_held_out_and_later_ones_take_their_place(tmp_path: Path) -> None:
    """What has trained is never held out; and a copy from before holds out the same, once it has read its source."""
    node = nodes(made(tmp_path))[0]
    network = (node / "network.toml").read_text()
    (node / "network.toml").write_text(re.sub("held_out = .*", "held_out = 0.4", network))
    assert "held_out = 0.4" in (node / "network.toml").read_text()
    held_out_are(node, "abcde", "de")
    copy = Path(shutil.copytree(node, tmp_path / "copy"))
    for here in (node, copy):
        held_out_are(here, "abcdef", "ef")
    held_out_are(node, "gabcdef", "ef")  # of seven the last three, less d, which trains
    held_out_are(node, "gabcde", "e")
    held_out_are(node, "gabecd", "")
    held_out_are(node, "gabecdhi", "hi")


def held_out_are(node: Path, history: str, wanted: str) -> None:
    """If eight users each got these of a user's own ten items, in this order."""
    lines = [f"u{user},i{(ord(item) + user) % N},{time}" for user in range(8) for time, item in enumerate(history)]
    (node / "interactions.csv").write_text("\n".join(["user,item,time", *lines[::-1]]) + "\n")
    refresh(node)
    names = list(read_catalogue(node / CATALOGUE))
    with NodeStore(node) as store:
        for user in range(8):
            row, of = store.row_of(f"u{user}"), [f"i{(ord(item) + user) % N}" for item in history]
            held = [names[item] for item in store.held_out([row])[0]]
            assert sorted(held) == sorted(of[history.index(item)] for item in wanted)
            assert {names[item] for item in changes.wanted(store, row)} == {*of} - {*held}
            assert [names[item] for item in changes.history(store, row)] == of


def test_mutation_of_what_is_held_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here any items are."""
    monkeypatch.setattr(changes, "split", lambda *given, last=False: split(*given[:3]))
    with pytest.raises(AssertionError):
        test_the_last_items_are_held_out_and_later_ones_take_their_place(tmp_path)


def test_nodes_judge_by_the_last_items_as_a_simulation_does(tmp_path: Path) -> None:
    """Of four to six items a share of .2 is the last one, which `--split last` holds out, too."""
    fed = made(tmp_path, evaluations=1, evaluation_epsilon=0, evaluation_users=1, topk=1)
    for node in nodes(fed):
        lines = [line.split(",") for line in (node / "interactions.csv").read_text().splitlines()]
        (node / "interactions.csv").write_text("".join(f"{user},{item},{time}\n" for user, item, _, time in lines))
        refresh(node)
    witness = Witness()
    run(LocalTransport(dict(enumerate(nodes(fed)))), fed / "server", witness)
    names, (line,) = list(read_catalogue(fed / "server" / CATALOGUE)), witness.metrics
    for user, mine in histories(nodes(fed)[0]).items():  # they rank by all that they have
        assert [names[item] for item in mine] == [f"i{place}" for place in walks(240)[int(user[1:])]]
    here = run_on(tmp_path / "walks.csv", item_levels=0, rounds=4).result()
    assert (line["users"], line["recall@1"]) == (240, pytest.approx(here["recall@1"], abs=0.01))


def test_times_are_read_where_the_method_asks(tmp_path: Path) -> None:
    catalogue = {"tea": 0, "milk": 1, "beer": 2}
    source = tmp_path / "t.csv"
    source.write_text(
        "user,item,time\nann,beer,2024-01-02\nann,tea,2024-01-01T10:00\nann,milk,1e9\nann,tea,2024-01-02\n"
    )
    assert list(read_source(str(source), catalogue, in_order=True).users["ann"]) == [1, 2, 0]
    assert list(read_source(str(source), catalogue).users["ann"]) == [0, 1, 2]
    for text, sentence in (
        ("user,item\nann,tea\n", "no column time"),
        ("user,item,time\nann,tea,soon\n", "t.csv:2: the time"),
    ):
        source.write_text(text)
        read_source(str(source), catalogue)
        with pytest.raises(DataError, match=sentence):
            read_source(str(source), catalogue, in_order=True)
