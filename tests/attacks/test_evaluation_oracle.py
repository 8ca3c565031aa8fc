"""A lying server asks for evaluations, to learn one person's items from their differences."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.cable.core import Broadcast
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.node.store import NodeStore
from tests.attacks.lying_server import JUDGE, TRAIN, Liar, counts
from tests.federation.worlds import N_ITEMS, world

VICTIM = 3
EVERYBODY, ALL_BUT_ONE = [0, 1, 2, 3, 4], [0, 1, 2, 4]
SMALL = {"least_nodes": 4, "corrupt": 0.0, "topk": (1,)}  # five nodes of one user, at least four in a sum


def liar_of(path: Path, **agreed: Any) -> Liar:
    usual = {name: getattr(Agreement(), name) for name in ("evaluations", "evaluation_users", "evaluation_epsilon")}
    liar = Liar(world(path, nodes=5, users=1, options=SMALL | usual | agreed, users_per_round=100, longest=1.0))
    liar.method = liar.home.method(5)
    return liar


def ranks_first(liar: Liar, item: int, round_: int) -> Broadcast:
    """A model that puts this item first for all users who do not have it."""
    plain = liar.broadcast(replace(TRAIN, round=round_, n_users=5))
    tables = np.ones_like(plain.tables)  # people's latents are sums of their items' rows: all point this way
    tables[:, item] = 1e3
    return replace(plain, tables=tables)


def evaluated(liar: Liar, item: int, nodes: list[int], round_: int) -> float | None:
    """The summed hits of these nodes, which first trained on the model; None if they refuse."""
    agreed = liar.home.agreed
    train = replace(TRAIN, round=round_, n_users=5, users=5, take=1, of=1)
    judge = replace(JUDGE, round=round_, n_users=5, users=5, topk=agreed.topk, deviation=agreed.deviation)
    model = ranks_first(liar, item, round_)
    liar.sum(nodes, train, model)
    liar.told_the_truth()
    found = liar.sum(nodes, judge, model)
    liar.told_the_truth()
    if found is None:
        return None
    leaf = judge.spec(liar.method).leaf("recall@1")
    return float(found.leaves["recall@1"].values[0, 0] * leaf.step)


def attack(liar: Liar, items: list[int]) -> tuple[dict[int, float], int]:
    """By how much the victim's presence changes the hits on each item, and how many evaluations were answered."""
    gains, answered = {}, 0
    for place, item in enumerate(items):
        pair = [evaluated(liar, item, nodes, 2 * place + n) for n, nodes in enumerate((EVERYBODY, ALL_BUT_ONE))]
        answered += sum(found is not None for found in pair)
        gains[item] = (pair[0] or 0.0) - (pair[1] or 0.0)
    return gains, answered


def held_out(liar: Liar) -> set[int]:
    with NodeStore(liar.fed.nodes[VICTIM]) as store:
        return set(store.held_out(store.first_rows(1))[0].tolist())


def test_without_the_rules_the_oracle_tells_everything(tmp_path: Path) -> None:
    """The attack itself works: with a large budget, no noise and no floor, the differences *are* the held-out items."""
    liar = liar_of(tmp_path, evaluations=1000, evaluation_users=1, evaluation_epsilon=0.0)
    others = sorted(set(range(N_ITEMS)) - held_out(liar))[::20]
    gains, answered = attack(liar, [*held_out(liar), *others])
    assert answered == 2 * len(gains)
    found = {item for item, gain in gains.items() if gain > 0.1}
    assert held_out(liar) <= found, "exactly"
    # A person's own items are left out of the list; then the next item, which is held out, comes first.
    assert found - held_out(liar) <= set(np.flatnonzero(counts(liar, [VICTIM])).tolist())


def test_a_budget_and_noise_bound_it(tmp_path: Path) -> None:
    """Nodes may differ from one evaluation to the next, so only the budget and the noise limit the attack."""
    liar = liar_of(tmp_path, evaluation_users=1, evaluations=6)
    gains, answered = attack(liar, [0, 1, 2, 3])
    assert answered == 6
    assert np.ptp(list(gains.values())[:3]) > 0.05, "noise of a standard deviation of 4, where a hit is 1"
    assert liar.refused("has taken part in 6 evaluations")


def test_few_people_are_not_asked_at_all(tmp_path: Path) -> None:
    """Five users are fewer than the fifty that nodes insist on, whatever the server's plan claims."""
    liar = liar_of(tmp_path)
    assert attack(liar, [0])[1] == 0
    assert liar.refused("judges only among 50 users or more")


def test_a_model_that_nobody_trained_on_is_not_judged(tmp_path: Path) -> None:
    """The server makes a model only for the evaluation."""
    liar = Liar(world(tmp_path, options={"evaluations": 9})).trained()
    crafted = replace(liar.broadcast(JUDGE), tables=np.ones_like(liar.broadcast(JUDGE).tables))
    assert liar.sum([0, 1, 2], JUDGE, crafted) is None
    assert liar.refused("evaluates only models that it has trained on")


@pytest.mark.parametrize("topk", [(1,), (5, 6), tuple(range(1, 500)), ()], ids=len)
def test_list_lengths_are_not_the_servers_to_choose(tmp_path: Path, topk: tuple[int, ...]) -> None:
    """Other list lengths ask other questions; very many of them ask for gigabytes."""
    liar = Liar(world(tmp_path, options={"evaluations": 9})).trained()
    tracemalloc.start()
    liar.sum([0, 1, 2], JUDGE, until="keys")
    assert liar.sum([0, 1, 2], replace(JUDGE, topk=topk or (1,))) is None
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "masked" not in liar.answers
    assert used < 300e6


def test_less_noise_is_not_the_servers_to_choose(tmp_path: Path) -> None:
    """The plan states the noise, and every folder holds the noise that was agreed on."""
    liar = Liar(world(tmp_path, options={"evaluations": 9, "evaluation_epsilon": 8.0})).trained()
    assert liar.sum([0, 1, 2], JUDGE) is None
    assert liar.refused("agreed to other list lengths, or to more noise")
    assert liar.sum([0, 1, 2], replace(JUDGE, deviation=liar.home.agreed.deviation)) is not None, liar.refusals
