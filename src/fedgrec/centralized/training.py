"""Trains any model in epochs: evaluations, the best epoch, checkpoints, and exact resumption of a killed run."""

import time
from pathlib import Path
from typing import Any

from fedgrec.centralized.contract import Model, Tensors, to_numpy
from fedgrec.centralized.options import TrainingOptions
from fedgrec.data import Dataset, Interactions
from fedgrec.data.datasets import describe
from fedgrec.data.files import Checkpoints, read_json, understood, write_json
from fedgrec.data.split import write_split
from fedgrec.errors import DataError, RunError
from fedgrec.kernels.devices import within_memory
from fedgrec.models.gpu_ranking import ranker
from fedgrec.models.ranking import USUAL, Csr, Judging, Result, evaluate, evaluate_ranking
from fedgrec.models.selection import RESULT, Observer, Progress, judge

RUN, SELECTED = "run.json", "selected."


def evaluate_model(model: Model, seen: Csr, held_out: Csr, how: Judging = USUAL) -> Result:
    """Rank all items that each user has not seen, and say how well: on the GPU if the model is there."""
    on_gpu = model.device.startswith("cuda")
    if not on_gpu and (pair := model.embeddings()) is not None:
        return evaluate(*pair, seen, held_out, how)
    score, n_items = model.scorer(), model.train.n_items
    rank = ranker(score if on_gpu else lambda users: to_numpy(score(users)), n_items, on_gpu)
    return evaluate_ranking(rank, n_items, seen, held_out, how)


def train(
    model: Model,
    dataset: Dataset,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    observer: Observer | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train, leave `model` as it was at the selected epoch, and return the line of metrics that counts.

    `options` are those of TrainingOptions. With `out`, the folder holds metrics.jsonl, result.json, the model and
    checkpoints; with `resume` a run that was interrupted there goes on.
    """
    training = Training(model, dataset, TrainingOptions(**options), Path(out) if out else None, observer or Observer())
    training.open(resume)
    training.run()
    return training.result()


class Training:
    def __init__(
        self, model: Model, dataset: Dataset, options: TrainingOptions, out: Path | None, observer: Observer
    ) -> None:
        self.model, self.dataset, self.options, self.out, self.observer = model, dataset, options, out, observer
        self.epochs = model.epochs if options.epochs < 0 or not model.trains else options.epochs
        model.known = dataset.split.known
        self.progress = Progress()
        self.selected: Tensors | None = None
        if options.protocol == "honest" and dataset.split.validation is None:
            raise DataError("protocol 'honest' needs a validation split: load the data with validation=0.1, or so")
        self.judge = judge(dataset.split, options.protocol)

    def run(self) -> None:
        """Train until the epochs are done, patience ends, or the observer wants to stop."""
        with within_memory("training", "dim, layers or batch", self.model.device):
            self._run()

    def _run(self) -> None:
        model, o, started = self.model, self.options, time.perf_counter() - self.progress.seconds
        self.observer.started(model.epochs_done, self.epochs)
        if not self.epochs:
            self._evaluate(None)
        while model.epochs_done < self.epochs and not 0 < o.patience <= self.progress.stale:
            if self.observer.stop_wanted():
                self._checkpoint()
                return
            loss = model.epoch()
            self.progress.seconds = time.perf_counter() - started
            if model.epochs_done % o.evaluate_every == 0 or model.epochs_done == self.epochs:
                self._evaluate(loss)
                self.progress.seconds = time.perf_counter() - started
            if o.checkpoint_every and model.epochs_done % o.checkpoint_every == 0:
                self._checkpoint()
            self.observer.round_done(model.epochs_done)
        self._finish()

    def _evaluate(self, loss: float | None) -> None:
        if self.judge is None:
            return
        line = self.measure(*self.judge, loss)
        if self.progress.judged(line, self.options.topk):
            self.selected = self.model.tensors()
        self._write_metrics(line)

    def measure(self, name: str, held_out: Interactions, loss: float | None = None) -> dict[str, Any]:
        """One line of metrics.jsonl; a round is an epoch."""
        o = self.options
        seen = self.dataset.split.train if name == "validation" else self.dataset.split.before_test
        how = Judging.of(o, self.model.seed, self.dataset.split.known)
        result = evaluate_model(self.model, seen, held_out, how)
        return {**self.progress.line(self.model.epochs_done, name, o.protocol, result), "loss": loss}

    def _finish(self) -> None:
        """Under `honest` this alone uses the test split: once, for the epoch that validation chose."""
        if self.options.checkpoint_every and self.epochs:
            self._checkpoint()  # before the model becomes the selected one, so that more epochs can go on from here
        if self.selected is not None and self.progress.best_round != self.model.epochs_done:
            self.model.load_tensors(self.selected)
            self.model.epochs_done = self.progress.best_round
        test = self.dataset.split.test
        if self.options.protocol == "honest" and test is not None and test.n_pairs:
            line = self.measure("test", test)
            self.progress.metrics.append(line)
            self._write_metrics(line)
        if self.out:
            self.model.save(self.out)
            write_json(self.out / RESULT, self.result())

    def result(self) -> dict[str, Any]:
        """The line that counts."""
        return self.progress.result(self.model.epochs_done, self.options.protocol, self.options.topk)

    # ----------------------------------------------------------------------------------------- files

    def open(self, resume: bool) -> None:
        """Make the run's folder, or go back to its last checkpoint."""
        if self.out is None:
            if resume:
                raise RunError("a run without a folder has nothing to resume: name the folder it was started in")
            return
        checkpoints, about = Checkpoints(self.out / "checkpoints"), self._about()
        if not resume and checkpoints.pointer.exists():
            raise RunError(f"{self.out} holds a run already: resume it, or choose another folder")
        mend = "restore it, or choose another folder"
        if resume and (self.out / RUN).exists() and read_json(self.out / RUN, mend) != about:
            raise RunError(f"{self.out} was started with another model or other data (see its {RUN}): choose another")
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / RESULT).unlink(missing_ok=True)  # of a run that now goes on
        write_json(self.out / RUN, about)
        write_split(self.out, self.dataset.split)
        found = checkpoints.load() if resume else None
        if found is not None:
            tensors, info = found
            with understood(checkpoints.folder, checkpoints.mend):
                self.progress = Progress.from_json(info)
                self.model.load_state({k: v for k, v in tensors.items() if not k.startswith(SELECTED)})
            chosen = {k.removeprefix(SELECTED): v for k, v in tensors.items() if k.startswith(SELECTED)}
            self.selected = chosen or None

    def _about(self) -> dict[str, Any]:
        """What must not change when a run goes on."""
        return {**self.model.about(), "protocol": self.options.protocol, "data": describe(self.dataset)}

    def _checkpoint(self) -> None:
        if self.out:
            selected = {SELECTED + name: value for name, value in (self.selected or {}).items()}
            Checkpoints(self.out / "checkpoints").save(
                self.model.epochs_done, {**self.model.state(), **selected}, self.progress.to_json()
            )

    def _write_metrics(self, line: dict[str, Any]) -> None:
        if self.out:
            self.progress.write(self.out)
        self.observer.evaluated(line)
