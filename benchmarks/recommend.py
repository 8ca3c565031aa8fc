"""Everybody's list at Gowalla's size: `FedGRec.recommend` beside the evaluation's ranking, and beside implicit's.

All rank for the same users, in turns, on all cores. Ours and the evaluation first compute the factors from a model, as
they do for a caller; implicit gets the factors ready made, and BLAS runs on one thread, as implicit advises.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits

from benchmarks.common import CORES, alternate, gowalla
from fedgrec import FedGRec
from fedgrec.config.configuration import Config
from fedgrec.data import Interactions
from fedgrec.models.model import Model
from fedgrec.models.ranking import Judging
from fedgrec.runs.machine import judged, make_method

N = 20
OURS, EVALUATION, IMPLICIT = "FedGRec.recommend", "evaluation's ranking", "implicit's recommend"
MOST = {EVALUATION: 1.5, IMPLICIT: 1.0}  # our goals: the most that our seconds over theirs may be


def bench(repeats: int = 3) -> dict[str, Any]:
    """Median seconds of each, and ours over theirs."""
    data, train = gowalla()
    model = made(train)
    method = make_method(model.config, train.n_items, train.n_users)
    work: dict[str, Callable[[], Any]] = {
        OURS: lambda: as_loaded(model).recommend(N=N),
        EVALUATION: lambda: judged(method, model.server, model.users, train, train, Judging((N,))),
    }
    rival, skipped = implicit(as_loaded(model), train)
    same = None
    if rival is not None:
        some = np.arange(500)
        same = float((as_loaded(model).recommend(some, N=N)[0] == rival(some)[0]).mean())
        everybody = np.arange(train.n_users)
        work[IMPLICIT] = lambda: rival(everybody)
    judged(method, model.server, model.users.take(np.arange(9)), *2 * [first(train, 9)], Judging((N,)))  # compiles
    seconds = alternate(work, repeats)
    return {
        "data": data,
        "users": train.n_users,
        "items": train.n_items,
        "dim": model.config.model.dim,
        "N": N,
        "threads": CORES,
        "seconds": seconds,
        "ratio": {name: seconds[OURS] / theirs for name, theirs in seconds.items() if name != OURS},
        "most_ratio": MOST,
        "places_with_the_same_item": same,
        "skipped": skipped,
    }


def made(train: Interactions) -> Model:
    """A model with random embeddings: the time of a list does not depend on its items."""
    config = Config().changed({"dim": 64, "layers": 1})
    method = make_method(config, train.n_items, train.n_users)
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


def first(train: Interactions, n: int) -> Interactions:
    """The pairs of the first n users, as data with no other users."""
    users = type(train.user_ids).range(n, "user")
    return Interactions(users, train.item_ids, train.indptr[: n + 1], train.items[: train.indptr[n]])


def implicit(ours: FedGRec, train: Interactions) -> tuple[Callable[[Any], Any] | None, str]:
    """implicit's `recommend` with our factors, or why it cannot be measured."""
    try:
        from implicit.cpu.als import AlternatingLeastSquares
    except ImportError:
        return None, "implicit is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice on BLAS, which is followed below
        rival = AlternatingLeastSquares(factors=ours.item_factors.shape[1], num_threads=CORES)
    rival.user_factors, rival.item_factors = ours.user_factors, ours.item_factors
    matrix = csr_matrix(train.to_scipy())

    def run(users: Any) -> Any:
        with threadpool_limits(1, "blas"):
            return rival.recommend(users, matrix[users], N=N)

    return run, ""
