"""Is this click among those that the model was trained on? Asked by an attacker who trains models to compare with.

LiRA (Carlini et al. 2022): models are trained in pairs, and of each pair one knows a click and the other does not. So
every person and click is its own comparison. How the other pairs score the click with and without it gives the
likelihood ratio for a model. The attacker knows half of everybody's items, and asks the published model about newcomers
who have these.
"""

import numpy as np

from fedgrec.cable.core import Floats, Ints
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions, Split
from fedgrec.runs.simulation import Observer, Simulation
from fedgrec.studies.audit.membership import halves, some
from fedgrec.studies.audit.recording import Truth, published
from fedgrec.studies.audit.scores import Finding, NotApplicable, finding, interval, percent

NAME = "your clicks, by models to compare with"
FALSE_ALARMS = 0.01  # of clicks that are out
FEWEST = 2  # pairs beside the asked one: of one, no spread is known
THIRDS = "rarest", "middle", "most popular"
SHADOWS_STREAM, TINY = 10, 1e-12


def audit(config: Config, truth: Truth, pairs: int, observer: Observer | None = None) -> Finding | NotApplicable:
    people, users = truth.people, some(np.flatnonzero(truth.people.user_degrees() > 1))
    if pairs <= FEWEST or not len(users):
        why = f"it takes people with two items or more, and {FEWEST + 1} pairs of models or more"
        return NotApplicable(NAME, f"{why} (--shadows)")
    known, hidden = halves(people, users)
    owner, clicks = np.repeat(np.arange(len(users)), [len(part) for part in hidden]), np.concatenate(hidden)
    indptr, items = np.cumsum([0, *map(len, known)]), np.concatenate(known)
    rng = np.random.Generator(np.random.Philox(key=[config.run.seed, SHADOWS_STREAM]))

    def scores(data: Interactions, number: int) -> tuple[Floats, Floats]:
        chosen = config.changed({"seed": config.run.seed + number, "secure": "off"}, "the audit")
        run = Simulation(chosen, Dataset("shadow", Split(data)), observer=observer)
        run.run()
        if not run.finished:  # the observer wanted to stop
            raise KeyboardInterrupt
        told = published(run.method, run.server)(indptr, items).astype(np.float64)
        told = (told - told.mean(axis=1, keepdims=True)) / (told.std(axis=1, keepdims=True) + TINY)  # models differ
        blind = data.degrees()[clicks] + rng.random(len(clicks))  # of equally popular ones chance decides
        return told[owner, clicks], blind

    places = np.searchsorted(people.keys(), users[owner] * people.n_items + clicks)
    seen = np.zeros((2, pairs, 2, len(clicks)))
    for pair in range(pairs):
        first = rng.random(len(clicks)) < 0.5
        for at, there in enumerate((first, ~first)):
            kept = np.ones(people.n_pairs, bool)
            kept[places] = there
            seen[:, pair, np.where(there, 0, 1), np.arange(len(clicks))] = scores(people.select(kept), 2 * pair + at)
    return scored(calibrated(seen[0]), seen[1], owner, truth.popularity[clicks])


def calibrated(seen: Floats) -> Floats:
    """The likelihood ratio of "with it" to "without it", by all pairs but the asked one.  # [pairs, 2, clicks]"""
    found = np.zeros_like(seen)
    for asked in range(len(seen)):
        others = np.delete(seen, asked, axis=0)
        with_it, without = others.mean(axis=0)
        spread = others.var(axis=0, ddof=1).mean(axis=0)
        spread = (spread + spread.mean()) / 2 + TINY  # of few pairs, that of one click is uncertain
        found[asked] = ((seen[asked] - without) ** 2 - (seen[asked] - with_it) ** 2) / (2 * spread)
    return found


def recognised(seen: Floats, owner: Ints) -> Floats:
    """For each person the share of clicks that score higher, where they are in, than 99 % do where they are out."""
    sure = seen[:, 0] > np.quantile(seen[:, 1], 1 - FALSE_ALARMS)
    _, place = np.unique(owner, return_inverse=True)
    shares: Floats = np.bincount(place, sure.mean(axis=0)) / np.bincount(place)
    return shares


def scored(seen: Floats, popularity: Floats, owner: Ints, degrees: Ints) -> Finding:
    """The table's line; each third of the clicks, by popularity of their items, has false alarms of its own."""
    by_degree = np.array_split(np.argsort(degrees, kind="stable"), len(THIRDS))
    parts = [interval(recognised(seen[..., part], owner[part])) for part in by_degree]
    each = ", ".join(
        f"{percent(part.value)} ({percent(part.low)}–{percent(part.high)}) of the {name}"
        for name, part in zip(THIRDS, parts, strict=True)
    )
    said = (
        "At 1 false alarm in 100, whoever trains models with and without a click would recognise {attack} of 100 of "
        f"your clicks; popularity alone {{popularity}}. By thirds of popularity: {each}."
    )
    right, blind = recognised(seen, owner), recognised(popularity, owner)
    chance = np.full(len(right), FALSE_ALARMS)
    return finding(NAME, said, right, chance, blind, by_popularity=dict(zip(THIRDS, parts, strict=True)))
