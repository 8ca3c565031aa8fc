"""The roster as a node knows it: it is never replaced by an older one, nor by another one of the same number."""

import logging
from typing import Any

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.roster import Membership, check_successor, differences, unpack, write_roster
from fedgrec.federation.node.folder import NodeFolder
from fedgrec.federation.node.store import NodeStore

SEEN = "roster"  # in `meta`: number and digest of the newest roster that the node has seen
log = logging.getLogger("fedgrec.node")


def seen(folder: NodeFolder, store: NodeStore, now: Membership) -> Membership:
    """Remember this roster, or refuse it if the node has seen a newer one."""
    number, digest = store.get(SEEN, (0, ""))
    if now.number < number or (now.number == number and now.digest != digest):
        raise FederationError(
            f"node {folder.name} has seen roster {number}, and was given another {now}: it is refused"
        )
    if now.number > number:
        store.put(SEEN, (now.number, now.digest))
    return now


def check_server(folder: NodeFolder, store: NodeStore, said: Any) -> None:
    """Before joining: the server must say that it has the newest roster that this node has seen, or a newer one.

    This is for the sentence. A server that says otherwise opens nothing: the roster is bound into all keys.
    """
    if said is None:
        return
    now, newest = folder.membership, store.get(SEEN, (0, ""))
    if now.number > newest[0]:
        newest = now.number, now.digest
    number, digest = said if isinstance(said, list) and len(said) == 2 else (0, "")
    if type(number) is not int or number < newest[0]:
        raise FederationError(
            f"the server's roster is older ({number}) than the one that node {folder.name} has seen ({newest[0]}): "
            f"copy the newest roster.json to the server"
        )
    if number == newest[0] and digest != newest[1]:
        raise FederationError(
            f"node {folder.name} has seen another roster {number} than the server's: compare their fingerprints, and "
            f"copy the right one to the server"
        )


def install(folder: NodeFolder, store: NodeStore, content: bytes) -> None:
    """Take up a newer roster: somebody has come, gone, or has another key. The authority vouches for it."""
    now, new = folder.membership, unpack(content, folder.shared, folder.federation, "the server's roster")
    if new.digest == now.digest:  # another user of the gateway got it first
        return
    check_successor(new, now)
    seen(folder, store, new)
    write_roster(folder.shared, new)
    log.info("%s is followed by %s: %s", now, new, differences(new, now))
