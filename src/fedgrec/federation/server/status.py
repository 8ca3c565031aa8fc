"""The status of a federation, from its server's folder: progress, speed, nodes, quality of the model.

It is read from the store alone, so it is there even if no server runs, and holds nothing that the server does not know.
Reading changes nothing, and does not disturb a server at work.
"""

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgrec.federation.common.catalogue import version_of
from fedgrec.federation.common.lock import is_taken
from fedgrec.federation.common.plan import EVALUATE
from fedgrec.federation.common.promise import Promise, promise
from fedgrec.federation.common.roster import home_of
from fedgrec.federation.server.folder import ServerFolder, open_server
from fedgrec.federation.server.log import describe, last_lines, log_of
from fedgrec.federation.server.store import WAITS_FOR, Season, ServerStore

NOT_STARTED, WAITING, WARM_UP, TRAINING = "not started", "waiting for nodes", "warm-up", "training"
RESTING, FINISHED, STOPPED = "resting", "finished", "stopped"
STATES = (NOT_STARTED, WAITING, WARM_UP, TRAINING, RESTING, FINISHED, STOPPED)
RECENT = 20  # training rounds over which speed and bytes are averaged
SHOWN = 500  # training rounds that a picture shows
LINES, SUMS = 12, 5  # lines of the log, and of the participation log, that are shown
SILENCE = 5.0  # seconds between two sums after which the server counts as waiting
TOO_MANY = 2  # sums lost in a row that mean trouble; a single sum may be lost any time
Line = dict[str, Any]  # of the participation log


@dataclass(frozen=True)
class NodeStatus:
    """A node, or a gateway with all its users who mask for themselves."""

    name: str
    users: int | None  # None: it has not joined yet
    masks: int  # users who mask for themselves; 0: a node that adds its users up
    removed: bool  # it took part earlier, and is not on the roster any more
    last_round: int | None  # the last training round that it is in, counted from 1
    lag: int | None  # training rounds that counted since
    heard_seconds: float | None  # since its last answer; as of the end of the last sum


@dataclass(frozen=True)
class Status:
    """All that a person who watches a server wants to know. docs/deploy.md explains the keys."""

    name: str
    time: str
    state: str
    running: bool
    season: int  # counted from 1
    seasons: int  # as asked for; 0: until it is stopped
    changed: int | None  # users who had changes when they were last counted
    serves: int | None  # the season whose model nodes recommend with
    catalogue: int  # its version
    round: int
    rounds: int  # the round with which the season ends
    warm_up: int
    warm_up_stages: int | None
    rounds_per_minute: float | None
    seconds_left: float | None
    users: int | None
    nodes: list[NodeStatus]
    privacy: dict[str, Any] | None  # a Promise, of a user who was in all sums; None: nothing is promised
    metrics: list[dict[str, Any]]
    bytes_up: int
    bytes_down: int
    seconds: float
    round_seconds: float | None  # this and the next two: the average of the last rounds
    round_bytes_up: int | None
    round_bytes_down: int | None
    sums_applied: int
    sums_lost: int
    lost_in_a_row: int
    current_sum: str | None
    waits_for: list[str]  # nodes whose answer to the current sum is overdue
    last_sums: list[str]
    last_rounds: list[dict[str, float]]  # training rounds that counted: round (from 1), seconds, bytes, nodes
    log: list[str]

    @property
    def trouble(self) -> str:
        """Why an operator should look at the server; "" if all is well."""
        if self.state == STOPPED:
            return "the server does not run, and its federation is not trained: see its log, and start it again"
        if self.waits_for:
            return f"a sum waits for {', '.join(self.waits_for)}, longer than is usual: see the logs there"
        if self.lost_in_a_row >= TOO_MANY:
            return f"the last {self.lost_in_a_row} sums were lost; {self.last_sums[-1]}"
        return ""


def status(path: Path) -> Status:
    """The status of the server in this folder, now."""
    home = open_server(path)
    running = is_taken(log_of(path))
    with ServerStore(home, read_only=True) as store:
        store.db.execute("BEGIN")  # everything is read as of one moment
        sums = store.sums()
        closed = [line for line in sums if line["applied"] is not None]
        trained = [line for line in closed if line["applied"] and line["stage"] == "train"]
        seasons = store.seasons()
        season = seasons[-1] if seasons else Season(1, 0, 0, 0, home.n_items)
        done, rounds = store.get("round", 0), home.options.rounds if season.number == 1 else season.until
        rate, recent = _rate(closed, trained), trained[-RECENT:]

        def mean(key: str) -> float:
            return float(sum(line[key] for line in recent) / len(recent))

        return Status(
            name=path.absolute().name,
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            state=_state(store, running, done < rounds, len(closed) < len(sums), season.served is not None),
            running=running,
            season=season.number,
            seasons=home.options.seasons,
            changed=season.changed,
            serves=next((s.served for s in reversed(seasons) if s.served), None),
            catalogue=version_of(path),
            round=done,
            rounds=rounds,
            warm_up=store.get("warm", 0),
            warm_up_stages=store.get("warm_stages"),
            rounds_per_minute=rate and round(rate, 3),
            seconds_left=round(60 * max(rounds - done, 0) / rate, 1) if rate else None,
            users=store.get("n_users"),
            nodes=_nodes(home, store, trained),
            privacy=promised._asdict() if (promised := promise_of(home, store)) else None,
            metrics=store.metrics(),
            bytes_up=sum(line["bytes_up"] for line in closed),
            bytes_down=sum(line["bytes_down"] for line in closed),
            seconds=round(sum(line["seconds"] for line in closed), 3),
            round_seconds=round(mean("seconds"), 3) if trained else None,
            round_bytes_up=round(mean("bytes_up")) if trained else None,
            round_bytes_down=round(mean("bytes_down")) if trained else None,
            sums_applied=sum(line["applied"] for line in closed),
            sums_lost=sum(not line["applied"] for line in closed),
            lost_in_a_row=next((n for n, line in enumerate(reversed(closed)) if line["applied"]), len(closed)),
            current_sum=next((describe(line) for line in sums if line["applied"] is None), None) if running else None,
            waits_for=store.get(WAITS_FOR, []) if running else [],
            last_sums=[describe(line) for line in closed[-SUMS:]],
            last_rounds=[_round(line) for line in trained[-SHOWN:]],
            log=last_lines(path, LINES),
        )


def promise_of(home: ServerFolder, store: ServerStore) -> Promise | None:
    """What was spent by now: a sum that was begun counts, since somebody may have opened it."""
    method, judged = home.method(store.get("n_users") or 1), sum(line["stage"] == EVALUATE for line in store.sums())
    return promise(method, home.agreed, bool(store.get("warm", 0)), store.get("round", 0), judged)


def _state(store: ServerStore, running: bool, rounds_left: bool, is_summing: bool, ended: bool) -> str:
    if store.get("finished") and not rounds_left:
        return FINISHED
    if not running:
        return STOPPED if store.get("federation") else NOT_STARTED
    if ended and not rounds_left:
        return RESTING
    heard = max(store.heard().values(), default=0.0)
    if store.get("n_users") is None or (not is_summing and rounds_left and time.time() - heard > SILENCE):
        return WAITING
    return TRAINING if store.is_warm else WARM_UP


def _rate(closed: list[Line], trained: list[Line]) -> float | None:
    """Rounds a minute, with the time of evaluations and lost sums, but without the time in which no server ran."""
    if not trained:
        return None
    recent = trained[-RECENT:]
    seconds = sum(line["seconds"] for line in closed if line["number"] >= recent[0]["number"])
    return 60 * len(recent) / seconds if seconds else None


def _round(line: Line) -> dict[str, float]:
    about = {"round": line["round"] + 1, "seconds": round(line["seconds"], 3)}
    return about | {"bytes_up": line["bytes_up"], "bytes_down": line["bytes_down"], "nodes": len(line["included"])}


def _nodes(home: ServerFolder, store: ServerStore, trained: list[Line]) -> list[NodeStatus]:
    """Nodes on the roster, then removed ones; users who mask for themselves count under their gateway."""
    joined = {index: (name, users) for index, name, users in store.nodes()}
    removed = joined.keys() - home.roster.keys()
    hosts = {index: home_of(member) for index, member in home.roster.items()}
    hosts |= {index: joined[index][0] for index in sorted(removed)}
    together = defaultdict[tuple[str, bool], list[int]](list)
    for index, name in hosts.items():
        together[name, index in removed].append(index)
    last = {index: place for place, line in enumerate(trained) for index in line["included"]}
    heard, now = store.heard(), time.time()
    found = []
    for (name, is_removed), members in together.items():
        users = [joined[index][1] for index in members if index in joined]
        place = max((last[index] for index in members if index in last), default=None)
        at = max((heard[index] for index in members if index in heard), default=None)
        found.append(
            NodeStatus(
                name=name,
                users=sum(users) if users else None,
                masks=sum(bool(home.roster[index].gateway) for index in members if index in home.roster),
                removed=is_removed,
                last_round=None if place is None else trained[place]["round"] + 1,
                lag=None if place is None else len(trained) - 1 - place,
                heard_seconds=None if at is None else round(max(now - at, 0.0), 1),
            )
        )
    return found
