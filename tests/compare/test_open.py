"""Every model that a comparison trains is opened by `recommend`, `evaluate` and FedGRec.load."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import FedGRec, cli
from fedgrec.centralized import MODELS, load
from fedgrec.studies.compare import results
from tests.cli.test_options import refused
from tests.compare.small import FEDGREC, MF, compared

SMALL = {
    "fedgrec": FEDGREC,
    "mf-bpr": MF,
    "lightgcn": "lightgcn:dim=4",
    "ngcf": "ngcf:dim=4",
    "multvae": "multvae:hidden=8,latent=4",
    "popularity": "popularity",
    "turbocf": "turbocf",
    "ease": "ease",
    "itemknn": "itemknn",
}


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    out = tmp_path_factory.mktemp("open") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "curves", lambda *_: None)
        compared(data, out, "--quiet", methods=",".join(SMALL.values()), seeds="1", epochs="2")
    return out / "runs"


def folder(runs: Path, method: str) -> Path:
    (found,) = [path for path in runs.iterdir() if path.name.startswith(method)]
    return found


def test_every_centralized_model_is_opened() -> None:
    assert {"fedgrec", *MODELS} == set(SMALL)


@pytest.mark.parametrize("method", SMALL)
def test_a_run_is_evaluated_and_recommends(capsys: Any, runs: Path, data: Path, method: str, tmp_path: Path) -> None:
    run = folder(runs, method)
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    again, result = json.loads(capsys.readouterr().out), json.loads((run / "result.json").read_text())
    assert again == {key: result[key] for key in again}
    assert "recall@20" in again

    assert cli.main(["recommend", str(run), "--user", "ann3", "-n", "48", "--json"]) == 0
    shown = [line["item"] for line in json.loads(capsys.readouterr().out)]
    has = {line.split(",")[1] for line in data.read_text().splitlines() if line.startswith("ann3,")}
    assert set(shown) == {f"book{i}" for i in range(48)} - has  # held-out items are not recommended either

    without_vectors = method in ("turbocf", "ease", "itemknn", "multvae")
    assert cli.main(["export", str(run), "--page", str(tmp_path / "page")]) == (2 if without_vectors else 0)
    assert (f"scores of {method} are no inner products" in capsys.readouterr().err) == without_vectors
    table = tmp_path / "lists.csv"
    assert cli.main(["recommend", str(run), "--all", "--out", str(table), "-n", "48"]) == 0
    with table.open() as file:
        rows = [row for row in csv.DictReader(file) if row["user"] == "ann3"]
    assert [row["item"] for row in rows] == shown
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, len(rows) + 1)]


@pytest.mark.parametrize("method", MODELS)
def test_lists_follow_the_models_own_scores(runs: Path, method: str, tmp_path: Path) -> None:
    run = folder(runs, method)
    model, inner = FedGRec.load(run), load(run)
    ids, scores = model.recommend("ann3", N=48, filter_already_liked_items=False)
    own = inner.scores(np.array([inner.train.user_ids.index("ann3")]))[0]
    np.testing.assert_allclose(scores, np.sort(own)[::-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores, own[[inner.train.item_ids.index(i) for i in ids]], rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "again")
    assert FedGRec.load(tmp_path / "again").recommend("ann3")[0].tolist() == model.recommend("ann3")[0].tolist()


def test_what_a_model_cannot_do_is_said(capsys: Any, runs: Path, data: Path) -> None:
    lightgcn, popularity, turbocf = (str(folder(runs, name)) for name in ("lightgcn", "popularity", "turbocf"))
    assert cli.main(["recommend", lightgcn, "--similar", "book3"]) == 0
    capsys.readouterr()
    assert "no inner products" in refused(capsys, "recommend", turbocf, "--similar", "book3")
    assert "none is more like another" in refused(capsys, "recommend", popularity, "--similar", "book3")
    assert "no inner products" in refused(capsys, "recommend", turbocf, "--items", "book3")
    assert "no inner products" in refused(capsys, "evaluate", turbocf, "--data", str(data))


def test_newcomers_are_folded_in(capsys: Any, runs: Path, data: Path) -> None:
    """Everybody gets the most popular books from `popularity`, a newcomer too."""
    popularity = folder(runs, "popularity")
    assert cli.main(["recommend", str(popularity), "--items", "book3", "-n", "47", "--json"]) == 0
    shown = [line["item"] for line in json.loads(capsys.readouterr().out)]
    inner = load(popularity)
    degrees = dict(zip(inner.train.item_ids, inner.train.degrees().tolist(), strict=True))
    assert [degrees[item] for item in shown] == sorted((n for i, n in degrees.items() if i != "book3"), reverse=True)
    assert cli.main(["evaluate", str(folder(runs, "lightgcn")), "--data", str(data), "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["recall@20"] <= 1


def test_runs_of_before_still_recommend(capsys: Any, runs: Path, tmp_path: Path) -> None:
    """Version 0.2 kept no split, and only the train pairs of what people have."""
    old = Path(shutil.copytree(folder(runs, "mf-bpr"), tmp_path / "old"))
    (old / "split.safetensors").unlink()
    assert cli.main(["recommend", str(old), "--user", "ann3"]) == 0
    capsys.readouterr()
    assert "did not keep its split: its figures are in result.json" in refused(capsys, "evaluate", str(old))
    whole = (old / "model.safetensors").read_bytes()
    (old / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "model.safetensors" in refused(capsys, "recommend", str(old), "--user", "ann3")
    (old / "model.safetensors").unlink()
    assert "has no model yet" in refused(capsys, "recommend", str(old), "--user", "ann3")
