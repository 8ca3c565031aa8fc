"""Runs and agreements that release 0.2 wrote: they open, are judged and go on, and give what release 0.2 gave.

`release_0_2/` was written by release 0.2; only the place of the data was changed. `expected.json` is what its
`evaluate`, `recommend` and `train --resume --rounds 8` printed and wrote.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedgrec import cli
from fedgrec.cli import training
from fedgrec.config.configuration import read_toml, recorded
from fedgrec.errors import ConfigError
from fedgrec.federation.common.options import Agreement, read_options

WRITTEN = Path(__file__).parent / "release_0_2"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to change; the data's place is relative to it."""
    monkeypatch.setattr(training, "_report", lambda *_: None)
    copy = shutil.copytree(WRITTEN, tmp_path / "written")
    monkeypatch.chdir(copy)
    return copy


def answer(capsys: Any, *words: str) -> Any:
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Equal, with room for the last digits of another processor."""
    numbers = {key: value for key, value in before.items() if isinstance(value, float)}
    rest = {key: value for key, value in before.items() if key not in numbers and key in now}
    return {key: now[key] for key in numbers} == pytest.approx(numbers, rel=1e-4) and rest.items() <= now.items()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_opens_and_is_judged_as_before(folder: Path, name: str, capsys: Any) -> None:
    assert same(answer(capsys, "evaluate", name), EXPECTED[name]["measured"])
    found = answer(capsys, "recommend", name, "--user", "ann3", "-n", "5")
    assert [line["item"] for line in found] == EXPECTED[name]["recommended"]


@pytest.mark.parametrize("name", ["fedgrec", "fedncf"])
def test_a_run_goes_on_as_before(folder: Path, name: str) -> None:
    assert cli.main(["train", "--out", name, "--resume", "--rounds", "8", "--quiet"]) == 0
    lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == len(EXPECTED[name]["resumed"])
    assert all(map(same, lines, EXPECTED[name]["resumed"]))
    assert (
        read_toml(folder / name / "config.toml")["adam_epsilon"]
        == recorded(WRITTEN / name / "config.toml").model.adam_epsilon
    )


@pytest.mark.parametrize("secure", ["off", "protocol"])
def test_a_run_of_a_kernel_that_is_gone_opens_and_goes_on(folder: Path, secure: str, capsys: Any) -> None:
    """It was trained on a GPU, under secure sums too; here there may be none."""
    path = folder / "fedgrec" / "config.toml"
    old = path.read_text()
    for before, now in {"kernel": "reference", "secure": "off", "device": "cpu"}.items():
        assert f'\n{before} = "{now}"' in old
    device = "cpu" if secure == "off" else "cuda"
    new = {"kernel": "batched", "secure": secure, "device": device}
    for key, value in new.items():
        old = re.sub(f'\n{key} = ".*"', f'\n{key} = "{value}"', old)
    path.write_text(old)
    assert recorded(path).run.kernel == "auto"
    if device == "cpu":
        assert same(answer(capsys, "evaluate", "fedgrec"), EXPECTED["fedgrec"]["measured"])
    assert cli.main(["train", "--out", "fedgrec", "--resume", "--rounds", "5", "--quiet"]) == 0
    assert (recorded(path).run.kernel, recorded(path).run.device) == ("auto", "cpu")


def test_a_run_of_a_method_that_lost_its_fused_loops_goes_on(folder: Path) -> None:
    path = folder / "fedncf" / "config.toml"
    path.write_text(path.read_text().replace('kernel = "reference"', 'kernel = "cpu"'))
    assert cli.main(["train", "--out", "fedncf", "--resume", "--rounds", "5", "--quiet"]) == 0
    assert recorded(path).run.kernel == "auto"


def test_options_keep_their_values_under_new_names() -> None:
    assert recorded(WRITTEN / "fedncf" / "config.toml").model.adam_epsilon == 1e-6
    old = (WRITTEN / "fedncf" / "config.toml").read_text()
    assert "[optimizer]" not in old
    assert "\nepsilon = 1e-06" in old


def test_options_that_are_gone_are_passed_over_only_where_they_had_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('method = "fedgnn"\n[model]\npseudo = "negatives"\nclip_norm = "word"\nnoise = 0.0\nown = 0.5\n')
    assert recorded(path).model.own == 0.5
    path.write_text('[run]\nsecure = "exact"\nsecure_every = 7\n')
    assert recorded(path).run.secure == "off"  # with the same bits
    path.write_text('method = "fedgnn"\n[model]\nnoise = 0.1\n')
    with pytest.raises(ConfigError, match="there is no option 'noise' of method fedgnn"):
        recorded(path)


def test_an_agreement_keeps_its_promises_under_new_names() -> None:
    decoys, noise = (read_options(WRITTEN / f"{name}.toml", Agreement) for name in ("decoys", "noise"))
    assert (decoys.evaluation_epsilon, decoys.dp_epsilon, decoys.dp_unit) == (4.0, 2.0, "interaction")
    assert (decoys.decoys_epsilon, decoys.noisy) == (2.0, False)
    assert (noise.evaluation_epsilon, noise.dp_epsilon, noise.dp_unit, noise.dp_rounds) == (8.0, 2.0, "user", 7)
    assert (noise.decoys_epsilon, noise.noisy) == (0.0, True)
    with pytest.raises(ConfigError, match=r"both\.toml: noise and decoys are not promised together"):
        read_options(WRITTEN / "both.toml", Agreement)


def test_a_record_is_written_as_it_is_read(tmp_path: Path) -> None:
    for name in ("decoys", "noise"):
        agreed = read_options(WRITTEN / f"{name}.toml", Agreement)
        (tmp_path / "agreement.toml").write_text(agreed.to_toml())
        assert read_options(tmp_path / "agreement.toml", Agreement) == agreed
    for name in ("fedgrec", "spectral", "fedncf"):
        config = recorded(WRITTEN / name / "config.toml")
        (tmp_path / "config.toml").write_text(config.to_toml())
        assert recorded(tmp_path / "config.toml") == config
