"""A year of a federation: twelve months in the demo's towns, through five nodes over Flower, a season a month.

Every month the nodes' tables have all visits so far, without people who have left, and the authority signs a catalogue
with the places that open and close next month. The nodes read their tables again, and the server trains one season.
Recall@20 is measured on next month's visits, among open places that are new to the person:

served       the model that nodes recommend with after that season
scratch      a model that the simulation trains from nothing on the same data, in as many rounds as the first season;
             the mean of a few seeds
popularity   the places with the most visitors

`python -m benchmarks.year` draws docs/year.png from the kept result; with a number it tries the year of that seed in
this process, without a network.
"""

import csv
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.federation.local_transport import LocalTransport

from benchmarks.common import RESULTS
from benchmarks.drawing import BLUE, GREY, RED, legend_below, new_figure, png, set_frame
from benchmarks.stream import Month, year
from fedgrec.cable.core import as_server
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.data.ids import IdMap
from fedgrec.federation.common.arrays import read_arrays, write_private
from fedgrec.federation.common.catalogue import withdrawn
from fedgrec.federation.common.options import AS_USUAL, Agreement, FederationOptions, read_options
from fedgrec.federation.common.packets import unpack_broadcast
from fedgrec.federation.flower.processes import Processes
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import SERVED, open_node
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.ranking import best, scores
from fedgrec.federation.node.refresh import Watcher, refresh
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server import coordinator
from fedgrec.federation.server.folder import OPTIONS, open_server
from fedgrec.federation.server.store import ServerStore
from fedgrec.federation.setup.changes import change_catalogue
from fedgrec.federation.setup.init import Made, init
from fedgrec.federation.setup.start import free_port, start_node
from fedgrec.runs.simulation import Simulation

NODES, MONTHS, SEED, SEEDS = 5, 12, 2024, 3
ROUNDS, LATER = 60, 11  # rounds of the first season, and of each later one: less than a fifth
TOP, WITHIN = 20, 0.95  # places in a list; our goal, as a share of the recall of the model from scratch
MODEL = {"dim": 32, "negatives": 256, "users_per_round": 200}  # enough for some hundred places
CHECKED = 3  # people of each node whose lists are compared with those of the node's own command
TABLE = "visits.csv"
PICTURE = RESULTS.parents[1] / "docs" / "year.png"
CURVES = {
    "scratch": (GREY, f"trained anew every month, {ROUNDS} rounds"),
    "served": (BLUE, f"the federation, {LATER} rounds a month"),
    "popularity": (RED, "the most visited places"),
}
Lists = dict[int, NDArray[np.int64]]  # by person: places, best first
Season = Callable[[], None]  # trains one


# ------------------------------------------------------------------------------------------------ the federation


def begin(root: Path, month: Month, rounds: int, later: int, people: int = AS_USUAL.fewest_people) -> Made:
    """The folders of server and nodes, with the data of the first month; each node is sure to bring `people`."""

    def fill(folder: Path, index: int) -> str:
        write_table(folder, index, month)
        return TABLE

    options = FederationOptions(rounds=rounds, later_rounds=later, rest=0.0, look=0.0, deadline=300.0)
    names = [place(number) for number in range(month.places)]
    made = init(
        root / "fed",
        NODES,
        names,
        config(),
        options,
        port=free_port(),
        fill=fill,
        people=[people] * NODES,
        agreed=Agreement(evaluations=0),  # next month's visits measure the model instead
    )
    return made


def go_on(made: Made, month: Month, before: Month) -> None:
    """The next month: nodes read new tables, the catalogue changes, one more season is asked for."""
    for index, folder in enumerate(made.nodes):
        write_table(folder, index, month)
        refresh(folder)
    opening = [place(number) for number in range(before.places, month.places)]
    change_catalogue(made.server.parent, opening, [place(number) for number in month.closed - before.closed])
    path = made.server / OPTIONS
    options = read_options(path, FederationOptions)
    path.write_text(replace(options, seasons=month.number).to_toml(), encoding="utf-8")


def write_table(folder: Path, index: int, month: Month) -> None:
    """Write all visits so far of a node's people; all of them train."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["user", "item", "held_out"])
    for number, places in month.visited.items():
        if number % NODES == index:
            table.writerows([person(number), place(p), 0] for p in sorted(places))
    write_private(folder / TABLE, text.getvalue().encode())


def person(number: int) -> str:
    return f"person {number}"


def place(number: int) -> str:
    return f"place {number}"


def config(**options: Any) -> Config:
    return Config().changed({"data": "demo"} | MODEL | options, "benchmark")


@contextmanager
def over_flower(made: Made) -> Iterator[Season]:
    """Nodes run all year; the server is started for every season, as an operator may do."""
    from fedgrec.federation.flower.server_end import SUPERLINK, FlowerServer

    with Processes(made.server.parent / "logs") as processes:

        def season() -> None:
            server = FlowerServer(made.server, processes)
            try:
                server.start()
                for folder in made.nodes:
                    if folder.name not in processes.running:
                        start_node(folder, processes)
                while (ended := server.ended()) is None:
                    time.sleep(0.3)
                if ended:
                    raise RuntimeError(f"{ended}: see {processes.logs}")
            finally:
                server.close()
            processes.stop(SUPERLINK)

        yield season


@contextmanager
def in_process(made: Made) -> Iterator[Season]:
    """The same federation without a network."""
    for folder in made.nodes:
        Watcher(folder).load()

    def season() -> None:
        coordinator.run(LocalTransport(dict(enumerate(made.nodes))), made.server)

    yield season


# --------------------------------------------------------------------------------------------------- what is judged


def served(made: Made) -> Lists:
    """Everybody's list, as the nodes recommend it."""
    lists: Lists = {}
    for folder in made.nodes:
        found = lists_of(folder)
        for user in list(found)[:CHECKED]:  # the node's own way, a person at a time
            np.testing.assert_array_equal(recommend(folder, user, TOP)[0], found[user])
        lists |= {int(user.removeprefix(person(0)[:-1])): chosen for user, chosen in found.items()}
    return lists


def lists_of(folder: Path) -> dict[str, NDArray[np.int64]]:
    """The lists that `fedgrec.federation.node.person.recommend` gives, for all users of a node at once."""
    home = open_node(folder)
    arrays, about = read_arrays(home.shared / SERVED)
    server, gone = as_server(unpack_broadcast(about, arrays)), withdrawn(home.shared)
    with NodeStore(home.path) as store:
        begun, n_users = store.get("season")
        method = home.method(n_users, begun)
        people = store.rows("users", "row, id", "WHERE leaving = 0 ORDER BY row")
        cohort = store.cohort(method, [row for row, _ in people])
        had = [np.array(changes.wanted(store, row), np.int64) for row, _ in people]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in had])])
    found = scores(method, server, replace(cohort, indptr=indptr, items=np.concatenate(had), targets=None))
    together = zip(people, had, found, strict=True)
    return {user: best(row, np.union1d(items, gone).astype(np.int64), TOP) for (_, user), items, row in together}


def from_scratch(month: Month, rounds: int, seed: int) -> Lists:
    """The lists of a model that is trained on the same data from nothing."""
    people = list(month.visited)
    pairs = [(str(p), str(place)) for p in people for place in sorted(month.visited[p])]
    names = IdMap([str(p) for p in people], "user"), IdMap([str(p) for p in range(month.places)], "item")
    data = Interactions.from_pairs(*zip(*pairs, strict=True), user_ids=names[0], item_ids=names[1])
    options = config(rounds=rounds, seed=seed, validation=0.0, evaluate_every=rounds, device="cpu", checkpoint_every=0)
    run = Simulation(options, Dataset("stream", Split(data)))
    run.run()
    found = scores(run.method, run.method.as_ranked(run.server), run.users)
    return {p: listed(row, month, p) for p, row in zip(people, found, strict=True)}


def popular(month: Month) -> Lists:
    visitors = np.zeros(month.places, np.float32)
    for places in month.visited.values():
        visitors[list(places)] += 1
    return {p: listed(visitors, month, p) for p in month.visited}


def listed(row: NDArray[Any], month: Month, p: int) -> NDArray[np.int64]:
    return best(row, np.array(sorted(month.visited[p] | month.closed)), TOP)


def recall(lists: Lists, month: Month, after: Month) -> tuple[float, int]:
    """Mean recall over people who are still there next month and visit something new; and their number."""
    found = []
    for p in month.visited.keys() & after.visited.keys():
        if new := after.visited[p] - month.visited[p]:
            found.append(len(new.intersection(lists[p].tolist())) / len(new))
    return statistics.fmean(found), len(found)


# -------------------------------------------------------------------------------------------------------- a year


def bench(quick: bool = False, network: bool = True, seed: int = SEED) -> dict[str, Any]:
    """Every month's figures, and whether they meet the goal from the second month on."""
    rounds, later, seeds = (12, 10, 1) if quick else (ROUNDS, LATER, SEEDS)
    months = list(year(seed, (2 if quick else MONTHS) + 1))
    lines: list[dict[str, Any]] = []
    way = over_flower if network else in_process
    with tempfile.TemporaryDirectory() as root:
        made = begin(Path(root), months[0], rounds, later)
        with way(made) as season:
            for index, (month, after) in enumerate(pairwise(months)):
                if index:
                    go_on(made, month, months[index - 1])
                begun = time.monotonic()
                season()
                line = {"month": month.number, "wall_seconds": round(time.monotonic() - begun, 1), **cost(made)}
                line |= {"places": month.places, "closed": len(month.closed)}
                line |= {name: getattr(month, name) for name in ("came", "left", "moved")}
                lines.append(line | judged(made, month, after, rounds, seeds))
                print(lines[-1], flush=True)
    return result_of(lines, rounds, later, seed)


def result_of(lines: list[dict[str, Any]], rounds: int, later: int, seed: int) -> dict[str, Any]:
    """The result of the months measured (also if the year was cut short), beside the goal."""
    shares = [line["served"] / line["scratch"] for line in lines[1:]]
    return {
        "nodes": NODES,
        "rounds": rounds,
        "later_rounds": later,
        "seed": seed,
        "model": MODEL,
        "months": lines,
        "least_share": min(shares),
        "mean_share": statistics.fmean(shares),
        "asked": WITHIN,
        "within": min(shares) >= WITHIN,
    }


def cost(made: Made) -> dict[str, Any]:
    """The cost of the last season, from the server's store."""
    with ServerStore(open_server(made.server)) as store:
        season = store.seasons()[-1]
        sums = store.sums(season.first_sum - 1)
    names = ("seconds", "bytes_up", "bytes_down")
    total = {name: sum(line[name] or 0 for line in sums) for name in names}
    lost = sum(not line["applied"] for line in sums)
    about = {"rounds": season.until - season.begun, "users": season.n_users, "changed": season.changed, "lost": lost}
    return about | total | {"seconds": round(total["seconds"], 1)}


def judged(made: Made, month: Month, after: Month, rounds: int, seeds: int) -> dict[str, Any]:
    """Recall of all three."""
    found, people = recall(served(made), month, after)
    scratch = [recall(from_scratch(month, rounds, seed), month, after)[0] for seed in range(seeds)]
    return {
        "judges": people,
        "served": found,
        "scratch": statistics.fmean(scratch),
        "scratch_seeds": scratch,
        "popularity": recall(popular(month), month, after)[0],
    }


def summary(result: Mapping[str, Any]) -> list[str]:
    """The table of a year."""
    heads = ("month", "rounds", "users", "places", "changed", "seconds", "MB", "served", "scratch", "popular", "share")
    lines = ["".join(f"{head:>9}" for head in heads)]
    for m in result["months"]:
        numbers = [m["month"], m["rounds"], m["users"], m["places"], m["changed"] or 0, round(m["wall_seconds"])]
        numbers.append(round((m["bytes_up"] + m["bytes_down"]) / 1e6))
        recalls = [m["served"], m["scratch"], m["popularity"], m["served"] / m["scratch"]]
        lines.append("".join(f"{n:>9}" for n in numbers) + "".join(f"{n:>9.3f}" for n in recalls))
    least, mean = result["least_share"], result["mean_share"]
    return [*lines, f"from the second month on: {least:.3f} at least, {mean:.3f} on average (asked: {result['asked']})"]


def draw(result: Mapping[str, Any]) -> bytes:
    """Recall over the months, small enough for a phone."""
    figure = new_figure(4.2, 3.4)
    axes = figure.subplots()
    months = [line["month"] for line in result["months"]]
    for name, (colour, label) in CURVES.items():
        axes.plot(months, [line[name] for line in result["months"]], color=colour, lw=2, marker="o", ms=4, label=label)
    set_frame(axes, "Recall@20 on next month's visits", "month")
    axes.set_xticks(months)
    axes.set_ylim(0, None)
    legend_below(figure, axes, 1)
    return png(figure)


if __name__ == "__main__":
    if len(sys.argv) > 1:  # another year, without a network
        print(*summary(bench(network=False, seed=int(sys.argv[1]))), sep="\n")
    else:
        kept = json.loads((RESULTS / "year.json").read_text(encoding="utf-8"))
        PICTURE.write_bytes(draw(kept["result"]))
