"""Other readings of points that the paper leaves open: named changes to the preset `paper`.

`fedgrec reproduce TARGET --reading NAME` runs a target's FedGRec under one of them and keeps the target's K, S and τ.
"""

from dataclasses import dataclass, replace
from typing import Any

from fedgrec.compare import Entry
from fedgrec.errors import ConfigError, nearest


@dataclass(frozen=True)
class Reading:
    """The change that a reading makes, in words and as options."""

    what: str
    options: dict[str, Any]

    def of(self, entry: Entry) -> Entry:
        return replace(entry, section={**entry.section, **self.options})


def _sgd(rate: float, users: bool = False) -> dict[str, Any]:
    items = {"item_optimizer": "sgd", "item_rate": rate}
    return items | ({"user_optimizer": "sgd", "user_rate": rate} if users else {})


READINGS = {
    "epsilon-1e-3": Reading("Adam's ε is 1e-3, not PyTorch's 1e-8", {"epsilon": 1e-3}),
    "epsilon-1e-4": Reading("Adam's ε is 1e-4", {"epsilon": 1e-4}),
    "epsilon-1e-5": Reading("Adam's ε is 1e-5", {"epsilon": 1e-5}),
    "sgd-1": Reading("items learn by local SGD at rate 1, not by Adam", _sgd(1.0)),
    "sgd-3": Reading("items learn by local SGD at rate 3", _sgd(3.0)),
    "sgd-10": Reading("items learn by local SGD at rate 10", _sgd(10.0)),
    "sgd-1-both": Reading("items and users learn by local SGD at rate 1", _sgd(1.0, users=True)),
    "sgd-10-both": Reading("items and users learn by local SGD at rate 10", _sgd(10.0, users=True)),
    "kept": Reading("a user's moments outlive the round", {"user_moments": "kept"}),
    "kept-epsilon-1e-4": Reading(
        "a user's moments outlive the round, and ε is 1e-4", {"user_moments": "kept", "epsilon": 1e-4}
    ),
    "negatives-128": Reading("128 negatives", {"negatives": 128}),
    "negatives-512": Reading("512 negatives, as a passage commented out suggests", {"negatives": 512}),
    "negatives-512-epsilon-1e-4": Reading("512 negatives, and ε is 1e-4", {"negatives": 512, "epsilon": 1e-4}),
    "alpha-0.1": Reading("the server's rate α is 0.1", {"server_rate": 0.1}),
    "alpha-0.01": Reading("the server's rate α is 0.01", {"server_rate": 0.01}),
    "sum": Reading("a sum over pairs, not a mean, and α = 1/S", {"reduction": "sum", "server_rate": 1 / 400}),
    "server-adam": Reading("Adam at the server too", {"server_optimizer": "adam", "server_rate": 1e-3}),
    "decay": Reading("L2 as plain weight decay", {"l2_scaling": "row"}),
}


def reading(name: str) -> Reading:
    if name not in READINGS:
        raise ConfigError(
            f"--reading {name}: no such reading.{nearest(name, list(READINGS))} Known: {', '.join(READINGS)}"
        )
    return READINGS[name]


def read(entries: tuple[Entry, ...], name: str) -> tuple[Entry, ...]:
    """The entries that a reading changes, changed; without a reading, all entries as they are."""
    if not name:
        return entries
    return tuple(reading(name).of(entry) for entry in entries if entry.section.get("preset") == "paper")
