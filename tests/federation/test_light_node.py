"""A node needs NumPy, `cryptography`, `safetensors` and the standard library, and starts quickly."""

import subprocess
import sys

from tests.federation.living import Life
from tests.waits import seconds

NODE = """
import sys

ALLOWED = {"numpy", "cryptography", "safetensors", "fedgrec", "_cffi_backend", "cffi"} | set(sys.stdlib_module_names)

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

from pathlib import Path
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node.folder import open_node
from fedgrec.federation.node.node import handle
from fedgrec.federation.node.person import recommend

folder = Path(sys.argv[1])
answer = handle(folder, Packet("hello", {"federation": open_node(folder).federation}, {"nonce": bytes(32)}), {})
assert answer.kind == "hello", answer
print(len(answer.arrays["tags"]), len(recommend(folder, "0/0", 3)[0]))
"""


def test_a_node_answers_and_recommends_with_numpy_cryptography_and_safetensors_alone(life: Life) -> None:
    command = [sys.executable, "-W", "error", "-c", NODE, str(life.world.nodes[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds(60))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6", "3"]
