"""Pairwise masks without recovery, the formula of the paper's preliminaries: if one client is lost, so is the round."""

from collections.abc import Mapping

from fedgrec.secagg.client import Client
from fedgrec.secagg.errors import TooFewLeft
from fedgrec.secagg.messages import Keys, Masked, Message, Neighbourhood
from fedgrec.secagg.server import Server
from fedgrec.secagg.session import Stage


class PairwiseClient(Client):
    """Uploads x_u + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv), and is done."""

    awaits: Mapping[Stage, type[Message]] = {Stage.SHARES: Neighbourhood}
    uploads = Stage.SHARES

    def _share(self, message: Neighbourhood) -> Message:
        self._meet(message)
        if len(self._keys) < 2:
            raise TooFewLeft("pairwise masks of fewer than three clients hide nothing from one of them")
        masked = self._masked([])
        self.abandon()
        return masked

    def _there(self) -> set[int]:
        return set(self._keys)


class PairwiseServer(Server):
    """Pairwise masks alone: they cancel when all vectors are there, and never otherwise."""

    answers: Mapping[Stage, type[Message]] = {Stage.KEYS: Keys, Stage.SHARES: Masked}

    def _close_shares(self) -> dict[int, Message]:
        missing = sorted(set(self._keys) - self._alive)
        if missing:
            raise TooFewLeft(f"without recovery no vector may be missing, and those of clients {missing[:5]} are")
        return self._open([])
