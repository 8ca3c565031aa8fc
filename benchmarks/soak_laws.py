"""What must hold after half an hour of strikes (soak.py), and how it is seen meanwhile."""

import contextlib
import re
import sqlite3
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.federation.standing import standing

from fedgrec.cable.core import Ints
from fedgrec.federation.node import changes, history
from fedgrec.federation.node.store import STORE, NodeStore
from fedgrec.federation.server.folder import open_server
from fedgrec.federation.server.liveness import LATE, USUALLY
from fedgrec.federation.server.log import LOG, LOGS
from fedgrec.federation.server.store import WAITS_FOR, ServerStore, model_of
from fedgrec.federation.setup.init import Made

LONG = 12  # a process with this many samples lived long enough to be judged
LEVEL_MB, LEVEL_SHARE, LEVEL_FILES = 20.0, 0.15, 8  # by how much more a process may hold in its last quarter
SLACK = 15.0  # seconds more: two looks are a second apart, and processors are taken by others
LOOK = 0.25  # seconds between two looks
RESTORED = "this server is a restored copy"
REFUSED = "this server has forgotten the sum of stage"
REASONS = {
    "the server died": "the server stopped while the sum went on",
    "too few nodes": r"TooFewLeft|\d+ nodes are left, and this sum has no fewer than|\d+ nodes are there, and",
    "a node was cut off in it": r"BadLists|BadShare|WrongStage",
    "a batch was not whole": r"sums of people's items open over whole batches",
    "half opened": r"some nodes opened this stage for nodes|was half opened for nodes",
}  # fmt: skip
OUTSIDE = "outside what users can have"


@dataclass(frozen=True)
class Loss:
    """A server that was lost with its disk, and a copy of it that took over."""

    sums: int  # that the copy had forgotten
    seasons: int
    latents: Ints  # that these had added
    refusal: str  # how a server from an older copy ended, if nodes did not accept it

    @classmethod
    def of(cls, lost: Path, copy: Path, refusal: str) -> "Loss":
        before, after = (model_of(folder).kept["standing"] for folder in (lost, copy))
        (sums, seasons), (had, had_seasons) = map(_reached, (lost, copy))
        return cls(sums - had, seasons - had_seasons, np.subtract(before, after), refusal)


@dataclass
class Found:
    """What was seen while the federation was struck."""

    ended: list[str] = field(default_factory=list)  # processes that ended although nobody had struck them
    full_ends: list[int | None] = field(default_factory=list)  # with what code servers ended whose disk was full
    ends: dict[str, list[float]] = field(default_factory=dict)  # seconds until a server's processes were gone
    samples: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    returned: dict[str, float] = field(default_factory=dict)  # since when nodes are back
    late: tuple[float, list[str]] | None = None  # since when an exchange is late, and whom it waits for
    stalls: list[tuple[float, list[str]]] = field(default_factory=list)  # seconds for which all were back

    def look(self, waits_for: list[str], now: float) -> None:
        """At the nodes for which an exchange waits that is late."""
        if waits_for and self.late is None:
            self.late = now, waits_for
        elif not waits_for and self.late:
            (since, nodes), self.late = self.late, None
            back = max(self.returned.get(node, 0.0) for node in nodes)
            self.stalls.append((now - max(since - LATE, back), nodes))


# ------------------------------------------------------------------------------------------ processes, stores


def until(happened: Callable[[], Any], seconds: float, why: str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := happened()) not in (None, False):
            return found
        time.sleep(LOOK)
    raise TimeoutError(f"{why} within {seconds:.0f} s")


def descendants(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [found for child in map(int, children) for found in (child, *descendants(child))]
    return []


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def is_called(pid: int, word: bytes) -> bool:
    """Whether the process was started with a command that has this word."""
    with contextlib.suppress(OSError):
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def _reached(server: Path) -> tuple[int, int]:
    """How many sums are over, and which season it is."""
    with ServerStore(open_server(server)) as store:
        return len(store.over(after=0)), len(store.seasons())


def sums_of(made: Made) -> int:
    with contextlib.suppress(Exception), ServerStore(open_server(made.server), read_only=True) as store:
        return len(store.rows("sums", "number"))
    return 0


def counted_of(made: Made) -> int:
    with contextlib.suppress(Exception), ServerStore(open_server(made.server), read_only=True) as store:
        return len(store.rows("sums", "number", "WHERE applied = 1"))
    return 0


def round_seconds(made: Made) -> float:
    """Of the last sum that counted."""
    with contextlib.suppress(Exception), ServerStore(open_server(made.server), read_only=True) as store:
        return float(store.column("sums", "seconds", "WHERE applied = 1 ORDER BY number")[-1])
    return 0.0


def is_summing(made: Made) -> bool:
    """Whether a sum goes on, or has ended, that nodes have not told the server of."""
    with contextlib.suppress(Exception), ServerStore(open_server(made.server), read_only=True) as store:
        return store.rows("sums", "number", "WHERE applied IS NULL") != []
    return False


def waited_for(made: Made) -> list[str]:
    with contextlib.suppress(Exception), ServerStore(open_server(made.server), read_only=True) as store:
        return list(store.get(WAITS_FOR, []))
    return []


def nodes_know_all(made: Made) -> bool:
    """Whether more nodes than may lie have heard of all sums that are over."""
    home, knowing = open_server(made.server), 0
    with ServerStore(home, read_only=True) as store:
        over = len(store.over(after=0))
    for folder in made.nodes:
        with contextlib.closing(sqlite3.connect(f"file:{folder / STORE}?mode=ro", uri=True)) as db:
            ((heard,),) = db.execute("SELECT coalesce(max(number), 0) FROM history")
        knowing += heard >= over
    return knowing > home.corrupt_nodes


# --------------------------------------------------------------------------------------------------- what holds


def settle(made: Made) -> int:
    """Tell nodes what they have not heard of sums, as the server's next message would; returns how many waited."""
    told = 0
    with ServerStore(open_server(made.server)) as server:
        said = {"after": 0, "lines": [line.pack() for line in server.over(after=0)]}
    for index, folder in enumerate(made.nodes):
        with NodeStore(folder) as store, store.transaction():
            told += len(store.waiting())
            changes.counted(store, history.hear(store, index, said))
            changes.delete_gone(store)
    return told


def law(made: Made, losses: list[Loss]) -> dict[str, Any]:
    """Whether the server's degrees and latents equal those of the users' stores, but for what was lost with servers."""
    degrees, steps = standing(made.server, made.nodes)
    model = model_of(made.server)
    missing = sum((loss.latents for loss in losses), np.zeros_like(steps))
    return {
        "degrees_differ": int((model.degrees != degrees).sum()),
        "latents_differ": int((model.kept["standing"] + missing != steps).sum()),
        "latents_lost": int(np.count_nonzero(missing)),
        "interactions": int(degrees.sum()),
        "latents": int(np.count_nonzero(steps)),
    }


def verdicts(made: Made, sums: list[dict[str, Any]]) -> dict[str, int]:
    """How often nodes and the server's log disagree whether a sum counts, and how many sums count twice."""
    said: dict[str, list[int]] = {}
    for index, folder in enumerate(made.nodes):
        with NodeStore(folder) as store:
            for (session,) in store.rows("participation", "session", "WHERE verdict = 1"):
                said.setdefault(session, []).append(index)
    counted = [line for line in sums if line["applied"] or is_forgotten(line)]
    logged = {line["session"]: line["included"] for line in counted if line["included"]}
    places = Counter((line["stage"], line["level"], line["round"]) for line in counted if line["included"])
    return {
        "disagree": sum(said.get(session, []) != logged.get(session, []) for session in said.keys() | logged.keys()),
        "twice": sum(count > 1 for count in places.values()),
    }


def is_forgotten(line: dict[str, Any]) -> bool:
    """Whether the server has heard of the sum from its nodes."""
    return str(line["reason"]).startswith(RESTORED)


def why_lost(sums: list[dict[str, Any]]) -> dict[str, Any]:
    """How many sums were lost for each reason; unknown reasons are kept word by word."""
    found, unknown = Counter[str](), list[str]()
    for line in sums:
        if not line["applied"] and not is_forgotten(line):
            reason = str(line["reason"])
            known = next((name for name, words in REASONS.items() if re.search(words, reason)), None)
            if known:
                found[known] += 1
            else:
                unknown.append(reason)
    return {"known": dict(found), "unknown": unknown}


def level(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What every process that lived long enough held in the second and in the last quarter of its life."""
    lives: dict[str, list[tuple[float, int]]] = {}
    for sample in samples:
        for life, held in sample["processes"].items():
            lives.setdefault(life, []).append(held)
    found: dict[str, Any] = {}
    for life, held in lives.items():
        if len(held) >= LONG:
            quarter = len(held) // 4
            second, last = held[quarter : 2 * quarter], held[-quarter:]
            mb, files = ([statistics.median(h[part] for h in some) for some in (second, last)] for part in (0, 1))
            more = mb[1] - mb[0]
            is_level = more <= max(LEVEL_MB, LEVEL_SHARE * mb[0]) and files[1] - files[0] <= LEVEL_FILES
            found[life] = {"samples": len(held), "mb": mb, "files": files, "level": is_level}
    return found


def growth(made: Made, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes of the closed stores, and the bytes that a sum added to nodes and log after the first quarter."""
    first, last = samples[len(samples) // 4], samples[-1]
    sums = max(last["sums"] - first["sums"], 1)

    def nodes(sample: dict[str, Any]) -> float:
        return float(statistics.mean(sample["stores"][folder.name] for folder in made.nodes))

    return {
        "server_bytes": size(made.server.glob("*.sqlite")),  # while it is open, new rows are in SQLite's log beside it
        "node_bytes": statistics.mean(size(folder.glob("*.sqlite")) for folder in made.nodes),
        "node_bytes_a_sum": (nodes(last) - nodes(first)) / sums,
        "log_bytes_a_sum": (last["logs"] - first["logs"]) / sums,
        "largest_wal_bytes": max(sample["wal"] for sample in samples),
    }


def check_stores(made: Made) -> None:
    """Check every page and every row; an error where something is broken."""
    with ServerStore(open_server(made.server)) as store:
        store.check()
    for folder in made.nodes:
        with NodeStore(folder) as node:
            node.check()


def judged(made: Made, seen: Found) -> dict[str, Any]:
    """What held, once all processes have stopped."""
    check_stores(made)
    undelivered = settle(made)
    with ServerStore(open_server(made.server)) as store:
        sums, seasons = store.sums(), store.seasons()
    log = (made.server / LOGS / LOG).read_text(encoding="utf-8")
    usual = statistics.median(line["seconds"] for line in sums if line["stage"] == "train" and line["applied"])
    result = {
        "seasons": len(seasons),
        "sums": dict(Counter(line["stage"] for line in sums)),
        "counted": sum(bool(line["applied"]) for line in sums),
        "round_seconds": usual,
        "law": law(made, seen.losses),
        "verdicts": verdicts(made, sums) | {"undelivered": undelivered},
        "lost": why_lost(sums),
        "losses": [
            {"sums": loss.sums, "seasons": loss.seasons, "earlier_copy": loss.refusal.partition("(")[2]}
            for loss in seen.losses
        ],
        "forgotten": sum(is_forgotten(line) for line in sums),
        "full_disk_codes": seen.full_ends,
        "stalls": {
            "limit": max(LATE, USUALLY * usual),
            "seconds": [seconds for seconds, _ in seen.stalls],
            "longest": max((seconds for seconds, _ in seen.stalls), default=0.0),
        },
        "ends": {how: max(seconds) for how, seconds in seen.ends.items()},
        "put_back": log.count(OUTSIDE),
        "ended_by_themselves": seen.ended,
        "level": level(seen.samples),
        "stores": growth(made, seen.samples),
    }
    return result | {"holds": holds(result)}


def holds(result: dict[str, Any]) -> bool:
    """Whether all requirements hold."""
    return (
        not result["law"]["degrees_differ"]
        and not result["law"]["latents_differ"]
        and not result["verdicts"]["disagree"]
        and not result["verdicts"]["twice"]
        and not result["lost"]["unknown"]
        and not result["put_back"]
        and not result["ended_by_themselves"]
        and all(REFUSED in loss["earlier_copy"] for loss in result["losses"] if loss["earlier_copy"])
        and set(result["full_disk_codes"]) <= {2}
        and result["stalls"]["longest"] <= result["stalls"]["limit"] + SLACK
        and all(life["level"] for life in result["level"].values())
    )
