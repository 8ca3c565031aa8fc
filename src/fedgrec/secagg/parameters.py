"""How many neighbours k and which threshold t a round needs, after Bell et al. 2020.

Of n clients at most c are corrupt and at most d are lost, whoever they are; the circle of this round's graph is drawn
afterwards. A lying server may leave d honest ones out from the beginning (clients refuse to go on with fewer than
n − d). So of a client's k neighbours X ~ Hypergeometric(n − d − 1, c, k) are corrupt and
Y ~ Hypergeometric(n − 1, d, k) are lost. Three things can go wrong; each risk is summed over all clients:

    opened   both secrets of some honest client are opened:  X ≥ 2t − k, since an honest neighbour answers once, for one
             of the two, and a corrupt one for both
    cut      the honest survivors fall into two parts that no mask connects: on the circle that takes two gaps of k/2
             neighbouring places each; the server would learn two sums instead of one
    failed   fewer than t neighbours of some client are left: Y > k − t, and there is no sum

In a complete graph every client holds a share of every client's secrets, also of its own. There k stands for n, and no
risk is left to chance. The same is true of a sparse graph of up to SURE clients: there 2t − k exceeds c, and c + d are
too few for two gaps. A lying server can try many companies and round names until the graph suits it. In larger graphs
its 2ˣ tries turn a risk of 2⁻⁸⁰ into one of 2ˣ⁻⁸⁰.

A lying server could also send clients different lists of survivors: it could open one client's seed and its neighbours'
mask keys, only one secret of each client, and read a sum of one. So a client answers only when t of its holders have
signed that they were told the same. An honest client signs once.

A client is called alive in a list if the list says that its vector is in the sum. The others that shared secrets were
lost, or a server left their vectors out of the sum; a client cannot tell, and the arguments make no difference. Two
secrets of one client are never opened: t holders would have to open the one and t the other, at least t − X honest ones
each, which takes 2(t − X) ≤ k − X, so X ≥ 2t − k. So the vector of a client that is left out stays under its self mask,
although that client and others open its mask key.

In the complete graph all answer for the same list, because two lists with t signatures each have an honest signer in
common. So the server learns one sum. Honest clients see to it that this is a sum of `Session.fewest` vectors or more:
nothing else stops a server from leaving all others out.

In a sparse graph lists may differ from place to place, so a client opens seeds only if it is alive in its own list. It
also counts t neighbours that are alive there, more than half: so no gap on the circle parts the survivors. Suppose that
v was alive in its own list, and answered. Then at least t − X honest holders of v signed a list in which v is alive. To
open v's mask key, as many would have to answer for another list: X ≥ 2t − k again. So if a client's seed is opened, the
mask keys of the t − X honest clients that opened it stay closed, and their vectors are in the same sum. A client that
is not alive in its own list opens mask keys alone. For seeds, and for the gaps, it counts as one of the d lost.
"""

import math
from dataclasses import dataclass

from fedgrec.secagg.errors import BadInput

SMALL = 64  # up to this many clients the complete graph costs little; it withstands *any* losses up to n − t
DENSE = 128  # up to this many clients it is taken instead of a graph with more than half of its pairs
SURE = 400  # up to this many clients nothing is left to chance against a lying server
SECURITY = 80  # a chance of 2⁻⁸⁰ that a larger graph fails counts as none
NEVER = -math.inf  # log₂ of a chance of 0


@dataclass(frozen=True)
class Parameters:
    """Neighbours and threshold for a round, and the risks as powers of two: −40.0 is a chance of 2⁻⁴⁰."""

    clients: int
    corrupt: int  # at most
    dropped: int  # at most
    neighbours: int  # k; clients − 1: the complete graph
    threshold: int  # t
    opened: float
    cut: float
    failed: float

    @property
    def least(self) -> int:
        """The fewest clients that may take part. A server that may leave out more could choose the company."""
        return self.clients - self.dropped

    @property
    def broken(self) -> float:
        """The risk that secrets are opened or the graph is cut."""
        return add(self.opened, self.cut)


def choose(
    clients: int, corrupt: float = 0.05, dropped: float = 0.05, security: float = SECURITY, correctness: float = 30
) -> Parameters:
    """The fewest neighbours with which privacy is lost with a chance ≤ 2^−security, the round ≤ 2^−correctness.

    The complete graph is taken where it costs little more: everybody who is there helps to open the sum.
    `corrupt` and `dropped` are shares of the clients. It takes the middle one of the possible thresholds.
    """
    if clients < 2:
        raise BadInput(f"a secure sum needs two clients or more, not {clients}")
    if not 0 <= corrupt < 1 or not 0 <= dropped < 1:
        raise BadInput(f"shares of clients lie between 0 and 1, not at {corrupt} and {dropped}")
    c, d = (math.floor(share * clients + 1e-9) for share in (corrupt, dropped))  # 0.29 · 100 is 28.999…
    complete = _complete(clients, c, d)  # first: if it is not safe, nothing is
    if clients <= SMALL:
        return complete

    def sparse(k: int) -> Parameters | None:
        return _sparse(clients, k, c, d, security, correctness)

    # Doubling finds the size, and the search begins above the last k that was too small. (Rounding to whole numbers
    # makes the risks jagged in k, but never by half of k.)
    k = 2
    while k < clients - 1 and not sparse(k):
        k *= 2
    found = (sparse(k) for k in range(k // 2 // 2 * 2 + 2, min(k, clients - 2) + 1, 2))
    fewest = next((parameters for parameters in found if parameters), complete)
    return complete if clients <= DENSE and 2 * fewest.neighbours > clients else fewest


def withstands(
    clients: int, neighbours: int, threshold: int, corrupt: int, dropped: int, security: float = SECURITY
) -> bool:
    """Whether a lying server that has `corrupt` clients and may leave `dropped` others out learns only the sum."""
    if neighbours >= clients - 1:
        return 2 * threshold > clients + corrupt
    if clients <= SURE:
        return 2 * threshold - neighbours > corrupt and neighbours > corrupt + dropped
    return risks(clients, neighbours, threshold, corrupt, dropped).broken <= -security


def _complete(n: int, c: int, d: int) -> Parameters:
    least, most = (n + c) // 2 + 1, n - d
    if least > most:
        raise BadInput(
            f"with {c} of {n} clients corrupt and {d} lost no threshold is safe from a lying server: "
            f"it would have to be at least {least} and at most {most}"
        )
    return Parameters(n, c, d, n - 1, (least + most + 1) // 2, NEVER, NEVER, NEVER)


def _sparse(n: int, k: int, c: int, d: int, security: float, correctness: float) -> Parameters | None:
    """Parameters with exactly k neighbours, or None if no threshold is possible."""
    sure = n <= SURE
    if sure and k <= c + d:
        return None
    many_corrupt = c + 1 if sure else unlikely(n - d - 1, c, k, -security - math.log2(max(n - c, 1)))
    many_lost = unlikely(n - 1, d, k, -correctness - math.log2(n))
    least = max(k // 2 + 1, -(-(k + many_corrupt) // 2))
    most = k - many_lost + 1
    if least > most:
        return None
    found = risks(n, k, (least + most + 1) // 2, c, d)
    return found if sure or found.broken <= -security else None


def risks(clients: int, neighbours: int, threshold: int, corrupt: int, dropped: int) -> Parameters:
    """The risks of a sparse graph with these numbers, summed over all clients."""
    n, k, t = clients, neighbours, threshold
    opened = tail(n - dropped - 1, corrupt, k, 2 * t - k) + math.log2(max(n - dropped - corrupt, 1))
    failed = tail(n - 1, dropped, k, k - t + 1) + math.log2(n)
    return Parameters(n, corrupt, dropped, k, t, opened, gaps(n, k, corrupt + dropped), failed)


def gaps(n: int, k: int, removed: int) -> float:
    """log₂ of the expected number of pairs of gaps: k/2 removed places on the circle after one that is not removed.

    n(n − k − 1)/2 pairs of places may begin a pair; k given places are removed and 2 are not.
    """
    if removed < k or n - removed < 2 or n - k - 1 < 1:
        return NEVER
    pairs = math.log2(n * (n - k - 1) / 2)
    return pairs + (_ln_comb(n - k - 2, removed - k) - _ln_comb(n, removed)) / math.log(2)


def tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """log₂ P[X ≥ at_least] for X ~ Hypergeometric, the number of marked ones among those drawn."""
    total, drawn = NEVER, min(drawn, population)  # nobody can draw more than all
    for x in range(min(marked, drawn), max(at_least, drawn + marked - population, 0) - 1, -1):  # smallest terms first
        total = add(total, _term(population, marked, drawn, x))
    return min(total, 0.0)


def unlikely(population: int, marked: int, drawn: int, level: float) -> int:
    """The smallest x with log₂ P[X ≥ x] ≤ level."""
    total, drawn = NEVER, min(drawn, population)
    for x in range(min(marked, drawn), -1, -1):
        total = add(total, _term(population, marked, drawn, x))
        if total > level:
            return x + 1
    return 0


def add(a: float, b: float) -> float:
    """log₂(2^a + 2^b)."""
    low, high = sorted((a, b))
    return high if low == NEVER else high + math.log2(1 + 2.0 ** (low - high))


def _term(population: int, marked: int, drawn: int, x: int) -> float:
    """log₂ P[X = x]."""
    if drawn - x > population - marked:
        return NEVER
    ways = _ln_comb(marked, x) + _ln_comb(population - marked, drawn - x)
    return (ways - _ln_comb(population, drawn)) / math.log(2)


def _ln_comb(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
