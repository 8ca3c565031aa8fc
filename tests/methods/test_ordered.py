"""Ordered: sums over what follows what lead to the singular vectors of T; without order, or recency, lists differ."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, ServerState
from fedgrec.cli import main
from fedgrec.config.configuration import Config
from fedgrec.data.datasets import load
from fedgrec.kernels import cpu, reference
from fedgrec.methods.contract import DEGREES
from fedgrec.methods.ordered import Options, OrderedMethod
from fedgrec.models.model import Model
from fedgrec.models.recommender import Seen
from fedgrec.runs.simulation import Simulation
from fedgrec.serve.questions import answer
from fedgrec.serve.shelf import open_folder

N = 12
THREE = [[3, 0, 2], [2, 3], [1]]
EXACT = {"precision": "float64", "item_levels": 0, "download": "float32", "spare": 2, "longest": 1}


def walks(people: int = 80, length: int = 6) -> list[list[int]]:
    """Everybody goes round the circle of N items, each step one item further or, in a third of all cases, two."""
    rng = np.random.default_rng(0)
    return [
        list(dict.fromkeys(((rng.integers(N) + np.cumsum(rng.choice([1, 1, 2], length))) % N).tolist()))
        for _ in range(people)
    ]


def method_of(people: list[list[int]], n_items: int = N, kernel: Any = reference, **changes: Any) -> OrderedMethod:
    return OrderedMethod(Options(**EXACT | {"dim": 6} | changes), n_items, len(people), kernel)


def cohort_of(method: OrderedMethod, people: list[list[int]]) -> Cohort:
    keys = np.arange(len(people), dtype=np.uint64)
    pairs = np.cumsum([0, *map(len, people)]), np.concatenate(people)
    return replace(method.strangers(*pairs), keys=keys)


def trained(method: OrderedMethod, users: Cohort, rounds: int = 4) -> ServerState:
    server = method.init(0)
    for stage in (DEGREES, *map(method.training, range(rounds))):
        total, _ = method.local_update(users, stage, method.broadcast(server, stage))
        server = method.apply(server, stage, total)
    return server


def dense(people: list[list[int]], o: Options, n_items: int = N) -> np.ndarray:
    """T by its definition, pair by pair."""
    T, edges = np.zeros((n_items, n_items)), sum(map(len, people))
    for mine in people:
        for i, a in enumerate(mine):
            for j, b in enumerate(mine):
                if i != j:
                    weight = o.decay ** (abs(j - i) - 1) * (1 if j > i else o.back)
                    T[a, b] += weight / np.sqrt(len(mine) + o.shift * edges / len(people))
    n = np.bincount(np.concatenate(people), minlength=n_items).clip(1) + o.shift * edges / n_items
    return T / np.sqrt(np.outer(n, n))


def test_three_users_by_hand() -> None:
    """γ = .5, b = .2, no shift; items have 1, 1, 2 and 2 users."""
    method = method_of(THREE, 4, decay=0.5, back=0.2, shift=0.0, dim=2)
    users, stage, degrees = cohort_of(method, THREE), method.stages[-1], np.array([1, 1, 2, 2])
    server = trained(method, users, 0)
    sums = []
    for round_ in (0, 1):
        broadcast = replace(method.broadcast(server, stage), round=round_, tables=np.eye(4)[None])
        alone = [method.local_update(users.take(np.array([u])), stage, broadcast)[0] for u in range(3)]
        words = np.concatenate([upload.leaves["items"].values for upload in alone])
        sums.append(words * method.spec(stage).leaf("items").step * np.sqrt(degrees))  # D of the columns taken back
    r3, r2 = 1 / np.sqrt(3), 1 / np.sqrt(2)
    # The rows of user 0 are items 0, 2, 3; it took 3, then 0, then 2. User 1 has 2, 3, in this order. User 2 has 1.
    from_ = [
        [0, 0, r3, 0.2 * r3], [0.2 * r3, 0, 0, 0.5 * 0.2 * r3], [r3, 0, 0.5 * r3, 0],
        [0, 0, 0, r2], [0, 0, 0.2 * r2, 0], [0, 0, 0, 0],
    ]  # fmt: skip
    to = [
        [0, 0, 0.2 * r3, r3], [r3, 0, 0, 0.5 * r3], [0.2 * r3, 0, 0.5 * 0.2 * r3, 0],
        [0, 0, 0, 0.2 * r2], [0, 0, r2, 0], [0, 0, 0, 0],
    ]  # fmt: skip
    np.testing.assert_allclose(sums[0], from_, atol=1e-4)  # words end at 2⁻¹³
    np.testing.assert_allclose(sums[1], to, atol=1e-4)


def test_users_whose_order_nobody_knows_have_one_weight_for_all_pairs() -> None:
    people = walks(5)
    for kernel in (reference, cpu):
        method = method_of(people, kernel=kernel)
        users, stage = replace(cohort_of(method, people), order=None), method.stages[-1]
        broadcast = method.broadcast(trained(method, users, 0), stage)
        values = method.local_update(users, stage, broadcast)[0].leaves["items"].values
        alike = dense(people, replace(method.options, decay=1.0, back=1.0)) * (1 + method.options.back) / 2
        n = np.bincount(np.concatenate(people), minlength=N) + method.options.shift * len(users.items) / N
        wanted = (alike @ broadcast.tables[0]) * np.sqrt(n)[:, None]  # the server divides by √n
        step = method.spec(stage).leaf("items").step
        np.testing.assert_allclose(values * step, wanted[wanted.any(axis=1)], atol=len(people) * step)


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_sums_lead_to_both_sides_of_the_singular_vectors_and_scores_are_the_formula(kernel: Any) -> None:
    people = walks()
    method = method_of(people, kernel=kernel)
    users = cohort_of(method, people)
    server, T = trained(method, users, 40), dense(people, method.options)
    U, sigma, Vt = np.linalg.svd(T)
    k, o = 6, method.options
    left, right = method.given(server), method.leading(server)
    wanted = U[:, :k] * sigma[:k] @ Vt[:k]
    np.testing.assert_allclose(left * sigma[:k] @ right.T, wanted, atol=1e-4)  # words end at 2⁻¹⁶
    n = np.bincount(np.concatenate(people), minlength=N) + o.shift * len(users.items) / N
    for u, mine in enumerate(people[:5]):
        vector = sum(o.recency**k * n[s] ** -o.exponent * left[s] for k, s in enumerate(reversed(mine)))
        expected = right * n[:, None] ** o.item_exponent @ vector
        np.testing.assert_allclose(method.scores(server, users.take(np.array([u])))[0], expected, atol=1e-9)


@pytest.mark.parametrize("levels", [0, 7])
def test_kernels_send_the_same_words(levels: int) -> None:
    people, precision = walks(), "float32" if levels else "float64"
    sent = []
    for kernel in (reference, cpu):
        method = method_of(people, kernel=kernel, precision=precision, item_levels=levels)
        users, server = cohort_of(method, people), trained(method, cohort_of(method, people), 3)
        total, pending = method.local_update(users, method.training(3), method.broadcast(server, method.training(3)))
        sent.append((total.leaves["items"].values, pending.clipped))
    np.testing.assert_array_equal(*(values for values, _ in sent))
    assert sent[0][1] == sent[1][1]


def test_no_word_is_larger_than_the_levels_of_those_who_have_the_item() -> None:
    """Also where most words are cut, because the step is far too small."""
    people = walks()
    method, users = method_of(people, item_levels=7, precision="float32"), cohort_of(method_of(people), people)
    server = trained(method, users, 1)
    server.items *= 50
    total, pending = method.local_update(users, method.training(1), method.broadcast(server, method.training(1)))
    rows = total.leaves["items"]
    assert pending.clipped > 100
    assert (np.abs(rows.values) <= 7 * server.degrees[rows.index, None]).all()


def test_no_word_of_32_bits_is_ever_cut() -> None:
    """Columns of length 1 at their worst: all of it on one item, or spread over those of one user."""
    people = [list(range(N))] * 3 + [[0, 1]]
    for changes in ({}, {"decay": 1.0, "back": 1.0, "shift": 0.0}):
        method = method_of(people, **changes)
        users, server = cohort_of(method, people), trained(method, cohort_of(method, people), 2)
        for table in (np.eye(N)[:, : method.width], np.full((N, method.width), N**-0.5)):
            server.items = np.ascontiguousarray(table[None])
            _, pending = method.local_update(users, method.training(2), method.broadcast(server, method.training(2)))
            assert pending.clipped == 0


@pytest.mark.parametrize("kernel", [reference, cpu])
def test_users_alone_send_what_they_send_together(kernel: Any) -> None:
    """In whatever number of threads."""
    people = walks()
    method = method_of(people, kernel=kernel, precision="float32", item_levels=7)
    users, server = cohort_of(method, people), trained(method, cohort_of(method, people), 2)
    broadcast, stage = method.broadcast(server, method.training(2)), method.training(2)
    whole = method.local_update(users, stage, broadcast)[0].to_ring(method.spec(stage))
    cpu.use_threads(1)
    alone = [method.local_update(users.take(np.array([u])), stage, broadcast)[0] for u in range(len(users))]
    cpu.use_threads(0)
    np.testing.assert_array_equal(whole, sum(one.to_ring(method.spec(stage)) for one in alone))


# ------------------------------------------------------------------------------------ order from files


def table(folder: Path, people: list[list[int]]) -> Path:
    """A .csv with the circle's walks; equal times, so that the file's order decides, but for the last item."""
    lines = ["user,item,time"]
    for user, mine in enumerate(people):
        lines += [f"u{user},i{item},{int(place == len(mine) - 1)}" for place, item in enumerate(mine)]
    path = folder / "walks.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run_on(path: Path, out: Path | None = None, **values: Any) -> Simulation:
    usual = {"method": "ordered", "split": "last", "protocol": "paper", "dim": 6, "spare": 2, "topk": (1,)}
    run = Simulation(Config().changed({"data": str(path), **usual, **values}, "test"), out=out)
    run.run()
    return run


def test_order_tells_what_comes_next_and_without_it_or_recency_less_is_known(tmp_path: Path) -> None:
    """The mutants: the order reversed, no recency, no order at all."""
    people = walks(400)
    path = table(tmp_path, people)
    run = run_on(path)
    ordered = run.result()["recall@1"]
    assert ordered > 0.45
    assert run_on(path, recency=1.0).result()["recall@1"] < 0.8 * ordered
    turned = replace(run.users, order=run.users.degrees[run.users.owner] - 1 - run.users.order)
    test, split = run.dataset.split.test, run.dataset.split
    lists = np.argsort(-np.where(split.train.to_scipy().toarray() > 0, -np.inf, run.method.scores(run.server, turned)))
    assert (lists[test.users(), 0] == test.items).mean() < 0.5 * ordered
    blind = Simulation(run.config, replace(run.dataset, split=replace(split, train=replace(split.train, times=None))))
    blind.run()
    assert blind.users.order is None
    assert blind.result()["recall@1"] < 0.8 * ordered


def test_a_stranger_with_the_same_sequence_is_shown_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, on the command line and over HTTP."""
    run = run_on(table(tmp_path, walks()), tmp_path / "run")
    model, train = Model.load(tmp_path / "run"), run.dataset.split.train
    mine = train.in_order()[train.indptr[3] : train.indptr[4]]
    member = model.user_vectors(np.array([3]))
    np.testing.assert_array_equal(model.new_user_vector(mine), member)
    assert not np.allclose(model.new_user_vector(mine[::-1]), member)
    taken = [str(model.item_ids[item]) for item in mine]
    for shown in (told(tmp_path / "run", taken, capsys), served_to(tmp_path / "run", taken)):
        assert shown == [model.item_ids[item] for item in model.lists_for(member, 3, Seen.of([mine]))[0][0]]
    assert told(tmp_path / "run", taken[::-1], capsys) != shown


def told(run: Path, items: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `fedgrec recommend --items` shows."""
    capsys.readouterr()
    assert not main(["recommend", str(run), "--items", ",".join(items), "-n", "3", "--json"])
    return [line["item"] for line in json.loads(capsys.readouterr().out)]


def served_to(run: Path, items: list[str]) -> list[str]:
    return [line["item"] for line in answer(open_folder(run), "/recommend", {"items": items, "k": 3}, None)["items"]]


def test_a_test_item_follows_the_validation_item(tmp_path: Path) -> None:
    """At test time people rank by all that they had before, in its order."""
    run = run_on(table(tmp_path, walks()), protocol="honest")
    split, users = run.dataset.split, run.users
    seen = split.before_test
    mine = seen.in_order()[seen.indptr[3] : seen.indptr[4]]
    assert mine[-1] == split.validation.of(3)[0]
    with_it = replace(users, indptr=seen.indptr, items=seen.items).ordered_by(seen.times)
    lists = np.argsort(-np.where(seen.to_scipy().toarray() > 0, -np.inf, run.method.scores(run.server, with_it)))
    hits = (lists[split.test.users(), 0] == split.test.items).mean()
    assert run.result()["recall@1"] == pytest.approx(hits)


def test_places_follow_times_then_the_file_and_a_txt_is_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item,time\nx,c,7\nx,b,5\nx,a,5\ny,a,9\nx,d,5\n", encoding="utf-8")
    data = load(tmp_path / "a.csv", split="all", order=True).split.train
    named = [data.item_ids[item] for item in data.in_order()]
    assert named == ["b", "a", "d", "c", "a"]
    (tmp_path / "a.txt").write_text("0 4 2 9\n1 3 1\n", encoding="utf-8")
    assert load(tmp_path / "a.txt", split="all", order=True).split.train.in_order().tolist() == [4, 2, 9, 3, 1]
    assert load(tmp_path / "a.txt", split="all").split.train.times is None
    last = load(tmp_path / "a.txt", split="last").split
    assert last.test.items.tolist() == [9, 1]


def test_without_times_there_is_no_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,item\nx,c\nx,b\ny,a\n", encoding="utf-8")
    assert load(tmp_path / "a.csv", split="all", order=True).split.train.times is None


# ------------------------------------------------------------------------------------ beside sums without order


def test_ordered_parts_are_both_methods_standardised_and_added(tmp_path: Path) -> None:
    """Each part is what its method alone finds by the same sums; the blend counts the one without order."""
    path, exact = table(tmp_path, walks()), {"item_levels": 0, "download": "float32", "precision": "float64"}
    both = run_on(path, method="ordered-parts", **exact)
    alone = [run_on(path, method=method, **exact) for method in ("ordered", "spectral")]
    scores = [run.method.scores(run.server, both.users) for run in alone]
    z_ordered, z_summed = (
        (part - part.mean(axis=1, keepdims=True)) / part.std(axis=1, keepdims=True) for part in scores
    )
    found = both.method.scores(both.server, both.users)
    np.testing.assert_allclose(found, z_ordered + both.config.model.blend * z_summed, atol=1e-3)
    assert np.abs(found - z_ordered).max() > 0.5
    person = both.users.take(np.array([3]))
    own, rows = both.method.explained(both.method.as_ranked(both.server), person)
    vector = both.method.represent_users(both.server, person)
    np.testing.assert_allclose(own + rows.sum(axis=0), vector, atol=1e-9)


def test_ordered_parts_know_what_comes_next_too(tmp_path: Path) -> None:
    path = table(tmp_path, walks(400))
    found = {name: run_on(path, method=name).result()["recall@1"] for name in ("ordered-parts", "ordered", "spectral")}
    assert found["ordered-parts"] > 1.5 * found["spectral"]
    assert found["ordered-parts"] > 0.9 * found["ordered"]


def test_ordered_parts_without_a_sum_that_knows_order_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a run, by a federation that is made, and by a server whose file was changed later."""
    path, words = str(table(tmp_path, walks())), ["--method", "ordered-parts", "--data"]
    assert main(["train", *words, path, "--rounds", "4"]) == 2
    assert "rounds = 4: the first 4 (sums) know no order" in capsys.readouterr().err
    fed = tmp_path / "fed"
    assert main(["federation", "init", "--out", str(fed), *words, path, "--set", "sums=8"]) == 2
    assert "rounds = 8: the first 8 (sums) know no order" in capsys.readouterr().err
    assert not fed.exists()
    assert not main(["federation", "init", "--out", str(fed), *words, path])
    options = fed / "server" / "federation.toml"
    options.write_text(options.read_text().replace("rounds = 8", "rounds = 3", 1))
    capsys.readouterr()
    assert main(["federation", "server", str(fed / "server")]) == 2
    assert "rounds = 3: the first 4 (sums) know no order" in capsys.readouterr().err
