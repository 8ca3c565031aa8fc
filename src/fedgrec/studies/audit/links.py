"""What can be linked in the recorded sums of a federation, and how often that is right.

With the sums alone one can group rows and compare sums, but cannot say whether a group is one person's. With the
people's items, read from the nodes' folders, the same groups are scored as in a simulation. A node adds up its users
before it masks, so the server knows which nodes are in a sum, but not which users.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgrec.cable.core import Ints, printable
from fedgrec.data import IdMap, Interactions
from fedgrec.errors import ConfigError
from fedgrec.methods.contract import make_method
from fedgrec.runs.recorded_sums import RecordedSum
from fedgrec.studies.audit import clusters, membership
from fedgrec.studies.audit.audit import Audit, Line
from fedgrec.studies.audit.directions import LEAST, Lines, group
from fedgrec.studies.audit.recording import Contributions, OpenedSum, Truth, View, nearest, present
from fedgrec.studies.audit.scores import NotApplicable, finding_items, named

OF_NODES = "a node's items, from sums it was in"
UNKNOWN = "nodes do not keep which rows their users drew to compare with, so nobody knows whose they are"
ALWAYS = "every node was in every sum that tells which items people have, so there is nothing to compare"


# ------------------------------------------------------------------------------------- without the nodes' data


@dataclass(frozen=True)
class Groups:
    """Rows of one direction, put together."""

    rows: int
    grouped: int  # rows that are in a group
    groups: int
    largest: int  # rows of the largest group

    @staticmethod
    def of(found: Ints) -> "Groups":
        sizes = np.bincount(found[found >= 0])
        return Groups(len(found), int(sizes.sum()), len(sizes), int(sizes.max(initial=0)))

    def said(self, what: str) -> str:
        most = f" The largest has {self.largest:,}." if self.groups else ""
        return (
            f"{self.grouped:,} of {self.rows:,} {what} are in {self.groups:,} groups of {LEAST} or more; each group "
            f"may be one person's.{most}"
        )


@dataclass(frozen=True)
class Links:
    """What a server can link, whether it is right or not."""

    method: str
    sums: int
    users: int  # of the last sum
    items: int
    touched: int  # items of the last sum
    by_direction: Groups
    by_latents: Groups | None  # None: no recorded sum carries latents
    by_company: dict[str, int] | None  # items that were in all sums with a node and in none without it; None: ALWAYS

    def sentences(self) -> list[str]:
        """What was linked, a sentence each."""
        tied = ", ".join(f"{count:,} to {printable(node)}" for node, count in (self.by_company or {}).items())
        return [
            f"In the last sum, of {self.users:,} users, rows of {self.touched:,} of {self.items:,} items are not zero.",
            f"By direction, {self.by_direction.said('rows')}",
            f"By latents, {self.by_latents.said('items')}"
            if self.by_latents
            else "No recorded sum carries latents: there is nothing to group by them.",
            f"Items that were touched in every sum with a node and in no sum without it are tied to it: {tied}."
            if tied
            else f"Nothing can be tied to a node: {ALWAYS}.",
        ]


def linked(sums: Sequence[RecordedSum]) -> Links:
    """Every link that can be found from the sums alone."""
    contents = make_method(sums[-1].method).contents
    trained = [seen for seen in sums if contents.updates in seen.total.leaves]  # a sweep carries latents alone
    if not trained:
        raise ConfigError("no recorded sum carries item updates: record more of them (option record)")
    last, rows = trained[-1], trained[-1].total.leaves[contents.updates]
    users, n_items, by_latents = last.total.users, last.broadcast.n_items, None
    if full := next((seen for seen in reversed(sums) if contents.latents in seen.total.leaves), None):
        seen = _opened(full, np.arange(full.total.users))
        by_latents = Groups.of(clusters.guess_by_latents(seen, full.broadcast.n_items, contents.latents))
    touched = len(np.unique(rows.index % n_items))
    by_direction = Groups.of(group(Lines(rows.values, either_sign=True), users))
    return Links(last.method, len(sums), users, n_items, touched, by_direction, by_latents, by_company(sums))


def by_company(sums: Sequence[RecordedSum]) -> dict[str, int] | None:
    """For each node, how many items were touched in every sum with it and in no sum without it."""
    n_items = max(seen.broadcast.n_items for seen in sums)
    method = make_method(sums[-1].method)
    told = [(seen, there) for seen in sums if (there := present(seen, method.contents, n_items)) is not None]
    found = {}
    for node, name in sorted(_nodes(sums)):
        together = [touched for seen, touched in told if node in seen.nodes]
        apart = [touched for seen, touched in told if node not in seen.nodes]
        if together and apart:
            found[name] = int((np.all(together, axis=0) & ~np.any(apart, axis=0)).sum())
    return found or None


def _nodes(sums: Sequence[RecordedSum]) -> set[tuple[int, str]]:
    """The nodes in these sums, and their names."""
    return {pair for seen in sums for pair in zip(seen.nodes, seen.names, strict=True)}


def _opened(seen: RecordedSum, people: Ints) -> OpenedSum:
    return OpenedSum(seen.broadcast, seen.spec, seen.total, people)


# ---------------------------------------------------------------------------------------- with the nodes' data


@dataclass(frozen=True, eq=False)
class KnownUser:
    """A user as the node's folder has it."""

    node: int  # its place on the roster
    items: Ints
    sessions: frozenset[str]  # the sums that it was in


def scored(sums: Sequence[RecordedSum], users: Sequence[KnownUser]) -> Audit:
    """How often the links are right."""
    known = {user.node for user in users}
    missing = sorted({name for node, name in _nodes(sums) if node not in known})
    if missing:
        raise ConfigError(
            f"the sums hold users of {', '.join(missing)}, too: name the folders of all nodes with --nodes"
        )
    last = sums[-1]
    sums = [seen for seen in sums if seen.broadcast.n_items == last.broadcast.n_items]  # the catalogue may have grown
    people = [np.array([at for at, user in enumerate(users) if seen.session in user.sessions], int) for seen in sums]
    by_latents = clusters.audit_latents(*_seen(sums, people, [user.items for user in users]))
    lines = NotApplicable(clusters.NAME, UNKNOWN), by_latents, _audit_nodes(sums, users)
    return Audit(last.method, len(users), last.broadcast.n_items, len(sums), last.total.users, lines)


def _seen(sums: Sequence[RecordedSum], people: Sequence[Ints], items: Sequence[Ints]) -> tuple[View, Truth]:
    """The sums with the people in each of them; and what all people have."""
    n_items, nothing = sums[-1].broadcast.n_items, np.zeros(0, np.int64)
    who = np.repeat(np.arange(len(items)), [len(part) for part in items])
    names, catalogue = IdMap.range(len(items), "user"), IdMap.range(n_items, "item")
    data = Interactions.from_pairs(who, np.concatenate(items), user_ids=names, item_ids=catalogue)
    opened = tuple(_opened(seen, part) for seen, part in zip(sums, people, strict=True))
    name, model = sums[-1].method, nearest(sums[-1].broadcast.tables[0])
    method = make_method(name)
    view = View(name, len(items), n_items, opened, None, model, None, method.contents, method.leaning)
    return view, Truth(data, data, Contributions(nothing, nothing))


def _audit_nodes(sums: Sequence[RecordedSum], users: Sequence[KnownUser]) -> Line:
    """Is this item among those of the node's users? A node has what its users have."""
    if by_company(sums) is None:
        return NotApplicable(OF_NODES, ALWAYS)
    roster = sorted({user.node for user in users})
    has = [np.unique(np.concatenate([user.items for user in users if user.node == node])) for node in roster]
    view, truth = _seen(sums, [np.searchsorted(roster, seen.nodes) for seen in sums], has)
    nodes = np.unique(np.concatenate([seen.people for seen in view.sums]))
    items = truth.items(nodes.tolist())
    popularity = np.bincount(np.concatenate([user.items for user in users]), minlength=view.n_items)
    said = (
        "Of 100 items that the users of a node have, the server would name {attack}, if it names as many as they have; "
        "guessing by popularity names {popularity}."
    )
    return finding_items(OF_NODES, said, named(membership.guess_from_sums(view, nodes), items), items, popularity)
