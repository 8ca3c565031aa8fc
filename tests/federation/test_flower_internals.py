"""Flower at arm's length: one module names what is not public, and says so where a version of Flower lacks it."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec import federation
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.flower import internals

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
FEDERATION = Path(federation.__file__).parent
WITHOUT = """
import importlib, sys
delattr(importlib.import_module(sys.argv[1]), sys.argv[2])
from fedgrec.cli import main
sys.exit(main(["federation", "node", sys.argv[3]]))
"""


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, by statement or by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield ast.unparse(node.args[0]).strip("'\"")


def test_no_other_file_reaches_below_flowers_public_modules() -> None:
    found = {
        path.name: private
        for path in FEDERATION.rglob("*.py")
        if (private := {m for m in imported(path) if m.partition(".")[0] == "flwr" and m not in PUBLIC})
    }
    assert not found
    assert any(name in PUBLIC for name in imported(FEDERATION / "flower" / "records.py")), "the walk sees imports"


def test_this_flower_has_every_name() -> None:
    internals.check()


@pytest.mark.parametrize("name", ["FleetHttpClient", "superlink_uvicorn", "child_client", "push_messages"])
def test_a_name_that_is_gone_is_named_with_the_tested_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, reason = internals.NAMES[name]
    module, _, there = where.partition(":")
    *holders, last = (there or name).split(".")
    holder = importlib.import_module(module)
    for part in holders:
        holder = getattr(holder, part)
    monkeypatch.delattr(holder, last)
    for use in (lambda: getattr(internals, name), lambda: internals.replace(name, None), internals.check):
        with pytest.raises(FederationError) as refused:
            use()
        sentence = str(refused.value)
        assert f"lacks {there or name} of {module} ({reason})" in sentence
        assert f"pip install flwr=={internals.TESTED}" in sentence


def test_a_private_attribute_that_is_gone_is_named() -> None:
    with pytest.raises(FederationError, match="lacks _runtime_client of object"):
        internals.private(object(), "_runtime_client")


def test_a_node_ends_with_the_sentence(tmp_path: Path) -> None:
    gone = ["flwr.supernode.fleet_http_client", "FleetHttpClient"]
    command = [sys.executable, "-c", WITHOUT, *gone, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "this version of Flower" in done.stderr
    assert "lacks FleetHttpClient of flwr.supernode.fleet_http_client" in done.stderr
    assert "Traceback" not in done.stderr
