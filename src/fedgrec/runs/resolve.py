"""Options that a person left to us, decided: how long a run is, how often it is judged, where it runs."""

from dataclasses import replace
from pathlib import Path

from fedgrec.config.configuration import Config
from fedgrec.config.options import DataOptions, MethodOptions, falling
from fedgrec.data import Dataset
from fedgrec.data.registry import SOURCES
from fedgrec.runs.distributed import Ranks
from fedgrec.runs.machine import device_of, why_no_gpu

EVALUATIONS = MethodOptions.evaluations  # in a run, if `evaluate_every` is left to us


def resolved(config: Config, dataset: Dataset, ranks: Ranks | None = None) -> Config:
    """The configuration with all that was left to us decided, so that running it again gives the same run."""
    run, model, n_users = config.run, config.model, dataset.split.train.n_users
    in_turns = -(-(run.turns or model.turns) * n_users // min(model.users_per_round, n_users))
    rounds = run.rounds or model.rounds or in_turns
    if run.noisy and not run.rounds and not run.turns:
        rounds = model.noisy_rounds or rounds
    every = run.evaluate_every or -(-rounds // model.evaluations)
    device = device_of(config, ranks or Ranks())
    noisy_rounds = (run.dp_rounds or rounds) if run.noisy else run.dp_rounds
    run = replace(run, rounds=rounds, evaluate_every=every, device=device, dp_rounds=noisy_rounds)
    return replace(config, model=falling(model, rounds), run=run, data=located(config.data))


def located(data: DataOptions) -> DataOptions:
    """With the whole path of a file, so that the run can be resumed from any folder."""
    source = data.data
    if source == "demo" or source in SOURCES or not Path(source).exists():
        return data
    return replace(data, data=str(Path(source).resolve()))


def on_todays_device(config: Config, ranks: Ranks) -> Config:
    """A recorded configuration. What release 0.2 trained on a GPU, and no engine can, goes on as `auto` says."""
    return config.changed({"device": "auto"}) if why_no_gpu(config, ranks) else config


def final(config: Config, best_round: int) -> Config:
    """A run that learns from all items, with the options and rounds that a run with held-out items chose."""
    held_out = {"split": "all", "protocol": "honest", "validation": 0.0}
    length = {"rounds": best_round, "patience": 0, "dp_rounds": 0, "evaluate_every": 0}
    return config.changed(held_out | length, "the final run")
