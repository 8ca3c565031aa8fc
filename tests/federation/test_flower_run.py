"""Laws 6 and 10 over the real network: three nodes with eight users each, TLS, node authentication, secure sums."""

import json
import re
import shutil
import stat
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)
import flwr.supernode.node_auth_http_interceptor as signing

from fedgrec.federation.common import certificates
from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.network import CA, FLOWER
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.common.roster import write_roster
from fedgrec.federation.flower import clients
from fedgrec.federation.flower.node_end import NUMBER
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.init import Made
from tests.federation.flower_network import (
    RECORDED,
    TAPPED,
    TAPPED_APP,
    as_world,
    clear_uploads,
    ended,
    founded,
    progress,
    running,
    tap,
    tapped,
)
from tests.federation.test_cli_federation import said
from tests.federation.test_flower_view import in_every_stage, readable, sizes, swapped
from tests.federation.test_server_view import ANSWERS, leaks
from tests.federation.worlds import people

USERS = 8  # of a node
UP = {kind: names for kind, names in ANSWERS.items() if kind not in {"refused", "error", "forgotten"}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A federation that has been trained; its SuperLink and its nodes still run."""
    made = founded(tmp_path_factory.mktemp("flower"), users=USERS)
    with running(made, nodes=RECORDED) as (server, _):
        assert ended(server) == ""
        yield made


def trained_by(made: Made, nodes: str, app: dict[str, str] = TAPPED_APP) -> Made:
    with running(made, app, nodes) as (server, _):
        assert ended(server) == ""
    return made


def test_strangers_are_refused_with_a_sentence(
    trained: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that expects another server, one whose clock is an hour behind, and one with another key.

    The server's log names the second, which signs with a known key, once; the third is a stranger to it.
    """
    strangers = [Path(shutil.copytree(node, tmp_path / node.name)) for node in trained.nodes]
    membership, (key, other) = open_node(strangers[0]).membership, certificates.authority("test")
    write_private(strangers[0] / CA, certificates.as_pem(other))
    write_roster(strangers[0], membership.signed(key))
    write_private(strangers[2] / FLOWER, certificates.ssh_pair()[0])
    causes, now = (
        {"is not the one that": 2, "clock": 2, "has not the node's key: the node was removed": 78},
        signing.now,
    )
    for stranger, (sentence, ending) in zip(strangers, causes.items(), strict=True):
        with monkeypatch.context() as late:
            if sentence == "clock":
                late.setattr(signing, "now", lambda: now() - timedelta(hours=1))
                late.setattr(clients, "datetime", Late)
            code, _, words = said(capsys, "federation", "node", stranger)
        assert code == ending
        assert sentence in words.splitlines()[-1]
        assert bool(re.search(r"is wrong, 3(59|60)\d s behind", words)) == (sentence == "clock")
    (line,) = [line for line in progress(trained).splitlines() if "is refused" in line]
    assert re.fullmatch(r"[\d-]+ [\d:]+ note: node node-1 is refused: its clock is 3(59|60)\d s behind .*", line)
    strangers[1].joinpath("flower.key").write_bytes((strangers[2] / FLOWER).read_bytes())
    with NodeStore(strangers[1]) as store, store.transaction():
        store.put("refused", "the node at 7 is node-1, which was removed with roster 2: stop it")
    code, _, words = said(capsys, "federation", "node", strangers[1])
    assert (code, "which was removed with roster 2" in words) == (78, True), "the server had said so while it knew it"


def test_the_doctor_examines_what_runs(
    trained: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that runs reaches its server and asks its clock; its own clock is the one that is wrong."""
    node = trained.nodes[0]
    code, out, _ = said(capsys, "federation", "doctor", node)
    to_do = [line for line in out.splitlines() if line.startswith("DO")]
    assert (code, len(to_do)) == (2, 2), out
    assert "others may use" in to_do[0], "people.csv"
    assert "there is no backup" in to_do[1]
    assert "ok  it runs" in out
    assert "answers, and the clocks agree" in out
    monkeypatch.setattr(clients, "datetime", Late)
    assert re.search(r"DO  the clock here is wrong, 3(59|60)\d s behind", said(capsys, "federation", "doctor", node)[1])


class Late(datetime):
    """The clock of a node that is an hour behind."""

    @classmethod
    def now(cls, zone: Any = None) -> "Late":
        return super().now(zone) - timedelta(hours=1)


def test_law_6_the_network_is_the_simulation_bit_for_bit(trained: Made) -> None:
    world = as_world(trained)
    assert world.is_its_simulation()
    assert world.pending() == 0
    assert [len(world.applied(stage)) for stage in ("degrees", "propagate", "train", EVALUATE)] == [1, 1, 2, 1]
    assert all(line["included"] == [0, 1, 2] for line in world.log())


def test_law_10_nothing_but_masked_uploads_and_the_protocols_messages_came_up(trained: Made) -> None:
    received = tapped(trained)
    kinds = [packet.kind for _, packet in received]
    assert kinds.count("masked") == 3 * 5  # three nodes in five sums
    for _, packet in received:
        header, blobs, arrays = UP[packet.kind]
        assert (set(packet.header), set(packet.blobs) - blobs, set(packet.arrays)) == (header, set(), arrays)
    assert bare_uploads(trained, received) == 0


def test_law_10_no_upload_of_any_stage_can_be_read_in_what_came_up(trained: Made) -> None:
    """Of any node or user, in any number format, from any byte on, or as the difference of two vectors."""
    uploads, received = clear_uploads(trained), tapped(trained)
    assert in_every_stage(uploads)
    assert len(uploads) > 3 * (USERS + USERS + USERS // 2)  # each user's own part is recorded too
    assert readable(uploads, received) == set()
    assert leaks(list(uploads.values()), received) == []


NO_MASKS = """
from fedgrec.secagg import client, server
client.mask_parts = server.mask_parts = lambda words, masks, threads: None
"""


@pytest.mark.slow
def test_law_10_masks_off_every_upload_of_every_stage_is_read(tmp_path: Path) -> None:
    """Mutation: nodes add no masks, the server subtracts none; the run succeeds, and the record shows everything."""
    app = TAPPED_APP | {"fedgrec_app/apps.py": NO_MASKS + TAPPED}
    made = trained_by(founded(tmp_path, options={"topk": (20,)}), RECORDED + NO_MASKS, app)
    assert as_world(made).is_its_simulation()
    assert in_every_stage(readable(clear_uploads(made), tapped(made)))


@pytest.mark.slow
def test_law_10_packets_look_the_same_where_somebody_has_other_items(trained: Made, tmp_path: Path) -> None:
    """Number, order and sizes are the same for every node's packets, and for all parts that it hands to Flower."""
    other = trained_by(founded(tmp_path, crowd=swapped(people(3, USERS))), RECORDED)
    for mine, theirs in zip(trained.nodes, other.nodes, strict=True):
        # hello, keys, five sums, keys of the evaluation, finish: there and back
        assert len(packets(trained, mine)) == 2 * (1 + 1 + 5 * 4 + 1 + 1)
        assert packets(trained, mine) == packets(other, theirs)
        assert len(parts(trained, mine)) == 1 + 1 + 5 * 4 + 1 + 1
        assert parts(trained, mine) == parts(other, theirs)


def packets(made: Made, node: Path) -> list[Any]:
    """A node's packets in order: packets down by their kind, packets up by all their sizes."""
    address = int((node / NUMBER).read_text())
    mine = [seen for seen in tap(made) if seen.address == address]
    return [sizes([seen.packet]) if seen.way == "up" else seen.packet.kind for seen in mine]


def parts(made: Made, node: Path) -> list[str]:
    """The sizes of the parts of each answer; the rest of a Flower message is numbers of Flower's own."""
    return (made.server.parents[1] / "record" / f"{node.name}.sizes").read_text().splitlines()


def test_law_10_would_notice_an_upload_that_is_not_masked(trained: Made) -> None:
    """Mutation: in the record, a plain upload of one node or user replaces a masked vector."""
    received, plain = tapped(trained), plain_uploads(trained)
    for upload in (plain[0], plain[-1]):
        for bare in (upload, upload.astype("<i8"), upload.astype("<f4"), upload.astype(">u4")):
            leak = Packet("masked", {}, {}, {"secagg": np.frombuffer(b"head" + bare.tobytes(), np.uint8)})
            assert bare_uploads(trained, [*received, (1, leak)]) > 0


def plain_uploads(made: Made) -> list[np.ndarray]:
    """What each node, and each user alone, would have sent in the first degree count without masks."""
    home = open_server(made.server)
    with ServerStore(home) as store:
        n_users = store.get("n_users")
        (line,) = [line for line in store.sums() if line["stage"] == "degrees"]
    method, plan = home.method(n_users), Plan("degrees", 0, 0, n_users, n_users)
    stage = plan.stage_of(method)
    broadcast = method.broadcast(method.init(home.config.run.seed), stage, level=0)
    found = []
    for node in made.nodes:
        with NodeStore(node) as store:
            (users,) = store.db.execute(
                "SELECT users FROM participation WHERE session = ?", [line["session"]]
            ).fetchone()
            rows = json.loads(users)
            for group in (rows, *([row] for row in rows)):
                cohort = store.cohort(open_node(node).method(n_users), group)
                upload, _ = method.local_update(cohort, stage, broadcast)
                found.append(upload.to_ring(plan.spec(method)))
    return found


def bare_uploads(made: Made, received: list[tuple[int, Packet]]) -> int:
    """How many plain uploads can be read in what came up, in any usual encoding of numbers."""
    encodings = ("<u4", ">u4", "<u8", ">u8", "<f4", ">f4", "<f8", ">f8", "u1", "<u2")
    needles = set()
    for upload in plain_uploads(made):
        needles |= {upload.astype(encoding).tobytes() for encoding in encodings}
        needles.add(json.dumps(upload.tolist()).encode())
    texts = [json.dumps(packet.header).encode() for _, packet in received]
    texts += [blob for _, packet in received for blob in packet.blobs.values()]
    texts += [array.tobytes() for _, packet in received for array in packet.arrays.values()]
    return sum(needle in text for needle in needles for text in texts)


def test_masked_vectors_look_like_noise(trained: Made) -> None:
    """A masked vector has no more zero words than chance gives; a plain vector of a few clicks is nearly all zeros."""
    for _, packet in tapped(trained):
        if packet.kind == "masked":
            message = packet.arrays["secagg"].tobytes()
            words = np.frombuffer(message[len(message) % 4 :], np.uint32)
            assert np.mean(words == 0) < 0.05


def test_files_are_their_owners_alone(trained: Made) -> None:
    fed = trained.server.parent
    for path in fed.rglob("*"):
        if path.is_relative_to(trained.server / "tap") or path.name.startswith("people"):
            continue  # the test wrote them
        mode = stat.S_IMODE(path.stat().st_mode)
        private = any(stat.S_IMODE(parent.stat().st_mode) == 0o700 for parent in path.parents)
        assert private, path
        if path.is_file() and path.parent in (trained.server, *trained.nodes) and path.suffix != ".db":
            assert mode == 0o600, (path, oct(mode))


def test_the_server_never_had_the_salt_or_an_identity(trained: Made) -> None:
    secrets = [open_node(node).user_salt for node in trained.nodes]
    secrets += [open_node(node).identity.private_bytes_raw() for node in trained.nodes]
    for path in (p for p in trained.server.rglob("*") if p.is_file()):
        content = path.read_bytes()
        assert not any(secret in content or secret.hex().encode() in content for secret in secrets), path


def test_a_device_recommends_offline_what_its_user_has_not_seen(
    trained: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "device", "recommend", trained.nodes[1], "--user", "1/3", "-n", 5, "--json")
    assert code == 0, err
    shown = [line["item"] for line in json.loads(out)]
    with NodeStore(trained.nodes[1]) as store:
        rows = store.db.execute(
            "SELECT item FROM interactions WHERE held_out = 0 AND user = ?", [store.row_of("1/3")]
        ).fetchall()
    assert len(set(shown)) == 5
    assert not set(shown) & {f"item {item}" for (item,) in rows}
    code, _, err = said(capsys, "device", "recommend", trained.nodes[1], "--user", "0/3")
    assert (code, err) == (2, "fedgrec: there is no user '0/3' on this node\n")


def test_status_tells_how_far_it_came(trained: Made, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "federation", "status", trained.server)
    assert code == 0, err
    assert "round 2 of 2, finished" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  node-")]
    assert [row[:4] for row in rows] == [[f"node-{index}", str(USERS), "2", "0"] for index in range(3)]
    assert "recall@5" in out
    assert "round 2: 3 of 3 nodes" in out


def files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_the_run_folder_is_left(trained: Made) -> None:
    names = {path.name for path in files(trained.server / "run")}
    assert names == {
        "config.toml",
        "data.json",
        "items.json",
        "metrics.jsonl",
        "result.json",
        "server.safetensors",
    }
