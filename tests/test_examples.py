"""The examples run, and what they say is right."""

from pathlib import Path

import pytest
from examples import one_machine_federation, own_data, own_method, read_run

from fedgrec import FedGRec
from fedgrec.config.options import METHODS
from tests.cli.small import clicks
from tests.test_documents import ROOT


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


def test_every_example_is_in_the_list_and_tested() -> None:
    scripts = {path.name for path in (ROOT / "examples").glob("*.py")}
    listed = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in listed and f"{name[:-3]}.main(" in Path(__file__).read_text() for name in scripts)
