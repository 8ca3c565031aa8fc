"""An audit as one page: for each attack a sentence, and a hundred squares, coloured in the share that it found."""

from html import escape
from typing import NamedTuple

from fedgrec.audit import clusters, counts, differences, latents, links, lying, membership, queries, single
from fedgrec.audit.audit import Audit
from fedgrec.audit.scores import Estimate, Finding, NotApplicable, percent
from fedgrec.report import page
from fedgrec.report.page import paragraph, tile_row

IF = "if "  # the names of attacks on a weaker design, without one of our rules, begin with this
SIDE, STEP, SQUARE = 10, 11, 9  # squares in a row; from one to the next; the side of one


class About(NamedTuple):
    """What a reader wants to know about an attack."""

    does: str
    helps: str  # against it


# An attack that is not named here is shown without these two sentences.
ABOUT = {
    single.NAME: About(
        "It counts the rows of a sum that only one person touched: such a row shows that person's update as it was "
        "sent.",
        "More people in a round, more negatives and fewer items: each of them lets people share rows.",
    ),
    clusters.NAME: About(
        "It puts rows together that point in the same direction, because all rows of one person do so after one plain "
        "step.",
        "More negatives and more people in a round: where several people share a row, it points nowhere in particular.",
    ),
    clusters.NAMED: About(
        "Within the rows of one person it takes the smaller half that moves the same way: those are the items that "
        "the person has, the others were drawn at random.",
        "What keeps people from being isolated helps here, too: more negatives and more people in a round.",
    ),
    latents.NAME: About(
        "It puts items together whose latents moved in the same direction: a person moves all its own items in one "
        "direction, and no others.",
        "Latents in rounds of everybody (latents_every = 0, the default): then people share every row. More negatives "
        "do not help. With no layers (layers = 0) no latents are sent.",
    ),
    membership.FROM_SUMS: About(
        "It compares the sums that you were in with the others: what you have is touched whenever you are there.",
        "More people in a round: then a popular item is touched in every sum, with you or without you.",
    ),
    links.OF_NODES: About(
        "It compares the sums that a node was in with the others: what its users have is touched whenever they are "
        "there.",
        "More nodes in a round, and nodes with more users: then an item is touched in every sum, with a node or "
        "without it.",
    ),
    membership.FROM_MODEL: About(
        "It asks the published model what it would recommend to a newcomer with the items that are known of you.",
        "Nothing that leaves the recommendations as good: a recommender makes the same guess. What the model remembers "
        "of you is only what this attack finds beyond the same attack on people who were in no sum.",
    ),
    membership.STRANGERS: About(
        "It is the same attack on people who never took part: what it finds, the model has learned from others.",
        "Staying out of the sums does not help against this: others who are like you trained the model.",
    ),
    differences.NAME: About(
        "It takes one sum from another that has one person more: what is left is what that person sent.",
        "A node answers each question once, and what it sends again differs: the server never gets two such sums.",
    ),
    counts.NAME: About(
        "It takes one count of how many people have each item from another that has one person more.",
        "Nodes count once; later they add up changes of many people only, and each in one count.",
    ),
    queries.NAME: About(
        "It looks for the items that a person asks for again and again, among others that change.",
        "Everybody is sent all items, so nobody asks.",
    ),
    lying.UNCHECKED: About(
        "It opens a sum over one person and somebody who works for the server.",
        "Clients answer only where enough others are in the sum, and where all of them were told the same.",
    ),
    lying.CHECKED: About(
        "It tells clients what is not true: about who takes part, who is left, which model all were shown.",
        "Clients sign what they were told and compare it with each other before anything is opened.",
    ),
}


def render(found: Audit, data: str) -> str:
    """The page; `data` is the name of what was audited."""
    findings = [line for line in found.lines if isinstance(line, Finding)]
    others = [line for line in found.lines if isinstance(line, NotApplicable)]
    return page.render(
        f"What a server finds out: {data}",
        "A server of a federation sees sums and nothing else. These attacks ask what the sums tell about the people in "
        "them.",
        [
            ("In short", summary(found)),
            *((line.name, attack(line)) for line in findings),
            ("Attacks that do not apply here", reasons(others) if others else ""),
        ],
    )


# --------------------------------------------------------------------------------------------- in short


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
    compared = [line.better for line in real if line.better is not None]
    more, all_ = sum(compared), len(compared)
    if not all_:
        return "No attack could be compared with a guess by popularity."
    who = "The one attack that applies" if all_ == 1 else f"{more or 'None'} of {all_} attacks"
    verb = ("does not find" if all_ == 1 else "finds") if not more else "finds" if more == 1 else "find"
    return f"{who} {verb} more than a guess by popularity does."


# -------------------------------------------------------------------------------------------- one attack


def attack(line: Finding) -> str:
    """The attack's result in a sentence and in pictures, its interval, what it does, and what helps against it."""
    kind = "attack leaks" if line.better and not line.name.startswith(IF) else "attack"
    guesses = [
        ("Attack", line.attack, kind),
        ("Popularity", line.popularity, "guess"),
        ("Chance", line.chance, "guess"),
    ]
    pictures = "".join(_picture(who, share, kind) for who, share, kind in guesses if share is not None)
    about = ABOUT.get(line.name)
    words = [("How sure this is", interval(line))]
    words += [("What the attack does", about.does), ("What helps", about.helps)] if about else []
    told = "".join(f"<dt>{term}</dt><dd>{escape(text)}</dd>\n" for term, text in words)
    return (
        f"{paragraph(line.sentence, 'said')}{_badge(line)}"
        f"<div class=beside>\n<div class=guesses>\n{pictures}</div>\n<dl class=told>\n{told}</dl>\n</div>\n"
    )


def _badge(line: Finding) -> str:
    better = line.better
    if line.name.startswith(IF):
        return "<p class=badge>Not here: a rule stands against it</p>\n"
    if better is None:
        return "<p class=badge>A count, not a guess</p>\n"
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


# --------------------------------------------------------------------------------------- not applicable


def reasons(lines: list[NotApplicable]) -> str:
    """Each attack that cannot be made, and why."""
    told = "".join(f"<dt>{escape(line.name)}</dt><dd>Because {escape(line.because)}.</dd>\n" for line in lines)
    return f"<dl class=told>\n{told}</dl>\n"
