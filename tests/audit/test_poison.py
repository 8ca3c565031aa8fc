"""Users that lie: the lie is what the rules let pass, it is in the sums of its liars alone, and it works."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchmarks.lying_users import Liars, Lie, disguised, harm, poisoned
from benchmarks.poison import choose_liars, choose_target, popular_profile

from fedgrec.cable.core import Stage, Upload
from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load_for
from fedgrec.errors import ConfigError, SumLostError
from fedgrec.federation.server.model_keeper import check_round
from fedgrec.runs.simulation import Simulation
from fedgrec.runs.sums import SecureSums, Sums
from tests.audit.worlds import dataset, sparse

SMALL = {"dim": 8, "negatives": 20, "users_per_round": 20, "kernel": "reference", "fine_rounds": 2, "rounds": 4}
NOBODY = np.zeros(0, np.int64)
TARGET = 299


def world(**changes: Any) -> Simulation:
    """A training of 40 users and 300 items, its warm-up done."""
    config = Config().changed(SMALL | {"device": "cpu"} | changes)
    simulation = Simulation(config, sparse(users=40, items=300))
    simulation.warm_up()
    return simulation


def summed(sums: Sums, world: Simulation, stage: Stage, arrived: Any = None) -> Upload:
    """The sum of the first 20 users."""
    cohort = world.users.take(np.arange(20))
    return sums.total(world.method, stage, cohort, world.method.broadcast(world.server, stage), arrived)[0]


def equal(one: Upload, other: Upload, world: Simulation, stage: Stage) -> bool:
    spec = world.method.spec(stage)
    return one.users == other.users and bool((one.to_ring(spec) == other.to_ring(spec)).all())


def liars(world: Simulation, users: list[int], lie: Lie, inner: Sums | None = None) -> Liars:
    return Liars(inner or world.sums, world.users.keys[users], lie)


def lie(**changes: Any) -> Lie:
    return Lie(TARGET, np.array([0, 1, 2, TARGET]), **{"within_bounds": True} | changes)


def stages(world: Simulation) -> list[Stage]:
    """Training in words of 32 bits and in few levels, with latents and without."""
    train = world.method.stages[-1]
    return [replace(train, fine=fine, lean=lean) for fine in (True, False) for lean in (True, False)]


# ---------------------------------------------------------------------------------- what is in a sum


@pytest.mark.parametrize("method", ["fedgrec", "spectral"])
def test_without_liars_nothing_changes(method: str) -> None:
    options = SMALL if method == "fedgrec" else {"kernel": "reference"}
    config, data = Config().changed(options | {"method": method, "device": "cpu"}), sparse(users=40, items=300)
    plain = Simulation(config, data)
    plain.run()
    found = poisoned(config, data, NOBODY, lie())
    assert (found.server.items == plain.server.items).all()
    assert (found.users.state.embeddings == plain.users.state.embeddings).all()


def test_a_liar_who_is_not_in_the_sum_changes_nothing() -> None:
    here = world()
    for stage in stages(here):
        honest = summed(here.sums, here, stage)
        assert equal(summed(liars(here, [20, 39], lie()), here, stage), honest, here, stage)
        assert not equal(summed(liars(here, [19], lie()), here, stage), honest, here, stage)


def test_a_liar_whose_upload_is_lost_changes_nothing() -> None:
    here, arrived = world(), np.arange(1, 20)
    for stage in stages(here):
        honest = summed(here.sums, here, stage, arrived)
        assert equal(summed(liars(here, [0], lie()), here, stage, arrived), honest, here, stage)


def test_a_sum_holds_the_lie_in_the_place_of_the_upload() -> None:
    here = world()
    for stage in stages(here):
        broadcast = here.method.broadcast(here.server, stage)
        others, _ = here.method.local_update(here.users.take(np.arange(2, 20)), stage, broadcast)
        one = lie().upload(here.method, stage, broadcast)
        assert equal(summed(liars(here, [0, 1], lie()), here, stage), others + one + one, here, stage)


def test_a_profile_is_what_an_honest_user_with_these_items_sends() -> None:
    here, claims = world(), lie(within_bounds=False)
    cohort = here.users.take(np.arange(20))
    fake = disguised(cohort, np.arange(20) == 3, claims.profile)
    assert fake.items_of(3).tolist() == claims.profile.tolist()
    assert all((fake.items_of(u) == cohort.items_of(u)).all() for u in range(20) if u != 3)
    for stage in (here.method.stages[0], *stages(here)):
        upload, _ = here.method.local_update(fake, stage, here.method.broadcast(here.server, stage))
        assert equal(summed(liars(here, [3], claims), here, stage), upload, here, stage)


def test_under_masks_the_lie_is_the_same() -> None:
    here = world(dim=2)
    stage = stages(here)[-1]
    plain, masked = (
        summed(liars(here, [4], lie(), kind(here.config.run, 1)), here, stage) for kind in (Sums, SecureSums)
    )
    assert equal(plain, masked, here, stage)


# ------------------------------------------------------------------------------- what the rules allow


def test_the_lie_fills_the_bound_and_no_more() -> None:
    here = world()
    for stage in stages(here):
        one = lie().upload(here.method, stage, here.method.broadcast(here.server, stage))
        for leaf in here.method.spec(stage).leaves:
            rows = one.leaves[leaf.name]
            assert (rows.index % 300 == TARGET).all()
            assert len(rows.index) == leaf.rows // 300
            assert (np.abs(rows.values) == leaf.bound).all()


def test_the_server_finds_what_is_beyond_the_bound_and_nothing_else() -> None:
    here, everyone = world(), list(range(20))
    for stage in stages(here):
        spec = here.method.spec(stage)
        check_round(summed(liars(here, everyone, lie()), here, stage), spec)
        with pytest.raises(SumLostError, match="larger than 20 users"):
            check_round(summed(liars(here, everyone, lie(strength=1.1)), here, stage), spec)


def test_one_user_may_send_what_all_could_and_nobody_notices() -> None:
    """The clip is kept at home: a server sees the sum, and compares that with what all its users may add."""
    here = world()
    for stage in stages(here):
        spec = here.method.spec(stage)
        check_round(summed(liars(here, [0], lie(strength=10)), here, stage), spec)
        if not stage.fine:  # words of 32 bits would wrap
            with pytest.raises(SumLostError):
                check_round(summed(liars(here, [0], lie(strength=40)), here, stage), spec)


def test_popular_items_are_pushed_the_other_way() -> None:
    here = world()
    stage = stages(here)[0]
    one = lie(suppress=(0, 5)).upload(here.method, stage, here.method.broadcast(here.server, stage))
    rows = one.leaves["items"]
    assert rows.index.tolist() == [0, 5, TARGET]
    assert (rows.values[0] == -rows.values[2]).all()
    assert (rows.values[1] == -rows.values[2]).all()


def test_invented_people_are_in_the_counts_alone() -> None:
    here = world()
    stage, many = here.method.stages[0], lie(invented=5)
    few, more = (summed(liars(here, [3], one), here, stage).leaves for one in (lie(), many))
    (name,) = few
    assert (more[name].values[more[name].index == TARGET] - few[name].values[few[name].index == TARGET]).tolist() == [
        [5]
    ]
    assert more[name].values.sum() - few[name].values.sum() == 5


def test_a_lie_that_begins_late_is_honest_before() -> None:
    here = world()
    stage = stages(here)[0]
    late = summed(liars(here, [3], lie(begins=here.server.round + 1)), here, stage)
    assert equal(late, summed(liars(here, [3], lie(within_bounds=False)), here, stage), here, stage)


def test_an_invented_profile_has_no_ratings() -> None:
    cohort = world().users
    rated = replace(cohort, targets=np.ones(len(cohort.items), np.float32))
    nobody = np.zeros(len(cohort), bool)
    assert disguised(rated, nobody, lie().profile) is rated
    with pytest.raises(ConfigError, match="keep_ratings"):
        disguised(rated, ~nobody, lie().profile)


# --------------------------------------------------------------------------------------- what it does


def test_exposure_counts_honest_users_who_do_not_have_the_target() -> None:
    """All users are alike and item t scores −t: users without item 0 get it recommended, and nobody gets 29."""
    pairs = [(user, item) for user in range(4) for item in (0 if user == 0 else 1, 2 + user)]
    here = Simulation(Config().changed({"layers": 0, "dim": 1, "kernel": "reference"}), dataset(pairs, 4, 30))
    here.users.state.embeddings[:] = 1
    here.server.items[0, :, 0] = -np.arange(30)
    assert harm(here, 0, NOBODY)["exposure"] == 1
    assert harm(here, 29, NOBODY)["exposure"] == 0
    here.users.state.embeddings[1] = -1  # the last come first
    assert harm(here, 0, NOBODY)["exposure"] == pytest.approx(2 / 3)
    assert harm(here, 0, np.array([1]))["exposure"] == 1


@pytest.mark.keep(1)
@pytest.mark.parametrize(
    ("method", "options", "liars", "about", "without"),
    [
        ("fedgrec", {"rounds": 8}, 1, {}, 0.3),
        ("fedgrec", {"rounds": 8}, 15, {"strength": 50}, 0.3),
        ("fedgrec", {"rounds": 8}, 1, {"invented": 60}, 0.3),
        ("two-parts", {"rounds": 12}, 15, {}, 0.3),
        ("spectral", {}, 15, {"strength": 0.5, "begins": 3}, 0.1),
    ],
)
def test_on_the_demo_liars_reach_many_only_where_vectors_may_be_long(
    method: str, options: dict[str, Any], liars: int, about: dict[str, Any], without: float
) -> None:
    config = Config().changed({"method": method, **options})
    data = load_for(config)
    target = choose_target(data.split.train)
    users = choose_liars(data.split.train.n_users, liars, seed=0)
    lied = Lie(target, popular_profile(data.split.train, target), within_bounds=True, **about)
    found = poisoned(config, data, users, lied)
    long, usual = (harm(found, target, users, longest=longest) for longest in (1, config.model.longest))
    assert long["exposure"] > without
    assert usual["exposure"] < 0.05
    assert usual["recall"] > 0.99 * long["recall"]
    assert usual["finite"]


def test_the_target_is_rare_and_the_profile_popular() -> None:
    data = dataset([(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 3), (2, 2), (1, 4), (0, 4)], 3, 6).split.train
    assert choose_target(data) == 3
    assert popular_profile(data, 3).tolist() == [1, 2, 3]


def test_more_liars_are_the_same_and_others() -> None:
    assert choose_liars(100, 3, 0).tolist() == choose_liars(100, 9, 0)[:3].tolist()
    assert len(set(choose_liars(100, 100, 0).tolist())) == 100
