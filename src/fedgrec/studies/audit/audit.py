"""All attacks on one training, in a table for the terminal, and on a page.

The page has a sentence for each attack, and a hundred squares, coloured in the share that it found.
"""

import functools
import tomllib
from dataclasses import dataclass
from html import escape
from importlib import resources

from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.errors import ConfigError
from fedgrec.pages.report import page
from fedgrec.pages.report.page import paragraph, tile_row
from fedgrec.pages.tables import NOTHING, Grid, terminal
from fedgrec.runs.simulation import Observer
from fedgrec.studies.audit import clusters, membership, order, shadows, weaker_designs
from fedgrec.studies.audit.recording import Truth, View, record
from fedgrec.studies.audit.scores import Estimate, Finding, NotApplicable, percent

Line = Finding | NotApplicable
IF = "if "  # the names of attacks on a weaker design, without one of our rules, begin with this
SIDE, STEP, SQUARE = 10, 11, 9  # squares in a row; from one to the next; the side of one


@dataclass(frozen=True)
class Audit:
    """What a server would find out."""

    method: str
    users: int
    items: int
    sums: int
    cohort: int  # people of the last sum
    lines: tuple[Line, ...]

    def table(self, width: int = 80) -> str:
        """Lines that fit the terminal: a table, then what each line means."""
        head = ["what a server finds, in %", "found", "chance", "popular", "better?"]
        notes = [f"{n}. {_note(line)}" for n, line in enumerate(self.lines, 1)]
        return terminal(Grid("", head, [_row(line) for line in self.lines], notes), width).rstrip("\n")


def _note(line: Line) -> str:
    if isinstance(line, NotApplicable):
        return f"Does not apply, because {line.because}."
    return f"{line.sentence}{' No power here: it found no evidence.' if line.powerless else ''}"


def _row(line: Line) -> list[str]:
    if isinstance(line, NotApplicable):
        return [line.name, "does not apply", "", "", ""]
    better = "blind" if line.powerless else {True: "yes", False: "no", None: NOTHING}[line.better]
    found = f"{percent(line.attack.value)} ({percent(line.attack.low)}–{percent(line.attack.high)})"
    return [line.name, found, _value(line.chance), _value(line.popularity), better]


def _value(estimate: Estimate | None) -> str:
    return NOTHING if estimate is None else percent(estimate.value)


def audit(
    config: Config, dataset: Dataset | None = None, sums: int = 10, observer: Observer | None = None, pairs: int = 0
) -> Audit:
    """Train, write down what the server sees, and attack it, also by so many pairs of models to compare with."""
    if sums < 1:
        raise ConfigError(f"an audit of {sums} sums has nothing to look at: ask for at least 1")
    view, truth = record(config, dataset, sums, observer)
    return attacked(view, truth, shadows.audit(config, truth, pairs, observer))


def attacked(view: View, truth: Truth, *more: Line) -> Audit:
    if not view.sums:
        raise ConfigError("no sum was opened: lower dropout, or train for more rounds")
    lines: tuple[Line, ...] = (
        clusters.audit_alone(view, truth),
        *clusters.audit(view, truth),
        clusters.audit_latents(view, truth),
        membership.audit_sums(view, truth),
        membership.audit_colluding(view, truth),
        membership.audit_model(view, truth, strangers=False),
        membership.audit_model(view, truth, strangers=True),
        *order.audit(view, truth),
        *more,
        weaker_designs.audit_sums(view, truth),
    )
    return Audit(view.method, view.n_users, view.n_items, len(view.sums), len(view.sums[-1].people), lines)


# ---------------------------------------------------------------------------------------------- the page


@functools.cache
def about() -> dict[str, dict[str, str]]:
    """What each attack does, and what helps against it."""
    return tomllib.loads((resources.files("fedgrec.studies.audit") / "attacks.toml").read_text("utf-8"))


def render(found: Audit, data: str) -> str:
    """The page; `data` is the name of what was audited."""
    findings = [line for line in found.lines if isinstance(line, Finding)]
    others = [line for line in found.lines if isinstance(line, NotApplicable)]
    sections = [("In short", summary(found)), *((line.name, attack(line)) for line in findings)]
    sections += [("Attacks that do not apply here", reasons(others))] if others else []
    subtitle = (
        "A server of a federation sees sums and nothing else. These attacks ask what the sums tell about the people in "
        "them."
    )
    return page.render(f"What a server finds out: {data}", subtitle, sections)


def summary(found: Audit) -> str:
    tiles = [
        ("Method", found.method, "how the model is trained"),
        ("People", f"{found.users:,}", "who trained"),
        ("Items", f"{found.items:,}", "that people can have"),
        ("Sums", f"{found.sums:,}", f"the server looked at; {found.cohort:,} people in the last one"),
    ]
    how = (
        "Each picture below has 100 squares. The coloured ones were found. Popularity is no secret: what an attack "
        "finds beyond a guess by popularity is what leaks."
    )
    return paragraph(verdict(found), "said") + paragraph(how) + tile_row(tiles)


def verdict(found: Audit) -> str:
    """How many attacks find more than popularity does: one sentence."""
    real = [line for line in found.lines if isinstance(line, Finding) and not line.name.startswith(IF)]
    compared = [line.better for line in real if line.better is not None and not line.powerless]
    more, all_ = sum(compared), len(compared)
    if not all_:
        return "No attack could be compared with a guess by popularity."
    who = "The one attack that applies" if all_ == 1 else f"{more or 'None'} of {all_} attacks"
    verb = ("does not find" if all_ == 1 else "finds") if not more else "finds" if more == 1 else "find"
    return f"{who} {verb} more than a guess by popularity does."


def attack(line: Finding) -> str:
    """The attack's result in a sentence and in pictures, its interval, what it does, and what helps against it."""
    kind = "attack leaks" if line.better and not line.name.startswith(IF) else "attack"
    blind = {"Popularity": line.popularity, "Chance": line.chance}
    pictures = _picture("Attack", line.attack, kind)
    pictures += "".join(_picture(who, share, "guess") for who, share in blind.items() if share is not None)
    said = about().get(line.name)
    words = [("How sure this is", interval(line)), *beside(line)]
    words += [("What the attack does", said["does"]), ("What helps", said["helps"])] if said else []
    terms = "".join(f"<dt>{term}</dt><dd>{escape(text)}</dd>\n" for term, text in words)
    return (
        f"{paragraph(line.sentence, 'said')}{_badge(line)}"
        f"<div class=beside>\n<div class=guesses>\n{pictures}</div>\n<dl class=told>\n{terms}</dl>\n</div>\n"
    )


def _badge(line: Finding) -> str:
    better = line.better
    if line.name.startswith(IF):
        return "<p class=badge>Not here: a rule stands against it</p>\n"
    if better is None:
        return "<p class=badge>A count, not a guess</p>\n"
    if line.powerless:
        return "<p class=badge>No power here: it found no evidence, and guessed by popularity</p>\n"
    return (
        '<p class="badge leaks">Beats popularity</p>\n' if better else "<p class=badge>Does not beat popularity</p>\n"
    )


def _picture(who: str, share: Estimate, kind: str) -> str:
    number = percent(share.value)
    return (
        f"<figure>{hundred(share.value, kind, f'{who}: {number} of 100')}"
        f"<figcaption>{who} <b>{number}</b> <span>of 100</span></figcaption></figure>\n"
    )


def hundred(share: float, kind: str, label: str) -> str:
    """A hundred squares, row by row; the coloured ones are the share in %, rounded."""
    coloured = round(100 * share)
    squares = "".join(
        f'<rect x="{at % SIDE * STEP}" y="{at // SIDE * STEP}" width="{SQUARE}" height="{SQUARE}" rx="2"'
        f"{' class=on' if at < coloured else ''} />"
        for at in range(SIDE * SIDE)
    )
    whole = SIDE * STEP - (STEP - SQUARE)
    return f'<svg class="{kind}" role="img" aria-label="{escape(label)}" viewBox="0 0 {whole} {whole}">{squares}</svg>'


def interval(line: Finding) -> str:
    """The 95 % interval in words."""
    low, high = percent(line.attack.low), percent(line.attack.high)
    people = "1 person" if line.people == 1 else f"{line.people:,} people"
    if low == high:
        return f"Counted over {people}. Among other people of this kind it would be about the same."
    return f"Counted over {people}. Among other people of this kind it would be {low} to {high} of 100 (95 % interval)."


def beside(line: Finding) -> list[tuple[str, str]]:
    """What a mean hides: the difference from popularity, and the people at most risk."""
    if line.beyond is None or line.at_risk is None or line.powerless:
        return []
    by, low, high = (percent(value) for value in (line.beyond.value, line.beyond.low, line.beyond.high))
    return [
        ("Beyond popularity", f"{by} of 100 ({low} to {high})"),
        ("People at most risk", f"For a tenth of the people it finds {percent(line.at_risk)} of 100 on average."),
    ]


def reasons(lines: list[NotApplicable]) -> str:
    """Each attack that cannot be made, and why."""
    terms = "".join(f"<dt>{escape(line.name)}</dt><dd>Because {escape(line.because)}.</dd>\n" for line in lines)
    return f"<dl class=told>\n{terms}</dl>\n"
