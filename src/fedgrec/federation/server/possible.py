"""The range of an opened sum, and of the model after it, if every node keeps to the rules.

Masks hide what a node sends, so a lie shows only in the sum, which does not show whose lie it is. A round or an
evaluation outside the range is lost. Degrees and standing latents, which users send once, are put back into their range
instead (`Method.keep_possible`), because users cannot send them again.
"""

from collections.abc import Iterable

import numpy as np

from fedgrec.core import ServerState, Upload, UploadSpec
from fedgrec.errors import SumLostError

LARGEST = 2.0**40  # the largest entry of an embedding: products of two, and sums of these, are still finite


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
    parts = (server.moment1, server.moment2, *server.more.values())
    if not all(np.isfinite(part).all() for part in parts) or not (np.abs(server.items) <= LARGEST).all():
        raise SumLostError("it would make the model infinite, or an embedding larger than 2⁴⁰")


def suspects(names: Iterable[str]) -> str:
    """All nodes of the sum are suspects, because masks hide which node it was."""
    return f"one of {', '.join(names)} lies or fails: stop them in turn to find out which"
