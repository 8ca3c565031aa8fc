"""What the programs around a federation are told: a unit for systemd in each folder, rules for Prometheus's alerts."""

from importlib import resources
from pathlib import Path

from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import RefusedError

SERVER, NODE = "server", "node"  # the commands that run them
FILES, MEMORY = {SERVER: 65536, NODE: 4096}, {SERVER: "8G", NODE: "2G"}
ALERTS = "alerts.yml"


def write_alerts(folder: Path) -> None:
    """Rules for the metrics of a server and of nodes."""
    write_private(folder / ALERTS, _text(ALERTS).encode())


def write_unit(folder: Path, command: str) -> None:
    """The unit that runs this folder, hardened."""
    limits = {"files": FILES[command], "memory": MEMORY[command], "final": RefusedError.code}
    unit = _text("fedgrec.service").format(command=command, name=folder.name, **limits)
    write_private(folder / f"fedgrec-{command}.service", unit.encode())


def _text(name: str) -> str:
    return (resources.files("fedgrec.federation.setup") / name).read_text("utf-8")
