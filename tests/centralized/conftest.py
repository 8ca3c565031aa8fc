"""One thread for PyTorch: on data this small its threads only get in the way of Numba's."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)
