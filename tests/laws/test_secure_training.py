"""Law 5 on whole trainings: with real secure sums, dropouts in every stage, the same bits as with plain ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.errors import RunError
from fedgrec.runs import sums
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.secagg import Stage, client
from tests.interrupted import bits

USERS, ITEMS = 18, 15


def simulation(secure: str, out: Any = None, observer: Observer | None = None, **values: Any) -> Simulation:
    rng = np.random.default_rng(0)
    liked = rng.random((USERS, ITEMS)) < 0.3
    liked[:, 0] = True  # everybody has an item
    data = Interactions.from_pairs(*np.nonzero(liked))
    chosen = {"dim": 4, "users_per_round": 12, "negatives": 5, "rounds": 3, "evaluate_every": 3, "protocol": "paper"}
    chosen |= {"secure_neighbours": 8, "secure_threshold": 5, "secure": secure, "kernel": "reference"} | values
    return Simulation(Config().changed(chosen, "test"), Dataset("small", Split(data)), out, observer)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dropout=st.sampled_from([0.0, 0.15]),
    layers=st.integers(0, 2),
    kernel=st.sampled_from(["reference", "cpu"]),
    steps=st.sampled_from([1, 3]),
)
def test_secure_training_has_the_bits_of_plain_training(seed, dropout, layers, kernel, steps) -> None:
    values = {"seed": seed, "dropout": dropout, "layers": layers, "kernel": kernel, "local_steps": steps}
    plain, secure = simulation("off", **values), simulation("protocol", **values)
    plain.run()
    secure.run()
    if secure.sums.lost == 0:
        assert bits(secure) == bits(plain)
        assert secure.sums.opened == 3 + 1 + layers


def test_clients_fall_silent_in_all_stages() -> None:
    """Otherwise the law above would say little."""
    run = simulation("protocol", dropout=0.15)
    silent = [run.sums._silence(12, np.arange(9), round_) for round_ in range(40)]  # type: ignore[attr-defined]
    assert {stage for each in silent for stage in each.values()} == set(Stage) - {Stage.DONE}
    assert all({9, 10, 11} <= set(each) for each in silent)


class Notices(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def noticed(self, sentence: str) -> None:
        self.seen.append(sentence)


def test_a_sum_that_cannot_be_opened_changes_nothing() -> None:
    notices = Notices()
    run = simulation("protocol", dropout=0.9, layers=1, observer=notices)
    before = simulation("off", layers=1, rounds=1)
    before.warm_up()
    run.run()
    assert run.sums.lost == 3
    assert len(notices.seen) == 3
    assert "secure sum of round" in notices.seen[0]
    assert bits(run) == bits(before)


def test_the_log_says_how_sums_were_made() -> None:
    for secure, rounds in (("off", 0), ("protocol", 3 + 1 + 2)):
        run = simulation(secure)
        held_out = run.dataset.split.train
        run.run()
        line = run.measure("validation", held_out)
        assert (line["secure"], line["secure_rounds"]) == (secure, rounds)


def test_an_interrupted_secure_run_goes_on_with_the_same_bits(tmp_path) -> None:
    values = {"checkpoint_every": 1, "dropout": 0.1, "half_life": 3}
    whole = simulation("protocol", tmp_path / "whole", **values, rounds=4)
    whole.run()
    simulation("protocol", tmp_path / "cut", **values, rounds=2).run()
    rest = simulation("protocol", tmp_path / "cut", **values, rounds=4)
    rest.resume()
    rest.run()
    assert bits(rest) == bits(whole)
    assert (rest.sums.opened, rest.sums.lost) == (whole.sums.opened, whole.sums.lost)


# ----------------------------------------------------------------------------------------------- mutations


def test_masks_of_one_sign_do_not_pass(monkeypatch) -> None:
    right = client.pair_mask
    monkeypatch.setattr(client, "pair_mask", lambda *args: (right(*args)[0], 1))
    with pytest.raises(RunError, match="noise"):
        simulation("protocol").run()


def test_a_sum_with_one_word_off_breaks_the_law(monkeypatch) -> None:
    right = sums.SecureSums.total

    def one_word_off(self: Any, *args: Any) -> Any:
        total, pending = right(self, *args)
        next(iter(total.leaves.values())).values[0, 0] += 1
        return total, pending

    plain, secure = simulation("off"), simulation("protocol")
    monkeypatch.setattr(sums.SecureSums, "total", one_word_off)
    plain.run()
    secure.run()
    assert bits(secure) != bits(plain)
