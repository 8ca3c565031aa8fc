"""Which round is selected, and the sentence about the choice."""

from typing import Any

import pytest

from fedgrec.models.selection import Progress, best_line


def line(round_: int, recall: float, ndcg: float = 0.5, split: str = "validation") -> dict[str, Any]:
    return {"round": round_, "split": split, "recall@20": recall, "ndcg@20": ndcg}


def after(*lines: dict[str, Any]) -> Progress:
    progress = Progress()
    for each in lines:
        progress.judged(each, (20,))
    return progress


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ([line(1, 0.2), line(2, 0.3), line(3, 0.1)], 2),
        ([line(1, 1.0, 0.6), line(2, 1.0, 0.8), line(3, 1.0, 0.7)], 2),  # the first metric is at its ceiling
        ([line(1, 0.3), line(2, 0.3), line(3, 0.2)], 2),  # equal in both: the later round
        ([line(1, 0.0, 0.0), line(2, 0.0, 0.0)], 2),
    ],
)
def test_ties_are_broken_by_the_next_metric_then_by_the_later_round(lines: list[dict[str, Any]], best: int) -> None:
    assert after(*lines).best_round == best == best_line(lines, (20,))["round"]


def test_the_next_list_length_breaks_ties_too() -> None:
    lines = [{**line(r, 1.0, 1.0), "recall@5": x, "ndcg@5": 0.1} for r, x in ((1, 0.4), (2, 0.2))]
    assert best_line(lines, (20, 5))["round"] == 1
    assert best_line(lines, (20,))["round"] == 2


def test_an_equal_round_counts_but_does_not_renew_patience() -> None:
    progress = after(line(1, 0.3), line(2, 0.3), line(3, 0.3))
    assert (progress.best_round, progress.stale) == (3, 2)
    progress.judged(line(4, 0.3, 0.6), (20,))
    assert (progress.best_round, progress.stale) == (4, 0)


def test_a_best_round_that_is_the_last_one_is_said() -> None:
    assert "still rising" in after(line(1, 0.2), line(2, 0.3)).verdict((20,))
    rising = after(line(1, 0.2), line(2, 0.3))
    rising.metrics.append(line(2, 0.25, split="test"))
    assert "still rising" in rising.verdict((20,))
    assert after(line(1, 0.3), line(2, 0.2)).verdict((20,)) == ""
    assert after(line(1, 0.3), line(2, 0.3)).verdict((20,)) == ""  # the last one, but it rises no more
    assert after(line(1, 0.3)).verdict((20,)) == ""  # one evaluation says nothing
    assert Progress().verdict((20,)) == ""


def test_a_metric_at_its_ceiling_is_said() -> None:
    assert "recall@20 is 1: lists this long cannot tell rounds apart" in after(line(1, 0.9), line(2, 1.0)).verdict(
        (20,)
    )


def test_what_a_checkpoint_keeps_comes_back() -> None:
    import json

    progress = after(line(1, 0.2), line(2, 0.3))
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
