"""What runs on a person's device imports NumPy, `cryptography` and nothing heavier."""

import subprocess
import sys

DEVICE = """
import sys
from importlib.machinery import PathFinder

ALLOWED = {"numpy", "cryptography", "fedgrec"} | set(sys.stdlib_module_names)

class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"a device has no {name}")

sys.meta_path.insert(0, OnlyThese())
try:
    import scipy
except ImportError:
    pass
else:
    raise SystemExit("the guard does not guard")

import numpy as np
import fedgrec.core, fedgrec.draws, fedgrec.kernels.reference
from fedgrec.config import FedGRecOptions
from fedgrec.methods.fedgrec import DEGREES, PROPAGATE, TRAIN, FedGRecMethod

for query in ("whole", "sampled"):
    options = FedGRecOptions(layers=2, dim=8, negatives=5, users_per_round=1, query=query)
    method = FedGRecMethod(options, n_items=20, n_users=1, kernel=fedgrec.kernels.reference)
    server = method.init(seed=1)
    me = method.init_users(np.array([7], np.uint64), np.array([0, 3]), np.array([2, 5, 11]))
    alone, start = np.array([0]), me.state.embeddings[0, 0].copy()
    for stage, level in [(DEGREES, 0), (PROPAGATE, 1), (PROPAGATE, 2), (TRAIN, 0), (TRAIN, 0)]:
        asked = method.ask(me, server.round) if stage is TRAIN else None
        upload, pending = method.local_update(me, stage, method.broadcast(server, stage, asked, level))
        spec = method.spec(stage)
        words = upload.to_ring(spec)
        server = method.apply(server, stage, type(upload).from_ring(words, spec, 1), level)
        method.commit(me, alone, pending)
    assert server.round == 2
    assert server.degrees.tolist() == [int(t in (2, 5, 11)) for t in range(20)]
    assert np.abs(server.items[1]).sum() > 0 and np.abs(server.items[2]).sum() > 0
    assert np.abs(me.state.embeddings[0, 0] - start).max() > 0.01
print("trained")
"""

LIGHT = """
import sys
import fedgrec
heavy = {"numba", "numpy", "scipy", "torch", "matplotlib", "pyarrow", "safetensors"} & set(sys.modules)
print(fedgrec.__version__, sorted(heavy))
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_device_with_only_numpy_and_cryptography_warms_up_and_trains() -> None:
    assert python(DEVICE) == "trained"


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert python(LIGHT).endswith("[]")


def test_help_imports_nothing_heavy() -> None:
    help_ = "import fedgrec.cli; fedgrec.cli.parser().format_help()"
    assert python(f"{help_}{LIGHT}").endswith("[]")
