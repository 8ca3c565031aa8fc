"""Law 5 with toy masks: what a secure sum of ring vectors decodes to is the plain integer sum, with any dropouts."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.core import Leaf, Rows, Upload, UploadSpec, finest_step
from fedgrec.errors import FedgrecError
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN
from tests.laws.worlds import Run, same, worlds


def masked_sum(vectors: list[np.ndarray], seed: int) -> np.ndarray:
    """The formula of the paper's preliminaries: every pair shares a mask that one adds and the other subtracts."""
    rng = np.random.default_rng(seed)
    masked = [v.copy() for v in vectors]
    for u in range(len(masked)):
        for v in range(u):
            mask = rng.integers(0, np.iinfo(masked[u].dtype).max, len(masked[u]), masked[u].dtype, endpoint=True)
            masked[u] += mask
            masked[v] -= mask
    return functools.reduce(lambda a, b: a + b, masked)


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
        secure = Upload.from_ring(masked_sum([u.to_ring(spec) for u in uploads], seed), spec, len(uploads))
        assert same(plain, secure, method, stage)


@given(users=st.integers(1, 60_000), clip=st.floats(1e-3, 1e3))
def test_the_step_is_the_finest_whose_sum_cannot_wrap(users, clip) -> None:
    step = finest_step(clip, users)
    assert np.log2(step) == round(np.log2(step))
    assert UploadSpec((Leaf("x", 1, 1, clip, step),), users).bits == 32
    assert clip / (step / 2) * users > 2**31 - 1


def spec_for(users: int) -> UploadSpec:
    return UploadSpec((Leaf("x", 2, 1, 1.0, finest_step(1.0, users)),), users)


def test_the_largest_sum_just_fits_and_one_user_more_is_refused() -> None:
    spec = spec_for(3)
    bound = spec.leaf("x").bound
    extreme = Upload({"x": Rows(np.arange(2), np.array([[bound], [-bound]], np.int32))}, 1)
    words = extreme.to_ring(spec) * np.uint32(3)
    assert Upload.from_ring(words, spec, 3).leaves["x"].values.ravel().tolist() == [3 * bound, -3 * bound]
    with pytest.raises(FedgrecError, match="sized for 3"):
        Upload.from_ring(words, spec, 4)
    with pytest.raises(FedgrecError, match="sized for 3"):
        (extreme + extreme + extreme + extreme).to_ring(spec)


def test_a_mask_of_the_wrong_sign_breaks_the_law() -> None:
    """Mutation: both of a pair add their mask."""
    spec = spec_for(2)
    words = [np.array([5, 7], np.uint32), np.array([1, 2], np.uint32)]
    mask = np.array([11, 13], np.uint32)
    wrong = (words[0] + mask) + (words[1] + mask)
    assert Upload.from_ring(masked_sum(words, 0), spec, 2).leaves["x"].values.ravel().tolist() == [6, 9]
    assert Upload.from_ring(wrong, spec, 2).leaves["x"].values.ravel().tolist() != [6, 9]
