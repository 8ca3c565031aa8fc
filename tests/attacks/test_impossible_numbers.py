"""A node sends numbers that no user can have: the sum shows it, and the model stays possible."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgrec.errors import FedgrecError
from tests.attacks.lying_node import lies, only, told
from tests.federation.worlds import World, world

USERS = 4 * 6
LATENT_CLIP = 2.5


def is_possible(fed: World) -> bool:
    """Whether every number of the server's model is finite, and honest users could have made it."""
    model = fed.model()
    most = LATENT_CLIP * model.degrees[:, None]
    return bool(
        all(np.isfinite(part).all() for part in (model.items, model.moment1, model.moment2))
        and ((model.degrees >= 0) & (model.degrees <= USERS)).all()
        and (np.abs(model.items[1:]) <= most.astype(model.items.dtype)).all()
        and np.abs(model.items[0]).max() < 10
    )


def four(tmp_path: Path, **more: Any) -> World:
    return world(tmp_path, nodes=4, users=6, **more)


@pytest.mark.parametrize("lie", [-100, 100])
def test_impossible_degrees_are_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: int) -> None:
    """One node of four sends −100 for a degree: without a repair, every honest node would refuse every later model."""

    def change(numbers: Any) -> None:
        numbers[7] = lie

    fed = four(tmp_path)
    lies(monkeypatch, only("degrees", change))
    fed.run()
    assert fed.model().round == 2
    assert fed.model().degrees[7] == (0 if lie < 0 else USERS)
    assert is_possible(fed)
    assert any("1 entry" in notice and "degrees" in notice for notice in fed.witness.notices), fed.witness.notices


def test_impossible_latents_are_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of four sends latents as large as the ring holds, in the warm-up, which cannot be summed again."""

    def change(numbers: Any) -> None:
        numbers[: 2 * 4] = np.iinfo(numbers.dtype).max // 2

    fed = four(tmp_path)
    lies(monkeypatch, only("propagate", change))
    fed.run()
    assert fed.model().round == 2
    assert is_possible(fed)
    assert any("latents" in notice for notice in fed.witness.notices), fed.witness.notices


def test_latents_that_creep_beyond_what_users_hold_are_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of four adds what one round allows to the same latents in every round."""

    def change(numbers: Any) -> None:
        numbers[4 * 30 : 4 * 33] = 81_920 // 4  # a user may send 5 in steps of 2⁻¹⁴

    fed = four(tmp_path, options={"rounds": 10})
    lies(monkeypatch, only("train", change))
    fed.run()
    assert fed.model().round == 10
    assert is_possible(fed)


def test_an_impossible_round_is_lost_and_the_last_good_model_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of four sends the largest number of the ring in one training round."""

    def change(numbers: Any) -> None:
        numbers[:9] = np.iinfo(numbers.dtype).max

    fed = four(tmp_path)
    lies(monkeypatch, only("train", change, times=1))
    fed.run()
    assert [line["applied"] for line in fed.log() if line["stage"] == "train"] == [0, 1]
    assert is_possible(fed)
    assert any("node3" in notice and "users can make them" in notice for notice in fed.witness.notices)


def test_who_lies_in_every_round_stops_training_and_not_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of four does so in every round: the server stops with a sentence, and goes on without the node."""

    def change(numbers: Any) -> None:
        numbers[0] = np.iinfo(numbers.dtype).min

    fed = four(tmp_path, options={"rounds": 5, "retries": 2}, fine_rounds=5)  # in a small ring it would be no lie
    lies(monkeypatch, only("train", change))
    with pytest.raises(FedgrecError, match=r"3 sums in a row were lost.*than .* users can make them.*node3"):
        fed.run()
    before = fed.model().items.tobytes()
    fed.transport.away = {3}
    fed.run()
    assert fed.model().round == 5
    assert fed.model().items.tobytes() != before
    assert is_possible(fed)


@pytest.mark.keep(2)
@pytest.mark.parametrize("claim", [0, 1, -6, 2])
def test_a_sum_has_as_many_users_as_were_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: int) -> None:
    """One node of four changes the number of users, so that a sum seems to hold no users, fewer or more."""

    def change(numbers: Any) -> None:
        numbers[-1] = claim if claim else -(2**31)

    fed = four(tmp_path, options={"evaluations": 9})
    in_each = [only(stage, change, times=1) for stage in ("train", "evaluate")]
    lies(monkeypatch, lambda stage, numbers: [lie(stage, numbers) for lie in in_each])
    fed.run()
    assert [line["stage"] for line in fed.log() if not line["applied"]] == ["train", "evaluate"]
    assert fed.model().round == 2
    assert all(line["users"] for line in fed.log() if line["applied"])


def test_impossible_metrics_are_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of four makes the recall 1.73, or another figure that no list of recommendations has."""
    figures = [(0, 2**30), (1, -(2**30)), (2, -100), (2, 100)]  # recall, ndcg, and the number of users
    changes = iter([change for change in figures for _ in range(2)])  # the server tries again once

    def add(numbers: Any) -> None:
        place, much = next(changes)
        numbers[place] += much

    fed = four(tmp_path, options={"rounds": 5, "evaluate_every": 1})
    lies(monkeypatch, only("evaluate", add))
    fed.run()
    assert fed.model().round == 5
    assert next(changes, None) is None, "every lie was told"
    assert not fed.witness.metrics
    assert sum("metric" in notice for notice in fed.witness.notices) == 8, fed.witness.notices


@pytest.mark.keep(2)
@pytest.mark.parametrize("method", ["fedmf", "fcf", "fedncf", "federank"])
def test_every_method_stays_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """One node of four sends the largest number that its users may send, everywhere and in every round."""
    from fedgrec.secagg.client import Client

    real = Client.submit

    def submit(self: Client, values: Any, users: int = 1) -> None:
        real(self, values, users)
        if self.me == 3 and self.session.values > 30:
            with told(self) as numbers:
                numbers[:-1] = (2**31 - 1) // 12 * users * (1 - 2 * (np.arange(len(numbers) - 1) % 2))

    sizes = {"server_optimizer": "sgd"} if method == "fcf" else {"server_optimizer": "sum"}
    fed = world(tmp_path, method, nodes=4, users=6, options={"rounds": 6, "retries": 6}, **sizes)
    monkeypatch.setattr(Client, "submit", submit)
    fed.run()
    model = fed.model()
    parts = (model.items, model.moment1, model.moment2, *model.more.values())
    assert all(np.isfinite(part).all() for part in parts)
    assert np.abs(model.items).max() <= 2.0**40
