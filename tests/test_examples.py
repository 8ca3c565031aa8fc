"""The examples run, and what they say is right."""

import queue
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from examples import one_machine_federation, own_data, own_method, read_run, search_index, web_page

from fedgrec import FedGRec
from fedgrec.config.options import METHODS
from fedgrec.serve import served
from tests.cli.small import clicks, train
from tests.test_documents import ROOT
from tests.waits import seconds


def test_own_data_and_reading_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, run = str(clicks(tmp_path / "clicks.csv")), str(tmp_path / "run")
    small = {"rounds": 4, "dim": 8, "negatives": 8, "kernel": "reference"}
    assert own_data.main(table, run, **small) == list(FedGRec.load(run).recommend("ann0", N=5)[0])
    read = read_run.main(run)
    assert read["alike"] == list(FedGRec.load(run).similar_items(read["popular"], N=5)[0])  # as fedgrec computes it
    assert "fedgrec on " in capsys.readouterr().out


def test_own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns: three quarters of what a list of five can hold. Chance would be right in a fifth of all cases."""
    monkeypatch.setitem(METHODS, "own", "")  # forgotten again after the test
    assert own_method.main() > 0.6 > own_method.main(1)


def test_one_machine_federation() -> None:
    """Chance would be right in half of all cases."""
    assert one_machine_federation.main(rounds=6) > 0.8


def test_search_index(tmp_path: Path) -> None:
    assert search_index.main(str(train(clicks(tmp_path / "clicks.csv"), tmp_path / "run", rounds=2))) > 0.95


def test_web_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page lists what the model recommends; ids are shown as text, and a refusal as its sentence."""
    run, token, sites = (
        train(clicks(tmp_path / "clicks.csv"), tmp_path / "run", rounds=2),
        "x" * 20,
        queue.SimpleQueue(),
    )
    (tmp_path / "token").write_text(token)
    site = web_page.site
    monkeypatch.setattr(web_page, "site", lambda *words: sites.put(made := site(*words, port=0)) or made)

    def shown(port: int, user: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}/?user={user}", timeout=seconds(20)) as page:
            return str(page.read().decode())

    with served(run, {token: None}, port=0) as door, ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: web_page.main(str(tmp_path / "token"), door.address))
        here = sites.get(timeout=seconds(20))
        listed = re.findall("<li>(.*?)</li>", shown(here.server_port, "ann0"))
        odd = shown(here.server_port, "%3Cscript%3E")
        here.shutdown()
        done.result()
    assert listed == list(FedGRec.load(run).recommend("ann0", N=5)[0])
    assert "there is no user &#x27;&lt;script&gt;&#x27;" in odd
    assert "<script>" not in odd


def test_every_example_is_in_the_list_and_tested() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    listed = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in listed and f"{name[:-3]}.main(" in Path(__file__).read_text() for name in scripts)
