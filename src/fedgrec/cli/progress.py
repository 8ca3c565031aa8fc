"""What a person sees while a run or a study goes on. Without a terminal there is no bar."""

import contextlib
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fedgrec.cable.core import size
from fedgrec.cli.configured import fitted, shortened
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset
from fedgrec.models.metrics import USUAL
from fedgrec.runs.callbacks import RoundBar
from fedgrec.runs.cost import cost
from fedgrec.runs.simulation import Simulation

# What fits 80 columns: which run, how far, how long it will take, how good it is.
OF_A_STUDY = "{desc} {percentage:3.0f}%|{bar}| {remaining} left{postfix}"


class Bar(RoundBar):
    """The command line's progress bar; Ctrl-C asks for a clean stop after the round."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet or not sys.stderr.isatty())
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, flush=True)

    def describe(self, config: Config, dataset: Dataset) -> None:
        train = dataset.split.train
        held = [f"{count:,} {name}" for name, count in dataset.split.held_out.items()]
        self.say(
            f"{dataset.name}: {train.n_users:,} users, {train.n_items:,} items, "
            f"{', '.join([f'{train.n_pairs:,} train', *held])} pairs"
        )
        for note in dataset.notes:
            self.say(f"  {note}")
        m, name = config.model, "FedGRec" if config.method == "fedgrec" else config.method
        shape = f"{f'K = {m.layers}, ' if m.layers else ''}d = {m.dim}"
        sums = min(getattr(m, "sums", 0), config.run.rounds)
        first = f"{sums} sums, then " if sums else ""
        rounds = f"{first}{config.run.rounds - sums:,} rounds of {min(m.users_per_round, train.n_users):,} users"
        secure = ", secure sums" if config.run.secure == "protocol" else ""
        about = f"{name}, {shape}: {rounds}, protocol {config.run.protocol}{secure}"
        self.say(fitted(about))

    def started(self, done: int, rounds: int) -> None:
        if done:
            self.say(f"going on after round {done:,}")
        super().started(done, rounds)

    def evaluated(self, line: dict[str, Any]) -> None:
        if self.bar is not None and not self.bar.disable:
            super().evaluated(line)
            return
        recall = next(k for k in line if k.startswith("recall@"))
        ndcg = recall.replace("recall", "ndcg")
        self.say(
            f"round {line['round']:>7,}  {line['split']:<10}  {recall} {line[recall]:.4f}  "
            f"{ndcg} {line[ndcg]:.4f}  {line['seconds']:8.1f} s"
        )

    def noticed(self, sentence: str) -> None:
        if self.bar is not None and not self.quiet:
            self.bar.write(fitted(sentence))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside this block, Ctrl-C and SIGTERM end the run cleanly; a second Ctrl-C ends it at once."""

        def ask(number: int, frame: Any) -> None:
            self.stopping = True
            signal.signal(signal.SIGINT, before)
            self.say("\nstopping after this round ...")

        before = signal.getsignal(signal.SIGINT)
        term = signal.signal(signal.SIGTERM, ask)
        signal.signal(signal.SIGINT, ask)
        try:
            with _compiling_said(self.say):
                yield
        finally:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, term)
            self.close()

    def summary(self, simulation: Simulation) -> None:
        """The result, its protocol and its price."""
        result, progress = simulation.result(), simulation.progress
        if result["split"] is None:
            self.say(f"\nround {result['round']:,}; no test items, so nothing was measured")
            return
        chosen = "the best round on test" if result["protocol"] == "paper" else "chosen on validation"
        self.say(f"\nround {result['round']:,} ({chosen}; protocol {result['protocol']}), {result['users']:,} users:")
        for name, value in result.items():
            if name.partition("@")[0] in USUAL:
                self.say(f"  {name:<16} {value:10.4f}" if value < 10 else f"  {name:<16} {value:10.1f}")
        if verdict := progress.verdict(simulation.config.run.topk):
            self.say(f"  {verdict}")
        paid = cost(simulation.config, simulation.metrics, len(simulation.degrees), simulation.method.n_items)
        whole, up, down = paid.whole, paid.turn.up_secure, paid.turn.down_secure
        clear, secure = size(whole.up), size(whole.up_secure)
        self.say(f"  {progress.seconds:.1f} s; a user sent {clear} in the clear, {secure} as secure sums,")
        self.say(f"  and received {size(whole.down_secure)}: {size(up)} up and {size(down)} down a turn")
        if result["secure"] != "off":
            lost = f", {simulation.sums.lost:,} more lost to dropouts" if simulation.sums.lost else ""
            self.say(f"  every sum went through secure aggregation: {simulation.sums.opened:,} rounds{lost}")
        if "dp_epsilon_spent" in result:
            spent, asked = simulation.privacy["dp_epsilon_spent"], simulation.config.run.dp_epsilon
            self.say(f"  noise: ε = {spent:.3g} of {asked:g} is spent, at δ = {result['dp_delta']:g}, for each user")
        if progress.clipped:
            o = simulation.config.model
            by = "item_levels" if o.levels else "item_clip"
            self.say(f"  {progress.clipped:,} numbers were larger than {by} or latent_clip lets users send")


class Lines(Bar):
    """A bar for the run that goes on, and a line for each that has ended."""

    name = ""

    def run_started(self, number: int, total: int, label: str = "", seed: str = "") -> None:
        place = f"[{number}/{total}]"
        self.name = f"{place} {label}{seed}: " if label else f"{place} "
        self.look = {"desc": f"{place} {shortened(label)}{seed}".rstrip(), "bar_format": OF_A_STUDY, "leave": False}

    def started(self, done: int, rounds: int) -> None:
        """Draw a bar that disappears when it is closed; none without a terminal or without work."""
        self.off = self.quiet or not sys.stderr.isatty()
        RoundBar.started(self, done, rounds)

    def evaluated(self, line: dict[str, Any]) -> None:
        RoundBar.evaluated(self, line)  # the bar alone

    def table(self, grid: Any) -> None:
        from fedgrec.pages.tables import terminal

        print(terminal(grid, shutil.get_terminal_size((80, 24)).columns))

    @staticmethod
    def stopped(words: list[str], kept: str = "everything is") -> int:
        """Say how to go on; the exit code of what was interrupted."""
        print(f"Stopped; {kept} saved. Go on with:\n  {shlex.join(words)}", file=sys.stderr)
        return 130

    def run_ended(self, result: str) -> None:
        self.close()
        self.bar = None
        self.say(fitted(f"{self.name}{result}"))


@contextlib.contextmanager
def _compiling_said(say: Callable[[str], None]) -> Iterator[None]:
    """Inside this block, say once when Numba compiles. Code from Numba's cache compiles nothing, so nothing is said."""
    from numba.core.event import Event, Listener, install_listener

    class Says(Listener):  # type: ignore[misc]
        said = False

        def on_start(self, event: Event) -> None:
            if not self.said:
                self.said = True
                say("compiling, once on this machine: about fifteen seconds ...")

        def on_end(self, event: Event) -> None: ...

    with install_listener("numba:compile", Says()):
        yield
