"""A whole federation on one machine: warm-up, rounds, evaluation, checkpoints.

The simulation holds all users as one population and draws a cohort from it in every round. It calls the same verbs
as a real federation. Everything random is a function of (seed, round), so a run that was killed goes on from its last
checkpoint exactly as if nothing had happened.
"""

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedgrec import data
from fedgrec.config import Config
from fedgrec.core import Cohort, Ints, Stage, Traffic
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import SplitKind
from fedgrec.data.registry import SOURCES
from fedgrec.data.split import seen_before_test
from fedgrec.devices import within_memory
from fedgrec.distributed import Ranks
from fedgrec.errors import RunError, SumLostError
from fedgrec.files import Checkpoints
from fedgrec.machine import LESS, fits_engine, judged, make_engine, make_method, wants_gpu
from fedgrec.metrics import Ideal
from fedgrec.model import Model
from fedgrec.options import DataOptions
from fedgrec.record import RunRecord

TURNS = 110  # training turns of a user when `rounds` is left to us
EVALUATIONS = 20  # in a run when `evaluate_every` is left to us
AT_ONCE = 200  # rounds that a GPU runs before anybody hears of them
USERS_STREAM, SAMPLING_STREAM = 1, 2


def load_data(options: DataOptions, validation: float, seed: int) -> Dataset:
    """The data set that the options name, split as they say."""
    o = options
    return data.load(
        o.data,
        split=cast(SplitKind, o.split),
        test_ratio=o.test_ratio,
        validation=validation,
        k_core=o.k_core,
        min_rating=o.min_rating,
        keep_ratings=o.keep_ratings,
        user=o.user_column,
        item=o.item_column,
        rating=o.rating_column,
        time=o.time_column,
        seed=seed,
    )


def load_for(config: Config) -> Dataset:
    """The data of a run: under `honest` a validation split is held out of train, under `paper` none is."""
    return load_data(config.data, config.run.validation if config.run.protocol == "honest" else 0.0, config.run.seed)


def resolved(config: Config, dataset: Dataset) -> Config:
    """The configuration with all that was left to us decided, so that running it again gives the same run."""
    run, n_users = config.run, dataset.split.train.n_users
    rounds = run.rounds or -(-TURNS * n_users // min(config.model.users_per_round, n_users))
    every = run.evaluate_every or -(-rounds // EVALUATIONS)
    device = "cuda" if run.device == "cuda" or (run.device == "auto" and wants_gpu(config)) else "cpu"
    source = config.data.data
    if source != "demo" and source not in SOURCES and Path(source).exists():
        source = str(Path(source).resolve())  # so that the run can be resumed from any folder
    return replace(
        config,
        run=replace(run, rounds=rounds, evaluate_every=every, device=device),
        data=replace(config.data, data=source),
    )


class Observer:
    """Watches a simulation; the command line draws a progress bar with it."""

    def started(self, done: int, rounds: int) -> None: ...
    def round_done(self, done: int) -> None: ...
    def evaluated(self, line: dict[str, Any]) -> None: ...
    def noticed(self, sentence: str) -> None: ...
    def stop_wanted(self) -> bool:
        return False


@dataclass
class Progress:
    """Where a run stands; with the two states this is all that a checkpoint needs."""

    metrics: list[dict[str, Any]] = field(default_factory=list)
    best: float = -1.0
    best_round: int = -1
    stale: int = 0  # evaluations since the best one
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    clipped: int = 0


class Simulation:
    """One run. `run()` trains until the rounds are done, patience is lost, or the observer wants to stop."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        out: Path | None = None,
        observer: Observer | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.dataset, self.observer = config, dataset, observer or Observer()
        self.ranks = ranks or Ranks()
        train = dataset.split.train
        self.method = make_method(config, train.n_items, train.n_users, self.ranks)
        self.engine: Any = None  # runs whole rounds on a GPU, and has the state until `_settle`
        self.server = self.method.init(config.run.seed)
        self.degrees = np.diff(train.indptr)  # of everyone
        self.users = self.ranks.own(self._population(train))
        self.progress = Progress()
        self.selected: Model | None = None
        self.record = RunRecord(out, config, dataset) if out else None
        self.finished = False
        self.sums = self.ranks.sums(config.run, config.run.threads or os.cpu_count() or 1)

    def _population(self, train: Interactions) -> Cohort:
        keys = np.random.Generator(np.random.Philox(key=[self.config.run.seed, USERS_STREAM]))
        return self.method.init_users(
            keys.integers(0, 2**64, train.n_users, dtype=np.uint64), train.indptr, train.items, train.ratings
        )

    # -------------------------------------------------------------------------------------- Algorithm 1

    def run(self) -> Model:
        """Train, then return the model of the selected round."""
        run, started = self.config.run, time.perf_counter() - self.progress.seconds
        if self.server.round == 0 and self.progress.traffic == Traffic():
            self._warm_up()
        self.observer.started(self.server.round, run.rounds)
        while self.server.round < run.rounds and not self._patience_lost():
            if self.ranks.any(self.observer.stop_wanted()):
                self._checkpoint()
                return self.selected or self.model()
            self._advance()
            self.progress.seconds = time.perf_counter() - started
            if self.server.round % run.evaluate_every == 0 or self.server.round == run.rounds:
                self._evaluate()
                self.progress.seconds = time.perf_counter() - started
            if run.checkpoint_every and self.server.round % run.checkpoint_every == 0:
                self._checkpoint()
            self.observer.round_done(self.server.round)
        return self._finish()

    def _warm_up(self) -> None:
        """Lines 3 to 9: what everybody does once; for FedGRec degree counts, then the latents level by level."""
        for level, stage in enumerate(self.method.stages[:-1]):
            if stage.combine == "match":
                self._match()
                continue
            self._exchange(stage, np.arange(len(self.users)), level=level)
            self._count(self.method.traffic(stage, self.degrees))

    def _match(self) -> None:
        """Users tell each other something through a third party; the server has no part in it."""
        everyone = self.ranks.everyone(self.users)
        everyone, traffic = self.method.match(everyone, self.server.round, self.config.run.seed)
        self.users = self.ranks.own(everyone)
        self._count(traffic)

    def _advance(self) -> None:
        """One round; on a GPU as many as nobody wants to look into."""
        if self.config.run.device != "cuda" or not fits_engine(self.config, self.ranks):
            self._round()
            return
        run, done, train = self.config.run, self.server.round, self.method.stages[-1]
        if self.method.rematch(done):
            self._settle()
            self._match()
            self.engine = None  # users have heard of others
        if self.engine is None:
            self.engine = make_engine(self.config, self.method, self.server, self.users)
        stops = [every for every in (run.evaluate_every, run.checkpoint_every, AT_ONCE) if every]
        until = min([run.rounds, *((done // every + 1) * every for every in stops)])
        until = next((later for later in range(done + 1, until) if self.method.rematch(later)), until)
        rounds = []
        for self.server.round in range(done, until):
            sampled, arrives = self._sample()
            rounds.append(sampled[arrives])
            in_order = np.concatenate([sampled[arrives], sampled[~arrives]])
            self._count(self.method.traffic(train, self.degrees[in_order], int((~arrives).sum())))
        with within_memory("training", LESS):
            self.engine.run(rounds)
        self.server.round = until
        if any(until % every == 0 for every in stops[:-1]) or until == run.rounds:
            self._settle()

    def _settle(self) -> None:
        """Fetch the state from the GPU, if it is there."""
        if self.engine is not None:
            with within_memory("training", LESS):
                self.progress.clipped += self.engine.give_back(self.server, self.users.state)

    def _round(self) -> None:
        """Lines 12 to 23. The upload of a user that drops out never arrives: it changes nothing on either side."""
        if self.method.rematch(self.server.round):
            self._match()
        (sampled, arrives), train, before = self._sample(), self.method.stages[-1], self.server.round
        try:
            if arrives.any():
                self._exchange(train, sampled, np.flatnonzero(arrives))
        except SumLostError as lost:
            self.observer.noticed(str(lost))
        self.server.round = before + 1  # also where nothing arrived
        in_order = np.concatenate([sampled[arrives], sampled[~arrives]])
        self._count(self.method.traffic(train, self.degrees[in_order], int((~arrives).sum())))

    def _exchange(self, stage: Stage, users: Ints, arrived: Ints | None = None, level: int = 0) -> None:
        """Down, local work, up as a sum, the server's half; those in the sum keep their new state."""
        if arrived is not None:
            users, arrived = self.ranks.local(users, arrived)
        cohort = self.users if arrived is None else self.users.take(users)
        broadcast = self.method.broadcast(self.server, stage, level=level)
        total, pending = self.sums.total(self.method, stage, cohort, broadcast, arrived)
        self.server = self.method.apply(self.server, stage, total, level)
        self.method.commit(self.users, users if arrived is None else users[arrived], pending)
        self.progress.clipped += pending.clipped

    def _sample(self) -> tuple[Ints, NDArray[np.bool_]]:
        """Line 12: S users without replacement, and whose upload will arrive."""
        key = [self.config.run.seed, SAMPLING_STREAM]
        rng = np.random.Generator(np.random.Philox(key=key, counter=[0, self.server.round, 0, 0]))
        count = min(self.config.model.users_per_round, len(self.degrees))
        sampled = rng.choice(len(self.degrees), count, replace=False, shuffle=False)
        return sampled, rng.random(count) >= self.config.run.dropout

    def _count(self, traffic: Traffic) -> None:
        self.progress.traffic = self.progress.traffic.plus(traffic)

    # --------------------------------------------------------------------------------------- evaluation

    @property
    def judge(self) -> tuple[str, Interactions] | None:
        """The split that chooses the round: validation under `honest`, test under `paper`."""
        name = "validation" if self.config.run.protocol == "honest" else "test"
        held_out = getattr(self.dataset.split, name)
        return (name, held_out) if held_out is not None and held_out.n_pairs else None

    def _evaluate(self) -> None:
        if self.judge is None:
            return
        line = self.measure(*self.judge)
        self.progress.metrics.append(line)
        value = line[f"recall@{self.config.run.topk[0]}"]
        if value > self.progress.best:
            self.progress.best, self.progress.best_round, self.progress.stale = value, self.server.round, 0
            self.selected = self.model()
            if self.record:
                self.selected.save_tensors(self.record.folder)
        else:
            self.progress.stale += 1
        if self.record:
            self.record.write_metrics(self.progress.metrics)
        self.observer.evaluated(line)

    def measure(self, name: str, held_out: Interactions, model: Model | None = None) -> dict[str, Any]:
        """One line of metrics.jsonl."""
        run, split = self.config.run, self.dataset.split
        server, users, round_ = self.server, self.ranks.everyone(self.users), self.server.round
        if model is not None:
            server, round_ = model.server, model.round
            users = replace(users, state=replace(users.state, embeddings=model.users), around=model.around)
        seen = split.train if name == "validation" else seen_before_test(split)
        ideal = cast(Ideal, run.ndcg_ideal)
        result = judged(self.method, server, users, seen, held_out, run.topk, ideal, run.device, self.ranks)
        return {
            "round": round_,
            "split": name,
            "protocol": run.protocol,
            **result.metrics,
            "users": result.users,
            "seconds": round(self.progress.seconds, 3),
            **{f"bytes_{key}": value for key, value in self.progress.traffic._asdict().items()},
            "clipped": self.progress.clipped,
            "secure": run.secure,
            "secure_rounds": self.sums.opened,
            "secure_rounds_lost": self.sums.lost,
        }

    def _patience_lost(self) -> bool:
        return 0 < self.config.run.patience <= self.progress.stale

    def _finish(self) -> Model:
        """Under `honest` the test split is looked at here, once, for the round that validation chose."""
        model = self.selected or self.model()
        if self.config.run.checkpoint_every:  # so that a larger number of rounds can go on from here
            self._checkpoint()
        test = self.dataset.split.test
        done = any(line["split"] == "test" for line in self.progress.metrics)
        if self.config.run.protocol == "honest" and test is not None and test.n_pairs and not done:
            line = self.measure("test", test, model)
            self.progress.metrics.append(line)
            self.observer.evaluated(line)
        if self.record:
            if self.selected is None:
                model.save_tensors(self.record.folder)
            self.record.write_metrics(self.progress.metrics)
            self.record.write_result(self.result())
        self.finished = True
        return model

    def result(self) -> dict[str, Any]:
        """The line that counts: under `paper` the best test round, under `honest` the one test evaluation."""
        lines = [line for line in self.progress.metrics if line["split"] == "test"]
        if not lines:
            return {"round": self.server.round, "protocol": self.config.run.protocol, "split": None}
        return max(lines, key=lambda line: line[f"recall@{self.config.run.topk[0]}"])

    def model(self) -> Model:
        """The present state as a model of its own."""
        train, seen = self.dataset.split.train, seen_before_test(self.dataset.split)
        everyone = self.ranks.everyone(self.users)
        return Model(
            self.config,
            train.user_ids,
            train.item_ids,
            self.server.items.copy(),
            self.server.degrees if self.server.degrees.any() else train.degrees(),  # not every method counts them
            everyone.state.embeddings.copy(),
            train.indptr,
            train.items,
            seen.indptr,
            seen.items,
            self.server.round,
            {name: value.copy() for name, value in self.server.more.items()},
            everyone.around,
        )

    # --------------------------------------------------------------------------------------- checkpoints

    def _checkpoint(self) -> None:
        users = self.ranks.everyone(self.users)  # all take part; the first one writes
        if self.record is None:
            return
        self._settle()
        tensors = {f"server.{name}": getattr(self.server, name) for name in ("items", "degrees", "moment1", "moment2")}
        tensors |= {f"more.{name}": value for name, value in self.server.more.items()}
        tensors |= {f"users.{name}": value for name, value in vars(users.state).items()}
        if users.around is not None:
            tensors["around"] = users.around
        info = {**vars(self.progress), "traffic": list(self.progress.traffic), "round": self.server.round}
        info["secure"] = [self.sums.opened, self.sums.lost]
        Checkpoints(self.record.checkpoints).save(self.server.round, tensors, info)

    def resume(self) -> None:
        """Go back to the last checkpoint, or to the beginning where there is none."""
        if self.record is None:
            raise RunError("a simulation without a run folder has nothing to resume")
        found = Checkpoints(self.record.checkpoints).load()
        if found is None:
            return
        tensors, info = found
        for name in ("items", "degrees", "moment1", "moment2"):
            setattr(self.server, name, tensors[f"server.{name}"])
        for name in self.server.more:
            self.server.more[name] = tensors[f"more.{name}"]
        users = self.ranks.everyone(self.users)
        for name in vars(users.state):
            setattr(users.state, name, tensors[f"users.{name}"])
        self.users = self.ranks.own(replace(users, around=tensors.get("around")))
        self.server.round = info.pop("round")
        self.sums.opened, self.sums.lost = info.pop("secure")
        self.progress = Progress(**{**info, "traffic": Traffic(*info["traffic"])})
        if self.progress.best_round >= 0:
            self.selected = self.record.selected()
