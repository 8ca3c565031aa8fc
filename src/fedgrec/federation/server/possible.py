"""What an opened sum can be, and the model after it, if every node keeps to the rules.

Masks hide what a node sends, so a lie shows in the sum alone, and not whose it is. A round or an evaluation that is
impossible is lost. What users send once, degrees and standing latents, is put back into its range instead
(`Method.keep_possible`), since it cannot be asked for again.
"""

from collections.abc import Iterable

import numpy as np

from fedgrec.core import ServerState, Upload, UploadSpec
from fedgrec.errors import SumLostError

LARGEST = 2.0**40  # of an embedding: products of two, and sums of such products, are still finite


def check_users(opened: int, planned: int) -> None:
    """The sum says how many users are in it, and so does its plan."""
    if opened != planned or not opened:
        raise SumLostError(f"it holds {opened:,} users, and its nodes were asked for {planned:,}")


def check_round(total: Upload, spec: UploadSpec) -> None:
    """No user adds more than the clip to any entry, and noise does not carry it further than its ring was made for."""
    for leaf in spec.leaves:
        values, most = total.leaves[leaf.name].values, spec.largest(leaf, total.users)
        if outside := int(((values > most) | (values < -most)).sum()):
            raise SumLostError(
                f"{outside:,} entries of {leaf.name!r} are larger than {total.users} users can make them"
            )


def check_metrics(total: Upload, spec: UploadSpec, slack: float = 0.0) -> None:
    """Each is from 0 to 1 for every user that counts; `slack`: how far noise may carry a sum beyond that."""
    sums = {leaf.name: float(total.leaves[leaf.name].values[0, 0]) * leaf.step for leaf in spec.leaves}
    most = dict.fromkeys(sums, sums["count"] + slack) | {"count": total.users}
    for name, value in sums.items():
        if not -slack <= value <= most[name] + slack:
            raise SumLostError(f"the metric {name} adds up to {value:g} over {sums['count']:g} of {total.users} users")


def check_model(server: ServerState) -> None:
    """What nodes could not compute with is not kept."""
    parts = (server.moment1, server.moment2, *server.more.values())
    if not all(np.isfinite(part).all() for part in parts) or not (np.abs(server.items) <= LARGEST).all():
        raise SumLostError("it would make the model infinite, or an embedding larger than 2⁴⁰")


def suspects(names: Iterable[str]) -> str:
    """Masks hide which node it was."""
    return f"one of {', '.join(names)} lies or fails: stop them in turn to find out which"
