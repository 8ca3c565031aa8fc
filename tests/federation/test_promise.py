"""The one ε of a federation: composed of training, changes and evaluations, shown, and never exceeded."""

from pathlib import Path
from typing import Any

import pytest

from fedgrec.cli.federation_watch import lines
from fedgrec.config.configuration import Config
from fedgrec.federation.common.folder import make_method
from fedgrec.federation.common.options import Agreement
from fedgrec.federation.common.promise import promise
from fedgrec.federation.server.status import status
from tests.federation.living import Life

DECOYS = {
    "dp_epsilon": 4.0,
    "dp_unit": "interaction",
    "evaluation_epsilon": 2.0,
    "evaluations": 2,
    "evaluation_users": 1,
}


def promised(**agreed: Any) -> float | None:
    """The total ε that all agreed on."""
    options = Agreement().changed({"dp_rounds": 5, **agreed}, "a test")
    method = make_method(Config().of("fedmf"), 50, 400, options)
    found = promise(method, options, warm=True, rounds=0, evaluations=0)
    return found and found.agreed


def test_a_users_sums_compose_by_renyi_and_an_interactions_by_addition() -> None:
    assert promised(dp_epsilon=4.0, evaluations=0) == pytest.approx(4.0, rel=0.02)
    both = promised(dp_epsilon=4.0, evaluation_epsilon=2.0)
    assert both is not None
    assert 4.0 < both < 6.0, "less than the sum"
    assert promised(dp_epsilon=4.0, dp_unit="interaction", evaluation_epsilon=2.0) == pytest.approx(6.0, rel=0.01)
    assert promised(evaluation_epsilon=2.0) is None, "training promises nothing"
    assert promised(dp_epsilon=4.0, evaluation_epsilon=0.0) is None, "evaluations tell without a bound"


def test_seasons_with_evaluations_spend_no_more_than_the_total(tmp_path: Path) -> None:
    """Decoys, changes and evaluations: two evaluations were agreed on, so the third season has none."""
    life = Life(tmp_path, options=DECOYS)
    spent = []
    for _ in range(3):
        life.train()
        privacy = status(life.world.server).privacy
        assert privacy is not None
        assert privacy["unit"] == "interaction"
        spent.append(privacy["spent"])
        assert spent[-1] <= privacy["agreed"] <= 6.01
        life.click()
        life.reread()
    judged = [line for line in life.world.log() if line["stage"] == "evaluate" and line["applied"]]
    assert len(judged) == DECOYS["evaluations"]
    assert 4.0 < spent[0] < spent[1] == spent[2]
    assert any(line.startswith("privacy: ε = ") for line in lines(status(life.world.server)))
