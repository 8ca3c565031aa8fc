"""One list of rows in four formats, each well formed."""

import csv
import io
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fedgrec.pages import tables as formats
from fedgrec.pages.tables import latex, markdown, terminal
from fedgrec.studies.compare import results
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.results import grid
from fedgrec.studies.compare.rows import Estimate, Figure, Row, ranked, row

FED = Row(
    "fedgrec:layers=3", "fedgrec", True, "honest", (0, 1, 2), Estimate(0.1829, 0.0004, "seeds", 3),
    Estimate(0.1553, 0.0002, "seeds", 3), Figure(0.1654, 0.1362, "Li and Huang 2022, Table 2"),
    (39_000, 40_000, 40_000), 40_000, 5.5e6, 1.234e9, 2.2e9, 1234.5,
)  # fmt: skip
GCN = Row(
    "lightgcn", "lightgcn", False, "honest", (0,), Estimate(0.19, 0.0031, "users", 29_858),
    Estimate(0.1555, 0.0030, "users", 29_858), Figure(0.1823, None, "a & b"), (900,), 1000, seconds=31.0,
)  # fmt: skip
LOST = Row("50%_off|#1{x}~^\\", "ngcf", False, "honest", (), note="failed: the loss is 5 % & $nan$, see a_b")
TABLE = results.Table("gowalla", "honest", 20, ranked([LOST, FED, GCN]))


def test_rows_are_sorted_by_recall_and_failures_come_last() -> None:
    assert [row.label for row in TABLE.rows] == [GCN.label, FED.label, LOST.label]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_terminal_gets_what_fits_and_loses_nothing(width: int) -> None:
    text = terminal(grid(TABLE), width)
    assert [line for line in text.splitlines() if len(line) > width] == []
    flat = " ".join(text.split())
    for said in ("0.1829 ± 0.0004", "0.1900 ± 0.0031ᵘ", "+10.6 %", "round 39,000–40,000/40,000", "1.23 GB", "1,234.5",
                 "epoch 900/1,000", "protocol honest", "failed: the loss is 5 %", "a & b"):  # fmt: skip
        assert said in flat, said


def test_a_wide_terminal_gets_one_block_and_a_narrow_one_names_methods_again() -> None:
    assert terminal(grid(TABLE), 250).count("fedgrec:layers=3") == 1
    assert terminal(grid(TABLE), 80).count("fedgrec:layers=3") > 1
    long = replace(FED, label="fedgrec:layers=3,negatives=256,user_rate=0.05")
    assert "fedgrec:layers=3,negative…" in terminal(grid(replace(TABLE, rows=[long])), 80)
    both = [long, replace(long, label=long.label.replace("0.05", "0.01"))]
    assert all(row.label in terminal(grid(replace(TABLE, rows=both)), 80) for row in both)  # else they look the same


def test_markdown_columns_align() -> None:
    lines = [line for line in markdown(grid(TABLE)).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    places = [[m.start() for m in re.finditer(r"(?<!\\)\|", line)] for line in lines]
    assert all(place == places[0] for place in places)
    assert "50%\\_off\\|#1" in lines[-1]
    assert "- gowalla, protocol honest" in markdown(grid(TABLE))


def test_csv_parses_back_to_the_numbers() -> None:
    gcn, fed, lost = csv.DictReader(io.StringIO(formats.csv(results.records(TABLE))))
    assert (float(fed["recall@20"]), float(fed["recall@20_half_width"])) == (0.1829, 0.0004)
    assert float(fed["recall@20_difference_percent"]) == pytest.approx(100 * (0.1829 / 0.1654 - 1))
    assert (fed["seeds"], fed["chosen"], fed["protocol"]) == ("0 1 2", "39000 40000 40000", "honest")
    assert float(fed["bytes_up_secure_per_user"]) == 1.234e9
    assert (gcn["interval_over"], gcn["ndcg@20_published"], gcn["bytes_up_per_user"]) == ("users", "", "")
    assert (lost["label"], lost["recall@20"], lost["note"]) == (LOST.label, "", LOST.note)


def test_latex_is_escaped_and_every_line_has_every_cell() -> None:
    text = latex(grid(TABLE), "compare-gowalla")
    assert "50\\%\\_off\\textbar{}\\#1\\{x\\}\\textasciitilde{}\\textasciicircum{}\\textbackslash{}" in text
    assert "0.1900 $\\pm$ 0.0031$^{u}$" in text
    assert "protocol honest" in text
    form = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert form
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 1 + 3
    for line in rows:
        assert len(re.split(r"(?<!\\)&", line)) == len(form[1])
    for c in ("%", "#", "_"):  # TeX would interpret these; only the comment in the first line has one
        assert not re.search(rf"(?<!\\){c}", text.split("\n", 1)[1]), c
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    for rule in ("\\toprule", "\\midrule", "\\bottomrule"):
        assert text.count(rule) == 1


def test_columns_without_a_value_are_left_out() -> None:
    alone = replace(TABLE, rows=[replace(GCN, published=None)])
    titles = [column.title for column in results.columns(alone)]
    assert titles == ["method", "kind", "Recall@20", "NDCG@20", "chosen", "seconds", "seeds"]
    assert "published" not in terminal(grid(alone))


def test_notes_say_what_the_interval_is_over() -> None:
    said = " ".join(results.notes(TABLE))
    assert "95 % interval over 3 seeds" in said
    assert "one seed" in said
    assert "one seed" not in " ".join(results.notes(replace(TABLE, rows=[FED])))
    assert "best round on test" in results.notes(replace(TABLE, protocol="paper"))[0]


def test_a_row_to_come_shows_what_was_published() -> None:
    entry = Entry("NGCF-1", "ngcf")
    missing: Any = SimpleNamespace(entry=entry, seed=0, finished=False)
    figure = Figure(0.1556, 0.1315, "Li and Huang 2022, Table 2")
    found = row(entry, [missing], "paper", 20, 5, figure, {})
    (line,) = csv.DictReader(io.StringIO(formats.csv(results.records(results.Table("gowalla", "paper", 20, [found])))))
    assert (line["recall@20"], line["recall@20_published"], line["note"]) == ("", "0.1556", "not finished")
