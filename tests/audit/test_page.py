"""The page of an audit says what the audit found: in words, in squares, and to everybody."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from fedgrec.studies.audit import shadows
from fedgrec.studies.audit.audit import Audit, about, attack, attacked, interval, render, verdict
from fedgrec.studies.audit.scores import Estimate, Finding, NotApplicable
from tests.audit.worlds import plain
from tests.pages import checked


def share(value: float) -> Estimate:
    return Estimate(value, value - 0.02, value + 0.03)


NAMED = Finding(
    "your items, from the sums you were in", 120, share(0.31), share(0.012), share(0.044), True,
    "Of 100 items that you have, the server would name 31; guessing by popularity names 4.4.",
)  # fmt: skip
COUNTED = Finding("rows that are one person's alone", 1, share(0.777), None, None, None, "Of 100 rows 78 are alone.")
NOT = NotApplicable("items tied together by latents", "the method sends <no> latents")
FOUND = Audit("fedgrec", 1_350, 2_500, 10, 400, (NAMED, NOT, COUNTED))


class Squares(HTMLParser):
    """For each picture its label, how it is coloured, and how many of its squares are coloured and are not."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pictures: list[tuple[str, str, int, int]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag == "svg":
            assert given["role"] == "img"
            self.pictures.append((given["aria-label"] or "", given["class"] or "", 0, 0))
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert tag == "rect"
        label, kind, on, off = self.pictures[-1]
        on_ = dict(attributes).get("class") == "on"
        self.pictures[-1] = label, kind, on + on_, off + (not on_)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def squares(page: str) -> list[tuple[str, str, int, int]]:
    parsed = Squares(page)
    assert parsed.open == [], "every element is closed"
    return parsed.pictures


def test_as_many_squares_are_coloured_as_were_found() -> None:
    assert squares(render(FOUND, "demo")) == [
        ("Attack: 31 of 100", "attack leaks", 31, 69),
        ("Popularity: 4.4 of 100", "guess", 4, 96),
        ("Chance: 1.2 of 100", "guess", 1, 99),
        ("Attack: 78 of 100", "attack", 78, 22),
    ]


@pytest.mark.parametrize(("value", "coloured"), [(0.0, 0), (0.004, 0), (0.006, 1), (0.995, 100), (1.0, 100)])
def test_shares_are_rounded(value: float, coloured: int) -> None:
    line = replace(NAMED, attack=share(value))
    assert squares(render(replace(FOUND, lines=(line,)), "demo"))[0][2:] == (coloured, 100 - coloured)


def test_an_attack_that_finds_no_more_has_another_colour_and_says_so() -> None:
    """The mutant: what the attack found and what popularity found, swapped."""
    swapped = replace(NAMED, attack=NAMED.popularity or share(0), popularity=NAMED.attack, better=False)
    honest, mutant = (render(replace(FOUND, lines=(line,)), "demo") for line in (NAMED, swapped))
    assert [picture[1:3] for picture in squares(honest)] == [("attack leaks", 31), ("guess", 4), ("guess", 1)]
    assert [picture[1:3] for picture in squares(mutant)] == [("attack", 4), ("guess", 31), ("guess", 1)]
    assert "Beats popularity" in honest
    assert "Does not beat popularity" in mutant


def test_the_summary_counts_attacks_that_beat_popularity() -> None:
    def said(*better: bool | None) -> str:
        return verdict(replace(FOUND, lines=(NOT, *(replace(NAMED, better=one) for one in better))))

    assert said(True, False, None, True) == "2 of 3 attacks find more than a guess by popularity does."
    assert said(True, False) == "1 of 2 attacks finds more than a guess by popularity does."
    assert said(False, False) == "None of 2 attacks finds more than a guess by popularity does."
    assert said(True) == "The one attack that applies finds more than a guess by popularity does."
    assert said(False) == "The one attack that applies does not find more than a guess by popularity does."
    assert said(None) == "No attack could be compared with a guess by popularity."


def test_attacks_that_a_rule_prevents_are_not_counted() -> None:
    prevented = replace(NAMED, name="if two sums differed by one person")
    both = replace(FOUND, lines=(prevented, replace(NAMED, better=False)))
    assert verdict(both) == "The one attack that applies does not find more than a guess by popularity does."
    page = render(both, "demo")
    assert "Not here: a rule stands against it" in page
    assert [kind for _, kind, *_ in squares(page)].count("attack leaks") == 0


def test_the_interval_is_said_in_words() -> None:
    assert "120 people" in interval(NAMED)
    assert "29 to 34 of 100 (95 % interval)" in interval(NAMED)
    assert "1 person." in interval(COUNTED)


def test_the_page_says_what_was_audited_and_what_does_not_apply() -> None:
    page = render(FOUND, "demo")
    for words in ("<title>What a server finds out: demo</title>", "fedgrec", "1,350", "2,500", "400 people", ">10<"):
        assert words in page
    assert NAMED.sentence in page
    assert "Because the method sends &lt;no&gt; latents." in page
    assert page.index("do not apply") > page.rindex("<svg")
    assert "do not apply" not in render(replace(FOUND, lines=(NAMED,)), "demo")


def test_nothing_of_the_data_is_run_and_nothing_is_asked_of_the_network() -> None:
    hostile = '"><script>alert(1)</script>&'
    line = replace(NAMED, name=hostile, sentence=hostile)
    page = render(replace(FOUND, method=hostile, lines=(line, NotApplicable(hostile, hostile))), hostile)
    squares(page)
    assert "<script" not in checked(page)
    assert page.count("&lt;script&gt;") >= 7  # title twice, method, name, sentence, name and reason


def test_every_attack_says_what_it_does_and_what_helps() -> None:
    found = attacked(*plain(), NotApplicable(shadows.NAME, ""))
    assert [line.name for line in found.lines if line.name not in about()] == []
    page = render(found, "toy")
    for line in found.lines:
        told = about()[line.name]["does"].replace("'", "&#x27;")
        assert (told in page) == isinstance(line, Finding)


def test_the_page_says_what_a_mean_hides() -> None:
    line = replace(NAMED, beyond=share(0.266), at_risk=0.62)
    page = attack(line)
    assert "27 of 100 (25 to 30)" in page
    assert "For a tenth of the people it finds 62 of 100 on average." in page
    silent = replace(line, powerless=True, better=False)
    assert "No power here" in attack(silent)
    assert "Beyond popularity" not in attack(silent)
    assert "No power here" in replace(FOUND, lines=(silent,)).table()
    assert verdict(replace(FOUND, lines=(silent,))) == "No attack could be compared with a guess by popularity."
