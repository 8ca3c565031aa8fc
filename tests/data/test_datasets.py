"""Loading by name, folder and file: sizes, ids, and what the notes say."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedgrec.data import Interactions, describe, load
from fedgrec.data.registry import SOURCES
from fedgrec.errors import DataError


def named(data: Interactions | None) -> set[tuple]:
    assert data is not None
    return {
        (data.user_ids[u], data.item_ids[i]) for u, i in zip(data.users().tolist(), data.items.tolist(), strict=True)
    }


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_lightgcn_folder_keeps_its_ids(tmp_path: Path) -> None:
    # User 2 has no item at all; item 5 is only in test; (0, 1) is in both; (1, 3) is there twice.
    dataset = load(write(tmp_path, train_txt="0 1 2\n1 3 3\n2\n", test_txt="0 1 5\n1 2\n"))
    split = dataset.split
    assert (split.train.n_users, split.train.n_items) == (3, 6)
    assert named(split.train) == {(0, 1), (0, 2), (1, 3)}
    assert named(split.test) == {(0, 5), (1, 2)}
    assert [split.train.item_ids.index(i) for i in range(6)] == list(range(6))
    assert dataset.notes == (
        "Repeated pairs, merged: 1.",
        "Test pairs that are also in train, left out of test: 1.",
        "Test pairs of items that are never seen in train: 1.",
        "Users without test items, left out of the mean: 1.",
    )
    description = json.loads(json.dumps(describe(dataset)))
    assert description["sizes"] == {"users": 3, "items": 6, "train": 3, "validation": 0, "test": 2}
    assert (description["name"], description["split"]) == (tmp_path.name, "given")
    assert len(description["checksums"]["train.txt"]) == 64


def test_train_alone_is_allowed(tmp_path: Path) -> None:
    dataset = load(write(tmp_path, train_txt="0 1 2\n"))
    assert dataset.split.test is None
    assert dataset.notes == ("There is no test set.",)


def test_far_apart_integer_ids_do_not_make_empty_rows(tmp_path: Path) -> None:
    train = load(write(tmp_path, train_txt="2000000000 1000000000 7\n")).split.train
    assert (train.n_users, train.n_items) == (1, 2)
    assert named(train) == {(2_000_000_000, 1_000_000_000), (2_000_000_000, 7)}


def test_csv_train_and_test_share_their_ids(tmp_path: Path) -> None:
    split = load(write(tmp_path, train_csv="user,item\n1,x\n2,y\n", test_csv="user,item\nbo,x\n")).split
    assert named(split.train) == {("1", "x"), ("2", "y")}  # 'bo' makes the column text, in both files
    assert named(split.test) == {("bo", "x")}


CLICKS = "user,item,rating,time\n" + "".join(
    f"u{u},i{i},{(u + i) % 5 + 1},{u * i % 7}\n" for u in range(6) for i in range(10)
)


def test_a_file_is_split_by_ratio_or_time(tmp_path: Path) -> None:
    path = write(tmp_path, clicks_csv=CLICKS) / "clicks.csv"
    dataset = load(str(path), validation=0.25, seed=3)
    sizes = describe(dataset)["sizes"]
    assert sizes == {"users": 6, "items": 10, "train": 36, "validation": 12, "test": 12}
    assert dataset.split_kind == "ratio"
    parts = [named(p) for p in (dataset.split.train, dataset.split.validation, dataset.split.test)]
    assert len(set.union(*parts)) == 60
    assert named(load(path, validation=0.25, seed=3).split.train) == parts[0]
    last = load(path, split="last").split.test
    assert last is not None
    assert last.n_pairs == 6
    assert ("u1", "i6") in named(last)
    three = load(path, split="last", leave_out=3).split.test
    assert three is not None
    assert set(three.user_degrees().tolist()) == {3}
    assert named(last) <= named(three)


WEEK = """user,item,time
ann,x,2024-01-01
ann,y,2024-01-02
bo,x,2024-01-02
bo,y,2024-01-03
ann,z,2024-01-04
bo,z,2024-01-05
zoe,x,2024-01-05
bo,w,2024-01-06
ann,w,2024-01-07
zoe,y,2024-01-07
"""


def test_one_cut_in_time_for_all(tmp_path: Path) -> None:
    """Half of ten pairs are after 4 January. Test has those of bo and z, which train knows; zoe and w are left out."""
    path = write(tmp_path, week_csv=WEEK) / "week.csv"
    dataset = load(path, split="time", test_ratio=0.5)
    split = dataset.split
    assert named(split.train) == {("ann", "x"), ("ann", "y"), ("bo", "x"), ("bo", "y"), ("ann", "z")}
    assert named(split.test) == {("bo", "z")}
    assert named(split.left_out) == {("zoe", "x"), ("zoe", "y"), ("bo", "w"), ("ann", "w")}
    assert split.validation is None
    assert "Test begins at 2024-01-05 00:00:00 UTC." in dataset.notes
    assert "4 later pairs of users or items that train does not know were left out." in dataset.notes
    assert named(split.known) == named(load(path, split="all").split.train)  # all pairs are known: none is recommended

    # Of the five pairs before the cut, two are after an earlier cut, for validation. Then train no longer knows z.
    split = load(path, split="time", test_ratio=0.5, validation=0.4).split
    assert named(split.train) == {("ann", "x"), ("ann", "y"), ("bo", "x")}
    assert named(split.validation) == {("bo", "y")}
    assert named(split.test) == set()
    assert ("ann", "z") in named(split.left_out)


def test_a_cut_in_time_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, day_csv=WEEK.replace("01-05", "01-07").replace("01-06", "01-07")) / "day.csv"
    with pytest.raises(DataError, match=r"the last 5 of 10 .* same time, 2024-01-07 .*: raise test_ratio to 0.5"):
        load(path, split="time", test_ratio=0.3)
    assert load(path, split="time", test_ratio=0.5).split.test is not None
    instant = write(tmp_path, instant_csv="user,item,time\na,x,7\na,y,7\nb,x,7\n") / "instant.csv"
    with pytest.raises(DataError, match=r"the last 3 of 3 .* same time, 7, .*: split by ratio"):
        load(instant, split="time", test_ratio=0.4)
    timeless = write(tmp_path, plain_csv="user,item\na,x\na,y\n") / "plain.csv"
    with pytest.raises(DataError, match="a cut in time needs to know when: give data with a time column"):
        load(timeless, split="time")


def test_ratings_and_k_core(tmp_path: Path) -> None:
    path = write(tmp_path, clicks_csv=CLICKS) / "clicks.csv"
    dataset = load(path, min_rating=4)
    assert "36 pairs rated below 4 were left out." in dataset.notes
    rated = load(path, keep_ratings=True).split.train
    assert rated.ratings is not None
    assert {1.0, 5.0} <= set(rated.ratings.tolist())
    with pytest.raises(DataError, match="leaves no pair"):
        load(path, min_rating=9)
    with pytest.raises(DataError, match="smaller k_core"):
        load(path, k_core=7)


def test_a_k_core_of_train_carries_over_to_test(tmp_path: Path) -> None:
    # The core is users 0, 1 and 3 with items 0, 1 and 2; of test only (0, 2) lies in it.
    write(tmp_path, train_txt="0 0 1\n1 0 1 2\n2 4\n3 2 1\n", test_txt="0 4 2\n2 1\n")
    dataset = load(tmp_path, k_core=2)
    assert named(dataset.split.train) == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (3, 1), (3, 2)}
    assert named(dataset.split.test) == {(0, 2)}
    assert "3 pairs outside the 2-core were left out." in dataset.notes


def test_a_given_split_can_be_drawn_afresh(tmp_path: Path) -> None:
    write(tmp_path, train_txt="0 0 1 2\n", test_txt="0 3 4\n")
    split = load(tmp_path, split="ratio", test_ratio=0.2).split
    assert named(split.train) | named(split.test) == {(0, i) for i in range(5)}
    assert split.test is not None
    assert split.test.n_pairs == 1


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'gowala'; known are demo, gowalla, .* Did you mean 'gowalla'\?"):
        load("gowala")
    with pytest.raises(DataError, match=r"gone\.csv does not exist"):
        load("gone.csv")
    with pytest.raises(DataError, match="it holds none"):
        load(tmp_path)
    with pytest.raises(DataError, match="one set of pairs"):
        load("demo", split="given")
    with pytest.raises(DataError, match="no split 'odd'"):
        load("demo", split="odd")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gowalla", "yelp2018"])
def test_the_public_sets_have_their_published_sizes(name: str) -> None:
    if not (Path(os.environ.get("FEDGREC_DATA") or "/nonexistent") / name).is_dir():
        pytest.skip(f"FEDGREC_DATA names no folder with {name}")
    dataset = load(name)
    known = SOURCES[name]
    assert describe(dataset)["sizes"] == {
        "users": known.users, "items": known.items,
        "train": known.train_pairs, "validation": 0, "test": known.test_pairs,
    }  # fmt: skip
    train = dataset.split.train
    assert (train.user_ids[12_345], train.item_ids.index(30_000)) == (12_345, 30_000)
    assert (train.user_degrees().min(), train.user_degrees().max()) == {
        "gowalla": (8, 811),
        "yelp2018": (16, 1848),
    }[name]
    assert dataset.notes == ()


def test_the_demo_is_a_small_world() -> None:
    dataset = load("demo")
    again = load("demo")
    train, test, places = dataset.split.train, dataset.split.test, dataset.places
    assert test is not None
    assert places is not None
    assert dataset.checksums == again.checksums
    assert (train.keys() == again.split.train.keys()).all()
    assert (train.n_users, train.n_items) == (1_500, 2_500)
    assert 45_000 <= train.n_pairs + test.n_pairs <= 55_000
    visits = train.user_degrees() + test.user_degrees()
    assert visits.min() >= 8  # sparse, with a heavy tail
    assert np.median(visits) < 25
    assert (visits > 100).sum() > 30
    assert len(set(places.names)) == len(places.names) == train.n_items
    assert places.coordinates.shape == (2_500, 2)
    assert len(places.town_names) == 12
    compute_upload = (places.town[train.items] == places.user_town[train.users()]).mean()
    assert 0.5 < compute_upload < 0.95  # most near home, some on trips
    late = load("demo", split="time", validation=0.1).split
    assert max(late.train.times) < min(late.validation.times) <= max(late.validation.times) < min(late.test.times)
    assert load("demo", split="last").split.test.n_pairs == 1_500  # type: ignore[union-attr]
    with pytest.raises(DataError, match="the demo has no ratings"):
        load("demo", min_rating=3)
