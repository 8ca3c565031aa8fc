"""What a finished run answers: for people it knows, for people it never met, and for items."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.config.configuration import Config
from fedgrec.data import IdMap, Interactions
from fedgrec.errors import DataError
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.models.model import Model
from tests.cli.small import train
from tests.cli.test_options import refused


def answer(capsys: Any, run: Path, *words: str) -> dict[Any, float]:
    assert cli.main(["recommend", str(run), *words, "--json"]) == 0
    ranked = {line["item"]: line["score"] for line in json.loads(capsys.readouterr().out)}
    assert list(ranked.values()) == sorted(ranked.values(), reverse=True)
    return ranked


def saved(folder: Path, names: list[str], items: Any, degrees: Any, ann: Any, has: list[str]) -> Path:
    """A model with K = 1 in the plane, and one user, ann, who learnt from the first item that she has."""
    config = Config().changed({"layers": 1, "dim": 2}, "test")
    method, item_ids = FedGRecMethod(config.model, len(names), 1), IdMap(names)
    user = method.init_users(np.array([7], np.uint64), np.array([0, 1]), np.array([item_ids.index(has[0])], np.int32))
    user.state.embeddings[:] = ann
    known = Interactions.from_pairs(["ann"] * len(has), has, user_ids=IdMap(["ann"], "user"), item_ids=item_ids)
    server = replace(method.init(0), items=np.asarray(items, np.float32), degrees=np.array(degrees), round=3)
    Model.of(config, server, user, known).save(folder)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Four items; ann learnt from tea and is known to like rum too."""
    items = [[[1, 0], [0, 1], [1, 1], [3, 3]], [[1, 0], [0, 2], [1, 0], [0, 0]]]
    return saved(tmp_path, ["tea", "rum", "ale", "gin"], items, [1, 4, 9, 1], [[2, 1], [0, 0]], ["tea", "rum"])


def test_a_stranger_is_represented_by_equation_6_alone(capsys: Any, tiny: Path) -> None:
    # Likes rum (degree 4) and ale (degree 9): e_u^1 = (0, 1)/√(4·2) + (1, 1)/√(9·2), e_u^0 = 0, each by ½.
    user = (np.array([0, 1]) / np.sqrt(8) + np.array([1, 1]) / np.sqrt(18)) / 2
    tea, gin = np.array([1, 0]), np.array([1.5, 1.5])  # (e_t^0 + e_t^1) / 2
    ranked = answer(capsys, tiny, "--items", "rum, ale,rum")
    assert ranked == pytest.approx({"gin": user @ gin, "tea": user @ tea}, rel=1e-6)


def test_a_known_user_also_has_an_embedding_of_its_own(capsys: Any, tiny: Path) -> None:
    # Likes tea (degree 1): e_u^1 = (1, 0)/√(1·1); with e_u^0 = (2, 1) that is (1.5, 0.5).
    ranked = answer(capsys, tiny, "--user", "ann")
    assert ranked == pytest.approx({"gin": 3.0, "ale": 1.75}, rel=1e-6)


def test_similar_items_point_the_same_way_however_long_they_are(capsys: Any, tiny: Path) -> None:
    # Combined: tea (1, 0), rum (0, 1.5), ale (1, ½), gin (1.5, 1.5).
    ranked = answer(capsys, tiny, "--similar", "tea")
    assert ranked == pytest.approx({"ale": 1 / np.sqrt(1.25), "gin": np.sqrt(0.5), "rum": 0.0}, abs=1e-6)
    assert list(ranked) == ["ale", "gin", "rum"]


def test_candidates_come_from_files(capsys: Any, tiny: Path, tmp_path: Path) -> None:
    some, closed, all_of = tmp_path / "some.txt", tmp_path / "closed.txt", tmp_path / "all.txt"
    some.write_text("gin\n\nale\nale\n")
    closed.write_text("gin\n")
    all_of.write_text("ale\ngin\ntea\nrum\n")
    for who in (["--user", "ann"], ["--items", "rum"], ["--similar", "rum"]):
        whole = answer(capsys, tiny, *who)
        only = answer(capsys, tiny, *who, "--only", str(some))
        assert only == {item: whole[item] for item in whole if item in ("gin", "ale")}
        left = answer(capsys, tiny, *who, "--without", str(closed), "-n", "9999999999")
        assert left == {item: whole[item] for item in whole if item != "gin"}
        assert list(answer(capsys, tiny, *who, "--only", str(some), "--without", str(closed))) == ["ale"]
    table = ["recommend", str(tiny), "--all", "--out", str(tmp_path / "l.csv"), "--only", str(some)]
    assert cli.main([*table, "--without", str(closed)]) == 0
    assert (tmp_path / "l.csv").read_text().splitlines()[1:] == ["ann,ale,1.75,1"]
    assert cli.main(["recommend", str(tiny), "--items", "gin,ale", "--only", str(some)]) == 0
    assert "Nothing is left to recommend: all 2 items are known." in capsys.readouterr().out
    words = ("recommend", str(tiny), "--user", "ann", "--only", str(some), "--without")
    assert "--only and --without leave no item" in refused(capsys, *words, str(all_of))
    closed.write_text("gin\nvodka\n")
    assert "closed.txt:2: there is no item 'vodka' in the data" in refused(capsys, *words, str(closed))


def test_a_score_is_explained_by_hand(capsys: Any, tiny: Path) -> None:
    # Ann's own part is (2, 1)/2, tea's is (1, 0)/2; gin is (1.5, 1.5).
    words = ["explain", str(tiny), "--user", "ann", "--item", "gin"]
    assert cli.main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"item": "gin", "score": 3.0, "own": 2.25, "items": [["tea", 0.75]]}
    (tiny / "titles.csv").write_text("item,title\ntea,Green tea\n")
    assert cli.main([*words, "--item-names", str(tiny / "titles.csv")]) == 0
    rows = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert rows == [["Green tea (item tea)", "0.7500"], ["the user's own part", "2.2500"], ["gin", "3.0000"]]
    assert "there is no item 'gun' in the data. Did you mean 'gin'?" in refused(capsys, *words[:-1], "gun")


def test_what_is_not_listed_of_an_explanation_is_summed(capsys: Any, finished: Path) -> None:
    words = ["explain", str(finished), "--user", "ann1", "--item", "book3", "-n", "2"]
    assert cli.main(words) == 0
    *terms, score = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(terms) == 4, "two items, the others, and the user's own part"
    assert sum(terms) == pytest.approx(score, abs=3e-4)


def test_what_a_person_has_never_comes_back_and_everything_else_does(capsys: Any, finished: Path, data: Path) -> None:
    """Items in train, validation and test alike, under the ids of the data."""
    pairs = {tuple(line.split(",")) for line in data.read_text().splitlines()[1:]}
    for user in Model.load(finished).user_ids:
        has = {item for who, item in pairs if who == user}
        assert has
        assert set(answer(capsys, finished, "--user", user, "-n", "1000")) == {f"book{i}" for i in range(48)} - has


def test_a_stranger_is_never_shown_what_they_named(capsys: Any, finished: Path) -> None:
    ranked = answer(capsys, finished, "--items", "book1,book2,book3", "-n", "1000")
    assert set(ranked) == {f"book{i}" for i in range(48)} - {"book1", "book2", "book3"}


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """Items whose names have commas, quotes and spaces."""
    names = ["Paris, Texas", "book-3", 'The "Best" of', "1984", "a,b,c"]
    items = np.random.default_rng(0).normal(size=(2, 5, 2))
    return saved(tmp_path, names, items, [1] * 5, np.ones((2, 2)), ["book-3"])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["Paris, Texas"], {"Paris, Texas"}),  # the whole text is an id
        (["a,b,c"], {"a,b,c"}),
        (['"Paris, Texas",book-3'], {"Paris, Texas", "book-3"}),
        (['book-3, "a,b,c" '], {"a,b,c", "book-3"}),
        (["Paris, Texas", "book-3,1984"], {"Paris, Texas", "book-3", "1984"}),  # --items twice
        (['The "Best" of'], {'The "Best" of'}),
        (['"The ""Best"" of",1984'], {'The "Best" of', "1984"}),
    ],
)
def test_items_with_commas_can_be_named(capsys: Any, films: Path, words: list[str], named: set[str]) -> None:
    every = {"Paris, Texas", "book-3", 'The "Best" of', "1984", "a,b,c"}
    given = [word for text in words for word in ("--items", text)]
    assert set(answer(capsys, films, *given)) == every - named


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["Paris,Texas"], "there is no item 'Paris' in the data. Did you mean 'Paris, Texas'?"),
        (["book-3", "bok-3"], "there is no item 'bok-3' in the data. Did you mean 'book-3'?"),
        (['"Paris, Texas'], '--items "Paris, Texas: a quote is not closed'),
        ([""], "name at least one item"),
        ([" , ", ","], "name at least one item"),
    ],
)
def test_items_that_are_not_there_are_named(capsys: Any, films: Path, words: list[str], sentence: str) -> None:
    given = [word for text in words for word in ("--items", text)]
    assert sentence in refused(capsys, "recommend", str(films), *given)


def test_numbers_that_are_not_there_are_told_the_range() -> None:
    with pytest.raises(DataError, match=r"there is no user '48' in the data: they are numbered from 0 to 47"):
        IdMap.range(48, "user").parse("48")
    with pytest.raises(DataError, match=r"there is no user '1236' in the data. Did you mean '1234'\?"):
        IdMap([1234, 77], "user").parse("1236")


def test_a_person_reads_what_a_program_reads(capsys: Any, finished: Path) -> None:
    ranked = answer(capsys, finished, "--user", "ann3", "-n", "4")
    assert cli.main(["recommend", str(finished), "--user", "ann3", "-n", "4"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("knows: book")
    assert [row.split() for row in rows] == [
        [f"{rank}.", item, f"{score:.4f}"] for rank, (item, score) in enumerate(ranked.items(), 1)
    ]


def test_whom_nobody_knows_is_answered_with_the_nearest(capsys: Any, finished: Path, tiny: Path) -> None:
    assert "there is no user 'anne1' in the data. Did you mean 'ann1" in refused(
        capsys, "recommend", str(finished), "--user", "anne1"
    )
    assert "there is no item 'bok3' in the data. Did you mean 'book3'?" in refused(
        capsys, "recommend", str(finished), "--items", "book1,bok3"
    )
    assert "name at least one item" in refused(capsys, "recommend", str(finished), "--items", " , ")
    assert "ask for at least one item" in refused(capsys, "recommend", str(finished), "--user", "ann1", "-n", "0")


def test_without_latents_newcomers_are_folded_in(capsys: Any, data: Path, tmp_path: Path) -> None:
    run = train(data, tmp_path / "mf", layers=0)
    assert answer(capsys, run, "--user", "ann1")
    assert set(answer(capsys, run, "--items", "book1", "-n", "48")) == {f"book{i}" for i in range(48)} - {"book1"}


def test_evaluating_again_gives_the_result_of_the_run(capsys: Any, finished: Path, data: Path, tmp_path: Path) -> None:
    for run in (finished, train(data, tmp_path / "paper", protocol="paper", kernel="auto", topk="5,20")):
        assert cli.main(["evaluate", str(run), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        result = json.loads((run / "result.json").read_text())
        assert again == {key: result[key] for key in again}
        assert {"round", "split", "protocol", "users", "recall@20", "ndcg@20"} <= set(again)


def test_validation_and_other_list_lengths_can_be_looked_at(capsys: Any, finished: Path) -> None:
    assert cli.main(["evaluate", str(finished), "--split", "validation", "--topk", "3,20", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    chosen = next(line for line in lines if line["split"] == "validation" and line["round"] == again["round"])
    assert again["recall@20"] == chosen["recall@20"] == max(x["recall@20"] for x in lines if x["split"] == "validation")
    assert again["recall@3"] <= again["recall@20"]
    assert cli.main(["evaluate", str(finished), "--ndcg-ideal", "paper"]) == 0
    assert "ndcg@20" in capsys.readouterr().out


def test_a_run_without_the_split_says_so(capsys: Any, data: Path, tmp_path: Path) -> None:
    run = train(data, tmp_path / "paper", protocol="paper")
    assert "has no validation items under the protocol 'paper'" in refused(
        capsys, "evaluate", str(run), "--split", "validation"
    )


def test_a_run_is_not_judged_on_other_data(capsys: Any, data: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(data.read_text())
    run = train(mine, tmp_path / "run")
    mine.write_text(data.read_text().replace("book3", "book4"))
    assert "the data is not what" in refused(capsys, "evaluate", str(run))


def test_everybodys_lists_are_one_table(capsys: Any, finished: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    users, out, names = tmp_path / "users.txt", tmp_path / "lists.parquet", tmp_path / "titles.csv"
    users.write_bytes("\ufeffann3\r\n\nann1\nann3\n".encode())  # as some editors write it, and one of them twice
    names.write_text("item,title\n" + "".join(f"book{item},The {item}th\n" for item in range(100)))
    words = ["recommend", str(finished), "--all", "--users-from", str(users), "--out", str(out), "-n", "4"]
    assert cli.main(words) == 0
    assert "8 recommendations for 2 users" in capsys.readouterr().out
    assert pq.read_table(out).column_names == ["user", "item", "score", "rank"]
    assert cli.main([*words, "--item-names", str(names)]) == 0
    assert capsys.readouterr().out
    rows = pq.read_table(out).to_pylist()
    assert all(row["title"] == f"The {row['item'].removeprefix('book')}th" for row in rows)
    assert [row["rank"] for row in rows] == [1, 2, 3, 4] * 2
    for user in ("ann3", "ann1"):
        mine = {row["item"]: row["score"] for row in rows if row["user"] == user}
        assert mine == pytest.approx(answer(capsys, finished, "--user", user, "-n", "4"), rel=1e-6)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--all"], "--all needs --out FILE"),
        (["--all", "--out", "lists.xlsx"], "name a file that ends in .csv or .parquet"),
        (["--user", "ann1", "--out", "lists.csv"], "--out and --users-from go with --all"),
        (["--all", "--out", "lists.csv", "--json"], "leave out --json"),
        (["--all", "--out", "no-folder/lists.csv"], "could not be written"),
        (
            ["--all", "--users-from", "users.txt", "--out", "lists.csv"],
            "users.txt:2: there is no user 'bob' in the data",
        ),
        (["--all", "--users-from", "nobody.txt", "--out", "lists.csv"], "names no user: write one id a line"),
        (["--all", "--users-from", "gone.txt", "--out", "lists.csv"], "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_made_leaves_nothing(
    capsys: Any, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("users.txt").write_text("ann1\nbob\n")
    Path("nobody.txt").write_text("\n")
    assert sentence in refused(capsys, "recommend", str(finished.resolve()), *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nobody.txt", "users.txt"]
