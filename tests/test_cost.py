"""Bytes of a user's turn: the bytes of all rounds, over the turns in all rounds, sweeps included."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Traffic
from fedgrec.cli.progress import Bar
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.ids import IdMap
from fedgrec.pages.report import run_page
from fedgrec.runs.cost import cost, turns
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.results import each_turn
from fedgrec.studies.compare.rows import row

USERS, ITEMS, SAMPLED, ROUNDS, CHOSEN = 5, 12, 2, 12, 4
# Two of five users a round: sweeps are rounds 3, 5 and 10 of 0 … 11, the other nine have two fifths of the users.
TURNS = 3 + 9 * 2 / 5
SENT, RECEIVED = 660_000, 1_320_000  # by all five: 132 kB and 264 kB each, 20 kB and 40 kB in each of 6.6 turns


def line(round_: int, split: str, share: float, **more: Any) -> dict[str, Any]:
    """An evaluation when this share of all bytes was sent."""
    sent = {name: int(share * (RECEIVED if "down" in name else SENT)) for name in Traffic._fields}
    metrics = {"recall@20": 0.5, "ndcg@20": 0.4, "coverage@20": 0.3, "users": USERS, "seconds": 1.0, "secure": "off"}
    return {
        "round": round_,
        "split": split,
        **metrics,
        **{f"bytes_{name}": value for name, value in sent.items()},
    } | more


# Round 4 was the best; patience ended training at round 12; test was measured for round 4 when all bytes were sent.
LINES = [line(4, "validation", 1 / 3), line(12, "validation", 1), line(CHOSEN, "test", 1, protocol="honest")]
HONEST = Config().changed({"users_per_round": SAMPLED, "rounds": 40, "dim": 4}, "test")


def test_a_turn_by_hand() -> None:
    paid = cost(HONEST, LINES, USERS, ITEMS)
    assert (paid.rounds, paid.turns) == (ROUNDS, pytest.approx(TURNS))
    assert paid.whole == Traffic(132_000, 264_000, 132_000, 264_000)
    assert paid.turn == pytest.approx(Traffic(20_000, 40_000, 20_000, 40_000))


def test_without_latents_nobody_sweeps() -> None:
    for changes in ({"layers": 0}, {"latents_every": 3}):
        assert turns(HONEST.changed(changes, "test"), 10, USERS, ITEMS) == pytest.approx(10 * 2 / 5)
    assert turns(HONEST.changed({"users_per_round": 400}, "test"), 10, USERS, ITEMS) == 10


def test_a_run_of_less_than_a_turn_has_one() -> None:
    """All take part in the warm-up."""
    assert cost(HONEST, [line(1, "test", 1)], USERS, ITEMS).turns == 1


def test_train_prints_the_bytes_of_a_turn(capsys: pytest.CaptureFixture[str]) -> None:
    simulation: Any = SimpleNamespace(
        config=HONEST, degrees=np.ones(USERS), method=SimpleNamespace(n_items=ITEMS), metrics=LINES,
        result=lambda: LINES[-1], progress=SimpleNamespace(seconds=1.0, clipped=0, verdict=lambda topk: ""),
    )  # fmt: skip
    Bar().summary(simulation)
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "a user sent 132 kB in the clear, 132 kB as secure sums, and received 264 kB: 20 kB up and 40 kB down" in said
    )


def test_compare_shows_the_bytes_of_a_turn() -> None:
    entry = Entry("fedgrec", "fedgrec")
    run: Any = SimpleNamespace(
        entry=entry, seed=0, finished=True, config=HONEST, length=40, result=lambda: LINES[-1], metrics=lambda: LINES,
        halves_over_users=dict,
    )  # fmt: skip
    found = row(entry, [run], "honest", 20, (USERS, ITEMS), None, {})
    assert (found.chosen, found.length, found.turns) == ((CHOSEN,), ROUNDS, pytest.approx(TURNS))
    assert each_turn(found, found.up_secure) == pytest.approx(20_000)
    assert each_turn(found, found.down) == pytest.approx(40_000)


def test_the_report_shows_the_bytes_of_a_turn() -> None:
    run: Any = SimpleNamespace(config=HONEST, metrics=LINES, about={"sizes": {"users": USERS, "items": ITEMS}})
    page = run_page.traffic(run)
    assert "12 rounds" in page
    assert "one of its 7 turns" in page
    assert page.count(">20 kB<") == 2
    assert page.count(">40 kB<") == 1


class Counting(Simulation):
    """Counts who is asked in a round."""

    asked = 0

    def _sample(self, round_: int) -> Any:
        sampled, arrives = super()._sample(round_)
        self.asked += len(sampled)
        return sampled, arrives


@pytest.mark.parametrize(
    ("method", "noise"), [("fedgrec", {}), ("fedgrec", {"dp_epsilon": 8.0}), ("fedmf", {}), ("fedgnn", {})]
)
def test_turns_are_those_that_a_simulation_gives(method: str, noise: dict[str, float]) -> None:
    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((20, ITEMS)) < 0.5)
    ids = {"user_ids": IdMap.range(20, "user"), "item_ids": IdMap.range(ITEMS, "item")}
    whole = Interactions.from_pairs(users, items, **ids)
    options = {"users_per_round": 6, "rounds": 30, "dim": 4, "negatives": 4, "kernel": "reference", "device": "cpu"}
    config = Config().of(method).changed({**options, **noise}, "test")
    simulation = Counting(config, Dataset("small", Split(whole)))
    simulation.run()
    done = simulation.server.round
    assert turns(simulation.config, done, 20, ITEMS) == pytest.approx(simulation.asked / 20)
