"""A federation whose nodes add noise to every training sum equals its simulation, and spends the agreed budget."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable import noise
from fedgrec.cable.core import Broadcast, Ints
from fedgrec.cli import parser
from fedgrec.cli.federation import settings
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.common.plan import Plan
from fedgrec.federation.node import node as node_module
from fedgrec.federation.node import rules
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.node.uploads import compute_upload
from fedgrec.federation.server.status import status
from fedgrec.federation.setup.backup import backup
from fedgrec.secagg.session import Session
from tests.federation.meddlers import on, silent
from tests.federation.replay import replay, states
from tests.federation.worlds import N_ITEMS, World, same_bits, world

NOISY: dict[str, Any] = {"dp_epsilon": 400.0, "dp_rounds": 3, "rounds": 3}
SMALL: dict[str, dict[str, Any]] = {
    "spectral": {"dim": 3, "spare": 1, "users_per_round": 1000},
    "fedgrec": {"users_per_round": 1000},
    "fedmf": {},
}
Book = dict[tuple[Path, tuple[str, int, int]], Ints]


def recorded(monkeypatch: pytest.MonkeyPatch) -> Book:
    """Records all noise that nodes add from now on."""
    book: Book = {}

    def recording(store: NodeStore, method: Any, sum_: Plan, *more: Any) -> Any:
        parts: list[Ints] = []

        def source(variance: float, count: int) -> Ints:
            parts.append(noise.skellam(variance, count))
            return parts[-1]

        with monkeypatch.context() as patch:
            patch.setattr(noise, "skellam_for", lambda *_: source)
            found = compute_upload(store, method, sum_, *more)
        if parts:
            book[store.path.parent, sum_.place] = np.concatenate(parts)
        return found

    monkeypatch.setattr(node_module, "compute_upload", recording)
    return book


def is_its_simulation(fed: World, book: Book) -> bool:
    model, users = replay(fed.server, fed.nodes, noise=book)
    mine, real = fed.model(), states(fed.nodes)
    pairs = [(getattr(model, name), getattr(mine, name)) for name in ("items", "degrees", "moment1", "moment2")]
    pairs += [(model.more[name], mine.more[name]) for name in mine.more]
    pairs += [(getattr(users[i], name), getattr(real[i], name)) for i in fed.nodes for name in vars(users[i])]
    return all(same_bits(a, b) for a, b in pairs)


def small(root: Path, method: str, **options: Any) -> World:
    return world(root, method, nodes=4, users=6, options=NOISY | options, **SMALL[method])


@pytest.mark.keep(2)
@pytest.mark.parametrize("method", list(SMALL))
def test_it_is_the_simulation_with_its_nodes_noise(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = recorded(monkeypatch)
    fed = small(tmp_path, method)
    fed.run(on("masked", 1, silent, after=2))
    assert is_its_simulation(fed, book)
    assert any(len(line["included"]) == 3 for line in fed.log())
    some = next(iter(book))
    assert not is_its_simulation(fed, book | {some: book[some] + 1})
    assert any("is spent for every user" in notice for notice in fed.witness.notices)
    privacy = status(fed.server).privacy
    assert privacy is not None
    assert 0.95 * 400 < privacy["spent"] <= privacy["agreed"] < 404


def test_nodes_draw_their_shares_for_the_fewest_honest_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = recorded(monkeypatch)
    fed = small(tmp_path, "fedmf", dp_epsilon=1.0)
    fed.run()
    home = open_node(fed.nodes[0])
    method = home.method(24)
    planned = method.spec(method.training(0)).leaves[0].noise
    sums = [sum(book[path, ("train", 0, round_)] for path in fed.nodes.values()) for round_ in range(3)]
    assert home.corrupt_nodes == 1
    found = np.mean(np.square(sums, dtype=float)) / planned
    assert 1.4 < found < 2.7  # four shares, made for two: three nodes at least, of which one is corrupt
    assert found / 4 < 1.4  # a quarter of the noise would be noticed


def test_nodes_take_part_in_the_first_rounds_alone(tmp_path: Path) -> None:
    fed = small(tmp_path, "fedmf")
    fed.run()
    home = open_node(fed.nodes[0])
    plan = Plan("train", 0, 2, 24, 24)
    rules.check_budget(home, plan, 2)
    for late, taken in ((replace(plan, round=3), 0), (plan, 3)):
        with pytest.raises(FederationError, match="dp_rounds"):
            rules.check_budget(home, late, taken)
    with NodeStore(fed.nodes[0]) as store:
        assert store.times("train") == 3
    with NodeStore(backup(fed.nodes[0], tmp_path / "copy", with_keys=True)) as store:
        assert store.times("train") >= 6  # it does not know what the other copy did later
    fed.give_rounds(4)
    with pytest.raises(ConfigError, match="dp_rounds"):
        fed.run()


def test_a_sum_of_fewer_nodes_than_the_noise_was_made_for_is_not_opened(tmp_path: Path) -> None:
    fed = small(tmp_path, "fedmf")
    home = open_node(fed.nodes[0])
    session = Session(bytes(16), ((4, 8),), 24, 3, 3, least=4)
    with pytest.raises(FederationError, match="sums of 4 nodes"):
        rules.check_survivors(home, Plan("train", 0, 0, 24, 24), session, [0, 1, 2])
    rules.check_survivors(home, Plan("train", 0, 0, 24, 24), session, [0, 1, 2, 3])


@pytest.mark.parametrize("how", ["nobody", "a failure"])
def test_noise_is_added_also_where_nothing_is_sent(tmp_path: Path, how: str) -> None:
    fed = small(tmp_path, "fedmf", dp_epsilon=1.0)
    home = open_node(fed.nodes[0])
    method, plan = home.method(24), Plan("train", 0, 0, 24, 24)
    tables = np.full((1, N_ITEMS, 4), np.nan if how == "a failure" else 0, np.float32)
    broadcast = Broadcast(0, N_ITEMS, tables, np.ones(N_ITEMS, np.int64))
    with NodeStore(fed.nodes[0]) as store:
        rows = store.first_rows(-1) if how == "a failure" else []
        found = compute_upload(store, method, plan, rows, broadcast, 1, 1.0)
    assert found.rows == []
    planned = method.spec(method.training(0)).leaves[0].noise
    assert np.mean(found.words.astype(float) ** 2) == pytest.approx(planned, rel=0.6)


def test_steps_that_stretch_updates_beyond_the_norm_are_refused(tmp_path: Path) -> None:
    """A lying server names tiny steps for all rows: the users send zeros, and noise."""
    fed = small(tmp_path, "fedmf")
    method, plan = open_node(fed.nodes[0]).method(24), Plan("train", 0, 0, 24, 24)
    tiny = {"steps": np.full(N_ITEMS, 2.0**-40, np.float32)}
    broadcast = Broadcast(0, N_ITEMS, method.init(0).items, np.ones(N_ITEMS, np.int64), more=tiny)
    with NodeStore(fed.nodes[0]) as store:
        assert compute_upload(store, method, plan, store.first_rows(-1), broadcast, 1, 1.0).rows == []


def test_methods_without_noise_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="fedgrec, spectral, fedmf, federank"):
        world(tmp_path, "fcf", options=NOISY)


def test_the_command_line_plans_for_as_many_sums_as_rounds() -> None:
    words = ["federation", "init", "--nodes", "3", "--out", "fed", "--catalogue", "items.txt"]
    config, options, agreed = settings(parser().parse_args([*words, "--method", "spectral", "--set", "dp_epsilon=4"]))
    assert (config.model.dim, options.rounds, agreed.dp_epsilon, agreed.dp_rounds) == (32, 3, 4.0, 3)
    config, options, agreed = settings(parser().parse_args([*words, "--method", "spectral"]))
    assert (config.model.dim, options.rounds, agreed.dp_epsilon) == (512, 4, 0.0)
    assert agreed == Agreement()
    config, _, agreed = settings(
        parser().parse_args([*words, "--set", "privacy.dp-epsilon=4", "--set", "run.rounds=5"])
    )
    assert (config.run.dp_epsilon, agreed.dp_epsilon, agreed.dp_rounds) == (4.0, 4.0, 5)
