"""Item titles: given in a file, kept by the run, used by every command that shows items."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.data import IdMap
from fedgrec.data.item_names import KEPT, read_names
from fedgrec.errors import DataError
from fedgrec.pages.report.gather import read_run
from tests.cli.small import train
from tests.cli.test_options import refused


def written(folder: Path, text: str, name: str = "titles.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def every_title(folder: Path, word: str = "The Book of") -> Path:
    rows = "".join(f'book{i},"{word} {i}, 2nd",{i / 9},{i}\n' for i in range(47))  # book47 has none
    return written(folder, f"item_id,Name,lat,lon\n{rows}cup,A cup,1,1\n")


def test_a_run_keeps_what_it_was_given_and_a_later_file_wins(capsys: Any, data: Path, tmp_path: Path) -> None:
    given, run = every_title(tmp_path), tmp_path / "run"
    assert cli.main(["train", "--data", str(data), "--out", str(run), "--rounds", "2", "--dim", "4", "--kernel",
                     "reference", "--item-names", str(given)]) == 0  # fmt: skip
    assert "1 of 48 rows in titles.csv name items that are not in the data." in capsys.readouterr().out
    assert cli.main(["finish", str(run), "--quiet"]) == 0
    given.unlink()
    for folder in (run, tmp_path / "run-final"):
        assert cli.main(["recommend", str(folder), "--items", "book1,book47"]) == 0
        first, *rows = capsys.readouterr().out.splitlines()[1:]  # under the note
        assert first == "knows: The Book of 1, 2nd (item book1), book47"
        assert all("The Book of" in row for row in rows)
    assert cli.main(["recommend", str(run), "--items", "book1", "--json", "-n", "48"]) == 0
    lines = {line["item"]: line.get("title") for line in json.loads(capsys.readouterr().out)}
    assert (lines["book2"], lines["book47"]) == ("The Book of 2, 2nd", None)
    assert (
        cli.main(["recommend", str(run), "--items", "book1", "--item-names", str(every_title(tmp_path, "Volume"))]) == 0
    )
    assert "knows: Volume 1, 2nd" in capsys.readouterr().out

    assert "The Book of 2, 2nd" in read_run(run, None).names.titles
    assert cli.main(["report", str(run), "--item-names", str(tmp_path / "titles.csv")]) == 0
    assert "Volume" in (page := (run / "report.html").read_text())
    assert 'id="near"' in page, "items with places have maps"
    assert cli.main(["export", str(run), "--page", str(tmp_path / "page")]) == 0
    assert '"The Book of 2, 2nd"' in (tmp_path / "page" / "items.js").read_text()

    assert cli.main(["train", "--out", str(run), "--resume", "--item-names", str(tmp_path / "titles.csv")]) == 0
    assert "Volume" in (run / KEPT).read_text(), "also where the run is complete"


def test_rows_find_their_items(tmp_path: Path) -> None:
    path = written(tmp_path, "id;title;x;y\n2;two;1;-2,5\n07;seven;;\n99;none;3;3\n")
    names = read_names(path, IdMap([7, 2, 5]))
    assert [names.title(i) for i in range(3)] == ["seven", "two", "5"]
    assert names.places is not None
    np.testing.assert_equal(names.places, [[np.nan, np.nan], [1, -2.5], [np.nan, np.nan]])
    assert not names.on_earth
    assert "1 of 3 rows" in names.note


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "titles.csv is empty"),
        ("item,title\n", "has a header but no rows"),
        (
            "item,price\n1,2\n",
            ":1: there is no column 'title'; the columns are item, price: name the one with the items' ",
        ),
        ("title\na\n", ":1: there is no column 'item'"),
        ("item,title\n1,a\n2,b\n1,c\n", ":4: line 2 names the item '1' already; remove one of the two"),
        ("item,title\n1,a\n01,b\n", ":3: line 2 names the item '01' already"),
        ("item,title\n,a\n", ":2: the item is missing"),
        (
            "item,title,lat,lon\n1,a,b,3\n",
            ":2: the latitude 'b' is not a number from −90 to 90; mend it, or empty both",
        ),
        ("item,title,lat,lon\n1,a,91,3\n", ":2: the latitude '91' is not a number from"),
        ("item,title,x,y\n1,a,nan,3\n", ":2: the x 'nan' is not a number; mend it"),
        ("item,title,x,y\n1,a,,3\n", ":2: one of x and y is missing; fill it in, or empty both"),
        ("item,title,lat\n1,a,3\n", ":1: there is a column 'latitude' and no 'longitude'"),
        ("item,title,title\n1,a,b\n", ":1: there are 2 columns 'title'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read_names(written(tmp_path, text), IdMap.range(5))
    assert sentence in str(caught.value)


def test_no_run_begins_with_names_that_cannot_be_read(capsys: Any, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "--data", str(data), "--out", str(run), "--item-names"]
    assert "does not exist: give --item-names a CSV file" in refused(capsys, *words, str(tmp_path / "gone.csv"))
    assert "already; remove one" in refused(capsys, *words, str(written(tmp_path, "item,title\na,b\na,c\n")))
    assert not run.exists()


def test_without_names_ids_are_the_names(capsys: Any, data: Path, tmp_path: Path) -> None:
    run = train(data, tmp_path / "run")
    assert not (run / KEPT).exists()
    assert cli.main(["recommend", str(run), "--items", "book1"]) == 0
    assert capsys.readouterr().out.startswith("knows: book1\n")
