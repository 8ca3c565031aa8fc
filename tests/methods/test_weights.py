"""How much clicks count: in the sums, in the score, and for whoever trains from Python."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedgrec import FedGRec
from fedgrec.errors import FedgrecError
from fedgrec.kernels import cpu, reference
from fedgrec.methods.fedgrec import DEGREES, TRAIN
from tests.methods.test_spectral import RANK, RNG, WEIGHTS, Y, everybody, method_of

COUNTED = np.where(Y, RNG.integers(1, 6, Y.shape) / 5, 0)
CLICKS = pd.DataFrame({"user": np.nonzero(Y)[0], "item": np.nonzero(Y)[1], "rating": 5 * COUNTED[Y]})
SMALL: dict[str, Any] = {"method": "spectral", "dim": 4, "seed": 1}


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_weights_multiply_the_graph_and_the_score(kernel: Any) -> None:
    """The directions are those of W∘R̃, and a user's score adds up its items by their weights."""
    method = method_of(kernel, exponent=0.3)
    server, users = method.init(0), replace(everybody(method), targets=COUNTED[Y])
    for stage in (DEGREES, *[TRAIN] * 12):
        total, pending = method.local_update(users, stage, method.broadcast(server, stage))
        server = method.apply(server, stage, total)
        assert pending.clipped == 0
    assert (server.degrees == Y.sum(0)).all()
    V = server.items[0][:, :RANK]
    wanted = np.linalg.svd(COUNTED * WEIGHTS)[2][:RANK].T
    assert np.linalg.svd(wanted.T @ V)[1].min() > 1 - 1e-6
    n, V = method.shifted(server.degrees)[0], V * np.sqrt(server.more["trust"][:RANK])
    expected = (COUNTED / n**0.3) @ V @ (V * n[:, None] ** 0.3).T
    np.testing.assert_allclose(method.scores(server, users), expected, atol=1e-12)


@pytest.mark.parametrize("method", ["spectral", "fedgrec", "two-parts"])
def test_weights_of_one_are_none(method: str) -> None:
    """A value at the public ceiling, or above it, counts as a click without a value: the same bits."""
    options = {"method": method, "rounds": 6, "seed": 1}
    plain = FedGRec(**options).fit(CLICKS[["user", "item"]])
    heavy = FedGRec(**options, weight_ceiling=0.5).fit(CLICKS)
    light = FedGRec(**options, weight_ceiling=5).fit(CLICKS)
    assert (heavy.model.item_vectors() == plain.model.item_vectors()).all()
    assert (light.model.item_vectors() != plain.model.item_vectors()).any()


def test_partial_fit_keeps_weights() -> None:
    model = FedGRec(rounds=4, weight_ceiling=5, seed=1).fit(CLICKS)
    model.partial_fit(pd.DataFrame({"user": [0], "item": [int(np.flatnonzero(~Y[0])[0])], "rating": [2.0]}), rounds=2)
    assert np.sort(model.model.users.targets) == pytest.approx(np.sort([*COUNTED[Y], 0.4]))


@pytest.mark.parametrize(
    ("options", "clicks", "sentence"),
    [
        (SMALL, CLICKS.assign(rating=0.0), "weights are not above 0"),
        (SMALL | {"method": "fcf"}, CLICKS, "fcf with these options knows no weights"),
        ({"loss": "bpr", "rounds": 2}, CLICKS, "fedgrec with these options knows no weights"),
        (SMALL | {"dp_epsilon": 8, "dp_unit": "interaction"}, CLICKS, "decoys have no ratings"),
    ],
)
def test_what_cannot_be_weighed_is_refused(options: dict[str, Any], clicks: pd.DataFrame, sentence: str) -> None:
    with pytest.raises(FedgrecError, match=sentence):
        FedGRec(**options, weight_ceiling=5).fit(clicks)
