"""Dockerfile and compose.yaml against the program, the units and the guide; `make containers` really runs them."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.config.configuration import Config
from fedgrec.federation.common.network import NodeNetwork, ServerNetwork, read_network
from fedgrec.federation.common.options import FederationOptions
from fedgrec.federation.common.web import Pages, health, watched
from fedgrec.federation.setup.init import init

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/operate.md").read_text().split("## Containers")[1]


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason="comes with the extra `dev`")
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return found


def steps() -> list[tuple[str, str]]:
    """The Dockerfile: each instruction and its words."""
    text = re.sub(r"(?m)^#.*\n", "", (ROOT / "Dockerfile").read_text()).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line]


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Where each folder of this machine is in the container."""
    return {here: there.removesuffix(":ro") for here, there in (line.split(":", 1) for line in service["volumes"])}


def test_compose_runs_the_federation_that_the_guide_makes(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    (words,) = [shlex.split(line) for line in GUIDE.splitlines() if line.startswith("    fedgrec federation init")]
    asked = cli.parser().parse_args(words[1:])
    made = init(tmp_path / "fed", asked.nodes, ["tea"], Config(), FederationOptions(), asked.host, asked.port)
    assert set(services) == {asked.host, *(node.name for node in made.nodes)}, "nodes reach the server by its name"
    assert f"./{asked.out}/" in str(services)
    for folder in (made.server, *made.nodes):
        service = services[folder.name]
        runs = cli.parser().parse_args(service["command"])
        assert service["command"][1] == ("server" if folder == made.server else "node")
        assert mounts(service)[f"./{asked.out}/{folder.name}"] == str(runs.folder)
        assert str(runs.folder.parent) == dict(steps())["WORKDIR"]
        assert f"127.0.0.1:{runs.metrics}/health" in service["healthcheck"]["test"][-1]
        assert runs.metrics_host == "127.0.0.1", "others of the network could read it"
    network = read_network(made.server, ServerNetwork)
    assert (services["server"]["ports"], network.listen) == ([f"{asked.port}:{network.port}"], "0.0.0.0")
    assert read_network(made.nodes[0], NodeNetwork).superlink == f"server:{network.port}"


def test_each_node_sees_its_own_data_and_no_other(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        if name != "server":
            assert set(mounts(service)) == {f"./fed/{name}", f"./data/{name}"}
            assert f"./data/{name}:/srv/data:ro" in service["volumes"]
    assert "/srv/data" in GUIDE
    assert "data/node-0" in GUIDE
    assert set(mounts(services["server"])) == {"./fed/server"}


def test_containers_have_the_limits_of_the_units(services: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    made = init(tmp_path / "fed", 3, ["tea"], Config(), FederationOptions())
    for folder in (made.server, *made.nodes):
        (path,) = folder.glob("*.service")
        unit, service = dict(re.findall(r"(?m)^(\w+)=(.*)$", path.read_text())), services[folder.name]
        assert service["mem_limit"] == service["memswap_limit"] == unit["MemoryMax"].lower()
        assert (service["ulimits"]["nofile"], service["ulimits"]["core"]) == (int(unit["LimitNOFILE"]), 0)
        assert service["stop_grace_period"] == f"{unit['TimeoutStopSec']}s"
        assert service["pids_limit"] == int(unit["TasksMax"])
        assert service["read_only"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
        assert re.fullmatch(r"\$\{FEDGREC_CPUS:-\d+\}", service["cpus"])
        assert re.fullmatch(r"on-failure:\d+", service["restart"]), "a node that is not wanted must not start for ever"


def test_the_image_is_of_a_named_base_and_of_our_constraints_and_runs_as_nobody() -> None:
    words = dict(steps())
    base = re.fullmatch(r"BASE=python:(3\.\d+)\.\d+-slim-[a-z]+", words["ARG"])
    assert base, "a tag that moves with each release pins nothing"
    assert words["FROM"] == "${BASE}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {base[1]}" in project["classifiers"]
    text = (ROOT / "Dockerfile").read_text()
    assert "imagetools inspect " + words["ARG"].removeprefix("BASE=") in text, "how to pin by digest"
    (installs,) = [what for step, what in steps() if step == "RUN" and "pip" in what]
    assert "-c /src/constraints.txt '/src[deploy]'" in installs
    assert "deploy" in project["optional-dependencies"]
    assert (words["ENTRYPOINT"], words["USER"]) == ('["fedgrec"]', "fedgrec")
    assert "NUMBA_CACHE_DIR=/tmp/" in words["ENV"]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(allowed) == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src"}


@pytest.mark.parametrize("trouble", ["", "the server was not heard for 99 s"])
def test_the_health_check_fails_where_somebody_should_look(services: dict[str, dict[str, Any]], trouble: str) -> None:
    pages: Pages = {"/health": lambda: health(trouble, {})}
    with watched("127.0.0.1", 0, pages) as site:
        assert site
        how, python, flag, code = services["node-0"]["healthcheck"]["test"]
        assert (how, python, flag) == ("CMD", "python", "-c")
        words = [sys.executable, "-c", code.replace("9100", str(site.server_port))]
        done = subprocess.run(words, capture_output=True, check=False, timeout=120)
    assert bool(done.returncode) == bool(trouble), done.stderr


def test_the_script_that_runs_them_is_a_shell_script_and_uses_these_files() -> None:
    script = (ROOT / "tests/containers.sh").read_text()
    subprocess.run(["sh", "-n", str(ROOT / "tests/containers.sh")], check=True, timeout=60)
    (words,) = [shlex.split(line) for line in script.splitlines() if line.startswith("fedgrec federation init")]
    assert cli.parser().parse_args(words[1:]).host == "server"
    assert "compose.yaml" in script
    assert "tests/containers.sh" in (ROOT / "Makefile").read_text()
