"""Every stated ε of users from below: canaries go through the real path, and an attacker says which took part.

The attacker knows everything but whether the canary took part. It may send any model (the server is its own), and adds
up the likelihood ratios of all sums that are opened.
"""

import hashlib
import logging
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedgrec.cable import noise
from fedgrec.cable.core import Broadcast, Cohort, Floats, Ints, Leaf, Rows, Source, Stage, Upload, UploadSpec, fitting
from fedgrec.cable.noise import Multipliers
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.kernels import reference
from fedgrec.methods import noisy
from fedgrec.methods.contract import make_method
from fedgrec.runs.simulation import Simulation
from fedgrec.runs.sums import EVERYBODY, SecureSums, Sums
from fedgrec.secagg import Stage as SecureStage
from tests.audit.bounds import DELTA, cases, dense, lower_bound, stages

log = logging.getLogger(__name__)  # bounds: -o log_cli=true --log-cli-level=INFO
AT_ONCE = 100_000  # copies whose sums fit memory together
NOISY = [name for name in METHODS if make_method(name).takes_noise]


def test_known_bounds() -> None:
    """All right of 1000 a side, 34 thresholds: p ≥ (0.001/136)^(1/1000) = 0.9882, so ε ≥ ln(p/(1 − p)) = 4.43."""
    rng = np.random.default_rng(0)
    assert lower_bound(np.ones(1000), np.zeros(1000), 0) == pytest.approx(4.43, abs=0.05)
    assert lower_bound(rng.random(10**5), rng.random(10**5)) < 0.1
    told = rng.random((2, 10**6)) < np.array([[1 / (1 + math.exp(-5))], [1 / (1 + math.exp(5))]])
    assert 4.8 < lower_bound(*told.astype(float)) < 5


CANARY = 0
TINY: dict[str, Any] = {"dim": 1, "count_items": 2, "kernel": "reference"}
OWN: dict[str, dict[str, Any]] = {  # little norms, which every canary reaches
    "spectral": {"spare": 0, "norm": 0.25, "rounds": 3},
    "fedgrec": {"dim": 2, "negatives": 1, "item_norm": 1e-3, "latent_norm": 1e-3, "rounds": 4, "latents_every": 4},
    "fedmf": {"negatives": 1, "item_norm": 1e-3, "rounds": 3},
    "federank": {"negatives": 1, "item_norm": 1e-3, "rounds": 3, "feedback": 1.0},
}
# A tenth of the privacy goes into the counts. Of four users one is lost, for which shares of noise allow.
LOSSES = {"dropout": 0.125, "secure": "protocol", "secure_neighbours": 3, "secure_threshold": 3}
ARRIVED = np.arange(3)


class Deployed(SecureSums):
    """Three of four uploads arrive, with noise from the cipher of the nodes, under keys that can be repeated."""

    def _silence(self, n: int, arrived: Ints, round_: int) -> dict[int, SecureStage]:
        return dict.fromkeys(np.setdiff1d(np.arange(n), arrived).tolist(), SecureStage.MASKED)

    def source(self, stage: Stage, broadcast: Broadcast, user: int = EVERYBODY) -> Source:
        place = f"{self.options.seed} {stage.name} {broadcast.level} {broadcast.round} {user}"
        return partial(noise.drawn, noise.KeyStream(hashlib.sha256(place.encode()).digest()[:16]))


def federation(method: str, epsilon: float, **values: Any) -> Simulation:
    """Four users of three items; the canary has two of them."""
    data = Interactions.from_pairs(
        np.array([0, 0, 1, 1, 2, 3]),
        np.array([0, 1, 1, 2, 2, 0]),
        user_ids=IdMap.range(4, "user"),
        item_ids=IdMap.range(3, "item"),
    )
    chosen = {"method": method, "dp_epsilon": epsilon, "dp_delta": DELTA, "protocol": "paper"}
    config = Config().changed(chosen | TINY | OWN[method] | LOSSES | values, "test")
    return Simulation(config, Dataset("canary", Split(data, test=data)))


class Copies:
    """Many federations below each other, whose sums are opened together; in a quarter of them the canary takes part.

    The server lies: all items are open, and its models draw all that a user sends to the norm.
    """

    def __init__(self, run: Simulation, copies: int) -> None:
        self.plain, self.copies = run.method, copies
        self.there = np.arange(copies) % 4 == 0
        self.key = run.users.keys[CANARY]
        self.scores = np.zeros(copies)
        self.sent: list[tuple[bool, Upload]] = []
        self.reached: list[float] = []  # the canary's norm, as a share of the leaf's

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def counted(self, degrees: Ints) -> "Copies":
        return self

    def broadcast(self, server: Any, stage: Stage, level: int = 0) -> Broadcast:
        honest, sign = self.plain.broadcast(server, stage, level), (-1) ** server.round
        drawn = np.random.default_rng(0).lognormal(0, 0.5, honest.tables.shape)
        tables = (50 * sign * drawn).astype(honest.tables.dtype)
        everything = {noisy.OPEN: np.ones_like(server.items[0, :, 0])}
        return replace(honest, tables=tables, degrees=np.ones_like(server.degrees), more=everything)

    def spec(self, stage: Stage) -> UploadSpec:
        spec = self.plain.spec(stage)
        leaves = tuple(replace(leaf, rows=self.copies * leaf.rows) for leaf in spec.leaves)
        return replace(spec, leaves=leaves)

    def local_update(self, cohort: Cohort, stage: Stage, broadcast: Broadcast) -> Any:
        upload, pending = self.plain.local_update(cohort, stage, broadcast)
        canary, leaves = bool((cohort.keys == self.key).any()), {}
        self.sent.append((canary, upload))
        where = np.flatnonzero(self.there) if canary else np.arange(self.copies)
        for leaf in self.plain.spec(stage).leaves:
            rows = upload.leaves[leaf.name]
            index = (where[:, None] * leaf.rows + rows.index).ravel()
            leaves[leaf.name] = Rows(index, np.tile(rows.values, (len(where), 1)))
            if canary:
                self.reached.append(math.sqrt((rows.values.astype(float) ** 2).sum()) / leaf.norm)
        return Upload(leaves, upload.users), pending

    def apply(self, server: Any, stage: Stage, total: Upload, level: int = 0) -> Any:
        for leaf in self.plain.spec(stage).leaves:
            seen = total.leaves[leaf.name].values.reshape(self.copies, -1).astype(float)
            known, canary = np.zeros((2, leaf.rows, leaf.width))
            for is_canary, upload in self.sent:
                rows = upload.leaves[leaf.name]
                (canary if is_canary else known)[rows.index] += rows.values
            self.scores += (seen - known.ravel()) @ canary.ravel() / leaf.noise
        self.sent.clear()
        server.round += self.plain.trains(stage)
        return server


def opened(run: Simulation, copies: int) -> Copies:
    """All sums of a training, through secure aggregation, with the scores of the attacker who saw them."""
    run.method = found = Copies(run, copies)  # type: ignore[assignment]
    run.sums, everybody = Deployed(run.config.run, 1), np.arange(len(run.users))
    for level, stage in enumerate(stages(found, run.config.run.rounds)):
        run._exchange(stage, everybody, ARRIVED, level)
    return found


def shown(name: str, epsilon: float, copies: int, multiply: float = 1.0) -> float:
    """The bound that the attacker of a lying server shows; the noise may be other than the planned one."""
    there, away = [], []
    for seed in range(-(-copies // AT_ONCE)):
        run = federation(name, epsilon, seed=seed)
        planned = run.method.noise
        run.method = replace(run.method, noise=Multipliers(multiply * planned.counts, multiply * planned.rest))
        found = opened(run, min(copies, AT_ONCE))
        there.append(found.scores[found.there])
        away.append(found.scores[~found.there])
    return lower_bound(np.concatenate(there), np.concatenate(away))


LONG = [(name, e, 400_000 if name == "fedgrec" else 10**6) for name in NOISY for e in (2.0, 4.0, 8.0)]
LONG += [("spectral", 1.0, 10**6)]
SHORT = [*((name, 8.0, 40_000) for name in NOISY), ("spectral", 2.0, 200_000)]


@pytest.mark.parametrize(("name", "epsilon", "copies"), cases(SHORT, LONG))
def test_opened_sums_show_less_than_the_stated_epsilon_and_not_far_less(name: str, epsilon: float, copies: int) -> None:
    found = shown(name, epsilon, copies)
    log.info("%s at %s: %.2f", name, epsilon, found)
    assert found <= epsilon
    assert found > (epsilon / 3 if epsilon <= 4 else 1.5)


@pytest.mark.parametrize("name", NOISY)
def test_canaries_fill_their_norms(name: str) -> None:
    """In latents all but the part that nobody else can turn: the user's own embedding."""
    reached = opened(federation(name, 8.0), 2).reached
    assert min(reached) > 0.9
    assert max(reached) <= 1


@pytest.mark.parametrize(("name", "copies"), cases([("spectral", 40_000), ("fedmf", 40_000)], [("fedgrec", 200_000)]))
def test_a_quarter_of_the_noise_is_noticed(name: str, copies: int) -> None:
    assert shown(name, 4.0, copies, multiply=1 / 4) > 4


@pytest.mark.parametrize(
    ("name", "times", "copies"),
    cases([("spectral", 4, 40_000)], [("spectral", 2, 10**6), ("fedmf", 2, 10**6), ("federank", 2, 10**6)]),
)
def test_longer_uploads_than_the_norm_are_noticed(
    name: str, times: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (noisy, reference):
        monkeypatch.setattr(where, "fitting", lambda lengths, words, norm: fitting(lengths, words, times * norm))
    monkeypatch.setattr(Leaf, "bound", property(lambda leaf: int(leaf.clip / leaf.step)))
    assert shown(name, 4.0, copies) > 4


# -------------------------------------------------------------------- users, of an honest server's training


def honest(run: Simulation, trainings: int) -> tuple[Floats, Floats, list[Floats]]:
    """For each training whether the canary was there, the score of its opened sums, and the published model."""
    there, scores, models = np.arange(trainings) % 2 == 0, np.zeros(trainings), []
    method, users, others = run.method, run.users, np.arange(1, len(ARRIVED))
    for training in range(trainings):
        server, sums = method.init(0), Sums(replace(run.config.run, seed=training), 1)
        rest, canary = users.take(others), users.take(np.array([CANARY]))
        for level, stage in enumerate(stages(method, run.config.run.rounds)):
            broadcast = method.broadcast(server, stage, level)
            known, pending = method.local_update(rest, stage, broadcast)
            own, changed = method.local_update(canary, stage, broadcast)
            method.commit(rest, np.arange(len(rest)), pending)
            method.commit(canary, np.array([0]), changed)
            sent = known + own if there[training] else replace(known, users=len(ARRIVED))
            total = sums.noised(sent, method, stage, broadcast, len(users))
            for leaf in method.spec(stage).leaves:
                seen, held, mine = (dense(part.leaves[leaf.name], leaf) for part in (total, known, own))
                scores[training] += ((seen - held - mine / 2) * mine).sum() / leaf.noise
            server = method.apply(server, stage, total, level)
        items = server.items.reshape(-1, server.items.shape[-1])
        models.append(np.concatenate([server.degrees, (items @ items.T)[np.triu_indices(len(items))]]))
    return there, scores, models


def told_by_models(there: Floats, models: list[Floats]) -> Floats:
    """Scores of the second half of the models, by the straight line that separates the first half best."""
    shape = np.log1p(np.abs(np.array(models))) * np.sign(models)
    shape = np.column_stack([np.ones(len(shape)), (shape - shape.mean(0)) / (shape.std(0) + 1e-9)])
    half = len(there) // 2
    line = np.linalg.lstsq(shape[:half], there[:half].astype(float), rcond=None)[0]
    return shape[half:] @ line


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISY)
def test_an_honest_training_and_its_model_show_less_than_the_stated_epsilon(name: str) -> None:
    """Tables follow from noisy sums here. The model alone has no bar: it is a part of what the sums tell."""
    there, scores, models = honest(federation(name, 8.0), 1000)
    by_model, late = told_by_models(there, models), there[500:]
    sums = lower_bound(scores[there], scores[~there])
    model = lower_bound(by_model[late], by_model[~late])
    log.info("%s, honest, at 8: sums %.2f, model alone %.2f", name, sums, model)
    assert max(sums, model) <= 8
    assert scores[there].mean() > scores[~there].mean() + scores[~there].std() / 2
