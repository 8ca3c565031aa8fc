"""Randomised response: its chances, its ε, and users who take part with it over seasons."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedgrec.cable.decoys import false_share, fresh_source, next_told_items
from fedgrec.config.configuration import preset
from fedgrec.data import Split
from fedgrec.data.datasets import load_for
from fedgrec.errors import ConfigError
from fedgrec.runs.growth import grow
from fedgrec.runs.simulation import Observer, Simulation

NOTHING = np.zeros(0, np.int64)


def telling(own, n_items, epsilon, seed, times=1):
    draw = np.random.Generator(np.random.Philox(key=seed))
    return [next_told_items(NOTHING, np.array(own, np.int64), n_items, epsilon, draw) for _ in range(times)]


def test_each_item_is_told_with_its_chance():
    """An exact test on small supports: every item's answers are binomial, for own items and for others."""
    epsilon, n_items, times = 1.5, 7, 4000
    q = false_share(epsilon)
    counts = np.bincount(np.concatenate(telling([1, 4, 5], n_items, epsilon, 3, times)), minlength=n_items)
    for item, count in enumerate(counts.tolist()):
        chance = 1 - q if item in (1, 4, 5) else q
        assert stats.binomtest(count, times, chance).pvalue > 1e-4


def test_answers_of_two_items_are_independent():
    """All 2³ answers about three items occur as often as the product of their chances says."""
    epsilon, times = 1.0, 8000
    q, found = false_share(epsilon), telling([0], 3, epsilon, 5, times)
    seen = np.bincount([sum(2**item for item in told) for told in found], minlength=8)
    expected = [math.prod(abs((item == 0) - q) if bit else 1 - abs((item == 0) - q) for item, bit in enumerate(bits))
                for bits in ((code & 1, code >> 1 & 1, code >> 2 & 1) for code in range(8))]  # fmt: skip
    assert stats.chisquare(seen, times * np.array(expected)).pvalue > 1e-4


def likelihoods(seasons, epsilon):
    """P(what is told after each season) of somebody who clicks item 0 in season 0, in season 1, or never; exactly."""
    q = false_share(epsilon)

    def of(clicked):
        chances = {}
        for answers in product((False, True), repeat=seasons):  # whether item 0 would be told in each season
            chance, told = 1.0, False
            story = []
            for season, answer in enumerate(answers):
                share = 1 - q if season == clicked else q
                if told:
                    chance *= 0.5  # item 0 is not asked about again: both answers give the same outcome
                else:
                    chance *= share if answer else 1 - share
                    told = answer
                story.append(told)
            chances[tuple(story)] = chances.get(tuple(story), 0.0) + chance
        return chances

    return [of(clicked) for clicked in (0, 1, None)]


def test_no_story_is_more_than_e_to_the_epsilon_times_as_likely():
    """With the click, whenever it came, and without it, over several seasons: the law of what is told of one item."""
    epsilon = 1.2
    early, late, never = likelihoods(3, epsilon)
    for clicked, (story, chance) in product((early, late), never.items()):
        assert clicked[story] <= math.exp(epsilon) * chance * (1 + 1e-12)
        assert chance <= math.exp(epsilon) * clicked[story] * (1 + 1e-12)


def test_the_code_tells_the_stories_of_that_law():
    """Item 0 is clicked in the second season: the code's stories have the chances that were just bounded."""
    epsilon, times, draw = 1.0, 6000, np.random.Generator(np.random.Philox(key=9))
    expected = likelihoods(3, epsilon)[1]
    seen = dict.fromkeys(expected, 0)
    for _ in range(times):
        told, story = NOTHING, []
        for season in range(3):
            new = np.array([0]) if season == 1 else NOTHING
            told = next_told_items(told, new, 4, epsilon, draw)
            story.append(0 in told)
        seen[tuple(story)] += 1
    there = [story for story in expected if expected[story]]
    assert stats.chisquare([seen[s] for s in there], [times * expected[s] for s in there]).pvalue > 1e-4


@pytest.mark.parametrize("own", [[], [0], [0, 1, 2, 3]])
def test_what_was_told_stays_and_lists_are_sorted(own):
    told = telling(own, 4, 0.5, 1)[0]
    later = next_told_items(told, NOTHING, 6, 0.5, fresh_source())
    assert set(told) <= set(later)
    assert (np.diff(later) > 0).all()
    assert not len(later) or 0 <= later.min() <= later.max() < 6


def test_a_large_epsilon_tells_the_truth():
    assert telling([2, 3], 1000, 700.0, 0)[0].tolist() == [2, 3]


# ------------------------------------------------------------------------------------------ in a simulation


SMALL = {
    "dp_unit": "interaction",
    "users_per_round": 40,
    "rounds": 6,
    "dim": 8,
    "negatives": 16,
    "evaluate_every": 3,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def demo():
    return load_for(preset("best"))


def config(**changes):
    return preset("best").changed({**SMALL, **changes}, "test")


def test_without_lies_a_run_is_the_run_without_decoys(demo):
    plain, told = (Simulation(config(dp_epsilon=epsilon), demo) for epsilon in (0.0, 700.0))
    assert plain.run().server.items.tobytes() == told.run().server.items.tobytes()
    assert plain.metrics[-1]["recall@20"] == told.metrics[-1]["recall@20"]


@pytest.mark.parametrize("changes", [{}, {"method": "spectral"}])
def test_the_server_sees_nothing_but_what_users_told(demo, monkeypatch, changes):
    """With other items at home but the same answers, the server's state is equal to the bit. The ranking differs."""
    train = demo.split.train
    other = replace(train, items=np.ascontiguousarray(train.n_items - 1 - reversed_by_user(train)))
    monkeypatch.setattr("fedgrec.runs.population.next_told_items", _fixed_answers)
    servers, ranked = [], []
    for own in (train, other):
        given = (
            {k: v for k, v in SMALL.items() if k in {"rounds", "device", "dp_unit"}} if "method" in changes else SMALL
        )
        run = Simulation(preset("best").changed({**given, **changes, "dp_epsilon": 2.0, "rounds": 2}, "test"),
                         replace(demo, split=Split(own)))  # fmt: skip
        model = run.run()
        servers.append(b"".join(part.tobytes() for part in (run.server.items, run.server.degrees, run.server.moment2)))
        ranked.append(model.users.items.tolist())
        assert model.users.items.tolist() == own.items.tolist()
    assert servers[0] == servers[1]
    assert ranked[0] != ranked[1]


def _fixed_answers(told, new, n_items, epsilon, draw):
    return np.sort(draw.choice(n_items, 5, replace=False))


def reversed_by_user(data):
    """Each user's items in falling order, so that N − 1 − item rises."""
    return np.concatenate([data.of(user)[::-1] for user in range(data.n_users)])


class StopsAfterThree(Observer):
    done = 0

    def round_done(self, done):
        self.done = done

    def stop_wanted(self):
        return self.done >= 3


def test_a_run_that_was_killed_goes_on_with_what_was_told(demo, tmp_path):
    wanted = config(dp_epsilon=3.0, checkpoint_every=2)
    whole = Simulation(wanted, demo).run()
    Simulation(wanted, demo, tmp_path / "run", StopsAfterThree()).run()
    resumed = Simulation(wanted, demo, tmp_path / "run")
    resumed.resume()
    assert resumed.run().server.items.tobytes() == whole.server.items.tobytes()


def test_growth_tells_new_items_and_takes_nothing_back(demo):
    train = demo.split.train
    few = train.select(np.arange(train.n_pairs) % 3 > 0)
    run = Simulation(config(dp_epsilon=4.0, protocol="paper"), replace(demo, split=Split(few)))
    run.run()
    told = [set(run.users.items_of(user)) for user in range(len(run.users))]
    grow(run, replace(demo, split=Split(train)), rounds=2)
    run.run()
    new = {(user, item) for user in range(train.n_users) for item in set(train.of(user)) - set(few.of(user))}
    now = [set(run.users.items_of(user)) for user in range(len(run.users))]
    assert all(before <= after for before, after in zip(told, now, strict=True))
    share = np.mean([item in now[user] for user, item in new])
    assert abs(share - (1 - false_share(4.0))) < 0.02
    assert run.server.degrees.tolist() == np.bincount(run.users.items, minlength=train.n_items).tolist()
    assert run.model().users.items.tolist() == train.items.tolist()


def test_decoys_have_no_ratings(demo):
    rated = replace(demo.split.train, ratings=np.ones(demo.split.train.n_pairs, np.float32))
    with pytest.raises(ConfigError, match="decoys have no ratings"):
        Simulation(config(dp_epsilon=1.0, loss="mse"), replace(demo, split=Split(rated)))
