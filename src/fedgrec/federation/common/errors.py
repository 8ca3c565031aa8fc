"""The error of a federation that a person can act on."""

from fedgrec.errors import FedgrecError


class FederationError(FedgrecError):
    """A folder, a request or an answer that does not fit this federation."""
