"""The report says what the run's files say, to everybody, and nothing of it is run as code."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fedgrec.config import Config
from fedgrec.errors import FedgrecError, RunError
from fedgrec.loading import load_for
from fedgrec.report import write_report
from fedgrec.report.gather import read_run
from fedgrec.report.map import _apart
from fedgrec.report.page import size
from fedgrec.resolve import resolved
from fedgrec.simulation import Simulation

QUICK = {
    "kernel": "reference",
    "dim": 8,
    "rounds": 4,
    "evaluate_every": 2,
    "users_per_round": 40,
    "negatives": 16,
}


def train(folder: Path, **changes: object) -> Path:
    config = Config().changed(QUICK | changes, "test")
    dataset = load_for(config)
    Simulation(resolved(config, dataset), dataset, folder).run()
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """A file of clicks whose ids are an attack."""
    rng = np.random.default_rng(0)
    pairs = {(f"u{u}", f"<script>alert({i})</script>&{i}") for u, i in rng.integers(0, 30, (300, 2))}
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in sorted(pairs)))
    return path


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.images.append(dict(attrs))
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(path: Path) -> str:
    """The page, once it is known to be sound and to need nothing from elsewhere."""
    page, parser = path.read_text(encoding="utf-8"), Balanced()
    parser.feed(page)
    assert not parser.open
    assert all(image["alt"] and str(image["src"]).startswith("data:image/png;base64,") for image in parser.images)
    without_pictures = re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)
    assert not re.search(r"https?:|<script|<link|@import|url\(", without_pictures)
    return without_pictures


def test_the_page_holds_the_result_and_names_the_protocol(run: Path) -> None:
    path = write_report(run)
    page, result = checked(path), json.loads((run / "result.json").read_text())
    assert path == run / "report.html"
    assert f"{result['recall@20']:.4f}" in page
    assert f"{result['ndcg@20']:.4f}" in page
    assert "chosen on validation items; test items were looked at once" in page
    assert size(result["bytes_up"] / 1500) in page
    assert size(result["bytes_up_secure"] / 1500) in page
    assert "users_per_round" in page.split("<details>")[0]  # it differs from the default
    for picture in ("curves.png", "map.png", "users.png"):
        assert (run / picture).read_bytes().startswith(b"\x89PNG")
    assert not list(run.glob("*.part"))


def test_users_are_ranked_as_the_evaluation_did(run: Path) -> None:
    survey = read_run(run, None).survey
    assert survey is not None
    assert survey.recall(20).mean() == pytest.approx(json.loads((run / "result.json").read_text())["recall@20"])


def test_the_sample_user_is_never_shown_what_it_knows(run: Path) -> None:
    sample = read_run(run, None).sample
    assert sample is not None
    assert not np.isin(sample.shown, sample.seen).any()
    assert (np.isin(sample.shown, sample.hidden) == sample.hit).all()
    assert "not a typical one" in sample.why


def test_baselines_are_shown_in_order_and_kept(clicks: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", data=str(clicks))
    baselines = {"a <b>bad</b> one": {"recall@20": 0.0001}, "oracle": {"recall@20": 0.9, "ndcg@20": 0.8}}
    first = write_report(run, baselines).read_bytes()
    page = checked(write_report(run))  # written again without them
    assert page.index("oracle") < page.index("FedGRec, this run") < page.index("a &lt;b&gt;bad&lt;/b&gt; one")
    assert "0.9000" in page
    assert (run / "report.html").read_bytes() == first  # equal runs, equal pages


def test_of_very_many_users_some_are_looked_at(clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgrec.report.gather.MOST_USERS", 10)
    page = checked(write_report(train(tmp_path / "run", data=str(clicks))))
    assert "for 10 evenly spaced users" in page
    assert "The average over 10 users" in page


def test_ids_are_text_and_never_markup(clicks: Path, tmp_path: Path) -> None:
    page = checked(write_report(train(tmp_path / "run", data=str(clicks), topk=[5, 20])))
    assert "&lt;script&gt;alert(" in page
    assert not (tmp_path / "run" / "map.png").exists()
    assert "recall@20" in page  # the other list length


def test_paper_protocol_says_so(clicks: Path, tmp_path: Path) -> None:
    page = checked(write_report(train(tmp_path / "run", data=str(clicks), protocol="paper")))
    assert "the best round on test, as published numbers are" in page


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_a_run_without_test_items(validation: float, clicks: Path, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", data=str(clicks), test_ratio=0.0, validation=validation)
    page = checked(write_report(folder, {"popularity": {"recall@20": 0.1}}))
    assert "no test items" in page
    assert "FedGRec, this run" not in page
    assert (folder / "curves.png").exists() == bool(validation)


def test_a_run_whose_data_is_gone_still_has_its_numbers(clicks: Path, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", data=str(clicks))
    clicks.unlink()
    page = checked(write_report(folder))
    assert f"{json.loads((folder / 'result.json').read_text())['recall@20']:.4f}" in page
    assert "Left out:" in page


def test_an_unfinished_run_is_refused(run: Path) -> None:
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_without_matplotlib_one_line_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] + ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedgrecError, match=r"pip install -c constraints.txt .\.\[report\]") as caught:
        write_report(run)
    assert "\n" not in str(caught.value)


def test_the_demo_after_a_k_core_keeps_its_places(tmp_path: Path) -> None:
    run = read_run(train(tmp_path / "run", k_core=12, rounds=1), None)
    assert run.places is not None
    assert 0 < len(run.model.item_ids) < len(run.places.names)  # renumbered
    for item in (0, len(run.model.item_ids) - 1):
        assert run.places.names[run.model.item_ids[item]] in run.name(item)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (7.08e6, "7.08 MB"), (2e15, "2,000 TB")],
)
def test_sizes_are_said_as_people_say_them(n: float, text: str) -> None:
    assert size(n) == text


def test_markers_are_moved_apart_and_no_others() -> None:
    points = np.array([[0.0, 0.0], [0.0, 0.0], [0.01, 0.0], [5.0, 5.0]])
    moved = _apart(points, 0.1)
    distance = np.linalg.norm(moved[:, None] - moved[None], axis=2) + np.eye(4)
    assert distance.min() > 0.099
    np.testing.assert_allclose(moved[3], points[3], atol=1e-5)
