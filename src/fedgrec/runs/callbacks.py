"""The progress bar, and the callbacks of `FedGRec.fit`."""

import builtins
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedgrec.errors import ConfigError
from fedgrec.runs.simulation import Observer

Callback = Callable[[dict[str, Any]], Any]
Callbacks = Callback | Iterable[Callback] | None


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, as tqdm decides it."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", ())


class RoundBar(Observer):
    """A bar of the rounds with rate, time left and the live metric."""

    def __init__(self, off: bool | None = None) -> None:
        """None: off unless standard error is a terminal, or this is a notebook."""
        self.off, self.stopping = off, False
        self.bar: Any = None
        self.look: dict[str, Any] = {}

    def started(self, done: int, rounds: int) -> None:
        self.close()  # of an earlier training
        if notebook := in_notebook():
            from tqdm.auto import tqdm
        else:
            from tqdm import tqdm
        off = False if self.off is None and notebook else self.off
        about: dict[str, Any] = {"disable": off if rounds else True, "dynamic_ncols": True, "smoothing": 0.05}
        self.bar = tqdm(total=rounds, initial=done, unit="round", **about, **self.look)

    def round_done(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(done - self.bar.n)

    def evaluated(self, line: dict[str, Any]) -> None:
        if self.bar is not None:
            recall = next(name for name in line if name.startswith("recall@"))
            self.bar.set_postfix_str(f"{recall} {line[recall]:.4f}", refresh=False)

    def noticed(self, sentence: str) -> None:
        if self.bar is not None and not self.bar.disable:
            self.bar.write(sentence)

    def stop_wanted(self) -> bool:
        return self.stopping

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class Calls(RoundBar):
    """A bar that also calls functions after each round.

    A function gets the metrics of a round that was evaluated, and {"round": r} after any other round. If a function
    returns True, training ends after this round.
    """

    def __init__(self, progress: bool | None, callbacks: Callbacks) -> None:
        super().__init__(None if progress is None else not progress)
        several = list(callbacks) if isinstance(callbacks, Iterable) else [] if callbacks is None else [callbacks]
        for one in several:
            if not callable(one):
                raise ConfigError(f"callbacks: {one!r} cannot be called: give a function of one argument, or several")
        self.callbacks, self.evaluated_round = several, -1

    def round_done(self, done: int) -> None:
        super().round_done(done)
        if done != self.evaluated_round:
            self._call({"round": done})

    def evaluated(self, line: dict[str, Any]) -> None:
        super().evaluated(line)
        self.evaluated_round = line["round"]
        self._call(dict(line))

    def _call(self, line: dict[str, Any]) -> None:
        for callback in self.callbacks:
            answer = callback(line)
            self.stopping |= isinstance(answer, bool | np.bool_) and bool(answer)
