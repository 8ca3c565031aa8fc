"""A server records what it saw, and an audit of that says which items can be linked, and which links are right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.cable.core import Broadcast, Leaf, Rows, Upload, UploadSpec
from fedgrec.errors import DamagedError, RunError
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.setup.backup import backup
from fedgrec.federation.setup.known_users import known_users
from fedgrec.runs.recorded_sums import RECORDINGS, RecordedSum, read_sums, write_sum
from fedgrec.studies.audit.links import KnownUser, by_company, linked, scored
from fedgrec.studies.audit.scores import Finding, NotApplicable
from tests.federation.replay import replay
from tests.federation.worlds import World, at_random, people, same_bits, world


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six rounds of two of four nodes each, all recorded."""
    options = {"rounds": 6, "nodes_per_round": 2, "record": 10, "corrupt": 0.0}
    made = world(tmp_path_factory.mktemp("fed"), nodes=4, options=options)
    made.run()
    return made


def same_sum(one: Upload, other: Upload) -> bool:
    """The same rows, except for rows of zeros."""
    if one.users != other.users or one.leaves.keys() != other.leaves.keys():
        return False
    for name, rows in one.leaves.items():
        touched = rows.values.any(axis=1)
        recorded = other.leaves[name]
        if rows.index[touched].tolist() != recorded.index.tolist():
            return False
        if not (rows.values[touched] == recorded.values).all():
            return False
    return True


# ------------------------------------------------------------------------------------------- what is recorded


@pytest.mark.keep(1)
@pytest.mark.parametrize("method", ["fcf", "fedgrec", "federank"])
def test_what_is_recorded_is_what_was_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The replay computes every sum again from users' data: it must apply the sums that were recorded.

    FCF broadcasts the server's own tables, which a sum changes in place.
    """
    made = world(tmp_path, method, nodes=4, options={"rounds": 3, "nodes_per_round": 2, "record": 10, "corrupt": 0.0})
    made.run()
    kind: Any = type(open_server(made.server).method(1))
    applied, apply = [], kind.apply

    def watching(self: Any, model: Any, stage: Any, total: Upload, level: int = 0) -> Any:
        if stage.name == self.stages[-1].name:
            applied.append((self.broadcast(model, stage, level=level).fingerprint(), self.spec(stage), total))
        return apply(self, model, stage, total, level)

    monkeypatch.setattr(kind, "apply", watching)
    replay(made.server, made.nodes)
    recorded = read_sums(made.server, 100)
    assert len(recorded) == len(applied) == 3
    for seen, (shown, spec, total) in zip(recorded, applied, strict=True):
        assert seen.broadcast.fingerprint() == shown
        assert seen.spec == spec
        assert same_sum(total, seen.total)
    assert not same_sum(applied[0][2], recorded[1].total), "the comparison can fail"


def test_a_recording_names_who_was_in_the_sum(finished: World) -> None:
    lines = {line["number"]: line for line in finished.applied("train")}
    for seen in read_sums(finished.server / RECORDINGS, 100):
        line = lines.pop(seen.number)
        assert list(seen.nodes) == line["included"]
        assert [seen.session, seen.broadcast.round, seen.total.users] == [line["session"], line["round"], line["users"]]
        assert seen.names == tuple(f"node{index}" for index in seen.nodes)
    assert lines == {}


def test_lost_sums_are_not_recorded_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    made = world(tmp_path, nodes=4, options={"rounds": 6, "record": 3, "retries": 50})
    made.run(at_random(0.15, seed=1, kinds=["confirm", "unmask"]))
    lost = [line["number"] for line in made.log() if line["stage"] == "train" and not line["applied"]]
    assert lost, "else this tests nothing"
    applied = [line["number"] for line in made.applied("train")]
    assert [seen.number for seen in read_sums(made.server, 100)] == applied[-3:]
    assert [seen.number for seen in read_sums(made.server, 2)] == applied[-2:]


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path) -> None:
    assert FederationOptions().record == 0
    made = world(tmp_path, options={"rounds": 1})
    made.run()
    assert not (made.server / RECORDINGS).exists()


def test_a_backup_leaves_recordings_out(finished: World, tmp_path: Path) -> None:
    assert not (backup(finished.server, tmp_path / "copy") / RECORDINGS).exists()


# ------------------------------------------------------------------------------------------------ by hand


def recorded(number: int, nodes: list[int], latents: Rows, users: int = 3) -> RecordedSum:
    """A sum over a catalogue of 20 items, with one level of latents."""
    leaves = tuple(Leaf(name, 20, 4, 1.0, 2**-8) for name in ("items", "latents"))
    broadcast = Broadcast(number, 20, np.zeros((1, 20, 4), np.float32), np.zeros(20, np.int64))
    names = tuple(f"node-{node}" for node in nodes)
    total = Upload({"items": latents, "latents": latents}, users)
    return RecordedSum(number, f"s{number}", "fedgrec", broadcast, UploadSpec(leaves, 10), total, tuple(nodes), names)


def directions(*people: list[int]) -> Rows:
    """The items of each person move in that person's own direction."""
    owner = {item: at for at, items in enumerate(people) for item in items}
    index = np.array(sorted(owner))
    return Rows(index, np.eye(4, dtype=np.int32)[[owner[item] for item in index]] * 9)


ITEMS = [[0, 1, 2, 3], [5, 6, 7], [10, 11, 12, 13, 14]]
SUM = recorded(0, [0, 1], directions(*ITEMS))


def known(items: list[list[int]]) -> list[KnownUser]:
    return [KnownUser(at % 2, np.array(mine), frozenset({"s0"})) for at, mine in enumerate(items)]


def test_a_sum_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_sum(tmp_path / RECORDINGS, SUM, keep=1)
    (read,) = read_sums(tmp_path, 1)
    assert read.broadcast.fingerprint() == SUM.broadcast.fingerprint()
    assert same_sum(SUM.total, read.total)
    assert same_bits(read.total.leaves["latents"].values, SUM.total.leaves["latents"].values)
    others = ("number", "session", "method", "spec", "nodes", "names")
    assert [getattr(read, name) for name in others] == [getattr(SUM, name) for name in others]


def test_groups_are_counted() -> None:
    found = linked([SUM])
    assert found.by_latents is not None
    assert (found.by_latents.groups, found.by_latents.grouped, found.by_latents.largest) == (3, 12, 5)
    assert found.by_direction == found.by_latents
    assert (found.touched, found.items, found.users) == (12, 20, 3)
    mixed = directions(*[[at] for at in range(4)])  # no two rows are alike
    assert linked([recorded(0, [0, 1], mixed)]).by_direction.groups == 0


def test_groups_are_right_if_they_are_one_persons() -> None:
    def tied(items: list[list[int]]) -> float:
        line = scored([SUM], known(items)).lines[1]
        assert isinstance(line, Finding)
        return line.attack.value

    assert tied(ITEMS) == 1
    assert tied([[0, 5, 10, 11], [1, 6, 12, 13], [2, 3, 7, 14]]) == 0  # every group has items of several people
    assert tied([[0, 1, 2, 3], [5, 10, 11, 12], [6, 7, 13, 14]]) == pytest.approx(4 / 12)


def test_what_comes_and_goes_with_a_node_is_tied_to_it() -> None:
    first, second = recorded(1, [0, 1], directions([0, 1, 2], [3, 4])), recorded(2, [0, 2], directions([0, 1], [4, 9]))
    assert by_company([first, second]) == {"node-1": 2, "node-2": 1}  # 2 and 3; 9. Node 0 was always there
    assert by_company([first]) is None
    line = scored([first], [KnownUser(node, np.arange(3), frozenset({"s1"})) for node in (0, 1)]).lines[2]
    assert isinstance(line, NotApplicable)
    assert "every node was in every sum" in line.because


# --------------------------------------------------------------------------------------------- the command


def test_without_the_nodes_it_says_what_can_be_linked(finished: World, tmp_path: Path, capsys: Any) -> None:
    for folder in (finished.server, finished.server / RECORDINGS):
        assert cli.main(["audit", str(folder), "--out", str(tmp_path), "--sums", "4"]) == 0
        said = capsys.readouterr().out
        assert "fedgrec: 4 recorded sums" in said
        assert "What can be linked:" in said
        assert "Whether these links are right is unknown" in said
        figures = json.loads((tmp_path / "audit.json").read_text())
        assert figures["linked"]["sums"] == 4
        assert list(figures) == ["linked"]
        assert not (tmp_path / "audit.html").exists()


def test_with_the_nodes_it_is_scored(finished: World, tmp_path: Path, capsys: Any) -> None:
    nodes = [str(path) for path in finished.nodes.values()]
    assert cli.main(["audit", str(finished.server), "--out", str(tmp_path), "--nodes", *nodes]) == 0
    said = capsys.readouterr().out
    assert "a node's items, from sums it was in" in said
    assert "unknown" not in said
    assert [line for line in said.splitlines() if len(line) > 80 and str(tmp_path) not in line] == []
    figures = json.loads((tmp_path / "audit.json").read_text())
    assert figures["users"] == 24
    assert figures["linked"]["sums"] == 6
    assert "Of 100 items that the users of a node have" in (tmp_path / "audit.html").read_text()


def test_the_truth_is_what_users_had(finished: World) -> None:
    users = known_users(finished.nodes.values())
    crowd = [sorted(person.items) for node in people(4, 6) for person in node]
    assert [user.items.tolist() for user in users] == crowd
    for seen in read_sums(finished.server, 100):
        there = [user for user in users if seen.session in user.sessions]
        assert {user.node for user in there} == set(seen.nodes)
        touched = set((seen.total.leaves["latents"].index % 30).tolist()) if "latents" in seen.total.leaves else set()
        assert touched <= {item for user in there for item in user.items.tolist()}


def test_with_masks_of_their_own_users_are_nodes(tmp_path: Path) -> None:
    made = world(tmp_path, users=2, per_user_masks=True, options={"rounds": 2, "record": 2})
    made.run()
    gateways = sorted({path.parents[1] for path in made.nodes.values()})
    score = scored(read_sums(made.server, 2), known_users(gateways))
    assert score.users == len(made.nodes) == 6


def test_wrong_folders_are_answered_by_a_sentence(finished: World, tmp_path: Path, capsys: Any) -> None:
    missing = read_sums(finished.server, 1)[0].names[0]  # chance says who takes part, so a fixed node might not
    some = [str(path) for path in finished.nodes.values() if path.name != missing]
    for words, answer in (
        ([str(tmp_path / "nowhere")], "is no folder"),
        ([str(tmp_path)], "has no recorded sums"),
        ([str(finished.server), "--sums", "0"], "at least 1"),
        ([str(finished.server), "--nodes", *some], f"users of {missing}, too"),
        ([str(finished.server), "--nodes", str(tmp_path)], "node.json"),
        ([str(finished.server), "--rounds", "3"], "leave them out"),
        (["--nodes", *some], "name its server's folder, too"),
    ):
        assert cli.main(["audit", *words]) == 2
        assert answer in capsys.readouterr().err


def test_a_damaged_recording_is_named(tmp_path: Path) -> None:
    write_sum(tmp_path, SUM, keep=1)
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedError, match=r"00000000\.safetensors was damaged"):
        read_sums(tmp_path, 1)
    path.write_bytes(whole[:100])
    with pytest.raises(RunError, match=r"00000000\.safetensors"):
        read_sums(tmp_path, 1)
