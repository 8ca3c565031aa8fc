"""The commands of docs/operate.md, in the order of the page, over real folders and real processes.

The test reads them from the page. A command that the test does not expect there, or one that fails, fails it.
"""

import contextlib
import csv
import json
import re
import shlex
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec import cli
from fedgrec.federation.common.network import NodeNetwork, read_network, write_network
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.setup import doctor
from fedgrec.federation.setup.start import free_port, start_node
from tests.federation.flower_network import until
from tests.waits import seconds

PAGE = Path(__file__).parents[2] / "docs" / "operate.md"
ITEMS, USERS, MORE = 30, 24, 56
REMOVED = 78  # the code on which systemd does not start a node again
NAMES = ["tea", "coffee", *(f"item {number}" for number in range(ITEMS - 2))]
# Few rounds and short seasons; few changes are enough for a recount. Every node is a batch of its own, as on the page.
QUICK = (
    "--people 20 --rounds 2 --set later_rounds=2 --set season_rounds=1 --set seasons=0 --set rest=4 --set look=0 "
    "--set recount_users=2 --set dim=4 --set layers=1 --set latents_every=1 --set negatives=8 --set users_per_round=100"
)


class Page:
    """A reader who types what the page shows, from top to bottom, with other places for its folders."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, text = capsys, PAGE.read_text(encoding="utf-8")
        found = re.findall(r"^ {4,}(fedgrec .*)$|(?<!`)`(fedgrec [^`]+)`", text, re.MULTILINE)
        typed = [shlex.split(block or span) for block, span in found]
        self.left = [words for words in typed if len(words) > 3]  # a name alone is no command
        self.places = {"/var/lib/fedgrec": root / "lib", "/backup": root / "backup", "/mnt/copies": root / "copies"}
        self.fed = self.places["fed"] = root / "fed"
        self.lib = self.places["/var/lib/fedgrec"]
        self.lib.mkdir()

    def next(self, start: str, **names: object) -> list[str]:
        """The next command of the page, which starts so, with these names filled in."""
        words = self.left.pop(0)
        assert shlex.join(words).startswith(f"fedgrec {start}"), f"the page has {shlex.join(words)!r} here"
        said = {"fed.example.org": "127.0.0.1", **{name: str(value) for name, value in names.items()}}
        return [said.get(word, self._placed(word)) for word in words]

    def type(self, start: str, *more: str, **names: object) -> str:
        """Run it; what it printed."""
        words = [*self.next(start, **names), *more]
        code = cli.main(words[1:])
        said = self.capsys.readouterr()
        assert code == 0, f"{shlex.join(words)}\n{said.out}{said.err}"
        return said.out

    def _placed(self, word: str) -> str:
        for place, here in self.places.items():
            if word == place or word.startswith(f"{place}/"):
                return f"{here}{word.removeprefix(place)}"
        return word


def write_people(path: Path, people: Mapping[str, list[int]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["user", "item"])
        table.writerows([user, NAMES[item]] for user, items in people.items() for item in items)
    path.chmod(0o600)


def crowd(name: str, number: int) -> dict[str, list[int]]:
    return {f"{name} {user}": [(7 * user + 5 * step) % ITEMS for step in range(6)] for user in range(number)}


def write_shop(folder: Path, people: Mapping[str, list[int]]) -> Path:
    """An SQLite file with a table of orders."""
    folder.mkdir()
    with contextlib.closing(sqlite3.connect(folder / "shop.db")) as db, db:
        db.execute("CREATE TABLE orders (user TEXT, item TEXT)")
        db.executemany(
            "INSERT INTO orders VALUES (?, ?)",
            [(user, NAMES[item]) for user, items in people.items() for item in items],
        )
    return folder / "shop.db"


def patiently(happened: Callable[[], Any], why: str) -> Any:
    """Wait for something, without much work for a machine that has enough of it."""

    def look() -> Any:
        time.sleep(0.5)
        return happened()

    return until(look, 120, why)


class Machines:
    """Those of the server and of the nodes."""

    def __init__(self, page: Page, processes: Processes) -> None:
        self.page, self.processes, self.server = page, processes, page.lib / "server"

    def start_server(self, *words: str) -> None:
        words = words or ("fedgrec", "federation", "server", str(self.server), "--grace", f"{seconds(60):.0f}")
        self.processes.start("server", [sys.executable, "-m", *words])

    def stop_server(self) -> None:
        process = self.processes.running.pop("server")
        process.terminate()
        process.wait(seconds(120))

    def start(self, name: str) -> None:
        start_node(self.page.lib / name, self.processes)

    def said(self, name: str) -> str:
        path = self.server / "logs" / "server.log" if name == "server" else self.processes.log(name)
        return path.read_text() if path.exists() else ""

    def wait(self, name: str, words: str) -> None:
        """Until a log says this."""
        patiently(lambda: words in self.said(name) or self.processes.check(), f"{name} does not say {words!r}")

    def status(self) -> dict[str, Any]:
        self.page.capsys.readouterr()
        assert cli.main(["federation", "status", str(self.server), "--json"]) == 0
        found: dict[str, Any] = json.loads(self.page.capsys.readouterr().out)
        return found

    def wait_for_seasons(self, more: int) -> None:
        wanted = self.status()["season"] + more
        patiently(lambda: self.status()["season"] >= wanted or self.processes.check(), f"no {more} more seasons")

    def wait_for_round_of(self, name: str) -> None:
        """Until the node is in a round that began after now."""
        after = self.status()["round"]

        def is_in_one() -> bool:
            (node,) = [node for node in self.status()["nodes"] if node["name"] == name]
            return (node["last_round"] or 0) > after + 1

        patiently(lambda: is_in_one() or self.processes.check(), f"{name} is in no round")

    def give_keys(self, name: str) -> None:
        """What `rotate-keys` says, and start the node again."""
        for key in ("identity.key", "flower.key"):
            shutil.copy2(self.page.fed / name / key, self.page.lib / name / key)
        self.to_server(f"keys/{name}.pub", "roster.json")
        self.start(name)

    def to_server(self, *names: str) -> None:
        """What the commands say: copy these from fed/server, in this order."""
        for name in names:
            shutil.copy2(self.page.fed / "server" / name, self.server / name)


@pytest.mark.slow
def test_the_commands_of_the_page_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "ROOM", 0)  # the disk of the machine that tests may be nearly full
    Path("items.txt").write_text("".join(f"{name}\n" for name in NAMES))
    page = Page(tmp_path, capsys)
    fed, lib, people = page.fed, page.lib, {f"node-{index}": crowd(f"person {index}", USERS) for index in range(4)}
    with Processes(tmp_path / "logs") as processes:
        machines = Machines(page, processes)
        server, node = machines.server, lib / "node-0"

        # Day one
        copies = ["--set", f"copies={page.places['/mnt/copies']}"]
        page.type("federation init", "--port", str(free_port()), *copies, *QUICK.split())
        for folder in (*people, "server"):
            shutil.copytree(fed / folder, lib / folder)
        for name, crowd_ in people.items():
            write_people(lib / name / "people.csv", crowd_)
            network = read_network(lib / name, NodeNetwork)
            write_network(lib / name, NodeNetwork(network.superlink, "people.csv", refresh=1.0))
        machines.start_server()
        for name in people:
            machines.start(name)
        patiently(lambda: (server / "run" / "items.json").exists() or processes.check(), "no first season")
        assert "node-3" in page.type("federation status")
        page.type("federation backup")
        page.type("federation backup")
        shutil.copytree(page.places["/backup"], medium := tmp_path / "medium")
        shutil.move(fed / "authority", medium / "authority")
        shutil.rmtree(fed)
        fed.mkdir(0o700)
        for name, kept in (("authority", "authority"), ("server", "server-1"), ("node-0", "node-0-1")):
            shutil.move(medium / kept, fed / name)

        # Every day
        gone, stays = "person 0 3", people["node-0"]
        page.type("federation forget", NODE=node, ID=gone)
        write_people(node / "people.csv", {user: items for user, items in stays.items() if user != gone})
        Path("new.txt").write_text("lemonade\n")
        Path("closed.txt").write_text("item 7\n")
        words = page.next("federation catalogue")
        files = iter(("new.txt", "closed.txt"))
        assert cli.main([next(files) if word == "FILE" else word for word in words][1:]) == 0
        machines.to_server("catalogue.json")
        machines.wait("server", "version 2 of the catalogue: 31 items")
        page.type("federation refresh", NODE=node)
        write_people(Path("people.csv"), crowd("stranger", 20))
        assert " 1. " in page.type("recommend")
        assert " 1. " in page.type("recommend")
        assert "recall" in page.type("evaluate").lower()

        # When something is wrong
        page.type("federation doctor")
        page.type("federation doctor")

        # Certificates
        page.type("federation certificate")
        machines.to_server("server.pem", "server.key")
        machines.stop_server()
        machines.start_server()
        machines.wait_for_seasons(1)
        assert "was going on when the server stopped" not in machines.said("server"), "it ends its sum first"

        # A node comes
        page.places["fed"] = shutil.copytree(fed, tmp_path / "with keys of the authority's machine")
        page.type("federation add-node")
        page.places["fed"] = fed
        page.places["/srv/shop"] = write_shop(tmp_path / "shop", crowd("customer", MORE)).parent
        page.type("federation invite")
        shutil.copy(fed / "invitation.json", ".")
        page.type("federation join")
        shutil.copy(lib / "node-4" / "request.json", ".")
        page.type("federation add-node")
        shutil.copy(fed / "welcome-node-4.json", ".")
        page.type("federation join")
        machines.to_server("keys/node-4.pub", "roster.json")
        machines.start("node-4")
        machines.wait_for_round_of("node-4")

        # A node leaves
        page.type("federation forget", NODE=lib / "node-2")
        machines.wait("node-2", "; 0 are here")
        page.type("federation remove-node")
        machines.to_server("roster.json")
        (server / "keys" / "node-2.pub").unlink()
        leaver = processes.running["node-2"]
        assert patiently(leaver.poll, "the removed node goes on") == REMOVED
        del processes.running["node-2"]

        # A lost node
        copy = page.places["/backup"] / "node-1-1"
        assert cli.main(["federation", "backup", str(lib / "node-1"), "--out", str(copy)]) == 0
        processes.kill("node-1")
        shutil.rmtree(lib / "node-1")
        shutil.copytree(copy, lib / "node-1")
        page.type("federation rotate-keys")
        machines.give_keys("node-1")
        machines.wait_for_round_of("node-1")

        # A lost server
        processes.kill("server")
        shutil.rmtree(server)
        machines.start_server(*page.next("federation server"))
        patiently(server.exists, "no copy is taken over")
        machines.wait_for_seasons(1)

        # A leaked key
        page.type("federation rotate-keys")
        processes.stop("node-1")
        machines.give_keys("node-1")
        machines.wait_for_round_of("node-1")

        # An upgrade, and containers
        page.type("federation status")
        page.places["fed"] = tmp_path / "for containers"
        page.type("federation init")
        processes.check()
    assert not page.left
