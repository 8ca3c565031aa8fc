"""Every format by hand, and every way a file can be wrong, by line."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgrec.data import readers, text_tables
from fedgrec.data.readers import Pairs, ending, read, stem
from fedgrec.errors import DataError


def write(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def rows(pairs: Pairs) -> list[tuple]:
    return list(zip(pairs.users.tolist(), pairs.items.tolist(), strict=True))


def test_lightgcn_text(tmp_path: Path) -> None:
    path = write(tmp_path, "train.txt", "0 3 1\r\n2\n\n1 10 \n0 7")
    pairs = read(path)
    assert rows(pairs) == [(0, 3), (0, 1), (1, 10), (0, 7)]
    assert pairs.sizes == (3, 11)  # user 2 counts, though it has no item


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "userId,movieId,rating,timestamp\n7,x,4,100\n8,y,2.5,200\n"),
        ("a.tsv", "stars\tuid\titem_id\ttime\n4\t7\tx\t100\n2.5\t8\ty\t200\n"),
        ("a.inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n7\tx\t4\t100\n8\ty\t2.5\t200\n"),
        ("ratings.dat", "7::x::4::100\n8::y::2.5::200\n"),
        ("bom.csv", "\ufeffuser,item,rating,time\n7,x,4,100\n\n8,\"y\",2.5,200\n"),
        ("date.csv", "user,item,score,date\n7,x,4,1970-01-01T00:01:40Z\n8,y,2.5,1970-01-01 00:03:20\n"),
    ],
)  # fmt: skip
def test_tables(tmp_path: Path, name: str, text: str) -> None:
    pairs = read(write(tmp_path, name, text), keep_ratings=True)
    assert rows(pairs) == [(7, "x"), (8, "y")]
    assert pairs.ratings is not None
    assert pairs.times is not None
    assert pairs.ratings.tolist() == [4, 2.5]
    assert pairs.times.tolist() == [100, 200]


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"user": [7, 8], "item_id": ["x", "y"], "rating": [4.0, 2.5]}), tmp_path / "a.parquet")
    pairs = read(tmp_path / "a.parquet", min_rating=3)
    assert rows(pairs) == [(7, "x")]
    assert pairs.low_rated is not None
    assert (len(pairs.low_rated.users), pairs.ratings) == (1, None)
    pq.write_table(pa.table({"user": [7, None], "item": ["x", "y"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, row 2: the user is missing"):
        read(tmp_path / "b.parquet")
    pq.write_table(pa.table({"user": ["Null", "b"], "item": ["nan", "y"]}), tmp_path / "e.parquet")
    assert rows(read(tmp_path / "e.parquet")) == [("Null", "nan"), ("b", "y")]  # names: a missing value is no text here
    pq.write_table(pa.table({"user": [[7], [8]], "item": ["x", "y"]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet, row 1: the user \[7\] cannot be an id"):
        read(tmp_path / "d.parquet")
    write(tmp_path, "c.parquet", "no")
    with pytest.raises(DataError, match="not a parquet file"):
        read(tmp_path / "c.parquet")


def test_ids_are_integers_only_if_all_are_written_as_such(tmp_path: Path) -> None:
    pairs = read(write(tmp_path, "a.csv", "user,item\n007,1\n7,-2\n"))
    assert rows(pairs) == [("007", 1), ("7", -2)]
    long = "9" * 25
    assert rows(read(write(tmp_path, "b.csv", f"user,item\n{long},1\n"))) == [(long, 1)]


def test_columns_can_be_named_and_ratings_are_a_threshold(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "who,what,how,rating\na,x,5,1\na,y,3,1\nb,x,4,1\n")
    pairs = read(path, user="who", item="what", rating="how", min_rating=4)
    assert rows(pairs) == [("a", "x"), ("b", "x")]
    assert pairs.low_rated is not None
    assert (len(pairs.low_rated.users), pairs.ratings) == (1, None)


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("train.txt", "0 1 2\n1 2 x3\n", {}, "train.txt:2: 'x3' is not an integer id"),
        ("train.txt", "0 1\n\n1 2 -3\n", {}, "train.txt:3: the id '-3' is negative"),
        ("train.txt", "0 1.5\n", {}, "train.txt:1: '1.5' is not an integer id"),
        ("train.txt", "0\n1 99999999999999999999\n", {}, "train.txt:2: '99999999999999999999' is too large"),
        ("train.txt", b"0 1\n\xff 2\n", {}, "train.txt:2: '\ufffd' is not an integer id"),
        ("train.txt", " \n", {}, "train.txt is empty"),
        ("train.txt", "0 1\n", {"min_rating": 3}, "train.txt has no ratings"),
        ("a.csv", "", {}, "a.csv is empty"),
        ("a.csv", "user,item\n", {}, "a.csv has a header but no rows"),
        ("a.csv", "who,item\n1,2\n", {}, "a.csv:1: there is no user column 'user'; the columns are who,"),
        ("a.csv", "user,item\n1,2\n", {"item": "x"}, "a.csv:1: there is no item column 'x'"),
        ("a.csv", "user,item\n1,2\n", {"min_rating": 1}, "a.csv:1: there is no rating column 'rating'"),
        ("a.csv", "user,item\n1,2\n", {"time": "when"}, "a.csv:1: there is no time column 'when'"),
        ("a.csv", "user,item\n1,2\n1,2,3\n", {}, "a.csv:3: 3 fields where 2 belong (user, item)"),
        ("a.csv", "user,item\n1,2\n,3\n", {}, "a.csv:3: the user is missing"),
        ("a.csv", "user,item\n1,2\n3,NaN\n", {}, "a.csv:3: the item is 'NaN', which programs write for a missing"),
        ("a.csv", "user,item\nnull ,2\n3,4\n", {}, "a.csv:2: the user is 'null', which"),
        ("a.csv", "user,item\n1,2\n", {"item": "user"}, "a.csv:1: the column 'user' cannot hold both users and items"),
        ("a.csv", "id,item\n1,2\n", {"user": "id", "item": "id"}, "a.csv:1: the column 'id' cannot hold both"),
        ("a.csv", b"user,item\n1,2\n1,\xe9\n", {}, "a.csv:3: not UTF-8 text"),
        ("a.csv", "user,item,rating\n1,2,5\n1,3,bad\n", {"keep_ratings": True}, "a.csv:3: the rating 'bad'"),
        ("a.csv", "user,item,rating\n1,2,nan\n", {"keep_ratings": True}, "a.csv:2: the rating 'nan'"),
        ("a.csv", "user,item,time\n1,2,noon\n", {}, "a.csv:2: the time 'noon' is neither"),
        ("r.dat", "1::2::3::4\n1::2\n", {}, "r.dat:2: 2 fields where 4 belong"),
        ("a.xls", "", {}, "the format '.xls' is not known; use .txt, .csv"),
    ],
)  # fmt: skip
def test_bad_files_are_named_by_line(tmp_path: Path, name: str, text: str | bytes, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(write(tmp_path, name, text), **options)


def test_an_absent_file_is_said_to_be_absent(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv does not exist"):
        read(tmp_path / "gone.csv")


# ------------------------------------------------------------------------------------- fast and slow twins


def found(path: Path, **options: Any) -> Any:
    """All that a file gives, or what is said of it."""
    try:
        pairs = read(path, **options)
    except DataError as error:
        return str(error)
    return [
        None if part is None else (part.dtype.kind, part.tolist())
        for part in (pairs.users, pairs.items, pairs.ratings, pairs.times)
    ] + [pairs.note]


def by_both(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Any]:
    fast = found(path, **options)
    with monkeypatch.context() as without:
        without.setattr(readers, "read_fast", lambda *_: None)
        return fast, found(path, **options)


CELLS = st.sampled_from(
    ["1", "7", "007", " 7", "-3", "x", "", " ", "NaN", "null", "é", "4.5", "4,5", "1e3", '"', '"q"', '"a\nb"', "\0",
     "\r", "\x1f", "🦊", "2024-01-31", "9" * 19, "inf", ":", "::", ";", "a b", "\u2028", "\x1c7"]
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(CELLS, min_size=3, max_size=4), min_size=0, max_size=5),
    usual=st.lists(st.tuples(*[st.sampled_from(["1", "2", "u3"])] * 3), max_size=4),
    end=st.sampled_from(["\n", "\r\n", "\n\n", "\r"]),
    mark=st.sampled_from([",", ";", "\t", "::"]),
    name=st.sampled_from(["a.csv", "a.tsv", "a.dat", "a.csv.gz", "a.inter"]),
    head=st.sampled_from(["user,item,rating", "\ufeffuser,item,time", "\n\nitem,user_id,rating", "user,item,item"]),
    options=st.sampled_from([{}, {"keep_ratings": True}, {"time": None}, {"min_rating": 2.0, "item": "rating"}]),
)
def test_the_fast_reader_gives_and_says_what_the_slow_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: Any, usual: Any, end: str, mark: str, name: str, head: str,
    options: Any,
) -> None:  # fmt: skip
    pytest.importorskip("pyarrow")
    text = head.replace(",", mark) + end + "".join(mark.join(row) + end for row in [*usual, *rows, *usual])
    data = text.encode()
    path = write(tmp_path, name, gzip.compress(data) if name.endswith(".gz") else data)
    fast, slow = by_both(path, monkeypatch, **options)
    assert fast == slow


def test_the_fast_reader_is_taken_for_plain_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare the slow reader with itself."""
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(readers, "read_rows", None)
    rows_ = [(f"u{n % 7}", n) for n in range(5_000)]
    for name, mark, head in (("a.csv", ",", "user,item\n"), ("a.tsv", "\t", "user\titem\n"), ("a.dat", "::", "")):
        rest = "::1::1" if name == "a.dat" else ""
        text = head + "".join(f"{user}{mark}{item}{rest}\n" for user, item in rows_)
        assert rows(read(write(tmp_path, name, text))) == rows_


def test_a_header_is_judged_before_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "a.csv", "who,item\n" + "1,2\n" * 100_000)
    monkeypatch.setattr(text_tables, "contents", None)  # what reads a whole file
    with pytest.raises(DataError, match=r"there is no user column 'user'; .* with  --set user_column=NAME$"):
        read(path)
    with pytest.raises(TypeError):
        read(path, user="who")


def test_a_header_may_be_longer_than_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "BEGINNING", 16)
    for text in ("user,item,a long name of a column\n1,2,3\n", "\n" * 40 + "user,item\n1,2\n", "user,item\n1,2\n4,5\n"):
        fast, slow = by_both(write(tmp_path, "a.csv", text), monkeypatch)
        assert fast == slow
        assert fast[0][1][0] == 1


# ------------------------------------------------------------------------------- csv as people have it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"user,item\n1,2\n1,{'x' * 140_000}\n", "a.csv:3: a field of more than 131,072 characters"),
        ('user,item\n1,2\n1,"x\n' + "2,3\n" * 40_000, "a.csv:3: a field of more than 131,072 characters"),
        ('user,item\n1,2\n2,"x\n3,4\n5,6\n', "a.csv:3: a quote opens on this line and is never closed"),
        ('user,item\n1,2\n2,"x', "a.csv:3: a quote opens on this line and is never closed"),
        ('user,item\n1,2\n2,"x\n3,y"\n5,6\n', "a.csv:3: a quoted item goes on to line 4"),
        ('user,item\n1,2\n2,"x\n3,y",8\n5,6\n', "a.csv:3: 3 fields where 2 belong (user, item), in a quoted field"),
        ("user,item\n1,2\n2,a\0b\n", "a.csv:3: there is a NUL byte"),
        ("u\0s\0e\0r\0", "a.csv:1: there is a NUL byte"),
        ("user item\n1 2\n", "a.csv:1: the columns seem to be separated by spaces"),
        ("1,31,4.5\n1,32,3\n", "a.csv:1: there is no user column 'user'; the columns are 1, 31, 4.5"),
        ("1,31,4.5\n1,32,3\n", "write a header above the first line, such as user,item,rating"),
        ("user,item,item\n1,2,3\n", "a.csv:1: there are 2 columns 'item'"),
        ("user,item\n1,  \n", "a.csv:2: the item is missing"),
        ('user,item,rating\n1,2,"4,5"\n', "a.csv:2: the rating '4,5' is not a number; write it with a point"),
        ("user;item;rating\n1;2;4,5\n1;3;1.000\n", "a.csv:2: the rating '4,5' is not a number; write it with a point"),
    ],
)  # fmt: skip
def test_what_csv_files_do_wrong_is_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(write(tmp_path, "a.csv", text), keep_ratings="rating" in text)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.csv", "user;item;rating\nann;x, y;4\nbo;z;2\n", "semicolons"),
        ("a.csv", "user\titem\trating\nann\tx, y\t4\nbo\tz\t2\n", "tabs"),
        ("a.csv", "user|item|rating\nann|x, y|4\nbo|z|2\n", "vertical bars"),
        ("a.tsv", 'user,item,rating\nann,"x, y",4\nbo,z,2\n', "commas"),
        ("a.tsv", "user;item;rating\nann;x, y;4\nbo;z;2\n", "semicolons"),
        ("a.csv", "user::item::rating\nann::x, y::4\nbo::z::2\n", "double colons"),
        ("a.inter", "user:token|item:token|rating:float\nann|x, y|4\nbo|z|2\n", "vertical bars"),
        ("a.dat", "ann\tx, y\t4\t7\nbo\tz\t2\t8\n", "tabs"),
    ],
)
def test_the_header_says_what_separates_the_columns(tmp_path: Path, name: str, text: str, word: str) -> None:
    pairs = read(write(tmp_path, name, text), keep_ratings=True)
    assert rows(pairs) == [("ann", "x, y"), ("bo", "z")]
    assert pairs.note == f"{name} is read with {word} between its columns."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("user,item;x\nann,1\n", None),  # the header has a comma, so commas separate: no item column
        ("user,item,a;b\nann,x,1\n", [("ann", "x")]),
        ('user,item\nann,"x;y"\n', [("ann", "x;y")]),
    ],
)
def test_what_separates_is_not_guessed_where_a_header_has_commas(tmp_path: Path, text: str, found: list | None) -> None:
    path = write(tmp_path, "a.csv", text)
    if found is None:
        with pytest.raises(DataError, match="no item column"):
            read(path)
    else:
        assert (rows(read(path)), read(path).note) == (found, "")


def test_decimal_commas_are_read_where_commas_do_not_separate(tmp_path: Path) -> None:
    pairs = read(write(tmp_path, "a.csv", "user;item;rating\nann;x;4,5\nbo;y;3\n"), min_rating=3.5, keep_ratings=True)
    assert (rows(pairs), pairs.ratings.tolist()) == ([("ann", "x")], [4.5])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffuser;item\n7;x\n"),
        ("a.tsv", "user\titem\n7\tx\n"),
        ("a.inter", "user_id:token\titem_id:token\n7\tx\n"),
        ("a.dat", "7::x::4::100\n"),
        ("train.txt", "7 3\n"),
    ],
)
def test_packed_files_are_read_like_others(tmp_path: Path, name: str, text: str) -> None:
    plain, packed = write(tmp_path, name, text), tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert rows(read(packed)) == rows(read(plain))
    assert (ending(packed), stem(packed)) == (plain.suffix, plain.stem)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv.gz", gzip.compress(b"user,item\n1,2\n" * 99, mtime=0)[:-9], "a.csv.gz is not a whole gzip archive (C"),
        ("a.csv.gz", b"user,item\n1,2\n", "if it is not packed, take .gz off its name"),
        ("a.csv.gz", gzip.compress(b"user,item\n1,2\n,3\n", mtime=0), "a.csv.gz:3: the user is missing"),
        ("a.csv.gz", b"", "a.csv.gz is empty"),
        ("a.gz", b"", "a.gz is packed: unpack it, or name it a.csv.gz"),
        ("a.parquet.gz", b"", "a.parquet.gz is packed"),
        ("a.csv.zip", b"", "a.csv.zip is packed: unpack it first"),
    ],
)  # fmt: skip
def test_packed_files_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        read(write(tmp_path, name, data))


def test_a_time_that_nobody_needs_stops_nobody(tmp_path: Path) -> None:
    from fedgrec.data import load

    text = "user,item,time\n" + "".join(f"u{n % 3},i{n},noon\n" for n in range(30))
    path = write(tmp_path, "a.csv", text)
    assert load(path, split="ratio", time="when").split.train.n_pairs == 24  # nor does its name
    for split in ("last", "time"):
        with pytest.raises(DataError, match=r"a\.csv:2: the time 'noon' is neither"):
            load(path, split=split)  # type: ignore[arg-type]


def test_the_note_reaches_the_data_set(tmp_path: Path) -> None:
    from fedgrec.data import load

    text = "user;item\n" + "".join(f"ann;{n}\nbo;{n}\n" for n in range(8))
    assert "a.csv is read with semicolons between its columns." in load(write(tmp_path, "a.csv", text)).notes


def test_quoted_fields_of_several_lines_are_legal_where_they_are_no_ids(tmp_path: Path) -> None:
    text = 'user,item,review\nann,x,"good\nvery ""good"""\nbo,y,"Said ""no"""\ncy,z,"last\n"\n'
    assert rows(read(write(tmp_path, "a.csv", text))) == [("ann", "x"), ("bo", "y"), ("cy", "z")]
    with pytest.raises(DataError, match=r"a\.csv:4: the user is missing"):  # lines are those of the file
        read(write(tmp_path, "a.csv", 'user,item,review\nann,x,"good\nbad"\n,y,no\n'))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_odd_but_honest_ids_stay_what_they_are(tmp_path: Path, end: str) -> None:
    ids = ["007", "🦊", "Paris, Texas", "NA", "x" * 5_000, "99999999999999999999", "1.0", "-3"]
    text = "\ufeffuser,item" + end + "".join(f'"{i}","{i}"{end}' for i in ids)
    assert rows(read(write(tmp_path, "a.csv", text))) == [(i, i) for i in ids]


def test_numbers_beyond_64_bits_in_parquet_stay_what_they_are(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    large = pa.array([2**64 - 1, 3], pa.uint64())
    pq.write_table(pa.table({"user": large, "item": ["x", "y"]}), tmp_path / "a.parquet")
    assert rows(read(tmp_path / "a.parquet")) == [(2**64 - 1, "x"), (3, "y")]
    pq.write_table(pa.table({"user": [1.0, float("nan")], "item": ["x", "y"]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, row 2: the user is missing"):
        read(tmp_path / "b.parquet")
