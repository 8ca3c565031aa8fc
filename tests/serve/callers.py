"""A caller of a served folder."""

import json
import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

from fedgrec.serve.door import Door
from tests.waits import seconds

TOKEN, HERS, HER = "everybody" * 2, "one-of-them" * 2, "ann1"  # whoever shows HERS may ask about HER alone
TOKENS = {TOKEN: None, HERS: HER}
JSON = {"Content-Type": "application/json"}


def connected(door: Door, trust: ssl.SSLContext | None = None) -> HTTPConnection:
    place, wait = ("127.0.0.1", door.server_port), seconds(20)
    return HTTPSConnection(*place, timeout=wait, context=trust) if trust else HTTPConnection(*place, timeout=wait)


def asked(connection: HTTPConnection, path: str, body: Any = None, token: str = TOKEN, **heads: str) -> tuple[int, Any]:
    """The code and the content of an answer; a path without a body is asked with GET."""
    about = {"Authorization": f"Bearer {token}"} | JSON | heads
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), about)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def ask(door: Door, path: str, body: Any = None, token: str = TOKEN, **heads: str) -> tuple[int, Any]:
    """The same on a connection of its own."""
    with closing(connected(door)) as connection:
        return asked(connection, path, body, token, **heads)
