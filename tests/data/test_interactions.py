"""Ids come back as they went in; interactions are sorted, unique and immutable."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.data import IdMap, Interactions
from fedgrec.errors import DataError

ids = st.one_of(st.lists(st.integers(-(2**40), 2**40), unique=True), st.lists(st.text(max_size=5), unique=True))


@settings(max_examples=30)
@given(ids)
def test_an_id_map_gives_back_the_same_ids(tmp_path_factory: pytest.TempPathFactory, some: list) -> None:
    ids = IdMap(some, "user")
    assert [ids[ids.index(i)] for i in some] == some == list(ids)
    assert all(type(a) is type(b) for a, b in zip(ids, some, strict=True))
    path = tmp_path_factory.getbasetemp() / "ids.json"
    path.write_text(json.dumps(ids.to_json()))
    again = IdMap.load(path)
    assert again == ids
    assert list(again) == some
    assert again.kind == "user"


def test_a_range_is_saved_in_one_number(tmp_path) -> None:
    ids = IdMap.range(29_858, "user")
    assert ids.to_json() == {"kind": "user", "range": 29858}
    (tmp_path / "u.json").write_text(json.dumps(ids.to_json()))
    assert IdMap.load(tmp_path / "u.json") == ids == IdMap(list(range(29_858)))
    assert (ids.index(7), ids[7], 29_858 in ids, -1 in ids) == (7, 7, False, False)


def test_numpy_ids_become_plain_ones() -> None:
    assert type(IdMap(np.array([5, 3]))[0]) is int
    assert type(IdMap(np.array(["a", "b"]))[0]) is str
    assert IdMap([5, 3]).index(np.int64(3)) == 1


def test_an_unknown_id_is_named_with_the_nearest() -> None:
    for ids, other, meant in (([5750, 3], "5750", "5750"), (["5750", "x"], 5750, "'5750'"), (range(9), "7", "7")):
        with pytest.raises(DataError, match=rf"there is no item {other!r} in the data. Did you mean {meant}\?"):
            IdMap(ids).index(other)
    with pytest.raises(DataError, match=r"there is no user 'alcie' in the data. Did you mean 'alice'\?"):
        IdMap(["alice", "bob"], "user").index("alcie")
    with pytest.raises(DataError, match=r"there is no item 9 in the data$"):
        IdMap.range(9).index(9)


def test_ids_typed_on_a_command_line() -> None:
    assert IdMap([10, 20]).parse("20") == 1
    assert IdMap.range(30).parse("20") == 20
    assert IdMap(["20", 20]).parse("20") == 0  # the string itself comes first
    with pytest.raises(DataError, match="no item 'x'"):
        IdMap([10, 20]).parse("x")


def test_ids_that_json_cannot_keep_are_refused(tmp_path) -> None:
    with pytest.raises(DataError, match=r"item id \(1, 2\) cannot be saved as JSON"):
        IdMap([(1, 2)]).to_json()
    with pytest.raises(DataError, match="repeat"):
        IdMap(["a", "a"])
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(DataError, match=r"bad\.json is not a saved id map"):
        IdMap.load(tmp_path / "bad.json")


def test_pairs_are_numbered_by_first_appearance_and_the_last_repeat_counts() -> None:
    data = Interactions.from_pairs(["bo", "al", "bo", "bo"], [30, 10, 20, 30], ratings=[1, 2, 3, 4], times=[9, 8, 7, 6])
    assert (list(data.user_ids), list(data.item_ids), data.n_pairs) == (["bo", "al"], [30, 10, 20], 3)
    assert data.indptr.tolist() == [0, 2, 3]
    assert data.items.tolist() == [0, 2, 1]
    assert data.ratings is not None
    assert data.times is not None
    assert data.ratings.tolist() == [4, 3, 2]
    assert data.times.tolist() == [6, 7, 8]
    assert (data.of(0).tolist(), data.degrees().tolist(), data.user_degrees().tolist()) == (
        [0, 2],
        [1, 1, 1],
        [2, 1],
    )


def test_contiguous_integers_keep_their_value() -> None:
    data = Interactions.from_pairs([1, 0], [2, 0], item_ids=IdMap.range(4))
    assert data.user_ids == IdMap.range(2)
    assert (data.of(0).tolist(), data.of(1).tolist(), data.n_items) == ([0], [2], 4)
    with pytest.raises(DataError, match="no item 7"):
        Interactions.from_pairs([0], [7], item_ids=IdMap.range(4))


pairs = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)))


@given(pairs)
def test_every_pair_and_no_other_is_there(some: list[tuple[str, int]]) -> None:
    data = Interactions.from_pairs([u for u, _ in some], [i for _, i in some])
    there = {(data.user_ids[u], data.item_ids[i]) for u, i in zip(data.users(), data.items.tolist(), strict=True)}
    assert there == set(some)
    assert data.n_pairs == len(there)


def test_matrices_come_and_go() -> None:
    dense = np.array([[0, 5, 0], [0, 0, 0], [2, 0, 1]], np.float32)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_array(dense)
    assert (Interactions.from_matrix(matrix, keep_ratings=True).to_scipy().toarray() == dense).all()
    assert (Interactions.from_matrix(matrix).to_scipy().toarray() == (dense > 0)).all()
    assert (matrix.toarray() == dense).all()


def test_a_data_frame_is_read_by_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": ["x", "y"], "item": [4, 4], "rating": [2.5, 1.0]})
    data = Interactions.from_matrix(frame, keep_ratings=True)
    assert (list(data.user_ids), list(data.item_ids)) == (["x", "y"], [4])
    assert data.ratings is not None
    assert data.ratings.tolist() == [2.5, 1.0]
    with pytest.raises(DataError, match="'user' and 'item'"):
        Interactions.from_matrix(frame.rename(columns={"user": "who"}))


@pytest.mark.parametrize(
    ("indptr", "items", "what"),
    [
        ([0, 2], [0, 1], "indptr"),  # one user missing
        ([0, 2, 1], [0], "indptr"),  # falls
        ([0, 1, 2], [0, 3], "0 … 2"),  # no such item
        ([0, 2, 2], [1, 0], "sorted"),
        ([0, 2, 2], [1, 1], "sorted"),  # twice
    ],
)
def test_broken_arrays_are_refused(indptr: list[int], items: list[int], what: str) -> None:
    with pytest.raises(DataError, match=what):
        Interactions(IdMap.range(2), IdMap.range(3), np.array(indptr), np.array(items))


def test_the_arrays_cannot_be_written_but_the_callers_can() -> None:
    mine = np.array([0, 1], np.int32)
    data = Interactions(IdMap.range(1), IdMap.range(2), np.array([0, 2]), mine)
    with pytest.raises(ValueError, match="read-only"):
        data.items[0] = 1
    assert mine.flags.writeable


def test_users_without_items_are_no_trouble() -> None:
    data = Interactions(IdMap.range(4), IdMap.range(3), np.array([0, 0, 2, 2, 3]), np.array([1, 2, 0]))
    assert [data.of(u).tolist() for u in range(4)] == [[], [1, 2], [], [0]]
    assert data.select(np.array([True, False, True])).indptr.tolist() == [0, 0, 1, 1, 2]


# ----------------------------------------------------------------------------- what a matrix is not

sparse = pytest.importorskip("scipy.sparse")


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (sparse.csr_array((0, 5)), "has no users: its shape is (0, 5)"),
        (sparse.csr_array((5, 0)), "has no items: its shape is (5, 0)"),
        (sparse.csr_array((5, 4)), "has no interactions"),
        (sparse.csr_array(np.array([[1.0, 0], [0, np.nan]])), "row 1, column 1 holds nan"),
        (sparse.csr_array(np.array([[1.0, 0], [np.inf, 0]])), "row 1, column 0 holds inf"),
        (sparse.csr_array(np.array([[1, 0], [0, -2]])), "row 1, column 1 holds -2: an interaction is positive"),
        (sparse.coo_array(np.array([0, 1, 1])), "has 1 dimension"),
        (sparse.csr_array(np.array([[1j, 0]])), "complex numbers"),
        ([["ann", "tea"], ["bo", "rum"]], "this is a list: pairs go into pandas.DataFrame(pairs, columns="),
        (["ann", "bo"], "this is a list"),
        (None, "this is None"),
        ({"user": [1], "item": [2]}, "this is a dict"),
        ("clicks.csv", "this is a str: a file is read by fedgrec.data.load"),
        (np.eye(3), "this is a dense array: write scipy.sparse.csr_array(array)"),
    ],
    ids=str,
)
def test_what_is_no_matrix_of_interactions_is_one_sentence(matrix: object, sentence: str) -> None:
    with pytest.raises(DataError) as error:
        Interactions.from_matrix(matrix)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_boolean_matrix_is_one_of_interactions_and_ratings_may_be_negative() -> None:
    some = np.array([[True, False], [True, True]])
    for keep in (False, True):
        data = Interactions.from_matrix(sparse.csr_array(some), keep_ratings=keep)
        assert (data.to_scipy().toarray() == some).all()
    rated = np.array([[1.0, 0], [0, -2]])
    assert (Interactions.from_matrix(sparse.csr_array(rated), keep_ratings=True).to_scipy().toarray() == rated).all()


FRAMES = [
    ({"user": [], "item": []}, "has no rows"),
    ({"user": ["a", None], "item": [1, 2]}, "row 1: the user is missing"),
    ({"user": [1.0, float("nan")], "item": [1, 2]}, "row 1: the user is missing"),
    ({"user": ["a", "b"], "item": ["x", ""]}, "row 1: the item is missing"),
    ({"user": ["a", "b"], "item": [["x"], ["y"]]}, "row 0: the item ['x'] cannot be an id"),
    ({"user": ["a"], "item": ["x"], "rating": [float("nan")]}, "row 0: the rating nan is not a number"),
    ({"user": ["a"], "item": ["x"], "rating": [None]}, "row 0: the rating None is not a number"),
    ({"user": ["a"], "item": ["x"], "rating": ["good"]}, "row 0: the rating 'good' is not a number"),
    ({"user": ["a"], "item": ["x"], "time": ["noon"]}, "row 0: the time 'noon' is not a number"),
    ({"user": ["a"], "item": ["x"], "time": [float("inf")]}, "row 0: the time inf is not a number"),
]


@pytest.mark.parametrize(("columns", "sentence"), FRAMES, ids=[sentence for _, sentence in FRAMES])
def test_what_is_wrong_in_a_data_frame_is_named_by_row(columns: dict, sentence: str) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError) as error:
        Interactions.from_matrix(pandas.DataFrame(columns), keep_ratings="rating" in columns)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_wrong_in_pandas_own_kinds_of_columns_too() -> None:
    pandas = pytest.importorskip("pandas")
    users = pandas.array([1, None], dtype="Int64")
    with pytest.raises(DataError, match="row 1: the user is missing"):
        Interactions.from_matrix(pandas.DataFrame({"user": users, "item": [1, 2]}))
    twice = pandas.DataFrame([[1, 2, 3]], columns=["user", "item", "item"])
    with pytest.raises(DataError, match="2 columns 'item'"):
        Interactions.from_matrix(twice)
    days = pandas.to_datetime(["1970-01-02", "1970-01-03"])
    data = Interactions.from_matrix(pandas.DataFrame({"user": [0, 1], "item": [0, 1], "time": days}))
    assert data.times is not None
    assert data.times.tolist() == [86_400, 172_800]
    days = pandas.to_datetime(["1970-01-02", None])
    with pytest.raises(DataError, match="row 1: the time"):
        Interactions.from_matrix(pandas.DataFrame({"user": [0, 1], "item": [0, 1], "time": days}))


def test_ratings_that_nobody_asked_for_may_be_missing() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": ["a"], "item": ["x"], "rating": [None]})
    assert Interactions.from_matrix(frame).n_pairs == 1
