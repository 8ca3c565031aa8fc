"""A client of a secure sum between two messages, as bytes: for devices on which every message starts a new process.

    length of the head (4 bytes) · head (JSON) · the vector, if it was submitted and not yet masked

The bytes hold every secret of the client. They belong into a file that nobody else can read, and must be gone when the
round is over. Identity and roster are not in them. What was frozen once must not be thawed twice: a client answers each
message once, so its new state is written down *before* an answer leaves.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedgrec.secagg import ring
from fedgrec.secagg.client import Client, Secrets
from fedgrec.secagg.errors import BadInput
from fedgrec.secagg.graph import Graph
from fedgrec.secagg.keys import bind
from fedgrec.secagg.messages import Keys, Survivors, parse
from fedgrec.secagg.session import Session, Stage

VERSION = 1


def session_to_json(session: Session) -> dict[str, Any]:
    """A session as plain values."""
    values = {name: value for name, value in vars(session).items() if name in Session.__dataclass_fields__}
    return values | {"round_id": session.round_id.hex()}


def session_from_json(values: Mapping[str, Any]) -> Session:
    """And back; what is no session is refused."""
    kinds = {name: field.type for name, field in Session.__dataclass_fields__.items() if name != "round_id"}
    if set(values) != {"round_id", *kinds} or any(type(values[name]) is not kind for name, kind in kinds.items()):
        raise BadInput("these values describe no session of secure aggregation")
    try:
        return Session(**{**values, "round_id": bytes.fromhex(values["round_id"])})
    except (TypeError, ValueError):
        raise BadInput("a session's round id is written as hexadecimal digits") from None


def freeze(client: Client) -> bytes:
    """All that a client knows but its identity and the roster."""
    if type(client) is not Client:
        raise BadInput(f"only clients of the mechanism 'secagg' can be frozen, not of {client.session.mechanism!r}")
    secrets, words = client._secrets, client._words
    met = hasattr(client, "_graph")
    head = {
        "version": VERSION,
        "session": session_to_json(client.session),
        "me": client.me,
        "context": client.context.hex(),
        "stage": client.stage.name,
        "secrets": None
        if secrets is None
        else [
            secrets.mask_key.private_bytes_raw().hex(),
            secrets.cipher_key.private_bytes_raw().hex(),
            secrets.seed.hex(),
        ],
        "clients": client._graph.clients if met else None,
        "keys": [keys.pack().hex() for keys in client._keys.values()],
        "held": {owner: [f"{share:x}" for share in shares] for owner, shares in client._held.items()},
        "survivors": client._survivors.pack().hex() if hasattr(client, "_survivors") else None,
        "told": [sorted(part) for part in client._told] if hasattr(client, "_told") else None,
        "submitted": words is not None,
    }
    text = json.dumps(head).encode()
    return len(text).to_bytes(4, "big") + text + (b"" if words is None else words.tobytes())


def thaw(frozen: bytes, identity: Ed25519PrivateKey, roster: Mapping[int, bytes], threads: int = 1) -> Client:
    """The client as it was; it awaits what it awaited, and refuses what it would have refused."""
    size = int.from_bytes(frozen[:4], "big")
    head = json.loads(frozen[4 : 4 + size])
    if head["version"] != VERSION:
        raise BadInput(f"a client frozen by version {head['version']} cannot be thawed by version {VERSION}")
    session = session_from_json(head["session"])
    client = Client(session, head["me"], identity, roster, bytes.fromhex(head["context"]), threads)
    client.stage = Stage[head["stage"]]
    client._secrets = _secrets(head["secrets"])
    if head["submitted"]:
        client._words = np.frombuffer(frozen, ring.dtype(session.bits), offset=4 + size).copy()
    if head["clients"] is not None:
        client._graph = Graph(head["clients"], session.neighbours, session.digest)
        client._bound = bind(client.context, head["clients"])
    for text in head["keys"]:
        keys = parse(bytes.fromhex(text))
        assert isinstance(keys, Keys)
        client._keys[keys.sender] = keys
    client._held = {int(owner): tuple(int(share, 16) for share in shares) for owner, shares in head["held"].items()}
    if head["survivors"] is not None:
        survivors = parse(bytes.fromhex(head["survivors"]))
        assert isinstance(survivors, Survivors)
        client._survivors = survivors
    if head["told"] is not None:
        alive, dropped = head["told"]
        client._told = set(alive), set(dropped)
    return client


def _secrets(texts: list[str] | None) -> Secrets | None:
    if texts is None:
        return None
    mask_key, cipher_key, seed = (bytes.fromhex(text) for text in texts)
    return Secrets(X25519PrivateKey.from_private_bytes(mask_key), X25519PrivateKey.from_private_bytes(cipher_key), seed)
