"""The processes that Flower's SuperLink starts for a run: one that looks for runs, and the app of a run.

They are Flower's own commands, made safe beside other accounts of this machine. The run's token is in their
environment, which only their account can read, and not among their arguments, which everybody can read. They know the
secret of this start. No error of the network ends them: the server ends them when it ends.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx

from fedgrec.federation.flower import internals, parts
from fedgrec.federation.flower.clients import AGAIN, Secret, connected, is_distrust
from fedgrec.federation.flower.superlink import CHILDREN, SECRET

LOOKS, RUNS = "flower-superexec", "flwr-serverapp"
RETRIES = {LOOKS: "superexec_retries", RUNS: "serverapp_retries"}  # the rules of each command's client
TOKEN, FLAG = "FEDGREC_RUN_TOKEN", "--token"


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
    invoker = internals.usual_retries()
    refused = invoker.should_giveup
    assert refused is not None
    invoker.should_giveup = lambda error: (
        refused(error) if isinstance(error, httpx.HTTPStatusError) else is_distrust(error)
    )
    invoker.recoverable_exceptions = (httpx.TransportError, httpx.HTTPStatusError)
    invoker.wait_gen_factory = lambda: (AGAIN for _ in iter(int, 1))
    return invoker


def send_questions(grid: Any, run: int, messages: Any) -> Any:
    client = internals.private(grid, "_runtime_client")
    return parts.send(client, internals.PushAppMessagesRequest(), messages, grid.node).message_ids


def main() -> None:
    """Run the Flower command that the first argument names."""
    command = sys.argv[1]
    internals.leave_out_sql()
    sys.argv[:2] = [command]
    internals.replace("child_client", classmethod(connected_as_a_part))
    run = getattr(internals, command)
    internals.replace(RETRIES[command], patience)
    if command == RUNS:
        internals.replace("send_questions", send_questions)
        sys.argv += [FLAG, os.environ[TOKEN]]  # private: other accounts see the arguments of the start
    else:
        internals.replace("executor_subprocess", SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL))
    run()


if __name__ == "__main__":
    main()
