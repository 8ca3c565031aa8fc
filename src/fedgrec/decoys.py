"""Decoys: what a user tells of each item is true only by chance (randomised response, Warner 1965).

    a user tells an item that is new to it with chance p = e^ε/(1 + e^ε), and any other with chance q = 1/(1 + e^ε)

What it has told it goes on telling; it trains on that, and every sum is computed from that. At home it ranks with what
it really has. So whatever is opened, in any number of sums, under whatever lies of a server, is at most e^ε times as
likely if the user has an item as if it has not: ε per interaction, for ever, with δ = 0.

A click that comes later is new once. The user then tells again of all items: of those that are new with chance p, and
of all others that it has not told, once more, with chance q. It does so whether it has new ones or not, so that even
that cannot be seen. A click that is taken back stays told: it is one decoy more.
"""

import math
import secrets

import numpy as np

from fedgrec.core import Ints


def false_share(epsilon: float) -> float:
    """q: the chance of telling an item that one has not, and of not telling one that is new."""
    return 1 / (1 + math.exp(epsilon))


def fresh_source() -> np.random.Generator:
    """A generator that the operating system's randomness seeds."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def told_next(told: Ints, new: Ints, n_items: int, epsilon: float, draw: np.random.Generator) -> Ints:
    """What a user tells from now on, who has told these items, and to whom these are new.  # sorted"""
    q = false_share(epsilon)
    asked = np.setdiff1d(new, told)
    answered = asked[draw.random(len(asked)) >= q]
    other = np.union1d(told, asked)  # all items but these may become decoys
    left = n_items - len(other)
    places = draw.choice(left, draw.binomial(left, q), replace=False, shuffle=False)
    decoys = places + np.searchsorted(other - np.arange(len(other)), places, side="right")
    found: Ints = np.sort(np.concatenate([told, answered, decoys]).astype(np.int64))
    return found
