"""PyTorch draws for users side by side what `fedgrec.cable.draws` draws for each; and what is said without PyTorch."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgrec.cable import draws
from fedgrec.errors import FedgrecError
from fedgrec.kernels.devices import gpu_is_there, place
from tests.waits import seconds

torch = pytest.importorskip("torch")
from fedgrec.kernels import _draws_torch  # noqa: E402

KEYS = np.array([0, 1, 0x0123456789ABCDEF, 2**63, 2**64 - 1], np.uint64)


def there(array: Any) -> Any:
    return torch.tensor(np.asarray(array).astype(np.int64))


@pytest.mark.parametrize("round_", [0, 7, 2**31])
def test_words_are_the_same(round_: int) -> None:
    found = _draws_torch.words(there(KEYS.view(np.int64)), 9, round_, draws.Purpose.PAIRS)
    assert found.tolist() == [draws.words(int(key), 9, 0, round_, draws.Purpose.PAIRS).tolist() for key in KEYS]


def test_shifts_are_the_same() -> None:
    items, words = np.array([0, 3, 40_980, 2**31 - 1]), torch.zeros(len(KEYS), 4, 6, dtype=torch.float64)
    found = _draws_torch.shifts(there(KEYS.view(np.int64)), 7, there(items).expand(len(KEYS), -1), words)
    assert found.tolist() == [draws.shifts(int(key), 7, items, 6).tolist() for key in KEYS]


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
    pairs = _draws_torch.pairs(keys_there, 5, 300, counts_there)
    for u, (key, items) in enumerate(zip(keys.tolist(), mine, strict=True)):
        expected = draws.negatives(key, 5, 300, items, n_items)
        assert negatives[u, : len(expected)].tolist() == expected.tolist()
        sample = draws.positives_sample(key, 5, len(items), cap)
        assert chosen[u, : len(sample)].tolist() == sample.tolist()
        assert pairs[u].tolist() == draws.pairs(key, 5, 0, 300, len(items)).tolist()


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_permutations_of_any_sizes_side_by_side_are_the_same(sizes: list[int], seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 2**64, len(sizes), dtype=np.uint64)
    found = _draws_torch.permuted(40, there(sizes), there(keys.view(np.int64)), 7, draws.Purpose.NEGATIVES)
    for row, size, key in zip(found.tolist(), sizes, keys.tolist(), strict=True):
        count = min(size, 40)
        assert row[:count] == draws.permuted(count, size, key, 7, draws.Purpose.NEGATIVES).tolist()


# ---------------------------------------------------------------------------------------------- sentences


@pytest.mark.skipif(gpu_is_there(), reason="there is a GPU")
def test_a_missing_gpu_is_said() -> None:
    with pytest.raises(FedgrecError, match="there is no GPU for device 'cuda'"):
        place("cuda")


def test_without_pytorch_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import fedgrec.kernels.rounds_torch"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds(60), check=False
    ).stderr
    last = said.strip().splitlines()[-1]
    assert "training on a GPU needs an optional package" in last
    assert last.endswith("pip install -c constraints.txt '.[torch]'")
