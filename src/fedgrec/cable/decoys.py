"""Decoys: chance decides whether a user tells the truth about an item (randomised response, Warner 1965).

    a user tells an item that is new to it with chance p = e^ε/(1 + e^ε), and any other with chance q = 1/(1 + e^ε)

A told item stays told. A user trains on the items that it told, and every sum is computed from them. At home it ranks
with the items that it really has. So anything that a server sees, in any number of sums and with any lies, is at most
e^ε times as likely if the user has an item as if it does not: ε per interaction, for ever, with δ = 0.

A later click is new once. The user then draws again for all items that it has not told: it tells new ones with chance p
and all others with chance q. It does so even without new clicks, so that nobody sees whether there are any. A click
that is taken back stays told: it is one more decoy.
"""

import math
import secrets

import numpy as np

from fedgrec.cable.core import Ints


def false_share(epsilon: float) -> float:
    """q: the chance of telling an item that the user does not have, and of not telling one that is new."""
    return 1 / (1 + math.exp(epsilon))


def fresh_source() -> np.random.Generator:
    """A generator that the operating system's randomness seeds."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def next_told_items(told: Ints, new: Ints, n_items: int, epsilon: float, draw: np.random.Generator) -> Ints:
    """What a user tells from now on, given the items that it has told and those that are new to it.  # sorted"""
    q = false_share(epsilon)
    asked = np.setdiff1d(new, told)
    answered = asked[draw.random(len(asked)) >= q]
    other = np.union1d(told, asked)  # all items but these may become decoys
    left = n_items - len(other)
    places = draw.choice(left, draw.binomial(left, q), replace=False, shuffle=False)
    decoys = places + np.searchsorted(other - np.arange(len(other)), places, side="right")
    found: Ints = np.sort(np.concatenate([told, answered, decoys]).astype(np.int64))
    return found
