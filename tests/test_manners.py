"""FedGRec for Python users: many users at once, factors, explanations, scikit-learn's methods, bars and callbacks."""

import builtins
import copy
import pickle
import warnings
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from fedgrec import FedGRec, PairFolds, centralized, cli
from fedgrec.errors import ConfigError, DataError, DiskError, FedgrecError
from fedgrec.runs.notebook import described
from fedgrec.runs.trained import Centralized
from tests.centralized.worlds import NEED_TORCH, SMALL, board
from tests.slow_ranking import top_k_reference
from tests.test_estimator import QUICK, blocks

BLOCKS = csr_array(blocks().astype(np.float32))


@pytest.fixture(scope="module")
def fitted() -> FedGRec:
    return FedGRec(layers=2, **QUICK).fit(BLOCKS)


@pytest.fixture(scope="module")
def lettered() -> FedGRec:
    users, items = np.nonzero(blocks())
    frame = pd.DataFrame({"user": [f"u{u}" for u in users], "item": [f"i{t}" for t in items]})
    return FedGRec(layers=1, **QUICK).fit(frame)


# ------------------------------------------------------------------------------------------------ many users


def test_lists_of_all_are_the_lists_of_each(fitted: FedGRec) -> None:
    ids, scores = fitted.recommend(None, N=14)
    assert ids.shape == scores.shape == (20, 14)
    for user in range(20):
        one, its = fitted.recommend(user, N=14)
        assert one.tolist() == ids[user][: len(one)].tolist()
        np.testing.assert_allclose(its, scores[user][: len(one)], rtol=1e-6)
        assert (ids[user][len(one) :] == -1).all()  # eleven items are left of twenty
        assert np.isneginf(scores[user][len(one) :]).all()
    some, _ = fitted.recommend(np.array([7, 3, 7]), N=5)
    assert some.tolist() == [ids[user][:5].tolist() for user in (7, 3, 7)]
    assert fitted.recommend(pd.Series([7]), N=5)[0].shape == (1, 5)
    assert fitted.recommend(None, N=10**12)[0].shape == (20, 20)  # there are no more items


def test_more_alike_than_there_are_is_all_of_them(fitted: FedGRec) -> None:
    assert sorted(fitted.similar_users(3, N=10**12)[0].tolist()) == [user for user in range(20) if user != 3]
    assert len(fitted.similar_items(3, N=10**12)[0]) == 19


def test_factors_are_what_ranks(fitted: FedGRec) -> None:
    expected, _ = top_k_reference(fitted.user_factors, fitted.item_factors, 10, BLOCKS.indptr, BLOCKS.indices)
    assert fitted.recommend(None, N=10)[0].tolist() == expected.tolist()


def test_candidates_and_what_is_never_recommended(fitted: FedGRec) -> None:
    every, scores = fitted.recommend(4, N=20, filter_already_liked_items=False)
    assert sorted(every.tolist()) == list(range(20))
    worth = dict(zip(every.tolist(), scores.tolist(), strict=True))
    ids, kept = fitted.recommend([4, 5], N=4, items=[0, 1, 3, 5, 4], filter_items=[3])
    assert ids[0].tolist() == [*sorted({1, 5, 4}, key=lambda item: -worth[item]), -1]  # user 4 has item 0
    np.testing.assert_allclose(kept[0][:3], [worth[item] for item in ids[0][:3]], rtol=1e-6)
    news = csr_array(np.eye(20)[[4, 9]])  # user 4 has got item 4 since, user 5 item 9
    ids, _ = fitted.recommend([4, 5], news, N=19)
    assert set(ids[0]) - {-1} == set(range(20)) - set(BLOCKS[[4]].indices) - {4}
    assert ids[1].tolist() == fitted.recommend([5], [[9]], N=19)[0][0].tolist()
    with pytest.raises(ConfigError, match="leave no candidate"):
        fitted.recommend(4, items=[3], filter_items=[3])
    with pytest.raises(ConfigError, match="user_items has 2 rows for 3 users: give one for each"):
        fitted.recommend([1, 2, 3], news)
    with pytest.raises(ConfigError, match="type bool"):
        fitted.recommend(np.ones(20, bool))  # a mask would be read as the ids 0 and 1
    with pytest.raises(DataError, match="there is no user 20"):
        fitted.recommend([1, 20])


def test_questions_that_make_no_sense_are_answered_with_a_sentence(fitted: FedGRec, lettered: FedGRec) -> None:
    for length in (0, 2.5, "3", None, True):
        with pytest.raises(FedgrecError, match="ask for a whole number, at least 1"):
            fitted.recommend(4, N=length)
    for some in ("12", 3, None):  # "12" is not the items "1" and "2"
        with pytest.raises(ConfigError, match="is not a collection of ids"):
            lettered.recommend_new(some)
    with pytest.raises(ConfigError, match="is not a collection of ids"):
        lettered.recommend("u2", items="i1")
    wide = csr_array(np.ones((1, 21)))
    for asked in (lambda: fitted.recommend_new(wide), lambda: fitted.recommend(4, wide, items=[1])):
        with pytest.raises(ConfigError, match="an item in column 20, but there are only 20 items"):
            asked()
    with pytest.raises(DataError, match=r"there is no user \['u2'\]"):
        lettered.explain(["u2"], "i1")
    for rounds in (-1, 1.5, "x"):
        with pytest.raises(ConfigError, match="rounds cannot be"):
            fitted.partial_fit(BLOCKS, rounds)


def test_any_number_is_an_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond int64 too; and one can type a fraction."""
    big, item = np.array([2**63 + 5, 2**63 + 7, 2**63 + 5], np.uint64), [2.5, 2.5, 3.5]
    model = FedGRec(layers=1, **QUICK).fit(pd.DataFrame({"user": big, "item": item}))
    assert model.recommend([2**63 + 5, 2**63 + 7], N=1)[0].tolist() == [[None], [3.5]]
    with pytest.raises(DataError, match=f"there is no user {2**70}"):
        model.recommend([2**70])
    model.save(tmp_path / "run")
    assert cli.main(["recommend", str(tmp_path / "run"), "--similar", "2.5"]) == 0
    assert "1. 3.5" in capsys.readouterr().out
    FedGRec(layers=1, **QUICK).fit(pd.DataFrame({"user": [2**70, 5], "item": ["a", "b"]})).save(tmp_path / "large")
    words = ["recommend", str(tmp_path / "large"), "--all", "--out"]
    assert cli.main([*words, str(tmp_path / "lists.csv")]) == 0
    assert cli.main([*words, str(tmp_path / "lists.parquet")]) == 2
    assert "do not fit a .parquet file" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 2
    assert "fitted and saved in Python" in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path / "run")]) == 2
    assert "saved in Python and holds a model alone" in capsys.readouterr().err
    with pytest.raises(DiskError, match="could not be written"):
        model.save(tmp_path / "run" / "config.toml")
    pairs = FedGRec(layers=1, **QUICK).fit(pd.DataFrame({"user": [(1, 2), (3, 4)], "item": ["a", "b"]}))
    with pytest.raises(DataError, match="cannot be saved as JSON"):
        pairs.save(tmp_path / "pairs")
    assert not (tmp_path / "pairs").exists()


def test_ids_that_are_words_leave_none(lettered: FedGRec) -> None:
    ids, _ = lettered.recommend(["u2", "u3"], N=12)
    assert ids[0][0] == "i2"
    assert ids[0][-1] is None
    frame = lettered.recommend(["u2", "u3"], N=12, as_frame=True)
    assert list(frame.columns) == ["user", "item", "score", "rank"]
    assert frame[frame["user"] == "u3"]["item"].tolist() == ids[1][:11].tolist()
    assert frame["rank"].tolist() == [*range(1, 12)] * 2


def test_without_pandas_a_frame_is_refused(lettered: FedGRec, monkeypatch: pytest.MonkeyPatch) -> None:
    there = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError
        return there(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(FedgrecError, match="pip install pandas"):
        lettered.recommend("u2", as_frame=True)


def test_several_strangers_items_and_users(fitted: FedGRec) -> None:
    people = [[1, 3, 5], [2, 4]]
    ids, _ = fitted.recommend_new(people, N=4)
    assert ids.tolist() == [fitted.recommend_new(one, N=4)[0].tolist() for one in people]
    rows = csr_array((np.ones(5), np.concatenate(people), [0, 3, 5]), shape=(2, 20))
    assert fitted.recommend_new(rows, N=4)[0].tolist() == ids.tolist()
    assert 7 not in fitted.recommend_new(people[0], N=20, filter_items=[7])[0]
    with pytest.raises(FedgrecError, match="the person 1 "):
        fitted.recommend_new([[1], []])
    alike, cosines = fitted.similar_items([4, 5], N=6)
    assert [set(row % 2) for row in alike] == [{0}, {1}]
    assert (np.abs(cosines) <= 1 + 1e-6).all()
    assert fitted.similar_items(4, N=6, items=[1, 8])[0].tolist() == [8, 1]
    people, cosines = fitted.similar_users(3, N=9)
    assert (people % 2 == 1).all()
    assert 3 not in people
    own = fitted.user_factors / np.linalg.norm(fitted.user_factors, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, own[people] @ own[3], rtol=1e-5)


# --------------------------------------------------------------------------------------------- explanations


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2},
        {"layers": 2, "l2": 1e-4},  # the server's tables are not combined then
        {"layers": 2, "combine": "concat", "live": False, "similarity": "inner", "ranking": "cosine"},
        {"layers": 1, "ranking": "cosine", "alphas": (0.25, 0.75)},
        {"method": "spectral", "rounds": 2},
    ],
    ids=str,
)
def test_terms_sum_to_the_score(options: dict[str, Any]) -> None:
    quick = {} if "method" in options else QUICK
    model = FedGRec(**quick | options).fit(BLOCKS)
    ids, scores = model.recommend(3, N=20, filter_already_liked_items=False)
    for item, score in zip(ids.tolist(), scores.tolist(), strict=True):
        found = model.explain(3, item)
        assert found.score == found.own + found.terms.sum()
        assert found.score == pytest.approx(score, abs=1e-5)
        assert set(found.ids) == set(BLOCKS[[3]].indices)
        assert (np.diff(found.terms) <= 0).all()


def test_the_terms_are_equation_6(fitted: FedGRec) -> None:
    """Mutation: without one item, but with the weights unchanged, exactly its term is missing."""
    found, model = fitted.explain(3, 8), fitted.model
    gone, server = int(found.ids[2]), model._as_ranked
    tables = server.items.copy()
    tables[:, gone] = 0
    less = model.method.represent_users(replace(server, items=tables), model.users.take(np.array([3])))
    assert less[0] @ fitted.item_factors[8] == pytest.approx(found.score - found.terms[2], abs=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"layers": 0}, "layers of at least 1"), ({"method": "fcf"}, "a score of fcf is no sum over")],
)
def test_what_is_no_sum_is_not_explained(options: dict[str, Any], sentence: str) -> None:
    quick = {"rounds": 1, "dim": 2} if "method" in options else {**QUICK, "rounds": 1}
    with pytest.raises(FedgrecError, match=sentence):
        FedGRec(**quick | options).fit(BLOCKS).explain(0, 1)


def test_scores_without_inner_products_have_no_factors() -> None:
    model = FedGRec(method="fedncf", rounds=1, dim=2).fit(BLOCKS)
    ids, _ = model.recommend([3, 4], N=3, items=[3, 4, 9])
    assert ids.shape == (2, 3)
    assert ids[0].tolist() == [*model.recommend(3, N=3, items=[3, 4, 9])[0].tolist(), -1][:3]
    for asked in ("item_factors", "user_factors"):
        with pytest.raises(FedgrecError, match="scores of fedncf are no inner products"):
            getattr(model, asked)
    with pytest.raises(FedgrecError, match="scores of fedncf are no inner products"):
        model.similar_items(3)


def test_ratings_that_no_loss_reads_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rated = csr_array(blocks() * 3.5)
    for options in ({"layers": 1, **QUICK}, {"method": "fcf"}, {"method": "spectral"}):
        with pytest.raises(ConfigError, match="takes no ratings: leave out keep_ratings, or set loss = mse"):
            FedGRec(keep_ratings=True, **options).fit(rated)
    for options in ({"layers": 1, "loss": "mse0", **QUICK}, {"method": "fedgnn", "rounds": 1}):
        assert FedGRec(keep_ratings=True, **options).fit(rated).model.users.targets.max() == 3.5
    (tmp_path / "a.csv").write_text("user,item,rating\na,x,4\na,y,2\nb,x,3\nb,y,1\n")
    assert cli.main(["train", "--data", str(tmp_path / "a.csv"), "--keep-ratings", "--out", str(tmp_path / "r")]) == 2
    assert "takes no ratings" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


# ------------------------------------------------------------------------------------------- copies of a model


@pytest.mark.parametrize(
    "options",
    [{"layers": 2, **QUICK}, {"method": "two-parts", "rounds": 3, "dim": 4}, {"method": "fedncf", "rounds": 1}],
    ids=lambda options: options.get("method", "fedgrec"),
)
def test_a_pickle_and_a_copy_give_the_same_lists(options: dict[str, Any], tmp_path: Path) -> None:
    """With compiled kernels too, before and after lists were made, and after a file."""
    joblib = pytest.importorskip("joblib")
    model = FedGRec(**options | {"kernel": "auto"}).fit(BLOCKS)

    def dumped(model: FedGRec) -> FedGRec:
        joblib.dump(model, tmp_path / "model.joblib")
        return joblib.load(tmp_path / "model.joblib")

    ways = (copy.copy, copy.deepcopy, dumped, lambda one: pickle.loads(pickle.dumps(one)))
    early = [way(model) for way in ways]
    ids, scores = model.recommend(None, N=5)
    model.save(tmp_path / "run")
    late = [way(one) for one in (model, FedGRec.load(tmp_path / "run")) for way in ways]
    for other in early + late:
        assert other.model.config == model.model.config
        assert other.recommend(None, N=5)[0].tolist() == ids.tolist()
        np.testing.assert_array_equal(other.recommend(None, N=5)[1], scores)


@pytest.mark.parametrize("name", SMALL)
def test_centralized_models_are_pickled_too(name: str) -> None:
    """And train on as if nothing had happened."""
    if name in NEED_TORCH:
        pytest.importorskip("torch")
    model = centralized.make(name, board().split.train, seed=3, **SMALL[name])
    for _ in range(2 * model.trains):
        model.epoch()
    whole = Centralized(FedGRec().config, model)
    ids, _ = whole.lists(np.arange(40), 5)
    again = pickle.loads(pickle.dumps(whole))
    assert (again.lists(np.arange(40), 5)[0].tolist(), again.round) == (ids.tolist(), whole.round)
    if model.trains:
        assert copy.deepcopy(model).epoch() == again.inner.epoch() == model.epoch()


# --------------------------------------------------------------------------------------------- scikit-learn


def test_parameters_are_scikit_learns() -> None:
    from sklearn.base import clone

    model = FedGRec(preset="paper", layers=2, topk=[5, 10], random_state=7)
    params = model.get_params()
    assert (params["layers"], params["preset"], params["seed"], params["random_state"]) == (2, "paper", 7, 7)
    assert params["rounds"] == model.config.run.rounds  # what was not given is there too
    twin = clone(model)
    assert twin is not model
    assert (twin.get_params(), twin.config) == (params, model.config)
    assert clone(clone(FedGRec())).set_params(method="fcf", preset="best").config.method == "fcf"
    assert clone(model).set_params(preset="best").config.model.layers == 2  # what was given stays
    assert repr(clone(FedGRec())) == "FedGRec()"
    assert model.set_params(seed=3, rounds=9) is model
    assert (model.config.run.seed, model.get_params()["random_state"]) == (3, 3)
    assert model.set_params(random_state=4).config.run.seed == 4
    with pytest.raises(ConfigError, match="seed is 1 but random_state is 2"):
        FedGRec(seed=1, random_state=2)
    with pytest.raises(ConfigError, match="no option 'layrs'"):
        model.set_params(layrs=1)
    assert model.config.run.rounds == 9  # what was refused changed nothing


def test_repr_shows_what_differs() -> None:
    assert repr(FedGRec()) == "FedGRec()"
    model = FedGRec(preset="paper", layers=1, random_state=7)
    assert eval(repr(model)).config == model.config
    assert repr(model) == "FedGRec(preset='paper', layers=1, seed=7)"


def pairs() -> pd.DataFrame:
    users, items = np.nonzero(blocks())
    return pd.DataFrame({"user": [f"u{u}" for u in users], "item": [f"i{t}" for t in items]})


def test_score_is_what_fit_measures(fitted: FedGRec) -> None:
    rng = np.random.default_rng(0)
    test = csr_array((rng.random((20, 20)) < 0.2) & ~blocks())
    for options in ({"layers": 1, **QUICK}, {"method": "fedncf", "rounds": 2}):
        model = FedGRec(topk=(3, 10), **options).fit(BLOCKS, test=test)
        assert model.score(test) == model.metrics[-1]["recall@3"]
        assert FedGRec(topk=(3,), **options).fit(BLOCKS).score(test + BLOCKS) == model.score(test)
    with pytest.raises(FedgrecError, match="nothing to evaluate"):
        fitted.score(BLOCKS)  # all of it was trained on
    with pytest.raises(DataError, match="there is no user 'eve'"):
        fitted.score(pd.DataFrame({"user": ["eve"], "item": [3]}))


def test_scikit_learn_validates_over_pairs() -> None:
    from sklearn.model_selection import GridSearchCV, cross_validate

    model, table = FedGRec(layers=1, topk=(5,), **QUICK), pairs()
    scores = cross_validate(model, table, cv=PairFolds(3), error_score="raise")["test_score"]
    for score, (train, test) in zip(scores, PairFolds(3).split(table), strict=True):
        assert score == FedGRec(layers=1, topk=(5,), **QUICK).fit(table.iloc[train]).score(table.iloc[test])
    found = GridSearchCV(model, {"layers": [0, 1]}, cv=PairFolds(2), error_score="raise").fit(table)
    assert found.best_params_["layers"] in (0, 1)
    assert len(found.best_estimator_.recommend("u3", N=4)[0]) == 4


def test_folds_share_out_pairs_and_leave_something_of_everybody() -> None:
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"user": rng.integers(0, 30, 400), "item": rng.zipf(1.6, 400) % 60}).drop_duplicates()
    folds = [*PairFolds(4, random_state=7).split(table)]
    held_out = np.concatenate([test for _, test in folds])
    assert len(np.unique(held_out)) == len(held_out) > 0.5 * len(table)
    for train, test in folds:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(len(table)))
        for column in ("user", "item"):
            assert set(table.iloc[train][column]) == set(table[column]), "nobody and nothing is unknown"
    each = pd.DataFrame([table.iloc[test]["user"].value_counts() for _, test in folds]).fillna(0)
    assert (each.max() - each.min()).max() <= 1, "a user's pairs are spread evenly"
    assert all(
        np.array_equal(a[1], b[1]) for a, b in zip(folds, PairFolds(4, random_state=7).split(table), strict=True)
    )
    assert not np.array_equal(folds[0][1], next(PairFolds(4).split(table))[1])
    with pytest.raises(DataError, match="a row of a matrix is a whole user"):
        next(PairFolds().split(BLOCKS))
    for n in (1, 10_000):
        with pytest.raises(DataError, match="take at least 2, and no more than pairs"):
            next(PairFolds(n).split(table))


def test_a_notebook_shows_what_it_is_and_escapes_it() -> None:
    from xml.etree import ElementTree

    model = FedGRec(layers=1, topk=(3,), validation=0.2, evaluate_every=3, **QUICK)
    assert "not trained yet" in model._repr_html_()
    shown = model.fit(BLOCKS, test=np_eye())._repr_html_()
    texts = "".join(ElementTree.fromstring(shown).itertext())  # well formed, so nothing of a text is markup
    assert f"recall@3 {model.metrics[-1]['recall@3']:.4f}" in texts
    assert f"round {model.model.round} on test items" in texts
    judged = [line for line in model.metrics if line["split"] == "validation"]
    assert shown.split('points="')[1].split('"')[0].count(",") == len(judged) == 4
    assert f"up to {max(line['recall@3'] for line in judged):.4f}" in texts
    assert "svg" not in FedGRec(layers=1, **QUICK).fit(BLOCKS)._repr_html_()  # nothing was measured
    attack = '<script>alert(1)</script>&"'
    line = {"round": model.model.round, "split": attack, f"{attack}@3": 0.5}
    parsed = ElementTree.fromstring(described(attack, model.model, [line]))
    assert {element.tag for element in parsed.iter()} == {"div", "code", "p", "svg", "path", "polyline"}


# --------------------------------------------------------------------------------------- bars and callbacks


def test_callbacks_are_told_of_every_round_and_can_stop() -> None:
    told: list[dict[str, Any]] = []
    FedGRec(layers=1, evaluate_every=5, validation=0.2, **QUICK).fit(BLOCKS, test=np_eye(), callbacks=told.append)
    *rounds, test = told
    assert [line["round"] for line in rounds] == list(range(1, 13))
    assert [line["round"] for line in rounds if "recall@20" in line] == [5, 10, 12]
    assert test["split"] == "test"
    counted: list[int] = []
    model = FedGRec(layers=1, **QUICK).fit(
        BLOCKS, callbacks=[lambda line: counted.append(line["round"]), lambda line: np.int64(line["round"]) == 4]
    )
    assert counted == [1, 2, 3, 4]
    assert model.model.round == 4
    with pytest.raises(ConfigError, match="cannot be called"):
        model.fit(BLOCKS, callbacks=[3])


def np_eye() -> csr_array:
    return csr_array(np.eye(20))


def test_a_bar_is_drawn_where_it_is_asked_for(capsys: Any) -> None:
    model = FedGRec(layers=1, **QUICK)
    model.fit(BLOCKS)  # no terminal here
    model.fit(BLOCKS, progress=False)
    assert capsys.readouterr().err == ""
    model.fit(BLOCKS, progress=True)
    assert "12/12" in capsys.readouterr().err


def test_a_notebook_gets_a_bar_without_being_asked(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text, where its widgets are not installed."""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    with warnings.catch_warnings(action="ignore"):  # that tqdm has no widgets
        FedGRec(layers=1, **QUICK).fit(BLOCKS)
        assert "12/12" in "".join(capsys.readouterr())
        FedGRec(layers=1, **QUICK).fit(BLOCKS, progress=False)
    assert "".join(capsys.readouterr()) == ""
    shell.config = {"TerminalIPythonApp": {}}
    FedGRec(layers=1, **QUICK).fit(BLOCKS)
    assert "".join(capsys.readouterr()) == ""


# -------------------------------------------------------------------------------------------------- frames


class LazyFrame:
    """Named as in polars, which the checks do without: it is larger than all of them."""


class LikePolars:
    """What is read of a DataFrame of polars: its columns are a list, and a missing number is NaN."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns, self._frame = list(columns), pd.DataFrame(columns)

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, name: str) -> Any:
        return self._frame[name]

    def lazy(self) -> LazyFrame:
        return LazyFrame()


def frames(columns: dict[str, list[Any]]) -> list[Any]:
    """Of pandas, and of polars: of the real one, where somebody has installed it."""
    if find_spec("polars"):
        return [pd.DataFrame(columns), import_module("polars").DataFrame(columns, strict=False)]
    return [pd.DataFrame(columns), LikePolars(columns)]


def test_frames_of_both_libraries_name_columns_as_files_do() -> None:
    users, items = np.nonzero(blocks())
    plain = {"user": (users + 5).tolist(), "item": [f"i{t}" for t in items]}
    expected = FedGRec(layers=1, **QUICK).fit(pd.DataFrame(plain)).recommend(None, N=3)[0].tolist()
    other = {"Timestamp": list(range(len(users))), "movieId": plain["item"], "user_id": plain["user"]}
    arrow = pytest.importorskip("pyarrow")
    for frame in [*frames(other), arrow.table(other)]:
        assert FedGRec(layers=1, **QUICK).fit(frame).recommend(None, N=3)[0].tolist() == expected


def test_missing_ids_of_both_libraries_are_named() -> None:
    for column, value in (("userId", None), ("movie_id", " ")):
        given = {"userId": ["a", "b", "c"], "movie_id": ["x", "y", "z"]}
        given[column][2] = value
        role = "user" if column == "userId" else "item"
        for frame in frames(given):
            with pytest.raises(DataError, match=f"row 2: the {role} is missing"):
                FedGRec().fit(frame)
    for frame in frames({"user": [1, None, 3], "item": [1, 2, 3]}):
        with pytest.raises(DataError, match="row 1: the user is missing"):
            FedGRec().fit(frame)
    with pytest.raises(DataError, match=r"give its \.collect\(\)"):
        FedGRec().fit(frames({"user": [1], "item": [1]})[1].lazy())
