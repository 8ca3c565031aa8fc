"""Law 10: the server never receives an upload without its masks, nor any data of a user."""

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.store import NodeStore
from fedgrec.secagg import client, ring
from fedgrec.secagg.messages import HEADER, parse
from tests.federation.meddlers import killed_after_writing, on
from tests.federation.worlds import World, world

# All that a node may answer: adding a name here is a privacy decision.
ANSWERS: dict[str, tuple[set[str], set[str], set[str]]] = {  # kind → header, blobs, arrays
    "hello": ({"index", "agreement", "history", "serves", "catalogue", "roster"}, {"signature"}, {"tags"}),
    "keys": (set(), {"secagg", "committed.secagg"}, set()),
    "shares": (set(), {"secagg"}, set()),
    "masked": (set(), set(), {"secagg"}),
    "confirm": (set(), {"secagg"}, set()),
    "unmask": (set(), {"secagg", "next", "committed.next"}, set()),
    "finish": (set(), set(), set()),
    "refused": (set(), set(), set()),
    "error": ({"reason"}, set(), set()),
    "forgotten": ({"reason"}, set(), set()),
}


class Uploads:
    """Records what nodes were about to mask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vectors: list[np.ndarray] = []
        self.rings: dict[bytes, ring.Rings] = {}  # by the name of the sum
        submit = client.Client.submit

        def spy(self_: Any, values: np.ndarray, users: int = 1) -> None:
            self.vectors.append(np.array(values))
            self.rings[self_.session.round_id] = self_.session.rings
            submit(self_, values, users)

        monkeypatch.setattr(client.Client, "submit", spy)

    def unpacked(self, message: bytes) -> np.ndarray:
        """The unpacked words of a masked vector: all that the server can compute from it alone."""
        parts = self.rings[parse(message).round_id]
        words = ring.unpack(message[HEADER.size :], (*parts, ring.TRAILER))[:-1]
        return np.concatenate([part.astype(np.uint64) for part in words])

    def sizes(self, message: bytes) -> np.ndarray:
        """How many values each of these words can have."""
        return np.concatenate([np.full(count, 2.0**bits) for count, bits in self.rings[parse(message).round_id]])


def received_bytes(received: list[tuple[int, Packet]]) -> Iterator[bytes]:
    """Everything that was received, also after undoing common encodings."""
    for _, packet in received:
        parts = [json.dumps(packet.header).encode(), *packet.blobs.values()]
        parts += [np.ascontiguousarray(array).tobytes() for array in packet.arrays.values()]
        for part in parts:
            yield part
            for unwrap in (
                zlib.decompress,
                lambda p: base64.b64decode(p, validate=True),
                lambda p: bytes.fromhex(p.decode()),
            ):
                try:
                    yield unwrap(part)
                except (ValueError, zlib.error):
                    continue


def leaks(vectors: list[np.ndarray], received: list[tuple[int, Packet]]) -> list[str]:
    """Uploads that can be read in what was received, in part or by their shape."""
    found, everything = [], list(received_bytes(received))
    for number, vector in enumerate(vectors):
        if not vector.any():
            continue
        start = max(int(np.flatnonzero(vector)[0]) - 1, 0)
        pieces = {
            f"{kind}{order}": vector[start : start + length].astype(order + kind)
            for kind, length in {"i1": 12, "i2": 6, "i4": 6, "i8": 6, "f4": 6, "f8": 6}.items()  # no less than 12 bytes
            for order in "<>"
        }
        encodings = {name: piece.tobytes() for name, piece in pieces.items() if np.count_nonzero(piece) > 2}
        if "i8<" in encodings:
            encodings["text"] = json.dumps(vector[start : start + 6].tolist())[1:-1].encode()
        for name, encoded in encodings.items():
            if any(encoded in data for data in everything):
                found.append(f"upload {number} as {name}")
        found += [f"upload {number} by its shape" for data in everything if resembles(data, vector)]
    return found


def resembles(data: bytes, vector: np.ndarray) -> bool:
    """Whether numbers of any type in these bytes correlate with the vector: then it was scaled, not masked."""
    n = len(vector)
    for kind in ("<i1", "<i2", "<i4", "<i8", "<f4", "<f8"):
        for skip in (0, 22):  # the head of a message of secure aggregation
            body, width = data[skip:], np.dtype(kind).itemsize
            numbers = np.frombuffer(body[: len(body) // width * width], kind)
            if n > 60 and n <= len(numbers) <= n + 8:
                alike = np.corrcoef(ranks(numbers[:n]), ranks(vector))[0, 1]
                if abs(alike) > 7 / np.sqrt(n):  # seven standard deviations of chance
                    return True
    return False


def ranks(numbers: np.ndarray) -> np.ndarray:
    """The ranks of numbers: random bits read as floats have outliers that would hide everything else."""
    return np.argsort(np.argsort(numbers, kind="stable"), kind="stable")


@pytest.fixture(scope="module", params=["fedgrec", "federank"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Uploads]:
    """A federation that has been trained, in which a node got lost once; and what its nodes were about to mask."""
    root, named = tmp_path_factory.mktemp("run"), "a name that chance does not spell "
    with pytest.MonkeyPatch.context() as patch:
        uploads, fed = (
            Uploads(patch),
            world(root, request.param, users=8, options={"retries": 2, "evaluations": 9}, prefix=named),
        )
        fed.run(on("masked", 1, killed_after_writing, after=3))
    return fed, uploads


def test_the_server_never_receives_an_upload(run: tuple[World, Uploads]) -> None:
    fed, uploads = run
    assert len(uploads.vectors) > 10
    assert leaks(uploads.vectors, fed.transport.received) == []
    assert fed.is_its_simulation()


def test_a_node_that_forgets_to_mask_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "mask_parts", lambda words, masks, threads: None)
    uploads, fed = Uploads(monkeypatch), world(tmp_path, options={"retries": 0})
    with pytest.raises(Exception, match="noise"):
        fed.run()
    assert leaks(uploads.vectors, fed.transport.received)


@pytest.mark.parametrize("how", ["floats", "scaled floats", "big-endian", "text", "zipped", "base64"])
def test_an_upload_in_other_clothes_is_found(run: tuple[World, Uploads], how: str) -> None:
    """Mutation: an answer also carries the vector, encoded."""
    fed, uploads = run
    dress = {
        "floats": lambda v: v.astype("<f4").tobytes(),
        "scaled floats": lambda v: (v * 2.0**-20).astype("<f8").tobytes(),
        "big-endian": lambda v: v.astype(">i4").tobytes(),
        "text": lambda v: json.dumps(v.tolist()).encode(),
        "zipped": lambda v: zlib.compress(v.tobytes()),
        "base64": lambda v: base64.b64encode(v.tobytes()),
    }[how]
    for vector in uploads.vectors[3], uploads.vectors[6]:  # of the first and the second sum after the count
        talkative = Packet("masked", {}, {"more": dress(vector)})
        assert leaks([vector], [*fed.transport.received, (1, talkative)])


def test_answers_hold_what_they_may_and_nothing_else(run: tuple[World, Uploads]) -> None:
    """No query (the whole table comes down unasked), no time, no seed, no count except that of users."""
    fed, _ = run
    assert {packet.kind for _, packet in fed.transport.received} >= {"hello", *plan_kinds()}
    for _, packet in fed.transport.received:
        header, blobs, arrays = ANSWERS[packet.kind]
        assert packet.header.keys() <= header
        assert packet.blobs.keys() <= blobs
        assert packet.arrays.keys() <= arrays


def plan_kinds() -> set[str]:
    return {packets.KEYS, packets.SHARES, packets.MASKED, packets.CONFIRM, packets.UNMASK, packets.FINISH}


def test_keys_and_names_of_users_stay_at_home(run: tuple[World, Uploads]) -> None:
    fed, _ = run
    everything = b"\n".join(received_bytes(fed.transport.received))
    for path in fed.nodes.values():
        with NodeStore(path) as store:
            secret = [store.node_key.to_bytes(8, "little"), *(k for (k,) in store.db.execute("SELECT key FROM users"))]
            assert not any(user.encode() in everything for user in store.ids())
        for key in secret:
            number = int.from_bytes(key, "little")
            forms = (key, key[::-1], key.hex().encode(), key[::-1].hex().encode(), str(number).encode())
            assert not any(form in everything for form in forms)


def test_a_masked_vector_does_not_tell_who_touched_what(run: tuple[World, Uploads]) -> None:
    """Rows that a node's users touched look like rows that they did not touch."""
    fed, uploads = run
    masked = [p.arrays["secagg"].tobytes() for _, p in fed.transport.received if p.kind == "masked"]
    shares = [uploads.unpacked(message) / uploads.sizes(message) for message in masked]  # of their rings
    pairs = [(share, v) for share in shares for v in uploads.vectors if len(share) == len(v)]
    touched = np.concatenate([share[v != 0] for share, v in pairs])
    others = np.concatenate([share[v == 0] for share, v in pairs])
    width = 1 / np.sqrt(12)
    error = width * np.sqrt(1 / len(touched) + 1 / len(others))
    assert abs(touched.mean() - others.mean()) < 6 * error
