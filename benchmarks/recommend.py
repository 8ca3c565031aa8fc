"""Everybody's list at Gowalla's size: `FedGRec.recommend` beside the evaluation's ranking, and beside implicit's.

All rank the same factors for the same users, in turns, on all cores. Ours makes the factors from the model first, as a
caller meets it; implicit gets them ready made. implicit may choose how many threads BLAS has.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.common import CORES, alternate, gowalla
from fedgrec import FedGRec
from fedgrec.config import Config
from fedgrec.data import Interactions
from fedgrec.distributed import Ranks
from fedgrec.evaluate import _one_blas_thread as one_blas_thread
from fedgrec.machine import judged, make_method
from fedgrec.model import Model

N = 20
ASKED = {"evaluation": 1.5, "implicit": 1.0}  # seconds of recommend over those of the evaluation; over implicit's


def bench(repeats: int = 5) -> dict[str, Any]:
    """Median seconds of each, and the ratios that are asked for."""
    data, train = gowalla()
    model = made(train)
    method = make_method(model.config, train.n_items, train.n_users, Ranks())
    lists, evaluation = "FedGRec.recommend", "evaluation's ranking"
    work: dict[str, Callable[[], Any]] = {
        lists: lambda: as_loaded(model).recommend(None, N=N),
        evaluation: lambda: judged(method, model.server, model.users, train, train, (N,), "capped"),
    }
    rivals, skipped = implicit_rivals(as_loaded(model), train)
    work |= rivals
    found = {name: run() for name, run in work.items()}  # compiles, where nothing is cached yet
    seconds = alternate(work, repeats)
    ratios = {evaluation: seconds[lists] / seconds[evaluation]}
    same = None
    if rivals:
        ratios["implicit"] = seconds[lists] / min(seconds[name] for name in rivals)
        same = float((found[lists][0] == found[next(iter(rivals))][0]).mean())
    return {
        "data": data,
        "users": train.n_users,
        "items": train.n_items,
        "dim": model.config.model.dim,
        "N": N,
        "threads": CORES,
        "seconds": seconds,
        "ratio": ratios,
        "most_ratio": ASKED,
        "places_with_the_same_item": same,
        "skipped": skipped,
    }


def made(train: Interactions) -> Model:
    """A model with random embeddings: what a list costs does not depend on what is in it."""
    config = Config().changed({"dim": 64, "layers": 1})
    method = make_method(config, train.n_items, train.n_users, Ranks())
    users = method.init_users(np.arange(train.n_users, dtype=np.uint64), train.indptr, train.items)
    server = method.init(0)
    server.items[:] = np.random.default_rng(0).normal(0, 0.1, server.items.shape)
    server.degrees[:] = train.degrees()
    return Model.of(config, server, users, train)


def as_loaded(model: Model) -> FedGRec:
    """A recommender that has computed nothing yet."""
    recommender = FedGRec()
    recommender.model = replace(model)
    return recommender


def implicit_rivals(ours: FedGRec, train: Interactions) -> tuple[dict[str, Callable[[], Any]], str]:
    """implicit's `recommend` with our factors, with BLAS as it is and on one thread; or why there is none."""
    try:
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError:
        return {}, "implicit is not installed: pip install implicit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises one thread for BLAS, which is measured too
        rival = AlternatingLeastSquares(factors=ours.item_factors.shape[1], num_threads=CORES)
    rival.user_factors, rival.item_factors = ours.user_factors, ours.item_factors
    everybody, matrix = np.arange(train.n_users), csr_matrix(train.to_scipy())

    def run() -> Any:
        return rival.recommend(everybody, matrix, N=N)

    def run_on_one() -> Any:
        with one_blas_thread():
            return run()

    return {"implicit": run, "implicit, BLAS on one thread": run_on_one}, ""
