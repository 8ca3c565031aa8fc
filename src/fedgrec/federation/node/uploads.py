"""A node's upload to a sum: which of its users take part, and what they send.

Only the sum tells the server what users have: it does not even see that a node failed to compute.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import draws, noise
from fedgrec.cable.core import Broadcast, Source, UploadSpec, as_server
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, is_recount
from fedgrec.federation.node import actual_items, changes
from fedgrec.federation.node.current_sum import Computed
from fedgrec.federation.node.ranking import measured
from fedgrec.federation.node.store import NodeStore
from fedgrec.methods.contract import Method

TAKING_PART, SENDING = 64, 65  # the purposes of a node's draws; its key draws nothing else
log = logging.getLogger("fedgrec.node")


def taking_part(store: NodeStore, sum_: Plan, latents: bool) -> list[int]:
    """Which of its users take part: the node's own choice, drawn under its own key, the same if asked again.

    Where latents travel, users who leave come first, so that their latents are taken out.
    """
    rows, count = store.announced(), sum_.count(store.get("announced", 0))
    first = changes.leaving(store, rows)[:count] if latents else []
    others = [row for row in rows if row not in first]
    return sorted(first + _drawn(store, others, count - len(first), sum_.round, TAKING_PART))


def sending(store: NodeStore, sum_: Plan, rows: list[int], least_users: int) -> list[int]:
    """Half of the users who take part, if half are enough; the others send zeros.

    The server has said that the last sum, which was opened, did not count. If that was a lie, this sum is nearly the
    same again. If it lacks one node, the difference of the two sums must not be that node's upload. A node always sends
    something: otherwise the sum would be over fewer nodes than it seems.
    """
    half = (len(rows) + int(draws.words(store.node_key, 1, 1, sum_.round, SENDING)[0] % 2)) // 2
    return _drawn(store, rows, half, sum_.round, SENDING) if half >= max(least_users, 1) else rows


def _drawn(store: NodeStore, rows: list[int], count: int, round_: int, purpose: int) -> list[int]:
    order = np.argsort(draws.words(store.node_key, len(rows), 0, round_, purpose), kind="stable")
    return sorted(rows[place] for place in order[:count].tolist())


def compute_upload(
    store: NodeStore,
    method: Method,
    sum_: Plan,
    rows: Sequence[int],
    broadcast: Broadcast,
    least_users: int,
    noise_share: float = 0.0,
    withdrawn: Sequence[int] = (),
    source: Source | None = None,
) -> Computed:
    """What these users send, with this node's share of the noise, and their new state if it counts.

    The noise comes from the operating system, or from the `source` of a test. It is added even if nobody sends
    anything: the other nodes count on it. Whether the rest fails may depend on a user's items: a server could send a
    model that fails only for users who have a certain item. So the server must not see a failure: the node sends the
    noise alone instead, and no user's state changes.
    """
    spec = sum_.spec(method)
    words = _noise(sum_, spec, noise_share, source or noise.skellam)
    if not rows:
        return Computed(words)
    try:
        if sum_.stage == CHANGES:
            return Computed(words + len(changes.changed(store, rows)))
        if is_recount(method, sum_.stage):
            cohort = changes.with_changes(store, method, rows)
            return Computed(words + method.local_update(cohort, sum_.stage_of(method), broadcast)[0].to_ring(spec))
        cohort = store.cohort(method, rows)
        if sum_.stage == EVALUATE:
            judged = [np.setdiff1d(items, withdrawn) for items in store.held_out(rows)]
            if sum(len(items) > 0 for items in judged) < min(len(rows), least_users):
                judged = [items[:0] for items in judged]  # fewer than `least_users` are reported as zero
            people = actual_items.with_actual_items(store, cohort, rows)
            upload = measured(method, as_server(broadcast), people, judged, sum_.topk, spec, withdrawn)
            return Computed(words + upload.to_ring(spec))
        if method.recount:
            cohort = changes.with_past(store, cohort, rows, method.push_weights(cohort, broadcast.degrees))
        upload, pending = method.local_update(cohort, sum_.stage_of(method), broadcast)
        if not all(np.isfinite(part).all() for part in vars(pending.state).values()):
            raise FloatingPointError("what the users would be is not finite")
        pushed = None if pending.weights is None else changes.pack_edges(cohort, pending.weights)
        return Computed(words + upload.to_ring(spec), pending.state, pushed)
    except Exception:
        log.exception("this node's users could not compute their part of a sum: zeros were sent for them")
        return Computed(words, failed=True)


def _noise(sum_: Plan, spec: UploadSpec, share: float, source: Source) -> NDArray[Any]:
    """A node's share of the noise, in steps; an evaluation's deviation is in units of 1."""
    if sum_.stage == EVALUATE and sum_.deviation:
        return source(share * (sum_.deviation / spec.leaves[0].step) ** 2, spec.size).astype(spec.dtype)
    return spec.noise(share, source) if spec.noisy else np.zeros(spec.size, spec.dtype)
