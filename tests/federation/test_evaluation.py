"""Users' own metrics are those of `fedgrec.models.ranking` for the same model."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedgrec.cable.core import Cohort, UploadSpec
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.packets import Packet
from fedgrec.federation.node import ranking
from fedgrec.federation.node.folder import TABLE, open_node
from fedgrec.federation.node.store import NodeStore
from fedgrec.models.ranking import Judging, evaluate
from fedgrec.runs.machine import judged
from tests.federation.local_transport import Answer
from tests.federation.meddlers import killed_after_writing, on
from tests.federation.worlds import World, world
from tests.slow_ranking import top_k_reference


def csr(rows: Sequence[np.ndarray]) -> SimpleNamespace:
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return SimpleNamespace(indptr=indptr, items=np.concatenate(rows).astype(np.int32))


def joined(parts: Sequence[Cohort]) -> Cohort:
    """All users of these cohorts, one after the other."""
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([part.degrees for part in parts]))])
    keys, items = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "items"))
    return Cohort(keys, indptr, items, type(parts[0].state).joined([part.state for part in parts]))


def judged_here(fed: World, nodes: Sequence[int]) -> dict[str, float]:
    """The metrics of the same users, all in one place, by the simulation's evaluation."""
    parts, held_out = [], list[np.ndarray]()
    method = open_node(fed.nodes[0]).method(18)
    for index in nodes:
        with NodeStore(fed.nodes[index]) as store:
            rows = store.first_rows(store.count())
            parts.append(store.cohort(method, rows))
            held_out += store.held_out(rows)
    users = joined(parts)
    seen = csr([users.items_of(u) for u in range(len(users))])
    result = judged(method, fed.judged_model(), users, seen, csr(held_out), Judging((5, 20)))
    return {**result.metrics, "users": result.users}


@pytest.mark.keep(2)
@pytest.mark.parametrize("method", ["fedgrec", "fcf", "fedncf"])
def test_federation_metrics_are_those_of_evaluate(tmp_path: Path, method: str) -> None:
    fed = world(tmp_path, method, options={"evaluations": 9, "topk": (5, 20)})
    fed.run()
    (line,), here = fed.witness.metrics, judged_here(fed, [0, 1, 2])
    assert line["users"] == here["users"] < 18, "some users have nothing held out"
    for name in ("recall@5", "ndcg@5", "recall@20", "ndcg@20"):
        assert line[name] == pytest.approx(here[name], abs=1e-6)
    assert line["recall@20"] > 0, "of 30 items two thirds"


def test_with_noise_the_metrics_are_those_of_evaluate_and_the_noise(tmp_path: Path) -> None:
    """The noise is so small that the metrics show through."""
    fed = world(tmp_path, options={"evaluations": 9, "topk": (5, 20), "evaluation_epsilon": 1e6})
    fed.run()
    (line,), here = fed.witness.metrics, judged_here(fed, [0, 1, 2])
    assert 0 < line["noise"] < 0.01
    assert line["users"] == here["users"]
    for name in ("recall@5", "ndcg@5", "recall@20", "ndcg@20"):
        assert line[name] == pytest.approx(here[name], abs=8 * line["noise"])


def test_users_whose_numbers_got_lost_are_not_in_the_mean(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"evaluations": 9, "topk": (5, 20)})
    fed.run(on("masked", 1, killed_after_writing, after=4))
    assert fed.applied("evaluate")[0]["included"] == [0, 2]
    (line,), here = fed.witness.metrics, judged_here(fed, [0, 2])
    assert line["users"] == here["users"]
    assert line["recall@5"] == pytest.approx(here["recall@5"], abs=1e-6)
    assert fed.is_its_simulation()


def test_an_evaluation_changes_nobody(tmp_path: Path) -> None:
    often = world(tmp_path / "often", options={"rounds": 3, "evaluate_every": 1})
    often.run()
    assert [line["round"] for line in often.witness.metrics] == [1, 2]
    assert often.is_its_simulation()  # the replay knows of no evaluations


def test_a_model_that_nodes_have_is_not_sent_again(tmp_path: Path) -> None:
    """An evaluation uses the model with which the previous training round began."""
    fed, came = world(tmp_path, options={"evaluate_every": 1}), list[tuple[str, bool]]()

    def looks(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if request.kind == "shares":
            came.append((request.header["plan"]["stage"], bool(request.arrays)))
        return [node(request)]

    fed.run(looks)
    assert {stage for stage, tables in came if tables} == {"degrees", "propagate", "train"}
    assert {stage for stage, tables in came if not tables} == {"evaluate"}
    assert len(fed.witness.metrics) == len(fed.applied("evaluate")) > 0


def test_a_node_that_has_lost_the_model_says_so_and_the_others_are_judged(tmp_path: Path) -> None:
    fed = world(tmp_path, options={"evaluations": 9})

    def forgets(address: int, request: Packet, node: Answer) -> Iterable[Packet]:
        if address == 1 and request.kind == "shares" and request.header["plan"]["stage"] == "evaluate":
            (fed.nodes[1] / TABLE).unlink()
        return [node(request)]

    fed.run(forgets)
    assert fed.applied("evaluate")[0]["included"] == [0, 2]
    assert any("has not kept the model" in sentence for sentence in fed.witness.notices)


def test_best_is_the_exact_top_k() -> None:
    """Compared with the readable twin of `evaluate`: ties go to the lower id, −1 fills empty places."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        n_items, k = int(rng.integers(1, 30)), int(rng.integers(1, 12))
        scores = rng.integers(0, 4, n_items).astype(np.float32)
        seen = np.flatnonzero(rng.random(n_items) < 0.4).astype(np.int32)
        expected, _ = top_k_reference(
            scores[None], np.eye(n_items, dtype=np.float32), k, np.array([0, len(seen)]), seen
        )
        assert ranking.best(scores, seen, k).tolist() == expected[0].tolist()


def test_quantised_numbers_add_up_within_a_step() -> None:
    spec = evaluation.spec((20,), 1000)
    assert spec.rings == ((1, 32), (1, 32), (1, 12))
    assert [leaf.name for leaf in spec.leaves] == ["recall@20", "ndcg@20", "count"]
    assert spec.leaf("recall@20").step * 1000 < 1e-3
    assert spec.leaf("recall@20").bound * 1000 < 2**31


@pytest.mark.parametrize(("users", "deviation"), [(12, 40.0), (1000, 3.0), (10**6, 1e5)])
def test_noise_has_room_beside_the_users_numbers(users: int, deviation: float) -> None:
    """Users' numbers alone would need a smaller ring, in which noise of a few standard deviations wraps."""
    spec = evaluation.spec((20,), users, deviation)
    for leaf, (_, bits) in zip(spec.leaves, spec.rings, strict=True):
        assert bits == 32
        assert (users + evaluation.HEADROOM * deviation) / leaf.step < 2 ** (bits - 1)
    assert max(bits for _, bits in UploadSpec(spec.leaves, 12).rings) < 32


def test_evaluate_is_the_one_of_the_package() -> None:
    """A hand-made model: user 0 finds its item first, user 1 does not find it."""
    users, items = np.eye(2, dtype=np.float32), np.array([[1, 0], [0, 1], [0.5, 0.2]], np.float32)
    seen, held_out = csr([np.array([1]), np.array([1])]), csr([np.array([0]), np.array([0])])
    result = evaluate(users, items, seen, held_out, Judging((1,)))
    mine = [ranking.best(users[u] @ items.T, np.array([1]), 1)[0] for u in (0, 1)]
    assert mine == [0, 2]
    assert result.metrics["recall@1"] == 0.5
