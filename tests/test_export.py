"""The table of a page: the arithmetic that the page does, against Eq. (6), against the model itself, and by hand."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import cli
from fedgrec.config.configuration import Config
from fedgrec.config.options import METHODS, method_module
from fedgrec.data import IdMap, Interactions
from fedgrec.errors import DiskError, FedgrecError, RunError
from fedgrec.methods.contract import make_method
from fedgrec.models.model import Model
from fedgrec.pages.export import ItemTable, write_page
from fedgrec.pages.export.table import SHARES, Rows, Table, agreement
from fedgrec.runs.simulation import Simulation
from tests.disks import a_disk


def invented(n_items: int = 400, users: int = 60, **changes: Any) -> Model:
    """A model whose tables are random, in directions that items share: nothing is trained."""
    config = Config().changed({"data": "clicks.csv", **changes}, "test")
    method, rng = method_module(config.method).make(config.model, n_items, users), np.random.default_rng(0)
    server = method.init(0)
    shared = rng.normal(size=(*server.items.shape[:-2], 12, server.items.shape[-1]))
    rows = rng.normal(size=(n_items, 12)) @ shared
    server = replace(server, items=rows.astype(np.float32), degrees=rng.integers(1, 90, n_items), round=7)
    if config.method == "fcf":
        server.more["gram"] = server.items[0].T @ server.items[0]
    pairs = [(u, i) for u in range(users) for i in rng.choice(n_items, rng.integers(1, 20), replace=False).tolist()]
    known = Interactions.from_pairs(*zip(*pairs, strict=True), user_ids=IdMap.range(users, "user"),
                                    item_ids=IdMap.range(n_items))  # fmt: skip
    cohort = method.init_users(np.zeros(users, np.uint64), known.indptr, known.items)
    return Model.of(config, server, cohort, known)


KINDS: list[dict[str, Any]] = [
    {},
    {"download": "float32"},
    {"download": "float32", "message_passing": "mean", "combine": "last"},
    {"combine": "concat", "live": False, "similarity": "inner"},
    {"method": "spectral", "dim": 24},
    {"method": "fedgnn"},
    {"method": "two-parts"},
    {"method": "ordered", "dim": 24},
    {"method": "ordered-parts", "dim": 24},
]


def share_by_trial(model: Model) -> str:
    """The weight share(n) of each of n items in a stranger's vector; "" if the vector is no sum over items."""
    rng, n_items = np.random.default_rng(0), len(model.item_ids)
    people = [rng.choice(n_items, n, replace=False).astype(np.int32) for n in (1, 2, 3, 5, 9)]
    indptr, joined = np.cumsum([0, *map(len, people)]), np.concatenate(people)
    whole = model.new_user_vectors(indptr, joined).astype(np.float64)
    each = model.new_user_vectors(np.arange(len(joined) + 1), joined).astype(np.float64)
    later = np.concatenate([np.arange(len(person))[::-1] for person in people])
    alone = np.add.reduceat(each * model.recency ** later[:, None], indptr[:-1], axis=0)
    for name, share in SHARES.items():
        sums = alone * np.array([share(len(person)) for person in people])[:, None]
        if np.allclose(sums, whole, rtol=1e-3, atol=1e-4 * np.abs(whole).max()):
            return name
    return ""


@pytest.mark.parametrize(
    "options",
    [
        *({"method": name} for name in METHODS if make_method(name).inner_product),
        *KINDS,
        {"ranking": "cosine"},
        {"message_passing": "mean"},
        {"method": "fedgnn", "message_passing": "root"},
        {"method": "fedgnn", "message_passing": "symmetric"},
        {"method": "fedgnn", "own": 1.0},
    ],
    ids=str,
)
def test_the_declared_share_is_the_one_that_a_trial_finds(options: dict[str, Any]) -> None:
    model = invented(**options)
    assert model.share == share_by_trial(model)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_table_ranks_as_the_model_does(options: dict[str, Any]) -> None:
    """Scores are those of Eq. (6), up to the rounding of the table; lists share at least 19 of 20 items."""
    model = invented(**options)
    table, picked = ItemTable.of(model), np.array([3, 17, 40, 5], np.int32)
    best, scores = table.recommend(picked, 400)
    exact = (model.new_user_vector(picked) @ model.item_vectors().T)[0]
    np.testing.assert_allclose(scores, exact[best], atol=0.02 * np.abs(exact).max())
    shared, people = agreement(model, table)
    assert (shared >= 19) & (people == 50)


def test_a_table_that_travelled_in_eight_bits_loses_nothing() -> None:
    model = invented()
    assert agreement(model, ItemTable.of(model))[0] == 20
    exact = model.method.represent_items(model.server)
    rows = Rows.rounded(exact)
    np.testing.assert_allclose(rows.whole * rows.scales[:, None], exact, rtol=1e-6)


def test_spectral_has_one_table_for_both_sides() -> None:
    table = ItemTable.of(invented(method="spectral")).tables[0]
    assert table.gives.whole is table.ranks.whole


def test_a_score_by_hand() -> None:
    """Two items picked: s_t = (a·b_t·⟨g, r_t⟩ + …)/√2; of equal scores the lower item number is first."""
    ranks = Rows(np.array([[1, 0], [0, 2], [4, 4], [0, 2], [1, 1]], np.int8), np.array([1, 0.5, 1, 0.5, 9], np.float32))
    gives = Rows(np.array([[3, 1], [0, 0], [1, -1], [0, 0], [0, 0]], np.int8), np.ones(5, np.float32))
    table = ItemTable((Table(0.0, gives, ranks),), "root", np.array([0, 0, 0, 0, 1], bool))
    items, scores = table.recommend(np.array([2, 0]))
    assert items.tolist() == [1, 3]
    np.testing.assert_allclose(scores, np.array([0.5 * (2 - 2)] * 2) / np.sqrt(2))
    items, scores = table.recommend(np.array([0]))
    assert items.tolist() == [2, 1, 3]
    assert scores.tolist() == [16, 1, 1]


def test_coarser_tables_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation for the law of 19 in 20: four levels are too few."""
    monkeypatch.setattr("fedgrec.pages.export.table.LEVELS", 4)
    model = invented(download="float32")
    assert agreement(model, ItemTable.of(model))[0] < 19


@pytest.mark.parametrize("options", [{"method": "fcf", "dim": 8}, {"ranking": "cosine"}, {"method": "fedmf"}], ids=str)
def test_where_vectors_are_no_sums_the_page_adds_up_shares_that_come_near(options: dict[str, Any]) -> None:
    """The page ranks as `fold_in` does, up to the rounding of the table."""
    model, picked = invented(users=200, **options), np.array([3, 17, 40])
    model.users.state.embeddings[:] = np.random.default_rng(1).normal(size=model.users.state.embeddings.shape)
    table = ItemTable.of(model)
    best, scores = table.recommend(picked, 400)
    exact = model.item_vectors() @ model.item_shares[picked].sum(axis=0) / np.sqrt(3)
    np.testing.assert_allclose(scores, exact[best], atol=0.03 * np.abs(exact).max())


def test_a_model_without_item_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedgrecError, match="scores of fedncf are no inner products"):
        write_page(invented(60, 12, method="fedncf"), tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_closed_items_are_never_shown() -> None:
    model = invented(method="spectral")
    is_open = np.arange(400) % 3 > 0
    model.server.more["open"] = is_open.astype(np.float32)
    table = ItemTable.of(model)
    assert is_open[table.recommend(np.array([1, 2, 3]), 400)[0]].all()
    assert agreement(model, table)[0] >= 19


def test_a_diverged_model_says_so(tmp_path: Path) -> None:
    model = invented()
    model.server.items[0, 0, 0] = np.nan
    with pytest.raises(FedgrecError, match="training diverged"):
        write_page(model, tmp_path / "page")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    model, mine = invented(60, 12, data="clicks <{count}>.csv.gz"), tmp_path / "mine"
    mine.mkdir()
    (mine / "index.html").write_text("my own page")
    with pytest.raises(RunError, match="is not empty and holds no earlier page: choose another --page"):
        write_page(model, mine)
    assert [path.name for path in mine.iterdir()] == ["index.html"]
    first = write_page(model, tmp_path / "new" / "page")
    before = {path.name: path.read_bytes() for path in first.path.parent.iterdir()}
    write_page(model, first.path.parent)
    assert "<h1>Recommendations: clicks &lt;{count}&gt;</h1>" in before["index.html"].decode()
    assert {path.name: path.read_bytes() for path in first.path.parent.iterdir()} == before
    assert set(before) == {"index.html", "page.js", "ranking.js", "page.css", "items.js"}
    assert first.page_bytes < 100_000


def test_a_page_that_does_not_fit_the_disk_leaves_nothing(tmp_path: Path) -> None:
    """Otherwise what is there would be no page, and the same command would refuse to write over it."""
    with a_disk(tmp_path / "disk", "48k") as disk:
        (disk / "pad").write_bytes(bytes(32 * 1024))
        with pytest.raises(DiskError, match="the disk is full"):
            write_page(invented(60, 12), disk / "page")
        assert not list((disk / "page").iterdir())
        (disk / "pad").unlink()
        write_page(invented(60, 12), disk / "page")


def test_where_few_items_are_left_the_page_loses_none_by_that() -> None:
    model = invented(22, 9)
    assert (len(model.item_ids) - model.users.degrees < 20).any()
    assert agreement(model, ItemTable.of(model))[0] == 20


def test_the_run_of_a_federations_server_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has items and no users."""
    invented(60, 12).save(tmp_path / "run")
    for name in ("users.json", "users.safetensors"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "data.json").write_text('{"protocol": "federation"}')
    assert cli.main(["export", str(tmp_path / "run"), "--page", str(tmp_path / "page")]) == 0
    assert "the page shows 20.00: the mean over 50 people" in " ".join(capsys.readouterr().out.split())
    assert "Recommendations: a federation" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.slow
def test_gowalla_in_eight_bits_is_gowalla() -> None:
    """Four sums of `spectral`; its item table has 512 numbers a row."""
    if not (Path(os.environ.get("FEDGREC_DATA") or "/nonexistent") / "gowalla").is_dir():
        pytest.skip("FEDGREC_DATA names no folder with gowalla")
    model = Simulation(Config().changed({"data": "gowalla", "method": "spectral"}, "test")).run()
    shared, _ = agreement(model, ItemTable.of(model))
    assert shared >= 19
