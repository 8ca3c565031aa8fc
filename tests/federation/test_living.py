"""A federation that lives: users come, click and leave, and the server's sums follow, to the last integer."""

import contextlib
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.federation.common import catalogue
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import NodeNetwork, write_network
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.refresh import refresh
from fedgrec.federation.node.store import STORE, NodeStore
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.models.model import Model
from fedgrec.models.recommender import Seen, without_empty
from fedgrec.pages.export import ItemTable
from tests.federation.living import Life
from tests.federation.local_transport import Answer, honest
from tests.federation.meddlers import killed_after_writing, silent
from tests.federation.worlds import Killed, at_random, kill_server, world


def test_clicks_joins_and_leaves_reach_the_next_season(life: Life) -> None:
    life.holds()
    for step in (life.click, life.click, life.join, life.leave):
        step()
    life.reread()
    life.train()
    life.holds()
    assert len(life.world.applied("recount")) == 1


CHANGES = ("click", "click", "join", "leave", "forget", "item", "withdraw", "reread")
STEPS = (*CHANGES, "train", "train", "lossy", "killed")


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), min_size=4, max_size=7), st.integers(0, 99))
def test_any_history(tmp_path_factory: pytest.TempPathFactory, history: list[str], seed: int) -> None:
    """Laws 6 and 11 hold for events in any order, with nodes that fall silent and servers that are killed.

    There are one or two layers, and latents travel in every round or in sweeps.
    """
    life = Life(
        tmp_path_factory.mktemp("life"),
        seed,
        options={"evaluations": 9},
        latents_every=seed % 2,
        layers=1 + seed // 2 % 2,
    )
    life.train()
    for number, step in enumerate(history):
        if step in ("lossy", "killed"):
            lossy = at_random(0.05, seed + number, how=random.Random(number).choice([silent, killed_after_writing]))
            meddler = lossy if step == "lossy" else kill_server(life.rng.randrange(40))
            with contextlib.suppress(Killed, FedgrecError):  # the season goes on with the next start
                life.train(meddler)
            continue
        getattr(life, step)()
    life.reread()
    life.train()
    life.holds()


def test_a_node_that_forgets_under_which_weights_it_sent_is_found_out(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "with_past", lambda store, cohort, rows, weights: cohort)
    for step in (life.click, life.join, life.leave):
        step()
    life.reread()
    life.train()
    with pytest.raises(AssertionError):
        life.holds()


def test_a_leave_that_is_counted_twice_is_found_out(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: changes that a recount has counted still wait, and go into the next recount again."""
    monkeypatch.setattr(changes, "_take_over", lambda store, rows: None)
    for _ in range(2):
        life.click()
        life.reread()
        life.train()
    with pytest.raises(AssertionError):
        life.holds()


@pytest.mark.parametrize("losses", [1, 2])
def test_a_lost_evaluation_is_tried_again_once(tmp_path: Path, losses: int) -> None:
    """A season that nobody could judge is not served where there is one that was judged."""
    life = Life(tmp_path, options={"evaluations": 9})
    life.train()
    fed = life.world

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        sum_ = fed.log()[-1]
        is_lost = request.kind == "masked" and sum_["stage"] == "evaluate" and sum_["level"] < losses
        return [] if is_lost else honest(address, request, node)

    before = fed.applied("evaluate")
    life.train(meddle)
    with ServerStore(open_server(fed.server)) as store:
        _, last = store.seasons()
    assert len(fed.applied("evaluate")) == len(before) + (losses < 2)
    assert last.served == (2 if losses < 2 else 1)
    said = [notice for notice in fed.witness.notices if "could not be judged" in notice]
    assert len(said) == (losses == 2)


def test_changes_wait_until_there_are_enough(tmp_path: Path) -> None:
    """A sum of few changes would show whose they are; meanwhile users are not recommended what they have."""
    life = Life(tmp_path, options={"recount_users": 3})
    life.train()
    index, user = life.somebody()
    before = life.world.model().degrees
    new = int(recommend(life.world.nodes[index], user, 1)[0][0])
    life.people[index][user] |= {new}
    life.reread()
    assert new not in recommend(life.world.nodes[index], user, 30)[0]
    life.train()
    life.holds()
    assert not life.world.applied("recount")
    assert any("1 user with changes" in notice for notice in life.world.witness.notices)
    np.testing.assert_array_equal(life.world.model().degrees, before)
    for other in [u for u in sorted(life.people[index]) if u != user][:2]:
        life.people[index][other] ^= {new}
    life.reread()
    life.train()
    life.holds()
    assert len(life.world.applied("recount")) == 1
    assert life.world.model().degrees.sum() > before.sum() - 2


@pytest.mark.parametrize("stage", ["changes", "recount"])
def test_a_season_makes_up_for_a_lost_count(tmp_path: Path, stage: str) -> None:
    """All nodes are one batch. One falls silent whenever this sum is due before the season, and is back after that."""
    life = Life(tmp_path / "life", options={"fewest_people": 20})
    life.train()
    life.give(later_rounds=3)
    for step in (life.click, life.join, life.leave):
        step()
    life.reread()
    without_losses, begun = life.copied(tmp_path / "without losses"), life.world.model().round
    without_losses.train()

    def meddle(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        sums = life.world.log()
        before_it = sums[-1]["stage"] == stage and not [s for s in sums if (s["stage"], s["round"]) == ("train", begun)]
        is_lost = (address, request.kind) == (1, "masked") and before_it
        return [] if is_lost else honest(address, request, node)

    life.train(meddle)
    log = [(line["stage"], line["round"]) for line in life.world.log() if line["applied"]]
    made_up = [("changes", begun + 1)] * (stage == "changes") + [("recount", begun)]
    assert log[log.index(("train", begun)) + 1 :] == [*made_up, ("train", begun + 1), ("train", begun + 2)]
    np.testing.assert_array_equal(life.world.model().degrees, without_losses.world.model().degrees)
    life.holds()


def test_changes_wait_for_the_next_season_in_the_end(life: Life) -> None:
    """The recount is lost before every round that is far enough from the next recount."""
    life.give(later_rounds=3)
    life.click()
    life.reread()
    before, begun = life.world.model(), life.world.model().round
    lost = lambda: life.world.log()[-1]["stage"] == "recount"  # noqa: E731
    life.train(lambda address, request, node: [] if lost() and request.kind == "confirm" else [node(request)])
    log = [(line["stage"], line["round"]) for line in life.world.log()]
    tried = [("train", begun), ("recount", begun), ("train", begun + 1), ("recount", begun), ("train", begun + 2)]
    assert log[log.index(tried[0]) :] == tried
    np.testing.assert_array_equal(life.world.model().degrees, before.degrees)
    assert any("changes wait for the next season" in notice for notice in life.world.witness.notices)
    life.train()
    assert not np.array_equal(life.world.model().degrees, before.degrees)
    life.holds()


def test_who_is_forgotten_leaves_nothing_behind(life: Life) -> None:
    """Neither at the server, whose latents are those of the other users, nor in any byte of the node's folder."""
    index, user = 1, sorted(life.people[1])[2]
    home = open_node(life.world.nodes[index])
    with NodeStore(home.path) as store:
        row = store.row_of(user)
        ((key, state, pushed),) = store.rows("users", "key, state, pushed", "WHERE row = ?", [row])
        changes.forget(store, user, home.user_salt)
        with pytest.raises(FederationError, match="no user"):
            store.row_of(user)
    del life.people[index][user]
    life.train()
    life.holds()
    with NodeStore(home.path) as store:
        assert row not in store.first_rows(-1)
        assert not store.rows("interactions", "item", "WHERE user = ?", [row])
    traces = [user.encode(), key, state[:64], pushed]
    for path in home.path.rglob("*"):
        if path.is_file():
            assert not [trace for trace in traces if trace in path.read_bytes()], path
    assert home.path.joinpath(STORE).exists()


def test_a_source_that_still_names_a_forgotten_user_brings_nobody_back(tmp_path: Path) -> None:
    life = Life(tmp_path)
    home, user = open_node(life.world.nodes[0]), sorted(life.people[0])[0]
    source = {name: dict.fromkeys(items, False) for name, items in life.people[0].items()}
    with NodeStore(home.path) as store:
        changes.forget(store, user, home.user_salt)
        found = changes.renew(store, home.method(1), source, 0.0, home.user_salt)
        assert (found.came, found.left, found.back) == (0, 0, 1)
        assert user not in store.ids()


def test_a_source_that_was_cut_off_sends_nobody_away() -> None:
    changes.check_source(10, 5)
    with pytest.raises(FederationError, match=r"6 of 10 users are not in the source any more.*--let-go"):
        changes.check_source(10, 4)


def test_who_leaves_already_is_not_missed_in_the_source(life: Life) -> None:
    """Most of a node's users were forgotten, or left one after the other: that does not make the source damaged."""
    home = open_node(life.world.nodes[0])
    write_network(home.path, NodeNetwork("127.0.0.1:1", "visits.csv"))
    while len(life.people[0]) > 2:
        user, _ = life.people[0].popitem()
        if len(life.people[0]) % 2:
            with NodeStore(home.path) as store:
                changes.forget(store, user, home.user_salt)
        lines = [f"{name},item {item},0" for name, items in life.people[0].items() for item in items]
        home.path.joinpath("visits.csv").write_text("\n".join(["user,item,held_out", *lines]))
        refresh(home.path)
    life.train()
    life.holds()


def test_what_was_held_out_stays_held_out(tmp_path: Path) -> None:
    life = Life(tmp_path)
    home, user = open_node(life.world.nodes[0]), "somebody"
    with NodeStore(home.path) as store:
        changes.renew(store, home.method(1), {user: dict.fromkeys(range(10))}, 0.3, home.user_salt)
        row = store.row_of(user)
        items, (held,) = changes.wanted(store, row), store.held_out([row])
        assert len(held) == 3
        changes.renew(store, home.method(1), {user: dict.fromkeys(range(20))}, 0.3, home.user_salt)
        assert set(items) <= set(changes.wanted(store, row))
        assert set(held.tolist()) <= set(store.held_out([row])[0].tolist())
        assert set(changes.wanted(store, row)) | set(store.held_out([row])[0].tolist()) == set(range(20))


def test_a_server_that_forgot_a_season_is_told(tmp_path: Path, life: Life) -> None:
    """A server restored from a backup of season 1 would count the same changes once more."""
    shutil.copytree(life.world.server, tmp_path / "old")
    life.click()
    life.reread()
    life.train()
    shutil.rmtree(life.world.server)
    (tmp_path / "old").rename(life.world.server)
    life.give(rounds=9)
    with pytest.raises(FederationError, match="forgotten the sum of stage 'recount'"):
        coordinator.run(life.world.transport, life.world.server)


def test_a_server_cannot_begin_seasons_as_it_likes(tmp_path: Path) -> None:
    """Every season may begin with a recount, so nodes insist on rounds between seasons."""
    life = Life(tmp_path, options={"rounds": 3, "later_rounds": 3, "season_rounds": 3})
    life.train()
    toml = life.world.server / "agreement.toml"
    life.click()
    life.reread()
    toml.write_text(toml.read_text().replace("season_rounds = 3", "season_rounds = 1"))
    life.give(later_rounds=1)
    with pytest.raises(FederationError):
        life.train()


def test_new_items_and_withdrawn_ones(life: Life) -> None:
    """They come with the next season; a node that was away catches up; withdrawn items are no longer recommended."""
    index, user = life.somebody()
    best = int(recommend(life.world.nodes[index], user, 1)[0][0])
    life.item()
    life.gone = {life.items[best]}
    life.item()
    life.world.transport.away = {2}
    life.train()
    assert len(life.world.model().degrees) == 32
    assert open_node(life.world.nodes[2]).n_items == 30
    life.world.transport.away = set()
    life.reread()
    life.train()
    life.holds()
    assert open_node(life.world.nodes[2]).n_items == 32
    assert life.world.model().degrees[30:].sum() > 0
    assert best not in recommend(life.world.nodes[index], user, 32)[0]
    model = Model.load(life.world.server / "run", needs_users=False)  # the server's own folder knows it, too
    assert model.closed.tolist() == [best]
    other = np.array([0 if best else 1])
    shown, _ = without_empty(model.lists_for(model.new_user_vector(other), 32, Seen.of([other])))
    alike, _ = without_empty(model.similar_lists(other, 32))
    assert len(shown) == len(alike) == 30
    assert best not in {*shown.tolist(), *alike.tolist()}
    nothing = model.lists_for(model.new_user_vector(other), 3, Seen.of([other]), np.array([best]))
    assert (nothing[0] == -1).all()
    assert ItemTable.of(model).closed.nonzero()[0].tolist() == [best]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"signature": b"x" * 70}, "the authority has not signed"),
        ({"items": ("tea",)}, "does not continue version 1"),
        ({"number": 1}, "does not continue version 1"),
        ({"items": tuple(map(str, range(40)))}, "does not continue version 1"),
    ],
)
def test_nodes_take_no_catalogue_that_the_authority_did_not_make_of_theirs(
    tmp_path: Path, wrong: dict[str, object], sentence: str
) -> None:
    life = Life(tmp_path)
    life.item()
    version = catalogue.newest(life.world.server)
    assert version is not None
    federation = open_node(life.world.nodes[0]).federation
    bad = replace(version, **wrong)  # type: ignore[arg-type]
    if "signature" not in wrong:
        bad = replace(bad, signature=life.key.sign(bad.part(federation), ec.ECDSA(hashes.SHA384())))
    answer = handle(life.world.nodes[0], Packet("catalogue", {}, {"catalogue": bad.pack()}), {})
    assert sentence in answer.header["reason"]
    assert open_node(life.world.nodes[0]).n_items == 30
    answer = handle(life.world.nodes[0], Packet("catalogue", {}, {"catalogue": version.pack()}), {})
    assert (answer.kind, open_node(life.world.nodes[0]).n_items) == ("catalogue", 31)


def test_a_method_that_cannot_follow_has_one_season(tmp_path: Path) -> None:
    fed = world(tmp_path, "fcf", options={"seasons": 2, "rounds": 10})
    with pytest.raises(ConfigError, match="fcf learns from what users had at the start"):
        fed.run()
