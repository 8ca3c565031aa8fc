"""Nodes leave, get new keys, and are restored from a backup without keys; certificates are renewed in time."""

import datetime
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedgrec import cli
from fedgrec.errors import ConfigError
from fedgrec.federation.common import certificates
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import (
    KEYS,
    TLS_CERTIFICATE,
    TLS_KEY,
    check_tls,
    expiry_note,
    read_flower_key,
)
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.common.packets import REFUSED, Packet
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore, Person
from fedgrec.federation.server.coordinator import Coordinator
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.backup import backup
from fedgrec.federation.setup.changes import remove_node, rotate_keys
from fedgrec.federation.setup.init import Made, add_node, add_users, init
from fedgrec.federation.setup.start import serve
from tests.federation.local_transport import Answer, LocalTransport, honest
from tests.federation.worlds import N_ITEMS, OPEN_HEARTED, Killed, World, config, kill_server, people

ITEMS = [f"item {i}" for i in range(N_ITEMS)]
QUICK: dict[str, Any] = {"rounds": 1, "evaluate_every": 0, "pause": 0.0, "start_seconds": 0.0, "retries": 0}


def founded(root: Path, nodes: int = 4, **options: Any) -> tuple[Path, World]:
    """A federation as `init` makes it, with three users on each node, in this process."""
    wanted = FederationOptions(**QUICK | options)
    made = init(
        root / "fed", nodes, ITEMS, config(layers=1), wanted, agreed=Agreement(**OPEN_HEARTED | {"evaluations": 0})
    )
    for folder, users in zip(made.nodes, people(nodes, 3), strict=True):
        with NodeStore(folder) as store:
            store.add_users(open_node(folder).method(1), users)
    folders = dict(enumerate(made.nodes))
    return root / "fed", World(made.server, folders, LocalTransport(folders))


# ------------------------------------------------------------------------------------------------- remove-node


def test_a_node_that_was_removed_is_told_so_and_the_others_go_on_with_what_it_contributed(tmp_path: Path) -> None:
    fed, world = founded(tmp_path)
    world.run()
    with_it = world.model().items.copy()
    assert remove_node(fed, "node-3") == [3]
    assert (world.model().items == with_it).all()
    assert list(open_server(fed / "server").roster) == [0, 1, 2]
    assert not (fed / "server" / KEYS / "node-3.pub").exists()
    world.give_rounds(3)
    refusals: list[Packet] = []

    def seen(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        refusals.extend([request] if request.kind == REFUSED else [])
        return honest(address, request, node)

    world.run(seen)
    assert [packet.header["final"] for packet in refusals] == [True], "the node ends its process"
    assert world.applied("train")[-1]["included"] == [0, 1, 2]
    assert [list(open_node(path).roster) for path in world.nodes.values()] == [[0, 1, 2]] * 3 + [[0, 1, 2, 3]]
    with NodeStore(fed / "node-3") as store:
        assert "is node-3, which was removed with roster 2: stop it" in store.get("refused")


def test_latents_of_a_removed_node_that_was_never_counted_are_possible(tmp_path: Path) -> None:
    """They stand at an item that no counted user has: to put them back would accuse the nodes of the sum."""
    fed, world = founded(tmp_path)
    rare = 0
    for path in world.nodes.values():
        with NodeStore(path) as store, store.transaction():
            for row in store.first_rows(-1):
                changes.want(store, row, [rare + 1, *{*changes.wanted(store, row)} - {rare}])
    world.run()
    folder = add_node(fed)
    with NodeStore(folder) as store:
        store.add_users(open_node(folder).method(1), [Person("late", [rare])])
    world.transport.folders = {**world.nodes, 4: folder}
    world.give_rounds(3)
    world.run()
    latents = world.model().items[1:, rare].copy()
    assert world.model().degrees[rare] == 0
    assert latents.any(), "the newcomer has sent latents"

    remove_node(fed, "node-4")
    world.give_rounds(5)
    world.run()
    assert (world.model().items[1:, rare] == latents).all()
    assert not any("were put back" in notice for notice in world.witness.notices)
    with ServerStore(open_server(world.server)) as store:
        assert store.loose_users() == 1


def test_a_node_is_removed_while_a_sum_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is lost, since its keys are bound to the roster of before, and the next ones go on without the node."""
    fed, world = founded(tmp_path, rounds=3, retries=2)
    upcoming, gone = Coordinator._upcoming, []

    def removing(self: Coordinator, current: Any) -> Any:
        if current.stage == "train" and not gone:
            gone.extend(remove_node(fed, "node-3"))
            self.members.tick()
        return upcoming(self, current)

    monkeypatch.setattr(Coordinator, "_upcoming", removing)
    world.run()
    assert gone == [3]
    assert [line["included"] for line in world.applied("train")][-1] == [0, 1, 2]
    assert any("a new roster came" in notice for notice in world.witness.notices)


def test_a_place_and_a_name_are_never_given_again_and_any_node_may_go(tmp_path: Path) -> None:
    fed, _ = founded(tmp_path)
    remove_node(fed, "node-3")
    node = open_node(add_node(fed))
    assert (node.name, node.index) == ("node-4", 4)
    remove_node(fed, "node-0")
    shutil.rmtree(fed / "node-0")
    node = open_node(add_node(fed))
    assert (node.name, node.index, sorted(node.roster)) == ("node-5", 5, [1, 2, 4, 5])


def test_users_of_a_removed_node_may_come_back_on_another(tmp_path: Path) -> None:
    fed, world = founded(tmp_path)
    world.run()
    remove_node(fed, "node-3")
    folder = add_node(fed)
    with NodeStore(folder) as store:
        store.add_users(open_node(folder).method(1), people(4, 3)[3])
    world.transport.folders = {0: fed / "node-0", 1: fed / "node-1", 2: fed / "node-2", 4: folder}
    world.give_rounds(2)
    world.run()
    assert world.applied("train")[-1]["included"] == [0, 1, 2, 4], world.witness.notices


def test_too_few_nodes_an_unknown_one_and_a_moved_authority_change_nothing(tmp_path: Path) -> None:
    fed, _ = founded(tmp_path, least_nodes=4)
    before = {path: path.read_bytes() for path in fed.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="without node-1 the roster has 3, and no sum has fewer than 4"):
        remove_node(fed, "node-1")
    for change in (remove_node, rotate_keys):
        with pytest.raises(ConfigError, match=r"no node 'node-9' on the roster .*node-0, node-1.* Did you mean"):
            change(fed, "node-9")
    assert before == {path: path.read_bytes() for path in fed.rglob("*") if path.is_file()}
    small = init(tmp_path / "small", 3, ITEMS, config(), FederationOptions()).server.parent
    with pytest.raises(ConfigError, match="without node-1 there are 2 nodes"):
        remove_node(small, "node-1")
    (small / "authority" / "ca.key").unlink()
    with pytest.raises(FederationError, match="only where `init` ran"):
        remove_node(small, "node-1")


def test_a_warm_up_that_a_removed_node_helped_to_open_is_a_sentence(tmp_path: Path) -> None:
    fed, world = founded(tmp_path)
    with pytest.raises(Killed):
        world.run(kill_server(4 + 4 * 5 - 1))  # the degrees are opened in part
    remove_node(fed, "node-3")
    with pytest.raises(FederationError, match=r"stage 'degrees' of the warm-up was opened in part with node-3"):
        world.run()


def test_a_gateway_or_one_of_its_users_leaves(tmp_path: Path) -> None:
    wanted = FederationOptions(**QUICK)
    fed = init(tmp_path / "fed", 4, ITEMS, config(), wanted, per_user_masks=[2, 2, 2, 2]).server.parent
    assert remove_node(fed, "node-3") == [6, 7]
    assert remove_node(fed, "node-2.5") == [5]
    assert (fed / "server" / KEYS / "node-2.pub").exists()
    assert [path.name for path in add_users(fed, "node-2", 1)] == ["8"], "places 5 to 7 were used"
    old = open_server(fed / "server").roster
    rotate_keys(fed, "node-1")
    new = open_server(fed / "server").roster
    assert {index for index in old if old[index].key != new[index].key} == {2, 3}
    for index in (2, 3):
        own = open_node(fed / "node-1" / "users" / str(index)).identity.public_key()
        assert own.public_bytes_raw() == new[index].key


# ------------------------------------------------------------------------------------------------- rotate-keys


def test_the_old_key_is_refused_and_the_new_one_goes_on_with_the_same_users(tmp_path: Path) -> None:
    fed, world = founded(tmp_path)
    world.run()
    node, stolen = fed / "node-1", tmp_path / "stolen"
    shutil.copytree(node, stolen)
    rotate_keys(fed, "node-1")
    assert open_server(fed / "server").roster[1].key == open_node(node).identity.public_key().public_bytes_raw()
    public = load_ssh_public_key((fed / "server" / KEYS / "node-1.pub").read_bytes())
    assert text(public) == text(read_flower_key(node).public_key()) != text(read_flower_key(stolen).public_key())
    world.transport.folders = {**world.nodes, 1: stolen}
    world.give_rounds(2)
    world.run()
    said = "the node at 1 has not the key of node-1: it is refused"
    assert said in world.witness.notices
    with NodeStore(stolen) as store:
        assert store.get("refused") == said
    world.transport.folders = world.nodes
    world.give_rounds(3)
    world.run()
    assert world.applied("train")[-1]["included"] == [0, 1, 2, 3]


def text(key: Any) -> bytes:
    written: bytes = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return written


def test_a_node_that_is_lost_with_its_folder_gets_a_new_one_at_its_place(tmp_path: Path) -> None:
    fed, world = founded(tmp_path)
    world.run()
    shutil.rmtree(fed / "node-1")
    assert rotate_keys(fed, "node-1") == fed / "node-1"
    with NodeStore(fed / "node-1") as store:
        store.add_users(open_node(fed / "node-1").method(1), people(4, 3)[1])
    world.give_rounds(3)
    world.run()
    assert world.applied("train")[-1]["included"] == [0, 1, 2, 3], world.witness.notices


# ------------------------------------------------------------------------------------------------------ backup


def secrets_of(fed: Path) -> list[bytes]:
    """The private keys of everybody, as files hold them and as they are."""
    found = []
    for path in fed.rglob("*.key"):
        content = path.read_bytes()
        found += [content, *(line for line in content.splitlines() if len(line) > 40 and not line.startswith(b"-----"))]
        if path.name == "identity.key":
            found.append(bytes.fromhex(content.decode()))
    return found


def test_a_backup_holds_no_private_key_and_new_keys_bring_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed, world = founded(tmp_path)
    world.run()
    secrets = secrets_of(fed)
    assert len(secrets) > 20
    for name in ("server", "node-0", "node-1"):
        assert cli.main(["federation", "backup", str(fed / name), "--out", str(tmp_path / "copies" / name)]) == 0
    assert "without its private keys" in capsys.readouterr().out
    copied = [path.read_bytes() for path in (tmp_path / "copies").rglob("*") if path.is_file()]
    assert not any(secret in content for content in copied for secret in secrets)
    whole = backup(fed / "node-0", tmp_path / "whole", with_keys=True)
    assert any(secret in path.read_bytes() for path in whole.rglob("*") if path.is_file() for secret in secrets)
    shutil.rmtree(fed / "node-1")
    shutil.copytree(tmp_path / "copies" / "node-1", fed / "node-1")
    with pytest.raises(FederationError, match=r"identity\.key is missing .*rotate-keys FED NODE"):
        open_node(fed / "node-1").check()
    with pytest.raises(FederationError, match=r"flower\.key is missing.*rotate-keys FED NODE"):
        read_flower_key(fed / "node-1")
    rotate_keys(fed, "node-1")
    world.give_rounds(2)
    world.run()
    assert world.applied("train")[-1]["included"] == [0, 1, 2, 3], world.witness.notices
    assert world.is_its_simulation()
    with pytest.raises(FederationError, match=r"server\.key is missing .*fedgrec federation certificate FED --host"):
        serve(tmp_path / "copies" / "server", print)


# ------------------------------------------------------------------------------------------------ certificates


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return init(tmp_path / "fed", 3, ["tea"], config(), FederationOptions(), "fed.example")


def test_status_warns_thirty_days_before_and_renewing_ends_it(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    fed, now = made.server.parent, datetime.datetime.now(datetime.UTC)
    soon = now + datetime.timedelta(days=825 - 30)
    assert expiry_note(made.server, soon - datetime.timedelta(days=1)) == ""
    assert "ends on" in expiry_note(made.server, soon + datetime.timedelta(days=1))
    assert "ended on" in expiry_note(made.server, soon + datetime.timedelta(days=31))
    key, certificate = certificates.server_certificate(certificates.open_authority(fed), ["fed.example"], 10)
    (made.server / TLS_CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    (made.server / TLS_KEY).write_bytes(certificates.pem(key))
    assert cli.main(["federation", "status", str(made.server)]) == 0
    out = capsys.readouterr().out
    assert "in 9 days" in out
    assert "run  fedgrec federation certificate FED --host fed.example ," in out
    trusted = (made.nodes[0] / "ca.crt").read_bytes()
    assert cli.main(["federation", "certificate", str(fed), "--host", "fed.example"]) == 0
    assert "Nodes need nothing" in capsys.readouterr().out
    assert expiry_note(made.server) == ""
    renewed = x509.load_pem_x509_certificate((made.server / TLS_CERTIFICATE).read_bytes())
    renewed.verify_directly_issued_by(x509.load_pem_x509_certificate(trusted))
    (made.server / TLS_CERTIFICATE).write_text("no certificate")
    assert cli.main(["federation", "status", str(made.server)]) == 2
    assert "server.pem is not a certificate" in capsys.readouterr().err


def test_the_authority_ends_with_its_federation(made: Made) -> None:
    check_tls(made.server)
    (made.server / TLS_CERTIFICATE).unlink()
    late = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3640)
    assert "begin a new federation" in expiry_note(made.server, late)
    with pytest.raises(FederationError, match=r"server\.pem is missing"):
        check_tls(made.server)


# ---------------------------------------------------------------------------------------------------- commands


def test_the_commands_say_what_to_copy_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed = init(tmp_path / "fed", 5, ["tea"], config(), FederationOptions()).server.parent
    for words, wanted in (
        (["remove-node", "node-1"], ("stays in the model", "Copy roster.json from", "delete keys/node-1.pub")),
        (["rotate-keys", "node-2"], ("identity.key and flower.key", "keys/node-2.pub", "old keys are refused")),
    ):
        assert cli.main(["federation", words[0], str(fed), words[1]]) == 0
        out = capsys.readouterr().out
        assert all(part in out for part in wanted), out
    assert cli.main(["federation", "remove-node", str(fed), "node-1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
