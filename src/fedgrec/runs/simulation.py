"""A whole federation on one machine: Algorithm 1 over all users, judged and saved on the way.

The simulation holds all users as one population and draws a cohort from it in every round. It calls the same verbs
as a real federation. Everything random is a function of (seed, round), so a run that was killed goes on from its last
checkpoint exactly as if nothing had happened.
"""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgrec.cable.core import Cohort, Ints, Stage, Traffic
from fedgrec.config.configuration import Config
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import load_for
from fedgrec.data.files import Checkpoints, understood, write_json
from fedgrec.errors import RunError, SumLostError
from fedgrec.methods import budget
from fedgrec.methods.contract import Method
from fedgrec.models.model import Model
from fedgrec.models.ranking import Judging
from fedgrec.models.selection import RESULT, Observer, Progress, judge
from fedgrec.runs.engine_rounds import EngineRounds
from fedgrec.runs.machine import by_engine, judged, make_method
from fedgrec.runs.population import population
from fedgrec.runs.record import RunRecord, restored, tensors_of
from fedgrec.runs.resolve import resolved
from fedgrec.runs.sums import SecureSums, Sums

__all__ = ["Observer", "Simulation"]

SAMPLING_STREAM = 2
FAIR, IN_VAIN = 15, 1 / 3  # turns of a user, and the share of all rounds, before training counts as vain


class Simulation:
    """One run of a configuration, on the data that it names or on `dataset`; with `out` it leaves a run folder.

    `run()` trains until the rounds are done, patience ends, or the observer wants to stop, and returns the model of
    the round that counts. `metrics` are the evaluations, `result()` is the one that counts.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset | None = None,
        out: str | Path | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.dataset = dataset or load_for(config)
        self.observer = observer or Observer()
        self.config = config = resolved(config, self.dataset)
        train = self.dataset.split.train
        self.method = make_method(config, train.n_items, train.n_users)
        self.engine = EngineRounds(config, self.method) if by_engine(config) else None
        self.server = self.method.init(config.run.seed)
        self.users = population(config, self.method, train)
        self.degrees = self.users.degrees
        self.progress = Progress()
        self.selected: Model | None = None
        self.record = RunRecord(Path(out), config, self.dataset) if out else None
        self.finished = False
        sums = SecureSums if config.run.secure == "protocol" else Sums
        self.sums = sums(config.run, config.run.threads or os.cpu_count() or 1)

    # -------------------------------------------------------------------------------------- Algorithm 1

    def run(self) -> Model:
        """Train, then return the model of the selected round."""
        run, started = self.config.run, time.perf_counter() - self.progress.seconds
        if self.server.round == 0 and self.progress.traffic == Traffic():
            self.warm_up()
        self.observer.started(self.server.round, run.rounds)
        last = budget.last_round(self.method, run)
        while self.server.round < last and not 0 < run.patience <= self.progress.stale:
            if self.observer.stop_wanted():
                self._checkpoint()
                return self.selected or self.model()
            self._advance()
            self.progress.seconds = time.perf_counter() - started
            done = self.server.round
            if self.method.prepared(done) or done % run.evaluate_every == 0 or done == last:
                self._evaluate()
                self.progress.seconds = time.perf_counter() - started
                if self.method.prepared(done) and self.record and self.selected:
                    self.observer.noticed(f"{self.record.folder} holds a model; training goes on from here")
                if self._trains_in_vain(done, last):
                    self.observer.noticed(
                        f"what was trained since round {self.progress.best_round:,} adds nothing, so training ends; "
                        "with --patience N it goes on until N evaluations find nothing better"
                    )
                    break
            if run.checkpoint_every and self.server.round % run.checkpoint_every == 0:
                self._checkpoint()
            self.observer.round_done(self.server.round)
        if last < run.rounds and self.server.round == last:
            self.observer.noticed(f"training ends after round {last:,}: nobody has a turn left under dp_epsilon")
        return self._finish()

    def _trains_in_vain(self, done: int, last: int) -> bool:
        """Whether after a part of the rounds the model from before any of them is still the best."""
        best, begun, run = self.progress.best_round, self.progress.begun, self.config.run
        turns = (done - best) * min(self.config.model.users_per_round / max(len(self.degrees), 1), 1)
        fair = turns >= FAIR and done - begun >= IN_VAIN * (last - begun)
        return fair and not run.patience and best >= 0 and self.method.prepared(best)

    def warm_up(self) -> None:
        """Lines 3 to 9: what everybody does once; for FedGRec degree counts, then the latents level by level."""
        for level, stage in enumerate(self.method.stages[:-1]):
            if stage.combine == "match":
                self._match()
                continue
            self._exchange(stage, np.arange(len(self.users)), level=level)
            self._count(self.method.traffic(stage, self.degrees))

    def _match(self) -> None:
        """Users tell each other something through a third party; the server has no part in it."""
        self.users, traffic = self.method.match(self.users, self.server.round, self.config.run.seed)
        self._count(traffic)

    def _advance(self) -> None:
        """One round; with an engine, all rounds until something reads the state."""
        if self.engine is not None and self.server.round >= self.engine.leave:
            self._settle()
            self.engine = None
        if self.engine is None:
            self._round()
            return
        done = self.server.round
        if not self.engine.runs(done):
            self._settle()
            self.engine.begin_anew()
        if self.method.training(done).everyone:
            self._round()
            return
        if self.method.rematch(done):
            self._match()
        rounds = []
        for round_ in range(done, self.engine.until(done)):
            sampled, arrives = self._sample(round_)
            rounds.append(sampled[arrives])
            self._count_round(round_, sampled, arrives)
        self.engine.run(self.server, self.users, rounds)
        if self.engine.is_looked_at(self.server.round):
            self._settle()

    def _settle(self) -> None:
        """Bring the state here, if an engine ran the last round."""
        if self.engine is not None:
            self.progress.clipped += self.engine.fetch(self.server, self.users)

    def _round(self) -> None:
        """Lines 12 to 23. The upload of a user that drops out never arrives: it changes nothing on either side."""
        round_ = self.server.round
        if self.method.rematch(round_):
            self._match()
        sampled, arrives = self._sample(round_)
        try:
            if arrives.any():
                self._exchange(self.method.training(round_), sampled, np.flatnonzero(arrives))
        except SumLostError as lost:
            self.observer.noticed(str(lost))
        self.server.round = round_ + 1  # also where nothing arrived
        self._count_round(round_, sampled, arrives)

    def _exchange(self, stage: Stage, users: Ints, arrived: Ints | None = None, level: int = 0) -> None:
        """Down, local work, up as a sum, the server's half; those in the sum keep their new state."""
        cohort = self.users if arrived is None else self.users.take(users)
        broadcast = self.method.broadcast(self.server, stage, level=level)
        total, pending = self.sums.total(self.method, stage, cohort, broadcast, arrived)
        self.server = self.method.apply(self.server, stage, total, level)
        self.method.commit(self.users, users if arrived is None else users[arrived], pending)
        self.progress.clipped += pending.clipped

    def _sample(self, round_: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Line 12: S users without replacement (under noise in turn, in a sweep all), and whose uploads arrive."""
        key = [self.config.run.seed, SAMPLING_STREAM]
        rng = np.random.Generator(np.random.Philox(key=key, counter=[0, round_, 0, 0]))
        count = min(self.config.model.users_per_round, len(self.degrees))
        if self.config.run.noisy:
            sampled = budget.next_in_turn(self.config.run.seed, round_, len(self.degrees), count)
        else:
            sampled = rng.choice(len(self.degrees), count, replace=False, shuffle=False)
        if self.method.training(round_).everyone:
            sampled = np.arange(len(self.degrees))
        return sampled, rng.random(len(sampled)) >= self.config.run.dropout

    def _count_round(self, round_: int, sampled: Ints, arrives: NDArray[np.bool_]) -> None:
        degrees = self.degrees[np.concatenate([sampled[arrives], sampled[~arrives]])]
        method = self.method.counted(self.server.degrees)
        self._count(method.traffic(method.training(round_), degrees, int((~arrives).sum())))

    def _count(self, traffic: Traffic) -> None:
        self.progress.traffic = self.progress.traffic.plus(traffic)

    # ------------------------------------------------------------------------------------- judged, saved

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations so far: the lines of metrics.jsonl."""
        return self.progress.metrics

    def _evaluate(self) -> None:
        found = judge(self.dataset.split, self.config.run.protocol)
        if found is None:
            return
        line = self.measure(*found)
        if self.progress.judged(line, self.config.run.topk):
            self.selected = self.model()
            if self.record:
                self.selected.save_tensors(self.record.folder)
        if self.record:
            self.progress.write(self.record.folder)
        self.observer.evaluated(line)

    def measure(self, name: str, held_out: Interactions, model: Model | None = None) -> dict[str, Any]:
        """One line of metrics.jsonl, about a model or about the present state."""
        run, split = self.config.run, self.dataset.split
        server, users = (model.server, model.users) if model else (self.server, self._at_home())
        seen = split.train if name == "validation" else split.before_test
        how = Judging.of(run, run.seed, split.known)
        result = judged(self.method, server, users, seen, held_out, how, run.device)
        return {
            **self.progress.line(server.round, name, run.protocol, result),
            **{f"bytes_{key}": value for key, value in self.progress.traffic._asdict().items()},
            "clipped": self.progress.clipped,
            "secure": run.secure,
            "secure_rounds": self.sums.opened,
            "secure_rounds_lost": self.sums.lost,
            **self.privacy,
        }

    @property
    def privacy(self) -> dict[str, float]:
        """What all sums so far have spent, including those after the selected round; nothing without noise."""
        delta = self.config.run.dp_delta
        return budget.line(self.method, delta, self.server.round) if self.config.run.noisy else {}

    def _finish(self) -> Model:
        """Under `honest` this alone uses the test split: once, for the round that validation chose."""
        model = self.selected or self.model()
        if self.config.run.checkpoint_every:  # so that a larger number of rounds can go on from here
            self._checkpoint()
        test = self.dataset.split.test
        done = any(line["split"] == "test" for line in self.progress.season)
        if self.config.run.protocol == "honest" and test is not None and test.n_pairs and not done:
            line = self.measure("test", test, model)
            self.metrics.append(line)
            self.observer.evaluated(line)
        if self.record:
            if self.selected is None:
                model.save_tensors(self.record.folder)
            self.progress.write(self.record.folder)
            write_json(self.record.folder / RESULT, self.result())
        self.finished = True
        return model

    def result(self) -> dict[str, Any]:
        """The line that counts."""
        run = self.config.run
        return self.progress.result((self.selected or self).server.round, run.protocol, run.topk)

    def model(self) -> Model:
        """The present state as a model of its own."""
        return Model.of(self.config, self.server, self._at_home(), self.dataset.split.known)

    def _at_home(self) -> Cohort:
        """Everybody, with the items that they have: people rank with these, whatever they told."""
        users, own = self.users, self.dataset.split.train
        decoys = self.config.run.decoys_epsilon
        return replace(users, indptr=own.indptr, items=own.items, past=None) if decoys else users

    def _checkpoint(self) -> None:
        if self.record is None:
            return
        self._settle()
        info = {**self.progress.to_json(), "round": self.server.round, "secure": [self.sums.opened, self.sums.lost]}
        tensors = tensors_of(self.server, self.users, told=self.config.run.decoys_epsilon > 0)
        Checkpoints(self.record.checkpoints).save(self.server.round, tensors, info)

    def resume(self) -> None:
        """Go back to the last checkpoint, or to the beginning where there is none."""
        if self.record is None:
            raise RunError("a simulation without a run folder has nothing to resume")
        if self.restore(Checkpoints(self.record.checkpoints)) and self.progress.best_round >= 0:
            self.selected = self.record.selected()

    def restore(self, checkpoints: Checkpoints) -> bool:
        """Take the state of the last checkpoint; returns whether there was one."""
        found = checkpoints.load()
        if found is None:
            return False
        tensors, info = found
        with understood(checkpoints.folder, checkpoints.mend):
            self.server, self.users = restored(tensors, info.pop("round"), self.server, self.users)
            self.sums.opened, self.sums.lost = info.pop("secure")
            self.progress = Progress.from_json(info)
        self.degrees = self.users.degrees
        if self.progress.begun:
            self.begin_season(self.method)
        return True

    def begin_season(self, method: Method) -> None:
        """Go on with this method; its rates fall from the season's first round on."""
        self.method = method.season(self.progress.begun)
        if self.engine is not None:
            self.engine = type(self.engine)(self.config, self.method)
