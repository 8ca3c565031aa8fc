"""The local steps of a cohort with all negatives' rows on the chip: `_resident.cu`, compiled for one engine.

It needs several local steps, BPR and a GPU whose thread blocks form clusters (compute capability 9.0, Hopper). There it
replaces `_steps_triton`, `_negatives_triton` and the negatives' part of `_triton.send`. Elsewhere those run.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch

from fedgrec.kernels._state_triton import Numbers, Reals, Tensors, Wholes
from fedgrec.options import FedGRecOptions

ROWS = 4  # of a thread
CAPABILITY = (9, 0)
CLUSTERS = (1, 2, 4, 8)  # blocks of a user; 8 is the most that every such GPU allows
Constants = dict[str, int | float | str]
Compile = Callable[[str, Constants, int], Any]  # source, what its names in capitals stand for, bytes of shared memory


@dataclass(frozen=True)
class Cut:
    """How many blocks share a user, and what a block may use: so much that one block fills a multiprocessor."""

    cluster: int = CLUSTERS[-1]
    threads: int = 512
    warp: int = 32
    shared: int = 227 * 1024

    def lanes(self, D: int) -> int:
        return max(D // 8, 4)

    def held(self, D: int) -> int:
        """Negatives that a cluster holds."""
        return self.cluster * self.threads // self.lanes(D) * ROWS

    def fixed(self, D: int, cap: int, real: int) -> int:
        """Bytes of shared memory without the state of positives: `Shared` of _resident.cu, term by term."""
        columns, owned = D // self.lanes(D), -(-cap // self.cluster)
        rows = (2 * ROWS + 1) * columns * self.threads
        vectors = (2 * (self.threads // self.warp) + 3 * self.cluster + 6) * D
        return (rows + vectors + cap + owned) * real + 8 * (cap + owned * self.cluster) + 1024

    def homes(self, D: int, cap: int, real: int) -> int:
        """Positives of a block whose state fits into shared memory; the scratch holds that of the others."""
        return min((self.shared - self.fixed(D, cap, real)) // self.home(D, real), -(-cap // self.cluster))

    def home(self, D: int, real: int) -> int:
        """Bytes of a positive's state, and of x as it arrived."""
        return 5 * D * real


def fits(o: FedGRecOptions, D: int, negatives: int, cap: int, cut: Cut) -> bool:
    """Whether this kernel supports these options."""
    known = o.loss == "bpr" and o.combine != "concat" and o.local_steps > 1 and o.precision == "float32"
    known = known and o.similarity == "inner" and not (o.popular_negatives or o.levels or o.combined)
    return known and cut.lanes(D) <= cut.warp and negatives <= cut.held(D) and cut.homes(D, cap, real=4) > 0


def can_run(device: torch.device) -> bool:
    """Whether the GPU has clusters, and PyTorch a way to compile for it."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= CAPABILITY
        and hasattr(torch.cuda, "_compile_kernel")
    )


def text(name: str) -> str:
    """A source that lies beside this module."""
    return resources.files("fedgrec.kernels").joinpath(name).read_text(encoding="utf-8")


def nvrtc(source: str, constants: Constants, shared: int) -> Any:
    """A kernel that PyTorch's own run-time compiler makes of the source."""
    from torch.utils import cpp_extension

    values = {name: f"real({value!r})" if isinstance(value, float) else value for name, value in constants.items()}
    head = "".join(f"#define {name} {value}\n" for name, value in values.items())
    home = cpp_extension.CUDA_HOME
    cpp_extension.CUDA_HOME = home or "none"  # PyTorch asks for a toolkit's headers, and this source includes none
    try:
        kernel = torch.cuda._compile_kernel(head + text("_cluster.cu") + source, "resident")
    finally:
        cpp_extension.CUDA_HOME = home
    kernel.set_shared_memory_config(shared)
    return kernel


class Resident:
    """The kernel of one engine."""

    def __init__(
        self, sizes: dict[str, int], numbers: Numbers, compile_: Compile = nvrtc, cut: Cut | None = None
    ) -> None:
        self.cut, self.S = cut or Cut(), sizes["S"]
        real = numbers.real.element_size()
        reals, wholes = Reals(*numbers.real.tolist()), Wholes(*numbers.whole.tolist())
        cap = wholes.most_positives
        homes = self.cut.homes(sizes["D"], cap, real)
        self.shared = self.cut.fixed(sizes["D"], cap, real) + homes * self.cut.home(sizes["D"], real)
        constants: Constants = {
            "REAL": "float" if real == 4 else "double", "CAP": cap,
            "THREADS": self.cut.threads, "CLUSTER": self.cut.cluster, "SHARED": self.shared, "HOMES": homes,
        }  # fmt: skip
        constants |= {name: int(value) for name, value in sizes.items()}
        constants |= {name.upper(): value for name, value in (reals._asdict() | wholes._asdict()).items()}
        self.kernel = compile_(text("_resident.cu"), constants, self.shared)

    def __call__(self, at: Tensors) -> None:
        """The local steps of all users of a round, and the negatives' part of what they send."""
        F, users, server, scratch, numbers = at
        arguments = [
            F.counter, F.first_round, F.sampled, F.counts, F.cut,
            users.indptr, users.gather, users.embeddings, users.moment1, users.moment2, users.steps,
            server.items, server.f, server.sums, scratch.rows, scratch.edges, scratch.partners, scratch.positives,
            numbers.alphas, numbers.rates, numbers.epsilons, numbers.unbias1, numbers.unbias2,
        ]  # fmt: skip
        grid, block = (self.S * self.cut.cluster, 1, 1), (self.cut.threads, 1, 1)
        self.kernel(grid=grid, block=block, args=arguments, shared_mem=self.shared)


def where_it_fits(o: FedGRecOptions, device: torch.device, sizes: dict[str, int], numbers: Numbers) -> Resident | None:
    """The kernel, if options and GPU allow it, in the smallest clusters that can hold a user."""
    if not can_run(device):
        return None
    shared = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    most = Wholes(*numbers.whole.tolist())
    cuts = [Cut(cluster, shared=shared) for cluster in CLUSTERS]
    fitting = (cut for cut in cuts if fits(o, sizes["D"], most.most_negatives, most.most_positives, cut))
    cut = next(fitting, None)
    if cut is None:
        return None
    try:
        return Resident(sizes, numbers, cut=cut)
    except (RuntimeError, OSError, ImportError) as error:
        why = (str(error).strip() or repr(error)).splitlines()[0]
        warnings.warn(f"local steps will run slower: the kernel for this GPU was not compiled ({why})", stacklevel=2)
        return None
