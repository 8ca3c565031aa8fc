"""Law 12: the expected sum of rounded words is what users meant; and everybody counts in the same public steps."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable import draws
from fedgrec.cable.core import Leaf, quantize, travelling
from fedgrec.config.configuration import FedGRecOptions
from fedgrec.federation.common.packets import pack_broadcast, packed, unpack_broadcast, unpacked
from fedgrec.kernels import _draws_numba, cpu, reference
from fedgrec.methods.fedgrec import FedGRecMethod
from fedgrec.methods.fedgrec_uploads import SPREAD
from tests.laws.worlds import Run, World

LEAF = Leaf("items", rows=5, width=8, clip=20, step=1)
ITEMS = np.array([0, 3, 11, 40_980, 2**31 - 1])
KEYS = 4000


def rounded_sum(values: np.ndarray, steps: np.ndarray, shift=draws.shifts) -> np.ndarray:
    """What KEYS users, all of whom mean `values`, send in one round."""
    total = np.zeros(values.shape)
    for key in range(KEYS):
        words, _ = quantize(values, LEAF, np.dtype(np.int32), steps, shift(key * 7919, 3, ITEMS, LEAF.width))
        total += words * steps[:, None]
    return total


def far(total: np.ndarray, values: np.ndarray, steps: np.ndarray) -> float:
    """How many standard deviations a sum is from its expectation, at most: a word's is at most half a step."""
    return float((np.abs(total - KEYS * values) / (0.5 * steps[:, None] * np.sqrt(KEYS))).max())


def test_the_expected_sum_is_what_users_meant() -> None:
    rng = np.random.default_rng(0)
    values, steps = rng.normal(0, 0.3, (5, 8)), 2.0 ** rng.integers(-4, 1, 5)
    assert far(rounded_sum(values, steps), values, steps) < 5
    up = lambda *about: draws.shifts(*about) + 0.02  # noqa: E731
    assert far(rounded_sum(values, steps, up), values, steps) > 1.2  # a bias of a fiftieth of a step
    nearest = lambda *about: 0 * draws.shifts(*about)  # noqa: E731
    assert far(rounded_sum(values, steps, nearest), values, steps) > 20


def test_what_is_nothing_stays_nothing() -> None:
    words, cut = quantize(np.zeros((5, 8)), LEAF, np.dtype(np.int32), np.ones(5), np.full((5, 8), -0.5))
    assert not words.any()
    assert cut == 0


def test_every_kernel_draws_the_same_shifts() -> None:
    key = np.uint64(0x0123456789ABCDEF)
    clear = draws.shifts(int(key), 7, ITEMS, 8)
    word = draws.philox(key, 0, 0, 7, draws.Purpose.ROUNDING)[0].astype(np.int32)
    with np.errstate(over="ignore"):
        compiled = [[_draws_numba.rounding_shift.py_func(word, np.int64(t), j) for j in range(8)] for t in ITEMS]
    assert np.array_equal(np.array(compiled) * 2.0**-24, clear)


# --------------------------------------------------------------------------------------------------- steps


def small(**options) -> World:
    about = {"dim": 8, "negatives": 6, "users_per_round": 6, "fine_rounds": 2, "precision": "float64"} | options
    return World(np.random.default_rng(4).random((9, 20)) < 0.3, FedGRecOptions(**about), seed=1)


def test_a_step_holds_what_is_usual_and_is_a_power_of_two() -> None:
    run = Run.warmed_up(small()).train(3)
    steps, levels = run.method.row_steps(run.server), run.world.options.item_levels
    assert np.array_equal(np.exp2(np.round(np.log2(steps))), steps)
    present = np.clip(run.server.degrees * 6 / 9, 1 / 64, 1)  # six of nine users
    usual = np.sqrt(run.server.moment2.max(axis=1) / (1 - 0.999**3) / np.where(run.server.degrees > 0, present, 1))
    touched = usual > 0
    ratio = (SPREAD * usual / (levels * steps))[touched]
    assert ((ratio > 0.49) & (ratio <= 1)).all()
    run.server.moment2[5] = 0
    assert run.method.row_steps(run.server)[5] == 2.0  # 30 in 20 levels
    run.server.moment2[5] = 1e12  # liars push a row; its step is still no coarser than that of the clip
    assert run.method.row_steps(run.server)[5] == 2.0


@pytest.mark.parametrize("blind", [False, True])
def test_the_steps_of_a_rare_item_do_not_starve_it(blind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its one user comes every 64th round and always wants to move it by 1. Steps that ignore degrees would clip that,
    and then shrink with the clipped updates."""
    method = FedGRecMethod(FedGRecOptions(dim=1, users_per_round=1, precision="float64"), 1, 64)
    if blind:
        scales = FedGRecMethod.step_scales
        monkeypatch.setattr(FedGRecMethod, "step_scales", lambda self, degrees: scales(self, 64 * degrees))
    server, levels, beta2 = method.init(0), method.options.levels, method.options.beta2
    server.degrees[:] = 1
    server.moment2[:] = 1 / 64
    for server.round in range(20_000, 40_000):
        moved = min(1.0, levels * method.row_steps(server)[0]) if server.round % 64 == 0 else 0.0
        server.moment2 *= beta2
        server.moment2 += (1 - beta2) * moved**2
    largest = levels * method.row_steps(server)[0]
    assert largest < 0.01 if blind else largest >= 1


def test_two_users_who_read_other_steps_share_no_masks() -> None:
    run = Run.warmed_up(small()).train(3)
    broadcast = run.method.broadcast(run.server, run.method.training(3))
    other = replace(broadcast, more={"steps": broadcast.more["steps"] * np.where(np.arange(20) == 7, 2, 1)})
    assert broadcast.fingerprint() != other.fingerprint()


def test_the_first_rounds_are_fine_and_latents_travel_when_they_are_due() -> None:
    method = small(latents_every=4, users_per_round=1).method()  # 9 users: a turn is nine rounds
    kinds = [method.training(r) for r in range(40)]
    assert [kind.fine for kind in kinds] == [True] * 2 + [False] * 38
    due = [*range(9), 9, 11, 13, 15, 17, 20, 23, 26, 27, 31, 35, 39]
    assert [r for r, kind in enumerate(kinds) if not kind.lean] == due
    few = small(latents_every=4, users_per_round=400).method()  # 9 users, all of them in every round
    assert [r for r in range(12) if not few.training(r).lean] == [0, 1, 2, 3, 7, 11]


def test_words_of_few_levels_need_few_bits() -> None:
    method = FedGRecOptions(), 40_981, 29_858
    from fedgrec.methods.fedgrec import make

    spec = make(*method).spec(make(*method).training(100))
    assert [(leaf.name, bits) for leaf, (_, bits) in zip(spec.leaves, spec.rings, strict=True)] == [("items", 14)]


# ----------------------------------------------------------------------------------------------- downloads

TABLES = st.integers(0, 10**6).map(lambda seed: np.random.default_rng(seed).normal(0, 0.1, (2, 7, 5)))


@settings(max_examples=30, deadline=None)
@given(TABLES, st.sampled_from(["float32", "bfloat16", "int8", "int4"]), st.sampled_from(["float32", "float64"]))
def test_tables_arrive_as_the_server_knows_them(tables: np.ndarray, kind: str, precision: str) -> None:
    tables = tables.astype(precision)
    tables[0, 0] = 0
    sent = travelling(tables, kind)
    there = unpacked(packed(sent, kind), kind).astype(precision)
    assert np.array_equal(there, sent)
    bound = {"float32": 0.0, "bfloat16": 2.0**-8, "int8": 1 / 127, "int4": 1 / 7}[kind]
    assert (np.abs(sent - tables) <= bound * np.abs(tables).max(axis=-1, keepdims=True)).all()
    assert np.array_equal(travelling(sent, kind), sent)


@pytest.mark.parametrize("width", [1, 6, 7])
def test_two_numbers_of_four_bits_are_a_byte(width: int) -> None:
    tables = travelling(np.random.default_rng(0).normal(size=(1, 20, width)), "int4")
    arrays = packed(tables, "int4")
    assert arrays["tables"].nbytes == 20 * -(-width // 2)
    assert np.array_equal(unpacked(arrays, "int4"), tables)


def test_a_packed_broadcast_has_the_fingerprint_of_the_servers() -> None:
    for kind in ("float32", "bfloat16", "int8"):
        run = Run.warmed_up(small(download=kind, latents_every=20)).train(3)
        broadcast = run.method.broadcast(run.server, run.method.training(3))
        header, arrays = pack_broadcast(broadcast)
        assert unpack_broadcast(header, arrays).fingerprint() == broadcast.fingerprint()
        assert arrays["tables"].nbytes == 2 * 20 * 8 * {"float32": 8, "bfloat16": 2, "int8": 1}[kind]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["float32", "bfloat16", "int8"]), st.integers(1, 3))
def test_tables_are_combined_alike(seed: int, kind: str, layers: int) -> None:
    items = np.random.default_rng(seed).normal(size=(layers + 1, 11, 6))
    alphas = np.random.default_rng(seed + 1).random(layers + 1)
    items[:, 3] = 0
    slow, fast = (kernel.combine(items, alphas, kind, False) for kernel in (reference, cpu))
    np.testing.assert_allclose(slow, fast, rtol=1e-9, atol=1e-12)
    assert np.array_equal(fast[2:], travelling(items[:-1], kind))
    assert np.array_equal(fast[:2], cpu.combine(items, alphas, kind, True))
    if kind == "float32":
        np.testing.assert_allclose(slow[0], np.tensordot(alphas, items, 1))
        np.testing.assert_allclose(slow[1], np.tensordot(alphas[1:], items[:-1], 1))


def test_a_device_ranks_with_what_arrived_there() -> None:
    """The same scores from the server's tables and from those that travelled."""
    from fedgrec.cable.core import as_server

    run = Run.warmed_up(small()).train(5)
    arrived = as_server(run.method.broadcast(run.server, run.method.training(5)))
    assert np.array_equal(run.method.represent_items(run.server), run.method.represent_items(arrived))
    both = [run.method.represent_users(server, run.users) for server in (run.server, arrived)]
    assert np.array_equal(*both)
    without = replace(run.server, moment1=np.zeros((0, 0)), moment2=np.zeros((0, 0)))  # a model that was saved
    assert np.array_equal(run.method.represent_items(without), run.method.represent_items(run.server))
