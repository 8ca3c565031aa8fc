"""The checks that a node makes of what the server asks. They use the node's own folder and memory, and write nothing.

A sum must have enough nodes in it and masks that hold although some of them work for the server; it must be a stage
that the method has, under the one name that the stage has; all users take part in it or, in training, not too few; and
the model must be one that can be computed with, so that no failure at home tells the server what somebody has.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from fedgrec.core import Broadcast
from fedgrec.federation.common.errors import FederationError, Forgotten
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.methods.contract import Method
from fedgrec.secagg.parameters import risks
from fedgrec.secagg.session import Session

MOST_ROUNDS = 2**31  # draws count rounds in 32 bits: two rounds further apart would draw the same
SECURITY = 40  # a chance of 2⁻⁴⁰ that a sparse graph fails is none


def is_warm_up(method: Method, sum_: Plan) -> bool:
    """Whether the sum is one of those that are computed once, before training."""
    return sum_.stage not in (EVALUATE, method.stages[-1].name)


def check_session(folder: NodeFolder, session: Session) -> None:
    """Before keys are made."""
    if session.mechanism != "secagg" or not session.lying_server or session.least < folder.fewest_nodes:
        raise FederationError(
            f"node {folder.name} takes part only in sums of {folder.fewest_nodes} nodes or more that compare their "
            f"lists of survivors"
        )


def check_company(folder: NodeFolder, session: Session, clients: Sequence[int]) -> None:
    """Before secrets are shared: as many of the roster as may be corrupt may all be in this sum."""
    if not is_safe(session, len(clients), folder.corrupt_nodes):
        raise FederationError(
            f"node {folder.name} reckons that {folder.corrupt_nodes} nodes may work for the server: with "
            f"{len(clients)} nodes, {session.neighbours} neighbours and a threshold of {session.threshold} they could "
            f"open an upload"
        )


def is_safe(session: Session, clients: int, corrupt: int) -> bool:
    """Whether a lying server with so many corrupt clients learns nothing but the sum."""
    k, t, corrupt = session.neighbours, session.threshold, min(corrupt, clients)
    if k >= clients - 1:
        return 2 * t > clients + corrupt
    return risks(clients, k, t, corrupt, max(clients - session.least, 0), True).broken <= -SECURITY


def check_survivors(folder: NodeFolder, alive: Sequence[int]) -> None:
    """Before the lists are signed: it is those in the sum that count, not those who were to be in it."""
    if len(alive) < folder.fewest_nodes:
        raise FederationError(
            f"node {folder.name} opens only sums of {folder.fewest_nodes} nodes or more, and {len(alive)} are left"
        )


def check_plan(folder: NodeFolder, method: Method, sum_: Plan, users: int) -> None:
    """Each stage has one name, since a node remembers by its name what it took part in. It has so many users."""
    warm_up = is_warm_up(method, sum_)
    known = not warm_up or (sum_.level < len(method.stages) - 1 and method.stages[sum_.level].name == sum_.stage)
    if not known or (sum_.round if warm_up else sum_.level) or sum_.round >= MOST_ROUNDS:
        raise FederationError(f"{method.name} has no stage {sum_.stage!r} at level {sum_.level} of round {sum_.round}")
    if sum_.stage == EVALUATE and (not sum_.topk or min(sum_.topk) < 1):
        raise FederationError("an evaluation needs list lengths of 1 or more")
    least = users if warm_up or sum_.stage == EVALUATE else min(users, folder.least_users)
    if sum_.count(users) < least:
        raise FederationError(
            f"node {folder.name} adds up {least} users or more in stage {sum_.stage!r}, not {sum_.count(users)}"
        )


def check_memory(folder: NodeFolder, method: Method, counted: Iterable[tuple[str, int]], warm: int) -> None:
    """A server with `warm` stages of the warm-up done has all of those that a node knows to count.

    Users send what is new since they last sent, so a second warm-up would add up to nothing. A sum that was lost, or
    that the server did not keep, counts for nobody: the server says so, and it is repeated.
    """
    stages = len(method.stages) - 1  # of the warm-up
    known = max(
        (stages if stage in (EVALUATE, method.stages[-1].name) else level + 1 for stage, level in counted), default=0
    )
    if warm < known:
        raise Forgotten(
            f"the server has forgotten a warm-up: it has {warm} stages, and node {folder.name} knows that {known} "
            f"counted, which users cannot send again; restore a newer backup of the server, or begin a new federation"
        )


def check_model(folder: NodeFolder, broadcast: Broadcast) -> None:
    """Numbers for every item of the catalogue, all of them finite. This depends on nothing that a user has."""
    tables, degrees = broadcast.tables, broadcast.degrees
    floats = [tables, *broadcast.more.values()]
    if (
        broadcast.n_items != folder.n_items
        or tables.ndim != 3
        or tables.shape[1] != folder.n_items
        or degrees.shape != (folder.n_items,)
        or degrees.dtype.kind not in "iu"
        or any(part.dtype.kind != "f" for part in floats)
        or bool((degrees < 0).any())
        or not all(np.isfinite(part).all() for part in floats)
    ):
        raise FederationError(f"the server sent what is no model of {folder.n_items:,} items, or not all of one")
