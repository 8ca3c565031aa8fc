"""Full ranking: rank every item that a user has not seen, exactly, in blocks of bounded memory."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedgrec.errors import FedgrecError
from fedgrec.models import metrics
from fedgrec.models.metrics import Ideal

Matrix = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Indptr = npt.NDArray[np.int64]
Rank = Callable[[npt.NDArray[np.int64], int, Indptr, Ids], Ids]  # users, k, the CSR of their seen items → [n, k]

# The scores that one thread holds at a time. More makes the matrix product no faster.
BLOCK_BYTES = 20 * 2**20
FEW = 64  # users for whom preparing the whole item table would take longer than ranking
HIDDEN_AT_ONCE = 2**26  # items that few candidates leave out, of some users at a time
CANDIDATES_STREAM = 29
ROWS_AT_ONCE = 4096  # of the item table that one thread multiplies with the vectors of few users
GROUP = 32  # items of which only the best counts where a list is bounded


class Csr(Protocol):
    """Who has which items: those of user u are `items[indptr[u]:indptr[u + 1]]`."""

    @property
    def indptr(self) -> Indptr: ...

    @property
    def items(self) -> Ids: ...


@dataclass(frozen=True)
class Judging:
    """How lists are judged, and among which items each user's are ranked: by default all that it has not seen.

    Candidates are drawn for each user among the items that it never had, beside its held-out ones. The draw depends on
    the seed, the user and how much it has seen: it is the same for every method, and not that of another part's.
    """

    topk: tuple[int, ...] = (20,)  # list lengths
    ndcg_ideal: Ideal = "capped"
    repeats: bool = False  # what a user has seen may be in its list again
    candidates: int = 0  # 0: all items
    seed: int = 0
    known: Csr | None = None  # all items that users have in the data, held out or not: needed for candidates

    @classmethod
    def of(cls, options: Any, seed: int, known: Csr) -> "Judging":
        """As the options of a run or a training say."""
        o = options
        return cls(o.topk, o.ndcg_ideal, o.repeats, o.candidates, seed, known)

    def lists(
        self, rank: Rank, users: npt.NDArray[np.int64], k: int, seen: Csr, held_out: Csr, n_items: int
    ) -> npt.NDArray[np.int32]:
        """The k best items of each user that may be in its list.  # [n, k]"""
        if not self.candidates:
            shown = np.zeros(len(users) + 1, np.int64), np.zeros(0, np.int32)
            return rank(users, k, *(shown if self.repeats else rows_of(seen, users)))
        some = np.array_split(users, -(-len(users) * n_items // HIDDEN_AT_ONCE))
        return np.concatenate([rank(part, k, *self._others(part, seen, held_out, n_items)) for part in some])

    def _others(self, users: npt.NDArray[np.int64], seen: Csr, held_out: Csr, n_items: int) -> tuple[Indptr, Ids]:
        """All items but each user's candidates and held-out items."""
        assert self.known is not None
        others = []
        for user in users.tolist():
            had, held = (part.items[part.indptr[user] : part.indptr[user + 1]] for part in (self.known, held_out))
            never, hidden = np.ones(n_items, bool), np.ones(n_items, bool)
            never[had] = never[held] = False
            left, before = np.flatnonzero(never), int(seen.indptr[user + 1] - seen.indptr[user])
            key = [self.seed, CANDIDATES_STREAM]
            draw = np.random.Generator(np.random.Philox(key=key, counter=[0, user, before, 0]))
            hidden[draw.choice(left, min(self.candidates, len(left)), replace=False)] = hidden[held] = False
            others.append(np.flatnonzero(hidden).astype(np.int32))
        return np.cumsum([0, *map(len, others)], dtype=np.int64), np.concatenate(others)


USUAL = Judging()


@dataclass(frozen=True)
class Result:
    """One evaluation."""

    metrics: dict[str, float]  # 'recall@20', 'ndcg@20' and the others of metrics.NAMES
    users: int  # how many users were scored: those with held-out items
    user_ids: npt.NDArray[np.int64]  # [users]
    per_user: dict[str, npt.NDArray[np.float64]]  # 'recall@20', 'ndcg@20', …: [users], for intervals


def evaluate(users: Matrix, items: Matrix, train: Csr, held_out: Csr, how: Judging = USUAL) -> Result:
    """Rank all items but the train items for each user with held-out items, and measure the lists.

    users: [M, d], items: [N, d]; a user's score for an item is the inner product of their rows.
    """
    for name, part in (("train", train), ("held-out", held_out)):
        if len(part.indptr) != len(users) + 1:
            raise FedgrecError(f"{len(users)} user rows, but {len(part.indptr) - 1} users in {name} data.")

    def rank(chosen: npt.NDArray[np.int64], k: int, indptr: Indptr, seen: Ids) -> Ids:
        return top_k(users[chosen], items, k, indptr, seen)[0]

    return evaluate_ranking(rank, len(items), train, held_out, how)


def evaluate_ranking(rank: Rank, n_items: int, train: Csr, held_out: Csr, how: Judging = USUAL) -> Result:
    """`evaluate` for any ranking function: the same users, the same masks, the same metrics."""
    from fedgrec.models._topk import find_hits

    if len(train.indptr) != len(held_out.indptr):
        raise FedgrecError(f"{len(train.indptr) - 1} users in train data, but {len(held_out.indptr) - 1} held out.")
    n_test = np.diff(held_out.indptr)
    scored = np.flatnonzero(n_test)
    if not scored.size:
        raise FedgrecError("No user has a held-out item, so there is nothing to evaluate: check the split.")
    ids = how.lists(rank, scored, min(max(how.topk), n_items), train, held_out, n_items)
    test = rows_of(held_out, scored)
    hits = np.empty(ids.shape, np.bool_)
    find_hits(ids, test[0], np.ascontiguousarray(test[1], np.int32), hits)
    n_test, degrees = n_test[scored], np.bincount(train.items, minlength=n_items)
    n_users = int(np.count_nonzero(np.diff(train.indptr)))

    per_user, overall = {}, {}
    for k in how.topk:
        here, shown = hits[:, :k], ids[:, :k]
        per_user[f"recall@{k}"] = metrics.recall(here, n_test)
        per_user[f"ndcg@{k}"] = metrics.ndcg(here, n_test, how.ndcg_ideal)
        per_user[f"hitrate@{k}"] = metrics.hit_rate(here, n_test)
        per_user[f"mrr@{k}"] = metrics.reciprocal_rank(here, n_test)
        per_user[f"map@{k}"] = metrics.average_precision(here, n_test)
        overall[f"coverage@{k}"] = metrics.coverage(shown, n_items)
        overall[f"popularity@{k}"] = metrics.popularity(shown, degrees)
        overall[f"novelty@{k}"] = metrics.novelty(shown, degrees, n_users)
    means = {name: metrics.mean(values) for name, values in per_user.items()}
    return Result(
        means | overall | _recall_of_groups(ids, hits, *test, degrees, how.topk), len(scored), scored, per_user
    )


def _recall_of_groups(
    ids: Ids, hits: npt.NDArray[np.bool_], indptr: Indptr, test: Ids, degrees: metrics.Ints, ks: Sequence[int]
) -> dict[str, float]:
    """Recall among each user's test items of one popularity group; a group without test items has none."""
    groups, n = metrics.popularity_groups(degrees), len(metrics.GROUPS)

    def counted(users: metrics.Ints, items: Ids) -> metrics.Ints:
        return np.bincount(n * users + groups[items], minlength=n * len(ids)).reshape(len(ids), n)

    n_test = counted(np.repeat(np.arange(len(ids)), np.diff(indptr)), test)  # [users, groups]
    users, ranks = np.nonzero(hits)
    found: dict[str, float] = {}
    for k in ks:
        here = ranks < k
        recall = metrics.ratio(counted(users[here], ids[users[here], ranks[here]]), n_test)
        names = zip(metrics.GROUPS, recall.T, n_test.sum(axis=0), strict=True)
        found |= {f"recall_{name}@{k}": metrics.mean(of_users) for name, of_users, there in names if there}
    return found


def _threads() -> ThreadPoolExecutor:
    from numba import get_num_threads

    return ThreadPoolExecutor(get_num_threads(), "rank")


@dataclass(frozen=True)
class Rough:
    """An item table in 8 bits: a quarter of the bytes to read. `errors` bound what that does to a score."""

    words: npt.NDArray[np.int8]  # [N, D]
    steps: npt.NDArray[np.float32]  # [N], of the words of a row
    errors: npt.NDArray[np.float32]  # [N]: a user of length 1 has no score that is further off
    pool: ThreadPoolExecutor = field(default_factory=_threads)  # kept: few lists are made in 20 ms

    @classmethod
    def of(cls, items: Matrix) -> "Rough":
        steps = np.maximum(np.abs(items).max(axis=1), np.finfo(np.float32).tiny) / 127
        words = np.rint(items / steps[:, None]).astype(np.int8)
        lost = np.linalg.norm(items - words * steps[:, None], axis=1)
        rounding = 1e-5 * np.linalg.norm(items, axis=1)  # of sums in float32
        return cls(words, steps.astype(np.float32), (lost + rounding).astype(np.float32))

    def hopeful(self, users: Matrix, places: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]] | None:
        """For each user the items that may be among so many best; None if a score is not finite."""
        from fedgrec.models._topk import products

        N, padded = len(self.words), np.zeros((-(-len(users) // 4) * 4, users.shape[1]), np.float32)
        padded[: len(users)] = users
        lengths = np.linalg.norm(padded, axis=1)[:, None]
        most = np.empty((len(padded), N), np.float32)  # of each score
        best = np.empty((len(padded), N // GROUP), np.float32)  # some item of a group has at least this score

        def bound(lo: int) -> bool:
            some = slice(lo, lo + ROWS_AT_ONCE)
            rows, group = self.words[some], lo // GROUP
            about, whole = np.empty((len(padded), len(rows)), np.float32), len(rows) // GROUP
            with np.errstate(all="ignore"):
                products(rows, padded, about)
                about *= self.steps[some]
                off = lengths * self.errors[some]
                np.add(about, off, out=most[:, some])
                about -= off
                groups = about[:, : whole * GROUP].reshape(len(padded), GROUP, whole)
                groups.max(axis=1, out=best[:, group : group + whole])
            return bool(np.isfinite(most[:, some]).all())

        if not all(list(self.pool.map(bound, range(0, N, ROWS_AT_ONCE)))):
            return None
        # As many groups as there are places have an item that reaches the floor, so what cannot reach it is in no list.
        floors = [
            np.partition(row, -k)[-k] if k <= len(row) else -np.inf
            for row, k in zip(best, places.tolist(), strict=False)
        ]
        return [np.flatnonzero(row >= floor) for row, floor in zip(most, floors, strict=False)]


def top_k(
    users: Matrix,
    items: Matrix,
    k: int,
    seen_indptr: Indptr,
    seen_items: Ids,
    block: int | None = None,
    rough: Rough | None = None,
) -> tuple[Ids, Matrix]:
    """Each user's k best unseen items, best first, ties to the lower id: (ids [n, k], scores [n, k]).

    A user with fewer than k unseen items has id −1 and score −inf in the empty places. A thread scores `block` users at
    a time, by default as many as fit BLOCK_BYTES; all threads together score up to FEW users. Scores are float32, as
    the matrix product rounds them. With `rough`, of these items, few users' lists are the same and take half the time.
    """
    from threadpoolctl import threadpool_limits

    if len(users) <= FEW and block is None:
        return _few(users, items, k, seen_indptr, seen_items, rough)
    seen = checked(users, items, k, seen_indptr, seen_items)
    columns = np.ascontiguousarray(items.T, dtype=np.float32)  # [d, N]: the layout that BLAS packs fastest

    def write(some: slice, scores: Matrix) -> None:
        np.matmul(users[some], columns, out=scores)

    # Each of our threads takes one block through product and scan. BLAS's own threads would spin between products and
    # hold the cores that the scan needs; that costs more time than the scan itself.
    with threadpool_limits(1, "blas"), _threads() as pool:
        return _scanned(write, len(items), k, *seen, pool.map, block)


def _few(
    users: Matrix, items: Matrix, k: int, indptr: Indptr, seen: Ids, rough: Rough | None = None
) -> tuple[Ids, Matrix]:
    """`top_k` that reads the item table once, all threads together, and looks at scores for what is not finite."""
    if users.ndim != 2 or items.ndim != 2 or users.shape[1] != items.shape[1]:
        checked(users, items, k, indptr, seen)

    def write(some: slice, scores: Matrix) -> None:
        def score(lo: int) -> None:
            with np.errstate(all="ignore"):  # half the time of users @ items.T
                scores[:, lo : lo + ROWS_AT_ONCE] = (items[lo : lo + ROWS_AT_ONCE] @ users[some].T).T

        list(pool.map(score, range(0, len(items), ROWS_AT_ONCE)))
        if not np.isfinite(scores).all():
            checked(users, items, k, indptr, seen)

    def write_best(some: slice, scores: Matrix) -> None:
        """Only scores of items that may be in a list; so many stand first that unseen ones fill it."""
        assert rough is not None
        hopeful = rough.hopeful(users[some], k + np.diff(indptr)[some])  # so many that unseen ones fill the list
        if hopeful is None:
            return write(some, scores)
        scores[:] = -np.inf
        for row, may, user in zip(scores, hopeful, users[some], strict=True):
            row[may] = items[may] @ user

    with one_blas_thread(), _threads() as pool:
        known = _checked_seen(len(users), len(items), k, indptr, seen)
        return _scanned(write if rough is None else write_best, len(items), k, *known, map)


def one_blas_thread() -> Any:
    """Within this block BLAS has one thread: its own would spin, and hold cores, after small products."""
    return _blas().limit(limits=1, user_api="blas")


@cache  # finding BLAS takes longer than a short list
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def top_k_scores(
    score: Callable[[slice], Matrix], n_items: int, k: int, seen_indptr: Indptr, seen_items: Ids
) -> tuple[Ids, Matrix]:
    """`top_k` for scores that are not inner products: `score(slice(lo, hi))` gives those of some users, [hi−lo, N]."""
    seen = _checked_seen(len(seen_indptr) - 1, n_items, k, seen_indptr, seen_items)

    def write(some: slice, scores: Matrix) -> None:
        scores[:] = found = score(some)
        if not np.isfinite(found).all():
            raise FedgrecError(
                f"Scores of users {some.start} … {some.stop - 1} are not finite: training diverged; lower its rate."
            )

    return _scanned(write, n_items, k, *seen, map)


def _scanned(
    write: Callable[[slice, Matrix], None],
    N: int,
    k: int,
    indptr: Indptr,
    items: Ids,
    run: Callable[..., Iterable[None]],
    block: int | None = None,
) -> tuple[Ids, Matrix]:
    """Block by block, as `run` maps over them: `write` puts some users' scores into a matrix, then the scan."""
    from fedgrec.models._topk import FOLD, LANES, PIECE, scan

    n, pieces, step = len(indptr) - 1, -(-N // PIECE), block or users_at_once(N)
    ids, top = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    mine = threading.local()  # a thread's matrix; its columns behind the last item stay −inf

    def rank(lo: int) -> None:
        hi = min(lo + step, n)
        if not hasattr(mine, "scores"):
            mine.scores = np.full((min(step, n), pieces, FOLD, LANES), -np.inf, dtype=np.float32)
        scores = mine.scores[: hi - lo]
        write(slice(lo, hi), scores.reshape(hi - lo, pieces * PIECE)[:, :N])
        scan(scores, indptr[lo : hi + 1], items, ids[lo:hi], top[lo:hi])

    list(run(rank, range(0, n, step)))  # list: waits, and passes errors on
    return ids, top


def users_at_once(n_items: int) -> int:
    """How many users' scores fit BLOCK_BYTES, laid out for the scan."""
    from fedgrec.models._topk import PIECE

    return max(16, BLOCK_BYTES // (4 * PIECE * max(-(-n_items // PIECE), 1)))


def checked(users: Matrix, items: Matrix, k: int, indptr: Indptr, seen: Ids) -> tuple[Indptr, Ids]:
    """Refuse bad arguments: the compiled scan does not check them."""
    if users.ndim != 2 or items.ndim != 2 or users.shape[1] != items.shape[1]:
        raise FedgrecError(f"Users {users.shape} and items {items.shape} need rows of the same length.")
    indptr, seen = _checked_seen(len(users), len(items), k, indptr, seen)
    # |score| ≤ ‖user‖·‖item‖, and so is every partial sum: if this is finite, so are all scores.
    bound = 1.0
    for name, rows in (("user", users), ("item", items)):
        norms = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
        if not np.isfinite(norms).all():
            row = int(np.flatnonzero(~np.isfinite(norms))[0])
            raise FedgrecError(f"The row of {name} {row} is not finite: training diverged; lower its rate.")
        bound *= norms.max(initial=0.0)
    if bound > np.finfo(np.float32).max:
        raise FedgrecError(f"Scores up to {bound:.0e} overflow float32: training diverged; lower its rate.")
    return indptr, seen


def places(k: int, n_items: int) -> int:
    """How long a list of k is: no longer than there are items."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise FedgrecError(f"A list of k = {k!r} items cannot be made: ask for a whole number, at least 1.")
    return min(int(k), n_items)


def _checked_seen(n_users: int, n_items: int, k: int, indptr: Indptr, seen: Ids) -> tuple[Indptr, Ids]:
    places(k, n_items)
    if len(indptr) != n_users + 1 or indptr[0] or indptr[-1] != len(seen) or (np.diff(indptr) < 0).any():
        raise FedgrecError(f"The indptr given does not describe {n_users} users and {len(seen)} pairs.")
    if seen.size and not 0 <= seen.min() <= seen.max() < n_items:
        raise FedgrecError(f"Seen items go from {seen.min()} to {seen.max()}, but there are {n_items} items.")
    return np.ascontiguousarray(indptr, np.int64), np.ascontiguousarray(seen, np.int32)


def rows_of(csr: Csr, users: npt.NDArray[np.int64]) -> tuple[Indptr, Ids]:
    """The CSR of these users alone."""
    starts, lengths = csr.indptr[users], np.diff(csr.indptr)[users]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)
    return indptr, csr.items[places]
