"""GPUs: whether there is one, how it is called, ranking on it. PyTorch is imported only where one is used."""

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.errors import FedgrecError, missing_extra
from fedgrec.ranking import Ids, Indptr, Rank

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

RANKED_AT_ONCE = 2**28  # scores on the device at a time: 1 GB


def gpu_is_there() -> bool:
    """Whether PyTorch has a GPU; quick without a driver, because PyTorch is not imported then."""
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def place(device: str) -> Any:
    """PyTorch's device of that name, if it is there and answers."""
    try:
        import torch
    except ImportError:
        raise missing_extra("a GPU", "torch") from None
    if device.startswith("cuda"):
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # says why it cannot, where is_available() only says no
        except (RuntimeError, AssertionError) as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise FedgrecError(f"there is no GPU for device {device!r} ({why}); use device 'cpu'") from None
    return torch.device(device)


@contextmanager
def within_memory(doing: str, lower: str, device: str = "cuda") -> Iterator[None]:
    """Turns a GPU's errors (memory too small, failure) into one sentence; does nothing on other devices."""
    if not device.startswith("cuda"):
        yield
        return
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, whole = (part / 2**30 for part in torch.cuda.mem_get_info())
        raise FedgrecError(
            f"{doing} needs more memory than the GPU has left ({free:.1f} of {whole:.1f} GB): lower {lower}, "
            f"or use --device cpu; checkpoints written before are intact"
        ) from error
    except torch.AcceleratorError as error:
        why = str(error).strip().splitlines()[0]
        raise FedgrecError(f"the GPU failed while {doing}: {why}; checkpoints written before are intact") from error


def rank_on_gpu(users: Floats, items: Floats) -> Rank:
    """Ranking by inner products of rows [M, D] and [N, D]."""
    import torch

    users_there, items_there = (torch.from_numpy(part).to("cuda") for part in (users, items))

    def rank(chosen: Ints, k: int, indptr: Indptr, seen: Ids) -> Ids:
        def score(some: Ints) -> Any:
            return users_there[torch.from_numpy(some).to("cuda")] @ items_there.T

        return top_k_on_device(score, chosen, k, len(items), indptr, seen)

    return rank


def top_k_on_device(
    score: Callable[[Ints], Any], users: Ints, k: int, n_items: int, seen_indptr: Indptr, seen_items: Ids
) -> Ids:
    """Each user's k best unseen items, as `fedgrec.ranking.top_k` has them, but ties come in any order. [n, k]"""
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
