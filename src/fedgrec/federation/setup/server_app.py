"""The app of a server that keeps copies of itself. Flower starts it by its name (flower/server_end.py)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgrec.errors import FedgrecError
from fedgrec.federation.flower.server_app import app_with
from fedgrec.federation.server.log import Lines
from fedgrec.federation.setup.copies import keep_copy


class Keeping(Lines):
    """Copies the server before its nodes hear that a sum counts: they send none again that a lost server forgot."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self.folder = folder

    def summed(self, line: dict[str, Any]) -> None:
        super().summed(line)
        self._keep()

    def noticed(self, sentence: str) -> None:
        super().noticed(sentence)
        self._keep()  # the notice may be of a new roster

    def _keep(self) -> None:
        try:
            if copy := keep_copy(self.folder):
                self.say(f"note: {copy} is a copy of this server, with its key")
        except (FedgrecError, OSError) as trouble:  # such as a full disk: the next sum is a chance to try again
            self.say(f"note: {trouble}")


server_app = app_with(Keeping)
