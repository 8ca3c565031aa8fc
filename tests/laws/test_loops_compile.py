"""Triton's compiler accepts the GPU's loops: its interpreter, in which the laws run, accepts more."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgrec.kernels.devices import gpu_is_there
from tests.waits import seconds

ROOT = Path(__file__).parents[2]


def loops() -> dict[str, set[str]]:
    """Every function for the GPU, as module.name, and the bare names of what it calls."""
    found = {}
    for path in (ROOT / "src/fedgrec").rglob("*_triton.py"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
                found[f"{module}.{node.name}"] = {each.id for each in calls if isinstance(each, ast.Name)}
    return found


@pytest.mark.skipif(gpu_is_there(), reason="the laws are tested on the GPU itself")
@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_every_loop_compiles_for_a_gpu(tmp_path: Path, which: str) -> None:
    pytest.importorskip("triton")
    here = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    here |= {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.laws.compile_for_gpu", which]
    done = subprocess.run(
        command, cwd=ROOT, env=here, capture_output=True, text=True, check=False, timeout=seconds(300)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    known, compiled, reached = loops(), set(done.stdout.split()), set[str]()
    while reached != compiled:
        reached = compiled
        called = {call for name in reached for call in known[name]}
        compiled = reached | {name for name in known if name.rpartition(".")[2] in called}
    if which == "all":
        assert compiled == set(known)
    else:
        assert "fedgrec.kernels._steps_triton.user_step" in compiled
