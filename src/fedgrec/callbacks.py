"""The progress bar and the callbacks of `FedGRec.fit`."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedgrec.errors import ConfigError
from fedgrec.simulation import Observer

Callback = Callable[[dict[str, Any]], Any]
Callbacks = Callback | Iterable[Callback] | None


class Told(Observer):
    """Shows a bar of the rounds, and calls functions after each round.

    A function gets the metrics of a round that was evaluated, and {"round": r} after any other round. If a function
    returns True, training ends after this round.
    """

    def __init__(self, progress: bool | None, callbacks: Callbacks) -> None:
        several = list(callbacks) if isinstance(callbacks, Iterable) else [] if callbacks is None else [callbacks]
        for one in several:
            if not callable(one):
                raise ConfigError(f"callbacks: {one!r} cannot be called: give a function of one argument, or several")
        self.callbacks, self.progress = several, progress
        self.bar: Any = None
        self.evaluated_round, self.stopping = -1, False

    def started(self, done: int, rounds: int) -> None:
        from tqdm import tqdm

        off = None if self.progress is None else not self.progress  # None: off unless standard error is a terminal
        self.bar = tqdm(total=rounds, initial=done, unit="round", disable=off, dynamic_ncols=True)

    def round_done(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
        if done != self.evaluated_round:
            self._tell({"round": done})

    def evaluated(self, line: dict[str, Any]) -> None:
        self.evaluated_round = line["round"]
        if self.bar is not None:
            recall = next(name for name in line if name.startswith("recall@"))
            self.bar.set_postfix_str(f"{recall} {line[recall]:.4f}", refresh=False)
        self._tell(dict(line))

    def noticed(self, sentence: str) -> None:
        if self.bar is not None and not self.bar.disable:
            self.bar.write(sentence)

    def stop_wanted(self) -> bool:
        return self.stopping

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def _tell(self, line: dict[str, Any]) -> None:
        for callback in self.callbacks:
            answer = callback(line)
            self.stopping |= isinstance(answer, bool | np.bool_) and bool(answer)
