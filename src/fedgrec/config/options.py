"""Every option of a run, each said once: the field below is its default, its help text and its bounds.

The command line, TOML files, `--set key=value`, the Python interface and the documentation are all made from
these fields. The defaults are the preset `best`; other presets are TOML files that name only what they change.
"""

import importlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from fedgrec.errors import ConfigError, nearest

# The federated methods, each in a module that has its `Options` and `make(options, n_items, n_users[, kernel])`.
METHODS = {
    "fedgrec": "fedgrec.methods.fedgrec",
    "two-parts": "fedgrec.methods.two_parts",
    "spectral": "fedgrec.methods.spectral",
    "ordered": "fedgrec.methods.ordered",
    "ordered-parts": "fedgrec.methods.ordered_parts",
    "fcf": "fedgrec.methods.fcf",
    "fedmf": "fedgrec.methods.fedmf",
    "federank": "fedgrec.methods.federank",
    "fedncf": "fedgrec.methods.fedncf",
    "pfedrec": "fedgrec.methods.pfedrec",
    "fedrap": "fedgrec.methods.fedrap",
    "fedgnn": "fedgrec.methods.fedgnn",
    "fedgnn-bpr": "fedgrec.methods.fedgnn_bpr",
}


def method_module(name: str) -> Any:
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(f"there is no method {name!r}.{nearest(name, list(METHODS))} Methods: {', '.join(METHODS)}")
    module = importlib.import_module(METHODS[name])
    if not issubclass(module.Options, MethodOptions):
        raise ConfigError(
            f"{METHODS[name]}: its Options is no fedgrec.config.options.MethodOptions: derive it from that"
        )
    return module


# The sections of config.toml, the headings of `fedgrec options`, and what may stand before a name: `wire.item_levels`.
GROUPS = {
    "data": "where the interactions come from and how they are split",
    "model": "what is learned, and from what",
    "optimizer": "how devices and server take their steps",
    "wire": "what travels, and in how many bits",
    "privacy": "what is hidden, bounded or blurred",
    "ranking": "how lists are made and scored",
    "run": "how long, on what, and how it is judged",
}


def option(
    default: Any,
    text: str,
    *,
    group: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    bare: str | None = None,
    common: str = "",
    before: Any = None,
) -> Any:
    """A dataclass field that knows how to explain and to check itself.

    `group` is one of GROUPS; without it the group is that of the usual option of this name, or else `model`. `bare` is
    what its flag alone means. `common` is the line about it in `fedgrec train --help`, if people often set it.
    `before` is what runs did that were recorded before the option was there, if its default is something else.
    """
    if group and group not in GROUPS:
        raise ConfigError(f"there is no group {group!r} of options.{nearest(group, list(GROUPS))}")
    about = {"help": text, "group": group, "choices": choices, "least": least, "most": most, "bare": bare}
    return field(default=default, metadata=about | {"common": common, "before": before})


in_data, in_optimizer, in_wire, in_privacy, in_ranking, in_run = (
    partial(option, group=group) for group in GROUPS if group != "model"
)


def at_round(options: Any, round_: int) -> Any:
    """The options of a round, with rates fallen this far. A half-life below 1 is a share, which `falling` resolves."""
    if options.half_life < 1:
        return options
    left = 0.5 ** (round_ / options.half_life)
    return replace(options, server_rate=options.server_rate * left, user_rate=options.user_rate * left)


def falling(options: "MethodOptions", rounds: int) -> "MethodOptions":
    """A method's options, with the half-life of its rates in rounds."""
    fallen: dict[str, Any] = {"half_life": max(options.half_life * rounds, 1.0)}
    return replace(options, **fallen) if 0 < options.half_life < 1 else options


@dataclass(frozen=True)
class DataOptions:
    """Where the interactions come from and how they are split."""

    data: str = option(
        "demo",
        "a data set's name (demo, gowalla, yelp2018, amazon-book), a folder, or a file",
        common="a data set's name, a folder, or a file",
    )
    split: str = option(
        "auto",
        "how test items are chosen: given (train and test files), ratio (a share of each "
        "user's items), last (each user's latest items), time (all interactions after one moment), all (no test "
        "items: everything trains); auto: given for folders, ratio for files",
        choices=("auto", "given", "ratio", "last", "time", "all"),
        common="auto, given, ratio, last, time or all",
    )
    test_ratio: float = option(
        0.2,
        "share held out for test: of each user's items when split = ratio, of all interactions when split = time",
        least=0,
        most=0.9,
    )
    leave_out: int = option(1, "how many of each user's latest items are held out when split = last", least=1)
    k_core: int = option(0, "drop users and items with fewer than this many interactions, repeatedly", least=0)
    min_rating: float | None = option(None, "keep only interactions rated at least this much")
    keep_ratings: bool = option(False, "keep ratings as targets of the MSE loss")
    weight_ceiling: float = option(
        0.0,
        "the rating column says how much a click counts: its value divided by this, at most 1; 0: all count alike",
        least=0,
    )
    user_column: str = option("user", "name of the user column; its usual spellings are found too")
    item_column: str = option("item", "name of the item column; its usual spellings are found too")
    rating_column: str = option("rating", "name of the rating column; its usual spellings are found too")
    time_column: str = option("time", "name of the time column; its usual spellings are found too")

    @property
    def reads_ratings(self) -> bool:
        return self.keep_ratings or self.weight_ceiling > 0


@dataclass(frozen=True)
class MethodOptions:
    """What the `Options` of every method have. A method replaces a value or a field by one of the same name."""

    # If `rounds` is left to us, a user has so many turns; or there are so many rounds, if a method knows that.
    turns: ClassVar[int] = 110
    rounds: ClassVar[int] = 0
    evaluations: ClassVar[int] = 20  # of a run, if `evaluate_every` is left to us
    # Under noise: values that are better then, and the number of rounds (0: as without noise).
    with_noise: ClassVar[dict[str, Any]] = {}
    noisy_rounds: ClassVar[int] = 0
    # Whether users need to know in which order they got their items: data without it is read faster.
    takes_order: ClassVar[bool] = False
    # Of a method without such options: it has no latents, draws no negatives, and its rates stay.
    layers, negatives, half_life = 0, 0, 0.0

    @classmethod
    def under_promise(cls, epsilon: float, unit: str) -> dict[str, Any]:
        """Values that are better under ε for this unit; a user's promise is noise."""
        return cls.with_noise if unit == "user" else {}

    def check_rounds(self, rounds: int) -> None:
        """`ConfigError` if so many rounds are too few for a model."""

    dim: int = option(64, "d, the size of an embedding", least=1, most=4096, common="d, the size of an embedding")
    users_per_round: int = in_run(400, "S, users sampled in a round", least=1)

    @property
    def levels(self) -> int:
        """Whole numbers up to this travel up, in units of public steps; 0: numbers of 32 bits."""
        return 0


@dataclass(frozen=True)
class AdamOptions(MethodOptions):
    """The same of a method that is trained from random embeddings, with Adam."""

    init_std: float = option(0.1, "σ of the Gaussian that starts embeddings", least=0)
    beta1: float = in_optimizer(0.9, "Adam's first decay", least=0, most=0.9999)
    beta2: float = in_optimizer(0.999, "Adam's second decay", least=0, most=0.999999)
    adam_epsilon: float = in_optimizer(1e-8, "Adam's ε", least=1e-30)
    precision: str = in_run("float32", "arithmetic of training", choices=("float32", "float64"))


LONGEST = (
    "an item's vector is no longer than this share of those that about as many people have; 1: as long as it may be"
)
COUNT_ITEMS = "with noise: the most items of a user that are counted; a user with more counts a random sample"
ITEM_NORM = (
    "with noise: the largest Euclidean norm of one user's item update of a round; what is longer is scaled down; the "
    "default is about the median of first rounds on the demo"
)

ITEM_LEVELS = (
    "users send item updates as whole numbers up to this, in units of a public step for each item; 0, or a server "
    "without Adam: numbers of 32 bits, with one step for all items"
)


@dataclass(frozen=True)
class FedGRecOptions(AdamOptions):
    """The method: Algorithm 1 of the paper, with every choice that the paper leaves open."""

    turns: ClassVar[int] = 53  # of a user in training, when `turns` is left to us
    # Under noise every round costs privacy: few rounds of everybody are better.
    with_noise: ClassVar[dict[str, Any]] = {
        "users_per_round": 2**31 - 1, "negatives": 128, "server_rate": 0.1, "user_rate": 0.15,
    }  # fmt: skip
    noisy_rounds: ClassVar[int] = 40

    layers: int = option(
        2,
        "K, the number of latent embeddings; 0 is plain federated matrix factorisation",
        least=0,
        most=16,
        common="K, latent embeddings; 0: no graph",
    )
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
    negatives: int = option(1024, "negatives a user draws in a round, distinct", least=1)
    popular_negatives: float = option(
        0.5, "share of the negatives that is drawn by degree (degrees are public); the rest is uniform", least=0, most=1
    )
    latents_every: int = in_wire(
        0,
        "users send latents in the last of every so many training rounds, and more often in their first turns; the "
        "other rounds carry item updates alone. 0: latents travel in rounds of their own, in which everybody takes "
        "part, after 1, 2, 4, 8, … turns: so no row of a sum is one user's alone",
        least=0,
    )
    item_levels: int = in_wire(20, ITEM_LEVELS, least=0, most=2**20)
    fine_rounds: int = in_wire(
        0,
        "first rounds, in which item updates have 32 bits; they set the steps of later rounds; 0: 20, or more, until "
        "items have been drawn ten times on average",
        least=0,
    )
    download: str = in_wire(
        "int8",
        "numbers that travel down: float32, bfloat16 (16 bits), or int8 (8 bits and a scale for each row); always "
        "float32 where layers = 0, l2 > 0 or combine = concat",
        choices=("int8", "bfloat16", "float32"),
    )
    exclude_positives: bool = option(True, "negatives are never positives of the user")
    max_positives: int = option(
        256, "the most positives of a user that train in one round; a user with more draws some; 0: all", least=0
    )
    feedback: float = in_privacy(
        1.0, "share of a user's positives whose update is sent in a round; the others stay at home", least=0, most=1
    )
    loss: str = option(
        "softmax",
        "softmax (each positive against all of the user's negatives at once); bpr (Eq. 5); mse (Eq. 3, over positives; "
        "ratings are its targets if kept); mse0: mse with the negatives drawn as further targets 0",
        choices=("softmax", "bpr", "mse", "mse0"),
    )
    similarity: str = option(
        "cosine",
        "a score in training: the cosine of the two representations, or their inner product",
        choices=("cosine", "inner"),
    )
    temperature: float = option(
        0.0,
        "softmax divides scores by this; 0: 0.11, and more if there are fewer than 40,000 items or 25 clicks a user",
        least=0,
    )
    negative_weight: float = option(1.0, "weight of the negatives' part of softmax", least=0)
    ranking: str = in_ranking(
        "inner", "a score in recommendations: inner product or cosine", choices=("inner", "cosine")
    )
    reduction: str = option("sum", "the loss is the sum or the mean over a user's pairs", choices=("sum", "mean"))
    l2: float = option(0.0, "λ, the L2 penalty", least=0)
    l2_scaling: str = option(
        "pair",
        "pair: λ e_u, λ e_t/P for each of P positives, λ e_t/n for each of n negatives; "
        "row: plain weight decay λ e of every queried row",
        choices=("pair", "row"),
    )
    live: bool = option(
        True,
        "the user's own first-order latent follows its local items during training, so positives "
        "also train through it; off: the paper's frozen latents",
    )
    local_steps: int = in_optimizer(1, "τ, local steps in a round", least=1, most=1000)
    item_optimizer: str = in_optimizer(
        "sgd", "local optimizer of the item rows; its moments start fresh in every round", choices=("sgd", "adam")
    )
    item_rate: float = in_optimizer(1.0, "β of the item rows", least=0)
    user_optimizer: str = in_optimizer("adam", "local optimizer of e_u^0", choices=("sgd", "adam"))
    user_rate: float = in_optimizer(0.04, "β of e_u^0", least=0)
    user_moments: str = in_optimizer(
        "kept",
        "Adam's moments of e_u^0: kept at home between rounds, or fresh in every round",
        choices=("kept", "fresh"),
    )
    server_optimizer: str = in_optimizer(
        "adam",
        "what the server does with the summed item updates: add them (sum, Eq. 10) or take them as a gradient for Adam",
        choices=("sum", "adam"),
    )
    server_rate: float = in_optimizer(0.02, "α of Eq. 10", least=0)
    half_life: float = in_optimizer(
        0.75,
        "rounds in which server_rate and user_rate fall to half, again and again; below 1: as a share of all rounds; "
        "0: they stay",
        least=0,
    )
    latent_rate: float = in_optimizer(1.0, "α of Eq. 11; at 1 the latents stay exactly what the users sent", least=0)
    item_clip: float = in_wire(30.0, "largest absolute item update that one user may send", least=1e-6)
    latent_clip: float = in_wire(
        2.5, "largest absolute latent contribution w_ut·e_u that one user may hold", least=1e-6
    )
    count_items: int = in_privacy(30, COUNT_ITEMS, least=1)
    item_norm: float = in_privacy(0.5, ITEM_NORM, least=1e-6)
    latent_norm: float = in_privacy(
        0.03,
        "with noise: the largest Euclidean norm by which one user changes the latents in a round; what a user holds in "
        "them is scaled down to half of that",
        least=1e-6,
    )
    longest: float = in_ranking(0.9, LONGEST, least=0, most=1, before=1.0)
    evaluation_refresh: bool = in_ranking(True, "users refresh their latents by Eq. 6 before they rank items")

    @property
    def levels(self) -> int:
        """`item_levels`; 0 if the server has no moments, from which steps follow."""
        return self.item_levels if self.server_optimizer == "adam" else 0

    @property
    def combined(self) -> bool:
        """Whether training needs only Σ α_k e_t^k and Σ α_k e_t^{k−1}: no penalty needs e_t^0 itself."""
        return self.layers > 0 and self.l2 == 0 and self.combine != "concat"

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
            raise ConfigError("alphas are the weights of combine = 'mean': leave them out, or set combine to 'mean'")
        if self.live and self.combine == "concat" and self.layers:
            raise ConfigError("live = true is not defined for combine = 'concat': set live to false")
        if self.similarity == "cosine" and self.combine == "concat":
            raise ConfigError("similarity = 'cosine' is not defined for combine = 'concat': set it to 'inner'")


@dataclass(frozen=True)
class FactorisationOptions(FedGRecOptions):
    """FedGRec's options for matrix factorisation: no latents, inner products, uniform negatives, rates that stay."""

    turns: ClassVar[int] = 110
    longest: ClassVar[float] = 1.0  # type: ignore[misc]  # nothing of FedGRec's is beside the papers' models

    layers: int = option(0, "matrix factorisation has no latent embeddings", least=0, most=0)
    negatives: int = option(256, "negatives a user draws in a round, distinct", least=1)
    popular_negatives: float = option(0.0, "share of the negatives that is drawn by degree", least=0, most=1)
    similarity: str = option("inner", "a score in training: inner product or cosine", choices=("inner", "cosine"))
    reduction: str = option("mean", "the loss is the mean or the sum over a user's pairs", choices=("mean", "sum"))
    user_rate: float = option(0.02, "β of e_u^0", least=0)
    server_rate: float = option(0.01, "rate of the server's Adam", least=0)
    half_life: float = option(
        0.0, "rounds in which rates fall to half; below 1: as a share of all; 0: they stay", least=0
    )
    latents_every: int = option(1, "matrix factorisation has no latents", least=0)
    item_levels: int = option(0, ITEM_LEVELS, least=0, most=2**20)
    item_clip: float = option(0.3, "largest absolute item update that one user may send", least=1e-6)


@dataclass(frozen=True)
class PrivacyOptions:
    """Differential privacy, in a run as in what a federation agrees on."""

    dp_epsilon: float = in_privacy(
        0.0,
        "ε of differential privacy: one `dp_unit` more or less changes the chance of any opened result by a factor of "
        "e^ε at most; 0: no such promise",
        least=0,
        most=700,
        common="ε of differential privacy; 0: none",
    )
    dp_unit: str = in_privacy(
        "user",
        "what ε is about. user: one user with all of its items, by noise in every sum, for spectral, fedgrec, fedmf "
        "and federank; interaction: one item of one user, by decoys: every user trains on its items and on others, "
        "drawn once",
        choices=("user", "interaction"),
    )
    dp_delta: float = in_privacy(1e-6, "δ, the chance that ε does not hold: far below 1/users", least=1e-15, most=0.1)
    dp_rounds: int = in_privacy(
        0, "rounds over which ε is spread; training ends when they are spent; 0: as many as `rounds`", least=0
    )

    @property
    def noisy(self) -> bool:
        """Whether users add noise to what they send."""
        return self.dp_epsilon > 0 and self.dp_unit == "user"

    @property
    def decoys_epsilon(self) -> float:
        """ε of every user's decoys; 0: users tell the items that they have."""
        return self.dp_epsilon if self.dp_unit == "interaction" else 0.0

    def __post_init__(self) -> None:
        if 0 < self.dp_epsilon < 0.01:
            raise ConfigError("dp_epsilon is 0, which means no promise, or at least 0.01")


@dataclass(frozen=True)
class RunOptions(PrivacyOptions):
    """The simulation: how long, how judged, how saved."""

    rounds: int = option(
        0,
        "training rounds; 0: so many that users take part in `turns` of them on average",
        least=0,
        common="training rounds; 0: by `turns`",
    )
    turns: int = option(0, "rounds that a user takes part in, if rounds = 0; 0: the method's default", least=0)
    seed: int = option(
        0, "seed of users' keys, sampling and splits", least=0, most=2**63 - 1, common="of keys, samples and splits"
    )
    protocol: str = option(
        "honest",
        "honest: rounds are chosen on a validation split held out of train; paper: the best "
        "round on test, as published numbers on these data sets are",
        choices=("honest", "paper"),
    )
    validation: float = in_data(
        0.1, "share of each user's train items held out as validation under `honest`", least=0, most=0.9
    )
    evaluate_every: int = option(0, "rounds between evaluations; 0: twenty evaluations in a run", least=0)
    patience: int = option(0, "stop after this many evaluations without improvement; 0: never", least=0)
    checkpoint_every: int = option(500, "rounds between checkpoints; 0: only when interrupted", least=0)
    dropout: float = in_wire(0.0, "chance that a sampled user's upload is lost", least=0, most=1)
    secure: str = in_privacy(
        "off",
        "protocol (or the flag alone): every sum runs through real secure aggregation in this process; off: the plain "
        "sum, which has the same bits",
        choices=("off", "protocol"),
        bare="protocol",
        common="real secure aggregation",
    )
    secure_neighbours: int = in_privacy(
        0, "users that a user masks with; 0: enough for 5 % corrupt users and 5 % dropouts at 2^-40", least=0
    )
    secure_threshold: int = in_privacy(
        0, "holders of a user's shares that must be left; 0: chosen with secure_neighbours", least=0
    )
    topk: tuple[int, ...] = in_ranking(
        (20,),
        "list lengths k of Recall@k and NDCG@k; the first one selects the round",
        common="lengths of the lists that are judged",
    )
    ndcg_ideal: str = in_ranking(
        "capped",
        "NDCG's ideal: over min(|test|, k) items (capped), or over all test items (paper)",
        choices=("capped", "paper"),
    )
    candidates: int = in_ranking(
        0,
        "rank held-out items among so many that are drawn for each user from those that it never had, as papers of the "
        "federated field do; 0: among all items",
        least=0,
    )
    repeats: bool = in_ranking(False, "items that a user has seen are ranked too")
    kernel: str = option(
        "auto",
        "auto: the fastest on the device; cpu: fused, on all cores, where there is one; reference: readable, slow",
        choices=("auto", "reference", "cpu"),
    )
    device: str = option(
        "auto",
        "where to train: cuda (one GPU), cpu, or auto: a GPU if there is one that this method can use",
        choices=("auto", "cpu", "cuda"),
        common="auto, cpu or cuda",
    )
    threads: int = option(0, "threads on the CPU; 0: all cores, in PyTorch one. Results do not depend on it", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.secure_neighbours) != bool(self.secure_threshold):
            raise ConfigError("secure_neighbours and secure_threshold go together: set both, or neither")
        if self.candidates and self.repeats:
            raise ConfigError("candidates are items that a user never had: leave out candidates or repeats")
        if not self.topk or min(self.topk) < 1:
            raise ConfigError("topk needs at least one list length, each 1 or more, such as  topk = [20]")
