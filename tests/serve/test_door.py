"""Who may ask a served run, and what it answers."""

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedgrec import FedGRec
from fedgrec.cli import main
from fedgrec.errors import FedgrecError
from fedgrec.federation.common import certificates
from fedgrec.serve import door as doors
from fedgrec.serve import served, shelf
from fedgrec.serve.door import Door
from fedgrec.serve.questions import QUESTIONS
from tests.cli.small import clicks, train
from tests.serve.callers import HER, HERS, TOKEN, TOKENS, ask, asked, connected
from tests.waits import seconds


def listed(found: tuple[Any, Any]) -> list[tuple[Any, float]]:
    """Ids and scores of FedGRec as the door says them."""
    return [(item, pytest.approx(float(score), abs=1e-5)) for item, score in zip(*found, strict=True)]


def items_of(answer: tuple[int, Any]) -> list[tuple[Any, float]]:
    code, content = answer
    assert code == 200, content
    return [(line["item"], line["score"]) for line in content["items"]]


def test_answers_are_those_of_the_model(run: Path, door: Door) -> None:
    model = FedGRec.load(run)
    assert items_of(ask(door, "/recommend", {"user": "ann0"})) == listed(model.recommend("ann0"))
    assert items_of(ask(door, "/recommend", {"user": "ann0", "k": 1000})) == listed(model.recommend("ann0", N=1000))
    few = {"only": ["book1", "book2", "book3", "book40"], "without": ["book2"]}
    wanted = model.recommend("ann3", items=few["only"], filter_items=few["without"])
    assert items_of(ask(door, "/recommend", {"user": "ann3"} | few)) == listed(wanted)
    mine = ["book7", "book5", "book7"]
    assert items_of(ask(door, "/recommend", {"items": mine, "k": 4})) == listed(model.recommend_new(mine, N=4))
    assert items_of(ask(door, "/similar", {"item": "book7", "k": 4})) == listed(model.similar_items("book7", N=4))
    why = model.explain("ann0", "book5")
    code, content = ask(door, "/explain", {"user": "ann0", "item": "book5"})
    assert (code, content["score"], content["own"]) == (200, why.score, why.own)
    assert items_of((code, content)) == listed((why.ids, why.terms))


def test_a_model_without_vectors_answers_for_its_users_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        "train",
        "--data",
        str(clicks(tmp_path / "clicks.csv")),
        "--out",
        str(run),
        "--method",
        "fedncf",
        "--quiet",
    ]
    assert main([*words, "--rounds", "2", "--dim", "4", "--set", "kernel=reference"]) == 0
    with served(run, TOKENS, port=0) as door:
        assert items_of(ask(door, "/recommend", {"user": "ann0"})) == listed(FedGRec.load(run).recommend("ann0"))
        for path, body in [("/recommend", {"items": ["book1"]}), ("/similar", {"item": "book1"})]:
            code, content = ask(door, path, body)
            assert (code, "no inner products" in content["error"]) == (400, True)


def test_requests_that_wait_together_are_answered_as_alone(door: Door) -> None:
    questions: list[tuple[str, Any]] = [("/recommend", {"user": f"ann{u}", "k": 1 + u}) for u in range(16)]
    questions += [("/recommend", {"items": [f"book{i}"]}) for i in range(8)]
    questions += [("/similar", {"item": f"book{i}", "k": 3 + i}) for i in range(8)]
    alone = [ask(door, *question) for question in questions]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            for one, together in zip(alone, pool.map(lambda question: ask(door, *question), questions), strict=True):
                assert [item for item, _ in items_of(together)] == [item for item, _ in items_of(one)]


def test_numbers_and_text_name_the_same_ids(tmp_path: Path) -> None:
    table = tmp_path / "clicks.csv"
    table.write_text("user,item\n" + "".join(f"{u},{(u * 3 + i) % 20}\n" for u in range(9) for i in range(4)))
    with served(train(table, tmp_path / "run", rounds=2), TOKENS, port=0) as door:
        found = ask(door, "/recommend", {"user": 3})
        assert found[0] == 200
        assert found == ask(door, "/recommend", {"user": "3"})
        assert ask(door, "/recommend", {"user": True})[0] == 404


def test_nobody_is_answered_without_a_token(door: Door) -> None:
    assert ask(door, "/health", token="") == (200, {"ok": True})
    for path, body in [("/openapi.json", None), ("/recommend", {"user": "ann0"}), ("/nowhere", None)]:
        for token in ("", "everybody", TOKEN + "x", TOKEN.upper(), "é" * 16):
            assert ask(door, path, body, **{"Authorization": f"Bearer {token}".encode().decode("latin-1")})[0] == 401
        assert ask(door, path, body, Authorization=TOKEN)[0] == 401


def test_a_token_of_one_user_tells_nothing_of_others(door: Door) -> None:
    for path, more in [("/recommend", {}), ("/explain", {"item": "book5"})]:
        assert ask(door, path, {"user": HER} | more, HERS)[0] == 200
        for other in ("ann0", "nobody at all", 1):  # who is there and who is not: the same answer
            code, content = ask(door, path, {"user": other} | more, HERS)
            assert (code, content) == (403, {"error": "this token is bound to another user"})


def test_other_sites_get_nothing(door: Door) -> None:
    """A page of another site reaches this machine under a name of its own (DNS rebinding), and asks for no token."""
    port = door.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "10.0.0.1"):
        for path in ("/health", "/openapi.json"):
            assert ask(door, path, Host=host)[0] == 421
    for host in ("localhost", f"127.0.0.1:{port}"):
        assert ask(door, "/health", Host=host)[0] == 200
    with closing(connected(door)) as connection:
        connection.request("OPTIONS", "/recommend", headers={"Origin": "https://evil.example"})
        answer = connection.getresponse()
        assert answer.status == 401
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_description_has_every_path_and_field(door: Door) -> None:
    code, about = ask(door, "/openapi.json")
    assert code == 200
    assert set(about["paths"]) == {*QUESTIONS, "/health", "/openapi.json"}
    example: dict[str, Any] = {"user": "ann0", "item": "book5", "items": ["book1"], "only": ["book1"], "k": 3}
    for path in QUESTIONS:
        schema = about["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        body = {name: example[name] for name in schema["required"] or ["user"]}
        assert ask(door, path, body)[0] == 200
        for name in schema["required"]:
            assert ask(door, path, {key: value for key, value in body.items() if key != name})[0] == 400
        for name in schema["properties"]:
            assert ask(door, path, body | {name: {}})[0] in (400, 404), name  # each field is checked


def test_a_new_model_is_taken_up_and_no_request_is_lost(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "LOOK", 0.02)
    other = train(clicks(tmp_path / "clicks.csv"), tmp_path / "other", seed=5)
    here, question = shutil.copytree(run, tmp_path / "run"), {"user": "ann0", "k": 20}
    old, new = (listed(FedGRec.load(folder).recommend("ann0", N=20)) for folder in (run, other))
    assert old != new
    told: list[str] = []
    with served(here, TOKENS, port=0, tell=told.append) as door, closing(connected(door)) as connection:
        assert items_of(asked(connection, "/recommend", question)) == old
        (here / "server.safetensors").write_bytes(b"half")  # being written: the old model stays
        until(lambda: bool(told))
        assert items_of(asked(connection, "/recommend", question)) == old
        for path in other.glob("*.*"):
            shutil.copy(path, here)
        until(lambda: items_of(asked(connection, "/recommend", question)) == new)  # on one connection all the while
    assert all("has changed and cannot be opened yet" in note for note in told)


def _soon(true: Callable[[], bool]) -> bool:
    try:
        return true()
    except ConnectionError:  # all places are taken
        return False


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds(20)
    while not _soon(true):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_unix_socket_is_its_owners_alone(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "door"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # and left behind
    with served(run, TOKENS, socket_path=path) as door:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with closing(connected(door)) as connection:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(path))
            assert asked(connection, "/recommend", {"user": "ann0"})[0] == 200
            assert asked(connection, "/health", Host="evil.example")[0] == 421
        with pytest.raises(FedgrecError, match="in use"), served(run, TOKENS, socket_path=path):
            pass
        assert path.is_socket()  # of the one that serves
    assert not path.exists()


def test_other_machines_ask_by_tls_alone(run: Path, tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="TLS"), served(run, TOKENS, host="0.0.0.0"):
        pass
    authority = certificates.authority("test")
    key, certificate = certificates.server_certificate(authority, ["127.0.0.1"])
    files = tmp_path / "chain.pem", tmp_path / "key.pem"
    files[0].write_bytes(certificates.as_pem(certificate))
    files[1].write_bytes(certificates.pem(key))
    trust = ssl.create_default_context(cadata=certificates.as_pem(authority[1]).decode())
    with served(run, TOKENS, host="0.0.0.0", port=0, tls=files) as door:
        assert door.address.startswith("https://")
        with closing(connected(door, trust)) as connection:
            assert asked(connection, "/recommend", {"user": "ann0"})[0] == 200
        with socket.create_connection(("127.0.0.1", door.server_port), seconds(20)) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not plain.recv(1000).startswith(b"HTTP")
        with closing(connected(door, trust)) as connection:  # and the next caller is served
            assert asked(connection, "/health")[0] == 200
    with pytest.raises(FedgrecError, match="not a certificate and its key"), served(run, TOKENS, tls=files[::-1]):
        pass


@pytest.mark.parametrize("tokens", [{}, {"short": None}])
def test_a_token_cannot_be_guessed(run: Path, tokens: dict[str, None]) -> None:
    with pytest.raises(FedgrecError, match="at least 16 characters"), served(run, tokens):
        pass


def test_what_is_sent_beside_a_request_is_no_request(door: Door) -> None:
    """Else, behind a proxy that shares connections, one caller would get the answer to another."""
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for first in (b"GET /health", b"POST /recommend", b"GET /nowhere"):
        with socket.create_connection(("127.0.0.1", door.server_port), seconds(20)) as line:
            length = f"Content-Length: {len(hidden)}".encode()
            line.sendall(first + b" HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n" + hidden)
            with line.makefile("rb") as answers:
                assert answers.read().count(b"HTTP/1.1 ") == 1


def test_a_slow_caller_is_left(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes soon after the last one, and the request never ends."""
    monkeypatch.setattr(doors, "PATIENCE", 0.5)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", door.server_port), seconds(20)) as slow, pytest.raises(OSError):  # noqa: PT012
        while time.monotonic() - begun < seconds(10):
            slow.sendall(b"G")
            time.sleep(0.1)


def test_there_is_room_for_so_many_callers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "MOST_CALLERS", 3)
    with served(run, TOKENS, port=0) as door:
        for _ in range(2):  # whoever goes makes room
            with closing(connected(door)) as first:
                until(lambda: ask(door, "/health")[0] == 200)
                assert asked(first, "/recommend", {"user": "ann0"})[0] == 200
                more = [socket.create_connection(("127.0.0.1", door.server_port), seconds(20)) for _ in range(5)]
                assert more[-1].recv(1) == b""  # closed at once
                assert asked(first, "/recommend", {"user": "ann0"})[0] == 200  # on the same connection
                for one in more:
                    one.close()


def test_as_a_person_types_it(run: Path, tmp_path: Path) -> None:
    """The command makes a token, does not import Flower, writes nothing into the folder, and ends when it is told."""
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    code = (
        "import sys; from fedgrec.cli import main; code = main(sys.argv[1:]); "
        "raise SystemExit('Flower!' if any(name.startswith('flwr') for name in sys.modules) else code)"
    )
    words = [sys.executable, "-c", code, "serve", str(run), "--socket", str(tmp_path / "door")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said = process.stdout.readline()
        token = Path(said.partition("a token of ")[2].partition(";")[0])
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "door"))
            body = json.dumps({"user": "ann0", "k": 2})
            head = f"Authorization: Bearer {token.read_text()}\r\nContent-Type: application/json"
            request = (
                f"POST /recommend HTTP/1.1\r\nHost: localhost\r\n{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            )
            line.sendall(request.encode())
            assert line.recv(10_000).startswith(b"HTTP/1.1 200 ")
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=seconds(20))
    assert (process.returncode, errors) == (0, "")
    assert not token.exists()
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
