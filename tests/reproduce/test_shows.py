"""The paper's number, ours and the difference, from results made up by hand."""

from dataclasses import replace

import pytest

from fedgrec.data.registry import found
from fedgrec.studies.compare.comparison import Comparison
from fedgrec.studies.compare.results import Table
from fedgrec.studies.compare.rows import Figure, Row, over_seeds
from fedgrec.studies.reproduce.plan import Group, Scope, groups
from fedgrec.studies.reproduce.shows import rounds_run
from fedgrec.studies.reproduce.targets import TARGETS


def group(target: str, rows: list[Row]) -> Group:
    empty = groups(TARGETS[target], Scope(protocols=("paper",)))[0]
    return replace(empty, compared=Comparison(Table("gowalla", "paper", 20, rows), [], {}, False))


def row(label: str, recall: list[float], published: float | None, length: int = 100_000) -> Row:
    theirs = None if published is None else Figure(published, published / 2, "Li and Huang 2022, Table 2")
    halved = [value / 2 for value in recall]
    parts = {"recall": over_seeds(recall), "ndcg": over_seeds(halved), "published": theirs}
    seeds = tuple(range(len(recall)))
    return Row(label, "fedgrec", True, "paper", seeds, **parts, chosen=seeds, length=length, up=9.0, seconds=1.0)


def test_paper_ours_difference_and_interval_stand_side_by_side() -> None:
    shown = TARGETS["table4"].show([group("table4", [row("FedGRec-2", [0.16, 0.18], 0.2)])])
    (grid,) = shown.grids
    cells = dict(zip(grid.head, grid.rows[0], strict=True))
    # mean 0.17; s = 0.0141421, t = 12.7062 for one degree of freedom: 12.7062 · 0.0141421/√2 = 0.127062
    assert (cells["paper, K = 2"], cells["ours, K = 2"]) == ("0.2000", "0.1700 ± 0.1271")
    assert cells["diff, K = 2"] == "-15.0 %"
    assert cells["ours, K = 1"] == cells["paper, K = 3"] == "–"
    assert grid.rows[1][1:] == ["–"] * 9
    (ndcg,) = TARGETS["table3"].show([group("table3", [row("FedGRec-2", [0.16, 0.18], 0.2)])]).grids
    assert ndcg.rows[0][4:7] == ["0.1000", "0.0850 ± 0.0635", "-15.0 %"]
    (record,) = shown.records
    assert record["recall@20"] == pytest.approx(0.17)
    assert record["recall@20_difference_percent"] == pytest.approx(-15)


def test_a_figure_is_held_to_no_number_of_a_table() -> None:
    """Table 2's FedGRec-2 has τ = 10, so its number does not belong beside τ = 1."""
    (grid,) = TARGETS["figure-tau"].show([group("figure-tau", [row("τ = 1", [0.16, 0.18], 0.2)])]).grids
    assert "published" not in grid.head
    assert not any(note.startswith("published") for note in grid.notes)
    assert grid.rows[0][:2] == ["τ = 1", "0.1700 ± 0.1271"]


def test_table2_shows_what_went_wrong_and_no_bytes() -> None:
    broken = Row("FCF", "fcf", True, "paper", (), note="failed: no likes")
    (grid,) = TARGETS["table2"].show([group("table2", [broken, row("FedGRec-2", [0.16, 0.18], 0.2)])]).grids
    assert grid.head == ["method", "Recall@20", "published", "diff", "NDCG@20", "published", "diff", "chosen",
                         "seconds", "seeds", "note"]  # fmt: skip
    assert (grid.rows[0][0], grid.rows[0][1], grid.rows[0][-1]) == ("FCF", "–", "failed: no likes")
    assert not any(note.startswith("Bytes") for note in grid.notes)


def test_the_rounds_are_named_and_the_papers_beside_them() -> None:
    assert rounds_run([row("a", [0.1], None)]) == ["Rounds run: 100,000, as in the paper."]
    mixed = [row("a", [0.1], None), row("b", [0.1], None, 400), row("c", [0.1], None, 400)]
    assert rounds_run(mixed) == ["Rounds run: 100,000 (a); 400 (b, c). The paper ran 100,000."]
    assert rounds_run([]) == []


@pytest.mark.skipif(found("yelp2018") is None, reason="Yelp2018 is not on this machine")
def test_table1_notes_the_papers_slip() -> None:
    shown = TARGETS["table1"].show(groups(TARGETS["table1"], Scope(data=("yelp2018",))))
    cells = {line[1]: line[2:] for line in shown.grids[0].rows}
    assert cells["users"] == ["31,831", "31,668", "-0.5 %"]
    assert cells["interactions"] == ["1,666,869", "1,561,406", "-6.3 %"]
    assert cells["density"] == ["0.00128", "0.00130", "+1.2 %"]
    assert any("older version" in note for note in shown.grids[0].notes)
