"""The report as one page: it holds its pictures, asks nothing of the network and runs no script."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

from fedgrec.config import Config, options
from fedgrec.core import size
from fedgrec.report.drawing import Picture
from fedgrec.report.gather import SHOWN, Run

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p>{subtitle}</p>
</header>
{body}</main>
</body>
</html>
"""


def render(run: Run, drawn: Sequence[Picture]) -> str:
    by_name = {picture.name: figure(picture) for picture in drawn}
    sections = [
        ("Result", result(run)),
        ("Compared with", comparison(run)),
        ("Learning", by_name.get("curves.png", "")),
        ("One user, as an example", by_name.get("map.png", "") + example(run)),
        ("All users", by_name.get("users.png", "")),
        ("What a user sent", traffic(run)),
        ("Data", data(run)),
        ("Options", settings(run)),
    ]
    return PAGE.format(
        title=escape(f"FedGRec on {run.about['name']}"),
        css=(resources.files("fedgrec.report") / "page.css").read_text("utf-8"),
        subtitle=escape(subtitle(run)),
        body="".join(f"<section>\n<h2>{title}</h2>\n{html}</section>\n" for title, html in sections if html),
    )


# ------------------------------------------------------------------------------------------- the sections

PARTS = {
    "users": "Users", "items": "Items",
    "train": "Train pairs", "validation": "Validation pairs", "test": "Test pairs",
}  # fmt: skip
SPLITS = {"given": "as given", "ratio": "a share of each user's items", "last": "each user's latest item"}


def subtitle(run: Run) -> str:
    sizes = run.about["sizes"]
    return (
        f"A graph recommender trained by {sizes['users']:,} users on {sizes['items']:,} items, in a "
        "simulated federation: the server learns from sums of what users send."
    )


def protocol(run: Run) -> str:
    """How the round was chosen: without it a number says little."""
    if run.result["split"] is None:
        return "There are no test items, so nothing was measured on them."
    if run.config.run.protocol == "paper":
        return "Protocol “paper”: the best round on test, as published numbers are. It flatters a little."
    if not run.about["sizes"]["validation"]:
        return "Protocol “honest”: no validation items, so the last round; test items were looked at once."
    return "Protocol “honest”: the round was chosen on validation items; test items were looked at once."


def result(run: Run) -> str:
    about = f"<p>{escape(protocol(run))}</p>\n"
    tiles = [("Round", f"{run.model.round:,}", f"of {max(run.config.run.rounds, run.model.round):,}")]
    if run.result["split"] is None:
        return tile_row(tiles) + about
    value, k = run.result, run.k
    tiles = [
        (f"Recall@{k}", f"{value[f'recall@{k}']:.4f}", "of a user's test items are in the list"),
        (f"NDCG@{k}", f"{value[f'ndcg@{k}']:.4f}", "the same, counting more at the top"),
        (f"Coverage@{k}", f"{100 * value[f'coverage@{k}']:.1f} %", "of all items are in somebody's list"),
        *tiles,
    ]
    more = [(name, f"{value[name]:.4f}") for name in value if "@" in name and not name.endswith(f"@{k}")]
    plain = (
        f"<p class=lead>On average {100 * value[f'recall@{k}']:.0f} % of the items that a user has and the "
        f"model never saw are among the {k} that it recommends. {value['users']:,} users were judged; for "
        f"each, all {run.about['sizes']['items']:,} items were ranked but those already known.</p>\n"
    )
    return tile_row(tiles) + plain + about + (table(["Other list lengths", "Value"], more) if more else "")


def comparison(run: Run) -> str:
    """Every system on the same split, the best first."""
    keys = [f"recall@{run.k}", f"ndcg@{run.k}"]
    lines = list(run.baselines.items())
    if not lines:
        return ""
    if run.result["split"] is not None:
        lines.append(("FedGRec, this run", run.result))
    lines.sort(key=lambda line: -line[1].get(keys[0], 0.0))
    most = {key: max((line.get(key, 0.0) for _, line in lines), default=0.0) for key in keys}
    rows = [(name, *(bar(line.get(key), most[key]) for key in keys)) for name, line in lines]
    return table(["System", f"Recall@{run.k}", f"NDCG@{run.k}"], rows, strong="FedGRec, this run")


def example(run: Run) -> str:
    if run.sample is None:
        return f"<p>Left out: {escape(run.missing)}</p>\n"
    sample, judged = run.sample, len(run.sample.hidden) > 0
    known = "; ".join(run.name(int(item)) for item in sample.seen[:5])
    rest = f"; and {len(sample.seen) - 5:,} more" if len(sample.seen) > 5 else ""
    text = f"User {run.model.user_ids[sample.user]} has {known}{rest}."
    if judged:
        text += f" Hidden from the model: {len(sample.hidden):,}, of which {int(sample.hit.sum())} were found."
    why = "" if run.places else f"<p class=note>{escape(sample.why)}</p>\n"  # a map's caption says it already
    rows = [
        (rank, run.name(int(item)), f"{run.model.item_degrees[item]:,}", "hit" if hit else "")
        for rank, (item, hit) in enumerate(zip(sample.shown, sample.hit, strict=True), 1)
    ]
    head = ["Rank", f"Top {SHOWN} recommendations", "Users who have it", "In test"]
    columns = len(head) - (not judged)
    return f"<p>{escape(text)}</p>\n{why}" + table(head[:columns], [row[:columns] for row in rows])


def traffic(run: Run) -> str:
    """Bytes of an average user, over the run and in one round that it takes part in."""
    if not run.metrics:
        return ""
    sizes, last = run.about["sizes"], max(run.metrics, key=lambda line: int(line["bytes_down"]))
    users, rounds = sizes["users"], max(line["round"] for line in run.metrics)
    turns = rounds * min(run.config.model.users_per_round, users) / users
    each = {
        "Sent in the clear": last["bytes_up"] / users,
        "Sent as secure sums": last["bytes_up_secure"] / users,
        "Received": last["bytes_down"] / users,
    }
    most = max(each.values())
    rows = [(name, bar(n, most, size(n)), size(n / max(turns, 1))) for name, n in each.items()]
    note = (
        "This was a simulation: the bytes are what a real federation would have carried, warm-up included. "
        "In the clear a user sends only the rows it changed, and so shows what it likes; as secure sums it "
        "sends the whole table under masks, and the server learns nothing but the sum. "
        "Users download the whole item table, so their downloads tell nothing."
    )
    head = ["Average user", f"{rounds:,} rounds", f"one of its {turns:,.0f} turns"]
    return table(head, rows) + f"<p class=note>{escape(note)}</p>\n"


def data(run: Run) -> str:
    sizes = run.about["sizes"]
    pairs, split = sizes["train"] + sizes["validation"] + sizes["test"], run.about["split"]
    rows = [(label, f"{sizes[part]:,}") for part, label in PARTS.items()]
    rows.append(("Density", f"{100 * pairs / (sizes['users'] * sizes['items']):.3g} %"))
    if sizes["test"]:
        rows.append(("Test items are", SPLITS.get(split, split)))
    return table(["Data set", run.about["name"]], rows) + listing(run.about.get("notes", []))


def settings(run: Run) -> str:
    """What somebody chose, then everything."""
    rows = []
    for section, field, _ in options(run.config.method):
        both = (run.config, Config().of(run.config.method))
        value, default = (getattr(getattr(config, section), field.name) for config in both)
        if value != default:
            rows.append((field.name, _plain(value), _plain(default), field.metadata["help"]))
    head = ["Differs from the default", "Value", "Default", "What it is"]
    changed = table(head, rows) if rows else "<p>All options are the defaults.</p>\n"
    whole = f"<pre>{escape(run.config.to_toml())}</pre>"
    return f"{changed}<details><summary>The whole configuration</summary>{whole}</details>\n"


# ---------------------------------------------------------------------------------------------- the parts


class Html(str):
    """Text that is HTML already; anything else is escaped when it enters a table."""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], strong: str = "") -> str:
    """The first column names its row. It scrolls by itself where a screen is narrow."""

    def cell(value: Any) -> str:
        return value if isinstance(value, Html) else escape(str(value))

    lines = "".join(
        f"<tr{' class=strong' if row[0] == strong else ''}><th scope=row>{cell(row[0])}</th>"
        + "".join(f"<td>{cell(value)}</td>" for value in row[1:])
        + "</tr>\n"
        for row in rows
    )
    heads = "".join(f"<th scope=col>{escape(name)}</th>" for name in head)
    content = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}</tbody>"
    return f"<div class=wide><table>\n{content}\n</table></div>\n"


def bar(value: float | None, most: float, text: str = "") -> Html:
    """A number and its length beside it."""
    if value is None:
        return Html("–")
    share = 100 * value / most if most > 0 else 0.0
    return Html(
        f"<span class=number>{escape(text or f'{value:.4f}')}</span>"
        f'<span class=track aria-hidden=true><span style="width:{share:.1f}%"></span></span>'
    )


def tile_row(tiles: Iterable[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(about)}</small></dd></div>\n"
        for name, value, about in tiles
    )
    return f"<dl class=tiles>{cells}</dl>\n"


def figure(picture: Picture) -> str:
    image = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{image}" alt="{escape(picture.alt)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>\n"
    )


def listing(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>\n" if sentences else ""


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
