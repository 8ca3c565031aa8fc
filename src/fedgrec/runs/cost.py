"""What a run cost an average user: bytes in all of it, and in a turn, which is a round that the user takes part in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedgrec.cable.core import Traffic
from fedgrec.config.configuration import Config
from fedgrec.methods.contract import Method
from fedgrec.runs.machine import make_method


@dataclass(frozen=True)
class Cost:
    """Bytes of an average user; those of the warm-up, in which everybody takes part, are among them."""

    rounds: int  # in which the bytes were counted
    turns: float  # how many of these rounds were the user's; at least one
    whole: Traffic

    @property
    def turn(self) -> Traffic:
        return scaled(self.whole, 1 / self.turns)


def cost(config: Config, lines: Sequence[Mapping[str, Any]], n_users: int, n_items: int) -> Cost:
    """From a run's evaluations. The bytes are those of all rounds, also in the line of a test of an earlier round."""
    last, rounds = max(lines, key=lambda line: int(line["bytes_down"])), max(line["round"] for line in lines)
    total = Traffic(*(last[f"bytes_{name}"] for name in Traffic._fields))
    return Cost(rounds, max(turns(config, rounds, n_users, n_items), 1.0), scaled(total, 1 / n_users))


def turns(config: Config, rounds: int, n_users: int, n_items: int) -> float:
    """In how many of these training rounds an average user takes part: in all sweeps, and in a share of the others."""
    anywhere = replace(config, run=replace(config.run, kernel="reference", device="cpu"))
    sweeps = _sweeps(make_method(anywhere, n_items, n_users), rounds)
    drawn: int = min(config.model.users_per_round, n_users)
    return sweeps + (rounds - sweeps) * drawn / n_users


@cache  # a second for a hundred thousand rounds
def _sweeps(method: Method, rounds: int) -> int:
    return sum(method.training(round_).everyone for round_ in range(rounds))


def scaled(traffic: Traffic, by: float) -> Traffic:
    return Traffic(*(value * by for value in traffic))  # type: ignore[arg-type]  # a mean need not be whole
