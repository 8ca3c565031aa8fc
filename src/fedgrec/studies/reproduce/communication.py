"""The bytes that users send and receive, as counted and by the paper's formulas.

    warm-up 2KNMd, training 2TKNMd; matrix factorisation TNMd      numbers, all M users and N items in each of T rounds

Divided by users and rounds: 2KNd numbers once and 2KNd a round, against Nd a round. A number is four bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedgrec.cable.core import Traffic, size
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.methods.contract import WORD
from fedgrec.pages.report.charts import Figure, Mark, dots, legend
from fedgrec.pages.tables import Grid, number
from fedgrec.runs.cost import cost, scaled, turns
from fedgrec.runs.simulation import Simulation
from fedgrec.studies.compare.results import amount
from fedgrec.studies.compare.runs import FederatedRun
from fedgrec.studies.reproduce.plan import PAPER_ROUNDS, Group, Shown

FACTORISATION = ("fcf", "fedmf", "federank")
NOTES = (
    "Bytes of an average user: once, for the warm-up, and in each round that it takes part in.",
    "formula: the paper's, with d numbers for each of all N items: 2KNd for the warm-up and for a round of FedGRec, Nd "
    "for a round of matrix factorisation; it has none for the others. It counts K tables each way; K+1 travel in "
    "training, e^0 and the latents.",
    "clear: changed rows alone, with their numbers. secure: the whole table under masks, as secure sums need it (a "
    "word has as few bits as the largest possible sum of all users needs).",
    "Every user downloads all rows, and each item's degree with them. The paper's users ask for some rows, which gives "
    "their items away within a few rounds.",
    "FedGNN: the warm-up is its expansion, through a third party and without masks; it is done again every "
    "`expand_every` rounds. The paper calls it slow for its cryptography, which bytes do not show.",
)


@dataclass(frozen=True)
class Price:
    """Bytes: `once` and `turn` of an average user, `whole` of all users in the paper's 100,000 rounds."""

    label: str
    formula_once: float | None
    once: Traffic
    formula_turn: float | None
    turn: Traffic
    whole: Traffic
    whole_formula: float | None
    rounds: int  # measured


def communication(groups: Sequence[Group]) -> Shown:
    """One table for each data set."""
    found = {group.table.data: _prices(group) for group in groups}
    figures = [_figure(name, costs) for name, costs in found.items() if costs]
    records = [_record(name, cost) for name, costs in found.items() for cost in costs]
    return Shown([_grid(name, costs) for name, costs in found.items()], records, figures)


def _prices(group: Group) -> list[Price]:
    dataset = group.settings.load(group.settings.seeds[0])
    return [price(run, dataset) for run in group.finished if isinstance(run, FederatedRun)]


def price(run: FederatedRun, dataset: Dataset) -> Price:
    """The bytes counted in a finished run; training is the total without the warm-up and later expansions."""
    config, sizes = run.config, (dataset.split.train.n_users, dataset.split.train.n_items)
    paid, users = cost(config, run.metrics(), *sizes), sizes[0]
    simulation = untrained(config, dataset)
    warm, expansion = simulation.progress.traffic, _expansion(simulation)

    def expanded(rounds: int) -> Traffic:
        """All expansions after the first."""
        return scaled(expansion, sum(simulation.method.rematch(round_) for round_ in range(rounds)))

    trained = scaled(paid.whole, users).plus(scaled(warm.plus(expanded(paid.rounds)), -1))
    training = scaled(trained, 1 / (users * turns(config, paid.rounds, *sizes)))
    whole = warm.plus(scaled(trained, PAPER_ROUNDS / paid.rounds)).plus(expanded(PAPER_ROUNDS))
    once, turn = formula(config, sizes[1])
    sampled = min(config.model.users_per_round, users)
    both = None if turn is None else (once or 0) * users + turn * sampled * PAPER_ROUNDS
    return Price(run.entry.label, once, scaled(warm, 1 / users), turn, training, whole, both, paid.rounds)


def formula(config: Config, n_items: int) -> tuple[float | None, float | None]:
    """The bytes of a user's warm-up and of a user's round by the paper's formulas."""
    table = n_items * config.model.dim * WORD
    if config.method == "fedgrec":
        return 2 * config.model.layers * table, 2 * config.model.layers * table
    return (None, table) if config.method in FACTORISATION else (None, None)


def untrained(config: Config, dataset: Dataset) -> Simulation:
    """A simulation that has done its warm-up and nothing else."""
    simulation = Simulation(config, dataset)
    simulation.warm_up()
    return simulation


def _expansion(simulation: Simulation) -> Traffic:
    """The warm-up's traffic without its sums: FedGNN's expansion, and zero for every other method."""
    method, rest = simulation.method, simulation.progress.traffic
    for stage in method.stages[:-1]:
        if stage.combine == "sum":
            rest = rest.plus(scaled(method.traffic(stage, simulation.users.degrees), -1))
    return rest


def _grid(name: str, costs: Sequence[Price]) -> Grid:
    parts = [f"{when} {what}" for when in ("once:", "round:") for what in ("formula", "down", "clear", "secure")]
    head, rows = ["", *parts, "of formula", "all"], []
    for c in costs:
        ratio = (c.turn.up_secure + c.turn.down_secure) / c.formula_turn if c.formula_turn else None
        cells = [amount(c.formula_once), *_amounts(c.once), amount(c.formula_turn), *_amounts(c.turn)]
        rows.append([c.label, *cells, number(ratio, ".2f"), amount(c.whole.up_secure + c.whole.down_secure)])
    measured = ", ".join(f"{n:,}" for n in sorted({c.rounds for c in costs})) or "no"
    last = (
        "of formula: secure and down of a round, as a multiple of the formula. all: secure and down of all users over "
        f"the paper's {PAPER_ROUNDS:,} rounds, FedGNN's further expansions included. Counted over {measured} rounds, "
        "which is enough: what a round costs does not depend on what was learned."
    )
    return Grid(name, head, rows, [*NOTES, last])


def _amounts(traffic: Traffic) -> list[str]:
    return [amount(traffic.down), amount(traffic.up), amount(traffic.up_secure)]


def _record(name: str, c: Price) -> dict[str, Any]:
    found: dict[str, Any] = {"data": name, "label": c.label, "rounds_measured": c.rounds}
    for when, theirs, ours in (("warm_up", c.formula_once, c.once), ("round", c.formula_turn, c.turn)):
        found |= {f"{when}_formula": theirs, **{f"{when}_{k}": v for k, v in ours._asdict().items()}}
    found |= {f"whole_{key}": value for key, value in c.whole._asdict().items()}
    return found | {"whole_formula": c.whole_formula}


LOOKS = {"formula": ("c4 hollow", "diamond"), "down": ("c0", "dot"), "up, clear": ("c1", "dot")}
LOOKS |= {"up, secure": ("c2 hollow", "dot")}  # hollow: a dot of `down` at the same place stays visible


def _figure(name: str, costs: Sequence[Price]) -> Figure:
    """Bytes on a logarithmic axis."""
    rows = []
    for c in costs:
        parts = (c.formula_turn, c.turn.down, c.turn.up, c.turn.up_secure)
        marks = [Mark(part, value, *LOOKS[part]) for part, value in zip(LOOKS, parts, strict=True) if value]
        rows.append((c.label, marks))
    title = f"{name}: bytes of a user in a round"
    return Figure(name, [dots(title, rows, size, True, size)], title, legend(LOOKS))
