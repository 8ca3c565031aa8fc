"""A whole federation in one process: three nodes, secure sums, and a recommendation that no network sees.

The server and the nodes are the real ones, with their folders and stores; only the network between them is a function
call. `fedgrec federation up` starts the same as processes that speak TLS (docs/deploy.md).
"""

import tempfile
from pathlib import Path

import numpy as np

from fedgrec import Config
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.in_process.folders import make_folders
from fedgrec.federation.in_process.transport import LocalTransport
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.store import Person
from fedgrec.federation.server import coordinator

ITEMS = 40


def people(node: int) -> list[Person]:
    """Twenty people of a node. One half likes even items, the other half odd ones."""
    rng = np.random.default_rng(node)
    return [Person(f"user-{node}-{u}", (2 * rng.permutation(ITEMS // 2)[:12] + u % 2).tolist()) for u in range(20)]


def main(rounds: int = 10) -> float:
    config = Config().changed({"dim": 8, "negatives": 16, "users_per_round": 60})
    with tempfile.TemporaryDirectory() as name:
        options = FederationOptions(rounds=rounds, evaluate_every=0, pause=0.0)
        server, nodes = make_folders(Path(name), config, ITEMS, [people(node) for node in range(3)], options)
        coordinator.run(LocalTransport(nodes), server)  # every sum goes through secure aggregation

        # The server's store holds item tables and sums. A node recommends from its own file and the model it got.
        right = []
        for user in range(20):
            items, _ = recommend(nodes[0], f"user-0-{user}", 5)
            right.append(np.mean(items % 2 == user % 2))
            print(f"user-0-{user} likes {('even', 'odd')[user % 2]} items and is recommended {items.tolist()}")
    return float(np.mean(right))


if __name__ == "__main__":
    print(f"{main():.0%} of the recommended items are of the kind that the user likes")
