"""Third-party methods, with every command of the program: one whose second state field takes part in ranking, and one
that declares no ability, so that the program must say what it cannot do before anything is computed or written.
"""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgrec
from fedgrec import FedGRec, cli
from fedgrec.cli.configured import configuration
from fedgrec.config.options import METHODS, method_module
from fedgrec.errors import ConfigError, FedgrecError
from fedgrec.federation.node.person import recommend
from fedgrec.federation.node.store import NodeStore
from fedgrec.methods.contract import make_method
from fedgrec.models.model import Model
from tests.cli.small import clicks
from tests.federation.replay import states
from tests.federation.worlds import world


@pytest.fixture(autouse=True)
def _one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "stranger", "examples.own_method")
    monkeypatch.setitem(METHODS, "bare", "tests.contracts.bare_method")


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
    assert cli.main(["finish", run, "--quiet"]) == 0
    assert FedGRec.load(f"{run}-final").recommend("ann3", N=20)[0].tolist() == listed(
        capsys, f"{run}-final", "--user", "ann3"
    )


def test_its_own_option_is_in_the_help_and_in_the_list_and_is_a_flag(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--method", "stranger", "--help"])
    shown = capsys.readouterr().out
    assert "--rate X" in shown
    assert len(shown.splitlines()) <= 25
    assert cli.main(["options", "stranger"]) == 0
    assert "\n  rate = " in capsys.readouterr().out
    words = ["train", "--method", "stranger", "--rate", "0.25"]
    assert configuration(cli.parser(words).parse_args(words)).model.rate == 0.25


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


# --------------------------------------------------------------------------------------- without any ability

BARE = ["--method", "bare", "--set", "power=1", "--rounds", "4", "--evaluate-every", "2", "--quiet"]


@pytest.fixture(scope="module")
def bare(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("bare") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, "bare", "tests.contracts.bare_method")
        assert cli.main(["train", "--data", str(data), "--out", str(run), *BARE]) == 0
    return run


def test_an_option_of_its_own_and_scores_that_are_no_inner_products(bare: Path, capsys: Any) -> None:
    model = Model.load(bare)
    assert model.config.model.power == 1
    found = listed(capsys, str(bare), "--user", "ann3")
    state, user = model.users.state, model.user_ids.parse("ann3")
    away = np.linalg.norm(state.embeddings[user, 0] * state.weights[user] - model.server.items[0], axis=1)
    wanted = [t for t in np.argsort(away, kind="stable").tolist() if t not in model.seen(user)][:20]
    assert found == [model.item_ids[t] for t in wanted]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--set", "dp_epsilon=4"], "bare has no noise: dp_epsilon is there for fedgrec, spectral, fedmf, federank"),
        (["--set", "dp_epsilon=4", "--set", "dp_unit=interaction"], "users of bare have no decoys"),
        (["--set", "device=cuda"], "bare does not train on a GPU"),
        (["--set", "kernel=cpu"], "bare has no kernel 'cpu': choose one of auto, reference"),
        (["--kernel", "batched"], "kernel cannot be 'batched': choose auto"),
        (["--set", "power=9"], "power cannot be 9"),
    ],
)
def test_what_it_cannot_train_with_is_said_before_anything_is_written(
    words: list[str], sentence: str, data: Path, tmp_path: Path, capsys: Any
) -> None:
    assert cli.main(["train", "--data", str(data), "--out", str(tmp_path / "run"), *BARE, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_done_with_its_run_is_said_and_changes_nothing(
    bare: Path, data: Path, tmp_path: Path, capsys: Any
) -> None:
    before = {path: path.read_bytes() for path in bare.rglob("*") if path.is_file()}
    more = clicks(tmp_path / "more.csv", users=20)
    words = {
        f"grow {bare} --data {more}": "bare does not go on with other data, only fedgrec",
        f"export {bare} --page {tmp_path / 'page'}": "scores of bare are no inner products",
        f"recommend {bare} --items book1": "scores of bare are no inner products",
        f"audit --method bare --data {data} --quiet --out {tmp_path / 'audit'}": "bare does not say what its sums hold",
    }
    for line, sentence in words.items():
        capsys.readouterr()
        assert cli.main(line.split()) == 2, line
        assert sentence in capsys.readouterr().err
    with pytest.raises(FedgrecError, match="a score of bare is no sum over the person's items"):
        FedGRec.load(bare).explain("ann3", "book1")
    assert {path: path.read_bytes() for path in bare.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "page").exists()


def test_a_federation_says_it_before_there_is_a_folder(tmp_path: Path) -> None:
    for agreed, sentence in (
        ({"dp_epsilon": 1.0, "dp_unit": "interaction"}, "have no decoys"),
        ({"dp_epsilon": 1.0}, "has no noise"),
    ):
        with pytest.raises(FedgrecError, match=sentence):
            world(tmp_path, "bare", options=agreed)
        assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_options_that_are_no_method_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.contracts.bare_method.Options", dict)
    with pytest.raises(ConfigError, match="derive it from that"):
        method_module("bare")


# --------------------------------------------------------------------------------- nobody else knows a method

SRC = Path(fedgrec.__file__).parent
# Where a method is named, and why.
NAMED = {
    "__init__.py": "the public name FedGRecMethod",
    "config/options.py": "METHODS, and FedGRec's options",
    "config/configuration.py": "the default method",
    "cli/demo.py": "both parts, one by one",
    "cli/progress.py": "FedGRec's name as people write it",
    "cli/train.py": "the preset of the default method",
    "cli/tune.py": "the default method",
    "studies/reproduce/": "published tables",
}


def test_no_other_module_mentions_a_concrete_method() -> None:
    """No import of its module, no class of it, no comparison with its name, and no string that is its name.

    Except for `fedgrec` as a string, which is the program's name, too.
    """
    modules = {path.rpartition(".")[2] for name, path in METHODS.items() if path.startswith("fedgrec.")}
    modules |= {"fedgrec_uploads"}
    classes = {type(make_method(name)).__name__ for name in METHODS} - {"OwnMethod", "Bare"}
    names = set(METHODS) - {"stranger", "bare"} | classes
    for path in sorted(SRC.rglob("*.py")):
        place = path.relative_to(SRC).as_posix()
        if place.startswith("methods/") or any(place.startswith(known) for known in NAMED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            mentioned: set[str] = set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedgrec.methods"):
                last = (node.module or "").rpartition(".")[2]
                mentioned = ({last} | {alias.name for alias in node.names}) & (modules | classes)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                mentioned = {node.value} & (names - {"fedgrec"})
            elif isinstance(node, ast.Compare):
                mentioned = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)} & {"fedgrec"}
            elif isinstance(node, ast.Name | ast.Attribute):
                mentioned = {node.id if isinstance(node, ast.Name) else node.attr} & classes
            assert not mentioned, f"{place}:{getattr(node, 'lineno', 0)} knows {mentioned}: let the method declare it"
