"""Packets as Flower carries them: they arrive as they were sent, in few parts, and anything else is refused."""

from typing import Any

import numpy as np
import pytest

records = pytest.importorskip(
    "fedgrec.federation.flower.records", reason="needs the extra `deploy`", exc_type=ImportError
)
from flwr.app import ConfigRecord, Error, Message, RecordDict  # noqa: E402

from fedgrec.federation.common.packets import Packet, checked, disagreement  # noqa: E402

pytestmark = pytest.mark.usefixtures("a_run")


def same(a: Packet, b: Packet) -> bool:
    arrays = a.arrays.keys() == b.arrays.keys() and all(
        x.dtype == b.arrays[name].dtype and x.shape == b.arrays[name].shape and x.tobytes() == b.arrays[name].tobytes()
        for name, x in a.arrays.items()
    )
    return arrays and (a.kind, a.header, a.blobs) == (b.kind, b.header, b.blobs)


def test_a_packet_comes_out_as_it_went_in() -> None:
    packet = Packet(
        "kind",
        {"words": ["ä", None, 1.5, {"deep": True}]},
        {"empty": b"", "big": bytes(range(256)) * 20_000},
        {"table": np.arange(6, dtype=">f4").reshape(2, 3), "none": np.zeros((0, 3), np.uint8), "one": np.array(7)},
    )
    assert same(records.from_records(records.to_records(packet)), packet)
    assert same(records.from_records(records.to_records(Packet("bare"))), Packet("bare"))


@pytest.mark.parametrize("size", [3, records.PIECE // 4, records.PIECE // 4 + 1])
def test_arrays_travel_as_bytes_or_in_pieces_and_are_the_same(size: int) -> None:
    """Large arrays travel in pieces, each a record; small arrays of an answer need no record of their own."""
    packet = Packet("kind", {}, {}, {"table": np.arange(size, dtype=np.float32), "none": np.zeros((0, 3), np.int64)})
    small = size <= records.PIECE // 4
    for shared, count in ((None, 1 if small else 3), ({}, 2 if small else 3)):
        sent = records.to_records(packet, shared)
        assert len(sent) == count
        assert same(records.from_records(sent), packet)


def test_what_all_are_sent_is_one_record_which_is_written_once() -> None:
    table, shared = np.arange(6.0), {}
    a, b, c = (records.to_records(Packet(kind, {}, {}, {"t": table}), shared) for kind in "abc")
    assert a["arrays.0"] is b["arrays.0"] is c["arrays.0"]
    other = records.to_records(Packet("d", {}, {}, {"t": table + 1}), shared)
    assert other["arrays.0"].object_id != a["arrays.0"].object_id
    twin = ConfigRecord(dict(a["packet"]))  # as Flower makes them
    assert a["packet"].deflate() == twin.deflate()
    assert a["packet"].deflate() is a["packet"].deflate()
    assert a["packet"].object_id == twin.object_id


@pytest.mark.parametrize(
    "layout",
    [
        '[["t","<f4",[3]]]',  # there are two
        '[["t","<f4",[-1]]]',
        '[["t","<f4",[2.0]]]',
        '[["t","<f4",[true,2]]]',
        '[["t","|O",[1]]]',
        '[["t","<f4,<f4",[1]]]',
        '[["t","nothing",[2]]]',
        '[["t",3,[2]]]',
        '[["t","<f4"]]',
        '[[7,"<f4",[2]]]',
        '[["t","<f4",[1]]]',  # four bytes are left over
        '[["t","<f4",[0,' + "9" * 30 + "]]]",
        "[",
        "7",
    ],
)
def test_bytes_that_are_not_the_array_they_claim_to_be_are_one_sentence(layout: str) -> None:
    words = {"kind": "x", "header": "{}", "bytes": np.zeros(2, "<f4").tobytes()}
    good = records.from_records(RecordDict({"packet": ConfigRecord({**words, "layout": '[["t","<f4",[2]]]'})}))
    assert good.arrays["t"].tolist() == [0, 0]
    with pytest.raises(records.PacketError, match="without readable arrays"):
        records.from_records(RecordDict({"packet": ConfigRecord({**words, "layout": layout})}))


def test_a_node_of_version_5_is_told_apart_from_one_that_fails() -> None:
    """Its short answers are errors, which cannot be read any more: both sides say which of them to upgrade."""
    question = Message(records.to_records(Packet("q")), 1, records.ACTION)
    found = records.read_answer(Message(Error(1000, "UGFja2V0"), reply_to=question))
    assert checked(found).header["reason"] == disagreement(5, "node", "server")
    assert "upgrade fedgrec on the node" in disagreement(5, "node", "server")


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"kind": "x"},
        {"kind": "x", "header": "{"},
        {"kind": "x", "header": "[1]"},
        {"kind": 3, "header": "{}"},
        {"kind": "x", "header": "{}", "blob.a": "text"},
        {"kind": "x", "header": "[" * 100_000},
    ],
)
def test_what_is_no_packet_is_one_sentence(words: dict[str, Any]) -> None:
    with pytest.raises(records.PacketError, match="Flower message"):
        records.from_records(RecordDict({"packet": ConfigRecord(words)}))
    with pytest.raises(records.PacketError):
        records.from_records(RecordDict())
