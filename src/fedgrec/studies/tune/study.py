"""The trials, one after the other, kept in a file: a search that goes on repeats only the interrupted trial.

Optuna proposes values (TPE) and gives up trials below the median (MedianPruner). The proposal of trial n is a function
of (seed, n, the results before it), so a search that was killed and goes on ends like one that was not.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgrec.config.checking import renamed
from fedgrec.config.options import DataOptions
from fedgrec.errors import ConfigError, DiskError, FedgrecError, RunError, missing_extra
from fedgrec.runs.simulation import Observer
from fedgrec.studies.tune.search import Search, Subject

STUDY, NAME, ABOUT = "study.db", "tune", "asked"
FAILURE, ROUND, SECONDS, BEST, SECOND, USERS = "failure", "round", "seconds", "best", "second", "users"
UNPRUNED = 5  # trials that finish before any is given up
JUDGES = ("recall", "ndcg", "hitrate", "mrr", "map")
PATIENCE = 4  # a trial is given up after a quarter of its rounds at the earliest


@dataclass(frozen=True)
class Request:
    subject: Subject
    searches: Sequence[Search]
    metric: str = "recall@20"
    trials: int = 20
    seed: int = 0

    def about(self) -> dict[str, Any]:
        """What must be the same when a search goes on in a folder; the number of trials may grow."""
        return {"searches": [str(s) for s in self.searches], "metric": self.metric, **self.subject.about()}


@dataclass(frozen=True)
class Tried:
    """One trial; `value` is its best evaluation's, even if the trial was given up."""

    number: int
    state: str  # complete, pruned or failed
    value: float | None
    round: int | None
    seconds: float
    values: dict[str, Any]  # of the options searched
    failure: str = ""
    second: float | None = None  # the other metric, at the same evaluation
    users: int | None = None  # whose mean the value is

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.values.items())
        return f"{'–' if self.value is None else f'{self.value:.4f}'} {self.failure or self.state}: {values}"

    @property
    def rank(self) -> tuple[float, float, int, int]:
        """The best first: by the metric, then by the other one, the fewer rounds, the earlier trial."""
        return -(self.value or 0.0), -(self.second or 0.0), self.round or 0, self.number


@dataclass(frozen=True)
class Found:
    request: Request
    trials: list[Tried]
    stopped: bool

    @property
    def best(self) -> Tried | None:
        """The best trial that was not given up."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Tried]:
        """Trials that were not given up, the best first."""
        return sorted((trial for trial in self.trials if trial.state == "complete"), key=lambda trial: trial.rank)


def list_length(metric: str) -> int:
    """The k of recall@k and the others that may judge: more is better, and a user's value is from 0 to 1."""
    found = re.fullmatch(rf"({'|'.join(JUDGES)})@([1-9]\d*)", metric)
    if not found:
        raise ConfigError(
            f"--metric cannot be {metric!r}: it is one of {', '.join(JUDGES)}, and a list length, such as recall@20"
        )
    return int(found[2])


def other_metric(metric: str) -> str:
    """The metric that ranks trials that are equal by this one: recall of the same list, and for recall NDCG."""
    name, _, k = metric.partition("@")
    return f"{'ndcg' if name == 'recall' else 'recall'}@{k}"


def tune(request: Request, folder: Path, watcher: Observer | None = None) -> Found:
    """Go on until there are as many trials as asked for, or the watcher wants to stop."""
    watcher, stopped = watcher or Observer(), False
    with _opened(request, folder / STUDY) as study:
        trials = study.tried()
        while len(trials) < request.trials and not stopped:
            if watcher.stop_wanted():
                stopped = True
                break
            values, trial = study.ask(len(trials))
            watcher.run_started(len(trials) + 1, request.trials)
            stopped = study.attempt(trial, values, watcher)
            trials = study.tried()
            if not stopped:
                watcher.run_ended(str(trials[-1]))
        return Found(request, trials, stopped)


@contextmanager
def _opened(request: Request, path: Path) -> Iterator["_Study"]:
    """The Optuna study in a file; the database's errors as one sentence."""
    try:
        import optuna
    except ImportError:
        raise missing_extra("`fedgrec tune`", "tune") from None
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.resolve()}")
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:  # damaged, or of another version
        what = str(error).splitlines()[0]
        raise RunError(f"{path} cannot be opened as a search ({what}): remove it, or name another --out") from None
    try:
        yield _Study(optuna, request, storage)
    except DBAPIError as error:
        raise DiskError(
            f"{path} could not be written ({error.orig}): free some space, or see who else has it open, then give the "
            "same command again; finished trials are kept"
        ) from error
    finally:
        storage.remove_session()
        storage.engine.dispose()


class _Study:
    def __init__(self, optuna: Any, request: Request, storage: Any) -> None:
        self.optuna, self.request = optuna, request
        pruner, state = optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED), optuna.trial.TrialState
        known = {"storage": storage, "study_name": NAME, "load_if_exists": True}
        self.study = optuna.create_study(**known, direction="maximize", pruner=pruner)
        self._check(self.study.user_attrs.get(ABOUT))
        self.study.set_user_attr(ABOUT, json.dumps(request.about()))
        for trial in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):  # of a search that was killed
            self.study.tell(trial.number, state=state.FAIL)

    def _check(self, before: str | None) -> None:
        """Trials of another search would not compare."""
        if before is None:
            return
        was, now = asdict(DataOptions()) | renamed(json.loads(before), ()), self.request.about()
        other = [k for k in {**was, **now} if was.get(k) != now.get(k)]
        if differ := [f"{k} was {was.get(k)!r} and is now {now.get(k)!r}" for k in other]:
            raise RunError(f"this folder holds another search ({', '.join(differ)}): name another --out")

    def ask(self, index: int) -> tuple[dict[str, Any], Any]:
        """The next proposal; its draws depend on what was finished, not on how often the search was interrupted."""
        seed = int(np.random.SeedSequence([self.request.seed, index]).generate_state(1)[0])
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
        trial = self.study.ask()
        return {search.key: search.suggest(trial) for search in self.request.searches}, trial

    def attempt(self, trial: Any, values: dict[str, Any], watcher: Observer) -> bool:
        """Train with these values; returns whether it was stopped before its end and must be repeated."""
        state = self.optuna.trial.TrialState
        judge = _Judge(trial, self.request.metric, watcher, self.optuna.TrialPruned)
        started, outcome = time.perf_counter(), {"state": state.COMPLETE}
        try:
            self.request.subject.run(values, judge)
        except self.optuna.TrialPruned:
            outcome["state"] = state.PRUNED
        except FedgrecError as error:  # it diverged, or these values do not go together: no reason to end the search
            trial.set_user_attr(FAILURE, str(error))
            outcome["state"] = state.FAIL
        if judge.stopped:
            self.study.tell(trial, state=state.FAIL)
            return True
        trial.set_user_attr(SECONDS, round(time.perf_counter() - started, 3))
        for name, value in judge.best.items():
            trial.set_user_attr(name, value)
        if outcome["state"] is state.COMPLETE:
            outcome = {"values": judge.best.get(BEST, -1.0)}
        self.study.tell(trial, **outcome)
        return False

    def tried(self) -> list[Tried]:
        """All trials that ended, in order; interrupted ones have no number."""
        state = self.optuna.trial.TrialState
        found: list[Tried] = []
        words = {state.COMPLETE: "complete", state.PRUNED: "pruned", state.FAIL: "failed"}
        for trial in self.study.get_trials(deepcopy=False):
            about = trial.user_attrs
            if trial.state in (state.COMPLETE, state.PRUNED) or FAILURE in about:
                how = words[trial.state], about.get(BEST), about.get(ROUND), about.get(SECONDS, 0.0)
                more = about.get(FAILURE, ""), about.get(SECOND), about.get(USERS)
                found.append(Tried(len(found), *how, dict(trial.params), *more))
        return found


class _Judge(Observer):
    """Reports every evaluation to Optuna, and gives the trial up when Optuna says so."""

    def __init__(self, trial: Any, metric: str, watcher: Observer, pruned: type[Exception]) -> None:
        self.trial, self.metric, self.watcher, self.pruned = trial, metric, watcher, pruned
        self.step, self.rounds, self.stopped = 0, 0, False
        self.best: dict[str, Any] = {}  # the best evaluation: its value, its round, the other metric, whose mean it is

    def started(self, done: int, rounds: int) -> None:
        self.rounds = rounds
        self.watcher.started(done, rounds)

    def round_done(self, done: int) -> None:
        self.watcher.round_done(done)

    def noticed(self, sentence: str) -> None:
        self.watcher.noticed(sentence)

    def stop_wanted(self) -> bool:
        self.stopped = self.watcher.stop_wanted()
        return self.stopped

    def evaluated(self, line: dict[str, Any]) -> None:
        """Steps count evaluations, so that trials of different lengths compare at equal shares of them."""
        assert line["split"] == "validation", "a trial has no test items"
        self.step += 1
        if line[self.metric] > self.best.get(BEST, -1.0):
            self.best = {BEST: line[self.metric], ROUND: line["round"], USERS: line.get("users")}
            self.best[SECOND] = line.get(other_metric(self.metric))
        self.watcher.evaluated(line)
        self.trial.report(line[self.metric], self.step)
        late = PATIENCE * line["round"] >= self.rounds
        if late and line["round"] < self.rounds and self.trial.should_prune():
            raise self.pruned
