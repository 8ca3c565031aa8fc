"""The runs of a comparison, from the options that were given."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedgrec.centralized import model_class
from fedgrec.centralized.options import TrainingOptions
from fedgrec.config.checking import bare, checked, find, options_of
from fedgrec.config.configuration import Config, Layer, options, preset
from fedgrec.config.options import DataOptions, RunOptions
from fedgrec.data import Dataset
from fedgrec.data.datasets import load_for
from fedgrec.errors import ConfigError, DataError
from fedgrec.kernels.devices import gpu_is_there
from fedgrec.runs.resolve import EVALUATIONS, located, on_todays_machine, resolved
from fedgrec.studies.compare.names import Entry, File, Options
from fedgrec.studies.compare.runs import CentralizedRun, FederatedRun, Run

# These options must be the same for all methods, or their numbers could not be compared.
JUDGED = ("protocol", "topk", "ndcg_ideal", "candidates", "repeats")
SHARED = {f.name for f in fields(DataOptions)} | {"seed", "validation", *JUDGED}


@dataclass(frozen=True)
class Settings:
    """A whole comparison as it was asked for."""

    entries: list[Entry]
    seeds: tuple[int, ...] = (0, 1, 2)
    file: File = field(default_factory=File)
    named: Options = field(default_factory=dict)  # --set
    flags: Options = field(default_factory=dict)  # of data and run; rounds and evaluate_every are for federated methods
    epochs: Options = field(default_factory=dict)  # epochs and evaluate_every of the other methods
    device: str = "auto"  # for every method that can run there
    metrics: tuple[str, ...] = ()  # further columns of the table, beside recall and NDCG

    @property
    def common(self) -> Config:
        """Data, protocol and all other options that methods share."""
        allowed = [option for option in options() if option.part != "model"]
        layers: tuple[Layer, ...] = ((self.file.shared, self.file.where), (self.named, "--set"))
        for values, where in layers:
            for key in values:
                find(key, allowed, where, "the data or the run (a method's follow it, as in fedgrec:layers=2)")
        return Config().layered(*layers, (self.flags, "command line"), self._device)

    @property
    def _device(self) -> Layer:
        """--device, unless it is `auto`, wins over the file and --set."""
        return ({"device": self.device} if self.device != "auto" else {}), "--device"

    def load(self, seed: int) -> Dataset:
        config = self.common.changed({"seed": seed}, "--seeds")
        methods = [_usual(entry.method, f"--methods {entry.label}") for entry in self.entries if entry.federated]
        dataset = load_for(config, order=any(method.model.takes_order for method in methods))
        parts = dataset.split
        if parts.test is None or not parts.test.n_pairs:
            raise DataError(f"{config.data.data} has no test items, so methods cannot be compared: see --set split")
        if config.run.protocol == "honest" and (parts.validation is None or not parts.validation.n_pairs):
            raise DataError("protocol honest chooses on validation items, and there are none: raise `validation`")
        return dataset

    def runs(self, out: Path, dataset: Dataset) -> list[Run]:
        """All runs, seed by seed: after the first seed every method has a result."""
        return [self._run(entry, seed, out, dataset) for seed in self.seeds for entry in self.entries]

    def _run(self, entry: Entry, seed: int, out: Path, dataset: Dataset) -> Run:
        folder = out / "runs" / f"{entry.folder}-seed{seed}"
        in_file = f"{self.file.where}: [compare.{entry.label.partition(':')[0]}]"
        own: tuple[Layer, Layer] = (entry.section, in_file), (entry.inline, f"--methods {entry.label}")
        for values, where in own:
            for key in values:
                if bare(key) in SHARED:
                    raise ConfigError(f"{where}: {key} is the same for all methods: use its flag, or --set {key}=...")
        if entry.federated:
            return FederatedRun(entry, seed, folder, self._federated(entry.method, seed, own, dataset))
        return CentralizedRun(entry, seed, folder, *self._centralized(entry.method, own, dataset))

    def _federated(self, method: str, seed: int, own: tuple[Layer, Layer], dataset: Dataset) -> Config:
        start = {**own[0][0], **own[1][0]}.get("preset")
        section, inline = (({k: v for k, v in part.items() if k != "preset"}, where) for part, where in own)
        config = _usual(method, own[1][1]).layered(
            (_preset(str(start), method) if start is not None else {}, f"preset {start}"),
            (self.file.shared, self.file.where),
            section,
            (self.named, "--set"),
            (self.flags, "command line"),
            self._device,
            inline,
            ({"seed": seed}, "--seeds"),
        )
        if "device" not in inline:  # where to train what can run there
            config = on_todays_machine(config)
        return resolved(config, dataset)

    def _centralized(self, method: str, own: tuple[Layer, Layer], dataset: Dataset) -> tuple[Config, Options]:
        """Options of data, model and run; and of its training."""
        common, kind = self.common, model_class(method)
        epochs = {k: v for k, v in self.epochs.items() if kind.trains}, "command line"
        of_model, training = _options(kind.Options, [own[0], epochs, own[1]], method)
        model, run = kind.Options(**of_model), common.run
        usual = {"patience": run.patience, "checkpoint_every": TrainingOptions().checkpoint_every}
        whole = {"evaluate_every": rhythm(model), **usual, **training, **judged(run)}
        run = replace(run, device=pick_device(run.device, kind.devices))
        return Config(located(common.data), model, run, method), whole


def _preset(name: str, method: str) -> Options:
    """A preset's options of its method and of the run, without those that all methods share."""
    found, start = preset(name), Config()
    if found.method != method:
        raise ConfigError(f"--methods {method}:preset={name}: that is a preset of {found.method}, not of {method}")
    pairs = [(asdict(getattr(found, part)), asdict(getattr(start, part))) for part in ("model", "run")]
    return {k: v for new, old in pairs for k, v in new.items() if v != old[k] and k not in SHARED}


def _options(kind: type[Any], layers: list[Layer], method: str) -> tuple[Options, Options]:
    """The checked values of these layers: options of the model, and options of its training."""
    own = options_of(kind)
    training = [option for option in options_of(TrainingOptions, "run") if option.name != "epochs"]  # the model's
    found: tuple[Options, Options] = ({}, {})
    for values, where in layers:
        for name, value in values.items():
            option = find(name, [*training, *own], where, method)
            found[option not in own][option.name] = checked(option, value, where)
    return found


def rhythm(model: Any) -> int:
    """Epochs between evaluations. All methods are evaluated equally often: the best of more evaluations is higher."""
    return max(1, -(-getattr(model, "epochs", 0) // EVALUATIONS))


def _usual(method: str, where: str) -> Config:
    """The defaults of a federated method."""
    try:
        return Config().of(method)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where}: {method} is not part of this version ({error})") from None


def judged(run: RunOptions) -> Options:
    """The options of a training that all methods share."""
    return {name: getattr(run, name) for name in JUDGED}


def pick_device(asked: str, possible: tuple[str, ...]) -> str:
    """The device for a model. A model that can only run on the CPU runs there whatever was asked for."""
    if "cuda" not in possible or asked == "cpu":
        return "cpu"
    return "cuda" if asked == "cuda" or gpu_is_there() else "cpu"
