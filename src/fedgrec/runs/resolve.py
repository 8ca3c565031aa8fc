"""Options that a person left to us, decided: how long a run is, how often it is judged, where it runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgrec.config.checking import Option
from fedgrec.config.configuration import Config, options
from fedgrec.config.options import DataOptions, MethodOptions, falling
from fedgrec.data import Dataset
from fedgrec.data.registry import SOURCES
from fedgrec.methods.contract import make_method
from fedgrec.runs.machine import device_of, why_no_gpu

EVALUATIONS = MethodOptions.evaluations  # in a run, if `evaluate_every` is left to us


def resolved(config: Config, dataset: Dataset) -> Config:
    """The configuration with all that was left to us decided, so that running it again gives the same run."""
    config = decided(config, dataset.split.train.n_users)
    config.model.check_rounds(config.run.rounds)
    run = replace(config.run, device=device_of(config))
    return replace(config, run=run, data=located(config.data))


def decided(config: Config, n_users: int) -> Config:
    """With the numbers that follow from how many users there are."""
    run, model = config.run, config.model
    in_turns = -(-(run.turns or model.turns) * n_users // min(model.users_per_round, n_users))
    rounds = run.rounds or model.rounds or in_turns
    if run.noisy and not run.rounds and not run.turns:
        rounds = model.noisy_rounds or rounds
    every = run.evaluate_every or -(-rounds // model.evaluations)
    noisy_rounds = (run.dp_rounds or rounds) if run.noisy else run.dp_rounds
    run = replace(run, rounds=rounds, evaluate_every=every, dp_rounds=noisy_rounds)
    return replace(config, model=falling(model, rounds), run=run)


def chosen_options(config: Config, n_users: int) -> list[tuple[Option, Any, Any]]:
    """The options of a recorded configuration that somebody gave, each with its value and its default.

    Left to us was what follows from the others: noise changes defaults, `decided` fills values in, a machine has one
    device.
    """
    usual, found = Config().of(config.method), []
    noisy = usual.changed({"dp_epsilon": config.run.dp_epsilon, "dp_unit": config.run.dp_unit})
    for option in options(config.method):
        here, first = (getattr(of, option.part) for of in (config, noisy if option.part == "model" else usual))
        value, default = getattr(here, option.name), getattr(first, option.name)
        without = replace(config, **{option.part: replace(here, **{option.name: default})})
        if option.name != "device" and value != default and decided(without, n_users) != config:
            found.append((option, value, default))
    return found


def located(data: DataOptions) -> DataOptions:
    """With the whole path of a file, so that the run can be resumed from any folder."""
    source = data.data
    if source == "demo" or source in SOURCES or not Path(source).exists():
        return data
    return replace(data, data=str(Path(source).resolve()))


def on_todays_machine(config: Config) -> Config:
    """A recorded configuration. A kernel or a device that release 0.2 trained on, and that cannot now, is `auto`."""
    if config.run.kernel not in make_method(config.method).kernels:
        config = config.changed({"kernel": "auto"})
    return config.changed({"device": "auto"}) if why_no_gpu(config) else config


def final(config: Config, best_round: int) -> Config:
    """A run that learns from all items, with the options and rounds that a run with held-out items chose."""
    held_out = {"split": "all", "protocol": "honest", "validation": 0.0}
    length = {"rounds": best_round, "patience": 0, "dp_rounds": 0, "evaluate_every": 0}
    return config.changed(held_out | length, "the final run")
