"""From a table of clicks to recommendations, and how good they are.

    python examples/own_data.py clicks.csv

The table needs the columns user and item; docs/data.md has other formats. Without a table the built-in demo is used.
"""

import sys
from typing import Any

from fedgrec import Config, FedGRec, Simulation


def main(data: str = "demo", out: str = "runs/own-data", **options: Any) -> list[Any]:
    # 1. Some of everybody's items are held out: validation items choose the round, test items measure it once.
    simulation = Simulation(Config().changed({"data": data} | options), out=out)
    simulation.run()
    print({name: round(value, 4) for name, value in simulation.result().items() if "@20" in name})

    # 2. The run's folder holds the model: load it here, or use `fedgrec recommend`.
    model = FedGRec.load(out)
    somebody = simulation.dataset.split.train.user_ids[0]
    items, scores = model.recommend(somebody, N=5)
    for item, score in zip(items, scores, strict=True):
        print(f"{somebody} may like {item} ({score:.3f})")

    # 3. Somebody who never took part is represented by the items they name.
    print("whoever has the first two of these may like", *model.recommend_new(items[:2], N=3)[0])
    return list(items)


if __name__ == "__main__":
    main(*sys.argv[1:2])
