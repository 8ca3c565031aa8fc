"""`fedgrec secagg`: one real round on the screen, and what its last line says."""

import pytest

from fedgrec.cli import main
from fedgrec.secagg import local

SMALL = "secagg demo --clients 12 --values 50"


def said(capsys: pytest.CaptureFixture[str], command: str) -> tuple[int, str, str]:
    code = main(command.split())
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "more",
    [
        "",
        "--drop 1,0,1,0",
        "--neighbours 6 --threshold 4 --drop 0,0,1,0",
        "--bits 64",
        "--bits 12 --drop 0,0,1,0",
    ],
)
def test_a_round_ends_with_an_exact_sum(capsys, more: str) -> None:
    code, out, _ = said(capsys, f"{SMALL} {more}")
    assert (code, out.splitlines()[-1]) == (0, "sum exact: yes")
    assert max(map(len, out.splitlines())) <= 80
    stages = ["keys", "shares", "masked vectors", "confirming", "unmasking"]
    assert [line for line in stages if not any(shown.startswith(line) for shown in out.splitlines())] == []


def test_a_round_that_lost_too_many_says_so(capsys) -> None:
    code, out, _ = said(capsys, f"{SMALL} --drop 0,0,0,11")
    assert (code, out.splitlines()[-1]) == (1, "sum exact: no")
    assert "nothing was opened" in out


def test_a_wrong_sum_would_be_seen(capsys, monkeypatch) -> None:
    right = local.Outcome
    monkeypatch.setattr(local, "Outcome", lambda values, *rest: right(values + 1, *rest))
    code, out, _ = said(capsys, SMALL)
    assert (code, out.splitlines()[-1]) == (1, "sum exact: no")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("demo --drop 1,2", "give four numbers"),
        ("demo --drop 1,2,x,4", "give four numbers"),
        ("demo --clients 5 --drop 2,2,2,2", "more than the 5 clients"),
        ("demo --clients 2", "fewer than three"),
        ("demo --values 0", "at least one value"),
        ("demo --neighbours 6", "go together"),
        ("demo --bits 31", "an even number of bits from 8 to 64"),
        ("demo --bits 6", "an even number of bits from 8 to 64"),
        ("demo --bits 66", "an even number of bits from 8 to 64"),
        ("demo --bits 8 --clients 128", "sums of 128 clients do not fit"),
        ("parameters --clients 100 --dropped 0.6", "no threshold is safe"),
    ],
)
def test_what_cannot_be_is_one_sentence(capsys, arguments: str, sentence: str) -> None:
    code, _, err = said(capsys, f"secagg {arguments}")
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_parameters_of_the_papers_round(capsys) -> None:
    code, out, _ = said(capsys, "secagg parameters --clients 400")
    assert code == 0
    assert "54 neighbours each, of 54 shares 38 open a secret" in " ".join(out.split())
