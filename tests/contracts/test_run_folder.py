"""The files a run leaves are a contract: other tools read them by these names, shapes and keys."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from fedgrec.config.configuration import Config, options
from fedgrec.data.datasets import load_for
from fedgrec.data.files import write_tensors
from fedgrec.errors import RunError
from fedgrec.models.model import Model
from fedgrec.runs.resolve import resolved
from fedgrec.runs.simulation import Simulation
from tests.cli.small import QUICK, clicks, lines
from tests.test_documents import ROOT, python_blocks

K, d = QUICK["layers"], QUICK["dim"]
METRICS = [
    "round", "split", "protocol", "recall@20", "ndcg@20", "seconds",
    "bytes_up", "bytes_down", "bytes_up_secure", "bytes_down_secure",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("contract")
    config = Config().changed(QUICK | {"data": str(clicks(folder / "clicks.csv"))}, "test")
    dataset = load_for(config)
    simulation = Simulation(resolved(config, dataset), dataset, folder / "run")
    simulation.run()
    return simulation


def plain(metadata: dict[str, str]) -> dict[str, str]:
    """All of it but the digests."""
    return {name: value for name, value in metadata.items() if len(value) < 64}


def folder(run: Simulation) -> Path:
    assert run.record
    return run.record.folder


def tensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def shapes(found: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(value.dtype), value.shape) for name, value in found.items()}


def test_the_names_of_the_files(run: Simulation) -> None:
    names = {path.relative_to(folder(run)).as_posix() for path in folder(run).rglob("*") if path.is_file()}
    assert names == {
        "config.toml", "data.json", "users.json", "items.json", "server.safetensors", "users.safetensors",
        "split.safetensors", "metrics.jsonl", "result.json", "checkpoints/latest", "checkpoints/6/state.json",
        "checkpoints/6/state.safetensors",
    }  # fmt: skip


def test_config_is_whole_toml(run: Simulation) -> None:
    content = tomllib.loads((folder(run) / "config.toml").read_text())
    for option in options():
        assert option.name in content[option.group] or option.field.default is None
    assert content["model"]["layers"] == K
    assert content.pop("method") == "fedgrec"
    assert Config().changed({k: v for part in content.values() for k, v in part.items()}, "test") == run.config


def test_data_names_checksums_sizes_split_and_id_maps(run: Simulation) -> None:
    about, split = json.loads((folder(run) / "data.json").read_text()), run.dataset.split
    assert set(about) == {"name", "checksums", "sizes", "split", "id_maps", "notes"}
    assert set(about["checksums"]) == {"clicks.csv"}
    assert about["sizes"] == {
        "users": split.train.n_users, "items": split.train.n_items, "train": split.train.n_pairs,
        "validation": split.validation.n_pairs, "test": split.test.n_pairs,
    }  # fmt: skip
    for kind, ids in (("users", split.train.user_ids), ("items", split.train.item_ids)):
        kept = json.loads((folder(run) / about["id_maps"][kind]).read_text())
        assert kept == {"kind": kind[:-1], "ids": list(ids)}


def test_the_server_holds_item_tables_and_degrees(run: Simulation) -> None:
    found, metadata = tensors(folder(run) / "server.safetensors")
    N = run.dataset.split.train.n_items
    assert shapes(found) == {"item_embeddings": ("float32", (K + 1, N, d)), "item_degrees": ("int64", (N,))}
    np.testing.assert_array_equal(found["item_degrees"], run.dataset.split.train.degrees())
    assert plain(metadata) == {"method": "fedgrec", "round": str(run.progress.best_round)}
    assert metadata.keys() - plain(metadata) == {"digest", "config.toml", "users.json", "items.json"}


def test_the_users_are_kept_as_committed_with_their_train_items(run: Simulation) -> None:
    found, metadata = tensors(folder(run) / "users.safetensors")
    train = run.dataset.split.train
    assert shapes(found) == {
        "user_embeddings": ("float32", (K + 1, train.n_users, d)),
        "state.sent": ("float32", (train.n_users, K, d)),
        "state.moment1": ("float32", (train.n_users, d)),
        "state.moment2": ("float32", (train.n_users, d)),
        "state.steps": ("int64", (train.n_users,)),
        "keys": ("uint64", (train.n_users,)),
        "train_indptr": ("int64", (train.n_users + 1,)),
        "train_items": ("int32", (train.n_pairs,)),
        "seen_indptr": ("int64", (train.n_users + 1,)),  # all that people have: never recommended
        "seen_items": ("int32", (run.dataset.split.known.n_pairs,)),
    }
    np.testing.assert_array_equal(found["train_items"], train.items)
    assert plain(metadata) == {"method": "fedgrec", "round": str(run.progress.best_round)}
    assert metadata.keys() - plain(metadata) == {"digest", "config.toml", "users.json", "items.json"}


def test_the_split_says_which_pairs_are_in_which_part(run: Simulation) -> None:
    found, metadata = tensors(folder(run) / "split.safetensors")
    parts = {name: getattr(run.dataset.split, name) for name in ("train", "validation", "test")}
    assert found.keys() == {f"{name}_{kind}" for name in parts for kind in ("indptr", "items")}
    for name, part in parts.items():
        np.testing.assert_array_equal(found[f"{name}_indptr"], part.indptr)
        np.testing.assert_array_equal(found[f"{name}_items"], part.items)
    assert metadata.keys() == {"digest"}


def test_an_evaluation_never_stores_its_refresh(run: Simulation) -> None:
    assert run.config.model.evaluation_refresh
    before = run.users.state.copy()
    run.measure("test", run.dataset.split.test)
    for name, value in vars(before).items():
        np.testing.assert_array_equal(getattr(run.users.state, name), value)


def test_metrics_have_one_line_for_each_evaluation(run: Simulation) -> None:
    found = lines(folder(run) / "metrics.jsonl")
    assert [(line["round"], line["split"]) for line in found] == [
        (2, "validation"), (4, "validation"), (6, "validation"), (run.progress.best_round, "test")
    ]  # fmt: skip
    for line in found:
        assert set(METRICS) <= set(line)
        assert line["protocol"] == "honest"
    up = [line["bytes_up"] for line in found[:3]]
    assert up == sorted(up)
    assert len(set(up)) == 3


def test_the_result_is_the_test_line(run: Simulation) -> None:
    assert json.loads((folder(run) / "result.json").read_text()) == lines(folder(run) / "metrics.jsonl")[-1]


def test_a_checkpoint_holds_everything_to_resume(run: Simulation) -> None:
    place = folder(run) / "checkpoints" / (folder(run) / "checkpoints" / "latest").read_text().strip()
    found, metadata = tensors(place / "state.safetensors")
    M, N = run.dataset.split.train.n_users, run.dataset.split.train.n_items
    assert plain(metadata) == {"round": "6"}
    assert metadata.keys() - plain(metadata) == {"digest", "state.json"}
    assert shapes(found) == {
        "server.items": ("float32", (K + 1, N, d)), "server.degrees": ("int64", (N,)),
        "server.moment1": ("float32", (N, d)), "server.moment2": ("float32", (N, d)),
        "server.standing": ("int64", (K, N, d)),
        "users.embeddings": ("float32", (M, K + 1, d)), "users.sent": ("float32", (M, K, d)),
        "users.moment1": ("float32", (M, d)), "users.moment2": ("float32", (M, d)),
        "users.steps": ("int64", (M,)),
    }  # fmt: skip
    info = json.loads((place / "state.json").read_text())
    assert (info["round"], len(info["metrics"]), len(info["traffic"])) == (6, 3, 4)


def test_a_run_of_version_0_1_is_refused(run: Simulation, tmp_path: Path) -> None:
    """It kept no keys."""
    shutil.copytree(folder(run), tmp_path / "old")
    found, metadata = tensors(folder(run) / "users.safetensors")
    found.pop("keys")
    write_tensors(tmp_path / "old" / "users.safetensors", found, metadata)
    with pytest.raises(RunError, match=r"there is no 'keys'.*different runs or versions; restore them, or train again"):
        Model.load(tmp_path / "old")


@pytest.mark.parametrize("method", ["two-parts", "fedgrec"])
def test_the_pages_lines_of_numpy_give_the_lists(method: str, tmp_path: Path) -> None:
    """On the demo with default options; by the same lines without rounding, some list is another one."""
    config = Config().of(method).changed({"data": "demo", "rounds": 12, "validation": 0.0, "kernel": "auto"}, "test")
    simulation = Simulation(config, out=tmp_path / "RUN")
    model = simulation.run()
    page = "\n".join(python_blocks(ROOT / "docs" / "run-folder.md")).replace("RUN/", f"{tmp_path}/RUN/")
    users = np.arange(0, model.known.n_users, 50)
    ids, scores = model.lists(users, 20)

    def lists(lines: str) -> Any:
        found = []
        for user in users:
            names: dict[str, Any] = {"user": user}
            exec(lines, names)
            mine = np.asarray(names["scores"], np.float64)
            mine[model.seen(user)] = -np.inf
            found.append(np.argsort(-mine, kind="stable")[:20])
            if lines == page:
                np.testing.assert_allclose(mine[found[-1]], scores[len(found) - 1], rtol=2e-4, atol=2e-5)
        return np.array(found)

    assert lists(page).tolist() == ids.tolist()
    assert lists(page.replace("np.rint(rows / power) * power", "rows")).tolist() != ids.tolist()
