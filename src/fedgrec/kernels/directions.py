"""What the server of `methods.spectral` computes from a sum, on the CPU or on a GPU."""

from typing import Any

import numpy as np

NOTHING = 1e-12  # a direction with less than this part of the strongest one's share is not in the graph


def directions(Z: Any, xp: Any = np) -> Any:
    """An orthonormal basis of the columns, the strongest direction first; zeros for directions that are not there.

    `xp`: numpy or torch, as Z is.
    """
    shares, turn = xp.linalg.eigh(Z.T @ Z)
    there = shares > NOTHING * xp.amax(shares) + np.finfo(float).tiny
    root = xp.where(there, shares, 1.0) ** 0.5
    return xp.flip(xp.where(there, Z @ turn / root, 0.0), (1,))
