"""A whole federation in one process: three nodes, secure sums, and a recommendation that no network sees.

The server and the nodes are the real ones, with their folders and stores; only the network between them is a function
call. `fedgrec federation up` starts the same as processes that speak TLS (docs/deploy.md).
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from fedgrec import Config
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.common.transport import Left, Sign
from fedgrec.federation.node.gateway import NodeProcess
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.refresh import refresh
from fedgrec.federation.server import coordinator
from fedgrec.federation.setup.init import init

ITEMS = 40


class FunctionCalls:
    """All that a server needs of a network: who is there, and answers to messages."""

    def __init__(self, folders: list[Path]) -> None:
        self.nodes = dict(enumerate(map(NodeProcess, folders)))

    def signs(self) -> Mapping[int, Sign]:
        return dict.fromkeys(self.nodes, Sign())

    def exchange(self, requests: Mapping[int, Packet], left: Left) -> Iterator[tuple[int, Packet]]:
        return ((address, self.nodes[address].handle(request)) for address, request in requests.items())


def write_clicks(folder: Path, node: int) -> str:
    """Twenty people of a node. One half likes even items, the other half odd ones."""
    rng, lines = np.random.default_rng(node), ["user,item"]
    for u in range(20):
        lines += [f"user-{node}-{u},{2 * place + u % 2}" for place in rng.permutation(ITEMS // 2)[:12]]
    (folder / "clicks.csv").write_text("\n".join(lines))
    return "clicks.csv"


def main(rounds: int = 10) -> float:
    config = Config().changed({"dim": 8, "negatives": 16, "users_per_round": 60})
    with tempfile.TemporaryDirectory() as name:
        options = FederationOptions(rounds=rounds, evaluate_every=0, pause=0.0)
        made = init(Path(name) / "fed", 3, list(map(str, range(ITEMS))), config, options, fill=write_clicks)
        for node in made.nodes:
            refresh(node)  # reads its source
        coordinator.run(FunctionCalls(made.nodes), made.server)  # every sum goes through secure aggregation

        # The server's store holds item tables and sums. A node recommends from its own file and the model it got.
        right = []
        for user in range(20):
            items, _ = recommend(made.nodes[0], f"user-0-{user}", 5)
            right.append(np.mean(items % 2 == user % 2))
            print(f"user-0-{user} likes {('even', 'odd')[user % 2]} items and is recommended {items.tolist()}")
    return float(np.mean(right))


if __name__ == "__main__":
    print(f"{main():.0%} of the recommended items are of the kind that the user likes")
