"""`fedgrec demo`: train, compare, recommend and report in a minute, on the built-in data."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.errors import RunError

ROUNDS, NEGATIVES = 200, 256
OURS = "sums and FedGRec"
MARK = ".demo"  # a folder with this file in it may be replaced


def register(commands: Any) -> None:
    demo = command(commands, "demo", run, "train on the built-in data, compare, recommend, report, page")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="RUN", help="(default: runs/demo)")
    demo.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"(default: {ROUNDS})")


def run(arguments: argparse.Namespace) -> int:
    """Train on the built-in data, compare with popularity, plain matrix factorisation and the sums alone, show
    some recommendations, write a report and a page that recommends.
    """
    from fedgrec.cli.progress import Bar
    from fedgrec.config.configuration import Config
    from fedgrec.data.datasets import load_for
    from fedgrec.data.files import check_writable, write_text
    from fedgrec.pages.report.gather import popularity
    from fedgrec.runs.resolve import resolved
    from fedgrec.runs.simulation import Simulation

    folder: Path = arguments.out
    check_writable(folder)
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise RunError(f"{folder} is not empty and not an earlier demo: choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / MARK, "made by `fedgrec demo`, which may replace this folder\n")
    trained, bar = {"rounds": arguments.rounds, "negatives": NEGATIVES}, Bar()
    config = Config().changed({"data": "demo", "method": "two-parts", **trained}, "demo")
    dataset = load_for(config)
    bar.describe(resolved(config, dataset), dataset)
    results = popularity(dataset.split, resolved(config, dataset))
    for name, changes, out in (
        ("matrix factorisation", {"method": "fedgrec", "layers": 0, **trained}, None),
        ("sums, nothing trained", {"method": "spectral"}, None),
        (OURS, {"method": "two-parts", **trained}, folder),
    ):
        print(f"\n{name}" + (" (FedGRec's training without the graph: layers = 0)" if "layers" in changes else ""))
        simulation = Simulation(Config().changed({"data": "demo", **changes}, "demo"), dataset, out, bar)
        with bar.watching():
            model = simulation.run()
        if not simulation.finished:
            print("stopped")
            return 130
        results[name] = {key: value for key, value in simulation.result().items() if "@" in key}
    compare(results)
    recommendations(model, dataset)
    from fedgrec.pages.report import write_report

    ours = results.pop(OURS)
    print(f"\nreport: {write_report(folder, results)}  (recall@20 {ours['recall@20']:.4f}; open it in a browser)")
    from fedgrec.pages.export import write_page

    print(f"page:   {write_page(folder, folder / 'page').path}  (pick places, and it recommends by itself)")
    called = "python -m fedgrec" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
    program = "fedgrec" if shutil.which("fedgrec") else called  # the virtual environment may not be active
    print(f"try:    {program} recommend {folder} --user 7")
    return 0


def compare(results: dict[str, dict[str, float]]) -> None:
    """A table with bars. The test items it measures chose no round."""
    best = max(result["recall@20"] for result in results.values())
    print(f"\n{'test items':<27} {'recall@20':>9} {'ndcg@20':>9} {'coverage':>9}")
    for name, result in results.items():
        bar = "█" * round(20 * result["recall@20"] / best)
        print(f"{name:<27} {result['recall@20']:>9.4f} {result['ndcg@20']:>9.4f} {result['coverage@20']:>9.1%}  {bar}")


def recommendations(model: Any, dataset: Any) -> None:
    """The lists of three people; a star marks a hidden place that the person visited."""
    places, test, shown = dataset.places, dataset.split.test, 0
    print("\nSome people for whom a hidden place is found (*):")
    for user in range(0, test.n_users, 37):
        ids, _ = model.recommend_to(user, dataset.split.before_test.of(user), 5)  # as the evaluation ranks
        hits = set(test.of(user).tolist()) & set(ids.tolist())
        if hits and shown < 3:
            shown += 1
            print(f"\nuser {user}, who lives in {places.town_names[places.user_town[user]]}, might like:")
            for item in ids:
                star = "*" if int(item) in hits else " "
                print(f"  {star} {places.names[item]}, {places.town_names[places.town[item]]}")
