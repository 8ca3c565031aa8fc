"""A node's upload to a sum: which of its users take part, and what they send.

Nothing but the sum tells the server what users have: a failure to compute is not seen either.
"""

import logging
from collections.abc import Sequence

import numpy as np

from fedgrec import draws
from fedgrec.core import Broadcast
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.node.computed_ahead import Computed
from fedgrec.federation.node.ranking import as_server, measured
from fedgrec.federation.node.store import NodeStore
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
                judged = [items[:0] for items in judged]  # fewer than `least_users` are reported as zero
            upload = measured(method, as_server(broadcast), cohort, judged, sum_.topk, spec)
            return upload.to_ring(spec), None
        upload, pending = method.local_update(cohort, sum_.stage_of(method), broadcast)
        if not all(np.isfinite(part).all() for part in vars(pending.state).values()):
            raise FloatingPointError("what the users would be is not finite")
        return upload.to_ring(spec), pending.state
    except Exception:
        log.exception("this node's users could not compute their part of a sum: zeros were sent for them")
        return np.zeros(spec.size, f"uint{spec.bits}"), None
