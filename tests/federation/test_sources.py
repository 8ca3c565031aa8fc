"""A node's interactions, in every kind of source."""

import errno
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError, DataError, system_trouble
from fedgrec.federation.common.catalogue import read_catalogue
from fedgrec.federation.common.network import NETWORK
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.node.changes import Renewal
from fedgrec.federation.node.refresh import Watcher
from fedgrec.federation.node.sources import Found, read_source, split
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.setup.init import init

ITEMS = {"tea": 0, "coffee": 1, "milk": 2, "beer": 3}
WANTED = [Person("ann", [0, 1]), Person("bob", [2])]


def people_of(found: Found, held_out: float) -> list[Person]:
    """Users with items to train on; without marks in the source, this share of a user's items is held out."""
    parts = ((user, *split(marks, held_out)) for user, marks in sorted(found.users.items()))
    return [Person(user, list(items), list(judged)) for user, items, judged in parts if items]


def people(source: object, held_out: float = 0.0) -> list[Person]:
    return people_of(read_source(str(source), ITEMS), held_out)


def plain(wanted: list[Person]) -> list[Person]:
    return [Person(person.id, list(person.items), list(person.held_out)) for person in wanted]


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,item,user\n1,tea,ann\n2, coffee ,ann\n3,milk,bob\n4,tea,ann\n")
    assert people(tmp_path / "t.csv") == plain(WANTED)
    (tmp_path / "t.tsv").write_text("user\titem\nann\ttea\nann\tcoffee\nbob\tmilk\n")
    assert people(tmp_path / "t.tsv") == plain(WANTED)


def test_a_table_that_says_what_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,item,held_out\nann,tea,0\nann,coffee,1\nbob,milk,0\n")
    assert people(tmp_path / "t.csv", 0.9) == [Person("ann", [0], [1]), Person("bob", [2], [])]
    (tmp_path / "t.csv").write_text("user,item,held_out\nann,tea,yes\n")
    with pytest.raises(DataError, match=r"t\.csv:2: held_out is 'yes'"):
        people(tmp_path / "t.csv")


def test_a_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute('CREATE TABLE "my ""orders" (item, user, price)')
        db.executemany(
            'INSERT INTO "my ""orders" VALUES (?, ?, 1)', [("tea", "ann"), ("coffee", "ann"), ("milk", "bob")]
        )
        db.execute("CREATE TABLE empty (a, b)")
    db.close()
    assert people(f'{tmp_path / "shop.db"}#my "orders') == plain(WANTED)
    for source, sentence in (("shop.db", "name the table"), ("shop.db#empty", "no table 'empty' with the columns")):
        with pytest.raises(DataError, match=sentence):
            people(tmp_path / source)
    (tmp_path / "not.db").write_text("no database, but long enough to be looked at " * 10)
    with pytest.raises(DataError, match="not readable as an SQLite file"):
        people(f"{tmp_path / 'not.db'}#t")


def test_a_folder_of_users_files_and_tables(tmp_path: Path) -> None:
    (tmp_path / "ann.txt").write_text("tea\n\ncoffee\n")
    (tmp_path / "more.csv").write_text("user,item\nbob,milk\n")
    (tmp_path / ".hidden").write_text("beer\n")
    assert people(tmp_path) == plain(WANTED)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user,item\nann\n", r"t\.csv:2: 1 fields where the header has 2"),
        ("user_id,item\nann,tea\n", r"t\.csv:1: a table has the columns user and item, this one user_id, item: rename"),
        ("Paris, Texas\n", "an item with a comma stands in quotes"),
        ("user,item\nann,wine\n", "no user with an item of the catalogue"),
        ("", "no user with an item of the catalogue"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=sentence):
        people(tmp_path / "t.csv")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        people(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="holds no file"):
        people(tmp_path)
    (tmp_path / "t.csv").write_bytes(b"user,item\nann,\xff\xfe\n")
    with pytest.raises(DataError, match="neither a table"):
        people(tmp_path / "t.csv")


def test_unknown_items_are_counted_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("user,item,held_out\nann,tea,0\nann,wine,0\nbob,gin,0\ncat,milk,1\n")
    found = read_source(str(tmp_path / "t.csv"), ITEMS)
    assert ([person.id for person in people_of(found, 0.2)], found.unknown) == (["ann"], 2)


def test_the_share_that_is_held_out_is_drawn_anew_and_never_all(tmp_path: Path) -> None:
    catalogue = {f"i{i}": i for i in range(20)}
    (tmp_path / "t.csv").write_text("user,item\n" + "".join(f"ann,i{i}\n" for i in range(20)) + "bob,i3\n")
    drawn = Counter[tuple[int, ...]]()
    for _ in range(5):
        ann, bob = people_of(read_source(str(tmp_path / "t.csv"), catalogue), 0.25)
        assert (len(ann.items), len(ann.held_out)) == (15, 5)
        assert set(ann.items) | set(ann.held_out) == set(range(20))
        assert (list(bob.items), list(bob.held_out)) == ([3], [])
        drawn[tuple(ann.held_out)] += 1
    assert len(drawn) > 1


@pytest.mark.parametrize("text", ["tea\n\nmilk\n", "tea\nmilk\ntea\n", ""])
def test_a_catalogue_names_each_item_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "items.txt").write_text(text)
    with pytest.raises(DataError, match=r"items\.txt"):
        read_catalogue(tmp_path / "items.txt")


def test_a_line_of_a_catalogue_ends_with_the_line_alone(tmp_path: Path) -> None:
    names = ["one\u2028two", "three\x85four", "tea"]
    (tmp_path / "items.txt").write_bytes("\ufeffone\u2028two\r\nthree\x85four\r\ntea".encode())  # as an editor saves it
    assert list(read_catalogue(tmp_path / "items.txt")) == names
    with pytest.raises(ConfigError, match="has a line break"):
        init(tmp_path / "fed", 3, [*names, "a\nb"], Config(), FederationOptions())
    assert not (tmp_path / "fed").exists()


def test_a_node_takes_new_users_in_and_keeps_the_old(tmp_path: Path) -> None:
    made = init(tmp_path / "fed", 3, list(ITEMS), Config().changed({"dim": 2}, "test"), FederationOptions())
    node, table = made.nodes[0], tmp_path / "t.csv"
    (node / NETWORK).write_text(f'superlink = "x:1"\nsource = "{table}"\nheld_out = 0.0\n')
    table.write_text("user,item\nann,tea\n")
    assert Watcher(node).load() == 1
    with NodeStore(node) as store:
        key = store.db.execute("SELECT key FROM users").fetchone()
    table.write_text("user,item\nann,tea\nann,milk\nbob,milk\n")
    assert Watcher(node).load() == 2
    with NodeStore(node) as store:
        assert store.ids() == ["ann", "bob"]
        assert store.db.execute("SELECT key FROM users WHERE id = 'ann'").fetchone() == key


def test_null_is_nobody(tmp_path: Path) -> None:
    """Guests' orders are not one user called "None" who is the same in every shop."""
    db = sqlite3.connect(tmp_path / "shop.db")
    db.execute("CREATE TABLE orders (user TEXT, item TEXT)")
    db.executemany(
        "INSERT INTO orders VALUES (?, ?)", [("ann", "a"), (None, "a"), ("", "b"), ("bob", None), ("bob", "b")]
    )
    db.commit()
    db.close()
    found = read_source(f"{tmp_path / 'shop.db'}#orders", {"a": 0, "b": 1})
    assert [person.id for person in people_of(found, 0.0)] == ["ann", "bob"]
    assert found.nameless == 3


def test_what_a_node_took_in_is_counted_as_one_says_it() -> None:
    assert str(Renewal(came=1)) == "1 new user, 0 with changed items, 0 who left"
    assert str(Renewal(came=1) + Renewal(came=1_000, left=2)).startswith("1,001 new users, ")


def test_a_full_disk_on_a_node_advises_no_training() -> None:
    """`fedgrec train` alone says how to go on: tests/cli/test_damage.py."""
    assert system_trouble(errno.ENOSPC) == "the disk is full: free some space, then give the command again"
