"""Nodes whose tables have times recommend what comes next, and a new click counts at once, as the last one."""

import json
import shutil
from pathlib import Path

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
from fedgrec.federation.node.sources import read_source
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.coordinator import run
from tests.federation.local_transport import LocalTransport
from tests.federation.worlds import world
from tests.methods.test_ordered import N, table, walks

SMALL = {"dim": 6, "spare": 2, "item_levels": 0, "split": "all", "rounds": 4, "fewest_people": 1, "evaluations": 0}
SMALL |= {"evaluate_every": 0}


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nodes whose tables are in no order, and the model after four sums."""
    root = tmp_path_factory.mktemp("order")
    words = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    path, fed = table(root, walks(240)), root / "fed"
    assert not main(["federation", "init", "--out", str(fed), "--data", str(path), "--method", "ordered", *words])
    for node in nodes(fed):
        header, *lines = (node / "interactions.csv").read_text().splitlines()
        lines = np.random.default_rng(0).permutation(lines).tolist()
        (node / "interactions.csv").write_text("\n".join([header, *lines]) + "\n")
        refresh(node)
    run(LocalTransport(dict(enumerate(nodes(fed)))), fed / "server")
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
        changes.want(store, row, [5, 9, 7, 3], [5, 9, 7, 3])
        cohort = store.cohort(home.method(1), [row])
    assert cohort.items[np.argsort(cohort.order)].tolist() == [5, 9, 7, 3]


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
