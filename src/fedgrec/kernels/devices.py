"""GPUs: whether there is one, how it is called. PyTorch is imported only where one is used."""

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedgrec.errors import FedgrecError, missing_extra


def gpu_is_there() -> bool:
    """Whether PyTorch has a GPU; quick without a driver, because PyTorch is not imported then."""
    if importlib.util.find_spec("torch") is None:
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    import torch

    return bool(torch.cuda.is_available())


def place(device: str) -> Any:
    """PyTorch's device of that name, if it is there and answers."""
    try:
        import torch
    except ImportError:
        raise missing_extra("a GPU", "torch") from None
    if device.startswith("cuda"):
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]  # says why it cannot, where is_available() only says no
        except (RuntimeError, AssertionError) as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise FedgrecError(f"there is no GPU for device {device!r} ({why}); use device 'cpu'") from None
    return torch.device(device)


@contextmanager
def within_memory(doing: str, lower: str, device: str = "cuda") -> Iterator[None]:
    """Turns a GPU's errors (memory too small, failure) into one sentence; does nothing on other devices."""
    if not device.startswith("cuda"):
        yield
        return
    import torch

    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        free, whole = (part / 2**30 for part in torch.cuda.mem_get_info())
        raise FedgrecError(
            f"{doing} needs more memory than the GPU has left ({free:.1f} of {whole:.1f} GB): lower {lower}, "
            f"or use --device cpu; checkpoints written before are intact"
        ) from error
    except torch.AcceleratorError as error:
        why = str(error).strip().splitlines()[0]
        raise FedgrecError(f"the GPU failed while {doing}: {why}; checkpoints written before are intact") from error
