"""The report of a run: how it learned, how good its users' lists are, what it cost, and people one by one."""

import itertools
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Ints, size
from fedgrec.pages.report import charts, page
from fedgrec.pages.report.charts import LEFT, RIGHT, Axis, Figure, Panel, Series, legend, own_file, plot
from fedgrec.pages.report.gather import SHOWN, People, Run, Survey
from fedgrec.pages.report.map import Chart
from fedgrec.pages.report.page import paragraph, tile_row
from fedgrec.pages.tables import NOTHING, Cell, Grid, html
from fedgrec.runs.cost import cost
from fedgrec.runs.resolve import chosen_options

MOST_ITEMS = 50  # at most so many of a person's items are named on the page
OURS = "FedGRec, this run"


def render(run: Run) -> str:
    chart = None if run.names.places is None else Chart(run, run.names.places)
    sections = [
        ("Result", result(run)),
        ("Compared with", comparison(run)),
        ("Learning", learning(run).html() if run.metrics else ""),
        ("People, one at a time", person(run, chart)),
        ("All users", lists(run, run.survey).html() if run.survey else ""),
        ("What a user sent", traffic(run)),
        ("Data", data(run)),
        ("Options", settings(run)),
    ]
    embedded = people(run, run.people, chart) if run.people else None
    return page.render(f"FedGRec on {run.about['name']}", subtitle(run), sections, embedded)


# ------------------------------------------------------------------------------------------- the sections

PARTS = {
    "users": "Users", "items": "Items",
    "train": "Train pairs", "validation": "Validation pairs", "test": "Test pairs",
}  # fmt: skip
SPLITS = {
    "given": "as given", "ratio": "a share of each user's items", "last": "each user's latest items",
    "time": "all that came after one moment",
}  # fmt: skip


def subtitle(run: Run) -> str:
    sizes = run.about["sizes"]
    return (
        f"A graph recommender trained by {sizes['users']:,} users on {sizes['items']:,} items, in a "
        "simulated federation: the server learns from sums of what users send."
    )


def protocol(run: Run) -> str:
    """How the round was chosen; without this a reader cannot judge a result."""
    if run.result["split"] is None:
        return "There are no test items, so nothing was measured on them."
    if run.config.run.protocol == "paper":
        return "Protocol “paper”: the best round on test, as published numbers are. It flatters a little."
    if not run.about["sizes"]["validation"]:
        return "Protocol “honest”: no validation items, so the last round; test items were looked at once."
    return "Protocol “honest”: the round was chosen on validation items; test items were looked at once."


def result(run: Run) -> str:
    about = paragraph(protocol(run)) + before_training(run)
    tiles = [("Round", f"{run.model.round:,}", f"of {max(run.config.run.rounds, run.model.round):,}"), *promise(run)]
    if run.result["split"] is None:
        return tile_row(tiles) + about
    value, k = run.result, run.k
    tiles = [
        (f"Recall@{k}", f"{value[f'recall@{k}']:.4f}", "of a user's test items are in the list"),
        (f"NDCG@{k}", f"{value[f'ndcg@{k}']:.4f}", "the same, counting more at the top"),
        (f"Coverage@{k}", f"{100 * value[f'coverage@{k}']:.1f} %", "of all items are in somebody's list"),
        *tiles,
    ]
    shown = {f"{name}@{k}" for name in ("recall", "ndcg", "coverage")}
    more = [[name, f"{value[name]:.4f}"] for name in value if "@" in name and name not in shown]
    plain = paragraph(
        f"On average {100 * value[f'recall@{k}']:.0f} % of the items that a user has and the "
        f"model never saw are among the {k} that it recommends. {value['users']:,} users were judged; for "
        f"each, all {run.about['sizes']['items']:,} items were ranked but those already known.",
        "lead",
    )
    return tile_row(tiles) + plain + about + (html(Grid("", ["Other metrics", "Value"], more)) if more else "")


def before_training(run: Run) -> str:
    """What the sums that came first give by themselves, and what both parts cost."""
    method, judged = run.model.method, [line for line in run.metrics if line["split"] == run.metrics[0]["split"]]
    first = next((line for line in judged if method.prepared(line["round"])), None)
    chosen = next((line for line in judged if line["round"] == run.model.round), None)
    if first is None or chosen is None:
        return ""

    def said(line: dict[str, Any]) -> str:
        sent = size(line["bytes_up_secure"] / run.about["sizes"]["users"])
        return (
            f"{line[f'recall@{run.k}']:.4f} on {line['split']} items, {line['seconds']:.0f} s and {sent} from each user"
        )

    whole = f" With what was trained beside them: {said(chosen)}." if chosen is not first else ""
    return paragraph(f"The {first['round']} sums alone: {said(first)}.{whole}")


def promise(run: Run) -> list[tuple[str, str, str]]:
    """The ε of all sums of the run. Evaluations of a simulation are the researcher's own, and outside it."""
    told = run.config.run
    spent = max((line.get("dp_epsilon_spent", 0.0) for line in run.metrics), default=0.0) or told.decoys_epsilon
    agreed = f"of {told.dp_epsilon:g} for every {told.dp_unit}, at δ = {told.dp_delta if told.noisy else 0:g}"
    return [("ε spent", f"{spent:.3g}", agreed)] if spent else []


def comparison(run: Run) -> str:
    """Every system on the same split, the best first."""
    keys = [f"recall@{run.k}", f"ndcg@{run.k}"]
    lines = list(run.baselines.items())
    if not lines:
        return ""
    if run.result["split"] is not None:
        lines.append((OURS, run.result))
    lines.sort(key=lambda line: -line[1].get(keys[0], 0.0))
    most = {key: max((line.get(key, 0.0) for _, line in lines), default=0.0) for key in keys}
    rows = [[name, *(_bar(line.get(key), most[key]) for key in keys)] for name, line in lines]
    return html(Grid("Compared with", ["System", f"Recall@{run.k}", f"NDCG@{run.k}"], rows, align="lll", strong=OURS))


def person(run: Run, chart: Chart | None) -> str:
    """The frame in which page.js shows a person."""
    if run.people is None:
        return paragraph(f"Left out: {run.missing}") if run.missing else ""
    count = len(run.people.survey.users)
    about = (
        f"This page holds the items of {count:,} people: keep it as you keep the data. Another person: "
        f"fedgrec report {run.folder.name} --user ID; nobody: --people 0."
    )
    judged = any(map(len, run.people.survey.hidden))
    return own_file("person.html").format(
        why=escape(run.people.why),
        shown=SHOWN,
        judged="In test" if judged else "",
        hide="" if judged else " hidden",
        map=chart.html() if chart else "",
        about=escape(about),
    )


def people(run: Run, shown: People, chart: Chart | None) -> dict[str, Any]:
    """What the script shows: people by their ids, items by their names."""
    survey, found = shown.survey, []
    items: set[int] = set()
    for n, user in enumerate(survey.users.tolist()):
        gets = survey.lists[n, :SHOWN]
        has, hidden, gets = survey.seen[n].tolist(), survey.hidden[n].tolist(), gets[gets >= 0].tolist()
        named = has[:MOST_ITEMS], hidden, gets
        items.update(*named)
        lists = dict(zip(("has", "hidden", "gets"), named, strict=True))
        home = chart.person(user) if chart else {}
        found.append({"id": str(run.model.user_ids[user]), **lists, "more": len(has) - len(named[0]), **home})
    degrees = run.model.item_degrees
    return {
        "people": found,
        "items": {i: [run.names.title(i), int(degrees[i]), *(chart.item(i) if chart else [])] for i in sorted(items)},
        "first": shown.first,
        "map": chart.about() if chart else None,
    }


def traffic(run: Run) -> str:
    """Bytes of an average user, over the run and in one round that it takes part in."""
    if not run.metrics:
        return ""
    sizes = run.about["sizes"]
    paid = cost(run.config, run.metrics, sizes["users"], sizes["items"])
    found = {
        "Sent in the clear": (paid.whole.up, paid.turn.up),
        "Sent as secure sums": (paid.whole.up_secure, paid.turn.up_secure),
        "Received": (paid.whole.down, paid.turn.down),
    }
    most = max(whole for whole, _ in found.values())
    rows = [[name, _bar(whole, most, size(whole)), Cell(size(turn), turn)] for name, (whole, turn) in found.items()]
    note = (
        "This was a simulation: the bytes are what a real federation would have carried, warm-up included. "
        "In the clear a user sends only the rows it changed, and so shows what it likes; as secure sums it "
        "sends the whole table under masks, and the server learns nothing but the sum. "
        "Users download the whole item table, so their downloads tell nothing."
    )
    head = ["Average user", f"{paid.rounds:,} rounds", f"one of its {paid.turns:,.0f} turns"]
    return html(Grid("", head, rows, align="lll")) + paragraph(note, "note")


def data(run: Run) -> str:
    sizes = run.about["sizes"]
    pairs, split = sizes["train"] + sizes["validation"] + sizes["test"], run.about["split"]
    rows = [[label, f"{sizes[part]:,}"] for part, label in PARTS.items()]
    rows.append(["Density", f"{100 * pairs / (sizes['users'] * sizes['items']):.3g} %"])
    if sizes["test"]:
        rows.append(["Test items are", SPLITS.get(split, split)])
    return html(Grid("", ["Data set", run.about["name"]], rows, run.about.get("notes", []), "ll"))


def settings(run: Run) -> str:
    """The options that were chosen, then all options."""
    chosen = chosen_options(run.config, run.about["sizes"]["users"])
    rows = [[o.name, _plain(value), _plain(default), o.field.metadata["help"]] for o, value, default in chosen]
    head = ["Differs from the default", "Value", "Default", "What it is"]
    table = f"<div class=options>{html(Grid('', head, rows, align='llll'))}</div>\n"
    changed = table if rows else "<p>All options are the defaults.</p>\n"
    whole = f"<pre>{escape(run.config.to_toml())}</pre>"
    return f"{changed}<details><summary>The whole configuration</summary>{whole}</details>\n"


def _bar(value: float | None, most: float, text: str = "") -> Cell:
    """A number with a bar beside it."""
    if value is None:
        return Cell(NOTHING)
    return Cell(text or f"{value:.4f}", value, value / most if most > 0 else 0.0)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


# -------------------------------------------------------------------------------------------- its charts


def learning(run: Run) -> Figure:
    """Recall and NDCG against rounds."""
    judge, chosen = run.metrics[0]["split"], run.model.round
    judged = [line for line in run.metrics if line["split"] == judge]
    final = [line for line in run.metrics if line["split"] != judge]  # under `honest`, the one evaluation on test
    panels, entries = [], {f"selected: round {chosen:,}": ("mean", "")}
    for title in ("Recall", "NDCG"):
        series = []
        for i, k in enumerate(run.config.run.topk):
            key, look = f"{title.lower()}@{k}", charts.style(i)
            name, once = f"@{k} on {judge}", f"@{k} on {final[0]['split']}, looked at once" if final else ""
            series.append(Series(name, [(line["round"], line[key]) for line in judged], look, mark="dot"))
            entries[name] = look, ""
            if final:
                points = [(line["round"], line[key]) for line in final]
                series.append(Series(once, points, look, line=False, mark="star"))
                entries[once] = look, "star"
        panels.append(plot(title, "round", series, marked=chosen))
    every = run.config.run.evaluate_every
    caption = f"Measured on {judge} items every {every:,} rounds; the dashed line is the selected round."
    if final:
        sizes, parts = run.about["sizes"], (judge, final[0]["split"])
        each = [f"{n / sizes['users']:.1f} in {part}" for part, n in sizes.items() if part in parts]
        caption += (
            " The star is the one look at test. It is not on the curve's scale, because a user has "
            f"another number of items to find there: on average {', '.join(each)}."
        )
    return Figure("curves", panels, caption, legend(entries))


def lists(run: Run, survey: Survey) -> Figure:
    """How much recall differs between users, and whether the lists hold more than popular items."""
    panels, entries = [], {"of recommendations": ("c0", "dot"), "of all items": ("guess", "dot")}
    if any(map(len, survey.hidden)):
        recall = survey.recall(run.k)
        panels.append(_recall_histogram(recall, f"a user's Recall@{run.k}"))
        entries[f"mean {recall.mean():.3f}"] = "mean", ""
    shown = survey.lists[:, : run.k]
    panels.append(_popularity(run.model.item_degrees, shown[shown >= 0]))
    who = f"all {len(survey.users):,}" if survey.everyone else f"{len(survey.users):,} evenly spaced"
    caption = (
        f"From the lists of {run.k} for {who} users. Nothing but the most popular items would be one "
        f"coloured column at the far right."
    )
    return Figure("users", panels, caption, legend(entries))


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _recall_histogram(recall: NDArray[np.float64], what: str) -> Panel:
    share = {"of users": (np.histogram(recall, np.linspace(0, 1, 21))[0] / len(recall)).tolist()}
    said = [f"{what}: {i / 20:.2f} to {(i + 1) / 20:.2f}" for i in range(20)]
    title, across = "How well users are served", Axis(0.0, 1.0, LEFT, RIGHT)
    return charts.columns(title, across, what, share, _share, said, marked=float(recall.mean()))


def _popularity(degrees: Ints, recommended: Ints) -> Panel:
    """Items by popularity, in classes that widen, because popularity has a long tail."""
    edges = np.unique([0, *np.geomspace(1, degrees.max() + 1, 12).round().astype(int)])
    classes = itertools.pairwise(edges.tolist())
    names = [charts.plain(low) if high == low + 1 else f"{low:,}–{high - 1:,}" for low, high in classes]
    parts = {}
    for name, values in (("of recommendations", degrees[recommended]), ("of all items", degrees)):
        parts[name] = (np.histogram(values, [*edges[:-1], np.inf])[0] / max(len(values), 1)).tolist()
    title, what = "How popular recommended items are", "users who have the item"
    across = charts.categories(names, LEFT, RIGHT)
    return charts.columns(title, across, what, parts, _share, [f"{name} {what}" for name in names])
