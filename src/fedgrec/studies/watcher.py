"""Who watches a study: something that does one run after the other."""

from fedgrec.runs.simulation import Observer


class Watcher(Observer):
    """Watches a study, and each of its runs as an Observer does."""

    def run_started(self, number: int, total: int, label: str = "", seed: str = "") -> None: ...
    def run_ended(self, result: str) -> None: ...
