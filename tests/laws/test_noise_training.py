"""Whole trainings under noise: secure is plain, resumed is uncut, and sums hold the noise that was planned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable import noise
from fedgrec.cable.core import Broadcast, Ints, Source, Stage
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.errors import SumLostError
from fedgrec.methods.budget import TURNS_STREAM
from fedgrec.runs import sums
from fedgrec.runs.population import DECOYS_STREAM, USERS_STREAM
from fedgrec.runs.simulation import SAMPLING_STREAM, Observer, Simulation
from fedgrec.runs.sums import EVERYBODY, SecureSums, Sums
from tests.interrupted import bits, outcome

USERS, ITEMS = 18, 15
METHODS = [
    {"method": "spectral", "dim": 3, "spare": 1, "rounds": 3},
    {"dim": 4, "negatives": 5, "rounds": 4, "latents_every": 2, "users_per_round": 12, "kernel": "reference"},
    {"method": "fedmf", "dim": 4, "negatives": 5, "rounds": 3, "users_per_round": 10},
]
Place = tuple[str, int, int]
Recorded = dict[tuple[Place, int], list[Ints]]


def simulation(out: Path | None = None, observer: Observer | None = None, **values: Any) -> Simulation:
    liked = np.random.default_rng(0).random((USERS, ITEMS)) < 0.4
    liked[:, 0] = True  # everybody has an item
    data = Interactions.from_pairs(*np.nonzero(liked))
    chosen = {"dp_epsilon": 300.0, "evaluate_every": 2, "protocol": "paper", "checkpoint_every": 1}
    chosen |= {"secure_neighbours": 8, "secure_threshold": 5} | values
    return Simulation(Config().changed(chosen, "test"), Dataset("small", Split(data, test=data)), out, observer)


def place_of(stage: Stage, broadcast: Broadcast) -> Place:
    return stage.name, broadcast.level, broadcast.round


def recording(book: Recorded) -> Any:
    """Secure sums that write every user's noise down."""

    class Recording(SecureSums):
        def total(
            self, method: Any, stage: Stage, cohort: Any, broadcast: Broadcast, arrived: Ints | None = None
        ) -> Any:
            found = super().total(method, stage, cohort, broadcast, arrived)
            for user in () if arrived is None else np.setdiff1d(np.arange(len(cohort)), arrived).tolist():
                book.pop((place_of(stage, broadcast), user), None)  # it drew, and its upload was lost
            return found

        def source(self, stage: Stage, broadcast: Broadcast, user: int = EVERYBODY) -> Source:
            drawn, lines = (
                super().source(stage, broadcast, user),
                book.setdefault((place_of(stage, broadcast), user), []),
            )

            def record(variance: float, count: int) -> Ints:
                lines.append(drawn(variance, count))
                return lines[-1]

            return record

    return Recording


def replaying(book: Recorded) -> Any:
    """Plain sums whose noise is the sum of what the users of a secure one drew."""

    class Replaying(Sums):
        def source(self, stage: Stage, broadcast: Broadcast, user: int = EVERYBODY) -> Source:
            shares = [lines for (place, _), lines in book.items() if place == place_of(stage, broadcast)]
            leaves = iter(zip(*shares, strict=True))
            return lambda variance, count: np.sum(next(leaves), axis=0)

    return Replaying


@pytest.mark.keep(3)
@pytest.mark.parametrize("values", METHODS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_secure_training_is_plain_training_with_the_noise_of_its_users(values: dict[str, Any], dropout: float) -> None:
    """A dropped user's noise is lost with its upload: the sum holds only what the others drew."""
    book: Recorded = {}
    values = values | {"dropout": dropout, "seed": 3}
    secure = simulation(secure="protocol", **values)
    secure.sums = recording(book)(secure.config.run, 1)
    secure.run()
    plain = simulation(**values)
    plain.sums = replaying(book)(plain.config.run, 1)
    plain.run()
    assert secure.sums.lost == plain.sums.lost
    assert bits(plain) == bits(secure)
    other = simulation(**values)
    other.run()
    assert bits(other) != bits(secure)  # with other noise


@pytest.mark.keep(3)
@pytest.mark.parametrize("values", METHODS)
@pytest.mark.parametrize("secure", ["off", "protocol"])
def test_stopped_after_any_round_a_run_ends_the_same(values: dict[str, Any], secure: str, tmp_path: Path) -> None:
    class Stops(Observer):
        def __init__(self, rounds: int) -> None:
            self.rounds, self.done = rounds, 0

        def round_done(self, done: int) -> None:
            self.done = done

        def stop_wanted(self) -> bool:
            return self.done >= self.rounds

    values = values | {"secure": secure, "dropout": 0.1}
    simulation(tmp_path / "uncut", **values).run()
    for stop in (1, 2):
        simulation(tmp_path / str(stop), Stops(stop), **values).run()
        again = simulation(tmp_path / str(stop), **values)
        again.resume()
        assert again.server.round == stop
        again.run()
        assert outcome(tmp_path / str(stop)) == outcome(tmp_path / "uncut")


def test_a_resumed_run_that_draws_its_noise_afresh_is_noticed(tmp_path: Path, monkeypatch: Any) -> None:
    simulation(tmp_path / "uncut", **METHODS[0]).run()
    monkeypatch.setattr(Sums, "source", lambda *_: noise.skellam)
    simulation(tmp_path / "cut", **METHODS[0]).run()
    assert outcome(tmp_path / "cut") != outcome(tmp_path / "uncut")


# ------------------------------------------------------------------------------- the noise that a sum holds


def noise_of(run: Simulation, arrived: Ints | None, sums_: Sums) -> Ints:
    """The noise in an opened sum."""
    stage = run.method.stages[-1]
    run.server.degrees[:] = 5
    broadcast, spec = run.method.broadcast(run.server, stage), run.method.spec(stage)
    total, _ = sums_.total(run.method, stage, run.users, broadcast, arrived)
    own = run.users if arrived is None else run.users.take(arrived)
    exact, _ = run.method.local_update(own, stage, broadcast)
    return total.to_ring(spec).astype(np.int64) - exact.to_ring(spec)


@pytest.mark.parametrize("kind", [Sums, SecureSums])
@pytest.mark.parametrize(("dropout", "left", "larger"), [(0.0, 18, 1.0), (0.12, 18, 18 / 14), (0.12, 14, 1.0)])
def test_an_opened_sum_holds_the_planned_noise(kind: Any, dropout: float, left: int, larger: float) -> None:
    """At least that much, and more in proportion if more users are left than planned."""
    run = simulation(
        **METHODS[0] | {"dim": 12, "breadth": 2, "dropout": dropout, "secure_neighbours": 17, "secure_threshold": 10}
    )
    arrived = None if left == 18 else np.arange(left)
    planned = run.method.spec(run.method.stages[-1]).leaves[0].noise
    found = [noise_of(run, arrived, kind(run.config.changed({"seed": seed}).run, 1)) for seed in range(4)]
    assert np.mean(np.square(found, dtype=float)) / planned == pytest.approx(larger, rel=0.2)


@pytest.mark.parametrize("kind", [Sums, SecureSums])
def test_a_sum_of_fewer_than_planned_is_not_opened(kind: Any) -> None:
    run = simulation(**METHODS[0] | {"dropout": 0.12})
    with pytest.raises(SumLostError):
        noise_of(run, np.arange(13), kind(run.config.run, 1))


def test_shares_for_all_instead_of_the_fewest_are_noticed(monkeypatch: Any) -> None:
    """Divided by all users there is too little noise once somebody is missing."""
    run = simulation(**METHODS[0] | {"dim": 12, "dropout": 0.25})
    planned = run.method.spec(run.method.stages[-1]).leaves[0].noise
    wrong = Sums(run.config.run, 1)
    right = wrong.source
    share = wrong.least(USERS) / USERS
    monkeypatch.setattr(wrong, "source", lambda *place: lambda variance, count: right(*place)(share * variance, count))
    found = [noise_of(run, np.arange(9), wrong) for _ in range(2)]
    assert np.mean(np.square(found, dtype=float)) < 0.7 * planned


def test_users_keys_draw_no_noise() -> None:
    """The same keys, another seed of the noise: another noise. It follows from the run's seed alone."""
    run = simulation(**METHODS[0])
    one, same, other = (noise_of(run, None, Sums(run.config.changed({"seed": s}).run, 1)) for s in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()
    assert sums.NOISE_STREAM not in (
        sums.SILENCE_STREAM, USERS_STREAM, SAMPLING_STREAM, TURNS_STREAM, DECOYS_STREAM,
    )  # fmt: skip
