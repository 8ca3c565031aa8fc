"""What a masked vector shows: nothing. It looks random whatever it hides, alone and together with others."""

import itertools
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray
from scipy import stats

from fedgrec.secagg import Client, Stage, prg, ring, shamir
from fedgrec.secagg import client as client_module
from fedgrec.secagg.client import Secrets
from fedgrec.secagg.keys import pair_mask
from fedgrec.secagg.messages import Keys, Masked, parse
from tests.secagg.rounds import Round, random_vectors, session

VALUES = 2**16
ALARM = 1e-10  # chance of a false alarm in each test on random words; some thousand of them run here
WIDTHS = [8, 10, 12, 14, 16, 20, 32, 46, 64]


def looks_random(words: NDArray, width: int = 0) -> bool:
    """Chi-square tests of the bytes at each place of a word, of each bit, and of each bit against the next word's.

    Only a word's `width` low bits are tested; the bits above are zero.
    """
    n, width = len(words), width or 8 * words.itemsize
    octets = words.view(np.uint8).reshape(n, -1)  # [n, bytes of a word]
    counts = np.stack([np.bincount(column, minlength=256) for column in octets.T[: width // 8]])  # [full bytes, 256]
    bits = np.unpackbits(octets, axis=1, bitorder="little")  # [n, bits of a word]
    if bits[:, width:].any():
        return False
    bits = bits[:, :width]
    flips = bits[1:] ^ bits[:-1]
    return bool(
        (((counts - n / 256) ** 2).sum(axis=1) * 256 / n < stats.chi2.isf(ALARM, 255)).all()
        and all(
            ((2 * tossed.sum(axis=0, dtype=float) - len(tossed)) ** 2 / len(tossed) < stats.chi2.isf(ALARM, 1)).all()
            for tossed in (bits, flips)
        )
    )


def upload(run: Round, me: int) -> NDArray:
    """This client's masked words, without the trailer."""
    message = parse(next(sent for sent in run.sent[me] if isinstance(parse(sent), Masked)))
    assert isinstance(message, Masked)
    return ring.unpack(message.vector, run.session.parts)[0]


def uploaded(vector: NDArray, bits: int = 32, n: int = 3) -> Round:
    """n clients that all upload this vector."""
    run = Round(session(n, len(vector), n, bits=bits), dict.fromkeys(range(n), vector))
    return run.until(Stage.UNMASK)


def uniformity_holds(bits: int) -> bool:
    """Uploads, their sums and differences look random, and so does a mask alone."""
    alone = ring.zeros(((VALUES, bits),))
    client_module.mask_parts(alone, [(os.urandom(16), 1)])
    seen, low = alone, np.array(2**bits - 1, ring.container(bits))
    for extreme in (0, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))):
        run = uploaded(np.full(VALUES, extreme), bits)
        one, two = upload(run, 0), upload(run, 1)
        assert max(one.max(), two.max()) <= low, "nothing travels above the ring"
        seen += [one, two, one - two, one + two]
    return all(looks_random(words & low, bits) for words in seen)


@pytest.mark.keep(7)
@pytest.mark.parametrize("bits", WIDTHS)
def test_uploads_look_random_whatever_they_hide(bits) -> None:
    assert uniformity_holds(bits)


def test_uploads_of_two_clients_are_uncorrelated() -> None:
    run = uploaded(np.arange(VALUES, dtype="i4"))
    centred = np.stack([upload(run, me) / 2**32 - 0.5 for me in range(3)] + [np.arange(VALUES) / VALUES - 0.5])
    correlations = np.corrcoef(centred)[np.triu_indices(4, 1)]  # of uploads with each other and with the input
    assert np.abs(correlations).max() < stats.norm.isf(ALARM) / VALUES**0.5


# ------------------------------------------------------------------- mutants that uniformity must see


def with_masks_cut_to(keep: int):
    """Mutation: the stream's words lose some of their bits before they are added."""

    def mask_parts(words, masks, threads=1):
        for key, sign in masks:
            drawn = [np.zeros_like(part) for part in words]
            prg.mask_parts(drawn, [(key, 1)])
            for part, full in zip(words, drawn, strict=True):
                mask = full & np.array(keep % 2 ** (8 * part.itemsize), part.dtype)
                np.add(part, mask if sign > 0 else -mask, out=part)

    return mask_parts


@pytest.mark.parametrize("bits", [32, 14])
@pytest.mark.parametrize("keep", [-2, "too few", 0], ids=["even numbers", "a bit less", "no masks"])
def test_a_mask_of_another_range_does_not_look_random(keep, bits, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "mask_parts", with_masks_cut_to(-1))
    assert uniformity_holds(bits)
    keep = 2 ** (bits - 1) - 1 if keep == "too few" else keep
    monkeypatch.setattr(client_module, "mask_parts", with_masks_cut_to(keep))
    assert not looks_random(upload(uploaded(np.zeros(VALUES, int), bits), 0), bits)
    assert not uniformity_holds(bits)


def test_a_stream_that_repeats_a_word_does_not_look_random(monkeypatch) -> None:
    """Mutation: each word of the stream serves twice, as with a ring of 64 bits filled from one of 32."""

    def mask_parts(words, masks, threads=1):
        for part in words:
            half = np.zeros(-(-len(part) // 2), part.dtype)
            prg.add_masks(half, masks)
            np.add(part, np.repeat(half, 2)[: len(part)], out=part)

    monkeypatch.setattr(client_module, "mask_parts", mask_parts)
    assert not uniformity_holds(32)


# -------------------------------------------------------------------------- why a client masks itself, too


def behind_pair_masks(values: int) -> tuple[NDArray, NDArray]:
    """What a server sees if it calls client 0 lost, opens its mask key and then gets its vector; and the vector."""
    run = Round(session(4, values, 3), random_vectors(4, values)).until(Stage.MASKED)
    run.give(0, run.inbox[0])  # sent, but late
    run.step(silent=[0])
    run.step()
    for me, message in run.inbox.items():
        run.server.receive(me, run.give(me, message))
    secret = shamir.combine(run.server._mask_keys[0], run.session.threshold)
    opened = X25519PrivateKey.from_private_bytes(secret.to_bytes(32, "big"))
    words = upload(run, 0).copy()
    for other in (1, 2, 3):
        keys = parse(run.sent[other][0])
        assert isinstance(keys, Keys)
        key, sign = pair_mask(opened, 0, keys.mask_key, other, run.session, run.server.bound)
        prg.add_masks(words, [(key, -sign)])
    return words.view("i4"), run.vectors[0].astype("i4")


def test_a_late_vector_stays_hidden_by_its_own_mask() -> None:
    seen, vector = behind_pair_masks(VALUES)
    assert looks_random(seen - vector)  # all that is left is the self mask


def test_without_its_own_mask_a_late_vector_is_bare(monkeypatch) -> None:
    """Mutation: no self mask."""
    masked = Client._masked
    monkeypatch.setattr(Client, "_masked", lambda self, masks: masked(self, []))
    seen, vector = behind_pair_masks(values=9)
    assert np.array_equal(seen, vector)


# ------------------------------------------------------------------------------ why nothing is used twice


def difference(round_ids: tuple[bytes, bytes]) -> bool:
    """Whether the difference of client 0's uploads in two rounds equals the difference of its vectors."""
    first, second = (
        Round(session(3, VALUES, 2, round_id=round_id), random_vectors(3, VALUES, seed=seed)).until(Stage.UNMASK)
        for seed, round_id in enumerate(round_ids)
    )
    seen = upload(first, 0) - upload(second, 0)
    hidden = (first.vectors[0] - second.vectors[0]).astype("<u4")
    assert np.array_equal(seen, hidden) != looks_random(seen - hidden)  # all or nothing
    return np.array_equal(seen, hidden)


def test_masks_used_twice_expose_the_difference(monkeypatch) -> None:
    """Fresh keys alone are enough, and so is a fresh round id; with neither, the masks are the same."""
    same, two = (os.urandom(16),) * 2, (os.urandom(16), os.urandom(16))
    assert not difference(two)
    assert not difference(same)
    reused = itertools.cycle([Secrets.fresh() for _ in range(3)])
    monkeypatch.setattr(Secrets, "fresh", lambda: next(reused))
    assert not difference(two)
    assert difference(same)
