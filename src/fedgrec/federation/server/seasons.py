"""Seasons: training rounds, an evaluation, a published model, a rest; then the next season, on the present graph.

The training state never goes back, because users cannot send again what they sent. If a season made the metric worse,
nodes go on serving the model that they have.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgrec.errors import ConfigError
from fedgrec.federation.common.arrays import read_arrays, write_arrays
from fedgrec.federation.common.options import Agreement, FederationOptions
from fedgrec.federation.common.packets import FINISH, Packet
from fedgrec.federation.common.plan import MOST_COUNTS
from fedgrec.federation.server.store import Season

SHARE = 5  # a later season has the first season's rounds divided by this, unless the option says otherwise
SURE = 2  # standard deviations


def later_rounds(options: FederationOptions, agreed: Agreement) -> int:
    """The training rounds of every season but the first; `ConfigError` if nodes would refuse these options."""
    if options.seasons != 1 and options.rounds < agreed.season_rounds:
        raise ConfigError(
            f"rounds = {options.rounds}: all agreed on seasons of {agreed.season_rounds} rounds or more "
            f"(season_rounds), so no second season could begin: raise it, or set seasons = 1"
        )
    if options.seasons != 1 and options.look and options.rest / options.look >= MOST_COUNTS:
        raise ConfigError(
            f"look = {options.look:g}: in a rest of {options.rest:g} s nodes take part in fewer than {MOST_COUNTS:,} "
            f"counts of changes: raise it"
        )
    if options.later_rounds and options.later_rounds < agreed.season_rounds:
        raise ConfigError(
            f"later_rounds = {options.later_rounds}: all agreed on seasons of {agreed.season_rounds} rounds or more "
            f"(season_rounds): raise it"
        )
    return options.later_rounds or max(-(-options.rounds // SHARE), agreed.season_rounds)


def to_serve(seasons: Sequence[Season], in_vain: bool) -> int:
    """The season whose model nodes serve once the last one has ended; `in_vain`: its evaluation was lost."""
    *before, last = seasons
    served = before[-1].served if before else None
    old = next((season.line for season in before if season.number == served), None)
    is_worse = last.line and old and fell(old, last.line)
    return served if served and (in_vain or is_worse) else last.number


def fell(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether recall fell by more than the noise and the choice of users explain."""
    name = next(key for key in now if key.startswith("recall@"))
    drop = before.get(name, 0.0) - now[name]
    return bool(drop > SURE * math.sqrt(_variance(before, name) + _variance(now, name)))


def _variance(line: Mapping[str, Any], name: str) -> float:
    """The variance of a mean over users, each from 0 to 1, with noise in it."""
    mean = line.get(name, 0.0)
    return float(line.get("noise", 0.0) ** 2 + mean * (1 - mean) / max(line["users"], 1))


# ------------------------------------------------------------------------------------------- published models


def publish(
    folder: Path, season: Season, model: dict[str, Any], arrays: dict[str, Any], keep: int, served: int
) -> None:
    """Keep a season's model, those of the last few seasons, and the one that is served."""
    write_arrays(_path(folder, season.number), arrays, {"model": model, "n_users": season.n_users})
    for path in folder.glob("published-*.bin"):
        if (other := int(path.stem.removeprefix("published-"))) <= season.number - keep and other != served:
            path.unlink()


def published(folder: Path, number: int) -> Packet | None:
    """The packet that makes nodes serve this season's model; None if the model is not kept any more.

    A season that gets more rounds goes on after its end, so a model's own number counts its rounds instead.
    """
    if not _path(folder, number).exists():
        return None
    arrays, about = read_arrays(_path(folder, number))
    return Packet(FINISH, {**about, "number": 1 + about["model"]["round"]}, {}, arrays)


def _path(folder: Path, number: int) -> Path:
    return folder / f"published-{number}.bin"
