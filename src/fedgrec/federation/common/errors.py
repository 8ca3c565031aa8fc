"""The error of a federation that a person can act on."""

from fedgrec.errors import FedgrecError


class FederationError(FedgrecError):
    """A folder, a request or an answer that does not fit this federation."""


class RefusedError(FederationError):
    """The server does not want this node any more: nothing gets better if the node is started again as it is."""

    code = 78  # EX_CONFIG; systemd is told to start no node again that ends so (setup/fedgrec.service)
