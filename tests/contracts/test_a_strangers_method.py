"""A third-party method, whose second state field takes part in ranking, with every command of the program."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec import FedGRec, cli
from fedgrec.federation.in_process.replay import states
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.store import NodeStore
from fedgrec.model import Model
from fedgrec.options import METHODS
from tests.cli.small import clicks
from tests.federation.worlds import world


@pytest.fixture(autouse=True)
def _one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "stranger", "examples.own_method")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clicks(tmp_path_factory.mktemp("data") / "clicks.csv")


def listed(capsys: Any, *words: str) -> list[Any]:
    capsys.readouterr()
    assert cli.main(["recommend", *words, "-n", "20", "--json"]) == 0
    return [line["item"] for line in json.loads(capsys.readouterr().out)]


def test_train_recommend_evaluate_report_final(data: Path, tmp_path: Path, capsys: Any) -> None:
    run, quick = str(tmp_path / "run"), ["--method", "stranger", "--rounds", "8", "--evaluate-every", "2", "--quiet"]
    assert cli.main(["train", "--data", str(data), "--out", run, *quick]) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    model = Model.load(run)
    user = model.user_ids.parse("ann3")
    scores = model.method.scores(model.server, model.users)[user]
    wanted = [t for t in np.argsort(-scores, kind="stable").tolist() if t not in model.seen(user)][:20]
    found = listed(capsys, run, "--user", "ann3")
    assert found == [model.item_ids[t] for t in wanted]
    assert cli.main(["evaluate", run, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert {key: result[key] for key in again} == again  # the chosen round's users, all of their state
    assert cli.main(["train", "--final", run, "--quiet"]) == 0
    assert FedGRec.load(f"{run}-final").recommend("ann3", N=20)[0].tolist() == listed(
        capsys, f"{run}-final", "--user", "ann3"
    )


def test_compare(data: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--methods", "stranger:rounds=6,popularity", "--data", str(data), "--seeds", "1", "--out", str(tmp_path)]
    assert cli.main(["compare", *words]) == 0
    assert "stranger" in capsys.readouterr().out


def test_federation_and_device(tmp_path: Path) -> None:
    """The federation equals its simulation in every field of the state, and a node ranks by all fields."""
    home = world(tmp_path, "stranger")
    home.run()
    assert home.is_its_simulation()
    state = states(home.nodes)[0]
    with NodeStore(home.nodes[0]) as store:
        users = store.ids()
        own = [store.cohort(_method(), [store.row_of(user)]).items for user in users]
        own = [np.concatenate([mine, *store.held_out([store.row_of(u)])]) for mine, u in zip(own, users, strict=True)]
    tables = home.model().items[0]
    for place, user in enumerate(users):
        scores = tables @ (state.embeddings[place, 0] * state.weights[place])
        wanted = [t for t in np.argsort(-scores, kind="stable").tolist() if t not in own[place]][:20]
        assert recommend(home.nodes[0], user, 20)[0].tolist() == wanted


def _method() -> Any:
    from examples.own_method import Options, make

    return make(Options(dim=4, users_per_round=12, negatives=8), 30, 18)
