"""LightSecAgg (Yang et al. 2021): lost clients cost nothing, because only the sum of the survivors' masks is opened.

Client i uploads x_i + z_i. Before that, it cuts its mask z_i into U − T pieces, adds T random ones, and takes these U
as the values of a polynomial, element by element, at the places n + 1 .. n + U. Client j gets the value at place j:

    shares      [z̃_i]_j        for each j, encrypted                         any T of them say nothing about z_i
    answer      Σ_i [z̃_i]_j    over the survivors i                           any U of them give back Σ_i z_i

Both follow from Lagrange's formula, whose matrix is a Cauchy matrix up to factors of rows and columns, so that all its
square parts can be inverted: T coded pieces are the mask plus an invertible mixture of T random pieces, and U values
are a polynomial of degree U − 1. Uploads are safe even if T clients tell the server all that they hold. With 2U > n + T
they are also safe if the server lies: no two different sets of survivors get U answers.

A ring has 2ᵇ elements, but the code needs a field. So words are cut, as they lie in memory, into digits of 16 bits (a
byte is one digit), and each digit is a field element: 65,535 clients' digits add up to less than p, and the digits'
sums give the ring's sum. That at least doubles a vector's bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.secagg import field, ring
from fedgrec.secagg.client import Client
from fedgrec.secagg.errors import BadCiphertext, BadInput, MalformedMessage, NotASum, TooFewLeft
from fedgrec.secagg.field import PRIME, Elements
from fedgrec.secagg.keys import seed_mask
from fedgrec.secagg.messages import Coded, Delivery, Masked, Message, Neighbourhood, Shares
from fedgrec.secagg.server import Server
from fedgrec.secagg.session import Session, Stage

DIGIT_BITS = 16
LARGEST_DIGIT = 2**DIGIT_BITS - 1
MOST_CLIENTS = 65_535  # the digits of this many clients add up to less than p


def to_digits(words: ring.Words) -> NDArray[np.uint16]:
    """The 16-bit digits of little-endian words, lowest first, of all parts."""
    return np.concatenate([part.astype(f"<u{max(part.itemsize, 2)}").view("<u2") for part in words])


def from_digits(digits: NDArray[np.uint64], rings: ring.Rings) -> ring.Words:
    """Sums of digits → the sums of the words, in the ring; unsigned 64-bit arithmetic drops what the ring drops."""
    words, at = ring.zeros(rings), 0
    for part, (count, bits) in zip(words, rings, strict=True):
        shifts = np.arange(digits_a_word(bits), dtype=np.uint64) * np.uint64(DIGIT_BITS)
        here, at = digits[at : at + count * len(shifts)], at + count * len(shifts)
        part[:] = (here.reshape(count, -1) << shifts).sum(axis=1, dtype=np.uint64).astype(part.dtype)
    return words


def digits_a_word(bits: int) -> int:
    return max(8 * ring.container(bits).itemsize // DIGIT_BITS, 1)


def digits_of(session: Session) -> int:
    """Digits of a vector with its trailer."""
    return sum(count * digits_a_word(bits) for count, bits in session.parts)


class Code:
    """U pieces, of which T are random, coded for n clients: any U of the coded ones give the pieces back."""

    def __init__(self, clients: Sequence[int], needed: int, private: int, length: int, prime: int = PRIME) -> None:
        n, U, T = len(clients), needed, private
        if not 0 <= T < U:
            raise BadInput(f"T = {T} clients may put together what they hold, and U = {U} open the sum: T must be less")
        if n < U:
            raise TooFewLeft(f"{n} clients take part, fewer than the {U} needed")
        if n > MOST_CLIENTS or n + U >= prime:
            raise BadInput(f"{n} clients are too many for the field of {prime} elements")
        self.needed, self.open, self.length, self.prime = U, U - T, length, prime
        self.size = -(-length // self.open)  # elements of a piece
        self.place = {client: at for at, client in enumerate(sorted(clients), 1)}
        self._home = range(n + 1, n + U + 1)  # where the polynomial takes the uncoded pieces' values, mask first

    def encode(self, pieces: Elements) -> dict[int, Elements]:
        """[U, size] → for each client its coded piece, [size]."""
        matrix = field.lagrange(list(self.place.values()), self._home, self.prime)
        return dict(zip(self.place, field.product(matrix, pieces, self.prime), strict=True))

    def decode(self, coded: Mapping[int, Elements]) -> Elements:
        """U clients' coded pieces, or sums of them → the mask, or the sum of masks, [length]."""
        if len(coded) < self.needed:
            raise TooFewLeft(f"{len(coded)} clients answered, and {self.needed} are needed to open the sum")
        chosen = sorted(coded)[: self.needed]
        matrix = field.lagrange(self._home[: self.open], [self.place[client] for client in chosen], self.prime)
        pieces = field.product(matrix, np.stack([coded[client] for client in chosen]), self.prime)
        return pieces.ravel()[: self.length]


def code_for(session: Session, clients: Sequence[int]) -> Code:
    """The code of one round for these clients."""
    if session.neighbours < len(clients) - 1:
        raise BadInput(f"LightSecAgg needs the complete graph: {len(clients) - 1} neighbours, not {session.neighbours}")
    if session.lying_server and 2 * session.threshold <= len(clients) + session.privacy:
        raise BadInput(
            f"against a lying server LightSecAgg needs 2U > n + T: with {len(clients)} clients, of whom "
            f"{session.privacy} may collude, U must be more than {(len(clients) + session.privacy) // 2}, "
            f"not {session.threshold}"
        )
    return Code(clients, session.threshold, session.privacy, digits_of(session))


class LightClient(Client):
    """Shares coded pieces of its mask, and answers with a sum of those that it holds."""

    _code: Code

    def _share(self, message: Neighbourhood) -> Message:
        """Stage 1: cut the mask, code it, and give each client its piece."""
        self._meet(message)
        self._code = code_for(self.session, self._holders())
        code = self._code
        coded = code.encode(self._stream(code.needed * code.size).reshape(code.needed, code.size))
        self._held[self.me] = coded.pop(self.me).copy()  # a view would keep the pieces of all others in memory
        self.stage = Stage.MASKED
        return Shares(self.session.round_id, {to: self._seal(to, piece.tobytes()) for to, piece in coded.items()})

    def _stream(self, count: int) -> Elements:
        """Its random elements of this round: first the mask, then the T random pieces."""
        return field.uniform(seed_mask(self._mine().seed, self.session, self._bound), count, threads=self.threads)

    def _unpack(self, sender: int, plain: bytes) -> Elements:
        try:
            return field.read(plain, self._code.size)
        except MalformedMessage as error:
            raise BadCiphertext(f"client {sender} sent client {self.me} no coded piece of a mask: {error}") from error

    def _mask(self, message: Delivery) -> Message:
        """Stage 2: take the others' pieces in, and add this client's mask to the vector."""
        self._take_in(message)
        digits = to_digits(self._vector())
        masked = (digits + self._stream(len(digits)).astype(np.uint64)) % PRIME
        return Masked(self.session.round_id, masked.astype("<u4").tobytes())

    def _reveal(self, alive: set[int], dropped: set[int]) -> Message:
        """Stage 4: the sum of the survivors' pieces; once, and of no fewer than U."""
        total = np.zeros(self._code.size, np.uint64)
        for owner in alive:
            total += self._held[owner]
        self.abandon()
        return Coded(self.session.round_id, (total % PRIME).astype("<u4").tobytes())


class LightServer(Server):
    """Adds up masked vectors, and subtracts the sum of the masks in one step, however many clients were lost."""

    answers: Mapping[Stage, type[Message]] = {**Server.answers, Stage.UNMASK: Coded}

    def __init__(self, session: Session, *more: Any, **named: Any) -> None:
        super().__init__(session, *more, **named)
        # Digits under their masks; 65,535 sums of 32 bits fit 64, so the remainder can wait until the end.
        self._digits = np.zeros(digits_of(session), np.uint64)
        self._code: Code
        self._coded: dict[int, Elements] = {}

    def _close_keys(self) -> dict[int, Message]:
        self._code = code_for(self.session, sorted(self._keys))
        return super()._close_keys()

    def _take(self, sender: int, message: Message) -> None:
        if isinstance(message, Coded):
            self._take_coded(sender, message)
        else:
            super()._take(sender, message)

    def _take_masked(self, sender: int, message: Masked) -> None:
        self._digits += self._elements(sender, message, len(self._digits))
        self._alive.add(sender)

    def _take_coded(self, sender: int, message: Coded) -> None:
        piece = self._elements(sender, message, self._code.size)
        if len(self._coded) < self.session.threshold:  # more would only take memory
            self._coded[sender] = piece

    @staticmethod
    def _elements(sender: int, message: Masked, count: int) -> Elements:
        try:
            return field.read(message.vector, count)
        except MalformedMessage as error:
            raise MalformedMessage(f"client {sender} sent {type(message).__name__}, but {error}") from None

    def _close_unmask(self) -> dict[int, Message]:
        """Subtract the sum of the survivors' masks from the sum of their vectors."""
        masks = self._code.decode(self._coded)
        digits = (self._digits + (PRIME - masks.astype(np.uint64))) % PRIME
        if int(digits.max()) > len(self._alive) * LARGEST_DIGIT:
            raise NotASum("the opened sum is noise: clients did not all answer for the same survivors")
        return self._finish(from_digits(digits, self.session.parts))
