"""`fedgrec device`: what a node can do with no network at all."""

import argparse
import json
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.errors import ConfigError


def register(commands: Any) -> None:
    device = commands.add_parser(
        "device",
        help="use the model that a node has on its disk",
        description="What a node of a federation can do with no network at all.",
    )
    tasks = device.add_subparsers(title="tasks", metavar="TASK", required=True)
    recommend = command(tasks, "recommend", run, "what a user of the node should see next")
    recommend.add_argument("node", type=Path, metavar="NODE", help="the node's folder")
    recommend.add_argument("--user", required=True, metavar="ID", help="a user of the node")
    recommend.add_argument("-n", "--number", type=int, default=10, metavar="N", help="how many (default: 10)")
    recommend.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Recommend items to a user of a node, from the node's store and the item table downloaded last."""
    from fedgrec.cable.core import printable
    from fedgrec.federation.common.catalogue import CATALOGUE, read_catalogue
    from fedgrec.federation.node.person import recommend

    if arguments.number < 1:
        raise ConfigError(f"-n {arguments.number}: ask for at least one item")
    items, scores = recommend(arguments.node, arguments.user, arguments.number)
    names = list(read_catalogue(arguments.node / CATALOGUE))
    found = [(names[item], float(score)) for item, score in zip(items.tolist(), scores, strict=True)]
    if arguments.json:
        print(json.dumps([{"item": name, "score": score} for name, score in found]))
        return 0
    for rank, (name, score) in enumerate(found, 1):
        print(f"{rank:>3}. {printable(name):<50} {score:8.4f}")
    return 0
