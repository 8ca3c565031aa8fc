"""Rounds that an engine runs from end to end, as many at a time as possible until something reads the state."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fedgrec.cable.core import Cohort, Ints, ServerState
from fedgrec.config.configuration import Config
from fedgrec.config.options import RunOptions
from fedgrec.kernels.devices import within_memory
from fedgrec.methods.contract import Method

AT_ONCE = 200  # the most rounds that an engine runs without a report
LESS = "users_per_round, negatives, max_positives or local_steps"  # lower, they save GPU memory


def make_engine(config: Config, method: Method, server: ServerState, users: Cohort) -> Any:
    """What runs whole rounds on the device; it takes the state over."""
    return importlib.import_module(method.engine).Engine(method, server, users, config.run.device)


@contextmanager
def torch_threads(run: RunOptions) -> Iterator[None]:
    """On a CPU as many as `threads` says, else one: on busy cores PyTorch's threads wait for each other."""
    if run.device == "cuda":
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(run.threads or 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class EngineRounds:
    """The engine of a run. It holds the state from its first round on, until `fetch`."""

    def __init__(self, config: Config, method: Method) -> None:
        self.config, self.method = config, method
        self._engine: Any = None
        self.leave = config.run.rounds  # from this round on the verbs run one by one, so that sums can be seen

    def until(self, done: int) -> int:
        """The round at which to stop: then something reads the state, or the next round cannot run here."""
        run = self.config.run
        stops = [every for every in (run.evaluate_every, run.checkpoint_every, AT_ONCE) if every]
        until = min([self.leave, *((done // every + 1) * every for every in stops)])
        elsewhere = (later for later in range(done + 1, until) if not self.runs(later))
        return next(elsewhere, until)

    def runs(self, round_: int) -> bool:
        """Whether the engine alone can run a round: no users are matched before it, and it is no sweep."""
        return not (self.method.rematch(round_) or self.method.training(round_).everyone)

    def run(self, server: ServerState, users: Cohort, rounds: Sequence[Ints]) -> None:
        """Train with these users in each round, from the server's round on."""
        with within_memory("training", LESS, self.config.run.device), torch_threads(self.config.run):
            if self._engine is None:
                self._engine = make_engine(self.config, self.method, server, users)
            self._engine.run(rounds)
        server.round += len(rounds)

    def is_looked_at(self, round_: int) -> bool:
        """Whether the state is needed after this round."""
        run = self.config.run
        return round_ == run.rounds or any(
            every and round_ % every == 0 for every in (run.evaluate_every, run.checkpoint_every)
        )

    def fetch(self, server: ServerState, users: Cohort) -> int:
        """Bring the state back, if an engine has it; returns how many words a clip cut since the last time."""
        if self._engine is None:
            return 0
        with within_memory("training", LESS, self.config.run.device):
            return int(self._engine.give_back(server, users.state))

    def begin_anew(self) -> None:
        """Something outside changed what users know: the next rounds start from the state as it is then."""
        self._engine = None
