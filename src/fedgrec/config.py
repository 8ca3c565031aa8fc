"""Every option of a run, each said once: the field below is its default, its help text and its bounds.

The command line, TOML files, `--set key=value`, the Python interface and the documentation are all made from
these fields. The defaults are the preset `best`; other presets are TOML files that name only what they change.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from fedgrec.errors import ConfigError, nearest


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field that knows how to explain and to check itself."""
    return field(default=default, metadata={"help": help, "choices": choices, "least": least, "most": most})


@dataclass(frozen=True)
class DataOptions:
    """Where the interactions come from and how they are split."""

    data: str = option(
        "demo", "a data set's name (demo, gowalla, yelp2018, amazon-book), a folder, or a file"
    )
    split: str = option(
        "auto",
        "how test items are chosen: given (train and test files), ratio (a share of each "
        "user's items), last (each user's latest item); auto: given for folders, ratio for files",
        choices=("auto", "given", "ratio", "last"),
    )
    test_ratio: float = option(
        0.2, "share of each user's items held out for test when split = ratio", least=0, most=0.9
    )
    k_core: int = option(
        0, "drop users and items with fewer than this many interactions, repeatedly", least=0
    )
    min_rating: float | None = option(None, "keep only interactions rated at least this much")
    keep_ratings: bool = option(False, "keep ratings as targets of the MSE loss")
    user_column: str = option("user", "name of the user column; its usual spellings are found too")
    item_column: str = option("item", "name of the item column; its usual spellings are found too")
    rating_column: str = option("rating", "name of the rating column; its usual spellings are found too")
    time_column: str = option("time", "name of the time column; its usual spellings are found too")


@dataclass(frozen=True)
class FedGRecOptions:
    """The method: Algorithm 1 of the paper, with every choice that the paper leaves open."""

    layers: int = option(
        3, "K, the number of latent embeddings; 0 is plain federated matrix factorisation", least=0, most=16
    )
    dim: int = option(64, "d, the size of an embedding", least=1, most=4096)
    combine: str = option(
        "mean",
        "how e^0..e^K become one representation: mean (weighted, Eq. 2), last ((e^0+e^K)/2) or concat",
        choices=("mean", "last", "concat"),
    )
    alphas: tuple[float, ...] = option((), "the K+1 weights of `mean`; empty: 1/(K+1) each")
    message_passing: str = option(
        "symmetric",
        "symmetric: LightGCN's 1/√(|N_t||N_u|); mean: each side averages its neighbours",
        choices=("symmetric", "mean"),
    )
    init_std: float = option(0.1, "σ of the Gaussian that starts e_u^0 and e_t^0", least=0)
    users_per_round: int = option(400, "S, users sampled in a round", least=1)
    query: str = option(
        "whole",
        "item rows a user downloads: whole table, half of it, or sampled (the paper's: all "
        "positives and the negatives; it gives positives away within a few rounds)",
        choices=("whole", "half", "sampled"),
    )
    negatives: int = option(1024, "negatives a user draws in a round, distinct", least=1)
    exclude_positives: bool = option(True, "negatives are never positives of the user")
    max_positives: int = option(
        256, "positives of a user that train in one round, a fresh sample of those with more; 0: all", least=0
    )
    loss: str = option(
        "bpr",
        "bpr (Eq. 5) or mse (Eq. 3, over positives; ratings are its targets if kept)",
        choices=("bpr", "mse"),
    )
    reduction: str = option(
        "mean", "the loss is the mean or the sum over a user's pairs", choices=("mean", "sum")
    )
    l2: float = option(1.5e-4, "λ, the L2 penalty", least=0)
    l2_scaling: str = option(
        "pair",
        "pair: λ e_u, λ e_t/P for each of P positives, λ e_t/n for each of n negatives; "
        "row: plain weight decay λ e of every queried row",
        choices=("pair", "row"),
    )
    live: bool = option(
        True,
        "the user's own first-order latent follows its local items during training, so positives "
        "feel it too; off: the paper's frozen latents",
    )
    local_steps: int = option(1, "τ, local steps in a round", least=1, most=1000)
    item_optimizer: str = option(
        "sgd",
        "local optimizer of the item rows; its moments start fresh in every round",
        choices=("sgd", "adam"),
    )
    item_rate: float = option(1.0, "β of the item rows", least=0)
    user_optimizer: str = option("adam", "local optimizer of e_u^0", choices=("sgd", "adam"))
    user_rate: float = option(0.02, "β of e_u^0", least=0)
    user_moments: str = option(
        "kept",
        "Adam's moments of e_u^0: kept at home between rounds, or fresh in every round",
        choices=("kept", "fresh"),
    )
    server_optimizer: str = option(
        "adam",
        "what the server does with the summed item updates: add them (sum, Eq. 10) "
        "or take them as a gradient for Adam",
        choices=("sum", "adam"),
    )
    server_rate: float = option(0.01, "α of Eq. 10", least=0)
    latent_rate: float = option(
        1.0, "α of Eq. 11; at 1 the latents stay exactly what the users sent", least=0
    )
    beta1: float = option(0.9, "Adam's first decay", least=0, most=0.9999)
    beta2: float = option(0.999, "Adam's second decay", least=0, most=0.999999)
    epsilon: float = option(1e-8, "Adam's ε", least=1e-30)
    item_clip: float = option(0.3, "largest absolute item update that one user may send", least=1e-6)
    latent_clip: float = option(
        2.5, "largest absolute latent contribution w_ut·e_u that one user may hold", least=1e-6
    )
    evaluation_refresh: bool = option(True, "users refresh their latents by Eq. 6 before they rank items")
    precision: str = option("float32", "arithmetic of training", choices=("float32", "float64"))

    def weights(self) -> tuple[float, ...]:
        """α_0 .. α_K of Eq. (2); `last` is the mean of e^0 and e^K; concat uses each as it is."""
        if self.combine == "concat":
            return (1.0,) * (self.layers + 1)
        if self.combine == "last" and self.layers:
            return (0.5,) + (0.0,) * (self.layers - 1) + (0.5,)
        return self.alphas or (1.0 / (self.layers + 1),) * (self.layers + 1)

    def __post_init__(self) -> None:
        if self.alphas and len(self.alphas) != self.layers + 1:
            raise ConfigError(
                f"alphas has {len(self.alphas)} weights, but layers = {self.layers} needs {self.layers + 1}"
            )
        if self.alphas and self.combine != "mean":
            raise ConfigError(
                "alphas are the weights of combine = 'mean': leave them out, or set combine to 'mean'"
            )
        if self.live and self.combine == "concat" and self.layers:
            raise ConfigError("live = true is not defined for combine = 'concat': set live to false")


@dataclass(frozen=True)
class RunOptions:
    """The simulation: how long, how judged, how saved."""

    rounds: int = option(0, "training rounds; 0: about 110 turns for every user", least=0)
    seed: int = option(0, "seed of users' keys, sampling and splits", least=0, most=2**63 - 1)
    protocol: str = option(
        "honest",
        "honest: rounds are chosen on a validation split held out of train; paper: the best "
        "round on test, as published numbers on these data sets are",
        choices=("honest", "paper"),
    )
    validation: float = option(
        0.1, "share of each user's train items held out as validation under `honest`", least=0, most=0.9
    )
    evaluate_every: int = option(0, "rounds between evaluations; 0: twenty evaluations in a run", least=0)
    patience: int = option(0, "stop after this many evaluations without improvement; 0: never", least=0)
    checkpoint_every: int = option(500, "rounds between checkpoints; 0: only when interrupted", least=0)
    dropout: float = option(0.0, "chance that a sampled user's upload is lost", least=0, most=1)
    topk: tuple[int, ...] = option(
        (20,), "list lengths k of Recall@k and NDCG@k; the first one selects the round"
    )
    ndcg_ideal: str = option(
        "capped",
        "NDCG's ideal: over min(|test|, k) items (capped), or over all test items (paper)",
        choices=("capped", "paper"),
    )
    kernel: str = option(
        "auto",
        "auto: cpu where it supports the options; reference: the readable one",
        choices=("auto", "reference", "cpu"),
    )
    threads: int = option(0, "threads of the cpu kernel; 0: all cores. Results do not depend on it", least=0)

    def __post_init__(self) -> None:
        if not self.topk or min(self.topk) < 1:
            raise ConfigError("topk needs at least one list length, each 1 or more, such as  topk = [20]")


@dataclass(frozen=True)
class Config:
    """A whole run, resolved: running it again gives the same run."""

    data: DataOptions = DataOptions()
    model: FedGRecOptions = FedGRecOptions()
    run: RunOptions = RunOptions()

    def changed(self, values: Mapping[str, Any], where: str) -> "Config":
        """A copy with these options replaced; keys are option names, values are checked."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in values.items():
            section, option_field = find(key, where)
            sections.setdefault(section, {})[key] = checked(option_field, value, where)
        return dataclasses.replace(
            self, **{name: dataclasses.replace(getattr(self, name), **new) for name, new in sections.items()}
        )

    def to_toml(self) -> str:
        lines = ["# A resolved fedgrec configuration: `fedgrec train --config THIS` gives the same run.\n"]
        for section in ("data", "model", "run"):
            lines.append(f"[{section}]")
            for name, value in dataclasses.asdict(getattr(self, section)).items():
                if value is not None:
                    lines.append(f"{name} = {_toml(value)}")
            lines.append("")
        return "\n".join(lines)


def options() -> Iterator[tuple[str, "dataclasses.Field[Any]", type]]:
    """Every option: its section, its field, its type."""
    for section in dataclasses.fields(Config):
        cls = section.type if isinstance(section.type, type) else get_type_hints(Config)[section.name]
        hints = get_type_hints(cls)
        for f in dataclasses.fields(cls):
            yield section.name, f, hints[f.name]


def find(key: str, where: str) -> tuple[str, "dataclasses.Field[Any]"]:
    """The section and field of an option, or an error that suggests the nearest name."""
    key = key.replace("-", "_")
    for section, f, _ in options():
        if f.name == key:
            return section, f
    raise ConfigError(
        f"{where}: there is no option {key!r}.{nearest(key, [f.name for _, f, _ in options()])}"
    )


def checked(f: "dataclasses.Field[Any]", value: Any, where: str) -> Any:
    """The value in the option's type and within its bounds."""
    kind = next(t for _, g, t in options() if g.name == f.name)
    try:
        value = _convert(value, kind)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {f.name} cannot be {value!r}: it is {_describe(kind)}") from None
    if f.metadata["choices"] and value not in f.metadata["choices"]:
        raise ConfigError(
            f"{where}: {f.name} cannot be {value!r}: choose one of {', '.join(f.metadata['choices'])}"
        )
    least, most = f.metadata["least"], f.metadata["most"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if (least is not None and not value >= least) or (most is not None and not value <= most):
            bounds = " and ".join(
                f"at {w} {b:g}" for w, b in (("least", least), ("most", most)) if b is not None
            )
            raise ConfigError(f"{where}: {f.name} cannot be {value!r}: it is {bounds}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Options of a TOML file; its sections are for the reader's eye, names are unique without them."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such configuration file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from None
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            if key not in {"data", "model", "run"}:
                raise ConfigError(
                    f"{path}: there is no section [{key}].{nearest(key, ['data', 'model', 'run'])}"
                )
            flat |= value
        elif key != "description":
            flat[key] = value
    return flat


def presets() -> dict[str, str]:
    """Names of the presets and what each is for."""
    folder = resources.files("fedgrec") / "presets"
    return {
        name: tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))["description"]
        for name in sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))
    }


def preset(name: str) -> Config:
    """The configuration that a preset names."""
    if name not in presets():
        raise ConfigError(
            f"there is no preset {name!r}.{nearest(name, list(presets()))} Presets: {', '.join(presets())}"
        )
    with resources.as_file(resources.files("fedgrec") / "presets" / f"{name}.toml") as path:
        return Config().changed(read_toml(path), f"preset {name}")


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` as --set takes it; the value is TOML where it can be, else a plain word."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: write it as key=value, such as --set layers=2")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _convert(value: Any, kind: Any) -> Any:
    if kind == float | None:
        return None if value in (None, "", "none") else _convert(value, float)
    if kind is bool:
        if isinstance(value, str) and value.lower() in {"true", "yes", "on", "false", "no", "off"}:
            return value.lower() in {"true", "yes", "on"}
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool):
        raise TypeError
    if kind is int:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    if kind is float:
        return float(value)
    if kind is str:
        return str(value)
    element = kind.__args__[0]
    parts = (
        value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
    )
    return tuple(_convert(part, element) for part in parts if part != "")


def _describe(kind: Any) -> str:
    words = {
        int: "a whole number",
        float: "a number",
        str: "a word",
        bool: "true or false",
        float | None: "a number",
    }
    return words.get(kind, "a list of numbers")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
