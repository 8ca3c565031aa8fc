"""What a node's users compute for a sum, in such a way that nothing but the sum tells what they have."""

import logging
from collections.abc import Sequence

import numpy as np

from fedgrec import draws
from fedgrec.core import Broadcast, ServerState
from fedgrec.federation import evaluation
from fedgrec.federation.ahead import Computed
from fedgrec.federation.plan import EVALUATE, Plan
from fedgrec.federation.store import NodeStore
from fedgrec.methods.contract import Method

TAKING_PART = 64  # the purpose of a node's draws; its key draws nothing else
log = logging.getLogger("fedgrec.node")


def taking_part(store: NodeStore, sum_: Plan) -> list[int]:
    """Which of its users take part: the node's own choice, drawn under its own key, the same if asked again."""
    rows = store.first_rows(store.get("announced", 0))
    order = np.argsort(draws.words(store.node_key, len(rows), 0, sum_.round, TAKING_PART), kind="stable")
    return sorted(rows[place] for place in order[: sum_.count(len(rows))].tolist())


def at_home(
    store: NodeStore, method: Method, sum_: Plan, rows: Sequence[int], broadcast: Broadcast, least_users: int
) -> Computed:
    """What these users send, and what they will be if it counts.

    Whether this fails may depend on what somebody has: a server could send a model that only those cannot compute with
    who have a certain item. So it must not see a failure: zeros are sent instead, and nobody changes.
    """
    spec = sum_.spec(method)
    try:
        cohort = store.cohort(method, rows)
        if sum_.stage == EVALUATE:
            judged = store.held_out(rows)
            if sum(len(items) > 0 for items in judged) < min(len(rows), least_users):
                judged = [items[:0] for items in judged]  # so few are not told apart from none
            upload = evaluation.measured(method, as_server(broadcast), cohort, judged, sum_.topk, spec)
            return upload.to_ring(spec), None
        upload, pending = method.local_update(cohort, sum_.stage_of(method), broadcast)
        if not all(np.isfinite(part).all() for part in vars(pending.state).values()):
            raise FloatingPointError("what the users would be is not finite")
        return upload.to_ring(spec), pending.state
    except Exception:
        log.exception("this node's users could not compute their part of a sum: zeros were sent for them")
        return np.zeros(spec.size, f"uint{spec.bits}"), None


def as_server(broadcast: Broadcast) -> ServerState:
    """The server's half of the model, as far as ranking needs it."""
    nothing = np.zeros((0, 0), broadcast.tables.dtype)
    return ServerState(broadcast.tables, broadcast.degrees, nothing, nothing, broadcast.round, dict(broadcast.more))
