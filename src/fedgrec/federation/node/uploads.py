"""A node's upload to a sum: which of its users take part, and what they send.

Only the sum tells the server what users have: it does not even see that a node failed to compute.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable import draws, noise
from fedgrec.cable.core import Broadcast, Ints, Source, UploadSpec, as_server
from fedgrec.errors import many
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, is_recount
from fedgrec.federation.node import actual_items, changes
from fedgrec.federation.node.current_sum import Computed
from fedgrec.federation.node.ranking import measured
from fedgrec.federation.node.store import NodeStore
from fedgrec.methods.contract import Method

TAKING_PART = 64  # the purpose of a node's draws; its key draws nothing else
log = logging.getLogger("fedgrec.node")


def taking_part(store: NodeStore, sum_: Plan, latents: bool) -> list[int]:
    """Which of its users take part: the node's own choice, drawn under its own key, the same if asked again.

    Where latents travel, users who leave come first, so that their latents are taken out.
    """
    rows, count = store.announced(), sum_.count(store.get("announced", 0))
    first = changes.leaving(store, rows)[:count] if latents else []
    others = [row for row in rows if row not in first]
    return sorted(first + _drawn(store, others, count - len(first), sum_.round))


def _drawn(store: NodeStore, rows: list[int], count: int, round_: int) -> list[int]:
    order = np.argsort(draws.words(store.node_key, len(rows), 0, round_, TAKING_PART), kind="stable")
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
    secret: bytes = b"",
) -> Computed:
    """What these users send, with this node's share of the noise, and their new state if it counts.

    `secret` is this node's for this sum: the noise follows from it. It is added even if nobody sends anything: the
    other nodes count on it. Whether a user fails may depend on its items. So the server must not see a failure, and no
    other user's part may hang on it: who fails sends zeros, and its state stays as it is.
    """
    spec = sum_.spec(method)
    held_out = _held_out(store, sum_, rows, least_users, withdrawn)
    sent = partial(_sent, store, method, sum_, broadcast, spec, held_out, withdrawn)
    whole = _tried(sent, rows) if rows else Computed(np.zeros(spec.size, spec.dtype), [])
    found = [whole] if whole else [part for row in sorted(rows) if (part := _tried(sent, [row]))]
    words = sum((part.words for part in found), np.zeros(spec.size, spec.dtype))
    states = [part.state for part in found if part.state is not None]
    pushed = [edges for part in found for edges in part.pushed or ()]
    return Computed(
        spec.wrapped(
            words + _noise(sum_, spec, noise_share, noise.skellam_for(words, secret) if secret else noise.skellam)
        ),
        [row for part in found for row in part.rows],
        states[0].joined(states) if states else None,
        pushed if any(part.pushed is not None for part in found) else None,
    )


def _tried(sent: Callable[[Sequence[int]], Computed], rows: Sequence[int]) -> Computed | None:
    """What these users send, or None if one of them fails."""
    try:
        return sent(rows)
    except Exception:
        log.exception("%s could not compute a part of a sum: who fails sends zeros", many(len(rows), "user"))
        return None


def _held_out(
    store: NodeStore, sum_: Plan, rows: Sequence[int], least_users: int, withdrawn: Sequence[int]
) -> Mapping[int, Ints]:
    """By which items users judge in an evaluation.

    Without noise, fewer than `least_users` are kept silent. Noise hides what one person adds, and not that one person
    more lets others speak: with noise, everybody speaks.
    """
    if sum_.stage != EVALUATE:
        return {}
    found = {row: np.setdiff1d(items, withdrawn) for row, items in zip(sorted(rows), store.held_out(rows), strict=True)}
    speaking = sum(len(items) > 0 for items in found.values())
    silent = not sum_.deviation and speaking < min(len(rows), least_users)
    return {row: items[:0] for row, items in found.items()} if silent else found


def _sent(
    store: NodeStore,
    method: Method,
    sum_: Plan,
    broadcast: Broadcast,
    spec: UploadSpec,
    held_out: Mapping[int, Ints],
    withdrawn: Sequence[int],
    rows: Sequence[int],
) -> Computed:
    """What these users send, without noise."""
    if sum_.stage == CHANGES:
        return Computed(np.full(spec.size, len(changes.changed(store, rows)), spec.dtype), rows)
    if is_recount(method, sum_.stage):
        cohort = changes.with_changes(store, method, rows)
        return Computed(method.local_update(cohort, sum_.stage_of(method), broadcast)[0].to_ring(spec), rows)
    cohort = store.cohort(method, rows)
    if sum_.stage == EVALUATE:
        people = actual_items.with_actual_items(store, cohort, rows)
        judged = [held_out[row] for row in sorted(rows)]
        upload = measured(method, as_server(broadcast), people, judged, sum_.topk, spec, withdrawn)
        return Computed(upload.to_ring(spec), rows)
    if method.recount:
        cohort = changes.with_past(store, cohort, rows, method.push_weights(cohort, broadcast.degrees))
    upload, pending = method.local_update(cohort, sum_.stage_of(method), broadcast)
    if not all(np.isfinite(part).all() for part in vars(pending.state).values()):
        raise FloatingPointError("what the users would be is not finite")
    pushed = None if pending.weights is None else changes.pack_edges(cohort, pending.weights)
    return Computed(upload.to_ring(spec), rows, pending.state, pushed)


def _noise(sum_: Plan, spec: UploadSpec, share: float, source: Source) -> NDArray[Any]:
    """A node's share of the noise, in steps; an evaluation's deviation is in units of 1."""
    if sum_.stage == EVALUATE and sum_.deviation:
        return source(share * (sum_.deviation / spec.leaves[0].step) ** 2, spec.size).astype(spec.dtype)
    return spec.noise(share, source) if spec.noisy else np.zeros(spec.size, spec.dtype)
