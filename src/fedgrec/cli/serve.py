"""`fedgrec serve`: the model of a run or of a node, for applications."""

import argparse
import secrets
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import command
from fedgrec.errors import ConfigError


def register(commands: Any) -> None:
    serve = command(commands, "serve", run_serve, "answer applications over HTTP")
    add = serve.add_argument
    add("folder", type=Path, metavar="FOLDER", help="of a run, a node or a gateway")
    add("--port", type=int, metavar="P", help="(default: 8642)")
    add("--host", metavar="HOST", help="for other machines, by TLS alone (default: this machine)")
    add("--certificate", type=Path, metavar="FILE", help="TLS: the certificate, and those that signed it")
    add("--key", type=Path, metavar="FILE", help="TLS: its key")
    add("--socket", type=Path, metavar="PATH", dest="socket_path", help="a Unix socket instead of a port")
    text = "a token a line, and after a space the one user about whom it may ask (default: a token is made)"
    add("--token-file", type=Path, metavar="FILE", help=text)


def run_serve(arguments: argparse.Namespace) -> int:
    """Answer applications over HTTP until stopped. Nothing in the folder is changed."""
    from fedgrec.serve import served

    if bool(arguments.certificate) != bool(arguments.key):
        raise ConfigError("--certificate and --key go together")
    given = {name: value for name in ("host", "port", "socket_path") if (value := getattr(arguments, name)) is not None}
    tls = (arguments.certificate, arguments.key) if arguments.key else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as until_the_end:
        file = arguments.token_file
        if file is None:  # in a folder of its owner alone
            file = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="fedgrec-"))) / "token"
            file.write_text(secrets.token_urlsafe())
        lines = [line.split(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines()]
        tokens = {token: of[0].strip() if of else None for token, *of in filter(None, lines)}
        with served(arguments.folder, tokens, tls=tls, **given) as door:
            print(
                f"{arguments.folder} is at {door.address} for who shows a token of {file}; Ctrl-C ends it", flush=True
            )
            signal.pause()
    return 0
