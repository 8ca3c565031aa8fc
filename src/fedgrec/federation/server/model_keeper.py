"""The server's model: what a sum does to it, and the way back to the stored one.

Masks hide what a node sends, so a lie shows only in the sum, which does not show whose lie it is. A round or an
evaluation outside the range that users can have is lost. Degrees and standing latents, which users send once, are put
back into their range instead (`Method.keep_possible`), because users cannot send them again.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fedgrec.cable.core import ServerState, Upload, UploadSpec
from fedgrec.errors import SumLostError
from fedgrec.federation.common import evaluation
from fedgrec.federation.common.packets import LARGEST
from fedgrec.federation.common.plan import CHANGES, EVALUATE, Plan, is_once, is_recount, privacy
from fedgrec.federation.server.members import Members
from fedgrec.federation.server.secure_sum import Outcome
from fedgrec.federation.server.store import Cost
from fedgrec.methods.contract import Method


class ModelKeeper:
    """The model as it is now, and the method of the present season, which changes it."""

    server: ServerState
    method: Method

    def __init__(self, members: Members) -> None:
        self.members = members

    def begin(self, method: Method) -> None:
        """Go on with this method, from the stored model."""
        self.method = method
        self.go_back()

    def go_back(self) -> None:
        """Go back to the last good model: the stored one, with a row for every item that has come since."""
        self.server = self.stored("model")
        self.keep_possible("the stored model")

    def stored(self, which: str) -> ServerState:
        seed = self.members.folder.config.run.seed
        model = self.members.store.model(self.method.init(seed), which)
        return self.method.grown(model, seed) if len(model.degrees) < self.method.n_items else model

    def trained_on(self) -> ServerState:
        """The model that the last training round began with."""
        model = self.stored("before")
        model.round = self.members.store.trained()[0]
        return model

    def take(self, sum_: Plan, session: str, outcome: Outcome, cost: Cost) -> Upload:
        """Apply a sum to the model and return it; a sum that no users can have made is lost."""
        spec, stage = sum_.spec(self.method), sum_.stage_of(self.method)
        once = is_once(self.method, sum_.stage)
        users = sum(sum_.count(self.members.users[node]) for node in outcome.included)
        try:
            if not once:
                check_users(outcome.users, users)
            total = Upload.from_ring(outcome.values, spec, min(users, spec.users))
            if sum_.stage == CHANGES:
                check_round(total, spec)
                self.members.store.answered(session, outcome.included, total.users, cost)
                return total
            if sum_.stage == EVALUATE:
                # Each included node added the share that is right if only the honest nodes of the fewest take part.
                shares = len(outcome.included) / max(outcome.least - self.members.folder.corrupt_nodes, 1)
                deviation = sum_.deviation * math.sqrt(shares)
                check_metrics(total, spec, evaluation.HEADROOM * deviation)
                found = evaluation.result(total, spec, deviation)
                line = self._line(sum_.round, found, cost) if found["users"] else None
                self.members.store.answered(session, outcome.included, outcome.users, cost, line)
                if line:
                    self.members.observer.evaluated(line)
                return total
            if not once:
                check_round(total, spec)
            self.server = self.method.apply(self.server, stage, total, sum_.level)
            self.keep_possible(f"stage {sum_.stage!r} of round {sum_.round + 1}", outcome.included)
            check_model(self.server)
        except SumLostError as lost:
            raise SumLostError(f"{lost}; {suspects(self.names(outcome.included))}") from None
        warm = self.members.store.get("warm", 0) + (once and not is_recount(self.method, sum_.stage))
        self.members.store.apply(session, outcome.included, total.users, self.server, warm, cost)
        return total

    def keep_possible(self, where: str, nodes: list[int] | None = None) -> None:
        """Degrees and latents stay in their range, whatever nodes send."""
        outside = self.method.keep_possible(self.server, self.members.store.loose_users())
        self.method = self.method.counted(self.server.degrees)
        if outside:
            who = f": {suspects(self.names(nodes))}" if nodes else ""
            entries = "1 entry" if outside == 1 else f"{outside:,} entries"
            self.members.observer.noticed(
                f"{where}: {entries} of degrees and latents were outside what users can have, and were put back{who}"
            )

    def names(self, nodes: list[int]) -> list[str]:
        return [self.members.folder.roster[node].name for node in nodes]

    def _line(self, round_: int, found: dict[str, Any], cost: Cost) -> dict[str, Any]:
        """One line of metrics.jsonl; all traffic is masked, so both counts of bytes are the same."""
        before = self.members.store.cost()
        up, down = (before.up or 0) + cost.up, (before.down or 0) + cost.down
        return {
            "round": round_,
            "split": "held-out",
            "protocol": "federation",
            **found,
            "seconds": round(before.seconds + cost.seconds, 3),
            **{"bytes_up": up, "bytes_down": down, "bytes_up_secure": up, "bytes_down_secure": down},
            **self.privacy(round_ + 1),
        }

    def privacy(self, rounds: int) -> dict[str, float]:
        """The privacy spent by a user who was in all of these rounds."""
        return privacy(self.method, self.members.folder.agreed, rounds)


# ------------------------------------------------------------------------------- what users can add up to


def check_users(opened: int, planned: int) -> None:
    """The sum must hold as many users as its plan says."""
    if opened != planned or not opened:
        raise SumLostError(f"it holds {opened:,} users, and its nodes were asked for {planned:,}")


def check_round(total: Upload, spec: UploadSpec) -> None:
    """No user adds more than the clip to any entry, and noise adds no more than the ring has room for."""
    for leaf in spec.leaves:
        values, most = total.leaves[leaf.name].values, spec.largest(leaf, total.users)
        if outside := int(((values > most) | (values < -most)).sum()):
            raise SumLostError(
                f"{outside:,} entries of {leaf.name!r} are larger than {total.users} users can make them"
            )


def check_metrics(total: Upload, spec: UploadSpec, slack: float = 0.0) -> None:
    """Each metric is from 0 to 1 for every user that counts; `slack`: how far noise may move a sum beyond that."""
    sums = {leaf.name: float(total.leaves[leaf.name].values[0, 0]) * leaf.step for leaf in spec.leaves}
    most = dict.fromkeys(sums, sums["count"] + slack) | {"count": total.users}
    for name, value in sums.items():
        if not -slack <= value <= most[name] + slack:
            raise SumLostError(f"the metric {name} adds up to {value:g} over {sums['count']:g} of {total.users} users")


def check_model(server: ServerState) -> None:
    """Refuse a model that nodes could not compute with."""
    moments, sent = (server.moment1, server.moment2), (server.items, *server.more.values())
    finite = all(np.isfinite(part).all() for part in moments)
    if not finite or not all((np.abs(part) <= LARGEST).all() for part in sent):
        raise SumLostError("it would make the model infinite, or an embedding larger than 2⁴⁰")


def suspects(names: Iterable[str]) -> str:
    """All nodes of the sum are suspects, because masks hide which node it was."""
    return f"one of {', '.join(names)} lies or fails: stop them in turn to find out which"
