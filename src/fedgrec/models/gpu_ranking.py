"""Full ranking by scores, here or on a GPU. PyTorch is imported only where one is used."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError
from fedgrec.models.ranking import Ids, Indptr, Rank, top_k_scores

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

RANKED_AT_ONCE = 2**28  # scores on the device at a time: 1 GB


def ranker(score: Callable[[Ints], Any], n_items: int, on_device: bool) -> Rank:
    """Ranking by scores of users [n, N]: tensors that stay on their device, or arrays."""

    def rank(users: Ints, k: int, indptr: Indptr, seen: Ids) -> Ids:
        if on_device:
            return top_k_on_device(score, users, k, n_items, indptr, seen)
        return top_k_scores(lambda some: score(users[some]), n_items, k, indptr, seen)[0]

    return rank


def products_on_gpu(users: Floats, items: Floats) -> Callable[[Ints], Any]:
    """Scores that are inner products of rows [M, D] and [N, D]."""
    import torch

    users_there, items_there = (torch.from_numpy(part).to("cuda") for part in (users, items))
    return lambda some: users_there[torch.from_numpy(some).to("cuda")] @ items_there.T


def top_k_on_device(
    score: Callable[[Ints], Any], users: Ints, k: int, n_items: int, seen_indptr: Indptr, seen_items: Ids
) -> Ids:
    """Each user's k best unseen items, as `ranking.top_k` has them, but ties come in any order. [n, k]"""
    import torch

    ids = np.full((len(users), k), -1, np.int32)
    k_there, step = min(k, n_items), max(1, RANKED_AT_ONCE // max(n_items, 1))
    with torch.no_grad():
        for lo in range(0, len(users), step):
            block = slice(lo, min(lo + step, len(users)))
            scores = score(users[block])
            if not torch.isfinite(scores).all():
                raise FedgrecError("scores are not finite: training diverged; lower its rate")
            counts = np.diff(seen_indptr[block.start : block.stop + 1])
            rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(scores.device)
            seen = seen_items[seen_indptr[block.start] : seen_indptr[block.stop]].astype(np.int64)
            scores[rows, torch.from_numpy(seen).to(scores.device)] = -torch.inf
            best, at = scores.topk(k_there, dim=1)
            ids[block, :k_there] = torch.where(best.isneginf(), -1, at).to(torch.int32).cpu().numpy()
    return ids
