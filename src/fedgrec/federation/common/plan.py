"""The plan of a sum, on which server and nodes agree: its stage of the method, and how many users may be in it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedgrec.cable.core import Broadcast, Leaf, ServerState, Stage, UploadSpec
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.common.packets import pack_broadcast
from fedgrec.methods import budget
from fedgrec.methods.contract import RECOUNT, TRAIN, Method
from fedgrec.secagg.session import ROUND_ID_BYTES

# Stages that no method has: the metrics, summed over users; the number of users whose items have changed.
EVALUATE, CHANGES = "evaluate", "changes"
MOST_COUNTS = 1000  # the most counts of changes between two training rounds
MOST_JUDGED = 2  # the most attempts at the evaluation of a model


def called(stage: str, level: int, round_: int) -> str:
    """What people call a sum, wherever they read of it; rounds count from 1."""
    names = {TRAIN.name: f"round {round_ + 1:,}", RECOUNT.name: f"recount before round {round_ + 1:,}"}
    names |= {EVALUATE: f"evaluation after round {round_ + 1:,}", CHANGES: "count of users with changes"}
    return names.get(stage, f"warm-up, {stage} {level or ''}".rstrip())


@dataclass(frozen=True)
class Plan:
    """One sum."""

    stage: str  # of the method, or one of the above
    level: int
    round: int
    n_users: int  # users at the start of the season
    users: int  # the most that this sum may hold
    take: int = 1  # of a node's n users max(least, n·take // of) take part, or all
    of: int = 1
    topk: tuple[int, ...] = ()  # list lengths of an evaluation
    least: int = 1
    deviation: float = 0.0  # the standard deviation of the noise in each number of an evaluation
    committed: tuple[str, ...] = ()  # in a sum that is taken once: each node's commitment to its upload, in order
    begun: int = 0  # the round with which the season began

    @property
    def place(self) -> tuple[str, int, int]:
        """The name under which both sides remember the sum."""
        return self.stage, self.level, self.round

    def count(self, users: int) -> int:
        """How many of a node's users take part."""
        return min(users, max(self.least, users * self.take // self.of))

    def stage_of(self, method: Method) -> Stage:
        """The method's stage. An evaluation broadcasts as its training round did, a count of changes as a recount."""
        if self.stage == CHANGES and method.recount:
            return method.recount
        if self.stage in (EVALUATE, method.stages[-1].name):
            return method.training(self.round)
        for stage in (*method.stages, method.recount):
            if stage and stage.name == self.stage:
                return stage
        raise FederationError(f"{method.name} has no stage {self.stage!r}")

    def spec(self, method: Method) -> UploadSpec:
        """The leaves of the sum."""
        if self.stage == EVALUATE:
            return evaluation.spec(self.topk, self.users, self.deviation)
        if self.stage == CHANGES:
            return UploadSpec((Leaf("changed", 1, 1, clip=1, step=1),), self.users)
        return method.spec(self.stage_of(method))

    def broadcast(self, method: Method, server: ServerState) -> Broadcast:
        """What the server sends down for it."""
        stage = self.stage_of(method)
        return method.judged(server, stage) if self.stage == EVALUATE else method.broadcast(server, stage, self.level)

    def context(self, broadcast: Broadcast, *told: str) -> bytes:
        """What masks are bound to: nodes that differ in plan, model, or in what they were told share no keys.

        They are told an agreement (options and catalogue), a roster, and the history of sums, each by its digest, and
        the number of the roster with which the history began.
        """
        about = json.dumps([asdict(self), *told]).encode()
        return hashlib.sha256(about + model_digest(broadcast)).digest()

    @staticmethod
    def read(values: Mapping[str, Any]) -> "Plan":
        """A plan out of a packet's header."""
        try:
            plan = Plan(**{**values, "topk": tuple(values["topk"]), "committed": tuple(values["committed"])})
            sizes = (plan.n_users, plan.users, plan.take, plan.of, plan.least, *plan.topk)
            numbers = (plan.level, plan.round, plan.begun, *sizes)
            if not isinstance(plan.stage, str) or any(type(n) is not int or n < 0 for n in numbers) or not plan.of:
                raise ValueError
            if type(plan.deviation) is not float or any(type(word) is not str for word in plan.committed):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise FederationError("the server sent something that is no plan of a sum") from None
        return plan


def privacy(method: Method, agreed: Agreement, rounds: int) -> dict[str, float]:
    """The privacy spent by a user who was in the warm-up and in this many rounds; nothing where there is no noise."""
    return budget.line(method, agreed.dp_delta, rounds, rounds) if agreed.noisy else {}


def is_once(method: Method, stage: str) -> bool:
    """Whether users send this stage once, before training or before a season: it is no round and no question."""
    return stage not in (EVALUATE, CHANGES, method.stages[-1].name)


def is_recount(method: Method, stage: str) -> bool:
    """Whether users send the changes of their items in this stage."""
    return method.recount is not None and stage == method.recount.name


def model_digest(broadcast: Broadcast) -> bytes:
    """A digest that tells any two models apart, also two with the same bytes and other shapes."""
    arrays = pack_broadcast(broadcast)[1]
    shapes = [[name, array.dtype.str, list(array.shape)] for name, array in sorted(arrays.items())]
    return hashlib.sha256(json.dumps(shapes).encode() + broadcast.fingerprint()).digest()


def sum_name(federation: str, place: Sequence[str | int], attempt: int) -> bytes:
    """The id of a sum's session. The id decides who masks with whom, so the server does not choose it."""
    about = json.dumps([federation, *place, attempt]).encode()
    return hashlib.sha256(b"fedgrec sum" + about).digest()[:ROUND_ID_BYTES]
