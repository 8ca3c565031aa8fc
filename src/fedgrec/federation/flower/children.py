"""The processes that Flower's SuperLink starts for a run: one that looks for runs, and the app of a run.

They are Flower's own commands, made safe beside other accounts of this machine. The run's token is in their
environment, which only their account can read, and not among their arguments, which everybody can read. They know the
secret of this start. No error of the network ends them: the server ends them when it ends.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.retry import http_retry

from fedgrec.federation.flower.clients import AGAIN, Secret, connected, is_distrust
from fedgrec.federation.flower.superlink import CHILDREN, SECRET

LOOKS, RUNS = "flower-superexec", "flwr-serverapp"
COMMANDS = {  # each with the module that makes its client
    LOOKS: ("flwr.supercore.cli.flower_superexec", "flower_superexec", "flwr.supercore.superexec.run_superexec"),
    RUNS: ("flwr.superlink.cli.flwr_serverapp", "flwr_serverapp", "flwr.superlink.grid.http_grid"),
}
TOKEN, FLAG = "FEDGREC_RUN_TOKEN", "--token"
usual_patience = http_retry.make_simple_http_retry_invoker


def started(words: Sequence[str], **how: Any) -> "subprocess.Popen[bytes]":
    """Start Flower's command for a run through this module, with its token in the environment."""
    at = list(words).index(FLAG)
    command = [sys.executable, "-m", CHILDREN, *words[:at], *words[at + 2 :]]
    return subprocess.Popen(command, env={**os.environ, TOKEN: words[at + 1]}, **how)


def connected_as_a_part(
    kind: Any, server_address: str, insecure: bool, root_certificates: Any, interceptors: Any, retry_invoker: Any = None
) -> Any:
    """Our client of the SuperLink, in place of Flower's."""
    proofs = [*interceptors, Secret(os.environ[SECRET])]
    return connected(kind, server_address, root_certificates, proofs, retry_invoker)


def patience() -> Any:
    """Flower's rules for retries, except that no error of the network is final."""
    invoker = usual_patience()
    refused = invoker.should_giveup
    assert refused is not None
    invoker.should_giveup = lambda error: (
        refused(error) if isinstance(error, httpx.HTTPStatusError) else is_distrust(error)
    )
    invoker.recoverable_exceptions = (httpx.TransportError, httpx.HTTPStatusError)
    invoker.wait_gen_factory = lambda: (AGAIN for _ in iter(int, 1))
    return invoker


def main() -> None:
    """Run the Flower command that the first argument names."""
    command = sys.argv[1]
    module, name, client = COMMANDS[command]
    sys.argv[:2] = [command]
    setattr(ProtobufClient, "from_server_address", classmethod(connected_as_a_part))  # noqa: B010 (mypy)
    setattr(importlib.import_module(client), "make_simple_http_retry_invoker", patience)  # noqa: B010
    if command == RUNS:
        sys.argv += [FLAG, os.environ[TOKEN]]  # private: other accounts see the arguments of the start
    else:
        executor: Any = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
        executor.subprocess = SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL)
    getattr(importlib.import_module(module), name)()


if __name__ == "__main__":
    main()
