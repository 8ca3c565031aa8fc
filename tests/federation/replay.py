"""Computes a federation's run again in one process, from the logs of server and nodes: bit for bit the same.

The server's log says which nodes were in which sum, the nodes' logs say which of their users took part. With the users'
own keys and items, the plain verbs must then give the same model and the same states. Nodes do not keep what users sent
before their items changed: a `Recorder` keeps it, outside the nodes' folders. A replay reads the folders of all nodes,
so it serves only tests and experiments on one machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgrec.cable.core import Cohort, Ints, ServerState, Upload
from fedgrec.federation.common.plan import CHANGES, EVALUATE, is_recount
from fedgrec.federation.node import changes
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import Season, ServerStore
from fedgrec.methods.change import Edges, Past
from fedgrec.methods.contract import Method


class Had(NamedTuple):
    """A user when it took part in a sum."""

    key: int
    items: Ints  # the items that it trains on
    wanted: Ints  # the same, with its changes
    targets: Any = None
    order: Any = None


Noise = Mapping[tuple[Path, tuple[str, int, int]], Ints]  # by node and sum: the words that the node added
Recorded = dict[tuple[Path, str], dict[int, Had]]  # by node and session: users by their rows


class Recorder:
    """While open, it records what users have whenever they take part in a sum."""

    def __init__(self) -> None:
        self.recorded: Recorded = {}

    def __enter__(self) -> "Recorder":
        self._take_part = take_part = NodeStore.take_part

        def recording(store: NodeStore, session: str, place: Any, rows: Any, *more: Any) -> None:
            self.recorded[store.path.parent, session] = had(store, rows)
            take_part(store, session, place, rows, *more)

        NodeStore.take_part = recording  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        NodeStore.take_part = self._take_part  # type: ignore[method-assign]


def had(store: NodeStore, rows: list[int]) -> dict[int, Had]:
    """What these users have now."""
    if not rows:
        return {}
    cohort = store.cohort(open_node(store.path.parent).method(1), rows)
    targets = cohort.targets if cohort.targets is not None else [None] * len(cohort.items)
    found = {}
    for place, row in enumerate(sorted(rows)):
        mine = slice(cohort.indptr[place], cohort.indptr[place + 1])
        wanted = np.array(changes.wanted(store, row), np.int64)
        order = None if cohort.order is None else cohort.order[mine]
        found[row] = Had(int(cohort.keys[place]), cohort.items[mine], wanted, targets[mine], order)
    return found


@dataclass
class Person:
    """A user, and what the server's sums hold of it."""

    state: Any
    counted: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    pushed: Edges | None = None


def replay(
    server: Path, nodes: Mapping[int, Path], recorded: Recorded | None = None, noise: Noise | None = None
) -> tuple[ServerState, dict[int, Any]]:
    """The model and each node's users' states, computed again; `nodes` are folders by their place on the roster.

    `noise` is what nodes added to each sum, if they did: nobody can compute it again.
    """
    home = open_server(server)
    with ServerStore(home) as store:
        log, seasons, n_users = store.sums(), store.seasons(), store.get("n_users")
    seasons = seasons or [Season(1, 0, home.options.rounds, n_users, home.n_items)]
    people: dict[tuple[int, int], Person] = {}  # by node and row
    model, rows = None, {index: _log(path) for index, path in nodes.items()}
    for line in log:
        season = [season for season in seasons if season.first_sum <= line["number"]][-1]
        method = replace(home, n_items=season.n_items).method(season.n_users, season.begun)
        if model is None:
            model = method.init(home.config.run.seed)
        elif len(model.degrees) < method.n_items:
            model = method.grown(model, home.config.run.seed)
        if line["stage"] in (EVALUATE, CHANGES):
            continue
        recount, training = is_recount(method, line["stage"]), line["stage"] == method.stages[-1].name
        if not line["applied"]:
            model.round = line["round"] + training
            continue
        stage = next(s for s in (*method.stages, method.recount) if s and s.name == line["stage"])
        stage = method.training(line["round"]) if training else stage
        model.round = line["round"]
        broadcast = method.broadcast(model, stage, level=line["level"])
        there: dict[tuple[int, int], Had] = {}
        for index in line["included"]:
            with NodeStore(nodes[index]) as node:
                key = nodes[index], line["session"]
                told = recorded[key] if recorded else had(node, rows[index][line["session"]])
            there |= {(index, row): person for row, person in sorted(told.items())}
        for who, person in there.items():
            if who not in people:
                people[who] = Person(_born(method, person).state)
        cohort = _together(method, there, people, broadcast.degrees, recount)
        total, pending = method.local_update(cohort, stage, broadcast)
        total = replace(total, users=line["users"])  # users who sent zeros count too
        if (spec := method.spec(stage)).noisy:
            of = line["stage"], line["level"], line["round"]
            words = total.to_ring(spec) + sum((noise or {})[nodes[index], of] for index in line["included"])
            total = Upload.from_ring(words, spec, total.users)
        model = method.apply(model, stage, total, line["level"])
        for place, (who, person) in enumerate(there.items()):
            mine = slice(cohort.indptr[place], cohort.indptr[place + 1])
            if recount or not stage.everyone or stage is not method.stages[0]:
                people[who].state = pending.state.take(np.array([place]))
            if recount or stage is method.stages[0]:
                people[who].counted = person.wanted if recount else person.items
            if pending.weights is not None:
                people[who].pushed = Edges(cohort.items[mine], pending.weights[mine])
    assert model is not None
    return model, {index: _states(nodes[index], index, people) for index in states(nodes)}


def _together(
    method: Method,
    there: dict[tuple[int, int], Had],
    people: dict[tuple[int, int], Person],
    degrees: Ints,
    recount: bool,
) -> Cohort:
    """The users who took part, in order, with what the sums hold of them."""
    items = [person.wanted if recount else person.items for person in there.values()]
    indptr = np.concatenate([[0], np.cumsum([len(part) for part in items])])
    rated = not recount and all(person.targets is not None and None not in person.targets for person in there.values())
    targets = np.concatenate([person.targets for person in there.values()]) if rated else None
    keys = np.array([person.key for person in there.values()], np.uint64)
    cohort = method.init_users(keys, indptr, np.concatenate(items).astype(np.int64), targets)
    cohort = cohort.with_state(type(cohort.state).joined([people[who].state for who in there]))
    if method.options.takes_order:
        cohort = replace(cohort, order=np.concatenate([person.order for person in there.values()]))
    past = Past()
    for place, who in enumerate(there if method.recount else ()):
        person, mine = people[who], slice(indptr[place], indptr[place + 1])
        if not np.array_equal(person.counted, items[place]):
            past.counted[place] = person.counted
        now = Edges(cohort.items[mine], method.push_weights(cohort, degrees)[mine])
        if person.pushed and not all(np.array_equal(a, b) for a, b in zip(person.pushed, now, strict=True)):
            past.pushed[place] = person.pushed
    return replace(cohort, past=past)


def _born(method: Method, person: Had) -> Cohort:
    """A user with the state that its key gives it."""
    keys, indptr = np.array([person.key], np.uint64), np.array([0, len(person.items)])
    return method.init_users(keys, indptr, np.asarray(person.items, np.int64))


def _states(path: Path, index: int, people: Mapping[tuple[int, int], Person]) -> Any:
    """The states of the users who are on the node now."""
    method = open_node(path).method(1)
    with NodeStore(path) as store:
        here = had(store, store.first_rows(-1))
    parts = [
        people[index, row].state if (index, row) in people else _born(method, person).state
        for row, person in here.items()
    ]
    return method.State.joined(parts)


def states(nodes: Mapping[int, Path]) -> dict[int, Any]:
    """Each node's users' states, as committed; a gateway's place may have nobody just now."""
    found = {}
    for index, path in nodes.items():
        with NodeStore(path) as store:
            if rows := store.first_rows(-1):
                found[index] = store.cohort(open_node(path).method(1), rows).state
    return found


def _log(path: Path) -> dict[str, list[int]]:
    """Which rows took part in which sum."""
    with NodeStore(path) as store:
        return store.participation()
