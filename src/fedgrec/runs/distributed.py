"""One federation trained by several processes, on one machine or on many: `torchrun ... -m fedgrec train ...`.

Users are dealt out: of n processes the r-th has users r, r + n, r + 2n, ... and it alone holds and moves their state.
Every process draws the same cohort, computes what its own users send, and all add up the ring words: integers, so the
sum has the bits that it has in one process. Each then does the server's half for itself. All users' rows come together
only for ranking and saving, and the first process alone writes.
"""

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Broadcast, Cohort, Ints, Pending, Stage, Upload
from fedgrec.config.options import RunOptions
from fedgrec.errors import ConfigError, FedgrecError, RunError, missing_extra
from fedgrec.methods.contract import Method
from fedgrec.models.ranking import Ids, Indptr, Rank, users_at_once
from fedgrec.runs.sums import Sums, sums_for

T = TypeVar("T")
# How long a process waits for another: for the first to fetch the data, for all to end a round, for one that is dead
# in a way that its machine does not report.
PATIENCE = timedelta(minutes=10)
COPIED = {"", ".toml", ".json", ".safetensors"}  # what resuming reads of a run's folder
MEETING_POINT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process


class Ranks:
    """This process alone: it has all users, and needs nothing from other processes."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def own(self, users: Cohort) -> Cohort:
        """This process's users, out of everyone."""
        return users

    def local(self, users: Ints, arrived: Ints) -> tuple[Ints, Ints]:
        """This process's users of a sample, as positions among its own; and which of these arrived, by position."""
        return users, arrived

    def everyone(self, users: Cohort) -> Cohort:
        """All users, gathered from their processes."""
        return users

    def sums(self, options: RunOptions, threads: int) -> Sums:
        """How uploads are added up."""
        return sums_for(options, threads)

    def split(self, rank: Rank, n_items: int) -> Rank:
        """The same ranking, its work shared."""
        return rank

    def any(self, wish: bool) -> bool:
        """Whether some process wishes it."""
        return wish

    def shown(self, folder: Path) -> Path:
        """A folder with the files that the first process has in this one."""
        return folder

    def agree(self, about: str) -> None:
        """Refuses to train together where a process has other options or data than the first."""

    def in_turn(self, load: Callable[[], T]) -> T:
        """What `load` gives; the first process loads before all others, so that they find what it has fetched."""
        return load()


@contextmanager
def launched(patience: timedelta = PATIENCE) -> Iterator[Ranks]:
    """The processes among which torchrun started this one; else this one alone."""
    if not all(name in os.environ for name in MEETING_POINT) or int(os.environ["WORLD_SIZE"]) < 2:
        yield Ranks()
        return
    try:
        import torch.distributed as group
    except ImportError:
        raise missing_extra("training in several processes", "torch") from None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        group.init_process_group("gloo", timeout=patience)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise FedgrecError(
            f"process {rank} of {size} did not meet the others at {where}: start all of them, and see that they can "
            f"reach each other ({str(error).splitlines()[0]})"
        ) from None
    try:
        yield Processes(rank, size)
    finally:
        with suppress(RuntimeError):  # what failed was said already
            group.destroy_process_group()


@dataclass(frozen=True)
class Processes(Ranks):
    """This process, the `rank`-th of `size` that train together."""

    rank: int
    size: int

    # -------------------------------------------------------------------------------------------- users

    def own(self, users: Cohort) -> Cohort:
        return users.take(np.arange(self.rank, len(users), self.size))

    def local(self, users: Ints, arrived: Ints) -> tuple[Ints, Ints]:
        mine = users % self.size == self.rank
        place = np.cumsum(mine) - 1  # of each sampled user among the own ones
        return users[mine] // self.size, place[arrived[mine[arrived]]]

    def everyone(self, users: Cohort) -> Cohort:
        def all_of(rows: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate(self.gathered(rows))

        state = type(users.state)(*(all_of(getattr(users.state, f.name)) for f in fields(users.state)))
        indptr = np.concatenate([[0], np.cumsum(all_of(users.degrees))])
        targets, around = (None if part is None else all_of(part) for part in (users.targets, users.around))
        whole = Cohort(all_of(users.keys), indptr, all_of(users.items), state, targets, around)
        user = np.arange(len(whole))
        starts = np.cumsum([0] + [len(user[r :: self.size]) for r in range(self.size)])
        return whole.take(starts[user % self.size] + user // self.size)

    def sums(self, options: RunOptions, threads: int) -> Sums:
        if options.secure != "off":
            raise ConfigError("secure sums run in one process: leave out --secure, or start without torchrun")
        return SharedSums(options, threads, self)

    def split(self, rank: Rank, n_items: int) -> Rank:
        """Processes rank the same blocks as one would: a matrix product of another height may round differently."""

        def shared(users: NDArray[np.int64], k: int, indptr: Indptr, seen: Ids) -> Ids:
            block = users_at_once(n_items)
            n_blocks = -(-len(users) // block)
            lo, hi = (min(n_blocks * r // self.size * block, len(users)) for r in (self.rank, self.rank + 1))
            ids = np.zeros((len(users), k), np.int32)
            if lo < hi:
                here = indptr[lo : hi + 1]
                ids[lo:hi] = rank(users[lo:hi], k, here - here[0], seen[here[0] : here[-1]])
            return self.added(ids)

        return shared

    # --------------------------------------------------------------------------------- what is exchanged

    def added(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The sum over all processes of arrays of signed integers: the same bits in any order."""
        import torch
        import torch.distributed as group

        total = np.array(numbers)
        with self._in_contact():
            group.all_reduce(torch.from_numpy(total))
        return total

    def gathered(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """The rows of every process, by rank; only the number of rows may differ."""
        import torch
        import torch.distributed as group

        lengths = self.added(np.bincount([self.rank], [len(rows)], self.size).astype(np.int64))
        padded = np.zeros((int(lengths.max()), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        parts = [np.empty_like(padded) for _ in range(self.size)]
        if padded.nbytes:
            with self._in_contact():
                group.all_gather([torch.from_numpy(_bytes(part)) for part in parts], torch.from_numpy(_bytes(padded)))
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def broadcast(self, content: bytes) -> bytes:
        """What the first process says."""
        import torch
        import torch.distributed as group

        length = self.added(np.array([len(content) if self.first else 0]))
        heard = np.zeros(int(length[0]), np.uint8)
        if self.first:
            heard[:] = np.frombuffer(content, np.uint8)
        if len(heard):
            with self._in_contact():
                group.broadcast(torch.from_numpy(heard), 0)
        return heard.tobytes()

    def any(self, wish: bool) -> bool:
        return bool(self.added(np.array([wish], np.int32))[0])

    def agree(self, about: str) -> None:
        if self.broadcast(about.encode()) != about.encode():
            raise ConfigError(
                f"process {self.rank} of {self.size} has other options or data than the first: start all with the "
                f"same command on the same data"
            )

    def in_turn(self, load: Callable[[], T]) -> T:
        if self.first:
            loaded = load()
        self.any(False)
        return loaded if self.first else load()

    def shown(self, folder: Path) -> Path:
        """For other processes a copy, as long as they live: not every machine sees the run's folder."""
        found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in COPIED)
        files = list(found) if self.first else []
        names = json.loads(self.broadcast(json.dumps([path.relative_to(folder).as_posix() for path in files]).encode()))
        if self.first:
            for path in files:
                self.broadcast(path.read_bytes())
            return folder
        scratch = Path(tempfile.mkdtemp(prefix="fedgrec-"))
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        copy = scratch / folder.name
        for name in names:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(self.broadcast(b""))
        return copy

    @contextmanager
    def _in_contact(self) -> Iterator[None]:
        """Turns a closed connection, or a silence that lasts too long, into one error."""
        try:
            yield
        except RuntimeError:
            raise RunError(
                f"process {self.rank} of {self.size} lost another one: that one has ended (it may have said why) or "
                f"cannot be reached; the last checkpoint is whole: start all again with --resume"
            ) from None


class SharedSums(Sums):
    """The plain integer sum over the users of all processes."""

    def __init__(self, options: RunOptions, threads: int, ranks: Processes) -> None:
        super().__init__(options, threads)
        self.ranks = ranks

    def total(
        self, method: Method, stage: Stage, cohort: Cohort, broadcast: Broadcast, arrived: Ints | None = None
    ) -> tuple[Upload, Pending]:
        own, spec = cohort if arrived is None else cohort.take(arrived), method.spec(stage)
        words, pending = np.zeros(spec.size, spec.dtype), Pending(own.state)
        if len(own):
            upload, pending = method.local_update(own, stage, broadcast)
            words = upload.to_ring(spec)
        users, clipped, asked = self.ranks.added(np.array([len(own), pending.clipped, len(cohort)])).tolist()
        total = Upload.from_ring(self.ranks.added(words), spec, users)
        return self.noised(total, method, stage, broadcast, asked), Pending(pending.state, clipped)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)
