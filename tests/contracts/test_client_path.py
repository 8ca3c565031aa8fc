"""What runs on a person's device imports NumPy, `cryptography` and nothing heavier."""

import subprocess
import sys

from fedgrec.config.options import METHODS
from tests.waits import seconds

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
from fedgrec.config.options import METHODS, method_module

for name in METHODS:
    module = method_module(name)
    method = module.make(module.Options(dim=8, users_per_round=2), 20, 2)
    if any(stage.combine != "sum" for stage in method.stages):
        continue  # a federation cannot run it
    server, users, both = method.init(seed=1), [], np.array([0])
    for key, items in ((7, [2, 5, 11]), (8, [2, 3])):
        users.append(method.init_users(np.array([key], np.uint64), np.array([0, len(items)]), np.array(items)))
    start = users[0].state.copy()
    plan = [*enumerate(method.stages), (0, method.stages[-1])]
    for level, stage in plan:
        level = level if stage.everyone else 0
        broadcast, spec, total = method.broadcast(server, stage, level=level), method.spec(stage), 0
        pendings = []
        for me in users:
            upload, pending = method.local_update(me, stage, broadcast)
            total = total + upload.to_ring(spec)
            pendings.append(pending)
        server = method.apply(server, stage, type(upload).from_ring(total, spec, 2), level)
        for me, pending in zip(users, pendings):
            method.commit(me, both, pending)
    assert server.round == 2, name
    moved = np.abs(users[0].state.embeddings - start.embeddings).max()
    assert moved > 1e-4 or name in ("spectral", "ordered", "ordered-parts"), name  # whose users remember nothing
    assert np.isfinite(method.scores(server, users[0])).all()
    print(name)
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


def test_a_device_with_only_numpy_and_cryptography_trains_every_method_that_a_federation_runs() -> None:
    trained = python(DEVICE).split()
    assert trained == [name for name in METHODS if not name.startswith("fedgnn")]  # a third party matches its users


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert python(LIGHT).endswith("[]")


def test_help_imports_nothing_heavy() -> None:
    help_ = "import fedgrec.cli; fedgrec.cli.parser().format_help()"
    assert python(f"{help_}{LIGHT}").endswith("[]")


def test_a_plain_simulation_needs_no_cryptography() -> None:
    """On a machine that only trains, such as one with a GPU, `cryptography` may be missing."""
    program = """
import sys
sys.modules["cryptography"] = None
from fedgrec.config.configuration import Config
from fedgrec.runs.simulation import Simulation
small = {"rounds": 2, "users_per_round": 3, "negatives": 4, "dim": 4, "kernel": "reference", "protocol": "paper"}
simulation = Simulation(Config().changed({"data": "demo", **small}, "test"))
simulation.warm_up()
simulation._round()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=seconds(120))
