"""Flower at arm's length: one module names what is not public, and says so where a version of Flower lacks it."""

import ast
import importlib
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `deploy`", exc_type=ImportError)

from fedgrec import federation
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.flower import internals
from tests.attacks.test_power_cuts import in_a_process

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
FEDERATION = Path(federation.__file__).parent


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


def test_parts_of_a_server_start_without_sql() -> None:
    """SQLAlchemy takes as many seconds to import as all else. What stands in for Flower's stores has their names."""
    for module, name in internals.UNUSED.items():
        assert hasattr(importlib.import_module(module), name)
    parts = "internals.leave_out_sql(); internals.check(); import fedgrec.federation.flower.server_app"
    code = f"import sys; from fedgrec.federation.flower import internals; {parts}; print('sqlalchemy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


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
    where, name = "flwr.supernode.fleet_http_client", "FleetHttpClient"

    def start() -> str:
        """Start it in a process of its own that has imported nothing of ours yet."""
        delattr(importlib.import_module(where), name)
        for module in [module for module in sys.modules if module.startswith("fedgrec")]:
            del sys.modules[module]
        with redirect_stderr(io.StringIO()) as said:
            code = importlib.import_module("fedgrec.cli").main(["federation", "node", str(tmp_path)])
        return f"{code} {said.getvalue()}"

    ended, said = in_a_process(start)
    assert (ended, said[0]) == (0, "2"), said
    assert "this version of Flower" in said
    assert f"lacks {name} of {where}" in said
    assert "Traceback" not in said
