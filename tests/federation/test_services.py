"""The units that `init` writes for systemd: what they start, what they forbid, and when they start nothing again."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedgrec import cli
from fedgrec.config.configuration import Config
from fedgrec.federation.common.errors import RefusedError
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.flower.processes import GRACE
from fedgrec.federation.setup.init import add_node, init

MOST = 3.0  # the exposure that `systemd-analyze security` may find, from 0 to 10


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, configparser.RawConfigParser]:
    """The unit of each folder: a server, nodes, gateways, a node that came later."""
    root, found = tmp_path_factory.mktemp("units"), {}
    made = init(root / "fed", 3, ["tea"], Config(), FederationOptions())
    masked = init(root / "masked", 3, ["tea"], Config(), FederationOptions(), per_user_masks=[2, 2, 2])
    for folder in (made.server, *made.nodes, *masked.nodes, add_node(root / "fed")):
        (path,) = folder.glob("*.service")
        found[path] = configparser.RawConfigParser(strict=False)  # SystemCallFilter comes twice
        found[path].optionxform = str  # type: ignore[assignment,method-assign]
        found[path].read(path)
    return found


def test_a_unit_starts_the_folder_that_it_lies_in(units: dict[Path, configparser.RawConfigParser]) -> None:
    for path, unit in units.items():
        words = shlex.split(unit["Service"]["ExecStart"])
        arguments = cli.parser().parse_args(words[1:])
        assert arguments.folder == Path("/var/lib/fedgrec") / path.parent.name
        assert f"fedgrec-{words[2]}" == path.stem == f"fedgrec-{'server' if path.parent.name == 'server' else 'node'}"
        assert f"{arguments.folder}/".startswith(unit["Service"]["ReadWritePaths"] + "/")
        assert "{" not in path.read_text()


def test_a_unit_ends_starts_again_and_keeps_kernels_as_the_program_needs(
    units: dict[Path, configparser.RawConfigParser],
) -> None:
    for unit in units.values():
        service = unit["Service"]
        assert (service["Restart"], int(service["RestartPreventExitStatus"])) == ("on-failure", RefusedError.code)
        assert RefusedError.code not in (0, 2)
        assert service["KillMode"] == "mixed", "the server ends its children itself, once its round is over"
        assert int(service["TimeoutStopSec"]) > 2 * GRACE
        cache = dict(word.split("=") for word in service["Environment"].split())["NUMBA_CACHE_DIR"]
        assert cache.startswith(f"%C/{service['CacheDirectory']}/")


def exposure(unit: str, folder: Path) -> float:
    path = folder / "fedgrec-test.service"
    path.write_text(unit)
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(path)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return float(re.findall(r"exposure level for fedgrec-test.service: ([\d.]+)", said)[0])


def test_systemd_finds_little_to_attack(units: dict[Path, configparser.RawConfigParser], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze (Debian: apt-get install systemd)")
    path = next(iter(units))
    text = path.read_text()
    assert exposure(text, tmp_path) <= MOST
    bare = text[: text.index("UMask=")] + text[text.index("[Install]") :]
    assert exposure(bare, tmp_path) > MOST, "a measure that sees nothing"
    real = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", text)
    (tmp_path / path.name).write_text(real)
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / path.name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (verified.returncode, verified.stderr) == (0, "")
