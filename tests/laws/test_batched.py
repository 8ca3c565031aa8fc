"""Laws 1 and 4 for the batched PyTorch kernel, its draws, and what it says when something is missing."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable import draws
from fedgrec.config.configuration import FedGRecOptions
from fedgrec.errors import FedgrecError
from fedgrec.methods.fedgrec import TRAIN
from tests.laws.test_sum_law import sum_law_holds
from tests.laws.test_twin_law import MUTANTS, at_full_scale, compare, state_error
from tests.laws.worlds import Run, World, with_options, worlds

torch = pytest.importorskip("torch")
from fedgrec.kernels import _draws_torch, _trees_torch, batched  # noqa: E402
from fedgrec.kernels.batched import Batched  # noqa: E402
from tests.waits import seconds  # noqa: E402

KERNEL = Batched()
ALONE = Batched(memory=1)  # every user in a batch of its own


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors here are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ------------------------------------------------------------------------------------- law 4: the twin


@settings(max_examples=60, deadline=None)
@given(worlds(precision="float64"))
def test_in_float64_the_twins_agree_to_the_ninth_digit(world: World) -> None:
    (slow, fast), (slow_pending, fast_pending), n = compare(world, KERNEL)
    assert np.abs(slow - fast).max(initial=0) <= n
    assert (slow != fast).sum() <= 2 + 0.01 * len(slow)
    assert state_error(slow_pending, fast_pending) < 1e-9
    assert slow_pending.clipped == fast_pending.clipped


@pytest.mark.parametrize("rule", ["symmetric", "mean"])
def test_in_float32_one_step_differs_by_one_integer_a_user(rule: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(worlds(precision="float32", local_steps=1, layers=3, message_passing=rule, item_optimizer="sgd"))
    def law(world: World) -> None:
        (slow, fast), pending, n = compare(at_full_scale(world), KERNEL)
        assert np.abs(slow - fast).max(initial=0) <= n
        assert state_error(*pending) < 1e-3

    law()


@settings(max_examples=30, deadline=None)
@given(worlds(precision="float32", local_steps=4, item_optimizer="adam", user_optimizer="adam"))
def test_in_float32_many_steps_agree_to_the_fourth_digit(world: World) -> None:
    (slow, fast), _, n = compare(world, KERNEL)
    assert np.abs(slow - fast).max(initial=0) <= 1e-4 * np.abs(slow).max(initial=0) + n


@pytest.mark.parametrize("optimizer", ["sum", "adam"])
def test_the_server_halves_agree(optimizer: str) -> None:
    rng = np.random.default_rng(0)
    options = FedGRecOptions(dim=8, negatives=20, users_per_round=30, server_optimizer=optimizer, precision="float64")
    world = World(rng.random((30, 40)) < 0.2, options, seed=1)
    slow, fast = Run.warmed_up(world).train(3), Run.warmed_up(world, world.method(KERNEL)).train(3)
    np.testing.assert_allclose(slow.server.items, fast.server.items, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(slow.server.moment2, fast.server.moment2, rtol=1e-9, atol=1e-30)


@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS)
def test_mutants_break_the_law(change: dict[str, Any]) -> None:
    def train(cohort: Any, weights: Any, broadcast: Any, latents: Any, o: Any, leaf: Any, dtype: Any) -> Any:
        return KERNEL.train(cohort, weights, broadcast, latents, replace(o, **change), leaf, dtype)

    mutant = SimpleNamespace(NAME="mutant", refresh=KERNEL.refresh, push=KERNEL.push, train=train)
    options = FedGRecOptions(
        latents_every=1, dim=8, negatives=12, users_per_round=9, l2=0.1, item_rate=0.05, precision="float64"
    )
    world = World(np.random.default_rng(4).random((9, 16)) < 0.5, options, seed=1)
    (_, honest, _), ((slow, fast), pending, _) = compare(world, KERNEL), compare(world, mutant)
    assert state_error(*honest) < 1e-9
    assert max(state_error(*pending), np.abs(slow - fast).max() / 1e3) > 1e-3


# -------------------------------------------------------------------------------------- law 1: the sum


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_split_and_order_gives_the_same_integers(data: Any) -> None:
    world = data.draw(worlds())
    order = np.asarray(data.draw(st.permutations(range(world.n_users))))
    cuts = data.draw(st.lists(st.integers(1, max(1, world.n_users - 1)), unique=True))
    assert sum_law_holds(world, world.method(KERNEL), order, cuts)


def bits(run: Run, kernel: Batched, users: np.ndarray) -> tuple[Any, dict[str, bytes]]:
    """The ring words of a round over these users, and their new state, to the bit."""
    method = run.world.method(kernel)
    upload, pending = method.local_update(run.users.take(users), TRAIN, method.broadcast(run.server, TRAIN))
    order = np.argsort(users)
    state = {name: value[order].tobytes() for name, value in vars(pending.state).items()}
    return upload.to_ring(method.spec(TRAIN)).tobytes(), state


@settings(max_examples=30, deadline=None)
@given(world=worlds(max_users=12, max_items=40))
def test_a_user_computes_the_same_bits_alone_and_in_any_company(world: World) -> None:
    run = Run.warmed_up(with_options(world, users_per_round=world.n_users))
    everyone = np.arange(world.n_users)
    assert bits(run, KERNEL, everyone) == bits(run, ALONE, everyone) == bits(run, KERNEL, everyone[::-1])


@pytest.mark.parametrize(("precision", "dim"), [("float32", 63), ("float64", 64)])
def test_uneven_users_compute_the_same_bits_in_any_batch(precision: str, dim: int) -> None:
    """At a size at which libraries would change the order in which they add."""
    rng = np.random.default_rng(5)
    share = rng.choice([0.01, 0.1, 0.6], 40)
    options = FedGRecOptions(
        dim=dim, negatives=300, users_per_round=40, local_steps=3, item_optimizer="adam", precision=precision
    )
    world = World(rng.random((40, 700)) < share[:, None], options, seed=2)
    run = Run.warmed_up(world, world.method(KERNEL))
    everyone, few, one = np.arange(40), Batched(memory=2**21), Batched(memory=2**14)
    results = [bits(run, kernel, everyone) for kernel in (KERNEL, few, one)]
    assert results[0] == results[1] == results[2]


def test_a_tree_that_follows_the_padding_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: add the second half of the rows to the first, and so on. Where that is depends on the other users."""
    from fedgrec.kernels import _steps_torch

    def halved(x: Any) -> Any:
        while x.shape[1] > 1:
            x = torch.cat([x, torch.zeros_like(x[:, : x.shape[1] % 2])], dim=1)
            x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
        return x.sum(1)

    rng = np.random.default_rng(0)
    options = FedGRecOptions(dim=8, negatives=70, users_per_round=8, local_steps=3, item_optimizer="adam")
    world = World(rng.random((8, 200)) < rng.choice([0.02, 0.6], 8)[:, None], options, seed=3)
    assert sum_law_holds(world, world.method(KERNEL), np.arange(8), [3])
    monkeypatch.setattr(_steps_torch, "added_up", halved)
    assert not sum_law_holds(world, world.method(KERNEL), np.arange(8), [3])


def test_any_number_of_threads_gives_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    world = World(rng.random((60, 300)) < 0.2, FedGRecOptions(negatives=200, users_per_round=60), seed=1)
    run = Run.warmed_up(world, world.method(KERNEL))
    results = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append(bits(run, KERNEL, np.arange(60)))
    assert results[0] == results[1] == results[2]


# ---------------------------------------------------------------------------------------- draws and sums

KEYS = np.array([0, 1, 0x0123456789ABCDEF, 2**63, 2**64 - 1], np.uint64)


def there(array: Any) -> Any:
    return torch.tensor(np.asarray(array).astype(np.int64))


@pytest.mark.parametrize("round_", [0, 7, 2**31])
def test_words_are_the_same(round_: int) -> None:
    found = _draws_torch.words(there(KEYS.view(np.int64)), 9, 3, round_, draws.Purpose.PAIRS)
    assert found.tolist() == [draws.words(int(key), 9, 3, round_, draws.Purpose.PAIRS).tolist() for key in KEYS]
    share = _draws_torch.feedback(there(KEYS.view(np.int64)), round_, 50, 0.3)
    assert share.tolist() == [draws.feedback(int(key), round_, 50, 0.3).tolist() for key in KEYS]


def test_all_draws_of_uneven_users_are_the_same() -> None:
    """Users side by side, each with a size of its own, down to nothing and up to everything."""
    rng, n_items, cap = np.random.default_rng(3), 40_981, 60
    counts = np.array([0, 1, 2, 59, 60, 61, 3_000, n_items - 1, n_items])
    mine = [np.sort(rng.choice(n_items, count, replace=False)) for count in counts]
    keys = rng.integers(0, 2**64, len(counts), dtype=np.uint64)
    table = np.zeros((len(counts), n_items), np.int64)
    for row, items in zip(table, mine, strict=True):
        row[: len(items)] = items
    keys_there, counts_there = there(keys.view(np.int64)), there(counts)
    negatives = _draws_torch.negatives(keys_there, 5, 300, there(table), counts_there, n_items)
    chosen = _draws_torch.positives_sample(keys_there, 5, counts_there, cap)
    pairs = _draws_torch.pairs(keys_there, 5, 2, 300, counts_there)
    for u, (key, items) in enumerate(zip(keys.tolist(), mine, strict=True)):
        expected = draws.negatives(key, 5, 300, items, n_items)
        assert negatives[u, : len(expected)].tolist() == expected.tolist()
        sample = draws.positives_sample(key, 5, len(items), cap)
        assert chosen[u, : len(sample)].tolist() == sample.tolist()
        assert pairs[u].tolist() == draws.pairs(key, 5, 2, 300, len(items)).tolist()


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_permutations_of_any_sizes_side_by_side_are_the_same(sizes: list[int], seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**64, len(sizes), dtype=np.uint64)
    found = _draws_torch.permuted(40, there(sizes), there(keys.view(np.int64)), 7, draws.Purpose.NEGATIVES)
    for row, size, key in zip(found.tolist(), sizes, keys.tolist(), strict=True):
        count = min(size, 40)
        assert row[:count] == draws.permuted(count, size, key, 7, draws.Purpose.NEGATIVES).tolist()


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_trees_add_up_and_padding_leaves_them_as_they_are(precision: str) -> None:
    rng, tiny = np.random.default_rng(0), 8 * np.finfo(precision).eps
    x = torch.tensor(rng.standard_normal((3, 77, 5)).astype(precision))
    total = _trees_torch.added_up(x)
    np.testing.assert_allclose(total, x.numpy().astype(float).sum(1), rtol=0, atol=77 * tiny)
    wide = torch.cat([x, torch.zeros(3, 203, 5, dtype=x.dtype)], dim=1)
    assert torch.equal(_trees_torch.added_up(wide), total)
    np.testing.assert_allclose(_trees_torch.dots(x, total), np.einsum("sld,sd->sl", x, total), atol=99 * tiny)
    partner, values = torch.tensor(rng.integers(0, 6, (3, 77))), x[..., 0]
    by = _trees_torch.sums_by_partner(values, partner, 7)
    expected = [[values[s][partner[s] == j].sum().item() for j in range(7)] for s in range(3)]
    np.testing.assert_allclose(by, expected, rtol=0, atol=77 * tiny)


@pytest.mark.parametrize(("precision", "digits"), [("float32", 3e-7), ("float64", 6e-16)])
def test_the_exponential(precision: str, digits: float) -> None:
    x = np.linspace(-80, 80, 100_001).astype(precision)
    np.testing.assert_allclose(_trees_torch.exponential(torch.tensor(x)), np.exp(x.astype(np.longdouble)), rtol=digits)
    far = _trees_torch.exponential(torch.tensor(np.array([-1e9, 1e9, np.inf, np.nan], precision)))
    assert 0 <= far[0] < 1e-37
    assert 1e38 < far[1] == far[2] < np.inf
    assert far[3].isnan()


# ---------------------------------------------------------------------------------------------- sentences


def test_what_diverged_is_said() -> None:
    world = World(np.ones((3, 5), bool), FedGRecOptions(dim=4, users_per_round=3, loss="mse", item_rate=1e38), seed=1)
    method = world.method(KERNEL)
    run = Run.warmed_up(world, method)
    with pytest.raises(FedgrecError, match="'items' is not finite: training diverged; lower the learning rates"):
        run.train(1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(FedgrecError, match="there is no GPU for device 'cuda'"):
        Batched("cuda")


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(batched, "rounded", full)
    world = World(np.ones((3, 5), bool), FedGRecOptions(dim=4, users_per_round=3), seed=1)
    with pytest.raises(FedgrecError, match="device 'cpu' is out of memory: free some of it"):
        Run.warmed_up(world, world.method(KERNEL))


def test_without_pytorch_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import fedgrec.kernels.batched"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds(60), check=False
    ).stderr
    last = said.strip().splitlines()[-1]
    assert "the batched kernel needs an optional package" in last
    assert last.endswith("pip install -c constraints.txt '.[torch]'")


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@gpu
@settings(max_examples=30, deadline=None)
@given(world=worlds(max_users=12, max_items=40))
def test_a_gpu_computes_the_same_bits_as_a_cpu(world: World) -> None:
    run = Run.warmed_up(with_options(world, users_per_round=world.n_users))
    everyone = np.arange(world.n_users)
    assert bits(run, Batched("cuda"), everyone) == bits(run, KERNEL, everyone)
