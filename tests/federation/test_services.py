"""What `init` writes for the programs around a federation: units for systemd, rules for Prometheus."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.config.configuration import Config
from fedgrec.federation.common.errors import RefusedError
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.upkeep import BACKED_UP
from fedgrec.federation.flower.processes import GRACE
from fedgrec.federation.node.contact import Contact
from fedgrec.federation.server.pages import metrics
from fedgrec.federation.server.status import STATES
from fedgrec.federation.setup.init import add_node, init
from fedgrec.federation.setup.services import ALERTS
from tests.federation.test_watch_metrics import samples
from tests.federation.worlds import World

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


# --------------------------------------------------------------------------------------------------------- alerts


def rules(folder: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="comes with the extra `dev`")
    (group,) = yaml.safe_load((folder / ALERTS).read_text())["groups"]
    return list(group["rules"])


def test_alerts_are_about_metrics_that_there_are(trained: World, tmp_path: Path) -> None:
    """Each name in a rule is one that a server or a node shows; one that was renamed would never fire."""
    made = init(tmp_path / "fed", 3, ["tea"], Config(), FederationOptions())
    (tmp_path / "fed/server" / BACKED_UP).touch()
    shown = {"up", "fedgrec_backup_age_seconds"}
    for pages in (metrics(trained.server), metrics(made.server), Contact().pages(made.nodes[0])):
        shown |= {name for name, _ in samples(pages)}
    there = rules(made.server)
    assert len({rule["alert"] for rule in there}) == len(there) >= 10
    for rule in there:
        names = set(re.findall(r"\b(?:fedgrec_\w+|up)\b", rule["expr"]))
        unknown = names - shown - {"fedgrec_epsilon_spent", "fedgrec_epsilon_agreed"}  # with a promise
        assert names, rule
        assert not unknown, rule
        states = re.findall(r'state="(\w+)"', rule["expr"])
        assert set(states) <= set(STATES)
        assert ": " in rule["annotations"]["summary"], "it does not say what to do"
    text = (made.server / ALERTS).read_text()
    assert len(text.splitlines()) <= 60
    for command in re.findall(r"fedgrec federation (\w+)", text):
        assert f"{command} " in cli_help()


def cli_help() -> str:
    words = [sys.executable, "-m", "fedgrec", "federation", "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout


CASES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'fedgrec_state{{state="training",instance="a"}}', values: '1x2000'}}
      - {{series: 'fedgrec_state{{state="finished",instance="a"}}', values: '0x2000'}}
      - {{series: 'fedgrec_state{{state="finished",instance="b"}}', values: '1x2000'}}
      - {{series: 'fedgrec_state{{state="finished",instance="c"}}', values: '0x2000'}}
      - {{series: 'fedgrec_backup_age_seconds{{instance="c"}}', values: '3600x2000'}}
      - {{series: 'fedgrec_certificate_days{{instance="a",file="server.pem"}}', values: '29x2000'}}
      - {{series: 'fedgrec_node_certificate_days{{instance="d",file="ca.crt"}}', values: '31x2000'}}
      - {{series: 'fedgrec_node_disk_free_bytes{{instance="d"}}', values: '9e8x2000'}}
    alert_rule_test:
      - eval_time: 1500m
        alertname: FedgrecBackupOld
        exp_alerts: [{{exp_labels: {{instance: a, state: finished}}}}]
      - eval_time: 5m
        alertname: FedgrecCertificateEnds
        exp_alerts: [{{exp_labels: {{instance: a, file: server.pem}}}}]
      - {{eval_time: 5m, alertname: FedgrecDiskFull, exp_alerts: [{{exp_labels: {{instance: d}}}}]}}
      - {{eval_time: 5m, alertname: FedgrecStopped, exp_alerts: []}}
"""


def test_prometheus_fires_them_when_it_should(tmp_path: Path) -> None:
    """A server that trains without a backup, one that has finished, and one with a young backup."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool (Debian: apt-get install prometheus)")
    path = init(tmp_path / "fed", 3, ["tea"], Config(), FederationOptions()).server / ALERTS
    bare = [{name: value for name, value in rule.items() if name != "annotations"} for rule in rules(path.parent)]
    (tmp_path / "bare.yml").write_text(json.dumps({"groups": [{"name": "fedgrec", "rules": bare}]}))
    (tmp_path / "cases.yml").write_text(CASES.format(rules=tmp_path / "bare.yml"))
    for words in (["check", "rules", str(path)], ["test", "rules", str(tmp_path / "cases.yml")]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
