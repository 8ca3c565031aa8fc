"""One training round on Gowalla: our cpu kernel against PyTorch, as a loop of users and as padded batches.

A round is all that the simulation does in one: sample the cohort, draw, refresh latents, take the local steps, sum,
update the server, store the users' states. First the baselines are checked against our reference kernel, with the same
draws.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.baselines import Draws, Federation, Sums, autograd_round, batched_round, draw
from benchmarks.common import CORES, alternate, gowalla, heavy_tailed, seconds
from fedgrec.cable import draws
from fedgrec.cable.core import Ints, Upload
from fedgrec.config.configuration import FedGRecOptions, preset
from fedgrec.data import Interactions
from fedgrec.kernels import Kernel, cpu, reference
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN, FedGRecMethod

Round = Callable[..., Sums]
# The ways to run each baseline; its fastest counts.
BASELINES: dict[str, tuple[Round, list[dict[str, Any]]]] = {
    "autograd": (autograd_round, [{"fused": False}, {"fused": True}]),
    "batched": (batched_round, [{"chunk": chunk} for chunk in (5, 10, 25, 50, 100, 400)]),
}


@dataclass(frozen=True)
class Setting:
    """A round to measure, and our goal: how many times faster than each baseline ours should be."""

    name: str
    options: FedGRecOptions
    required: dict[str, float]


def softmax_recipe() -> FedGRecOptions:
    """The recipe's sizes with the loss of `best`."""
    o, recipe = FedGRecOptions(), preset("bpr").model
    names = ("loss", "similarity", "popular_negatives", "reduction", "item_clip", "l2")
    return replace(recipe, **{name: getattr(o, name) for name in names})


def settings() -> list[Setting]:
    recipe = preset("bpr").model
    return [
        Setting("paper", preset("paper").model, {"autograd": 10.0, "batched": 3.0}),
        Setting("recipe, 256 negatives", replace(recipe, negatives=256), {"autograd": 18.0, "batched": 2.5}),
        Setting("recipe, 1024 negatives", replace(recipe, negatives=1024), {}),
    ]


def bench(repeats: int = 5) -> dict[str, Any]:
    """Median seconds of each implementation's round, and their ratios to ours."""
    errors = {setting.name: verify(setting.options) for setting in settings()}
    name, train = gowalla()
    rounds = {setting.name: measure(setting, train, repeats) for setting in settings()}
    return {"data": name, "verified": errors, "rounds": rounds, "losses": losses(train, 4 * repeats)}


LATE = 3_000  # a round


def losses(train: Interactions, repeats: int) -> dict[str, Any]:
    """Median seconds of a round with each loss: softmax may take at most 1.6 times as long as BPR.

    Also of `best` with words of 32 bits, latents in every round and float32 downloads: words in public steps may take
    1.3 times as long as that. The rounds measured are late ones, like most rounds of a run.
    """
    wide = {"latents_every": 1, "item_levels": 0, "download": "float32"}
    chosen = {
        "bpr": preset("bpr").model,
        "softmax": replace(softmax_recipe(), **wide),
        "best": FedGRecOptions(fine_rounds=1),
        "best in 32 bits": FedGRecOptions(**wide),
    }
    federations = {name: Ours(o, train, cpu) for name, o in chosen.items()}
    for each in federations.values():
        each.round()
        each.round()
        each.server.round = LATE
    times = alternate({name: each.round for name, each in federations.items()}, repeats)
    words = {"words_ratio": times["best"] / times["best in 32 bits"], "required_words_ratio": 1.3}
    return {"seconds": times, "ratio": times["softmax"] / times["bpr"], "required_ratio": 1.6, **words}


def measure(setting: Setting, train: Interactions, repeats: int) -> dict[str, Any]:
    """One setting: each baseline with its fastest number of threads and, in batches, of users."""
    o = setting.options
    ours = Ours(o, train, cpu)
    rounds: dict[str, partial[None]] = {}
    tried: dict[str, list[dict[str, Any]]] = {}
    for name, (run, hows) in BASELINES.items():
        theirs = Theirs(ours, run)
        choices = [{"threads": threads, **how} for threads in sorted({1, CORES}) for how in hows]
        trials = [min(seconds(partial(theirs.round, **how)) for _ in range(2)) for how in choices]
        tried[name] = [{**how, "seconds": time} for how, time in zip(choices, trials, strict=True)]
        rounds[name] = partial(theirs.round, **choices[int(np.argmin(trials))])
    ours.round()  # compiles, if nothing is cached yet
    times = alternate({"fedgrec": ours.round, **rounds}, repeats)
    return {
        "seconds": times,
        "ratio": {name: times[name] / times["fedgrec"] for name in rounds},
        "required_ratio": setting.required,
        "chosen": {name: round_.keywords for name, round_ in rounds.items()},
        "tried": tried,
    }


class Ours:
    """A federation after its warm-up, in our code."""

    def __init__(self, o: FedGRecOptions, train: Interactions, kernel: Kernel) -> None:
        self.method = FedGRecMethod(o, train.n_items, train.n_users, kernel)
        self.rng = np.random.default_rng(0)
        self.server = self.method.init(0)
        keys = self.rng.integers(0, 2**64, train.n_users, dtype=np.uint64)
        self.users = self.method.init_users(keys, train.indptr, train.items)
        everyone = np.arange(train.n_users)
        for stage, level in [(DEGREES, 0), *((PROPAGATE, k) for k in range(1, o.layers + 1))]:
            broadcast = self.method.broadcast(self.server, stage, level=level)
            total, pending = self.method.local_update(self.users, stage, broadcast)
            self.server = self.method.apply(self.server, stage, total, level)
            self.method.commit(self.users, everyone, pending)

    def sample(self) -> Ints:
        """A cohort, by number."""
        count = self.method.options.users_per_round
        return self.rng.choice(len(self.users), count, replace=False, shuffle=False)

    def round(self, users: Ints | None = None) -> Upload:
        """What `Simulation` does in a round."""
        users = self.sample() if users is None else users
        stage = self.method.training(self.server.round)
        broadcast = self.method.broadcast(self.server, stage)
        total, pending = self.method.local_update(self.users.take(users), stage, broadcast)
        self.server = self.method.apply(self.server, stage, total)
        self.method.commit(self.users, users, pending)
        return total


class Theirs:
    """A copy of our federation in PyTorch."""

    def __init__(self, ours: Ours, run: Round) -> None:
        self.ours, self.run, self.options = ours, run, ours.method.options
        self.fed = Federation.of(ours.server, ours.users, self.options)

    def round(self, threads: int, **how: Any) -> None:
        torch.set_num_threads(threads)
        sampled = self.ours.sample()
        order = np.argsort(self.ours.users.degrees[sampled])  # so that batches need little padding
        users = torch.from_numpy(sampled[order])
        sums = self.run(self.fed, users, draw(self.fed, users, self.options), self.options, **how)
        self.fed.apply(sums, self.options)


# --------------------------------------------------------------------------------------------- verifying


def verify(options: FedGRecOptions) -> dict[str, float]:
    """Each baseline's largest error, as a share of the tolerance; raises if it is more than 1."""
    o = replace(options, precision="float64", users_per_round=20, negatives=64, l2=0.01)
    o = replace(o, max_positives=12 if o.max_positives else 0)
    errors = {name: max(error(partial(run, **how), o) for how in hows[:2]) for name, (run, hows) in BASELINES.items()}
    if not max(errors.values()) <= 1:
        raise AssertionError(f"a baseline computes something else, so nothing was measured: {errors}")
    return errors


def error(run: Round, o: FedGRecOptions) -> float:
    """How far sums and states are from our reference kernel's over two rounds with the same draws.

    In float64, sums differ only by our rounding to integers, at most a step for each user; states do not differ.
    """
    ours = Ours(o, heavy_tailed(50, 900, 1_000), reference)
    fed, shares = Federation.of(ours.server, ours.users, o), []
    allowed = [leaf.step * o.users_per_round for leaf in ours.method.spec(TRAIN).leaves]
    for _ in range(2):
        users = ours.sample()
        sums = run(fed, torch.from_numpy(users), same_draws(ours, users), o)
        right = decoded(ours.method, ours.round(users))
        shares += [_apart(*pair) for pair in zip(sums, right, allowed, strict=True)]
        fed.apply(right, o)  # both servers apply the same sums: Adam would magnify rounding errors of small sums
        state = ours.users.state
        shares.append(_apart(fed.items, torch.from_numpy(ours.server.items), 1e-7))
        for name in ("embeddings", "sent", "moment1", "moment2"):
            shares.append(_apart(getattr(fed, name), torch.from_numpy(getattr(state, name)), 1e-7))
    return max(shares)


def _apart(a: torch.Tensor, b: torch.Tensor, allowed: float) -> float:
    return float((a - b).abs().max()) / allowed


def same_draws(ours: Ours, users: Ints) -> Draws:
    """What these users draw in our code, padded."""
    o, round_, n_items = ours.method.options, ours.server.round, ours.method.n_items
    cohort = ours.users.take(users)
    counts = np.minimum(cohort.degrees, o.max_positives or n_items)
    positives = np.zeros((len(users), counts.max()), np.int64)
    negatives = np.empty((len(users), o.negatives), np.int64)
    partners = np.empty((o.local_steps, len(users), o.negatives), np.int64)
    for u, (key, P) in enumerate(zip(cohort.keys.tolist(), counts.tolist(), strict=True)):
        items = cohort.items_of(u)
        positives[u, :P] = draws.positives_sample(key, round_, len(items), P)
        negatives[u] = draws.negatives(key, round_, o.negatives, items, n_items)
        for step in range(o.local_steps):
            partners[step, u] = draws.pairs(key, round_, step, o.negatives, P)
    return Draws(*map(torch.from_numpy, (counts, positives, negatives, partners)))


def decoded(method: FedGRecMethod, total: Upload) -> Sums:
    """Integer sums as numbers."""
    tables = []
    for leaf in method.spec(TRAIN).leaves:
        table = np.zeros((leaf.rows, leaf.width))
        table[total.leaves[leaf.name].index] = total.leaves[leaf.name].values * leaf.step
        tables.append(torch.from_numpy(table))
    return Sums(tables[0], tables[1].view(-1, *tables[0].shape))
