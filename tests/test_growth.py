"""A run that goes on with more data: `FedGRec.partial_fit`, and the simulation behind it."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedgrec import FedGRec, cli
from fedgrec.cli import training
from fedgrec.data import Dataset, IdMap, Interactions, Split
from fedgrec.data.datasets import _first_split
from fedgrec.data.split import Rule, grown_split
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.kernels.devices import gpu_is_there
from fedgrec.methods.fedgrec import STANDING
from fedgrec.models.model import Model
from fedgrec.runs import engine_rounds
from fedgrec.runs.engine_rounds import EngineRounds
from fedgrec.runs.growth import grow
from tests.cli.small import train

OPTIONS = {"dim": 8, "negatives": 8, "rounds": 30, "users_per_round": 20, "fine_rounds": 5, "seed": 3, "device": "cpu"}
RNG = np.random.default_rng(0)
ALL = RNG.random((40, 30)) < 0.25
ALL[:, 0] = True


@pytest.fixture(autouse=True)
def _no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_report", lambda *_: None)


def matrix(have: np.ndarray) -> csr_matrix:
    return csr_matrix(have.astype(np.float32))


def fitted(**more: object) -> FedGRec:
    return FedGRec(**(OPTIONS | more)).fit(matrix(ALL[:30, :25]))


def later() -> np.ndarray:
    """Clicks of new users, on new items, and new clicks of old users on old ones."""
    have = ALL.copy()
    have[:30, :25] = np.random.default_rng(1).random((30, 25)) < 0.05
    return have


def test_degrees_and_latents_follow_the_data() -> None:
    recommender = fitted()
    recommender.partial_fit(matrix(later()), rounds=60)
    run, whole = recommender._run, later()
    whole[:30, :25] |= ALL[:30, :25]
    assert np.array_equal(run.server.degrees, whole.sum(0))
    assert run.server.round == 90
    assert not run.users.past.counted
    # In 60 rounds with half of the users each, everybody has sent its latents under the new weights.
    assert not run.users.past.pushed
    method, sent = run.method, run.users.state.sent
    _, push = method.edge_weights(run.users, run.server.degrees)
    standing = np.zeros_like(run.server.kept[STANDING])
    for edge, (user, item) in enumerate(zip(run.users.owner, run.users.items, strict=True)):
        standing[:, item] += np.rint(push[edge] * sent[user] / method.latents.step).astype(np.int64)
    assert np.array_equal(run.server.kept[STANDING], standing)


def test_new_people_and_items_are_served_and_nothing_is_recommended_back() -> None:
    recommender = fitted()
    recommender.partial_fit(matrix(later()))
    assert recommender._run.server.round == 36  # a fifth of 30
    assert recommender.partial_fit(matrix(later()))._run.server.round == 42
    whole = later()
    whole[:30, :25] |= ALL[:30, :25]
    for user in (0, 35):
        items, _ = recommender.recommend(user, N=30)
        assert set(items.tolist()) == set(np.flatnonzero(~whole[user]).tolist())


def test_a_new_item_that_many_click_is_recommended() -> None:
    """Twenty of forty people, all of one taste, click item 25; the others of that taste should be recommended it."""
    have = np.zeros((40, 25), bool)
    have[:20, :12], have[20:, 12:] = True, True
    have &= np.random.default_rng(2).random((40, 25)) < 0.5
    recommender = FedGRec(**(OPTIONS | {"rounds": 100})).fit(matrix(have))
    more = np.zeros((40, 26), bool)
    more[:10, 25] = True
    recommender.partial_fit(matrix(more), rounds=60)
    ranks = [recommender.recommend(user, N=26)[0].tolist().index(25) for user in range(10, 40)]
    assert np.mean(ranks[:10]) + 2 < np.mean(ranks[10:])


def test_names_of_a_table_go_on() -> None:
    pandas = pytest.importorskip("pandas")
    users, items = np.nonzero(ALL[:30, :25])
    names = {"user": [f"u{u}" for u in users], "item": [f"i{i}" for i in items]}
    recommender = FedGRec(**OPTIONS).fit(pandas.DataFrame(names))
    recommender.partial_fit(pandas.DataFrame({"user": ["u0", "new", "new"], "item": ["fresh", "i3", "fresh"]}))
    found, _ = recommender.recommend("new", N=50)
    assert "fresh" not in found
    assert "i3" not in found
    assert "fresh" in recommender.recommend("u1", N=50)[0]


def test_who_has_no_items_any_more_has_left() -> None:
    recommender = fitted()
    run = recommender._run
    train = run.dataset.split.train
    stays = train.select(train.users() != 4)
    grow(run, Dataset("matrix", Split(stays, None)), 60)
    run.run()
    assert np.array_equal(run.server.degrees, stays.degrees())
    assert not run.users.past.pushed


@pytest.mark.parametrize("method", ["fedgrec", "two-parts"])
def test_a_loaded_model_and_a_copy_go_on_too(method: str, tmp_path: Path) -> None:
    """Degrees and latents are those of the grown data; only the moments of the server's optimizer begin anew."""
    first = FedGRec(**(OPTIONS | {"method": method})).fit(matrix(ALL[:30, :25]))
    first.save(tmp_path / "run")
    lists = first.recommend(N=5)[0].tolist()
    copied, loaded = copy.deepcopy(first), FedGRec.load(tmp_path / "run")
    for other in (copied, loaded):
        other.partial_fit(matrix(later()), rounds=60)
        run, whole = other._run, later()
        whole[:30, :25] |= ALL[:30, :25]
        assert np.array_equal(run.server.degrees, whole.sum(0))
        assert run.server.round == 90
        assert not run.users.past.pushed
        assert np.array_equal(run.method.recovered(replace(run.server, kept={}), run.users).kept[STANDING],
                              run.server.kept[STANDING])  # fmt: skip
        assert set(other.recommend(35, N=30)[0].tolist()) == set(np.flatnonzero(~whole[35]).tolist())
    assert copied.recommend(N=5)[0].tolist() == loaded.recommend(N=5)[0].tolist()
    assert first.recommend(N=5)[0].tolist() == lists, "the copy's training left the first one as it was"
    assert loaded.partial_fit(matrix(later()))._run.server.round == 150  # as long as the season before


def test_what_cannot_go_on_says_so(tmp_path: Path) -> None:
    held_out = fitted(validation=0.2)
    held_out.save(tmp_path / "run")
    with pytest.raises(ConfigError, match="was trained with validation or test items"):
        FedGRec.load(tmp_path / "run").partial_fit(matrix(ALL))
    with pytest.raises(FedgrecError, match="call fit first"):
        FedGRec().partial_fit(matrix(ALL))
    with pytest.raises(ConfigError, match="learns from everything"):
        fitted(validation=0.2).partial_fit(matrix(ALL))
    with pytest.raises(ConfigError, match="latent_rate"):
        fitted(latent_rate=0.5).partial_fit(matrix(ALL))
    run = fitted()._run
    other = Interactions.from_pairs([3, 1], [1, 2])
    with pytest.raises(ConfigError, match="must come first"):
        grow(run, Dataset("matrix", Split(other, None)), 5)


def test_the_loops_of_a_gpu_go_on_with_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loops hold one graph, so first everybody sends its latents again. Without a GPU an interpreter runs them."""
    pytest.importorskip("triton", reason="Triton is not installed: no loops for a GPU")
    from fedgrec.kernels import cuda

    device = "cuda" if gpu_is_there() else "cpu"
    small = cuda.Launch(rows=8, positives=8, split=8, drawn=8, items=8, registers=None)
    monkeypatch.setattr(engine_rounds, "make_engine", lambda _, *about: cuda.Engine(*about, device, small))
    recommender = fitted(precision="float64", users_per_round=4)  # the interpreter is slow
    run = recommender._run
    run.engine = EngineRounds(run.config, run.method)
    recommender.partial_fit(matrix(later()), rounds=1)
    whole = later()
    whole[:30, :25] |= ALL[:30, :25]
    assert np.array_equal(run.server.degrees, whole.sum(0))
    assert not run.users.past.pushed
    assert run.server.round == 31
    steps = run.method.recovered(replace(run.server, kept={}), run.users).kept[STANDING]
    assert run.server.items[1:] == pytest.approx(steps * run.method.latents.step)


# ------------------------------------------------------------------------------------------- the split of grown data


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.tuples(*[st.sets(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=4, max_size=40)] * 3),
    kind=st.sampled_from(["ratio", "last", "all"]),
    seed=st.integers(0, 3),
    shuffle=st.randoms(use_true_random=False),
)
def test_nothing_that_was_held_out_is_ever_learned_from(pairs: Any, kind: str, seed: int, shuffle: Any) -> None:
    """Over two growths, with clicks that come and go and lines in any order: remaining clicks keep their part."""
    rule = Rule(kind, 0.3, 0.0 if kind == "all" else 0.2, seed)
    before = None
    for now in pairs:
        lines = sorted(now)
        shuffle.shuffle(lines)
        named = [f"u{u}" for u, _ in lines], [f"i{i}" for _, i in lines]
        data = Interactions.from_pairs(*named, times=np.array([u * i % 7 for u, i in lines]))
        split = _first_split([data], rule, []) if before is None else grown_split(before, data, rule)
        train, validation, test = parts = [_names(part) for part in (split.train, split.validation, split.test)]
        assert sum(map(len, parts)) == len(train | validation | test) == len(now)
        assert train | validation | test == set(zip(*named, strict=True))
        assert len(train) >= 1
        if before is not None:
            for part, was in zip(parts, (before.train, before.validation, before.test), strict=True):
                assert _names(was) & (train | validation | test) <= part
            for ids in ("user_ids", "item_ids"):
                old, new = getattr(before.train, ids), getattr(split.train, ids)
                assert [*new][: len(old)] == [*old]
            again = grown_split(before, data, rule)
            assert [_names(part) for part in (again.train, again.validation, again.test)] == parts
        same = grown_split(split, data, rule)  # of data that has not changed
        assert [_names(part) for part in (same.train, same.validation, same.test)] == parts
        before = split


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.tuples(*[st.sets(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=8, max_size=40)] * 3),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_cut_in_time_moves_on_and_no_pair_of_before_changes_sides(pairs: Any, shuffle: Any) -> None:
    """All times differ, so that every cut is possible; clicks with users or items that train lacks are in no part."""
    rule = Rule("time", 0.3, 0.2, 0)
    before = None
    for season, now in enumerate(pairs):
        lines = sorted(now)
        shuffle.shuffle(lines)
        times = [season * (u % 2) + u / 10 + i / 100 for u, i in lines]  # every season some users' clicks all get later
        data = Interactions.from_pairs([f"u{u}" for u, _ in lines], [f"i{i}" for _, i in lines], times=times)
        split = _first_split([data], rule, []) if before is None else grown_split(before, data, rule)
        parts = [_names(part) for part in (split.train, split.validation, split.test, split.left_out)]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(now)
        for user, item in (parts[1] | parts[2]) - (set() if before is None else _names(before.known)):
            assert user in {u for u, _ in parts[0]}
            assert item in {i for _, i in parts[0]}
        old = [_names(part) for part in (before.train, before.validation, before.test)] if before else []
        for was, part in zip(old, parts, strict=False):
            assert was & set.union(*parts) <= part
        fresh = set.union(*parts) - set().union(*old)
        when = dict(zip(zip(*_columns(data), strict=True), data.times, strict=True))
        sides = [[when[name] for name in part & fresh] for part in parts[:3]]
        for earlier, after in itertools.combinations([side for side in sides if side], 2):
            assert max(earlier) < min(after)
        same = grown_split(split, data, rule)  # of data that has not changed
        assert [_names(part) for part in (same.train, same.validation, same.test, same.left_out)] == parts
        before = split


def _columns(data: Interactions) -> tuple[list[Any], list[Any]]:
    return [data.user_ids[u] for u in data.users()], [data.item_ids[i] for i in data.items]


def _names(part: Interactions | None) -> set[tuple[Any, Any]]:
    if part is None:
        return set()
    return {(part.user_ids[u], part.item_ids[i]) for u, i in zip(part.users(), part.items, strict=True)}


def test_new_people_have_as_much_held_out_as_anybody_and_known_ones_as_much_as_before() -> None:
    """Of ten clicks, two go to test and one of the other eight to validation; of five more, one, and none or one."""
    rule = Rule("ratio", 0.2, 0.1, 5)
    first = _first_split([Interactions.from_pairs([0] * 10, [*range(10)])], rule, [])
    more = Interactions.from_pairs([0] * 15 + [1] * 10, [*range(15), *range(10)])
    grown = grown_split(first, more, rule)
    assert first.test.user_degrees().tolist() == [2]
    assert grown.test.user_degrees().tolist() == [3, 2]
    assert grown.validation.user_degrees().tolist() == [1, 1]


def test_the_last_click_of_all_is_held_out_beside_the_last_of_before() -> None:
    rule = Rule("last", 0.2, 0.0, 0)
    first = _first_split([Interactions.from_pairs([0, 0, 0], [0, 1, 2], times=[1, 2, 3])], rule, [])
    later = Interactions.from_pairs([0] * 5, [0, 1, 2, 3, 4], times=[1, 2, 3, 9, 5])
    assert grown_split(first, later, rule).test.items.tolist() == [2, 3]
    assert grown_split(first, later, replace(rule, leave_out=2)).test.items.tolist() == [2, 3, 4]


def test_numbers_that_become_words_are_the_same_people() -> None:
    rule = Rule("all", 0.2, 0.0, 0)
    first = _first_split([Interactions.from_pairs([7, 3], [1, 2])], rule, [])
    words = grown_split(first, Interactions.from_pairs(["zoe", "3", "007"], ["2", "2", "x"]), rule).train
    assert [*words.user_ids] == [7, 3, "zoe", "007"]
    assert [*words.item_ids] == [1, 2, "x"]
    assert _names(words) == {("zoe", 2), (3, 2), ("007", "x")}
    numbers = _first_split([Interactions.from_pairs([0, 1], [0, 1])], rule, [])
    longer = grown_split(numbers, Interactions.from_pairs([2, 0], [1, 0]), rule).train
    assert longer.user_ids == IdMap.range(3, "user")
    assert longer.user_ids.to_json() == {"kind": "user", "range": 3}


# ---------------------------------------------------------------------------------------------- in a run's folder


def table(path: Path, have: np.ndarray) -> Path:
    rows = (" ".join(map(str, [user, *np.flatnonzero(mine)])) for user, mine in enumerate(have))
    path.write_text("\n".join(rows) + "\n")
    return path


def test_a_run_grown_by_the_command_line_is_what_partial_fit_makes_of_it(tmp_path: Path) -> None:
    options = OPTIONS | {"kernel": "reference", "rounds": 8}
    fresh = later()
    fresh[3] = False  # nothing new of this one
    recommender = FedGRec(**options).fit(matrix(ALL[:30, :25]))
    recommender.partial_fit(matrix(fresh)).partial_fit(matrix(ALL))
    run = tmp_path / "run"
    train(table(tmp_path / "a.txt", ALL[:30, :25]), run, **options, method="fedgrec", split="all")
    whole = fresh.copy()
    whole[:30, :25] |= ALL[:30, :25]
    for name, have in (("b.txt", whole), ("c.txt", whole | ALL)):
        words = ["--data", str(table(tmp_path / name, have))]
        assert cli.main(["grow", str(run), *words, "--quiet"]) == 0
    grown, expected = Model.load(run), recommender.model
    assert grown.round == expected.round == 12
    assert np.array_equal(grown.server.items, expected.server.items)
    for name, rows in vars(expected.users.state).items():
        assert np.array_equal(getattr(grown.users.state, name), rows), name
    assert np.array_equal(grown.known.items, expected.known.items)
