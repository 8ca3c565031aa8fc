"""SASRec by RecTools on each user's last item, with the settings that eSASRec's authors publish for Beauty.

RecTools wants other versions of libraries than this project, so this script imports nothing of it and has an
environment of its own:

    python3 -m venv ~/rectools && ~/rectools/bin/pip install 'rectools[torch]==0.19.0'
    ~/rectools/bin/python benchmarks/sasrec.py beauty.txt

Lines are `user item item …` in the order of time. The last item is test; validation items, the ones before, choose the
epoch and stand in the history when test items are ranked among all items that the user has not had.

What chooses the epoch decides: as in the authors' program it is Recall@10 of the validation items. The loss of the
validation items, which RecTools offers, is least after a few epochs (`--by loss` shows it).

RecTools scores each place's 256 negatives by vectors of their own, padding included. `scored` gives the same scores
from one product with all items, of real places alone; that makes an epoch on two cores a minute.
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


def scored(self: Any, sessions: Any, items: Any, candidates: Any) -> Any:
    """Scores of each place's candidates, of which the first is what comes next; 0 at padding, which no loss counts."""
    if candidates.shape[1] != sessions.shape[1]:  # of a validation item, all candidates belong to the last place
        return (items[candidates] @ sessions.unsqueeze(-1)).squeeze(-1)
    real = candidates[..., 0] != 0
    scores = sessions.new_zeros(candidates.shape)
    scores[real] = (sessions[real] @ items.T).gather(1, candidates[real])
    return scores


def recommended(
    history: list[list[str]], dim: int, epochs: int, patience: int, seed: int, by: str
) -> tuple[list[list[str]], list[dict[str, float]]]:
    """The ten best items of each user that are not in its history; and what each epoch's validation said."""
    import pandas as pd
    import torch
    from pytorch_lightning import Callback, Trainer, seed_everything
    from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel
    from rectools.models.nn.transformers.similarity import DistanceSimilarityModule

    DistanceSimilarityModule._get_pos_neg_logits = scored
    said: list[dict[str, float]] = []

    class Hits(Callback):  # type: ignore[misc]
        """Recall of the validation items among all that are not in the history, after each epoch."""

        hits: list[Any]

        def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
            self.hits = []

        def on_validation_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any) -> None:
            model = module.torch_model
            scores = model.encode_sessions(batch, module.item_embs)[:, -1] @ module.item_embs.T
            scores = scores.scatter(1, batch["x"], -torch.inf)  # padding, item 0, too
            self.hits.append((scores.topk(K).indices == batch["y"]).any(1))

        def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
            recall = torch.cat(self.hits).float().mean()
            module.log("recall", recall)
            found = {"epoch": trainer.current_epoch, "recall": float(recall)}
            said.append(found | {"loss": float(trainer.callback_metrics[SASRecModel.val_loss_name])})
            print(json.dumps(said[-1]), flush=True)

    seed_everything(seed, workers=True)
    rows = [(u, item, 1.0, place) for u, items in enumerate(history) for place, item in enumerate(items)]
    table = pd.DataFrame(rows, columns=[Columns.User, Columns.Item, Columns.Weight, Columns.Datetime])
    table[Columns.Datetime] = pd.to_datetime(table[Columns.Datetime], unit="s")
    with tempfile.TemporaryDirectory() as folder:

        def trainer() -> Trainer:
            chosen, mode = ("recall", "max") if by == "recall" else (SASRecModel.val_loss_name, "min")
            best = ModelCheckpoint(folder, monitor=chosen, mode=mode, save_weights_only=True)
            stop = EarlyStopping(chosen, mode=mode, patience=patience)
            return Trainer(max_epochs=epochs, callbacks=[Hits(), best, stop], logger=False, enable_progress_bar=False)

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
    return [lists.get(u, []) for u in range(len(history))], said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--patience", type=int, default=50)
    parser.add_argument("--users", type=int, help="the first so many users alone, to try the script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", choices=["recall", "loss"], default="recall", help="what chooses the epoch")
    asked, started = parser.parse_args(), time.perf_counter()
    people = sequences(asked.data)[: asked.users]
    history = [items[:-1] for items in people]
    lists, said = recommended(history, asked.dim, asked.epochs, asked.patience, asked.seed, asked.by)
    ranks = [found.index(items[-1]) if items[-1] in found else K for items, found in zip(people, lists, strict=True)]
    recall = sum(rank < K for rank in ranks) / len(ranks)
    ndcg = sum(1 / math.log2(rank + 2) for rank in ranks if rank < K) / len(ranks)
    about = SETTINGS | {"dim": asked.dim, "epochs": asked.epochs, "patience": asked.patience, "seed": asked.seed}
    about |= {"by": asked.by, "validation": said}
    seconds = round(time.perf_counter() - started, 1)
    print(json.dumps({f"recall@{K}": recall, f"ndcg@{K}": ndcg, "users": len(people), "seconds": seconds, **about}))


if __name__ == "__main__":
    main()
