"""What every compared method must keep, over small worlds: a method's tests call these with its name and options."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.cable.core import Cohort, ServerState, Upload
from fedgrec.config.configuration import Config
from fedgrec.config.options import method_module
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.methods.contract import Method, make_method
from fedgrec.models.model import Model
from fedgrec.runs.simulation import Simulation
from tests.interrupted import bits
from tests.laws.test_known_answers import checkerboard


@dataclass
class World:
    """A method among a few users who like a few items at random."""

    method: Method
    server: ServerState
    users: Cohort

    @staticmethod
    def of(name: str, *kernel: Any, seed: int = 0, size: tuple[int, int] = (9, 14), **options: Any) -> "World":
        rng = np.random.default_rng(seed)
        Y = rng.random(size) < 0.4
        Y[0] = False  # one user has no items
        options = {"users_per_round": size[0]} | options
        method = make_method(name, method_module(name).Options(**options), size[1], size[0], *kernel)
        indptr, items = np.concatenate([[0], np.cumsum(Y.sum(1))]), np.nonzero(Y)[1].astype(np.int32)
        keys = rng.integers(0, 2**64, size[0], dtype=np.uint64)
        return World(method, method.init(seed), method.init_users(keys, indptr, items))

    @property
    def stage(self) -> Any:
        return self.method.training(self.server.round)

    def upload(self, users: np.ndarray | None = None) -> tuple[Upload, Any]:
        cohort = self.users if users is None else self.users.take(users)
        return self.method.local_update(cohort, self.stage, self.method.broadcast(self.server, self.stage))

    def words(self, upload: Upload) -> np.ndarray:
        spec = self.method.spec(self.stage)
        return upload.to_ring(spec).astype(np.int64)

    def train(self, rounds: int) -> "World":
        for _ in range(rounds):
            total, pending = self.upload()
            self.server = self.method.apply(self.server, self.stage, total)
            self.method.commit(self.users, np.arange(len(self.users)), pending)
        return self


def sum_law_holds(world: World, order: np.ndarray, cuts: list[int]) -> bool:
    """Parts of the users, in any order, add up to all of them."""
    whole, _ = world.upload()
    parts = [part for part in np.split(order, sorted(cuts)) if len(part)]
    total = functools.reduce(lambda a, b: a + b, [world.upload(part)[0] for part in parts])
    return total.users == whole.users and bool(np.array_equal(world.words(total), world.words(whole)))


# --------------------------------------------------------------------------------------------- whole runs


def simulation(name: str, out: Path | None = None, **values: Any) -> Simulation:
    """A run over 18 users and 15 items."""
    liked = np.random.default_rng(0).random((18, 15)) < 0.3
    liked[:, 0] = True  # everybody has an item
    data = Interactions.from_pairs(*np.nonzero(liked))
    chosen = {"method": name, "dim": 4, "users_per_round": 12, "rounds": 3, "evaluate_every": 3, "protocol": "paper"}
    chosen |= {"secure_neighbours": 8, "secure_threshold": 5, "kernel": "reference", "dropout": 0.15} | values
    return Simulation(Config().changed(chosen, "test"), Dataset("small", Split(data)), out)


def after(run: Simulation) -> Simulation:
    run.run()
    return run


def secure_is_plain(name: str, **values: Any) -> bool:
    plain, secure = after(simulation(name, **values)), after(simulation(name, secure="protocol", **values))
    assert (secure.sums.opened, secure.sums.lost) == (3, 0)
    return bits(plain) == bits(secure)


def resumed_is_uncut(name: str, folder: Path, **values: Any) -> bool:
    values |= {"checkpoint_every": 1, "evaluate_every": 1}
    whole = after(simulation(name, folder / "whole", rounds=4, **values))
    after(simulation(name, folder / "cut", rounds=2, **values))
    rest = simulation(name, folder / "cut", rounds=4, **values)
    rest.resume()
    return bits(after(rest)) == bits(whole)


def loaded_recommends_the_same(name: str, folder: Path, **values: Any) -> bool:
    model = after(simulation(name, **values)).model()
    model.save(folder)
    loaded = Model.load(folder)
    lists = [[m.recommend_to(u, m.seen(u), 5) for u in range(18)] for m in (model, loaded)]
    return all(np.array_equal(a, b) for pair in zip(*lists, strict=True) for a, b in zip(*pair, strict=True))


def recall_on_the_checkerboard(name: str, **values: Any) -> float:
    """How many users get their one held-out item first; by chance one in 31."""
    chosen = {
        "method": name,
        "dim": 16,
        "users_per_round": 20,
        "rounds": 40,
        "topk": (1,),
        "protocol": "paper",
    } | values
    chosen["evaluate_every"] = chosen["rounds"]
    return float(after(Simulation(Config().changed(chosen, "test"), checkerboard())).result()["recall@1"])


def recall_untrained(name: str, **values: Any) -> float:
    """recall@20 of a random start, of 400 items of which everybody is judged on 20; by chance 0.05."""
    rng = np.random.default_rng(3)
    chosen = [rng.permutation(400)[:30] for _ in range(300)]
    users, items = np.repeat(np.arange(300), 30), np.concatenate(chosen)
    held, ids = np.tile(np.arange(30) < 20, 300), {"user_ids": list(range(300)), "item_ids": list(range(400))}
    train = Interactions.from_pairs(users[~held], items[~held], **ids)
    test = Interactions.from_pairs(users[held], items[held], **ids)
    run = Simulation(
        Config().changed({"method": name, "protocol": "paper", "rounds": 1} | values, "test"),
        Dataset("random", Split(train, test)),
    )
    return float(run.measure("test", test)["recall@20"])
