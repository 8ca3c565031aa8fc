"""The checks that a node makes of what the server asks. They use the node's own folder and memory, and write nothing.

A sum must have enough nodes, and masks that hold even if some nodes work for the server. It must be a stage of the
method, under the stage's one name. All users take part in it or, in training, not too few. The model must be one that
a node can compute with, so that no failure tells the server what a user has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedgrec.cable.core import Broadcast, Stage
from fedgrec.cable.noise import NO_NOISE
from fedgrec.federation.common.batches import Batch, names, whole
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import LARGEST
from fedgrec.federation.common.plan import (
    CHANGES,
    EVALUATE,
    MOST_COUNTS,
    MOST_JUDGED,
    Plan,
    is_once,
    is_recount,
    sum_name,
)
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.methods.contract import Method
from fedgrec.methods.noisy import OPEN
from fedgrec.secagg.parameters import withstands
from fedgrec.secagg.session import Session

Shapes = tuple[Any, ...]
MOST_ROUNDS = 2**31  # draws count rounds in 32 bits: two rounds further apart would draw the same
MOST_ATTEMPTS = 1000  # at one sum: each attempt gives a lying server another graph to choose from


def check_name(folder: NodeFolder, session: Session, announced: Mapping[str, Any]) -> tuple[str, int, int]:
    """Before keys are made: the server may not choose a sum's name, because the name decides the graph."""
    place, attempt = announced.get("place"), announced.get("attempt")
    kinds = [str, int, int]
    if not isinstance(place, list) or [type(part) for part in place] != kinds or type(attempt) is not int:
        raise FederationError("a sum was announced without its stage, level, round and attempt")
    if not 0 <= attempt < MOST_ATTEMPTS:
        raise FederationError(f"node {folder.name} makes {MOST_ATTEMPTS:,} attempts at one sum and no more")
    if session.round_id != sum_name(folder.federation, place, attempt):
        raise FederationError("the server chose the name of a sum, which follows from its stage, round and attempt")
    stage, level, round_ = place
    return stage, level, round_


def check_session(folder: NodeFolder, session: Session) -> None:
    """Before keys are made: the sum has enough nodes."""
    if session.least < folder.fewest_nodes:
        raise FederationError(f"node {folder.name} takes part only in sums of {folder.fewest_nodes} nodes or more")


def check_participants(folder: NodeFolder, session: Session, clients: Sequence[int]) -> None:
    """Before secrets are shared: all nodes of the roster that may be corrupt may be in this sum."""
    n, k, t = len(clients), session.neighbours, session.threshold
    corrupt = min(folder.corrupt_nodes, n)
    if not withstands(n, k, t, corrupt, max(n - session.least, 0), folder.agreed.security):
        raise FederationError(
            f"node {folder.name} reckons that {corrupt} nodes may work for the server: with {n} nodes, {k} neighbours "
            f"and a threshold of {t} they could open an upload"
        )


def check_committed(folder: NodeFolder, plan: Plan, clients: Sequence[int], mine: bytes) -> None:
    """A sum that is taken once must be bound to what this node sends now."""
    words = dict(zip(clients, plan.committed, strict=False))
    if len(words) != len(plan.committed) or words.get(folder.index, "") != mine.hex():
        raise FederationError(
            f"node {folder.name} commits itself to what it sends in stage {plan.stage!r}, not to that"
        )


def check_survivors(folder: NodeFolder, plan: Plan, session: Session, alive: Sequence[int]) -> None:
    """Before the lists are signed: the limits apply to the nodes in the sum, not to those that were asked."""
    noisy = plan.stage == EVALUATE or plan.spec(folder.method(plan.n_users, plan.begun)).noisy
    least = session.least if noisy else folder.fewest_nodes  # the noise was shared out among this many
    if len(alive) < least:
        raise FederationError(f"node {folder.name} opens only sums of {least} nodes or more, and {len(alive)} are left")
    most_users = sum(folder.roster[node].users or math.inf for node in alive if node in folder.roster)
    if plan.stage == EVALUATE and most_users < folder.agreed.evaluation_users:
        raise FederationError(
            f"node {folder.name} judges only among {folder.agreed.evaluation_users} users or more (evaluation_users)"
        )


def check_evaluation(folder: NodeFolder, taken_part: int, trained: bool) -> None:
    """Evaluations are questions about people: few of them, and about models that the federation really trained on."""
    if taken_part >= folder.agreed.evaluations:
        raise FederationError(
            f"node {folder.name} has taken part in {taken_part} evaluations, and agreed to {folder.agreed.evaluations}"
        )
    if not trained:
        raise FederationError(f"node {folder.name} evaluates only models that it has trained on")


def check_budget(folder: NodeFolder, plan: Plan, taken_part: int) -> None:
    """Under noise, only the first `dp_rounds` rounds take place: the privacy budget was planned for them."""
    agreed = folder.agreed
    if agreed.noisy and max(taken_part, plan.round) >= agreed.dp_rounds:
        raise FederationError(
            f"node {folder.name} takes part in the first {agreed.dp_rounds} training rounds (dp_rounds), which spend "
            f"dp_epsilon = {agreed.dp_epsilon:g}; it was in {taken_part}, and this is round {plan.round + 1}"
        )


def check_plan(folder: NodeFolder, method: Method, sum_: Plan, users: int) -> None:
    """A stage has one name, by which a node remembers that it took part, and enough users."""
    once = is_once(method, sum_.stage)
    if is_recount(method, sum_.stage):  # a season begins with it
        known = sum_.level == 0 and sum_.round == sum_.begun > 0
    elif sum_.stage == CHANGES:
        known = method.recount is not None and sum_.level < MOST_COUNTS
    elif once:
        here = sum_.level < len(method.stages) - 1 and method.stages[sum_.level].name == sum_.stage
        known = here and not sum_.round and not sum_.begun
    else:
        known = sum_.level < (MOST_JUDGED if sum_.stage == EVALUATE else 1)
    if not known or sum_.round >= MOST_ROUNDS:
        raise FederationError(
            f"{method.name} has no stage {sum_.stage!r} at level {sum_.level} of round {sum_.round + 1}"
        )
    agreed = folder.agreed
    if sum_.stage == EVALUATE and (sum_.topk, sum_.deviation) != (agreed.topk, agreed.deviation):
        raise FederationError(f"node {folder.name} agreed to other list lengths, or to more noise, for evaluations")
    if sum_.stage == EVALUATE and sum_.users < agreed.evaluation_users:
        raise FederationError(f"node {folder.name} judges only among {agreed.evaluation_users} users or more")
    everybody = once or sum_.stage in (EVALUATE, CHANGES) or sum_.stage_of(method).everyone
    least = users if everybody else min(users, folder.least_users)
    if sum_.count(users) < least:
        raise FederationError(
            f"node {folder.name} adds up {least} users or more in stage {sum_.stage!r}, not {sum_.count(users)}"
        )


def check_people(folder: NodeFolder, users: int, was_in_sums: bool) -> None:
    """Batches were drawn for the people that each node is sure to bring.

    The place of a gateway's user who has left goes on with nobody: its batch would otherwise never be whole again.
    """
    least = folder.roster[folder.index].people if folder.index in folder.roster else 0
    if users < least and not (folder.gateway and was_in_sums):
        raise FederationError(
            f"node {folder.name} has {users} users, and was enrolled as one that brings {least} or more (`people`): "
            f"remove it from the roster, and enrol it again with fewer"
        )


def check_company(folder: NodeFolder, users: int, bound: Sequence[Batch]) -> None:
    """A place without a user keeps its batch whole. Anywhere else it would be company that hides nobody."""
    if not users and not bound:
        raise FederationError(
            f"nobody is at the place of {folder.name} now, so it takes part only in sums that open over whole batches"
        )


def check_batches(folder: NodeFolder, alive: Sequence[int], bound: Sequence[Batch]) -> None:
    """Before the lists are signed: sums of people's items open over whole batches."""
    if bound and (torn := set(alive).difference(*whole(bound, alive))):
        raise FederationError(
            f"node {folder.name} opens sums of people's items only over whole batches, and {names(folder, torn)} "
            f"stand in one that is not whole, or in none yet"
        )


def check_users(folder: NodeFolder, plan: Plan, begun: int, n_users: int) -> None:
    """The number of users and the season's first round change only with a new season."""
    agreed = folder.agreed
    if plan.n_users > agreed.most_users:
        raise FederationError(f"there cannot be {plan.n_users:,} users: all agreed on {agreed.most_users:,} at most")
    if plan.begun == begun:
        if plan.n_users != n_users:
            raise FederationError("the number of users that the season started with has changed")
    elif not begun < plan.begun <= plan.round:
        raise FederationError(
            f"the last season began with round {begun + 1}, and the server says that one begins with round "
            f"{plan.begun + 1} in round {plan.round + 1}"
        )


def check_recount(folder: NodeFolder, trained: int) -> None:
    """Recounts are rare, by what the node itself has seen: it may have missed half of the rounds in between."""
    if 2 * trained < folder.agreed.season_rounds:
        raise FederationError(
            f"node {folder.name} sends changes after {folder.agreed.season_rounds} training rounds or more "
            f"(season_rounds), and has been in {trained} since it last did, not in half of them: its changes wait"
        )


def check_model(method: Method, plan: Plan | None, broadcast: Broadcast) -> None:
    """What the method sends in this sum, or serves in none, no more and no less, with numbers that cannot overflow.

    This depends on nothing that a user has. A server could otherwise send a model with which only users of a certain
    item fail, or one in which all items but a few are closed.
    """
    degrees, more, floats = broadcast.degrees, dict(broadcast.more), [broadcast.tables, *broadcast.more.values()]
    is_open = more.pop(OPEN, None)
    if (
        _shapes(replace(broadcast, more=more))
        != _expected(method, plan and plan.stage_of(method), broadcast.level, bool(plan and plan.stage == EVALUATE))
        or degrees.dtype.kind not in "iu"
        or any(part.dtype.kind != "f" for part in floats)
        or bool((degrees < 0).any())
        or not all((np.abs(part) <= LARGEST).all() for part in floats)
        or not (broadcast.row_steps is None or (broadcast.row_steps > 0).all())
        or not (is_open is None or (method.noise != NO_NOISE and np.array_equal(is_open, degrees > 0)))
    ):
        raise FederationError(f"the server sent what is no model of {method.n_items:,} items, or not all of one")


@lru_cache(maxsize=16)
def _expected(method: Method, stage: Stage | None, level: int, is_judged: bool) -> Shapes:
    server = method.init(0)
    if not stage:
        return _shapes(method.served(server))
    return _shapes(method.judged(server, stage) if is_judged else method.broadcast(server, stage, level))


def _shapes(broadcast: Broadcast) -> Shapes:
    more = sorted((name, part.shape) for name, part in broadcast.more.items())
    return (broadcast.n_items, broadcast.tables.shape, broadcast.degrees.shape, broadcast.kind, *more)
