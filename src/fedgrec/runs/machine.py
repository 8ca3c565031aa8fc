"""What a configuration runs on: which kernel, which device, and ranking there."""

import importlib
import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from fedgrec.cable.core import Cohort, Ints, ServerState
from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError
from fedgrec.kernels.devices import gpu_is_there, place, within_memory
from fedgrec.methods import contract
from fedgrec.methods.budget import with_noise
from fedgrec.methods.contract import Method
from fedgrec.models.gpu_ranking import rank_on_gpu, top_k_on_device
from fedgrec.models.metrics import Ideal
from fedgrec.models.ranking import Csr, Rank, Result, evaluate_ranking, top_k, top_k_scores
from fedgrec.runs.distributed import Ranks

LESS = "users_per_round, negatives, max_positives or local_steps"  # lower, they save GPU memory in training


def make_method(config: Config, n_items: int, n_users: int, ranks: Ranks) -> Method:
    """The method that a configuration names, on the kernel that it asks for, with the noise that it asks for."""
    method, run = _on_kernel(config, n_items, n_users, ranks), config.run
    if not run.noisy:
        return method
    return cast(Method, with_noise(method, run.dp_epsilon, run.dp_delta, run.dp_rounds or run.rounds))


def _on_kernel(config: Config, n_items: int, n_users: int, ranks: Ranks) -> Method:
    made = partial(contract.make_method, config.method, config.model, n_items, n_users)
    run, readable = config.run, made()
    if run.kernel not in ("auto", *readable.kernels):
        raise ConfigError(
            f"{config.method} has no kernel {run.kernel!r}: choose one of auto, {', '.join(readable.kernels)}"
        )
    if run.device == "cuda" and not readable.engine and "batched" not in readable.kernels:
        raise ConfigError(f"{config.method} does not train on a GPU: leave out device, or set it to cpu")
    if run.kernel == "reference" or "cpu" not in readable.kernels:
        return readable
    if run.device == "cuda":
        place("cuda")
    if "batched" in readable.kernels and (
        run.kernel == "batched" or (run.device == "cuda" and not fits_engine(config, ranks))
    ):
        from fedgrec.kernels.batched import Batched

        return made(Batched(run.device))
    from fedgrec.kernels import cpu

    cpu.use_threads(config.run.threads)
    return made(cpu)


def fits_engine(config: Config, ranks: Ranks) -> bool:
    """Whether rounds may run on a GPU from end to end: a method and options that its kernel knows, plain sums."""
    return (
        ranks.size == 1  # several processes exchange sums in the middle of a round
        and config.run.secure == "off"
        and not config.run.noisy  # the batched kernel bounds a user's norm, which noise needs
        and config.run.kernel == "auto"
        and _has_engine(contract.make_method(config.method, config.model))
    )


def _has_engine(method: Method) -> bool:
    there = method.engine and importlib.util.find_spec(method.engine_needs) is not None
    return bool(there and method.fits_engine)


def wants_gpu(config: Config) -> bool:
    """Whether `device = auto` means a GPU."""
    method, kernel = contract.make_method(config.method, config.model), config.run.kernel
    batched = "batched" in method.kernels and kernel in ("auto", "batched")
    return (batched or (kernel == "auto" and _has_engine(method))) and gpu_is_there()


def make_engine(config: Config, method: Method, server: ServerState, users: Cohort) -> Any:
    """What runs whole rounds on the GPU; it takes the state over."""
    with within_memory("training", LESS):
        return importlib.import_module(method.engine).Engine(method, server, users, config.run.device)


def judged(
    method: Method,
    server: ServerState,
    users: Cohort,
    seen: Csr,
    held_out: Csr,
    ks: Sequence[int],
    ideal: Ideal,
    device: str = "cpu",
    ranks: Ranks | None = None,
) -> Result:
    """Full ranking by the method, with this server and these users."""
    with within_memory("ranking", "dim or layers", device):
        shared = (ranks or Ranks()).split(_ranker(method, server, users, device), method.n_items)
        return evaluate_ranking(shared, method.n_items, seen, held_out, ks, ideal)


def _ranker(method: Method, server: ServerState, users: Cohort, device: str) -> Rank:
    """A function that ranks items for these users: by inner products or by scores, here or on a GPU."""
    server = method.as_ranked(server)
    if method.inner_product:
        items = method.represent_items(server).astype(np.float32)

        def rank_products(chosen: Ints, k: int, indptr: Any, seen: Any) -> Any:
            own = method.represent_users(server, users.take(chosen)).astype(np.float32)  # not of all: they may be many
            if device == "cuda":
                return rank_on_gpu(own, items)(np.arange(len(own)), k, indptr, seen)
            return top_k(own, items, k, indptr, seen)[0]

        return rank_products
    there = method.scorer(server, users, device) if device == "cuda" else None
    if there is not None:
        return lambda chosen, k, indptr, seen: top_k_on_device(there, chosen, k, method.n_items, indptr, seen)

    def rank(chosen: Ints, k: int, indptr: Any, seen: Any) -> Any:
        def score(some: slice) -> Any:
            return method.scores(server, users.take(chosen[some])).astype(np.float32)

        return top_k_scores(score, method.n_items, k, indptr, seen)[0]

    return rank
