"""What a configuration runs on: which kernel, which device, and ranking there."""

import importlib.util
from dataclasses import replace
from typing import Any, cast

import numpy as np

from fedgrec.cable.core import Cohort, Ints, ServerState
from fedgrec.config.configuration import Config
from fedgrec.errors import ConfigError
from fedgrec.kernels.devices import gpu_is_there, place, within_memory
from fedgrec.methods import contract
from fedgrec.methods.budget import with_noise
from fedgrec.methods.contract import Method
from fedgrec.models.gpu_ranking import products_on_gpu, ranker, top_k_on_device
from fedgrec.models.ranking import USUAL, Csr, Judging, Rank, Result, evaluate_ranking, top_k


def make_method(config: Config, n_items: int, n_users: int) -> Method:
    """The method that a configuration names, on the kernel that it asks for, with the noise that it asks for."""
    method, run = contract.make_method(config.method, config.model, n_items, n_users), config.run
    if run.kernel not in ("auto", *method.kernels):
        raise ConfigError(
            f"{config.method} has no kernel {run.kernel!r}: choose one of auto, {', '.join(method.kernels)}"
        )
    if run.device == "cuda":
        place("cuda")
    if run.kernel != "reference" and "cpu" in method.kernels:
        from fedgrec.kernels import cpu

        cpu.use_threads(run.threads)
        method = contract.make_method(config.method, config.model, n_items, n_users, cpu)
    if not run.noisy:
        return method
    return cast(Method, with_noise(method, run.dp_epsilon, run.dp_delta, run.dp_rounds or run.rounds))


def device_of(config: Config) -> str:
    """Where to train, cuda or cpu; `ConfigError` if a GPU is asked for and cannot."""
    asked, reason = config.run.device, why_no_gpu(config)
    if asked == "cuda" and reason:
        raise ConfigError(f"{reason}: leave out device, or set it to cpu")
    return "cuda" if asked == "cuda" or (asked == "auto" and not reason and gpu_is_there()) else "cpu"


def by_engine(config: Config) -> bool:
    """Whether an engine runs the rounds: on a GPU, and on a CPU where it alone is fast."""
    method = contract.make_method(config.method, config.model)
    alone = "cpu" not in method.kernels and method.engine_needs == "torch"
    return config.run.device == "cuda" or (alone and not why_no_gpu(config))


def why_no_gpu(config: Config) -> str:
    """Why no engine can run the rounds on a GPU from end to end; "" if one can."""
    method, name, run = contract.make_method(config.method, config.model), config.method, config.run
    reasons = {
        f"{name} does not train on a GPU": not method.engine,
        f"{name} does not train on a GPU with these options": not method.fits_engine,
        f"{name} does not train on a GPU without the package {method.engine_needs}": (
            importlib.util.find_spec(method.engine_needs) is None
        ),
        f"kernel = {run.kernel} does not train on a GPU": run.kernel != "auto",
        f"secure = {run.secure} does not train on a GPU": run.secure != "off",
        "a GPU knows no weights, which weight_ceiling asks for": config.data.weight_ceiling > 0,
        "a GPU adds no noise, which dp_epsilon asks for": run.noisy,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def judged(
    method: Method,
    server: ServerState,
    users: Cohort,
    seen: Csr,
    held_out: Csr,
    how: Judging = USUAL,
    device: str = "cpu",
) -> Result:
    """Full ranking by the method, with this server and these users.

    What comes next depends on what came last: where users have an order, they rank by all items that they have seen.
    """
    if method.options.takes_order and (times := getattr(seen, "times", None)) is not None:
        users = replace(users, indptr=seen.indptr, items=seen.items).ordered_by(times)
    with within_memory("ranking", "dim or layers", device):
        rank = _ranker(method, server, users, device)
        return evaluate_ranking(rank, method.n_items, seen, held_out, how)


def _ranker(method: Method, server: ServerState, users: Cohort, device: str) -> Rank:
    """A function that ranks items for these users: by inner products or by scores, here or on a GPU."""
    server = method.as_ranked(server)
    if method.inner_product:
        items = method.represent_items(server).astype(np.float32)

        def rank_products(chosen: Ints, k: int, indptr: Any, seen: Any) -> Any:
            own = method.represent_users(server, users.take(chosen)).astype(np.float32)  # not of all: they may be many
            if device == "cuda":
                return top_k_on_device(products_on_gpu(own, items), np.arange(len(own)), k, len(items), indptr, seen)
            return top_k(own, items, k, indptr, seen)[0]

        return rank_products
    there = method.scorer(server, users, device) if device == "cuda" else None
    score = there or (lambda some: method.scores(server, users.take(some)).astype(np.float32))
    return ranker(score, method.n_items, there is not None)
