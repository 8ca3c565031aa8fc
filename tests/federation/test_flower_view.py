"""Law 10, the attacker: what it could read without masks, and what the sizes and numbers of packets could show.

test_flower_run.py searches all that a server received over the real network. Here the same searches show, in one
process, that they find an upload of every stage when masks are off, and an upload that hides in a difference.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node import node
from fedgrec.federation.node.store import Person
from fedgrec.secagg import client, ring, server
from tests.federation import worlds
from tests.federation.test_server_view import received_bytes
from tests.federation.worlds import N_ITEMS, World, people, world

Received = list[tuple[int, Packet]]
Name = tuple[str, int, int, str, str]  # stage, level, round, node, and "all" or which of its users
Uploads = dict[Name, np.ndarray]
Needles = dict[int, dict[bytes, set[Name]]]  # by their length
NUMBERS = ("<u4", ">u4", "<u8", ">u8", "<i8", ">i8", "<f4", ">f4", "<f8", ">f8", "u1", "<u2", ">u2")
CHANCE = 12  # bytes: fewer could be equal by chance


def readable(uploads: Uploads, received: Received) -> set[Name]:
    """Uploads that the server could read if it searched all that it received."""
    return in_clear(uploads, received) | in_differences(uploads, received)


def in_clear(uploads: Uploads, received: Received) -> set[Name]:
    """Uploads of which some consecutive words are in a packet, at any byte and in any number format.

    Or the places of their non-zero words: in a user's degree counts these are its items.
    """
    needles: Needles = defaultdict(lambda: defaultdict(set))
    for name, words in uploads.items():
        places = np.flatnonzero(words)
        for kind in NUMBERS:
            add_needles(needles, name, words.astype(kind))
            if 4 <= len(places) <= len(words) // 2:
                add_needles(needles, name, places.astype(kind))
        if len(places) > 2:
            text = json.dumps(words.tolist())[1:-1].encode()
            needles[len(text)][text].add(name)
    return set().union(*(standing_in(text, needles) for text in received_bytes(received)))


def add_needles(needles: Needles, name: Name, numbers: np.ndarray) -> None:
    """Add a whole vector, and its consecutive parts that are too long for chance and not nearly all zeros."""
    width, n, encoded = numbers.itemsize, len(numbers), numbers.tobytes()
    window = max(4, -(-CHANCE // width))
    if n * width >= CHANCE and np.count_nonzero(numbers) > 1:
        needles[n * width][encoded].add(name)
    if n > window:
        full = np.count_nonzero(sliding_window_view(numbers, window), axis=1) > 2
        for start in np.flatnonzero(full).tolist():
            needles[window * width][encoded[start * width : (start + window) * width]].add(name)


def standing_in(text: bytes, needles: Needles, step: int = 1) -> set[Name]:
    found = set[Name]()
    for size, known in needles.items():
        for start in range(0, len(text) - size + 1, step):
            found |= known.get(text[start : start + size], set())
    return found


def in_differences(uploads: Uploads, received: Received) -> set[Name]:
    """The same for sums and differences of any two vectors, whatever byte their words begin at.

    Masks that are used twice leave one upload there, or the difference of two.
    """
    masked = [packet.arrays["secagg"].tobytes() for _, packet in received if "secagg" in packet.arrays]
    found = set[Name]()
    for width in (1, 2, 4):  # whole bytes of words: planes of a packed vector
        needles: Needles = defaultdict(lambda: defaultdict(set))
        plain = {name: words.astype(f"u{width}") for name, words in uploads.items()}
        for name, words in plain.items():
            add_needles(needles, name, words)
        wholes = [(name, words) for name, words in plain.items() if name[-1] == "all"]
        for (first, one), (second, other) in combinations(wholes, 2):
            for name, mixed in product((first, second), mixtures(one, other)):
                add_needles(needles, name, mixed)
        for order, skip in product("<>", range(width)):
            vectors = [np.frombuffer(m[skip : len(m) - (len(m) - skip) % width], f"{order}u{width}") for m in masked]
            for one, other in combinations(vectors, 2):
                for mixed in mixtures(one, other):
                    found |= standing_in(mixed.astype(f"u{width}").tobytes(), needles, width)
    return found


def mixtures(one: np.ndarray, other: np.ndarray) -> Iterator[np.ndarray]:
    n = min(len(one), len(other))
    yield from (one[:n] - other[:n], other[:n] - one[:n], one[:n] + other[:n])


def sizes(packets: Iterable[Packet]) -> list[tuple[Any, ...]]:
    """What an observer who cannot read packets sees: how many, in which order, how large each part is."""
    return [
        (
            packet.kind,
            len(json.dumps(packet.header)),
            {name: len(blob) for name, blob in packet.blobs.items()},
            {name: (array.dtype.str, array.shape) for name, array in packet.arrays.items()},
        )
        for packet in packets
    ]


def swapped(crowd: Sequence[Sequence[Person]]) -> list[list[Person]]:
    """The same people, except that one of them has as many other items, and as many others held out."""
    new = [list(persons) for persons in crowd]
    someone = new[1][2]
    others = [item for item in range(N_ITEMS) if item not in {*someone.items, *someone.held_out}]
    n, m = len(someone.items), len(someone.held_out)
    new[1][2] = Person(someone.id, others[:n], others[n : n + m])
    assert (len(new[1][2].items), len(new[1][2].held_out)) == (n, m)
    return new


def run(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Uploads, World]:
    """Run every stage in this process; also return what each node, and each user alone, was about to mask."""
    uploads: Uploads = {}
    compute_upload = node.compute_upload

    def recorded(store: Any, method: Any, sum_: Any, rows: list[int], broadcast: Any, *more: Any) -> Any:
        result = compute_upload(store, method, sum_, rows, broadcast, *more)
        where = (*sum_.place, store.path.parent.name)
        uploads[(*where, "all")] = result[0].copy()
        for row in rows:
            uploads[(*where, str(row))] = compute_upload(store, method, sum_, [row], broadcast, 1)[0]
        return result

    with monkeypatch.context() as patch:
        patch.setattr(node, "compute_upload", recorded)
        fed = world(root, users=5, options={"retries": 0, "topk": (20,), "evaluations": 9})
        fed.run()
    return uploads, fed


def in_every_stage(names: Iterable[Name], nodes: int = 3) -> bool:
    """Whether the sums of all nodes are among these, for a run of two rounds with one warm-up."""
    stages = [("degrees", 0, 0), ("propagate", 1, 0), ("train", 0, 0), ("train", 0, 1), (EVALUATE, 0, 1)]
    counts = Counter(name[:3] for name in names if name[-1] == "all")
    return counts == dict.fromkeys(stages, nodes)


def test_nothing_is_readable_in_any_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a query that names a user's own items would be, in any number format, from an odd byte on."""
    uploads, fed = run(tmp_path, monkeypatch)
    assert in_every_stage(uploads)
    assert readable(uploads, fed.transport.received) == set()
    name = next(n for n, words in uploads.items() if n[0] == "degrees" and n[-1] != "all" and words.sum() > 5)
    for how in ("<u2", ">u4", "<i8", "<f8"):
        query = b"odd" + np.flatnonzero(uploads[name]).astype(how).tobytes()
        assert name in in_clear(uploads, [(0, Packet("keys", {}, {"query": query}))])


def test_masks_off_everything_is_readable_in_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: nodes add no masks, and the server subtracts none; training does not notice."""
    for end in (client, server):
        monkeypatch.setattr(end, "mask_parts", lambda words, masks, threads: None)
    uploads, fed = run(tmp_path, monkeypatch)
    assert in_every_stage(readable(uploads, fed.transport.received))


def test_masks_used_twice_are_found_in_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: every sum has the same masks; nobody can read anything in one vector alone."""
    mask = np.random.default_rng(0).integers(0, 2**64, 4096, np.uint64)

    def add(words: ring.Words, masks: Any, threads: int, times: int = 1) -> None:
        for part in words:
            np.add(part, (times * mask[: len(part)].astype(np.int64)).astype(part.dtype), out=part)

    def take_off(words: ring.Words, masks: Any, threads: int) -> None:
        add(words, masks, threads, times=-3)

    monkeypatch.setattr(client, "mask_parts", add)
    monkeypatch.setattr(server, "mask_parts", take_off)
    uploads, fed = run(tmp_path, monkeypatch)
    assert in_clear(uploads, fed.transport.received) == set()
    assert in_every_stage(in_differences(uploads, fed.transport.received))


def talk(root: Path, monkeypatch: pytest.MonkeyPatch, crowd: Any) -> dict[int, list[tuple[Any, ...]]]:
    """What each node's packets look like from outside when these people train."""
    with monkeypatch.context() as patch:
        patch.setattr(worlds, "people", lambda *sizes, **more: crowd)
        fed = world(root)
    fed.run()
    return {at: sizes(packet for a, packet in fed.transport.received if a == at) for at in fed.nodes}


def test_sizes_and_order_of_packets_do_not_tell_what_somebody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = people(3, 4)
    before, after = talk(tmp_path / "1", monkeypatch, crowd), talk(tmp_path / "2", monkeypatch, swapped(crowd))
    assert before == after


def test_a_node_that_leaves_zeros_out_is_found_by_its_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: somewhere in a packet there is a byte for every item that a node's users have."""
    compute_upload, masked = node.compute_upload, node.Node._masked
    touched: list[int] = []

    def counted(store: Any, method: Any, sum_: Any, *more: Any) -> Any:
        computed = compute_upload(store, method, sum_, *more)
        touched.append(int(np.count_nonzero(computed.words)) if sum_.stage == "degrees" else 0)
        return computed

    def sparse(self: node.Node, request: Packet) -> Packet:
        answer = masked(self, request)
        return Packet(answer.kind, answer.header, {"rows": bytes(touched[-1])}, answer.arrays)

    monkeypatch.setattr(node, "compute_upload", counted)
    monkeypatch.setattr(node.Node, "_masked", sparse)
    crowd = people(3, 4)
    before, after = talk(tmp_path / "1", monkeypatch, crowd), talk(tmp_path / "2", monkeypatch, swapped(crowd))
    assert [before[at] == after[at] for at in range(3)] == [True, False, True]
