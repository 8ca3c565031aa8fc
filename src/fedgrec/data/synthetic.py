"""The built-in `demo` data: invented people in invented towns, checking in to invented places.

A person's chance to visit a place is  popularity · taste for its category · closeness to home.  So choices are local:
neighbours share many places, and a neighbour's neighbour still shares some. A graph method can use this structure; a
popularity list cannot.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedgrec.data.interactions import IdMap, Interactions

N_USERS = 1_500
N_ITEMS = 2_500
SEED = 20_240_501

TOWNS = (
    "Aldermouth", "Brackwater", "Castlemere", "Dunholt", "Eastermoor", "Fennbridge",
    "Greywick", "Hollin Bay", "Ivelstowe", "Kestrelford", "Larkhaven", "Marrowby",
)  # fmt: skip
KINDS = {
    "food": ("Café", "Bakery", "Noodle House", "Kitchen", "Tea Room"),
    "nightlife": ("Tavern", "Jazz Bar", "Ballroom", "Brewery", "Karaoke"),
    "culture": ("Museum", "Theatre", "Gallery", "Cinema", "Library"),
    "outdoors": ("Park", "Garden", "Lookout", "Pier", "Boat House"),
    "sport": ("Gym", "Climbing Hall", "Pool", "Tennis Club", "Ice Rink"),
    "shops": ("Bookshop", "Market", "Record Store", "Flea Market", "Arcade"),
    "family": ("Playground", "Puppet Stage", "Mini Golf", "Petting Farm", "Aquarium"),
    "work": ("Library Café", "Studio", "Workshop", "Meeting House", "Print Shop"),
}
FIRST_WORDS = (
    "Harbour", "Old Mill", "Lantern", "Copper", "Willow", "Station", "Cathedral", "Riverside", "Blue Door",
    "Juniper", "Market Square", "Foxglove", "Bell Tower", "Orchard", "Northgate", "Saffron", "Paper Moon",
    "Anchor", "Clover", "Driftwood", "Ember", "Kingfisher", "Limestone", "Mulberry", "Nightingale",
    "Opal", "Pepper", "Quayside", "Rosemary", "Silver", "Thistle", "Umbrella", "Velvet", "Windmill",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Places:
    """Facts about the demo's items (places) and users (people) besides their visits."""

    names: tuple[str, ...]  # [N], unique
    coordinates: NDArray[np.float32]  # [N, 2] latitude, longitude
    town: NDArray[np.int32]  # [N] index into town_names
    town_names: tuple[str, ...]
    user_town: NDArray[np.int32]  # [M] index into town_names
    user_coordinates: NDArray[np.float32]  # [M, 2]


@cache  # it takes most of a second
def demo() -> tuple[Interactions, Places]:
    """All check-ins of the demo, the same on every machine, and the places and people behind them."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    n_towns, n_kinds = len(TOWNS), len(KINDS)

    # The map: towns on a rough grid one degree apart, each with several neighbourhoods.
    grid = np.stack(np.divmod(np.arange(n_towns), 4), axis=1)
    town_centre = np.array([46.0, 7.0]) + grid + rng.uniform(-0.3, 0.3, (n_towns, 2))
    town_size = (1.0 / np.arange(1, n_towns + 1)) ** 0.6  # a few big towns, many small
    town_size /= town_size.sum()
    quarter_town = np.repeat(np.arange(n_towns), np.ceil(town_size * 150).astype(int))  # [Q]
    quarter_centre = town_centre[quarter_town] + rng.normal(0, 0.12, (len(quarter_town), 2))
    quarter_size = town_size[quarter_town] / np.bincount(quarter_town)[quarter_town]

    def settle(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A neighbourhood [n] and a spot in it [n, 2] for each of n people or places."""
        quarter = rng.choice(len(quarter_town), n, p=quarter_size / quarter_size.sum())
        return quarter, quarter_centre[quarter] + rng.normal(0, 0.01, (n, 2))

    item_quarter, item_at = settle(N_ITEMS)
    user_quarter, user_at = settle(N_USERS)
    item_town, user_town = quarter_town[item_quarter], quarter_town[user_quarter]
    category = rng.integers(0, n_kinds, N_ITEMS)
    appeal = rng.normal(0, 1.3, N_ITEMS)  # log popularity: a log-normal tail

    # Most people care for one or two categories, and travel to one other town, some more than others.
    taste = np.log(rng.dirichlet(np.full(n_kinds, 0.15), N_USERS) + 0.01)  # [M, C]
    second_town = (user_town + rng.integers(1, n_towns, N_USERS)) % n_towns
    travels = rng.beta(1, 6, N_USERS)  # share of trips

    distance = np.hypot(*(user_at.T[:, :, None] - item_at.T[:, None]))  # [M, N]
    near = np.where(item_town == user_town[:, None], -distance / 0.1, -12.0)
    trip = np.where(item_town == second_town[:, None], np.log(travels)[:, None] - 2.0, -12.0)
    logit = appeal + taste[:, category] + np.logaddexp(near, trip)

    # Sampling without replacement: the n largest of logit + Gumbel noise.
    # Half the people have a dozen check-ins or fewer, one in fifteen more than a hundred.
    n_visits = np.minimum(8 + rng.lognormal(np.log(4), 2.0, N_USERS), 400).astype(np.int64)
    picky = np.sqrt(np.minimum(1, 12 / n_visits))[:, None]  # people who go out often choose less strictly
    luck = -(picky * logit + rng.gumbel(size=logit.shape))
    users = np.repeat(np.arange(N_USERS), n_visits)
    items = np.concatenate([np.sort(np.argpartition(luck[u], n)[:n]) for u, n in enumerate(n_visits)])
    two_years = 2 * 365 * 86_400
    times = 1_640_995_200.0 + rng.integers(0, two_years, len(users))  # from 1 January 2022

    data = Interactions.from_pairs(
        users, items, times=times,
        user_ids=IdMap.range(N_USERS, "user"), item_ids=IdMap.range(N_ITEMS, "item"),
    )  # fmt: skip
    places = Places(
        names=_names(rng, category),
        coordinates=item_at.astype(np.float32),
        town=item_town.astype(np.int32),
        town_names=TOWNS,
        user_town=user_town.astype(np.int32),
        user_coordinates=user_at.astype(np.float32),
    )
    return data, places


def _names(rng: np.random.Generator, category: NDArray[np.int64]) -> tuple[str, ...]:
    """One name per place, fitting its category; the second 'Harbour Café' is 'Harbour Café 2'."""
    nouns = tuple(KINDS.values())
    first = rng.integers(0, len(FIRST_WORDS), len(category))
    noun = rng.integers(0, len(nouns[0]), len(category))
    seen: dict[str, int] = {}
    names = []
    for c, f, n in zip(category, first, noun, strict=True):
        name = f"{FIRST_WORDS[f]} {nouns[c][n]}"
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return tuple(names)
