"""The two errors of a federation that a person can act on."""

from fedgrec.errors import FedgrecError


class FederationError(FedgrecError):
    """A folder, a request or an answer that does not fit this federation."""


class Forgotten(FederationError):  # noqa: N818 (it names what happened)
    """The server lacks a warm-up that its nodes know to count: it was restored from a backup that is too old."""
