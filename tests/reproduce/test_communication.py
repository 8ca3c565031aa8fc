"""Bytes against the paper's formulas, computed by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgrec.cable.core import Traffic
from fedgrec.config.configuration import Config
from fedgrec.data import load
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.compare.names import Entry
from fedgrec.studies.compare.runs import FederatedRun
from fedgrec.studies.reproduce.communication import formula, price, untrained
from tests.reproduce.conftest import DATA, ITEMS, USERS

N, M, D, S = ITEMS, USERS, 16, 40  # of the data and of --quick


@pytest.fixture(scope="module")
def rows(made: Path) -> dict[str, dict[str, float]]:
    with (made / "out" / "communication" / "table.csv").open() as lines:
        found = list(csv.DictReader(lines))
    return {row["label"]: {k: float(v) for k, v in row.items() if v and k not in ("data", "label")} for row in found}


@pytest.mark.parametrize("k", [1, 2, 3])
def test_fedgrec_against_its_formula(rows: dict[str, dict[str, float]], k: int) -> None:
    row, table = rows[f"FedGRec-{k}"], 4 * N * D
    assert row["warm_up_formula"] == row["round_formula"] == 2 * k * table
    assert row["warm_up_down"] == k * (table + 4 * N)  # e_t^0 .. e_t^{K−1} come down, one a level, and degrees
    # K dense tables go up, in words of 34 bits for all users, and the degree counts, in words of 8
    assert row["warm_up_up_secure"] == k * N * D * 34 / 8 + N
    assert row["round_down"] == pytest.approx((k + 1) * table + 4 * N)
    assert row["round_up_secure"] == pytest.approx((k + 1) * table)
    assert row["whole_formula"] == 2 * k * table * (M + S * 100_000)


def test_matrix_factorisation_has_one_table_each_way(rows: dict[str, dict[str, float]]) -> None:
    for label in ("FedMF", "FedeRank"):
        row = rows[label]
        assert row["round_formula"] == row["round_down"] - 4 * N == pytest.approx(row["round_up_secure"])
        assert row["round_formula"] == 4 * N * D
        assert "warm_up_formula" not in row
    assert "round_formula" not in rows["FedGNN"]


def test_warm_up_and_rounds_are_all_that_was_counted(made: Path, rows: dict[str, dict[str, float]]) -> None:
    for label, row in rows.items():
        folder = made / "runs" / "small-paper-12-rounds-quick" / "runs" / f"{label.replace(' ', '-')}-seed0"
        last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
        for name in Traffic._fields:
            counted = row[f"warm_up_{name}"] * M + row[f"round_{name}"] * S * 12
            assert counted == pytest.approx(last[f"bytes_{name}"]), (label, name)


class Recorded(FederatedRun):
    """A finished run that counted this much."""

    def metrics(self) -> list[dict[str, Any]]:
        dataset = load(DATA, seed=0)
        config = replace(self.config, run=replace(self.config.run, protocol="paper"))
        simulation = Simulation(config, dataset)
        simulation.run()
        found = {f"bytes_{name}": value for name, value in simulation.progress.traffic._asdict().items()}
        return [{"round": simulation.server.round, **found}]


def test_expansions_are_no_part_of_a_round() -> None:
    """Matching FedGNN's users again within the run does not raise the cost of a round."""
    options = {"dim": D, "users_per_round": S, "negatives": 64, "rounds": 6, "evaluate_every": 100, "protocol": "paper"}
    start, dataset = Config().of("fedgnn"), load(DATA, seed=0)
    costs = []
    for every in (0, 2):
        config = start.changed({**options, "expand_every": every}, "test")
        costs.append(price(Recorded(Entry("FedGNN", "fedgnn"), 0, Path("nowhere"), config), dataset))
    never, often = costs
    for mine, other in zip((never.once, never.turn), (often.once, often.turn), strict=True):
        assert mine == pytest.approx(other)
    simulation = untrained(start.changed(options, "test"), dataset)
    _, expansion = simulation.method.match(simulation.users, 0, 0)
    assert expansion.down == pytest.approx((often.whole.down - never.whole.down) / (100_000 / 2 - 1), rel=1e-6)


def test_an_untrained_simulation_looks_at_nothing() -> None:
    config = Config().changed({"rounds": 5, "dim": 8}, "test")
    simulation = untrained(config, load(DATA, validation=0.1, seed=0))
    assert simulation.server.round == 0
    assert simulation.progress.metrics == []
    assert simulation.progress.traffic.down > 0
    assert formula(config, 10) == (2 * 2 * 10 * 8 * 4, 2 * 2 * 10 * 8 * 4)
