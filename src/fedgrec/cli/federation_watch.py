"""What an operator sees of a federation: `status`, `dashboard`, and the flags that let programs watch a process."""

import argparse
import json
import logging
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgrec.cli.configured import command, shortened
from fedgrec.errors import FedgrecError, missing_extra

WIDTH, NAME = 80, 26  # columns: of a line, and of a node's name
DASHBOARD = 9093


def register(tasks: Any) -> None:
    status = command(tasks, "status", run_status, "how far a server has come")
    status.add_argument("folder", type=Path, metavar="FOLDER")
    status.add_argument("--json", action="store_true", help="one JSON object; docs/deploy.md explains its keys")
    doctor = command(
        tasks, "doctor", run_doctor, "what is wrong with a folder, or with what runs there, and what to do"
    )
    doctor.add_argument("folder", type=Path, metavar="FOLDER")
    page = command(tasks, "dashboard", run_dashboard, "the same as a page that refreshes itself")
    page.add_argument("folder", type=Path, metavar="FOLDER")
    page.add_argument("--port", type=port, default=DASHBOARD, metavar="P", help=f"(default: {DASHBOARD})")
    page.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")


def add_flags(task: argparse.ArgumentParser) -> None:
    add = task.add_argument
    add("--metrics", type=port, metavar="P", help="serve /metrics and /health on this port (default: no)")
    add("--metrics-host", default="127.0.0.1", metavar="HOST", help="the address for them (default: 127.0.0.1)")
    add("--log-json", action="store_true", help="each line of the log is a JSON object")


def port(word: str) -> int:
    if not word.isdecimal() or int(word) > 65535:
        raise argparse.ArgumentTypeError(f"{word}: a port is a number from 1 to 65535, or 0 for any that is free")
    return int(word)


def watch_of(arguments: argparse.Namespace) -> Any:
    """The address at which this process serves its metrics, if any."""
    from importlib.util import find_spec

    from fedgrec.federation.setup.start import Watch

    if arguments.metrics is not None and find_spec("prometheus_client") is None:
        raise missing_extra("--metrics", "deploy")
    return Watch(arguments.metrics, arguments.metrics_host)


@contextmanager
def errors_in(log: logging.Logger, as_json: bool) -> Iterator[None]:
    """With JSON logs, write the error that ends a command as a line of the log, because a program reads it."""
    try:
        yield
    except FedgrecError as error:
        if not as_json:
            raise
        log.error("%s", error)
        sys.exit(error.code)


def run_dashboard(arguments: argparse.Namespace) -> int:
    """Serve a page that shows how a server does, until stopped. It asks for no password: it is for this machine."""
    from fedgrec.federation.common.web import Site
    from fedgrec.federation.server.pages import dashboard
    from fedgrec.federation.server.status import status

    status(arguments.folder)  # raises now if the folder is not a server's
    with Site(arguments.host, arguments.port, dashboard(arguments.folder)) as site:
        print(f"{site.address} shows {arguments.folder}; Ctrl-C ends it", flush=True)
        site.serve_forever()
    return 0


def run_status(arguments: argparse.Namespace) -> int:
    """How far a server has come, how fast it is, and who is there. It changes nothing."""
    from dataclasses import asdict

    from fedgrec.federation.common.network import expiry_note
    from fedgrec.federation.server.status import status

    found = status(arguments.folder)
    if (note := expiry_note(arguments.folder)) and not arguments.json:
        print(f"note: {note}")
    print(json.dumps(asdict(found)) if arguments.json else "\n".join(lines(found)))
    return 0


def run_doctor(arguments: argparse.Namespace) -> int:
    """Look at the folder of a server, a node or a gateway. It changes nothing; exit code 2: something is to be done."""
    from fedgrec.cable.core import printable
    from fedgrec.federation.setup.doctor import examine

    found = list(examine(arguments.folder))
    for finding in found:
        print(f"{'DO' if finding.wrong else 'ok':<4}{printable(finding.what)}")
    return 2 if any(finding.wrong for finding in found) else 0


def lines(found: Any) -> list[str]:
    """A status for people, in 80 columns."""
    from fedgrec.cable.core import printable, size
    from fedgrec.federation.common.promise import Promise
    from fedgrec.federation.server.log import metrics_of
    from fedgrec.federation.server.status import NOT_STARTED, WARM_UP

    if found.state == NOT_STARTED:
        return ["not started yet"]
    text = [f"round {found.round:,} of {found.rounds:,}, {found.state}"]
    if found.seasons != 1 or found.season > 1:
        wanted = f" of {found.seasons:,}" if found.seasons else ""
        served = f"; nodes serve the model of season {found.serves}" if found.serves else ""
        changed = f"; {found.changed:,} users had changes before it" if found.changed is not None else ""
        text.append(f"season {found.season:,}{wanted}{changed}{served}")
    if found.state == WARM_UP and found.warm_up_stages:
        text[0] += f", {found.warm_up} of {found.warm_up_stages} stages"
    if found.current_sum:
        text.append(f"now: {found.current_sum}")
    if found.rounds_per_minute:
        left = f", about {span(found.seconds_left)} left" if found.seconds_left else ""
        text.append(f"rate: {found.rounds_per_minute:.3g} rounds a minute{left}")
    each = (
        f"; a round {size(found.round_bytes_up)} up, {size(found.round_bytes_down)} down" if found.last_rounds else ""
    )
    text.append(f"bytes: {size(found.bytes_up)} up, {size(found.bytes_down)} down in all{each}")
    if found.privacy:
        text.append(f"privacy: {Promise(**found.privacy)}")
    if found.sums_lost:
        text.append(f"sums: {found.sums_applied:,} counted, {found.sums_lost:,} lost")
    text += [f"after round {line['round'] + 1:,}: {metrics_of(line)}" for line in found.metrics[-3:]]
    text += _nodes(found.nodes)
    text += ["last sums:", *(f"  {line}" for line in found.last_sums)] if found.last_sums else []
    return [part for line in text for part in _wrapped(printable(line))]


def _nodes(nodes: list[Any]) -> list[str]:
    width = min(max((len(node.name) for node in nodes), default=0), NAME)
    text = [f"{'nodes':{width + 2}} {'users':>9} {'last round':>10} {'behind':>6}  heard"]
    for node in nodes:
        users, last, lag = ("–" if n is None else f"{n:,}" for n in (node.users, node.last_round, node.lag))
        heard = "–" if node.heard_seconds is None else f"{span(node.heard_seconds)} ago"
        note = "  removed" if node.removed else "  own masks" if node.masks else ""
        heard = "has not joined" if node.users is None else heard
        text.append(f"  {shortened(node.name, width):{width}} {users:>9} {last:>10} {lag:>6}  {heard}{note}")
    return text


def span(seconds: float) -> str:
    """A duration in the unit that a person would use."""
    for unit, length, most in (("s", 1, 99.5), ("min", 60, 5970), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
