"""The one ε of a federation: what everything that is ever opened may tell, training, changes and evaluations together.

    dp_unit = user          Rényi's divergences of all sums with one person add up (Mironov 2017, Proposition 1)
    dp_unit = interaction   whatever is computed from what users tell, changes too, is covered by their answers' own ε.
                            Evaluations are computed from what people have: their ε is added (Dwork and Roth 2014,
                            Theorem 3.16)

Nodes hold the server to it: they take part in `dp_rounds` rounds and in `evaluations` evaluations, and in no more.
"""

from typing import NamedTuple

from fedgrec.cable.noise import DELTA, spent
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.options import Agreement
from fedgrec.methods import budget
from fedgrec.methods.contract import Method


class Promise(NamedTuple):
    """What was spent, of what all agreed on, for one of these units."""

    unit: str
    spent: float
    agreed: float
    delta: float

    def __str__(self) -> str:
        return f"ε = {self.spent:.3g} of {self.agreed:.3g} is spent for every {self.unit}, at δ = {self.delta:g}"


def promise(method: Method, agreed: Agreement, warm: bool, rounds: int, evaluations: int) -> Promise | None:
    """The promise after this many rounds and evaluations, of a user who was in all; None where nothing is promised."""
    exact = agreed.evaluations and not agreed.evaluation_epsilon  # then evaluations tell without a bound
    if exact or not (agreed.noisy or agreed.decoys_epsilon):
        return None
    now = _epsilon(method, agreed, warm, rounds, min(evaluations, agreed.evaluations))
    delta = agreed.dp_delta if agreed.noisy else DELTA
    return Promise(agreed.dp_unit, now, _epsilon(method, agreed, True, agreed.dp_rounds, agreed.evaluations), delta)


def _epsilon(method: Method, agreed: Agreement, warm: bool, rounds: int, evaluations: int) -> float:
    judged = [evaluation.release(agreed.deviation, agreed.topk, evaluations)] if evaluations else []
    if agreed.noisy:
        trained = budget.releases(method, rounds, rounds) if warm else ()
        return spent([*trained, *judged], agreed.dp_delta) if trained or judged else 0.0
    return warm * agreed.decoys_epsilon + (spent(judged) if judged else 0.0)
