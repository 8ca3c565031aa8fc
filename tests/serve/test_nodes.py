"""A served node: its own people, by its own store, which is only read."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.person import recommend, users_of
from fedgrec.federation.node.store import NodeStore
from fedgrec.serve import served
from tests.disks import a_disk, fill
from tests.federation.worlds import N_ITEMS, world
from tests.serve.callers import TOKEN, ask

TOKENS = {TOKEN: None}
SECRETS = ("*.key", "*.pem")


def a_node(place: Path, **about: Any) -> tuple[Path, Path]:
    """A trained federation's first node or gateway, without keys, and another one."""
    fed = world(place, users=3, options={"rounds": 3}, **about)
    fed.run()
    homes = list(dict.fromkeys(path.parents[1] if path.parent.name == "users" else path for path in fed.nodes.values()))
    for home in homes:
        (home / "items.txt").write_text("".join(f"item {number}\n" for number in range(N_ITEMS)))
    for path in [path for home in homes for secret in SECRETS for path in home.rglob(secret)]:
        path.unlink()
    return homes[0], homes[1]


@pytest.mark.parametrize("about", [{}, {"per_user_masks": True}, {"method": "two-parts"}, {"method": "spectral"}])
def test_each_person_gets_the_list_of_device_recommend(tmp_path: Path, about: dict[str, Any]) -> None:
    home, other = a_node(tmp_path, **about)
    with served(home, TOKENS, port=0) as door:
        assert len(users_of(home)) > 1
        for user in users_of(home):
            items, scores = recommend(home, user, N_ITEMS)
            code, found = ask(door, "/recommend", {"user": user, "k": N_ITEMS})
            assert code == 200
            assert [line["item"] for line in found["items"]] == [f"item {item}" for item in items]
            assert [line["score"] for line in found["items"]] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-5)
        for stranger in users_of(other):
            code, found = ask(door, "/recommend", {"user": stranger})
            assert (code, found) == (404, {"error": f"there is no user {stranger!r} in the model"})


def test_the_run_of_a_server_answers_for_items(tmp_path: Path) -> None:
    fed = world(tmp_path, users=3, options={"rounds": 3})
    with served(fed.run(), TOKENS, port=0) as door:
        assert [ask(door, "/recommend", {"items": [1, 2]})[0], ask(door, "/similar", {"item": 1})[0]] == [200, 200]
        assert ask(door, "/recommend", {"user": "0/0"})[0] == 404


def test_who_leaves_and_what_comes_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgrec.serve import shelf
    from tests.serve.test_door import until

    monkeypatch.setattr(shelf, "LOOK", 0.02)
    home, _ = a_node(tmp_path)
    leaver, stays = users_of(home)[:2]
    with served(home, TOKENS, port=0) as door:
        best = ask(door, "/recommend", {"user": stays, "k": 1})[1]["items"][0]["item"]
        with NodeStore(home) as store, store.transaction():
            row = store.row_of(stays)
            changes.want(store, row, [*changes.mine(store, row), int(best.removeprefix("item "))])
            changes.let_go(store, store.row_of(leaver))
        until(lambda: ask(door, "/recommend", {"user": leaver})[0] == 404)
        found = ask(door, "/recommend", {"user": stays, "k": N_ITEMS})[1]
        assert best not in [line["item"] for line in found["items"]]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder on a file system that nobody can write to."""
    for words in (["--bind", str(folder), str(folder)], ["-o", "remount,ro,bind", str(folder)]):
        if (
            shutil.which("mount") is None
            or subprocess.run(["mount", *words], capture_output=True, check=False).returncode
        ):
            pytest.skip("nothing can be mounted read-only here")
    try:
        with pytest.raises(OSError, match="Read-only"):
            (folder / "new").write_text("")
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def answers(home: Path) -> list[Any]:
    with served(home, TOKENS, port=0) as door:
        return [ask(door, "/recommend", {"user": user}) for user in users_of(home)[:2]]


def test_a_read_only_mount_beside_a_node_at_work(tmp_path: Path) -> None:
    """What the node has written last is in the log beside its store."""
    home, _ = a_node(tmp_path)
    with NodeStore(home) as writer:
        writer.put("round", 77)
        with read_only(home), NodeStore(home, read_only=True) as reader:
            assert reader.get("round") == 77


@pytest.mark.parametrize("per_user_masks", [False, True])
def test_a_read_only_mount(tmp_path: Path, per_user_masks: bool) -> None:
    home, _ = a_node(tmp_path, per_user_masks=per_user_masks)
    twin = shutil.copytree(home, tmp_path / "twin")  # a reader leaves files beside a store, with which this is no test
    people = users_of(twin)
    before = [recommend(twin, user, 3)[0].tolist() for user in people]
    with read_only(home), served(home, TOKENS, port=0) as door:
        for user, items in zip(people, before, strict=True):
            code, found = ask(door, "/recommend", {"user": user, "k": 3})
            assert (code, [line["item"] for line in found["items"]]) == (200, [f"item {item}" for item in items])
        assert [recommend(home, user, 3)[0].tolist() for user in people] == before


def test_a_reader_without_the_right_to_write(tmp_path: Path) -> None:
    home, _ = a_node(tmp_path)
    with tempfile.TemporaryDirectory() as place:
        copy, owner = shutil.copytree(home, Path(place) / "node"), os.geteuid()
        before = answers(home)  # and all modules are imported, which only their owner may read
        for path in (Path(place), copy, *copy.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        os.seteuid(owner or 65534)  # root may write anywhere
        try:
            with pytest.raises(PermissionError):
                (copy / "new").write_text("")
            assert answers(copy) == before
        finally:
            os.seteuid(owner)
            for path in (Path(place), copy):
                path.chmod(0o700)


def test_a_full_disk(tmp_path: Path) -> None:
    home, _ = a_node(tmp_path / "made")
    with a_disk(tmp_path / "disk", "8m") as disk:
        copy = shutil.copytree(home, disk / "node")
        before, people = answers(home), users_of(home)[:2]
        fill(disk)
        with pytest.raises(OSError, match="No space"):
            (copy / "new").write_bytes(bytes(9_000))
        with served(copy, TOKENS, port=0) as door:
            assert [ask(door, "/recommend", {"user": user}) for user in people] == before


def test_the_state_of_a_served_node_has_no_keys(tmp_path: Path) -> None:
    """Not even those from which users draw their random numbers."""
    home, _ = a_node(tmp_path)
    with served(home, TOKENS, port=0) as door:
        users: Any = door.shelf.opened.model
        assert not users.users.keys.any()
    with NodeStore(home) as store:
        assert np.all(store.cohort(open_node(home).method(1), store.first_rows(-1)).keys > 0)
