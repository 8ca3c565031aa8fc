"""SASRec by RecTools on each user's last item, with the settings that eSASRec's authors publish for Beauty.

RecTools wants other versions of libraries than this project, so this script imports nothing of it and has an
environment of its own:

    python3 -m venv ~/rectools && ~/rectools/bin/pip install 'rectools[torch]==0.19.0'
    ~/rectools/bin/python benchmarks/sasrec.py beauty.txt

Lines are `user item item …` in the order of time. The last item is test; validation items, the ones before, stop
training and stand in the history when test items are ranked among all items that the user has not had.
A GPU is used where there is one; without one, 200 epochs of Beauty take hours.
"""

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

K = 10
SETTINGS: dict[str, Any] = {
    "session_max_len": 50, "n_blocks": 1, "n_heads": 1, "dropout_rate": 0.2, "loss": "sampled_softmax",
    "n_negatives": 256, "lr": 1e-3, "batch_size": 128,
}  # fmt: skip


def sequences(path: Path) -> list[list[str]]:
    """Each user's items, in the order of time; users with fewer than three have nothing to hold out."""
    found = [line.split()[1:] for line in path.read_text().splitlines()]
    return [items for items in found if len(items) > 2]


def recommended(history: list[list[str]], dim: int, epochs: int, patience: int, seed: int) -> list[list[str]]:
    """The ten best items of each user that are not in its history."""
    import pandas as pd
    from pytorch_lightning import Trainer, seed_everything
    from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel

    seed_everything(seed, workers=True)
    rows = [(u, item, 1.0, place) for u, items in enumerate(history) for place, item in enumerate(items)]
    table = pd.DataFrame(rows, columns=[Columns.User, Columns.Item, Columns.Weight, Columns.Datetime])
    table[Columns.Datetime] = pd.to_datetime(table[Columns.Datetime], unit="s")
    with tempfile.TemporaryDirectory() as folder:

        def trainer() -> Trainer:
            best = ModelCheckpoint(folder, monitor=SASRecModel.val_loss_name, save_weights_only=True)
            stop = EarlyStopping(SASRecModel.val_loss_name, patience=patience)
            return Trainer(max_epochs=epochs, callbacks=[best, stop], logger=False, enable_progress_bar=False)

        def last_of_each(interactions: pd.DataFrame, **_: Any) -> Any:
            later = interactions.groupby(Columns.User)[Columns.Datetime].rank(ascending=False, method="first")
            return (later <= 1).to_numpy()

        model = SASRecModel(
            n_factors=dim, get_trainer_func=trainer, get_val_mask_func=last_of_each, deterministic=False, **SETTINGS
        )
        data = Dataset.construct(table)
        model.fit(data)
        model.load_weights_from_checkpoint(model.fit_trainer.checkpoint_callback.best_model_path)
        found = model.recommend(list(range(len(history))), data, k=K, filter_viewed=True)
    lists = found.sort_values([Columns.User, Columns.Rank]).groupby(Columns.User)[Columns.Item].apply(list)
    return [lists.get(u, []) for u in range(len(history))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--patience", type=int, default=50)
    parser.add_argument("--users", type=int, help="the first so many users alone, to try the script")
    parser.add_argument("--seed", type=int, default=0)
    asked, started = parser.parse_args(), time.perf_counter()
    people = sequences(asked.data)[: asked.users]
    lists = recommended([items[:-1] for items in people], asked.dim, asked.epochs, asked.patience, asked.seed)
    ranks = [found.index(items[-1]) if items[-1] in found else K for items, found in zip(people, lists, strict=True)]
    recall = sum(rank < K for rank in ranks) / len(ranks)
    ndcg = sum(1 / math.log2(rank + 2) for rank in ranks if rank < K) / len(ranks)
    about = SETTINGS | {"dim": asked.dim, "epochs": asked.epochs, "patience": asked.patience, "seed": asked.seed}
    seconds = round(time.perf_counter() - started, 1)
    print(json.dumps({f"recall@{K}": recall, f"ndcg@{K}": ndcg, "users": len(people), "seconds": seconds, **about}))


if __name__ == "__main__":
    main()
