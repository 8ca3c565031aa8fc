"""Whatever is sent to a served run, the answer is a 4xx with a sentence, and the next request is answered."""

import json
import random
import socket
from typing import Any

import pytest

from fedgrec.serve.door import Door
from tests.serve.callers import TOKEN, ask
from tests.waits import seconds

GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/recommend", {"user": "ann0", "k": 3, "only": ["book1"], "without": ["book2"]}),
    ("/recommend", {"items": ["book1", "book2"]}),
    ("/similar", {"item": "book1", "k": 2}),
    ("/explain", {"user": "ann0", "item": "book5"}),
]
ODD = (
    None, True, {}, [], "", "\ud800", "no such id", -1, 0, 1001, 10**30, 1.5, float("nan"), float("inf"), [[]], [None],
    ["book1", {}], {"a": 1}, "ann0\x00", "'; --", "../../etc/passwd", "x" * 5000, [True],
)  # fmt: skip


def bad(draw: random.Random) -> bytes:
    """A request that has no right answer."""
    path, good = draw.choice(GOOD)
    body, method, version, host = json.dumps(good).encode(), "POST", "HTTP/1.1", "localhost"
    heads = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Content-Length": ""}
    match draw.randrange(10):
        case 0:  # a field that is something else
            name = draw.choice(sorted(good))
            fits = [value for value in ODD if not (value == [] and name in ("only", "without"))]
            body = json.dumps(good | {name: draw.choice(fits)}).encode()
        case 1:  # a field that nobody knows
            body = json.dumps(good | {draw.choice(["users", "K", "", "n" * 999, "__proto__"]): 1}).encode()
        case 2:  # bytes that are no JSON
            place = draw.randrange(len(body))
            body = draw.choice([body[:place], draw.randbytes(draw.randrange(1, 300)), b"[" * 100_000, b"\xff" + body])
        case 3:
            body = json.dumps(draw.choice(ODD)).encode()
        case 4:
            method = draw.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "\x01", "É"])
        case 5:
            path = draw.choice(["/", "//", "/recommend/", "*", "http://evil/recommend", "/%2e%2e", "/\x00", "x"])
        case 6:
            version = draw.choice(["HTTP/0.9", "HTTP/2.0", "HTTP/1", "HTTP/1.1.1", "http", "", "HTTP/9999999999999.1"])
            host = "evil.example"  # some of these versions are spoken
        case 7:
            host = draw.choice(["evil.example", "", "localhost\r\nHost: localhost", "[::1", "localhost@evil", "\xff"])
        case 8:
            lengths = ["-1", "1e3", "99999999", "9" * 40, "5\r\nContent-Length: 6", "\xb2", "+5", "0x10"]
            heads["Content-Length"] = draw.choice(lengths)
            if draw.random() < 0.3:
                heads |= {"Transfer-Encoding": "chunked", "Content-Length": "5"}
        case 9:
            heads |= draw.choice([
                {"Authorization": ""}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": "Bearer \xff\xfe"},
                {"Content-Type": "text/plain"}, {"Content-Type": ""}, {"Content-Type": "multipart/form-data"},
                {"X": "y" * 70_000}, {f"X-{number}": "y" for number in range(200)},
            ])  # fmt: skip
    heads["Content-Length"] = heads["Content-Length"] or str(len(body))
    lines = [f"{method} {path} {version}", f"Host: {host}", *(f"{name}: {value}" for name, value in heads.items())]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def answer(door: Door, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", door.server_port), seconds(20)) as line:
        found = b""
        try:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            while part := line.recv(65_536):
                found += part
        except ConnectionError:  # the rest of a large request was not read
            pass
    return found


def refused(door: Door, count: int) -> None:
    draw = random.Random(count)
    for _ in range(count):
        request = bad(draw)
        head, _, body = answer(door, request).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 4"), (request[:300], head, body)
        assert len(json.loads(body)["error"]) > 10, request[:300]
    assert ask(door, *GOOD[0])[0] == 200


def test_bad_requests_get_sentences(door: Door) -> None:
    refused(door, 400)


@pytest.mark.slow
def test_ten_thousand_bad_requests_get_sentences(door: Door) -> None:
    refused(door, 10_000)
