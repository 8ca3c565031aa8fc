"""Law 5: what a secure sum of dense vectors decodes to is the plain integer sum, with any dropouts.

With toy masks on real uploads; and through the real protocol on uploads as large as they may be.
"""

import functools
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable.core import Leaf, Rows, Upload, UploadSpec, finest_step
from fedgrec.errors import FedgrecError
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN
from fedgrec.secagg import Population, Session, ring, run_round
from fedgrec.secagg import Stage as SecureStage
from tests.laws.worlds import Run, same, worlds


def masked_sum(vectors: list[np.ndarray], spec: UploadSpec, seed: int, sign: int = -1) -> np.ndarray:
    """The formula of the paper's preliminaries: every pair shares a mask that one adds and the other subtracts.

    All modulo 2ᵇ, with b of each word's leaf, in Python's own integers.
    """
    rng, whole = np.random.default_rng(seed), [2**bits for values, bits in spec.rings for _ in range(values)]
    masked = [v.astype(object) for v in vectors]
    for u in range(len(masked)):
        for v in range(u):
            mask = rng.integers(0, 2**64, len(whole), np.uint64).astype(object)
            masked[u] = (masked[u] + mask) % whole
            masked[v] = (masked[v] + sign * mask) % whole
    total, half = functools.reduce(lambda a, b: a + b, masked), np.array(whole, object) // 2
    return ((total + half) % whole - half).astype(spec.dtype)


@settings(max_examples=30, deadline=None)
@given(world=worlds(), seed=st.integers(0, 1000), data=st.data())
def test_masked_sum_decodes_to_the_plain_sum(world, seed, data) -> None:
    method = world.method()
    run = Run.warmed_up(world)
    for stage, level in [(DEGREES, 0), (TRAIN, 0)] + [(PROPAGATE, k) for k in range(1, world.options.layers + 1)]:
        spec, broadcast = method.spec(stage), method.broadcast(run.server, stage, level=level)
        survivors = data.draw(st.sets(st.integers(0, world.n_users - 1), min_size=1, max_size=spec.users))
        uploads = [method.local_update(run.users.take(np.array([u])), stage, broadcast)[0] for u in sorted(survivors)]
        plain = functools.reduce(lambda a, b: a + b, uploads)
        secure = Upload.from_ring(masked_sum([u.to_ring(spec) for u in uploads], spec, seed), spec, len(uploads))
        assert same(plain, secure, method, stage)


@given(users=st.integers(1, 60_000), clip=st.floats(1e-3, 1e3))
def test_the_step_is_the_finest_whose_sum_cannot_wrap(users, clip) -> None:
    step = finest_step(clip, users)
    assert np.log2(step) == round(np.log2(step))
    assert UploadSpec((Leaf("x", 1, 1, clip, step),), users).rings == ((1, 32),)
    assert clip / (step / 2) * users > 2**31 - 1


def spec_for(users: int) -> UploadSpec:
    return UploadSpec((Leaf("x", 2, 1, 1.0, finest_step(1.0, users)),), users)


def test_the_largest_sum_just_fits_and_one_user_more_is_refused() -> None:
    spec = spec_for(3)
    bound = spec.leaf("x").bound
    extreme = Upload({"x": Rows(np.arange(2), np.array([[bound], [-bound]], np.int32))}, 1)
    words = extreme.to_ring(spec) * np.int32(3)
    assert Upload.from_ring(words, spec, 3).leaves["x"].values.ravel().tolist() == [3 * bound, -3 * bound]
    with pytest.raises(FedgrecError, match="sized for 3"):
        Upload.from_ring(words, spec, 4)
    with pytest.raises(FedgrecError, match="sized for 3"):
        (extreme + extreme + extreme + extreme).to_ring(spec)


def test_a_mask_of_the_wrong_sign_breaks_the_law() -> None:
    """Mutation: both of a pair add their mask."""
    spec = spec_for(2)
    words = [np.array([5, 7]), np.array([1, 2])]
    right, wrong = masked_sum(words, spec, 0), masked_sum(words, spec, 0, sign=1)
    assert Upload.from_ring(right, spec, 2).leaves["x"].values.ravel().tolist() == [6, 9]
    assert Upload.from_ring(wrong, spec, 2).leaves["x"].values.ravel().tolist() != [6, 9]


# --------------------------------------------------------------------------- words as small as the sum needs


@given(bound=st.integers(0, 2**40), users=st.integers(1, 2**24))
def test_a_ring_is_the_smallest_that_no_sum_wraps_in(bound, users) -> None:
    """Every number from −bound·users to bound·users has a word, in an even number of bits: at most two too many."""
    spec = UploadSpec((Leaf("x", 3, 2, bound, 1.0),), users)
    if bound * users >= 2**63:
        with pytest.raises(FedgrecError, match="overflow 64 bits"):
            _ = spec.rings
        return
    ((words, bits),) = spec.rings
    assert (words, bits % 2) == (6, 0)
    assert bound * users < 2 ** (bits - 1)
    assert bits == 8 or bound * users >= 2 ** (bits - 3)
    information = np.log2(2 * bound * users + 1)
    assert bits <= max(information + 2, 8)
    assert bits <= 9 / 8 * information or bits < 18
    assert spec.dtype == (np.int32 if bits <= 32 else np.int64)


@st.composite
def extreme_uploads(draw) -> tuple[UploadSpec, dict[int, Upload]]:
    """Leaves of different sizes and bounds; each user adds the largest numbers allowed, of either sign."""
    users = draw(st.integers(3, 6))
    shapes = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 40).map(lambda n: 2**n - 1))
    leaves = [Leaf(f"{n}", *shape, 1.0) for n, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=4)))]
    spec, same = UploadSpec(tuple(leaves), users), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def one(signs: np.random.Generator) -> Upload:
        tables = {f.name: f.bound * signs.choice([-1, 1], (f.rows, f.width)).astype(spec.dtype) for f in leaves}
        return Upload({name: Rows(np.arange(len(table)), table) for name, table in tables.items()}, 1)

    first = one(rng)
    return spec, {user: first if same else one(rng) for user in range(users)}


def through_the_protocol(spec: UploadSpec, uploads: dict[int, Upload], rings: ring.Rings) -> Upload | None:
    n = len(uploads)
    session = Session(os.urandom(16), rings, spec.users, n, n // 2 + 1)
    silent = {0: SecureStage.MASKED, 1: SecureStage.UNMASK} if n > 4 else {}
    outcome = run_round(session, lambda user: uploads[user].to_ring(spec), Population(range(n)), silent)
    kept = [uploads[user] for user in outcome.included]
    assert len(kept) == n - bool(silent)
    plain, total = functools.reduce(lambda a, b: a + b, kept), Upload.from_ring(outcome.values, spec, outcome.users)
    right = plain.users == total.users and (plain.to_ring(spec) == total.to_ring(spec)).all()
    return total if right else None


@settings(max_examples=40, deadline=None)
@given(drawn=extreme_uploads())
def test_the_largest_uploads_add_up_in_their_rings(drawn) -> None:
    spec, uploads = drawn
    assert through_the_protocol(spec, uploads, spec.rings) is not None


def test_a_ring_two_bits_too_small_gives_another_sum() -> None:
    """Mutation: each upload fits, and so does the leaf that keeps its ring; the sum of the other leaf wraps."""
    leaves = (Leaf("a", 2, 2, 1000.0, 1.0), Leaf("b", 3, 1, 1000.0, 1.0))
    spec = UploadSpec(leaves, 4)
    assert spec.rings == ((4, 14), (3, 14))
    tables = {leaf.name: Rows(np.arange(leaf.rows), np.full((leaf.rows, leaf.width), -1000)) for leaf in leaves}
    uploads = dict.fromkeys(range(4), Upload(tables, 1))
    total = through_the_protocol(spec, uploads, spec.rings)
    assert total is not None
    assert total.leaves["a"].values.tolist() == [[-4000, -4000]] * 2
    assert through_the_protocol(spec, uploads, ((4, 14), (3, 12))) is None
