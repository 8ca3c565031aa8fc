"""Computes a federation's run again in one process, from what server and nodes wrote down: bit for bit the same.

The server's log says which nodes were in which sum, the nodes' logs which of their users took part. With the users' own
keys and items the plain verbs then have to give the same model and the same states. Only whoever may look into all
nodes can do this: it is a test, and a tool for those who try things out on one machine.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.core import Cohort, ServerState
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.store import ServerStore


def replay(server: Path, nodes: Mapping[int, Path]) -> tuple[ServerState, dict[int, Any]]:
    """The model and each node's users' states, computed again; `nodes` are folders by their place on the roster."""
    home = open_server(server)
    with ServerStore(home) as store:
        log, n_users = store.sums(), store.get("n_users")
    method = home.method(n_users)
    model = method.init(home.config.run.seed)
    users = {index: _at_the_start(path, n_users) for index, path in nodes.items()}
    took_part = {index: _log(path) for index, path in nodes.items()}
    for line in log:
        stage = next((s for s in method.stages if s.name == line["stage"]), None)
        if line["stage"] == EVALUATE or stage is None:
            continue
        if not line["applied"]:
            model.round = line["round"] + (stage is method.stages[-1])
            continue
        if stage is method.stages[-1]:
            stage = method.training(line["round"])
        model.round = line["round"]
        broadcast = method.broadcast(model, stage, level=line["level"])
        here = {index: np.array(took_part[index][line["session"]], np.int64) - 1 for index in line["included"]}
        together = joined([users[index].take(places) for index, places in here.items()])
        total, pending = method.local_update(together, stage, broadcast)
        total = replace(total, users=line["users"])  # those who sent zeros count, too
        model = method.apply(model, stage, total, line["level"])
        ends = np.cumsum([0, *(len(places) for places in here.values())])
        for (index, places), start, end in zip(here.items(), ends, ends[1:], strict=False):
            users[index].state.put(places, pending.state.take(np.arange(start, end)))
    return model, {index: cohort.state for index, cohort in users.items()}


def states(nodes: Mapping[int, Path]) -> dict[int, Any]:
    """Each node's users' states, as committed."""
    found = {}
    for index, path in nodes.items():
        with NodeStore(path) as store:
            found[index] = store.cohort(open_node(path).method(1), store.first_rows(store.count())).state
    return found


def joined(cohorts: list[Cohort]) -> Cohort:
    """The users of all, one after the other."""
    counts = np.concatenate([cohort.degrees for cohort in cohorts])
    targets = [cohort.targets for cohort in cohorts if cohort.targets is not None]
    return Cohort(
        np.concatenate([cohort.keys for cohort in cohorts]),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([cohort.items for cohort in cohorts]),
        type(cohorts[0].state).joined([cohort.state for cohort in cohorts]),
        np.concatenate(targets) if targets else None,
    )


def _at_the_start(path: Path, n_users: int) -> Cohort:
    """A node's users with the state that their keys give them."""
    method = open_node(path).method(n_users)
    with NodeStore(path) as store:
        cohort = store.cohort(method, store.first_rows(store.count()))
    return method.init_users(cohort.keys, cohort.indptr, cohort.items, cohort.targets)


def _log(path: Path) -> dict[str, list[int]]:
    """Which rows took part in which sum."""
    with NodeStore(path) as store:
        return store.participation()
