"""Sums and an exponential in PyTorch whose every bit is a function of the numbers alone, not of the batch around them.

A library may add in an order that follows from a tensor's shape, and treat a row's last elements unlike the others.
These functions use only elementwise operations that round once (+, −, ·, /), in trees whose shape follows from an
element's own place. So a user's sums are the same alone, beside other users and under any padding.
"""

import math

import torch
from torch import Tensor


def added_up(x: Tensor) -> Tensor:
    """Σ over the rows, neighbours first; rows of zeros at the end change nothing.  # [S, L, d] → [S, d]"""
    while x.shape[1] > 1:
        half, odd = divmod(x.shape[1], 2)
        pairs = x.new_empty(x.shape[0], half + odd, x.shape[2])
        torch.add(x[:, 0 : 2 * half : 2], x[:, 1 : 2 * half : 2], out=pairs[:, :half])
        if odd:
            pairs[:, half] = x[:, -1]
        x = pairs
    # + 0 turns −0 into 0, as padding may have done already.
    return x[:, 0] + 0.0 if x.shape[1] else x.new_zeros(x.shape[0], x.shape[2])


def dots(rows: Tensor, vector: Tensor) -> Tensor:
    """Inner products of each user's rows with its vector.  # [S, L, d], [S, d] → [S, L]"""
    return across(rows * vector[:, None])


def lengths(x: Tensor) -> Tensor:
    """|x| of each row, see reference.length.  # [..., d] → [...]"""
    return (across(x * x) + torch.finfo(x.dtype).tiny).sqrt_()


def across(x: Tensor) -> Tensor:
    """Σ over the columns.  # [..., d] → [...]"""
    while x.shape[-1] > 1:
        half, odd = divmod(x.shape[-1], 2)
        halves = x[..., :half] + x[..., half : 2 * half]
        if odd:
            halves[..., 0] += x[..., -1]
        x = halves
    return x[..., 0]


def sums_by_partner(values: Tensor, partner: Tensor, n_partners: int) -> Tensor:
    """For each partner the sum of the values that met it.  # [S, n], [S, n] → [S, n_partners]

    Adding into shared places has no fixed order on a GPU. So values are sorted by partner, and a scan adds up each
    run: after its i-th step a value holds the last 2ⁱ of its run up to itself.
    """
    n, wanted = values.shape[1], torch.arange(n_partners, device=values.device)
    if not n:
        return values.new_zeros(len(values), n_partners)
    partner, order = partner.sort(dim=1, stable=True)
    values, shift = values.gather(1, order), 1
    while shift < n:
        earlier = torch.where(partner[:, shift:] == partner[:, :-shift], values[:, :-shift], 0)
        values = torch.cat([values[:, :shift], values[:, shift:] + earlier], dim=1)
        shift *= 2
    wanted = wanted.repeat(len(values), 1)
    last = (torch.searchsorted(partner, wanted, right=True) - 1).clamp(min=0)
    return torch.where(partner.gather(1, last) == wanted, values.gather(1, last), 0)


# ln 2 in two parts, of which n times the first is exact; the polynomial's degree; limits within which all is finite.
LN2 = {torch.float32: (0.693359375, -2.12194440e-4), torch.float64: (0.6931471803691238, 1.9082149292705877e-10)}
DEGREE = {torch.float32: 7, torch.float64: 13}
LIMITS = {torch.float32: (-87.0, 88.0), torch.float64: (-700.0, 700.0)}
EXPONENT = {torch.float32: (torch.int32, 127, 23), torch.float64: (torch.int64, 1023, 52)}


def exponential(x: Tensor) -> Tensor:
    """exp, to a few units in the last place: 2ⁿ·exp(r) with x = n·ln 2 + r."""
    x = x.clamp(*LIMITS[x.dtype])
    n = (x * (1 / math.log(2))).round()
    high, low = LN2[x.dtype]
    r = x - n * high - n * low
    fraction = torch.ones_like(r)
    for k in range(DEGREE[x.dtype], 0, -1):
        fraction = fraction * r * (1 / k) + 1.0
    whole, bias, bits = EXPONENT[x.dtype]
    return fraction * ((n.to(whole) + bias) << bits).view(x.dtype)
