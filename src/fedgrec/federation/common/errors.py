"""The two errors of a federation that a person can act on."""

from fedgrec.errors import FedgrecError


class FederationError(FedgrecError):
    """A folder, a request or an answer that does not fit this federation."""


class Forgotten(FederationError):  # noqa: N818 (it names what happened)
    """The server lacks a warm-up or a season that its nodes know of: it was restored from a backup that is too old."""

    def __init__(self, sentence: str, season: bool = False) -> None:
        super().__init__(sentence)
        self.season = season
