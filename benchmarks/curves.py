"""`python -m benchmarks.curves`: recall over rounds and over bytes, and the frontier of all methods, as three pictures.

The first two are drawn from the runs in docs/results; the frontier from docs/results/frontier.csv, whose lines say
where each figure comes from.
"""

import csv
import json
from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, GREEN, GREY, PURPLE, RED, legend_below, new_figure, png, set_frame
from fedgrec.studies.compare.packed import PACKED, read_packed

RESULTS = Path(__file__).parents[1] / "docs" / "results"
USERS = {"gowalla": 29_858, "yelp2018": 31_668}
TITLES = {"gowalla": "Gowalla", "yelp2018": "Yelp2018"}
Curve = tuple[list[int], list[float], list[float]]  # rounds, gigabytes a user, recall


def of_lines(lines: list[dict[str, Any]], users: int) -> Curve:
    found = [line for line in lines if line["split"] == "test"]
    moved = [line.get("bytes_secure") or line["bytes_up_secure"] + line["bytes_down_secure"] for line in found]
    return [line["round"] for line in found], [b / users / 1e9 for b in moved], [line["recall@20"] for line in found]


def of_run(group: str, name: str, users: int) -> Curve:
    return of_lines(dict(read_packed(RESULTS / group / PACKED))[name]["metrics.jsonl"], users)


def curves(data: str) -> dict[str, tuple[str, Curve]]:
    """Seed 0, protocol `paper`: label → colour and curve."""
    users = USERS[data]
    softmax = [json.loads(line) for line in (RESULTS / "softmax" / "runs.jsonl").read_text().splitlines()]

    def new(preset: str) -> Curve:
        wanted = {"label": preset, "data": data, "protocol": "paper", "seed": 0}
        return of_lines(next(run["metrics"] for run in softmax if run.items() >= wanted.items()), users)

    return {
        "paper": (GREY, of_run(f"reproduce-runs/{data}-paper", "FedGRec-2-seed0", users)),
        "BPR, 60,000 rounds": (PURPLE, of_run("long", f"{data}-paper-seed0", users)),
        "best": (BLUE, new("best")),
        "long": (GREEN, new("long")),
        "spectral, four sums": (RED, new("spectral")),
    }


def draw(over: int, label: str, name: str) -> None:
    figure = new_figure(10, 4.3)
    panels = figure.subplots(1, 2)
    for axes, data in zip(panels, TITLES, strict=True):
        for title, (colour, curve) in curves(data).items():
            size = 6 if len(curve[0]) == 1 else 3
            axes.plot(curve[over], curve[2], color=colour, lw=2, marker="o", ms=size, label=title)
        axes.set_xscale("log")
        set_frame(axes, TITLES[data], label, "Recall@20")
        axes.set_ylim(0, None)
    legend_below(figure, panels[0], 5)
    (RESULTS / "softmax" / name).write_bytes(png(figure))


def frontier() -> None:
    """Recall on Gowalla over what a user sends in a whole run, protocol `honest`, means of three seeds."""
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    with (RESULTS / "frontier.csv").open() as file:
        for row in csv.DictReader(file):
            megabytes, recall = float(row["megabytes_up"]), float(row["recall"])
            colour = BLUE if row["ours"] else GREY
            axes.plot(megabytes, recall, "o", color=colour, ms=7)
            left = row["method"] == "fedgnn"  # fedmf is close to its right
            place, side = ((-7, -3), "right") if left else ((7, -3), "left")
            axes.annotate(row["method"], (megabytes, recall), place, textcoords="offset points", ha=side, fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(50, 2e5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    set_frame(axes, "Gowalla: what accuracy costs", "megabytes that a user sends as secure sums", "Recall@20")
    (RESULTS / "frontier.png").write_bytes(png(figure))


if __name__ == "__main__":
    frontier()
    draw(0, "round", "recall-over-rounds.png")
    draw(1, "gigabytes up and down, a user", "recall-over-bytes.png")
