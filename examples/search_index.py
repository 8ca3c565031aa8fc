"""Put a model's items into a search index, where a catalogue is too large to score whole: a score is an inner product.

pip install 'fedgrec[index]'
fedgrec train --data demo --out runs/first
python examples/search_index.py runs/first
"""

import sys

import numpy as np
from usearch.index import Index

from fedgrec import FedGRec

PEOPLE, N = 200, 10


def main(folder: str = "runs/first") -> float:
    """The share of people's exact lists that the index finds."""
    model = FedGRec.load(folder).model
    items = model.item_vectors()
    index = Index(ndim=items.shape[1], metric="ip")
    index.add(np.arange(len(items)), items)

    people = np.arange(min(PEOPLE, len(model.user_ids)))
    exact, _ = model.lists(people, N)
    found = []
    for user, vector in zip(people, model.user_vectors(people), strict=True):
        seen = model.seen(user)  # an index knows nothing of it: ask for more, and leave these out
        keys = index.search(vector, N + len(seen)).keys.astype(np.int64)
        found.append(keys[~np.isin(keys, seen)][:N])
    share = float(np.mean([np.isin(theirs, ours).mean() for theirs, ours in zip(found, exact, strict=True)]))
    print(f"{len(items):,} items of {items.shape[1]} numbers: the index finds {100 * share:.1f} % of exact lists")
    return share


if __name__ == "__main__":
    main(*sys.argv[1:2])
