"""A lying server must not learn one node's upload: from two sums, from another model, or from nodes' refusals."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.federation.common import packets
from fedgrec.federation.common.packets import Packet, pack_broadcast
from fedgrec.federation.common.plan import EVALUATE, Plan
from fedgrec.federation.node.folder import TABLE, open_node
from fedgrec.federation.node.store import NodeStore, Person
from tests.attacks.lying_server import DEGREES, JUDGE, PROPAGATE, TRAIN, Liar, counts, total
from tests.federation.worlds import N_ITEMS, world


@pytest.fixture
def liar(tmp_path: Path) -> Liar:
    return Liar(world(tmp_path, layers=2, options={"evaluations": 9}))


def test_the_attacker_knows_its_trade(liar: Liar) -> None:
    """Allowed sums work: otherwise the refusals below would mean nothing."""
    assert total(liar.sum([0, 1, 2], DEGREES), "degrees") == counts(liar, [0, 1, 2])
    assert liar.sum([0, 1, 2], PROPAGATE, lost=[1]) is not None, liar.refusals
    liar.trained()
    assert liar.sum([0, 1, 2], JUDGE) is not None, liar.refusals
    assert not liar.refusals


# ------------------------------------------------------------------------- two sums that differ by one node


@pytest.mark.keep(8)
@pytest.mark.parametrize("first", [DEGREES, PROPAGATE, TRAIN, JUDGE], ids=lambda p: p.stage)
@pytest.mark.parametrize("change", [{}, {"round": 7}, {"level": 1}, {"level": 2}, {"round": 5 + 2**32}], ids=str)
def test_no_two_sums_of_one_thing_with_a_node_more_or_less(liar: Liar, first: Plan, change: dict[str, int]) -> None:
    """Under the same name, or as another round or level whose draws are the same."""
    again = replace(first, **change)
    if again.stage == "propagate" and (again.level, again.round) == (2, 0):
        return  # this is another stage
    if again.stage in ("train", EVALUATE) and again.round == 7:
        return  # this is another round, with other draws
    if first is JUDGE:
        liar.trained()
    whole = liar.sum([0, 1, 2], first)
    assert whole is not None
    assert liar.sum([0, 1], again) is None


@pytest.mark.parametrize("first", [TRAIN, JUDGE], ids=lambda p: p.stage)
def test_a_round_is_uploaded_once_opened_or_not(liar: Liar, first: Plan) -> None:
    """A node cannot know what other nodes helped to open, so it stays out of a second sum."""
    if first is JUDGE:
        liar.trained()
    liar.sum([0, 1, 2], first, until="masked")
    assert liar.sum([0, 1, 2], first) is None
    assert {a.kind for a in liar.answers["shares"].values()} == {packets.ERROR}
    assert liar.refused("has sent its part of stage")


def test_a_warm_up_that_is_opened_again_has_the_same_users(liar: Liar) -> None:
    """Otherwise the difference would be a user who came in between."""
    before = liar.sum([0, 1, 2], DEGREES)
    with NodeStore(liar.fed.nodes[0]) as store:
        store.add_users(open_node(liar.fed.nodes[0]).method(1), [Person("new", [0, 1, 2])])
    liar.greet(0)
    assert total(liar.sum([0, 1, 2], DEGREES), "degrees") == total(before, "degrees")


def test_what_is_computed_is_what_was_named(liar: Liar) -> None:
    """The model's own level must not differ from the plan's: it says what nodes compute."""
    other = replace(liar.broadcast(PROPAGATE), level=2)
    assert liar.sum([0, 1, 2], PROPAGATE, other) is None
    assert liar.refused("is not that of the sum")


# ---------------------------------------------------------------------------------------- what errors tell


def poisons(tables: np.ndarray, items: list[int]) -> dict[str, dict[str, Any]]:
    """Models that fail only for users who have these items: not a number, sums that overflow, roots of −3."""
    nan, big, high = tables.copy(), tables.copy(), np.full(N_ITEMS, 3)
    nan[:, items[0]], big[:, items], high[items[0]] = np.nan, np.finfo(tables.dtype).max, -3
    return {"nan": {"tables": nan}, "huge": {"tables": big}, "degrees": {"degrees": high}}


@pytest.mark.parametrize("sum_", [PROPAGATE, TRAIN, JUDGE], ids=lambda p: p.stage)
@pytest.mark.parametrize("poison", ["nan", "huge", "degrees"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a real node ignores them
def test_a_poisoned_row_does_not_tell_who_has_it(tmp_path: Path, sum_: Plan, poison: str) -> None:
    """Node 0 has the item and the others do not: all nodes must answer the same."""
    liar = Liar(world(tmp_path, users=1, options={"evaluations": 9}))
    items = [set(np.flatnonzero(counts(liar, [node])).tolist()) for node in range(3)]
    alone = sorted(items[0] - items[1] - items[2])
    clean = liar.broadcast(sum_)
    liar.sum([0, 1, 2], replace(sum_, take=1, of=1), replace(clean, **poisons(clean.tables, alone)[poison]))
    for kind in liar.answers:
        assert len({answer.kind for answer in liar.answers[kind].values()}) == 1, (kind, liar.refusals)
    for path in liar.fed.nodes.values():
        with NodeStore(path) as store:
            for (pending,) in store.db.execute("SELECT pending FROM users WHERE pending IS NOT NULL"):
                layout = [(name, dtype, tuple(shape)) for name, dtype, shape in store.get("state")]
                state = np.frombuffer(pending, layout)
                assert all(np.isfinite(state[name]).all() for name in state.dtype.names), "nobody's state is ruined"


@pytest.mark.parametrize(
    "change",
    [
        {"tables": np.zeros((1, N_ITEMS - 1, 4), np.float32)},
        {"tables": np.zeros((1, N_ITEMS, 4), np.int32)},
        {"tables": np.zeros(N_ITEMS, np.float32)},
        {"degrees": np.zeros(N_ITEMS)},
        {"degrees": np.zeros(N_ITEMS - 1, np.int64)},
        {"tables": np.array([[["x"] * 4] * N_ITEMS])},
        {"more": {"x": np.array([None])}},
        {"more": {"x": np.array([np.inf])}},
        {"degrees": np.full(N_ITEMS, -1, np.int32)},
        {"steps": np.zeros(N_ITEMS)},
    ],
    ids=range(10),
)
def test_what_is_no_model_is_refused_before_anybody_computes(liar: Liar, change: dict[str, Any]) -> None:
    model, arrays = pack_broadcast(replace(liar.broadcast(TRAIN), kind="float32"))
    named = {name: value for name, value in change.items() if name != "more"}
    arrays |= named | {f"more.{name}": value for name, value in change.get("more", {}).items()}
    liar.sum([0, 1, 2], TRAIN, until="keys")
    for node in range(3):
        header = {"session": liar.sessions[-1], "plan": asdict(TRAIN), "model": model}
        answer = liar.ask(node, Packet("shares", header, {packets.SECAGG: b""}, arrays))
        assert "no model" in answer.header["reason"]
        assert not (liar.fed.nodes[node] / TABLE).exists(), "it is not kept either"


# -------------------------------------------------------------------------------------- one model, one plan


def test_the_model_cannot_be_changed_once_shares_are_out(liar: Liar) -> None:
    """Nodes train on the model that their keys are bound to, and note it as opened."""
    liar.sum([0, 1, 2], TRAIN, until="shares")
    before = [(liar.fed.nodes[0] / TABLE).read_bytes(), plan_of(liar, 0)]
    first = liar.asked["shares", 0]
    again = replace(first, arrays=first.arrays | {"tables": first.arrays["tables"] + 1})
    assert liar.ask(0, again).kind == packets.ERROR
    assert [(liar.fed.nodes[0] / TABLE).read_bytes(), plan_of(liar, 0)] == before


def plan_of(liar: Liar, node: int) -> tuple[Any, ...]:
    sum_ = liar.fed.sums[liar.fed.nodes[node]]
    assert sum_.name == liar.sessions[-1]
    return sum_.plan, sum_.model, sum_.client.context, sum_.client.stage


def test_the_context_tells_models_apart_that_share_their_bytes(liar: Liar) -> None:
    """The same bytes with another shape or type are another model."""
    one = liar.broadcast(TRAIN)
    moved = np.concatenate([one.degrees, np.array([7])])
    models = [
        one,
        replace(one, tables=one.tables.view(np.int32), kind="float32"),
        replace(one, more={"a": np.array([7])}),
        replace(one, more={"b": np.array([7])}),
        replace(one, degrees=moved),
        replace(one, more={"a": np.array([[7]])}),
        replace(one, kind="bfloat16"),
    ]
    assert len({TRAIN.context(model, "", "") for model in models}) == len(models)
