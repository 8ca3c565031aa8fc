"""The server's memory: one SQLite file (WAL) and beside it the model, one file for each state of it.

    meta      key, value (JSON)   `format`, `federation`; `n_users`: users at the start of the season; `warm`,
                                  `warm_stages`: stages of the warm-up, done and in all; `round`; `model`: the file of
                                  the present model; `before`: the file of the model with which the last sum began;
                                  `trained`: the last training round that counts, and the nodes in it; `evaluated`: the
                                  last round whose model was evaluated; `attempts`: by stage, level and round, of the
                                  last few; `heard`: by idx, when a node last answered (seconds since 1970); `gone`:
                                  users of removed nodes whom the degrees never counted; `waits_for`: names of nodes
                                  whose answer is overdue; `turn`: larger than that of the server from which this one
                                  took over; `finished`
    nodes     idx (on the roster), name, users, founder (users that it had at the start; 0: it came later)
    tags      tag, node, counted (1: the degrees hold its items): keyed hashes of the users' names, so that no user is
              on two nodes; the server does not have the key
    seasons   number, begun (its first round), until (the round with which it ends), n_users, n_items, first_sum (its
              number), recount (1: a recount is due), changed (users who had changes, as counted), line (JSON: its last
              evaluation), served (the season whose model nodes serve since its end)
    sums      number, session, stage, level, round, roster (its number); nodes, survivors, included (JSON lists of idx:
              the nodes that were asked, whose sum was to be opened, whose upload counts), users, applied (NULL while a
              sum goes on), reason, seconds, bytes_up, bytes_down: the participation log, in order
    metrics   round, line (JSON): what metrics.jsonl will hold

Every row also has a `seal` (common/sqlite_store.py), which is compared when the row is read.

A sum that counts is one transaction: model, progress and verdict change together or not at all. A server that is
killed in a sum finds it unfinished, calls it lost, and never opens it again.
"""

import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedgrec.cable.core import ServerState
from fedgrec.federation.common.arrays import read_arrays, write_arrays
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.history import Line, line
from fedgrec.federation.common.plan import EVALUATE, MOST_JUDGED
from fedgrec.federation.common.sqlite_store import LISTED, Store, damaged
from fedgrec.federation.server.folder import ServerFolder, open_server
from fedgrec.methods.contract import DEGREES, RECOUNT, TRAIN

SERVER_STORE, WAITS_FOR = "server.sqlite", "waits_for"
FEW = 16  # stages and rounds whose attempts are remembered: older ones never come again
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, seal BLOB) WITHOUT ROWID;
CREATE TABLE nodes (idx INTEGER PRIMARY KEY, name TEXT NOT NULL, users INTEGER NOT NULL, founder INTEGER NOT NULL,
                    seal BLOB);
CREATE TABLE tags (tag BLOB PRIMARY KEY, node INTEGER NOT NULL, counted INTEGER NOT NULL DEFAULT 0, seal BLOB)
    WITHOUT ROWID;
CREATE TABLE sums (number INTEGER PRIMARY KEY, session TEXT UNIQUE NOT NULL, stage TEXT NOT NULL,
                   level INTEGER NOT NULL, round INTEGER NOT NULL, roster INTEGER NOT NULL, nodes TEXT NOT NULL,
                   survivors TEXT, included TEXT,
                   users INTEGER, applied INTEGER, reason TEXT, seconds REAL, bytes_up INTEGER, bytes_down INTEGER,
                   seal BLOB);
CREATE TABLE metrics (round INTEGER NOT NULL, line TEXT NOT NULL, seal BLOB);
CREATE TABLE seasons (number INTEGER PRIMARY KEY, begun INTEGER NOT NULL, until INTEGER NOT NULL,
                      n_users INTEGER NOT NULL, n_items INTEGER NOT NULL, first_sum INTEGER NOT NULL,
                      recount INTEGER NOT NULL, changed INTEGER, line TEXT, served INTEGER, seal BLOB);
"""
COLUMNS = (
    *("number", "session", "stage", "level", "round", "nodes", "survivors", "included"),
    *("users", "applied", "reason", "seconds", "bytes_up", "bytes_down"),
)  # columns of `sums`


@dataclass(frozen=True)
class Season:
    """A number of training rounds over a graph that stays the same."""

    number: int
    begun: int  # its first round
    until: int  # the round with which it ends
    n_users: int
    n_items: int
    first_sum: int = 1
    recount: bool = False  # whether a recount is due
    changed: int | None = None  # users with changes, as counted before it
    line: dict[str, Any] | None = None  # its last evaluation, at its end
    served: int | None = None  # the season whose model nodes serve since its end


@dataclass(frozen=True)
class Cost:
    seconds: float = 0.0
    up: int = 0
    down: int = 0


class ServerStore(Store):
    def __init__(self, folder: ServerFolder, read_only: bool = False) -> None:
        self.folder = folder.path
        self._heard: dict[str, float] = {}  # answers since the last sum ended
        self.unit = "members" if any(member.gateway for member in folder.roster.values()) else "nodes"
        super().__init__(folder.path / SERVER_STORE, SCHEMA, read_only)
        if self.get("federation", folder.federation) != folder.federation:
            self.close()
            raise FederationError(
                f"{self.path} and server.json beside it are of different federations: restore the one that was damaged "
                f"from a backup, or begin in a new folder"
            )
        if read_only:  # each row is compared with its seal when it is read; only the server checks the whole store
            return
        if self.get("federation") is None:
            with self.transaction():
                self.put("federation", folder.federation)
        self.check()
        self._check_models()

    def _check_models(self) -> None:
        """Find a store that lost its last sums: a model's sum is stored before the model is written."""
        ((last,),) = self.rows("sums", "number", "ORDER BY number DESC LIMIT 1") or [(0,)]
        for key in ("model", "before"):
            if (name := self.get(key)) and not (self.folder / name).exists():
                self.close()
                raise damaged(self.path, f"{name}, which it names, is not there")
        for path in self.folder.glob("model-*.bin"):
            if int(path.stem.removeprefix("model-")) > last:
                self.close()
                raise damaged(self.path, f"it lacks the sum that {path.name} is of")

    # ----------------------------------------------------------------------------------------------- nodes

    def join(self, index: int, name: str, tags: Iterable[bytes]) -> dict[bytes, int]:
        """Take a node and its users in; or return which of these users other nodes have, and which nodes.

        The node then joins again without them. The names of its other users are its own from now on.
        """
        tags = list(tags)
        if len(set(tags)) < len(tags):
            raise FederationError(f"node {name} brings one user twice: take the user off once")
        with self.transaction():
            gone = set(self.column("tags", "tag", "WHERE node = ?", [index])).difference(tags)
            self.db.executemany("DELETE FROM tags WHERE tag = ?", [(tag,) for tag in gone])
            self.db.executemany("INSERT OR IGNORE INTO tags (tag, node) VALUES (?, ?)", [(tag, index) for tag in tags])
            owners = {tag: owner for tag in tags for owner in self.column("tags", "node", "WHERE tag = ?", [tag])}
            if taken := {tag: owner for tag, owner in owners.items() if owner != index}:
                return taken
            self.db.execute(
                "INSERT INTO nodes (idx, name, users, founder) VALUES (?, ?, ?, 0) "
                "ON CONFLICT (idx) DO UPDATE SET users = excluded.users",
                [index, name, len(tags)],
            )
            self.hear(index)
            self._keep_heard()
        return {}

    def hear(self, index: int) -> None:
        """A node has answered just now; the time is written when the sum ends."""
        self._heard[str(index)] = time.time()

    def heard(self) -> dict[int, float]:
        """When each node last answered, in seconds since 1970."""
        return {int(index): at for index, at in self.get("heard", {}).items()}

    def _keep_heard(self) -> None:
        self.put("heard", self.get("heard", {}) | self._heard)
        self._heard = {}

    def release(self, roster: Iterable[int]) -> None:
        """Users of nodes that are not on the roster any more may come back on others. Their latents stay."""
        elsewhere, nodes = f"NOT node {LISTED}", [json.dumps(list(roster))]
        with self.transaction():
            uncounted = self.rows("tags", "node", f"WHERE counted = 0 AND {elsewhere}", nodes)
            self.put("gone", self.get("gone", 0) + len(uncounted))
            self.db.execute(f"DELETE FROM tags WHERE {elsewhere}", nodes)

    def freeze(self, nodes: Iterable[int]) -> int:
        """Start the federation with these nodes: their users are its number of users from now on."""
        with self.transaction():
            for index in nodes:
                self.db.execute("UPDATE nodes SET founder = users WHERE idx = ?", [index])
            n_users = sum(self.founders().values())
            self.put("n_users", n_users)
        return n_users

    def founders(self) -> dict[int, int]:
        """The nodes that were there at the start, with the users that they had."""
        return dict(self.rows("nodes", "idx, founder", "WHERE founder > 0"))

    def first_counted(self) -> list[int]:
        """The nodes in the first count, once it was applied."""
        found = self.column("sums", "included", "WHERE stage = ? AND applied = 1 LIMIT 1", [DEGREES.name])
        return list(json.loads(found[0])) if found else []

    def nodes(self) -> list[tuple[int, str, int]]:
        """Place on the roster, name and number of users of every node that has ever joined."""
        return self.rows("nodes", "idx, name, users", "ORDER BY idx")

    def loose_users(self) -> int:
        """Users whose latents may stand at items for which the degrees do not count them.

        They came later, or their node missed the count or was removed before it, or their items changed and they have
        not sent latents since.
        """
        late = len(self.rows("tags", "node", "WHERE counted = 0")) + int(self.get("gone", 0))
        changed = sum(season.changed or 0 for season in self.seasons())
        return late + min(changed, self.users_in_sums())

    def users_in_sums(self) -> int:
        """Users whose data the sums may hold, also users of removed nodes."""
        return sum(users for _, _, users in self.nodes())

    @property
    def is_warm(self) -> bool:
        return bool(self.get("warm", 0) >= self.get("warm_stages", 1))

    # --------------------------------------------------------------------------------------------- seasons

    def seasons(self) -> list[Season]:
        names = [f.name for f in fields(Season)]
        found = self.rows("seasons", ", ".join(names), "ORDER BY number")
        lines = [dict(zip(names, row, strict=True)) for row in found]
        return [
            Season(**line | {"recount": bool(line["recount"]), "line": json.loads(line["line"] or "null")})
            for line in lines
        ]

    def keep_season(self, season: Season) -> None:
        """Write a season that begins, or new values of one."""
        with self.transaction():
            values = asdict(season) | {"line": season.line and json.dumps(season.line)}
            places = ", ".join("?" * len(values))
            self.db.execute(
                f"INSERT OR REPLACE INTO seasons ({', '.join(values)}) VALUES ({places})", [*values.values()]
            )
            self.put("n_users", season.n_users)

    # ------------------------------------------------------------------------------------------------ sums

    def begin(self, session: str, place: tuple[str, int, int], roster: int, nodes: Iterable[int]) -> int:
        """From here on the sum's round is used up, even if the sum is lost. Returns the sum's number."""
        with self.transaction():
            return self._begin(session, place, roster, nodes)

    def _begin(self, session: str, place: tuple[str, int, int], roster: int, nodes: Iterable[int]) -> int:
        columns = "session, stage, level, round, roster, nodes"
        values = [session, *place, roster, json.dumps(sorted(nodes))]
        return self.db.execute(f"INSERT INTO sums ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values).lastrowid or 0

    def founded(self) -> int | None:
        """The number of the roster with which the first sum began."""
        return next(iter(self.column("sums", "roster", "WHERE number = 1")), None)

    def opening(self, session: str, survivors: Iterable[int]) -> None:
        """From here on nodes may open the sum of these nodes, and open no other sum of the same stage and round."""
        with self.transaction():
            self.db.execute("UPDATE sums SET survivors = ? WHERE session = ?", [json.dumps(sorted(survivors)), session])

    def attempt(self, place: tuple[str, int, int]) -> int:
        """Take the number of the next attempt at a sum."""
        with self.transaction():
            known, key = self.get("attempts", {}), " ".join(map(str, place))
            number = known.pop(key, 0)
            self.put("attempts", dict([*known.items(), (key, number + 1)][-FEW:]))
        return int(number)

    def trained(self) -> tuple[int, list[int]]:
        """The last training round that counts, and the nodes in it; −1 if there was none."""
        round_, nodes = self.get("trained", (-1, []))
        return round_, nodes

    def half_opened(self, stage: str, level: int, round_: int) -> list[int] | None:
        """The nodes whose sum of this stage and round may have been opened in part."""
        same = "WHERE stage = ? AND level = ? AND round = ? AND survivors IS NOT NULL"
        found = self.column("sums", "survivors", same, [stage, level, round_])
        return json.loads(found[0]) if found else None

    def lose(self, session: str, reason: str, cost: Cost = Cost()) -> None:  # noqa: B008 (it is frozen)
        """The sum was not opened, or cannot be used."""
        with self.transaction():
            stage, round_ = self._sum(session, "stage, round")
            self._close(session, [], 0, reason, cost)
            self._go_on_after(stage, round_)

    def skip(self, stage: str, round_: int, roster: int, reason: str) -> None:
        """A round cannot take place now, and training can do without it."""
        session = secrets.token_hex(16)
        self.begin(session, (stage, 0, round_), roster, [])
        self.lose(session, reason)

    def _go_on_after(self, stage: str, round_: int) -> None:
        """Users' draws belong to a round, which is not asked for twice; a lost evaluation is tried again once."""
        if stage == EVALUATE and self.times(EVALUATE, round_) >= MOST_JUDGED:
            self.put("evaluated", round_)
        elif stage == TRAIN.name:
            self.put("round", round_ + 1)

    def apply(self, session: str, included: list[int], users: int, server: ServerState, warm: int, cost: Cost) -> None:
        """The sum counts: write its model, the progress and the verdict together."""
        number, stage, round_ = self._sum(session, "number, stage, round")
        name, before = f"model-{number}.bin", self.get("model")
        self._write_model(name, server)
        with self.transaction():
            self._close(session, included, users, None, cost)
            if stage in (DEGREES.name, RECOUNT.name):
                self.db.execute(f"UPDATE tags SET counted = 1 WHERE node {LISTED}", [json.dumps(included)])
                self.db.execute("UPDATE seasons SET recount = 0 WHERE number = (SELECT max(number) FROM seasons)")
            elif self.is_warm:
                self.put("trained", (round_, included))
            for key, value in {"warm": warm, "round": server.round, "model": name, "before": before}.items():
                self.put(key, value)
        for other in self.folder.glob("model-*.bin"):
            if other.name not in (name, before):
                other.unlink()

    def answered(
        self, session: str, included: list[int], users: int, cost: Cost, line: dict[str, Any] | None = None
    ) -> None:
        """A sum that does not change the model was opened; an evaluation has a line for metrics.jsonl."""
        with self.transaction():
            self._close(session, included, users, None, cost)
            stage, round_ = self._sum(session, "stage, round")
            if stage == EVALUATE:
                self.put("evaluated", round_)
            if line is not None:
                self.db.execute("INSERT INTO metrics (round, line) VALUES (?, ?)", [round_, json.dumps(line)])

    def _close(self, session: str, included: list[int], users: int, reason: str | None, cost: Cost) -> None:
        """The sum is over; without a reason against it, it counts."""
        self.db.execute(
            "UPDATE sums SET included = ?, users = ?, applied = ?, reason = ?, seconds = ?, bytes_up = ?, "
            "bytes_down = ? WHERE session = ?",
            [json.dumps(included), users, reason is None, reason, cost.seconds, cost.up, cost.down, session],
        )
        self._keep_heard()

    def recover(self) -> list[str]:
        """After a crash: sums that were going on are lost. Returns their stages."""
        with self.transaction():
            self.put(WAITS_FOR, [])
        left = self.rows("sums", "session, stage", "WHERE applied IS NULL")
        for session, _ in left:
            self.lose(session, "the server stopped while the sum went on")
        return [stage for _, stage in left]

    def over(self, after: int) -> list[Line]:
        """All sums that are over, in order, without this many of the first ones."""
        there = "WHERE applied IS NOT NULL ORDER BY number LIMIT -1 OFFSET ?"
        found = self.rows("sums", "session, stage, level, round, roster, included", there, [after])
        return [line(session, place, roster, json.loads(included)) for session, *place, roster, included in found]

    def hear_of(self, heard: Line) -> None:
        """Nodes tell of a sum that this store, a restored copy, does not have: its name and its round were used."""
        place = heard.stage, heard.level, heard.round
        self.attempt(place)
        with self.transaction():
            if not self._sum(heard.session, "session"):  # the copy may have been made while the sum went on
                self._begin(heard.session, place, heard.roster, heard.included)
            reason = "this server is a restored copy, and has heard of it from its nodes"
            self._close(heard.session, heard.included, 0, reason, Cost())
            self._go_on_after(heard.stage, heard.round)

    def _sum(self, session: str, columns: str) -> Any:
        """These columns of the session's sum, if there is one."""
        return next(iter(self.rows("sums", columns, "WHERE session = ?", [session])), None)

    def times(self, stage: str, round_: int | None = None) -> int:
        """How many sums of this stage there were, in all or of one round."""
        where = "WHERE stage = ? AND (? IS NULL OR round = ?)"
        return len(self.rows("sums", "number", where, [stage, round_, round_]))

    def sums(self, after: int = 0) -> list[dict[str, Any]]:
        """The participation log, in order: all sums, or those after this number."""
        rows = self.rows("sums", ", ".join(COLUMNS), "WHERE number > ? ORDER BY number", [after])
        log = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        lists, more = ("nodes", "survivors", "included"), {"unit": self.unit}  # the word for those in the lists
        return [line | {key: json.loads(line[key] or "[]") for key in lists} | more for line in log]

    def is_round(self, number: int, round_: int) -> bool:
        """Whether this sum was that training round, and counted."""
        return self.rows("sums", "stage, round, applied", "WHERE number = ?", [number]) == [("train", round_, 1)]

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.column("metrics", "line", "ORDER BY rowid")]

    def cost(self) -> Cost:
        found = self.rows("sums", "coalesce(seconds, 0.0), coalesce(bytes_up, 0), coalesce(bytes_down, 0)")
        return Cost(*(sum(part) for part in zip(*found, strict=True))) if found else Cost()

    # ----------------------------------------------------------------------------------------------- model

    def _write_model(self, name: str, server: ServerState) -> None:
        parts = {part: getattr(server, part) for part in ("items", "degrees", "moment1", "moment2")}
        more = {f"more.{part}": value for part, value in server.more.items()}
        write_arrays(self.folder / name, parts | server.kept | more, {"round": server.round})

    def model(self, start: ServerState, which: str = "model") -> ServerState:
        """The present model, or the one that `before` names; `start` if no sum has been applied yet."""
        name = self.get(which)
        if name is not None:
            arrays, _ = read_arrays(self.folder / name)
            parts = {part: value.copy() for part, value in arrays.items()}  # files are read-only
            more = {part.removeprefix("more."): parts.pop(part) for part in list(parts) if part.startswith("more.")}
            items, degrees, moment1, moment2 = (parts.pop(part) for part in ("items", "degrees", "moment1", "moment2"))
            start = ServerState(items, degrees, moment1, moment2, more=more, kept=parts)
        start.round = self.get("round", 0)
        return start


def model_of(folder: Path) -> ServerState:
    """The model as a server's folder has it now."""
    home = open_server(folder)
    with ServerStore(home) as store:
        return store.model(home.method(store.get("n_users") or 1).init(home.config.run.seed))
